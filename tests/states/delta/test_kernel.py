"""Commits through Delta's Kernel: whole, at one table version, seen by every reader."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.jvm.spark_fixtures import spark_confs
from trident.coordinators.errors import CommitConflict, SchemaMismatch, TableError
from trident.states.core.tables import StagedFile
from trident.states.delta import kernel
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import (
    CommitOutcomeUnknown,
    KernelEngine,
    TableMissing,
    TableSnapshot,
    TxnAlreadyApplied,
)
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import staged_file
from trident.udf.types import as_schema

SCHEMA = as_schema("id long, word string", "the tests").json()
APP = "trident/topology/group"
RACE_ROUNDS = int(os.environ.get("TRIDENT_RACE_ROUNDS", "0"))
KILLS = int(os.environ.get("TRIDENT_COMMIT_KILLS", "1"))


@pytest.fixture
def table(engine: KernelEngine, tmp_path: Path) -> TableSnapshot:
    return engine.create_table(str(tmp_path / "t"), SCHEMA, [], {}, {"trident": record(0)}, "trident/tests")


@pytest.fixture
def kernels_table(engine: KernelEngine, tmp_path: Path) -> TableSnapshot:
    """A table with a feature that Python does not know: Kernel writes all of its entries."""
    properties = {"delta.enableInCommitTimestamps": "true"}
    return engine.create_table(str(tmp_path / "k"), SCHEMA, [], properties, {"trident": record(0)}, "trident/tests")


def record(txid: int, **more: object) -> str:
    return json.dumps({"txid": txid, **more})


def commit(engine: KernelEngine, on: TableSnapshot, txid: int, ids: list[int]) -> TableSnapshot:
    """As a task and the committer do it."""
    target = FileTarget("t", on.path, f"data/{txid}-{random.getrandbits(40):x}")
    rows = pa.table({"id": ids, "word": [f"w{n}" for n in ids]})
    files = [staged_file(report) for report in write_partition(target, rows.to_batches())]
    return engine.commit_files(on, files, (APP, txid), {"trident": record(txid)}, "trident/tests")


def ids_by_spark(session: SparkSession, path: str) -> list[int]:
    return sorted(row.id for row in session.read.format("delta").load(path).collect())


def log_names(path: str) -> list[str]:
    return sorted(os.listdir(Path(path, "_delta_log")))


def facts(snapshot: TableSnapshot) -> tuple:
    return (
        snapshot.version,
        snapshot.table_id,
        snapshot.schema_json,
        snapshot.partition_columns,
        dict(snapshot.properties),
        snapshot.control("trident"),
        snapshot.control("other"),
        snapshot.txn_version(APP),
        snapshot.txn_version("other"),
    )


# --- what a commit is ---------------------------------------------------------------------------


def test_a_new_table_has_its_control_record_and_is_empty_for_every_reader(spark, engine, table):
    assert (table.version, table.control("trident"), table.txn_version(APP)) == (0, record(0), None)
    assert facts(engine.load(table.path)) == facts(table)
    assert ids_by_spark(spark, table.path) == []
    assert DeltaTable(table.path).to_pyarrow_table().num_rows == 0


def test_a_table_that_exists_is_not_created_again(engine, table):
    with pytest.raises(CommitConflict):
        engine.create_table(table.path, SCHEMA, [], {}, {"trident": record(9)}, "trident/tests")
    assert facts(engine.load(table.path)) == facts(table)


def test_each_commit_is_one_version_and_what_it_returns_is_what_a_reload_gives(spark, engine, table):
    snapshot = table
    for txid in range(1, 8):
        snapshot = commit(engine, snapshot, txid, [txid * 10, txid * 10 + 1])
        assert snapshot.version == txid
        assert facts(snapshot) == facts(engine.load(table.path))
    expected = sorted(txid * 10 + n for txid in range(1, 8) for n in (0, 1))
    assert ids_by_spark(spark, table.path) == expected
    assert sorted(DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist()) == expected


def test_a_reloaded_table_is_committed_to_as_well(engine, table):
    snapshot = commit(engine, table, 1, [1])
    for txid in range(2, 6):
        snapshot = commit(engine, engine.load(table.path), txid, [txid])
    assert facts(snapshot) == facts(engine.load(table.path))
    assert [file.num_records for file in engine.live_files(snapshot)] == [1] * 5


def test_a_commit_without_files_still_moves_the_control_record(engine, table):
    snapshot = engine.commit_files(table, [], (APP, 1), {"trident": record(1), "more": "{}"}, "trident/tests")
    loaded = engine.load(table.path)
    assert (loaded.version, loaded.control("trident"), loaded.control("more")) == (1, record(1), "{}")
    assert loaded.txn_version(APP) == snapshot.txn_version(APP) == 1
    assert engine.live_files(loaded) == []


def test_a_commit_on_an_old_snapshot_is_refused_and_changes_nothing(engine, table):
    newest = commit(engine, table, 1, [1])
    before = log_names(table.path)
    with pytest.raises(CommitConflict):
        commit(engine, table, 2, [2])
    with pytest.raises(CommitConflict):
        engine.drop_files(engine.load_version(table.path, 1), lambda _: True, {}, "x")
        commit(engine, newest, 2, [2])
    assert log_names(table.path)[: len(before)] == before
    assert engine.load(table.path).txn_version(APP) == 1


def test_a_transaction_that_the_table_has_is_not_committed_again(engine, table):
    newest = commit(engine, table, 5, [1])
    for txid in (5, 4):
        with pytest.raises(TxnAlreadyApplied):
            commit(engine, newest, txid, [2])
        with pytest.raises(TxnAlreadyApplied):
            commit(engine, engine.load(table.path), txid, [2])
    assert engine.load(table.path).version == 1


def test_an_io_error_before_the_link_is_a_failure_and_neither_a_conflict_nor_an_open_question(engine, table):
    log = Path(table.path, "_delta_log")
    log.rename(log.with_name("away"))
    with pytest.raises(TableError, match="could not be written; nothing happened") as caught:
        engine.commit_files(table, [], None, {"trident": record(1)}, "trident/tests")
    assert not isinstance(caught.value, CommitConflict | CommitOutcomeUnknown)
    log.with_name("away").rename(log)
    assert facts(engine.load(table.path)) == facts(table)


def test_a_log_entry_has_no_checksum_file_beside_it(engine, table):
    commit(engine, table, 1, [1])
    assert [name for name in log_names(table.path) if name.startswith(".")] == []


@pytest.mark.long
def test_statistics_let_spark_skip_files_and_count_without_reading(spark, engine, table):
    snapshot = table
    for txid in range(1, 5):
        snapshot = commit(engine, snapshot, txid, [txid * 100, txid * 100 + 50])
    data = spark.read.format("delta").load(table.path)
    assert len(data.inputFiles()) == 4
    assert len(data.where("id between 310 and 390").inputFiles()) == 1
    assert len(data.where("word = 'w350'").inputFiles()) == 1
    assert len(data.where("id is null").inputFiles()) == 0
    for file in engine.live_files(snapshot):
        Path(table.path, file.path).unlink()
    assert data.count() == 8


# --- removing, rewriting, changing ----------------------------------------------------------------


def test_whole_files_are_dropped_in_one_commit_with_the_control_record(spark, engine, table):
    snapshot = table
    for txid in range(1, 5):
        snapshot = commit(engine, snapshot, txid, [txid])
    after = engine.drop_files(
        snapshot, lambda file: file.stats["maxValues"]["id"] <= 2, {"trident": record(4, floor=2)}, "trident/tests"
    )
    assert after.version == 5
    assert facts(after) == facts(engine.load(table.path))
    assert json.loads(after.control("trident")) == {"txid": 4, "floor": 2}
    assert ids_by_spark(spark, table.path) == [3, 4]
    assert sorted(DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist()) == [3, 4]
    assert len(DeltaLog(table.path).commit(5).removes) == 2


def test_dropping_nothing_commits_nothing(engine, table):
    snapshot = commit(engine, table, 1, [1])
    assert engine.drop_files(snapshot, lambda _: False, {"trident": record(9)}, "x") is None
    assert engine.load(table.path).version == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields[:1],
        lambda fields: [{**fields[0], "type": "string"}, fields[1]],
        lambda fields: fields[::-1],
        lambda fields: [*fields, {"name": "n", "type": "long", "nullable": False, "metadata": {}}],
    ],
    ids=["dropped", "retyped", "reordered", "not nullable"],
)
def test_any_other_change_of_schema_is_refused(engine, table, change):
    schema = json.loads(SCHEMA)
    with pytest.raises(SchemaMismatch):
        engine.add_columns(table, json.dumps({**schema, "fields": change(schema["fields"])}), {}, "x")
    assert engine.load(table.path).version == 0


WHOLE = {"path": "p", "size": 1, "mtime_ms": 1, "num_records": 1, "stats": "{}", "partition_values": {}}


@pytest.mark.parametrize("change", [{"path": 1}, {"size": True}, {"partition_values": {"a": 1}}, {"new": 1}])
def test_a_staged_file_is_read_whole_or_not_at_all(change):
    StagedFile.from_json(WHOLE)
    for broken in (WHOLE | change, {"path": "p"}, {}, None):
        with pytest.raises(TableError):
            StagedFile.from_json(broken)


def test_a_staged_file_survives_json():
    file = StagedFile("data/ö/p.parquet", 1, 2, 3, '{"numRecords": 3}', {"a": None, "b": "x"})
    assert StagedFile.from_json(json.loads(json.dumps(file.to_json()))) == file


# --- loading ---------------------------------------------------------------------------------------


def test_a_missing_table_is_missing_and_not_unreadable(engine, tmp_path):
    with pytest.raises(TableMissing):
        engine.load(str(tmp_path / "nothing"))


def test_each_version_is_loaded_as_it_was(engine, table):
    snapshot = table
    for txid in (1, 2, 3):
        snapshot = commit(engine, snapshot, txid, [txid])
    for version in (0, 1, 2, 3):
        loaded = engine.load_version(table.path, version)
        assert (loaded.version, loaded.control("trident")) == (version, record(version))
    with pytest.raises(TableError):
        engine.load_version(table.path, 4)


def test_a_table_that_forgets_transaction_ids_is_refused(spark, engine, table):
    name = "delta.setTransactionRetentionDuration"
    with pytest.raises(TableError, match=name):
        engine.create_table(table.path + "2", SCHEMA, [], {name: "interval 1 day"}, {}, "x")
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{name}' = 'interval 1 days')")
    with pytest.raises(TableError, match=name):
        engine.load(table.path)


# --- maintenance -------------------------------------------------------------------------------------


@pytest.mark.long
def test_maintenance_writes_a_checkpoint_that_every_reader_takes(spark, engine, table):
    snapshot = table
    for txid in range(1, 6):
        snapshot = commit(engine, snapshot, txid, [txid])
    assert engine.run_maintenance(snapshot, every=6) is False
    ahead = commit(engine, snapshot, 6, [6])
    assert engine.run_maintenance(snapshot, every=5) is True
    assert engine.run_maintenance(snapshot, every=5) is False
    assert engine.run_maintenance(ahead, every=5) is False  # made before the checkpoint, and knows of it
    assert f"{5:020d}.checkpoint.parquet" in log_names(table.path)
    later = commit(engine, ahead, 7, [7])
    assert engine.run_maintenance(later, every=5) is False
    expected = facts(later)
    for version in range(5):  # nobody may need what the checkpoint holds
        Path(table.path, "_delta_log", f"{version:020d}.json").unlink()
    loaded = engine.load(table.path)
    assert facts(loaded) == expected
    commit(engine, loaded, 8, [8])
    assert ids_by_spark(spark, table.path) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert DeltaTable(table.path).to_pyarrow_table().num_rows == 8


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux for the faults of ended children")
def test_a_commit_starts_no_process(spark, engine, table):
    """Hadoop's own local file system asks `readlink` and `chmod`, in processes of their own: 50 ms a commit."""
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()

    def faults_of_ended_children() -> int:
        return int(Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[8])

    snapshot = commit(engine, table, 1, [1])  # what is loaded once is loaded
    before = faults_of_ended_children()
    for txid in range(2, 5):
        snapshot = commit(engine, snapshot, txid, [txid])
    assert faults_of_ended_children() == before


