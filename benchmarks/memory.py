"""Memory of driver, JVM and workers while states of 20,000 and of 8 M keys are read: does it grow with the state?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Goal, Report
from benchmarks.sustained import environment_of_a_user

TITLE = "memory of each process with a state of 20,000 and of 8,000,000 keys"

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECS_MAX = 1_800.0


def run(bench: Bench, report: Report) -> None:
    """A process for each size, one after the other: fills the state, then reads and merges it, and is looked at."""
    few, many = bench.size(20_000, 200), bench.size(8_000_000, 2_000)
    rounds = bench.size(2, 1)
    peaks: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for keys in (few, many) if number % 2 == 0 else (many, few):
            bench.said(f"   {keys:,} keys, {number + 1}/{rounds}")
            for who, mb in _child(bench, keys).items():
                peaks.setdefault((who, keys), []).append(mb)
    found = {(who, keys): report.figure(f"{who}, {keys:,} keys", "MB", values) for (who, keys), values in peaks.items()}
    for who in dict.fromkeys(who for who, keys in found if (who, few) in found and (who, many) in found):
        report.ratio(f"{who}: {many:,} keys / {few:,}", found[who, many], found[who, few], Goal(at_most=1.5))
    report.note(
        "memory of a process's own (Anonymous of /proc/PID/smaps_rollup): pages of mapped files are the kernel's"
    )
    report.note(
        "the greatest of looks 0.2 s apart, in a process that began with a full state, once its local copy is there"
    )
    report.note(
        f"meanwhile: {bench.size(120, 6)} transactions of {bench.size(1_000, 20):,} rows through a reducer in Python, "
        "and a state_query; a MERGE behind each half of them, and a get of two keys behind each"
    )
    report.note("the JVM takes what driver_memory (1 GB here) lets it have, before it collects its garbage")


def _child(bench: Bench, keys: int) -> dict[str, float]:
    """Fills the state in one process, and measures in the next."""
    warehouse = bench.fresh("memory")
    rows, transactions = bench.size(1_000, 20), bench.size(120, 6)
    arguments = [bench.zookeeper, str(warehouse), str(keys), str(rows), str(transactions)]
    complaints = warehouse.with_suffix(".log")
    found: dict[str, float] = {}
    for step in ("fill", "measure"):
        with complaints.open("w") as stderr:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.memory_child", *arguments, step],
                cwd=_ROOT,
                env=environment_of_a_user(bench),
                stdout=subprocess.PIPE,
                stderr=stderr,
                timeout=_CHILD_SECS_MAX,
            )
        if done.returncode:
            raise RuntimeError(f"the process ended with {done.returncode}\n{complaints.read_text()[-3000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
    return found
