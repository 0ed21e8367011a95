"""The late part gives the same by Spark on the tables, in one Spark pass on local copies, and in the driver.

Spark on the tables is the oracle. Rows are drawn: nulls, NaN, -0.0, sums that do not fit, decimals, instants under
another time zone. TRIDENT_RANDOM sets how many topologies are tried.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.long_cases import sample
from tests.streams.stream_helpers import RowsSpout
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    Equals,
    FilterNull,
    MapGet,
    Max,
    Min,
    Negate,
    Split,
    Sum,
    TridentTopology,
    TrueFilter,
    Upsert,
    arrow_function,
)
from trident.coordinators.identities import TransactionAttempt
from trident.operations import state_nodes
from trident.planning.groups import GroupPlan, plan
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, new_folder
from trident.states.publishing.user_tasks import BatchInfo

EXAMPLES = int(os.environ.get("TRIDENT_RANDOM") or 1)  # make random: 200
NESTED = "struct<a: bigint, b: array<string>>"
NAN, UTC = float("nan"), dt.timezone.utc
MOST = Decimal("9" * 36 + ".99")
VALUES: dict[str, list[Any]] = {
    "bigint": [None, 0, 1, -1, 7, 2**63 - 1, -(2**63)],
    "int": [None, 0, 1, -1, 2**31 - 1],
    "double": [None, NAN, 0.0, -0.0, 0.5, -2.0, float("inf")],
    "float": [None, NAN, 0.0, -0.0, 1.5],
    "decimal(6,2)": [None, Decimal("0.00"), Decimal("9999.99"), Decimal("-0.01")],
    "decimal(38,2)": [None, Decimal("0.00"), MOST, Decimal("-0.01")],
    "string": [None, "", "a b", " a  b ", "ä", "a\U0001f600b", "b"],
    "boolean": [None, True, False],
    "date": [None, dt.date(1, 1, 1), dt.date(2026, 3, 29)],
    "timestamp": [None, dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC), dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "binary": [None, b"", b"\x00", b"\xff\x00"],
}
# An hour that comes twice in New York, and one in summer.
MOMENTS = [
    (dt.datetime(2026, 11, 1, hour, 30, tzinfo=UTC), dt.datetime(2026, 7, 1, hour, 30, tzinfo=UTC)) for hour in (5, 6)
]
NUMBERS = ("bigint", "int", "double", "float", "decimal(6,2)", "decimal(38,2)")
ATTEMPT = TransactionAttempt(2, 0)
MARK = CopyMark("inc", 1, "digest", "commit")


class Longest:
    """An aggregator of the user's, which goes on from what it has stored."""

    def init(self, batch_id: Any) -> int:
        return 0

    def resume(self, batch_id: Any, stored: int) -> int:
        return stored

    def aggregate(self, state: int, value: Any) -> int:
        return max(state, len(repr(value)))

    def complete(self, state: int) -> int:
        return state


@arrow_function
def as_text(column: pa.Array) -> pa.Array:
    return pa.array(map(repr, column.to_pylist()))


class Known(Count):
    """A class of the user's below a built-in one: the number of values that are not null."""

    def partial(self, inputs: list[Column]) -> Column:
        return F.count(inputs[0])


