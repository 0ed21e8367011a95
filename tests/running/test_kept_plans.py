"""A kept plan gives what one made anew gives, for each attempt its own rows; one that would not is not kept."""

from __future__ import annotations

import datetime as dt
import functools
import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.jvm import make_jar
from tests.jvm.unfit_jar import Unfit, unfit_jar
from tests.running import kept_plans_child
from tests.running.kept_plans_child import batch as child_batch
from tests.streams.stream_helpers import RowsSpout, raised
from trident import Count, DeltaAppend, DeltaMapState, Stream, Sum, TridentTopology
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import GroupPlan, plan, why_not_kept
from trident.running import kept_plans
from trident.running.kept_plans import early_plans
from trident.spark import jars
from trident.spark.rows import FilesSlot, RowsSlot, Slot, TaskSlot, held_rows
from trident.spouts.contracts import Emitted, SpoutContext
from trident.spouts.files.format import RowFormat
from trident.spouts.files.ledger import FileRange, LedgerEntry
from trident.spouts.files.reading import FileReader, source_failure
from trident.spouts.partitions import Emission, EmittedFile, PartitionEmission
from trident.states.core import spark_jobs
from trident.states.delta.staging import StagingTarget, stage
from trident.states.keyed import live_read
from trident.udf.signatures import translate_failure

Rows = Sequence[tuple[Any, ...]]
Build = Callable[[TridentTopology], object]
FIELDS = "k string, n long, x double, at timestamp, d decimal(20,4)"
NAN = float("nan")


def rows_of(number: int) -> Rows:
    """A batch that no other number has."""
    at = dt.datetime(2024, 3, 31, 1, 59, 59, 999_999, tzinfo=dt.timezone.utc)
    return [
        (f"k{number % 3} é", number, NAN, at + dt.timedelta(hours=number), Decimal(number) / 8),
        (None, None, None, None, None),
        (f"own {number}", -number, -0.0, at, Decimal("-1.5")),
        (f"k{number % 3} é", number, 0.5, at, Decimal(number)),
    ]


class Group:
    """One group of a topology with kept plans, staging below a folder."""

    def __init__(self, spark: Any, folder: Path, build: Build, enabled: bool = True) -> None:
        topology = TridentTopology("kept")
        build(topology)
        self.spark, self.topology = spark, topology
        self.plan: GroupPlan = plan(topology.graph)[0]
        names = [b.name for b in self.plan.bindings if b.name not in self.plan.late_states]
        tables = {b.name: b.published_table for b in self.plan.bindings}
        self.targets = [
            StagingTarget(name, folder / name, *((t.partition_columns, t.txid_column) if (t := tables[name]) else ()))
            for name in names
        ]
        self.kept = early_plans(spark, self.plan, self.targets, "snappy", enabled)

    def slots(self, rows: Mapping[str, Rows]) -> dict[str, Slot]:
        slots: dict[str, Slot] = {}
        for tx_id, given in rows.items():
            schema: StructType = self.plan.spouts[tx_id].output_schema
            table = held_rows(list(given), schema)
            assert table is not None
            slots[tx_id] = RowsSlot(self.spark, table, schema)
        return slots

    def stage(self, txid: int, rows: Rows) -> dict[str, list[str]]:
        found = self.run(txid, self.slots({"rows": rows}))
        assert found is not None, self.refusal
        return found

    def run(self, txid: int, slots: Mapping[str, Slot]) -> dict[str, list[str]] | None:
        """What is staged by the kept plan: state → its rows as text, sorted."""
        attempt = TransactionAttempt(txid, 0)
        return self._read(txid, self.kept.stage(slots, "inc", attempt))

    def anew(self, txid: int, slots: Mapping[str, Slot]) -> dict[str, list[str]] | None:
        """The same by a plan that is made for this batch."""
        attempt = TransactionAttempt(txid, 0)
        inputs = {tx_id: slot.frame().coalesce(1) for tx_id, slot in slots.items()}
        with self.plan.build(inputs, attempt) as frames:
            return self._read(txid, stage(frames, self.targets, "inc", attempt))

    def same(self, txid: int, slots: Mapping[str, Slot]) -> dict[str, list[str]]:
        """What the kept plan stages, which is what one that is made anew does."""
        found = self.run(txid, slots)
        assert found is not None and found == self.anew(txid, slots), self.refusal
        return found

    def _read(self, txid: int, staged: Any) -> dict[str, list[str]] | None:
        if staged is None:
            return None
        roots = {target.name: target.root for target in self.targets}
        for file in (file for files in staged.values() for file in files):
            assert file.path.startswith(f"data/inc/{txid}-0-"), "a file in the folder of another attempt"
        return {
            name: sorted(str(row) for file in files for row in pq.read_table(roots[name] / file.path).to_pylist())
            for name, files in staged.items()
        }

    @property
    def plan_kept(self) -> Any:
        """The plan that is kept now, of the one shape."""
        (shape,) = self.kept._shapes.values()
        return shape.plan

    @property
    def refusal(self) -> str | None:
        """Of the one shape."""
        (shape,) = self.kept._shapes.values()
        return shape.refusal


