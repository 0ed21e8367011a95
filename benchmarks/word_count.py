"""Small transactions into exactly-once counts: against foreachBatch, and against writing nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peers, words
from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TITLE = "5,000 lines of 10 words a transaction, vocabulary 20,000, into Delta exactly once"

_APPEND, _MERGE = "foreachBatch + append", "foreachBatch + MERGE"
_ONE = " coalesce(1)"
_SUSTAINED = "ours, 4 in flight, with MERGEs"


def run(bench: Bench, report: Report) -> None:
    """Interleaved rounds of all contenders, then one longer run with MERGEs in the background."""
    quick = bench.quick
    lines = bench.size(words.LINES, 200)
    # A peer's batch takes seconds: fewer of them, each round.
    theirs, ours, warm_up = (3, 4, 1) if quick else (9, 24, 4)
    files = words.write_files(bench.fresh("lines"), ours, lines)
    few = words.write_files(bench.fresh("lines"), theirs, lines)
    contenders = _Contenders(bench, files, few, lines, warm_up, 1 if quick else 3)
    in_flight = (1, 4) if quick else (1, 2, 4)
    table: dict[str, Callable[[int], float]] = {
        _APPEND: contenders.append(None),
        _MERGE: contenders.merge(None),
        **{_ours(n): contenders.ours(n) for n in in_flight},
        **{_noop(n): contenders.noop(n, None) for n in in_flight},
    }
    if not quick:
        table[_APPEND + _ONE] = contenders.append(1)
        table[_MERGE + _ONE] = contenders.merge(1)
        table |= {_noop(n) + _ONE: contenders.noop(n, 1) for n in in_flight}
        table |= {_python(n): contenders.ours(n, python=True) for n in in_flight}
    measured = rounds(1 if quick else 3, table, bench.said, warm_up=not quick)
    ms = {name: report.figure(name, "ms/transaction", values) for name, values in measured.items()}
    sustained = contenders.sustained(8 if quick else 240)
    ms[_SUSTAINED] = report.figure(_SUSTAINED, "ms/transaction", [sustained])
    report.note(f"each of the {contenders.checked} tables made was read afterwards: it counts every word once")
    _ratios(report, ms)
    words_a_batch = lines * words.WORDS_PER_LINE
    report.figure("ours, 4 in flight", "words/s", [words_a_batch / value * 1000 for value in measured[_ours(4)]])
    report.note("foreachBatch: time of its batches alone (triggerExecution), the first ones of each query left out")
    report.note("ours: wall time from the advance of one transaction to that of the last, the first ones left out")
    report.note("coalesce(1): the batch in one Spark partition, as ours is; without: Spark's own plan, with a shuffle")


def _ours(in_flight: int) -> str:
    return f"ours, {in_flight} in flight"


def _python(in_flight: int) -> str:
    return f"ours in Python, {in_flight} in flight"


def _noop(in_flight: int) -> str:
    return f"noop, {in_flight} in flight"


def _ratios(report: Report, ms: dict[str, float]) -> None:
    def times(peer: str, own: str, goal: Goal | None = None) -> None:
        if peer in ms and own in ms:
            report.ratio(f"{peer} / {own}", ms[peer], ms[own], goal)

    times(_APPEND, _ours(1), Goal(at_least=2.5))
    times(_APPEND, _ours(4), Goal(at_least=5))
    times(_MERGE, _ours(4), Goal(at_least=8))
    times(_MERGE, _SUSTAINED)
    times(_APPEND + _ONE, _ours(1))
    times(_APPEND + _ONE, _ours(4))
    times(_MERGE + _ONE, _ours(4))
    goals = {1: Goal(at_most=1.0), 4: Goal(at_most=0.9)}
    for limit in ("", _ONE):
        for n in (1, 2, 4):
            times(_ours(n), _noop(n) + limit, None if limit else goals.get(n))
    for n in (1, 2, 4):
        times(_python(n), _ours(n))


class _Contenders:
    """Functions of a round's number that give milliseconds a transaction."""

    def __init__(self, bench: Bench, files: Path, few: Path, lines: int, warm_up: int, their_warm_up: int) -> None:
        self._bench, self._files, self._few = bench, files, few
        self._lines, self._warm_up, self._their_warm_up = lines, warm_up, their_warm_up
        self.checked = 0

    def append(self, partitions: int | None) -> Callable[[int], float]:
        def once(number: int) -> float:
            table = self._bench.fresh("append")
            return self._streamed(table, peers.append_sink(table, words.counted, partitions))

        return once

    def merge(self, partitions: int | None) -> Callable[[int], float]:
        def once(number: int) -> float:
            table = self._bench.fresh("merge")
            empty = self._bench.spark.createDataFrame([], "word string, count long")
            peers.make_table(self._bench.spark, table, empty)
            return self._streamed(table, peers.merge_sink(table, words.counted, "word", "count", partitions))

        return once

    def _streamed(self, table: Path, sink: peers.Sink) -> float:
        ms = peers.stream_ms(self._bench.spark, self._few, sink, self._bench.fresh("checkpoint"), self._their_warm_up)
        self._check(self._bench.spark.read.format("delta").load(str(table)), self._few)
        return ms

    def ours(self, in_flight: int, python: bool = False) -> Callable[[int], float]:
        def once(number: int) -> float:
            return self._run(in_flight, python, self._files)

        return once

    def sustained(self, transactions: int) -> float:
        """As long as it takes for MERGEs to run beside it, with the settings that a user gets."""
        files = words.write_files(self._bench.fresh("lines"), transactions, self._lines)
        return self._run(4, False, files)

    def _run(self, in_flight: int, python: bool, files: Path) -> float:
        from trident import DeltaMapState

        warehouse = self._bench.fresh("ours")
        topology = words.topology("words", files, DeltaMapState("counts"), self._lines, python)
        with self._bench.running(topology, warehouse, in_flight) as query:
            with Recorder(query) as recorder:
                query.process_all_available()
            self._check(query.snapshot("counts"), files)
        transactions, files_there = len(recorder.records), self._count(files)
        if transactions != files_there:
            raise AssertionError(f"{files_there} files became {transactions} transactions")
        return steady_ms(recorder.records, self._warm_up)

    def noop(self, in_flight: int, partitions: int | None) -> Callable[[int], float]:
        spark = self._bench.spark
        paths = sorted(str(path) for path in self._files.iterdir())

        def job(path: str) -> Callable[[], None]:
            def read_and_drop() -> None:
                frame = spark.read.text(path)
                peers.noop(words.counted(frame if partitions is None else frame.coalesce(partitions)))

            return read_and_drop

        jobs = [job(path) for path in paths]
        return lambda number: peers.in_flight_ms(spark, jobs, in_flight, self._warm_up)

    def _check(self, counts: "DataFrame", files: Path) -> None:
        """A benchmark of something that counts wrongly is worth nothing."""
        expected = self._count(files) * self._lines * words.WORDS_PER_LINE
        found = counts.groupBy().sum("count").first()[0]
        if found != expected:
            raise AssertionError(f"{found} words were counted, there were {expected}")
        self.checked += 1

    @staticmethod
    def _count(files: Path) -> int:
        return len(list(files.glob("*.txt")))
