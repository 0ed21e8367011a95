"""What each loss does to a tuple topology (docs/semantics.md 6.3): real processes, ended with SIGKILL.

The ackers and the spouts have one home, the driver's process: killing it is the
loss of the acker's holder, of Storm's Nimbus and of the spout in one.
Run as a module this is the driver that is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.jvm.spark_fixtures import spark_confs
from trident.coordinators.errors import BatchError
from trident.spark.session import make_session
from trident.spouts.rich import RichSpout
from trident.tuples.bolts import BasicBolt, RichBolt
from trident.tuples.query import TupleQuery
from trident.tuples.topology import TupleTopology

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECS = 60.0
# The bolts below travel whole, as those of a script do: a worker need not import pytest for them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Source(RichSpout):
    """Messages in a SQLite file, where each stays until it is acknowledged; and a log of what it was told."""

    fields = "number"

    def __init__(self, path: Path, replays: int = 10**9) -> None:
        self.path, self.replays = str(path), replays

    @staticmethod
    def fill(path: Path, numbers: range) -> None:
        with sqlite3.connect(path) as base:
            base.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY)")
            base.execute("CREATE TABLE told (kind TEXT, number INTEGER)")
            base.executemany("INSERT INTO messages VALUES (?)", [(number,) for number in numbers])
        base.close()

    @staticmethod
    def read(path: Path) -> tuple[set[int], Counter]:
        """The messages that are left, and (kind, number) → how often it was told."""
        base = sqlite3.connect(path)
        left = {number for (number,) in base.execute("SELECT number FROM messages")}
        told = Counter(map(tuple, base.execute("SELECT kind, number FROM told")))
        base.close()
        return left, told

    def open(self) -> None:
        self.base = sqlite3.connect(self.path)
        self.waiting = deque(n for (n,) in self.base.execute("SELECT number FROM messages ORDER BY number"))
        self.failures: Counter = Counter()

    def next_tuple(self) -> None:
        if self.waiting:
            number = self.waiting.popleft()
            self.collector.emit(number, number)

    def ack(self, message_id: int) -> None:
        with self.base:
            self.base.execute("DELETE FROM messages WHERE number = ?", (message_id,))
            self.base.execute("INSERT INTO told VALUES ('ack', ?)", (message_id,))

    def fail(self, message_id: int) -> None:
        with self.base:
            self.base.execute("INSERT INTO told VALUES ('fail', ?)", (message_id,))
        self.failures[message_id] += 1
        if self.failures[message_id] <= self.replays:
            self.waiting.append(message_id)

    def close(self) -> None:
        self.base.close()


class Halves(BasicBolt):
    """Makes two tuples of each; its worker dies at one number, once or whenever it comes."""

    fields = "number, half"

    def __init__(self, deadly: int | None = None, marker: Path | None = None) -> None:
        self.deadly, self.marker = deadly, marker and str(marker)

    def execute(self, tuple, collector) -> None:
        for half in ("left", "right"):
            collector.emit((tuple["number"], half))
        if tuple["number"] == self.deadly and self.first_time():
            os.kill(os.getpid(), signal.SIGKILL)

    def first_time(self) -> bool:
        if self.marker is None:
            return True
        try:
            open(self.marker, "x").close()
        except FileExistsError:
            return False
        return True


class Log(RichBolt):
    """Writes what it is given at once; at one number it waits, once, until it is killed."""

    def __init__(self, path: Path, waits_at: int | None = None) -> None:
        self.path, self.waits_at = str(path), waits_at

    def execute(self, tuple) -> None:
        if tuple["number"] == self.waits_at:
            open(self.path + ".waits", "x").close()
            time.sleep(600)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{tuple['number']} {tuple['half']}\n")
        self.collector.ack(tuple)


def logged(path: Path) -> Counter:
    """Number → how many of its halves were processed."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    halves = {tuple(line.split()) for line in text.splitlines()}
    return Counter(int(number) for number, _ in halves)


def run(
    spark: SparkSession, folder: Path, halves: Halves, log: Log, replays: int = 10**9, **settings: Any
) -> TupleQuery:
    topology = TupleTopology("halves")
    topology.set_spout("source", Source(folder / "source.db", replays))
    topology.set_bolt("halves", halves, parallelism=2).shuffle_grouping("source")
    topology.set_bolt("log", log, parallelism=2).fields_grouping("halves", "half")
    return topology.start(spark, warehouse=str(folder / "warehouse"), **settings)


