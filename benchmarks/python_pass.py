"""How long a Python worker waits for the rows of a small batch, over a Unix socket and over TCP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, rounds
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TITLE = "a pass of 1,000 rows through Spark's Python worker"

_ROOT = Path(__file__).resolve().parent.parent
_ROWS = 1000
_TCP = {"spark.python.unix.domain.socket.enabled": "false"}


def run(bench: Bench, report: Report) -> None:
    """The run's own session, whose workers have Unix sockets, in turn with a process whose workers have TCP."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.python_pass", bench.spark.sparkContext.master],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    passes: dict[str, list[dict[str, float]]] = {"unix": [], "tcp": []}
    asked, answers = child.stdin, child.stdout

    def unix(number: int) -> float:
        passes["unix"].append(measure(bench.spark))
        return passes["unix"][-1]["job"]

    def tcp(number: int) -> float:
        asked.write("again\n")
        asked.flush()
        passes["tcp"].append(json.loads(answers.readline()))
        return passes["tcp"][-1]["job"]

    try:
        warm_ups = bench.size(20, 2)
        for _ in range(warm_ups):
            unix(-1), tcp(-1)
        rounds(bench.size(30, 2), {"Unix socket": unix, "TCP": tcp}, lambda text: None)
    finally:
        asked.close()
        child.wait()
    waited = {kind: [one["waited"] for one in found[warm_ups:]] for kind, found in passes.items()}
    jobs = {kind: [one["job"] for one in found[warm_ups:]] for kind, found in passes.items()}
    ours = report.figure("Unix socket: the worker waits for its rows", "ms", waited["unix"], Goal(at_most=15))
    theirs = report.figure("TCP: the worker waits for its rows", "ms", waited["tcp"])
    job = report.figure("Unix socket: the whole job", "ms", jobs["unix"])
    slow = report.figure("TCP: the whole job", "ms", jobs["tcp"])
    report.ratio("wait: Unix socket / TCP", ours, theirs)
    report.ratio("job: Unix socket / TCP", job, slow)


def measure(spark: "SparkSession") -> dict[str, float]:
    """One job: the milliseconds that its Python worker waited for input, and those of the job."""
    started = time.monotonic()
    (row,) = spark.range(0, _ROWS, 1, 1).mapInArrow(_waited, "ms double").collect()
    return {"waited": row.ms, "job": (time.monotonic() - started) * 1000}


def _waited(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    import time  # this function runs in a worker, which need not have this module

    import pyarrow as pa

    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in batches)
    assert rows > 0
    yield pa.RecordBatch.from_pydict({"ms": [(time.perf_counter() - started) * 1000]})


def _answer(spark: Any) -> None:
    for _ in sys.stdin:
        print(json.dumps(measure(spark)), flush=True)


if __name__ == "__main__":
    import warnings

    from trident.spark.session import make_session

    warnings.simplefilter("ignore")  # that it is TCP is on purpose here
    _answer(make_session("python-pass over TCP", {"spark.master": sys.argv[1], **_TCP}))
