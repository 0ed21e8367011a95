"""Functions as classes with prepare and cleanup, functions over whole columns, and functions that cannot travel."""

from __future__ import annotations

import datetime
import decimal
import functools
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import trident
from tests.streams.stream_helpers import ATTEMPT, raised, run_pass, stream_of
from trident.coordinators.errors import FailedException, FieldError, OutputTypeError, TopologyError, UserFunctionError
from trident.streams.stream import Stream
from trident.testing import run_batch
from trident.udf.signatures import translate_failure
from trident.workers.calls import OperationContext, owner_of
from trident.workers.chain import Frame, Meter
from trident.workers.failures import Label
from trident.workers.vectors import Call

# --- prepare and cleanup -----------------------------------------------------------------


class Noted:
    """Writes down what is called, in a file: of whichever process."""

    def __init__(self, file: Any, name: str = "f", fails: str = "") -> None:
        self.file, self.name, self.fails, self.opened = str(file), name, fails, False

    def note(self, what: str, more: object = "") -> None:
        with open(self.file, "a") as log:
            log.write(f"{what} {self.name} {more}".strip() + "\n")
        if what == self.fails:
            raise RuntimeError(f"no {what}")

    def prepare(self, context: OperationContext) -> None:
        self.note("prepare", context.partition_index)
        assert not self.opened, "another task's object"
        self.opened = True

    def cleanup(self) -> None:
        self.note("cleanup")

    def __call__(self, n: int) -> int:
        assert self.opened
        if n == 13:
            raise ValueError("thirteen")
        return n + 1

    def method(self, n: int) -> int:
        return self(n)


class Kept(Noted):
    """A condition."""

    def __call__(self, n: int) -> bool:  # type: ignore[override]
        return super().__call__(n) > 0


class Adds(Noted):
    """A combiner."""

    __call__ = None  # type: ignore[assignment]

    def init(self, n: int) -> int:
        assert self.opened
        return n

    def combine(self, a: int, b: int) -> int:
        assert self.opened
        return a + b

    def zero(self) -> int:
        return 0


class Folds(Noted):
    """An aggregator."""

    __call__ = None  # type: ignore[assignment]

    def init(self, batch_id: Any) -> list[int]:
        assert self.opened
        return []

    def aggregate(self, state: list[int], n: int) -> None:
        state.append(n)

    def complete(self, state: list[int]) -> int:
        assert self.opened
        return len(state)


def notes(file: Any) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_each_spark_task_has_its_own_copy_prepared_once_and_cleaned_up(spark, tmp_path) -> None:
    log = tmp_path / "log"
    function = Noted(log)
    stream = stream_of("n long").map(function, "n").filter(Kept(log, "g")).project("n")
    rows = [(n,) for n in range(6)]
    assert run_batch(stream, rows, spark=spark, partitions=3) == [(n + 1,) for n in range(6)]
    found = notes(log)
    prepared = sorted(line for line in found if line.startswith("prepare f"))
    assert len(set(prepared)) == 3, "one a task, with distinct numbers"
    assert [found.count(line) for line in ("cleanup f", "cleanup g")] == [3, 3]
    assert not function.opened
    log.unlink()
    run_batch(stream, rows, spark=spark)
    assert [line.split()[:2] for line in notes(log)] == [
        ["prepare", "f"],
        ["prepare", "g"],
        ["cleanup", "g"],
        ["cleanup", "f"],
    ]


def test_a_failed_task_is_cleaned_up_and_its_own_failure_is_told(spark, tmp_path) -> None:
    log = tmp_path / "log"
    stream = stream_of("n long").map(Noted(log, fails="cleanup"), "n")
    with pytest.raises(UserFunctionError, match="thirteen") as caught:
        run_batch(stream, [(1,), (13,)], spark=spark)
    assert "{n: 13}" in str(caught.value) and notes(log)[1:] == ["cleanup f"]


@pytest.mark.long
def test_aggregators_are_prepared_wherever_they_run(spark, tmp_path) -> None:
    log = tmp_path / "log"
    numbers, rows = stream_of("k long, n long"), [(n % 2, n) for n in range(10)]
    adds, folds = Adds(log, "adds"), Folds(log, "folds")
    assert run_batch(numbers.aggregate("n", adds, "sum"), rows, spark=spark, partitions=2) == [(45,)]
    assert sorted(run_batch(numbers.group_by("k").aggregate("n", folds, "n"), rows, spark=spark)) == [(0, 5), (1, 5)]
    assert run_batch(numbers.aggregate("n", folds, "n"), [], spark=spark) == [(0,)]
    found = notes(log)
    for name in ("adds", "folds"):
        prepared = sum(line.startswith(f"prepare {name}") for line in found)
        assert prepared >= 2 and found.count(f"cleanup {name}") == prepared


