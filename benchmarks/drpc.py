"""The cost of a request to a DRPC stream: in the leader's process, by Spark, and for a hundred callers at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import TridentTopology

TITLE = "requests: words looked up in a state of 20,000 keys"

_CALLERS = 100
_WAIT_SECS = 600.0


def run(bench: Bench, report: Report) -> None:
    """The same look-up without and with a function of the user's, in turn with one row collected by Spark."""
    keys = bench.size(20_000, 200)
    warehouse = bench.fresh("drpc")
    with bench.running(_topology(keys), warehouse, 1) as query:
        query.process_all_available(_WAIT_SECS)

        def asked(function: str) -> float:
            started = time.perf_counter()
            (row,) = query.execute(function, "w1 w2 nothing")
            assert row[0] == 2, row
            return (time.perf_counter() - started) * 1000

        def collected(number: int) -> float:
            started = time.perf_counter()
            bench.spark.range(1).collect()
            return (time.perf_counter() - started) * 1000

        contenders = {
            "framework's own steps": lambda number: asked("words"),
            "one function of the user's": lambda number: asked("shouted"),
            "one row collected by Spark": collected,
        }
        for _ in range(bench.size(10, 1)):
            for contender in contenders.values():
                contender(-1)
        measured = rounds(bench.size(30, 2), contenders, lambda text: None)
        goals = {"framework's own steps": Goal(at_most=10), "one function of the user's": Goal(at_most=60)}
        ms = {name: report.figure(name, "ms", values, goals.get(name)) for name, values in measured.items()}
        peer = ms.pop("one row collected by Spark")
        for name, value in ms.items():
            report.ratio(f"{name} / one row collected by Spark", value, peer)
        _many_callers(bench, report, "framework's own steps", bench.size(50, 1), lambda: asked("words"))
        _many_callers(bench, report, "one function of the user's", bench.size(20, 1), lambda: asked("shouted"))


def _many_callers(bench: Bench, report: Report, name: str, each: int, asked: Callable[[], float]) -> None:
    """A hundred callers, each of which asks again as soon as it is answered."""

    def measured(count: int) -> list[float]:
        with ThreadPoolExecutor(_CALLERS) as pool:
            answers = [pool.submit(lambda: [asked() for _ in range(count)]) for _ in range(_CALLERS)]
            return sorted(ms for answer in answers for ms in answer.result())

    measured(bench.size(5, 1))
    jobs, cpu, started = _jobs(bench), time.process_time(), time.perf_counter()
    times = measured(each)
    took, cpu, jobs = time.perf_counter() - started, time.process_time() - cpu, _jobs(bench) - jobs
    at = f"{name}, 100 callers at once"
    report.figure(f"{at}: median", "ms", [times[len(times) // 2]])
    report.figure(f"{at}: 99 of 100 are faster", "ms", [times[int(len(times) * 0.99)]])
    report.figure(f"{at}: requests a second", "1/s", [len(times) / took])
    report.figure(f"{at}: Spark jobs for each request", "jobs", [jobs / len(times)])
    report.figure(f"{at}: CPU of a request in the leader's process", "ms", [cpu * 1000 / len(times)])


def _jobs(bench: Bench) -> int:
    """The Spark jobs so far."""
    return int(bench.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def _shout(count: int) -> int:
    return count


def _topology(keys: int) -> TridentTopology:
    from trident import Count, DeltaMapState, FilterNull, FixedBatchSpout, MapGet, Split, Sum, TridentTopology

    topology = TridentTopology("drpc")
    rows = topology.new_stream("rows", FixedBatchSpout("word string", [[(f"w{n}",) for n in range(keys)]]))
    counts = rows.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    words = topology.new_drpc_stream("words").each("args", Split(), "word").state_query(counts, "word", MapGet(), "n")
    words.each("n", FilterNull()).aggregate("n", Sum(), "sum")
    shouted = topology.new_drpc_stream("shouted").each("args", Split(), "word")
    shouted = shouted.state_query(counts, "word", MapGet(), "n").each("n", FilterNull())
    shouted.each("n", _shout, "m long").aggregate("m", Sum(), "sum")
    return topology
