"""Values of partition columns as Delta keeps them: as text in the log, not in the data files.

Delta's protocol, "Partition Value Serialization":
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from trident.coordinators.errors import TableError
from trident.states.core.plain_values import python_values


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
