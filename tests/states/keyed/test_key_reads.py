"""Keys that are read without Spark have the values that Spark reads, of any type, whatever the files are like."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import trident
from tests.states.keyed_helpers import Group, Native, append, compactor_of, comparable, keyed
from trident.coordinators.errors import ConfigError, FieldError, TableError
from trident.states.core.copy_rows import RowCodec
from trident.states.core.typed_values import frozen
from trident.states.delta.data_files import wanted_rows
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.key_reads import KeyReader, NotByKey, RequestedKeys, held_values
from trident.states.keyed.reading import read_state, values_by_spark

NAN = float("nan")
UTC = datetime.timezone.utc
AT = datetime.datetime(2024, 1, 1, 0, 0, 0, 1, UTC)
LONG = "x" * 40
# Of each type values that are near each other, and those at which statistics go wrong.
VALUES = {
    "n bigint": [0, 1, -1, 2**62, None],
    "d double": [0.0, -0.0, 1.5, NAN, float("-inf"), None],
    "f float": [0.0, -0.0, 1.5, NAN, None],
    "s string": ["", "a", "b", LONG, LONG + "a", LONG + "\U0010ffff", "\U0010ffff" * 40, None],
    "m decimal(20,3)": [Decimal("0.000"), Decimal("-0.001"), Decimal("12345678901234567.890"), None],
    "p decimal(8,2)": [Decimal("1.50"), Decimal("-1.50"), None],
    "at timestamp": [AT, AT.replace(microsecond=2), AT.replace(year=1500), None],
    "lt timestamp_ntz": [AT.replace(tzinfo=None), AT.replace(tzinfo=None, microsecond=999_999), None],
    "day date": [datetime.date(2024, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
    "b binary": [b"", b"\xff" * 40, b"\x00", None],
    "t boolean": [True, False, None],
    "k struct<a: double, b: array<string>>": [{"a": NAN, "b": ["x", None]}, {"a": -0.0, "b": None}, None],
}
EVERY_KEY = list(VALUES)


def got(group, name, keys, txid=None, aggregator=None, reader=None):
    reader = reader or KeyReader(group.warehouse)
    return reader.get(name, reader.requested(name, keys), txid, aggregator)


def by_spark(group, name, txid=None, aggregator=None):
    """Key → values, of all keys."""
    binding = group.bindings[name]
    kinds, width = [field.dataType for field in binding.schema.fields], len(binding.keys)
    rows = read_state(group.spark, group.warehouse, name, txid, aggregator).collect()
    plain = [tuple(comparable(kind, value) for kind, value in zip(kinds, row)) for row in rows]
    return {frozen(row[:width]): row[width:] for row in plain}


def same(group, name, keys, found, oracle):
    binding = group.bindings[name]
    kinds, width = [field.dataType for field in binding.schema.fields], len(binding.keys)
    for key, values in zip(keys, found, strict=True):
        told = frozen(tuple(comparable(kind, value) for kind, value in zip(kinds, key)))
        given = values and tuple(comparable(kind, value) for kind, value in zip(kinds[width:], values.values()))
        assert frozen(given) == frozen(oracle.get(told)), key
        assert values is None or list(values) == list(binding.value_fields)


# --- against Spark -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_types(spark, engine, tmp_path_factory):
    """A state of every key type, and of two key columns: parts in table and log, whole values, deletes, nulls."""
    columns = ", ".join(EVERY_KEY)
    names = [column.split()[0] for column in EVERY_KEY]
    group = Group(
        spark,
        engine,
        tmp_path_factory.mktemp("types"),
        keyed("sums", f"{columns}, c bigint, total double", names, Native("sum")),
        keyed("last", f"{columns}, c bigint, note string", names, merging="last"),
    )
    for txid in range(1, 6):
        sums, last = [], []
        for at, column in enumerate(EVERY_KEY):
            for number, value in enumerate(VALUES[column]):
                if (number + txid) % 3:
                    row = tuple(value if n == at else VALUES[other][txid % 2] for n, other in enumerate(EVERY_KEY))
                    sums.append((*row, txid, None if txid == 2 else 0.5))
                    last.append((*row, txid, None, (number + txid) % 5 == 0))
        group.publish(txid, {"sums": _unique(sums, len(names)), "last": _unique(last, len(names))})
        if txid == 3:
            compactor_of(group, "sums").merge_once(3, force=True)
            compactor_of(group, "last").merge_once(2, force=True)
    return group, {name: by_spark(group, name) for name in ("sums", "last")}


def _unique(rows, width):
    return list({repr(frozen(row[:width])): row for row in rows}.values())


KEYS = st.lists(st.tuples(*map(st.sampled_from, VALUES.values())), min_size=0, max_size=3)


@pytest.mark.long
@given(st.data())
@settings(max_examples=20)
def test_any_key_of_any_type_has_the_value_that_spark_reads(all_types, data):
    group, oracle = all_types
    name = data.draw(st.sampled_from(["sums", "last"]))
    rows = [row[: len(EVERY_KEY)] for _, row in group.rows[name]]
    keys = data.draw(st.lists(st.sampled_from(rows), max_size=4)) + data.draw(KEYS)
    same(group, name, keys, got(group, name, keys), oracle[name])


def test_all_keys_as_of_transactions_before_between_and_after_merges(merged_tables):
    words = ["the", *(f"w{n}" for n in range(8)), None]
    for txid in (0, 1, 2, 4, 6, None):
        found = got(merged_tables, "counts", words, txid)
        expected = merged_tables.expected("counts", 6 if txid is None else txid)
        assert found == [values and {"count": values[0]} for values in (expected.get((word,)) for word in words)]
    with pytest.raises(SnapshotUnavailable):
        got(merged_tables, "counts", words, 7)


def test_it_goes_on_with_the_tables_and_a_half_published_transaction_is_not_read(merged):
    reader = KeyReader(merged.warehouse)
    for txid in (7, 8):
        merged.publish(txid, {"counts": [("the", 2)], "lines": [("line",)]})
        assert got(merged, "counts", ["the"], reader=reader) == [{"count": 2 * txid}]
    merged.publish(9, {"counts": [("the", 2)]}, only=["counts"])
    assert got(merged, "counts", ["the"], reader=reader) == [{"count": 16}]
    merged.publish(9, {"lines": [("line",)]}, only=["lines"])
    compactor_of(merged, "counts").merge_once(9, force=True)
    assert got(merged, "counts", ["the"], reader=reader) == [{"count": 18}]


def test_a_state_without_keys_has_one_row(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed("total", "n bigint, m bigint", (), Native("sum")))
    assert trident.get(tmp_path, "total") is None
    for txid in (1, 2, 3):
        group.publish(txid, {"total": [(txid, None)]})
    assert trident.get(tmp_path, "total") == {"n": 6, "m": None}
    assert trident.get(tmp_path, "total", txid=2) == {"n": 3, "m": None}


# --- files of any kind --------------------------------------------------------------------------------


COLUMNS = {
    "n": (pa.int64(), st.integers(-3, 3)),
    "d": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, NAN, -1.5])),
    "f": (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, NAN, 0.1])),
    "s": (pa.string(), st.sampled_from(["", "a", LONG, LONG + "b", "\U0010ffff"])),
    "b": (pa.binary(), st.sampled_from([b"", b"\xff", b"\xff" * 70])),
    "m": (pa.decimal128(20, 3), st.sampled_from([Decimal("1.000"), Decimal("-1.001")])),
    "p": (pa.decimal128(8, 2), st.sampled_from([Decimal("1.50"), Decimal("-1.50")])),
    "at": (pa.timestamp("us", "UTC"), st.sampled_from([AT, AT.replace(year=1500), AT.replace(microsecond=2)])),
    "t": (pa.bool_(), st.booleans()),
    "y": (pa.date32(), st.sampled_from([datetime.date(1, 1, 1), datetime.date(2024, 1, 1)])),
    "l": (pa.list_(pa.float64()), st.lists(st.sampled_from([0.0, -0.0, NAN, None]), max_size=2)),
}


@given(st.data())
def test_of_files_of_every_writer_exactly_the_rows_of_the_keys_are_read(tmp_path_factory, data):
    """Sorted by us, or not sorted; without statistics; with row groups of any size; in another writer's types."""
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=2, unique=True))
    schema = pa.schema([(name, COLUMNS[name][0]) for name in names])
    rows = st.tuples(*(st.none() | COLUMNS[name][1] for name in names))
    stored, asked = data.draw(st.lists(rows, min_size=1, max_size=12)), data.draw(st.lists(rows, max_size=3))
    columns = [pa.array(column, kind) for column, kind in zip(zip(*stored), schema.types)]
    table = pa.table([*columns, pa.array(range(len(stored)), pa.int64())], names=[*names, "row"])
    folder = tmp_path_factory.mktemp("files")
    kind = data.draw(st.sampled_from(["ours", "plain", "bare", "int96", "arrow"]))
    if kind == "ours":
        (report,) = write_partition(
            FileTarget("t", str(folder), "f", sorted_by=data.draw(st.sampled_from([(), tuple(names)]))),
            table.to_batches(),
        )
        stats = json.loads(report["stats"])
        file = LiveFile(report["path"], report["size"], {}, stats, len(stored), 0)
    else:
        pq.write_table(
            table,
            folder / "f",
            row_group_size=data.draw(st.sampled_from([1, 3, 100])),
            write_statistics=kind != "bare",
            use_deprecated_int96_timestamps=kind == "int96",
            store_schema=kind == "arrow",
            store_decimal_as_integer=kind == "arrow",
        )
        file = LiveFile("f", (folder / "f").stat().st_size, {}, None, None, 0)
    codec = RowCodec(schema, names)
    keys = pa.table([pa.array([row[at] for row in asked], kind) for at, kind in enumerate(schema.types)], names=names)
    wanted = RequestedKeys(keys, codec, len(asked))
    found = [row for part in wanted_rows(str(folder), [file], table.schema, wanted) for row in part["row"].to_pylist()]
    codes = codec.encode_keys(table)
    assert sorted(found) == [at for at, code in enumerate(codes) if code in wanted.codes]