@pytest.mark.long
def test_the_links_of_a_chain_are_prepared_each_for_itself(spark, tmp_path) -> None:
    log = tmp_path / "log"
    adds, last = Adds(log, "adds"), Folds(log, "last", fails="prepare")
    chain = stream_of("n long").chained_agg().partition_aggregate("n", adds, "a").partition_aggregate("n", adds, "b")
    assert run_batch(chain.chain_end(), [(1,)], spark=spark) == [(1, 1)]
    assert notes(log) == ["prepare adds 0", "cleanup adds"]
    log.unlink()
    chain = stream_of("n long").chained_agg().partition_aggregate("n", adds, "a").partition_aggregate("n", last, "b")
    with pytest.raises(UserFunctionError, match="in prepare: RuntimeError"):
        run_batch(chain.chain_end(), [(1,)], spark=spark)
    assert notes(log)[0] == "prepare adds 0" and notes(log)[-1] == "cleanup adds", "what was opened is closed"


def failure(stream: Stream, rows: list[tuple]) -> BaseException:
    return translate_failure(raised(lambda: run_pass(stream, rows)), ATTEMPT)


@pytest.mark.parametrize("step", ["prepare", "cleanup"])
def test_prepare_and_cleanup_that_raise_fail_the_batch_with_the_operation(tmp_path, step) -> None:
    log = tmp_path / "log"
    stream = stream_of("n long").map(Noted(log, "first"), "n").map(Noted(log, "second", fails=step), "n")
    error = failure(stream.project("n"), [(1,)])
    assert isinstance(error, UserFunctionError) and error.operation == "map(Noted)"
    assert f"in {step}: RuntimeError: no {step}" in str(error)
    # What was prepared before is cleaned up; what could not be prepared is not.
    cleaned = ["cleanup first"] if step == "prepare" else ["cleanup second", "cleanup first"]
    assert [line for line in notes(log) if line.startswith("cleanup")] == cleaned


def test_a_pass_that_nobody_reads_to_its_end_is_cleaned_up(tmp_path) -> None:
    from trident.workers.chain import Chain, Keep
    from trident.workers.failures import Label

    log = tmp_path / "log"
    chain = Chain((Keep(Label("filter", "here:1"), Kept(log), ("n",), ("n",)),), pa.schema([("n", pa.int64())]))
    batches = iter([pa.RecordBatch.from_pydict({"n": [1, 2]})] * 2)
    reading = chain(batches)
    assert next(reading).num_rows == 2
    reading.close()
    assert notes(log) == ["prepare f 0", "cleanup f"]


def test_an_object_that_several_operations_use_is_prepared_once(tmp_path) -> None:
    log = tmp_path / "log"
    lookup = Noted(log)

    @functools.wraps(lookup.method)
    def wrapped(n: int) -> int:
        return lookup(n)

    stream = stream_of("n long").map(lookup, "n").map(lookup.method, "n")
    stream = stream.map(functools.partial(lookup), "n long").map(wrapped, "n")
    assert run_pass(stream.peek(lookup), [(1,), (2,)]) == [(5,), (6,)]
    assert notes(log) == ["prepare f 0", "cleanup f"]
    for plain in (len, str, Noted, lambda n: n, [].append):
        assert owner_of(plain) is None


def test_prepare_and_cleanup_are_checked_when_the_topology_is_built() -> None:
    class Bare:
        def prepare(self) -> None: ...

        def __call__(self, n: int) -> int:
            return n

    class Later(Bare):
        async def prepare(self, context: Any) -> None: ...

    class Greedy(Adds):
        def cleanup(self, why: str) -> None: ...

    source = stream_of("n long")
    with pytest.raises(TopologyError, match="prepare of map") as caught:
        source.map(Bare(), "n")
    assert "Bare.prepare()" in str(caught.value.found) and caught.value.expected == "prepare(context)"
    with pytest.raises(TopologyError, match="async prepare"):
        source.map(Later(), "n")
    with pytest.raises(TopologyError, match="cleanup of aggregate"):
        source.aggregate("n", Greedy(""), "n")


