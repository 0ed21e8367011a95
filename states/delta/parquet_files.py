"""Runs in Spark's Python workers: writes a partition's rows as Parquet and reports the files.

A file counts only when its task's result reached the driver, so the report is
a row of the job's output, never a folder listing and never an accumulator
(docs/semantics.md 9.2, 12). Full statistics go with each file: without them no reader
skips it (docs/semantics.md 11).
"""

from __future__ import annotations

import datetime
import decimal
import gc
import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from trident.states.core import storage
from trident.states.delta.file_layout import in_order, partition_texts, rows_in_a_group

# The local property of a job that stages: {"folder": below each table's root, "txid": n}.
ATTEMPT = "trident.attempt"
REPORT_SCHEMA = (
    "target string, path string, size long, mtime_ms long, num_records long, stats string, partition_values string"
)
_REPORT_ARROW = pa.schema(
    [
        ("target", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ms", pa.int64()),
        ("num_records", pa.int64()),
        ("stats", pa.string()),
        ("partition_values", pa.string()),
    ]
)
# In the name of a file that was not written by the first try at its task: that one may have left a file behind.
AGAIN = "again-"
# One row group holds at most this much: enough to compress well, little enough to hold in memory.
_ROW_GROUP_ROWS = 1_000_000
_ROW_GROUP_BYTES = 64 << 20
_STRING_STATISTICS_CHARS = 32


@dataclass(frozen=True)
class FileTarget:
    """Where and how a task writes.

    Attributes:
        name: which target the report is about.
        root: the table's folder; paths are reported relative to it.
        folder: below root, unique to this attempt.
        partition_columns: these go into the file's partition values, not its rows.
        constants: a bigint column added to every row (the hidden txid), name → value.
        codec: the Parquet codec.
        sorted_by: the columns by which a file's rows are in order; none: as they come.
        distinct: columns that hardly have a value twice: a dictionary of them would cost, and save nothing.
        durable: whether its files outlive a power cut; no log entry may name one that does not.
    """

    name: str
    root: storage.AnyPath
    folder: str = ""
    partition_columns: Sequence[str] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    codec: str = "snappy"
    sorted_by: Sequence[str] = ()
    distinct: Sequence[str] = ()
    durable: bool = True


def writer_of(
    target: FileTarget, txid_column: str | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: record batches in, one report row per file out.

    The same function serves every attempt: the job's local property ATTEMPT says which one it is.

    Args:
        target: its ``folder`` and ``constants`` are the attempt's.
        txid_column: a hidden bigint column that holds the txid, or None.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from report_batches(write_partition(of_attempt(target, txid_column, attempt_of_job()), batches))

    return write


def report_batches(reports: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The reports of one task as a batch; none for no reports. The worker is spared then."""
    found = list(reports)
    made = pa.RecordBatch.from_pylist(found, schema=_REPORT_ARROW)  # imports pandas, the first time
    freeze_gc()
    if found:
        yield made


def attempt_of_job() -> str:
    """The value of ATTEMPT of the job that a task belongs to."""
    task: Any = TaskContext.get()
    found = task.getLocalProperty(ATTEMPT)
    if found is None:
        raise AssertionError(f"the job that writes files has no local property {ATTEMPT}")
    return str(found)


def of_attempt(target: FileTarget, txid_column: str | None, attempt_property: str) -> FileTarget:
    """The target of one attempt.

    Args:
        txid_column: a hidden bigint column that holds the txid, or None.
        attempt_property: the value of ATTEMPT.
    """
    attempt = json.loads(attempt_property)
    constants = {txid_column: attempt["txid"]} if txid_column is not None else {}
    return replace(target, folder=attempt["folder"], constants=constants)


_spared = False


def freeze_gc() -> None:
    """Freezes the objects that a Python worker has loaded so far (``gc.freeze``), once.

    Spark's daemon makes a full collection after every task. Over the modules that
    are loaded (pandas, pyarrow) it takes 25 ms, more than writing a small batch
    does, and they never become garbage. Later objects are collected as ever.
    """
    global _spared
    if not _spared:
        _spared = True
        gc.freeze()


def write_partition(target: FileTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Writes all rows of one Spark partition and yields a report per file; none for no rows."""
    files: dict[tuple[Any, ...], _OpenFile] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        for values, table in _by_partition(target, batch):
            if values not in files:
                files[values] = _OpenFile(target, values)
            files[values].append(table)
    for file in files.values():
        yield file.finish()


def _by_partition(target: FileTarget, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    table = pa.Table.from_batches([batch])
    for name, value in target.constants.items():
        table = table.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), table.num_rows))
    columns = list(target.partition_columns)
    if not columns:
        yield (), table
        return
    rest = table.drop_columns(columns)
    keys = table.select(columns)
    seen: dict[tuple[str | None, ...], list[int]] = {}
    for index, row in enumerate(zip(*(partition_texts(name, keys.column(name)) for name in columns))):
        seen.setdefault(row, []).append(index)
    for values, indices in seen.items():
        yield values, rest.take(pa.array(indices))


class ParquetWriter(pq.ParquetWriter):  # type: ignore[misc]  # pyarrow has no types
    """pyarrow's, which is closed by its user alone.

    One that could not write, as on a full disk, would try again when it is collected, and print a traceback of that.
    """

    def __del__(self) -> None:
        pass


class _OpenFile:
    def __init__(self, target: FileTarget, partition_values: tuple[str | None, ...]) -> None:
        self._target = target
        self._values = partition_values
        # In the order of the Spark partitions, so that a reader of the files can keep the order of the rows.
        name = f"part-{_task_index():05d}-{AGAIN if _is_another_try() else ''}{uuid.uuid4().hex}"
        self._path = f"{target.folder}/{name}.{target.codec}.parquet"
        self._full = storage.join(target.root, self._path)
        self._writer: pq.ParquetWriter | None = None
        self._footer: list[pq.FileMetaData] = []
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._rows = 0
        self._floats: dict[str, _FloatBounds] = {}

    def append(self, table: pa.Table) -> None:
        for name, column in zip(table.column_names, table.columns):
            if pa.types.is_floating(column.type):
                self._floats.setdefault(name, _FloatBounds()).add(column)
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        table = pa.concat_tables(self._pending).combine_chunks()
        group_rows = _ROW_GROUP_ROWS
        if self._target.sorted_by:
            table, group_rows = in_order(table, self._target.sorted_by), rows_in_a_group(table.num_rows)
        if self._writer is None:
            root = self._target.root
            storage.make_folder(storage.join(root, self._target.folder), storage.anchor_of(root))
            self._file = storage.output(self._full, self._target.durable)
            bounded = _with_statistics(table.schema)
            self._writer = ParquetWriter(
                self._file,
                table.schema,
                compression=self._target.codec,
                store_schema=False,
                coerce_timestamps="us",
                write_statistics=bounded,
                # Of a column with -0.0 and no 0.0, Spark's reader would pass over a row group by its dictionary.
                use_dictionary=[name for name in bounded if name not in self._target.distinct],
                metadata_collector=self._footer,
            )
        self._writer.write_table(table, row_group_size=group_rows)
        self._rows += table.num_rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def finish(self) -> dict[str, Any]:
        self._flush()
        assert self._writer is not None, "a file is only opened for rows"
        self._writer.close()
        size = self._file.tell()
        self._file.close()  # durable before the manifest names it
        return {
            "target": self._target.name,
            "path": self._path,
            "size": size,
            "mtime_ms": time.time_ns() // 1_000_000,
            "num_records": self._rows,
            "stats": json.dumps(self._statistics(self._footer[0])),
            "partition_values": json.dumps(dict(zip(self._target.partition_columns, self._values))),
        }

    def _statistics(self, metadata: pq.FileMetaData) -> dict[str, Any]:
        found = statistics(metadata)
        for name, floats in self._floats.items():
            found["nullCount"][name] = floats.nulls
            bounds = floats.bounds()
            if bounds is not None:
                found["minValues"][name], found["maxValues"][name] = bounds
        return found


class _FloatBounds:
    """The bounds of a column of floats in one file."""

    def __init__(self) -> None:
        self.nulls = 0
        self._low = self._high = None
        self._nan = False

    def add(self, column: pa.ChunkedArray) -> None:
        self.nulls += column.null_count
        self._nan = self._nan or bool(pc.any(pc.is_nan(column)).as_py())
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self._low = found["min"] if self._low is None else min(self._low, found["min"])
            self._high = found["max"] if self._high is None else max(self._high, found["max"])

    def bounds(self) -> tuple[float, float] | None:
        """None where they could be wrong: Spark sorts NaN above all numbers."""
        if self._low is None or self._nan:
            return None
        low, high = self._low, self._high
        # Some readers sort -0.0 below 0.0.
        low, high = low if low != 0 else -0.0, high if high != 0 else 0.0
        return _bounds(low, high)


def _with_statistics(schema: pa.Schema) -> list[str]:
    """The columns whose bounds a Parquet footer has.

    Floats are not among them: bounds there leave NaN out, and Spark's reader
    passes over a row group by them even when NaN is what it looks for.
    """
    return [
        field.name for field in schema if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)
    ]


