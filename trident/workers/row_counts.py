"""Counts the rows that tasks read, by the number of each task: one that is tried again, or runs twice, counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

Counts = dict[str, dict[int, int]]


class KeyedCounts(AccumulatorParam[Counts]):
    """Of an accumulator of emission → task number → rows. To add the same again changes nothing."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # PySpark's name
        for emission, found in value2.items():
            value1[emission] = {**value1.get(emission, {}), **found}
        return value1


@dataclass(frozen=True)
class CountedTask:
    """The function of a mapInArrow over tasks: the rows that another such function reads, which are counted.

    Attributes:
        read: as it would be given to mapInArrow.
        count: of a batch that it gives.
        counts: an accumulator of KeyedCounts.
        emission: the key of this use of ``read``; no other has it. Rows then have a task's number. None: each row has
            a key in its second column, and is the only task of it.
    """

    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    count: Callable[[pa.RecordBatch], int]
    counts: Any
    emission: str | None

    def __call__(self, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            for at, (emission, number) in enumerate(self._keys(task)):
                rows = 0
                for batch in self.read([task.slice(at, 1)]):
                    rows += self.count(batch)
                    yield batch
                # Not where a limit has ended it before its end: then it is not known.
                self.counts.add({emission: {number: rows}})

    def _keys(self, task: pa.RecordBatch) -> list[tuple[str, int]]:
        if self.emission is None:
            return [(emission, 0) for emission in task.column(1).to_pylist()]
        return [(self.emission, number) for number in task.column(0).to_pylist()]
