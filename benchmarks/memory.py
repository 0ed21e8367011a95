"""Memory of driver, JVM and workers while states of 20,000, 2 M and 8 M keys are read: is it bounded?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Goal, Report
from benchmarks.sustained import environment_of_a_user

TITLE = "memory of each process with a state of 20,000, of 2 M and of 8 M keys"

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECS_MAX = 1_800.0


def run(bench: Bench, report: Report) -> None:
    """A process for each size, one after the other: fills the state, then reads and merges it, and is looked at."""
    sizes = (bench.size(20_000, 200), bench.size(2_000_000, 1_000), bench.size(8_000_000, 2_000))
    found: dict[tuple[str, int], float] = {}
    for keys in sizes:
        bench.said(f"   {keys:,} keys")
        for who, mb in child(bench, keys)["mb"].items():
            found[who, keys] = report.figure(f"{who}, {keys:,} keys", "MB", [mb])
    few, more, many = sizes
    for who in dict.fromkeys(who for who, _ in found):
        if all((who, keys) in found for keys in sizes):
            report.ratio(f"{who}: {many:,} keys / {few:,}", found[who, many], found[who, few])
            report.ratio(f"{who}: {many:,} keys / {more:,}", found[who, many], found[who, more], Goal(at_most=1.5))
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


def child(bench: Bench, keys: int) -> dict[str, dict[str, float]]:
    """Fills the state in one process, and measures in the next: ``mb`` by process, ``secs`` by step."""
    warehouse = bench.fresh("memory")
    rows, transactions = bench.size(1_000, 20), bench.size(120, 6)
    arguments = [bench.zookeeper, str(warehouse), str(keys), str(rows), str(transactions)]
    complaints = warehouse.with_suffix(".log")
    found: dict[str, dict[str, float]] = {"mb": {}, "secs": {}}
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
        for what, values in json.loads(done.stdout.splitlines()[-1]).items():
            found[what] |= values
    return found
