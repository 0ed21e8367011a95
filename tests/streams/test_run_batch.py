"""run_batch: what users test their streams with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.streams.stream_helpers import RowsSpout, run_pass, stream_of, topology_of
from trident import arrow_function, pandas_function
from trident.coordinators.errors import FieldError, SourceError, TopologyError, UserFunctionError
from trident.coordinators.identities import TransactionAttempt
from trident.operations.aggregators import Count
from trident.states.core.values import MapGet
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.maps.backed_map import transactional
from trident.states.maps.sqlite_store import SqliteMap
from trident.testing import MemoryMapState, run_batch
from trident.topology import TridentTopology
from trident.udf.deferred import expr


def split(line: str) -> Iterator[str]:
    yield from (line or "").split()


class Attempts:
    """Gives the attempt that it was told, and the rows that it saw."""

    def init(self, batch_id: Any) -> list:
        return [str(batch_id), 0]

    def aggregate(self, state: list, n: int) -> None:
        state[1] += 1

    def complete(self, state: list) -> tuple[str, int]:
        return state[0], state[1]


def test_a_batch_goes_through_python_and_native_operations_in_order(spark) -> None:
    words = stream_of("line string").each("line", split, "word").each(expr("length(word)"), "n int")
    rows = [("a bb",), (None,), ("",), ("ccc dd e",), ("f",)]
    expected = [("a", 1), ("bb", 2), ("ccc", 3), ("dd", 2), ("e", 1), ("f", 1)]
    assert run_batch(words.project("word, n"), rows, spark=spark, partitions=3) == expected
    assert run_batch(words.project("n, word"), rows[:1]) == [(1, "a"), (2, "bb")]  # the session that is there


def test_rows_are_cut_into_as_many_partitions_as_were_asked(spark) -> None:
    placed = stream_of("n long").each(expr("spark_partition_id()"), "place int")
    assert run_batch(placed, [(0,), (1,)], spark=spark, partitions=4) == [(0, 0), (1, 2)]
    given = spark.range(4).repartition(1).withColumnRenamed("id", "n")
    assert run_batch(placed, given, spark=spark) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_aggregates_are_told_the_attempt_and_have_a_row_for_an_empty_batch(spark) -> None:
    told = stream_of("n long").aggregate("n", Attempts(), "attempt, rows")
    assert run_batch(told, [(1,), (2,)], spark=spark, attempt=TransactionAttempt(5, 3)) == [("5:3", 2)]
    assert run_batch(told, [], spark=spark, partitions=0) == [("1:0", 0)]


def test_a_stream_right_behind_its_spout_and_one_used_twice_can_be_run(spark) -> None:
    source = stream_of("n long, s string")
    assert run_batch(source, [(1, "a"), (2, None)], spark=spark) == [(1, "a"), (2, None)]
    doubled = source.each("n", lambda n: 2 * n, "m long")
    doubled.filter("m", lambda m: m > 2)
    assert run_batch(doubled.project("m"), [(1, "a"), (2, None)], spark=spark) == [(2,), (4,)]


def test_the_topology_stays_as_it_is(spark) -> None:
    lines = stream_of("line string")
    called = lines.peek(lambda line: 1 // 0)
    lines.each("line", split, "word").group_by("word").persistent_aggregate(MemoryMapState("c"), Count(), "n")
    words = lines.each("line", split, "word").project("word")
    topology = topology_of(lines)
    nodes, text = list(lines._graph.nodes), topology.explain()
    # Another branch's function, which always raises, is not called.
    assert run_batch(words, [("a",)], spark=spark) == [("a",)]
    assert (lines._graph.nodes, topology.explain()) == (nodes, text)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        run_batch(called, [("a",)], spark=spark, attempt=TransactionAttempt(4, 1))
    assert caught.value.attempt == "4:1"


def test_a_stream_that_reads_a_state_is_refused_without_its_rows() -> None:
    words = stream_of("line string").each("line", split, "word")
    counts = words.group_by("word").persistent_aggregate(MemoryMapState("c"), Count(), "n")
    for stream in (words.state_query(counts, "word", MapGet(), "n").filter("n", bool), counts.new_values_stream()):
        with pytest.raises(TopologyError, match="reads a state, 'c', without its rows") as caught:
            run_batch(stream, [("a",)], states={"d": []})
        assert __file__ in str(caught.value.found) and "states={'c': […]}" in str(caught.value.action)


def test_a_map_of_the_users_own_cannot_be_given(tmp_path) -> None:
    words = stream_of("word string")
    own = transactional("c", SqliteMap(str(tmp_path / "c"), "t"))
    kept = words.group_by("word").persistent_aggregate(own, Count(), "n")
    with pytest.raises(TopologyError, match="'c', whose values code of yours keeps"):
        run_batch(kept.new_values_stream(), [("a",)], states={"c": []})


class Longest:
    """A reducer that goes on from the word that is stored."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, word: str) -> str:
        return max(current, word, key=len)


