"""Users' functions over whole columns on a worker: one call per piece of a batch.

Steps of a :class:`trident.workers.chain.Chain`, beside those that call a function
for each row. Imported by every worker: keep its imports light; pandas is
loaded when a function wants it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.typed_values import WrongValue, cut_repr, in_utc, typed
from trident.workers.chain import Frame, Step
from trident.workers.failures import Label, fail


@dataclass(frozen=True)
class Call:
    """How a function over columns is called.

    Attributes:
        kind: "arrow" or "pandas".
        table: "DataFrame", "Table" or "RecordBatch" where it takes them as one; "": one by one.
    """

    label: Label
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    kind: str
    table: str

    def on(self, frame: Frame) -> Any:
        """Returns what the function gives for the piece."""
        try:
            return self.function(*self._arguments(frame))
        except (Exception, SystemExit) as error:
            self.fail(frame, error)

    def fail(self, frame: Frame, error: BaseException) -> Any:
        details = error.details if isinstance(error, WrongValue) else {}
        fail(self.label, error, {}, place=f"for a piece of {frame.length} rows", **details)

    def _arguments(self, frame: Frame) -> list[Any]:
        # Arrow's instants are in the session's zone, or in UTC in a request's job; functions see them in UTC.
        arrays = [in_utc(frame.array(name)) for name in self.inputs]
        if self.kind == "pandas":
            series = [_to_pandas(array, name) for name, array in zip(self.inputs, arrays)]
            if not self.table:
                return series
            import pandas as pd  # time: 200 ms of each worker

            return [pd.DataFrame(dict(zip(self.inputs, series)), index=range(frame.length))]
        if not self.table:
            return arrays
        if self.table == "RecordBatch":
            return [pa.RecordBatch.from_arrays(arrays, names=list(self.inputs))]
        return [pa.table(arrays, names=list(self.inputs))]


def _to_pandas(array: pa.Array, name: str) -> Any:
    """A Series in which no value has changed: integers with nulls would else become floats."""
    import pandas as pd  # time: 200 ms of each worker

    nullable = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    mapper = nullable.get if array.null_count else None
    # Within a list NumPy's own times would have no zone.
    as_object = pa.types.is_nested(array.type)
    series = array.to_pandas(types_mapper=mapper, maps_as_pydicts="strict", timestamp_as_object=as_object)
    series.name = name
    return series


@dataclass(frozen=True)
class _OfColumns(Step):
    """A step with a function over columns."""

    call: Call

    @property
    def label(self) -> Label:  # type: ignore[override]
        return self.call.label

    @property
    def user(self) -> Any:
        return self.call.function


@dataclass(frozen=True)
class VectorRows(_OfColumns):
    """each, map and flat_map with a function over columns.

    Attributes:
        keep: the earlier fields that are needed later.
        any_length: flat_map: any number of rows may come back.
    """

    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    keep: tuple[str, ...]
    any_length: bool

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if not frame.length:
                continue
            result = self.call.on(frame)
            if result is None and self.any_length:
                continue
            try:
                yield self._made(frame, result)
            except WrongValue as error:
                self.call.fail(frame, error)

    def _made(self, frame: Frame, result: Any) -> Frame:
        columns = _columns(result, self.outputs)
        arrays = {name: typed(column, kind, name) for name, kind, column in zip(self.outputs, self.types, columns)}
        lengths = sorted({len(array) for array in arrays.values()})
        if len(lengths) > 1 or (lengths != [frame.length] and not self.any_length):
            raise WrongValue(
                "the function gave another number of rows than it was given"
                if not self.any_length
                else "the function gave columns of different length",
                f"{' and '.join(map(str, lengths))} rows",
                "columns of one length" if self.any_length else f"{frame.length} rows; flat_map for more or fewer",
            )
        frame.meter.rows = max(frame.meter.rows, lengths[0])
        return Frame({**frame.only(self.keep), **arrays}, lengths[0], frame.meter)


@dataclass(frozen=True)
class VectorKeep(_OfColumns):
    """filter with a function over columns."""

    keep: tuple[str, ...]

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if not frame.length:
                continue
            result = self.call.on(frame)
            try:
                (column,) = _columns(result, ("condition",))
                mask = typed(column, pa.bool_(), "condition")
                if len(mask) != frame.length:
                    raise WrongValue(
                        "the function gave another number of rows than it was given",
                        f"{len(mask)} rows",
                        f"{frame.length} rows: a boolean for each",
                    )
            except WrongValue as error:
                self.call.fail(frame, error)
            index = pc.indices_nonzero(pc.fill_null(mask, False))
            whole = len(index) == frame.length
            yield Frame(frame.only(self.keep, None if whole else index), len(index), frame.meter)


@dataclass(frozen=True)
class VectorPeek(_OfColumns):
    """peek with a function over columns; its result does not matter."""

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                self.call.on(frame)
            yield frame


def vector_step(
    kind: str, call: Call, outputs: tuple[str, ...], types: tuple[pa.DataType, ...], keep: tuple[str, ...]
) -> Step:
    """The step of an operation: "each", "map", "flat_map", "filter" or "peek"."""
    if kind == "filter":
        return VectorKeep(call, keep)
    if kind == "peek":
        return VectorPeek(call)
    return VectorRows(call, outputs, types, keep, any_length=kind == "flat_map")


# --- what came back ----------------------------------------------------------------------


def _pandas() -> Any:
    """pandas, if anybody has loaded it: else nothing can be of its classes."""
    return sys.modules.get("pandas")


def _is_column(value: Any) -> bool:
    pandas, numpy = _pandas(), sys.modules.get("numpy")
    return (
        isinstance(value, (pa.Array, pa.ChunkedArray))
        or (pandas is not None and isinstance(value, (pandas.Series, pandas.api.extensions.ExtensionArray)))
        or (numpy is not None and isinstance(value, numpy.ndarray) and value.ndim == 1)
    )


def _columns(result: Any, outputs: Sequence[str]) -> list[Any]:
    """One column for each output, in their order."""
    pandas = _pandas()
    if len(outputs) == 1 and _is_column(result):
        return [result]
    if isinstance(result, (pa.Table, pa.RecordBatch)):
        return _by_name(result.schema.names, outputs, result.column)
    if pandas is not None and isinstance(result, pandas.DataFrame):
        named = list(result.columns)
        if named == list(range(len(outputs))):  # columns without names
            return [result.iloc[:, place] for place in range(len(outputs))]
        return _by_name(named, outputs, lambda place: result.iloc[:, place])
    if isinstance(result, (tuple, list)) and len(result) == len(outputs) and all(map(_is_column, result)):
        return list(result)
    names = ", ".join(outputs)
    one = "a Series or an Array" if len(outputs) == 1 else f"a tuple of {len(outputs)} of them"
    raise WrongValue(
        "the function gave no columns",
        f"{cut_repr(result)} ({type(result).__name__})",
        f"{one}, or a DataFrame or Table with {names}",
    )


def _by_name(names: Sequence[Any], outputs: Sequence[str], column: Callable[[int], Any]) -> list[Any]:
    if sorted(map(str, names)) != sorted(outputs):
        raise WrongValue(
            "the function gave other columns than the outputs",
            ", ".join(map(str, names)) or "none",
            ", ".join(outputs),
        )
    places = {str(name): place for place, name in enumerate(names)}
    return [column(places[output]) for output in outputs]