# --- a driver that is killed ---------------------------------------------------------------------


def child(folder: Path) -> None:
    """A driver, whose Spark tries tasks three times.

    In its first round the worker of message 3 dies once; in its second it gets
    no further than message 8, with messages 5 to 9 pending.
    """
    confs = {**spark_confs(str(folder / "spark")), "spark.master": "local[2,3]"}
    halves, log = Halves(3, folder / "died"), Log(folder / "log", waits_at=8)
    query = run(make_session("child", confs), folder, halves, log, max_pending_messages=5)
    query.process_all_available()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a driver has left behind that was killed with messages pending."""
    folder = tmp_path_factory.mktemp("killed")
    Source.fill(folder / "source.db", range(20))
    command = [sys.executable, "-m", "tests.tuples.test_tuple_faults", str(folder)]
    # A session of its own: what the driver leaves running can be ended with it.
    with open(folder / "errors", "w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=errors)
    try:
        deadline = time.monotonic() + WAIT_SECS
        while not (folder / "log.waits").exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "errors").read_text()
            time.sleep(0.05)
        process.kill()
        assert process.wait(WAIT_SECS) == -signal.SIGKILL
    finally:
        _end_session(process.pid)
    return folder


@pytest.mark.long
def test_a_worker_that_dies_once_costs_no_message_and_no_replay(killed: Path) -> None:
    _, told = Source.read(killed / "source.db")
    assert (killed / "died").exists(), "the worker of message 3 was killed"
    assert told == Counter({("ack", number): 1 for number in range(5)}), "its round went on, and nothing failed"
    done = logged(killed / "log")
    assert all(done[number] == 2 for number in range(5)), "what is acknowledged is processed"


@pytest.mark.long
def test_a_driver_that_is_killed_loses_nothing_that_it_has_not_acknowledged(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(killed, tmp_path / "restarted")
    left, _ = Source.read(folder / "source.db")
    assert left == set(range(5, 20)), "what was pending with the ackers is still with the source"
    query = run(spark, folder, Halves(), Log(folder / "log"))
    query.process_all_available(WAIT_SECS)
    query.stop(WAIT_SECS)
    assert query.status["emitted"] == 15, "what was acknowledged is not handed out again, all else is"
    left, told = Source.read(folder / "source.db")
    assert left == set() and told == Counter({("ack", number): 1 for number in range(20)})
    assert logged(folder / "log") == dict.fromkeys(range(20), 2)


# --- in the tests' own process, where Spark tries a task once ----------------------------------------


@pytest.mark.long
def test_a_message_that_always_kills_its_worker_fails_and_the_others_get_through(
    spark: SparkSession, tmp_path: Path
) -> None:
    Source.fill(tmp_path / "source.db", range(10))
    query = run(spark, tmp_path, Halves(deadly=9), Log(tmp_path / "log"), replays=3)
    query.process_all_available(WAIT_SECS)
    left, told = Source.read(tmp_path / "source.db")
    # Rounds of 10, then of 1, 2, 4, 3, and of 1 again: it is alone in the end.
    assert left == {9} and told["fail", 9] == 4 and told["ack", 9] == 0
    assert {number for kind, number in told if kind == "ack"} == set(range(9))
    assert told["fail", 0] == 1, "the first round failed as a whole"
    assert query.is_active and query.status["pending"] == 0
    assert any("round 1 failed" in one.error and "crashed" in one.error for one in query.last_errors)
    query.stop(WAIT_SECS)
    assert {number for number, halves in logged(tmp_path / "log").items() if halves == 2} == set(range(9))


def test_a_topology_whose_rounds_all_fail_stops_with_the_error(spark: SparkSession, tmp_path: Path) -> None:
    Source.fill(tmp_path / "source.db", range(7, 8))
    query = run(spark, tmp_path, Halves(deadly=7), Log(tmp_path / "log"), max_attempts=2)
    with pytest.raises(BatchError, match="2 rounds in a row failed.*crashed"):
        query.process_all_available(WAIT_SECS)
    assert not query.is_active and isinstance(query.exception(), BatchError)
    assert Source.read(tmp_path / "source.db") == ({7}, Counter({("fail", 7): 2})), "the message stays with its source"


def _end_session(leader: int) -> None:
    """Ends the JVM and the workers of a driver that was killed; they would end by themselves soon."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    child(Path(sys.argv[1]))
