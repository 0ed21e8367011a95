"""Each row that is added to a Delta table is in exactly one batch; nothing is skipped without an error."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.spouts import source_helpers
from tests.spouts.source_helpers import WAIT_SECS, by_txid, out, run_to_end
from trident.coordinators import faults
from trident.coordinators.errors import AttemptCapReached, SourceError, TopologyError
from trident.spouts.contracts import Backlog, ReportsBacklog, SpoutContext, TridentSpout
from trident.spouts.delta import log as delta_changes
from trident.spouts.delta.coordinator import Range
from trident.spouts.delta.log import DeltaChanges, differences
from trident.spouts.delta.spout import DeltaSpout
from trident.udf.types import as_schema

start, warehouse = source_helpers.start, source_helpers.warehouse


COLUMNS = pa.schema([("n", pa.int64()), ("p", pa.string())])


class Table:
    """A Delta table with a plain log of what it should hold; delta-rs writes it, and Spark what delta-rs cannot."""

    def __init__(self, spark, path: Path, properties: str = "", partitioned: str = "") -> None:
        self.spark, self.path, self.plain = spark, path, not properties
        if self.plain:
            deltalake.DeltaTable.create(str(path), COLUMNS)
        else:
            self.sql(f"CREATE TABLE {{t}} (n bigint, p string) USING delta {partitioned} {properties}")

    def sql(self, text: str):
        return self.spark.sql(text.format(t=f"delta.`{self.path}`"))

    def add(self, *numbers: int, p: str | None = "a b/ü=1%", files: int = 1) -> Counter:
        first, count = numbers[0], len(numbers)
        assert numbers == tuple(range(first, first + count))
        if self.plain and files == 1:
            rows = pa.table([list(numbers), [p] * count], schema=COLUMNS)
            deltalake.write_deltalake(str(self.path), rows, mode="append")
            return Counter((n, p) for n in numbers)
        frame = (
            self.spark.range(first, first + count, 1, files)
            .withColumn("p", F.lit(p).cast("string"))
            .withColumnRenamed("id", "n")
        )
        frame.write.format("delta").mode("append").save(str(self.path))
        return Counter((n, p) for n in numbers)

    def delta_rs(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.path))


class Run:
    """Plays the framework's part: pins metadata, replays, restarts."""

    def __init__(self, spout: DeltaSpout, spark, folder: Path) -> None:
        self.context = SpoutContext(spark, "t", "rows", folder, "life", {"max_spout_pending": 3})
        self.spout, self.pins = spout, {}
        self.restart(spout)

    def restart(self, spout: DeltaSpout) -> None:
        self.spout = spout
        self.coordinator, self.emitter = spout.get_coordinator(self.context), spout.get_emitter(self.context)
        if self.pins:
            self.coordinator.resume(max(self.pins), self.pins[max(self.pins)])

    def begin_all(self) -> None:
        while self.coordinator.is_ready(max(self.pins, default=0) + 1):
            txid = max(self.pins, default=0) + 1
            self.pins[txid] = json.loads(
                json.dumps(self.coordinator.initialize_transaction(txid, self.pins.get(txid - 1), None))
            )
            assert txid < 100

    def rows(self, txid: int) -> Counter:
        emitted = self.emitter.emit_batch((txid, 0), self.pins[txid])
        return (
            Counter(tuple(row) for row in emitted.data.collect())
            if emitted.partitions and self.pins[txid]["files"]
            else Counter()
        )


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory) -> Table:
    """Partitions with odd names, column mapping, deletion vectors, OPTIMIZE; six versions with rows."""
    table = Table(
        spark,
        tmp_path_factory.mktemp("delta") / "a table%20",
        "TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='true')",
        "PARTITIONED BY (p)",
    )
    table.add(*range(10), files=3)
    table.sql("ALTER TABLE {t} RENAME COLUMN n TO m")
    table.sql("ALTER TABLE {t} RENAME COLUMN m TO n")
    table.sql("DELETE FROM {t} WHERE n = 3")  # a deletion vector
    return table


FIRST = Counter((n, "a b/ü=1%") for n in range(10) if n != 3)


