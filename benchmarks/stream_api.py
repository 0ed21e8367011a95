"""What the stream API costs beside the same job written by hand in PySpark."""

from __future__ import annotations

import runpy
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident import Stream

TITLE = "a topology's batch beside the same DataFrames written by hand"
_SCHEMA = StructType().add("id", "long").add("key", "string").add("n", "long")
_WORDS = "the quick brown fox jumps over the lazy dog"


class _Rows:
    """A spout's description: the benchmark gives the batches to the plan itself."""

    output_schema = _SCHEMA

    def get_coordinator(self, context: Any) -> Any:
        raise AssertionError("a plan asks no coordinator")

    get_emitter = get_coordinator


def run(bench: Bench, report: Report) -> None:
    """One large batch with native expressions, one with a Python function, and many small ones."""
    _large(bench, report, "native", bench.size(4_000_000, 2_000), _native, _native_by_hand, Goal(at_most=1.15))
    _large(bench, report, "Python each", bench.size(400_000, 500), _python, _python_by_hand, Goal(at_most=1.25))
    _large(bench, report, "two Python eaches", bench.size(400_000, 500), _two, _two_by_hand, Goal(at_most=1.25))
    _small(bench, report)
    _requests(bench, report)


# --- the jobs ----------------------------------------------------------------------------


def _native(stream: "Stream") -> "Stream":
    from pyspark.sql import functions as F

    from trident import Sum

    odd = stream.filter(F.col("n") % 3 != 0).each(F.upper("key"), "upper")
    return odd.group_by("upper").aggregate("n", Sum(), "total")


def _native_by_hand(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    odd = frame.where(F.col("n") % 3 != 0).select(F.upper("key").alias("upper"), "n")
    return odd.groupBy("upper").agg(F.sum("n").alias("total"))


def split(line: str) -> Iterator[str]:
    yield from line.split()


def _python(stream: "Stream") -> "Stream":
    return stream.each("key", split, "word").project("word", "n")


def _python_by_hand(frame: "DataFrame") -> "DataFrame":
    def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found: list[str] = []
            index: list[int] = []
            for row, line in enumerate(batch.column("key").to_pylist()):
                made = list(split(line))
                found += made
                index += [row] * len(made)
            yield pa.RecordBatch.from_pydict({"word": found, "n": batch.column("n").take(pa.array(index))})

    return frame.select("key", "n").mapInArrow(words, "word string, n long")


def length(word: str) -> int:
    return len(word)


def _two(stream: "Stream") -> "Stream":
    return stream.each("key", split, "word").each("word", length, "letters").project("word", "letters")


def _two_by_hand(frame: "DataFrame") -> "DataFrame":
    def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [word for line in batch.column("key").to_pylist() for word in split(line)]
            yield pa.RecordBatch.from_pydict({"word": found, "letters": [length(word) for word in found]})

    return frame.select("key").mapInArrow(words, "word string, letters long")


# --- large batches -----------------------------------------------------------------------


def _large(
    bench: Bench,
    report: Report,
    name: str,
    count: int,
    ours: Callable[["Stream"], "Stream"],
    by_hand: Callable[["DataFrame"], "DataFrame"],
    goal: Goal,
) -> None:
    from trident.coordinators.identities import TransactionAttempt

    frame = _frame(bench, count, 2).localCheckpoint()
    plan = _plan(ours)

    def topology(number: int) -> float:
        return _timed(lambda: _noop(plan.build({"rows": frame}, TransactionAttempt(1, 0))["out"]))

    def hand(number: int) -> float:
        return _timed(lambda: _noop(by_hand(frame)))

    values = rounds(7 if not bench.quick else 1, {"topology": topology, "by hand": hand}, bench.said, warm_up=True)
    figures = {who: report.figure(f"{name}, {count:,} rows: {who}", "ms", found) for who, found in values.items()}
    report.ratio(f"{name}: topology / by hand", figures["topology"], figures["by hand"], goal)


def _frame(bench: Bench, count: int, partitions: int) -> "DataFrame":
    from pyspark.sql import functions as F

    key = F.concat(F.lit(_WORDS + " "), (F.col("id") % 1000).cast("string"))
    return bench.spark.range(0, count, 1, partitions).select("id", key.alias("key"), (F.col("id") % 7).alias("n"))


def _plan(ours: Callable[["Stream"], "Stream"]) -> Any:
    from trident import DeltaAppend, TridentTopology
    from trident.planning.groups import plan

    topology = TridentTopology("bench")
    ours(topology.new_stream("rows", _Rows())).partition_persist(DeltaAppend("out"))
    return plan(topology.graph)[0]


def _noop(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


# --- small batches -----------------------------------------------------------------------


def _small(bench: Bench, report: Report) -> None:
    """Each batch planned and staged: by the topology's plan, and by DataFrames made by hand for each batch."""
    from trident.coordinators.identities import TransactionAttempt
    from trident.spark.rows import to_dataframe
    from trident.states.delta.staging import StagingTarget, stage

    rows_ = [(number, f"{_WORDS} {number % 50}", number % 7) for number in range(bench.size(1_000, 20))]
    count = bench.size(200, 3)
    for name, ours, by_hand in (("native", _native, _native_by_hand), ("Python each", _python, _python_by_hand)):
        plan = _plan(ours)
        targets = {who: [StagingTarget("out", bench.fresh("staged"))] for who in ("topology", "by hand")}

        def batch(
            who: str, number: int, build: Callable[["DataFrame", Any], "DataFrame"], targets: Any = targets
        ) -> float:
            attempt = TransactionAttempt(number, 0)
            frame = to_dataframe(bench.spark, rows_, _SCHEMA).coalesce(1)
            return _timed(lambda: stage({"out": build(frame, attempt)}, targets[who], "bench", attempt) and None)

        def by_plan(frame: "DataFrame", attempt: Any, plan: Any = plan) -> "DataFrame":
            return plan.build({"rows": frame}, attempt)["out"]

        def written(frame: "DataFrame", _: Any, by_hand: Any = by_hand) -> "DataFrame":
            return by_hand(frame)

        times: dict[str, list[float]] = {"topology": [], "by hand": []}
        for number in range(1, count + 21):
            pairs = [("topology", by_plan), ("by hand", written)]
            for who, build in pairs if number % 2 else pairs[::-1]:
                spent = batch(who, number, build)
                if number > 20:  # the first ones warm everything up
                    times[who].append(spent)
        medians = {who: statistics.median(found) for who, found in times.items()}
        for who in medians:
            report.figure(f"{name}, {len(rows_):,} rows, {count} batches: {who}", "ms", [medians[who]])
        overhead = medians["topology"] - medians["by hand"]
        report.figure(f"{name}: overhead of a batch", "ms", [overhead], Goal(at_most=15))
        bench.said(f"   {name}: {medians}")


# --- requests ----------------------------------------------------------------------------


def _requests(bench: Bench, report: Report) -> None:
    """Example 07, asked by one caller again and again while no batch runs."""
    example = runpy.run_path(str(Path(__file__).resolve().parent.parent / "examples" / "07_reach.py"))
    count = bench.size(40, 2)
    with bench.running(example["topology"], bench.fresh("requests"), 1) as query:
        query.process_all_available()
        for function, argument in (("reach", "a.example/news"), ("words", "the and")):
            spent = [_timed(lambda f=function, a=argument: query.execute(f, a) and None) for _ in range(count)]  # type: ignore[misc]
            report.figure(f"request {function}: the first", "ms", spent[:1])
            report.figure(f"request {function}: the later half of {count}", "ms", spent[count // 2 :])
