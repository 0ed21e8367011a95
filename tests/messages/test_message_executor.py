"""The executor of a stream of messages by itself: what is handed out, what is in which batch, what the spout hears."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.messages.message_helpers import Messages
from trident.coordinators.errors import SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.messages.dead_letters import request_replay
from trident.messages.executor import MessageSpoutExecutor
from trident.messages.ledger import Failure, Settled
from trident.spouts.contracts import SpoutContext
from trident.spouts.executors import BeginContext
from trident.spouts.rich import SpoutCollector, message_key
from trident.states.core.values import loads
from trident.workers.anchors import ANCHORS, read_anchors

OPTIONS: dict[str, Any] = {
    "max_spout_pending": 2,
    "ackers": 1,
    "max_pending_messages": 15,
    "max_replays": 1,
    "replay_backoff_secs": 0.0,
    "remember_messages_secs": 60.0,
}
BROKEN = Failure("each(f)", "f.py:1", "ValueError: broken")


@pytest.fixture
def make(tmp_path: Path):
    def executor(spout: Messages, **options: Any) -> MessageSpoutExecutor:
        given = {**OPTIONS, "warehouse": str(tmp_path), **options}
        return MessageSpoutExecutor(spout, SpoutContext(None, "t", "s", tmp_path, "i", given))

    return executor


def begin(executor: MessageSpoutExecutor, txid: int, attempt_id: int = 0, shrink: bool = False) -> TransactionAttempt:
    attempt = TransactionAttempt(txid, attempt_id)
    executor.initialize(BeginContext(attempt, shrink=shrink))
    return attempt


def first_attempt(executor: MessageSpoutExecutor) -> TransactionAttempt:
    assert executor.is_ready(1)
    return begin(executor, 1)


def ids(executor: MessageSpoutExecutor, attempt: TransactionAttempt) -> list:
    return [one.message_id for one in executor.messages(attempt)]


def finish(executor: MessageSpoutExecutor, attempt: TransactionAttempt, *failed: Any) -> list[str]:
    roots = {one.root: BROKEN for one in executor.messages(attempt) if one.message_id in failed}
    letters = executor.outcome(attempt, roots).letters
    executor.success(attempt)
    return [letter["message"] for letter in letters]


def test_each_message_is_in_one_batch_and_stays_there_over_all_attempts(make) -> None:
    spout = Messages("n int", {n: (n,) for n in range(20)}.items())
    executor = make(spout)
    assert executor.is_ready(1)
    first, second = begin(executor, 1), begin(executor, 2)
    assert (ids(executor, first), ids(executor, second)) == ([*range(5)], [*range(5, 10)])
    assert executor.is_ready(3), "the next batch waits already"
    assert ids(executor, begin(executor, 3)) == [*range(10, 15)]
    assert not executor.is_ready(4), "fifteen messages are out: as many as may be"
    again = begin(executor, 1, 1)
    assert ids(executor, again) == [*range(5)] and ids(executor, begin(executor, 2, 1)) == [*range(5, 10)]
    assert finish(executor, again) == [] and spout.acked == [*range(5)]
    assert executor.is_ready(4) and ids(executor, begin(executor, 4)) == [*range(15, 20)]
    assert executor.counts() == (20, 15)


def test_the_rows_of_a_batch_have_their_messages_as_roots(make) -> None:
    executor = make(Messages("n int", {"a": [(1,), (2,)], "b": [], "c": [(3,)]}.items()))
    attempt = first_attempt(executor)
    table = executor.emit(attempt, frozenset(), anchors=True).data
    assert isinstance(table, pa.Table) and table.column("n").to_pylist() == [1, 2, 3]
    counts, roots, values = read_anchors(table.column(ANCHORS).combine_chunks())
    assert counts.tolist() == [1, 1, 1] and roots[0] == roots[1] != roots[2] and len(set(values.tolist())) == 3
    without = executor.emit(attempt, frozenset([int(roots[0])]), anchors=True).data
    assert without.column("n").to_pylist() == [3]
    assert finish(executor, attempt) == [] and executor.counts() == (3, 0), "b, without a tuple, is acknowledged too"


def test_a_plain_message_is_nothing_to_the_garbage_collector(make) -> None:
    """Objects for each message cost the driver more than all else that it does for them."""
    added = []
    for _ in range(2):  # at first modules are imported
        executor = make(Messages("n int", {n: (n,) for n in range(9_000)}.items()), max_pending_messages=9_000)
        executor._open()
        gc.collect()
        before = len(gc.get_objects())
        attempt = first_attempt(executor)
        executor.emit(attempt, frozenset(), anchors=True)
        assert len(executor.outcome(attempt, {}).settled) == 3_000
        gc.collect()
        gc.collect()  # of nested tuples one level in each
        added.append(len(gc.get_objects()) - before)
        executor.success(attempt)
        assert executor.counts() == (9_000, 6_000)
    assert added[1] < 1_000


def test_messages_with_and_without_ids_keep_their_order_and_their_rows(make) -> None:
    executor = make(Messages("n int", {None: [(0,)], "a": [(1,), (2,)], "b": (3,)}.items()))
    attempt = first_attempt(executor)
    table = executor.emit(attempt, frozenset(), anchors=True).data
    counts, roots, values = read_anchors(table.column(ANCHORS).combine_chunks())
    assert table.column("n").to_pylist() == [0, 1, 2, 3] and counts.tolist() == [0, 1, 1, 1]
    assert roots[0] == roots[1] != roots[2] and len(set(values.tolist())) == 3
    assert executor.counts() == (3, 2)
    assert finish(executor, attempt, "b") == [] and executor.counts() == (3, 1)


def test_a_message_that_is_handed_out_twice_counts_once(make) -> None:
    spout = Messages("n int", {1: (1,)}.items())
    executor = make(spout)
    attempt = first_attempt(executor)
    spout.put(1, (1,))  # the source was impatient: it is in a batch
    assert not executor.is_ready(2)
    finish(executor, attempt)
    spout.put(1, (1,))  # and again when it is settled already
    assert not executor.is_ready(2) and spout.acked == [1, 1] and not spout.kept


def test_what_fails_comes_again_and_is_given_up_in_the_end(make) -> None:
    spout = Messages("n int", {1: (1,), 2: (2,)}.items())
    executor = make(spout)
    executor.is_ready(1)
    assert finish(executor, begin(executor, 1), 2) == [] and (spout.acked, spout.failed) == ([1], [])
    assert executor.is_ready(2) and spout.failed == [2]
    attempt = begin(executor, 2)
    assert ids(executor, attempt) == [2]
    assert finish(executor, attempt, 2) == ["2"] and spout.acked == [1, 2] and executor.counts()[1] == 0


def test_the_spout_hears_of_a_failure_when_its_time_has_come(make) -> None:
    spout = Messages("n int", {1: (1,)}.items())
    executor = make(spout, replay_backoff_secs=600.0)
    finish(executor, first_attempt(executor), 1)
    assert not executor.is_ready(2) and spout.failed == [] and executor.counts()[1] == 1


def test_an_attempt_that_does_not_count_settles_nothing(make) -> None:
    spout = Messages("n int", {1: (1,), 2: (2,)}.items())
    executor = make(spout)
    first = first_attempt(executor)
    executor.outcome(first, {executor.messages(first)[0].root: BROKEN})
    executor.cancel(first)
    assert finish(executor, begin(executor, 1, 1)) == [] and spout.acked == [1, 2] and spout.failed == []


def test_a_batch_that_takes_too_long_becomes_smaller_and_a_single_message_is_the_reason(make) -> None:
    spout = Messages("n int", {n: (n,) for n in range(20)}.items())
    executor = make(spout, max_pending_messages=60)
    executor.is_ready(1)
    begin(executor, 1)
    assert ids(executor, begin(executor, 1, 1, shrink=True)) == [0, 1]
    last = begin(executor, 1, 2, shrink=True)
    assert ids(executor, last) == [0] and executor.suspects(last) == {}
    last = begin(executor, 1, 3, shrink=True)
    (failure,) = executor.suspects(last).values()
    assert "longer than message_timeout_secs" in failure.error
    assert ids(executor, begin(executor, 2)) == [*range(1, 20)], "the others are handed out in their order"


def test_dead_letters_are_tried_again_once_a_request(make, tmp_path: Path) -> None:
    spout = Messages("n int, t string")
    executor = make(spout)
    name = request_replay(tmp_path, [{"message": '"x"', "tuples": '[[1,"a"],[2,"b"]]'}])
    assert executor.is_ready(1)
    attempt = begin(executor, 1)
    (one,) = executor.messages(attempt)
    assert (one.message_id, one.rows) == ("x", ((1, "a"), (2, "b"))) and one.request == name
    assert finish(executor, attempt) == [] and spout.acked == [], "the spout has long been told"
    assert not list((tmp_path / "replays").iterdir())
    again = request_replay(tmp_path, [{"message": '"x"', "tuples": '[[1,"a"]]'}])
    executor._requests._polled_at = -1.0
    assert executor.is_ready(2) and executor.messages(begin(executor, 2))[0].request == again


def test_what_is_settled_is_forgotten_after_a_while() -> None:
    settled = Settled(100.0)
    settled.add("old", ago_secs=101.0)
    settled.add("new")
    assert not settled.knows("old") and settled.knows("new") and len(settled) == 1


@pytest.mark.parametrize("wrong", [object(), {1, 2}, float("nan")])
def test_a_message_id_that_could_not_be_recognised_is_refused(wrong: Any) -> None:
    with pytest.raises(SourceError, match="message id"):
        SpoutCollector({"default": 1}).emit("a", wrong)


def test_ids_are_distinct_as_json_is() -> None:
    assert message_key(1) != message_key("1") and message_key([1, "a"]) == message_key((1, "a"))


def test_a_tuple_must_have_a_value_per_field() -> None:
    collector = SpoutCollector({"default": 2})
    with pytest.raises(SourceError, match="2 values"):
        collector.emit("a", 1)
    with pytest.raises(SourceError, match="no stream 'other'"):
        collector.emit(("a", "b"), 1, "other")
    assert collector.drain() == []


def test_what_the_broker_could_not_hear_it_is_told_again(make) -> None:
    class Away(Messages):
        away = False

        def ack(self, message_id: Any) -> None:
            if self.away:
                raise ConnectionError("the broker is away")
            super().ack(message_id)

        def fail(self, message_id: Any) -> None:
            if self.away:
                raise ConnectionError("the broker is away")
            super().fail(message_id)

    spout = Away("n int", {n: (n,) for n in range(5)}.items())
    executor = make(spout)
    executor.is_ready(1)
    spout.away = True
    finish(executor, begin(executor, 1), 0, 1, 2)
    assert not executor.is_ready(2) and (spout.acked, spout.failed) == ([], [])
    spout.away, executor._notify_at = False, 0.0
    assert executor.is_ready(2)
    assert sorted(spout.acked) == [3, 4] and sorted(spout.failed) == [0, 1, 2]
    attempt = begin(executor, 2)
    assert sorted(ids(executor, attempt)) == [0, 1, 2]
    finish(executor, attempt)
    assert executor.counts()[1] == 0 and not spout.kept


def test_a_message_that_does_not_fit_its_fields_fails_by_itself(make) -> None:
    executor = make(Messages("n long", {1: (1,), 2: ("not a number",), 3: (3,)}.items()), max_replays=0)
    attempt = first_attempt(executor)
    suspects = executor.suspects(attempt)
    assert len(suspects) == 1 and "'n'" in next(iter(suspects.values())).error
    assert executor.emit(attempt, frozenset(suspects), anchors=False).data.column("n").to_pylist() == [1, 3]
    assert executor.outcome(attempt, suspects).letters[0]["message"] == "2"


def test_a_dead_letter_holds_what_the_batch_would_have_had_whatever_the_spout_emitted(make) -> None:
    import datetime

    import numpy as np

    class Odd:
        pass

    rows = [(np.int64(7), datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2))))]
    executor = make(Messages("n long, at timestamp", {1: rows, 2: [(Odd(), None)]}.items()), max_replays=0)
    attempt = first_attempt(executor)
    roots = {one.root: BROKEN for one in executor.messages(attempt)}
    first, second = executor.outcome(attempt, roots).letters
    moment = datetime.datetime(2025, 12, 31, 22, tzinfo=datetime.timezone.utc)
    assert loads(first["tuples"]) == [[7, moment]] and second["tuples"] is None


def test_replay_requests_wait_for_a_run_that_tracks_messages(make, tmp_path: Path) -> None:
    request_replay(tmp_path, [{"message": "1", "tuples": "[[1]]"}])
    spout = Messages("n int")
    assert not make(spout, ackers=0).is_ready(1) and spout.acked == []
    assert make(spout).is_ready(1)


def test_one_message_that_can_never_be_told_of_does_not_stand_before_the_others(make) -> None:
    class Forgets(Messages):
        def fail(self, message_id: Any) -> None:
            if message_id == 0:
                raise KeyError("no such receipt")
            super().fail(message_id)

        def ack(self, message_id: Any) -> None:
            if message_id == 3:
                raise KeyError("no such receipt")
            super().ack(message_id)

    spout = Forgets("n int", {n: (n,) for n in range(6)}.items())
    executor = make(spout, max_pending_messages=30)
    finish(executor, first_attempt(executor), 0, 1, 2)
    for _ in range(4):
        executor._notify_at = 0.0
        executor.is_ready(2)
    assert sorted(spout.failed) == [1, 2] and sorted(spout.acked) == [4, 5]


def test_a_message_that_cannot_be_acknowledged_is_recognised_however_late_it_comes_again(make) -> None:
    class Expired(Messages):
        def ack(self, message_id: Any) -> None:
            if message_id == 0:
                raise KeyError("no such receipt")
            super().ack(message_id)

    spout = Expired("n int", {n: (n,) for n in range(2)}.items())
    executor = make(spout, remember_messages_secs=0.0)
    finish(executor, first_attempt(executor))
    spout.put(2, (2,))
    executor.is_ready(2)
    finish(executor, begin(executor, 2))  # what was settled before is forgotten now
    spout.kept[0] = (0,)
    spout._waiting.append(0)
    assert not executor.is_ready(3)


def test_what_is_known_to_fail_stays_known_when_its_batch_shrinks(make) -> None:
    executor = make(Messages("n int", {n: (n,) for n in range(20)}.items()), max_pending_messages=60)
    attempt = first_attempt(executor)
    executor.suspect(attempt, {executor.messages(attempt)[19].root: BROKEN})
    smaller = begin(executor, 1, 1, shrink=True)
    assert ids(executor, smaller) == [19, 0, 1] and list(executor.suspects(smaller).values()) == [BROKEN]


class Between(dict):
    """Failures of an attempt, in the midst of whose reading something else happens in another thread.

    That ends at once, or it waits until the failures are known.
    """

    def __init__(self, failures: dict[int, Failure], happens: Callable[[], Any]) -> None:
        super().__init__(failures)
        self.thread = threading.Thread(target=happens)

    def __iter__(self) -> Iterator[int]:
        if self.thread.ident is None:
            self.thread.start()
            self.thread.join(0.5)
        return super().__iter__()


def test_an_old_attempt_that_still_looks_for_failures_puts_no_message_into_two_batches(make) -> None:
    executor = make(Messages("n int", {n: (n,) for n in range(20)}.items()), max_pending_messages=60)
    old = first_attempt(executor)
    root = executor.messages(old)[19].root
    failures = Between({root: BROKEN}, lambda: begin(executor, 1, 1, shrink=True))
    executor.suspect(old, failures)
    failures.thread.join(10)
    newer, behind = TransactionAttempt(1, 1), begin(executor, 2)
    assert sorted(ids(executor, newer) + ids(executor, behind)) == [*range(20)], "each in one of them"
    assert ids(executor, newer) == [19, 0, 1] and list(executor.suspects(newer)) == [root]
    executor.suspect(old, {one.root: BROKEN for one in executor.messages(newer)})
    assert list(executor.suspects(newer)) == [root], "it has been replaced"
    assert len(executor.outcome(newer, {root: BROKEN}).settled) == 2, "the two that it has processed"


def test_an_attempt_that_looks_for_failures_while_its_transaction_succeeds_brings_no_batch_back(make) -> None:
    executor = make(Messages("n int", {n: (n,) for n in range(3)}.items()))
    attempt = first_attempt(executor)
    failures = Between({executor.messages(attempt)[1].root: BROKEN}, lambda: finish(executor, attempt))
    executor.suspect(attempt, failures)
    failures.thread.join(10)
    assert ids(executor, attempt) == []
    executor.suspect(attempt, dict(failures))
    assert ids(executor, attempt) == []


@pytest.mark.parametrize(("secs", "given"), [(0.01, (20, 21)), (0.00001, (60_000, 61_000))])
def test_a_fast_spout_is_asked_until_a_batch_is_full_and_a_slow_one_for_a_short_time(
    make, monkeypatch: pytest.MonkeyPatch, secs: float, given: tuple[int, int]
) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    class Endless(Messages):
        def next_tuple(self) -> None:
            clock.now += secs
            self.collector.emit(1)

    clock = Clock()
    executor = make(Endless("n int"), max_pending_messages=180_000)
    monkeypatch.setattr("trident.messages.executor.time", clock)
    assert executor.is_ready(1)
    least, most = given
    assert least <= executor.backlog().rows <= most


def test_attempts_in_flight_do_not_wait_for_the_spout(make) -> None:
    """While it is asked for the messages of the next batch: emitting, looking for failures, ending an attempt."""

    class Waits(Messages):
        done = True

        def next_tuple(self) -> None:
            if not self._waiting and asked.is_set():
                is_inside.set()
                self.done = go_on.wait(10)
            super().next_tuple()

    asked, is_inside, go_on = threading.Event(), threading.Event(), threading.Event()
    spout = Waits("n int", {n: (n,) for n in range(3)}.items())
    executor = make(spout)
    attempt = first_attempt(executor)
    asked.set()
    thread = threading.Thread(target=executor.is_ready, args=(2,))
    thread.start()
    assert is_inside.wait(10)
    assert ids(executor, attempt) == [0, 1, 2] and executor.emit(attempt, frozenset(), anchors=True).data.num_rows == 3
    root = executor.messages(attempt)[1].root
    executor.suspect(attempt, {root: BROKEN})
    assert executor.suspects(attempt) == {root: BROKEN}
    assert len(executor.outcome(attempt, {root: BROKEN}).settled) == 2
    executor.cancel(attempt)
    go_on.set()
    thread.join(10)
    assert spout.done and not thread.is_alive(), "a call has waited for the spout"


def test_a_success_is_told_between_two_looks_at_what_is_open(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast spout may be asked for a second."""

    class Fast(Messages):
        given = 0

        def next_tuple(self) -> None:
            if not asked.is_set():
                super().next_tuple()
                return
            self.given += 1
            self.collector.emit(self.given)
            if self.given > 1_500 and not given:
                is_inside.set()
                time.sleep(0.0005)  # the other thread goes on

        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            given.append(self.given)

    asked, is_inside, given = threading.Event(), threading.Event(), list[int]()
    monkeypatch.setattr("trident.messages.executor.time", SimpleNamespace(monotonic=lambda: 0.0))
    executor = make(Fast("n int", {n: (n,) for n in range(3)}.items()), max_pending_messages=10_000)
    attempt = first_attempt(executor)
    executor.outcome(attempt, {})
    asked.set()
    thread = threading.Thread(target=executor.is_ready, args=(2,))
    thread.start()
    assert is_inside.wait(10)
    executor.success(attempt)
    thread.join(60)
    assert len(given) == 3 and max(given) < 9_000 < executor.backlog().rows


