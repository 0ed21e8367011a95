"""Spark's order of values, for Python, and the least or greatest row in it. Imported by workers: light imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from trident.states.core.typed_values import less
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label, fail


class Ordered:
    """A value that compares in Spark's order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: "Ordered") -> bool:
        return less(self.value, other.value)


@dataclass(frozen=True)
class BestRow(Step):
    """On a worker: the least or greatest row of the Spark partition, if there is one.

    Attributes:
        by: the fields that are compared; a row with a null in one is skipped.
        comparator: (a, b) → below, at or above 0; of the values, or of tuples when several fields are compared.
        part: the field that is given the number of the Spark partition; none: not needed.
        order: the field that says which of equal rows comes later; "": the later one wins.
    """

    needs_order: ClassVar[bool] = True

    label: Label
    by: tuple[str, ...]
    greatest: bool
    comparator: Callable[..., Any] | None
    keep: tuple[str, ...]
    part: tuple[str, ...]
    order: str = ""

    @property
    def user(self) -> Any:
        return self.comparator

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        best: tuple[Any, dict[str, pa.Array]] | None = None
        key_of = cmp_to_key(self.comparator) if self.comparator else Ordered
        for frame in frames:
            if not frame.length:
                continue
            columns = [frame.values(name) for name in self.by]
            orders: Sequence[Any] = frame.values(self.order) if self.order else range(frame.length)
            at, row = None, 0
            try:
                for row, (values, order) in enumerate(zip(zip(*columns), orders)):  # noqa: B007
                    if any(value is None for value in values):
                        continue
                    key = key_of(values[0] if len(values) == 1 else values)
                    if best is None or self._beats(key, order, best[0]):
                        best, at = ((key, order), {}), row
            except Exception as error:
                fail(self.label, error, {name: frame.values(name)[row] for name in self.by})
            if at is not None and best is not None:
                best = (best[0], frame.only(self.keep, [at]))
        if best is not None:
            arrays = dict(best[1])
            for name in self.part:
                context = TaskContext.get()
                arrays[name] = pa.array([context.partitionId() if context else 0], pa.int32())
            yield Frame(arrays, 1, Meter())

    def _beats(self, key: Any, order: Any, best: tuple[Any, Any]) -> bool:
        than, before = best
        better = than < key if self.greatest else key < than
        if better or not self.order:
            return better or not (key < than if self.greatest else than < key)
        worse = key < than if self.greatest else than < key
        return not worse and order >= before


@dataclass(frozen=True)
class BestOfBatch(Step):
    """The least or greatest row of the batch, whose rows are together; of equal ones the last.

    Attributes:
        by: the fields that are compared; a row with a null in one is skipped.
    """

    label: Label
    by: tuple[str, ...]
    greatest: bool
    keep: tuple[str, ...]

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        tables = [frame.table(tuple(dict.fromkeys((*self.by, *self.keep)))) for frame in frames if frame.length]
        if not tables:
            return
        rows = pa.concat_tables(tables).combine_chunks()
        for name in self.by:
            rows = rows.filter(pc.is_valid(rows.column(name)))
        if rows.num_rows:
            order = in_spark_order([rows.column(name).combine_chunks() for name in self.by], not self.greatest)
            best = rows.take(order.slice(len(order) - 1)).combine_chunks()
            yield Frame({name: best.column(name).combine_chunks() for name in self.keep}, 1, Meter())


def in_spark_order(columns: Sequence[pa.Array], reverse: bool = False) -> pa.Array:
    """The places of rows in the order of some columns, nulls last; of equal rows the earlier one is first.

    Args:
        reverse: the greatest first.
    """
    keys = [part for column in columns for part in _flat(column)]
    names = [f"k{n}" for n in range(len(keys))]
    order = "descending" if reverse else "ascending"
    return pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, order) for name in names])


def _flat(column: pa.Array) -> list[pa.Array]:
    """Columns in whose order by Arrow the values have Spark's."""
    if pa.types.is_floating(column.type):
        return [pc.is_nan(column), column]  # Arrow puts NaN at the end in either direction
    if not pa.types.is_nested(column.type):
        return [column]
    from trident.states.core.copy_rows import plain_values  # it needs numpy

    values = plain_values(column, column.type)
    ranks: list[int | None] = [None] * len(values)
    before, rank = None, 0
    for at in sorted((at for at, value in enumerate(values) if value is not None), key=lambda at: Ordered(values[at])):
        rank += before is not None and less(values[before], values[at])
        ranks[at], before = rank, at
    return [pa.array(ranks, pa.int64())]
