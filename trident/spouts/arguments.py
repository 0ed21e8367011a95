"""Checks arguments of spouts when they are given, and names the expected ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from trident.coordinators.errors import TopologyError, TridentError, described

Refusal = type[TridentError]


def whole(name: str, value: Any, least: int, error: Refusal = TopologyError) -> int:
    """A whole number.

    Raises:
        TridentError: of the type ``error``: it is none, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = f"{name.split()[0]}={described(value)}"
        raise error(f"{name} cannot be used", found=found, expected=f"a whole number from {least} on")
    return value


def seconds(name: str, value: Any, zero: bool = True, error: Refusal = TopologyError) -> float:
    """A time in seconds, finite; ``zero`` says whether it may be 0. Raises as :func:`whole`."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        usable = usable and math.isfinite(float(value)) and (value >= 0 if zero else value > 0)
    except OverflowError:
        usable = False
    if not usable:
        raise error(
            f"{name} cannot be used",
            found=f"{name.split()[0]}={described(value)}",
            expected="seconds, a finite number from 0 on" if zero else "seconds, a finite number over 0",
        )
    return float(value)


def flag(name: str, value: Any, error: Refusal = TopologyError) -> bool:
    """True or False; a text such as "false" would be true. Raises as :func:`whole`."""
    if not isinstance(value, bool):
        raise error(f"{name} cannot be used", found=described(value), expected="True or False")
    return value


def path(name: str, value: Any, error: Refusal = TopologyError) -> str:
    """A path as text. Raises as :func:`whole`."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise error(f"{name} cannot be used", found=described(value), expected="a path")
    return text


def options(name: str, value: Any) -> dict[str, Any]:
    """Spark's options by name; None means none.

    Raises:
        TopologyError: they are no mapping from names.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TopologyError(
            f"the options of {name} cannot be used", found=described(value), expected="a mapping from names to values"
        )
    return dict(value)
