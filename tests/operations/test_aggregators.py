"""Aggregates over a batch and its groups: one row for an empty batch, none per group (docs/semantics.md 4)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from tests.long_cases import sample
from tests.streams.stream_helpers import ATTEMPT, batch, collect, raised, run, stream_of, together
from trident.coordinators.errors import FailedException, OutputTypeError, TopologyError, UserFunctionError
from trident.coordinators.identities import TransactionAttempt
from trident.operations.aggregators import (
    Aggregator,
    Combiner,
    Count,
    Max,
    Min,
    Reducer,
    Sum,
    aggregator_kind,
    is_groupable,
    is_ordered,
)
from trident.planning.groups import plan
from trident.planning.operation import arrow_types
from trident.states.core.native import NATIVE
from trident.states.core.typed_values import WrongValue, to_arrow
from trident.states.maps.memory_map import MemoryMapState
from trident.streams.stream import Stream
from trident.udf.signatures import translate_failure
from trident.udf.types import parse_type

NAN = float("nan")


class Longest:
    """A combiner: the longest text, the greater of two as long."""

    def init(self, word: str) -> str:
        return word or ""

    def combine(self, a: str, b: str) -> str:
        return max(a, b, key=lambda word: (len(word), word))

    def zero(self) -> str:
        return ""


class Joined:
    """A reducer: the letters of all words, in order."""

    def init(self) -> str:
        return ""

    def reduce(self, curr: str, word: str) -> str:
        return "".join(sorted(curr + (word or "")))


class Distinct:
    """An aggregator with a state that is changed in place, and many results."""

    def init(self, batch_id: TransactionAttempt) -> dict:
        return {"batch": batch_id, "words": set()}

    def aggregate(self, state: dict, word: str) -> None:
        state["words"].add(word)

    def complete(self, state: dict) -> Iterator[tuple[str, str]]:
        for word in sorted(state["words"], key=str):
            yield word, str(state["batch"])


class Rows:
    """An aggregator with one result."""

    def init(self, batch_id: object) -> int:
        return 0

    def aggregate(self, state: int) -> int:
        return state + 1

    def complete(self, state: int) -> int:
        return state


def test_the_kinds_are_told_by_their_methods() -> None:
    assert aggregator_kind(Count(), "x") == "native"
    for thing, kind, protocol in (
        (Longest(), "combiner", Combiner),
        (Joined(), "reducer", Reducer),
        (Distinct(), "aggregator", Aggregator),
    ):
        assert aggregator_kind(thing, "x") == kind and isinstance(thing, protocol)
    for wrong in (None, "count", object(), len):
        with pytest.raises(TopologyError, match="needs an aggregator"):
            aggregator_kind(wrong, "aggregate")


@pytest.mark.parametrize("aggregator", [Count(), Sum(), Min(), Max()])
def test_built_in_combiners_obey_the_laws_of_combiners(aggregator: Any) -> None:
    values = [3, -1, None, 7, 7]
    whole = aggregator.zero()
    for value in values:
        whole = aggregator.combine(whole, aggregator.init(value))
    for order in itertools.permutations(values):
        left = [aggregator.init(value) for value in order]
        for at in range(1, len(left)):
            parts = []
            for part in (left[:at], left[at:]):
                total = part[0]
                for value in part[1:]:
                    total = aggregator.combine(total, value)
                parts.append(total)
            assert aggregator.combine(*parts) == whole
            assert aggregator.combine(aggregator.zero(), aggregator.combine(*parts)) == whole
    assert aggregator.native_name in NATIVE
    assert aggregator == type(aggregator)() and aggregator != Longest()


def test_sums_of_decimals_are_exact_in_python_too() -> None:
    """Python's own context would round to 28 digits."""
    a, b = Decimal("12345678901.123456789012345678"), Decimal("1.000000000000000001")
    assert Sum().combine(a, b) == Decimal("12345678902.123456789012345679")


@pytest.mark.parametrize(
    ("kind", "value", "is_right"),
    [
        ("bigint", 0.5, False),
        ("bigint", True, False),
        ("bigint", 2, True),
        ("double", True, False),
        ("double", 2, True),
        ("string", b"ab", False),
        ("binary", "x", False),
        ("struct<n: bigint>", {"n": 0.5}, False),
        ("struct<n: bigint>", {"n": None}, True),
        ("struct<n: bigint>", {}, True),
        ("struct<n: bigint>", None, True),
    ],
)
def test_a_field_of_a_struct_is_looked_at_as_a_column_is(kind: str, value: Any, is_right: bool) -> None:
    (whole,) = arrow_types((StructField("s", parse_type(f"struct<f: {kind}, g: bigint>"), True),))
    values = [None, {"f": value, "g": 1}]
    if is_right:
        assert to_arrow(values, whole, "s")[0].to_pylist()[1]["g"] == 1
        return
    with pytest.raises(WrongValue, match="output 's'") as caught:
        to_arrow(values, whole, "s")
    assert caught.value.position == 1


