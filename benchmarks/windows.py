"""What a transaction of 50 rows costs behind windows that hold few parts, many, and rows; beside an append of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.keys import GatedKeys
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import Stream

TITLE = "a transaction of 50 rows behind a window, one in flight"
_APPEND = "append"


def _append(stream: "Stream") -> None:
    from trident import DeltaAppend

    stream.partition_persist(DeltaAppend("out"))


def _windowed(stream: "Stream") -> Any:
    """All at one time, an hour before the watermark: whatever has come stays open."""
    from trident import functions as F

    timed = stream.with_column("at", F.timestamp_seconds(F.col("n") * 1_700_000_000))
    return timed.with_watermark("at", "1 hour")


def _parts(stream: "Stream") -> None:
    from trident import DeltaAppend, Sum

    windows = _windowed(stream).sliding_window("20 seconds", "10 seconds", "open")
    windows.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


def _sessions(stream: "Stream") -> None:
    from trident import DeltaAppend, Sum

    sessions = _windowed(stream).session_window("20 seconds", "open")
    sessions.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


def _rows(stream: "Stream") -> None:
    from trident import DeltaAppend

    _windowed(stream).sliding_window("20 seconds", "10 seconds", "open").rows().partition_persist(DeltaAppend("out"))


def run(bench: Bench, report: Report) -> None:
    """All in turn, three times over; the ratios to the append of the same run."""
    few, many = bench.size(1_000, 100), bench.size(1_000_000, 200)
    contenders: dict[str, Callable[[int], float]] = {
        _APPEND: _timed(bench, _append, few),
        f"windows, {few:,} open parts": _timed(bench, _parts, few),
        f"windows, {many:,} open parts": _timed(bench, _parts, many),
        f"sessions, {few:,} open": _timed(bench, _sessions, few),
        f"windows, {few:,} open rows kept as rows": _timed(bench, _rows, few),
    }
    values = rounds(bench.size(3, 1), contenders, bench.said)
    ms = {name: report.figure(name, "ms", found) for name, found in values.items()}
    base, _, large, *_ = names = list(ms)
    for name in names[1:]:
        goal = Goal(at_most=1.5) if "parts" in name or "sessions" in name else None
        report.ratio(f"{name} / append", ms[name], ms[base], goal)
    report.ratio("windows: many / few open parts", ms[large], ms[names[1]], Goal(at_most=1.2))


def _timed(bench: Bench, stream: Callable[["Stream"], None], keys: int) -> Callable[[int], float]:
    def once(number: int) -> float:
        from trident import TridentTopology

        warm, count = bench.size(30, 2), bench.size(20, 3)
        spout = GatedKeys(bench.size(50, 10), keys, load=True)
        topology: TridentTopology = TridentTopology("windows")
        stream(topology.new_stream("keys", spout))
        with bench.running(topology, bench.fresh("windows"), 1, message_timeout_secs=None) as query:
            with Recorder(query) as recorder:
                for batches in (1, warm, count):  # the copy of a large state is made beside the second ones
                    spout.allow(batches)
                    query.process_all_available()
        return steady_ms(recorder.records, warm + 1)

    return once
