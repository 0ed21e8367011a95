"""What it takes to run a kept transaction again: in a new process, and in one that has done it before."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks import words
from benchmarks.bench import Bench
from benchmarks.report import Goal, Report
from benchmarks.sustained import environment_of_a_user

TITLE = "one transaction of a word count replayed and compared, of 50,000 words into a state of 20,000 keys"

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECS_MAX = 300.0
_COLD = """
import sys
import trident
from benchmarks import words
from trident import DeltaMapState
from trident.spark.session import make_session

spark = make_session("replay")  # before the topology: its words are split by a column of Spark's
topology = words.topology("words", sys.argv[2], DeltaMapState("counts"), int(sys.argv[3]))
with trident.replay(topology, sys.argv[1], int(sys.argv[4]), spark=spark) as replay:
    assert replay.differences() == [], "not what was committed"
    print(replay.states["counts"].rows.count(), replay.states["counts"].before.count())
"""

_SPARK = """
from trident.spark.session import make_session

print(make_session("replay").range(1000).selectExpr("sum(id)").collect()[0][0])
"""


def run(bench: Bench, report: Report) -> None:
    """A topology runs and stops; then transactions from its middle are replayed."""
    import trident
    from trident import DeltaMapState

    count, lines = bench.size(40, 4), bench.size(words.LINES, 200)
    files, warehouse = words.write_files(bench.fresh("lines"), count, lines), bench.fresh("ours")
    topology = words.topology("words", files, DeltaMapState("counts"), lines)
    with bench.running(topology, warehouse, 4) as query:
        query.process_all_available()

    def cold(txid: int | None) -> float:
        """Seconds of a new process that replays a transaction; None: that has Spark do a sum."""
        program = [_SPARK] if txid is None else [_COLD, str(warehouse), str(files), str(lines), str(txid)]
        command = [sys.executable, "-c", *program]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=_ROOT,
            env=environment_of_a_user(bench),
            capture_output=True,
            text=True,
            timeout=_CHILD_SECS_MAX,
        )
        took = time.monotonic() - began
        if done.returncode:
            raise AssertionError(f"a replay of transaction {txid} failed: {done.stderr[-2000:]}")
        what = "Spark alone" if txid is None else f"transaction {txid}, changed and stored keys {done.stdout.strip()}"
        bench.said(f"   {what}: {took:.1f} s")
        return took

    def warm(txid: int) -> float:
        began = time.monotonic()
        with trident.replay(topology, warehouse, txid, spark=bench.spark) as replayed:
            if replayed.differences():
                raise AssertionError(f"transaction {txid} is not what was committed")
        return (time.monotonic() - began) * 1000

    middle = count // 2
    cold(middle)  # modules are compiled, as after a first use
    took = [(cold(middle + at), cold(None)) for at in range(bench.size(5, 1))]
    ours = report.figure("a new process, to its end", "s", [one for one, _ in took], Goal(at_most=10.0))
    spark = report.figure("a new process that has Spark do a sum, to its end", "s", [one for _, one in took])
    report.ratio("a new process: a replay / Spark doing a sum", ours, spark)
    for at in range(bench.size(5, 1)):
        warm(middle + at)
    report.figure("in a process that has done it before", "ms", [warm(middle - at) for at in range(bench.size(10, 2))])
