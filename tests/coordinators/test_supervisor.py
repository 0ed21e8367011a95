"""The supervisor where the simulator does not reach: a JVM that does not answer, and one that has died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.zk_fixtures import eventually
from trident.coordinators.errors import SessionEnded, TableError
from trident.coordinators.leadership import Leadership
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import GroupParts
from trident.coordinators.recovery import Settings, Supervised
from trident.coordinators.supervisor import Supervisor
from trident.coordinators.znodes import Delete

TOPOLOGY = Supervised(
    "supervised",
    {"streams": {"lines": "Stub"}, "states": {}, "groups": {"lines": ["lines"]}},
    {"lines": ["lines"]},
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
