"""Parquet files and parts of them as rows.

Spark reads whole files. A range of rows is read by Python from the row groups
that it touches, but only where a column's type in the file is exactly Spark's;
where Spark would convert (old timestamps, wider numbers, missing columns),
Spark itself reads the file and keeps the range by row index: slower for a part of a
large file, and the same rows by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from trident.coordinators.errors import SourceError
from trident.spark.stores import require_connector
from trident.spouts.files.format import RowFormat, escape, is_name_for_spark
from trident.spouts.files.ledger import FileRange
from trident.spouts.files.tasks import Piece, SourceFailure, is_stored, opened_file, unchanged
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.place import Place, reached_stores

_BATCH_ROWS = 64 << 10


# Spark reads what else the file may have as another number or day, or fails without a name of file and column.
_READ_FROM = {
    "tinyint": ("int8",),
    "smallint": ("int8", "int16", "uint8"),
    "int": ("int8", "int16", "int32", "uint8", "uint16"),
    "bigint": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
    "double": ("int8", "int16", "int32", "uint8", "uint16", "float", "double"),
    "date": ("date32[day]",),
}


def count_rows(path: str, schema: "Iterable[StructField]" = ()) -> int:
    """The rows of a file, from its footer.

    Raises:
        SourceError: it is no Parquet file, or a column of the schema cannot be read from it.
    """
    try:
        with opened_file(path) as file:
            footer = pq.read_metadata(file)
        found = footer.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"the input file {path} cannot be read as Parquet",
            found=str(error).splitlines()[0][:300],
            expected="a whole Parquet file: files must appear by a rename",
            action="restore or remove it",
        ) from error
    for field in schema:
        _check_column(path, found, field)
    return int(footer.num_rows)


def _check_column(path: str, found: "pyarrow.Schema", field: "StructField") -> None:
    same = [name for name in found.names if name.lower() == field.name.lower()]
    if len(same) > 1:
        raise SourceError(
            f"the input file {path} has several columns of one name",
            found=", ".join(same),
            expected=f"one column {field.name}, whether its letters are capitals or not",
            action="correct the file's producer, or take the file out of the folder",
        )
    for name in same:
        _check_type(path, name, found.field(name).type, field.dataType)


def _check_type(path: str, column: str, kind: "pyarrow.DataType", declared: "DataType") -> None:
    """Raises SourceError where Spark would read other numbers than the file has: at every depth."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    fits = _READ_FROM.get(declared.simpleString())
    # A duration is an integer to Parquet, and only Arrow's own note in the file says more.
    if fits is not None and str(kind) not in fits and not (pa.types.is_null(kind) or pa.types.is_duration(kind)):
        raise SourceError(
            f"column {column} of the input file {path} does not fit the schema",
            found=str(kind),
            expected=f"{declared.simpleString()}: {', '.join(fits)}",
            action="correct the schema of the spout (of uint64 a decimal(20,0)), or take the file away",
        )
    if isinstance(declared, StructType) and pa.types.is_struct(kind):
        for field in declared:
            for inner in kind:
                if inner.name.lower() == field.name.lower():
                    _check_type(path, f"{column}.{inner.name}", inner.type, field.dataType)
    elif isinstance(declared, ArrayType) and pa.types.is_list(kind):
        _check_type(path, f"{column}[]", kind.value_type, declared.elementType)
    elif isinstance(declared, MapType) and pa.types.is_map(kind):
        _check_type(path, f"{column}.keys()", kind.key_type, declared.keyType)
        _check_type(path, f"{column}[]", kind.item_type, declared.valueType)


