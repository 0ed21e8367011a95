"""KafkaSpout in whole topologies, over a real broker: exactly once through crashes, kills and outages."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.long_cases import sample
from tests.servers.kafka_fixtures import PASSWORD, KafkaBroker
from tests.servers.zk_fixtures import eventually
from tests.spouts import source_helpers
from tests.spouts.source_helpers import WAIT_SECS, by_txid, out, rows_read, run_to_end
from trident import KafkaSpout, OpaqueKafkaSpout
from trident.coordinators import faults
from trident.coordinators.errors import AttemptCapReached, MessagesExpired, SourceError, TopicGone
from trident.coordinators.identities import TransactionAttempt as At
from trident.coordinators.tracebacks import causes
from trident.spark.rows import TaskSlot
from trident.spouts.contracts import SpoutContext
from trident.spouts.kafka import emitter

start, warehouse = source_helpers.start, source_helpers.warehouse
PLACE = ("partition", "offset")


def places(partition: int, begin: int, end: int) -> Counter:
    return Counter((partition, at) for at in range(begin, end))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def emit(spark: SparkSession, kafka: KafkaBroker, tmp_path: Path):
    """emit(spout) → its coordinator and its emitter, closed in the end."""
    made: list[Any] = []

    def make(spout: KafkaSpout) -> tuple[Any, Any]:
        context = SpoutContext(spark, "t", "s", tmp_path, "i")
        made.extend((spout.get_coordinator(context), spout.get_emitter(context)))
        return made[-2], made[-1]

    yield make
    for one in made:
        one.close()


def rows(spark: SparkSession, emitted: Any, spout: KafkaSpout) -> list[tuple]:
    if isinstance(emitted.data, pa.Table):
        return [tuple(row.values()) for row in emitted.data.to_pylist()]
    return [tuple(row) for row in emitted.data.collect()]


@pytest.mark.parametrize(("here", "rows_a_task"), [(5_000, 2), (0, 100), (0, 2)], ids=["driver", "task", "tasks"])
@pytest.mark.long
def test_every_column_reaches_the_table_by_the_driver_and_by_tasks(
    start, kafka, topic, warehouse, spark, monkeypatch, here, rows_a_task
) -> None:
    monkeypatch.setattr(emitter, "_HERE_ROWS", here)
    monkeypatch.setattr(emitter, "PARTITION_ROWS", rows_a_task)
    kafka.create(topic, 2)
    producer = kafka.producer()
    for partition in range(2):
        for at in range(5):
            producer.produce(
                topic,
                None if at == 3 else b"v%d" % at,
                b"k",
                partition,
                timestamp=1_700_000_000_000 + at,
                headers={"h": b"x"},
            )
    producer.flush(30)
    run_to_end(start, KafkaSpout(kafka.address, topic))
    found = spark.read.format("delta").load(str(warehouse / "out")).orderBy("partition", "offset").collect()
    assert len(found) == 10, found
    assert [tuple(row) for row in found] == [
        (b"k", None if at == 3 else b"v%d" % at, [("h", b"x")], found[at].timestamp, topic, partition, at)
        for partition in range(2)
        for at in range(5)
    ]
    assert [round(row.timestamp.timestamp() * 1000) for row in found[:5]] == [1_700_000_000_000 + at for at in range(5)]


def test_one_task_reads_a_batch_that_it_is_sent_and_again_the_same_one(spark, kafka, topic, emit, monkeypatch) -> None:
    """Its plan serves later batches. An opaque spout's rows are computed once, so a frame has them."""
    monkeypatch.setattr(emitter, "_HERE_ROWS", 0)
    kafka.create(topic, 2)
    for partition in range(2):
        kafka.put(topic, numbers(3), partition)
    spout = KafkaSpout(kafka.address, topic, columns=PLACE)
    coordinator, reads = emit(spout)
    planned = coordinator.initialize_transaction(1, None, None)
    for attempt in (At(1, 0), At(1, 1)):
        emitted = reads.emit_batch(attempt, planned)
        assert isinstance(emitted.data, TaskSlot) and emitted.partitions == 1
        assert Counter(rows(spark, emitted, spout)) == places(0, 0, 3) + places(1, 0, 3)
        assert emitted.rows() == 6
    _, opaque = emit(OpaqueKafkaSpout(kafka.address, topic, columns=PLACE))
    assert isinstance(opaque.emit_batch(At(1, 0), planned).data, DataFrame)


