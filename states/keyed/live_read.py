"""Reads all rows of a keyed state as of a transaction by Arrow, range by range of its keys, where that is exact.

A query that reads all rows takes Spark several times what the plain table takes: the table is scanned twice, and the
rows whose keys are in the log are grouped. Over Arrow each file is read once. The frame gives way to Spark's plan,
whose scans know filters, where a query asks for some keys (``java/trident/kept/LiveRead.java``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from trident.states.core import spark_jobs
from trident.states.core.addresses import is_local_master
from trident.states.core.binding import WHOLE_VALUES
from trident.states.core.copyable import arrow_schema, why_not_copied
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.keyed.file_merge import LOG_BYTES_MAX, LOG_ROWS_MAX, ordered_folders
from trident.states.keyed.live_rows import KeyRange, LivePart, key_ranges
from trident.states.keyed.merge_rows import RowMerge, why_not
from trident.states.keyed.snapshot import Stored, StoredFiles

log = logging.getLogger(__name__)
_CLASS = "trident.kept.LiveRead"
# Tasks for each core: the last ones of a read do not wait long for each other.
_PARTS_A_CORE = 2
# A task has its range's rows of the log in memory, some 200 bytes for each. The rows of a file count for every range
# that it may have keys of.
_LOG_ROWS_A_PART = 2_000_000
# A process that reads a small state at once has a few times as much in memory.
_HERE_BYTES_MAX = 16 << 20


def live_frame(spark: "SparkSession", stored: Stored, aggregator: Any) -> "DataFrame":
    """All keys and their values: the same rows as ``stored.frame`` gives, in the way that is fastest for all of them.

    Args:
        aggregator: the state's, when that is a Python combiner.

    Raises:
        ConfigError: a Python combiner is needed and was not given.
    """
    by_spark = stored.frame(aggregator)
    if stored.rows is None or stored.files is None or stored.is_small:
        return by_spark
    java = _java_class(spark)
    merge = _merge(stored.state, stored.files)
    if java is None or merge is None:
        return by_spark
    parts = _parts(stored.state, stored.files, merge, _PARTS_A_CORE * spark.sparkContext.defaultParallelism)
    if parts is None:
        return by_spark
    schema = StructType([StructField(field.name, field.dataType, True) for field in stored.state.schema.fields])
    try:
        numbers = DataFrame(java.parts(spark._jsparkSession, len(parts), stored.files.size), spark)
        frame = numbers.mapInArrow(_read(parts), schema)
        lows, highs = _bounds_of_files(parts)
        java.giveWay(frame._jdf, by_spark._jdf, list(stored.state.keys), lows, highs)
    except Exception as error:
        if not spark_jobs.does_not_fit(spark.sparkContext, error):
            raise
        return by_spark
    return frame


def rows_here(spark: "SparkSession", stored: Stored) -> "DataFrame | None":
    """All keys and their values of a small state, read by this process at once: Spark runs no job for them.

    A session that has just begun takes ten times as long for Spark's plan.

    Returns:
        None where the state is not small, or Spark alone can read it.

    Raises:
        TableError: a file is gone or cannot be read, or a sum does not fit its column.
    """
    state, files = stored.state, stored.files
    if stored.rows is None or files is None or files.size > _HERE_BYTES_MAX or not state.keys:
        return None
    merge = _merge(state, files)
    if merge is None:
        return None
    every = KeyRange(state.keys[0], None, None)
    plain, waiting = Place(files.plain_root or files.log_root), Place(files.log_root)
    part = LivePart(
        state.name, merge, plain, waiting, tuple(files.plain), tuple(files.log), every, files.after, files.upto
    )
    rows = pa.Table.from_batches(part.rows(), merge.schema)
    schema = StructType([StructField(field.name, field.dataType, True) for field in state.schema.fields])
    return spark.createDataFrame(rows, schema)


def _bounds_of_files(parts: Sequence[LivePart]) -> tuple[list[Any], list[Any]]:
    """The least and the greatest value of the first key in each file of the table: known where there are parts."""
    stats: list[Any] = [file.stats for part in parts for file in part.files]
    column = parts[0].keys.column
    return [one["minValues"][column] for one in stats], [one["maxValues"][column] for one in stats]


def _read(parts: Sequence[LivePart]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: numbers of parts in, their rows out."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from parts[number].rows()

    return read


def _java_class(spark: "SparkSession") -> Any | None:
    """The Java class by which a frame gives way; None: the session has it not, or its tasks are on other hosts."""
    if not is_local_master(spark.sparkContext.master) or not spark_jobs.fits(spark.sparkContext):
        return None
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(_CLASS, True, loader)
    except Exception as error:  # py4j's, in which the Java exception is wrapped
        log.debug("states are read by Spark's plans alone: %s", error)
        return None
    return jvm.trident.kept.LiveRead


def _merge(state: StateDescriptor, files: StoredFiles) -> RowMerge | None:
    """How rows of the state merge over Arrow; None: Spark alone can, or too many rows wait."""
    size, rows = sum(file.size for file in files.log), sum(file.num_records or 0 for file in files.log)
    if size > LOG_BYTES_MAX or rows > LOG_ROWS_MAX or why_not_copied(state.schema, state.keys) is not None:
        return None
    schema, keys = arrow_schema(state.schema), tuple(state.keys)
    aggregator = None if state.merging in WHOLE_VALUES else (state.aggregator or "")
    if why_not(schema, keys, aggregator) is not None:
        return None
    return RowMerge(schema, keys, aggregator, state.sequence, state.retention)


def _parts(state: StateDescriptor, files: StoredFiles, merge: RowMerge, count: int) -> list[LivePart] | None:
    """The state in about so many ranges of keys.

    Returns:
        None where others than native MERGEs have written files of the table, where there was no MERGE yet, and where a
        range may have more rows of the log than a task is to hold.
    """
    if not state.keys or not files.plain:
        return None
    if not all(file.path.startswith(ordered_folders(state)) for file in files.plain):
        return None
    ranges = key_ranges(files.plain, state.keys[0], merge.schema.field(state.keys[0]).type, count)
    plain, waiting, parts = Place(files.plain_root), Place(files.log_root), []
    for keys, some in ranges or []:
        log_files = tuple(file for file in files.log if keys.may_be_in(file))
        rows = [file.num_records for file in log_files]
        if None in rows or sum(number or 0 for number in rows) > _LOG_ROWS_A_PART:
            return None
        parts.append(LivePart(state.name, merge, plain, waiting, tuple(some), log_files, keys, files.after, files.upto))
    return parts or None
