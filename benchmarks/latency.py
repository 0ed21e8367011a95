"""From a message's CreateTime to the log entry that has its row, beside Spark's source of Kafka with a Delta sink."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import peers
from benchmarks.bench import Bench, Recorder
from benchmarks.kafka import add_connector
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.servers.kafka_fixtures import KafkaBroker
    from trident import KafkaSpout, TridentTopology

TITLE = "JSON messages from Kafka into Delta: from CreateTime to the log entry with the row"

_ROOT = Path(__file__).resolve().parent.parent
_PARTITIONS, _IN_FLIGHT, _ITEMS = 8, 3, 1_000
_SCHEMA = "id long, item string, pieces long, note string"
_GOALS = {50: Goal(at_most=0.25), 90: None, 99: Goal(at_most=0.6)}
_PEER = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
}
_TICK_SECS = 0.005
_WAIT_SECS = 120.0


@dataclass(frozen=True)
class Commit:
    """A log entry with rows of messages.

    Attributes:
        at: when the entry was there: seconds since the epoch.
        ends: of each partition the offset behind the last message whose row is in this entry or an earlier one.
    """

    at: float
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """How many messages a second are sent, and for how long before and while it is measured."""

    rate: int
    warm_up_secs: float
    secs: float


def run(bench: Bench, report: Report) -> None:
    """Each contender in turn, at each rate: a topic of its own, filled while the contender reads it."""
    from tests.servers.kafka_fixtures import KafkaBroker

    add_connector(bench)
    broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="kafka-", dir=bench.folder)))
    broker.start()
    contenders: dict[str, Callable[[Bench, KafkaBroker, Load], Measured]] = {
        "append": ours_append,
        "append, Spark": sparks_append,
        "counts by key": ours_counts,
        "counts by key, Spark": sparks_counts,
    }
    try:
        for name, contender in contenders.items():  # a JVM gets faster for some minutes
            load = Load(bench.size(2_000, 500), 1, bench.size(10, 1))
            bench.said(f"   warm-up {name}: {contender(bench, broker, load).said}")
        for rate in (500,) if bench.quick else (20_000, 50_000):
            load = Load(rate, bench.size(20, 1), bench.size(30, 2))
            for name, contender in contenders.items():
                measured = contender(bench, broker, load)
                ours = "Spark" not in name
                for percent, goal in _GOALS.items():
                    title = f"{rate:,}/s, {name}, p{percent}"
                    report.figure(title, "s", [measured.percentile(percent)], goal if ours else None)
                report.note(f"{rate:,}/s, {name}: {measured.said}; load {os.getloadavg()[0]:.1f}")
                bench.said(f"   {rate:,}/s, {name}: {measured.said}")
    finally:
        broker.kill()
    report.note(
        "broker, producer and reader share the cores; the entry's time is the file's, as the file system has it"
    )


# --- what is measured ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The latencies of messages, and the commits that they were in."""

    latencies: NDArray[np.float64]
    commits_a_second: float
    parts: str = ""

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.latencies, percent))

    @property
    def said(self) -> str:
        seconds = " ".join(f"p{percent} {self.percentile(percent):.3f}" for percent in _GOALS)
        return f"{seconds}; {len(self.latencies):,} messages, {self.commits_a_second:.1f} log entries/s{self.parts}"


def measured(created: list[NDArray[np.float64]], commits: list[Commit], warm_up_secs: float, parts: str) -> Measured:
    """The latencies of the messages that were created after the warm-up.

    Args:
        created: of each partition the CreateTime of the message at each offset: seconds since the epoch.
    """
    since = min(times[0] for times in created) + warm_up_secs
    at = np.array([commit.at for commit in commits])
    found = []
    for partition, times in enumerate(created):
        ends = np.array([commit.ends[partition] for commit in commits])
        first = np.searchsorted(ends, np.arange(len(times)), side="right")
        if first.max() >= len(commits):
            raise AssertionError(f"{len(times) - ends[-1]} messages of partition {partition} are in no log entry")
        found.append((at[first] - times)[times >= since])
    counted = [one for one in commits if one.at >= since]
    span = counted[-1].at - counted[0].at
    return Measured(np.concatenate(found), (len(counted) - 1) / span if span else 0.0, parts)