def topology(key: str, value: str, aggregator: Any, users: bool = False) -> GroupPlan:
    """Every operation that may stand in a late part without code of the user's; with ``users`` with it."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout(f"k {key}, v {value}"))
    if isinstance(aggregator, Upsert):
        state = rows.partition_persist(DeltaMapState("kept"), None, aggregator)
    else:
        inputs = ("v",) if not isinstance(aggregator, Count) else ()
        state = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), *inputs, aggregator, "total")
        state.new_values_stream().partition_persist(DeltaAppend("news"))
    asked = rows.state_query(state, "k", MapGet(), "old")
    asked.partition_persist(DeltaAppend("asked"))
    asked.filter("old", FilterNull()).group_by("k").aggregate(Count(), "n").partition_persist(DeltaAppend("known"))
    asked.filter("v, k", Negate(FilterNull())).project("old").partition_persist(DeltaAppend("holes"))
    asked.filter("v", TrueFilter()).group_by("v").aggregate("old", Max(), "m").partition_persist(DeltaAppend("most"))
    asked.aggregate("old", Min(), "least").partition_persist(DeltaAppend("least"))
    asked.aggregate(Count(), "n").partition_persist(DeltaAppend("all"))
    if asked.schema["v"].dataType == asked.schema["old"].dataType:
        asked.filter("v, old", Equals()).partition_persist(DeltaAppend("equal"))
    if value in NUMBERS:
        asked.group_by("k").aggregate("v", Sum(), "s").partition_persist(DeltaAppend("sums"))
    if key == "string":
        asked.each("k", Split(), "part").each("part", Split("a"), "piece").partition_persist(DeltaAppend("parts"))
    if users:
        asked.each("v", repr, "text string").partition_persist(DeltaAppend("texts"))
        asked.each("v", as_text, "text string").partition_persist(DeltaAppend("columns"))
        rows.group_by("k").persistent_aggregate(DeltaMapState("longest"), "v", Longest(), "n long")
    (group,) = plan(made.graph)
    return group


# --- the three forms -----------------------------------------------------------------------


def early(spark: SparkSession, group: GroupPlan, rows: list[tuple[Any, ...]]) -> dict[str, pa.Table]:
    """The rows of the group's boundaries and of its early states, as staged files have them."""
    (source,) = group.spouts.values()
    schema = StructType(list(group.nodes[0].schema.fields))
    assert source
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    with group.build({"rows": frame}, ATTEMPT) as frames:
        return {name: frame.toArrow() for name, frame in frames.items()}


