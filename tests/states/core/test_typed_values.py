"""What a function returns is exactly of the declared type, or refused with the path of the field."""

from __future__ import annotations

import array
import datetime as dt
import os
import random
from collections import namedtuple
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type

from trident.states.core.typed_values import PYSPARK, WrongValue, batches_of, python_values, to_arrow, typed
from trident.udf.types import parse_type

UTC, BERLIN = dt.timezone.utc, ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 7)
DAY = NOON.date()
FINE = pd.Timestamp("2024-05-01T12:00:00.000000007")  # of nanoseconds


def kind_of(text: str) -> pa.DataType:
    return to_arrow_type(parse_type(text), timezone="UTC")


# --- drawn values: what was planted, and where, is known from how it was made ------------

# Of each type: (given, read back), and the values that are refused.
LEAVES: dict[str, tuple[list[tuple[Any, Any]], list[Any]]] = {
    "boolean": ([(True, True), (False, False), (np.True_, True)], [1, 0, "true", 1.0, np.int8(1), [True]]),
    "byte": ([(-128, -128), (127, 127), (np.int8(3), 3)], [128, -129, True, np.True_, 1.0, "1", Decimal(1)]),
    "short": ([(-(2**15), -(2**15)), (np.int64(9), 9)], [2**15, False, np.float32(1.5), b"1", {}]),
    "int": ([(2**31 - 1, 2**31 - 1), (np.uint8(200), 200)], [2**31, 1.5, Decimal("1.5"), np.uint32(2**31), DAY]),
    "long": (
        [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (np.int32(-4), -4), (pa.scalar(5), 5)],
        [2**63, Decimal("1.5"), Decimal(1), np.float32(1.5), 2.0, np.True_, True, np.uint64(2**63), "7", NOON],
    ),
    "float": (
        [(1.5, 1.5), (0.1, 0.10000000149011612), (float("inf"), float("inf")), (3, 3.0), (-0.0, -0.0)],
        [1e300, -1e39, 1e-300, 2**24 + 1, True, "1.5", Decimal("1.5"), 10**400],
    ),
    "double": (
        [(0.1, 0.1), (1e300, 1e300), (2**53, 2.0**53), (2**60, 2.0**60), (np.float32(0.5), 0.5)],
        [2**53 + 1, 10**400, False, np.False_, "1.5", Decimal("1.5"), 1j, b"1"],
    ),
    "string": ([("", ""), ("ä𝄞", "ä𝄞"), (np.str_("x"), "x")], [b"x", bytearray(b"x"), 1, "\ud800", ["x"], DAY]),
    "binary": ([(b"", b""), (bytearray(b"ab"), b"ab"), (memoryview(b"c"), b"c")], ["x", 1, [1], True]),
    "date": (
        [(DAY, DAY), (dt.date.min, dt.date.min), (np.datetime64("2024-05-01"), DAY)],
        [NOON, NOON.replace(tzinfo=UTC), 3, 3.0, "2024-05-01", np.datetime64("2024-05-01T12:00"), FINE],
    ),
    "timestamp": (
        [
            (NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC)),
            (dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), dt.datetime(2024, 10, 27, 1, 30, tzinfo=UTC)),
            (pd.Timestamp(NOON, tz="UTC"), NOON.replace(tzinfo=UTC)),
        ],
        [NOON, DAY, 1_700_000_000, 1.7e9, FINE.tz_localize("UTC"), FINE, "2024-05-01", np.datetime64("2024-05-01")],
    ),
    "timestamp_ntz": (
        [(NOON, NOON), (dt.datetime.max, dt.datetime.max), (np.datetime64(NOON), NOON)],
        [NOON.replace(tzinfo=UTC), DAY, 1_700_000_000, FINE, np.datetime64(7, "ns"), pd.NaT],
    ),
    "decimal(5,2)": (
        [(Decimal("1.5"), Decimal("1.50")), (Decimal("1.500"), Decimal("1.50")), (7, Decimal("7.00"))],
        [Decimal("1.555"), Decimal("1000"), 1000, 1.5, True, "1.5", Decimal("NaN"), Decimal("Infinity"), np.float64(1)],
    ),
}
NO_LIST = ["abc", b"ab", {1, 2}, {1: 2}, 7, iter([1]), np.array(3)]
NO_MAP = ["abc", [1, 2], 7, {1, 2}, [["a", 1]]]
NO_STRUCT = ["abc", 7, [1, 2], (1,) * 9]


