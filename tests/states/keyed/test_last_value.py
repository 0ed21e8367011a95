"""Whole values by key, and every type in both kinds of state: through the log, live reads, MERGE and the table."""

from __future__ import annotations

import datetime
import os
import sys
from decimal import Context, Decimal

import pytest
from pyspark.sql import functions as F

from tests.states.keyed_helpers import Concat, Group, Longest, Native, append, as_map, compactor_of, keyed, plain
from trident.coordinators.errors import ConfigError, TableError
from trident.states.core.descriptor import StateDescriptor
from trident.states.delta import table_files
from trident.states.delta.delta_log import DeltaLog, LogTables
from trident.states.keyed import log_merge
from trident.states.keyed import snapshot as stored
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.keyed.reading import TABLES, base_of, read_state


def live(group, txid=None, name="s"):
    binding = group.bindings[name]
    frame = read_state(group.spark, group.warehouse, name, txid, binding.aggregator)
    return as_map(binding, frame)


# --- every type, both kinds --------------------------------------------------------------------------------

UTC = datetime.timezone.utc
NOW = datetime.datetime(2024, 2, 29, 23, 59, 59, 123457, UTC)
EXACT = Context(prec=50)  # Python's own context would round a decimal(38) to 28 digits
KEYS = "`a.key` string, b decimal(38,10), c timestamp, d date, e binary, f bigint"
VALUES = (
    "v decimal(38,10), t timestamp, w timestamp_ntz, n struct<x:int,y:array<string>>, "
    "m map<string,struct<p:double,q:date>>, z array<map<string,decimal(38,10)>>, g binary, _u string"
)
KEY_NAMES = ("a.key", "b", "c", "d", "e", "f")


class Union:
    """A Python combiner of maps: what the later one has counts. Neither commutative nor native."""

    def combine(self, a, b):
        return list({**dict(a or ()), **dict(b or ())}.items())


def some(rng, make):
    """A value, null in a quarter of all cases."""
    return None if rng.random() < 0.25 else make()


def a_decimal(rng):
    return Decimal(rng.randrange(-(10**38) + 1, 10**38)).scaleb(-10, EXACT)


def a_key(rng):
    moment = NOW + datetime.timedelta(microseconds=rng.randrange(3))
    return (
        some(rng, lambda: rng.choice(["", "x", "ключ"])),
        some(rng, lambda: a_decimal(rng)),
        some(rng, lambda: moment),
        some(rng, moment.date),
        some(rng, lambda: rng.choice([b"", b"\x00\xff"])),
        some(rng, lambda: rng.randrange(2)),
    )


def a_value(rng):
    day = datetime.date(1582, 10, 1 + rng.randrange(14))
    return (
        some(rng, lambda: a_decimal(rng)),
        some(rng, lambda: NOW - datetime.timedelta(microseconds=rng.randrange(10**16))),
        some(rng, lambda: NOW.replace(tzinfo=None)),
        some(rng, lambda: {"x": some(rng, lambda: 7), "y": some(rng, lambda: ["", None, "y"])}),
        some(rng, lambda: {"k": some(rng, lambda: {"p": 1.5, "q": day}), "": None}),
        some(rng, lambda: [None, {}, {"k": some(rng, lambda: a_decimal(rng))}]),
        some(rng, lambda: b"\x00"),
        some(rng, lambda: f"{rng.random()}"),
    )


def last_batches(rng, keys, count):
    """Rows of distinct keys, a third of them deleted; the first key is written, deleted and written again."""
    batches = [
        [(*key, *a_value(rng), rng.choice([True, False, None])) for key in keys[1:] if rng.random() < 0.6]
        for _ in range(count)
    ]
    for batch, deleted in zip(batches, (False, True, False, True)):
        batch.append((*keys[0], *a_value(rng), deleted))
    return batches


def last_by_keys(rng):
    keys = list({a_key(rng): None for _ in range(12)} | {(None,) * 6: None})
    return keyed("s", f"{KEYS}, {VALUES}", KEY_NAMES, Native("upsert"), "last"), last_batches(rng, keys, 4), None


