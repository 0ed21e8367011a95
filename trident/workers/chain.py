"""Runs Python operations on a worker: a fused chain of steps over Arrow batches.

One :class:`Chain` is one pass of Spark's ``mapInArrow``, however many
operations it holds. Only columns that a function reads become Python values;
the others stay Arrow and follow by ``take``. Columns that no later step needs
are not made. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, repeat
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.place import Place
from trident.states.core.typed_values import WrongValue, python_values, to_arrow
from trident.workers.anchors import Ledger, ledger_place
from trident.workers.calls import Results, call_rows, output_arrays, prepared
from trident.workers.failures import Label, Values, fail

# A batch is worked on in pieces that are expected to give about this many rows,
# so that a function that makes a thousand rows of one does not fill the memory.
_ROWS_PER_PIECE = 100_000
_FIRST_PIECE = 2_000
_VERDICTS = frozenset({bool, type(None)})


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

    def table(self, names: Sequence[str]) -> pa.Table:
        """The named columns as a table, which has the rows of a frame without columns too."""
        return pa.table(self.only(names)) if names else pa.table({"": pa.nulls(self.length)})

    def row(self, names: Sequence[str], at: int) -> dict[str, Any]:
        """One row's values, for messages."""
        return {name: self.values(name)[at] for name in names}

    def rows(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The named values row by row; as many empty tuples as there are rows where no name is given."""
        return zip(*map(self.values, names)) if names else repeat((), self.length)

    def values(self, name: str) -> Values:
        if name not in self._values:
            self._values[name] = python_values(self._columns[name])
        return self._values[name]

    def only(self, names: Sequence[str], index: Sequence[int] | pa.Array | None = None) -> dict[str, pa.Array]:
        """The named columns, repeated or thinned by index."""
        if index is None:
            return {name: self._columns[name] for name in names}
        if not names:
            return {}
        positions = index if isinstance(index, pa.Array) else pa.array(index, pa.int64())
        return {name: self._columns[name].take(positions) for name in names}


# --- steps -------------------------------------------------------------------------------


class Step:
    """The steps of a pass over frames, in order: ``run``; some are told their batch or their task before it.

    Attributes:
        own: the step is the framework's own and calls no code of the user's, so it may run in the coordinator's
            process. A step that does not say so runs on Spark's workers alone.
        needs_order: its result depends on the order of the batch's rows.
    """

    own: ClassVar[bool] = False
    needs_order: ClassVar[bool] = False
    label: Label

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        raise AssertionError(f"{type(self).__name__} has no run")

    @property
    def text(self) -> str:
        """For ``explain``; "" for nothing to say."""
        return self.label.operation


# The results of calls; their columns; and of these the Python values, where they are the same.
Made = tuple[Results, dict[str, pa.Array], dict[str, Values]]


class FieldsStep(Step):
    """A step that makes fields, ``outputs`` of ``types``, of the results of a function's calls."""

    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    def made(
        self,
        function: Callable[..., Any],
        columns: Sequence[Values],
        names: Sequence[str],
        length: int,
        many: bool | None,
        drop_none: bool,
        row_at: Callable[[int], Mapping[str, Any]],
    ) -> Made:
        """Calls the function for each row, as ``call_rows`` does; the results, and as ``output_arrays`` has them.

        Args:
            row_at: the row of a call, for messages.
        """
        results = call_rows(self.label, function, columns, names, length, many, len(self.outputs) > 1, drop_none)
        return results, *output_arrays(self.label, results, self.outputs, self.types, row_at)

    def with_results(self, frame: Frame, keep: Sequence[str], made: Made) -> Frame:
        """The frame of the results, with the kept columns repeated beside them."""
        results, arrays, values = made
        kept, length = frame.only(keep, results.index() if keep else None), len(results.rows)
        frame.meter.rows = max(frame.meter.rows, length)
        return Frame({**kept, **arrays}, length, frame.meter, values)


@dataclass(frozen=True)
class _OfFunction(Step):
    """A step that calls a function of the user's for each row."""

    label: Label
    function: Callable[..., Any]
    inputs: tuple[str, ...]

    @property
    def user(self) -> Any:
        return self.function


@dataclass(frozen=True)
class Rows(_OfFunction, FieldsStep):
    """each, map and flat_map: new columns from a function, the kept ones repeated beside them.

    Attributes:
        many: whether a call returns many rows (None: told by the result).
        keep: the earlier fields that are needed later.
        drop_none: None means no row.
    """

    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    many: bool | None
    keep: tuple[str, ...]
    drop_none: bool

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                columns, row_at = [frame.values(name) for name in self.inputs], partial(frame.row, self.inputs)
                made = self.made(self.function, columns, self.inputs, frame.length, self.many, self.drop_none, row_at)
                yield self.with_results(frame, self.keep, made)


@dataclass(frozen=True)
class Keep(_OfFunction):
    """filter: the rows for which a function returns True; None counts as False, and anything else is refused."""

    keep: tuple[str, ...]

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if not frame.length:
                continue
            columns = [frame.values(name) for name in self.inputs]
            verdicts: Sequence[Any] = call_rows(self.label, self.function, columns, self.inputs, frame.length).rows
            if not _VERDICTS.issuperset(map(type, verdicts)):
                verdicts = self._as_bools(frame, verdicts)
            index = list(compress(range(frame.length), verdicts))
            whole = len(index) == frame.length
            yield Frame(frame.only(self.keep, None if whole else index), len(index), frame.meter)

    def _as_bools(self, frame: Frame, verdicts: Sequence[Any]) -> Values:
        """The verdicts by the rule for values: what Python takes for true, as it does the text "False", is refused."""
        try:
            return python_values(to_arrow(verdicts, pa.bool_(), "condition")[0])
        except WrongValue as error:
            wrong = {**error.details, "expected": "True or False for each row (None drops the row)"}
            said = WrongValue("the condition gave something that is neither True nor False", "", "")
            fail(self.label, said, frame.row(self.inputs, error.position), **wrong)


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
            call_rows(self.label, self.function, columns, self.inputs, frame.length)
            yield frame


@dataclass(frozen=True)
class WithoutMarker(Step):
    """Drops the row that was added so that even an empty batch has a Spark partition."""

    own = True
    text = ""

    marker: str

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            names = [name for name in frame._columns if name != self.marker]
            index = pc.indices_nonzero(pc.equal(frame.array(self.marker), 0))
            yield Frame(frame.only(names, index), len(index), frame.meter)


@dataclass(frozen=True)
class CountRows(Step):
    """Count, done before the rows leave Python: fewer of them then go to the JVM.

    The counts are partial: a key may come more than once.

    Attributes:
        keys: the grouping fields; at least one.
    """

    own = True

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
        schema: of the batches that come out.
        name: distinct among the passes of a batch.
        stores: those that its tasks may write a ledger to; a task that unpickles them reaches them.
    """

    steps: tuple[Any, ...]
    schema: pa.Schema
    name: str = ""
    stores: tuple[Place, ...] = ()

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
            yield from self._through(steps, batches)

    def _through(self, steps: Sequence[Any], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        frames: Iterator[Frame] = _pieces(batches)
        for step in steps:
            frames = step.run(frames)
        for frame in frames:
            if frame.length:
                arrays = [_of_type(frame.array(field.name), field.type) for field in self.schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def pass_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One pass with objects of the user's that the caller has prepared."""
        return self._through(self.steps, batches)

    def for_batch(self, info: Any) -> "Chain":
        """The chain with a BatchInfo, for steps that need it."""
        if not any(hasattr(step, "for_batch") for step in self.steps):
            return self
        steps = tuple(step.for_batch(info) if hasattr(step, "for_batch") else step for step in self.steps)
        return replace(self, steps=steps)

    def with_copies(self, copies: Any) -> "Chain":
        """The chain with local copies of states."""
        steps = tuple(step.with_copies(copies) if hasattr(step, "with_copies") else step for step in self.steps)
        return replace(self, steps=steps)

    def in_shard(self, shard: Any) -> "Chain":
        """The chain with the shard of a task, for steps that cut the rows themselves."""
        steps = tuple(replace(step, shard=shard) if hasattr(step, "shard") else step for step in self.steps)
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
