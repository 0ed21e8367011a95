"""When two rows have the same key: the same answer in Python's grouping, the log's folding, Spark's joins and MERGE.

NaN within a struct or array is one key, 0.0 and -0.0 are one, a null struct is
another key than a struct of nulls. A path that thought otherwise would keep
several rows of one key, and Delta refuses to merge two source rows into one.
"""

from __future__ import annotations

import datetime
import math
import os
import shutil
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.states.keyed_helpers import Group, Native, keyed
from trident.coordinators.errors import TableError
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.keyed.log_merge import fold_of
from trident.states.keyed.reading import base_of, read_state
from trident.states.maps.memory_map import memory_map, staged_rows
from trident.workers.chain import Frame, Meter
from trident.workers.failures import Label
from trident.workers.groups import Groups

NAN = float("nan")
AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
KEY = "k struct<d: double, many: array<float>, part: struct<m: decimal(8,3), at: timestamp, d: double>>, x double"


class PyCount:
    """A Python combiner: how many rows."""

    def init(self) -> int:
        return 1

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


def same(a: Any, b: Any) -> bool:
    """Spark's equality of values, written again for this test: it shares nothing with what it checks."""
    if a is None or b is None:
        return a is None and b is None
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


def classes(values: list[Any]) -> list[list[int]]:
    """The positions of equal values, class by class."""
    found: list[list[int]] = []
    for at, value in enumerate(values):
        for each in found:
            if same(values[each[0]], value):
                each.append(at)
                break
        else:
            found.append([at])
    return found


# --- in Python ------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([NAN, float("-nan"), 0.0, -0.0, 1.5, math.inf, None])
LEAVES = [
    (pa.float64(), NUMBERS),
    (pa.float32(), NUMBERS),
    (pa.string(), st.sampled_from(["", "a", None])),
    (pa.decimal128(8, 3), st.sampled_from([Decimal("1.500"), Decimal("1.5"), Decimal("0"), Decimal("-0"), None])),
    (pa.timestamp("us", "UTC"), st.sampled_from([AT, AT.replace(microsecond=1), None])),
    (pa.bool_(), st.sampled_from([True, False, None])),
    (pa.binary(), st.sampled_from([b"", b"\xff", None])),
]


def listed(kind: tuple[pa.DataType, st.SearchStrategy]) -> tuple[pa.DataType, st.SearchStrategy]:
    return pa.list_(kind[0]), st.none() | st.lists(kind[1], max_size=2)


def struct_of(kinds: list) -> tuple[pa.DataType, st.SearchStrategy]:
    fields = [(f"f{at}", kind) for at, (kind, _) in enumerate(kinds)]
    return pa.struct(fields), st.none() | st.fixed_dictionaries({f"f{at}": s for at, (_, s) in enumerate(kinds)})


KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(listed) | st.lists(inner, min_size=1, max_size=2).map(struct_of),
    max_leaves=4,
)


