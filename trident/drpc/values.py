"""The arguments of requests from Python and JSON, and the rows of answers as JSON.

A value that JSON has no notation for is text, in both directions alike:

=====================  =======================================================
type                   text
=====================  =======================================================
timestamp              ISO 8601 with an offset: an answer's is UTC; an
                       argument without one is refused
timestamp_ntz, date    ISO 8601
decimal                its digits, such as "12.50"
binary                 base64
NaN, infinities        "NaN", "Infinity", "-Infinity"
=====================  =======================================================

Numbers and booleans may be text in arguments too ("5", "true"): a path has
nothing else. A struct is an object with its fields, or a list in their order.

Nothing is changed on the way without a word: a number that its type would
round to infinity, a point in time that Spark cannot hold, and two keys of a map
or an object that are the same are refused.
"""

from __future__ import annotations

import base64
import json
import math
import struct
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


class _Unfit(ValueError):
    """A value that is not taken, with what the caller is told of it."""


def read_json(text: str) -> Any:
    """JSON, as ``json.loads`` has it, where nothing in it is lost.

    Raises:
        ValueError: it is none, an object has a name twice, or a number is too large for a double.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_object, parse_float=_finite)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object with the name {twice[:100]!r} twice")
    return made


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:100]}, which is too large for a double")
    return number


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
    except (ValueError, TypeError, KeyError, OverflowError, OSError, InvalidOperation) as problem:
        detail = f": {problem}" if isinstance(problem, _Unfit) else ""
        raise WrongArguments(
            f"argument {name!r} of function {function!r} has another type",
            found=f"{type(value).__name__} {repr(value)[:100]}{detail}",
            expected=kind.simpleString(),
        ) from None


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
        return _number(_not_bool(value, (int, float, str, Decimal)), isinstance(kind, FloatType))
    if isinstance(kind, DecimalType):
        return _decimal(value, kind)
    if isinstance(kind, BooleanType):
        return {"true": True, "false": False}[value.strip().lower()] if isinstance(value, str) else _of(bool, value)
    if isinstance(kind, (TimestampType, TimestampNTZType)):
        return _moment(value, kind)
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
        made = {converted(key, kind.keyType): converted(item, kind.valueType) for key, item in items}
        if len(made) < len(items):
            raise _Unfit("two of its keys are the same")
        return made
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


def _number(value: Any, single: bool) -> float:
    number = float(value)
    given_infinite = isinstance(value, (float, Decimal)) and not math.isfinite(value)
    if isinstance(value, str):
        given_infinite = value.strip().lstrip("+-").lower() in ("inf", "infinity")
    if math.isinf(number) and not given_infinite:
        raise _Unfit("too large")
    if single and math.isfinite(number):
        try:
            struct.pack("<f", number)
        except OverflowError:
            raise _Unfit("too large") from None
    return number


def _moment(value: Any, kind: DataType) -> datetime:
    """A time as it is, if Spark's whole microseconds can say it."""
    # Python 3.10 does not read the Z.
    moment = datetime.fromisoformat(value.strip().replace("Z", "+00:00")) if isinstance(value, str) else value
    has_offset = _of(datetime, moment).tzinfo is not None
    if isinstance(kind, TimestampNTZType):
        if has_offset:
            raise _Unfit("it has an offset")
        return moment
    if isinstance(value, str) and not has_offset:
        raise _Unfit("it has no offset, such as Z or +02:00")
    try:
        kind.fromInternal(kind.toInternal(moment))  # Python cannot read the first day of the year 1 back
        return moment.astimezone(timezone.utc) if has_offset else moment
    except (ValueError, OverflowError, OSError):
        raise _Unfit("before January 2 of the year 1, or after the year 9999") from None


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
