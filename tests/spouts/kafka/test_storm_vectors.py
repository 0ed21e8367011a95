"""The vectors of Storm's own Kafka spouts for Trident, over a real broker.

Of its tests of emitters and coordinators the behaviour: where a first batch begins, what an emission again holds,
where the next batch begins, and in which order partitions stay. Two things differ, as docs/from-storm.md says: what
Storm calls a topology deployed anew is one that was reset here, and each batch has the ranges of all partitions.
"""

from __future__ import annotations

import datetime
from typing import Any

from tests.spouts.kafka import test_kafka_coordinator, test_kafka_reader
from trident.spouts.kafka.ranges import Batch

coordinate, numbers = test_kafka_coordinator.coordinate, test_kafka_coordinator.numbers
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
STARTS = ("earliest", "latest", LONG_AGO)
TEN = [b"%d" % number for number in range(10)]


def emitted(kafka: Any, metadata: Any) -> list[tuple[int, bytes]]:
    """The (partition, value) of a batch's messages, by partition and in the order of each."""
    ranges = Batch.read(metadata).ranges
    rows = test_kafka_reader.read(kafka, *ranges) if ranges else []
    return [(row["partition"], row["value"]) for row in sorted(rows, key=lambda row: row["partition"])]


def of(partition: int, values: list[bytes]) -> list[tuple[int, bytes]]:
    return [(partition, value) for value in values]


def test_with_metadata_of_the_batch_before_it_goes_on_right_behind_whatever_the_start(kafka, topic, coordinate) -> None:
    """In the process that made it, and in another one, as after a restart."""
    kafka.create(topic)
    kafka.put(topic, TEN)
    stream = coordinate(topic, max_rows=4, min_rows=4)
    one = stream.initialize_transaction(1, None, None)
    assert emitted(kafka, one) == of(0, TEN[:4])
    assert emitted(kafka, stream.initialize_transaction(2, one, None)) == of(0, TEN[4:8])
    for start in STARTS:
        later = coordinate(topic, start=start, max_rows=4, min_rows=4)
        later.resume(1, one)
        assert emitted(kafka, later.initialize_transaction(2, one, None)) == of(0, TEN[4:8])


def test_a_batch_is_emitted_again_with_exactly_its_messages(kafka, topic, coordinate) -> None:
    """By a process with other settings too, with more messages there, and with those before it gone."""
    kafka.create(topic)
    kafka.put(topic, TEN)
    stream = coordinate(topic, max_rows=5, min_rows=5)
    one = stream.initialize_transaction(1, None, None)
    two = stream.initialize_transaction(2, one, None)
    kafka.put(topic, TEN)
    kafka.delete_before(topic, 0, 5)
    for start in STARTS:
        again = coordinate(topic, start=start, max_rows=100, min_rows=100)
        again.resume(2, two)
        assert again.initialize_transaction(2, one, two) == two and emitted(kafka, two) == of(0, TEN[5:])
        assert emitted(kafka, again.initialize_transaction(3, two, None)) == of(0, TEN)


def test_empty_batches_are_emitted_again_empty_and_gone_on_from(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, TEN)
    stream = coordinate(topic)
    one = stream.initialize_transaction(1, None, None)
    two = stream.initialize_transaction(2, one, None)
    three = stream.initialize_transaction(3, two, None)
    kafka.put(topic, TEN)
    for txid, before, empty in ((2, one, two), (3, two, three)):
        assert stream.initialize_transaction(txid, before, empty) == empty and emitted(kafka, empty) == []
    assert emitted(kafka, stream.initialize_transaction(4, three, None)) == of(0, TEN)


def test_a_topology_that_begins_again_begins_where_its_start_says(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, TEN)
    stream = coordinate(topic)
    stream.initialize_transaction(2, stream.initialize_transaction(1, None, None), None)
    begun = []
    for start, first in (("earliest", TEN), ("latest", []), (LONG_AGO, TEN)):
        fresh = coordinate(topic, start=start)
        begun.append((fresh, fresh.initialize_transaction(1, None, None)))
        assert emitted(kafka, begun[-1][1]) == of(0, first)
    kafka.put(topic, TEN)
    for fresh, one in begun:
        assert emitted(kafka, fresh.initialize_transaction(2, one, None)) == of(0, TEN)


def test_the_order_of_partitions_stays_when_one_is_added_and_a_batch_of_before_does_not_get_it(
    kafka, topic, coordinate
) -> None:
    names = [f"{topic}-b", f"{topic}-a"]
    for name in names:
        kafka.create(name, 2)
        for partition in range(2):
            kafka.put(name, numbers(3), partition)
    stream = coordinate(*names)
    one = stream.initialize_transaction(1, None, None)
    order = list(Batch.read(one).ends)
    kafka.grow(names[1], 3)
    kafka.put(names[1], numbers(2), 2)
    assert list(Batch.read(stream.initialize_transaction(1, None, one)).ends) == order
    two = stream.initialize_transaction(2, one, None)
    assert [tuple(found) for found in Batch.read(two).ranges] == [(names[1], 2, 0, 2)]
    assert [at for at in Batch.read(two).ends if at in order] == order
    assert coordinate(*names).initialize_transaction(1, None, one) == one, "another process sees the same partitions"
