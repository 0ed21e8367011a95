"""Spark's micro-batches are transactions: each in one, and Spark commits none that the topology has not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tests.programs import python
from tests.servers.zk_fixtures import eventually
from tests.spouts import source_helpers
from tests.spouts.source_helpers import WAIT_SECS, by_txid, out, run_to_end
from trident.coordinators import faults
from trident.coordinators.errors import AttemptCapReached, SourceError, TopologyError
from trident.spouts.contracts import Refreshes, Resumes, SpoutKind, TridentSpout
from trident.spouts.structured_stream import (
    Handover,
    HandoverClosed,
    Pin,
    StreamCoordinator,
    StreamEmitter,
    StructuredStreamSpout,
    following,
)

start, warehouse = source_helpers.start, source_helpers.warehouse

ROOT = Path(__file__).resolve().parents[2]


class Lines:
    """A folder that Spark streams, a file a batch."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder / "in", folder / "checkpoint"
        self.folder.mkdir()
        self.expected: list[Counter] = []

    def put(self, *files: list[str]) -> None:
        for lines in files:
            number = len(self.expected)
            hidden = self.folder / f".{number}"
            hidden.write_text("".join(f"{line}\n" for line in lines))
            os.utime(hidden, (number, number))
            hidden.rename(self.folder / f"{number}.txt")
            self.expected.append(Counter(lines))

    def stream(self):
        return self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.folder))

    def spout(self) -> StructuredStreamSpout:
        """A fresh one, as a new process would make it."""
        return StructuredStreamSpout(self.stream(), self.checkpoint)

    def committed(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self.checkpoint / "commits") if not name.startswith("."))

    def forget_commit(self, batch: int) -> None:
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink()


@pytest.fixture
def lines(spark, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def test_a_batch_is_one_transaction_over_a_failure_and_a_crash_before_sparks_commit(start, lines, warehouse):
    lines.put(["a", "b"], ["c"])
    faults.arm("stage.write:do_then_fail:2,stream.return:fail_before:2")
    run_to_end(start, lines.spout(), max_spout_pending=3)
    assert faults.unfired() == [] and by_txid(warehouse) == lines.expected


@pytest.mark.long
def test_each_batch_is_one_transaction_over_failures_restarts_and_crashes_before_sparks_commit(start, lines, warehouse):
    spout = lines.spout()
    assert isinstance(spout, TridentSpout) and spout.kind is SpoutKind.TRANSACTIONAL
    lines.put(["a", "b"], ["a"], ["c", "c"])
    # A failed attempt, a lost answer, and what a crash between the advance of txid 3 and Spark's commit leaves behind.
    faults.arm("stage.write:do_then_fail:2,zk.decide:do_then_fail:1,stream.return:fail_before:3")
    query = run_to_end(start, spout, max_spout_pending=3)
    assert faults.unfired() == [] and by_txid(warehouse) == lines.expected
    lines.put(["d"])
    query.process_all_available(WAIT_SECS)
    assert by_txid(warehouse) == lines.expected
    query.stop()
    # As after a crash between the last advance and Spark's commit: the batch comes again, and is not taken again.
    lines.forget_commit(3)
    lines.put(["e"], ["e", "f"])
    again = run_to_end(start, lines.spout())
    assert by_txid(warehouse) == lines.expected and len(again.recent_progress) == 2
    again.stop()
    assert lines.committed() == [0, 1, 2, 3, 4, 5]


@pytest.mark.long
def test_a_batch_in_flight_at_the_stop_is_given_back_and_taken_again(start, lines, warehouse):
    lines.put(["a"], ["b"])
    faults.arm("stage.write:hang:2")
    query = start(lines.spout())
    assert eventually(lambda: not faults.unfired(), 60)
    assert lines.committed() == [0], "Spark waits for the topology"
    threading.Timer(0.5, faults.disarm).start()
    query.stop()
    assert lines.committed() == [0] and out(warehouse) == Counter("a")
    again = run_to_end(start, lines.spout())
    assert by_txid(warehouse) == lines.expected and again.recent_progress[0]["attempt"] == 1


PROGRAM = """
import sys
from trident import DeltaAppend, TridentTopology
from trident.spark.session import make_session
from trident.spouts.structured_stream import StructuredStreamSpout

folder, zookeeper, root = sys.argv[1:]
spark = make_session("life", {"spark.master": "local[1]", "spark.driver.memory": "700m"})
stream = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder + "/in")
topology = TridentTopology("t")
topology.new_stream("rows", StructuredStreamSpout(stream, folder + "/checkpoint")).partition_persist(DeltaAppend("out"))
query = topology.start(spark, warehouse=folder + "/warehouse", zookeeper=zookeeper, zookeeper_root=root,
                       zookeeper_session_timeout_secs=4)
query.await_termination(120)
"""


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="a process of its own: with TRIDENT_KILLS=all")
def test_killed_between_the_advance_and_sparks_commit(start, lines, tmp_path, zk_server, zk_root, warehouse):
    lines.put(["a", "b"], ["c"], ["a"])
    life = python("-c", PROGRAM, tmp_path, zk_server, zk_root, TRIDENT_FAULTS="stream.return:do_then_die:2")
    assert life.returncode == -signal.SIGKILL, life.stderr[-3000:]
    assert lines.committed() == [0], "batch 1 has advanced, and Spark does not know"
    query = run_to_end(start, lines.spout())
    assert by_txid(warehouse) == lines.expected
    assert [record["batch_id"] for record in query.recent_progress] == [3]


