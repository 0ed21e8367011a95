"""FixedBatchSpout replays its batches exactly; a spout's data may be a DataFrame, Arrow or rows."""

from __future__ import annotations

import datetime
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spark.rows import to_dataframe
from trident.spouts.contracts import Backlog, Emitter, ReportsBacklog, SpoutContext, SpoutKind, TridentSpout
from trident.spouts.fed import FixedBatchSpout
from trident.udf.types import as_schema

BATCHES = [[("a", 1), ("b", 2)], [], [("c", 3)]]


def parts(spout, spark=None, tmp_path=None):
    context = SpoutContext(spark, "t", "words", tmp_path, "life")
    return spout.get_coordinator(context), spout.get_emitter(context)


def play(coordinator, emitter, limit=10):
    """The batches until nothing is ready, and the last metadata."""
    batches, previous, txid = [], None, 1
    while coordinator.is_ready(txid) and txid <= limit:
        previous = coordinator.initialize_transaction(txid, previous, None)
        batches.append(list(emitter.emit_batch(TransactionAttempt(txid, 0), previous).data))
        coordinator.success(txid)
        txid += 1
    return batches, previous, txid


def test_it_gives_each_batch_once_and_then_is_not_ready():
    coordinator, emitter = parts(FixedBatchSpout("word string, n int", BATCHES))
    assert coordinator.backlog() == Backlog(rows=3)
    batches, _, txid = play(coordinator, emitter)
    assert batches == BATCHES
    assert not coordinator.is_ready(txid)
    assert coordinator.backlog() == Backlog(rows=0)


def test_the_same_metadata_gives_the_same_rows_in_another_process():
    coordinator, emitter = parts(FixedBatchSpout("word string, n int", BATCHES))
    pins = {}
    for txid in (1, 2, 3):
        pins[txid] = coordinator.initialize_transaction(txid, pins.get(txid - 1), None)
    again, emitter = parts(FixedBatchSpout("word string, n int", BATCHES))
    for txid in (2, 3):
        assert again.initialize_transaction(txid, pins[txid - 1], pins[txid]) == pins[txid]
        assert list(emitter.emit_batch(TransactionAttempt(txid, 1), pins[txid]).data) == BATCHES[txid - 1]
    assert not again.is_ready(4)


def test_a_transaction_after_the_last_batch_is_empty():
    coordinator, emitter = parts(FixedBatchSpout("n int", [[(1,)]]))
    pin = coordinator.initialize_transaction(1, None, None)
    for txid in (2, 3):  # another stream of the group was ready
        pin = coordinator.initialize_transaction(txid, pin, None)
        assert list(emitter.emit_batch(TransactionAttempt(txid, 0), pin).data) == []
        assert pin["rows"] == 0


def test_with_cycle_it_begins_again():
    coordinator, emitter = parts(FixedBatchSpout("n int", [[(1,)], [(2,)]], cycle=True))
    batches, _, _ = play(coordinator, emitter, limit=5)
    assert batches == [[(1,)], [(2,)], [(1,)], [(2,)], [(1,)]]


def test_without_batches_it_is_never_ready():
    for cycle in (False, True):
        coordinator, _ = parts(FixedBatchSpout("n int", [], cycle=cycle))
        assert not coordinator.is_ready(1)


def test_it_fits_the_contracts():
    spout = FixedBatchSpout("word string, n int", BATCHES)
    assert spout.kind is SpoutKind.TRANSACTIONAL
    assert isinstance(spout, TridentSpout)
    assert spout.output_schema == StructType([StructField("word", StringType()), StructField("n", IntegerType())])
    coordinator, emitter = parts(spout)
    assert isinstance(coordinator, ReportsBacklog) and hasattr(emitter, "emit_batch") and Emitter


@pytest.mark.parametrize("batches", [[[("a",)]], [[("a", 1, 2)]], [["ab"]], [[{"word": "a", "n": 1}]], [[3]]])
def test_a_row_that_does_not_fit_is_refused_when_built(batches):
    with pytest.raises(TopologyError, match="batch 0.*expected: a tuple of 2: word, n"):
        FixedBatchSpout("word string, n int", batches)


@pytest.mark.parametrize("schema", [None, "", "word", "word nosuchtype", 7, StructType([]), "a int, A int"])
def test_a_schema_that_does_not_do_is_refused_when_built(schema):
    with pytest.raises(TopologyError):
        FixedBatchSpout(schema, [])


@pytest.mark.parametrize("metadata", [None, 3, {}, {"batch": -1}, {"batch": "1"}, {"from": [1, 0]}])
def test_metadata_of_another_spout_is_refused(metadata):
    _, emitter = parts(FixedBatchSpout("n int", [[(1,)]]))
    with pytest.raises(SourceError, match="not written by a FixedBatchSpout"):
        emitter.emit_batch(TransactionAttempt(1, 0), metadata)