@pytest.fixture
def new_group(spark: Any, tmp_path: Path) -> Callable[..., Group]:
    return functools.partial(Group, spark, tmp_path)


def stream(topology: TridentTopology, name: str = "rows") -> Stream:
    return topology.new_stream(name, RowsSpout(FIELDS))


def twice(word: str | None) -> Iterator[str]:
    yield from [f"{word}!"] * 2


def append(topology: TridentTopology) -> None:
    stream(topology).partition_persist(DeltaAppend("out", ["k"]))


def python(topology: TridentTopology) -> None:
    stream(topology).each("k", twice, "word").partition_persist(DeltaAppend("out"))


def native(topology: TridentTopology) -> None:
    words = stream(topology).each(F.expr("explode(split(k, ' '))"), "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")


def two_states(topology: TridentTopology) -> None:
    rows = stream(topology).filter(F.col("n") > 0)
    rows.partition_persist(DeltaAppend("out"))
    rows.group_by("k").persistent_aggregate(DeltaMapState("sums"), "d", Sum(), "sum")


@pytest.mark.parametrize("build", [append, python, native, two_states])
def test_each_batch_gives_what_a_plan_made_anew_gives(new_group: Any, build: Build) -> None:
    group = new_group(build)
    for txid in (1, 2, 3):
        assert group.same(txid, group.slots({"rows": rows_of(txid)})) != {}


def test_streams_that_meet_each_have_a_slot(new_group: Any) -> None:
    def merged(topology: TridentTopology) -> None:
        one, other = stream(topology, "one"), stream(topology, "other")
        one.partition_persist(DeltaAppend("ones"))
        topology.merge(one, other).partition_persist(DeltaAppend("out"))

    group = new_group(merged)
    for txid, order in ((1, ("one", "other")), (2, ("other", "one"))):
        found = group.same(txid, group.slots({tx_id: rows_of(txid + 100 * len(tx_id)) for tx_id in order}))
        assert (len(found["ones"]), len(found["out"])) == (4, 8)


@pytest.mark.long
def test_attempts_in_flight_have_their_own_rows_and_folders(new_group: Any) -> None:
    group = new_group(two_states)
    expected = {txid: group.anew(txid, group.slots({"rows": rows_of(txid)})) for txid in (1, 2)}
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(range(1, 25), pool.map(lambda txid: group.stage(txid, rows_of(txid)), range(1, 25))))
    for txid, staged in found.items():
        assert len(staged["out"]) == 2 and all(f"'n': {txid}," in row for row in staged["out"])
    assert {txid: found[txid] for txid in expected} == expected


