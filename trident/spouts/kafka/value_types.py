"""The types of Spark as msgspec reads values of them: strictly, with bounds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, TypedDict

from pyspark.sql import types as T

from trident.coordinators.errors import TopologyError

_BITS: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_SIMPLE: Mapping[type[T.DataType], type] = {
    T.StringType: str,
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.DecimalType: Decimal,
    T.BinaryType: bytes,
    T.DateType: date,
}


def python_type(kind: T.DataType) -> Any:
    """The type that msgspec takes a value for; every field may be missing or null.

    Raises:
        TopologyError: values of the type cannot be read.
    """
    import msgspec  # optional: executors of a cluster have it only for this

    if isinstance(kind, T.StructType):
        make: Any = TypedDict
        return make("Value", {field.name: _or_null(field.dataType) for field in kind.fields}, total=False)
    if isinstance(kind, T.ArrayType):
        return GenericAlias(list, (_or_null(kind.elementType),))
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return GenericAlias(dict, (str, _or_null(kind.valueType)))
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return Annotated[datetime, msgspec.Meta(tz=isinstance(kind, T.TimestampType))]
    if type(kind) in _BITS:
        bound = 1 << (_BITS[type(kind)] - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    raise TopologyError(
        "values of Kafka cannot be read as this type",
        found=kind.simpleString(),
        expected="strings, numbers, booleans, binary, dates, timestamps; arrays, structs, and maps with text as keys",
    )


def _or_null(kind: T.DataType) -> Any:
    return operator.or_(python_type(kind), None)


def lacking(kind: T.DataType) -> Callable[[Any], None] | None:
    """Raises ValueError for a value without a field that is NOT NULL; None: no field is, and all values are whole."""
    if isinstance(kind, T.ArrayType):
        return _within(kind.elementType, lambda value: value)
    if isinstance(kind, T.MapType):
        return _within(kind.valueType, lambda value: value.values())
    if not isinstance(kind, T.StructType):
        return None
    needed = [field.name for field in kind.fields if not field.nullable]
    inside = {field.name: check for field in kind.fields if (check := lacking(field.dataType)) is not None}

    def check_struct(value: Any) -> None:
        for name in needed:
            if value.get(name) is None:
                raise ValueError(f"the field {name!r} is missing or null, and is NOT NULL")
        for name, check in inside.items():
            if value.get(name) is not None:
                check(value[name])

    return check_struct if needed or inside else None


def _within(kind: T.DataType, values: Callable[[Any], Any]) -> Callable[[Any], None] | None:
    check = lacking(kind)
    if check is None:
        return None

    def check_each(value: Any) -> None:
        for one in values(value):
            if one is not None:
                check(one)

    return check_each