# --- over whole columns ------------------------------------------------------------------


def lengths(words: pd.Series) -> pd.Series:
    return words.str.len()


def doubled(n: pa.Int64Array) -> pa.Array:
    return pc.multiply(n, 2)


WORDS = [("a",), (None,), ("ccc",)]


def test_annotations_and_decorators_say_that_a_function_takes_columns() -> None:
    @trident.pandas_function
    def by_decorator(words):
        assert isinstance(words, pd.Series) and words.name == "word"
        return words.str.len()

    @trident.arrow_function
    def by_arrow_decorator(words):
        assert isinstance(words, pa.Array)
        return pc.utf8_length(words)

    class Object:
        def __call__(self, words: pd.Series) -> np.ndarray:
            return np.array([None if word is None else len(word) for word in words])

    def textual(words: "pd.Series") -> "pd.Series":
        return words.str.len()

    bound = trident.pandas_function(Holder().lengths)
    source = stream_of("word string")
    for function in (lengths, by_decorator, by_arrow_decorator, Object(), textual, bound, functools.partial(lengths)):
        assert run_pass(source.each("word", function, "n int"), WORDS) == [("a", 1), (None, None), ("ccc", 3)]


def test_a_parameter_that_has_its_value_already_says_nothing_about_the_others() -> None:
    table = pd.DataFrame({"word": ["a"], "is": ["first"]})

    def looked_up(word: str, *, frame: pd.DataFrame) -> str:
        assert isinstance(frame, pd.DataFrame)
        return dict(zip(frame["word"], frame["is"])).get(word, "other")

    def with_default(word: str, frame: pd.DataFrame = table) -> str:
        return looked_up(word, frame=frame)

    def behind(frame: pd.DataFrame, word: str) -> str:
        return looked_up(word, frame=frame)

    for function in (functools.partial(looked_up, frame=table), with_default, functools.partial(behind, table)):
        found = run_pass(stream_of("word string").each("word", function, "is"), WORDS)
        assert found == [("a", "first"), (None, "other"), ("ccc", "other")]


class Holder:
    def lengths(self, words):
        return words.str.len()


def test_one_call_is_made_for_each_piece_and_none_without_rows() -> None:
    calls = []

    @trident.arrow_function
    def counted(n):
        calls.append(len(n))
        return n

    source = stream_of("n long").map(counted, "m long")
    assert run_pass(source, [(n,) for n in range(5)], cut=2) == [(n,) for n in range(5)]
    assert calls == [2, 2, 1]
    calls.clear()
    assert run_pass(source, []) == [] and calls == []


def test_several_outputs_come_as_a_tuple_or_a_table() -> None:
    def pair(n: pd.Series) -> tuple[pd.Series, pd.Series]:
        return n + 1, n.astype(str)

    def frame(n: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"s": n.astype(str), "m": n + 1}).set_axis(n.index + 7)

    def numbered(n: pd.Series) -> pd.DataFrame:
        return pd.concat([n + 1, n.astype(str)], axis=1, ignore_index=True)

    def table(n: pa.Array) -> pa.Table:
        return pa.table({"s": n.cast("string"), "m": pc.add(n, 1)})

    for function in (pair, frame, numbered, table):
        assert run_pass(stream_of("n long").each("n", function, "m long, s string"), [(1,), (2,)]) == [
            (1, 2, "1"),
            (2, 3, "2"),
        ], function


def test_all_inputs_can_come_as_one_table() -> None:
    def total(rows: pd.DataFrame) -> pd.Series:
        return rows["a"] + rows["b"]

    def arrow_total(rows: pa.Table) -> pa.ChunkedArray:
        return pc.add(rows["a"], rows["b"])

    def batch_total(rows: pa.RecordBatch) -> pa.Array:
        return pc.add(rows["a"], rows["b"])

    source = stream_of("a long, b long")
    for function in (total, arrow_total, batch_total):
        assert run_pass(source.map(function, "sum long"), [(1, 2), (3, 4)]) == [(3,), (7,)]


