"""The coordinator that test_views_under_kills.py kills: numbers, counted in two keyed states and kept in two appends.

Run as ``python tests/time_travel/views_child.py '{"warehouse": …}'``; it runs until it is killed, or told to stop by
a file. Each transaction has ROWS numbers, so that a number tells its transaction, and each table's rows or values sum
up to the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tests.jvm_options import cold_options
from trident import Count, DeltaAppend, DeltaMapState, RateSpout, TridentTopology
from trident.spark.session import make_session

TOPOLOGY, STREAM, ROWS = "viewed", "numbers", 10
KEPT = 10**6


def topology() -> TridentTopology:
    made = TridentTopology(TOPOLOGY)
    numbers = made.new_stream(STREAM, RateSpout(rows_per_second=10**6, rows_per_batch=ROWS))
    rests = numbers.each("value", lambda value: value % 7, "rest long")
    # All of the past is kept, however long it runs: each row is explained in the end.
    merged = {"merge_interval_secs": 3600, "snapshot_retention_txids": KEPT}
    often = DeltaMapState("often", merge_every_txids=2, **merged)
    seldom = DeltaMapState("seldom", merge_every_txids=5, **merged)
    rests.group_by("rest").persistent_aggregate(often, Count(), "count")
    rests.group_by("rest").persistent_aggregate(seldom, Count(), "count")
    numbers.partition_persist(DeltaAppend("told", txid_column="_txid"), "value")
    numbers.partition_persist(DeltaAppend("untold"), "value")
    return made


def main(settings: dict[str, Any]) -> None:
    spark = make_session(
        "views",
        {
            "spark.master": "local[1]",
            "spark.driver.memory": "700m",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.executor.extraJavaOptions": cold_options(),
            "spark.sql.session.timeZone": "UTC",
        },
    )
    query = topology().start(
        spark,
        warehouse=settings["warehouse"],
        zookeeper=settings["zookeeper"],
        zookeeper_root=settings["zookeeper_root"],
        zookeeper_session_timeout_secs=4,
        history_retention_txids=KEPT,
    )
    print("started", flush=True)
    while not os.path.exists(settings["stop"]):
        time.sleep(0.02)
    query.stop()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