def test_of_a_sorted_file_one_row_group_is_decoded(tmp_path, monkeypatch):
    table = pa.table({"word": [f"w{n:06}" for n in range(20_000)], "n": range(20_000)})
    (report,) = write_partition(FileTarget("t", str(tmp_path), "f", sorted_by=("word",)), table.to_batches())
    file = LiveFile(report["path"], report["size"], {}, None, None, 0)
    decoded = []
    read = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, at, **more: (decoded.append(at), read(self, at, **more))[1]
    )
    keys = pa.table({"word": ["w013000", "w013001"]})
    wanted = RequestedKeys(keys, RowCodec(table.schema, ["word"]), 2)
    assert [row for part in wanted_rows(str(tmp_path), [file], table.schema, wanted) for row in part["n"].to_pylist()]
    assert set(decoded) == {3}
    decoded.clear()
    (outside,) = [RequestedKeys(pa.table({"word": ["x"]}), RowCodec(table.schema, ["word"]), 1)]
    assert not list(wanted_rows(str(tmp_path), [file], table.schema, outside)) and not decoded


# --- logs, and what is refused -------------------------------------------------------------------------


def test_a_log_says_the_same_without_a_jvm(merged, engine):
    for txid in range(7, 11):
        merged.publish(txid, {"counts": [("the", 2)], "lines": [(f"{txid}",)]})
    for name in ("counts", "counts__log", "lines"):
        path = str(merged.warehouse / name)
        newest = engine.load(path)
        if name != "counts":
            assert engine.run_maintenance(newest, 1)
        for version in (newest.version, newest.version - 1):
            ours, theirs = DeltaLog(path).at(version), engine.load_version(path, version)
            assert sorted(ours.files) == sorted(file.path for file in engine.live_files(theirs))
            assert {file.path: file for file in engine.live_files(theirs)} == dict(ours.files)
            assert ours.control("trident") == theirs.control("trident") and ours.schema_json == theirs.schema_json
            app = merged.descriptor("counts").merge_app
            assert ours.txn_version(app) == theirs.txn_version(app)
            assert ours.why_not_rows is None


