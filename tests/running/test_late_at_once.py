"""Early and late part as one Spark job, for the transaction that commits next: it gives what two jobs give."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.oracle import Table
from tests.jvm.unfit_jar import Unfit, unfit_jar
from tests.long_cases import sample
from tests.messages.message_helpers import Messages
from tests.streams.stream_helpers import split
from trident import Count, DeltaAppend, DeltaMapState, FilterNull, FixedBatchSpout, MapGet, Sum, TridentTopology
from trident import functions as F
from trident.coordinators import faults
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import is_one_job, plan
from trident.running import kept_plans
from trident.running.kept_plans import KeptPlans
from trident.running.late_part import SHARDS_BYTES, SMALL_BYTES, Able, Breaker, Form, LatePart, OneJob, Rows, choose
from trident.running.runner import SparkBatchRunner
from trident.states.keyed.copies import StateCopies

UNION = "spark.sql.unionOutputPartitioning"
LINES = ["a b a", "c", "", "a b b longword", "c d", "a e e e", "", " ", "b"]


class Longest:
    """A reducer that tells states apart which differ in the order or the number of the values that they have taken."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, word: str) -> str:
        return f"{current}{word[0]}{len(word)}"


def topology(given: Sequence[str] = LINES) -> TridentTopology:
    made = TridentTopology("at-once")
    lines = made.new_stream("lines", FixedBatchSpout("line string", [[(line,)] if line else [] for line in given]))
    lines.partition_persist(DeltaAppend("lines"))
    words = lines.each("line", split, "word").project("word")
    told = words.group_by("word").persistent_aggregate(DeltaMapState("told"), "word", Longest(), "text")
    told.new_values_stream().partition_persist(DeltaAppend("news"))
    return made


def expected(given: Sequence[str] = LINES) -> dict[str, Counter]:
    running: dict[str, str] = {}
    news = Counter[tuple]()
    for line in given:
        for word in line.split():
            running[word] = Longest().reduce(running.get(word, ""), word)
        news.update((word, running[word]) for word in set(line.split()))
    return {"lines": Counter((line,) for line in given if line), "told": Counter(running.items()), "news": news}