def last_without_keys(rng):
    return keyed("s", VALUES, (), Native("upsert"), "last"), last_batches(rng, [()], 4), None


def maps_by_a_python_combiner(rng):
    schema = "a string, d date, m map<string,struct<n:decimal(38,10),l:array<timestamp>>>"
    keys = [(word, day) for word in ("", "x", None) for day in (NOW.date(), None)]
    batches = [
        [
            (*key, {rng.choice("kl"): some(rng, lambda: {"n": a_decimal(rng), "l": some(rng, lambda: [NOW, None])})})
            for key in rng.sample(keys, 5)
        ]
        for _ in range(4)
    ]
    return keyed("s", schema, ("a", "d"), Union()), batches, lambda a, b: frozenset({**dict(a), **dict(b)}.items())


def sums_by_keys_of_any_name(rng):
    schema = f"{KEYS}, n bigint, r decimal(38,10)"
    keys = [(None,) * 6, *[a_key(rng) for _ in range(8)]]
    keys = list(dict.fromkeys(keys))
    batches = [
        [(*key, some(rng, lambda: rng.randrange(10)), some(rng, lambda: a_decimal(rng) / 10)) for key in keys]
        for _ in range(4)
    ]
    return (
        keyed("s", schema, KEY_NAMES, Native("sum")),
        batches,
        nulls_are_nothing(lambda a, b: EXACT.add(a, b) if isinstance(a, Decimal) else a + b),
    )


def greatest_of_times_texts_and_structs(rng):
    schema = "k timestamp_ntz, v timestamp, w string, b binary, s struct<d:date,l:array<int>>"
    keys = [(NOW.replace(tzinfo=None),), (None,)]
    batches = [
        [
            (
                *key,
                some(rng, lambda: NOW + datetime.timedelta(microseconds=rng.randrange(99))),
                some(rng, lambda: rng.choice("abc")),
                some(rng, lambda: rng.choice([b"", b"\x00", b"\xff"])),
                some(rng, lambda: {"d": NOW.date() + datetime.timedelta(rng.randrange(3)), "l": [rng.randrange(9)]}),
            )
            for key in keys
        ]
        for _ in range(4)
    ]
    return keyed("s", schema, ("k",), Native("max")), batches, nulls_are_nothing(max)


def a_global_count(rng):
    return keyed("s", "n bigint, m bigint", (), Native("count")), [[(3, 1)], [], [], [(4, 0)]], lambda a, b: a + b


def nulls_are_nothing(fold):
    return lambda a, b: a if b is None else b if a is None else fold(a, b)


CASES = [
    *[last_by_keys, last_without_keys, maps_by_a_python_combiner, sums_by_keys_of_any_name],
    *[greatest_of_times_texts_and_structs, a_global_count],
]


@pytest.mark.long
@pytest.mark.parametrize(
    "case", CASES if os.environ.get("TRIDENT_TYPES") == "all" else CASES[:1], ids=lambda case: case.__name__
)
def test_any_type_of_key_and_value_from_the_log_to_the_table(spark, engine, tmp_path, rng, monkeypatch, case):
    binding, batches, fold = case(rng)
    group = Group(spark, engine, tmp_path, binding)
    for txid, rows in enumerate(batches, 1):
        group.publish(txid, {"s": rows})
    assert live(group, 2) == group.expected("s", 2, fold), "from the log alone"
    merging, pins = compactor_of(group, "s"), LogTables()
    merging.merge_once(2, force=True)
    assert plain(group, "s") == group.expected("s", 2, fold)
    assert live(group) == group.expected("s", 4, fold), "the log on top of a small table"
    keys = list(group.expected("s", 4, fold) | group.expected("s", 1, fold))[::2]
    asked = frame_of(group, "s", keys)
    got = as_map(binding, base_of(spark, tmp_path, "s", asked, 3, binding.aggregator, pins))
    assert got == chosen(group.expected("s", 3, fold), keys)
    if case in (last_by_keys, greatest_of_times_texts_and_structs, maps_by_a_python_combiner):
        # As when there are many files: Delta reads both, and the table is joined with the log's keys or grouped anew.
        monkeypatch.setattr(stored, "FEW_FILES", 0)
        assert live(group, 4) == group.expected("s", 4, fold), "few rows of the log on top of a large table"
        monkeypatch.setattr(log_merge, "_BROADCAST_BYTES_MAX", -1)
        assert live(group, 3) == group.expected("s", 3, fold), "many rows of the log on top of a large table"
    merging.merge_once(4, force=True)
    assert plain(group, "s") == group.expected("s", 4, fold)