@pytest.mark.parametrize("harm", ["cut", "gone", "longer"])
@pytest.mark.parametrize("table", ["counts", "counts__log"])
def test_a_file_of_another_length_than_the_log_says_is_not_read(merged, harm, table):
    reader = KeyReader(merged.warehouse)
    assert got(merged, "counts", ["the"], reader=reader) == [{"count": 12}]  # with footers that are remembered
    log = DeltaLog(merged.warehouse / table).at()
    for path, file in log.files.items():
        full = Path(log.path) / path
        if harm == "gone":
            full.unlink()
        else:
            os.truncate(full, file.size - 1 if harm == "cut" else file.size + 1)
    for key in ("the", "a word that no file has"):
        with pytest.raises(TableError, match="a data file of table .* is not what was written"):
            got(merged, "counts", [key], reader=reader)


@pytest.mark.long
def test_a_table_that_asks_more_than_parquet_is_refused_by_name(merged):
    path = str(merged.warehouse / "counts")
    merged.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert got(merged, "counts", ["the"]) == [{"count": 12}]  # none is there yet
    merged.spark.sql(f"OPTIMIZE delta.`{path}`")
    DeltaTable.forPath(merged.spark, path).delete("word = 'w1'")
    with pytest.raises(NotByKey, match=r"deletion vectors.*trident\.read"):
        got(merged, "counts", ["the"])


