"""Record batches that Kafka's client cannot read, on a real broker: a dead letter, or an error with their offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kafka.record_batches import RecordBatch, record_batches
from tests.servers.kafka_fixtures import KafkaBroker
from tests.servers.zk_fixtures import eventually
from tests.spouts.kafka.test_kafka_reader import as_the_driver_reads_it, offsets, read
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka import reader
from trident.spouts.kafka.ranges import OffsetRange
from trident.spouts.kafka.reader import Consumers
from trident.spouts.kafka.rows import LETTER

DAMAGES: dict[str, tuple[dict[str, Any], Callable[[RecordBatch], None], str]] = {
    "on the disk": ({}, RecordBatch.damage, "_BAD_MSG"),
    "before it was sent": ({"compression.type": "gzip"}, RecordBatch.damage_before_sending, "_BAD_COMPRESSION"),
    "a codec of the future": ({}, lambda one: one.name_codec(7), "_NOT_IMPLEMENTED"),
}


def put(kafka: KafkaBroker, topic: str, count: int, **settings: Any) -> list[RecordBatch]:
    """So many record batches of ten messages."""
    batched = {"linger.ms": 60_000, "batch.num.messages": 10, "enable.idempotence": False}
    producer = kafka.producer(**{**batched, **settings})
    for first in range(0, count * 10, 10):  # a full one is sent at once, and none before
        for number in range(first, first + 10):
            producer.produce(topic, b"%d" % number * 20, partition=0)
        assert eventually(lambda: producer.poll(0.02) is not None and not len(producer), 60)
    found = record_batches(kafka, topic)
    assert [(one.base, one.last) for one in found] == [(at, at + 9) for at in range(0, count * 10, 10)]
    return found


def good_and_bad(rows: list[dict]) -> tuple[list[int], list[dict]]:
    return offsets([row for row in rows if row[LETTER] is None]), [row[LETTER] for row in rows if row[LETTER]]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_batch_is_one_dead_letter_of_just_its_offsets(kafka: KafkaBroker, topic: str, damage) -> None:
    settings, act, name = DAMAGES[damage]
    kafka.create(topic)
    act(put(kafka, topic, 3, **settings)[1])
    for begin, end in ((0, 30), (10, 20), (14, 16), (19, 21), (5, 11), (0, 10), (20, 30)):
        good, letters = good_and_bad(read(kafka, OffsetRange(topic, 0, begin, end), letters=True))
        assert good == [at for at in range(begin, end) if not 10 <= at < 20]
        first, last = max(begin, 10), min(end, 20) - 1
        assert [(one["topic"], one["partition"], one["offset"], one["value"]) for one in letters] == (
            [(topic, 0, first, None)] if first <= last else []
        )
        for one in letters:
            assert f"offsets {first} to {last} cannot be read" in one["error"] and name in one["error"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_dead_letters_the_error_names_its_offsets(kafka: KafkaBroker, topic: str, damage) -> None:
    settings, act, _ = DAMAGES[damage]
    kafka.create(topic)
    act(put(kafka, topic, 2, **settings)[1])
    with pytest.raises(SourceFailure) as raised:
        read(kafka, OffsetRange(topic, 0, 5, 20))
    error = as_the_driver_reads_it(raised.value)
    assert f"{topic}[0] at offset 10" in str(error) and "offsets 10 to 19 cannot be read" in str(error)
    assert "trident skip" in str(error) and "dead_letters=" in str(error) and error.fingerprint


def test_good_messages_between_damaged_ones_are_all_read_of_each_partition(kafka: KafkaBroker, topic: str) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, [b"%d" % at for at in range(40)], 1)
    found = put(kafka, topic, 7)
    for number in (1, 2, 4, 6):
        found[number].damage()
    rows = read(kafka, OffsetRange(topic, 0, 0, 70), OffsetRange(topic, 1, 3, 40), letters=True)
    good, letters = good_and_bad([row for row in rows if row["partition"] == 0])
    assert good == [*range(10), *range(30, 40), *range(50, 60)]
    assert [one["offset"] for one in letters] == [10, 20, 40, 60]
    assert good_and_bad([row for row in rows if row["partition"] == 1]) == (list(range(3, 40)), [])


def test_a_damaged_end_of_an_aborted_transaction_hides_no_later_one(kafka: KafkaBroker, topic: str) -> None:
    """The client leaves out what the producer has sent until it reads that end."""
    kafka.create(topic)
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"x", producer.abort_transaction), (b"y", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value * 50, partition=0)
        assert producer.flush(30) == 0
        end(30)
    kafka._until(lambda: kafka.ends(topic)[0] == 4)
    record_batches(kafka, topic)[1].damage()
    good, letters = good_and_bad(read(kafka, OffsetRange(topic, 0, 0, 4), letters=True))
    assert good == [2] and [one["offset"] for one in letters] == [1]


def test_what_the_network_has_damaged_is_no_dead_letter(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create(topic)
    (one,) = put(kafka, topic, 1)
    one.damage()
    found = reader.end_of_damage

    def healed(*arguments: Any) -> int:
        one.damage()  # what it has changed, it changes back
        return found(*arguments)

    monkeypatch.setattr(reader, "end_of_damage", healed)
    with pytest.raises(SourceFailure, match=rf"cannot be read, at {topic}\[0\] from offset 3 on"):
        read(kafka, OffsetRange(topic, 0, 3, 10), letters=True)
    assert offsets(read(kafka, OffsetRange(topic, 0, 3, 10), letters=True)) == list(range(3, 10))


def test_damage_after_a_range_is_no_error_of_the_range_nor_of_the_next_one(kafka: KafkaBroker, topic: str) -> None:
    """The client has read ahead, and goes on anywhere: it is used for the next range, too."""
    kafka.create(topic)
    put(kafka, topic, 3)[1].damage()
    consumers = Consumers()
    for begin, end in ((0, 10), (20, 30), (5, 10), (0, 9), (20, 25)):
        rows = read(kafka, OffsetRange(topic, 0, begin, end), consumers=consumers)
        assert offsets(rows) == list(range(begin, end))
    consumers.close()