@pytest.mark.long
def test_sparks_own_state_survives_attempts_that_fail(start, lines, spark, warehouse):
    lines.put(["a", "b"], ["a"], ["b", "a"])

    def counts() -> StructuredStreamSpout:
        return StructuredStreamSpout(lines.stream().groupBy("value").count(), lines.checkpoint, output_mode="update")

    faults.arm("stage.write:do_then_fail:1,stage.write:do_then_fail:3")
    query = run_to_end(start, counts())
    expected = [{("a", 1), ("b", 1)}, {("a", 2)}, {("a", 3), ("b", 2)}]
    assert [set(rows) for rows in by_txid(warehouse)] == expected and faults.unfired() == []
    query.stop()
    lines.put(["b"])
    run_to_end(start, counts())
    assert [set(rows) for rows in by_txid(warehouse)] == [*expected, {("b", 3)}]


class Moody(DataSource):
    """Fails as long as a file is there."""

    def schema(self):
        return "n long"

    def simpleStreamReader(self, schema):  # noqa: N802
        return MoodyReader(self.options["mood"])


class MoodyReader(SimpleDataSourceStreamReader):
    def __init__(self, mood: str) -> None:
        self._mood = mood

    def initialOffset(self):  # noqa: N802
        return {"at": 0}

    def read(self, start):
        if start["at"] and os.path.exists(self._mood):
            raise ValueError("the broker is gone")
        at = start["at"]
        return iter([(at,)] if at < 2 else []), {"at": min(2, at + 1)}

    def readBetweenOffsets(self, start, end):  # noqa: N802
        return iter([(at,) for at in range(start["at"], end["at"])])


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it")
def test_a_failure_of_the_streaming_query_is_the_topologys_and_it_is_started_again(start, spark, tmp_path, warehouse):
    spark.dataSource.register(Moody)
    mood = tmp_path / "mood"
    mood.touch()

    stream = spark.readStream.format("Moody").option("mood", str(mood)).load()
    query = start(StructuredStreamSpout(stream, tmp_path / "checkpoint"))
    said = lambda: [group["last_error"] or "" for group in query.status["groups"]]  # noqa: E731
    assert eventually(lambda: any("the broker is gone" in text for text in said()), 60)
    assert re.match("attempt 2:[0-9]+: the streaming query has ended: .*PYTHON_STREAMING_DATA_SOURCE", said()[0])
    assert query.is_active and out(warehouse) == Counter([0])
    mood.unlink()  # mended while the topology tries again
    query.process_all_available(WAIT_SECS)
    assert out(warehouse) == Counter([0, 1])