def test_maintenance_disturbs_no_commit_that_runs_meanwhile(engine, table):
    snapshots, commits = [table], 40 if RACE_ROUNDS else 15
    stop = threading.Event()

    def maintain() -> int:
        written = 0
        while not stop.is_set():
            written += engine.run_maintenance(snapshots[-1], every=3)
        return written

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(maintain) for _ in range(2)]
        try:
            for txid in range(1, commits + 1):
                snapshots.append(commit(engine, snapshots[-1], txid, [txid]))
        finally:
            stop.set()
        assert sum(run.result() for run in runs) > 1
    assert facts(engine.load(table.path)) == facts(snapshots[-1])
    assert len(engine.live_files(engine.load(table.path))) == commits


def test_a_long_chain_of_commits_is_loaded_again_now_and_then_and_loses_nothing(engine, kernels_table, monkeypatch):
    monkeypatch.setattr(kernel, "_CHAIN_LIMIT", 4)
    snapshot = kernels_table
    for txid in range(1, 15):
        snapshot = commit(engine, snapshot, txid, [txid])
        assert facts(snapshot) == facts(engine.load(kernels_table.path))
    assert snapshot._commits_since_load <= 4
    monkeypatch.setattr(kernel, "_CHAIN_SECS", -1)
    assert commit(engine, snapshot, 15, [15])._commits_since_load == 1


