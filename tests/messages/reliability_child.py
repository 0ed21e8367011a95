"""The coordinator that test_reliability_faults.py kills: messages of a Redis list, their words counted and kept.

Run as ``python tests/messages/reliability_child.py '{"warehouse": …}'``: it works off the list, stops and ends.
A word ``gate-NAME`` stops the Python worker that comes to it until the gate is open, so that what happens meanwhile
happens in the middle of a batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.jvm.jvm_options import cold_options
from trident import Count, DeltaAppend, DeltaMapState, RedisListSpout, TridentTopology
from trident.spark.session import make_session

TOPOLOGY, STREAM, GATE, POISON = "reliable", "lines", "gate-", "poison"
# Nobody waits for ever: a worker whose test has failed must end.
GATE_SECS, WAIT_SECS = 120.0, 180.0


def splitter(gates: Path) -> Callable[[str], Iterator[str]]:
    def split(line: str) -> Iterator[str]:
        for word in line.split():
            if word == POISON:
                raise ValueError("this word is poison")
            if word.startswith(GATE):
                pass_through(gates / word)
            yield word

    def pass_through(gate: Path) -> None:
        is_open = gate.with_suffix(".open")
        if not is_open.exists():
            (gate.parent / f"{gate.name}.{os.getpid()}.{time.time_ns()}.waits").touch()
        deadline = time.monotonic() + GATE_SECS
        while not is_open.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    return split


def topology(settings: dict[str, Any]) -> TridentTopology:
    # Redelivery by time is no help: what comes again does so because somebody took it over.
    spout = RedisListSpout(settings["redis"], settings["list"], "line string", redeliver_after_secs=600, prefetch=10)
    made = TridentTopology(TOPOLOGY)
    words = made.new_stream(STREAM, spout).each("line", splitter(Path(settings["gates"])), "word string")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    words.partition_persist(DeltaAppend("seen"), "word")
    return made


def main(settings: dict[str, Any]) -> None:
    spark = make_session(
        "life",
        {
            "spark.master": settings["master"],
            "spark.driver.memory": "700m",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.executor.extraJavaOptions": cold_options(),
            "spark.sql.session.timeZone": "UTC",
        },
    )
    query = topology(settings).start(
        spark,
        warehouse=settings["warehouse"],
        zookeeper=settings["zookeeper"],
        zookeeper_root=settings["zookeeper_root"],
        zookeeper_session_timeout_secs=4,
        max_replays=1,
        replay_backoff_secs=0.01,
        max_pending_messages=16,
        max_spout_pending=2,
        message_timeout_secs=120,
        batch_partitions=settings.get("batch_partitions"),
    )
    print("started", flush=True)
    query.process_all_available(WAIT_SECS)
    counts = {row.word: row["count"] for row in query.snapshot("counts").collect()}
    attempts = {one["batch_id"]: one["attempt"] for one in query.recent_progress}
    print(json.dumps({"counts": counts, "attempts": attempts}), flush=True)
    # Its end is nobody's subject: the tables are left as they are after a transaction.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
