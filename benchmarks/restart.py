"""SIGKILL in the middle: how long until the next process has committed something new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import words
from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report
from benchmarks.sustained import environment_of_a_user

TITLE = "after SIGKILL, from the new process's start to its first newly committed transaction"

_ROOT = Path(__file__).resolve().parent.parent
_LINE_SECS_MAX = 600.0
# What a child tells, in this order; the last is what is waited for.
STEPS = ("python", "imported", "spark", "started", "leads", "committed")


def run(bench: Bench, report: Report) -> None:
    """Kills and starts again, in turn with Structured Streaming killed in the same way, and with Spark alone."""
    from trident.coordinators.embedded import EmbeddedZooKeeper

    lines = bench.size(words.LINES, 200)
    files = words.write_files(bench.fresh("lines"), bench.size(400, 60), lines)
    ours, stream = bench.fresh("ours"), bench.fresh("stream")
    steps: list[dict[str, float]] = []

    def restarted(mode: str, folder: Path, kept: list[dict[str, float]], archive: str = "use") -> float:
        found = _life(bench, mode, files, folder, lines, archive)
        kept.append(found)
        return found["committed"]

    try:
        # The first life starts the ZooKeeper server, makes the tables, and is killed like the others; the JVMs of the
        # others start from the archive of its classes, as a user's do some minutes after the very first start.
        bench.said(f"   first life: {restarted('trident', ours, [], 'make'):.1f} s, then SIGKILL")
        restarted("stream", stream, [])
        theirs: list[dict[str, float]] = []
        alone: list[dict[str, float]] = []
        without: list[dict[str, float]] = []
        measured = rounds(
            1 if bench.quick else 5,
            {
                "ours": lambda number: restarted("trident", ours, steps),
                "Structured Streaming": lambda number: restarted("stream", stream, theirs),
                "Spark alone": lambda number: restarted("spark", ours, alone),
                "Spark alone, without": lambda number: restarted("spark", ours, without, "none"),
            },
            bench.said,
        )
    finally:
        EmbeddedZooKeeper.stop(ours / "_trident" / "zookeeper")
    seconds = report.figure("ours: process start to a new commit", "s", measured["ours"])
    before = "process start"
    for number, step in enumerate(STEPS):
        since = [one[step] - (one[STEPS[number - 1]] if number else 0.0) for one in steps]
        report.figure(f"ours: {before} to {_WHAT[step]}", "s", since)
        before = _WHAT[step]
    spark = report.figure("Spark alone: process start to a first job's end", "s", measured["Spark alone"])
    report.figure("Spark alone: process start to its session", "s", [one["spark"] for one in alone])
    plain = report.figure("Spark alone, without an archive of classes", "s", measured["Spark alone, without"])
    peer = report.figure("foreachBatch + append: process start to a new commit", "s", measured["Structured Streaming"])
    beyond = [one["committed"] - one["spark"] for one in steps]
    first_job = [one["committed"] - one["spark"] for one in alone]
    report.figure("Spark alone: its session to a first job's end", "s", first_job)
    report.figure("ours: Spark's session to a new commit", "s", beyond)
    report.ratio("Spark alone without an archive of classes / with", plain, spark)
    report.ratio("ours / Spark alone", seconds, spark)
    report.ratio("ours: beyond Spark alone", seconds - spark, 1.0, Goal(at_most=2.0), unit="s")
    report.ratio("ours / foreachBatch + append", seconds, peer)
    report.note(
        "each process is killed with SIGKILL while four transactions are in flight, some 8 commits after its start"
    )


_WHAT = {
    "python": "Python runs",
    "imported": "imports done",
    "spark": "Spark's session is there",
    "started": "start() returned",
    "leads": "it leads",
    "committed": "a new commit",
}


def _life(bench: Bench, mode: str, files: Path, folder: Path, lines: int, archive: str) -> dict[str, float]:
    """Starts a process, hears its steps, kills it; seconds of each step since the process's start."""
    environment = environment_of_a_user(bench)
    command = [sys.executable, "-m", "benchmarks.restart_child", mode, str(files), str(folder), str(lines), archive]
    began = time.time()
    # The JVM of a killed process complains at length before it ends: only of interest when something failed.
    complaints = folder.with_suffix(".log")
    with complaints.open("w") as stderr:
        child = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
    found: dict[str, float] = {}
    try:
        assert child.stdout is not None
        for line in child.stdout:
            told: dict[str, Any] = json.loads(line)
            found[told["step"]] = told["at"] - began
            if told["step"] == "kill":
                break
            if time.time() - began > _LINE_SECS_MAX:
                raise TimeoutError(f"{mode} did not commit within {_LINE_SECS_MAX} s; it told {found}")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if "committed" not in found:
        raise RuntimeError(
            f"the process {mode} ended with {child.returncode} before it committed; it told {found}\n"
            + complaints.read_text()[-3000:]
        )
    time.sleep(1.0)  # its JVM ends once it sees that the process is gone
    return found
