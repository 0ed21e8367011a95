"""Messages and queues whose warehouse is in a store: killed and resumed, each counts once; spouts and bolts there.

The lives of a topology, and HDFS, are ``make stores``: each life starts Spark anew.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from tests.programs import python
from tests.servers import store_servers
from tests.servers.redis_fixtures import RedisServer
from trident import DeltaAppend, RedisListQueue, RedisListSpout, SqliteQueue, TridentTopology
from trident.planning.groups import plan
from trident.planning.session_frames import SessionFrames
from trident.states.core import storage

ALL = os.environ.get("TRIDENT_STORES") == "all"
ROOT = Path(__file__).resolve().parents[2]
KINDS = ["s3", *(["hdfs"] if ALL else [])]
only_all = pytest.mark.skipif(not ALL, reason="make stores runs it (TRIDENT_STORES=all)")
LIVES = [
    "directory.claim:do_then_die:2",
    "ledger.sum:do_then_die:2",
    "stage.write:do_then_die:5",
    "directory.remove:do_then_die:2",
    "zk.decide:do_then_die:3",
    "publish.table:do_then_die:4",
    "",
]
# So many messages come to each queue for each life.
MORE, POISON = 16, 7
MESSAGES = MORE * len(LIVES)

PROGRAM = """
import json, sys
from collections.abc import Iterator
from trident import (
    Count, DeltaAppend, DeltaMapState, DirectoryQueueSpout, QueueSpout, RedisListSpout, SqliteQueue, TridentTopology
)

folder, redis, key, warehouse, zookeeper, root, conf = sys.argv[1:]

def word(line: str) -> Iterator[str]:
    if line == "poison":
        raise ValueError("this line is poison")
    yield line.split()[0]

def same(value: str) -> Iterator[str]:
    yield value

topology = TridentTopology("messages")
lines = topology.new_stream("lines", RedisListSpout(redis, key, "line string", redeliver_after_secs=600, prefetch=5))
words = lines.each("line", word, "word")
words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
words.partition_persist(DeltaAppend("lines"))
files = topology.new_stream("files", DirectoryQueueSpout(folder + "/in", max_files=7))
files.each("value", same, "again").partition_persist(DeltaAppend("files"))
queue = QueueSpout(SqliteQueue(folder + "/queue.db"), max_messages=7)
taken = topology.new_stream("taken", queue)
taken.partition_persist(DeltaAppend("taken"))
query = topology.start(
    warehouse=warehouse, zookeeper=zookeeper, zookeeper_root=root, zookeeper_session_timeout_secs=4,
    spark_master="local[2]", spark_conf=json.loads(conf), driver_memory="900m",
    max_replays=1, replay_backoff_secs=0.01, max_pending_messages=16,
)
query.process_all_available(200)
states = ("counts", "lines", "files", "taken")
found = {name: sorted((row.asDict() for row in query.snapshot(name).collect()), key=str) for name in states}
query.stop()
print(json.dumps(found))
"""
BOLTS = """
import json, sys, time
from trident import RichBolt, RichSpout, TupleTopology

warehouse, conf = sys.argv[1:]

class Numbers(RichSpout):
    fields = "n long"

    def open(self):
        self.left, self.acked = list(range(20)), []

    def next_tuple(self):
        if self.left:
            number = self.left.pop()
            self.collector.emit(number, number)

    def ack(self, message_id):
        acked.append(message_id)

    def fail(self, message_id):
        self.left.append(message_id)

class Slow(RichBolt):
    def execute(self, tuple):
        # The task begins its time anew again and again, by the warehouse: longer than message_timeout_secs in all.
        for _ in range(5 if tuple["n"] == 3 else 0):
            time.sleep(3.0)
            self.collector.reset_timeout(tuple)
        self.collector.ack(tuple)

acked = []
topology = TupleTopology("bolts")
topology.set_spout("numbers", Numbers())
topology.set_bolt("slow", Slow()).shuffle_grouping("numbers")
query = topology.start(
    warehouse=warehouse, spark_master="local[2]", spark_conf=json.loads(conf), driver_memory="900m",
    message_timeout_secs=10,
)
query.process_all_available(200)
errors = [error.error for error in query.last_errors]
query.stop()
print(json.dumps({"acked": sorted(acked), "failed": query.status["failed"], "errors": errors}))
"""
LEDGER = """
import base64, json, pickle, sys
from trident.states.core import storage
folder = sys.argv[1]
pickle.loads(base64.b64decode(sys.argv[2]))
assert storage.settings_of("/".join(folder.split("/")[:3])), "the store was not sent"
from trident.workers.anchors import Ledger
Ledger().write(folder, "pass1-0@1")
print(storage.list_names(folder))
"""


@pytest.fixture(params=KINDS)
def base(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder of its own in a store."""
    url = f"{store_servers.running(request.param)}/{uuid.uuid4().hex[:8]}"
    yield url
    storage.delete(url)


