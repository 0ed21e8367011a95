"""Rows as bytes: Spark's equal keys are equal bytes, and each value comes back as it was."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.states.core.copy_rows import RowCodec, hashes, shards_of
from trident.states.core.copyable import why_not_copied
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, look_up

pytestmark = pytest.mark.usefixtures("spark")  # it reads the types

NAN = float("nan")
BERLIN = "Europe/Berlin"
# The hour that comes twice, on both sides of it, and dates beyond Python's: as micros and as days.
INSTANTS = [0, -1, 1_572_136_200_000_000, 1_572_139_800_000_000, 253_402_300_800_000_000, -62_135_596_800_000_001]
VALUES = {
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "tinyint": [0, -128, 127],
    "boolean": [False, True],
    "string": ["", "a", "ä", "𝄞", "a\x00", "A"],
    "binary": [b"", b"a", b"\xff\x00"],
    "double": [0.0, -0.0, NAN, 1.5, float("inf"), -float("inf"), 5e-324],
    "float": [0.0, -0.0, NAN, 1.5],
    "decimal(38,2)": [Decimal("0.00"), Decimal("-1.10"), Decimal(10**36 - 1)],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1970, 1, 1)],
    "timestamp": INSTANTS,
    "timestamp_ntz": INSTANTS,
    "array<double>": [[], [None], [0.0], [-0.0], [NAN, 1.0]],
    "struct<a: double, b: string>": [{"a": 0.0, "b": "x"}, {"a": -0.0, "b": "x"}, {"a": NAN, "b": None}],
    "array<struct<t: timestamp>>": [[{"t": 0}], [{"t": -1}], []],
    "map<string, double>": [[], [("a", NAN), ("b", None)], [("a", -0.0)]],
    "map<int, array<decimal(5,1)>>": [[(1, [Decimal("1.5"), None])], [(1, None)]],
}


def arrow_schema(ddl: str, zone: str = "UTC") -> pa.Schema:
    return to_arrow_schema(StructType.fromDDL(ddl), timezone=zone)


def table(ddl: str, *columns: list, zone: str = "UTC") -> pa.Table:
    schema = arrow_schema(ddl, zone)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema)], schema=schema)


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_exactly_from_a_copy(tmp_path, kind):
    rows = table(f"k bigint, v {kind}", list(range(len(VALUES[kind]) + 1)), [*VALUES[kind], None])
    codec, mark = RowCodec(rows.schema, ["k"]), CopyMark("inc", 1, "", "")
    found = CopyAsOf(tmp_path / "copy", mark, rows.schema, ("k",))
    copy = LocalCopy(found.folder, 1 << 24, found.values)
    copy.apply([codec.rows(rows)], None, mark)
    again, there = look_up(found, codec.key_array(pa.table({"k": [*range(rows.num_rows), -1]})))
    copy.close()
    assert again["v"].type == rows["v"].type and there.tolist() == [True] * rows.num_rows + [False]

    def shown(column):
        """As text, since NaN is not equal to itself and the sign of a zero counts; instants as numbers."""
        instants = pa.types.is_timestamp(column.type)
        return str((column.cast(pa.int64()) if instants else column).to_pylist())

    assert shown(again["v"][:-1]) == shown(rows["v"]) and again["v"][-1].as_py() is None


@pytest.mark.parametrize("kind", [kind for kind in VALUES if not kind.startswith("map")])
def test_keys_are_equal_bytes_where_spark_takes_them_for_equal(spark, kind):
    values = [*VALUES[kind], None]
    pairs = table(f"a {kind}, b {kind}", [a for a in values for _ in values], [b for _ in values for b in values])
    codecs = [RowCodec(pairs.schema.remove(1 - n), [name]) for n, name in enumerate("ab")]
    ours = [a == b for a, b in zip(*(codec.encode_keys(pairs) for codec in codecs))]
    joined = spark.createDataFrame(pairs).select("a", "b").alias("l")
    same = joined.select((F.col("a").eqNullSafe(F.col("b"))).alias("same")).collect()
    # Spark's joins and groups take 0.0 and -0.0 for one, its comparison of nested ones does not.
    grouped = [len({key for key in one}) == 1 for one in zip(*(codec.encode_keys(pairs) for codec in codecs))]
    assert ours == grouped
    counts = joined.groupBy("a").count().count()
    assert len(set(codecs[0].encode_keys(pairs))) == counts
    if "<" not in kind:
        assert ours == [row.same for row in same]


def test_a_session_in_another_zone_asks_for_the_same_keys():
    utc, local = (table("k timestamp, v date", INSTANTS, [None] * len(INSTANTS), zone=zone) for zone in ("UTC", BERLIN))
    codec = RowCodec(utc.schema, ["k"])
    assert codec.encode_keys(utc) == codec.encode_keys(local)
    assert len(set(codec.encode_keys(utc))) == len(INSTANTS)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if not kind.startswith("map")])
def test_a_key_comes_back_from_its_bytes(kind):
    values = [*VALUES[kind], None]
    rows = table(
        f"k {kind}, w string, l {kind}, v bigint", values, ["é"] * len(values), values[::-1], [0] * len(values)
    )
    for keys in (["k"], ["k", "l"], ["k", "w", "l"]):
        codec = RowCodec(rows.schema, keys)
        encoded = codec.encode_keys(rows)
        again = codec.decode_keys(encoded)
        assert again.schema.types == [rows.schema.field(name).type for name in keys]
        assert codec.encode_keys(again) == encoded and codec.decode_keys([]).num_rows == 0
        if kind not in ("double", "float") and "<" not in kind:
            assert again == rows.select(keys)


def test_a_position_is_an_integer_or_an_instant_of_keys_or_values():
    rows = table("k timestamp, l int, v bigint, t timestamp", INSTANTS, [1] * 6, range(6), INSTANTS[::-1])
    codec = RowCodec(rows.schema, ["k", "l"])
    micros = rows["k"].cast(pa.int64()).to_pylist()
    assert codec.plain_keys(codec.encode_keys(rows)) == list(zip(micros, [1] * 6))
    for column, expected in (("k", micros), ("l", [1] * 6), ("v", list(range(6))), ("t", micros[::-1])):
        assert codec.rows(rows, column).positions.to_pylist() == expected
    assert codec.rows(rows).positions.null_count == 6


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.text())), min_size=2, max_size=6))
def test_keys_of_two_columns_do_not_run_together(pairs):
    rows = table("a string, b string, v bigint", [a for a, _ in pairs], [b for _, b in pairs], [0] * len(pairs))
    codec = RowCodec(rows.schema, ["a", "b"])
    assert len(set(codec.encode_keys(rows))) == len(set(pairs))


@pytest.mark.parametrize(
    ("ddl", "keys", "reason"),
    [
        ("k string, v bigint", ["k"], None),
        ("v bigint", [], "no keys"),
        ("k string collate UTF8_LCASE, v bigint", ["k"], "values that differ may be equal"),
        ("k string, v string collate UTF8_LCASE", ["k"], "values that differ may be equal"),
        ("k string, v variant", ["k"], "no copy"),
        ("k map<string, string>, v bigint", ["k"], "no copy"),
        ("k struct<a: map<int, int>>, v bigint", ["k"], "no copy"),
    ],
)
def test_rows_that_cannot_be_copied_exactly_are_named(ddl, keys, reason):
    found = why_not_copied(StructType.fromDDL(ddl), keys)
    assert found is None if reason is None else reason in found


@given(st.lists(st.text(), max_size=200), st.integers(1, 100))
def test_a_shard_is_a_range_of_hashes_that_a_key_alone_decides(words: list[str], count: int) -> None:
    keys = RowCodec(arrow_schema("word string"), ["word"]).key_array(table("word string", words))
    hashed, shards = hashes(keys), shards_of(keys, count).to_numpy()
    assert len(shards) == len(words) and all(0 <= shard < count for shard in shards)
    assert (np.diff(shards[np.argsort(hashed)].astype(np.int64)) >= 0).all(), "so it is one part of each run"
    for at in range(len(words)):
        assert shards_of(keys.slice(at, 1), count)[0].as_py() == shards[at]
