"""The tasks of Spark's Python workers for rows that Python code makes, and the count of what tasks have read.

Workers import it, so it is small.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow
import pyarrow as pa
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from trident.coordinators.causes import first_line
from trident.spouts.files.tasks import SourceFailure
from trident.states.core.typed_columns import batches_of
from trident.states.core.typed_values import WrongValue, in_one_line
from trident.workers.failures import may_pass
from trident.workers.row_counts import CountedTask, KeyedCounts

_ROWS_PER_ARROW_BATCH = 10_000


def generated(
    generate: Callable[[int], Any], index: int, schema: "StructType", what: str, tasks: Iterable["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    """The function of a mapInArrow over one row: the rows of generate(index)."""
    if any([task.num_rows for task in tasks]):
        yield from arrow_batches(lambda: generate(index), schema, what)


def read_partitions(
    read: Callable[[Any], Any],
    pickled: Sequence[bytes],
    schema: "StructType",
    what: str,
    tasks: Iterable["pyarrow.RecordBatch"],
) -> Iterator["pyarrow.RecordBatch"]:
    """The function of a mapInArrow over partition numbers: the rows of each.

    Args:
        read: a stream reader's ``read``.
        pickled: its partitions; each task loads its own only.
        what: the source, for messages.
        tasks: the numbers of the partitions that this task reads.
    """
    for task in tasks:
        for number in task.column(0).to_pylist():
            yield from arrow_batches(functools.partial(_read_one, read, pickled[number]), schema, what)


def _read_one(read: Callable[[Any], Any], pickled: bytes) -> Any:
    return read(cloudpickle.loads(pickled))


def arrow_batches(make: Callable[[], Any], schema: "StructType", what: str) -> Iterator["pyarrow.RecordBatch"]:
    """Rows as Arrow batches, converted and checked as all values that users' code gives.

    Args:
        make: gives the rows: tuples, Rows, or Arrow record batches.
        what: the source, for messages.
    """
    # Of PySpark, which not each worker has loaded yet.
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = _read(make, what)
    try:
        yield from batches_of(rows, to_arrow_schema(schema, timezone="UTC"), _ROWS_PER_ARROW_BATCH)
    except WrongValue as wrong:
        raise SourceFailure(
            f"the rows of {what} do not fit its schema: {in_one_line(wrong)}",
            expected=schema.simpleString()[:500],
            repeats=True,
        ) from None


def _read(make: Callable[[], Any], what: str) -> Iterator[Any]:
    """The rows one by one; an error of the user's code is told apart from one of the conversion."""
    try:
        rows = make()
        if isinstance(rows, pa.Table):
            rows = rows.to_batches()
        elif isinstance(rows, pa.RecordBatch):
            rows = [rows]
        for row in rows:
            if not isinstance(row, pa.RecordBatch) or row.num_rows:
                yield row
    except GeneratorExit:
        raise
    except Exception as error:
        said = f"{what} raised {type(error).__name__}: {first_line(error)}"
        raise SourceFailure(said, repeats=not may_pass(error)) from error


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
