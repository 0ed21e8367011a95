"""A coordinator process that is killed with SIGKILL at every kind of moment, resumed each time, counts exactly.

Three batch groups: files into two tables, a queue into a map of the user's, an
opaque source in partitions into a state that is read before it is written.
One real process a life, killed by itself at a fault point right after that
piece of I/O; the next life goes on over the same warehouse and ZooKeeper. The
checker folds the input in plain Python. Run by `make kills`; `make test` has real
SIGKILLs in test_sweep.py, test_reliability_faults.py, test_failover.py and others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from trident import SqliteMap, SqliteQueue

LIVES = [
    "spout.commit:do_then_die:2",  # the queue has heard, the coordinator has not
    "publish.user:do_then_die:2",
    "zk.decide:do_then_die:3",
    "stage.write:do_then_die:3",
    "zk.advance:do_then_die:4",
    "zk.begin:do_then_die:3",
    "spout.emit:do_then_die:2",
    "resolve.stage:do_then_die:2",
    "manifest.write:do_then_die:2",
    "publish.table:do_then_die:3",
    "publish.table:do_then_die:4",  # the second table of a transaction: published, not advanced
    "compact.merge:do_then_die:1",
    "spout.success:do_then_die:2",
]
FILES, LINES = 14, 30

PROGRAM = """
import sys
from pathlib import Path
from trident import (
    Count, DeltaAppend, DeltaMapState, FileSpout, OpaquePartitionedTridentSpout, PartitionBatch, QueueSpout, SqliteMap,
    SqliteQueue, Sum, TridentTopology, opaque,
)
from trident.udf.schemas import as_schema
from trident.spark.session import make_session

folder, zookeeper, root = sys.argv[1:]
spark = make_session("life", {"spark.master": "local[2]", "spark.driver.memory": "700m"})

def split(line):
    return iter(line.split())

class Adds:
    def init(self) -> int:
        return 0
    def reduce(self, current: int, n: int) -> int:
        return current + n

class Numbers(OpaquePartitionedTridentSpout):
    # Opaque, in two partitions: even numbers and odd ones, up to sixty.
    output_schema = as_schema("n long", "Numbers")
    def get_coordinator(self, context):
        return Coordinator()
    def get_partition_emitter(self, context):
        return Emitter()

class Coordinator:
    def get_partitions_for_batch(self):
        return ["0", "1"]
    def is_ready(self, txid):
        return txid <= 9
    def refresh_partitions(self, partitions): pass
    def success(self, txid): pass
    def close(self): pass

class Emitter:
    def emit_partition_batch(self, attempt, partition, last):
        begin = last["next"] if last else int(partition)
        count = 5 + attempt.attempt_id % 2  # a replay holds other rows
        numbers = [n for n in range(begin, begin + 2 * count, 2) if n < 60]
        return PartitionBatch([(n,) for n in numbers], {"next": begin + 2 * len(numbers)})
    def close(self): pass

topology = TridentTopology("killed")
stream = topology.new_stream("lines", FileSpout(folder + "/in", min_rows=60, max_rows=60))
words = stream.each("value", split, "word string")
words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_every_txids=5), Count(), "count")
stream.partition_persist(DeltaAppend("lines"))
orders = topology.new_stream("orders", QueueSpout(SqliteQueue(folder + "/queue.db", lease_secs=3), max_messages=7))
orders.group_by("payload").persistent_aggregate(opaque("orders", SqliteMap(folder + "/map.db", "orders")), Count(), "n")
numbers = topology.new_stream("numbers", Numbers())
numbers.persistent_aggregate(DeltaMapState("sum"), "n", Adds(), "sum long")
query = topology.start(spark, warehouse=folder + "/w", zookeeper=zookeeper, zookeeper_root=root,
                       zookeeper_session_timeout_secs=4, max_spout_pending=4)
query.process_all_available(120)
query.stop()
"""


@pytest.fixture
def folder(tmp_path: Path, rng) -> Path:
    (tmp_path / "in").mkdir()
    vocabulary = [f"w{number}" for number in range(200)]
    for number in range(FILES):
        lines = [" ".join(rng.choices(vocabulary, k=5)) for _ in range(LINES)]
        (tmp_path / "in" / f"{number:03d}.txt").write_text("".join(f"{line}\n" for line in lines))
    SqliteQueue(tmp_path / "queue.db").put(f"order {number % 10}" for number in range(60))
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it (TRIDENT_KILLS=all)")
def test_killed_at_every_kind_of_moment_and_resumed_nothing_is_lost_or_doubled(
    spark: SparkSession, folder: Path, zk_server: str, zk_root: str
) -> None:
    import trident

    command = [sys.executable, str(folder / "program.py"), str(folder), zk_server, zk_root]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    for fault in [*LIVES, ""]:
        life = subprocess.run(
            command, env={**environment, "TRIDENT_FAULTS": fault}, capture_output=True, text=True, timeout=240
        )
        expected = -signal.SIGKILL if fault else 0
        assert life.returncode == expected, f"life with {fault or 'no fault'}: {life.stderr[-3000:]}"
    lines = Counter(line for path in (folder / "in").iterdir() for line in path.read_text().splitlines())
    words: Counter = Counter()
    for line, times in lines.items():
        for word in line.split():
            words[word] += times
    counted = {row.word: row["count"] for row in trident.read(spark, folder / "w", "counts").collect()}
    assert counted == words
    assert Counter(row.value for row in trident.read(spark, folder / "w", "lines").collect()) == lines
    orders = dict(SqliteMap(str(folder / "map.db"), "orders").items())
    assert {key: value.current for key, value in orders.items()} == {(f"order {number}",): 6 for number in range(10)}
    assert len(SqliteQueue(folder / "queue.db")) == 0
    assert [tuple(row) for row in trident.read(spark, folder / "w", "sum").collect()] == [(sum(range(60)),)]
    plain = {row.word: row["count"] for row in spark.read.format("delta").load(str(folder / "w" / "counts")).collect()}
    assert plain == words, "stop() brings the plain table to the last transaction"
