"""A coordinator of the soak: leader or standby, until it is killed or told to drain.

Run as ``python -m tests.soak.coordinator FOLDER``. Three streams, one of each kind of exactly-once: files into a
keyed Delta state (with its MERGE in the background) and a Delta table, a queue into an opaque map.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    QueueSpout,
    SqliteMap,
    SqliteQueue,
    TridentTopology,
    opaque,
)
from trident.spark.session import make_session
from trident.states.keyed import log_sweeper

TOPOLOGY, SESSION_SECS, MERGE_EVERY, RETENTION_TXIDS = "soak", 4.0, 10, 50
HEAP_MB = 512
# An hour otherwise: too long for a soak to see that dropped log files go from the disk.
LOG_GRACE_SECS = 20.0
DRAIN_SECS = 300.0


def split(line: str) -> Iterator[str]:
    yield from line.split()[1:]  # the first word is the line's name


def topology(folder: Path) -> TridentTopology:
    made = TridentTopology(TOPOLOGY)
    lines = made.new_stream("lines", FileSpout(f"{folder}/in/*.txt", min_rows=20, max_rows=5_000))
    counts = DeltaMapState(
        "counts", merge_every_txids=MERGE_EVERY, merge_interval_secs=5, snapshot_retention_txids=RETENTION_TXIDS
    )
    lines.each("value", split, "word string").group_by("word").persistent_aggregate(counts, Count(), "count")
    lines.partition_persist(DeltaAppend("lines"), "value")
    orders = made.new_stream("orders", QueueSpout(SqliteQueue(folder / "queue.db", lease_secs=3), max_messages=100))
    state = opaque("orders", SqliteMap(str(folder / "map.db"), "orders"))
    orders.group_by("payload").persistent_aggregate(state, Count(), "n")
    return made


def main(folder: Path) -> None:
    log_sweeper.GRACE_SECS = LOG_GRACE_SECS  # of this process alone: an hour is longer than most soaks
    spark = make_session(
        "soak",
        {
            "spark.master": "local[2,3]",
            "spark.driver.memory": f"{HEAP_MB}m",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # The whole heap from the start: what grows then is not the heap.
            "spark.driver.extraJavaOptions": f"-Xms{HEAP_MB}m -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1 "
            "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m -XX:MaxMetaspaceSize=400m",
        },
    )
    query = topology(folder).start(
        spark,
        warehouse=str(folder / "w"),
        zookeeper_session_timeout_secs=SESSION_SECS,
        max_spout_pending=3,
        progress="plain",
        progress_interval_secs=20,
    )
    print("started", flush=True)
    while not (folder / "drain").exists():
        if query.await_termination(0.2):
            return  # it ended without an error, which nobody asked for: the soak sees it by the drain file
    query.process_all_available(DRAIN_SECS)
    query.stop(DRAIN_SECS)
    print("drained", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