def read_parquet(spark: "SparkSession", format: RowFormat, ranges: Sequence[FileRange], partitions: int) -> "DataFrame":
    """The rows of some ranges; of whole files in a store, too, as far as tasks can, which know whether one changed."""
    could = {part for part in ranges if part.whole and _has_spark_name(part)}
    looked = [part for part in ranges if part not in could or is_stored(part.entry.path)]
    checks = storage.run_concurrently([functools.partial(is_exact, part.entry.path, format) for part in looked])
    exact = [part for part, is_so in zip(looked, checks) if is_so]
    whole = [part for part in ranges if part in could - set(exact)]
    parts = [part for part in looked if part not in could]
    frames = [_in_tasks(spark, format, exact, partitions)] if exact else []
    if whole:
        frames.append(_native(spark, format, whole))
    for part in parts:
        if part not in exact:
            index = _native(spark, format, [part], "_metadata.row_index AS _trident_row")
            columns = map(backquoted, format.schema.names)
            kept = index.where(f"_trident_row >= {part.begin} AND _trident_row < {part.end}")
            frames.append(kept.selectExpr(*columns))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def _has_spark_name(part: FileRange) -> bool:
    return is_name_for_spark(part.entry.path) if is_stored(part.entry.path) else ":" not in part.entry.path


def _native(spark: "SparkSession", format: RowFormat, ranges: Sequence[FileRange], *more: str) -> "DataFrame":
    reader = spark.read.schema(format.schema).options(**{key: str(value) for key, value in format.options.items()})
    if is_stored(ranges[0].entry.path):
        require_connector(Place(ranges[0].entry.path), spark)
    frame = reader.parquet(*[escape(part.entry.path) for part in ranges])
    columns = map(backquoted, format.schema.names)
    return frame.selectExpr(*columns, *more)


def is_exact(path: str, format: RowFormat) -> bool:
    """Tells whether Arrow reads every column of the schema from this file as Spark would."""
    if format.options:
        return False  # they are Spark's
    try:
        with opened_file(path) as file:
            footer = pq.ParquetFile(file)
    except (OSError, pa.ArrowException):
        return False  # Spark's own reader says what is wrong with it
    keys = footer.metadata.metadata or {}
    if any(key.startswith(b"org.apache.spark.legacy") for key in keys):
        return False  # dates in the old calendar
    found = footer.schema_arrow
    for field in to_arrow_schema(format.schema, timezone="UTC"):
        at = found.get_field_index(field.name)
        if at < 0 or pa.types.is_nested(field.type) or not found.field(at).type.equals(field.type):
            return False
    return True


def _in_tasks(spark: "SparkSession", format: RowFormat, ranges: Sequence[FileRange], partitions: int) -> "DataFrame":
    total = sum(part.end - part.begin for part in ranges)
    share = max(1, -(-total // partitions))
    pieces = [
        Piece(
            part.entry.path,
            part.entry.size,
            part.entry.mtime_ns,
            begin,
            min(part.end, begin + share),
            tag=part.entry.tag,
        )
        for part in ranges
        for begin in range(part.begin, part.end, share)
    ]
    stores = reached_stores() if any(is_stored(piece.path) for piece in pieces) else ()
    task = functools.partial(read_rows, pieces, list(format.schema.names), stores)
    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(task, format.schema)


def read_rows(
    pieces: Sequence[Piece], names: Sequence[str], stores: Sequence[Place], batches: Iterable["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    """The function of a mapInArrow over piece numbers: the rows of each piece.

    Args:
        stores: that the files are in: a worker reaches them by what came along with these.
    """
    for batch in batches:
        for number in batch.column(0).to_pylist():
            piece = pieces[number]
            try:
                with unchanged(piece) as file:
                    yield from _rows_of(file, piece, names)
            except (OSError, pa.ArrowException) as error:
                raise SourceFailure(
                    f"the input file {piece.path} cannot be read",
                    found=str(error)[:300],
                    action="restore it or its permissions; the batch is tried again up to max_attempts",
                ) from error


def _rows_of(file: Any, piece: Piece, names: Sequence[str]) -> Iterator["pyarrow.RecordBatch"]:
    source = pq.ParquetFile(file)
    groups: list[int] = []
    first = before = 0
    for number in range(source.num_row_groups):
        rows = source.metadata.row_group(number).num_rows
        if before + rows > piece.begin and before < piece.end:
            if not groups:
                first = before
            groups.append(number)
        before += rows
    position = first
    for batch in source.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(names)):
        begin, end = max(piece.begin - position, 0), min(piece.end - position, batch.num_rows)
        position += batch.num_rows
        if begin < end:
            yield batch.slice(begin, end - begin).select(list(names))
