"""Cuts of batches over a real broker: where streams begin, what is new, and what is not as it was left."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.kafka_fixtures import KafkaBroker
from tests.servers.zk_fixtures import eventually
from trident import KafkaSpout, OpaqueKafkaSpout
from trident.coordinators.errors import BrokersAway, LogCut, SourceError, TopicGone
from trident.spouts.contracts import SpoutContext
from trident.spouts.kafka import cluster
from trident.spouts.kafka.coordinator import KafkaCoordinator
from trident.spouts.kafka.ranges import Batch


@pytest.fixture
def coordinate(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Any]:
    """coordinate(topics, …): the coordinator of a spout that looks each time that it is asked."""
    made: list[KafkaCoordinator] = []

    def make(*topics: str, kind: type[KafkaSpout] = KafkaSpout, **settings: Any) -> KafkaCoordinator:
        spout = kind(kafka.address, topics, poll_interval_secs=0, **settings)
        made.append(spout.get_coordinator(SpoutContext(None, "t", "s", tmp_path, "i")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ranges(metadata: Any) -> list[tuple[str, int, int, int]]:
    return [tuple(one) for one in Batch.read(metadata).ranges]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_the_earliest_messages_come_first_and_the_metadata_says_where_to_go_on(kafka, topic, coordinate) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, numbers(5), 0)
    kafka.put(topic, numbers(7), 1)
    kafka.delete_before(topic, 0, 2)
    first = coordinate(topic, max_rows=10, min_rows=10)
    assert first.is_ready(1)
    one = first.initialize_transaction(1, None, None)
    assert ranges(one) == [(topic, 0, 2, 5), (topic, 1, 0, 7)] and not first.is_ready(2)
    kafka.put(topic, numbers(30), 1)
    # Another process, which has nothing but the metadata.
    second = coordinate(topic, max_rows=10, min_rows=10)
    second.resume(1, one)
    assert second.initialize_transaction(1, None, one) == one
    assert second.backlog().rows == 30, "is_ready was not called"
    assert second.is_ready(2)
    two = second.initialize_transaction(2, one, None)
    assert ranges(two) == [(topic, 1, 7, 17)] and two["rows_estimate"] == 10
    assert ranges(second.shrink_transaction(2, one, two)) == [(topic, 1, 7, 12)]


def test_the_latest_offsets_are_written_down_at_once(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, numbers(5))
    first = coordinate(topic, start="latest")
    assert first.is_ready(1), "an empty first transaction says where the stream begins"
    one = first.initialize_transaction(1, None, None)
    assert ranges(one) == [] and Batch.read(one).ends == {(topic, 0): 5}
    kafka.put(topic, numbers(2))
    later = coordinate(topic, start="latest")
    later.resume(1, one)
    assert ranges(later.initialize_transaction(2, one, None)) == [(topic, 0, 5, 7)]


def test_a_time_is_the_first_message_from_then_on_or_the_end(kafka, topic, coordinate) -> None:
    kafka.create(topic, 2)
    producer = kafka.producer()
    for number in range(10):
        producer.produce(topic, b"", partition=0, timestamp=1_000_000_000_000 + 1_000 * number)
    producer.produce(topic, b"", partition=1, timestamp=1_000_000_000_000)
    producer.flush(30)
    start = datetime.datetime.fromtimestamp(1_000_000_003.5, datetime.timezone.utc)
    one = coordinate(topic, start=start).initialize_transaction(1, None, None)
    assert ranges(one) == [(topic, 0, 4, 10)] and Batch.read(one).ends[(topic, 1)] == 1


def test_given_offsets_must_be_there_and_be_given_for_every_partition(kafka, topic, coordinate) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, numbers(9), 0)
    one = coordinate(topic, start={topic: {0: 4, 1: 0}}).initialize_transaction(1, None, None)
    assert ranges(one) == [(topic, 0, 4, 9)]
    with pytest.raises(SourceError, match=rf"does not hear where {topic}\[1\] begins"):
        coordinate(topic, start={topic: {0: 4}}).is_ready(1)
    with pytest.raises(SourceError, match=r"cannot begin at offset 10 .*; found: offsets 0 … 9"):
        coordinate(topic, start={topic: {0: 10, 1: 0}}).is_ready(1)


def test_a_stream_begins_where_a_group_had_got_to_and_elsewhere_at_its_start(kafka, topic, coordinate) -> None:
    from confluent_kafka import Consumer, TopicPartition

    kafka.create(topic, 3)
    for number in range(3):
        kafka.put(topic, numbers(8), number)
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": f"old-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 2, 8)], asynchronous=False)
    consumer.close()
    one = coordinate(topic, start_group=f"old-{topic}").initialize_transaction(1, None, None)
    assert ranges(one) == [(topic, 0, 3, 8), (topic, 1, 0, 8)]
    other = coordinate(topic, start_group=f"old-{topic}", start="latest").initialize_transaction(1, None, None)
    assert ranges(other) == [(topic, 0, 3, 8)]


def test_new_partitions_and_new_topics_of_a_pattern_come_from_their_first_message_behind_those_there(
    kafka, topic, coordinate
) -> None:
    kafka.create(f"{topic}-b", 1)
    kafka.put(f"{topic}-b", numbers(2))
    stream = coordinate(pattern=f"{topic}-.", start="latest")
    one = stream.initialize_transaction(1, None, None)
    assert not stream.is_ready(2)
    kafka.grow(f"{topic}-b", 3)
    kafka.create(f"{topic}-a", 1)
    kafka.create(f"{topic}-xx", 1)
    assert not stream.is_ready(2), "without messages there is nothing to be written down"
    kafka.put(f"{topic}-b", numbers(3), 2)
    kafka.put(f"{topic}-a", numbers(4))
    kafka.put(f"{topic}-xx", numbers(4))
    assert stream.is_ready(2)
    two = stream.initialize_transaction(2, one, None)
    assert ranges(two) == [(f"{topic}-b", 2, 0, 3), (f"{topic}-a", 0, 0, 4)]
    assert [(one.topic, list(one.end)) for one in Batch.read(two).topics] == [
        (f"{topic}-b", [2, 0, 3]),
        (f"{topic}-a", [4]),
    ]


def test_a_batch_ends_before_the_first_message_that_is_not_yet_decided(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, numbers(3))
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    kafka.put(topic, numbers(2))  # behind it
    assert ranges(coordinate(topic).initialize_transaction(1, None, None)) == [(topic, 0, 0, 3)]
    dirty = coordinate(topic, isolation="read_uncommitted")
    assert ranges(dirty.initialize_transaction(1, None, None)) == [(topic, 0, 0, 6)]
    producer.abort_transaction(30)


def test_a_topic_that_was_made_again_or_is_gone_is_an_error_until_its_id_is_forgotten(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, numbers(5))
    stream = coordinate(topic)
    one = stream.initialize_transaction(1, None, None)
    old = Batch.read(one).topics[0].id
    kafka.delete(topic)
    assert stream.is_ready(2), "so that the transaction's begin says it"
    with pytest.raises(TopicGone, match=f"topic '{topic}' was deleted; found: no such topic; expected: topic id {old}"):
        stream.initialize_transaction(2, one, None)
    kafka.create(topic)
    kafka.put(topic, numbers(9))  # as many as were read, and more
    with pytest.raises(TopicGone, match="is another one: it was deleted and made again"):
        stream.initialize_transaction(2, one, None)
    again = coordinate(topic, forget=[old])
    again.resume(1, one)
    assert again.is_ready(2)
    two = again.initialize_transaction(2, one, None)
    assert ranges(two) == [(topic, 0, 0, 9)] and Batch.read(two).topics[0].id != old


def test_a_log_that_ends_before_what_was_read_is_an_error_or_is_gone_on_with(kafka, topic, coordinate) -> None:
    kafka.create(topic)
    kafka.put(topic, numbers(5))
    one = coordinate(topic).initialize_transaction(1, None, None)
    one["topics"][0]["end"] = [8]  # as though three more had been read, which an election has lost
    stream = coordinate(topic)
    stream.resume(1, one)
    assert stream.is_ready(2)
    with pytest.raises(LogCut, match="has lost messages that were read"):
        stream.initialize_transaction(2, one, None)
    lossy = coordinate(topic, kind=OpaqueKafkaSpout)
    two = lossy.initialize_transaction(2, one, None)
    kafka.put(topic, numbers(2))
    assert ranges(two) == [] and ranges(lossy.initialize_transaction(3, two, None)) == [(topic, 0, 5, 7)]


def test_a_topic_that_is_not_there_is_looked_for_again(kafka, topic, coordinate) -> None:
    stream = coordinate(topic)
    with pytest.raises(SourceError, match=f"cannot read topic '{topic}'"):
        stream.is_ready(1)
    kafka.create(topic)
    kafka.put(topic, numbers(1))
    assert stream.is_ready(1)


def test_offsets_of_durable_transactions_are_committed_to_a_group_and_never_backwards(kafka, topic, coordinate) -> None:
    kafka.create(topic, 2)
    kafka.put(topic, numbers(6))
    group = f"lag-{topic}"
    stream = coordinate(topic, commit_group=group, max_rows=2, min_rows=2)
    metadata = None
    for txid in (1, 2, 3):
        metadata = stream.initialize_transaction(txid, metadata, None)
    stream.success(1)
    assert eventually(lambda: kafka.committed(group, topic, 2) == {0: 2, 1: 0}, 30)
    stream.success(3)
    assert eventually(lambda: kafka.committed(group, topic, 2) == {0: 6, 1: 0}, 30)
    stream.success(2)  # told again after a restart
    stream.close()
    assert kafka.committed(group, topic, 2) == {0: 6, 1: 0}


def test_a_commit_that_the_cluster_refuses_is_logged_and_fails_nothing(kafka, topic, coordinate, caplog) -> None:
    from confluent_kafka import Consumer

    kafka.create(topic)
    kafka.put(topic, numbers(1))
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": f"live-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert consumer.poll(30) is not None  # a member: only members may commit now
    stream = coordinate(topic, commit_group=f"live-{topic}")
    stream.initialize_transaction(1, None, None)
    stream.success(1)
    assert eventually(lambda: "offsets are not committed to group" in caplog.text, 30)
    consumer.close()


def test_a_cluster_that_does_not_answer_is_an_error_and_a_transaction_that_begins_all_the_same_is_empty(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_SECS", 1.0)
    spout = KafkaSpout("127.0.0.1:1", "t", poll_interval_secs=60)
    stream = spout.get_coordinator(SpoutContext(None, "t", "s", tmp_path, "i"))
    with pytest.raises(BrokersAway, match="cannot ask the cluster for"):
        stream.is_ready(1)
    before = {"topics": [{"topic": "t", "id": "i", "begin": [0], "end": [4]}], "rows_estimate": 4}
    assert Batch.read(stream.initialize_transaction(2, before, None)).ends == {("t", 0): 4}
