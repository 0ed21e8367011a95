"""Where the time of one transaction goes, from its beginning to its advance."""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path

from benchmarks import words
from benchmarks.bench import Bench, Recorder
from benchmarks.report import Report

TITLE = "where the time of one word count transaction goes"

# In the order in which they happen. emit, plan and stage are parts of process.
_PARTS = ("begin", "process", "emit", "plan", "stage", "prepare", "decide", "publish", "advance")
_COMMIT = ("prepare", "decide", "publish", "advance")


def run(bench: Bench, report: Report) -> None:
    """The parts at one and at four in flight; beside it what Delta's own writer takes for a commit."""
    from trident import DeltaMapState

    lines = bench.size(words.LINES, 200)
    files = words.write_files(bench.fresh("lines"), bench.size(60, 6), lines)
    commit_ms = 0.0
    for in_flight in (1, 4):
        topology = words.topology("words", files, DeltaMapState("counts"), lines)
        with bench.running(topology, bench.fresh("ours"), in_flight) as query, Recorder(query) as recorder:
            query.process_all_available()
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
    deltas = _delta_overhead(bench, files, report)
    report.ratio("Delta's append over noop / our commit", deltas, commit_ms)


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