@given(st.data())
def test_grouping_and_folding_the_log_agree_with_sparks_equality(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    keys = pa.array(data.draw(st.lists(values, min_size=1, max_size=8)), kind)
    expected = classes(keys.to_pylist())
    ones = pa.array([1] * len(keys), pa.int64())

    groups = Groups(Label("count", "here"), PyCount(), "merge", ("k",), ("n",), ("n",), (pa.int64(),))
    frames = groups.run(iter([Frame({"k": keys, "n": ones}, len(keys), Meter())]))
    found = [n for frame in frames for n in frame.values("n")]
    assert sorted(found) == sorted(map(len, expected))

    # As Spark sorts them: equal keys are neighbours.
    sorted_keys = keys.take(pa.array([at for each in expected for at in each]))
    rows = pa.RecordBatch.from_arrays([sorted_keys, ones, ones], names=["k", "n", "_txid"])
    halves = [rows.slice(0, len(rows) // 2), rows.slice(len(rows) // 2)]
    fold = fold_of(PyCount().combine, ["k"], ["n"], ["k", "n"])
    folded = [n for batch in fold(halves) for n in batch["n"].to_pylist()]
    assert sorted(folded) == sorted(map(len, expected))


def test_a_memory_map_has_one_entry_for_nan(tmp_path) -> None:
    import pyarrow.parquet as pq

    table = pa.table({"x": pa.array([NAN, 0.0]), "m": pa.array([[("a", 1)]] * 2, pa.map_(pa.string(), pa.int64()))})
    entries = memory_map("same-keys")
    entries.clear()
    for txid, keys in ((1, [NAN, 0.0]), (2, [float("-nan"), -0.0])):
        pq.write_table(table.set_column(0, "x", pa.array(keys)), tmp_path / "f.parquet")
        entries.update(txid, staged_rows(tmp_path / "f.parquet", ["x"], ["m"]), lambda a, b: {"a": a["a"] + b["a"]})
    assert sorted(entries.values().values()) == [({"a": 2},), ({"a": 2},)]


# --- in Spark -------------------------------------------------------------------------------------


def key(d: Any = 1.0, many: Any = (), m: Any = "1.5", at: Any = AT, inner: Any = 0.0, x: Any = 0.0) -> tuple:
    part = {"m": None if m is None else Decimal(m), "at": at, "d": inner}
    return {"d": d, "many": None if many is None else list(many), "part": part}, x


# Each line is one key, written in several ways.
KEYS = [
    [key(NAN), key(float("-nan"))],
    [key(0.0), key(-0.0), key(inner=-0.0, d=0.0, x=-0.0)],
    [key(many=[NAN, 0.0]), key(many=[float("-nan"), -0.0])],
    [key(many=None)],
    [key(many=[None])],
    [key()],
    [key(inner=NAN), key(inner=NAN)],
    [key(x=NAN), key(x=NAN)],
    [key(x=None)],
    [key(m=None, at=None, inner=None)],
    [({"d": 1.0, "many": [], "part": None}, 0.0)],
    [({"d": None, "many": None, "part": None}, 0.0)],
    [(None, 0.0)],
]
TXIDS = 6


@pytest.mark.long
def test_a_key_has_one_row_in_log_table_and_lookups_whatever_combines_it(spark, engine, tmp_path) -> None:
    schema = f"{KEY}, n bigint"
    states = [
        keyed("py", schema, ("k", "x"), PyCount(), merge_every_txids=1),
        keyed("native", schema, ("k", "x"), Native("count"), merge_every_txids=1),
    ]
    group = Group(spark, engine, tmp_path, *states)
    for txid in range(1, TXIDS + 1):
        rows = [(*ways[txid % len(ways)], 1) for ways in KEYS]
        group.publish(txid, {"py": rows, "native": rows})
        if txid in (2, 4):  # the second one meets what the first one has written, by one condition for both states
            for name in ("py", "native") if txid == 4 else ("py",):
                compactor = Compactor(spark, engine, tmp_path, group.descriptor(name), None, PyCount())
                assert compactor.merge_once(txid, force=True).p_new == txid
    asked = spark.createDataFrame([ways[-1] for ways in KEYS], KEY)
    for name in ("py", "native"):
        frames = [read_state(spark, tmp_path, name, txid, PyCount()) for txid in (4, TXIDS)]
        frames.append(base_of(spark, tmp_path, name, asked, TXIDS, PyCount()))
        for frame, n in zip(frames, (4, TXIDS, TXIDS)):
            assert [row.n for row in frame.collect()] == [n] * len(KEYS), (name, n)


@pytest.mark.skipif(os.environ.get("TRIDENT_TYPES") != "all", reason="make types runs it")
def test_a_table_with_a_key_twice_is_refused_and_its_log_makes_it_whole_again(spark, engine, tmp_path) -> None:
    """As an earlier release left tables behind."""
    state = keyed("py", f"{KEY}, n bigint", ("k", "x"), PyCount(), merge_every_txids=1)
    group = Group(spark, engine, tmp_path, state)
    compactor = Compactor(spark, engine, tmp_path, group.descriptor("py"), DeltaMapState("py"), PyCount())
    group.publish(1, {"py": [(*key(NAN), 1)]})
    compactor.merge_once(1, force=True)
    session = spark.newSession()
    session.read.format("delta").load(compactor.plain).write.format("delta").mode("append").save(compactor.plain)
    group.publish(2, {"py": [(*key(NAN), 1)]})
    with pytest.raises(TableError, match="has a key twice.*move the table's folder away"):
        compactor.merge_once(2, force=True)
    with pytest.raises(Exception, match="has a key twice"):
        read_state(spark, tmp_path, "py", 2, PyCount()).collect()
    shutil.move(compactor.plain, tmp_path / "aside")
    again = Compactor(spark, engine, tmp_path, group.descriptor("py"), DeltaMapState("py"), PyCount())
    again.merge_once(2, force=True)
    assert [row.n for row in spark.read.format("delta").load(compactor.plain).collect()] == [2]