def between(group: GroupPlan, frames: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The rows of the boundaries."""
    return {one.name: frames[one.name] for one in group.lowered.boundaries.values()}


@contextmanager
def copied(folder: Path, group: GroupPlan, stored: Mapping[str, pa.Table]) -> Iterator[dict[str, CopyAsOf]]:
    with ExitStack() as made:
        copies = {}
        for one in (one for one in group.bindings if one.name in group.copied_states):
            rows = stored[one.name].combine_chunks()
            codec = RowCodec(rows.schema, one.keys)
            copies[one.name] = found = CopyAsOf(new_folder(folder), MARK, rows.schema, tuple(one.keys), one.ordered_by)
            copy = LocalCopy(found.folder, 1 << 26, found.values)
            made.callback(copy.delete)
            copy.apply([codec.rows(rows, one.ordered_by)], None, MARK)
        yield copies


def by_spark(
    spark: SparkSession, group: GroupPlan, inputs: Mapping[str, pa.Table], stored: Mapping[str, pa.Table]
) -> dict[str, pa.Table]:
    fields = {one.name: StructType(list(one.fields)) for one in group.lowered.boundaries.values()}
    frames = {
        name: spark.createDataFrame(table if table.num_rows else [], fields[name]).coalesce(1)
        for name, table in inputs.items()
    }
    tables = {name: spark.createDataFrame(table) for name, table in stored.items()}
    with group.build_late(frames, BatchInfo(ATTEMPT), lambda binding, keys: tables[binding.name]) as late:
        return {name: late[name].toArrow() for name in sorted(late)}


def on_arrow(group: GroupPlan, inputs: Mapping[str, pa.Table], copies: Mapping[str, CopyAsOf]) -> dict[str, pa.Table]:
    """As a Python worker runs it."""
    assert group.late_on_arrow is not None, "every operation here has a form over Arrow"
    fields = {one.name: StructType(list(one.fields)) for one in group.lowered.boundaries.values()}
    cast = {name: table.cast(to_arrow_schema(fields[name], timezone="UTC")) for name, table in inputs.items()}
    return group.late_on_arrow.run(cast, BatchInfo(ATTEMPT), copies)


def shown(tables: Mapping[str, pa.Table]) -> dict[str, list[str]]:
    """Rows that differ have other texts: of NaN, the sign of a zero, and null; instants are in UTC."""
    return {name: sorted(map(repr, _in_utc(table).to_pylist())) for name, table in tables.items()}


def _in_utc(table: pa.Table) -> pa.Table:
    zoned = {field.name: field for field in table.schema if pa.types.is_timestamp(field.type)}
    kinds = [pa.field(f.name, pa.timestamp("us", "UTC") if f.name in zoned else f.type) for f in table.schema]
    return table.cast(pa.schema(kinds))


def expected_state(group: GroupPlan, pairs: list[tuple[Any, Any]]) -> dict[str, pa.Table]:
    """What the states hold: distinct keys with a value each, of the first type that takes it."""
    found = {}
    for binding in group.bindings:
        if binding.name in group.copied_states:
            schema = to_arrow_schema(binding.schema, timezone="UTC")
            (name,) = binding.value_fields
            kind = schema.field(name).type
            codec = RowCodec(schema, binding.keys)
            keys = pa.array([key for key, _ in pairs], schema.field("k").type)
            values = pa.array([_fitting(value, kind) for _, value in pairs], kind)
            table = pa.table({"k": keys, name: values}).cast(schema)
            first = {key: at for at, key in reversed(list(enumerate(codec.encode_keys(table))))}
            found[binding.name] = table.take(pa.array(sorted(first.values()), pa.int64()))
    return found


def _fitting(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None if not pa.types.is_integer(kind) else 3
    return value


@contextmanager
def as_if_many() -> Iterator[None]:
    """As if each batch had so many rows that its rows and the values that it looks up are moved."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_nodes, "_FEW_ROWS", -1)
        patched.setattr(state_nodes, "_BROADCAST_ROWS_MAX", -1)
        patched.setattr(state_nodes, "_UNKNOWN_ROWS_MAX", -1)
        yield


# --- the tests -----------------------------------------------------------------------------


def agree(spark: SparkSession, folder: Path, group: GroupPlan, rows: Any, pairs: Any, own: bool | None) -> bool:
    """The forms agree; False where Spark refuses the rows, as it must then in each form.

    Args:
        pairs: (key, value) of what the states hold; or state → all that it holds.
        own: each step over Arrow is the framework's own; None: the late part is left to Spark.
    """
    stored = pairs if isinstance(pairs, Mapping) else expected_state(group, pairs)
    try:
        before = early(spark, group, rows)
    except Exception:  # Spark refuses them before the late part
        return False
    inputs = between(group, before)
    try:
        oracle = shown(by_spark(spark, group, inputs, stored))
    except Exception as error:
        assert any(why in str(error) for why in ("OVERFLOW", "OUT_OF_RANGE", "no exact sum")), error
        oracle = {}
    else:
        with as_if_many():
            assert shown(by_spark(spark, group, inputs, stored)) == oracle
    with copied(folder, group, stored) as copies:
        assert (None if group.late_on_arrow is None else group.late_on_arrow.is_own) == own
        if group.late_on_arrow is not None:
            try:
                here = shown(on_arrow(group, inputs, copies))
            except ArithmeticError as error:
                assert not oracle and "overflow" in str(error)
            else:
                assert here == oracle
    return bool(oracle)


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session whose zone is not UTC."""
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, Any, list[tuple[Any, Any]], list[tuple[Any, Any]], str]:
    key, value = draw(st.sampled_from(sorted(VALUES))), draw(st.sampled_from(sorted(VALUES)))
    aggregators = [Count(), Min(), Max(), Upsert("k")] + [Sum()] * 2 * (value in NUMBERS)
    pair = st.tuples(st.sampled_from(VALUES[key]), st.sampled_from(VALUES[value]))
    rows = draw(st.lists(pair, max_size=12))
    stored = draw(st.lists(pair, max_size=6))
    return key, value, draw(st.sampled_from(aggregators)), rows, stored, draw(st.sampled_from(["UTC", "Asia/Kolkata"]))


def test_spark_is_the_oracle(spark: SparkSession, tmp_path: Path, rng: Any) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"

    @seed(rng.randrange(2**32))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def compare(case: Any) -> None:
        key, value, aggregator, rows, stored, session_zone = case
        spark.conf.set("spark.sql.session.timeZone", session_zone)
        agree(spark, tmp_path, topology(key, value, aggregator), rows, stored, own=True)

    try:
        compare()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value", "aggregator", "rows", "stored"),
    [
        ("double", "double", Sum(), [(NAN, -0.0), (-0.0, 0.5), (0.0, NAN), (None, -0.0)], [(NAN, 1.0), (0.0, 2.0)]),
        (
            "float",
            "decimal(38,2)",
            Sum(),
            [(1.5, Decimal("-0.01")), (1.5, MOST), (NAN, Decimal("-0.01"))],
            [(1.5, None), (NAN, MOST), (None, MOST)],
        ),
    ],
    ids=["NaN and -0.0 as keys", "decimals of 38 digits"],
)
def test_the_forms_agree(spark, tmp_path, key, value, aggregator, rows, stored):
    assert agree(spark, tmp_path, topology(key, value, aggregator), rows, stored, own=True)


@pytest.mark.long
@pytest.mark.usefixtures("elsewhere")
def test_with_functions_of_the_users_the_forms_agree(spark: SparkSession, tmp_path: Path) -> None:
    """Functions see times in UTC, whatever the session's zone is."""
    group = topology("string", "double", Sum(), users=True)
    assert agree(
        spark, tmp_path, topology("timestamp", "timestamp", Max(), users=True), MOMENTS, MOMENTS[1:], own=False
    )
    rows = [("a b", 1.5), (None, NAN), ("a b", -0.0), ("b", None)]
    assert agree(spark, tmp_path, group, rows, [("a b", 2.0), (None, 1.0)], own=False)


def topology_below(stored: Any, asked: Any) -> GroupPlan:
    """A topology with one aggregator whose values a state keeps, and one behind a look-up."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout("k string, v double"))
    inputs = () if type(stored) is Count else ("v",)
    state = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), *inputs, stored, "total")
    state.new_values_stream().partition_persist(DeltaAppend("news"))
    answers = rows.state_query(state, "k", MapGet(), "old").group_by("k")
    inputs = () if type(asked) is Count else ("v",)
    answers.aggregate(*inputs, asked, "n").partition_persist(DeltaAppend("known"))
    (group,) = plan(made.graph)
    return group


def test_a_class_below_a_built_in_aggregator_is_left_to_spark() -> None:
    assert topology_below(Count(), Count()).late_on_arrow is not None
    assert topology_below(Count(), Known()).late_on_arrow is None
    assert topology_below(Known(), Count()).late_on_arrow is None


class Widest:
    """A combiner of the user's."""

    def init(self, value: Any) -> int:
        return len(repr(value))

    def combine(self, a: int, b: int) -> int:
        return max(a, b)

    def zero(self) -> int:
        return 0


@pytest.mark.long
def test_several_aggregates_of_the_users_at_once_have_one_pass(spark: SparkSession, tmp_path: Path) -> None:
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout("k string, v double"))
    kept = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), "v", Sum(), "total")
    asked = rows.state_query(kept, "k", MapGet(), "old")
    for n, stream in enumerate((asked, asked.group_by("k"))):
        chain = stream.chained_agg().aggregate("old", Widest(), "w long").aggregate("v", Max(), "m").chain_end()
        chain.partition_persist(DeltaAppend(f"chained{n}"))
        one = stream.chained_agg().aggregate("old", Widest(), "w long").aggregate(Count(), "n").chain_end()
        one.project("w").partition_persist(DeltaAppend(f"projected{n}"))
    (group,) = plan(made.graph)
    given = [("a", 1.5), (None, NAN), ("a", None), ("b", -0.0)]
    assert agree(spark, tmp_path, group, given, [("a", 2.0), (None, 1.0)], own=False)


