"""The tasks of Spark's Python workers that emit partitions: rows into files, metadata into reports.

A task emits some partitions, writes each one's rows as Parquet and reports the
metadata together with the files as rows of the job's output: never by an
accumulator, which a retried task would add to twice (docs/semantics.md 9.2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from trident.coordinators.transactions import TransactionAttempt
from trident.states.core.typed_columns import batches_of
from trident.states.core.typed_values import WrongValue, in_one_line
from trident.states.delta.parquet_files import FileTarget, spare_collections, write_partition
from trident.workers.failures import Label, fail

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
            spare_collections()

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