# --- rows as DataFrames -------------------------------------------------------------------

SCHEMA = as_schema("word string, n long", "test")


def test_rows_arrow_tables_and_dataframes_give_the_same(spark):
    rows = [("a", 1), ("b", None), (None, 3)]
    table = pa.table({"n": pa.array([1, None, 3], pa.int32()), "word": ["a", "b", None]})
    frame = spark.createDataFrame(rows, "word string, n long")
    for data in (
        rows,
        iter(rows),
        [Row(*row) for row in rows],
        table,
        table.to_batches()[0],
        frame,
        frame.select("n", "word"),
    ):
        result = to_dataframe(spark, data, SCHEMA)
        assert result.columns == ["word", "n"]
        assert sorted(map(tuple, result.collect()), key=str) == sorted(rows, key=str)
        assert result.schema.simpleString() == SCHEMA.simpleString()


def test_a_dataframe_that_fits_is_used_as_it_is(spark):
    frame = spark.createDataFrame([("a", 1)], "word string, n long")
    assert to_dataframe(spark, frame, SCHEMA) is frame


@pytest.mark.parametrize(
    "empty", [[], (), pa.table({"word": pa.array([], pa.string()), "n": pa.array([], pa.int64())})]
)
def test_no_rows_keep_the_schema(spark, empty):
    result = to_dataframe(spark, empty, SCHEMA)
    assert result.collect() == [] and result.columns == ["word", "n"]


def test_every_type_goes_through(spark):
    schema = as_schema(
        "b boolean, i int, d double, c decimal(10,2), t date, s timestamp, x binary, a array<int>, "
        "m map<string,int>, r struct<p: int, q: string>",
        "test",
    )
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    flat = (True, 1, 1.5, Decimal("1.25"), datetime.date(2026, 1, 2), at, b"\x00\xff")
    row = (*flat, [1, None], {"k": 1}, (1, "q"))
    assert [tuple(got) for got in to_dataframe(spark, [row], schema).collect()] == [row]
    assert [tuple(got) for got in to_dataframe(spark, [flat], StructType(schema.fields[:7])).collect()] == [flat]


def test_a_time_without_a_zone_is_local_time_as_in_pyspark(spark, monkeypatch):
    schema, at = as_schema("s timestamp", "test"), datetime.datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        ours = to_dataframe(spark, [(at,)], schema).collect()
        assert ours == spark.createDataFrame([(at,)], schema).collect() == [(at,)]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", 1), ("b",)], "row 1 .*tuple of 2: word, n"),
        ([("a", 1), "bc"], "row 1 "),
        ([("a", 1), ("b", "x")], "'n' of row 1 .*found: 'x'; expected: bigint"),
        ([(3, 1)], "'word' of row 0 .*found: 3; expected: string"),
        ([("a", 2**63)], "'n' of row 0 "),
        (None, "found: NoneType"),
        ("ab", "found: str"),
        (7, "found: int"),
        (pa.table({"word": ["a"]}), "found: word; expected: word, n"),
        (pa.table({"word": ["a"], "n": ["x"]}), "'n' .*does not fit"),
    ],
)
def test_data_that_does_not_fit_is_a_clear_error(spark, rows, message):
    with pytest.raises(SourceError, match=message):
        to_dataframe(spark, rows, SCHEMA)


def test_a_dataframe_that_does_not_fit_is_a_clear_error(spark):
    with pytest.raises(SourceError, match="found: word, m; expected: word, n"):
        to_dataframe(spark, spark.createDataFrame([("a", 1)], "word string, m long"), SCHEMA)
    with pytest.raises(SourceError, match="'n' .*found: string; expected: bigint"):
        to_dataframe(spark, spark.createDataFrame([("a", "1")], "word string, n string"), SCHEMA)


def test_none_where_the_schema_forbids_it_is_an_error(spark):
    schema = StructType([StructField("n", LongType(), nullable=False)])
    for data in ([(1,), (None,)], pa.table({"n": [1, None]})):
        with pytest.raises(SourceError, match="'n' .*None|'n' .*nulls"):
            to_dataframe(spark, data, schema)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_the_first_and_the_last_moment_of_the_calendar_have_local_time_too(zone, monkeypatch):
    from trident.states.core.typed_values import local_time as _local

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        first = datetime.datetime.min
        for naive in (first, first + datetime.timedelta(hours=5), datetime.datetime.max):
            assert _local(naive).replace(tzinfo=None) == naive
            assert _local(naive).utcoffset() is not None
            inside = naive + datetime.timedelta(days=2 if naive.year == 1 else -2)
            assert _local(naive).utcoffset() == inside.astimezone().utcoffset()
    finally:
        monkeypatch.undo()
        time.tzset()
