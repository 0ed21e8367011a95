"""Every type of value through an append table, as partition column and as plain one, read by Spark and by delta-rs.

Rows are written as a transaction's are; what must come back is the rows alone.
Each value is then asked for with a filter: a file that its statistics, or its
partition's text, leave out by mistake would be missing.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
from decimal import Decimal
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tests.states.keyed_helpers import Group, append
from tests.streams.stream_helpers import stream_of
from trident import DeltaAppend
from trident.coordinators.errors import FieldError, TableError
from trident.states.delta.file_layout import partition_texts
from trident.states.delta.kernel import KernelEngine

NAN, INF, UTC = float("nan"), math.inf, dt.timezone.utc
MICRO = dt.timedelta(microseconds=1)
FIRST, LAST = dt.datetime.min, dt.datetime.max
TIMES = [
    *[FIRST, FIRST + MICRO, dt.datetime(999, 12, 31, 23, 59, 59, 999_999), dt.datetime(1582, 10, 4, 12)],
    *[dt.datetime(1582, 10, 15), dt.datetime(1883, 11, 18, 12, 3, 58, 1), dt.datetime(1970, 1, 1) - MICRO],
    *[dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 456_789), LAST - 1000 * MICRO, LAST],
]
TEXTS = [
    *[" ", "a", "0", "null", "None", "true", "__HIVE_DEFAULT_PARTITION__", "a/b=c", "a%20b", "%", "'\"\\`", "{}\n\r\t"],
    *["\x00x", "é ü 刘备 🙂", "\ud7ff\ue000\uffff", "x" * 31, "x" * 32, "x" * 33, "y" * 40 + "z", "\U0010ffff" * 33],
    *["🙂" * 40, "..", "a:b*?"],
]
FLOATS = [0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, 2.0**60, 2.0**-30]
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    "float": [*FLOATS, 3.4028234663852886e38, 1.401298464324817e-45, 0.10000000149011612],
    "double": [*FLOATS, 1.7976931348623157e308, 5e-324, 0.1, 1e16, 1e-7, 2.0**53 + 2],
    "decimal(10,2)": list(map(Decimal, ("0.00", "-0.01", "99999999.99", "-99999999.99", "1.10"))),
    "decimal(38,18)": [Decimal(n) for n in ("0E-18", "1E-18", "-1E-18", "9" * 20 + "." + "9" * 18)],
    "decimal(38,0)": list(map(Decimal, ("0", "9" * 38, "-" + "9" * 38, "1000000000000000000000"))),
    "date": [time.date() for time in TIMES],
    "timestamp": [time.replace(tzinfo=UTC) for time in TIMES],
    "timestamp_ntz": TIMES,
    "string": TEXTS,
    "binary": [b"", b"abc", b"\x00\xff", bytes(range(256))],
}
NOT_IN_PARTITIONS = ("binary",)
ALL = os.environ.get("TRIDENT_TYPES") == "all"
MORE = pytest.mark.skipif(not ALL, reason="make types runs it")


def same(a: Any, b: Any) -> bool:
    """To the bit, but for which NaN it is."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b and type(a) is type(b)


def stored(value: Any) -> Any:
    """What comes back of a partition column: Delta's null has the text of an empty string."""
    return None if value == "" else value


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory) -> tuple[str, list[tuple], StructType]:
    """Columns of each type: p0, p1 … are the table's partition columns, v0, v1 … hold the same values."""
    kinds = list(VALUES)
    parts = [f"p{at}" for at, kind in enumerate(kinds) if kind not in NOT_IN_PARTITIONS]
    columns = [f"p{at} {kind}" for at, kind in enumerate(kinds) if f"p{at}" in parts]
    schema = ", ".join(["n bigint", *columns, *[f"v{at} {kind}" for at, kind in enumerate(kinds)]])
    length = max(map(len, VALUES.values())) + 2
    rows = []
    for n in range(length):
        # The values of a type one after the other, then null; of strings also the empty one.
        row = []
        for kind, values in VALUES.items():
            values = [*values, None, *([""] if kind == "string" else [])]
            row.append(values[n % len(values)])
        rows.append((n, *[value for at, value in enumerate(row) if f"p{at}" in parts], *row))
    folder = tmp_path_factory.mktemp("types")
    group = Group(spark, KernelEngine(spark), folder, append("typed", schema, parts))
    group.publish(1, {"typed": rows})
    return str(folder / "typed"), rows, group.bindings["typed"].schema


