"""Snapshot reads: exact as of one transaction, the same one over all tables of a group, fixed for good."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tests.jvm.unfit_jar import Unfit, unfit_jar
from tests.states.group_helpers import foreign_row
from tests.states.keyed_helpers import Concat, Group, Longest, Native, append, as_map, compactor_of, keyed
from trident.coordinators.errors import ConfigError, ForeignTable, TableError
from trident.states.core.typed_values import frozen
from trident.states.delta.delta_log import DeltaLog, LogTables
from trident.states.keyed import live_read, log_merge, snapshot
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.reading import latest_txid, read_group, read_state

NAN = float("nan")


@pytest.fixture
def group(spark, engine, tmp_path):
    """Two states of one group: counted words, and lines."""
    return Group(spark, engine, tmp_path, keyed(), append())


def publish(group, txids, only=None):
    for txid in txids:
        states = {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)], "lines": [(f"line {txid}",)]}
        group.publish(txid, {name: rows for name, rows in states.items() if name in group.bindings}, only)


def read(group, name="counts", txid=None, **more):
    return read_state(group.spark, group.warehouse, name, txid, **more)


def counts(group, txid=None):
    return as_map(group.bindings["counts"], read(group, "counts", txid))


def lines(group, txid=None):
    return sorted(row.line for row in read(group, "lines", txid).collect())


def expected_lines(txid):
    return sorted(f"line {one}" for one in range(1, txid + 1))


# --- as of a transaction --------------------------------------------------------------------------------


def test_every_transaction_reads_exactly_before_and_after_merges(group, merged_tables):
    publish(group, range(1, 7))
    assert counts(group) == group.expected("counts", 6)
    for txid in (1, 4):  # before and between the two MERGEs
        assert counts(merged_tables, txid) == group.expected("counts", txid), txid
    assert lines(merged_tables, 4) == expected_lines(4)
    opened = [path for path in read(merged_tables).inputFiles() if "__log" in path]
    assert [path.split("/")[-2] for path in opened] == ["6-0-x"], "only files of the log that are not merged"


def test_what_only_some_tables_have_is_not_read(group):
    publish(group, [1, 2])
    publish(group, [3], only=["lines"])
    assert latest_txid(group.warehouse, "lines") == 2
    assert counts(group) == group.expected("counts", 2)
    with pytest.raises(SnapshotUnavailable, match="not committed in every table") as raised:
        read(group, "lines", 3)
    assert raised.value.available == 2
    publish(group, [3], only=["counts"])
    frames, txid = read_group(group.spark, group.warehouse, ["lines", "counts"])
    assert txid == 3 and [row.line for row in frames["lines"].collect()] == expected_lines(3)
    assert as_map(group.bindings["counts"], frames["counts"]) == group.expected("counts", 3)


@pytest.mark.long
def test_a_frame_stays_what_it_was(merged):
    merging = compactor_of(merged, snapshot_retention_txids=0)
    keyed_frame, append_frame = read(merged), read(merged, "lines")
    publish(merged, [7])
    merging.merge_once(7, force=True)
    assert merging.drop_once(7) == 7
    for _ in range(2):
        assert as_map(merged.bindings["counts"], keyed_frame) == merged.expected("counts", 6)
        assert append_frame.count() == 6
    assert counts(merged) == merged.expected("counts", 7)


@pytest.mark.long
@pytest.mark.parametrize("aggregator", [pytest.param(Native("sum"), id="sum"), pytest.param(Concat(), id="combiner")])
def test_a_large_table_with_few_rows_on_top_reads_as_both_grouped(spark, engine, tmp_path, monkeypatch, aggregator):
    """By Spark's own equality of keys: null, NaN and both zeros are keys, also within arrays."""
    keys = (
        [None, 0.0, -0.0, 1.5, NAN, float("inf")],
        [None, "", "a", "\U0010ffff"],
        [None, [], [NAN], [-0.0], [0.0, None]],
    )
    kind = "string" if isinstance(aggregator, Concat) else "bigint"
    schema = f"d double, s string, l array<double>, v {kind}, w {kind}"
    group = Group(spark, engine, tmp_path, keyed("odd", schema, ("d", "s", "l"), aggregator))
    every, none = list(itertools.product(*keys)), None if kind == "bigint" else ""
    for txid in range(1, 6):
        made = [n * txid % 7 if kind == "bigint" else f"{txid}.{n};" for n in range(len(every))]
        rows = {
            frozen(key): (*key, value, none) for n, (key, value) in enumerate(zip(every, made)) if n % 5 >= txid - 1
        }
        group.publish(txid, {"odd": list(rows.values())})
        if txid == 3:
            compactor_of(group, "odd").merge_once(3, force=True)

    def found():
        rows = [tuple(row) for row in read(group, "odd", aggregator=aggregator).collect()]
        assert len({frozen(row[:3]) for row in rows}) == len(rows)
        return {frozen(row[:3]): row[3:] for row in rows}

    expected = found()
    assert len(expected) > 80
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    tree = read(group, "odd", aggregator=aggregator)._jdf.queryExecution().executedPlan().toString()
    assert "LeftAnti" in tree and "LeftSemi" in tree
    assert found() == expected


