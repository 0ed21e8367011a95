"""The rules of docs/semantics.md 5 row by row, as a fold over any history of tries, and the stored texts."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.states.core.test_copy_rows import VALUES, arrow_schema
from trident.coordinators.errors import ConfigError, Halted, IdentityMismatch, TridentError
from trident.states.core.copy_rows import plain_values
from trident.states.core.copyable import is_folded
from trident.states.core.folds import DoesNotFit, folded, onto
from trident.states.core.native import NATIVE
from trident.states.core.values import (
    UNCHANGED,
    OpaqueValue,
    Semantics,
    TransactionalValue,
    base_of,
    dumps,
    loads,
    stored_after,
    undone,
    visible,
)

NON, TX, OPAQUE = Semantics.NON_TRANSACTIONAL, Semantics.TRANSACTIONAL, Semantics.OPAQUE
T, O = TransactionalValue, OpaqueValue  # noqa: E741
TXID = 7

# semantics, stored, what a reader sees, the base of txid 7, stored after an update to "new", after one to None
TABLE = [
    (NON, None, None, None, "new", UNCHANGED),
    (NON, "old", "old", "old", "new", None),
    (TX, None, None, None, T(7, "new"), UNCHANGED),
    (TX, T(6, "old"), "old", "old", T(7, "new"), T(7, None)),
    (TX, T(6, None), None, None, T(7, "new"), None),
    (TX, T(7, "old"), "old", "skipped", UNCHANGED, UNCHANGED),
    (TX, T(7, None), None, "skipped", UNCHANGED, UNCHANGED),
    (OPAQUE, None, None, None, O(7, "new", None), UNCHANGED),
    (OPAQUE, O(6, "old", "older"), "old", "old", O(7, "new", "old"), O(7, None, "old")),
    (OPAQUE, O(6, None, "older"), None, None, O(7, "new", None), None),
    (OPAQUE, O(6, "old", None), "old", "old", O(7, "new", "old"), O(7, None, "old")),
    (OPAQUE, O(7, "tried", "old"), "tried", "old", O(7, "new", "old"), O(7, None, "old")),
    (OPAQUE, O(7, None, "old"), None, "old", O(7, "new", "old"), O(7, None, "old")),
    # A key that only a failed try had made is absent again.
    (OPAQUE, O(7, "tried", None), "tried", None, O(7, "new", None), None),
    (OPAQUE, O(7, None, None), None, None, O(7, "new", None), None),
]


def updated(semantics, stored, txid, update):
    base = base_of(semantics, stored, txid)
    return UNCHANGED if base.applied else stored_after(semantics, stored, txid, update(base.value))


@pytest.mark.parametrize(("semantics", "stored", "seen", "base", "after_new", "after_none"), TABLE)
def test_every_row_of_the_table(semantics, stored, seen, base, after_new, after_none):
    assert visible(semantics, stored) == seen
    bases = []
    for new, after in (("new", after_new), (None, after_none)):
        assert updated(semantics, stored, TXID, lambda old, new=new: (bases.append(old), new)[1]) == after
    assert bases == ([] if base == "skipped" else [base, base])
    assert base_of(semantics, stored, TXID).applied == (base == "skipped")


@pytest.mark.parametrize("semantics", [TX, OPAQUE])
def test_a_newer_transaction_another_incarnation_or_other_semantics_stop_everything(semantics):
    row = {TX: lambda txid, incarnation: T(txid, 1, incarnation), OPAQUE: lambda t, i: O(t, 1, 2, i)}[semantics]
    with pytest.raises(Halted, match="txid 8.*expected: at most 7"):
        base_of(semantics, row(8, "a"), TXID, "a")
    for action in (lambda s: base_of(semantics, s, TXID, "a"), lambda s: visible(semantics, s, "a")):
        with pytest.raises(IdentityMismatch, match="'b'; expected: incarnation 'a'.*Clear.*another name"):
            action(row(6, "b"))
        for foreign in (1, T(6, 1, "a") if semantics is OPAQUE else O(6, 1, 2, "a")):
            with pytest.raises(IdentityMismatch, match="Clear the map"):
                action(foreign)
    for txid in (None, 0, True, 1.0):
        with pytest.raises(ConfigError, match="begin_commit"):
            base_of(semantics, None, txid)
    with pytest.raises(IdentityMismatch):
        visible(NON, T(6, 1))


@pytest.mark.parametrize(
    ("stored", "after"),
    [
        (None, UNCHANGED),
        (O(6, "old", None), UNCHANGED),
        (O(7, "tried", "old"), O(7, "old", "old")),
        (O(7, None, "old"), O(7, "old", "old")),
        (O(7, "tried", None), None),
    ],
)
def test_an_opaque_try_is_undone(stored, after):
    assert undone(stored, TXID) == after
    with pytest.raises(Halted):
        undone(O(8, 1, 2), TXID)


def test_an_update_in_place_does_not_reach_the_previous_value():
    stored = O(6, [1], [])
    after = updated(OPAQUE, stored, TXID, lambda old: (old.append(2), old)[1])
    assert after == O(7, [1, 2], [1]) and stored == O(6, [1], [])
    visible(OPAQUE, after).append(9)
    assert after.current == [1, 2]


# What a try does to the one key: "+n", remove, or not touch it.
actions = st.integers(1, 9) | st.sampled_from(["remove", "untouched"])


def act(action):
    return (lambda old: None) if action == "remove" else (lambda old: (old or ()) + (action,))


def fold(history):
    value = None
    for action in history:
        if action != "untouched":
            value = None if action == "remove" else (value or ()) + (action,)
    return value


@given(st.lists(st.tuples(actions, st.integers(1, 3)), max_size=8))
def test_transactional_replays_of_the_same_rows_give_exactly_the_fold(history):
    for semantics in (TX, OPAQUE):
        stored = None
        for txid, (action, tries) in enumerate(history, 1):
            for _ in range(tries if action != "untouched" else 0):
                after = updated(semantics, stored, txid, act(action))
                stored = stored if after is UNCHANGED else after
        assert visible(semantics, stored) == fold([action for action, _ in history])


@given(st.lists(st.lists(actions, min_size=1, max_size=4), max_size=8))
def test_opaque_replays_of_any_rows_give_exactly_the_fold_of_the_last_tries(history):
    stored = None
    for txid, tries in enumerate(history, 1):
        for action in tries:
            # A try that does not touch what an earlier one did undoes it.
            touch = undone(stored, txid) if action == "untouched" else updated(OPAQUE, stored, txid, act(action))
            stored = stored if touch is UNCHANGED else touch
    assert visible(OPAQUE, stored) == fold([tries[-1] for tries in history])


# -- the text -----------------------------------------------------------------------------------

zones = (
    st.none()
    | st.sampled_from([timezone.utc, ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")])
    | st.builds(lambda secs: timezone(timedelta(seconds=secs)), st.integers(-23 * 3600, 23 * 3600))
)
moments = st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, st.integers(0, 1))
scalars = (
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.decimals(), st.dates(), st.timedeltas()
    )
    | st.text(st.characters(), max_size=5)
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | moments
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3)


def larger(inner):
    txids = st.integers(1, 2**70)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys.filter(lambda key: "sNaN" not in repr(key)), inner, max_size=3),
        st.builds(T, st.integers(1, 2**50), inner, st.text(max_size=3)),
        st.builds(O, st.integers(1, 2**50), inner, inner, st.text(max_size=3)),
        st.builds(T, txids.map(lambda txid: txid % 2**62 + 1), inner),
    )


values = st.recursive(scalars, larger, max_leaves=8)


def shape(value):
    """Everything that must survive, in a form that compares: types, signs, NaN, zones, order."""
    kind = type(value)
    if kind in (list, tuple):
        return (kind, [shape(item) for item in value])
    if kind is dict:
        return (kind, [(shape(key), shape(item)) for key, item in value.items()])
    if kind is T:
        return (kind, value.txid, shape(value.value), value.incarnation)
    if kind is O:
        return (kind, value.txid, shape(value.current), shape(value.previous), value.incarnation)
    if kind is float:
        return (kind, "nan" if math.isnan(value) else value.hex())
    if kind is datetime:
        zone = value.tzinfo
        return (kind, str(value), value.fold, zone.key if isinstance(zone, ZoneInfo) else value.utcoffset())
    return (kind, str(value) if kind is Decimal else value)


@given(values)
def test_a_value_survives(value):
    text = dumps(value)
    assert shape(loads(text)) == shape(value)
    assert text.isascii() and dumps(loads(text)) == text


def test_numbers_of_any_size_and_depth_survive():
    for value in (10**5000, -(2**63), 2**63, -(2**63) - 1, 5e-324, 1e308, -0.0, Decimal("1E+999"), Decimal("-sNaN12")):
        assert shape(loads(dumps(value))) == shape(value)


def test_values_of_different_types_have_different_texts():
    alike = [1, 1.0, True, Decimal(1), "1", b"1", [1], (1,), {1: 1}, {"tuple": [1]}, None, "null", timedelta(1), {}]
    assert len({dumps(value) for value in alike}) == len(alike)


class Number(IntEnum):
    ONE = 1


LOOP: list = []
LOOP.append(LOOP)


OWN_ZONE = type("Z", (tzinfo,), {"utcoffset": lambda self, at: timedelta(0)})()
NOT_STORED = [
    *[object(), {1, 2}, bytearray(b"x"), Number.ONE, OrderedDict(a=1), time(1), 1j, range(3), LOOP, lambda: 1],
    *[{"a": [Number.ONE]}, T(1, object()), datetime(2020, 1, 1, tzinfo=OWN_ZONE)],
]


@pytest.mark.parametrize("value", NOT_STORED, ids=lambda value: type(value).__name__)
def test_anything_else_cannot_be_stored(value):
    with pytest.raises(ConfigError, match="expected: "):
        dumps(value)


NOT_WRITTEN_SO = [
    *[
        *["", "x", "nul", "1 2", "NaN", "-Infinity", "1e999", "{}", '{"a":1}', "9223372036854775808", "[" * 100_000],
        *[b"1", None],
    ],
    *['{"tuple":[],"tuple":[]}', '{"tuple":1}', '{"dict":[[1]]}', '{"dict":[[1,2],[1,3]]}', '{"dict":[[[],2]]}'],
    *['{"float":"1.0"}', '{"float":"NaN"}', '{"int":"0x1"}', '{"int":5}', '{"bytes":"a"}', '{"bytes":"YR=="}'],
    *['{"date":"2020-1-1"}', '{"date":"20200101"}', '{"decimal":"1_0"}', '{"decimal":"x"}', '{"str":"YQ=="}'],
    *['{"timedelta":[0,86400,0]}', '{"timedelta":[0]}', '{"timedelta":[0,0.5,0]}'],
    *['{"transactional":[0,1,""]}', '{"transactional":[1,1]}', '{"opaque":[1,1,1,null]}', '{"opaque":[true,1,1,""]}'],
    *['{"datetime":["2020-01-01T00:00:00",null]}', '{"datetime":["2020-01-01",null,0]}'],
    *['{"datetime":["2020-01-01T00:00:00","No/Where",0]}', '{"datetime":["2020-01-01T00:00:00",null,true]}'],
    '{"datetime":["2020-01-01T00:00:00+00:00","UTC",0]}',
]


@pytest.mark.parametrize("text", NOT_WRITTEN_SO, ids=lambda text: repr(text)[:30])
def test_a_text_that_was_not_written_so_is_an_error(text):
    with pytest.raises(TridentError, match="stored value cannot be read"):
        loads(text)


def test_dates_are_not_datetimes():
    assert type(loads(dumps(date(2020, 1, 1)))) is date
    assert type(loads(dumps(datetime(2020, 1, 1)))) is datetime


# --- folds -----------------------------------------------------------------------------------------------
# The fold of each built-in aggregate gives what Spark gives for the same rows in the same order.

KINDS = [(name, kind) for name in ("min", "max") for kind in VALUES if not kind.startswith("map")]
KINDS += [("sum", "bigint"), ("sum", "double"), ("sum", "decimal(38,2)"), ("count", "bigint")]
GROUPS = 150


def texts(values: pa.Array) -> list[str]:
    """Of values that differ others, also of 0.0 and -0.0."""
    return [repr(value) for value in plain_values(values, values.type)]


@pytest.mark.parametrize(("aggregator", "kind"), KINDS)
def test_spark_is_the_oracle(spark: SparkSession, rng: random.Random, aggregator: str, kind: str) -> None:
    schema = arrow_schema(f"g bigint, v {kind}")
    groups = np.array([*range(GROUPS), *(rng.randrange(GROUPS) for _ in range(3 * GROUPS))])
    values = pa.array([rng.choice([*VALUES[kind], None]) for _ in groups], schema.types[1])
    rows = spark.createDataFrame(pa.table([pa.array(groups), values], schema=schema)).coalesce(1)
    adds = aggregator in ("sum", "count")
    merged = F.expr("try_sum(v)") if adds else NATIVE[aggregator].merge(F.col("v"))  # null where ANSI's sum fails
    found = rows.groupBy("g").agg(merged.alias("v")).orderBy("g").toArrow().column("v").combine_chunks()
    expected, refused = texts(found.cast(values.type)), list[int]()
    for group in range(GROUPS):
        own = values.filter(pa.array(groups == group))
        try:
            alone = folded(aggregator, [], own)[1]
        except DoesNotFit:
            refused.append(group)
            assert expected[group] == "None", own
            continue
        if texts(alone) != [expected[group]]:  # in Spark a sum must fit on its way, too
            assert adds and expected[group] == "None" and alone[0].as_py() == sum(filter(None, own.to_pylist())), own
    kept = ~np.isin(groups, refused)
    numbers = np.unique(groups[kept], return_inverse=True)[1]
    left, count = values.filter(pa.array(kept)), GROUPS - len(refused)
    (names,), together = folded(aggregator, [pa.array(numbers)], left)
    assert names.to_pylist() == list(range(count))
    assert texts(onto(aggregator, left.slice(0, count), left.slice(count), numbers[count:])) == texts(together)


def test_a_fold_of_no_row_is_null_and_the_key_of_a_sum_that_does_not_fit_is_named() -> None:
    assert folded("sum", [], pa.array([], pa.int64()))[1].to_pylist() == [None]
    assert folded("sum", [pa.array([], pa.string())], pa.array([], pa.int64()))[1].to_pylist() == []
    with pytest.raises(DoesNotFit, match="overflow: the sum 9223372036854775808 does not fit bigint") as caught:
        folded("sum", [pa.array(["a", "b", "b"])], pa.array([1, 2**63 - 1, 1]))
    assert caught.value.key == ["b"]


@pytest.mark.parametrize(
    ("aggregator", "kind"),
    [
        ("sum", pa.float32()),
        ("sum", pa.string()),
        ("another", pa.int64()),
        ("min", pa.duration("us")),
        ("max", pa.list_(pa.duration("us"))),
        ("min", pa.month_day_nano_interval()),
    ],
)
def test_these_are_not_folded(aggregator: str, kind: pa.DataType) -> None:
    assert not is_folded(aggregator, kind)


@pytest.mark.parametrize("count", [3, 40, 5000])
def test_sum_of_doubles_without_keys_is_from_the_first_to_the_last(count: int) -> None:
    source = random.Random(1)
    values = [source.uniform(-1e16, 1e16) if at % 2 else source.random() for at in range(count)]
    expected = 0.0
    for value in values:
        expected += value
    rows = pa.chunked_array([values[:2], values[2:]])
    assert folded("sum", [], rows)[1].to_pylist() == [expected]
