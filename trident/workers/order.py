"""Spark's order of values, for Python: NaN above every number, a null part of a value below all others.

Imported by workers: keep its imports light.
"""

from __future__ import annotations

from typing import Any


def less(a: Any, b: Any) -> bool:
    """Tells whether a comes before b: numbers, texts, times, booleans, and structs and arrays of such."""
    if a is None or b is None:
        return a is None and b is not None
    if isinstance(a, dict):
        a, b = tuple(a.values()), tuple(b.values())
    if isinstance(a, (tuple, list)):
        for one, other in zip(a, b):
            if less(one, other):
                return True
            if less(other, one):
                return False
        return len(a) < len(b)
    if isinstance(a, float) and a != a:
        return False
    if isinstance(b, float) and b != b:
        return True
    return bool(a < b)


class Ordered:
    """A value that compares in Spark's order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: "Ordered") -> bool:
        return less(self.value, other.value)
