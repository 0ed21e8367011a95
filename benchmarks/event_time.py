"""What dedup, a join with a time bound and timers cost a transaction, beside an append of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.kind_sources import Gate, Transactional, rows
from benchmarks.report import Report

if TYPE_CHECKING:
    from trident import Stream, TimerContext

TITLE = "event time: a transaction of 1,000 rows, one in flight, 20,000 keys"
_WARM_UP = 4
_BASE = "append"
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SCHEMA = StructType().add("key", "string").add("n", "long").add("at", "timestamp")


class _Emitter:
    """Ten seconds of event time a transaction."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def emit_batch(self, attempt: Any, metadata: Any) -> Any:
        from trident import Emitted

        begin, count = metadata["from"], self._gate.count
        step = timedelta(seconds=10) / count
        found = [(*row, _START + (begin + n) * step) for n, row in enumerate(rows(begin, count, self._gate.keys))]
        return Emitted(found, partitions=1)

    def success(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


class _Timed(Transactional):
    output_schema = _SCHEMA

    def get_emitter(self, context: Any) -> Any:
        return _Emitter(self._gate)


class _Silence:
    def on_row(self, context: "TimerContext", at: datetime) -> None:
        context.clear()
        context.state = 1
        context.set_timer(at + timedelta(seconds=100))

    def on_time(self, context: "TimerContext", time: datetime) -> datetime:
        context.clear()
        return time


def _dedup(stream: "Stream", other: "Stream") -> "Stream":
    return stream.drop_duplicates("key", within="1 hour", name="seen")


def _joined(stream: "Stream", other: "Stream") -> "Stream":
    return stream.join(other, "key", "inner", "key, n, at, m, its_at", within="100 seconds", name="waiting")


def _timers(stream: "Stream", other: "Stream") -> "Stream":
    return stream.group_by("key").process("at", _Silence(), "silent timestamp", state="n long", name="alarms")


def run(bench: Bench, report: Report) -> None:
    """Each once a round, in turn with the append."""
    parts: dict[str, dict[str, float]] = {}
    made: dict[str, Callable[[Any, Any], Any]] = {_BASE: lambda stream, _: stream}
    made |= {"drop_duplicates": _dedup, "process, timers": _timers}
    contenders = {name: _once(bench, parts, name, make, 1) for name, make in made.items()}
    contenders["append of two streams"] = _once(bench, parts, "append of two streams", lambda a, b: a.merge(b), 2)
    contenders["join within"] = _once(bench, parts, "join within", _joined, 2)
    values = rounds(bench.size(2, 1), contenders, bench.said)
    ms = {name: report.figure(name, "ms", found) for name, found in values.items()}
    for name, found in parts.items():
        report.note(f"{name}: ms of its last transaction: " + ", ".join(f"{k} {v:.0f}" for k, v in found.items()))
    for name in contenders:
        base = "append of two streams" if name == "join within" else _BASE
        if not name.startswith("append"):
            report.ratio(f"{name} / {base}", ms[name], ms[base])


def _once(
    bench: Bench, parts: dict[str, dict[str, float]], name: str, make: Callable[[Any, Any], Any], streams: int
) -> Callable[[int], float]:
    def once(number: int) -> float:
        from trident import DeltaAppend, TridentTopology

        count = bench.size(20, 3)
        gate = Gate(bench.size(1_000, 20), bench.size(20_000, 50))
        topology: TridentTopology = TridentTopology("event-time")
        stream = topology.new_stream("keys", _Timed(gate)).with_watermark("at", "20 seconds")
        other = stream
        if streams > 1:
            other = topology.new_stream("others", _Timed(gate))
            if name == "join within":
                other = other.rename({"n": "m"})
            other = other.with_watermark("at", "20 seconds")
        make(stream, other).partition_persist(DeltaAppend("rows"))
        with (
            bench.running(topology, bench.fresh("timed"), 1, message_timeout_secs=None) as query,
            Recorder(query) as kept,
        ):
            gate.to = _WARM_UP + count
            query.process_all_available()
        parts[name] = kept.records[-1]["duration_ms"]
        return steady_ms(kept.records, _WARM_UP)

    return once
