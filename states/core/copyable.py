"""Tells which states can have a local copy: those whose keys and values it holds exactly."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_PLAIN = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    TimestampNTZType,
    TimestampType,
)


def why_not_copied(schema: StructType, keys: Sequence[str]) -> str | None:
    """Tells why rows of a state cannot be copied exactly; None when they can.

    Args:
        schema: of keys and values.
        keys: the names of the key columns.
    """
    return why_not_exact(schema, keys) if keys else "it has no keys"


def why_not_exact(schema: StructType, keys: Sequence[str]) -> str | None:
    """Tells why rows of a state cannot be read exactly outside of Spark; None when they can.

    Args: as for :func:`why_not_copied`.
    """
    for field in schema.fields:
        kind = _strange(field.dataType, field.name in keys)
        if kind is not None:
            return f"column {field.name!r} is of type {field.dataType.simpleString()}, of which {kind}"
    return None


def _strange(kind: DataType, is_key: bool) -> str | None:
    if isinstance(kind, StringType):
        return None if kind.collation == "UTF8_BINARY" else "values that differ may be equal"
    if isinstance(kind, _PLAIN):
        return None
    if isinstance(kind, ArrayType):
        return _strange(kind.elementType, is_key)
    if isinstance(kind, StructType):
        return next((found for field in kind.fields if (found := _strange(field.dataType, is_key))), None)
    if isinstance(kind, MapType) and not is_key:
        return _strange(kind.keyType, False) or _strange(kind.valueType, False)
    return "no copy is made"