@pytest.mark.long
def test_another_checkpoint_is_refused_and_nothing_is_skipped(start, lines, warehouse):
    lines.put(["a"], ["b"])
    run_to_end(start, lines.spout()).stop()
    kept = lines.checkpoint.with_name("kept")
    lines.checkpoint.rename(kept)
    for folder, message in ((None, "the checkpoint is another one"), (kept, None)):
        if folder:
            shutil.rmtree(lines.checkpoint)
            folder.rename(lines.checkpoint)
            for number in (0, 1):  # an older copy of the same checkpoint
                lines.forget_commit(number)
            (lines.checkpoint / "offsets" / "1").unlink()
            message = "the checkpoint is older than the topology's tables"
        query = start(lines.spout(), max_attempts=1)
        with pytest.raises(AttemptCapReached, match=message) as caught:
            query.await_termination(WAIT_SECS)
        assert "trident reset" in caught.value.__cause__.action
        assert out(warehouse) == Counter("ab")


# --- without Spark ------------------------------------------------------------------------------


def test_the_function_returns_only_when_its_batch_has_advanced():
    handover, ended = Handover(), []

    def spark_thread(pin: Pin, *given_up) -> threading.Thread:
        def call() -> None:
            try:
                handover.hand_over(pin, "rows", *given_up)
                ended.append(pin.batch)
            except HandoverClosed:
                ended.append("closed")

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread

    pins = [Pin(number, True, "q", f"offsets {number}") for number in range(4)]
    first = spark_thread(pins[0])
    assert handover.wait(handover.offered, 5) and handover.offered() == (pins[0], "rows")
    assert not handover.has_advanced(pins[0]) and handover.has_advanced(Pin())
    handover.advance(Pin(0, True, "q", "other offsets"))
    assert handover.offered() and not handover.wait(lambda: ended, 0.2), "batch 0 with other offsets is another batch"
    handover.advance(pins[1])  # nonsense, and kept apart by the digest
    assert not ended
    handover.close()
    first.join(5)
    assert ended == ["closed"]

    handover = Handover()
    for number, pin in enumerate(pins[:2]):
        thread = spark_thread(pin)
        assert handover.wait(handover.offered, 5)
        if number:
            assert handover.has_advanced(pins[0]), "Spark gives the next one only after it"
        handover.advance(pin)
        assert handover.offered() is None
        thread.join(5)
    spark_thread(pins[1]).join(5)  # once more, after a crash: returns at once
    spark_thread(pins[2], lambda: True).join(5)  # its query was stopped by another
    assert ended == ["closed", 0, 1, 1, "closed"] and handover.offered() is None


class IdleRun:
    """A streaming query that is told what to offer."""

    def __init__(self) -> None:
        self.handover, self.looks = Handover(), 0

    def ensure(self) -> None: ...

    def restart(self) -> bool:
        return False

    def failure(self) -> None: ...

    def raise_failure(self) -> None: ...

    def process_available(self) -> None:
        self.looks += 1


def test_other_streams_of_the_group_begin_transactions_without_a_batch():
    run = IdleRun()
    coordinator, pins = StreamCoordinator(run, 3), {}

    def begin() -> Pin:
        txid = len(pins) + 1
        pins[txid] = coordinator.initialize_transaction(txid, pins.get(txid - 1), None)
        return Pin.read(pins[txid])

    def offer(number: int) -> threading.Thread:
        pin = Pin(number, True, "q", f"offsets {number}")
        thread = threading.Thread(target=_offer, args=(run.handover, pin), daemon=True)
        thread.start()
        assert run.handover.wait(run.handover.offered, 5)
        return thread

    assert not coordinator.is_ready(1) and begin() == Pin()
    first = offer(0)
    assert coordinator.is_ready(2) and begin().new and not coordinator.is_ready(3)
    assert begin() == Pin(0, False, "q", "offsets 0"), "batch 0 is in flight"
    coordinator.success(1)
    begin()
    assert first.is_alive(), "neither transaction 1 nor 4 holds it"
    assert begin().batch == 0
    first.join(5)
    assert not first.is_alive(), "transaction 5 begins: 2 has advanced, though nobody has told"
    second = offer(1)
    assert coordinator.is_ready(6) and begin() == Pin(1, True, "q", "offsets 1")
    restarted = IdleRun()
    again = StreamCoordinator(restarted, 3)
    again.resume(6, pins[6])
    assert not again.is_ready(7), "6 may not have advanced"
    assert again.initialize_transaction(6, pins[5], pins[6]) == pins[6]
    again.success(6)
    again.refresh()
    assert not again.is_ready(7) and restarted.looks == 1
    run.handover.close()
    second.join(5)


