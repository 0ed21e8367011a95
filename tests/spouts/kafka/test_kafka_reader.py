"""Reads of ranges from a real broker: exact for every kind of hole, a named error for every kind of loss."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.servers.kafka_fixtures import KafkaBroker
from trident.coordinators.errors import LogCut, MessagesExpired, SourceError
from trident.kafka.client import KafkaSettings
from trident.spouts.files.tasks import SourceFailure, reported
from trident.spouts.kafka import reader
from trident.spouts.kafka.ranges import OffsetRange
from trident.spouts.kafka.reader import Consumers, Reading, Stopped
from trident.spouts.kafka.rows import COLUMNS as KINDS
from trident.workers.failures import SOURCE, find_report

COLUMNS = tuple(KINDS)


def reading(kafka: KafkaBroker, **different: Any) -> Reading:
    connection = KafkaSettings(kafka.address, different.pop("config", {}), {}, "a KafkaSpout").connection()
    given = {
        "group": "readers",
        "isolation": "read_committed",
        "columns": COLUMNS,
        "lossy": False,
        "patience_secs": 20.0,
    }
    return Reading(connection, what="the Kafka stream 's'", **{**given, **different})


def read(kafka: KafkaBroker, *ranges: OffsetRange, consumers: Consumers | None = None, **different: Any) -> list[dict]:
    mine = consumers or Consumers()
    try:
        return [row for batch in mine.read(reading(kafka, **different), ranges) for row in batch.to_pylist()]
    finally:
        if consumers is None:
            mine.close()


def offsets(rows: list[dict]) -> list[int]:
    return [row["offset"] for row in rows]


def as_the_driver_reads_it(error: BaseException) -> SourceError:
    report = find_report(error, SOURCE)
    assert report is not None
    return reported(report)


def test_columns_of_messages(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic, 2)
    producer = kafka.producer()
    producer.produce(
        topic,
        value=b"v\xff",
        key=b"k",
        partition=1,
        timestamp=1_700_000_000_123,
        headers=[("h", b"1"), ("h", None), ("ü", b"")],
    )
    producer.produce(topic, value=None, key=b"k", partition=1, timestamp=1_700_000_000_124)
    producer.flush(30)
    first, second = read(kafka, OffsetRange(topic, 1, 0, 2))
    assert first["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert first | {"timestamp": 0} == {
        "key": b"k",
        "value": b"v\xff",
        "timestamp": 0,
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "ü", "value": b""}],
    }
    assert (second["value"], second["headers"]) == (None, None)
    assert read(kafka, OffsetRange(topic, 1, 0, 1), columns=("offset", "key")) == [{"offset": 0, "key": b"k"}]


def test_any_range_of_many_partitions_is_read_exactly_by_one_consumer_again_and_again(
    kafka: KafkaBroker, topic: str, rng
) -> None:
    kafka.create(topic, 4)
    for number in range(4):
        kafka.put(topic, [f"{number}:{at}".encode() for at in range(3_000)], number)
    consumers = Consumers()
    for _ in range(12):
        ranges = []
        for number in rng.sample(range(4), rng.randint(1, 4)):
            begin = rng.randrange(2_999)
            ranges.append(OffsetRange(topic, number, begin, rng.randint(begin + 1, 3_000)))
        rows = read(kafka, *ranges, consumers=consumers, columns=("value", "partition"))
        for one in ranges:
            found = [row["value"] for row in rows if row["partition"] == one.partition]
            assert found == [f"{one.partition}:{at}".encode() for at in range(one.begin, one.end)]
        assert len(rows) == sum(one.end - one.begin for one in ranges)
    assert len(consumers._idle) == 1
    consumers.close()


def test_aborted_transactions_and_control_records_leave_holes_also_at_both_ends(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    kafka.put_in_transaction(topic, [b"x", b"y"], commit=False)  # 0, 1, control 2
    kafka.put_in_transaction(topic, [b"a", b"b"])  # 3, 4, control 5
    kafka.put_in_transaction(topic, [b"z"], commit=False)  # 6, control 7
    (end,) = kafka.ends(topic).values()
    assert end == 8
    assert [row["value"] for row in read(kafka, OffsetRange(topic, 0, 0, end))] == [b"a", b"b"]
    for begin in range(end):
        for to in range(begin + 1, end + 1):
            assert offsets(read(kafka, OffsetRange(topic, 0, begin, to))) == [at for at in (3, 4) if begin <= at < to]
    uncommitted = read(kafka, OffsetRange(topic, 0, 0, end), isolation="read_uncommitted")
    assert offsets(uncommitted) == [0, 1, 3, 4, 6]


def test_compaction_leaves_holes_also_at_the_end_of_a_range(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(
        topic, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="100"
    )
    kafka.put(topic, [(b"k%d" % (at % 3), b"%d" % at) for at in range(30)])
    deadline = time.monotonic() + 60
    whole: list[dict] = []
    while not whole or len(whole) > 10:
        assert time.monotonic() < deadline, "nothing was compacted"
        kafka.put(topic, [(b"other", b"%f" % time.monotonic())])  # rolls the segment
        time.sleep(0.3)
        whole = read(kafka, OffsetRange(topic, 0, 0, 30))
    kept = offsets(whole)
    assert set(kept) >= {27, 28, 29}
    for begin, end in ((0, 5), (3, 27), (10, 20), (0, 30), (26, 28)):
        assert offsets(read(kafka, OffsetRange(topic, 0, begin, end))) == [at for at in kept if begin <= at < end]


def test_messages_that_have_expired_are_an_error_or_are_left_out(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    kafka.put(topic, [b"%d" % at for at in range(20)])
    kafka.delete_before(topic, 0, 7)
    with pytest.raises(SourceFailure, match=rf"messages of {topic}\[0\] .* are gone: they have expired") as raised:
        read(kafka, OffsetRange(topic, 0, 3, 12))
    assert "7 … 20" not in str(raised.value)  # the report has it, in a form that survives Spark
    assert isinstance(as_the_driver_reads_it(raised.value), MessagesExpired)
    assert offsets(read(kafka, OffsetRange(topic, 0, 7, 12))) == [7, 8, 9, 10, 11]
    assert offsets(read(kafka, OffsetRange(topic, 0, 3, 12), lossy=True)) == [7, 8, 9, 10, 11]
    assert read(kafka, OffsetRange(topic, 0, 3, 6), lossy=True) == []


def test_a_log_that_ends_before_the_range_is_an_error_or_what_there_is(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_SETTLE_SECS", 0.5)
    kafka.create(topic)
    kafka.put(topic, [b"a", b"b", b"c"])
    for begin in (1, 4):
        with pytest.raises(SourceFailure, match="its log ends before them") as raised:
            read(kafka, OffsetRange(topic, 0, begin, 5))
        assert isinstance(as_the_driver_reads_it(raised.value), LogCut)
    assert offsets(read(kafka, OffsetRange(topic, 0, 1, 5), lossy=True)) == [1, 2]
    assert read(kafka, OffsetRange(topic, 0, 4, 5), lossy=True) == []


def test_messages_that_come_while_a_log_seems_to_end_early_are_waited_for(kafka: KafkaBroker, topic: str) -> None:
    """As after an election, until the new leader knows that its messages are replicated."""
    kafka.create(topic)
    kafka.put(topic, [b"a"])
    later = threading.Timer(0.7, lambda: kafka.put(topic, [b"b", b"c"]))
    later.start()
    assert offsets(read(kafka, OffsetRange(topic, 0, 0, 3))) == [0, 1, 2]
    later.join()


def test_a_topic_that_is_not_there_and_brokers_that_are_not_are_errors(kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(SourceFailure, match="cannot be read"):
        read(kafka, OffsetRange(topic, 0, 0, 3), patience_secs=2.0)
    connection = KafkaSettings("127.0.0.1:1", {}, {}, "a KafkaSpout").connection()
    nowhere = Reading(connection, "g", "read_committed", COLUMNS, False, 1.0, "the Kafka stream 's'")
    with pytest.raises(SourceFailure, match="no broker has sent anything"):
        list(Consumers().read(nowhere, [OffsetRange(topic, 0, 0, 3)]))


def test_a_read_that_is_wanted_no_more_ends(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    with pytest.raises(Stopped):
        list(Consumers().read(reading(kafka), [OffsetRange(topic, 0, 0, 3)], lambda: True))


def test_large_messages_come_in_several_arrow_batches(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    kafka.put(topic, [bytes([at]) * 600_000 for at in range(30)])
    consumers = Consumers()
    batches = list(consumers.read(reading(kafka), [OffsetRange(topic, 0, 0, 30)]))
    assert [at for batch in batches for at in batch.column("offset").to_pylist()] == list(range(30))
    assert len(batches) > 1 and all(
        len(set(value.as_py())) == 1 for batch in batches for value in batch.column("value")
    )
    consumers.close()