@pytest.mark.long
def test_a_replay_has_exactly_the_offsets_that_were_written_down(start, kafka, topic, warehouse) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, numbers(40), 0)
    faults.arm("manifest.write:hang:1")
    query = start(KafkaSpout(kafka.address, topic, columns=PLACE, max_rows=30, min_rows=30), max_spout_pending=1)
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    # Its process is gone, as far as the others can tell; while the messages become more.
    kafka.put(topic, numbers(25), 0)
    kafka.put(topic, numbers(5), 1)
    query._zk._client.stop()
    successor = start(KafkaSpout(kafka.address, topic, columns=PLACE))
    successor.process_all_available(WAIT_SECS)
    faults.disarm()
    first, *others = by_txid(warehouse)
    assert first == places(0, 0, 30), "what the first process had written down"
    assert sum(others, Counter()) == places(0, 30, 65) + places(1, 0, 5)


@pytest.mark.long
def test_a_killed_broker_holds_streams_up_and_uses_no_attempts(start, kafka, topic, warehouse, spark, emit) -> None:
    """No batch begins without it; one that is planned waits for it, until it is wanted no more."""
    kafka.create(topic, 2)
    kafka.put(topic, numbers(50), 0)
    spout = KafkaSpout(kafka.address, topic, columns=PLACE, poll_interval_secs=0.1)
    coordinator, reads = emit(spout)
    planned = coordinator.initialize_transaction(1, None, None)
    query = start(spout, max_attempts=2)  # few tries: an outage must not use them up
    query.process_all_available(WAIT_SECS)
    kafka.put(topic, numbers(30), 1)
    kafka.kill()
    emitted: list[Any] = []
    failed: list[Exception] = []
    waits = in_thread(lambda: emitted.append(reads.emit_batch(At(1, 0), planned)))
    cancelled = in_thread(lambda: raises_into(failed, lambda: reads.emit_batch(At(2, 0), planned)))
    assert eventually(lambda: "cannot ask the cluster" in str(query.status), WAIT_SECS), query.status
    assert query.is_active and waits.is_alive() and cancelled.is_alive()
    reads.cancel(At(2, 0))
    cancelled.join(30)
    assert isinstance(failed[0], SourceError) and "wanted no more" in str(failed[0])
    kafka.start()
    kafka.put(topic, numbers(20), 0)
    query.process_all_available(WAIT_SECS)
    assert out(warehouse) == places(0, 0, 70) + places(1, 0, 30)
    waits.join(WAIT_SECS)
    assert Counter(rows(spark, emitted[0], spout)) == places(0, 0, 50)


@pytest.mark.long
def test_tls_and_a_password_reach_driver_and_tasks_and_stand_nowhere(
    start, kafka, topic, warehouse, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(emitter, "_HERE_ROWS", 3)
    monkeypatch.setenv("KAFKA_PASSWORD_OF_TESTS", PASSWORD)
    kafka.create(topic)
    kafka.put(topic, numbers(10))
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "ssl.ca.location": str(kafka.certificates.ca),
    }
    spout = KafkaSpout(
        kafka.secured, topic, columns=PLACE, config=config, secrets={"sasl.password": "env:KAFKA_PASSWORD_OF_TESTS"}
    )
    with caplog.at_level(logging.DEBUG):
        query = run_to_end(start, spout)  # by tasks
        kafka.put(topic, numbers(2))
        query.process_all_available(WAIT_SECS)  # by the driver
        query.stop(WAIT_SECS)
        assert out(warehouse) == places(0, 0, 12) and rows_read(query) == 12
        monkeypatch.setenv("KAFKA_PASSWORD_OF_TESTS", "pass-that-is-wrong")
        refused = spout.get_coordinator(SpoutContext(None, "t", "s", warehouse, "i"))
        with pytest.raises(SourceError, match="cannot ask the cluster") as raised:
            refused.is_ready(1)
    shown = [caplog.text, repr(spout), str(query.status), str(raised.value)]
    stored = [path.read_bytes() for path in warehouse.rglob("*") if path.is_file()]
    assert len(stored) > 5
    for secret in (PASSWORD, "pass-that-is-wrong"):
        assert not any(secret in text for text in shown)
        assert not any(secret.encode() in content for content in stored)


