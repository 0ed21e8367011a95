"""The supervisor where the simulator does not reach: a JVM that does not answer, and one that has died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.servers.zk_fixtures import eventually
from trident.coordinators.errors import OutcomeUnknown, SessionEnded, TableError
from trident.coordinators.handing_over import LEAD, HandoverRequest, Handovers, contender
from trident.coordinators.leadership import Leadership, current_holder
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import GroupParts
from trident.coordinators.registration import Registration
from trident.coordinators.supervisor import Settings, Supervised, Supervisor
from trident.coordinators.znodes import Delete
from trident.watching.metric_facts import ROLES

TOPOLOGY = Supervised(
    "supervised", {"streams": {"lines": "Stub"}, "states": {}, "groups": {"lines": ["lines"]}}, {"lines": ["lines"]}
)


class Around:
    """A site, its opening, its parts and a listener: a call that a test does not set does nothing."""

    def __init__(self, **calls: Callable[..., Any]) -> None:
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


def site_of(committer: Around, explain: Callable[[BaseException], BaseException]) -> Around:
    opening = Around(parts=lambda store: GroupParts(Around(), Around(), Around()))
    opening.committer = committer
    return Around(opening=lambda *_: opening, explain=explain)


def test_drivers_are_abandoned_before_requests_are_ended_where_the_lease_is_lost(zk: Any) -> None:
    """To end a request is a call to the JVM, which may not answer."""
    answers = threading.Event()
    listener = Around(stops_serving=lambda: answers.wait(30))
    supervisor = Supervisor(zk, TOPOLOGY, site_of(Around(), lambda error: error), listener, Settings(Limits()))
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    assert supervisor.leading.wait(10)
    (group,) = supervisor.groups
    zk._client.stop()
    assert eventually(lambda: group.driver.state.mode is Mode.DEPOSED), "while the requests are being ended"
    assert not answers.is_set()
    supervisor.request_stop()
    answers.set()
    thread.join(10)
    assert not thread.is_alive() and supervisor.error is None


def test_a_process_that_was_deposed_and_then_stopped_knows_its_successor(zk: Any, zk_connect: Any) -> None:
    """It leaves the status to the successor, though it has nothing to merge and has waited for no other leader."""
    taken = threading.Event()
    listener = Around(stops_serving=lambda: taken.wait(30))
    supervisor = Supervisor(zk, TOPOLOGY, site_of(Around(), lambda error: error), listener, Settings(Limits()))
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    assert supervisor.leading.wait(10) and not supervisor.successor_leads
    zk.multi([Delete(zk.path("supervised", "live"))])
    lease = Leadership(zk_connect(), "supervised", ["lines"]).acquire()
    supervisor.request_stop()
    taken.set()
    thread.join(10)
    assert not thread.is_alive() and supervisor.error is None and supervisor.successor_leads
    assert lease is not None
    lease.release()


def test_a_recovery_is_not_tried_again_without_a_session(zk: Any) -> None:
    """The JVM died while a table was opened, which shows as an error of the table."""
    tries = []

    def refuse(record: Any) -> None:
        tries.append(record)
        raise TableError("the JVM did not answer")

    site = site_of(Around(open=refuse), lambda error: SessionEnded("the JVM of the Spark session is gone"))
    supervisor = Supervisor(zk, TOPOLOGY, site, Around(), Settings(Limits(max_attempts=3)))
    supervisor.run()
    assert isinstance(supervisor.error, SessionEnded) and len(tries) == 1


def test_a_leader_that_is_to_end_behind_a_hand_over_leads_on_where_the_chosen_one_hangs(
    zk: Any, zk_connect: Any, monkeypatch: Any
) -> None:
    """Else no process would lead; it ends once another one does."""
    monkeypatch.setattr("trident.coordinators.leadership._LEAVE_SECS", 0.5)
    stopped: list[dict[str, Any]] = []
    background_merger = Around(stop=lambda *given, **named: stopped.append({"given": given, **named}))
    opening = Around(parts=lambda store: GroupParts(Around(), Around(), background_merger), committer=Around())
    site = Around(opening=lambda *_: opening, explain=lambda error: error)
    settings = Settings(Limits(), merge_at_stop_secs=30.0)
    supervisor = Supervisor(zk, TOPOLOGY, site, Around(), settings)
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    assert supervisor.leading.wait(10)
    other, by = zk_connect(), current_holder()
    handovers, chosen = Handovers(other, "supervised"), contender(current_holder(), {})
    handovers.enlist(chosen)  # and it does not contend
    known = Registration(other, "supervised").read()
    assert known is not None
    asked = HandoverRequest("first", chosen.id, known[0], {"lines": 1}, LEAD, 5, True, by)
    assert handovers.ask(asked)
    assert eventually(lambda: supervisor.leading.is_set() and supervisor.term.epoch == 2)
    handovers.withdraw("first")
    # It has not spent its time on a MERGE, and a stop that comes later has all of its own.
    assert stopped == [{"given": (), "compact": False}] and supervisor.leave_at is None

    successor = Leadership(other, "supervised", ["lines"], me=chosen)
    taken = threading.Thread(target=successor.acquire, daemon=True)
    taken.start()
    assert handovers.ask(HandoverRequest("second", chosen.id, known[0], {"lines": 2}, LEAD, 5, True, by))
    thread.join(10)
    assert not thread.is_alive() and supervisor.error is None and supervisor.successor_leads


def test_a_process_that_leads_again_and_again_keeps_one_watch_on_requests(zk: Any, zk_connect: Any) -> None:
    supervisor = Supervisor(zk, TOPOLOGY, site_of(Around(), lambda error: error), Around(), Settings(Limits()))
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    other = zk_connect()
    for epoch in range(1, 5):
        assert eventually(lambda epoch=epoch: supervisor.leading.is_set() and supervisor.term.epoch == epoch)
        assert eventually(lambda: len(zk._client._data_watchers.get(zk.path("supervised", "live"), ())) == 1)
        if epoch < 4:
            other.multi([Delete(other.path("supervised", "live"))])
    assert len(zk._client._data_watchers[zk.path("supervised", "handover.request")]) == 1
    supervisor.request_stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_leader_tells_that_it_is_there_until_it_is_told(zk: Any, monkeypatch: Any) -> None:
    """One lost answer of ZooKeeper's, and hand-overs would never know this leader."""
    enlist, failures = Handovers.enlist, [OutcomeUnknown("lost"), OutcomeUnknown("lost")]

    def once_lost(self: Handovers, me: Any) -> None:
        if failures:
            raise failures.pop()
        enlist(self, me)

    monkeypatch.setattr(Handovers, "enlist", once_lost)
    settings = Settings(Limits(), poll_secs=0.05)
    supervisor = Supervisor(zk, TOPOLOGY, site_of(Around(), lambda error: error), Around(), settings)
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    assert eventually(lambda: [one.id for one in Handovers(zk, "supervised").contenders()] == [supervisor.me.id])
    supervisor.request_stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_process_has_one_role_also_while_zookeeper_is_away() -> None:
    supervisor: Any = Supervisor.__new__(Supervisor)
    supervisor.leading, supervisor.mode = threading.Event(), "standby"
    for connected, role in ((True, "standby"), (False, "suspended")):
        supervisor._zk = SimpleNamespace(connected=connected)
        assert supervisor.role == role
        assert role in ROLES, "the metric knows it"
    supervisor.leading.set()
    assert supervisor.role == "leader"
    supervisor.leading.clear()
    supervisor.mode = "merging"
    assert supervisor.role == "merging"
