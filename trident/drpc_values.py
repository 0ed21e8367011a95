"""The arguments of requests from Python and JSON, and the rows of answers as JSON.

What JSON has no notation for is text, in both directions alike:

=====================  =======================================================
type                   text
=====================  =======================================================
timestamp              ISO 8601; answers in UTC with an offset; an argument
                       without an offset is local time of the process
timestamp_ntz, date    ISO 8601
decimal                its digits, such as "12.50"
binary                 base64
NaN, infinities        "NaN", "Infinity", "-Infinity"
=====================  =======================================================

Numbers and booleans may be text in arguments too ("5", "true"): a path has
nothing else. A struct is an object with its fields, or a list in their order.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trident.coordinators.errors import WrongArguments

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def arguments(function: str, schema: StructType, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a request, in the order and the types of its fields.

    Raises:
        WrongArguments: too few, too many, unknown ones, or one of another type.
    """
    names = schema.names
    signature = f"{function}({', '.join(f'{f.name} {f.dataType.simpleString()}' for f in schema.fields)})"
    unknown = [name for name in named if name not in names]
    twice = [name for name in names[: len(given)] if name in named]
    missing = [name for name in names[len(given) :] if name not in named]
    if len(given) > len(names):
        found = f"{len(given)} arguments"
    elif unknown:
        found = f"an argument {unknown[0]!r}"
    elif twice:
        found = f"two values for {twice[0]!r}"
    elif missing:
        found = f"no argument {missing[0]!r}"
    else:
        values = dict(zip(names, given)) | dict(named)
        return tuple(_argument(function, field.name, field.dataType, values[field.name]) for field in schema.fields)
    raise WrongArguments(f"function {function!r} cannot be called so", found=found, expected=signature)


def _argument(function: str, name: str, kind: DataType, value: Any) -> Any:
    try:
        return converted(value, kind)
    except (ValueError, TypeError, KeyError, OverflowError, InvalidOperation):
        raise WrongArguments(
            f"argument {name!r} of function {function!r} has another type",
            found=f"{type(value).__name__} {repr(value)[:100]}", expected=kind.simpleString(),
        ) from None  # fmt: skip


def converted(value: Any, kind: DataType) -> Any:
    """A value as Spark's type wants it.

    Raises:
        ValueError, TypeError, KeyError, ArithmeticError: it is none.
    """
    if value is None:
        return None
    if isinstance(kind, StringType):
        return _of(str, value)
    if type(kind) in _BITS:
        return _whole(value, _BITS[type(kind)])
    if isinstance(kind, (FloatType, DoubleType)):
        return float(_not_bool(value, (int, float, str, Decimal)))
    if isinstance(kind, DecimalType):
        return _decimal(value, kind)
    if isinstance(kind, BooleanType):
        return {"true": True, "false": False}[value.strip().lower()] if isinstance(value, str) else _of(bool, value)
    if isinstance(kind, (TimestampType, TimestampNTZType)):
        return _moment(value, isinstance(kind, TimestampNTZType))
    if isinstance(kind, DateType):
        if isinstance(value, datetime):
            raise TypeError
        return date.fromisoformat(value) if isinstance(value, str) else _of(date, value)
    if isinstance(kind, BinaryType):
        text = isinstance(value, str)
        return base64.b64decode(value, validate=True) if text else bytes(_of((bytes, bytearray), value))
    if isinstance(kind, ArrayType):
        return [converted(item, kind.elementType) for item in _of((list, tuple), value)]
    if isinstance(kind, MapType):
        items = _of(dict, value).items()
        return {converted(key, kind.keyType): converted(item, kind.valueType) for key, item in items}
    if isinstance(kind, StructType):
        return _struct(value, kind)
    return value


def _of(types: Any, value: Any) -> Any:
    if not isinstance(value, types):
        raise TypeError
    return value


def _not_bool(value: Any, types: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError
    return _of(types, value)


def _whole(value: Any, bits: int) -> int:
    number = int(value) if isinstance(value, str) else _not_bool(value, int)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError
    return number


def _decimal(value: Any, kind: DecimalType) -> Decimal:
    given = _not_bool(value, (int, float, str, Decimal))
    number = Decimal(str(given) if isinstance(given, float) else given)
    if not number.is_finite() or number.adjusted() >= kind.precision - kind.scale:
        raise ValueError
    exact = number.quantize(Decimal(1).scaleb(-kind.scale))
    if exact != number:
        raise ValueError
    return exact


def _moment(value: Any, without_zone: bool) -> datetime:
    # Python 3.10 does not read the Z.
    moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00")) if isinstance(value, str) else value
    if without_zone and _of(datetime, moment).tzinfo is not None:
        raise ValueError
    return _of(datetime, moment)


def _struct(value: Any, kind: StructType) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        if set(value) - set(kind.names):
            raise KeyError
        value = [value.get(name) for name in kind.names]
    if len(_of((list, tuple), value)) != len(kind.fields):
        raise ValueError
    return tuple(converted(item, field.dataType) for item, field in zip(value, kind.fields))


def as_json(value: Any, kind: DataType) -> Any:
    """A value of a row that Spark gave, as ``json.dumps`` takes it."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: as_json(item, field.dataType) for field, item in zip(kind.fields, value)}
    if isinstance(kind, ArrayType):
        return [as_json(item, kind.elementType) for item in value]
    if isinstance(kind, MapType):
        keyed = ((as_json(key, kind.keyType), item) for key, item in value.items())
        return {key if isinstance(key, str) else str(key): as_json(item, kind.valueType) for key, item in keyed}
    if isinstance(kind, TimestampType):
        # Spark gives local time without its offset.
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, (str, bool, int, float)) else str(value)
