"""What the record of transactions costs: a small transaction with and without it."""

from __future__ import annotations

import statistics
import time

from benchmarks import words
from benchmarks.bench import Bench, Recorder, rounds
from benchmarks.report import Goal, Report

TITLE = "a small transaction of a word count, with its manifest kept and recorded, and without"
_LINES = 100


def run(bench: Bench, report: Report) -> None:
    """The time of a transaction, and the CPU time of this process (the JVM's is not in it), in turn."""
    count = bench.size(150, 4)
    cpu: dict[str, list[float]] = {"with": [], "without": []}

    def transactions(name: str, txids: int) -> float:
        from trident import DeltaMapState

        files = words.write_files(bench.fresh("lines"), count, _LINES)
        topology = words.topology("words", files, DeltaMapState("counts"), _LINES)
        settings = {"history_retention_txids": txids}
        with bench.running(topology, bench.fresh("ours"), 1, **settings) as query, Recorder(query) as recorder:
            started = time.process_time()
            query.process_all_available()
            cpu[name].append((time.process_time() - started) * 1000.0 / count)
        steady = recorder.records[len(recorder.records) // 5 :]
        return statistics.median(one["duration_ms"]["total"] for one in steady)

    found = rounds(
        bench.size(6, 1),
        {"with": lambda _: transactions("with", 1000), "without": lambda _: transactions("without", 0)},
        bench.said,
        warm_up=not bench.quick,
    )
    skipped = 0 if bench.quick else 1  # the warm-up's
    for name, values in found.items():
        report.figure(f"a transaction {name} the record", "ms", values)
        report.figure(f"CPU time of this process for a transaction {name} it", "ms", cpu[name][skipped:])
    goal = None if bench.quick else Goal(at_most=1.02)
    report.ratio("with / without, the time of a transaction", *map(statistics.median, found.values()), goal)
    used = (statistics.median(cpu[name][skipped:]) for name in ("with", "without"))
    report.ratio("with / without, CPU time of this process", *used)
