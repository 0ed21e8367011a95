"""12: Kafka into Delta. Orders as JSON are summed by item; those that do not parse go to a table of their own.

    python examples/12_kafka.py

With KAFKA_BROKERS=host:port it uses these brokers, and a topic of its own there. Without, it starts a broker as the
tests do: Java, and jars from Maven Central. Needs confluent-kafka: pip install 'trident-spark[kafka]'.
"""

import json
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from trident import DeltaAppend, DeltaMapState, KafkaSpout, Sum, TridentTopology
from trident import functions as F


def topology_of(brokers: str, topic: str) -> TridentTopology:
    orders = KafkaSpout(
        brokers,
        topic,
        value="json",
        value_schema="item string, pieces long",
        dead_letters="orders_not_parsed",
        commit_group=f"{topic}-to-delta",  # for monitors of lag
    )
    topology = TridentTopology("kafka-orders")
    stream = topology.new_stream("orders", orders)
    stream.partition_persist(DeltaAppend("order_log"))
    placed = stream.where(F.col("value").isNotNull())  # a tombstone has none
    placed = placed.select(F.col("value.item").alias("item"), F.col("value.pieces").alias("pieces"))
    placed.group_by("item").persistent_aggregate(DeltaMapState("ordered"), "pieces", Sum(), "pieces")
    return topology


def produce(brokers: str, topic: str, values: list[Any]) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": brokers})
    for number, value in enumerate(values):
        producer.produce(topic, key=b"%d" % number, value=value)
    producer.flush(30)


def order(item: str, pieces: int) -> bytes:
    return json.dumps({"item": item, "pieces": pieces}).encode()


def run(brokers: str) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    produce(brokers, topic, [order("hat", 2), order("coat", 1), b"{not json", None, order("hat", 3)])
    query = topology_of(brokers, topic).start(warehouse=str(Path(tempfile.mkdtemp(prefix="trident-example-")) / "w"))
    query.process_all_available()
    produce(brokers, topic, [order("coat", 4)])
    query.process_all_available()
    for row in query.snapshot("ordered").orderBy("item").collect():
        print(f"{row['item']}: {row['pieces']} pieces")
    print("messages in the log:", query.snapshot("order_log").count())
    for row in query.snapshot("orders_not_parsed").collect():
        print(f"not parsed: {bytes(row['value']).decode()}, {row['error']}")
    query.stop()


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
