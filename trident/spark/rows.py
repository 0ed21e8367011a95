"""A batch's data as a DataFrame: from a DataFrame, an Arrow table, Python rows or staged files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

from trident.coordinators.errors import SourceError
from trident.spark.slots import NamedRows
from trident.states.core.names import backquoted

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.types import DataType

# The rows of a batch as a spout may give them; tuples in the order of the schema. The framework's own spouts also name
# rows of files: a kept plan then reads them without a DataFrame for each batch.
Data = Union["DataFrame", "pyarrow.Table", Iterable[tuple[Any, ...]], NamedRows]


def to_dataframe(spark: "SparkSession", data: "Data", schema: "StructType") -> "DataFrame":
    """The data with exactly the fields of a schema, in its order.

    Args:
        data: a DataFrame or an Arrow table with fields of these names, in any
            order; or tuples in the schema's order.

    Raises:
        SourceError: the data does not fit; the message names the field or the row.
    """
    if isinstance(data, NamedRows):
        data = data.frame()
    if isinstance(data, DataFrame):
        return _from_dataframe(data, schema)

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _from_arrow(spark, data, schema)
    if data is None or isinstance(data, (str, bytes, dict)) or not isinstance(data, Iterable):
        raise SourceError(
            "a spout's batch cannot be used",
            found=f"{type(data).__name__} {repr(data)[:100]}",
            expected="a DataFrame, an Arrow table or an iterable of tuples",
        )
    return _from_rows(spark, data, schema)


def held_rows(data: "Data", schema: "StructType") -> "pyarrow.Table | None":
    """Rows that the driver holds, as a table with exactly the fields of a schema; None: a DataFrame, or nested values.

    Raises:
        SourceError: as :func:`to_dataframe`.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _fitted(data, schema)
    if not isinstance(data, (list, tuple)) or _is_nested(schema):
        return None
    return arrow_rows(_checked(data, schema), schema)


def parquet_reader(spark: "SparkSession", schema: "StructType | str") -> "DataFrameReader":
    """A reader of Parquet files to which a path is a path, whatever characters are in it."""
    return spark.read.schema(schema).option("__globPaths__", "false")


def _from_dataframe(frame: "DataFrame", schema: "StructType") -> "DataFrame":
    given = frame.schema
    if _same(given, schema):
        return frame
    names = [field.name for field in schema.fields]
    _check_names([field.name for field in given.fields], names)
    for field in schema.fields:
        found = given[field.name].dataType
        if not _same(found, field.dataType):
            raise SourceError(
                f"the field {field.name!r} of a spout's batch has another type",
                found=found.simpleString(),
                expected=field.dataType.simpleString(),
                action="cast it in the spout, or correct its output_schema",
            )
    return frame.select([frame[backquoted(name)] for name in names])


def _check_names(given: list[str], expected: list[str]) -> None:
    if sorted(given) != sorted(expected):
        raise SourceError(
            "the fields of a spout's batch are not those of its output_schema",
            found=", ".join(given) or "no field",
            expected=", ".join(expected),
        )


def _same(one: "DataType", other: "DataType") -> bool:
    """Tells whether two types are equal but for nullability."""
    return one == other or one.simpleString() == other.simpleString()


def _from_arrow(spark: "SparkSession", table: "pyarrow.Table", schema: "StructType") -> "DataFrame":
    return _create(spark, _fitted(table, schema), schema)


def _fitted(table: "pyarrow.Table", schema: "StructType") -> "pyarrow.Table":
    _check_names(table.column_names, [field.name for field in schema.fields])
    target = to_arrow_schema(schema, timezone="UTC")
    table = table.select([field.name for field in schema.fields])
    columns = []
    for field, column in zip(target, table.columns, strict=True):
        if column.null_count and not field.nullable:
            raise SourceError(
                f"the field {field.name!r} of a spout's batch holds nulls", expected="none, by its schema"
            )
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"the field {field.name!r} of a spout's batch does not fit its type: {error}",
                found=str(column.type),
                expected=schema[field.name].dataType.simpleString(),
            ) from error
    return pa.table(columns, schema=target)


