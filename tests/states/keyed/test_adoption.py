"""A keyed state takes over the target of another program's MERGEs: its rows count, and none is written again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.states.group_helpers import Group, append_binding, foreign_row, map_binding
from tests.topology_helpers import WAIT_SECS
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology, Upsert, read
from trident.commands import admin
from trident.config import TridentConfig
from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, ForeignTable, Halted, SchemaMismatch, TableError
from trident.coordinators.faults import InjectedFault
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import load_descriptor
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.adoption import adopt
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.delta_map import KEYED
from trident.states.keyed.reading import read_state
from trident.states.keyed.tables import adopted_version

OLD = [("a", 10), ("b", 20), (None, 5)]


def table(spark: SparkSession, path: Path, rows: list = OLD, schema: str = "word string, count long") -> None:
    """A table as a foreachBatch with a MERGE leaves it: some files, a transaction id of the job's."""
    half = len(rows) // 2
    spark.createDataFrame(rows[:half], schema).coalesce(1).write.format("delta").save(str(path))
    writer = spark.createDataFrame(rows[half:], schema).coalesce(1).write.format("delta").mode("append")
    writer.option("txnAppId", "job").option("txnVersion", 7).save(str(path))


@pytest.fixture(scope="module")
def old_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old") / "counts"
    table(spark, path)
    return path


@pytest.fixture
def old(old_table: Path, tmp_path: Path) -> Path:
    """The table of another program, in a warehouse of its own."""
    return Path(shutil.copytree(old_table, tmp_path / "counts"))


def rows_of(path: Path) -> dict[str | None, int]:
    return {row["word"]: row["count"] for row in deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()}


