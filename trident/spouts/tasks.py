"""The tasks of Spark's Python workers for spouts: they emit partitions, make rows, and count what was read."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow
import pyarrow as pa
from pyspark import SparkContext, cloudpickle
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.tracebacks import first_line
from trident.spouts.files.tasks import SourceFailure
from trident.states.core.typed_values import WrongValue, batches_of, in_one_line
from trident.states.delta.parquet_files import FileTarget, freeze_gc, write_partition
from trident.workers.failures import Label, fail, may_pass

# The tasks of Spark's Python workers that emit partitions: rows into files, metadata into reports.
#
# A task emits some partitions, writes each one's rows as Parquet and reports the
# metadata together with the files as rows of the job's output: never by an
# accumulator, which a retried task would add to twice (docs/semantics.md 9.2).


NEW, AGAIN, OPAQUE = "new", "again", "opaque"
EMISSION_SCHEMA = "partition string, metadata string, path string, size long, num_records long"
_ARROW = pa.schema(
    [
        ("partition", pa.string()),
        ("metadata", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("num_records", pa.int64()),
    ]
)
_ROWS_PER_BATCH = 20_000


@dataclass(frozen=True)
class Request:
    """One partition to be emitted.

    Attributes:
        mode: NEW and OPAQUE go on from ``metadata``; AGAIN gives the rows of it.
        metadata: JSON.
    """

    partition: str
    mode: str
    metadata: Any


@dataclass(frozen=True)
class PartitionTask:
    """The function for mapInArrow over a range of request numbers.

    Attributes:
        spout: of the user; its ``get_partition_emitter`` is called here.
        context: a SpoutContext without a session.
        requests: all of them; a task is given the numbers of its own.
        target: where the files go.
    """

    spout: Any
    context: Any
    schema: Any
    attempt: TransactionAttempt
    requests: Sequence[Request]
    target: FileTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        emitter = None
        label = Label(f"emitter of stream {self.context.tx_id}", f"{type(self.spout).__name__}.get_partition_emitter")
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    request = self.requests[number]
                    try:
                        if emitter is None:
                            emitter = self.spout.get_partition_emitter(self.context)
                        reports = list(self._emit(emitter, request))
                    except Exception as error:
                        fail(label, error, {"partition": request.partition, "metadata": request.metadata})
                    yield pa.RecordBatch.from_pylist(reports, schema=_ARROW)
        finally:
            if emitter is not None:
                emitter.close()
            freeze_gc()

    def _emit(self, emitter: Any, request: Request) -> Iterator[Mapping[str, Any]]:
        metadata = request.metadata
        if request.mode == NEW:
            given = emitter.emit_partition_batch_new(self.attempt, request.partition, metadata)
        else:
            given = emitter.emit_partition_batch(self.attempt, request.partition, metadata)
        rows = given
        if request.mode != AGAIN:
            rows, metadata = _parts(given)
        files = list(write_partition(self.target, to_batches(rows, self.schema)))
        if callable(metadata):  # known once the rows have been read
            metadata = metadata()
        text = json.dumps(metadata, allow_nan=False)
        base = {"partition": request.partition, "metadata": text}
        if not files:
            yield {**base, "path": None, "size": 0, "num_records": 0}
        for file in files:
            yield {**base, "path": file["path"], "size": file["size"], "num_records": file["num_records"]}


@dataclass(frozen=True)
class PartitionRows:
    """The function for mapInArrow over a range of request numbers that gives the rows again, and writes no file.

    Attributes:
        spout, context, schema, attempt: as of a PartitionTask.
        requests: partition → the metadata of its part of the batch; all of them.
    """

    spout: Any
    context: Any
    schema: Any
    attempt: TransactionAttempt
    requests: Sequence[tuple[str, Any]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        emitter = None
        label = Label(f"emitter of stream {self.context.tx_id}", f"{type(self.spout).__name__}.get_partition_emitter")
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    partition, metadata = self.requests[number]
                    try:
                        if emitter is None:
                            emitter = self.spout.get_partition_emitter(self.context)
                        given = emitter.emit_partition_batch(self.attempt, partition, metadata)
                        yield from to_batches(given, self.schema)
                    except Exception as error:
                        fail(label, error, {"partition": partition, "metadata": metadata})
        finally:
            if emitter is not None:
                emitter.close()


def _parts(given: Any) -> tuple[Any, Any]:
    rows, metadata = getattr(given, "rows", _MISSING), getattr(given, "metadata", _MISSING)
    if rows is _MISSING or metadata is _MISSING:
        raise TypeError(f"found {type(given).__name__}, expected a PartitionBatch(rows, metadata)")
    return rows, metadata


_MISSING: Any = object()


def to_batches(rows: Any, schema: Any) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of a schema, a piece at a time: tables, batches, or tuples in the schema's order."""
    try:
        yield from batches_of(rows, to_arrow_schema(schema, timezone="UTC"), _ROWS_PER_BATCH)
    except WrongValue as wrong:
        raise TypeError(in_one_line(wrong)) from None


# Counts the rows that tasks read, by the number of each task: one that is tried again, or runs twice, counts once.


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


# The tasks of Spark's Python workers for rows that Python code makes, and the count of what tasks have read.
#
# Workers import it, so it is small.


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
