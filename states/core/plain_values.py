"""Python values of Arrow arrays, so that equal ones are equal to Python too.

Python compares two datetimes of one time zone by what a clock on the wall
shows, so of the hour that comes twice at the end of summer time each moment
would equal another one. Arrow's timestamps come in the session's zone; here
they are read as UTC, in which every instant has a name of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]  # Python values in the order of some fields
_NAN = float("nan")


def python_values(array: Any) -> list[Any]:
    """None for null, datetimes in UTC for instants, dicts for structs and maps."""
    values = in_utc(array)
    if not _is_nested(values.type):
        return values.to_pylist()  # with an argument it is twenty times slower
    # Strict: of a map with a key that comes twice one value would be lost without a word.
    return values.to_pylist(maps_as_pydicts="strict")


def in_utc(array: Any) -> Any:
    """The array with its instants in UTC, also those within others; itself where they are."""
    kind = _kind_in_utc(array.type)
    return array if kind is None else array.cast(kind)


def frozen(value: Any) -> Any:
    """The value as a key: two are equal to Python, and hash alike, exactly where Spark says that the values are equal.

    NaN is one key, wherever in a struct or array it is; 0.0 and -0.0 are one
    (to Python too). Every path that asks in Python whether two rows have the
    same key must ask this.

    Args:
        value: as :func:`python_values` gives it, of a type that Spark can group
            by; or a tuple of such, a whole key.
    """
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    # NaN is not equal to itself, but Python takes one object for equal to itself within tuples and as a dict's key.
    return _NAN if value != value else value


@lru_cache(maxsize=1024)
def _kind_in_utc(kind: "pa.DataType") -> "pa.DataType | None":
    """The type with its instants in UTC; None when it is so already."""
    found = _converted(kind)
    return None if found == kind else found


@lru_cache(maxsize=1024)
def _is_nested(kind: "pa.DataType") -> bool:
    return pa.types.is_nested(kind)


def _converted(kind: "pa.DataType") -> "pa.DataType":
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_converted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_converted(kind.key_type)), kind.item_field.with_type(_converted(kind.item_type))
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_converted(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_converted(kind.value_type)))
    return kind