@pytest.mark.long
def test_the_table_and_then_each_version_come_once_over_failures_restarts_and_optimize(start, table, warehouse):
    spout = DeltaSpout(table.path)
    assert isinstance(spout, TridentSpout) and spout.output_schema.names == ["n", "p"]
    faults.arm("stage.write:do_then_fail:1,zk.decide:do_then_fail:1")
    query = run_to_end(start, spout)
    assert out(warehouse) == FIRST and faults.unfired() == []
    more = table.add(10, 11, p=None)
    table.sql("OPTIMIZE {t}")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.logRetentionDuration'='interval 60 days')")
    more += table.add(12, p="")  # Delta stores an empty partition value as null
    query.process_all_available(WAIT_SECS)
    query.stop(compact=False)
    assert out(warehouse) == FIRST + Counter([(10, None), (11, None), (12, None)]) and more.total() == 3
    expected = out(warehouse) + table.add(13, 14, files=2)
    run_to_end(start, DeltaSpout(table.path)).stop()
    assert out(warehouse) == expected and by_txid(warehouse)[-1] == Counter([(13, "a b/ü=1%"), (14, "a b/ü=1%")])


def test_batches_are_cut_by_files_and_are_the_same_for_a_fresh_process(spark, tmp_path):
    table = Table(spark, tmp_path / "t")
    expected = table.add(*range(4), files=4)
    run = Run(DeltaSpout(table.path, max_files=3, poll_interval_secs=0), spark, tmp_path)
    assert isinstance(run.coordinator, ReportsBacklog)
    run.begin_all()
    expected += table.add(4, 5, 6, 7, files=4) + table.add(8) + table.add(9)
    assert run.coordinator.backlog() == Backlog(6, run.coordinator.backlog().bytes, 6), "is_ready was not called"
    assert run.coordinator.is_ready(max(run.pins) + 1)
    run.begin_all()
    before = {txid: run.rows(txid) for txid in run.pins}
    assert sum(before.values(), Counter()) == expected
    assert all(pin["files"] <= 3 and pin["rows"] == before[txid].total() for txid, pin in run.pins.items())
    assert len(run.pins) > 3 and any(pin["end"][1] for pin in run.pins.values()), "a version was cut in the middle"
    whole = max(run.pins, key=lambda txid: run.pins[txid]["files"])
    run.restart(DeltaSpout(table.path, max_files=2, poll_interval_secs=0))
    again = {txid: run.rows(txid) for txid in (1, whole, max(run.pins))}
    assert again == {txid: before[txid] for txid in again} and not run.coordinator.is_ready(max(run.pins) + 1)


def test_where_it_begins(spark, tmp_path):
    table = Table(spark, tmp_path / "t")
    table.add(1)
    two = table.add(2)
    for begin, expected in ((2, two), ("latest", Counter()), (3, Counter())):
        run = Run(DeltaSpout(table.path, begin, poll_interval_secs=0), spark, tmp_path)
        run.begin_all()
        assert sum((run.rows(txid) for txid in run.pins), Counter()) == expected, begin
        assert [pin["files"] for pin in run.pins.values()] == {2: [1], "latest": [0], 3: []}[begin]
    third = table.add(3)
    run.begin_all()
    assert run.rows(max(run.pins)) == third
    run = Run(DeltaSpout(table.path, 9, poll_interval_secs=0), spark, tmp_path)
    assert run.coordinator.is_ready(1)
    with pytest.raises(SourceError, match="has no version 9 yet"):
        run.coordinator.initialize_transaction(1, None, None)


def test_the_latest_version_is_that_of_the_first_start_over_restarts(spark, tmp_path):
    """Also where no version came between the two, so that there was no batch with rows."""
    table = Table(spark, tmp_path / "t")
    table.add(1)
    latest = DeltaSpout(table.path, "latest", poll_interval_secs=0)
    run = Run(latest, spark, tmp_path)
    run.begin_all()
    behind = table.add(2)
    run.restart(latest)
    behind += table.add(3)
    run.begin_all()
    assert sum((run.rows(txid) for txid in run.pins), Counter()) == behind