def _task_index() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _is_another_try() -> bool:
    """Tells whether another try at this task may have written a file before, or may do so beside this one."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Delta's statistics of a file from its Parquet footer.

    Bounds are left out where they could be wrong: nested columns, columns with
    NaN (Spark sorts it above all numbers, Parquet ignores it), long decimals.
    """
    nulls: dict[str, int] = {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    bad: set[str] = set()
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        for column_index in range(group.num_columns):
            column = group.column(column_index)
            name, stats = column.path_in_schema, column.statistics
            if metadata.schema.column(column_index).max_repetition_level or name not in metadata.schema.names:
                continue
            if "." in name:
                continue
            if stats is None or not stats.has_null_count:
                bad.add(name)
                nulls.pop(name, None)
                continue
            nulls[name] = nulls.get(name, 0) + stats.null_count
            if stats.null_count == group.num_rows:
                continue
            if not stats.has_min_max:
                bad.add(name)
                continue
            try:
                lowest, highest = stats.min, stats.max
            except (OverflowError, ValueError):  # a time that Python has not, such as one of the year 10000
                bad.add(name)
                continue
            low[name] = lowest if name not in low else min(low[name], lowest)
            high[name] = highest if name not in high else max(high[name], highest)
    bounds_low, bounds_high = {}, {}
    for name in low:
        bounds = _bounds(low[name], high[name]) if name not in bad else None
        if bounds is not None:
            bounds_low[name], bounds_high[name] = bounds
    return {
        "numRecords": metadata.num_rows,
        "minValues": bounds_low,
        "maxValues": bounds_high,
        "nullCount": nulls,
    }


def _bounds(low: Any, high: Any) -> tuple[Any, Any] | None:
    """The pair as Delta's JSON, or None where it cannot be said exactly enough."""
    if isinstance(low, bool):
        return None
    if isinstance(low, int):
        return low, high
    if isinstance(low, float):
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None
    if isinstance(low, str):
        return _string_bounds(low, high)
    if isinstance(low, datetime.datetime):
        if low.tzinfo is None:
            return None
        try:
            return _milliseconds(low, up=False), _milliseconds(high, up=True)
        except OverflowError:  # the last millisecond of the year 9999
            return None
    if isinstance(low, datetime.date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, decimal.Decimal):
        # A double shows at most 15 digits as they are.
        exact = all(len(value.as_tuple().digits) <= 15 for value in (low, high))
        return (float(low), float(high)) if exact else None
    return None


def _string_bounds(low: str, high: str) -> tuple[str, str] | None:
    if len(high) > _STRING_STATISTICS_CHARS:
        if high[_STRING_STATISTICS_CHARS] == "\U0010ffff":
            return None
        high = high[:_STRING_STATISTICS_CHARS] + "\U0010ffff"
    return low[:_STRING_STATISTICS_CHARS], high


def _milliseconds(value: datetime.datetime, up: bool) -> str:
    value = value.astimezone(datetime.timezone.utc)
    rest = value.microsecond % 1000
    if rest:
        value += datetime.timedelta(microseconds=(1000 - rest) if up else -rest)
    # Not strftime: its %Y has no leading zeros here, and Spark reads no such bound.
    return value.replace(tzinfo=None).isoformat("T", "milliseconds") + "Z"
