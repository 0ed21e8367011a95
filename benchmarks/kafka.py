"""Messages of Kafka into Spark, and into a Delta table, beside Spark's own source for Kafka."""

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
    from tests.servers.kafka_fixtures import KafkaBroker

TITLE = "messages of 100 bytes in 8 partitions, read by tasks, and into a Delta table with four transactions in flight"

_PARTITIONS, _IN_FLIGHT = 8, 4
_COLUMNS = ("key", "value", "timestamp", "topic", "partition", "offset")
_OURS, _SPARKS = "KafkaSpout", "Spark's source"
_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def run(bench: Bench, report: Report) -> None:
    """One read of everything, and all of it into a table, by both in turn."""
    from tests.servers.kafka_fixtures import KafkaBroker

    messages = bench.size(2_000_000, 20_000)
    add_connector(bench)
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
        drained = rounds(
            bench.size(3, 1),
            {
                _OURS: lambda number: messages / _drain_ours(bench, broker, topic, messages),
                _SPARKS: lambda number: messages / _drain_sparks(bench, broker, topic, messages),
            },
            say,
            warm_up=True,
        )
        ours = report.figure(f"into a Delta table, {_OURS}", "messages/s", drained[_OURS])
        theirs = report.figure(f"into a Delta table, {_SPARKS}", "messages/s", drained[_SPARKS])
        report.ratio(f"into a Delta table: {_OURS} / {_SPARKS}", ours, theirs, Goal(at_least=0.8))
    finally:
        broker.kill()
    report.note(
        f"{messages} messages; {_SPARKS}: foreachBatch, one batch at a time, as many offsets a batch as ours at most"
    )
    report.note("from the start of the topology or the query until all is committed, with its planning and its logs")


def add_connector(bench: Bench) -> None:
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
    from trident.coordinators.identities import TransactionAttempt
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


def _drain_ours(bench: Bench, broker: "KafkaBroker", topic: str, messages: int) -> float:
    from trident import DeltaAppend, KafkaSpout, TridentTopology

    topology = TridentTopology("kafka")
    spout = KafkaSpout(broker.address, topic, columns=_COLUMNS, max_rows=_at_most(messages))
    topology.new_stream("messages", spout).partition_persist(DeltaAppend("messages"))
    started = time.monotonic()
    with bench.running(topology, bench.fresh("ours"), _IN_FLIGHT) as query:
        query.process_all_available()
        took = time.monotonic() - started
        found = query.snapshot("messages").count()
    if found != messages:
        raise AssertionError(f"{found} messages arrived, there were {messages}")
    return took


def _drain_sparks(bench: Bench, broker: "KafkaBroker", topic: str, messages: int) -> float:
    table, checkpoint = bench.fresh("theirs"), bench.fresh("checkpoint")
    session = bench.spark.newSession()
    source = session.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    frame = source.option("maxOffsetsPerTrigger", _at_most(messages)).load().select(*_COLUMNS)
    sink = peers.append_sink(table, lambda batch: batch)
    started = time.monotonic()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    took = time.monotonic() - started
    found = bench.spark.read.format("delta").load(str(table)).count()
    if found != messages:
        raise AssertionError(f"{found} messages arrived at {_SPARKS}, there were {messages}")
    return took


def _at_most(messages: int) -> int:
    """Messages of a batch: eight batches in all."""
    return messages // 8