def test_a_version_that_removes_rows_ends_the_topology_or_is_left_out_as_a_whole(start, spark, tmp_path, warehouse):
    table = Table(spark, tmp_path / "t")
    before = table.add(1, 2)
    query = run_to_end(start, DeltaSpout(table.path), max_attempts=1)
    before += table.add(3)
    table.delta_rs().update({"n": "20"}, predicate="n = 2")
    after = table.add(4)
    with pytest.raises(AttemptCapReached, match=r"version 3 of the Delta table .* removes or rewrites rows.*UPDATE"):
        query.await_termination(WAIT_SECS)
    assert out(warehouse) == before, "what comes before it is read"
    run_to_end(start, DeltaSpout(table.path, ignore_changes=True))
    assert out(warehouse) == before + after, "neither 20 nor what was rewritten with it"


def refusal(run: Run) -> str:
    """What the next transaction fails with, once all that can be read is."""
    assert run.coordinator.is_ready(max(run.pins, default=0) + 1)
    with pytest.raises(SourceError) as caught:
        run.begin_all()
    return str(caught.value)


@pytest.mark.long
def test_another_schema_is_an_error_until_the_topology_is_built_anew(spark, tmp_path):
    table = Table(spark, tmp_path / "t")
    expected = table.add(1)
    run = Run(DeltaSpout(table.path, poll_interval_secs=0), spark, tmp_path)
    given = Run(DeltaSpout(table.path, schema="n long", poll_interval_secs=0), spark, tmp_path)
    run.begin_all()
    expected += table.add(2)
    table.delta_rs().alter.add_columns([deltalake.Field("extra", "integer")])
    wider = COLUMNS.append(pa.field("extra", pa.int32()))
    deltalake.write_deltalake(str(table.path), pa.table([[3], ["x"], [33]], schema=wider), mode="append")
    message = refusal(run)
    assert "is another one since version 3" in message and "a new extra" in message
    assert sum((run.rows(txid) for txid in run.pins), Counter()) == expected, "the rows before it are read"
    run.restart(DeltaSpout(table.path, poll_interval_secs=0))
    run.begin_all()
    assert sum((run.rows(txid) for txid in run.pins), Counter()) == Counter(
        {(1, "a b/ü=1%", None): 1, (2, "a b/ü=1%", None): 1, (3, "x", 33): 1}
    )
    given.begin_all()
    assert sum((given.rows(txid) for txid in given.pins), Counter()) == Counter([(1,), (2,), (3,)])
    with pytest.raises(SourceError, match="no q, n bigint instead of string"):
        Run(DeltaSpout(table.path, schema="n string, q int"), spark, tmp_path)


@pytest.mark.long
def test_a_table_made_anew_a_cleaned_log_and_vacuumed_files_are_errors(spark, tmp_path, start, warehouse):
    table = Table(spark, tmp_path / "t")
    table.add(1)
    run = Run(DeltaSpout(table.path, poll_interval_secs=0), spark, tmp_path)
    run.begin_all()
    table.add(2), table.add(3)
    log = table.path / "_delta_log"
    kept = (log / f"{2:020d}.json").read_bytes()
    (log / f"{2:020d}.json").unlink()
    (log / "_last_checkpoint").write_text('{"version": 3, "size": 1}')
    assert "has no entry for version 2" in refusal(run)
    (log / f"{2:020d}.json").write_bytes(kept)
    (log / "_last_checkpoint").unlink()
    run.begin_all()
    for file in table.path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(AttemptCapReached, match="parquet") as caught:
        start(DeltaSpout(table.path), max_attempts=1).await_termination(WAIT_SECS)
    assert isinstance(caught.value.__cause__, SourceError) and out(warehouse) == Counter()
    shutil.rmtree(table.path)
    Table(spark, table.path).add(1)
    assert "dropped and created again" in refusal(run)
    fresh = Run(DeltaSpout(table.path, poll_interval_secs=0), spark, tmp_path)
    with pytest.raises(SourceError, match="dropped and created again"):
        fresh.emitter.emit_batch((1, 0), run.pins[1])
    with pytest.raises(SourceError, match="dropped and created again"):
        fresh.coordinator.initialize_transaction(2, run.pins[1], None)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(SourceError, match="rows of the Delta table .* could be lost"):
            fresh.spout.get_emitter(fresh.context)
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.long
def test_the_schema_and_id_are_read_from_entries_and_from_every_kind_of_checkpoint(spark, tmp_path):
    for kind in ("classic", "v2"):
        table = Table(
            spark, tmp_path / kind, f"TBLPROPERTIES ('delta.checkpointPolicy'='{kind}', 'delta.checkpointInterval'='2')"
        )
        table.add(0), table.add(1)
        from_entries = DeltaChanges(str(table.path)).info(1)
        assert list((table.path / "_delta_log").glob(f"{2:020d}.checkpoint*"))
        for version in (0, 1):
            (table.path / "_delta_log" / f"{version:020d}.json").unlink()
        found = DeltaChanges(str(table.path)).info()
        assert (found.table_id, found.schema, found.version) == (from_entries.table_id, from_entries.schema, 2)
        assert DeltaSpout(table.path).output_schema == as_schema("n bigint, p string", "test")