# --- races and crashes --------------------------------------------------------------------------------


def test_of_threads_that_commit_on_one_snapshot_exactly_one_wins(engine, table):
    snapshot = table
    for round_ in range(1, 16):
        barrier = threading.Barrier(4)

        def attempt(n: int, on: TableSnapshot = snapshot, txid: int = round_, go: threading.Barrier = barrier):
            go.wait()
            try:
                return engine.commit_files(on, [], (APP, txid), {"trident": record(txid, by=n)}, "trident/tests")
            except CommitConflict:
                return None

        with ThreadPoolExecutor(4) as pool:
            winners = [each for each in pool.map(attempt, range(4)) if each is not None]
        assert len(winners) == 1
        snapshot = winners[0]
        assert facts(engine.load(table.path)) == facts(snapshot)


WORKER = """
import json, sys
from trident.states.delta.kernel import KernelEngine
from trident.states.core.tables import StagedFile
from trident.spark.session import make_session

path, confs, txid = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
engine = KernelEngine(make_session("commits", confs))
print("up", flush=True)
snapshot = engine.load(path)
while True:
    txid += 1
    files = [StagedFile(f"data/{txid}-{n}.parquet", 1, 1, 1, '{"numRecords":1}', {}) for n in range(3)]
    control = {"trident": json.dumps({"txid": txid})}
    snapshot = engine.commit_files(snapshot, files, ("trident/topology/group", txid), control, "trident/child")
    print(txid, flush=True)
"""


