"""Decides which states can have a local copy; and the error of one that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
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

from trident.coordinators.errors import TridentError
from trident.states.core.binding import LAST

# The error of a local copy that cannot be used; without imports, which hosts of a cluster may not have.


class StaleCopy(TridentError):
    """The copy is not, or cannot be shown to be, as of the transaction that was asked for: read the tables."""


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


def why_no_copy(schema: StructType, keys: Sequence[str], merging: str, aggregator: str | None) -> str | None:
    """Tells why a keyed state has no local copy, in a few words; None when it has one.

    Args:
        schema: of keys and values.
        keys: the key columns.
        merging, aggregator: as in the state's descriptor.
    """
    reason = why_not_copied(schema, keys)
    if reason is None and merging != LAST:
        kinds = [field.type for field in arrow_schema(schema) if field.name not in keys]
        if len(kinds) != 1 or not is_folded(aggregator or "", kinds[0]):
            return f"its values are combined by {aggregator}"
    return reason


def is_folded(aggregator: str, kind: pa.DataType) -> bool:
    """Tells whether ``folds`` has the built-in aggregate of values of a type.

    Args:
        aggregator: the name under which states keep it.
    """
    if aggregator in ("count", "sum"):
        return bool(pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_decimal(kind))
    # Arrow cannot compare lengths of time.
    return aggregator in ("min", "max") and not any(name in str(kind) for name in ("duration", "interval"))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of a state's rows in Arrow's types, instants in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


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
