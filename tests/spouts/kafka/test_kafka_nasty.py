"""Messages that few producers send, on a real broker: the exact row of each, or its dead letter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka.record_batches import record_batches
from tests.long_cases import sample
from tests.servers.kafka_fixtures import KafkaBroker
from tests.spouts.kafka.test_kafka_reader import as_the_driver_reads_it, offsets, read, reading
from trident.coordinators.errors import MessagesExpired
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.ranges import OffsetRange
from trident.spouts.kafka.reader import Consumers
from trident.spouts.kafka.rows import LETTER
from trident.spouts.kafka.spout import ValueFormat

MS_MAX = (2**63 - 1) // 1000
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("h", b"x" * 900_000)],
    [("same", b"%d" % number) for number in range(3_000)],
    [("", b""), ("", None), ("ключ" * 1_000, b"\0\xff")],
    [],
]


def test_headers_come_as_they_were_sent_however_large_and_many(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    producer = kafka.producer()
    for headers in HEADERS:
        producer.produce(topic, b"v", partition=0, headers=headers)
        assert producer.flush(30) == 0
    rows = read(kafka, OffsetRange(topic, 0, 0, len(HEADERS)), columns=("headers",))
    found = [[(one["key"], one["value"]) for one in row["headers"] or []] for row in rows]
    assert found == HEADERS and rows[-1]["headers"] is None


@pytest.mark.parametrize("kind", sample(["bytes", "text", "json", "debezium"], "text", "debezium"))
def test_keys_and_values_may_be_null_or_empty(kafka: KafkaBroker, topic: str, kind: str) -> None:
    schema = "n long" if kind in ("json", "debezium") else None
    decoder = ValueFormat(kind, schema, None, None, None, "a KafkaSpout").decoder()
    kafka.create(topic)
    kafka.put(topic, [(None, None), (b"", None), (b"k", b""), (None, b"")])
    rows = read(kafka, OffsetRange(topic, 0, 0, 4), decoder=decoder, letters=True)
    assert [row["key"] for row in rows] == [None, b"", b"k", None]
    assert [row["value"] for row in rows[:2]] == [None, None]
    if schema is None:
        empty = b"" if kind == "bytes" else ""
        assert [row["value"] for row in rows[2:]] == [empty, empty] and not any(row[LETTER] for row in rows)
    else:  # no JSON
        assert [(row[LETTER] or {}).get("value") for row in rows] == [None, None, b"", b""]


@pytest.mark.parametrize(
    ("ms", "micros"),
    sample(
        [
            (-1, None),
            (0, 0),
            (-2, -2_000),
            (-62_135_596_800_000, -62_135_596_800_000_000),
            (MS_MAX, MS_MAX * 1_000),
            (MS_MAX + 1, "letter"),
            (2**63 - 1, "letter"),
            (-(2**63), "letter"),
        ],
        (-1, None),
        (MS_MAX, MS_MAX * 1_000),
        (MS_MAX + 1, "letter"),
    ),
)
def test_any_timestamp_is_itself_or_a_dead_letter(kafka: KafkaBroker, topic: str, ms: int, micros: Any) -> None:
    kafka.create(topic)
    kafka.put(topic, [b"v"])
    record_batches(kafka, topic)[0].stamp(ms)
    consumers = Consumers()
    wanted = OffsetRange(topic, 0, 0, 1)
    (batch,) = consumers.read(reading(kafka, columns=("timestamp", "value"), letters=True), [wanted])
    consumers.close()
    (letter,) = batch.column(LETTER).to_pylist()
    assert (letter is not None) == (micros == "letter")
    (found,) = batch.column("timestamp").cast("int64").to_pylist()  # Python's own times end with the year 9999
    assert found == (None if letter else micros)


def test_a_message_is_read_that_is_larger_than_what_is_fetched_and_kept_at_once(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic, max_message_bytes=str(30 << 20))
    large = bytes(20 << 20)
    kafka.put(topic, [b"a", large, b"b"], **{"message.max.bytes": 30 << 20})
    config = {"fetch.message.max.bytes": 1_000}
    for begin in range(3):
        rows = read(kafka, OffsetRange(topic, 0, begin, 3), columns=("value",), config=config)
        assert [row["value"] for row in rows] == [b"a", large, b"b"][begin:]


def test_empty_transactions_and_control_records_alone_are_no_rows(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic)
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end(30)
    assert kafka.ends(topic) == {0: 0}
    for commit in (False, True, False, False):
        kafka.put_in_transaction(topic, [b"v"], commit=commit)
    assert read(kafka, OffsetRange(topic, 0, 4, 8)) == [] and offsets(read(kafka, OffsetRange(topic, 0, 0, 8))) == [2]
    kafka.delete_before(topic, 0, 3)
    assert read(kafka, OffsetRange(topic, 0, 3, 4)) == [], "the log begins with a control record"


def test_a_log_whose_start_has_moved_is_an_error_that_names_the_partition(kafka: KafkaBroker, topic: str) -> None:
    """Between the look at the ends and the read; and where nothing at all is left."""
    kafka.create(topic, 2)
    for number in range(2):
        kafka.put(topic, [b"%d" % at for at in range(10)], number)
    kafka.delete_before(topic, 1, 10)
    with pytest.raises(SourceFailure) as raised:
        read(kafka, OffsetRange(topic, 0, 0, 10), OffsetRange(topic, 1, 0, 10))
    error = as_the_driver_reads_it(raised.value)
    assert isinstance(error, MessagesExpired) and f"{topic}[1]" in str(error) and "trident skip" in str(error)