@pytest.mark.parametrize("aggregator", [pytest.param("sum", marks=pytest.mark.long), "last"])
def test_all_rows_are_read_over_arrow_and_some_keys_by_scans_that_know_the_filter(
    spark, engine, tmp_path, monkeypatch, aggregator
):
    """Instants and dates as Spark has them, nulls, keys of the table, of the log, of both, and deleted ones."""
    schema = "name string, n int, at timestamp, day date, v decimal(10,2), l long"
    merging = "last" if aggregator == "last" else "combine"
    keys = ("name", "n", "at", "day")
    group = Group(spark, engine, tmp_path, keyed("odd", schema, keys, Native("sum"), merging))
    names, at = [None, "", "a", "é", "\U0010ffff", "z"], datetime(2024, 3, 31, 1, 30, tzinfo=timezone.utc)
    every = list(itertools.product(names, [None, -1, 7], [None, at], [None, date(1600, 2, 29)]))
    for txid in range(1, 6):
        rows = [(*key, Decimal(n * txid) / 4, None if n % 4 else n) for n, key in enumerate(every) if n % 5 >= 5 - txid]
        if merging == "last":
            rows = [(*row, bool(number % 2)) for number, row in enumerate(rows, txid)]
        group.publish(txid, {"odd": rows})
        if txid == 3:
            compactor_of(group, "odd").merge_once(3, force=True)
    expected = group.expected("odd", 5, lambda a, b: b if a is None else a if b is None else a + b)
    binding = group.bindings["odd"]
    assert as_map(binding, read(group, "odd")) == expected
    at_once = read(group, "odd", here=True)
    assert "LocalTableScan" in planned(at_once) and "FileScan" not in planned(at_once)
    assert at_once.schema == StructType.fromDDL(schema) and as_map(binding, at_once) == expected
    monkeypatch.setattr(live_read, "_HERE_BYTES_MAX", 0)
    assert "LocalTableScan" not in planned(read(group, "odd", here=True))
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    frame = read(group, "odd")
    assert frame.schema == StructType.fromDDL(schema)
    assert "MapInArrow" in planned(frame) and frame.rdd.getNumPartitions() == 1
    assert as_map(binding, frame) == expected
    if merging == "last":
        return
    assert frame.where("l > 0").count() == sum((row[1] or 0) > 0 for row in expected.values())
    for condition, chosen in (
        ("name = 'é' and l is null", lambda key, row: key[0] == "é" and row[1] is None),
        ("name >= 'é' and name < 'éa' and n = 7", lambda key, row: key[0] == "é" and key[1] == 7),
        ("name <=> null and n = 7", lambda key, row: key[0] is None and key[1] == 7),
    ):
        some = frame.where(condition)
        assert "MapInArrow" not in planned(some) and "PushedFilters: [" in planned(some), condition
        assert as_map(binding, some) == {key: row for key, row in expected.items() if chosen(key, row)}, condition
    for condition in ("name in ('a', 'b')", "name is null", "name like 'a%'"):
        assert "MapInArrow" not in planned(frame.where(condition)), condition
    for condition in (
        *["length(name) = 1", "concat(name, '') >= 'a'", "name is not null", "name = 'a' or l = 0", "n = l"],
    ):
        assert "MapInArrow" in planned(frame.where(condition)), condition
    # Twice in one query; and never taken for so small that all of it is sent to each task.
    some = frame.where("name = 'a'")
    assert some.unionAll(some).groupBy("v").count().count() == some.select("v").distinct().count()
    ns = [key[1] for key in expected if key[0] == "a" and key[1] is not None]
    joined = some.join(frame.select("name", "n", "l"), ["name", "n"]).where("name = 'a'")
    assert joined.count() == sum(ns.count(n) ** 2 for n in set(ns))
    sizes = sum(path.stat().st_size for path in tmp_path.glob("odd*/data/**/*.parquet"))
    assert 0 < int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    assert int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())) >= sizes // 4