def expected(rows: list[tuple], schema: StructType) -> list[dict[str, Any]]:
    names = schema.fieldNames()
    return [{name: stored(value) if name.startswith("p") else value for name, value in zip(names, row)} for row in rows]


def differences(found: list[dict[str, Any]], wanted: list[dict[str, Any]], schema: StructType) -> list[str]:
    assert [row["n"] for row in found] == [row["n"] for row in wanted]
    return [
        f"{field.name} {field.dataType.simpleString()}: {one[field.name]!r} came back as {row[field.name]!r}"
        for row, one in zip(found, wanted)
        for field in schema.fields
        if not same(one[field.name], row[field.name])
    ]


def utc(found: pa.Table) -> list[dict[str, Any]]:
    columns = {}
    for name, column in zip(found.column_names, found.columns):
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None))
        columns[name] = column.to_pylist()
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    return sorted(rows, key=lambda row: row["n"])


def test_spark_reads_every_value_as_it_was(spark, table) -> None:
    path, rows, schema = table
    found = spark.read.format("delta").load(path).toArrow()
    assert not differences(utc(found), expected(rows, schema), schema)


def test_delta_rs_reads_every_value_as_it_was(table) -> None:
    path, rows, schema = table
    # By its own reader; the one through pyarrow takes the text "-0.01" of a decimal for 0.-1 (deltalake 1.6).
    found = pa.table(deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("select * from t"))
    assert not differences(utc(found), expected(rows, schema), schema)


@pytest.mark.long
@pytest.mark.parametrize("files", ["a file a row", pytest.param("one file", marks=MORE)])
def test_a_row_is_found_by_its_values(spark, table, tmp_path, files: str) -> None:
    """Files that cannot have a value are skipped, by their partition's text or their statistics; none that can."""
    path, rows, schema = table
    wanted = expected(rows, schema)
    if files == "one file":
        group = Group(spark, KernelEngine(spark), tmp_path, append("typed", schema.simpleString()[7:-1]))
        group.publish(1, {"typed": rows})
        path, wanted = str(tmp_path / "typed"), [dict(zip(schema.fieldNames(), row)) for row in rows]
    frame = spark.read.format("delta").load(path)
    asked, right = [], {}
    for at, name in enumerate(name for name in schema.fieldNames() if name != "n"):
        values = [row[name] for row in wanted if row[name] is not None]
        # Without ALL one of each kind, and of floats NaN: bounds must not leave it out.
        some = [values[at % len(values)]] if name.startswith("v") else []
        for value in values if ALL else [*some, *[value for value in values if value != value][:1]]:
            nan = isinstance(value, float) and value != value
            number = len(asked)
            right[number, name, repr(value)] = [
                row["n"] for row in wanted if row[name] == value or nan and row[name] != row[name]
            ]
            some_rows = frame.where(F.col(name) == literal(value, schema[name].dataType))
            asked.append(some_rows.select(F.lit(number).alias("number"), "n"))
    found: dict[int, list[int]] = {}
    for row in functools.reduce(DataFrame.unionAll, asked).collect():
        found.setdefault(row.number, []).append(row.n)
    assert {key: sorted(found.get(key[0], [])) for key in right} == right


def literal(value: Any, kind: Any) -> Any:
    if isinstance(value, (dt.date, dt.datetime)):  # py4j's own way goes through a local time
        value = str(value).replace("+00:00", "Z")
    return F.lit(value).cast(kind)


@pytest.mark.parametrize("kind", ["binary", "array<string>", "struct<a: long>", "map<string, long>"])
def test_a_type_whose_text_is_not_read_back_is_refused_when_the_topology_is_built(kind: str) -> None:
    with pytest.raises(FieldError, match="cannot be partitioned by field 'p'"):
        stream_of(f"p {kind}, n long").partition_persist(DeltaAppend("rows", partition_columns="p"))


def test_a_date_that_has_no_text_is_named() -> None:
    with pytest.raises(TableError, match="partition column 'day'.*years 1 to 9999"):
        partition_texts("day", pa.array([3_000_000], pa.date32()))


def test_every_nan_is_in_one_file_and_minus_zero_keeps_its_sign() -> None:
    assert partition_texts("x", pa.array([NAN, float("-nan"), 0.0, -0.0])) == ["NaN", "NaN", "0.0", "-0.0"]