# --- without Spark --------------------------------------------------------------------------------


def write_log(folder: Path, *versions: list[dict]) -> str:
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    for version, actions in enumerate(versions):
        (folder / "_delta_log" / f"{version:020d}.json").write_text(
            "".join(json.dumps(action) + "\n" for action in actions)
        )
    return str(folder)


def added(path: str, rows: int | None = 1, **more) -> dict:
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return {
        "add": {
            "path": path,
            "size": 10,
            "partitionValues": {},
            "modificationTime": 1,
            "dataChange": True,
            **stats,
            **more,
        }
    }


def test_what_a_version_changes(tmp_path, monkeypatch):
    table = write_log(
        tmp_path,
        [{"protocol": {}}, {"metaData": {"id": "i", "schemaString": "{}"}}],
        [
            added("a", 5, deletionVector={"cardinality": 2}),
            added("b", None),
            added("c", dataChange=False),
            {"commitInfo": {"operation": "W"}},
        ],
        [
            {"remove": {"path": "c", "dataChange": False}},
            {"txn": {"appId": "x", "version": 1}},
            {"cdc": {"path": "e%20f", "size": 7}},
        ],
        [{"remove": {"path": "a", "dataChange": True}}, added("d")],
    )
    log = DeltaChanges(table)
    assert log.newest() == log.newest(1) == 3 and log.read(0).reads_differently and not log.read(1).reads_differently
    assert [(file.size, file.rows, json.loads(file.action)["path"]) for file in log.read(1).added] == [
        (10, 3, "a"),
        (10, None, "b"),
    ]
    assert (
        log.read(1).operation == "W"
        and (log.read(2).added, log.read(2).removed) == ((), None)
        and log.read(3).removed == "a"
    )
    changed = [log.read(version).rewritten for version in range(4)]
    assert [(one.size, json.loads(one.action)) if one else None for one in changed] == [
        None,
        (20, ["a", "b"]),
        (7, ["e f"]),
        (10, ["a", "d"]),
    ]
    monkeypatch.setattr(delta_changes, "_KEPT_FILES_MAX", 2)
    small = DeltaChanges(table)
    assert all(small.read(version) == log.read(version) for version in (3, 1, 2, 1, 3, 0)) and len(small._kept) < 3
    write_log(tmp_path, [{"add": {"dataChange": True}}], ["not an object"])
    for version in (0, 1):
        with pytest.raises(SourceError, match="not as Delta's protocol says"):
            DeltaChanges(table).read(version)