class Draw:
    """One type, a value of it with what is read back, and perhaps one wrong part with its path."""

    def __init__(self, rng: random.Random, wrong_at: int | None) -> None:
        self.rng, self.wrong_at, self.seen, self.path = rng, wrong_at, 0, ""
        self.planted: Any = None

    def kind(self, depth: int) -> Any:
        shape = self.rng.choice(["leaf"] if not depth else ["leaf", "array", "map", "struct", "struct"])
        if shape == "leaf":
            return self.rng.choice(list(LEAVES))
        if shape == "array":
            return ("array", self.kind(depth - 1))
        if shape == "map":
            # What is drawn for these is distinct.
            return ("map", self.rng.choice(["string", "long", "date"]), self.kind(depth - 1))
        return ("struct", [(f"f{at}", self.kind(depth - 1)) for at in range(self.rng.randint(1, 3))])

    def value(self, kind: Any, path: str, key: bool = False) -> tuple[Any, Any]:
        self.seen += 1
        if self.seen == self.wrong_at:
            self.path, self.planted = path, self.wrong(kind, key)
            return self.planted, None
        if not key and self.rng.random() < 0.1:
            return None, None
        if isinstance(kind, str):
            return self.rng.choice(LEAVES[kind][0])
        if kind[0] == "array":
            pairs = [self.value(kind[1], f"{path}[{at}]") for at in range(self.rng.randint(0, 3))]
            made = [given for given, _ in pairs]
            return self.rng.choice([list, tuple])(made), [read for _, read in pairs]
        if kind[0] == "map":
            given, read = {}, {}
            for at in range(self.rng.randint(0, 2)):
                name, as_read = self.value(kind[1], f"{path}.keys()[{at}]", key=True)
                if self.path == f"{path}.keys()[{at}]":
                    return {**given, name: None}, None
                if as_read in read:
                    continue
                given[name], read[as_read] = self.value(kind[2], f"{path}[{name!r}]")
            return (given, read) if self.rng.random() < 0.7 else (list(given.items()), read)
        fields = {name: self.value(of, f"{path}.{name}") for name, of in kind[1]}
        read = {name: one for name, (_, one) in fields.items()}
        made = {name: one for name, (one, _) in fields.items()}
        how = self.rng.choice(["dict", "turned", "tuple", "named", "row"])
        if how == "dict" or how == "turned":
            return (made if how == "dict" else dict(reversed(list(made.items())))), read
        if how == "tuple":
            return tuple(made.values()), read
        return (namedtuple("Named", made)(**made) if how == "named" else Row(**made)), read

    def wrong(self, kind: Any, key: bool) -> Any:
        if isinstance(kind, str):
            found = self.rng.choice([*LEAVES[kind][1], None] if key else LEAVES[kind][1])
            return found if not key or found.__hash__ is not None else None
        if kind[0] == "array":
            return self.rng.choice(NO_LIST)
        if kind[0] == "map":
            twice = LEAVES[kind[1]][0][0][0]
            return self.rng.choice([*NO_MAP, [(twice, None), (twice, None)]])
        names = [name for name, _ in kind[1]]
        return self.rng.choice([*NO_STRUCT, {names[0].upper(): None}, {**dict.fromkeys(names), "other": 1}])