def test_keys_that_do_not_fit_are_refused(merged, spark, engine, tmp_path):
    where = merged.warehouse
    assert trident.get(where, "counts", "the") == {"count": 12} and trident.get(where, "counts", "no") is None
    assert (
        trident.get(where, "counts", ["no", "the"]) == [None, {"count": 12}] and trident.get(where, "counts", []) == []
    )
    for key in (("the",), {"word": "the"}):
        assert trident.get(where, "counts", key) == {"count": 12}
    for key in (7, b"the", ["the", 7], {"words": "the"}, ("the", 1), (), {"the"}):
        with pytest.raises(FieldError, match="key"):
            trident.get(where, "counts", key)
    with pytest.raises(TableError, match="has no keys to be read by"):
        trident.get(where, "lines", "line 1")
    with pytest.raises(TableError, match="there is no state 'words'"):
        trident.get(where, "words", "the")
    group = Group(
        spark, engine, tmp_path / "two", keyed("two", "k string collate UTF8_LCASE, n bigint", ("k",)), append("other")
    )
    with pytest.raises(NotByKey, match="may be equal"):
        got(group, "two", ["a"])
    several = keyed("several", "day date, at timestamp, n bigint", ("day", "at"))
    group = Group(spark, engine, tmp_path / "several", several)
    day = datetime.date(2024, 1, 1)
    group.publish(1, {"several": [(day, AT, 1)]})
    assert got(group, "several", [(day, AT), {"at": AT, "day": day}]) == [{"n": 1}] * 2
    for key in ((day, AT.replace(tzinfo=None)), (AT, AT), (day, "2024-01-01"), day, (day, 1.5)):
        with pytest.raises(FieldError, match="key"):
            got(group, "several", [key])


class Text(str):
    """A text to Python."""


