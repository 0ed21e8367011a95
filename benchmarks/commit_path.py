"""Where the time of one transaction goes, from its beginning to its advance."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks import words
from benchmarks.bench import Bench, Recorder
from benchmarks.report import Goal, Report

TITLE = "where the time of one word count transaction goes"

# In the order in which they happen. emit, plan and stage are parts of process.
_PARTS = ("begin", "process", "emit", "plan", "stage", "prepare", "decide", "publish", "advance")
# As large as those of this word count.
_SIZES = {"manifest": 1_200, "data file": 200_000, "log entry": 900}
_COMMIT = ("prepare", "decide", "publish", "advance")


def run(bench: Bench, report: Report) -> None:
    """The parts at one and at four in flight; beside it what Delta's own writer takes for a commit."""
    from trident import DeltaMapState

    lines = bench.size(words.LINES, 200)
    files = words.write_files(bench.fresh("lines"), bench.size(60, 6), lines)
    commit_ms = begin_ms = 0.0
    for in_flight in (1, 4):
        topology = words.topology("words", files, DeltaMapState("counts"), lines)
        with bench.running(topology, bench.fresh("ours"), in_flight) as query, Recorder(query) as recorder:
            query.process_all_available()
            multis = query._zk.counters.multis / max(1, query.last_progress["batch_id"])
        report.figure(f"{in_flight} in flight: multis a transaction", "", [multis])
        parts = [record["duration_ms"] for record in recorder.records[len(recorder.records) // 3 :]]
        for part in _PARTS:
            if any(part in one for one in parts):
                report.figure(f"{in_flight} in flight: {part}", "ms", [one.get(part, 0.0) for one in parts])
        commit = [sum(one.get(part, 0.0) for part in _COMMIT) for one in parts]
        report.figure(f"{in_flight} in flight: commit in all", "ms", commit)
        waiting = [one["total"] - one.get("begin", 0) - one["process"] - spent for one, spent in zip(parts, commit)]
        report.figure(f"{in_flight} in flight: waiting its turn", "ms", waiting)
        report.figure(f"{in_flight} in flight: total", "ms", [one["total"] for one in parts])
        if in_flight == 1:
            commit_ms = statistics.median(commit)
            begin_ms = statistics.median(one.get("begin", 0.0) for one in parts)
    floor, of_commit = _durable_floor(bench, report)
    report.ratio("1 in flight: prepare to advance", commit_ms, 1.0, Goal(at_most=8.0), unit="ms")
    report.ratio("commit in all / two multis, manifest, log entry", commit_ms, of_commit)
    report.ratio("begin and commit in all / the durable floor", begin_ms + commit_ms, floor, Goal(at_most=2.0))
    deltas = _delta_overhead(bench, files, report)
    report.ratio("Delta's append over noop / our commit", deltas, commit_ms)


def _durable_floor(bench: Bench, report: Report) -> tuple[float, float]:
    """Times the pieces that a durable transaction needs; gives their sum, and that of those from prepare on."""
    from trident.coordinators.znodes import SetData
    from trident.coordinators.zookeeper import ZooKeeper
    from trident.coordinators.zookeeper_connection import ZooKeeperConfig

    rounds, folder = bench.size(100, 5), bench.fresh("floor")
    folder.mkdir(parents=True)
    zk = ZooKeeper(ZooKeeperConfig(bench.zookeeper))
    zk.connect()
    try:
        path = zk.path("floor", "record")
        zk.ensure_path(path)
        version = zk.exists(path).znode_version
        multi = _timed(rounds, lambda number: zk.multi([SetData(path, b"x" * 600, version + number)]))
    finally:
        zk.close()
    parts = {"a multi": report.figure("floor: a multi", "ms", multi)}
    for name, size in _SIZES.items():
        spent = _timed(rounds, lambda number, name=name, size=size: _durable(folder / f"{name} {number}", size))
        parts[name] = report.figure(f"floor: a {name}, flushed with its folder", "ms", spent)
    commit = 2 * parts["a multi"] + parts["manifest"] + parts["log entry"]
    return commit + parts["a multi"] + parts["data file"], commit


def _timed(rounds: int, once: Callable[[int], object]) -> list[float]:
    found = []
    for number in range(rounds):
        started = time.monotonic()
        once(number)
        found.append((time.monotonic() - started) * 1000)
    return found[rounds // 3 :]


def _durable(path: Path, size: int) -> None:
    with open(path, "xb") as file:
        file.write(b"x" * size)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delta_overhead(bench: Bench, files: Path, report: Report) -> float:
    """What Delta's writer takes for an idempotent append over computing the same rows."""
    from benchmarks.peers import noop

    table, app, appended, computed = bench.fresh("append"), uuid.uuid4().hex, [], []
    for number, path in enumerate(sorted(files.iterdir())):
        frame = words.counted(bench.spark.read.text(str(path)).coalesce(1))
        started = time.monotonic()
        noop(frame)
        computed.append((time.monotonic() - started) * 1000)
        writer = frame.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", number)
        started = time.monotonic()
        writer.save(str(table))
        appended.append((time.monotonic() - started) * 1000)
    keep = len(computed) // 3
    plain = report.figure("the query to noop, coalesce(1)", "ms", computed[keep:])
    return report.figure("the same appended by Delta's writer", "ms", appended[keep:]) - plain