def _created(broker: KafkaBroker, topic: str) -> list[NDArray[np.float64]]:
    from confluent_kafka import Consumer, TopicPartition

    ends = broker.ends(topic)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "latency", "enable.auto.commit": False})
    times = [np.zeros(ends[partition]) for partition in range(_PARTITIONS)]
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(_PARTITIONS)])
    left = sum(ends.values())
    while left:
        for message in consumer.consume(10_000, 10.0):
            partition: Any = message.partition()
            times[partition][message.offset()] = message.timestamp()[1] / 1000
            left -= 1
    consumer.close()
    return times


# --- the producer, a process of its own -----------------------------------------------------------


@contextmanager
def _filling(broker: KafkaBroker, load: Load) -> Iterator[tuple[str, Callable[[], int]]]:
    """A topic, and a call that fills it and gives the number of messages."""
    topic = broker.create(f"latency-{uuid.uuid4().hex[:8]}", _PARTITIONS)
    count = int(load.rate * (load.warm_up_secs + load.secs))

    def fill() -> int:
        command = [sys.executable, "-m", "benchmarks.latency", broker.address, topic, str(load.rate), str(count)]
        subprocess.run(command, cwd=_ROOT, check=True, timeout=load.warm_up_secs + load.secs + _WAIT_SECS)
        return count

    yield topic, fill
    broker.delete(topic)


