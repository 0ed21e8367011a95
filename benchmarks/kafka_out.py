"""Rows into a topic of Kafka by KafkaState, beside Structured Streaming's own sink for Kafka."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import outside
from benchmarks.bench import Bench
from benchmarks.kafka import add_connector
from benchmarks.report import Report

if TYPE_CHECKING:
    from tests.kafka_fixtures import KafkaBroker

TITLE = "rows into a topic of 8 partitions: exactly once, beside Structured Streaming's sink, at least once"

_PARTITIONS = 8
_OURS, _THEIRS = "KafkaState", "Structured Streaming's sink"


def run(bench: Bench, report: Report) -> None:
    """Both in turn, each round into a topic of its own."""
    from tests.kafka_fixtures import KafkaBroker

    add_connector(bench)
    broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="kafka-", dir=bench.folder)))
    broker.start()
    try:
        measures: dict[str, outside.Measure] = {
            _OURS: lambda folder, rows, in_flight: _ours(bench, broker, folder, rows, in_flight),
            _THEIRS: lambda folder, rows, in_flight: _theirs(bench, broker, folder, rows),
        }
        outside.compare(bench, report, _OURS, _THEIRS, measures)
    finally:
        broker.kill()
    report.note("ours has one transaction of Kafka for each, which a reader with read_committed sees once")


def _ours(bench: Bench, broker: "KafkaBroker", folder: Path, rows: int, in_flight: int) -> float:
    from trident import KafkaState

    topic = broker.create(f"out-{uuid.uuid4().hex[:8]}", _PARTITIONS)
    ms = outside.ours_ms(bench, KafkaState(broker.address, topic, key="key", value="value"), folder, rows, in_flight)
    _check(broker, topic, folder, rows)
    return ms


def _theirs(bench: Bench, broker: "KafkaBroker", folder: Path, rows: int) -> float:
    topic = broker.create(f"out-{uuid.uuid4().hex[:8]}", _PARTITIONS)

    def start(frame: Any) -> Any:
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
        writer = writer.option("topic", topic).option("checkpointLocation", str(bench.fresh("checkpoint")))
        return writer.trigger(availableNow=True).start()

    ms = outside.theirs_ms(bench, folder, start)
    _check(broker, topic, folder, rows)
    return ms


def _check(broker: "KafkaBroker", topic: str, folder: Path, rows: int) -> None:
    """Looks that the topic has each row once."""
    from tests.states.outside.kafka_reading import messages

    wanted = len(list(folder.glob("*.txt"))) * rows
    found = [message.value() for message in messages(broker, topic)]
    if len(found) != wanted or len(set(found)) != wanted:
        raise AssertionError(f"{len(found)} messages arrived, {len(set(found))} of them different, there were {wanted}")