def found(query: Any, warehouse: Any) -> dict[str, Counter]:
    rows = {"told": Counter((row["word"], row["text"]) for row in query.snapshot("told").collect())}
    for name, columns in (("lines", ("line",)), ("news", ("word", "text"))):
        rows[name] = Counter(tuple(row[column] for column in columns) for row in Table.read(warehouse / name).rows())
    return rows


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The form that the late part of each attempt has taken, in its turn."""
    taken: list[str] = []
    real = SparkBatchRunner.resolve

    def noted(self: SparkBatchRunner, *args: Any) -> Any:
        done = real(self, *args)
        taken.extend(name.removeprefix("resolve_by_") for name in done.duration_ms if "resolve_by_" in name)
        return done

    monkeypatch.setattr(SparkBatchRunner, "resolve", noted)
    return taken


def test_each_transaction_is_one_job_and_gives_what_a_fold_gives(start, tmp_path, forms):
    faults.arm("resolve.stage:do_then_fail:2,stage.write:fail_before:3")
    lines = [*LINES[:4], " "]
    query = start.run(topology(lines), max_spout_pending=1)
    assert not faults.unfired()
    assert found(query, tmp_path / "warehouse") == expected(lines)
    # A batch without words has nothing to do in its turn, but its lines are staged by the one job.
    assert Counter(forms) == {"one_job": 4, "nothing": 1}


def test_of_several_in_flight_only_the_next_one_is(start, tmp_path, forms, monkeypatch):
    asked: list[tuple[int, int]] = []  # as of which transaction, and the last one that had advanced by then
    advanced: list[int] = []
    real_as_of, real_promised, real_advanced = StateCopies.as_of, StateCopies.promised, LatePart.advanced

    def noted_as_of(self: StateCopies, states: Any, txid: int) -> Any:
        asked.append((txid, advanced[-1]))
        return real_as_of(self, states, txid)

    def noted_advanced(self: LatePart, txid: int) -> None:
        advanced.append(txid)
        real_advanced(self, txid)

    def noted_promised(self: StateCopies, states: Any, txid: int) -> Any:
        asked.append((txid, advanced[-1]))
        return real_promised(self, states, txid)

    monkeypatch.setattr(StateCopies, "as_of", noted_as_of)
    monkeypatch.setattr(StateCopies, "promised", noted_promised)
    monkeypatch.setattr(LatePart, "advanced", noted_advanced)
    lines = LINES[:5]
    query = start.run(topology(lines), max_spout_pending=4)
    assert found(query, tmp_path / "warehouse") == expected(lines)
    assert set(forms) <= {"one_job", "pass", "nothing"} and forms[0] == "one_job"
    before = {txid for txid, line in enumerate(lines) if line.split()}  # of those that look states up
    assert {txid for txid, _ in asked} >= before and all(txid == last for txid, last in asked), asked


@pytest.mark.long
def test_a_batch_too_large_for_the_one_job_is_staged_between_the_parts_and_so_are_some_after_it(
    start, tmp_path, forms, monkeypatch
):
    monkeypatch.setattr("trident.running.late_part._BYTES_MAX", 0)
    monkeypatch.setattr("trident.running.late_part.TASK_ROWS", 0)
    lines = [line for line in LINES if line.strip()] + ["a b", "c d longword"]
    jobs = {OneJob: Counter[int](), KeptPlans: Counter[int]()}
    for form, staged in jobs.items():

        def noted(self: Any, *args: Any, real: Any = form.stage, staged: Counter[int] = staged) -> Any:
            staged.update(one.txid for one in args if isinstance(one, TransactionAttempt))
            return real(self, *args)

        monkeypatch.setattr(form, "stage", noted)
    query = start.run(topology(lines), max_spout_pending=1)
    assert found(query, tmp_path / "warehouse") == expected(lines)
    tried = {1, 2, 4, 8}
    assert jobs[OneJob] == dict.fromkeys(tried, 1)
    # The early part and the late one; before them the one job, in vain.
    assert jobs[KeptPlans] == {txid: 2 + (txid in tried) for txid in range(1, len(lines) + 1)}
    assert forms == ["pass"] * len(lines)


LONG = "x" * 1000
# Three streams' lines, one in each batch.
STREAMS = [[f"a {LONG} b {LONG} {LONG}"] * 3, ["a", "b a", "c"], ["c a", "a", "b"]]


def several_streams(hint: int | None) -> TridentTopology:
    made = TridentTopology("several")
    spouts = [FixedBatchSpout("line string", [[(line,)] for line in lines]) for lines in STREAMS]
    one, other, third = (made.new_stream(f"lines{at}", spout) for at, spout in enumerate(spouts))
    both = one.merge(other)
    both = both if hint is None else both.parallelism_hint(hint)
    words = both.merge(third).each("line", split, "word").project("word")
    words.group_by("word").persistent_aggregate(DeltaMapState("told"), "word", Longest(), "text")
    return made


@pytest.mark.parametrize("form", sample(["one_job", "pass"], "one_job"))
@pytest.mark.parametrize("spread_by", sample(["hint", "setting"], "hint"))
def test_rows_of_a_key_in_several_spark_partitions_are_folded_once(
    spark, start, tmp_path, forms, monkeypatch, spread_by, form
):
    """A kept plan may have several without an exchange: where streams meet."""
    if form == "pass":
        monkeypatch.setattr(OneJob, "stage", lambda *_: None)
    if spread_by == "setting":
        spark.conf.set(UNION, "false")
    try:
        query = start.run(several_streams(2 if spread_by == "hint" else None), max_spout_pending=1)
        words = Counter(word for lines in STREAMS for line in lines for word in line.split())
        told = {row["word"]: row["text"] for row in query.snapshot("told").collect()}
    finally:
        spark.conf.unset(UNION)
    assert told == {word: f"{word[0]}{len(word)}" * count for word, count in words.items()}
    assert forms == [form] * 3


# --- steps of the framework's own alone ----------------------------------------------------------------

NUMBERS = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("b", 5)],
    [("c", 0), ("a", None), (None, 7)],
    [("a", -4), ("c", 9), (None, 1)],
]


def sums() -> TridentTopology:
    """Each row has an instant."""
    made = TridentTopology("sums")
    batches = [[(key, n, _instant(n)) for key, n in batch] for batch in NUMBERS]
    numbers = made.new_stream("numbers", FixedBatchSpout("key string, n long, at timestamp", batches))
    total = numbers.group_by("key").persistent_aggregate(DeltaMapState("sums"), "n", Sum(), "sum")
    total.new_values_stream().partition_persist(DeltaAppend("news"))
    return made


def _instant(n: int | None) -> dt.datetime | None:
    return None if n is None else dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.timezone.utc) + dt.timedelta(hours=n)


def check_sums(query: Any, warehouse: Any) -> None:
    running: dict[Any, int] = {}
    news = Counter[tuple]()
    for batch in NUMBERS:
        for key, n in batch:
            running[key] = running.get(key, 0) + (n or 0)
        news.update((key, running[key]) for key in {key for key, _ in batch})
    assert {row["key"]: row["sum"] for row in query.snapshot("sums").collect()} == running
    assert Counter((row["key"], row["sum"]) for row in Table.read(warehouse / "news").rows()) == news


def test_own_steps_are_one_job_too_and_wait_for_the_copy(start, tmp_path, forms, monkeypatch):
    """A state's own rows are staged by the worker that goes on with them; the copy comes while it waits."""
    real, real_stage, taken = StateCopies.catch_up, OneJob.stage, []

    def late(self: StateCopies, *args: Any) -> None:
        time.sleep(0.3)
        real(self, *args)

    def noted(self: Any, *args: Any) -> Any:
        taken.append(real_stage(self, *args))
        return taken[-1]

    monkeypatch.setattr(StateCopies, "catch_up", late)
    monkeypatch.setattr(OneJob, "stage", noted)
    query = start.run(sums(), max_spout_pending=1)
    check_sums(query, tmp_path / "warehouse")
    assert forms == ["one_job"] * len(NUMBERS) and None not in taken and len(taken) == len(NUMBERS)


