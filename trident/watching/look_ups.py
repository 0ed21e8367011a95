"""Looks a state up by key for a page: keys as the text of a form, values as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import InvalidOperation
from typing import Any

from pyspark.sql.types import StructField

from trident.coordinators.errors import WrongArguments
from trident.drpc.values import converted


def key_of_texts(state: str, fields: Sequence[StructField], texts: Sequence[str]) -> tuple[Any, ...]:
    """A key from what a person has typed, one text for each of its columns.

    Raises:
        WrongArguments: there are more or fewer, or one is not of its column's type.
    """
    if len(texts) != len(fields):
        raise WrongArguments(
            f"this is no key of state {state}",
            found=f"{len(texts)} values",
            expected=", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields) or "none",
        )
    return tuple(_value(state, field, text) for field, text in zip(fields, texts, strict=True))


def _value(state: str, field: StructField, text: str) -> Any:
    try:
        return converted(text, field.dataType)
    except (ValueError, TypeError, KeyError, OverflowError, OSError, InvalidOperation):
        raise WrongArguments(
            f"this is no value of key {field.name} of state {state}",
            found=repr(text)[:100],
            expected=field.dataType.simpleString(),
        ) from None


def shown_value(value: Any) -> Any:
    """A value for a page: numbers, text, lists and objects as JSON has them; all else as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        # A page counts in doubles: a larger number would be shown as another.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {_as_name(name): shown_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_value(one) for one in value]
    return str(value)


def _as_name(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(shown_value(key))