def ddl(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind[0] == "struct":
        return f"struct<{', '.join(f'{name}: {ddl(of)}' for name, of in kind[1])}>"
    return f"{kind[0]}<{', '.join(map(ddl, kind[1:]))}>"


@pytest.mark.parametrize("form", ["rows", "objects of pandas", "spout"])
def test_a_thousand_drawn_values_are_kept_exactly_or_refused_with_their_path(form: str) -> None:
    seed = int(os.environ.get("TRIDENT_SEED", random.randrange(2**32)))
    print("TRIDENT_SEED =", seed)
    refused = 0
    for number in range(1000):
        rng = random.Random(f"{seed} {number}")
        shape = Draw(rng, None)
        kind = shape.kind(rng.randint(0, 3))
        state = rng.getstate()
        shape.value(kind, "f")
        wrong_at = rng.randint(1, shape.seen) if rng.random() < 0.6 else None
        rng.setstate(state)
        draw = Draw(rng, wrong_at)
        given, read = draw.value(kind, "f")
        if form == "spout" and draw.path and "timestamp" in ddl(kind):
            continue  # there a datetime without a zone is local time
        if form == "objects of pandas" and (draw.planted is pd.NaT or str(draw.planted) == "NaN"):
            continue  # there it is null
        text = f"{ddl(kind)}: {given!r}, wrong at {draw.path!r}, number {number} of TRIDENT_SEED={seed}"
        before = [None, given] if rng.random() < 0.5 else [given]
        try:
            array_ = made(form, before, kind_of(ddl(kind)))
        except WrongValue as error:
            assert draw.path == error.path and error.position == len(before) - 1, f"{error.path!r} of {text}"
            refused += 1
            continue
        assert not draw.path, text
        # Types too, and the sign of a zero: Arrow's name of UTC is another one than Python's.
        back = repr(python_values(array_)[-1]).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
        assert back == repr(read), text
    assert refused > 300


def made(form: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    if form == "rows":
        return to_arrow(values, kind, "f")[0]
    if form == "spout":
        # One batch: so the row is known.
        return to_arrow(values, kind, "f", terms=PYSPARK)[0]
    column = np.empty(len(values), object)
    column[:] = [None] * len(values)
    for at, value in enumerate(values):
        column[at] = value
    return typed(pd.Series(column, dtype=object), kind, "f")


# --- the forms that are not drawn --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "read"),
    [
        ("array<double>", np.array([0.5, float("nan")]), "[0.5, nan]"),
        ("array<double>", np.array([1, 2]), "[1.0, 2.0]"),
        ("array<long>", np.ma.array([1, 2], mask=[False, True]), "[1, None]"),
        ("array<int>", array.array("b", [1, 2]), "[1, 2]"),
        ("array<long>", range(2), "[0, 1]"),
        ("array<array<long>>", np.array([[1], [2]]), "[[1], [2]]"),
        ("array<long>", pd.Series([1, 2]), "[1, 2]"),
        ("array<long>", pa.array([1, None]), "[1, None]"),
        ("struct<a: long, b: long>", Row(b=2, a=1), "{'a': 1, 'b': 2}"),
        ("struct<a: long, b: long>", {"a": 1}, "{'a': 1, 'b': None}"),
        ("map<double,long>", {0.5: 1, float("nan"): 2}, "{0.5: 1, nan: 2}"),
    ],
)
def test_other_forms_of_the_same_value(text: str, value: Any, read: str) -> None:
    (found,) = python_values(to_arrow([value], kind_of(text), "f")[0])
    assert str(found) == read


@pytest.mark.parametrize(
    ("text", "value", "path", "found"),
    [
        ("struct<lines: array<string>>", {"lines": ["a", "b", 3]}, "address.lines[2]", "3 (int)"),
        ("array<long>", np.array([1.0, 2.0]), "address[0]", "1.0"),
        ("array<timestamp>", np.array(["2024-05-01"], "M8[us]"), "address[0]", "2024"),
        ("array<float>", [0.1, 1e300], "address[1]", "1e+300 (float)"),
        ("map<float,long>", {0.1: 1, 0.1 + 1e-12: 2}, "address", "0.1"),
        ("map<string,struct<n: long>>", {"a": {"n": True}}, "address['a'].n", "True (bool)"),
        ("struct<a: long>", {"A": 1}, "address", "a field 'A'"),
        ("struct<a: long>", Row(b=1), "address", "a field 'b'"),
        ("long", np.float32(1.5), "address", "float32"),
    ],
)
def test_a_refused_value_is_named_by_its_path(text: str, value: Any, path: str, found: str) -> None:
    with pytest.raises(WrongValue) as caught:
        to_arrow([None, value], kind_of(text), "address")
    assert (caught.value.path, caught.value.position) == (path, 1) and found in caught.value.details["found"]
    assert path in str(caught.value)


def test_null_is_refused_where_the_type_has_none() -> None:
    kind = pa.struct([pa.field("a", pa.list_(pa.field("item", pa.int64(), nullable=False)))])
    with pytest.raises(WrongValue) as caught:
        to_arrow([{"a": [1, None]}], kind, "s")
    assert caught.value.path == "s.a[1]" and "None" in caught.value.details["found"]
    with pytest.raises(WrongValue):
        to_arrow([None], pa.int64(), "n", nullable=False)


@pytest.mark.parametrize(
    ("column", "text", "path"),
    [
        (pa.array([[1.5]]), "array<long>", "f[0]"),
        (pa.array([[1]], pa.list_(pa.int64())), "array<byte>", ""),
        (pa.array([[300]], pa.list_(pa.int64())), "array<byte>", "f[0]"),
        (pa.array([[NOON]]), "array<timestamp>", "f[0]"),
        (pa.array([{"A": 1}]), "struct<a: long>", "f"),
        (pa.array([["a"]], pa.large_list(pa.large_string())), "array<string>", ""),
        (pa.array([1e300]), "float", "-"),
        (pa.array([1e-300]), "float", "-"),
        (pa.array([[7]], pa.list_(pa.timestamp("ns"))), "array<timestamp_ntz>", "f[0]"),
        (pd.Series([[float("nan"), 1.0], None]), "array<double>", ""),
        (pd.Series([np.array([float("nan"), 1.0])]), "array<long>", ""),
        (pd.Series([np.array([1.5])]), "array<long>", "f[0]"),
        (pd.Series([Decimal("1.5")]), "long", "f"),
        (pd.Series([pd.NA, 1], dtype=object), "long", ""),
        (pd.Series([True, None]), "long", "f"),
        (pd.Series([NOON]).dt.tz_localize("Europe/Berlin"), "timestamp", ""),
        (pd.Series([FINE]), "timestamp_ntz", "-"),
    ],
)
def test_columns_are_held_to_the_same_rule(column: Any, text: str, path: str) -> None:
    if path:
        with pytest.raises(WrongValue) as caught:
            typed(column, kind_of(text), "f")
        assert path in ("-", caught.value.path)
        return
    assert typed(column, kind_of(text), "f").type == kind_of(text)


def test_nulls_of_pandas_are_nulls_at_every_depth() -> None:
    nan = float("nan")
    column = pd.Series([[nan, 1.0], nan, np.array([nan, 2.0])])
    assert typed(column, kind_of("array<double>"), "f").to_pylist() == [[None, 1.0], None, [None, 2.0]]
    assert typed(column[2:], kind_of("array<long>"), "f").to_pylist() == [[None, 2]]


def test_rows_of_a_source_are_held_to_it_too() -> None:
    schema = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    good = [(1, ["a"]), Row(tags=["b"], n=2), pa.table({"tags": [["c"]], "n": [3]})]
    rows = [row for batch in batches_of(good, schema, 1) for row in batch.to_pylist()]
    assert rows == [{"n": 1, "tags": ["a"]}, {"n": 2, "tags": ["b"]}, {"n": 3, "tags": ["c"]}]
    for wrong in ((1, ["a", 2]), (1, "ab"), (1.0, None), Row(n=1, other=2), (1,), "ab", pa.table({"n": [1]})):
        with pytest.raises(WrongValue):
            list(batches_of([wrong], schema, 10))
