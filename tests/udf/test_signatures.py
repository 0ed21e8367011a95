"""What is known of a user's function before it runs, and what its failure becomes."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import pytest

from tests.streams.stream_helpers import ATTEMPT, append_plan, batch, raised, run_pass, stream_of
from trident import Negate
from trident.coordinators.errors import FailedException, OutputTypeError, TopologyError, UserFunctionError
from trident.running.runner import replays_rows
from trident.spouts.contracts import SpoutKind
from trident.udf.deferred import Expr, expr
from trident.udf.expressions import expression_failure
from trident.udf.signatures import describe, translate_failure

LOCK = threading.Lock()


def one_line(n: int) -> str:
    return str(n)


class Adds:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, n: int) -> int:
        return n + self.amount

    def method(self, n: int) -> int:
        return n - self.amount


class Pair(NamedTuple):
    word: str
    n: int


def test_functions_are_named_with_their_place() -> None:
    line = one_line.__code__.co_firstlineno
    described = describe(one_line, "each", "here:1")
    assert (described.name, described.location) == ("one_line", f"{__file__}:{line}")
    assert describe(functools.partial(one_line), "each", "here:1").location == f"{__file__}:{line}"
    assert describe(Adds(1), "each", "here:1").name == "Adds"
    assert describe(Adds(1).method, "each", "here:1").name == "Adds.method"
    assert describe(len, "each", "here:1").location == "here:1"
    assert describe(lambda n: n, "each", "here:1").name == "<lambda>"


def test_types_come_from_all_kinds_of_callables() -> None:
    source = stream_of("n long")
    typed = {
        "bigint": [Adds(1), Adds(1).method, functools.partial(Adds.method, Adds(2)), int],
        "string": [one_line, str, functools.partial(one_line)],
        "array<string>": [lambda n: [str(n)]],
    }
    typed["array<string>"][0].__annotations__["return"] = list[str]
    for expected, functions in typed.items():
        for function in functions:
            assert source.map(function, "x").schema["x"].dataType.simpleString() == expected


@pytest.mark.parametrize(
    ("returns", "outputs", "problem"),
    [
        (None, "x", "not known"),
        (Any, "x", "not known"),
        (tuple[int, int], "x, y, z", "number of values"),
        (str, "x, y", "number of values"),
        (tuple[int, int], "x", "number of values"),
        (str, "x long", "two types"),
        (Iterator[float], "x int", "two types"),
        (Iterator, "x", "not known"),
    ],
)
def test_outputs_that_do_not_fit_the_annotation_are_errors(returns: Any, outputs: str, problem: str) -> None:
    def function(n):
        return n

    if returns is not None:
        function.__annotations__["return"] = returns
    with pytest.raises(OutputTypeError, match=problem):
        stream_of("n long").each("n", function, outputs)


def test_given_types_stand_before_annotations_and_may_be_narrower() -> None:
    assert stream_of("n long").each("n", one_line, "s string").schema["s"].dataType.simpleString() == "string"
    assert stream_of("n long").each("n", Adds(1), "m int").schema["m"].dataType.simpleString() == "int"
    assert stream_of("n long").each("n", Adds(1), "m double").schema["m"].dataType.simpleString() == "double"


def test_a_named_tuple_is_a_row() -> None:
    def pair(n: int) -> Pair:
        return Pair(str(n), n)

    assert run_pass(stream_of("n long").map(pair, "word, m"), [(4,)]) == [("4", 4)]


def test_map_refuses_a_generator_and_flat_map_a_single_value() -> None:
    def many(n: int) -> Iterator[int]:
        yield n

    with pytest.raises(OutputTypeError, match="flat_map"):
        stream_of("n long").map(many, "x")
    with pytest.raises(OutputTypeError, match="Use map"):
        stream_of("n long").flat_map(one_line, "x")


def test_a_function_must_take_as_many_values_as_there_are_inputs() -> None:
    def two(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TopologyError, match=r"two\(a: .*found|found: two\(a") as caught:
        stream_of("n long").each("n", two, "x")
    assert "1 field" in str(caught.value.expected)
    stream_of("a long, b long").each("a, b", two, "x")
    stream_of("a long").each("a", lambda a, b=1: a, "x long")
    stream_of("a long").each([], lambda: 3, "x long")


def test_what_is_not_a_function_is_refused() -> None:
    async def later(n: int) -> int:
        return n

    for wrong, problem in ((3, "needs a function"), (later, "async"), (expr("n + 1"), "without input fields")):
        with pytest.raises(TopologyError, match=problem):
            stream_of("n long").each("n", wrong, "x long")
    with pytest.raises(TopologyError, match="SQL text"):
        expr(" ")
    assert repr(Expr("upper(a)")) == "expr('upper(a)')"


# --- failures ----------------------------------------------------------------------------


def divides(n: int) -> int:
    return 10 // n


def gives_up(n: int) -> int:
    raise FailedException(f"the service refused {n}")


def wrong_type(n: int) -> int:
    return "seven" if n == 7 else n  # type: ignore[return-value]


def spark_failure(spark: Any, function: Any, rows: list[tuple], outputs: str = "x") -> BaseException:
    plan_ = append_plan(stream_of("n long").each("n", function, outputs))
    frame = plan_.build({"rows": batch(spark, plan_, rows)}, ATTEMPT)["out"]
    return translate_failure(raised(frame.collect), ATTEMPT)


def test_a_function_that_raises_on_a_worker_is_named_with_line_row_and_attempt(spark) -> None:
    error = spark_failure(spark, divides, [(5,), (0,), (2,)])
    assert isinstance(error, UserFunctionError)
    assert error.operation == "each(divides)"
    assert error.location == f"{__file__}:{divides.__code__.co_firstlineno + 1}"
    assert error.attempt == "7:2"
    for part in ("ZeroDivisionError", "{n: 0}", "7:2", error.location):
        assert part in str(error)


def test_a_failed_exception_on_a_worker_stays_one(spark) -> None:
    error = spark_failure(spark, gives_up, [(3,)])
    assert isinstance(error, FailedException)
    assert "the service refused 3" in str(error) and error.attempt == "7:2"


def test_other_failures_are_left_alone(spark) -> None:
    error = raised(spark.sql("select raise_error('no')").collect)
    assert translate_failure(error, ATTEMPT) is error
    plain = ValueError("<<trident-failure:bm90IGpzb24=>>")
    assert translate_failure(plain, ATTEMPT) is plain


def local_failure(function: Any, rows: list[tuple], outputs: str = "x", fields: str = "n long") -> UserFunctionError:
    stream = stream_of(fields)
    error = translate_failure(raised(lambda: run_pass(stream.each(stream.fields, function, outputs), rows)), ATTEMPT)
    assert isinstance(error, UserFunctionError), error
    return error


def test_the_line_is_the_users_own_and_not_a_librarys() -> None:
    import json

    def reads(text: str) -> int:
        return json.loads(text)

    error = local_failure(reads, [("{",)], fields="s string")
    assert error.location == f"{__file__}:{reads.__code__.co_firstlineno + 1}"


class OfTheUser(Exception):
    """Not of a library."""


def test_what_fails_again_has_a_fingerprint_and_what_may_pass_has_none() -> None:
    import http.client
    import sqlite3  # of Python's own libraries
    import subprocess

    from kazoo.exceptions import ConnectionLoss  # of an installed library

    from trident.coordinators.errors import TridentError

    def failing(error: Exception, cause: Exception | None = None) -> Any:
        def fails(n: int) -> int:
            if n == 2:
                raise error from cause
            return n

        return local_failure(fails, [(1,), (2,), (3,)]).fingerprint

    for error in (
        ValueError("no"),
        RuntimeError("no"),
        ZeroDivisionError(),
        KeyError("a"),
        OfTheUser("no"),
        UnicodeDecodeError("utf-8", b"", 0, 1, "no"),
    ):
        assert "{n: 2}" in failing(error) and failing(error) == failing(error)
    for error, cause in (
        (ConnectionError("away"), None),
        (TimeoutError(), None),
        (OSError(5, "disk"), None),
        (MemoryError(), None),
        (ConnectionLoss(), None),
        (RuntimeError("the service is away"), ConnectionResetError("reset")),
        (sqlite3.OperationalError("database is locked"), None),
        (http.client.BadStatusLine("502"), None),
        (TridentError("as a SqliteMap says it"), sqlite3.OperationalError("database is locked")),
        (subprocess.TimeoutExpired("curl", 5), None),
    ):
        assert failing(error, cause) is None
    found = failing(ValueError(f"{object()}"))
    assert found == failing(ValueError(f"{object()}")), "an address in memory is another one in each process"


def test_a_source_that_may_leave_the_row_out_keeps_all_its_attempts() -> None:
    class Spout:
        def __init__(self, kind: SpoutKind) -> None:
            self.kind = kind

    kept, other = [Spout(SpoutKind.TRANSACTIONAL), Spout(SpoutKind.OPAQUE)], Spout(SpoutKind.NON_TRANSACTIONAL)
    assert replays_rows(kept) and not replays_rows([*kept, other])


def test_a_value_that_an_expression_of_spark_cannot_take_fails_again(spark) -> None:
    for query, condition in (
        ("select 1 / id from range(2)", "DIVIDE_BY_ZERO"),
        ("select cast('x' as int) / id from range(1)", "CAST_INVALID_INPUT"),
    ):
        frame = spark.sql(query)
        found = [expression_failure(raised(frame.collect), number) for number in range(2)]
        assert found[0].fingerprint == found[1].fingerprint and condition in found[0].fingerprint
        assert "\n" not in str(found[0]) and "at org.apache" not in str(found[0])
    assert expression_failure(raised(spark.sql("select raise_error('no')").collect), 1) is None


def test_the_error_shows_the_users_own_frames_first() -> None:
    error = local_failure(calls_another, [(0,)])
    text = "".join(traceback.format_exception(error))
    assert text.index(", in calls_another") < text.index("    return 10 // n") < text.index("UserFunctionError")
    assert "trident-failure" not in text and "arrow_" not in text


def calls_another(n: int) -> int:
    return divides(n)


def test_a_built_in_that_raises_is_placed_where_it_was_given() -> None:
    stream = stream_of("s string")
    error = translate_failure(raised(lambda: run_pass(stream.map(int, "n"), [("x",)])), ATTEMPT)
    assert isinstance(error, UserFunctionError)
    assert error.location.startswith(__file__) and "ValueError" in str(error)


def test_a_generator_that_raises_halfway_names_its_row() -> None:
    def count_down(n: int) -> Iterator[int]:
        yield n
        if n == 2:
            raise KeyError("two")

    error = local_failure(count_down, [(1,), (2,), (3,)])
    assert "{n: 2}" in str(error) and "KeyError" in str(error)


def test_stop_iteration_and_exit_lose_no_rows() -> None:
    def stops(n: int) -> int:
        return next(iter(()))

    def stops_halfway(n: int) -> Iterator[int]:
        yield next(iter(()))

    def leaves(n: int) -> int:
        raise SystemExit(3)

    for function, kind in ((stops, "StopIteration"), (stops_halfway, "StopIteration"), (leaves, "SystemExit")):
        assert kind in str(local_failure(function, [(1,), (2,)]))


def test_a_value_of_a_wrong_type_names_its_row() -> None:
    error = local_failure(wrong_type, [(1,), (7,), (2,)])
    assert (error.found, error.expected) == ("'seven' (str)", "bigint")
    assert "{n: 7}" in str(error) and error.operation == "each(wrong_type)"


@pytest.mark.parametrize(
    ("result", "outputs", "found", "expected"),
    [
        ((1, 2), "a long, b long, c long", "(1, 2)", "a tuple of 3"),
        ("ab", "a string, b string", "'ab'", "a tuple of 2"),
        (1.5, "a long", "1.5 (float)", "bigint"),
        (True, "a long", "True (bool)", "bigint"),
        (b"x", "a string", "b'x'", "string"),
        ("x", "a binary", "'x'", "binary"),
        (300, "a byte", "300", "tinyint"),
        (2**63, "a long", str(2**63), "bigint"),
    ],
)
def test_wrong_results_say_found_and_expected(result: Any, outputs: str, found: str, expected: str) -> None:
    error = local_failure(lambda n: result, [(1,)], outputs)
    assert found in str(error.found) and expected in str(error.expected)


def test_long_values_and_broken_reprs_are_cut() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    error = local_failure(lambda s: 1 // 0, [("x" * 100_000,)], "x long", "s string")
    assert len(str(error)) < 1000
    assert "RuntimeError" in str(local_failure(lambda n: Broken(), [(1,)], "x long").found)


def test_a_datetime_must_say_its_zone() -> None:
    import datetime

    naive, aware = datetime.datetime(2024, 5, 1), datetime.datetime(2024, 5, 1, tzinfo=datetime.timezone.utc)
    assert run_pass(stream_of("n long").map(lambda n: aware, "at timestamp"), [(1,)]) == [(aware,)]
    assert run_pass(stream_of("n long").map(lambda n: naive, "at timestamp_ntz"), [(1,)]) == [(naive,)]
    assert "time zone" in str(local_failure(lambda n: naive, [(1,)], "at timestamp").expected)
    assert "without" in str(local_failure(lambda n: aware, [(1,)], "at timestamp_ntz").expected)
    assert "date" in str(local_failure(lambda n: naive, [(1,)], "at date").expected)


def test_an_optional_annotation_is_its_inner_type() -> None:
    def maybe(n: int) -> Optional[str]:  # noqa: UP045
        return None if n == 0 else str(n)

    assert run_pass(stream_of("n long").each("n", maybe, "s"), [(0,), (1,)]) == [(1, "1")]
    assert run_pass(stream_of("n long").map(maybe, "s"), [(0,), (1,)]) == [(None,), ("1",)]


def yielding(n: int) -> Any:
    yield n > 1


async def coming(n: int) -> bool:
    return n > 1


class Yields:
    def __call__(self, n: int) -> Any:
        yield True


def test_a_condition_that_runs_nothing_when_it_is_called_is_refused() -> None:
    """A generator is true for each row."""
    import functools

    for function in (yielding, Yields(), Yields().__call__, functools.partial(yielding)):
        with pytest.raises(TopologyError, match="cannot yield; found: the generator function"):
            stream_of("n long").filter("n", function)
        with pytest.raises(TopologyError, match="cannot yield"):
            stream_of("n long").peek("n", function)
    with pytest.raises(TopologyError, match="async"):
        stream_of("n long").filter("n", coming)


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(
    "result",
    ["(x for x in 'ab')", "'ab'.isalpha", "'False'", "0", "np.int64(1)", "[]", "np.array([1])", "pd.NA", "nan"],
)
def test_a_condition_is_true_or_false_and_nothing_that_python_takes_for_it(result: str, negated: bool) -> None:
    """The text "False", a generator and a function that was not called are true for each row."""
    condition: Any = lambda n: True if n == 0 else value_of(result)  # noqa: E731
    stream = stream_of("n long").filter("n", Negate(condition) if negated else condition)
    error = translate_failure(raised(lambda: run_pass(stream, [(0,), (7,)])), ATTEMPT)
    assert isinstance(error, UserFunctionError) and "{n: 7}" in str(error), error
    assert type(value_of(result)).__name__ in str(error), error
    assert "neither True nor False" in str(error) and "True or False" in str(error.expected)


def value_of(text: str) -> Any:
    import numpy as np
    import pandas as pd

    return eval(text, {"np": np, "pd": pd, "nan": float("nan")})


def test_a_condition_that_is_annotated_with_another_type_is_refused_when_built() -> None:
    for function in (one_line, Adds(1), lambda_of(list[bool])):
        with pytest.raises(OutputTypeError, match=r"gives no boolean.*annotated with.*bool\("):
            stream_of("n long").filter("n", function)
    for kind in (bool | None, bool, object, Any):
        stream_of("n long").filter("n", lambda_of(kind))


def lambda_of(kind: Any) -> Any:
    def condition(n: int) -> Any:
        return n > 0

    condition.__annotations__["return"] = kind
    return condition


@pytest.mark.parametrize("wrapped", ["bool", "np.bool_", "pa.scalar"])
def test_booleans_of_numpy_and_arrow_are_conditions_and_none_counts_as_false(wrapped: str) -> None:
    import numpy as np
    import pyarrow as pa

    as_bool = eval(wrapped, {"np": np, "pa": pa, "bool": bool})
    condition: Any = lambda n: None if n == 0 else as_bool(n > 1)  # noqa: E731
    rows: list[tuple[int]] = [(0,), (1,), (2,)]
    assert run_pass(stream_of("n long").filter("n", condition), rows) == [(2,)]
    assert run_pass(stream_of("n long").filter("n", Negate(condition)), rows) == [(0,), (1,)]


def test_methods_of_aggregators_that_run_nothing_when_they_are_called_are_refused() -> None:
    class Lazy:
        def init(self, n: int) -> int:
            return n

        def combine(self, a: int, b: int) -> Any:
            yield a + b

        def zero(self) -> int:
            return 0

    class Hooked:
        def __call__(self, n: int) -> int:
            return n

        def prepare(self, context: Any) -> Any:
            yield

    with pytest.raises(TopologyError, match="combine of .* cannot yield"):
        stream_of("n long").aggregate("n", Lazy(), "total long")
    with pytest.raises(TopologyError, match="prepare of .* cannot yield"):
        stream_of("n long").each("n", Hooked(), "m long")