def start_worker(*arguments: str) -> subprocess.Popen[str]:
    """A process of its own, with its own JVM, in a process group that can be killed as one."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-c", WORKER, *arguments]
    return subprocess.Popen(command, text=True, bufsize=1, start_new_session=True, **pipes)


def kill(worker: subprocess.Popen[str]) -> None:
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdin.close()


def small_confs(folder: Path) -> str:
    return json.dumps({**spark_confs(str(folder)), "spark.driver.memory": "512m"})


@pytest.mark.long
def test_a_process_killed_inside_a_commit_leaves_it_whole_or_absent(engine, table, tmp_path):
    """SIGKILL to Python and the JVM at once, at random instants (TRIDENT_COMMIT_KILLS for more)."""
    done = 0
    for _ in range(KILLS):
        worker = start_worker(table.path, small_confs(tmp_path), str(done))
        assert worker.stdout.readline() == "up\n"
        told = [int(worker.stdout.readline())]
        killer = threading.Timer(random.uniform(0.05, 1.0), kill, [worker])
        killer.start()
        told += [int(line) for line in worker.stdout if line.endswith("\n")]
        killer.join()
        snapshot = engine.load(table.path)
        # At most the one commit that was under way when the answer got lost.
        assert snapshot.version in (told[-1], told[-1] + 1)
        for version in range(done + 1, snapshot.version + 1):
            entry = DeltaLog(table.path).commit(version)
            assert entry.txns == {APP: version}
            assert entry.control == {"trident": {"txid": version}}
            assert entry.adds == tuple(f"data/{version}-{n}.parquet" for n in range(3))
        done = snapshot.version
        assert snapshot.txn_version(APP) == done
        assert len(engine.live_files(snapshot)) == 3 * done
    after = commit(engine, engine.load(table.path), done + 1, [1])
    assert facts(engine.load(table.path)) == facts(after)


# --- where a user's own callbacks share the way to the JVM -----------------------------------------------
# Kernel calls a commit back into Python: also where a user's own callbacks share the way to the JVM.

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.java_gateway import ensure_callback_server_started
from trident.coordinators.errors import TableError
from trident.spark.session import make_session
from trident.states.delta.kernel import KernelEngine

SCHEMA = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
spark, path = make_session("callbacks"), sys.argv[1]
engine = KernelEngine(spark)
committed, called, new = (ThreadPoolExecutor(1) for _ in range(3))

def commit():
    snapshot = engine.load(path)
    return engine.commit_files(snapshot, [], None, {"trident": json.dumps({"at": snapshot.version})}, "x").version

properties = {"delta.enableInCommitTimestamps": "true"}  # so that Kernel writes every entry
committed.submit(engine.create_table, path, SCHEMA, [], properties, {"trident": "{}"}, "x").result()
called.submit(engine.load, path).result()
ensure_callback_server_started(spark.sparkContext._gateway)  # what foreachBatch and addListener do
for name, pool in (("committed", committed), ("called", called), ("new", new)):
    for _ in range(2):
        try:
            print(name, pool.submit(commit).result(), flush=True)
            break
        except TableError as error:  # py4j closes the connections of threads that were called back
            print(name, error, file=sys.stderr, flush=True)
    else:
        print(name, "cannot commit", flush=True)
try:
    print("main", commit(), flush=True)
except TableError as error:
    print("main", error, flush=True)
"""


@pytest.mark.long
def test_threads_commit_on_when_the_user_starts_a_callback_server(tmp_path: Path) -> None:
    """A stream's foreachBatch in the same session: from then on Java calls threads that were there back on others."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split("\n")[:-1] == ["committed 1", "called 2", "new 3", "main 4"], done.stderr[-3000:]
