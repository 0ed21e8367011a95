"""The cost of a request to a DRPC stream: in the leader's process, by Spark, and for a hundred callers at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import TopologyQuery, TridentTopology

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
        _many_callers(bench, report, query, asked)


def _many_callers(bench: Bench, report: Report, query: TopologyQuery, asked: Any) -> None:
    """A hundred callers, each of which asks again as soon as it is answered."""
    each = bench.size(50, 1)
    cpu, started = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(_CALLERS) as pool:
        answers = [pool.submit(lambda: [asked("words") for _ in range(each)]) for _ in range(_CALLERS)]
        times = sorted(ms for answer in answers for ms in answer.result())
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    report.figure("100 callers at once: median", "ms", [times[len(times) // 2]])
    report.figure("100 callers at once: 99 of 100 are faster", "ms", [times[int(len(times) * 0.99)]])
    report.figure("100 callers at once: requests a second", "1/s", [len(times) / took])
    report.figure("CPU of a request in the leader's process", "ms", [cpu * 1000 / len(times)])


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