def test_filters_take_booleans_and_null_is_false() -> None:
    source = stream_of("n long, s string")
    rows = [(1, "a"), (None, "b"), (3, None)]

    def small(n: pa.Array) -> pa.BooleanArray:
        return pc.less(n, 3)

    def odd(n: pd.Series) -> pd.Series:
        return n % 2 == 1

    assert run_pass(source.filter("n", small), rows) == [(1, "a")]
    assert run_pass(source.filter("n", odd), rows) == [(1, "a"), (3, None)]
    assert run_pass(source.filter("n", small).filter("n", doubled_is_six), rows) == []
    error = failure(source.filter("n", doubled), rows)
    assert (error.found, error.expected) == ("int64", "boolean")  # type: ignore[attr-defined]


def doubled_is_six(n: pa.Array) -> pa.Array:
    return pc.equal(doubled(n), 6)


def test_flat_map_replaces_the_rows_by_any_number_of_others() -> None:
    def words(line: pd.Series, n: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"word": line.str.split(), "n": n}).explode("word").dropna()

    def only(rows: pa.Table) -> pa.Array:
        return rows["n"].filter(pc.greater(rows["n"], 1)).combine_chunks()

    def nothing(line: pd.Series, n: pd.Series) -> pd.DataFrame:
        return None  # type: ignore[return-value]

    source, rows = stream_of("line string, n long"), [("a b", 1), ("", 2), ("c", 3)]
    assert run_pass(source.flat_map(words, "word string, n long"), rows) == [("a", 1), ("b", 1), ("c", 3)]
    assert run_pass(source.flat_map(only, "n long"), rows) == [(2,), (3,)]
    assert run_pass(source.flat_map(nothing, "n long"), rows) == []


def test_steps_over_columns_and_over_rows_are_one_pass() -> None:
    def shout(word: str) -> Iterator[str]:
        yield word.upper()
        yield word

    seen: list[int] = []

    @trident.arrow_function
    def look(n):
        seen.append(len(n))

    stream = stream_of("word string").filter("word", lambda word: word is not None).each("word", lengths, "n long")
    stream = stream.each("word", shout, "loud").each("n", doubled, "m long").peek("m", look)
    assert run_pass(stream.project("loud, m"), WORDS) == [("A", 2), ("a", 2), ("CCC", 6), ("ccc", 6)]
    assert len(seen) == 1 and seen == [4]


