"""Between Python values and typed Arrow arrays, without silent conversions.

Arrow is lenient: it makes text of bytes, a date of a datetime, drops a time
zone. Here a value that is not of the declared type is an error that says so.
Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Union

import pyarrow as pa

from trident.states.core.plain_values import python_values as python_values

Values = Union[list[Any], tuple[Any, ...], Sequence[Any]]

_NONE = type(None)
_CUT = 120


class WrongValue(Exception):
    """A value is not of its declared type.

    Attributes:
        position: its place among the values.
        details: "found" and "expected", for the report.
    """

    def __init__(self, message: str, found: str, expected: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position
        self.details = {"found": found, "expected": expected}


def cut_repr(value: Any) -> str:
    """repr, cut short; also of a value whose class's repr raises."""
    if isinstance(value, (str, bytes)) and len(value) > _CUT:
        return repr(value[:_CUT]) + "…"
    try:
        text = repr(value)
    except Exception as error:  # user code
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= _CUT else text[:_CUT] + "…"


def to_arrow(values: Sequence[Any], kind: pa.DataType, name: str) -> tuple[pa.Array, bool]:
    """The values as an array, and whether reading it back would give the same Python values.

    Args:
        values: Python values, None for null.

    Raises:
        WrongValue: one is not of the type.
    """
    kinds = set(map(type, values))
    if pa.types.is_struct(kind) and dict in kinds and _has_wrong_field(values, kind):
        raise _first_wrong(values, kind, name)
    refused = _refused(kind)
    if refused and any(issubclass(found, refused) and not issubclass(found, _exact(kind)) for found in kinds):
        raise _first_wrong(values, kind, name)
    if pa.types.is_timestamp(kind) and _mixes_zones(values, kind):
        raise _first_wrong(values, kind, name)
    try:
        array = pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _first_wrong(values, kind, name) from None
    return array, kinds <= {_NONE, *_exact(kind)}


def _exact(kind: pa.DataType) -> tuple[type, ...]:
    """The Python types whose values Arrow neither changes nor rounds."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (str,)
    if pa.types.is_integer(kind):
        return (int,)
    if pa.types.is_float64(kind):
        return (float,)
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return (bytes,)
    return ()


def _refused(kind: pa.DataType) -> tuple[type, ...]:
    """The Python types that Arrow would convert, but that are certainly a mistake."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (bytes, bytearray, memoryview)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return (str,)
    if pa.types.is_integer(kind):
        return (bool, float)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return (bool,)
    if pa.types.is_date(kind):
        return (datetime.datetime,)
    return ()


def _has_wrong_field(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Tells whether a dict among the values has one that Arrow would convert by mistake, in a field of a struct."""
    for field in kind:
        given = [value.get(field.name) for value in values if isinstance(value, dict)]
        refused, exact = _refused(field.type), _exact(field.type)
        if refused and any(issubclass(one, refused) and not issubclass(one, exact) for one in set(map(type, given))):
            return True
        if pa.types.is_struct(field.type) and _has_wrong_field(given, field.type):
            return True
    return False


def _mixes_zones(values: Sequence[Any], kind: pa.DataType) -> bool:
    aware = kind.tz is not None
    return any(isinstance(value, datetime.datetime) and (value.tzinfo is not None) is not aware for value in values)


def _first_wrong(values: Sequence[Any], kind: pa.DataType, name: str) -> WrongValue:
    position = next((at for at, value in enumerate(values) if not _fits(value, kind)), 0)
    value = values[position]
    found = f"{cut_repr(value)} ({type(value).__name__})"
    return WrongValue(f"a value of output {name!r} is not of its type", found, _type_text(kind), position)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if isinstance(value, _refused(kind)) and type(value) not in _exact(kind):
        return False
    if pa.types.is_timestamp(kind) and _mixes_zones([value], kind):
        return False
    if pa.types.is_struct(kind) and _has_wrong_field([value], kind):
        return False
    try:
        pa.array([value], type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _type_text(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "a datetime with a time zone (timestamp)" if kind.tz else "a datetime without time zone (timestamp_ntz)"
    names = {
        "int64": "bigint",
        "int32": "int",
        "int16": "smallint",
        "int8": "tinyint",
        "date32[day]": "date",
        "bool": "boolean",
    }
    return names.get(str(kind), str(kind))
