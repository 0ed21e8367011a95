"""Commits of ours against those of Delta's own writers on one local disk: one winner a version, and nobody is replaced.

By default a few rounds; ``make races ROUNDS=200`` runs more.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from trident.coordinators.errors import CommitConflict
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import staged_file

SCHEMA = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
ROUNDS = int(os.environ.get("TRIDENT_RACE_ROUNDS", "0"))


@pytest.fixture
def table(engine: KernelEngine, tmp_path: Path) -> TableSnapshot:
    return engine.create_table(str(tmp_path / "t"), SCHEMA, [], {}, {"trident": "{}"}, "trident/tests")


def ours(engine: KernelEngine, on: TableSnapshot, name: str, files=()) -> TableSnapshot | None:
    try:
        return engine.commit_files(on, list(files), None, {"trident": json.dumps({"by": name})}, "trident/tests")
    except CommitConflict:
        return None


def test_against_deltas_own_log_store_exactly_one_wins(spark: SparkSession, engine: KernelEngine, table) -> None:
    random.seed(11)
    jvm = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    store, path_of = jvm.io.delta.storage.HDFSLogStore(conf), jvm.org.apache.hadoop.fs.Path
    snapshot, won = table, {"ours": 0, "theirs": 0}
    usual = 0.02  # how long our commit takes: theirs begins somewhere in it
    for version in range(1, (ROUNDS or 15) + 1):
        entry = Path(table.path, "_delta_log", f"{version:020d}.json")
        told: list[bool] = []
        line = jvm.java.util.ArrayList()
        line.add(json.dumps({"commitInfo": {"timestamp": 1, "operation": "THEIRS", "engineInfo": "theirs"}}))

        lead = random.uniform(-2 * usual, usual)  # theirs may be the slower one, and begins before then
        wait = max(0.0, lead)

        def theirs(entry: Path = entry, told: list[bool] = told, line=line, wait: float = wait) -> None:
            time.sleep(wait)
            try:
                store.write(path_of(str(entry)), line.iterator(), False, conf)
                told.append(True)
            except Py4JJavaError:  # FileAlreadyExists, or its draft is gone
                told.append(False)

        rival = threading.Thread(target=theirs)
        rival.start()
        time.sleep(max(0.0, -lead))
        started = time.monotonic()
        mine = ours(engine, snapshot, "ours")
        usual = 0.8 * usual + 0.2 * min(0.2, time.monotonic() - started)
        rival.join()
        assert told == [mine is None], f"version {version}: they were told {told}, we {mine}"
        winner = "theirs" if mine is None else "ours"
        won[winner] += 1
        assert (DeltaLog(table.path).commit(version).operation == "THEIRS") == (mine is None)
        snapshot = mine or engine.load(table.path)
    if ROUNDS:
        assert min(won.values()) > ROUNDS // 50, f"one side always won, which tests nothing: {won}"


@pytest.mark.skipif(not ROUNDS, reason="Spark's OPTIMIZE takes its time: make races")
def test_an_optimize_of_spark_is_never_replaced_by_a_commit_of_ours_and_replaces_none(spark, engine, table) -> None:
    random.seed(12)
    snapshot, session, stop = table, spark.newSession(), threading.Event()
    told: list[int] = []

    def optimize() -> None:
        while not stop.is_set():
            try:
                session.sql(f"OPTIMIZE delta.`{table.path}`").collect()
                told.append(1)
            except Exception:  # it lost, and is told so
                told.append(0)

    optimizer = threading.Thread(target=optimize)
    optimizer.start()
    made = []
    for n in range(ROUNDS):
        target = FileTarget("t", table.path, f"data/{uuid.uuid4().hex}")
        files = [staged_file(report) for report in write_partition(target, pa.table({"n": [n]}).to_batches())]
        while (mine := ours(engine, snapshot, str(n), files)) is None:
            snapshot = engine.load(table.path)
        made.append((mine.version, n))
        snapshot = mine
        time.sleep(random.uniform(0, 0.05))
    stop.set()
    optimizer.join()
    for version, n in made:
        assert DeltaLog(table.path).commit(version).control == {"trident": {"by": str(n)}}
    newest = engine.load(table.path).version
    optimized = [each for each in range(1, newest + 1) if DeltaLog(table.path).commit(each).operation == "OPTIMIZE"]
    # One that found nothing to do makes no commit.
    assert len(optimized) <= sum(told) and newest == len(made) + len(optimized)
    assert optimized, "no OPTIMIZE came between, which tests nothing"
    rows = sorted(row.n for row in spark.read.format("delta").load(table.path).collect())
    assert rows == list(range(ROUNDS))


def test_what_another_writer_committed_is_flushed_before_ours_is_built_upon_it(
    spark, engine, table, monkeypatch, flushed
):
    """Spark flushes nothing: with only our entry on disk after a power cut, the log would have a hole."""
    entry = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Spark"}}
    Path(table.path, "_delta_log", f"{1:020d}.json").write_text(json.dumps(entry) + "\n")
    snapshot = KernelEngine(spark).load(table.path)
    assert snapshot.version == 1
    link = os.link
    monkeypatch.setattr(os, "link", lambda *args, **kwargs: (flushed.append("link"), link(*args, **kwargs)))
    mine = ours(engine, snapshot, "ours")
    assert f"{table.path}/_delta_log/{1:020d}.json" in flushed[: flushed.index("link")]
    flushed.clear()
    ours(engine, mine, "again")
    assert not [path for path in flushed if path.endswith(".json")], "what is durable is not flushed again"
