"""A batch's data as a DataFrame: from a DataFrame, an Arrow table, Python rows or staged files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Union

import pyarrow
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from trident.coordinators.errors import SourceError
from trident.spark.slots import NamedRows
from trident.states.core.names import backquoted
from trident.states.core.typed_columns import fitted, table_of
from trident.states.core.typed_values import WrongValue

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
    try:
        return fitted(table, to_arrow_schema(schema, timezone="UTC"))
    except WrongValue as wrong:
        raise SourceError(
            f"the field {wrong.path!r} of a spout's batch does not fit its type: {wrong}",
            found=wrong.details["found"],
            expected=wrong.details["expected"],
        ) from None


def arrow_rows(rows: "Sequence[tuple[Any, ...]]", schema: "StructType") -> "pyarrow.Table":
    """Rows that were checked to have a value per field, as a table.

    Raises:
        SourceError: a value does not fit its field.
    """
    target = to_arrow_schema(schema, timezone="UTC")
    other = next((row for row in rows if len(row) != len(target)), None)
    if other is not None:
        raise SourceError(
            "a row of a spout's batch cannot be used",
            found=repr(other)[:200],
            expected=f"a tuple of {len(target)}: {', '.join(target.names)}",
        )
    try:
        return table_of(rows, target)
    except WrongValue as wrong:
        raise SourceError(
            f"the field {wrong.path!r} of row {wrong.position} of a spout's batch does not fit its type",
            found=wrong.value,
            expected=wrong.details["expected"],
        ) from None


def _create(spark: "SparkSession", table: "pyarrow.Table", schema: "StructType") -> "DataFrame":
    return spark.createDataFrame(table if table.num_rows else [], schema)


def _from_rows(spark: "SparkSession", data: Iterable[Any], schema: "StructType") -> "DataFrame":
    rows = _checked(data, schema)
    if not rows:
        return spark.createDataFrame([], schema)
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