def test_the_backlog_is_what_waits_at_the_spout_too_and_unknown_where_the_spout_does_not_count(make) -> None:
    messages = {n: (n,) for n in range(100)}
    executor = make(Messages("n int", messages.items()), max_pending_messages=10)
    assert executor.is_ready(1) and executor.backlog().rows == 100
    taken = len(ids(executor, begin(executor, 1)))
    assert 0 < taken < 10 and executor.backlog().rows == 100 - taken, "some wait in the executor"

    class Counts(Messages):
        backlog = None

    executor = make(Counts("n int", messages.items()), max_pending_messages=10)
    assert executor.is_ready(1) and executor.backlog() is None


def test_what_a_spout_gave_before_it_raised_is_taken(make) -> None:
    class Breaks(Messages):
        def next_tuple(self) -> None:
            super().next_tuple()
            if not self._waiting:
                raise ConnectionError("the broker is away")

    spout = Breaks("n int", {n: (n,) for n in range(3)}.items())
    executor = make(spout)
    with pytest.raises(ConnectionError):
        executor.is_ready(1)
    assert ids(executor, begin(executor, 1)) == [0, 1, 2]


def test_an_untracked_message_that_cannot_be_acknowledged_takes_no_other_with_it(make) -> None:
    class Refuses(Messages):
        def ack(self, message_id: Any) -> None:
            super().ack(message_id)
            if message_id == 1 and self.acked.count(1) == 1:
                raise KeyError("no such receipt")

    spout = Refuses("n int", {n: (n,) for n in range(5)}.items())
    executor = make(spout, ackers=0)
    with pytest.raises(KeyError):
        executor.is_ready(1)
    assert executor.is_ready(1)
    assert ids(executor, begin(executor, 1)) == [0, 2, 3, 4]


def test_messages_without_an_id_are_bounded_too(make) -> None:
    class Endless(Messages):
        def next_tuple(self) -> None:
            self.collector.emit(1)

    executor = make(Endless("n int"), max_pending_messages=10)
    for _ in range(3):
        assert executor.is_ready(1)
    assert executor.backlog().rows == 10