def test_an_attempt_takes_the_pinned_batch_and_no_other(monkeypatch):
    monkeypatch.setattr("trident.spouts.structured_stream._OFFER_SECS", 0.05)
    run, pin = IdleRun(), Pin(3, True, "q", "d")
    emitter = StreamEmitter(run, None)
    assert emitter.emit_batch((9, 0), Pin(3, False, "q", "d").to_json()).data == []
    with pytest.raises(SourceError, match="has not given batch 3"):
        emitter.emit_batch((4, 1), pin.to_json())
    for other, message in (
        (Pin(3, True, "other", "d"), "another one"),
        (Pin(2, True, "q", "d"), "is older"),
        (Pin(4, True, "q", "d"), "went elsewhere"),
        (Pin(3, True, "q", "e"), "offsets are others"),
    ):
        offered = threading.Thread(target=_offer, args=(run.handover, other), daemon=True)
        offered.start()
        assert run.handover.wait(run.handover.offered, 5)
        with pytest.raises(SourceError, match=message):
            emitter.emit_batch((4, 1), pin.to_json())
        run.handover.close()
        offered.join(5)
        run.handover = emitter._handover = Handover()


def _offer(handover: Handover, pin: Pin) -> None:
    try:
        handover.hand_over(pin, "rows")
    except HandoverClosed:
        pass


def test_only_the_following_batch_of_the_same_checkpoint_is_taken():
    assert following(Pin(), Pin(0, True, "q", "d")).batch == 0
    assert following(Pin(4, False, "q", "d"), Pin(5, True, "q", "e")).batch == 5
    for before, offered, message in (
        (Pin(), Pin(7, True, "q"), "has been used before"),
        (Pin(4, True, "q"), Pin(5, True, "other"), "another one"),
        (Pin(4, True, "q"), Pin(3, True, "q"), "older than the topology's tables"),
        (Pin(4, True, "q", "d"), Pin(4, True, "q", "e"), "older than the topology's tables"),
        (Pin(4, True, "q"), Pin(6, True, "q"), "went elsewhere"),
    ):
        with pytest.raises(SourceError, match=message):
            following(before, offered)
    for metadata in (None, {}, {**Pin().to_json(), "new": True}, {**Pin().to_json(), "batch": "1"}):
        with pytest.raises(SourceError, match="not written by a StructuredStreamSpout"):
            Pin.read(metadata)


def test_impossible_arguments_are_refused(spark, lines):
    for make in (
        lambda: StructuredStreamSpout(spark.range(3), lines.checkpoint),
        lambda: StructuredStreamSpout("rows", "c"),
        lambda: StructuredStreamSpout(lines.stream(), "s3://bucket/c"),
        lambda: StructuredStreamSpout(lines.stream(), None),
        lambda: StructuredStreamSpout(lines.stream(), lines.checkpoint, "all"),
    ):
        with pytest.raises(TopologyError):
            make()
    coordinator = lines.spout().get_coordinator(
        type("Context", (), {"topology": "t", "tx_id": "x", "spark": spark, "options": {}})
    )
    assert isinstance(coordinator, Resumes) and isinstance(coordinator, Refreshes)
    coordinator.close()