def topology_of_two_keys(with_columns: bool) -> GroupPlan:
    """Two keys, one of them null at times; nested values; several aggregates at once, of Trident's or of PySpark's."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout(f"k string, j bigint, v double, inner {NESTED}"))
    last = rows.partition_persist(DeltaMapState("last"), None, Upsert(("k", "j")))
    sums = rows.group_by("k", "j").persistent_aggregate(DeltaMapState("sums"), "v", Sum(), "total")
    sums.new_values_stream().partition_persist(DeltaAppend("news"))
    asked = rows.state_query(last, "k, j", MapGet(), "old, before").state_query(sums, "k, j", MapGet(), "total")
    asked.partition_persist(DeltaAppend("asked"))
    grouped = asked.group_by("k", "j").chained_agg()
    grouped.aggregate(Count(), "n").aggregate("old", Max(), "most").aggregate(
        "total", Sum(), "s"
    ).chain_end().partition_persist(DeltaAppend("chained"))
    asked.chained_agg().aggregate("old", Min(), "least").aggregate(Count(), "n").chain_end().partition_persist(
        DeltaAppend("whole")
    )
    if with_columns:
        columns = [F.sum("v").alias("s"), F.max("before.a").alias("a"), F.count_if(F.col("old").isNull()).alias("new")]
        asked.group_by("k").agg(*columns).partition_persist(DeltaAppend("columns"))
        asked.agg(F.max(F.size("before.b")).alias("longest")).partition_persist(DeltaAppend("one"))
        asked.where("before.a > 1 or k is null").partition_persist(DeltaAppend("chosen"))
    (group,) = plan(made.graph)
    return group


@pytest.mark.parametrize("with_columns", sample([False, True], True), ids=["built-in aggregators", "columns"])
def test_the_forms_agree_on_two_keys_nested_values_and_several_aggregates_at_once(spark, tmp_path, with_columns):
    group = topology_of_two_keys(with_columns)
    kinds = {one.name: to_arrow_schema(one.schema, timezone="UTC") for one in group.bindings}
    assert with_columns or group.copied_states == {"last", "sums"}

    def inner(a: int | None, *b: str | None) -> dict[str, Any]:
        return {"a": a, "b": list(b)}

    last = [("x", 1, 0.5, inner(7, "p", None)), ("x", 2, NAN, None), (None, None, -0.0, inner(None))]
    stored = {
        "last": pa.table(dict(zip(kinds["last"].names, zip(*last))), kinds["last"]),
        "sums": pa.table({"k": ["x", None], "j": [1, 1], "total": [2.0, None]}, kinds["sums"]),
    }
    rows = [
        ("x", 1, 1.5, inner(1)),
        ("x", 2, None, None),
        (None, None, 0.0, inner(2, "q")),
        (None, 1, NAN, inner(3)),
        ("y", None, -0.0, inner(4, "r", "s")),
        ("x", 1, 2.5, inner(None, "t")),
    ]
    assert agree(spark, tmp_path, group, rows, stored, own=None if with_columns else True)


@pytest.mark.long
def test_a_sum_that_does_not_fit_fails_in_each_form(spark: SparkSession, tmp_path: Path) -> None:
    group = topology("int", "bigint", Sum())
    assert not agree(spark, tmp_path, group, [(1, 1)], [(1, 2**63 - 1)], own=True)


def task_of(value: Any) -> int:
    context: Any = TaskContext.get()
    return context.partitionId()


@pytest.mark.long
def test_users_code_stays_parallel_before_a_step_that_needs_all_rows(spark: SparkSession) -> None:
    """A hint has spread the rows; the step is in the same segment, or in another one, behind a merge."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout("k string, v bigint"))
    kept = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), Count(), "n")
    asked = rows.state_query(kept, "k", MapGet(), "old").project("v")
    tasks = [asked.partition_by("v").parallelism_hint(4).each("v", task_of, "task int") for _ in range(2)]
    tasks.append(tasks[1].merge(asked.each("v", task_of, "task int")))
    for n, stream in enumerate((tasks[0], tasks[2])):
        stream.first_n(100).project("task").partition_persist(DeltaAppend(f"tasks{n}"))
    (group,) = plan(made.graph)
    inputs = between(group, early(spark, group, [("a", n) for n in range(40)]))
    (binding,) = [one for one in group.bindings if one.name == "kept"]
    found = by_spark(spark, group, inputs, {"kept": to_arrow_schema(binding.schema, timezone="UTC").empty_table()})
    for n, rows in enumerate((40, 80)):
        assert found[f"tasks{n}"].num_rows == rows and len(set(found[f"tasks{n}"].column("task").to_pylist())) >= 4


