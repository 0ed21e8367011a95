"""Messages of Kafka into Spark, beside Spark's own source for Kafka."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from tests.kafka_fixtures import KafkaBroker

TITLE = "messages of 100 bytes in 8 partitions, read by tasks"

_PARTITIONS = 8
_COLUMNS = ("key", "value", "timestamp", "topic", "partition", "offset")
_OURS, _SPARKS = "KafkaSpout", "Spark's source"
_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def run(bench: Bench, report: Report) -> None:
    """One read of everything by both, in turn."""
    from tests.kafka_fixtures import KafkaBroker

    messages = bench.size(2_000_000, 20_000)
    _add_connector(bench)
    broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="kafka-", dir=bench.folder)))
    broker.start()
    try:
        topic = _filled(broker, messages)
        count, say = bench.size(5, 1), bench.said
        read = rounds(
            count,
            {
                _OURS: lambda number: messages / _read_ours(bench, broker, topic),
                _SPARKS: lambda number: messages / _read_sparks(bench, broker, topic, messages),
            },
            say,
            warm_up=True,
        )
        ours = report.figure(f"one batch of all, {_OURS}", "messages/s", read[_OURS])
        theirs = report.figure(f"one batch of all, {_SPARKS}", "messages/s", read[_SPARKS])
        report.ratio(f"one batch of all: {_OURS} / {_SPARKS}", ours, theirs, Goal(at_least=0.8))
    finally:
        broker.kill()
    report.note(f"{messages} messages, read as one batch into no table, with the planning of it")


def _add_connector(bench: Bench) -> None:
    """Gives the session Spark's source for Kafka."""
    from trident.spark.jars import resolved_jars

    groups = ("org.apache.spark_", "org.apache.kafka_", "org.apache.commons_commons-pool2")
    spark: Any = bench.spark
    for jar in resolved_jars("Spark's source for Kafka", [_PACKAGE], groups, {}):
        spark._jsc.addJar(jar)
        spark._jvm.PythonSQLUtils.addJarToCurrentClassLoader(jar)


def _filled(broker: "KafkaBroker", messages: int) -> str:
    topic = broker.create(f"bench-{uuid.uuid4().hex[:8]}", _PARTITIONS)
    each = messages // _PARTITIONS
    for partition in range(_PARTITIONS):
        broker.put(topic, [(b"%09d" % number, b"%091d" % number) for number in range(each)], partition)
    return topic


def _read_ours(bench: Bench, broker: "KafkaBroker", topic: str) -> float:
    from trident import KafkaSpout
    from trident.coordinators.transactions import TransactionAttempt
    from trident.spouts.contracts import SpoutContext

    spout = KafkaSpout(broker.address, topic, columns=_COLUMNS, max_rows=1_000_000_000, min_rows=1_000_000_000)
    context = SpoutContext(bench.spark, "bench", "s", bench.folder, "i")
    coordinator, emitter = spout.get_coordinator(context), spout.get_emitter(context)
    metadata = coordinator.initialize_transaction(1, None, None)
    started = time.monotonic()
    data: Any = emitter.emit_batch(TransactionAttempt(1, 0), metadata).data
    peers.noop(data if hasattr(data, "write") else bench.spark.createDataFrame(data))
    took = time.monotonic() - started
    emitter.close()
    coordinator.close()
    return took


def _read_sparks(bench: Bench, broker: "KafkaBroker", topic: str, messages: int) -> float:
    ends = json.dumps({topic: {str(number): messages // _PARTITIONS for number in range(_PARTITIONS)}})
    reader = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest").option("endingOffsets", ends)
    started = time.monotonic()
    peers.noop(reader.load().select(*_COLUMNS))
    return time.monotonic() - started
