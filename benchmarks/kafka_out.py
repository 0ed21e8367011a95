"""Rows into a topic of Kafka by KafkaState, beside Structured Streaming's own sink for Kafka."""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import outside
from benchmarks.bench import Bench, Recorder, advanced_at, rounds
from benchmarks.kafka import add_connector
from benchmarks.report import Goal, Report
from trident.states.outside import kafka_state
from trident.states.outside.kafka_producer import PartProducer, PartProducers, TopicRoute

if TYPE_CHECKING:
    from tests.servers.kafka_fixtures import KafkaBroker

TITLE = "rows into a topic of 8 partitions: exactly once, beside Structured Streaming's sink, at least once"

_PARTITIONS = 8
_OURS, _THEIRS = "KafkaState", "Structured Streaming's sink"
_SMALL_ROWS = 10
_EACH, _ONE, _IN_TURN = (
    "a producer for each, made ahead",
    "one producer for all",
    "a producer for each, made in its turn",
)


def run(bench: Bench, report: Report) -> None:
    """Both in turn, each round into a topic of its own."""
    from tests.servers.kafka_fixtures import KafkaBroker

    add_connector(bench)
    broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="kafka-", dir=bench.folder)))
    broker.start()
    try:
        measures: dict[str, outside.Measure] = {
            _OURS: lambda folder, rows, in_flight: _ours(bench, broker, folder, rows, in_flight),
            _THEIRS: lambda folder, rows, in_flight: _theirs(bench, broker, folder, rows),
        }
        outside.compare(bench, report, _OURS, _THEIRS, measures)
        _small(bench, report, broker)
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


class _OneProducer(PartProducers):
    """As it was: a producer goes on to the next transaction, which a late request of the last one may end."""

    def _make_next(self, route: TopicRoute, part: int, one: PartProducer) -> bool:
        future: Future[PartProducer] = Future()
        one.is_used = False
        future.set_result(one)
        self._ahead[route.identity(part)] = future
        return True


class _InTurn(PartProducers):
    def _make_next(self, route: TopicRoute, part: int, one: PartProducer) -> bool:
        return False


def _small(bench: Bench, report: Report, broker: "KafkaBroker") -> None:
    """A transaction of ten rows: as a whole, in a topology; and its publication alone, as fast as they come."""
    kinds: dict[str, Callable[[], PartProducers]] = {_EACH: PartProducers, _ONE: _OneProducer, _IN_TURN: _InTurn}
    count = bench.size(60, 8)
    folder = outside.write_files(bench.fresh("few"), count, _SMALL_ROWS)
    measures: dict[str, Callable[[Path], list[float]]] = {
        "a transaction of 10 rows": lambda folder: _whole_ms(bench, broker, folder),
        "its publication alone, without a pause": lambda _: _publications_ms(broker, count),
    }
    for name, measure in measures.items():
        found: dict[str, list[float]] = {kind: [] for kind in kinds}

        def contender(kind: str, measure: Any = measure, found: Any = found) -> Callable[[int], float]:
            def timed(number: int) -> float:
                kafka_state._PRODUCERS = kinds[kind]()
                times = measure(folder)
                found[kind] += times if number >= 0 else []
                return statistics.median(times)

            return timed

        medians = rounds(
            bench.size(4, 1), {kind: contender(kind) for kind in kinds}, bench.said, warm_up=not bench.quick
        )
        for kind, times in found.items():
            report.figure(f"{name}, {kind}: p50", "ms", medians[kind])
            report.figure(f"{name}, {kind}: p99", "ms", [sorted(times)[int(len(times) * 0.99)]])
        each, one = (statistics.median(medians[kind]) for kind in (_EACH, _ONE))
        goal = Goal(at_most=1.3) if name.startswith("a transaction") else None
        report.ratio(f"{name}: {_EACH} / {_ONE}", each, one, goal)
    kafka_state._PRODUCERS = PartProducers()
    report.note(f"of {_SMALL_ROWS} rows: {count} transactions a round, one in flight; p99 over all rounds together")


def _whole_ms(bench: Bench, broker: "KafkaBroker", folder: Path) -> list[float]:
    """Milliseconds from one advance to the next, of each transaction but the first."""
    from trident import FileSpout, KafkaState, TridentTopology

    topic = broker.create(f"few-{uuid.uuid4().hex[:8]}", 1)
    topology = TridentTopology("few")
    lines: Any = topology.new_stream("rows", FileSpout(folder, min_rows=_SMALL_ROWS, max_rows=_SMALL_ROWS))
    lines.partition_persist(KafkaState(broker.address, topic, value="value"), "value")
    with bench.running(topology, bench.fresh("few"), 1) as query, Recorder(query) as recorder:
        query.process_all_available()
    _check(broker, topic, folder, _SMALL_ROWS)
    ends = [advanced_at(record) * 1000 for record in recorder.records][1:]
    return [after - before for before, after in zip(ends, ends[1:])]


def _publications_ms(broker: "KafkaBroker", count: int) -> list[float]:
    """Milliseconds of each publication but the first, without Spark."""
    import pyarrow as pa

    from trident import KafkaState, OutsideMark, OutsidePart

    topic = broker.create(f"few-{uuid.uuid4().hex[:8]}", 1)
    state, times = KafkaState(broker.address, topic, value="v", name="out"), []
    state.take_over("few", "inc", 1)
    for txid in range(1, count + 1):
        part = OutsidePart("few", "out", 0, OutsideMark("inc", 1, txid, 0), known=(txid - 1, 0) if txid > 1 else None)
        began = time.perf_counter()
        state.publish(part, iter([pa.record_batch({"v": [f"{txid}-{row}" for row in range(_SMALL_ROWS)]})]))
        times.append((time.perf_counter() - began) * 1000)
    state.let_go("few")
    return times[1:]