def test_result_types() -> None:
    def result(aggregator: Any, *types: str) -> str:
        return aggregator.result_type([parse_type(text) for text in types]).simpleString()

    assert result(Count()) == result(Count(), "string", "int") == "bigint"
    assert [result(Sum(), text) for text in ("int", "float", "decimal(12,2)", "decimal(35,2)")] == [
        "bigint",
        "double",
        "decimal(22,2)",
        "decimal(38,2)",
    ]
    assert result(Min(), "string") == "string" and result(Max(), "array<date>") == "array<date>"
    for aggregator, text in ((Sum(), "string"), (Min(), "map<string,int>"), (Max(), "array<map<string,int>>")):
        with pytest.raises(OutputTypeError):
            result(aggregator, text)
    for types in ((), ("int", "int")):
        with pytest.raises(TopologyError, match="takes one field"):
            result(Sum(), *types)
    assert is_ordered(parse_type("struct<a: int>")) and not is_groupable(parse_type("struct<a: map<int,int>>"))


def test_aggregates_check_their_outputs_and_methods() -> None:
    stream = stream_of("word string, n int")

    class Untyped:
        def init(self, n):
            return n

        def combine(self, a, b):
            return a + b

        def zero(self):
            return 0

    for wrong, problem in (
        (lambda: stream.aggregate(Count(), "a, b"), "gives one value"),
        (lambda: stream.aggregate("n", Sum(), "total int"), "another type"),
        (lambda: stream.aggregate("word", Sum(), "total"), "adds numbers"),
        (lambda: stream.aggregate("n", Untyped(), "total"), "not known"),
        (lambda: stream.aggregate("word, n", Longest(), "w"), "cannot be called"),
        (lambda: stream.aggregate(Joined(), "w"), "cannot be called"),
        (lambda: stream.aggregate("word", Distinct(), "w"), "number of values"),
    ):
        with pytest.raises(TopologyError, match=problem):
            wrong()
    assert stream.aggregate("n", Untyped(), "total double").schema["total"].dataType.simpleString() == "double"


# --- the whole batch -------------------------------------------------------------------------

WORDS = [("a",), ("ccc",), (None,), ("bb",), ("a",)]


def in_one_job(spark: Any, streams: list[Stream], rows: list[tuple], partitions: int) -> list[list[tuple]]:
    """The rows of each stream, whose fields are others than those of the next, in order of their text."""
    texts = [stream.map(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}), "row") for stream in streams]
    found = together(spark, texts, rows, partitions)
    return [sorted((tuple(json.loads(row).values()) for (row,) in one), key=repr) for one in found]


@pytest.mark.parametrize("partitions", sample([3, 0], 0))
def test_an_aggregate_of_a_batch_is_one_row_also_when_it_is_empty(spark, partitions: int) -> None:
    rows = WORDS if partitions else []
    full, seven_two = bool(rows), str(ATTEMPT)
    source = stream_of("word string")
    expected: list[tuple[Any, list]] = [
        (source.aggregate(Count(), "n"), [(5,)] if full else [(0,)]),
        (source.filter("word", bool).aggregate(Count(), "n"), [(4,)] if full else [(0,)]),
        (source.aggregate("word", Max(), "most"), [("ccc",)] if full else [(None,)]),
        (source.map(lambda word: len(word or ""), "n long").aggregate("n", Sum(), "n"), [(7,)] if full else [(0,)]),
        (source.aggregate("word", Longest(), "longest"), [("ccc",)] if full else [("",)]),
        (source.aggregate("word", Joined(), "letters"), [("aabbccc",)] if full else [("",)]),
        (source.each("word", lambda word: 1, "n long").aggregate(Rows(), "n"), [(5,)] if full else [(0,)]),
        (
            source.aggregate("word", Distinct(), "word, batch"),
            [(word, seven_two) for word in ("a", "bb", "ccc", None)] if full else [],
        ),
    ]
    found = in_one_job(spark, [stream for stream, _ in expected], rows, partitions)
    assert found == [sorted(result, key=repr) for _, result in expected]


# --- groups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", sample([3, 0], 3))
def test_groups_give_one_row_each_and_null_is_a_group(spark, partitions: int) -> None:
    rows = [(key, word) for key in ("x", None, "y") for word in ("a", "bb", None)] if partitions else []

    grouped = stream_of("key string, word string").group_by("key")
    cases: list[tuple[Stream, Any]] = [
        (grouped.aggregate(Count(), "n"), 3),
        (grouped.aggregate("word", Longest(), "longest"), "bb"),
        (grouped.aggregate("word", Joined(), "letters"), "abb"),
        (grouped.aggregate(Rows(), "n"), 3),
    ]
    keys = ("x", "y", None) if rows else ()
    expected = [sorted(((key, value) for key in keys), key=repr) for _, value in cases]
    assert in_one_job(spark, [stream for stream, _ in cases], rows, partitions) == expected