ZONE = datetime.timezone.utc
AT = datetime.datetime(2024, 5, 1, 12, 30, 0, 123456)
VALUES = [
    ("boolean", [True, None, False]),
    ("long", [2**53 + 1, None, -(2**63)]),
    ("byte", [1, None, -128]),
    ("double", [0.1, None, 3.0]),
    ("string", ["ä", None, ""]),
    ("binary", [b"x", None, b""]),
    ("decimal(10,2)", [decimal.Decimal("1.50"), None]),
    ("date", [AT.date(), None]),
    ("timestamp", [AT.replace(tzinfo=ZONE), None]),
    ("timestamp_ntz", [AT, None]),
    ("array<long>", [[1, None], None, []]),
    ("map<string,long>", [{"a": 1}, None, {}]),
    ("struct<a: long, b: string>", [{"a": 1, "b": None}, None]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[kind for kind, _ in VALUES])
def test_values_of_every_type_come_through_unchanged(kind: str, values: list) -> None:
    rows = [(value,) for value in values]
    source = stream_of(f"v {kind}")
    for decorate in (trident.arrow_function, trident.pandas_function):
        same = decorate(lambda v: v)
        assert run_pass(source.map(same, f"v {kind}"), rows) == rows
    no_nulls = [row for row in rows if row[0] is not None]
    assert run_pass(source.map(trident.pandas_function(lambda v: v), f"v {kind}"), no_nulls) == no_nulls


@pytest.mark.parametrize(
    ("kind", "table"),
    [("arrow", ""), ("arrow", "Table"), ("arrow", "RecordBatch"), ("pandas", ""), ("pandas", "DataFrame")],
)
def test_columns_of_instants_are_in_utc_whatever_zone_the_session_has(kind: str, table: str) -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    moment = AT.replace(tzinfo=ZONE)
    found = []

    def look(*given: Any) -> None:
        columns = given if not table else [given[0][name] for name in ("at", "all")]
        (at,), (all_,) = map(list, columns)
        # Within a list pandas has numpy's times, which have no zone.
        found.extend([at.as_py(), *all_.as_py()] if kind == "arrow" else [at.to_pydatetime()])

    arrays = {"at": pa.array([moment], berlin), "all": pa.array([[moment]], pa.list_(berlin))}
    Call(Label("map", "here:1"), look, tuple(arrays), kind, table).on(Frame(arrays, 1, Meter()))
    assert set(found) == {moment} and {one.utcoffset() for one in found} == {datetime.timedelta(0)}


@pytest.mark.parametrize(
    ("made", "kind", "found", "expected"),
    [
        (pa.array([1, 2]), "string", "int64", "string"),
        (pa.array(["1", "2"]), "long", "string", "bigint"),
        (pa.array([1.5, 2]), "long", "double", "bigint"),
        (pa.array([1, 300]), "byte", "int64", "tinyint"),
        (pa.array([b"a", b"b"]), "string", "binary", "string"),
        (pa.array([1, 0]), "boolean", "int64", "boolean"),
        (pa.array([AT, AT]), "timestamp", "timestamp[us]", "with a time zone"),
        (pd.Series(["a", 1]), "string", "object", "string"),
        (pd.Series([1.5, 2.0]), "long", "double", "bigint"),
        (pd.Series([AT, AT]), "date", "timestamp[ns]", "date"),
        (pa.array([1]), "long", "1 rows", "2 rows"),
        (pd.Series([1, 2, 3]), "long", "3 rows", "2 rows"),
        (7, "long", "7 (int)", "a Series or an Array"),
        ([1, 2], "long", "[1, 2] (list)", "a Series or an Array"),
        (None, "long", "None", "DataFrame or Table with v"),
        (pd.DataFrame({"w": [1, 2]}), "long", "w", "v"),
        (pa.table({"v": [1, 2], "w": [1, 2]}), "long", "v, w", "v"),
        (np.zeros((2, 2)), "long", "ndarray", "a Series"),
    ],
)
def test_columns_that_do_not_fit_are_told_with_output_and_types(made, kind, found, expected) -> None:
    function = trident.arrow_function(lambda n: made)
    error = failure(stream_of("n long").each("n", function, f"v {kind}"), [(1,), (2,)])
    assert isinstance(error, UserFunctionError), error
    assert found in str(error.found) and expected in str(error.expected)
    assert "for a piece of 2 rows" in str(error) and error.operation == "each(<lambda>)"


def test_values_that_fit_are_cast_where_nothing_is_lost() -> None:
    source = stream_of("n long")
    for made, kind, expected in (
        (pa.array([1, 2], pa.int8()), "long", [1, 2]),
        (pd.Series([1.0, None]), "int", [1, None]),
        (pa.array([1, 2]), "double", [1.0, 2.0]),
        (pa.nulls(2), "string", [None, None]),
        (pd.Series(["a", "b"], dtype="category"), "string", ["a", "b"]),
        (pd.Series(["a", None], dtype="string[pyarrow]"), "string", ["a", None]),
        (pa.array(["x", None], pa.large_string()), "string", ["x", None]),
        (np.array([1, 2]), "long", [1, 2]),
        (pa.chunked_array([[1], [2]]), "long", [1, 2]),
        (pd.Series([AT, AT]), "timestamp_ntz", [AT, AT]),
    ):
        stream = source.map(trident.arrow_function(lambda n, made=made: made), f"v {kind}")
        assert run_pass(stream, [(1,), (2,)]) == [(value,) for value in expected]


def test_failures_in_functions_over_columns_name_operation_line_and_piece() -> None:
    def breaks(n: pa.Array) -> pa.Array:
        raise KeyError("gone")

    def gives_up(n: pa.Array) -> pa.Array:
        raise FailedException("not now")

    error = failure(stream_of("n long").each("n", breaks, "m long"), [(1,), (2,)])
    assert isinstance(error, UserFunctionError)
    assert error.location == f"{__file__}:{breaks.__code__.co_firstlineno + 1}"
    assert "for a piece of 2 rows" in str(error) and "KeyError" in str(error)
    assert isinstance(failure(stream_of("n long").filter("n", gives_up), [(1,)]), FailedException)
    uneven = trident.arrow_function(lambda n: (n, n[:1]))
    assert "different length" in str(failure(stream_of("n long").flat_map(uneven, "a long, b long"), [(1,), (2,)]))


def test_functions_over_columns_are_checked_when_the_topology_is_built() -> None:
    source = stream_of("n long, m long")
    with pytest.raises(OutputTypeError, match="write the output as 'x long'|Write the output as 'x long'"):
        source.each("n", doubled, "x")
    with pytest.raises(TopologyError, match="cannot be called with the fields"):
        source.map(doubled, "x long")
    with pytest.raises(FieldError, match="is given none"):
        source.each([], trident.arrow_function(lambda: None), "x long")
    with pytest.raises(TopologyError, match="marks a function"):
        trident.arrow_function(3)

    def both(n: pd.Series) -> pa.Array: ...

    def stream(n: Iterator[pd.Series]) -> Iterator[pd.Series]: ...

    async def later(n: pd.Series) -> pd.Series: ...

    for wrong, problem in ((both, "both pandas and Arrow"), (stream, "one after the other"), (later, "async")):
        with pytest.raises(TopologyError, match=problem):
            source.each("n", wrong, "x long")
    lock = threading.Lock()
    with pytest.raises(TopologyError, match="it uses lock"):
        source.each("n", trident.arrow_function(lambda n: lock and n), "x long")


def test_pandas_is_not_loaded_for_functions_over_rows() -> None:
    code = (
        "import sys; from tests.streams.stream_helpers import stream_of; "
        "stream_of('n long').each('n', str, 's'); import trident.workers.vectors; assert 'pandas' not in sys.modules"
    )
    assert os.system(f'"{sys.executable}" -c "{code}"') == 0


def test_functions_over_columns_run_on_spark_with_nulls_and_empty_batches(spark) -> None:
    stream = stream_of("word string").each("word", lengths, "n int").each("n", doubled_or_null, "m long")
    stream = stream.filter("m", trident.arrow_function(is_big)).project("word, m")
    rows = [("a",), (None,), ("ccc",), ("dd",)]
    for partitions in (1, 3):
        assert run_batch(stream, rows, spark=spark, partitions=partitions) == [("ccc", 6), ("dd", 4)]
    assert run_batch(stream, [], spark=spark, partitions=2) == []
    with pytest.raises(UserFunctionError, match="for a piece of 1 rows"):
        run_batch(stream_of("n long").map(too_few, "n long"), [(1,)], spark=spark)


def doubled_or_null(n: pd.Series) -> pd.Series:
    return n * 2


def is_big(m):
    return pc.greater(m, 2)


def too_few(n: pa.Array) -> pa.Array:
    return n[:0]


# --- what cannot travel ------------------------------------------------------------------


class Client:
    def __init__(self) -> None:
        self.names, self.lock = ["a"], threading.Lock()


class Slotted:
    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = Client()


def test_what_cannot_be_pickled_is_named_by_the_way_to_it() -> None:
    lock, client, settings = threading.Lock(), Client(), {"limits": [1, Client()]}

    def helper(n: int) -> int:
        with lock:
            return n

    def uses_helper(n: int) -> int:
        return helper(n)

    def uses_client(n: int) -> int:
        return len(client.names)

    def inside(n: int) -> int:
        return (lambda: settings["limits"][0])()  # type: ignore[index]

    def wrapped(function):
        @functools.wraps(function)
        def call(n: int) -> int:
            with lock:
                return function(n)

        return call

    class Serves:
        def __init__(self) -> None:
            self.client = client

        def __call__(self, n: int) -> int:
            return n

    def keyword(n: int, *, held=lock) -> int:  # noqa: B008
        return n

    slotted = Slotted()
    for function, path in (
        (uses_helper, "helper → lock"),
        (uses_client, "client → lock"),
        (Serves(), "self.client → lock"),
        (Serves().__call__, "self.client → lock"),
        (inside, "settings → ['limits'] → [1] → lock"),
        (functools.partial(uses_helper), "uses_helper → helper → lock"),
        (wrapped(lambda n: n), "lock"),
        (keyword, "a default value"),
        (functools.partial(lambda held, n: n, lock), "argument 1 of the partial"),
        (lambda n: slotted and n, "slotted → inner → lock"),
    ):
        with pytest.raises(TopologyError) as caught:
            stream_of("n long").each("n", function, "x long")
        assert f"it uses {path}; found" in str(caught.value)
        assert "_thread.lock" in str(caught.value.found), caught.value
        assert str(caught.value.found).startswith(path.rpartition(" → ")[2])


def test_a_function_that_calls_itself_and_a_global_inside_a_lambda_are_looked_through() -> None:
    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1) + (1 if LOCK else 0)

    count.__module__ = "__main__"  # so that it is pickled by value, with its globals
    with pytest.raises(TopologyError, match="it uses LOCK"):
        stream_of("n long").each("n", count, "x long")


LOCK = threading.Lock()
