"""The layout of data files: values of partition columns as text in the log, and the order of a keyed state's rows."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from trident.coordinators.errors import TableError
from trident.states.core.typed_values import python_values

# Values of partition columns as Delta keeps them: as text in the log, not in the data files.
#
# Delta's protocol, "Partition Value Serialization":
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization


def partition_texts(name: str, column: "pa.Array | pa.ChunkedArray") -> list[str | None]:
    """The texts of a column's values, None for null.

    Two values have one text exactly when they are the same to the bit, except
    that every NaN has one.

    Args:
        column: of a type that :func:`can_partition` names.
    """
    try:
        return [partition_text(value) for value in python_values(column)]
    except (ValueError, OverflowError) as error:
        raise TableError(
            f"a value of the partition column {name!r} cannot be written",
            found=error,
            expected="a date or time of the years 1 to 9999",
            action="write such values in a column that the state is not partitioned by",
        ) from error


def partition_text(value: Any) -> str | None:
    """One value; an empty text is null, as the protocol says of every type, and as Spark's Delta writes it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # As Java and Rust read it: Python's own `nan` and `inf` not everybody does.
        if math.isfinite(value):
            return repr(value)
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return value.isoformat(" ", "microseconds")
        return value.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat("T", "microseconds") + "Z"
    return str(value)


def can_partition(kind: Any) -> bool:
    """Tells whether every value of a Spark type comes back from its text, in every reader of the table.

    Not of a binary: the protocol writes its bytes as characters, which Spark
    and delta-rs read differently above 127. Nor of anything with parts.
    """
    plain = (
        T.BooleanType,
        T.ByteType,
        T.ShortType,
        T.IntegerType,
        T.LongType,
        T.FloatType,
        T.DoubleType,
        T.DecimalType,
        T.DateType,
        T.TimestampType,
        T.TimestampNTZType,
    )
    return isinstance(kind, plain) or kind == T.StringType()


# The order of the rows in a keyed state's files, which lets a reader of few keys pass over most of each file.
#
# Rows are in the order of the key columns, and row groups are small: a reader that looks for one key decodes those
# whose bounds hold it. Bounds decide, never the order: files of earlier releases and of other writers are in any order.


_GROUP_ROWS_MIN = 4_000
_GROUPS_MAX = 100


def in_order(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table's rows in the order of some columns, ascending, nulls last; rows that are equal there stay in order.

    Arrow has no order for nested values: columns of such types are left out.
    """
    keys = [name for name in columns if not pa.types.is_nested(table.schema.field(name).type)]
    if not keys or table.num_rows < 2:
        return table
    return table.take(positions_in_order([table.column(name) for name in keys]))


def positions_in_order(keys: Sequence[Any]) -> pa.Array:
    """The positions of rows in the order of one or more columns, ascending, nulls last; equal rows stay in order."""
    # By numbered names: Arrow would take a name that begins with "." or "[" for a path into a struct.
    rows = pa.table({f"k{n}": key for n, key in enumerate(keys)})
    # Pairs: Arrow puts nulls last by itself, and before its version 25 it takes no third part that says so.
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])


def rows_in_a_group(rows: int) -> int:
    """How many rows a row group of an ordered file has: few enough to skip by, and at most a hundred groups a file."""
    return max(_GROUP_ROWS_MIN, -(-rows // _GROUPS_MAX))
