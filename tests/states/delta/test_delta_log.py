"""The log reader: what each commit did, and which of them are foreign."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from trident.coordinators.errors import TableError
from trident.states.delta.delta_log import DeltaLog, TableCommit
from trident.states.delta.history import commits_since, find_version_by_control, find_version_by_txn, foreign
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import staged_file

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
APP = "trident/topology/group"
INCARNATION = "1f"


def is_ours(commit: TableCommit) -> bool:
    """As the committer does it: the engine, and the control record of this very commit."""
    control = commit.control.get("trident")
    return (
        commit.engine_info.endswith("/trident/" + INCARNATION)
        and isinstance(control, dict)
        and control.get("incarnation") == INCARNATION
    )


def control(txid: int) -> dict[str, str]:
    return {"trident": json.dumps({"incarnation": INCARNATION, "txid": txid})}


@pytest.fixture(scope="module")
def template(spark: SparkSession, engine: KernelEngine, tmp_path_factory) -> str:
    """A table of ours with two real files at version 2; tests change copies of it."""
    path = str(tmp_path_factory.mktemp("log") / "t")
    snapshot = engine.create_table(path, SCHEMA, [], {}, control(0), f"trident/{INCARNATION}")
    for txid in (1, 2):
        rows = pa.table({"id": [txid * 10, txid * 10 + 1]})
        (report,) = write_partition(FileTarget("t", path, f"data/{txid}"), rows.to_batches())
        files = [staged_file(report)]
        snapshot = engine.commit_files(snapshot, files, (APP, txid), control(txid), f"trident/{INCARNATION}")
    return path


@pytest.fixture
def table(template: str, tmp_path: Path) -> str:
    shutil.copytree(template, tmp_path / "t")
    return str(tmp_path / "t")


def reasons(path: str, since: int = 2) -> list[str | None]:
    return [foreign(commit, is_ours) for commit in commits_since(path, since)]


# --- reading ------------------------------------------------------------------------------------


def test_our_commits_are_read_as_they_were_made(table):
    made, first, second = [DeltaLog(table).commit(version) for version in range(3)]
    assert made.operation == "CREATE TABLE" and made.metadata and made.protocol
    assert (made.adds, made.data_change) == ((), False)
    assert (first.version, first.operation, first.txns) == (1, "WRITE", {APP: 1})
    assert first.control == {"trident": {"incarnation": INCARNATION, "txid": 1}}
    assert first.engine_info.endswith(f"/trident/{INCARNATION}")
    assert (first.metadata, first.protocol, first.data_change) == (None, None, True)
    assert (len(second.adds), second.removes) == (1, ())
    assert Path(table, second.adds[0]).exists()
    assert [commit.version for commit in commits_since(table, 0)] == [1, 2]
    assert commits_since(table, 2) == []


def test_an_entry_that_was_cleaned_up_is_an_error_that_says_so(engine, table):
    engine.commit_files(engine.load(table), [], (APP, 3), control(3), f"trident/{INCARNATION}")
    Path(table, "_delta_log", f"{2:020d}.json").unlink()
    with pytest.raises(TableError, match="cleaned too far"):
        commits_since(table, 1)
    assert [commit.version for commit in commits_since(table, 2)] == [3]


def test_a_table_that_went_back_is_an_error(table):
    with pytest.raises(TableError, match="older"):
        commits_since(table, 3)


def test_a_path_elsewhere_and_a_missing_log_are_errors(tmp_path):
    for path in ("s3://bucket/table", str(tmp_path)):
        with pytest.raises(TableError):
            commits_since(path, 0)
    assert not os.listdir(tmp_path)


# --- foreign commits ------------------------------------------------------------------------------


def test_our_commits_and_a_log_drop_are_ours(engine, table):
    snapshot = engine.commit_files(engine.load(table), [], (APP, 3), control(3), f"trident/{INCARNATION}")
    assert engine.drop_files(snapshot, lambda _: True, control(3), f"trident/{INCARNATION}") is not None
    assert reasons(table, 0) == [None] * 4


TABLE, ONE, LONG = "delta.`{}`", "(SELECT 10L id) s", pytest.mark.long
APPEND_ONLY = "SET TBLPROPERTIES ('delta.appendOnly' = 'true')"


@pytest.mark.parametrize(
    ("operation", "statement"),
    [
        ("UPDATE", f"UPDATE {TABLE} SET id = 99 WHERE id = 10"),
        pytest.param("SET TBLPROPERTIES", f"ALTER TABLE {TABLE} {APPEND_ONLY}", marks=LONG),
        pytest.param("MERGE", f"MERGE INTO {TABLE} t USING {ONE} ON t.id = s.id WHEN MATCHED THEN DELETE", marks=LONG),
    ],
)
def test_a_change_by_others_is_named(spark, table, operation, statement):
    spark.sql(statement.format(table))
    (reason,) = [reason for reason in reasons(table) if reason]
    assert reason.startswith(operation)
    # The snapshot's control record is still ours: only the log entry shows the change.
    assert "trident" not in DeltaLog(table).commit(3).control


@pytest.mark.long
def test_comments_and_harmless_properties_of_others_may_stay(spark, table):
    """C2: a comment on a table halted its topology."""
    for statement in (
        "COMMENT ON TABLE delta.`{}` IS 'the lines of the day'",
        "ALTER TABLE delta.`{}` ALTER COLUMN id COMMENT 'a number'",
        "ALTER TABLE delta.`{}` SET TBLPROPERTIES ('team' = 'us', 'delta.logRetentionDuration' = 'interval 60 days')",
        "ALTER TABLE delta.`{}` UNSET TBLPROPERTIES ('team')",
    ):
        before = len(reasons(table))
        spark.sql(statement.format(table))
        found = reasons(table)
        assert len(found) == before + 1 and not any(found), (statement, found)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id >= 0)")
    assert "which added the constraint positive" in reasons(table)[-1]


def test_another_topology_on_the_table_is_foreign(engine, table):
    other = {"trident": json.dumps({"incarnation": "2e", "txid": 3})}
    engine.commit_files(engine.load(table), [], (APP, 3), other, "trident/2e")
    engine.commit_files(engine.load(table), [], (APP, 4), other, f"trident/{INCARNATION}")
    assert all(reasons(table))


@pytest.mark.parametrize(
    "change",
    [
        {"remove": {"path": "c", "dataChange": True}},
        {"metaData": {"id": "t"}},
        {"protocol": {"minReaderVersion": 1}},
        {"domainMetadata": {"domain": "trident", "configuration": "{}"}},
        {"txn": {"appId": APP, "version": 1}},
        {"commitInfo": {}},
        {"commitInfo": {"operation": "REORG"}},
    ],
)
def test_the_name_of_a_harmless_operation_is_not_believed(change):
    removed = ("remove", {"path": "b", "dataChange": False})
    for operation in ("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS"):
        actions = [("commitInfo", {"operation": operation}), removed]
        assert foreign(TableCommit.of(9, actions), lambda _: False) is None
        assert foreign(TableCommit.of(9, [*actions, *change.items()]), lambda _: False)


def test_a_file_action_that_does_not_say_counts_as_a_change(table):
    entry = [{"commitInfo": {"operation": "OPTIMIZE"}}, {"remove": {"path": "a"}}]
    Path(table, "_delta_log", f"{3:020d}.json").write_text("\n".join(map(json.dumps, entry)))
    assert reasons(table) != [None]


# --- finding versions -------------------------------------------------------------------------------


@pytest.mark.parametrize("cleaned", [0, 4, 12])
def test_an_adopted_table_is_searched_in_its_present_life_only(tmp_path, cleaned):
    """After a reset txids begin at 1 again; below the adoption they are other transactions."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    records = [None, *[("old", txid) for txid in range(9)], ("new", 0), *[("new", txid) for txid in (1, 2, 3, 5, 5, 8)]]
    for version, record in enumerate(records):
        action: dict = {"commitInfo": {"operation": "WRITE"}}
        if record is not None:
            configuration = json.dumps(dict(zip(("incarnation", "txid"), record)))
            action = {"domainMetadata": {"domain": "trident", "configuration": configuration, "removed": False}}
        if version >= cleaned:
            (log / f"{version:020d}.json").write_text(json.dumps(action))
    for txid in range(10):
        of_this_life = [at for at, record in enumerate(records) if record and record[0] == "new" and record[1] <= txid]
        kept = [at for at in of_this_life if at >= cleaned]
        assert find_version_by_control(str(tmp_path), "trident", txid) == (kept[-1] if kept else None)


def test_a_table_made_anew_at_the_same_path_is_not_taken_for_the_old_one(tmp_path):
    log = tmp_path / "_delta_log"
    for txid in (5, 8):
        log.mkdir()
        configuration = json.dumps({"txid": txid})
        action = {"domainMetadata": {"domain": "trident", "configuration": configuration, "removed": False}}
        (log / f"{0:020d}.json").write_text(json.dumps(action) + " " * txid)
        assert find_version_by_control(str(tmp_path), "trident", 5) == (0 if txid == 5 else None)
        shutil.rmtree(log)


def test_what_kernel_says_of_a_version_is_what_the_log_says(engine, table):
    snapshot: TableSnapshot = engine.load(table)
    for txid in (4, 6, 9):
        snapshot = engine.commit_files(snapshot, [], (APP, txid), control(txid), f"trident/{INCARNATION}")
    for txid, version in ((2, 2), (3, 2), (4, 3), (5, 3), (8, 4), (9, 5), (100, 5)):
        assert find_version_by_control(table, "trident", txid) == version
        assert find_version_by_txn(table, APP, txid) == version
        assert json.loads(engine.load_version(table, version).control("trident"))["txid"] <= txid