LINES = [("a b a",), ("dddd",)]


def reads() -> Any:
    """Streams that read two states: new values of both, and what was known before."""
    words = stream_of("line string").each("line", split, "word").project("word")
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    longest = words.persistent_aggregate(DeltaMapState("longest"), "word", Longest(), "longest")
    known = words.state_query(counts, "word", MapGet(), "before")
    return counts.new_values_stream(), longest.new_values_stream(), known


STATES: dict[str, Any] = {"counts": [("a", 2), ("z", 9)], "longest": [("ccc",)]}


def test_a_stream_that_reads_a_state_goes_on_from_the_rows_that_are_given(spark) -> None:
    counts, _, known = reads()
    news = run_batch(counts, LINES, spark=spark, states=STATES)
    assert sorted(news) == [("a", 4), ("b", 1), ("dddd", 1)]
    given = spark.createDataFrame([(7, "b")], "n long, word string")  # by name, as a batch is
    looked = run_batch(known, LINES, spark=spark, partitions=2, states={"counts": given})
    assert sorted(looked, key=str) == [("a", None), ("a", None), ("b", 7), ("dddd", None)]


@pytest.mark.long
def test_a_reducer_of_users_goes_on_from_the_rows_that_are_given(spark) -> None:
    _, longest, known = reads()
    assert run_batch(longest, LINES[:1], spark=spark, states=STATES) == [("ccc",)]
    assert run_batch(longest, LINES[:1], spark=spark, states={"longest": []}) == [("a",)]
    looked = run_batch(known, LINES, spark=spark, partitions=2, states=STATES)
    assert sorted(looked, key=str) == [("a", 2), ("a", 2), ("b", None), ("dddd", None)]


@pytest.mark.long
def test_open_windows_go_on_from_the_rows_that_are_given(spark) -> None:
    numbers = stream_of("n long")
    windows = numbers.tumbling_window(3, name="threes").rows().project("n")
    assert run_batch(windows, [(1,), (2,), (3,), (4,)], spark=spark, states={"threes": []}) == [(1,), (2,), (3,)]


def test_several_spouts_need_rows_for_each() -> None:
    topology = TridentTopology("two")
    left = topology.new_stream("left", RowsSpout("n long"))
    with pytest.raises(TopologyError, match="exactly the spouts") as caught:
        run_batch(left, {"right": [], "left": []})
    assert (caught.value.found, caught.value.expected) == ("left, right", "left")


def test_what_cannot_be_a_batch_is_refused(spark) -> None:
    source = stream_of("n long")
    for rows, partitions in (([(1,)], 0), ([(1,)], -1), ([(1, 2)], 1), ([("x",)], 1)):
        with pytest.raises(SourceError):
            run_batch(source, rows, spark=spark, partitions=partitions)
    with pytest.raises(TopologyError, match="takes a stream"):
        run_batch(source.group_by("n"), [])  # type: ignore[arg-type]
    with pytest.raises(FieldError):
        source.each("m", str, "s")


WRONG: dict[str, Any] = {"lines": ["a", "b", 3]}
NESTED = "address struct<lines: array<string>>"


def pandas_wrong(n: Any) -> Any:
    import pandas as pd

    return pd.Series([WRONG] * len(n))


def arrow_wrong(n: Any) -> Any:
    import pyarrow as pa

    return pa.array([{"lines": [1, 2]}] * len(n))


@pytest.mark.parametrize("form", ["each", "map", "flat_map", "pandas", "Arrow"])
def test_a_value_within_a_value_is_refused_with_its_path_whatever_gave_it(form: str) -> None:
    stream = stream_of("n long")
    made = {
        "each": lambda: stream.each("n", lambda n: WRONG, NESTED),
        "map": lambda: stream.map(lambda n: WRONG, NESTED),
        "flat_map": lambda: stream.flat_map(lambda n: [WRONG], NESTED),
        "pandas": lambda: stream.map(pandas_function(pandas_wrong), NESTED),
        "Arrow": lambda: stream.map(arrow_function(arrow_wrong), NESTED),
    }[form]()
    with pytest.raises(Exception, match=r"address\.lines\[\d\]"):
        run_pass(made, [(1,), (2,)])
