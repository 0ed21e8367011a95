"""The built-in functions and filters, in Python and as expressions of Spark: the same rows."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from typing import Any

import pytest

from tests.streams.stream_helpers import ATTEMPT, raised, run_pass, stream_of, topology_of
from trident import Debug, Equals, FilterNull, Negate, Split, TrueFilter
from trident.coordinators.errors import OutputTypeError, TopologyError, UserFunctionError
from trident.operations.row_functions import NativeNode, PythonNode
from trident.streams.stream import Stream
from trident.testing import run_batch
from trident.udf.deferred import expr
from trident.udf.signatures import translate_failure

NAN = float("nan")
NASTY = [("a b",), ("",), (None,), ("  a  b ",), ("äö ü",), ("a|b\\c",), (" ",), ("a.b*c",), ("x--y-",), ("'\n'",)]
FIELDS = "`a b` long, `c``d` long, d double, e double, s string, t string"
ROWS = [
    (1, 1, 0.0, -0.0, "a", "a"),
    (1, 2, NAN, NAN, "a", "A"),
    (None, None, None, None, None, None),
    (None, 2, NAN, None, "", None),
    (3, None, 1.5, 1.5, "", ""),
    (2**62, 2**62, NAN, 1.0, "ä", "ä"),
]


def in_python(fields: str) -> Stream:
    """A stream right behind a Python operation."""
    return stream_of(fields).peek(lambda *values: None)


SEPARATORS = [" ", "|", "\\", "--", ".", "'", "\n", "ö", "a", "^", "\\E", "[a"]


@pytest.mark.long
def test_split_in_python_and_by_spark_gives_the_same(spark) -> None:
    rows = [*NASTY, ("x\\Ey",), ("[a^[a",)]
    source, behind = stream_of("line string"), in_python("line string")
    parts, expected = [], []
    for number, separator in enumerate(SEPARATORS):
        native = source.each("line", Split(separator), "word")
        python = behind.each("line", Split(separator), "word")
        assert isinstance(native._node, NativeNode) and isinstance(python._node, PythonNode)
        found = [(line, part) for (line,) in rows if line is not None for part in line.split(separator) if part]
        assert run_pass(python, rows) == found
        parts.append(native.each(expr(str(number)), "number int"))
        expected += [(*pair, number) for pair in found]
    assert run_batch(parts[0].merge(*parts[1:]), rows, spark=spark) == expected


def test_what_the_filters_keep() -> None:
    def kept(inputs: str, function: Any) -> list[int]:
        stream = in_python(f"place long, {FIELDS}").filter(inputs, function)
        return [row[0] for row in run_pass(stream, [(place, *row) for place, row in enumerate(ROWS)])]

    assert kept("a b", FilterNull()) == [0, 1, 4, 5]
    assert kept("a b, c`d", FilterNull()) == [0, 1, 5]
    assert kept("a b, c`d", Equals()) == [0, 2, 5]
    assert kept("d, e", Equals()) == [0, 1, 2, 4]
    assert kept("s, t", Negate(Equals())) == [1, 3]
    assert kept("s", TrueFilter()) == list(range(6)) and kept("s", Negate(TrueFilter())) == []
    assert kept("a b", Negate(lambda n: n == 1)) == [2, 3, 4, 5]


AT, AMOUNT = datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc), decimal.Decimal("1.5")
PAIRS = [
    # types, whether Spark compares them, rows: (values, equal)
    ("a long, b int, c short", True, [((1, 1, 1), True), ((1, 1, 2), False), ((None, None, None), True)]),
    ("a timestamp, b timestamp", True, [((AT, AT), True), ((AT, None), False)]),
    ("a date, b date", True, [((AT.date(), AT.date()), True), ((None, AT.date()), False)]),
    ("a decimal(10,2), b decimal(10,2)", True, [((AMOUNT, AMOUNT), True), ((AMOUNT, None), False)]),
    ("a binary, b binary", True, [((b"x", b"x"), True), ((b"x", b"y"), False)]),
    ("a boolean, b boolean", True, [((True, True), True), ((False, None), False)]),
    ("a long, b double", False, [((1, 1.0), True), ((2**53 + 1, float(2**53)), False)]),
    ("a string, b long", False, [(("1", 1), False), ((None, None), True)]),
    ("a array<double>, b array<double>", False, [(([1.0], [1.0]), True), (([1.0], []), False)]),
]


@pytest.mark.parametrize(("fields", "native", "rows"), PAIRS, ids=[fields for fields, _, _ in PAIRS])
def test_equals_compares_values_of_all_types(spark, fields, native, rows) -> None:
    values = [given for given, _ in rows]
    stream = stream_of(fields).filter(Equals())
    assert isinstance(stream._node, NativeNode) is native
    assert run_pass(
        in_python(fields).each(["a", "b", "c"][: len(values[0])], Equals(), "same").project("same"), values
    ) == [(same,) for _, same in rows]
    if native:
        text = as_expression_text(stream)
        frame = spark.createDataFrame(values, stream._node.schema)
        assert [row[0] for row in frame.selectExpr(text).collect()] == [same for _, same in rows]


def as_expression_text(stream: Stream) -> str:
    return stream._node.expression.source.text


def test_a_class_derived_from_a_built_in_is_called() -> None:
    stream = stream_of("a long").filter("a", Equals3())
    assert isinstance(stream._node, PythonNode)
    assert run_pass(stream, [(3,), (1,)]) == [(3,)]


class Equals3(Equals):
    """Derived: only its own ``__call__`` is known to mean the same."""

    def __call__(self, value: Any) -> bool:  # type: ignore[override]
        return value == 3


def test_native_steps_read_their_inputs_only_and_python_ones_join_the_pass() -> None:
    source = stream_of("line string, n long, unused string")
    words = source.each("line", Split(), "word").filter("n", FilterNull()).project("word")
    text = topology_of(words.peek("word", print)).explain()
    assert "Python" in text and text.count("Spark: ") >= 2 and "unused" not in text.partition("from stream")[2]
    behind = stream_of("line string").map(str.strip, "line string").project("line").filter(FilterNull())
    assert isinstance(behind.each("line", Split(), "word")._node, PythonNode)
    assert isinstance(behind._node, PythonNode)
    whole = stream_of("line string").flat_map(Split(","), "part")
    assert isinstance(whole._node, NativeNode) and whole.fields == ("part",)


def test_no_session_is_needed_to_build() -> None:
    code = (
        "from trident import *\n"
        "from trident.testing import FixedBatchSpout\n"
        "from pyspark import SparkContext\n"
        "t = TridentTopology('t')\n"
        "s = t.new_stream('s', FixedBatchSpout('line string, a long, b long', []))\n"
        "s.each('line', Split(), 'word').filter('a', FilterNull()).filter('a, b', Negate(Equals()))"
        ".partition_persist(DeltaAppend('out'))\n"
        "t.explain()\n"
        "assert SparkContext._active_spark_context is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_debug_prints_each_row_and_keeps_it(capsys) -> None:
    stream = stream_of("word string, n long").filter(Debug()).peek("word", Debug("words"))
    rows = [("a\nb", 1), (None, 2)]
    assert run_pass(stream, rows) == rows
    assert capsys.readouterr().err == "Debug: 'a\\nb', 1\nDebug: None, 2\nwords: 'a\\nb'\nwords: None\n"
    assert run_pass(stream_of("n long").each("n", Debug()), [(1,)]) == [(1,)]


def test_built_in_functions_are_named_in_plans_and_placed_at_the_users_line() -> None:
    here = in_python.__code__.co_filename
    stream = stream_of("a long, b long").filter(Negate(Equals())).peek(Debug("x"))
    assert [node.operation for node in stream._graph.nodes][1:] == ["filter(Negate(Equals))", "peek(Debug)"]
    assert stream._node.function.location.startswith(here)

    def breaks(n: int) -> bool:
        return 1 // 0 == n

    negated = stream_of("n long").filter(Negate(breaks))
    error = translate_failure(raised(lambda: run_pass(negated, [(1,)])), ATTEMPT)
    assert isinstance(error, UserFunctionError) and error.operation == "filter(Negate(breaks))"
    assert error.location == f"{here}:{breaks.__code__.co_firstlineno + 1}"


def test_wrong_uses_are_errors_when_the_topology_is_built() -> None:
    source = stream_of("n long, s string, t string")
    for build, problem in (
        (lambda: source.filter("n", Equals()), "cannot be called with the fields"),
        (lambda: source.filter("n", Negate(Equals())), "cannot be called with the fields"),
        (lambda: source.each("s, t", Split(), "word"), "cannot be called with the fields"),
        (lambda: Split(""), "needs a separator"),
        (lambda: Split(3), "needs a separator"),
        (lambda: Negate(3), "needs a function"),
        (lambda: source.each("s", Split(), "word long"), "two types"),
    ):
        with pytest.raises(TopologyError, match=problem):
            build()
    with pytest.raises(OutputTypeError, match="cannot split field 'n'"):
        source.each("n", Split(), "word")
    import trident

    with pytest.raises(TopologyError, match="over rows"):
        Negate(trident.arrow_function(lambda n: n))
