"""The number of rows that the tasks of one emission have read, on the driver."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from trident.workers.row_counts import CountedTask, KeyedCounts

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Emissions whose count is not asked for, as their attempts have failed; older ones are forgotten.
_KEPT_MAX = 1_000
_counts: "WeakKeyDictionary[SparkContext, Any]" = WeakKeyDictionary()


class TaskRows:
    """Counts in tasks 0, 1, 2, … of a frame that is made by ``mapInArrow`` over their numbers.

    Args:
        tasks: how many there are.

    Attributes:
        emission: the key of the counts, which no other emission has.
    """

    def __init__(self, spark: "SparkSession", tasks: int) -> None:
        self._counts, self._tasks, self.emission = _counts_of(spark), tasks, uuid.uuid4().hex
        known = self._counts.value
        for emission in list(known)[:-_KEPT_MAX]:
            known.pop(emission, None)

    def counted(
        self,
        read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        count: Callable[[pa.RecordBatch], int] = len,
    ) -> CountedTask:
        """The function for ``mapInArrow`` in place of ``read``.

        Args:
            count: the rows in a batch that ``read`` gives, where not all of them are.
        """
        return CountedTask(read, count, self._counts, self.emission)

    def __call__(self) -> int | None:
        """The rows, once the job has ended; None: not all tasks have read to their end."""
        found = self._counts.value.pop(self.emission, {})
        return sum(found.values()) if len(found) == self._tasks else None


def counted_by_row(
    spark: "SparkSession",
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    count: Callable[[pa.RecordBatch], int],
) -> CountedTask:
    """As ``TaskRows.counted`` for the plan of many emissions: the row that it is given has the emission's key.

    That row, the emission's only task, has the key of its ``TaskRows`` in the second column.
    """
    return CountedTask(read, count, _counts_of(spark), None)


def _counts_of(spark: "SparkSession") -> Any:
    context = spark.sparkContext
    if context not in _counts:
        _counts[context] = context.accumulator({}, KeyedCounts())
    return _counts[context]
