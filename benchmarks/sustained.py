"""Sustained, as a user meets it: a fresh process with default settings, beside a warm one that never merges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers, words
from benchmarks.bench import Bench, Recorder, advanced_at, rounds, steady_ms
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "160 transactions of 50,000 words, with MERGEs, in a fresh process with default settings"

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECS_MAX = 600.0
_FRESH, _WARM, _MERGING = "fresh process, with MERGEs", "warm session, no MERGE", "warm session, with MERGEs"
_SPARK_FRESH, _SPARK_WARM = "Spark alone, to noop, fresh process", "Spark alone, to noop, warm session"
NEVER = {"merge_every_txids": 1_000_000, "merge_interval_secs": 1e9}


def run(bench: Bench, report: Report) -> None:
    """The three in turn; the fresh process starts, counts all and ends in each round."""
    transactions, first = bench.size(160, 16), bench.size(_FIRST, 4)
    lines = bench.size(words.LINES, 200)
    files = words.write_files(bench.fresh("lines"), transactions, lines)
    lives: list[dict[str, float]] = []

    def fresh(number: int) -> float:
        lives.append(_life(bench, files, lines, first))
        return lives[-1]["steady"]

    contenders = {
        _WARM: lambda number: _warm(bench, files, lines, first, NEVER),
        _FRESH: fresh,
        _MERGING: lambda number: _warm(bench, files, lines, first, {}),
        _SPARK_WARM: lambda number: _spark_alone(bench.spark, files, first),
        _SPARK_FRESH: lambda number: _life(bench, files, lines, first, "spark")["steady"],
    }
    # Later processes start from the archive of this one's classes, as a user's do some minutes after the very first.
    bench.said(f"   warm-up {_FRESH}: {_life(bench, files, lines, first, 'make')['steady']:,.1f}")
    for name in (_WARM, _MERGING, _SPARK_WARM):  # a JVM gets faster for some minutes
        bench.said(f"   warm-up {name}: {contenders[name](-1):,.1f}")
    measured = rounds(bench.size(3, 1), contenders, bench.said)
    words_a_batch = lines * words.WORDS_PER_LINE
    ms = {name: report.figure(name, "ms/transaction", values) for name, values in measured.items()}
    report.figure(_FRESH, "words/s", [words_a_batch / value * 1000 for value in measured[_FRESH]])
    report.figure(f"{_FRESH}: the first {first}", "ms/transaction", [life["first"] for life in lives])
    report.figure(f"{_FRESH}: the last {first}", "ms/transaction", [life["last"] for life in lives])
    report.figure("fresh process: from its start to its first commit", "s", [life["committed"] for life in lives])
    report.ratio(f"{_FRESH} / {_WARM}", ms[_FRESH], ms[_WARM], Goal(at_most=1.2))
    report.ratio(f"{_FRESH} / {_MERGING}", ms[_FRESH], ms[_MERGING], Goal(at_most=1.2))
    report.ratio(f"{_MERGING} / {_WARM}", ms[_MERGING], ms[_WARM], Goal(at_most=1.15))
    # What a JVM that is not compiled yet costs Spark itself, without anything of ours.
    report.ratio(f"{_SPARK_FRESH} / {_SPARK_WARM}", ms[_SPARK_FRESH], ms[_SPARK_WARM])
    report.note(f"from the advance of transaction {first} to that of the last; {_IN_FLIGHT} in flight")
    report.note("each run was read afterwards: it counts every word once")
    report.note("Storm Trident with a memory state took 137 to 182 ms a transaction of this size, in other sittings")


_IN_FLIGHT, _FIRST = 4, 10


def _spark_alone(spark: SparkSession, files: Path, first: int) -> float:
    """Milliseconds a query of one file, as many in flight as transactions, whose result goes nowhere."""
    ordered = sorted(files.glob("*.txt"))
    jobs = [lambda path=path: peers.noop(words.counted(spark.read.text(str(path)))) for path in ordered]
    return peers.in_flight_ms(spark, jobs, _IN_FLIGHT, min(first, len(jobs) // 2))


def _warm(bench: Bench, files: Path, lines: int, first: int, settings: dict[str, Any]) -> float:
    from trident import DeltaMapState

    topology = words.topology("words", files, DeltaMapState("counts", **settings), lines)
    with bench.running(topology, bench.fresh("ours"), _IN_FLIGHT, merge_at_stop_secs=0) as query:
        records = counted(query, files, lines)
    return steady_ms(records, first)


def counted(query: Any, files: Path, lines: int) -> list[dict[str, Any]]:
    """The progress records of a query that has counted all files, and has counted them right."""
    with Recorder(query) as recorder:
        query.process_all_available()
    found = query.snapshot("counts").groupBy().sum("count").first()[0]
    expected = len(list(files.glob("*.txt"))) * lines * words.WORDS_PER_LINE
    if found != expected:
        raise AssertionError(f"{found} words were counted, there were {expected}")
    return recorder.records


def environment_of_a_user(bench: Bench) -> dict[str, str]:
    """For a process that starts as a user's does, with modules that were compiled by an earlier one."""
    paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    compiled = {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(bench.folder / "compiled")}
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | compiled


def _life(bench: Bench, files: Path, lines: int, first: int, archive: str = "use") -> dict[str, float]:
    """A process from its start to its end; milliseconds a transaction, and seconds to its first commit."""
    environment = environment_of_a_user(bench)
    warehouse = bench.fresh("ours")
    command = [sys.executable, "-m", "benchmarks.sustained", bench.zookeeper, str(warehouse), str(files), str(lines)]
    command.append(archive)
    began = time.time()
    complaints = warehouse.with_suffix(".log")
    with complaints.open("w") as stderr:
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, timeout=_CHILD_SECS_MAX
        )
    if done.returncode:
        raise RuntimeError(f"the fresh process ended with {done.returncode}\n{complaints.read_text()[-3000:]}")
    records = json.loads(done.stdout.splitlines()[-1])
    if archive == "spark":
        return {"steady": float(records)}
    return {
        "steady": steady_ms(records, first),
        "first": steady_ms(records[:first], 1),
        "last": steady_ms(records[-first:], 1),
        "committed": advanced_at(records[0]) - began,
    }


def _fresh_process(zookeeper: str, warehouse: Path, files: Path, lines: int, archive: str = "use") -> None:
    """Starts the topology as a user does, and prints its progress records."""
    from trident import DeltaMapState
    from trident.spark.class_archive import make_now
    from trident.spark.session import make_session

    spark = make_session("sustained")
    if archive == "spark":
        print(_spark_alone(spark, files, _FIRST), flush=True)
        return
    topology = words.topology("words", files, DeltaMapState("counts"), lines)
    query = topology.start(
        spark,
        warehouse=str(warehouse),
        zookeeper=zookeeper,
        zookeeper_root=f"/{warehouse.name}",
        max_spout_pending=_IN_FLIGHT,
        progress="none",
    )
    records = counted(query, files, lines)
    query.stop()
    error = query.exception()
    if error is not None:
        raise error
    if archive == "make":
        make_now(spark, 600)
    print(json.dumps([{key: one[key] for key in ("batch_id", "timestamp")} for one in records]), flush=True)


if __name__ == "__main__":
    _fresh_process(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
