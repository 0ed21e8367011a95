"""What each operation of a stream does, and what it refuses when it is built (docs/semantics.md 4)."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.streams.stream_helpers import ATTEMPT, append_plan, batch, raised, run, run_pass, stream_of, topology_of
from trident import Count, FilterNull, GroupedStream, MapGet, StaticMap, Stream, Sum
from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.planning.groups import plan
from trident.states.delta.append import DeltaAppend
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.maps.memory_map import MemoryMapState
from trident.topology import TridentTopology
from trident.udf.deferred import expr
from trident.udf.signatures import translate_failure

LINES = [("a b a",), ("c",), ("",), (None,)]


def split(line: str | None) -> Iterator[str]:
    yield from (line or "").split()


def length(word: str) -> int:
    return len(word)


def with_length(word: str) -> tuple[str, int]:
    return word, len(word)


def is_short(word: str) -> bool:
    return len(word) < 2


# --- Python operations, row by row ---------------------------------------------------------


def test_each_appends_and_repeats_the_row() -> None:
    rows = run_pass(stream_of("line string").each("line", split, "word"), LINES)
    assert rows == [("a b a", "a"), ("a b a", "b"), ("a b a", "a"), ("c", "c")]


def test_operations_fuse_and_follow_each_other() -> None:
    stream = (
        stream_of("id long, line string")
        .each("line", split, "word")
        .filter("word", is_short)
        .each("word", lambda word: [word] * 2, "twice string")
        .each("id, twice", lambda n, word: f"{word}{n}", "tag string")
        .project("tag", "id")
    )
    rows = [(1, "x yy"), (2, "zz"), (3, "w")]
    assert run_pass(stream, rows) == [("x1", 1), ("x1", 1), ("w3", 3), ("w3", 3)]
    assert run_pass(stream, rows, cut=1) == [("x1", 1), ("x1", 1), ("w3", 3), ("w3", 3)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda n: None, []),
        (lambda n: [], []),
        (lambda n: "ab", [(1, "ab")]),
        (lambda n: ["a", "b"], [(1, "a"), (1, "b")]),
        (lambda n: (word for word in "xy"), [(1, "x"), (1, "y")]),
        (lambda n: ["a", None], [(1, "a"), (1, None)]),
    ],
)
def test_an_unannotated_function_is_understood_by_what_it_returns(result: Any, expected: list) -> None:
    assert run_pass(stream_of("n long").each("n", result, "word string"), [(1,)]) == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda n: ("a", n), [("a", 1)]),
        (lambda n: [("a", 1), ["b", 2]], [("a", 1), ("b", 2)]),
        (lambda n: None, []),
        (lambda n: iter([("a", None)]), [("a", None)]),
    ],
)
def test_several_outputs_come_from_a_tuple_or_an_iterable_of_tuples(result: Any, expected: list) -> None:
    stream = stream_of("n long").each("n", result, "word string, m long").project("word, m")
    assert run_pass(stream, [(1,)]) == expected


def test_annotations_decide_before_what_is_returned() -> None:
    def many(n: int) -> Iterator[str]:
        return "ab"  # type: ignore[return-value]

    def words(n: int) -> list[str]:
        return ["a", "b"]

    error = translate_failure(raised(lambda: run_pass(stream_of("n long").each("n", many, "x"), [(1,)])), ATTEMPT)
    assert "single value" in str(error), "a text must not be taken apart into characters"
    assert run_pass(stream_of("n long").each("n", words, "word").project("word"), [(1,)]) == [("a",), ("b",)]
    whole = stream_of("n long").each("n", words, "words array<string>").project("words")
    assert run_pass(whole, [(1,)]) == [(["a", "b"],)]
    assert run_pass(stream_of("n long").map(words, "words"), [(1,)]) == [(["a", "b"],)]
    assert run_pass(stream_of("n long").flat_map(words, "word"), [(1,)]) == [("a",), ("b",)]


def test_map_and_flat_map_replace_the_row() -> None:
    assert run_pass(stream_of("word string").map(with_length, "w, n"), [("abc",)]) == [("abc", 3)]
    assert run_pass(stream_of("word string").map(length, "word"), [("abc",)]) == [(3,)]
    stream = stream_of("line string").flat_map(split, "word")
    assert stream.fields == ("word",)
    assert run_pass(stream, LINES) == [("a",), ("b",), ("a",), ("c",)]


def test_map_keeps_every_row_and_none_is_null() -> None:
    assert run_pass(stream_of("n long").map(lambda n: n or None, "m long"), [(0,), (1,)]) == [(None,), (1,)]
    error = raised(lambda: run_pass(stream_of("n long").map(lambda n: None, "a long, b long"), [(0,)]))
    assert "a tuple of 2" in str(translate_failure(error, ATTEMPT))


def test_filter_takes_all_fields_or_some() -> None:
    rows = [(1, "a"), (0, "bb"), (2, "")]
    assert run_pass(stream_of("n long, word string").filter(lambda n, word: n > 0), rows) == [(1, "a"), (2, "")]
    assert run_pass(stream_of("n long, word string").filter("word", is_short), rows) == [(1, "a"), (2, "")]
    assert run_pass(stream_of("n long, word string").where("word", bool), rows) == [(1, "a"), (0, "bb")]
    assert run_pass(stream_of("n long, word string").each("word", is_short), rows) == [(1, "a"), (2, "")]
    assert run_pass(stream_of("n long").filter(lambda n: False), [(1,)]) == []


def test_peek_sees_rows_and_changes_nothing(tmp_path) -> None:
    path = str(tmp_path / "seen")

    def note(n: int, word: str) -> str:
        with open(path, "a") as file:
            file.write(f"{n}{word} ")
        return "ignored"

    assert run_pass(stream_of("n long, word string").peek(note).project("n"), [(1, "a"), (2, "b")]) == [(1,), (2,)]
    assert open(path).read() == "1a 2b "


def test_all_types_survive_the_way_through_python(spark) -> None:
    import datetime
    from decimal import Decimal

    utc = datetime.timezone.utc
    row = (
        True,
        5,
        1.5,
        "x",
        b"y",
        datetime.date(2024, 5, 1),
        datetime.datetime(2024, 5, 1, 3, tzinfo=utc),
        Decimal("1.50"),
        ["a", None],
        {"k": 1},
        {"a": 1, "b": "z"},
    )
    fields = (
        "a boolean, b long, c double, d string, e binary, f date, g timestamp, h decimal(5,2), "
        "i array<string>, j map<string, long>, k struct<a: long, b: string>"
    )

    def same(*values: Any) -> Any:
        assert values in (row, (None,) * 11), values
        return values

    assert run_pass(stream_of(fields).map(same, fields), [row, (None,) * 11]) == [row, (None,) * 11]
    assert run_pass(stream_of(fields).map(same, fields).map(same, fields), [row, (None,) * 11]) == [row, (None,) * 11]
    # Spark gives its rows back as Row, and timestamps without their zone.
    _, (*plain, structure) = run(spark, stream_of(fields).map(same, fields).project(*"abcdefhijk"), [(None,) * 11, row])
    assert (*plain, structure.asDict()) == (*row[:6], *row[7:])


def test_a_function_that_makes_many_rows_of_one_is_worked_on_in_pieces() -> None:
    rows = run_pass(stream_of("n long").flat_map(lambda n: range(2000), "m long"), [(n,) for n in range(300)])
    assert len(rows) == 600_000 and rows[-1] == (1999,)


# --- on Spark ------------------------------------------------------------------------------


def test_python_and_native_operations_mix(spark) -> None:
    stream = (
        stream_of("id long, line string")
        .filter(F.col("id") > 0)
        .each("line", split, "word")
        .each(F.upper("word"), "upper")
        .filter(expr("upper != 'B'"))
        .each("upper", length, "n")
        .each(expr("n + id"), "m int")
        .project("m", "upper", "id")
    )
    assert stream.schema["m"].dataType.simpleString() == "int"
    rows = [(0, "zero"), (1, "a bb b"), (2, None), (3, "c")]
    expected = [(2, "A", 1), (3, "BB", 1), (4, "C", 3)]
    assert run(spark, stream, rows, partitions=3) == expected


def test_flat_map_and_each_with_an_explode(spark) -> None:
    words = F.explode(F.split("line", " "))
    assert run(spark, stream_of("line string").flat_map(words, "word"), [("a b",), ("c",)]) == [("a",), ("b",), ("c",)]
    positions = F.posexplode(F.split("line", " "))
    stream = stream_of("line string").each(positions, ["pos", "word"]).project("word", "pos")
    assert run(spark, stream, [("a b",)]) == [("a", 0), ("b", 1)]


def test_a_field_dropped_by_project_may_be_made_again(spark) -> None:
    stream = stream_of("a long, b long").project("b").each(F.col("b") + 1, "a").each("a", lambda a: a * 2, "c long")
    assert stream.fields == ("b", "a", "c")
    assert run(spark, stream, [(100, 1)]) == [(1, 2, 4)]


def test_names_that_need_quotes_work(spark) -> None:
    stream = stream_of("`a b` long, `c``d` long").each(["a b", "c`d"], lambda x, y: x + y, "`e.f` long")
    grouped = stream.group_by(["e.f"]).aggregate(["a b"], Sum(), "total")
    assert grouped.fields == ("e.f", "total")
    assert run(spark, grouped, [(1, 2), (2, 1)], partitions=2) == [(3, 3)]


def test_an_expression_is_typed_by_spark_and_refused_by_it(spark) -> None:
    source = stream_of("word string, n int")
    assert source.each(expr("n * 2L"), "m").schema["m"].dataType.simpleString() == "bigint"
    assert source.map(F.col("n") + 1, "m").schema.simpleString() == "struct<m:int>"
    with pytest.raises(FieldError, match="`wrod`.*one of word, n"):
        source.each(F.upper("wrod"), "u")
    with pytest.raises(TopologyError, match="Spark refuses"):
        source.each(expr("upper(word"), "u")
    with pytest.raises(TopologyError, match="boolean"):
        source.filter(F.col("n"))
    with pytest.raises(TopologyError, match="cannot aggregate"):
        source.map(F.sum("n"), "total")
    with pytest.raises(TopologyError, match="flat_map"):
        source.map(F.explode(F.split("word", "")), "letter")
    with pytest.raises(OutputTypeError, match="another number of outputs"):
        source.each(F.upper("word"), "a, b")
    with pytest.raises(OutputTypeError, match="another type"):
        source.flat_map(F.explode(F.array("n")), "m string")


@pytest.mark.long
def test_an_expression_needs_no_session_when_its_type_is_given() -> None:
    import subprocess
    import sys

    code = (
        "from tests.streams.stream_helpers import stream_of; from trident.udf.deferred import expr\n"
        "s = stream_of('word string').each(expr('length(word)'), 'n long'); assert s.fields == ('word', 'n')\n"
        "from pyspark import SparkContext; assert SparkContext._gateway is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what is refused when built --------------------------------------------------------------


def test_an_unknown_field_names_those_there_are_and_the_nearest() -> None:
    stream = stream_of("word string, count long")
    for wrong in (
        lambda: stream.each("wrd", length, "n"),
        lambda: stream.filter("wrd", len),
        lambda: stream.project("wrd"),
        lambda: stream.group_by("wrd"),
        lambda: stream.peek("wrd", print),
        lambda: stream.aggregate("wrd", Sum(), "n"),
        lambda: stream.partition_persist(DeltaAppend("t"), "wrd"),
    ):
        with pytest.raises(FieldError, match="'wrd'; expected: one of word, count.*'word'"):
            wrong()
    with pytest.raises(FieldError, match="'Word'.*mean 'word'"):
        stream.project("Word")


def test_a_field_given_twice_is_refused() -> None:
    stream = stream_of("word string, n long")
    for wrong in (
        lambda: stream.each("word", length, "n"),
        lambda: stream.each("word", length, "N"),
        lambda: stream_of("a string").map(with_length, "x, X"),
        lambda: stream.project("word", "word"),
        lambda: stream.group_by("word").aggregate(Count(), "word"),
        lambda: stream_of("a long, A long"),
    ):
        with pytest.raises(FieldError):
            wrong()


def test_a_field_named_like_a_column_of_the_framework_is_refused(spark) -> None:
    stream = stream_of("word string, n long")
    for wrong in (
        lambda: stream_of("__trident_marker long"),
        lambda: stream.each("word", length, "__Trident_place long"),
        lambda: stream.with_column("__trident_side0", F.col("n")),
        lambda: stream.rename({"n": "__trident_chain"}),
        lambda: stream.group_by("word").aggregate(Count(), "__trident_key"),
        lambda: stream.project("word").map(length, "__trident_k long"),
    ):
        with pytest.raises(FieldError, match="does not begin with __trident"):
            wrong()


def test_arguments_that_mean_nothing_are_refused() -> None:
    stream = stream_of("word string")
    for wrong, problem in (
        (lambda: stream.each("word", length), "no outputs"),
        (lambda: stream.project(), "no fields"),
        (lambda: stream.group_by(), "no fields"),
        (lambda: stream.each(3, length, "n"), "takes field names"),
        (lambda: stream.aggregate("word", "n"), "needs an aggregator"),
        (lambda: stream.aggregate(Count, "n"), "not its class"),
        (lambda: stream.group_by("word").aggregate(Count(), ""), "no output field"),
    ):
        with pytest.raises(TopologyError, match=problem):
            wrong()
    with pytest.raises(TopologyError, match="cannot use field 'm'"):
        stream_of("m map<string, long>").group_by("m")


def test_states_take_only_what_they_hold() -> None:
    grouped = stream_of("word string").group_by("word")
    for wrong, problem in (
        (lambda: grouped.persistent_aggregate(DeltaAppend("t"), Count(), "n"), "Use partition_persist"),
        (lambda: stream_of("n long").partition_persist(DeltaMapState("t")), "Use persistent_aggregate"),
        (lambda: stream_of("n long").partition_persist("counts"), "not a state"),
        (lambda: stream_of("n long").partition_persist(DeltaAppend), "the class"),
        (lambda: grouped.persistent_aggregate(None, Count(), "n"), "not a state"),
        (lambda: stream_of("n long").partition_persist(DeltaAppend("t", partition_columns="m")), "partitioned by"),
        (lambda: stream_of("n long").partition_persist(DeltaAppend("t", partition_columns="n")), "every field"),
        (lambda: grouped.persistent_aggregate(DeltaMapState("t"), Count(), "_TXID"), "cannot be written"),
        (
            lambda: stream_of("_upto long").group_by("_upto").persistent_aggregate(MemoryMapState("t"), Count(), "n"),
            "cannot be written",
        ),
    ):
        with pytest.raises(TopologyError, match=problem):
            wrong()


def test_a_state_is_written_once() -> None:
    stream = stream_of("word string")
    first = stream.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    assert (first.name, first.binding.kind, first.binding.keys) == ("counts", "keyed", ("word",))
    with pytest.raises(TopologyError, match="used as two kinds") as caught:
        stream.partition_persist(DeltaAppend("counts"))
    assert str(caught.value.found).count(__file__) == 2
    other = TridentTopology("two")
    other.new_stream("a", stream_of("n long")._node.spout).partition_persist(DeltaAppend("x"))  # type: ignore[attr-defined]
    with pytest.raises(TopologyError, match="written twice"):
        other.new_stream("b", stream_of("n long")._node.spout).partition_persist(DeltaAppend("x"))  # type: ignore[attr-defined]


def test_an_aggregator_can_be_kept_only_if_it_can_go_on() -> None:
    class Longest:
        def init(self, batch_id: object) -> list:
            return [""]

        def aggregate(self, state: list, word: str) -> None:
            state[0] = max(state[0], word, key=len)

        def complete(self, state: list) -> str:
            return state[0]

    with pytest.raises(TopologyError, match=r"cannot continue from it.*resume\(batch_id, \*stored\)"):
        stream_of("word string").persistent_aggregate(DeltaMapState("longest"), "word", Longest(), "longest")


def test_streams_and_topologies_check_their_names() -> None:
    topology = TridentTopology("t")
    spout = stream_of("n long")._node.spout  # type: ignore[attr-defined]
    topology.new_stream("a", spout)
    for wrong, problem in (
        (lambda: topology.new_stream("a", spout), "already"),
        (lambda: topology.new_stream("a/b", spout), "stream name"),
        (lambda: topology.new_stream("b", object()), "no spout"),
        (lambda: topology.new_stream("b", type(spout)), "no spout"),
        (lambda: TridentTopology("1"), "topology name"),
        (lambda: plan(TridentTopology("empty").graph), "no stream"),
    ):
        with pytest.raises(TopologyError, match=problem):
            wrong()


def test_a_stream_is_not_changed_by_what_is_made_of_it() -> None:
    stream = stream_of("word string")
    assert stream.each("word", length, "n").fields == ("word", "n")
    assert stream.map(length, "n").fields == ("n",)
    assert stream.fields == ("word",) and repr(stream) == "Stream(struct<word:string>)"


def test_bindings_describe_what_is_written() -> None:
    binding = append_plan(stream_of("a long, b string").project("b, a")).bindings[0]
    assert (binding.kind, binding.schema.names, binding.value_fields) == ("append", ["b", "a"], ("b", "a"))
    stream = stream_of("word string, n int")
    state = stream.group_by("word").persistent_aggregate(MemoryMapState("m"), "n", Sum(), "total")
    assert state.binding.schema.simpleString() == "struct<word:string,total:bigint>"
    assert (state.binding.kind, state.binding.value_fields) == ("memory", ("total",))


def test_the_empty_batches_of_these_tests_have_no_partition(spark) -> None:
    """Else they would not show that a global aggregate has its row even when no worker would run."""
    plan_ = append_plan(stream_of("n long"))
    assert batch(spark, plan_, [], 0).rdd.getNumPartitions() == 0


# --- what keeps the grouping and what ends it: as in Storm's GroupedStream (docs/from-storm.md) ---


KEEP: dict[str, Callable[[GroupedStream], Any]] = {
    "each": lambda s: s.each("n", lambda n: n, "m long"),
    "filter": lambda s: s.filter("n", FilterNull()),
    "name": lambda s: s.name("here"),
    "partition_aggregate": lambda s: s.partition_aggregate("n", Sum(), "part"),
    "peek": lambda s: s.peek("n", print),
    "project": lambda s: s.project("k"),
    "parallelism_hint": lambda s: s.parallelism_hint(2),
}
END: dict[str, Callable[[GroupedStream], Any]] = {
    "aggregate": lambda s: s.aggregate("n", Sum(), "sum"),
    "chained_agg": lambda s: s.chained_agg().aggregate(Count(), "rows").chain_end(),
    "state_query": lambda s: s.state_query(
        topology_of(s.to_stream()).new_static_state(StaticMap({("a",): 1})), "k", MapGet(), "v long"
    ),
    "to_stream": lambda s: s.to_stream(),
}


@pytest.mark.parametrize("operation", KEEP)
def test_the_grouping_stays(operation: str) -> None:
    made = KEEP[operation](stream_of("k string, n long").group_by("k"))
    assert isinstance(made, GroupedStream) and made.keys == ("k",)


@pytest.mark.parametrize("operation", END)
def test_the_grouping_ends(operation: str) -> None:
    assert type(END[operation](stream_of("k string, n long").group_by("k"))) is Stream


def test_an_aggregate_behind_a_state_query_is_over_all_rows() -> None:
    grouped = stream_of("k string, n long").group_by("k")
    made = END["state_query"](grouped).each("v", FilterNull()).aggregate("v", Sum(), "sum")
    assert made.fields == ("sum",)


# --- every line of the operation reference runs, and gives what the reference says -------------


REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "stream-api.md"


@pytest.mark.long
def test_the_operation_reference_is_true(spark: SparkSession) -> None:
    # Tracebacks are compared by their last line.
    failed, ran = doctest.testfile(str(REFERENCE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
    assert ran > 55