@pytest.mark.long
def test_rows_that_are_moved_to_the_values_they_look_up_come_back_to_their_places(spark: SparkSession) -> None:
    """To code behind the look-up each row is in the task in which it was, and behind the row that was before it."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout("k string, v bigint"))
    kept = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), Count(), "n")
    asked = rows.state_query(kept, "k", MapGet(), "old").state_query(kept, "k", MapGet(), "again")
    asked.each("v", task_of, "task int").partition_persist(DeltaAppend("tasks"))
    (group,) = plan(made.graph)
    (boundary,) = group.lowered.boundaries.values()
    (binding,) = [one for one in group.bindings if one.name == "kept"]
    schema = StructType(list(boundary.fields))
    given = [{"k": f"k{n * 7 % 40}" if n % 9 else None, "v": n} for n in range(200)]
    frame = spark.createDataFrame(spark.sparkContext.parallelize(given, 5), schema).localCheckpoint()
    stored = spark.createDataFrame([(f"k{n}" if n else None, n) for n in range(0, 40, 2)], binding.schema)
    hints: list[str] = []

    def look_up(_: Any, keys: Any) -> Any:
        hints.append(str(keys._jdf.queryExecution().analyzed()))
        return stored

    def found() -> list[Any]:
        with group.build_late({boundary.name: frame}, BatchInfo(ATTEMPT), look_up) as late:
            return late["tasks"].collect()

    few = found()
    with as_if_many():
        many = found()
    assert many == few and len({row.task for row in few}) == 5 and [row.v for row in few] == list(range(200))
    assert few[14].old == few[14].again == 18 and few[18].old == 0 and few[1].old is None
    assert [("strategy=broadcast" in hint, "strategy=merge" in hint) for hint in hints] == [
        *[(True, False)] * 2,
        *[(False, True)] * 2,
    ]


def spread_rows(count: int) -> GroupPlan:
    """Windows, dedup, aggregates, best rows of rows that a hint has spread; of 0 partitions they are as they come."""
    made = TridentTopology("late")
    rows = made.new_stream("rows", RowsSpout("k string, v bigint, at timestamp")).with_watermark("at", "0 seconds")
    kept = rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), Count(), "n")
    spread = rows.state_query(kept, "k", MapGet(), "old")
    spread = spread.partition_by("v").parallelism_hint(count) if count else spread
    windowed = spread.tumbling_window("1 minute", "open")
    windowed.group_by("k").aggregate("v", Sum(), "s").partition_persist(DeltaAppend("fired"))
    windowed.late_rows().partition_persist(DeltaAppend("late"))
    spread.drop_duplicates("k", within="1 minute", name="seen").project("k").partition_persist(DeltaAppend("first"))
    again = [spread.state_query(kept, "k", MapGet(), name) for name in ("older", "oldest", "third", "fourth")]
    again[0].aggregate(Count(), "n").partition_persist(DeltaAppend("all"))
    again[1].group_by("k").aggregate("v", Sum(), "s").partition_persist(DeltaAppend("sums"))
    again[2].first_n(2, "v", reverse=True).partition_persist(DeltaAppend("top"))
    again[3].max_by("v", scope="batch").partition_persist(DeltaAppend("greatest"))
    (group,) = plan(made.graph)
    return group


@pytest.mark.long
def test_steps_that_need_all_rows_of_a_batch_have_them_behind_a_shuffle(spark: SparkSession) -> None:
    together, spread = spread_rows(0), spread_rows(3)
    # Each second a row; those of "a" are in several partitions.
    times = [dt.datetime(2026, 1, 1, second=n, tzinfo=UTC) for n in range(9)]
    given = [("a" if n % 4 else "b", n, at) for n, at in enumerate(times)]
    given.append(("c", 9, times[0] + dt.timedelta(hours=1)))
    inputs = between(together, early(spark, together, given))
    stored = {
        one.name: to_arrow_schema(one.schema, timezone="UTC").empty_table()
        for one in together.bindings
        if one.name in ("open", "seen", "kept")
    }
    oracle = shown(by_spark(spark, together, inputs, stored))
    assert len(oracle["fired"]) == 2 and len(oracle["first"]) == 3 and oracle["all"] == ["{'n': 10}"]
    assert len(oracle["top"]) == 2 and len(oracle["greatest"]) == 1
    found = shown(by_spark(spark, spread, inputs, stored))
    states = {"open", "seen"}  # their rows have positions, in the order of the rows
    assert {name: rows for name, rows in found.items() if name not in states} == {
        name: rows for name, rows in oracle.items() if name not in states
    }
