"""A backlog: adaptive batches against one plain Spark job over all of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import peers, words
from benchmarks.bench import Bench, advanced_at, rounds
from benchmarks.report import Goal, Report

TITLE = "3 M words wait; adaptive batches, 4 in flight, against one Spark job"

_IN_FLIGHT = 4


def run(bench: Bench, report: Report) -> None:
    """Each round a new folder of backlog: the one job, ours, and the one job into no table."""
    lines, count = bench.size(words.LINES, 200), bench.size(60, 6)
    for scale in (1,) if bench.quick else (1, 10):
        _measure(bench, report, lines * scale, count)
    report.note("ours: from resume() of a running topology, the backlog just put there, until all of it is advanced")
    report.note("the one job: reads all files, counts, appends to a Delta table by Delta's writer")


def _measure(bench: Bench, report: Report, lines: int, count: int) -> None:
    million = lines * count * words.WORDS_PER_LINE / 1e6
    what = f"{million:g} M words"
    with _Running(bench, lines) as running:

        def ours(number: int) -> float:
            return million / running.catch_up(count)

        def one_job(write: Callable[[Path], None]) -> Callable[[int], float]:
            def once(number: int) -> float:
                files = words.write_files(bench.fresh("lines"), count, lines)
                started = time.monotonic()
                write(files)
                return million / (time.monotonic() - started)

            return once

        def appended(files: Path) -> None:
            words.counted(bench.spark.read.text(str(files))).write.format("delta").save(str(bench.fresh("append")))

        def dropped(files: Path) -> None:
            peers.noop(words.counted(bench.spark.read.text(str(files))))

        contenders = {"one job into Delta": one_job(appended), "ours": ours, "one job to noop": one_job(dropped)}
        measured = rounds(1 if bench.quick else 5, contenders, bench.said, warm_up=True)
        running.check()
        spent = ", ".join(f"{part} {ms:,.0f}" for part, ms in running.spent.items())
        report.note(f"{what}: ms of the longest transaction of the last catch-up: {spent}")
    rates = {name: report.figure(f"{what}: {name}", "M words/s", values) for name, values in measured.items()}
    report.figure(f"{what}: our transactions", "in a catch-up", running.transactions)
    report.ratio(f"{what}: ours / one job into Delta", rates["ours"], rates["one job into Delta"], Goal(at_least=0.8))
    report.ratio(f"{what}: ours / one job to noop", rates["ours"], rates["one job to noop"])


class _Running:
    """A topology that is caught up, and paused while a backlog is put before it."""

    def __init__(self, bench: Bench, lines: int) -> None:
        from trident import Count, DeltaMapState, FileSpout, TridentTopology

        self._bench, self._lines = bench, lines
        self._folder = bench.fresh("backlog")
        words.write_files(self._folder, 1, 100)
        self._files, self._words = 1, 100 * words.WORDS_PER_LINE
        self.transactions: list[float] = []
        self.spent: dict[str, float] = {}
        topology = TridentTopology("words")
        stream = topology.new_stream("lines", FileSpout(self._folder, poll_interval_secs=0.05))
        stream.flat_map(words.split_column(), "word").group_by("word").persistent_aggregate(
            DeltaMapState("counts"), Count(), "count"
        )
        self._running = bench.running(topology, bench.fresh("ours"), _IN_FLIGHT)

    def __enter__(self) -> "_Running":
        self._query = self._running.__enter__()
        self._query.process_all_available()
        return self

    def __exit__(self, *raised: object) -> None:
        self._running.__exit__(*raised)

    def catch_up(self, count: int) -> float:
        """Seconds for this many more files."""
        self._query.pause()
        words.write_files(self._folder, count, self._lines, first=self._files)
        self._files += count
        self._words += count * self._lines * words.WORDS_PER_LINE
        time.sleep(0.2)
        before = self._query.status["groups"][0]["current_txid"]
        started = time.time()
        self._query.resume()
        self._query.process_all_available()
        # That call also waits until the source has said that nothing is left.
        secs = advanced_at(self._query.last_progress) - started
        self.transactions.append(self._query.status["groups"][0]["current_txid"] - before)
        caught_up = [one["duration_ms"] for one in self._query.recent_progress if one["batch_id"] >= before]
        self.spent = max(caught_up, key=lambda one: float(one["total"]))
        return secs

    def check(self) -> None:
        found = self._query.snapshot("counts").groupBy().sum("count").first()[0]
        if found != self._words:
            raise AssertionError(f"{found} words were counted, there were {self._words}")