@pytest.fixture
def reached(base: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Spark settings by which a program reaches the store, as JSON; credentials are in the environment."""
    given = dict(storage.settings_of("/".join(base.split("/")[:3])))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given.pop("fs.s3a.access.key", "a"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given.pop("fs.s3a.secret.key", "b"))
    return json.dumps({f"spark.hadoop.{key}": value for key, value in given.items()})


def run(program: str, *arguments: str, fault: str = "") -> Any:
    return python("-c", program, *arguments, timeout_secs=500, TRIDENT_FAULTS=fault)


def test_a_task_is_sent_the_store_that_its_ledger_is_in(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are told the folder by a property of the job, which has no settings; the pass has them."""
    folder = f"{store_servers.running('s3')}/{uuid.uuid4().hex[:8]}"
    passes: list[Any] = []
    monkeypatch.setattr(SessionFrames, "map_in_arrow", lambda _self, chain, *_: passes.append(chain))
    topology = TridentTopology("sent")
    lines = topology.new_stream("lines", RedisListSpout("redis://one", "key", "line string"))
    lines.each("line", str.split, "words array<string>").partition_persist(DeltaAppend("out"))
    plan(topology.graph)[0].compiled(spark)
    assert passes, "no pass of Python"
    serializer: Any = CloudPickleSerializer()
    sent = [base64.b64encode(serializer.dumps(one)).decode() for one in passes]
    done = run(LEDGER, folder, sent[0])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "['pass1-0@1.parquet']"
    storage.delete(folder)


@only_all
def test_killed_and_resumed_each_message_counts_once(
    base: str, reached: str, tmp_path: Path, redis_server: RedisServer, zk_server: str, zk_root: str
) -> None:
    queue, taken = RedisListQueue(redis_server.url, zk_root), SqliteQueue(tmp_path / "queue.db")
    (tmp_path / "in").mkdir()
    given = (str(tmp_path), redis_server.url, queue.key, f"{base}/w", zk_server, zk_root, reached)
    for at, fault in enumerate(LIVES):
        numbers = range(at * MORE, (at + 1) * MORE)
        for number in numbers:
            queue.put("poison" if number == POISON else f"w{number % 5} {number}", f"m{number}")
            (tmp_path / "in" / f"{number:03d}.txt").write_text(f"f{number}\n")
        taken.put(f"t{number}" for number in numbers)
        life = run(PROGRAM, *given, fault=fault)
        expected = -signal.SIGKILL if fault else 0
        assert life.returncode == expected, f"life with {fault or 'no fault'}: {life.stderr[-3000:]}"
    found = json.loads(life.stdout.splitlines()[-1])
    good = [number for number in range(MESSAGES) if number != POISON]
    assert sorted(row["line"] for row in found["lines"]) == sorted(f"w{number % 5} {number}" for number in good)
    counts = {f"w{word}": sum(number % 5 == word for number in good) for word in range(5)}
    assert {row["word"]: row["count"] for row in found["counts"]} == counts
    assert sorted(row["value"] for row in found["files"]) == sorted(f"f{number}" for number in range(MESSAGES))
    assert sorted(row["payload"] for row in found["taken"]) == sorted(f"t{number}" for number in range(MESSAGES))
    assert sorted(path.name for path in (tmp_path / "in" / "done").iterdir()) == [
        f"{number:03d}.txt" for number in range(MESSAGES)
    ]
    assert not list((tmp_path / "in").glob(".trident-queue/copies-*/*")), "copies are left"
    # The message that cannot be processed is a dead letter; it is tried again when asked, and is one again.
    command = ["-m", "trident.cli", "dead-letters"]
    settings = {"WAREHOUSE": f"{base}/w", "ZOOKEEPER": zk_server, "ZOOKEEPER_ROOT": zk_root, "SPARK_CONF": reached}
    environment = {f"TRIDENT_{name}": one for name, one in settings.items()}
    told = python(*command, "replay", "messages", cwd=tmp_path, timeout_secs=200, **environment)
    assert "lines: 1 to be tried again" in told.stdout, told.stdout + told.stderr[-3000:]
    again = run(PROGRAM, *given)
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout.splitlines()[-1]) == found
    told = python(*command, "list", "messages", "--json", cwd=tmp_path, timeout_secs=200, **environment)
    letters = [json.loads(line) for line in told.stdout.splitlines()]
    assert [letter["replay"] for letter in letters] == ["dead", ""], told.stdout + told.stderr[-3000:]
    assert {letter["message"] for letter in letters} == {f'"m{POISON}"'}


@only_all
def test_spouts_and_bolts_tell_of_time_by_the_store(base: str, reached: str) -> None:
    done = run(BOLTS, f"{base}/w", reached)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"acked": list(range(20)), "failed": 0, "errors": []}
