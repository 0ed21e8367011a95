"""Requests that share a Spark job: who goes into which job, how they fail, and that answers never mix."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer

from tests.servers.zk_fixtures import eventually
from trident import Aggregator, Count, FilterNull, MapGet, Reducer, Split, StaticMap, Sum, TridentTopology
from trident.drpc import request_jobs as module
from trident.drpc.request_jobs import REQUESTS_MAX, Found, Job, PinnedStateMoved, RequestBatcher, Waiting
from trident.drpc.requests import DrpcRequests
from trident.planning.nodes import RESULT
from trident.planning.requests import drpc_plans
from trident.spark.rows import arrow_rows
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers import requests as on_worker
from trident.workers.requests import (
    ALONE,
    ANSWERED,
    FAILED,
    LATER,
    MOVED,
    Answers,
    Outcome,
    RequestBatch,
    RequestId,
    as_batch,
    read_answers,
)

WAIT_SECS = 60.0

# --- who goes into which job -------------------------------------------------------------


class Jobs:
    """Jobs that end when they are told to; each request's answer is its value.

    Attributes:
        begun: the values of the requests of each job.
        fails: says of a job's values what becomes of it: None: each is answered; an error; or outcomes.
        deaf: the values of jobs that go on where they are cancelled, until ``let_go``.
    """

    def __init__(self) -> None:
        self.begun: list[list[Any]] = []
        self.alone: list[Any] = []
        self.cancelled: list[str] = []
        self.deaf: list[list[Any]] = []
        self.let_go = threading.Event()
        self.fails: Callable[[list[Any]], Exception | Sequence[Outcome] | None] = lambda values: None
        self.may_end = threading.Semaphore(0)
        self.ends = threading.Event()
        self._stops: dict[str, threading.Event] = {}
        self._threads = ThreadPoolExecutor(40)
        fails: Any = lambda plan, text, request_id: RuntimeError(text) if text else None  # noqa: E731
        plan: Any = SimpleNamespace(function="f")
        self.together = RequestBatcher(plan, self._run, self._alone, fails, self._cancel, self._threads.submit)

    def _run(self, plan: Any, job: Job) -> Found | None:
        values = [one.values[0] for one in job.waiting]
        stop = self._stops.setdefault(job.name, threading.Event())
        self.begun.append(values)
        if values in self.deaf:
            assert self.let_go.wait(WAIT_SECS)
        while not (values in self.deaf or self.ends.is_set() or self.may_end.acquire(timeout=0.01)):
            if stop.is_set():
                raise RuntimeError("cancelled")
        result = self.fails(values)
        if isinstance(result, Exception):
            raise result
        outcomes = result or [Outcome(ANSWERED, 1, "", 0.001)] * len(values)
        rows: Any = [(value,) for value, one in zip(values, outcomes) for _ in range(one.rows)]
        return Found(outcomes, rows, {"group": len(self.begun)})

    def _alone(self, plan: Any, waiting: Waiting) -> None:
        self.alone.append(waiting.values[0])
        waiting.answer.set_result(([("alone", waiting.values[0])], {}))  # type: ignore[list-item]

    def _cancel(self, name: str) -> None:
        self.cancelled.append(name)
        self._stops.setdefault(name, threading.Event()).set()

    def ask(self, *values: Any) -> list[Waiting]:
        made = [Waiting(f"id{value}", (value,), time.monotonic() + WAIT_SECS) for value in values]
        for one in made:
            self.together.put(one)
        return made

    def has_begun(self, count: int) -> None:
        assert eventually(lambda: len(self.begun) >= count, WAIT_SECS), self.begun

    def fill(self) -> list[Waiting]:
        """As many jobs as run at once."""
        first = self.ask("a")
        self.has_begun(1)
        first += self.ask("b")
        self.has_begun(2)
        return first


@pytest.fixture
def jobs() -> Any:
    made = Jobs()
    yield made
    made.ends.set()
    made.together.close()
    made._threads.shutdown()


def answers(waiting: Sequence[Waiting]) -> list[Any]:
    return [[tuple(row) for row in one.answer.result(WAIT_SECS)[0]] for one in waiting]


def test_requests_that_come_while_jobs_run_go_together_into_the_next(jobs: Jobs) -> None:
    first = jobs.fill()
    waiting = jobs.ask(*range(6))
    jobs.ends.set()
    assert answers([*first, *waiting]) == [[("a",)], [("b",)], *([(n,)] for n in range(6))]
    assert jobs.begun == [["a"], ["b"], [0, 1, 2, 3, 4, 5]]
    assert {one.answer.result()[1]["group"] for one in waiting} == {3}, "as of the same transactions"


def test_a_job_takes_as_many_as_it_can_probably_answer_in_time(jobs: Jobs) -> None:
    first = jobs.fill()
    jobs.fails = lambda values: [Outcome(ANSWERED, 1, "", module._BATCH_SECS / 4)] * len(values)
    waiting = jobs.ask(*range(9))
    jobs.ends.set()
    answers([*first, *waiting])
    assert max(map(len, jobs.begun)) <= 8 and len(jobs.begun[-1]) <= 4
    jobs.fails = lambda values: [Outcome(ANSWERED, 1, "", 1e-9)] * len(values)
    for _ in range(40):
        answers(jobs.ask("quick"))
    jobs.begun.clear()
    jobs.ends.clear()
    first, waiting = jobs.fill(), jobs.ask(*range(3 * REQUESTS_MAX))
    jobs.ends.set()
    answers([*first, *waiting])
    assert max(map(len, jobs.begun)) == REQUESTS_MAX


def test_of_a_job_that_fails_only_the_request_that_is_to_blame_goes_another_way(jobs: Jobs) -> None:
    first = jobs.fill()
    jobs.fails = lambda values: RuntimeError("the worker died") if "poison" in values else None
    waiting = jobs.ask(1, 2, "poison", 3)
    jobs.ends.set()
    assert answers([*first, *waiting]) == [[("a",)], [("b",)], [(1,)], [(2,)], [("alone", "poison")], [(3,)]]
    assert jobs.alone == ["poison"]


def test_outcomes_reach_the_request_that_they_are_of(jobs: Jobs) -> None:
    kinds = {"one": Outcome(ANSWERED, 1), "none": Outcome(ANSWERED, 0), "three": Outcome(ANSWERED, 3)}
    kinds |= {"raises": Outcome(FAILED, 0, "boom"), "newer": Outcome(FAILED, 0, ""), "odd": Outcome(ALONE)}
    first = jobs.fill()
    jobs.fails = lambda values: [kinds.get(value, Outcome(ANSWERED, 1)) for value in values]
    waiting = jobs.ask("three", "raises", "none", "odd", "one", "newer", "last")
    jobs.ends.set()
    three, raises, none, odd, one, newer, last = waiting
    assert answers([*first, three, none, odd, one, newer, last])[2:] == [
        [("three",)] * 3, [], [("alone", "odd")], [("one",)], [("alone", "newer")], [("last",)]
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="boom"):
        raises.answer.result(WAIT_SECS)


def test_requests_for_which_there_was_no_time_are_the_first_of_the_next_job(jobs: Jobs) -> None:
    first = jobs.fill()
    done = [Outcome(ANSWERED, 1)]
    jobs.fails = lambda values: done * 2 + [Outcome(LATER)] * (len(values) - 2) if len(values) > 2 else None
    waiting = jobs.ask(*range(5))
    jobs.ends.set()
    assert answers([*first, *waiting])[2:] == [[(n,)] for n in range(5)]
    assert [values for values in jobs.begun if len(values) > 2] == [[0, 1, 2, 3, 4], [2, 3, 4]]


@pytest.mark.parametrize("whole", [True, False])
def test_requests_whose_state_goes_on_and_on_end_up_alone(jobs: Jobs, whole: bool) -> None:
    jobs.ends.set()
    jobs.fails = lambda values: PinnedStateMoved() if whole else [Outcome(MOVED)] * len(values)
    assert answers(jobs.ask(1)) == [[("alone", 1)]] and len(jobs.begun) == module._TRIES


def test_a_caller_that_goes_drops_only_its_own_request(jobs: Jobs) -> None:
    first = jobs.fill()
    waiting = jobs.ask(*range(4))
    jobs.together.leave(waiting[1])  # it waits
    jobs.may_end.release()
    jobs.has_begun(3)
    assert jobs.begun[2] == [0, 2, 3]
    jobs.together.leave(waiting[2])  # it runs, with others
    assert not jobs.cancelled
    jobs.ends.set()
    assert answers([*first, waiting[0], waiting[3]])[2:] == [[(0,)], [(3,)]]
    assert waiting[2].answer.cancelled()


def test_a_job_is_cancelled_with_the_last_of_its_callers(jobs: Jobs) -> None:
    jobs.fill()
    waiting = jobs.ask(1, 2)
    jobs.may_end.release()
    jobs.has_begun(3)
    for one in waiting:
        assert not jobs.cancelled
        jobs.together.leave(one)
    (group,) = jobs.cancelled
    assert re.fullmatch(r"trident-drpc-f-\d+", group) and not jobs.alone


def test_requests_that_another_one_keeps_waiting_go_on_in_jobs_of_their_own(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.fill()
    waiting = jobs.ask(*range(5))
    jobs.may_end.release()
    jobs.has_begun(3)
    jobs.together.check_progress(waiting[0])
    assert not jobs.cancelled, "it has not waited long"
    monkeypatch.setattr(module, "SLOW_SECS", 0.0)
    jobs.together.check_progress(waiting[0])
    jobs.together.check_progress(waiting[1])
    assert len(jobs.cancelled) == 1
    jobs.has_begun(8)  # side by side
    assert sorted(jobs.begun[3:]) == [[n] for n in range(5)]
    jobs.together.check_progress(waiting[0])
    assert len(jobs.cancelled) == 1, "a request that runs alone has its time"
    jobs.ends.set()
    assert answers(waiting) == [[(n,)] for n in range(5)] and not jobs.alone


def test_slow_requests_of_a_job_each_keep_no_other_one_from_its_turn(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, (waiting,) = jobs.fill(), jobs.ask("c")
    jobs.together.check_progress(waiting)
    assert len(jobs.begun) == 2, "it has not waited long"
    monkeypatch.setattr(module, "SLOW_SECS", 0.0)
    jobs.together.check_progress(waiting)
    jobs.has_begun(3)
    assert jobs.begun[2] == ["c"] and not jobs.cancelled
    jobs.ends.set()
    assert answers([*slow, waiting]) == [[("a",)], [("b",)], [("c",)]]


@pytest.mark.parametrize("outcome", [LATER, MOVED, ALONE, ANSWERED, None])
def test_requests_of_a_job_that_was_given_up_go_on_in_one_way(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, outcome: str | None
) -> None:
    first = jobs.fill()
    jobs.deaf = [[1, 2]]
    told_ = [Outcome(ANSWERED, 1), Outcome(outcome, int(outcome == ANSWERED))] if outcome else PinnedStateMoved()
    jobs.fails = lambda values: told_ if values == [1, 2] else None
    waiting = jobs.ask(1, 2)
    jobs.may_end.release()
    jobs.has_begun(3)
    monkeypatch.setattr(module, "SLOW_SECS", 0.0)
    jobs.together.check_progress(waiting[0])
    jobs.has_begun(5)
    jobs.let_go.set()  # it ends, and was not cancelled in time
    assert eventually(lambda: not any(len(job.waiting) == 2 for job in jobs.together._running), WAIT_SECS)
    assert [one.answer.done() for one in waiting] == [outcome is not None, outcome == ANSWERED]
    jobs.ends.set()
    assert answers([*first, *waiting])[2:] == [[(1,)], [(2,)]]
    assert len(jobs.begun) == 5 and not jobs.alone


def test_a_request_whose_caller_has_gone_begins_no_job_of_its_own() -> None:
    begun: list[Any] = []
    requests: Any = SimpleNamespace(
        _lock=threading.Lock(), _closed=False, _running={}, _threads=SimpleNamespace(submit=begun.append), _answer=None
    )
    waiting = Waiting("id", ("a",), time.monotonic() + WAIT_SECS)
    waiting.answer.cancel()
    plan: Any = SimpleNamespace(function="f")
    DrpcRequests._alone(requests, plan, waiting)
    assert not begun and not requests._running


def test_what_cannot_be_settled_is_told_and_the_thread_goes_on(jobs: Jobs) -> None:
    jobs.fill()
    jobs.fails = lambda values: [Outcome(ANSWERED, 1)] if len(values) > 1 else None  # none for the second one
    waiting = jobs.ask(1, 2)
    jobs.ends.set()
    assert answers(waiting[:1]) == [[(1,)]]
    with pytest.raises(ValueError, match="shorter"):
        waiting[1].answer.result(WAIT_SECS)
    assert answers(jobs.ask(3)) == [[(3,)]]
    assert eventually(lambda: jobs.together._threads == 0, WAIT_SECS)


def test_a_caller_that_waits_begins_the_thread_that_could_not_be_begun(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(call: Any) -> None:
        raise RuntimeError("can't start new thread")

    jobs.ends.set()
    monkeypatch.setattr(jobs.together, "_submit", refused)
    waiting = jobs.ask(1)
    monkeypatch.undo()
    assert not waiting[0].answer.done() and jobs.together._threads == 0
    jobs.together.check_progress(waiting[0])
    assert answers(waiting) == [[(1,)]]


def test_long_arguments_go_into_several_jobs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LENGTH_MAX", 10)
    first = jobs.fill()
    waiting = jobs.ask("aaaa", "bbbb", "cccc", "dddd", "e", "f")
    jobs.ends.set()
    answers([*first, *waiting])
    assert jobs.begun[2:] == [["aaaa", "bbbb", "cccc"], ["dddd", "e", "f"]]


def test_no_job_group_is_of_two_jobs_also_not_of_another_leadership(jobs: Jobs) -> None:
    another, groups = Jobs(), []
    for one in (jobs, another):
        one.fill()
        one.ask(1, 2)
        one.may_end.release()
        one.has_begun(3)
        one.together.close()
        groups.append({group for group in one.cancelled if "-f-" in group})
    another._threads.shutdown()
    assert list(map(len, groups)) == [1, 1] and groups[0] != groups[1]


def test_at_the_end_each_caller_is_told(jobs: Jobs) -> None:
    waiting = [*jobs.fill(), *jobs.ask(1, 2, 3)]
    jobs.together.close()
    waiting += jobs.ask(4)
    assert all(one.answer.cancelled() for one in waiting) and len(jobs.cancelled) == 2


# --- on the worker -----------------------------------------------------------------------


class Noted(Aggregator):
    """Says of which request it is, and what it was given."""

    def init(self, batch_id: Any) -> dict[str, Any]:
        return {"of": str(batch_id), "values": []}

    def aggregate(self, state: dict[str, Any], value: Any) -> None:
        state["values"].append(value)

    def complete(self, state: dict[str, Any]) -> list[tuple[str, str]]:
        return [(state["of"], " ".join(map(str, state["values"])))]


class Largest(Reducer):
    def init(self) -> int:
        return -1

    def reduce(self, value: int, new: int) -> int:
        return max(value, new)


class Counting:
    """Counts its calls, and its prepares: what one request leaves in an object."""

    def __init__(self) -> None:
        self.calls = self.prepared = 0

    def prepare(self, context: Any) -> None:
        self.prepared += 1

    def __call__(self, word: str) -> tuple[int, int]:
        self.calls += 1
        if word == "poison" or (word == "allergic" and self.calls > 1):
            raise ValueError(word)
        return self.calls, self.prepared


def length(word: str) -> int:
    if word == "poison":
        raise ValueError(word)
    return len(word)


def letters(word: str) -> list[str]:
    return list(word)


def tidy(word: str) -> bool:
    return "x" not in word


STEPS: dict[str, Callable[[Any], Any]] = {
    "each": lambda s: s.each("word", length, "n long").project("word"),
    "flat": lambda s: (
        s.each("word", letters, "letter string").project("letter").each("letter", str, "word string").project("word")
    ),
    "filter": lambda s: s.filter("word", tidy),
    "null": lambda s: s.each("word", FilterNull()),
    "grouped": lambda s: s.group_by("word").aggregate(Count(), "n").project("word"),
    "fold": lambda s: s.group_by("word").aggregate("word", Noted(), "of string, word2 string").project("word"),
    "peek": lambda s: s.peek(lambda *values: None),
}
ENDS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda s: s,
    "count": lambda s: s.aggregate(Count(), "count"),
    "sum": lambda s: s.each("word", length, "n long").aggregate("n", Sum(), "sum"),
    "largest": lambda s: s.each("word", length, "n long").aggregate("n", Largest(), "largest long"),
    "noted": lambda s: s.aggregate("word", Noted(), "of string, words string"),
    "by key": lambda s: s.group_by("word").aggregate("word", Noted(), "of string, words string"),
}
STATIC = {("a",): 1, ("bb",): 2}


def planned(*calls: Callable[[Any], Any]) -> Any:
    topology = TridentTopology("chained")
    stream = topology.new_drpc_stream("f").each("args", Split(), "word")
    for call in calls:
        stream = call(stream)
    (plan,) = drpc_plans(topology.graph).values()
    assert not plan.reason_alone
    return plan


def answered(plan: Any, texts: Sequence[Any]) -> list[Any]:
    """What becomes of each request where all are answered by one task: its kind, and its rows."""
    pickled = CloudPickleSerializer().dumps(plan.together or plan.in_driver)  # type: ignore[no-untyped-call]
    rows = arrow_rows([(text,) for text in texts], plan.arguments)
    asked = RequestBatch([f"id of {text}" for text in texts], rows, BatchInfo(RequestId("")), {})
    given = pa.record_batch([pa.array([asked.pickled()])], names=["asked"])
    (batch,) = Answers(pickled, plan.function, RESULT)(iter([given]))
    outcomes, table = read_answers(*(column[0].as_py() for column in batch.columns))
    found = [] if table is None else list(zip(*(column.to_pylist() for column in table.columns)))
    ends = list(itertools.accumulate(outcome.rows for outcome in outcomes))
    assert len(outcomes) == len(texts) and (ends or [0])[-1] == len(found)
    return [
        (one.kind, found[end - one.rows : end] if one.kind == ANSWERED else "ValueError" in one.error)
        for one, end in zip(outcomes, ends)
    ]


WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "xx", "poison", "a a"]), max_size=5).map(" ".join)
TEXTS = st.lists(st.none() | WORDS, min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=3), st.sampled_from(sorted(ENDS)), TEXTS)
def test_each_request_of_a_task_gets_what_it_would_get_alone(steps: list[str], end: str, texts: list[Any]) -> None:
    plan = planned(*(STEPS[name] for name in steps), ENDS[end])
    assert answered(plan, texts) == [answered(plan, [text])[0] for text in texts]


def test_only_the_request_that_raises_fails_and_objects_are_made_anew_behind_it() -> None:
    plan = planned(lambda s: s.each("word", Counting(), "calls long, prepared long").project("calls", "prepared"))
    texts = ["a", "b b", "poison", "c", "allergic", "d"]
    assert answered(plan, texts) == [
        (ANSWERED, [(1, 1)]),
        (ANSWERED, [(2, 1), (3, 1)]),
        (FAILED, True),
        (ANSWERED, [(1, 1)]),
        (ANSWERED, [(1, 1)]),  # an object that others had used before was in its way, so it had one of its own
        (ANSWERED, [(2, 1)]),
    ]


def test_a_static_state_is_asked_by_each_request() -> None:
    topology = TridentTopology("static")
    sizes = topology.new_static_state(StaticMap(STATIC))
    words = topology.new_drpc_stream("f").each("args", Split(), "word")
    words.state_query(sizes, "word", MapGet(), "size long")
    (plan,) = drpc_plans(topology.graph).values()
    assert answered(plan, ["a bb", "c", "bb"]) == [
        (ANSWERED, [("a bb", "a", 1), ("a bb", "bb", 2)]),
        (ANSWERED, [("c", "c", None)]),
        (ANSWERED, [("bb", "bb", 2)]),
    ]


def test_a_task_begins_no_request_when_its_time_or_room_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(STEPS["each"])
    monkeypatch.setattr(on_worker, "TASK_SECS_MAX", 0.0)
    assert [kind for kind, _ in answered(plan, ["a", "b", "c"])] == [ANSWERED, LATER, LATER]
    monkeypatch.undo()
    monkeypatch.setattr(on_worker, "ANSWERS_BYTES_MAX", 600)
    found = answered(plan, ["a " * 80, "b " * 200, "c " * 80, "d", "e"])
    assert [kind for kind, _ in found] == [ANSWERED, ALONE, ANSWERED, LATER, LATER]


def test_outcomes_without_rows_have_no_table() -> None:
    batch = as_batch([Outcome(ALONE), Outcome(FAILED, error="é")], [])
    assert read_answers(*(column[0].as_py() for column in batch.columns)) == (
        [Outcome(ALONE), Outcome(FAILED, error="é")], None
    )  # fmt: skip


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda s: s.each("word", length, "n long"), "answered together, each for itself in one Spark job"),
        (lambda s: s.partition_by("word"), "Spark jobs of its own: into as many partitions"),
        (lambda s: s.each("word", lambda word: [], "all array<timestamp>"), "Spark jobs of its own: result all"),
        (lambda s: s, "in the leader's process"),
    ],
    ids=["function", "repartitioning", "type", "own"],
)
def test_explain_says_how_a_function_is_answered(call: Any, says: str) -> None:
    topology = TridentTopology("explained")
    call(topology.new_drpc_stream("f").each("args", Split(), "word"))
    assert re.search(says, topology.explain())
