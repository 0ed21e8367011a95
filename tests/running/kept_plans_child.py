"""Runs a topology with kept plans on a cluster whose tasks fail, and lose their executor.

python -m tests.running.kept_plans_child WAREHOUSE
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark import TaskContext

from trident import DeltaAppend, FixedBatchSpout, TridentConfig, TridentTopology

BATCHES = 24
FAULTS = {4: "fails", 9: "dies", 19: "fails"}


def parent(process: int) -> int:
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def marked(kind: str, number: int) -> Iterator[str]:
    """Fails in the first try of a task, each kind in its way."""
    task = TaskContext.get()
    assert task is not None
    if number % 5 == 0:  # what happened, for the test to see
        Path(os.environ["TRIDENT_TEST_TRIES"], f"{kind}, try {min(task.attemptNumber(), 1)}").touch()
    if task.attemptNumber() == 0 and number % 5 == 0:
        if kind == "fails":
            raise ValueError("the first try")
        if kind == "dies":
            os.kill(parent(os.getppid()), signal.SIGKILL)  # the executor: the parent of this worker's daemon
            time.sleep(60)
    yield f"{kind} {number}"


def batch(number: int) -> list[tuple[str, int]]:
    return [(FAULTS.get(number, "goes well"), 5 * number + row) for row in range(5)]


def main(warehouse: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    topology = TridentTopology("kept")
    spout = FixedBatchSpout("kind string, number int", [batch(number) for number in range(BATCHES)])
    rows = topology.new_stream("rows", spout).each(["kind", "number"], marked, "text")
    rows.partition_persist(DeltaAppend("out"))
    config = TridentConfig(spark_master="local-cluster[2,1,1024]", warehouse=warehouse, progress="none")
    query = topology.start(config=config)
    query.process_all_available(300)
    spark = query.spark
    print("ATTEMPTS", max(record["attempt"] for record in query.recent_progress))
    print("ROWS", sorted((row.number, row.text) for row in query.snapshot("out").collect()))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