def test_a_long_row_of_versions_without_rows_does_not_hide_what_follows(tmp_path, monkeypatch):
    schema = json.dumps({"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]})
    idle = [{"commitInfo": {"operation": "OPTIMIZE"}}]
    table = write_log(tmp_path, [{"metaData": {"id": "i", "schemaString": schema}}], *[idle] * 50, [added("a")])
    monkeypatch.setattr("trident.spouts.delta.coordinator._AHEAD_VERSIONS", 5)
    monkeypatch.setattr("trident.spouts.delta.spout.DeltaFrames", lambda spark, table: None)
    spout = DeltaSpout(table, starting_version=0, poll_interval_secs=0)
    coordinator = spout.get_coordinator(SpoutContext(None, "t", "rows", tmp_path, "life"))
    assert coordinator.is_ready(1), "versions that were not read yet may have rows: not all has been processed"
    pin = coordinator.initialize_transaction(1, None, None)
    assert (pin["begin"], pin["end"], pin["files"]) == ([0, 0], [52, 0], 1) and not coordinator.is_ready(2)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A table of four versions with a file each, and a function that makes its coordinator."""
    schema = json.dumps({"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]})
    rows = [[added(name)] for name in "abc"]
    table = write_log(tmp_path, [{"metaData": {"id": "i", "schemaString": schema}}], *rows)
    monkeypatch.setattr("trident.spouts.delta.spout.DeltaFrames", lambda spark, table: None)
    spout = DeltaSpout(table, starting_version=0, poll_interval_secs=0)
    return lambda: spout.get_coordinator(SpoutContext(None, "t", "rows", tmp_path, "life"))


def test_a_table_that_is_older_than_what_was_read_is_an_error_at_a_restart_too(tmp_path, planned):
    earlier = planned()
    pin = earlier.initialize_transaction(1, None, None)
    (tmp_path / "_delta_log" / f"{3:020d}.json").unlink()
    again = planned()
    again.resume(1, pin)
    assert again.is_ready(2)
    with pytest.raises(SourceError, match="older than it was.*version 2.*version 3"):
        again.initialize_transaction(2, pin, None)


def test_what_another_leader_has_read_meanwhile_is_no_older_table(tmp_path, planned):
    late = planned()
    (tmp_path / "_delta_log" / f"{4:020d}.json").write_text(json.dumps(added("d")) + "\n")
    pin = planned().initialize_transaction(1, None, None)
    assert late.initialize_transaction(2, pin, None)["files"] == 0


def test_a_checkpoint_that_is_made_during_a_look_is_no_gap(tmp_path, planned, monkeypatch):
    coordinator, newest = planned(), DeltaChanges.newest

    def and_then_a_commit(log, known=None):
        found = newest(log, known)
        (tmp_path / "_delta_log" / f"{found + 1:020d}.json").write_text(json.dumps(added("new")) + "\n")
        (tmp_path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": found + 1, "size": 1}))
        return found

    monkeypatch.setattr(DeltaChanges, "newest", and_then_a_commit)
    assert coordinator.initialize_transaction(1, None, None)["files"] == 3


def test_impossible_arguments_and_foreign_metadata_are_refused(tmp_path):
    for make in (
        lambda: DeltaSpout("s3://bucket/t"),
        lambda: DeltaSpout("t", -1),
        lambda: DeltaSpout("t", "first"),
        lambda: DeltaSpout("t", schema="n"),
    ):
        with pytest.raises(TopologyError):
            make()
    with pytest.raises(SourceError, match="there is no Delta table at .*nowhere.*DESCRIBE DETAIL"):
        getattr(DeltaSpout(tmp_path / "nowhere"), "output_schema", None)
    for metadata in (None, {}, {"begin": [1, 2]}, {"from": 1}):
        with pytest.raises(SourceError, match="not written by a DeltaSpout"):
            Range.read(metadata)
    one, other = as_schema("a long, b string, s string", "test"), as_schema("b string, a int, c long", "test")
    assert differences(one, other, exactly=True) == ["no s", "a int instead of bigint", "a new c"]
    assert differences(one, one, exactly=True) == [] and differences(one, other, exactly=False)[-1] != "a new c"


@pytest.mark.long
def test_a_table_with_checkpoints_of_the_second_kind_is_read_on_any_thread(spark, tmp_path):
    properties = "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"
    table = Table(spark, tmp_path / "t", f"TBLPROPERTIES ({properties})")
    rows = table.add(0, 1, 2) + table.add(3, 4)

    def read() -> Counter:
        run = Run(DeltaSpout(table.path), spark, tmp_path / "state")
        run.begin_all()
        return sum(map(run.rows, run.pins), Counter())

    with ThreadPoolExecutor(1) as fresh:  # a thread on which nobody has set Spark's active session
        assert fresh.submit(read).result() == rows