@pytest.mark.long
def test_a_failed_attempt_leaves_nothing_to_the_next(new_group: Any, tmp_path: Path) -> None:
    def minds(n: int | None) -> int:
        if n == 2:
            raise ValueError("two")
        return n or 0

    def build(topology: TridentTopology) -> None:
        stream(topology).each("n", minds, "m int").partition_persist(DeltaAppend("out"))

    group = new_group(build)
    group.stage(1, rows_of(1))
    error = translate_failure(raised(lambda: group.stage(2, rows_of(2))), TransactionAttempt(2, 0))
    assert "ValueError: two" in str(error)
    assert not list((tmp_path / "out" / "data" / "inc").glob("2-*"))
    third = group.stage(3, rows_of(3))
    assert len(third["out"]) == 4 and third == group.anew(3, group.slots({"rows": rows_of(3)}))


# --- what may not be kept ---------------------------------------------------------------------

# Spark puts another expression in the place of each, in which 'now' is the time of planning.
NOW = [
    *["to_timestamp('now')", "try_to_timestamp('now')", "to_timestamp_ntz('now')", "to_timestamp_ltz('now')"],
    *["to_date('today')", "try_to_date('now')"],
]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: F.current_timestamp(), "current"),
        (lambda: F.current_date(), "current"),
        (lambda: F.expr("unix_timestamp()"), "current"),
        (lambda: F.expr("date_add(now(), 1)"), "current"),
        (lambda: F.expr("current_user()"), "current"),
        (lambda: F.rand(), "not deterministic"),
        (lambda: F.expr("rand()"), "not deterministic"),
        (lambda: F.expr("uuid()"), "not deterministic"),
        (lambda: F.monotonically_increasing_id(), "not deterministic"),
        (lambda: F.spark_partition_id(), "not deterministic"),
        (lambda: F.expr("at > TIMESTAMP'now'"), "literal time"),
        (lambda: F.expr("array(DATE'today')"), "literal time"),
        (lambda: F.expr("cast('now' as timestamp)"), "text that is cast"),
        *((lambda of=of: F.expr(of), "text that is cast") for of in NOW),
        (lambda: F.try_to_timestamp(F.lit("now")), "text that is cast"),
        (lambda: F.to_date(F.lit("today")), "text that is cast"),
        (lambda: F.expr("if(n > 0, to_timestamp('no' || 'w'), at)"), "text that is cast"),
        (lambda: F.expr("try_reflect('java.util.UUID', 'randomUUID')"), "not deterministic"),
        (lambda: F.expr("uniform(1, 100, 7)"), "not deterministic"),
        (lambda: F.expr("current_path()"), "current"),
        (lambda: F.expr("n + offset_by"), "a variable of the session"),
        (lambda: F.expr("coalesce(nullif(n, session.offset_by), 0)"), "a variable of the session"),
        (lambda: F.expr("with_offset(n)"), "a variable of the session"),
    ],
)
def test_what_spark_evaluates_when_it_plans_is_not_kept(spark: Any, new_group: Any, made: Any, why: str) -> None:
    """Asks the session alone: explain's own list of functions need not be whole."""
    spark.sql("DECLARE OR REPLACE VARIABLE offset_by BIGINT DEFAULT 5")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION with_offset(n BIGINT) RETURNS BIGINT RETURN n + offset_by")
    group = new_group(append)
    (slot,) = group.slots({"rows": rows_of(1)}).values()
    frame: Any = slot.over(group.kept._kept, "trident.rows.0").coalesce(1)
    assert refusal_of(group, frame) is None
    refused = refusal_of(group, frame.select("k", made()))
    assert refused is not None and why in refused


def refusal_of(group: Group, frame: Any) -> str | None:
    kept: Any = group.kept._kept
    found: str | None = kept.of(frame._jdf, kept.stateOf(frame.sparkSession._jsparkSession)).refusal()
    return found


def test_rows_that_are_stored_or_shuffled_are_not_kept(spark: Any, new_group: Any) -> None:
    group = new_group(append)
    (slot,) = group.slots({"rows": rows_of(1)}).values()
    frame: Any = slot.over(group.kept._kept, "trident.rows.0").coalesce(1)
    stored = spark.range(3).selectExpr("'k' AS k").localCheckpoint()
    other = spark.createDataFrame([("k", 1)], "k string, m int")
    refused = {
        "rows that are the same in each batch": frame.select("k").union(stored),
        "Exchange": frame.repartition(3),
        "Broadcast": frame.join(F.broadcast(other), "k"),
        "a subquery": frame.where("n > (SELECT max(id) FROM range(3))"),
    }
    for why, query in refused.items():
        assert why in (refusal_of(group, query) or "")