ODD = {
    "d": [1, np.int64(1), np.float32(1), True, "1", Decimal(1), Fraction(1), 2**53 + 1, 10**400, b"1"],
    "f": [1, 0.1, np.float64(1), 2**24 + 1, False],
    "m": [1, Decimal("1.0"), Decimal("1.0001"), 10**18, 1.0, True, np.int64(1)],
    "n": [np.int64(1), np.int8(1), True, 1.0, 2**63, Decimal(1), "1"],
    "at": [AT, AT.astimezone(datetime.timezone(datetime.timedelta(hours=5))), AT.replace(tzinfo=None), AT.date(), 1],
    "lt": [AT.replace(tzinfo=None), AT, AT.date()],
    "day": [AT.date(), AT, "2024-01-01", 19723],
    "s": ["a", b"a", 1, Text("a")],
    "b": [b"a", bytearray(b"a"), "a", memoryview(b"a")],
    "l": [[1], (1,), [1.0], 1, ["1"], np.array([1.0])],
    "k": [{"a": 1, "b": 1}, {"a": 1.0}, (1, 1), {"b": 1, "a": 1.0}, {"c": 1}, [1, 1]],
}


def test_an_odd_value_is_the_same_key_to_copies_to_files_and_to_spark_or_to_none(spark, engine, tmp_path):
    kinds = "d double, f float, m decimal(20,3), n bigint, at timestamp, lt timestamp_ntz, day date, s string, b binary"
    schema = f"{kinds}, l array<double>, k struct<a: double, b: bigint>, c bigint"
    names = list(ODD)
    group = Group(spark, engine, tmp_path, keyed("odd", schema, names))
    one = (1.0, 1.0, Decimal(1), 1, AT, AT.replace(tzinfo=None), AT.date(), "a", b"a", [1.0], {"a": 1.0, "b": 1})
    near = (1.0, np.float32(0.1).item(), *one[2:])
    group.publish(1, {"odd": [(*one, 1), (*near, 2)]})
    reader, frame = KeyReader(tmp_path), read_state(spark, tmp_path, "odd")
    copies = StateCopies(tmp_path, 1 << 28, "host", "boot", ["odd"])
    assert copies.as_of(["odd"], 1)
    forms = {
        "copy": lambda keys: held_values(copies, "odd", reader.requested("odd", keys), 1),
        "files": lambda keys: reader.get("odd", reader.requested("odd", keys)),
        "Spark": lambda keys: values_by_spark(frame, "odd", names, keys),
    }
    asked = [(*one[:at], value, *one[at + 1 :]) for at, name in enumerate(names) for value in ODD[name]]
    fitting = [key for key in asked if fits(reader, key)]
    assert len(asked) / 3 < len(fitting) < len(asked) * 2 / 3
    for key in asked:
        if not fits(reader, key):
            for form in forms.values():
                with pytest.raises(FieldError, match="key"):
                    form([key])
    answers = {name: form(fitting) for name, form in forms.items()}
    assert answers["copy"] == answers["files"] == answers["Spark"]
    assert {found["c"] for found in answers["Spark"] if found} == {1, 2}


def fits(reader, key):
    try:
        reader.requested("odd", [key])
    except FieldError:
        return False
    return True


@pytest.mark.parametrize("txid", [-1, 0, True, "5", 1.5])
def test_a_number_that_is_no_transactions_is_refused(merged, spark, txid):
    for read in (
        lambda: trident.get(merged.warehouse, "words", "a", txid=txid),
        lambda: trident.read(spark, merged.warehouse, "words", txid=txid),
    ):
        with pytest.raises(ConfigError, match="this is no transaction; found: .*; expected: a txid: 1, 2, 3"):
            read()


@pytest.mark.long
def test_no_jvm_is_needed(merged):
    code = f"""
import trident
from pyspark import SparkContext
assert trident.get({str(merged.warehouse)!r}, "counts", ["the", "w6"]) == [{{"count": 12}}, {{"count": 1}}]
assert SparkContext._gateway is None
"""
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