@pytest.mark.long
def test_what_is_made_of_some_keys_finds_its_columns_in_the_plan_that_the_read_gives_way_to(
    spark, engine, tmp_path, monkeypatch
):
    """Spark's optimizer removes aliases of an aggregate's own columns, which parents name."""
    group = Group(spark, engine, tmp_path, keyed())
    rows, words = {"a": 1, "b": 2, "c": 3}, {"a", "b"}
    group.publish(1, {"counts": list(rows.items())})
    compactor_of(group).merge_once(1, force=True)
    group.publish(2, {"counts": list(rows.items())})
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    monkeypatch.setattr(log_merge, "_BROADCAST_BYTES_MAX", 0)  # the log is too large to be sent to each task
    others = spark.createDataFrame([("a", 7), ("b", 8)], "word string, other long").coalesce(1)
    some = read(group).where("word in ('a', 'b')")
    assert "MapInArrow" not in planned(some.select("word"))
    assert {row.word for row in some.select("word").collect()} == words
    assert as_map(group.bindings["counts"], some) == {(word,): (2 * rows[word],) for word in words}
    assert {tuple(row) for row in some.groupBy("word").count().collect()} == {(word, 1) for word in words}
    summed = some.join(others, "word").select("word", "count", "other").collect()
    assert {tuple(row) for row in summed} == {("a", 2, 7), ("b", 4, 8)}
    lasting = some.select("word").exceptAll(others.where("other = 7").select("word"))
    assert [row.word for row in lasting.collect()] == ["b"]


@pytest.mark.long
def test_without_the_jar_or_beside_files_of_another_writer_spark_reads_all_rows(merged, monkeypatch):
    publish(merged, [7])
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    assert "MapInArrow" in planned(read(merged))
    with monkeypatch.context() as patched:
        patched.setattr(live_read, "_CLASS", "trident.kept.NotThere")
        assert "MapInArrow" not in planned(read(merged)) and counts(merged) == merged.expected("counts", 7)
    foreign_row(merged.warehouse / "counts")
    assert "MapInArrow" not in planned(read(merged))


@pytest.mark.long
def test_a_jar_that_does_not_fit_leaves_the_read_to_spark(merged, monkeypatch, caplog):
    """V2: Java finds a method that is missing when it is called, in the middle of a read."""
    publish(merged, [7])
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    with unfit_jar(monkeypatch, caplog):
        monkeypatch.setattr(live_read, "_java_class", lambda spark: Unfit(spark))
        assert "MapInArrow" not in planned(read(merged)) and counts(merged) == merged.expected("counts", 7)