def test_a_plan_that_is_refused_is_made_anew_for_each_batch(new_group: Any, monkeypatch: Any) -> None:
    def build(topology: TridentTopology) -> None:
        stream(topology).select("k", F.expr("current_timestamp()").alias("now")).partition_persist(DeltaAppend("out"))

    monkeypatch.setattr(kept_plans, "why_not_kept", lambda _: None)
    group = new_group(build)
    slots = group.slots({"rows": rows_of(1)})
    assert group.run(1, slots) is None and "current time" in group.refusal
    assert group.run(2, slots) is None
    assert group.anew(3, slots) != group.anew(4, slots), "the time of the first batch in the second"


def test_a_plan_follows_the_sessions_settings(spark: Any, new_group: Any) -> None:
    def build(topology: TridentTopology) -> None:
        stream(topology).select("k", F.col("at").cast("string").alias("text")).partition_persist(DeltaAppend("out"))

    group, zone = new_group(build), spark.conf.get("spark.sql.session.timeZone")
    slots = group.slots({"rows": rows_of(1)})
    try:
        for txid, now in enumerate(["UTC", "Asia/Tokyo", "UTC"], 1):
            spark.conf.set("spark.sql.session.timeZone", now)
            group.same(txid, slots)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_plan_follows_functions_that_are_registered_again(spark: Any, new_group: Any) -> None:
    def build(topology: TridentTopology) -> None:
        rows = stream(topology).each(F.expr("of_python(n)"), "p").each(F.expr("of_sql(n)"), "s")
        rows.partition_persist(DeltaAppend("out"))

    def registered(add: int) -> None:
        spark.udf.register("of_python", lambda n: (n or 0) + add, "long")
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION of_sql(n BIGINT) RETURNS BIGINT RETURN n + {add}")

    registered(1)
    group = new_group(build)
    plans = set()
    for txid, add in enumerate([1, 1, 2], 1):
        registered(add) if txid == 3 else None
        group.same(txid, group.slots({"rows": rows_of(txid)}))
        plans.add(group.plan_kept)
    assert len(plans) == 2, "it is made again where a function is another one, and only there"


@pytest.mark.long
def test_a_plan_follows_the_database_that_names_are_looked_up_in(spark: Any, new_group: Any) -> None:
    def build(topology: TridentTopology) -> None:
        stream(topology).each(F.expr("of_catalog(n)"), "m").partition_persist(DeltaAppend("out"))

    for number, name in enumerate(["kept_one", "kept_other"], 1):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {name}")
        spark.sql(f"CREATE OR REPLACE FUNCTION {name}.of_catalog(n BIGINT) RETURNS BIGINT RETURN n + {number}")
    try:
        spark.sql("USE kept_one")
        group = new_group(build)
        anew = [
            f"CREATE OR REPLACE {kind} of_catalog(n BIGINT) RETURNS BIGINT RETURN n + {number}"
            for number, kind in ((7, "FUNCTION"), (8, "TEMPORARY FUNCTION"))
        ]
        for txid, change in enumerate(["USE kept_one", "USE kept_other", *anew], 1):
            spark.sql(change)
            group.same(txid, group.slots({"rows": rows_of(txid)}))
    finally:
        spark.sql("DROP TEMPORARY FUNCTION IF EXISTS of_catalog")
        spark.sql("USE default")
        spark.sql("DROP DATABASE kept_one CASCADE")
        spark.sql("DROP DATABASE kept_other CASCADE")


