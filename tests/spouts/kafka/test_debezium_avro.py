"""Debezium's envelope in Avro, from a real topic by a schema registry into a state: one line of a topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers.kafka_fixtures import KafkaBroker
from tests.spouts.kafka import test_kafka_values
from tests.spouts.kafka.test_kafka_values import SECRET, Registry, context
from tests.topology_helpers import WAIT_SECS, Starter
from trident import DeltaMapState, KafkaSpout, TridentTopology, Upsert, read

registry = test_kafka_values.registry

VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
SOURCE = [("version", "string"), ("connector", "string"), ("ts_ms", "long"), ("lsn", ["null", "long"])]
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": name, "type": kind} for name, kind in SOURCE],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
ROW = "struct<id: bigint, name: string>"
WANTED = f"before {ROW}, after {ROW}, op string, source struct<lsn: bigint>"


def change(op: str, lsn: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"version": "3.2", "connector": "postgresql", "ts_ms": 5, "lsn": lsn}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 6}


@pytest.mark.long
def test_changes_in_avro_come_late_and_the_state_has_what_the_database_has(
    start: Starter, kafka: KafkaBroker, topic: str, registry: Registry, spark: SparkSession, tmp_path: Path
) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    write = AvroSerializer(registry.client(), json.dumps(ENVELOPE))
    changes = [
        change("r", 10, None, {"id": 1, "name": "ann"}),
        change("u", 40, {"id": 1, "name": "ann"}, {"id": 1, "name": "anna"}),
        change("d", 50, {"id": 2, "name": None}),
        change("u", 30, None, {"id": 1, "name": "annie"}),  # late
        change("c", 20, None, {"id": 2, "name": "bob"}),  # late, behind its delete
        change("c", 60, None, {"id": 3, "name": None}),
    ]
    kafka.create(topic)
    kafka.put(topic, [*(write(one, context(topic)) for one in changes), None])
    by = {"url": registry.url, "basic.auth.user.info": f"reader:{SECRET}"}
    spout = KafkaSpout(kafka.address, topic, value="avro", value_schema=WANTED, registry=by, max_rows=4, min_rows=1)
    topology = TridentTopology("cdc")
    topology.new_stream("changes", spout).debezium().partition_persist(
        DeltaMapState("users"), None, Upsert("id", delete_when="deleted", sequence_by="sequence")
    )
    query = start(topology)
    query.process_all_available(WAIT_SECS)
    assert sorted(map(tuple, read(spark, str(tmp_path / "warehouse"), "users").collect())) == [
        (1, "anna", 40),
        (3, None, 60),
    ]