def test_rows_of_a_topic_that_was_made_again_after_they_were_planned_never_count(spark, kafka, topic, emit) -> None:
    """Between the look at the ids and the read, or while it reads: the attempt fails before its decision."""
    kafka.create(topic)
    kafka.put(topic, [b"old"] * 5)
    coordinator, reads = emit(KafkaSpout(kafka.address, topic, columns=("value",)))
    planned = coordinator.initialize_transaction(1, None, None)
    same = reads.emit_batch(At(1, 0), planned)
    assert same.data.num_rows == 5
    reads.prepare(At(1, 0))
    ids = reads._cluster.ids

    def made_again_behind_the_look(*asked: Any) -> dict[str, str]:
        found = ids(*asked)
        kafka.delete(topic)
        kafka.create(topic)
        kafka.put(topic, [b"new"] * 7)
        reads._cluster.ids = ids
        return found

    reads._cluster.ids = made_again_behind_the_look
    emitted = reads.emit_batch(At(1, 1), planned)
    assert emitted.data.column("value").to_pylist() == [b"new"] * 5, "under the old topic's id, so far"
    with pytest.raises(TopicGone, match="is another one: it was deleted and made again"):
        reads.prepare(At(1, 1))
    with pytest.raises(TopicGone, match="is another one"):
        reads.emit_batch(At(1, 2), planned)


@pytest.mark.long
def test_expired_messages_end_the_topology_and_an_opaque_spout_goes_on_behind_them(
    start, kafka, topic, warehouse, spark, emit
) -> None:
    kafka.create(topic)
    kafka.put(topic, numbers(10))
    settings = {"columns": PLACE, "min_rows": 4, "max_rows": 4}
    run_to_end(start, KafkaSpout(kafka.address, topic, **settings)).stop(WAIT_SECS)
    kafka.put(topic, numbers(10))
    kafka.delete_before(topic, 0, 13)
    query = start(KafkaSpout(kafka.address, topic, **settings), max_attempts=2)
    with pytest.raises(
        AttemptCapReached, match=r"have expired; found: offsets 13 … 20; expected: offsets 10 … 14"
    ) as raised:
        query.process_all_available(WAIT_SECS)
    assert any(isinstance(one, MessagesExpired) for one in causes(raised.value))
    query.stop(WAIT_SECS)
    assert out(warehouse) == places(0, 0, 10)
    spout = OpaqueKafkaSpout(kafka.address, topic, start={topic: {0: 13}}, **settings)
    coordinator, reads = emit(spout)
    before = {"topics": [{"topic": topic, "id": kafka.topic_id(topic), "begin": [0], "end": [10]}], "rows_estimate": 10}
    one = coordinator.initialize_transaction(3, before, None)
    assert Counter(rows(spark, reads.emit_batch(At(3, 0), one), spout)) == places(0, 13, 14)


@pytest.mark.parametrize("in_driver", sample([True, False], True), ids=["driver", "tasks"])
def test_a_message_is_in_the_results_or_in_the_dead_letters_of_the_same_transaction(
    start, kafka, topic, warehouse, spark, monkeypatch, in_driver
) -> None:
    monkeypatch.setattr(emitter, "_HERE_ROWS", 5_000 if in_driver else 0)
    monkeypatch.setattr(emitter, "PARTITION_ROWS", 2)
    kafka.create(topic)
    kafka.put(topic, [(b"k", value) for value in (b'{"n": 1}', b"{", None, b'{"n": 2}', b'{"n": "x"}')])
    spout = KafkaSpout(
        kafka.address, topic, columns=("offset", "value"), value="json", value_schema="n long", dead_letters="dead"
    )
    faults.arm("manifest.write:fail_before:1,manifest.write:do_then_fail:2")
    run_to_end(start, spout)
    assert not faults.unfired()
    found = spark.read.format("delta").load(str(warehouse / "out")).orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(0, (1,)), (2, None), (3, (2,))]
    dead = spark.read.format("delta").load(str(warehouse / "dead")).orderBy("offset").collect()
    assert [(row.topic, row.partition, row.offset, row.key, row.value) for row in dead] == [
        (topic, 0, 1, b"k", b"{"),
        (topic, 0, 4, b"k", b'{"n": "x"}'),
    ]
    assert "truncated" in dead[0].error and "got `str`" in dead[1].error


def test_without_dead_letters_a_message_that_does_not_parse_fails_its_batch_by_name(start, kafka, topic) -> None:
    kafka.create(topic)
    kafka.put(topic, [b"good", b"\xff"])
    query = start(KafkaSpout(kafka.address, topic, value="text"))
    same = rf"same way each time \(3 times.*cannot be decoded: {topic}\[0\] at offset 1; found: its value .*: Unicode"
    with pytest.raises(AttemptCapReached, match=same):
        query.process_all_available(WAIT_SECS)


def in_thread(run: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def raises_into(found: list[Exception], run: Callable[[], Any]) -> None:
    try:
        run()
    except Exception as error:
        found.append(error)
