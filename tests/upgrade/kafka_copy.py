"""A small topic and the offsets of one group as JSON: taken from a broker, and put into another one."""

from __future__ import annotations

from itertools import count, groupby
from typing import Any

from tests.servers.kafka_fixtures import KafkaBroker

Copy = dict[str, Any]


def taken(broker: KafkaBroker, topic: str, group: str) -> Copy:
    """The messages of a topic by partition, as read_committed sees them, and what a group has committed there."""
    from confluent_kafka import Consumer, TopicPartition

    ends = broker.ends(topic)
    settings = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.address, "enable.partition.eof": True, **settings})
    try:
        messages: dict[int, list[Any]] = {partition: [] for partition in ends}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        read = 0
        while read < len(ends):
            message = consumer.poll(30)
            assert message is not None, f"{topic} is not read to its end"
            if message.error() is not None:
                read += 1
                continue
            row = [message.offset(), message.key().decode(), message.value().decode()]
            messages[message.partition()].append(row)
        asked = [TopicPartition(topic, partition) for partition in ends]
        marks = {at.partition: [at.offset, at.metadata] for at in consumer.committed(asked, 30) if at.offset >= 0}
    finally:
        consumer.close()
    return {"topic": topic, "group": group, "ends": ends, "messages": messages, "marks": marks}


def put(broker: KafkaBroker, copy: Copy) -> None:
    """Makes the topic with messages at the offsets that they had, and commits what the group had committed.

    Each run of offsets is one transaction of Kafka, whose control record takes the offset after it.
    """
    from confluent_kafka import Consumer, TopicPartition

    topic = broker.create(copy["topic"], len(copy["ends"]))
    for partition, messages in copy["messages"].items():
        numbered = zip(count(), messages)
        for _, run in groupby(numbered, lambda one: one[1][0] - one[0]):
            rows = [(key, value) for _, (_, key, value) in run]
            broker.put_in_transaction(topic, rows, int(partition))
    assert broker.ends(topic) == {int(partition): end for partition, end in copy["ends"].items()}
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": copy["group"], "enable.auto.commit": False})
    try:
        marks = [
            TopicPartition(topic, int(part), offset, metadata) for part, (offset, metadata) in copy["marks"].items()
        ]
        consumer.commit(offsets=marks, asynchronous=False)
    finally:
        consumer.close()
