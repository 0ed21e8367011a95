"""A small transaction of a word count with and without something that must cost next to nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks import words
from benchmarks.bench import Bench, Recorder, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import TopologyQuery

_LINES = 100


def compare(
    bench: Bench,
    report: Report,
    what: str,
    settings: dict[str, dict[str, Any]],
    beside: Callable[[str, "TopologyQuery"], AbstractContextManager[Any]] = lambda name, query: nullcontext(),
    own_cpu: Callable[[], AbstractContextManager[list[float]]] | None = None,
) -> None:
    """The time of a transaction, and the CPU time of this process (the JVM's is not in it), in turn.

    Two percent of either are less than the noise of a machine; the CPU time of its own calls has none.

    Args:
        what: a word for what is looked at, as the report calls it.
        settings: those of the runs "with" and "without" it.
        beside: what runs beside a run, given its name and its query.
        own_cpu: counts the CPU seconds of its own calls while it is entered, one number a call.
    """
    count = bench.size(150, 4)
    cpu: dict[str, list[float]] = {name: [] for name in settings}
    own: list[float] = []

    def transactions(name: str) -> float:
        from trident import DeltaMapState

        files = words.write_files(bench.fresh("lines"), count, _LINES)
        topology = words.topology("words", files, DeltaMapState("counts"), _LINES)
        running = bench.running(topology, bench.fresh("ours"), 1, **settings[name])
        counting = own_cpu() if own_cpu is not None and name == "with" else nullcontext([])
        with counting as spent, running as query, Recorder(query) as recorder, beside(name, query):
            spent.clear()  # those of the start
            started = time.process_time()
            query.process_all_available()
            cpu[name].append((time.process_time() - started) * 1000.0 / count)
            if name == "with":
                own.append(sum(spent) * 1000.0 / count)
        steady = recorder.records[len(recorder.records) // 5 :]
        return statistics.median(one["duration_ms"]["total"] for one in steady)

    found = rounds(
        bench.size(6, 1),
        {"with": lambda _: transactions("with"), "without": lambda _: transactions("without")},
        bench.said,
        warm_up=not bench.quick,
    )
    skipped = 0 if bench.quick else 1  # the warm-up's
    for name, values in found.items():
        report.figure(f"a transaction {name} {what}", "ms", values)
        report.figure(f"CPU time of this process for a transaction {name} {what}", "ms", cpu[name][skipped:])
    goal = None if bench.quick else Goal(at_most=1.02)
    report.ratio("with / without, the time of a transaction", *map(statistics.median, found.values()), goal)
    used = (statistics.median(cpu[name][skipped:]) for name in ("with", "without"))
    report.ratio("with / without, CPU time of this process", *used)
    if own_cpu is not None:
        mine = report.figure(f"CPU time of the calls of {what} for a transaction", "ms", own[skipped:])
        goal = None if bench.quick else Goal(at_most=0.02)
        report.ratio(
            f"the calls of {what} / the time of a transaction", mine, statistics.median(found["without"]), goal
        )
