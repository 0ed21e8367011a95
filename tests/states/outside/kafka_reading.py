"""What a reader of Kafka sees that takes only what is committed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from tests.servers.kafka_fixtures import KafkaBroker

# Shorter than transaction.timeout.ms (60 s): else Kafka ends a transaction that was left open, and no reader sees it.
_OPEN_SECS = 40.0


def committed(kafka: KafkaBroker, topic: str) -> list[Any]:
    """All messages of a topic, each partition's in its order; waits for transactions that are not yet decided."""
    return list(messages(kafka, topic))


def messages(kafka: KafkaBroker, topic: str) -> Iterator[Any]:
    """As :func:`committed`, one after the other."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    ends = kafka.ends(topic)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    open_ = {number for number, end in ends.items() if end}
    deadline = time.monotonic() + _OPEN_SECS
    while open_:
        assert time.monotonic() < deadline, f"partitions {open_} do not come to their ends"
        for message in consumer.consume(1_000, 0.05):
            deadline = time.monotonic() + _OPEN_SECS
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                if message.offset() >= ends[message.partition()]:
                    open_.discard(message.partition())
            else:
                raise AssertionError(message.error())
    consumer.close()


def values(kafka: KafkaBroker, topic: str) -> list[bytes | None]:
    """The values of the messages, sorted."""
    return sorted((message.value() for message in committed(kafka, topic)), key=lambda value: value or b"")