def test_a_read_gives_way_to_a_range_of_keys_only_where_that_leaves_most_files_out(merged, monkeypatch):
    publish(merged, [7])
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    files = list("abcdefgh")
    monkeypatch.setattr(live_read, "_bounds_of_files", lambda parts: (files, [f"{one}z" for one in files]))
    frame, rows = read(merged), {(word,): value for (word,), value in merged.expected("counts", 7).items()}
    for condition, gives_way in (
        ("word > 'g'", True),
        ("word >= 'fz'", False),
        ("'gz' < word", True),
        ("word < 'c'", False),
        ("word < 'b'", True),
        ("word <= 'b' and word > 'a'", True),
        ("word >= 'd' and word < 'e0'", True),
        ("word >= 'c' and word < 'e0'", False),
        ("word != 'a'", False),
        ("count > 3", False),
    ):
        assert ("MapInArrow" not in planned(frame.where(condition))) == gives_way, condition
    some = as_map(merged.bindings["counts"], frame.where("word >= 'w' and word < 'w3'"))
    assert some == {key: value for key, value in rows.items() if key[0] is not None and "w" <= key[0] < "w3"}


def planned(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def test_an_entry_that_a_power_cut_has_torn_hides_nothing(group, tmp_path):
    group.publish(1, {"counts": [("the", 2)], "lines": [("line 1",)]})
    before = as_map(group.bindings["counts"], read(group, "counts"))
    log = DeltaLog(tmp_path / "counts__log")
    Path(log.entry(log.newest() + 1)).write_bytes(b'{"commitInfo"')
    assert as_map(group.bindings["counts"], read(group, "counts")) == before == group.expected("counts", 1)
    Path(log.entry(log.newest())).write_bytes(b'{"metaData": 5}')  # no power cut
    with pytest.raises(TableError, match="not as Delta's protocol says"):
        read(group, "counts")


def test_before_the_first_transaction_everything_is_empty(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed(), keyed("total", "n bigint", (), Native("count")))
    assert latest_txid(tmp_path, "total") == 0
    assert counts(group) == {}
    assert read(group, "total").collect() == []
    group.publish(1, {"total": [(0,)]})
    assert [tuple(row) for row in read(group, "total").collect()] == [(0,)]


def test_a_global_aggregate_has_one_row(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed("total", "n bigint, m bigint", (), Native("sum")))
    for txid in (1, 2, 3):
        group.publish(txid, {"total": [(txid, None if txid < 3 else 7)]})
    assert [tuple(row) for row in read(group, "total", 2).collect()] == [(3, None)]
    compactor_of(group, "total").merge_once(2, force=True)
    assert [tuple(row) for row in read(group, "total").collect()] == [(6, 7)]


# --- retention ----------------------------------------------------------------------------------------


def test_kept_transactions_read_and_older_ones_name_the_oldest(merged):
    merging = compactor_of(merged, snapshot_retention_txids=3)
    for advanced, dropped, kept, gone in (
        (6, 2, (3, 6), (1,)),  # 6 - 3 = 3 lies between the two MERGEs, and is kept as long as promised
        (8, 5, (5, 7), (1, 4)),
    ):
        publish(merged, range(7, advanced + 1))
        assert merging.drop_once(advanced) == dropped
        for txid in kept:
            assert counts(merged, txid) == merged.expected("counts", txid), txid
        for txid in gone:
            with pytest.raises(SnapshotUnavailable, match=f"oldest that can be read is {dropped}") as raised:
                read(merged, "counts", txid)
            assert raised.value.available == dropped


# --- states that come and go -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_state_that_started_later_is_empty_before(group):
    publish(group, [1, 2])
    group.add(keyed("late"), starts_at=3)
    assert latest_txid(group.warehouse, "late") == 2
    assert read(group, "late", 1).collect() == []
    group.publish(3, {"counts": [("the", 1)], "late": [("a", 5)]})
    assert as_map(group.bindings["late"], read(group, "late")) == {("a",): (5,)}
    assert read(group, "late", 2).collect() == []
    compactor_of(group, "late").merge_once(3, force=True)
    assert as_map(group.bindings["late"], read(group, "late")) == {("a",): (5,)}
    assert counts(group) == group.expected("counts", 3)


@pytest.mark.long
def test_a_state_that_the_topology_no_longer_has_does_not_hold_the_others_back(group):
    publish(group, [1, 2])
    replace(group.descriptor("lines"), ends_at=2).save(group.warehouse)
    publish(group, [3], only=["counts"])
    assert counts(group) == group.expected("counts", 3)
    assert lines(group) == expected_lines(2)


def test_a_keyed_state_whose_plain_table_was_not_made_yet_reads_from_its_log(group):
    publish(group, [1, 2])
    shutil.rmtree(group.warehouse / "counts")
    assert counts(group) == group.expected("counts", 2)


# --- Python combiners ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_python_combiner_merges_and_reads_in_order_and_needs_its_aggregator(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed("texts", "k string, v string", ("k",), Concat()))
    for txid in range(1, 5):
        group.publish(txid, {"texts": [("a", f"{txid}"), (None, f"<{txid}>"), (f"k{txid}", "x")]})
    merging = compactor_of(group, "texts")
    merging.merge_once(2, force=True)
    expected = group.expected("texts", 4, Concat().combine)
    assert as_map(group.bindings["texts"], read(group, "texts", aggregator=Concat())) == expected
    reader = KeyReader(tmp_path)
    asked = reader.requested("texts", ["a", None, "b"])
    assert reader.get("texts", asked, None, Concat()) == [{"v": "1234"}, {"v": "<1><2><3><4>"}, None]
    with pytest.raises(ConfigError, match="combined by Python code"):
        reader.get("texts", asked)
    for wrong in (None, Longest()):
        with pytest.raises(ConfigError, match=r"Concat"):
            read(group, "texts", aggregator=wrong)
    merging.merge_once(4, force=True)
    # All of it is merged: nothing to combine.
    assert as_map(group.bindings["texts"], read(group, "texts")) == expected


# --- what cannot be read ---------------------------------------------------------------------------------------


def test_an_unknown_state_is_named_beside_the_known_ones(group):
    with pytest.raises(TableError, match="no state 'nope'.*counts, lines"):
        read(group, "nope")


def test_a_table_that_is_gone_is_named(group):
    publish(group, [1])
    shutil.rmtree(group.warehouse / "counts__log")
    with pytest.raises(TableError, match="counts__log"):
        read(group)


def test_a_table_of_another_incarnation_is_not_read(group):
    publish(group, [1])
    replace(group.descriptor("counts"), incarnation="inc2").save(group.warehouse)
    with pytest.raises(ForeignTable, match="inc1"):
        read(group)


def test_states_of_two_groups_are_not_one_snapshot(group):
    Group(group.spark, group.engine, group.warehouse, append("other"), group="h")
    with pytest.raises(TableError, match="one batch group"):
        read_group(group.spark, group.warehouse, ["lines", "other"])


# --- cost and concurrency ------------------------------------------------------------------------------------------


class Between(LogTables):
    """Something happens right before the table that is loaded as the n-th."""

    def __init__(self, nth, happens):
        super().__init__()
        self._nth, self._happens, self.loads = nth, happens, 0

    def load(self, path):
        self.loads += 1
        if self.loads == self._nth:
            self._happens()
        return super().load(path)


def test_a_transaction_and_its_merge_between_two_looks_at_tables_are_not_half_seen(spark, engine, tmp_path):
    """The append was looked at before; were the table looked at last, its P would be above what the append has."""
    group = Group(spark, engine, tmp_path, keyed(), append("a_lines"))
    merging = compactor_of(group, snapshot_retention_txids=0)

    def transaction(txid):
        group.publish(txid, {"counts": [("the", 2)], "a_lines": [(f"line {txid}",)]})

    def happens():
        transaction(2)
        merging.merge_once(2, force=True)
        merging.drop_once(2)

    transaction(1)
    between = Between(3, happens)
    frames, txid = read_group(spark, tmp_path, ["counts", "a_lines"], tables=between)
    assert between.loads >= 3 and txid in (1, 2)
    found = as_map(group.bindings["counts"], frames["counts"]), frames["a_lines"].count()
    assert found == (group.expected("counts", txid), txid)
