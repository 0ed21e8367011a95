"""Many small transactions: requests to ZooKeeper, and whether the driver's memory stays flat."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Recorder, steady_ms
from benchmarks.machine import rss_mb
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "multis a transaction and when idle; the driver's memory over 2,000 small transactions"

_IN_FLIGHT = 4


def run(bench: Bench, report: Report) -> None:
    """One topology that gets a tenth of its transactions at a time, and is looked at after each tenth."""
    from benchmarks.keys import GatedKeys
    from trident import Count, DeltaMapState, TridentTopology

    step, points, idle_secs = bench.size(200, 5), bench.size(10, 3), bench.size(5, 1)
    spout = GatedKeys(rows=10, keys=100)
    topology = TridentTopology("small")
    stream = topology.new_stream("keys", spout)
    stream.group_by("key").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    heap, python, jvm, other = [], [], [], []
    with bench.running(topology, bench.fresh("ours"), _IN_FLIGHT) as query, Recorder(query) as recorder:
        spout.allow(step)  # warm-up: classes and plans are loaded
        query.process_all_available()
        first = query._zk.counters.multis
        for number in range(points):
            used = _heap_mb(bench.spark)
            heap.append(used[0])
            other.append(used[1])
            gc.collect()
            python.append(rss_mb() or 0.0)
            jvm.append(rss_mb(_jvm_pid(bench.spark)) or 0.0)
            bench.said(
                f"   {(number + 1) * step} transactions: heap {heap[-1]:.1f} MB, Python {python[-1]:.1f} MB, "
                f"JVM {jvm[-1]:.0f} MB"
            )
            if number < points - 1:
                spout.allow(step)
                query.process_all_available()
        multis = (query._zk.counters.multis - first) / ((points - 1) * step)
        before = query._zk.counters
        seen = (before.multis, before.writes)
        reads = before.reads
        time.sleep(idle_secs)
        after = query._zk.counters
        idle, idle_reads = after.multis + after.writes - sum(seen), after.reads - reads
    report.figure("multis a transaction", "", [multis], Goal(at_most=3))
    report.figure("writes while idle", f"in {idle_secs} s", [idle], Goal(at_most=0))
    report.figure("reads while idle", f"in {idle_secs} s", [idle_reads])
    report.figure("a small transaction, 4 in flight", "ms", [steady_ms(recorder.records, step)])
    # The first points still fill caches that have bounds.
    for name, found in (
        ("JVM heap after GC", heap),
        ("JVM beside the heap", other),
        ("Python resident", python),
        ("JVM resident", jvm),
    ):
        report.figure(name, "MB", found)
        growth = _slope(found[len(found) // 3 :]) / step * 1000
        report.figure(f"{name}: growth per 1,000 transactions", "MB", [growth])
    report.note(
        f"memory at {', '.join(str((n + 1) * step) for n in range(points))} transactions, the heap after a full GC"
    )


def _slope(points: list[float]) -> float:
    """Least squares: how much a point is above the one before."""
    middle = (len(points) - 1) / 2
    mean = sum(points) / len(points)
    return sum((at - middle) * (value - mean) for at, value in enumerate(points)) / sum(
        (at - middle) ** 2 for at in range(len(points))
    )


def _heap_mb(spark: "SparkSession") -> tuple[float, float]:
    """What the JVM still uses after garbage collections: on its heap, and beside it (classes, code)."""
    bean = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    for _ in range(2):  # the first frees what the second can then collect: weak references, Spark's cleaner
        bean.gc()
        time.sleep(0.3)
    return bean.getHeapMemoryUsage().getUsed() / 2**20, bean.getNonHeapMemoryUsage().getUsed() / 2**20


def _jvm_pid(spark: "SparkSession") -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())
