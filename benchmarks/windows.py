"""What a transaction of 50 rows costs behind windows that hold few parts, many, and rows; beside an append of them."""

from __future__ import annotations

import contextlib
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench
from benchmarks.beside import in_turn, running
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import Stream

TITLE = "a transaction of 50 rows behind a window, one in flight"


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


class _Squares:
    """A combiner of the user's."""

    def init(self, n: int) -> int:
        return n * n

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


def _users(stream: "Stream") -> None:
    from trident import DeltaAppend

    windows = _windowed(stream).sliding_window("20 seconds", "10 seconds", "open")
    windows.group_by("key").aggregate("n", _Squares(), "squares long").partition_persist(DeltaAppend("out"))


def _sessions(stream: "Stream") -> None:
    from trident import DeltaAppend, Sum

    sessions = _windowed(stream).session_window("20 seconds", "open")
    sessions.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


def _rows(stream: "Stream") -> None:
    from trident import DeltaAppend

    _windowed(stream).sliding_window("20 seconds", "10 seconds", "open").rows().partition_persist(DeltaAppend("out"))


def run(bench: Bench, report: Report) -> None:
    """All topologies run at once; in each round each is measured right behind the append."""
    few, many = bench.size(1_000, 100), bench.size(1_000_000, 200)
    streams = {
        f"windows, {few:,} open parts": (_parts, few),
        f"windows, {many:,} open parts": (_parts, many),
        f"windows, {few:,} open parts of a combiner in Python": (_users, few),
        f"sessions, {few:,} open": (_sessions, few),
        f"windows, {few:,} open rows kept as rows": (_rows, few),
    }
    with contextlib.ExitStack() as stack:
        rows = bench.size(50, 10)
        base = stack.enter_context(running(bench, "append", _append, rows, few, has_copies=False))
        contenders = {
            name: stack.enter_context(running(bench, f"windows-{number}", stream, rows, keys, stream is not _rows))
            for number, (name, (stream, keys)) in enumerate(streams.items())
        }
        found = in_turn(bench, base, contenders, bench.size(5, 1))
        for name, contender in {"append": base, **contenders}.items():
            report.note(f"{name}: ms of its last transaction: {contender.spent}")
    report.figure("append", "ms", [pair[0] for pairs in found.values() for pair in pairs])
    ms = {name: report.figure(name, "ms", [pair[1] for pair in pairs]) for name, pairs in found.items()}
    for name, pairs in found.items():
        of_the_framework = ("parts" in name or "sessions" in name) and "Python" not in name
        goal = Goal(at_most=1.5) if of_the_framework else None
        report.ratio(f"{name} / append", statistics.median(pair[1] / pair[0] for pair in pairs), 1.0, goal)
    least, large, *_ = ms  # as in ``streams``
    report.ratio("windows: many / few open parts", ms[large], ms[least], Goal(at_most=1.2))