def _produce(address: str, topic: str, rate: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    note = "x" * 40
    values = [
        json.dumps({"id": number, "item": f"item-{number * 7919 % _ITEMS:04d}", "pieces": number % 10, "note": note})
        for number in range(10_000)
    ]
    sent, started = 0, time.monotonic()
    while sent < count:
        due = min(count, int((time.monotonic() - started) * rate))
        for number in range(sent, due):
            producer.produce(topic, values[number % len(values)], partition=number % _PARTITIONS)
        sent = max(sent, due)
        producer.poll(0)
        time.sleep(_TICK_SECS)
    if producer.flush(60):
        raise RuntimeError("the broker has not taken all messages")


# --- ours ---------------------------------------------------------------------------------------


def _spout(broker: KafkaBroker, topic: str) -> KafkaSpout:
    from trident import KafkaSpout

    return KafkaSpout(broker.address, topic, value="json", value_schema=_SCHEMA, columns=("value", "timestamp"))


def ours_append(bench: Bench, broker: KafkaBroker, load: Load) -> Measured:
    from trident import DeltaAppend
    from trident import functions as F

    def build(topology: TridentTopology, spout: KafkaSpout) -> None:
        fields = [F.col(f"value.{field}").alias(field) for field in ("id", "item", "pieces", "note")]
        topology.new_stream("orders", spout).select(*fields, "timestamp").partition_persist(DeltaAppend("orders"))

    return _ours(bench, broker, load, build, "orders")


def ours_counts(bench: Bench, broker: KafkaBroker, load: Load) -> Measured:
    from trident import Count, DeltaMapState
    from trident import functions as F

    def build(topology: TridentTopology, spout: KafkaSpout) -> None:
        items = topology.new_stream("orders", spout).select(F.col("value.item").alias("item"))
        items.group_by("item").persistent_aggregate(DeltaMapState("counts"), Count(), "orders")

    return _ours(bench, broker, load, build, "counts")


def _ours(
    bench: Bench,
    broker: KafkaBroker,
    load: Load,
    build: Callable[[TridentTopology, KafkaSpout], None],
    state: str,
    **settings: Any,
) -> Measured:
    from trident import TridentTopology

    warehouse, topology = bench.fresh("ours"), TridentTopology("latency")
    with _filling(broker, load) as (topic, fill):
        build(topology, _spout(broker, topic))
        keep_all = {"history_retention_txids": 1_000_000, "history_retention_secs": None}
        with (
            bench.running(topology, warehouse, _IN_FLIGHT, **keep_all, **settings) as query,
            Recorder(query) as recorder,
        ):
            fill()
            query.process_all_available()
        records = recorder.records[len(recorder.records) // 2 :]
        return measured(_created(broker, topic), _our_commits(warehouse, state), load.warm_up_secs, _parts(records))


def _our_commits(warehouse: Path, state: str) -> list[Commit]:
    """The log entries of the table that transactions are published to, with the offsets of their manifests."""
    from trident.states.core.descriptor import descriptors_of_group
    from trident.states.core.place import Place
    from trident.states.delta.delta_log import DeltaLog
    from trident.states.delta.history import control_at
    from trident.states.delta.manifest import ManifestStore, groups_with_manifests

    (group,) = groups_with_manifests(Place(warehouse), "latency")
    ends = {
        (manifest.attempt.txid, manifest.attempt.attempt_id): tuple(spout["metadata"]["topics"][0]["end"])
        for _, manifest in ManifestStore(Place(warehouse), "latency", group).found()
        for spout in manifest.spouts.values()
    }
    (described,) = [one for one in descriptors_of_group(Place(warehouse), "latency", group) if one.name == state]
    path, found = warehouse / described.published_path, dict[int, Commit]()
    log = DeltaLog(path)
    for version in log.versions():
        control = control_at(path, version)
        if control is not None and (attempt := (control.txid, control.attempt_id)) in ends:
            found.setdefault(control.txid, Commit(os.stat(log.entry(version)).st_ctime, ends[attempt]))
    return [found[txid] for txid in sorted(found)]


def _parts(records: list[dict[str, Any]]) -> str:
    """Where the time of a transaction goes: medians."""
    names = {part: None for record in records for part in record["duration_ms"]}
    found = {part: [one["duration_ms"][part] for one in records if part in one["duration_ms"]] for part in names}
    said = ", ".join(f"{part} {statistics.median(ms):.0f}" for part, ms in found.items())
    rows = statistics.median(record["num_input_rows"] or 0 for record in records)
    return f"; of {rows:,.0f} rows; ms: {said}"


# --- Spark's ------------------------------------------------------------------------------------


def sparks_append(bench: Bench, broker: KafkaBroker, load: Load) -> Measured:
    def start(orders: Any, table: Path, checkpoint: Path) -> Any:
        writer = orders.writeStream.format("delta").option("checkpointLocation", str(checkpoint))
        return writer.start(str(table))

    return _sparks(bench, broker, load, start)


def sparks_counts(bench: Bench, broker: KafkaBroker, load: Load) -> Measured:
    """The changed counts are appended: as our log has them, and a MERGE into a table would take seconds."""

    def start(orders: Any, table: Path, checkpoint: Path) -> Any:
        counts = orders.groupBy("item").count().writeStream.outputMode("update")
        sink = peers.append_sink(table, lambda batch: batch)
        return counts.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()

    return _sparks(bench, broker, load, start)


def _sparks(bench: Bench, broker: KafkaBroker, load: Load, start: Callable[[Any, Path, Path], Any]) -> Measured:
    from pyspark.sql import functions as F

    table, checkpoint = bench.fresh("theirs"), bench.fresh("checkpoint")
    session = peers.session_of(bench.spark, _PEER)
    with _filling(broker, load) as (topic, fill):
        source = session.readStream.format("kafka").option("kafka.bootstrap.servers", broker.address)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest")
        parsed = F.from_json(F.col("value").cast("string"), _SCHEMA)
        query = start(
            source.load().select(parsed.alias("value"), "timestamp").select("value.*", "timestamp"), table, checkpoint
        )
        try:
            fill()
            query.processAllAvailable()
        finally:
            query.stop()
        return measured(_created(broker, topic), _sparks_commits(table, checkpoint), load.warm_up_secs, "")


def _sparks_commits(table: Path, checkpoint: Path) -> list[Commit]:
    found = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for batch in (action["txn"]["version"] for action in actions if "txn" in action):
            offsets = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
            (of_topic,) = offsets.values()
            found.append(Commit(entry.stat().st_ctime, tuple(of_topic[str(number)] for number in range(_PARTITIONS))))
    return found


if __name__ == "__main__":
    _produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