def data_files(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*.parquet") if "_delta_log" not in found.parts}


def live_files(engine: KernelEngine, path: Path) -> set[str]:
    return {file.path for file in engine.live_files(engine.load(str(path)))}


def counts(spark: SparkSession, path: Path) -> dict[str | None, int]:
    return {row["word"]: row["count"] for row in spark.read.format("delta").load(str(path)).collect()}


def live(spark: SparkSession, warehouse: Path, txid: int | None = None, name: str = "counts") -> dict:
    return {row[0]: row[1] for row in read(spark, str(warehouse), name, txid=txid).collect()}


def adopting(engine: KernelEngine, warehouse: Path, **more: object) -> Group:
    return Group(engine, warehouse, [map_binding(adopt=True)], **more)  # type: ignore[arg-type]


def merged(spark: SparkSession, engine: KernelEngine, group: Group, upto: int) -> Compactor:
    compactor = Compactor(spark, engine, group.warehouse, load_descriptor(group.warehouse, "counts"))
    assert compactor.merge_once(upto, force=True) is not None
    return compactor


# --- rows ---------------------------------------------------------------------------------------------


def words(batches: list) -> TridentTopology:
    """Counts on top of one adopted table, last values on top of another, and what the counts were before."""
    topology = TridentTopology("words")
    rows = topology.new_stream("s", FixedBatchSpout("word string, at long", batches))
    state = rows.group_by("word").persistent_aggregate(DeltaMapState("counts", adopt=True), Count(), "count")
    rows.partition_persist(DeltaMapState("last", adopt=True), updater=Upsert("word"))
    state.new_values_stream().partition_persist(DeltaMapState("seen"), updater=Upsert("word"))
    return topology


@pytest.mark.long
def test_the_rows_of_an_adopted_table_are_the_state_before_its_first_transaction(spark, start, engine, tmp_path):
    """Read as of any transaction, looked up, merged natively; and another start reads what is merged."""
    warehouse = tmp_path / "warehouse"
    table(spark, warehouse / "counts")
    table(spark, warehouse / "last", [("a", 1), ("b", 2), ("z", 3)], "word string, at long")
    before = {name: live_files(engine, warehouse / name) for name in ("counts", "last")}
    query = start.run(words([[("a", 7), ("c", 8)], [("a", 9), (None, 1)]]), local_copies=False)
    assert {name: live_files(engine, warehouse / name) for name in before} == before
    assert {name: data_files(warehouse / name) for name in before} == before, "no file is there that was not"
    assert counts(spark, warehouse / "counts") == {"a": 10, "b": 20, None: 5}, "for any reader of the table"
    expected = {0: dict(OLD), 1: {"a": 11, "b": 20, None: 5, "c": 1}, 2: {"a": 12, "b": 20, None: 6, "c": 1}}
    engine_reads = read_state(spark, warehouse, "counts", txid=0)
    assert dict(engine_reads.collect()) == expected.pop(0), "which the first transaction builds on"
    for txid, wanted in expected.items():
        assert live(spark, warehouse, txid) == wanted
        assert dict(query.snapshot("counts", txid=txid).collect()) == wanted
    assert live(spark, warehouse, None, "last") == {"a": 9, "b": 2, "z": 3, "c": 8, None: 1}
    assert live(spark, warehouse, None, "seen") == {"a": 12, "c": 1, None: 6}, "new values are on top of the table's"
    assert query.get("counts", ["a", "b"]) == [{"count": 12}, {"count": 20}]
    query.stop(compact=False)

    query = start(words([[("a", 7), ("c", 8)], [("a", 9), (None, 1)], [("b", 3)]]), local_copies=True)
    query.process_all_available(WAIT_SECS)
    assert live(spark, warehouse, None, "seen") == {"a": 12, "b": 21, "c": 1, None: 6}, "from a local copy, too"
    query.stop()
    config = TridentConfig(warehouse=str(warehouse))
    admin.compact("words", config=config, force=True)
    assert counts(spark, warehouse / "counts") == {"a": 12, "b": 21, None: 6, "c": 1}
    operations = {row.operation for row in spark.sql(f"DESCRIBE HISTORY delta.`{warehouse}/counts`").collect()}
    assert "MERGE" in operations
    assert live(spark, warehouse) == {"a": 12, "b": 21, None: 6, "c": 1}


@pytest.mark.long
def test_delta_s_own_merge_goes_on_from_adopted_rows(spark: SparkSession, engine: KernelEngine, tmp_path: Path) -> None:
    """Where the native one is not possible: a table with a feature that is left to Delta; and twice, by its guard."""
    table(spark, tmp_path / "counts")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/counts` SET TBLPROPERTIES ('delta.minWriterVersion' = '4')")
    group = adopting(engine, tmp_path).open()
    group.commit(1, ["a", "c"])
    plan = Compactor(spark, engine, tmp_path, load_descriptor(tmp_path, "counts")).plan(1)
    merged(spark, engine, group, 1)
    assert counts(spark, tmp_path / "counts") == {"a": 11, "b": 20, None: 5, "c": 1}
    assert plan is not None
    stale = Compactor(spark, engine, tmp_path, load_descriptor(tmp_path, "counts"))
    group.commit(2, ["a", "b"])
    merged(spark, engine, group, 2)
    with pytest.raises((CommitConflict, TableError)):
        stale._by_spark.merge(
            stale.state, plan[0]._replace(upto=3), plan[1], plan[2], {}
        )  # a zombie of the first MERGE
    assert counts(spark, tmp_path / "counts") == {"a": 12, "b": 21, None: 5, "c": 1}
    Group(engine, tmp_path, [map_binding(adopt=True)], epoch=2, record=group.record).open()


# --- a start that is killed, and other writers ---------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "commit, outcome", [(2, "do_then_fail"), (1, "do_then_fail"), (2, "fail_before"), (3, "do_then_fail")]
)
def test_an_adoption_that_is_killed_runs_again(spark, engine, old, commit, outcome):
    """While it looks for keys with several rows, and at the commits: control records, the adoption, the log."""
    files, warehouse = data_files(old), old.parent
    killed(engine, warehouse, "adopt.look:fail_before:1")
    assert engine.load(str(old)).control("trident") is None
    killed(engine, warehouse, f"delta.commit:{outcome}:{commit}")
    group = adopting(KernelEngine(spark), warehouse, epoch=2).open()
    assert data_files(old) == files
    group.commit(1, ["b"])
    assert live(spark, warehouse) == {"a": 10, "b": 21, None: 5}
    merged(spark, engine, group, 1)
    assert rows_of(old) == {"a": 10, "b": 21, None: 5}


def killed(engine: KernelEngine, warehouse: Path, fault: str) -> None:
    faults.arm(fault)
    with pytest.raises((InjectedFault, TableError)):
        adopting(engine, warehouse).open()
    assert not faults.unfired()
    faults.disarm()


def test_an_adoption_that_is_killed_holds_where_the_next_start_does_not_ask_for_it(spark, engine, old):
    """Killed after the adoption and before the log: the log that is made then knows that it has not all rows."""
    killed(engine, old.parent, "delta.commit:do_then_fail:2")
    group = Group(KernelEngine(spark), old.parent, [map_binding()], epoch=2).open()
    assert live(spark, old.parent) == dict(OLD)
    shutil.rmtree(old)
    with pytest.raises(TableError, match="is gone.*the rows with which it was adopted"):
        Group(engine, old.parent, [map_binding()], epoch=3, record=group.record).open()
    assert not old.exists()


@pytest.mark.long
def test_a_table_of_others_is_refused_and_can_still_be_adopted(engine: KernelEngine, old: Path) -> None:
    """By a start without adopt=True: no log is made, which would keep a start with it from taking the table over."""
    for _ in range(2):
        with pytest.raises(ForeignTable, match="adopt=True"):
            Group(engine, old.parent, [map_binding()], epoch=2).open()
        assert not (old.parent / "counts__log").exists()
        killed(engine, old.parent, "delta.commit:do_then_fail:1")
    adopting(engine, old.parent, epoch=3).open().commit(1, ["b"])


def test_no_log_is_made_beside_a_table_of_another_topology(engine: KernelEngine, tmp_path: Path) -> None:
    Group(engine, tmp_path, [append_binding("counts")], topology="elsewhere").open()
    with pytest.raises((ForeignTable, TableError), match="elsewhere"):
        Group(engine, tmp_path, [map_binding()]).open()
    assert not (tmp_path / "counts__log").exists()


def test_a_table_in_a_store_is_refused_by_name() -> None:
    """Before anything is asked of the store."""
    binding, control = map_binding(adopt=True), ControlRecord("t", "g", "i", 0, -1, "", 1, 1)
    spec = KEYED.plain_table(binding)
    with pytest.raises(TableError, match="s3a://bucket/counts cannot be adopted.*a table in a store"):
        adopt(None, Place("s3a://bucket/counts"), binding, spec, control, "app", "engine")  # type: ignore[arg-type]


@pytest.mark.long
def test_a_job_that_still_writes_is_found(engine: KernelEngine, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the adoption its commit makes that fail, and be tried again; after it the topology halts."""
    group, check = adopting(engine, old.parent), engine.enable_control

    def enable(snapshot: Any) -> Any:
        deltalake.write_deltalake(str(old), pa.table({"word": ["late"], "count": [1]}), mode="append")
        return check(snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "enable_control", enable)
        with pytest.raises(CommitConflict):
            group.open()
    assert adopted_version(engine.load(str(old)).schema_json) is None
    group = adopting(engine, old.parent).open()
    foreign_row(old)
    with pytest.raises(Halted, match="WRITE"):
        Group(engine, old.parent, [map_binding(adopt=True)], epoch=2, record=group.record).open()


def test_what_was_adopted_is_known_from_then_on(engine: KernelEngine, old: Path) -> None:
    """Commits before the adoption are not looked at, also before the first advance makes the mark of the table. Its
    log does not have the rows with which it was adopted: without the table nothing is made, also before ZooKeeper
    knows of it. Its MERGEs say up to which transaction of this life it is: no other one may adopt it."""
    warehouse = old.parent
    group = adopting(engine, warehouse).open()
    assert adopted_version(engine.load(str(old)).schema_json) == engine.load(str(old)).version
    gone = Path(shutil.copytree(warehouse, warehouse / "copy"))
    shutil.rmtree(gone / "counts")
    with pytest.raises(TableError, match="is gone.*the rows with which it was adopted"):
        Group(engine, gone, [map_binding()], epoch=2, record=group.record).open()
    assert not (gone / "counts").exists()
    again = Group(engine, warehouse, [map_binding()], epoch=2, record=group.record).open()
    again.commit(1, ["a"])
    Group(engine, warehouse, [map_binding()], epoch=3, record=again.record).open()
    with pytest.raises(Halted, match="incarnation inc"):
        adopting(engine, warehouse, incarnation="next").open()
    shutil.rmtree(warehouse / "counts__log")
    with pytest.raises(ForeignTable, match="top"):
        adopting(engine, warehouse, topology="elsewhere").open()
    assert not (warehouse / "counts__log").exists()


# --- tables of which not all is understood --------------------------------------------------------------


def logged(
    *columns: dict[str, Any], partitioned: Sequence[str] = (), features: Sequence[str] = (), **configuration: str
) -> Callable[[SparkSession, Path], None]:
    """A table's first log entry as Delta writes it: quicker than Delta is."""
    fields = [{"nullable": True, "metadata": {}, **one} for one in (columns or (WORD, COUNT))]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(features)}
    metadata = {
        "id": "0c3ad5d4-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitioned),
        "configuration": {key.replace("__", "."): value for key, value in configuration.items()},
    }
    entry = "".join(json.dumps(one) + "\n" for one in ({"protocol": protocol}, {"metaData": metadata}))

    def make(spark: SparkSession, path: Path) -> None:
        (path / "_delta_log").mkdir(parents=True)
        (path / "_delta_log" / f"{0:020d}.json").write_text(entry)

    return make


def deletion_vectors(spark: SparkSession, path: Path) -> None:
    more = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    spark.sql(f"CREATE TABLE delta.`{path}` (word STRING, count BIGINT) USING delta {more}")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ CAST(id AS STRING), id FROM range(10)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE count = 3")


def doubled(spark: SparkSession, path: Path) -> None:
    rows = {"word": ["a", "b", "a"], "count": [1, 1, 2]}
    deltalake.write_deltalake(str(path), pa.table(rows))


def shallow_clone(spark: SparkSession, path: Path) -> None:
    table(spark, path.parent / "original")
    spark.sql(f"CREATE TABLE delta.`{path}` SHALLOW CLONE delta.`{path.parent}/original`")


WORD: dict[str, Any] = {"name": "word", "type": "string"}
COUNT: dict[str, Any] = {"name": "count", "type": "long"}
REFUSED: dict[str, tuple[Callable[[SparkSession, Path], None], str]] = {
    "clustered": (logged(features=["clustering", "domainMetadata"]), "table feature clustering"),
    "constraint": (logged(delta__constraints__positive="count > 0"), "delta.constraints.positive"),
    "generated": (
        logged(WORD, {**COUNT, "metadata": {"delta.generationExpression": "CAST(1 AS BIGINT)"}}),
        "column count with delta.generationExpression",
    ),
    "deletion vectors": (deletion_vectors, "deletion vectors in 1 files"),
    "shallow clone": (shallow_clone, "data files outside"),
    "doubled": (doubled, "a key has several rows.*2 rows of {'word': 'a'}"),
    "partitioned": (logged(partitioned=["word"]), "partition columns.*word"),
    "append only": (logged(delta__appendOnly="true"), "delta.appendOnly = true"),
    "change feed": (logged(delta__enableChangeDataFeed="true"), "delta.enableChangeDataFeed = true"),
    "column mapping": (logged(delta__columnMapping__mode="name"), "columnMapping.mode = name"),
    "row tracking": (logged(features=["domainMetadata", "rowTracking"]), "table feature rowTracking"),
    "a later feature": (logged(features=["inCommitTimestamp"]), "table feature inCommitTimestamp"),
    "not null": (logged({**WORD, "nullable": False}, COUNT), "column word that must not be null.*DROP NOT NULL"),
    "varchar": (
        logged({**WORD, "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(9)"}}, COUNT),
        "column word with __CHAR_VARCHAR",
    ),
    "another type": (logged(WORD, {**COUNT, "type": "integer"}), "column count integer.*expected.*count long"),
    "further column": (
        logged(WORD, COUNT, {"name": "at", "type": "date"}),
        "column at, which the state does not write",
    ),
    "fewer columns": (logged(WORD), "no column count"),
    "not there": (lambda spark, path: None, "has no table to adopt"),
}


MADE_BY_SPARK = {"deletion vectors", "shallow clone"}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.long] * (what in MADE_BY_SPARK)) for what in REFUSED]
)
def test_a_table_of_which_not_all_is_understood_is_refused_and_left_as_it_was(what, spark, engine, tmp_path):
    make, said = REFUSED[what]
    path = tmp_path / "counts"
    make(spark, path)
    log = {found.name: found.read_bytes() for found in (path / "_delta_log").glob("*.json")}
    with pytest.raises((TableError, SchemaMismatch), match=said):
        adopting(engine, tmp_path).open()
    assert {found.name: found.read_bytes() for found in (path / "_delta_log").glob("*.json")} == log
    assert not (tmp_path / "counts__log").exists() and not (tmp_path / "_trident").exists()


@pytest.mark.long
def test_the_old_table_s_own_settings_stay(spark: SparkSession, engine: KernelEngine, tmp_path: Path) -> None:
    logged({**COUNT, "metadata": {"comment": "so many"}}, WORD, delta__logRetentionDuration="interval 7 days")(
        spark, tmp_path / "counts"
    )
    adopting(engine, tmp_path).open()
    snapshot = engine.load(str(tmp_path / "counts"))
    assert snapshot.properties["delta.logRetentionDuration"] == "interval 7 days"
    fields = {field["name"]: field for field in json.loads(snapshot.schema_json)["fields"]}
    assert list(fields) == ["count", "word", "_upto"] and fields["count"]["metadata"] == {"comment": "so many"}