def frame_of(group, name, keys):
    """The keys as a small frame, each twice; None for a state without keys."""
    fields = [group.bindings[name].schema[key] for key in group.bindings[name].keys]
    if not fields:
        return None
    return group.spark.createDataFrame(keys + keys, type(group.bindings[name].schema)(fields)).coalesce(1)


def chosen(expected, keys):
    return {key: value for key, value in expected.items() if key in set(keys) or not key}


# --- deleting -----------------------------------------------------------------------------------------------


def users(group_args, *more):
    return Group(*group_args, keyed("s", "k string, v string", ("k",), Native("upsert"), "last"), *more)


def put(group, txid, **values):
    """One transaction; None deletes."""
    group.publish(txid, {"s": [(key, value, value is None) for key, value in values.items()]})


# --- the reads of the Resolve step -----------------------------------------------------------------------------


def base(group, keys, txid, pins=TABLES, name="s", aggregator=None):
    binding = group.bindings[name]
    asked = None if keys is None else frame_of(group, name, keys)
    frame = base_of(group.spark, group.warehouse, name, asked, txid, aggregator or binding.aggregator, pins)
    return as_map(binding, frame)


@pytest.mark.long
def test_lookups_are_exact_while_the_tables_move_on_and_load_neither_anew(spark, engine, tmp_path, rng, monkeypatch):
    loads, whole, load = [], DeltaLog.segment, LogTables.load
    monkeypatch.setattr(DeltaLog, "segment", lambda log, version=None: loads.append(log.path) or whole(log, version))
    bindings = [
        keyed("s", "k string, v string", ("k",), Native("upsert"), "last"),
        keyed("n", "k string, n bigint", ("k",), Native("count")),
    ]
    # A folder of any name, and more files than Spark lists at once.
    group = Group(spark, engine, tmp_path / "w %20 ключ", *bindings)
    monkeypatch.setattr(table_files, "PATHS_PER_SCAN", 2)
    monkeypatch.setattr(stored, "SMALL_BYTES", 0)
    names, pins = [*"abcdefg", None], {"s": LogTables(), "n": LogTables()}
    merging = {name: compactor_of(group, name, snapshot_retention_txids=0) for name in pins}
    for name in pins:
        assert base(group, [("a",)], 0, pins[name], name) == {}
    before = list(loads)
    merge_meanwhile: list[int] = []

    def overtaken(self, path):
        found = load(self, path)
        if merge_meanwhile and path.endswith("/s"):
            txid = merge_meanwhile.pop()
            merging["s"].merge_once(txid, force=True)
            assert merging["s"].drop_once(txid) == txid
        return found

    monkeypatch.setattr(LogTables, "load", overtaken)
    for txid in range(1, 6):
        keys = rng.sample(names, 4)
        group.publish(
            txid, {"s": [(key, f"{txid}", rng.random() < 0.3) for key in keys], "n": [(key, txid) for key in keys]}
        )
        if txid == 2:
            merging["n"].merge_once(txid, force=True)
            assert merging["n"].drop_once(txid) == txid
        # Between the look at the table and the look at the log.
        merge_meanwhile += [txid] if txid == 3 else []
        asked = [(key,) for key in [*rng.sample(names, 3), "never"]]
        mine = len(loads)
        for name in pins:
            assert base(group, asked, txid, pins[name], name) == chosen(group.expected(name, txid), asked), (name, txid)
        assert not merge_meanwhile
        assert txid == 3 or len(loads) == mine, "of a log that was read the new entries alone are read"
    assert before
    # What was merged past, and what is not known from before, is read in the other way.
    assert base(group, None, 5) == group.expected("s", 5)
    assert base(group, [("a",), (None,)], 4, pins["s"]) == chosen(group.expected("s", 4), [("a",), (None,)])
    with pytest.raises(SnapshotUnavailable, match="oldest"):
        base(group, [("a",)], 2, pins["s"])


