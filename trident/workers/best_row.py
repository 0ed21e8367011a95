"""Spark's order of values, for Python, and the least or greatest row in it. Imported by workers: light imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label, fail

# Spark's order of values, for Python: NaN above every number, a null part of a value below all others.
#
# Imported by workers: keep its imports light.


def less(a: Any, b: Any) -> bool:
    """Tells whether a comes before b: numbers, texts, times, booleans, and structs and arrays of such."""
    if a is None or b is None:
        return a is None and b is not None
    if isinstance(a, dict):
        a, b = tuple(a.values()), tuple(b.values())
    if isinstance(a, (tuple, list)):
        for one, other in zip(a, b):
            if less(one, other):
                return True
            if less(other, one):
                return False
        return len(a) < len(b)
    if isinstance(a, float) and a != a:
        return False
    if isinstance(b, float) and b != b:
        return True
    return bool(a < b)


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
class BestOfBatch(BestRow):
    """The least or greatest row of the batch, whose rows are together."""

    needs_all = True