@pytest.mark.parametrize("form", sample(["one_job", "pass"], "one_job"))
def test_a_jar_that_does_not_fit_costs_jobs_and_no_row(spark, start, tmp_path, forms, monkeypatch, caplog, form):
    """V2: in the middle of a batch's one job, and of the pass of its late part."""
    if form == "pass":
        monkeypatch.setattr(LatePart, "stage_fused", lambda *_: None)
    with unfit_jar(monkeypatch, caplog):
        monkeypatch.setattr(kept_plans, "kept_plan_class", lambda _: Unfit(spark))
        query = start.run(sums() if form == "one_job" else topology(), max_spout_pending=1, max_attempts=1)
        if form == "one_job":
            check_sums(query, tmp_path / "warehouse")
        else:
            assert found(query, tmp_path / "warehouse") == expected()
        assert "one_job" not in forms


@pytest.mark.parametrize("in_flight", sample([3, 1], 3))
def test_an_attempt_that_fails_behind_a_promise_leaves_nothing(start, tmp_path, forms, in_flight):
    faults.arm("resolve.stage:do_then_fail:2,stage.write:do_then_fail:2,copy.apply:fail_before:2")
    query = start.run(sums(), max_spout_pending=in_flight)
    assert not faults.unfired()
    check_sums(query, tmp_path / "warehouse")
    assert "one_job" in forms and set(forms) <= {"one_job", "pass", "tables"}


class Told(Longest):
    """As above, of numbers."""

    def reduce(self, current: str, n: int) -> str:
        return f"{current}{n}"


@pytest.mark.parametrize("form", sample(["one_job", "pass"], "one_job"))
@pytest.mark.parametrize("passes", sample(["some", "none"], "none"))
def test_a_filter_that_is_always_false_gives_the_late_part_an_empty_batch(
    start, tmp_path, forms, monkeypatch, passes, form
):
    """Spark gives its rows no partition; an aggregate without groups has a row all the same."""
    if form == "pass":
        monkeypatch.setattr(LatePart, "stage_fused", lambda *_: None)
    made = TridentTopology("filtered")
    numbers = made.new_stream("numbers", FixedBatchSpout("key string, n long", NUMBERS))
    kept = numbers.filter(F.col("n") > 1 if passes == "some" else F.lit(False))
    each = kept.group_by("key").persistent_aggregate(DeltaMapState("each"), "n", Told(), "text")
    asked = kept.state_query(each, "key", MapGet(), "before").filter("before", FilterNull())
    asked.aggregate(Count(), "known").partition_persist(DeltaAppend("counts"))
    query = start.run(made, max_spout_pending=1)
    told, counts = dict[Any, str](), list[int]()
    for batch in NUMBERS:
        rows = [(key, n) for key, n in batch if passes == "some" and n is not None and n > 1]
        counts.append(sum(key in told for key, _ in rows))
        for key, n in rows:
            told[key] = told.get(key, "") + str(n)
    assert {row["key"]: row["text"] for row in query.snapshot("each").collect()} == told
    found = Table.read(tmp_path / "warehouse" / "counts").rows()
    assert sorted(row["known"] for row in found) == sorted(counts) and len(counts) == len(NUMBERS)
    assert forms == [form] * len(NUMBERS)