@pytest.mark.long
def test_reads_ask_for_the_wanted_keys_only_a_lookup_moves_neither_table_nor_log_and_is_fixed(
    spark, engine, tmp_path, monkeypatch
):
    group = users((spark, engine, tmp_path))
    put(group, 1, a="1", b="1")
    merging = Compactor(spark, engine, tmp_path, group.descriptor("s"), DeltaMapState("s", snapshot_retention_txids=0))
    merging.merge_once(1, force=True)  # no combiner is needed where there is none
    put(group, 2, a="2", c="2")

    for files, scans in ((0, 3), (9, 2)):
        monkeypatch.setattr(stored, "FEW_FILES", files)
        wanted = read_state(spark, tmp_path, "s").where(F.col("k") == "a")
        tree = wanted._jdf.queryExecution().executedPlan().toString()
        found = [line for line in tree.splitlines() if "FileScan parquet" in line]
        # Of a large table the keys in the log are read once more, to leave them out of the table.
        assert sum("EqualTo(k,a)" in scan for scan in found) == 2 and len(found) == scans, tree
        assert "EqualTo(k,a)" in found[0], tree
    assert [tuple(row) for row in wanted.collect()] == [("a", "2")]

    asked = frame_of(group, "s", [("a",), ("b",), ("c",), ("d",)])
    monkeypatch.setattr(stored, "SMALL_BYTES", 0)
    frame = base_of(spark, tmp_path, "s", F.broadcast(asked), 2)
    tree = frame._jdf.queryExecution().executedPlan().toString()
    assert tree.count("FileScan parquet") == tree.count("LeftSemi, BuildRight") == 2, tree
    assert tree.count("Exchange hashpartitioning") == 1 and "SortMergeJoin" not in tree, tree
    put(group, 3, a=None, b=None, c="3")
    merging.merge_once(3, force=True)
    merging.drop_once(3)
    assert as_map(group.bindings["s"], frame) == {("a",): ("2",), ("b",): ("1",), ("c",): ("2",)}


@pytest.mark.long
def test_a_folder_whose_name_is_a_pattern_to_spark_is_read_all_the_same(spark, engine, tmp_path):
    group = users((spark, engine, tmp_path / "w[1]{a,b}*"))
    for txid in (1, 2, 3):
        put(group, txid, a=f"{txid}", b=None)
    assert base(group, [("a",), ("b",)], 3) == {("a",): ("3",)}


def test_a_combiner_of_a_script_is_known_for_the_states_own(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "somewhere/script.py", raising=False)
    mine = type("Mine", (Concat,), {"__module__": "__main__"})
    state = StateDescriptor.of(keyed(aggregator=mine()), "top", "g", "inc1", 1)
    assert state.aggregator == "python:script.Mine"
    assert type(log_merge.require_combiner(state, mine())) is mine


@pytest.mark.long
def test_a_lookup_needs_the_combiner_only_where_there_is_one(spark, engine, tmp_path):
    group = users((spark, engine, tmp_path), keyed("p", "k string, v string", ("k",), Concat()), append())
    for txid in (1, 2):
        group.publish(txid, {"p": [("a", f"{txid}"), (f"k{txid}", "x")], "s": [("a", "x", False)]})
    assert base(group, [("a",)], 2, name="p") == {("a",): ("12",)}
    assert as_map(group.bindings["s"], read_state(spark, tmp_path, "s")) == {("a",): ("x",)}
    for wrong in (None, Longest()):
        with pytest.raises(ConfigError, match="Concat"):
            base_of(spark, tmp_path, "p", frame_of(group, "p", [("a",)]), 2, wrong)
    for name, reason in (("lines", "kind 'append'"), ("nope", "no state 'nope'")):
        with pytest.raises(TableError, match=reason):
            base_of(spark, tmp_path, name, None, 2)
