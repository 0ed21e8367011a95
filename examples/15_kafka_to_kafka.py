"""15: Kafka to Delta and Kafka. Orders come from a topic; their sums go to a table and a topic, by one decision.

    python examples/15_kafka_to_kafka.py

The rows of a transaction are decided once: for the log, the table of sums and the topic of changes. Readers with
isolation.level=read_committed see each change once. With KAFKA_BROKERS=host:port it uses these brokers, and its own
topics there; without, it starts a broker as example 12 does. Needs confluent-kafka: pip install 'trident-spark[kafka]'.
"""

import json
import os
import sys
import tempfile
import uuid
from pathlib import Path

from trident import DeltaAppend, DeltaMapState, KafkaSpout, KafkaState, Sum, TridentTopology, Upsert
from trident import functions as F


def topology_of(brokers: str, orders: str, totals: str) -> TridentTopology:
    topology = TridentTopology("kafka-totals")
    spout = KafkaSpout(brokers, orders, value="json", value_schema="item string, pieces long", max_rows=3, min_rows=3)
    stream = topology.new_stream("orders", spout)
    placed = stream.select(F.col("value.item").alias("item"), F.col("value.pieces").alias("pieces"))
    placed.partition_persist(DeltaAppend("placed_orders"))
    sums = placed.group_by("item").persistent_aggregate(DeltaMapState("item_totals"), "pieces", Sum(), "pieces")
    changes = KafkaState(brokers, totals, key="item", name="totals_out")
    sums.new_values_stream().partition_persist(changes, "item, pieces", Upsert("item"))
    return topology


def make_topics(brokers: str, *topics: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        made.result(30)


def produce(brokers: str, topic: str, orders: list[tuple[str, int]]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": brokers})
    for item, pieces in orders:
        producer.produce(topic, key=item, value=json.dumps({"item": item, "pieces": pieces}))
    producer.flush(30)


def read_committed(brokers: str, topic: str) -> list[tuple[str, dict]]:
    """The topic from its beginning to its end, as a consumer sees it that takes only what is committed."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": brokers, "group.id": "example", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found, ended = [], set()
    while len(ended) < 2:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError(f"{topic} is not read to its end")
        if message.error() is None:
            found.append((message.key().decode(), json.loads(message.value())))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def run(brokers: str) -> None:
    orders, totals = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "totals"))
    make_topics(brokers, orders, totals)
    produce(brokers, orders, [("hat", 2), ("coat", 1), ("hat", 3)])
    warehouse = str(Path(tempfile.mkdtemp(prefix="trident-example-")) / "w")
    query = topology_of(brokers, orders, totals).start(warehouse=warehouse)
    query.process_all_available()
    produce(brokers, orders, [("coat", 4), ("scarf", 1)])
    query.process_all_available()
    for row in query.snapshot("item_totals").orderBy("item").collect():
        print(f"in the table: {row['item']}: {row['pieces']} pieces")
    print("orders in the log:", query.snapshot("placed_orders").count())
    query.stop()
    for item, change in read_committed(brokers, totals):
        print(f"in the topic: {item}: {change['pieces']} pieces")


if __name__ == "__main__":
    if brokers := os.environ.get("KAFKA_BROKERS"):
        run(brokers)
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from tests.servers.kafka_fixtures import KafkaBroker

        broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="trident-kafka-")))
        broker.start()
        run(broker.address)
        broker.kill()
