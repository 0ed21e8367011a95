"""A topology whose tasks tell all that they can see of their surroundings; run as a module, until it is killed.

``python -m tests.running.secured_job FOLDER``: settings and credentials come from the
environment, every logger is at its lowest level, and it says ``HANGS`` when
the fault it was given has been reached.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trident import DeltaAppend, DeltaMapState, FileSpout, Sum, TridentConfig, TridentTopology
from trident.coordinators import faults
from trident.running.query import TopologyQuery
from trident.spark.session import make_session
from trident.spouts.contracts import OpaquePartitionedTridentSpout, PartitionBatch
from trident.udf.types import as_schema

NAME = "secured"
NUMBERS, PER_BATCH = 20, 5
LINES = [f"line {number}" for number in range(4)]


def what_a_task_sees(line: str) -> Iterator[str]:
    """The environment, Spark's properties and broadcasts, the program's arguments and those of its parents."""
    from pyspark import TaskContext
    from pyspark.core.broadcast import _broadcastRegistry

    context: Any = TaskContext.get()
    seen = {
        "line": line,
        "environment": dict(os.environ),
        "properties": dict(context._localProperties) if context and context._localProperties else {},
        "broadcasts": [repr(one.value) for one in list(_broadcastRegistry.values())],
        "arguments": [_read(pid, "cmdline") for pid in ("self", os.getppid())],
        "environment at the start": _read("self", "environ"),
    }
    yield json.dumps(seen)


def _read(pid: Any, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Numbers(OpaquePartitionedTridentSpout):
    """Opaque, in two partitions."""

    output_schema = as_schema("n long", "Numbers")

    def get_coordinator(self, context: Any) -> Coordinator:
        return Coordinator()

    def get_partition_emitter(self, context: Any) -> Emitter:
        return Emitter()


class Coordinator:
    def get_partitions_for_batch(self) -> list[str]:
        return ["0", "1"]

    def is_ready(self, txid: int) -> bool:
        return txid <= NUMBERS // 2 // PER_BATCH

    def refresh_partitions(self, partitions: Any) -> None: ...

    def success(self, txid: int) -> None: ...

    def close(self) -> None: ...


class Emitter:
    def emit_partition_batch(self, attempt: Any, partition: str, last: Any) -> PartitionBatch:
        begin = last["next"] if last else int(partition)
        end = min(NUMBERS, begin + 2 * PER_BATCH)
        return PartitionBatch([(n,) for n in range(begin, end, 2)], {"next": begin + 2 * PER_BATCH})

    def close(self) -> None: ...


def topology(folder: Path) -> TridentTopology:
    made = TridentTopology(NAME)
    lines = made.new_stream("lines", FileSpout(str(folder / "in"), min_rows=2, max_rows=2))
    lines.each("value", what_a_task_sees, "seen string").project("value", "seen").partition_persist(DeltaAppend("seen"))
    numbers = made.new_stream("numbers", Numbers())
    numbers.persistent_aggregate(DeltaMapState("sum"), "n", Sum(), "sum")
    return made


def main(folder: Path) -> None:
    logging.basicConfig(level=1, stream=sys.stderr)
    logging.getLogger("trident.coordinators.zookeeper.kazoo").propagate = True
    spark = make_session(
        "life",
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "700m",
            "spark.executorEnv.SECURED_JOB_PROBE": "of the conf",
            # As in tests/jvm/spark_fixtures.py: batches of few rows take less time so.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
        },
    )
    config = TridentConfig()
    query: TopologyQuery = topology(folder).start(spark, config)
    while faults.unfired() and query.is_active:
        time.sleep(0.05)
    surroundings = {
        "conf": dict(spark.sparkContext.getConf().getAll()),
        "session": dict(spark.conf.getAll) if not callable(spark.conf.getAll) else dict(spark.conf.getAll()),
        "jvm": dict(spark._jvm.System.getenv()),
        "status": query.status,
        "config": repr(config),
        "query": repr(query),
        "progress": query.recent_progress,
    }
    print("SURROUNDINGS " + json.dumps(surroundings, default=str), flush=True)
    print("HANGS", flush=True)
    query.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
