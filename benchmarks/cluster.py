"""One and two executors of a real standalone cluster, beside foreachBatch on the same executors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import words
from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.stores import FOUR, ONE, THEIRS, child

if TYPE_CHECKING:
    from tests.cluster.standalone import Standalone

TITLE = "executors of one core each on a standalone cluster"

_EXECUTORS = (1, 2)


def run(bench: Bench, report: Report) -> None:
    """Processes with one and with two executors in turn, each of which runs its contenders in turn."""
    from tests.cluster.standalone import Standalone

    with Standalone(bench.fresh("cluster"), workers=max(_EXECUTORS), memory=1500) as cluster:
        for lines, transactions in ((words.LINES, 20), (words.LINES * 10, 12)):
            _measure(bench, report, cluster, bench.size(lines, 200), bench.size(transactions, 12))
            if bench.quick:
                break
    report.note("each run was read afterwards: it counts every word once")
    report.note("driver, master, workers and executors are processes of one machine and share its cores")
    report.note("the warehouse is a folder of its disk; foreachBatch writes Delta's checksum files, as by default")


def _measure(bench: Bench, report: Report, cluster: Standalone, lines: int, transactions: int) -> None:
    files = words.write_files(bench.fresh("lines"), transactions, lines)
    found: dict[int, dict[str, list[float]]] = {executors: {} for executors in _EXECUTORS}
    # Turned around in the second half: what else the machine does hits both alike.
    for executors in _EXECUTORS if bench.quick else (*_EXECUTORS, *reversed(_EXECUTORS)):
        bench.said(f"   {lines * words.WORDS_PER_LINE:,} words a transaction, executors: {executors}")
        figures = _once(bench, cluster, executors, files, lines)
        for name in (ONE, FOUR, THEIRS):
            found[executors].setdefault(name, []).extend(figures[name])
    what = f"{lines * words.WORDS_PER_LINE:,} words"
    medians = {
        (name, executors): report.figure(f"{what}: {name}, executors: {executors}", "ms/transaction", took)
        for executors, by_name in found.items()
        for name, took in by_name.items()
    }
    for name in (ONE, FOUR, THEIRS):
        report.ratio(f"{what}: {name}: one executor / two", medians[name, 1], medians[name, 2])
    for executors in _EXECUTORS:
        theirs = medians[THEIRS, executors]
        report.ratio(f"{what}, executors: {executors}: {ONE} / {THEIRS}", medians[ONE, executors], theirs)
        report.ratio(f"{what}, executors: {executors}: {FOUR} / {THEIRS}", medians[FOUR, executors], theirs)


def _once(bench: Bench, cluster: Standalone, executors: int, files: Path, lines: int) -> dict[str, list[float]]:
    from tests.cluster.standalone import PYTHON
    from trident.spark.jars import delta_jars
    from trident.spark.session import LOCAL_FS

    jars = os.pathsep.join(delta_jars({}))
    settings = {
        "spark.master": cluster.url,
        "spark.cores.max": str(executors),
        "spark.executor.cores": "1",
        "spark.executor.memory": "900m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": str(executors),
        # As a local session has them: else foreachBatch reads a small table's log in 50 tasks, and each file that
        # Spark writes starts a process.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.hadoop.fs.file.impl": LOCAL_FS,
        "spark.executor.extraClassPath": jars,  # by the path of this machine, on which they all are
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    python = {"PYSPARK_PYTHON": PYTHON, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return child(bench, files, lines, str(bench.fresh("warehouses")), settings, python, None, count=2)
