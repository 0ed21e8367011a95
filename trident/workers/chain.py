"""Runs Python operations on a worker: a fused chain of steps over Arrow batches.

One :class:`Chain` is one pass of Spark's ``mapInArrow``, however many
operations it holds. Only columns that a function reads become Python values;
the others stay Arrow and follow by ``take``. Columns that no later step needs
are not made. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat, starmap
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.workers.failures import Label, fail
from trident.workers.ledger import Ledger, ledger_place
from trident.workers.lifecycle import prepared
from trident.workers.values import Values, WrongValue, cut_repr, python_values, to_arrow

# A batch is worked on in pieces that are expected to give about this many rows,
# so that a function that makes a thousand rows of one does not fill the memory.
_ROWS_PER_PIECE = 100_000
_FIRST_PIECE = 2_000


class Meter:
    """The widest that one piece of a batch has become."""

    rows = 0


class Frame:
    """Columns of equal length by name; Python values are made when first asked for."""

    __slots__ = ("_columns", "length", "meter", "_values")

    def __init__(
        self, columns: dict[str, pa.Array], length: int, meter: Meter, values: dict[str, Values] | None = None
    ) -> None:
        self._columns, self.length, self.meter, self._values = columns, length, meter, values or {}

    def array(self, name: str) -> pa.Array:
        return self._columns[name]

    def values(self, name: str) -> Values:
        if name not in self._values:
            self._values[name] = python_values(self._columns[name])
        return self._values[name]

    def only(self, names: Sequence[str], index: Sequence[int] | None = None) -> dict[str, pa.Array]:
        """The named columns, repeated or thinned by index."""
        if index is None:
            return {name: self._columns[name] for name in names}
        if not names:
            return {}
        positions = pa.array(index, pa.int64())
        return {name: self._columns[name].take(positions) for name in names}


# --- calling a function for every row ----------------------------------------------------

_NOT_ROWS = frozenset({str, bytes, bytearray, dict})
# Told apart without asking for __iter__, which costs more than the rest of a short function.
_SINGLE = _NOT_ROWS | {int, float, bool}


@dataclass(frozen=True)
class Results:
    """The results of calling a function once per row.

    Attributes:
        rows: the results of all calls.
        ends: how many results there were after each call.
    """

    rows: list[Any]
    ends: Sequence[int]

    def one_each(self) -> bool:
        """Tells whether each call gave exactly one result, however it was given: returned, yielded, or in a list."""
        return all(end == row for row, end in enumerate(self.ends, 1))

    def index(self) -> list[int] | None:
        """The input row of each result; None when each row is known to have given exactly one.

        Where a function's annotation does not say so there is an index, also when each gave one: see ``one_each``.
        """
        ends = self.ends
        if isinstance(ends, range):
            return None
        index: list[int] = []
        start = 0
        for row, end in enumerate(ends):
            if end == start + 1:
                index.append(row)
            elif end > start:
                index.extend(repeat(row, end - start))
            start = end
        return index


def call_rows(
    label: Label,
    function: Callable[..., Any],
    columns: Sequence[Values],
    names: Sequence[str],
    length: int,
    many: bool | None,
    several: bool,
    drop_none: bool,
) -> Results:
    """Calls the function for each row and gathers what it returns.

    Args:
        label: the operation.
        function: takes one positional argument per column.
        columns: its arguments, and their names.
        names: of the columns.
        length: rows.
        many: True: each result is an iterable of rows; False: it is one; None: told by its type.
        several: a row has several values, so a tuple is one row.
        drop_none: None means no row (else it is a null value).
    """
    calls = map(function, *columns) if columns else starmap(function, repeat((), length))
    rows: list[Any] = []
    ends: list[int] = []
    try:
        if many is False:
            rows.extend(calls)  # when a call raises, the results before it stay: they say which row it was
            done = len(rows)
        else:
            gather = _gather_many if many else _gather_any
            gather(calls, rows, ends, several)
            done = len(ends)
        if done != length:
            raise StopIteration("a function may not raise StopIteration: rows would be lost")
    except (Exception, SystemExit) as error:
        at = len(rows) if many is False else len(ends)
        fail(
            label,
            error,
            {name: column[at] for name, column in zip(names, columns)} if at < length else {},
            **(error.details if isinstance(error, WrongValue) else {}),
        )
    if many is not False:
        return Results(rows, ends)
    if not drop_none or type(None) not in set(map(type, rows)):
        return Results(rows, range(1, length + 1))
    count = 0
    for row in rows:
        count += row is not None
        ends.append(count)
    return Results([row for row in rows if row is not None], ends)


def _gather_many(calls: Iterable[Any], rows: list[Any], ends: list[int], several: bool) -> None:
    extend, append = rows.extend, ends.append
    for result in calls:
        if result is not None:
            # A text is iterable too, but no user means its characters.
            if result.__class__ in _NOT_ROWS or not hasattr(result, "__iter__"):
                raise WrongValue("the function returned a single value", cut_repr(result), "an iterable of rows")
            extend(result)
        append(len(rows))


def _gather_any(calls: Iterable[Any], rows: list[Any], ends: list[int], several: bool) -> None:
    for result in calls:
        if result is not None:
            one = result.__class__ in _SINGLE or not hasattr(result, "__iter__")
            if one or (several and isinstance(result, tuple)):
                rows.append(result)
            else:
                rows.extend(result)
        ends.append(len(rows))


def one_row(result: Any, many: bool | None, several: bool) -> Any:
    """The only row that one call of an aggregator's ``complete`` gave, for a state that keeps one for each key.

    Args:
        result: of the call.
        many, several: as of ``call_rows``.

    Raises:
        ValueError: it gave none, or more.
    """
    rows: list[Any] = []
    if many is False:
        rows = [] if result is None else [result]
    else:
        (_gather_many if many else _gather_any)([result], rows, [], several)
    if len(rows) != 1:
        raise not_one_row(len(rows))
    return rows[0]


def not_one_row(count: int) -> ValueError:
    return ValueError(f"complete gave {count} rows for a key: a state keeps exactly one for each")


def output_arrays(
    label: Label,
    results: Results,
    outputs: Sequence[str],
    types: Sequence[pa.DataType],
    row_at: Callable[[int], Mapping[str, Any]],
) -> tuple[dict[str, pa.Array], dict[str, Values]]:
    """The results as typed columns, and their Python values where these are the same as the typed ones."""
    columns: Sequence[Sequence[Any]] = [results.rows]
    try:
        if len(outputs) > 1:
            columns = _transpose(results.rows, outputs)
        arrays, values = {}, {}
        for name, kind, column in zip(outputs, types, columns):
            arrays[name], exact = to_arrow(column, kind, name)
            if exact:
                values[name] = column
    except WrongValue as error:
        fail(label, error, row_at(bisect_right(results.ends, error.position)), **error.details)
    return arrays, values


def _transpose(rows: Sequence[Any], outputs: Sequence[str]) -> Sequence[Sequence[Any]]:
    count = len(outputs)
    kinds = set(map(type, rows))
    if not all(issubclass(kind, (tuple, list)) for kind in kinds) or set(map(len, rows)) - {count}:
        for position, row in enumerate(rows):
            if not isinstance(row, (tuple, list)) or len(row) != count:
                raise WrongValue(
                    "a result has another number of values than there are outputs",
                    cut_repr(row),
                    f"a tuple of {count} for {', '.join(outputs)}",
                    position,
                )
    return list(zip(*rows)) if rows else [()] * count


# --- steps -------------------------------------------------------------------------------


class Step:
    """The steps of a pass over frames, in order: ``run``; some are told their batch or their task before it."""

    label: Label

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        raise AssertionError(f"{type(self).__name__} has no run")

    @property
    def text(self) -> str:
        """For ``explain``; "" for nothing to say."""
        return self.label.operation


@dataclass(frozen=True)
class Rows(Step):
    """each, map and flat_map: new columns from a function, the kept ones repeated beside them.

    Attributes:
        label: the operation.
        function: of the user.
        inputs: the fields that it takes.
        outputs: the fields that it makes, with their types.
        types: of the outputs.
        many: whether a call returns many rows (None: told by the result).
        keep: the earlier fields that are needed later.
        drop_none: None means no row.
    """

    label: Label
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    many: bool | None
    keep: tuple[str, ...]
    drop_none: bool

    @property
    def user(self) -> Any:
        return self.function

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                yield self._apply(frame)

    def _apply(self, frame: Frame) -> Frame:
        columns = [frame.values(name) for name in self.inputs]
        results = call_rows(
            self.label,
            self.function,
            columns,
            self.inputs,
            frame.length,
            self.many,
            len(self.outputs) > 1,
            self.drop_none,
        )

        def row_at(row: int) -> dict[str, Any]:
            return {name: column[row] for name, column in zip(self.inputs, columns)}

        arrays, values = output_arrays(self.label, results, self.outputs, self.types, row_at)
        kept = frame.only(self.keep, results.index() if self.keep else None)
        length = len(results.rows)
        frame.meter.rows = max(frame.meter.rows, length)
        return Frame({**kept, **arrays}, length, frame.meter, values)


@dataclass(frozen=True)
class Keep(Step):
    """filter: the rows for which a function returns something true."""

    label: Label
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    keep: tuple[str, ...]

    @property
    def user(self) -> Any:
        return self.function

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if not frame.length:
                continue
            columns = [frame.values(name) for name in self.inputs]
            verdicts = call_rows(
                self.label, self.function, columns, self.inputs, frame.length, False, False, False
            ).rows
            try:
                index = list(compress(range(frame.length), verdicts))
            except Exception as error:  # a result that is neither true nor false, such as an array
                fail(self.label, error, {})
            whole = len(index) == frame.length
            yield Frame(frame.only(self.keep, None if whole else index), len(index), frame.meter)


@dataclass(frozen=True)
class Peek(Step):
    """peek: calls a function for each row; its result does not matter."""

    label: Label
    function: Callable[..., Any]
    inputs: tuple[str, ...]

    @property
    def user(self) -> Any:
        return self.function

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            columns = [frame.values(name) for name in self.inputs]
            call_rows(self.label, self.function, columns, self.inputs, frame.length, False, False, False)
            yield frame


@dataclass(frozen=True)
class WithoutMarker(Step):
    """Drops the row that was added so that even an empty batch has a Spark partition."""

    text = ""

    marker: str

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            names = [name for name in frame._columns if name != self.marker]
            index = [row for row, marked in enumerate(frame.values(self.marker)) if not marked]
            yield Frame(frame.only(names, index), len(index), frame.meter)


@dataclass(frozen=True)
class CountRows(Step):
    """Count, done before the rows leave Python: fewer of them then go to the JVM.

    The counts are partial: a key may come more than once.

    Attributes:
        keys: the grouping fields; at least one.
        output: the field of the counts.
    """

    keys: tuple[str, ...]
    output: str

    @property
    def text(self) -> str:
        return f"count by {', '.join(self.keys)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        held: pa.Table | None = None
        meter = Meter()
        # Names of our own: "count_all" may be a field of the user's.
        keys = [f"k{position}" for position in range(len(self.keys))]
        for frame in frames:
            if not frame.length:
                continue
            table = pa.table([frame.array(name) for name in self.keys], names=keys)
            # One thread: the cores are Spark's, which runs a task on each.
            counts = table.group_by(keys, use_threads=False).aggregate([([], "count_all")])
            counts = counts.select([*keys, "count_all"]).rename_columns([*keys, "n"])
            if held is not None:
                both = pa.concat_tables([held, counts]).group_by(keys, use_threads=False).aggregate([("n", "sum")])
                counts = both.select([*keys, "n_sum"]).rename_columns([*keys, "n"])
            held = counts
            if held.num_rows > _ROWS_PER_PIECE:
                yield from self._frames(held, meter)
                held = None
        if held is not None:
            yield from self._frames(held, meter)

    def _frames(self, table: pa.Table, meter: Meter) -> Iterator[Frame]:
        for batch in table.combine_chunks().to_batches():
            yield Frame(dict(zip((*self.keys, self.output), batch.columns)), batch.num_rows, meter)


# --- the chain ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """One pass over a Spark partition, called by ``mapInArrow``.

    Attributes:
        steps: in order.
        schema: of the batches that come out.
        name: distinct among the passes of a batch.
    """

    steps: tuple[Any, ...]
    schema: pa.Schema
    name: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if any(hasattr(step, "for_task") for step in self.steps):
            yield from self._tracked(batches)
        else:
            yield from self._run(self.steps, batches)

    def _tracked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ledger, place = Ledger(), ledger_place(self.name)
        steps = tuple(step.for_task(ledger) if hasattr(step, "for_task") else step for step in self.steps)
        yield from self._run(steps, batches)
        ledger.write(*place)

    def _run(self, steps: Sequence[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with prepared(steps):
            frames: Iterator[Frame] = _pieces(batches)
            for step in steps:
                frames = step.run(frames)
            for frame in frames:
                if frame.length:
                    arrays = [_of_type(frame.array(field.name), field.type) for field in self.schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def for_batch(self, info: Any) -> "Chain":
        """The chain with a BatchInfo, for steps that need to know their batch."""
        steps = tuple(step.for_batch(info) if hasattr(step, "for_batch") else step for step in self.steps)
        return replace(self, steps=steps)


@dataclass(frozen=True)
class SentChain:
    """A chain that is sent to each worker once, and not with every batch.

    Attributes:
        sent: a Broadcast of the pickled chain: each task unpickles a copy of its own.
        info: of the batch.
    """

    sent: Any
    info: Any = None

    def for_batch(self, info: Any) -> "SentChain":
        """The chain with a BatchInfo."""
        return replace(self, info=info)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from pickle.loads(self.sent.value).for_batch(self.info)(batches)


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Timestamps come in the session's time zone and may leave in UTC: the same instants.
    return array if array.type == kind else pc.cast(array, kind)


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Frame]:
    size, meter = _FIRST_PIECE, Meter()
    for batch in batches:
        start = 0
        names = batch.schema.names
        while start < batch.num_rows:
            piece = batch.slice(start, size)
            meter.rows = 0
            yield Frame(dict(zip(names, piece.columns)), piece.num_rows, meter)
            start += piece.num_rows
            widening = max(1.0, meter.rows / piece.num_rows)
            size = max(1, int(_ROWS_PER_PIECE / widening))