@pytest.mark.long
def test_a_copy_that_goes_while_the_worker_waits_for_it_is_not_read(start, tmp_path, forms, monkeypatch):
    gone = []

    def taken_away(self: StateCopies, states: Any, txid: int) -> None:
        copy = self.held("sums", 0)
        assert copy is not None
        shutil.rmtree(copy.folder)
        gone.append(txid)
        self.failed("sums", "taken away")

    monkeypatch.setattr(StateCopies, "catch_up", taken_away)
    query = start.run(sums(), max_spout_pending=1)
    check_sums(query, tmp_path / "warehouse")
    assert gone and "pass" in forms


# --- which form is chosen --------------------------------------------------------------------------------
# Which form a late part takes, and when those that fail are left alone: from plain data.

ALL = Able(one_job=True, tasks=True, shards=True)
FEW = Rows(idle=False, size=1_000)
LARGE = Rows(idle=False, size=SMALL_BYTES + 1)


@pytest.mark.parametrize(("is_next", "is_open"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("one_job", [False, True])
def test_before_the_early_part_only_the_next_transaction_is_one_job(one_job, is_next, is_open) -> None:
    able = Able(one_job=one_job, tasks=True, shards=False)
    assert choose(able, None, is_next, is_open) is (Form.ONE_JOB if one_job and is_next and not is_open else None)


@pytest.mark.parametrize(
    ("able", "staged", "is_open", "form"),
    [
        (ALL, Rows(idle=True, size=0), True, Form.NOTHING),
        (ALL, FEW, False, Form.PASS),
        (ALL, FEW, True, Form.TABLES),
        (ALL, LARGE, False, Form.PASS),
        (ALL, LARGE, True, Form.TABLES),
        (ALL, Rows(False, SHARDS_BYTES + 1), False, Form.TABLES),
        (Able(True, True, shards=False), LARGE, False, Form.TABLES),
        (Able(False, True, False), FEW, False, Form.PASS),
        (Able(False, False, False), FEW, False, Form.TABLES),
    ],
)
def test_the_form_of_what_is_staged(able: Able, staged: Rows, is_open: bool, form: Form) -> None:
    assert choose(able, staged, True, is_open) is form


def test_batches_that_fail_again_and_again_read_the_tables_without_a_try() -> None:
    """Each of them would else read what it then throws away; the early functions of one job would run in vain."""
    breaker, fits, tried = Breaker(), {49, 50}, []

    def form_of(txid: int) -> Form | None:
        form = choose(ALL, FEW, True, breaker.is_open(txid))
        if form is Form.TABLES:
            return form
        tried.append(txid)
        if txid in fits:
            breaker.worked()
            return form
        breaker.failed(txid)
        return Form.TABLES

    for txid in range(1, 42):
        assert form_of(txid) is form_of(txid) is Form.TABLES, "another attempt does not try again"
    assert tried == [1, 2, 4, 8, 16, 27, 38]
    # One that fits ends that: the next one that does not is the first again.
    tried.clear()
    assert [form_of(txid) for txid in range(49, 55)] == [Form.PASS] * 2 + [Form.TABLES] * 4
    assert tried == [49, 50, 51, 52, 54]


@pytest.mark.parametrize("tracking", [True, False])
def test_tracked_messages_have_no_job_of_both_parts(tracking: bool) -> None:
    """A job that gave up has told its ledger; the next one would tell the same ids again, and they would cancel out."""
    made = TridentTopology("messages")
    lines = made.new_stream("lines", Messages("line string"))
    counts = lines.group_by("line").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    counts.new_values_stream().partition_persist(DeltaAppend("news"))
    (group,) = plan(made.graph, tracking)
    assert group.late_on_arrow is not None and is_one_job(group) != tracking
