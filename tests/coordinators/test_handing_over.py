"""A hand-over gives the lease to the chosen contender, means nothing to a later leader, and dies with its command."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.servers.zk_fixtures import eventually
from trident.commands.exit_codes import EXIT_DIFFERENT, EXIT_NOT_COMPARED
from trident.commands.handover import HandoverOptions, _Handover, choose
from trident.coordinators.errors import CorruptZnode, TopologyError
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    LEAD,
    REHEARSE,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
    Step,
    contender,
    give_way,
)
from trident.coordinators.leadership import Leadership, current_holder
from trident.coordinators.records import Holder, Incarnation, decode, encode
from trident.coordinators.registration import Registration
from trident.coordinators.znodes import Create

OLD, NEW = {"lines": "old"}, {"lines": "new"}


class Process:
    """A contender in a thread, as hand-overs find it."""

    def __init__(self, zk, code=NEW):
        holder = current_holder()
        self.me = contender(holder, code)
        self.asked, self.lease, self.stop = [], None, threading.Event()
        self._leadership = Leadership(zk, "wc", ["lines"], holder, me=self.me)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()
        return self

    def _run(self):
        self.lease = self._leadership.acquire(self.stop, on_request=self.asked.append)


@pytest.fixture
def known(zk):
    """A topology with an incarnation, and its hand-overs."""
    zk.ensure_path(zk.path("wc"))
    zk.multi([Create(zk.path("wc", "incarnation"), encode(Incarnation("first")))])
    return Handovers(zk, "wc")


def request(to, epoch=1, phase=LEAD, **others):
    given = dict(id="r", incarnation="first", last=5, stop_old=False, by=current_holder(), **others)
    return HandoverRequest(to=to.me.id, epochs={"lines": epoch}, phase=phase, **given)


def test_the_chosen_one_leads_and_another_contender_leaves_the_lease_to_it(zk, known):
    leader = Leadership(zk, "wc", ["lines"]).acquire()
    others = [Process(zk).start() for _ in range(2)]
    chosen = Process(zk).start()
    assert eventually(lambda: len(known.contenders()) == 3)
    asked = request(chosen, phase=REHEARSE)
    assert known.ask(asked) and not known.ask(asked), "one at a time"
    assert eventually(lambda: chosen.asked) and leader.gives_way is None
    assert known.change(replace(asked, phase=LEAD))
    assert eventually(lambda: leader.gives_way is not None)
    leader.release()
    assert eventually(lambda: chosen.lease is not None)
    assert chosen.lease.given_by == replace(asked, phase=LEAD)
    assert not any(other.lease or other.asked for other in others)
    # It is void now: the one that it has put there keeps its lease, and takes part in the next election like any.
    assert chosen.lease.gives_way is None
    chosen.lease.release()
    assert eventually(lambda: any(other.lease for other in others))
    for other in others:
        other.stop.set()


def test_a_lease_is_not_left_to_one_that_has_died_nor_for_ever(zk, known, monkeypatch):
    monkeypatch.setattr("trident.coordinators.leadership._LEAVE_SECS", 1.0)
    leader = Leadership(zk, "wc", ["lines"]).acquire()
    other, chosen = Process(zk).start(), Process(zk)
    known.ask(request(chosen))  # which has no znode
    leader.release()
    assert eventually(lambda: other.lease is not None)
    known.withdraw("r")
    known.enlist(chosen.me)  # there, and it does not contend
    known.ask(request(chosen, epoch=2))
    assert eventually(lambda: other.lease.gives_way is not None)
    third = Process(zk).start()
    other.lease.release()
    assert eventually(lambda: third.lease is not None)


@pytest.mark.parametrize("void", [{"epoch": 7}, {"incarnation": "another"}])
def test_a_request_for_another_leader_or_life_is_none(zk, known, void):
    leader = Leadership(zk, "wc", ["lines"]).acquire()
    chosen, other = Process(zk).start(), Process(zk).start()
    assert eventually(lambda: len(known.contenders()) == 2)
    assert known.ask(replace(request(chosen, void.get("epoch", 1)), incarnation=void.get("incarnation", "first")))
    leader.release()
    assert eventually(lambda: chosen.lease or other.lease)
    assert leader.gives_way is None and not chosen.asked
    chosen.stop.set()
    other.stop.set()


def test_a_request_that_cannot_be_read_ends_no_contender(zk, known):
    leader = Leadership(zk, "wc", ["lines"]).acquire()
    zk.multi([Create(zk.path("wc", "handover.request"), b"{}")])
    other = Process(zk).start()
    assert eventually(lambda: known.contenders())
    leader.release()
    assert eventually(lambda: other.lease is not None)
    with pytest.raises(CorruptZnode):
        known.request()


def test_a_leader_does_not_give_way_to_itself(zk, known):
    """A command that chose it as a standby may have read the epochs of its lease."""
    leader = Process(zk)
    leader.start()
    assert eventually(lambda: leader.lease is not None)
    known.enlist(leader.me)
    other = Process(zk).start()
    assert eventually(lambda: len(known.contenders()) == 2)
    given = []
    for to in (leader, other):
        assert known.ask(request(to))
        eventually(lambda: leader.lease.gives_way is not None, 1.0)
        given.append(leader.lease.gives_way)
        known.withdraw("r")
    assert given[0] is None and given[1] is not None and given[1].to == other.me.id
    other.stop.set()


def test_a_process_says_who_it_is_in_the_session_that_it_has(zk, zk_connect, known):
    """The znode of a session that was lost here may be there for a while yet."""
    earlier, me = zk_connect(), contender(current_holder(), NEW)
    Handovers(earlier, "wc").enlist(me)
    known.enlist(me)
    earlier.close()
    assert known.contender(me.id) == me
    path = zk.path("wc", "handover.processes", me.id)
    before = zk.exists(path)
    known.enlist(me)
    assert zk.exists(path) == before and before.ephemeral_owner == zk.session_id


def test_without_a_topology_or_a_leader_there_is_nothing_to_hand_over(zk):
    asks = _Handover(zk, "nope", HandoverOptions(), [].append)
    with pytest.raises(TopologyError, match="ZooKeeper knows no topology 'nope'. Check the name"):
        asks.run()
    Registration(zk, "nope").ensure({"streams": {}, "states": {}, "groups": {}})
    with pytest.raises(TopologyError, match="no process leads nope: there is .*. Start it with the new code"):
        asks.run()


def test_changes_are_accepted_only_where_all_was_compared(zk):
    said = []
    asks = _Handover(zk, "wc", HandoverOptions(accept_changes=True), said.append)
    asks._leader = current_holder()
    assert asks._exit_code_of(HandoverAnswer("r", DIFFERENT, ("a row",))) == 0
    assert asks._exit_code_of(HandoverAnswer("r", DIFFERENT, ("a row",), all_compared=False)) == EXIT_NOT_COMPARED
    assert "not everything could be compared" in said[-1]
    strict = _Handover(zk, "wc", HandoverOptions(), said.append)
    strict._leader = current_holder()
    assert strict._exit_code_of(HandoverAnswer("r", DIFFERENT, ("a row",), all_compared=False)) == EXIT_DIFFERENT


def test_an_answer_is_of_one_request_and_replaces_the_one_before(zk, known):
    known.answer(HandoverAnswer("one", EQUAL, ("equal",)))
    known.answer(HandoverAnswer("two", EQUAL))
    assert known.answered("one") is None and known.answered("two") == HandoverAnswer("two", EQUAL)
    known.withdraw("one")
    assert known.answered("two") is not None
    known.withdraw("two")  # the rows in it are not kept for as long as the standby lives
    assert zk.exists(zk.path("wc", "handover.answer")) is None


def test_records_are_stored_as_they_are():
    chosen = contender(current_holder(), NEW)
    asked = HandoverRequest("r", chosen.id, "first", {"lines": 1}, LEAD, 5, True, current_holder())
    for record in (chosen, asked, HandoverAnswer("r", EQUAL, ("a", "b"))):
        assert decode("/p", encode(record), type(record)) == record
    with pytest.raises(ValueError, match="phase"):
        encode(replace(asked, phase="dance"))


# --- which standby ------------------------------------------------------------------------------


def process(host, pid, code):
    return contender(Holder(host, "boot", pid, "1", "t"), code)


def test_the_only_one_with_other_code_is_chosen_and_the_others_are_listed():
    leader, same = process("a", 1, OLD), process("b", 2, OLD)
    new, newer = process("c", 3, NEW), process("c", 4, {"lines": "newer"})
    holder = leader.holder
    assert choose("wc", holder, [leader, same, new], None) == new
    assert choose("wc", holder, [leader, same, new], "b:2") == same
    assert choose("wc", holder, [leader, new, newer], "4") == newer
    for there, to, text in [
        ([leader], None, "no standby"),
        ([leader, same], None, "has the code of its leader"),
        ([leader, new, newer], None, "several standbys with other code.*c:3 .*c:4"),
        ([leader, new], "d:9", "no standby d:9.*c:3"),
        ([new], None, "wc's leader takes no part in hand-overs"),
        ([new], "c:3", "wc's leader takes no part in hand-overs"),
    ]:
        with pytest.raises(TopologyError, match=text):
            choose("wc", holder, there, to)


def test_a_leader_ends_once_nothing_is_in_flight_or_late_and_goes_on_where_the_request_is_taken_back():
    giving, step = give_way(None, "r", drained=False, now=0.0)
    assert (giving.id, giving.stops, step) == ("r", False, Step.PAUSE)
    assert give_way(None, None, drained=True, now=0.0) == (None, None)
    assert give_way(giving, "r", drained=False, now=1.0) == (giving, None)
    for asked in (None, "another"):
        assert give_way(giving, asked, drained=True, now=1.0) == (None, Step.RESUME)
    stops = replace(giving, stops=True)
    assert give_way(giving, "r", drained=True, now=1.0) == (stops, Step.STOP)
    assert give_way(giving, "r", drained=False, now=giving.until + 1) == (stops, Step.STOP)
    assert give_way(stops, None, drained=True, now=2.0) == (stops, None), "it cannot be taken back any more"