def arrow_rows(rows: "Sequence[tuple[Any, ...]]", schema: "StructType") -> "pyarrow.Table":
    """Rows that were checked to have a value per field, as a table.

    Raises:
        SourceError: a value does not fit its field.
    """
    target = to_arrow_schema(schema, timezone="UTC")
    wrong = next((row for row in rows if len(row) != len(target)), None)
    if wrong is not None:
        raise SourceError(
            "a row of a spout's batch cannot be used",
            found=repr(wrong)[:200],
            expected=f"a tuple of {len(target)}: {', '.join(target.names)}",
        )
    # Not zip(*rows): an iterator for each of many rows is work for the garbage collector.
    values = [[row[place] for row in rows] for place in range(len(target))]
    columns = [_column(column, field, of) for column, field, of in zip(values, target, schema.fields)]
    return pa.table(columns, schema=target)


def _column(values: list[Any], field: "pyarrow.Field", of: Any) -> "pyarrow.Array":
    try:
        if isinstance(of.dataType, TimestampType):
            # As PySpark does: a time without a zone is this process's local time; Arrow would take it for UTC.
            values = [_local(v) if isinstance(v, datetime) and v.tzinfo is None else v for v in values]
        column = pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError) as error:
        raise _bad_value(values, field.type, of, error) from error
    if column.null_count and not field.nullable:
        raise SourceError(f"the field {field.name!r} of a spout's batch holds None", expected="none, by its schema")
    return column


def _create(spark: "SparkSession", table: "pyarrow.Table", schema: "StructType") -> "DataFrame":
    return spark.createDataFrame(table if table.num_rows else [], schema)


def _from_rows(spark: "SparkSession", data: Iterable[Any], schema: "StructType") -> "DataFrame":
    rows = _checked(data, schema)
    if not rows:
        return spark.createDataFrame([], schema)
    if _is_nested(schema):
        return _verified(spark, rows, schema)
    return _create(spark, arrow_rows(rows, schema), schema)


def _checked(data: Iterable[Any], schema: "StructType") -> list[tuple[Any, ...]]:
    width = len(schema.fields)
    rows: list[tuple[Any, ...]] = []
    for number, row in enumerate(data):
        if not isinstance(row, (tuple, list)) or len(row) != width:
            raise SourceError(
                f"row {number} of a spout's batch cannot be used",
                found=repr(row)[:200],
                expected=f"a tuple of {width}: {', '.join(field.name for field in schema.fields)}",
            )
        rows.append(tuple(row))
    return rows


def _is_nested(schema: "StructType") -> bool:
    return any(isinstance(field.dataType, (ArrayType, MapType, StructType)) for field in schema.fields)


def _local(naive: datetime) -> datetime:
    """With this process's offset; Python gives none on the first and the last day that it knows."""
    try:
        return naive.astimezone()
    except (ValueError, OverflowError):
        inside = naive + timedelta(days=2 if naive.year == 1 else -2)
        return naive.replace(tzinfo=timezone(inside.astimezone().utcoffset() or timedelta(0)))


def _bad_value(values: list[Any], type: Any, field: Any, error: Exception) -> SourceError:
    for number, value in enumerate(values):
        try:
            pa.array([value], type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError):
            return SourceError(
                f"the field {field.name!r} of row {number} of a spout's batch does not fit its type",
                found=repr(value)[:200],
                expected=field.dataType.simpleString(),
            )
    return SourceError(f"the field {field.name!r} of a spout's batch does not fit its type: {error}")


def _verified(spark: "SparkSession", rows: list[tuple[Any, ...]], schema: "StructType") -> "DataFrame":
    """Rows with nested values: PySpark's own verification knows them."""
    try:
        return spark.createDataFrame(rows, schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise SourceError(
            f"the rows of a spout's batch do not fit its schema: {str(error).splitlines()[0]}",
            expected=schema.simpleString(),
        ) from error