def test_a_failure_that_passes_is_tried_again(new_group: Any, monkeypatch: Any, caplog: Any) -> None:
    group, fails = new_group(append), [True, True, False]
    real = group.kept._kept

    class Failing:
        def __getattr__(self, name: str) -> Any:
            if name == "of" and fails and fails.pop(0):
                raise RuntimeError("a passing failure")
            return getattr(real, name)

    monkeypatch.setattr(group.kept, "_kept", Failing())
    slots = group.slots({"rows": rows_of(1)})
    assert [group.run(txid, slots) is None for txid in (1, 2, 3, 4)] == [True, True, False, False]
    assert caplog.text.count("a passing failure") == 2 and group.refusal is None

    group = new_group(append)
    fails[:] = [True] * 5
    monkeypatch.setattr(group.kept, "_kept", Failing())
    assert [group.run(txid, slots) is None for txid in (1, 2, 3, 4, 5)] == [True] * 5
    assert len(fails) == 2 and "3 times in a row" in group.refusal


def test_without_the_jar_every_plan_is_made_anew(new_group: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(kept_plans, "kept_plan_class", lambda _: None)
    group = new_group(append)
    assert group.run(1, group.slots({"rows": rows_of(1)})) is None and "jar" in group.kept.why_not


def test_a_jar_that_does_not_fit_costs_time_alone(spark: Any, new_group: Any, monkeypatch: Any, caplog: Any) -> None:
    """V2: another Spark lacks a method that the jar calls, which Java finds when it is called."""
    context = spark.sparkContext
    with unfit_jar(monkeypatch, caplog):
        group = new_group(append)
        monkeypatch.setattr(group.kept, "_kept", Unfit(spark, "stateOf"))
        slots = group.slots({"rows": rows_of(1)})
        assert spark_jobs.fits(context) and jars.kept_plan_class(context) is not None
        assert [group.run(txid, slots) for txid in (1, 2)] == [None, None]
        assert "does not fit" in group.kept.why_not and not spark_jobs.fits(context)
        assert jars.kept_plan_class(context) is None and live_read._java_class(spark) is None
        assert not spark_jobs.does_not_fit(context, ValueError("no"))


def test_a_session_that_came_without_the_jar_is_given_it(spark: Any, monkeypatch: Any) -> None:
    asked: list[bool] = []
    there = jars._is_there
    monkeypatch.setattr(jars, "_is_there", lambda jvm: asked.append(there(jvm)) or len(asked) > 1)
    assert jars._find(spark.sparkContext) is not None
    assert jars.jar_path().name in str(spark.sparkContext._jsc.sc().listJars())


# --- files ------------------------------------------------------------------------------------


def file_slot(spark: Any, paths: Sequence[Path], format: str = "text", fields: str = "line string") -> FilesSlot:
    """Whole files, which are read by Spark itself."""
    found = file_batch(spark, paths, format, fields).data
    assert isinstance(found, FilesSlot)
    return found


def file_batch(
    spark: Any, paths: Sequence[Path], format: str = "text", fields: str = "line string", begin: int = 0
) -> Emitted:
    """The files from a byte on."""
    ranges = []
    for number, path in enumerate(paths, 1):
        found = path.stat()
        entry = LedgerEntry(number, str(path), found.st_size, found.st_mtime_ns)
        ranges.append(FileRange(entry, begin, found.st_size))
    reader = READERS.setdefault(format, FileReader(spark, RowFormat(format, group_schema(fields), {})))
    emitted = reader.read(ranges)
    assert emitted.partitions == 1
    return emitted


READERS: dict[str, FileReader] = {}


@pytest.fixture(autouse=True)
def _no_readers() -> None:
    READERS.clear()


def lines(topology: TridentTopology) -> None:
    rows = topology.new_stream("rows", RowsSpout("line string"))
    rows.each("line", twice, "word").partition_persist(DeltaAppend("out"))


def test_files_of_each_batch_are_read_by_one_plan(spark: Any, new_group: Any, tmp_path: Path) -> None:
    group = new_group(lines)
    for txid in (1, 2, 3):
        paths = [tmp_path / f"{txid} a%2B=é.txt", tmp_path / f"{txid}b.txt", tmp_path / f"{txid}.gz"]
        paths[0].write_bytes("one\r\ntwö\n\nlast".encode())
        paths[1].write_text("".join(f"{txid} {n}\n" for n in range(txid * 50)))
        paths[2].write_bytes(gzip.compress(b"packed\n"))
        found = group.same(txid, {"rows": file_slot(spark, paths)})
        assert len(found["out"]) == 2 * (4 + txid * 50 + 1)
    assert len(group.kept._shapes) == 1


@pytest.mark.long
def test_parts_of_files_of_each_batch_are_read_by_one_plan(spark: Any, new_group: Any, tmp_path: Path) -> None:
    group = new_group(lines)
    batches: dict[int, Any] = {}
    for txid in (1, 2, 3):
        paths = [tmp_path / f"{txid} a%2B=é.txt", tmp_path / f"{txid}b.txt"]
        for path in paths:
            path.write_text("".join(f"{path.name} {n}\r\n" for n in range(txid * 50)))
        batches[txid] = file_batch(spark, paths, begin=200 + txid)
    found: dict[int, Any] = {}
    for txid, batch in batches.items():
        assert isinstance(batch.data, TaskSlot)
        found[txid] = group.run(txid, {"rows": batch.data})
        assert found[txid] is not None, group.refusal
        assert 0 < len(found[txid]["out"]) < 200 * txid and f"{txid}b.txt 49" in str(found[txid])
    assert len(group.kept._shapes) == 1
    for txid, batch in batches.items():  # the one plan counts the rows of each batch apart
        counted = batch.rows()
        assert 2 * counted == len(found[txid]["out"])
        assert found[txid] == group.anew(txid, {"rows": batch.data}) and batch.rows() == counted


@pytest.mark.long
def test_a_row_that_cannot_be_parsed_names_its_own_file(spark: Any, new_group: Any, tmp_path: Path) -> None:
    def csv(topology: TridentTopology) -> None:
        topology.new_stream("rows", RowsSpout("k long, v string")).partition_persist(DeltaAppend("out"))

    group = new_group(csv)
    (tmp_path / "good.csv").write_text("1,a\n2,b\n")
    (tmp_path / "bad.csv").write_text("1,a\nx,b\n")
    good = {"rows": file_slot(spark, [tmp_path / "good.csv"], "csv", "k long, v string")}
    bad = {"rows": file_slot(spark, [tmp_path / "bad.csv"], "csv", "k long, v string")}
    group.same(1, good)
    kept, anew = (str(source_failure(raised(lambda run=run: run(2, bad)))) for run in (group.run, group.anew))
    assert kept == anew and "bad.csv" in kept


@pytest.mark.long
def test_a_file_that_is_gone_fails_the_attempt(spark: Any, new_group: Any, tmp_path: Path) -> None:
    group = new_group(lines)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n")
    assert group.run(1, {"rows": file_slot(spark, [tmp_path / "a"])})
    slot = file_slot(spark, [tmp_path / "b"])
    (tmp_path / "b").unlink()
    error = source_failure(raised(lambda: group.run(2, {"rows": slot})))
    assert error is not None and "/b cannot be read" in str(error)


@pytest.mark.long
def test_parquet_files_of_emitted_partitions_are_read_by_one_plan(spark: Any, new_group: Any, tmp_path: Path) -> None:
    """Spark's reader gives them as columns, many rows at a time."""
    group = new_group(two_states)
    context = SpoutContext(spark, "kept", "rows", tmp_path / "state", "inc")
    emission = PartitionEmission(RowsSpout(FIELDS), context)
    schema = to_arrow_schema(group_schema(FIELDS), timezone="UTC")
    (tmp_path / "state" / "emitted").mkdir(parents=True)
    for txid in (1, 2):
        parts = []
        for number in (txid, txid + 10):
            path = tmp_path / "state" / "emitted" / f"{number}.parquet"
            rows = [dict(zip(schema.names, row)) for row in rows_of(number) * 20]
            pq.write_table(pa.Table.from_pylist(rows, schema), path)
            parts.append(EmittedFile(path.name, path.stat().st_size))
        emitted = emission.emitted(Emission({}, 0, "", parts))
        assert isinstance(emitted.data, FilesSlot) and emitted.partitions == 1
        assert len(group.same(txid, {"rows": emitted.data})["out"]) == 80
    assert len(group.kept._shapes) == 1


def group_schema(fields: str) -> StructType:
    return RowsSpout(fields).output_schema


# --- a cluster --------------------------------------------------------------------------------


@pytest.mark.skipif(os.environ.get("TRIDENT_CLUSTER") != "all", reason="a real cluster; TRIDENT_CLUSTER=all runs it")
def test_tasks_that_are_run_again_read_the_rows_of_their_own_attempt(tmp_path, zk_server, zk_root):
    """A try that fails, and an executor that is lost."""
    environment = {
        **os.environ,
        "TRIDENT_ZOOKEEPER": zk_server,
        "TRIDENT_ZOOKEEPER_ROOT": zk_root,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "TRIDENT_TEST_TRIES": str(tmp_path / "tries"),
    }
    (tmp_path / "tries").mkdir()
    command = [sys.executable, "-m", kept_plans_child.__name__, str(tmp_path / "warehouse")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    told = {line.partition(" ")[0]: line.partition(" ")[2] for line in done.stdout.splitlines()}
    assert "ROWS" in told, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the plan of group rows is kept" in done.stdout, "nothing was tested"
    expected = [(n, f"{kind} {n}") for number in range(kept_plans_child.BATCHES) for kind, n in child_batch(number)]
    assert told["ROWS"] == str(expected)
    assert told["ATTEMPTS"] == "0", "Spark itself tries such tasks again"
    tried = {path.name for path in (tmp_path / "tries").iterdir()}
    assert tried >= {f"{kind}, try {n}" for kind in ("fails", "dies") for n in (0, 1)}, "no fault, no test"


# --- what explain says, and the jar -------------------------------------------------------------


def test_explain_says_whether_the_plan_is_kept_and_why_not(new_group: Any) -> None:
    def timed(topology: TridentTopology) -> None:
        stream(topology).select("k", F.current_timestamp().alias("now")).partition_persist(DeltaAppend("out"))

    kept, anew = new_group(native), new_group(timed)
    assert why_not_kept(kept.plan) is None and "the plan is kept from batch to batch" in kept.topology.explain()
    assert "current_timestamp()" in str(why_not_kept(anew.plan))
    assert "the plan is made anew for each batch: select k, " in anew.topology.explain()
    assert new_group(native, enabled=False).kept.why_not == "the setting keep_plans is off"


@pytest.mark.long
def test_the_jar_is_made_of_the_sources_byte_for_byte(tmp_path: Path) -> None:
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("there is no javac")
    version = subprocess.run([compiler, "-version"], capture_output=True, text=True, timeout=60).stdout
    if not version.startswith(f"javac {make_jar.RELEASE}."):
        pytest.skip(f"{version.strip()} writes other bytes than a JDK {make_jar.RELEASE}")
    made = tmp_path / "made.jar"
    make_jar.make(made)
    assert made.read_bytes() == jars.jar_path().read_bytes(), "make jar"


def test_shards_stay_while_their_executor_lives_and_come_back_to_the_host_that_had_them_first(spark) -> None:
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jars.kept_plan_class(spark.sparkContext) is not None
    homes, hosts = (gateway.new_array(jvm.String, 4) for _ in range(2))

    def dealt(*executors: str) -> str:
        nonlocal homes
        homes = jvm.trident.kept.ShardsRDD.dealt(homes, hosts, [f"executor_{one}" for one in executors])
        return " ".join((home or "none").removeprefix("executor_") for home in homes)

    assert dealt("a_0", "b_1") == "a_0 b_1 a_0 b_1"
    assert dealt("b_1") == "b_1 b_1 b_1 b_1"
    assert dealt("a_2", "b_1") == "a_2 b_1 a_2 b_1", "the host has their stores"
    assert dealt() == "none none none none" and dealt("b_1") == "b_1 b_1 b_1 b_1"
    assert dealt("a_3", "b_1", "c_4", "c_5") == "a_3 b_1 c_4 c_5"
    assert dealt("c_4", "c_5") == "c_4 c_5 c_4 c_5", "neither has more than its part"