def test_an_aggregators_outputs_follow_the_keys_and_operations_go_on(spark) -> None:
    stream = (
        stream_of("key string, word string")
        .group_by("key")
        .aggregate("word", Distinct(), "word, batch")
        .each("word", str.upper, "upper string")
        .group_by("upper")
        .aggregate(Count(), "n")
        .filter("n", lambda n: n > 1)
    )
    rows = [("x", "a"), ("x", "a"), ("y", "a"), ("y", "b")]
    assert run(spark, stream, rows, partitions=2) == [("A", 2)]


# --- partial values for states ---------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("partitions", [3, 0])
def test_partial_values_combine_to_the_whole(spark, partitions: int) -> None:
    rng = random.Random(4)
    rows = [(rng.choice(["x", "y", None]), rng.choice(["a", "bb", "ccc"])) for _ in range(40)] if partitions else []
    cases: list[tuple[Any, Any]] = [("word", Longest()), ((), Count()), ("word", Min())]
    for (inputs, aggregator), python in itertools.product(cases, (False, True)):
        stream = stream_of("key string, word string")
        if python:
            stream = stream.filter(lambda key, word: True)
        stream.group_by("key").persistent_aggregate(MemoryMapState("s"), inputs, aggregator, "v")
        (plan_,) = plan(stream._graph)
        frame = plan_.build({"rows": batch(spark, plan_, rows, partitions)}, ATTEMPT)["s"]
        assert frame.columns == ["key", "v"]
        found: dict = {}
        for key, value in collect(frame):
            found[key] = aggregator.combine(found[key], value) if key in found else value
        expected: dict = {}
        for key, word in rows:
            value = aggregator.init(word)
            expected[key] = aggregator.combine(expected[key], value) if key in expected else value
        assert found == expected, (aggregator, python)


@pytest.mark.parametrize("partitions", sample([3, 0], 3))
def test_a_persistent_aggregate_of_everything_always_has_its_row(spark, partitions: int) -> None:
    rows = WORDS if partitions else []
    cases: list[tuple[Any, Any, Any]] = [
        ((), Count(), 5 if rows else 0),
        ("word", Longest(), "ccc" if rows else ""),
        ("word", Min(), "a" if rows else None),
    ]
    for inputs, aggregator, value in cases:
        stream = stream_of("word string")
        stream.persistent_aggregate(MemoryMapState("s"), inputs, aggregator, "v")
        (plan_,) = plan(stream._graph)
        assert collect(plan_.build({"rows": batch(spark, plan_, rows, partitions)}, ATTEMPT)["s"]) == [(value,)]


def test_sums_of_decimals_keep_their_scale_and_of_nulls_are_zero(spark) -> None:
    stream = stream_of("key string, d decimal(38,30), n int").group_by("key")
    stream.persistent_aggregate(MemoryMapState("d"), "d", Sum(), "d")
    stream.persistent_aggregate(MemoryMapState("n"), "n", Sum(), "n")
    (plan_,) = plan(stream._graph)
    tiny = Decimal("0.000000000000000000000000000001")
    frames = plan_.build({"rows": batch(spark, plan_, [("x", tiny, None), ("x", tiny, None)])}, ATTEMPT)
    assert collect(frames["d"]) == [("x", 2 * tiny)]
    assert collect(frames["n"]) == [("x", 0)]


# --- failures --------------------------------------------------------------------------------


class Breaks(Longest):
    def combine(self, a: str, b: str) -> str:
        if "bb" in (a, b):
            raise ValueError("no b")
        return max(a, b)


class GivesUp(Rows):
    def complete(self, state: int) -> int:
        raise FailedException("not today")


def test_an_aggregator_that_raises_is_named_with_its_row(spark) -> None:
    stream = stream_of("word string").group_by("word").aggregate(GivesUp(), "n").aggregate("n", Max(), "n")
    error = translate_failure(raised(lambda: run(spark, stream, WORDS)), ATTEMPT)
    assert isinstance(error, FailedException) and "not today" in str(error)
    stream = stream_of("word string").aggregate("word", Breaks(), "w")
    error = translate_failure(raised(lambda: run(spark, stream, [("a",), ("bb",)])), ATTEMPT)
    assert isinstance(error, UserFunctionError)
    assert error.operation == "aggregate(Breaks)"
    assert error.location == f"{__file__}:{Breaks.combine.__code__.co_firstlineno + 2}"
    assert "{word: 'bb'}" in str(error)
