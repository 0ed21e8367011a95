"""Combines a stored value and a part of it in Python: for local copies of states that are combined natively.

The same as ``states/core/native.py`` does in Spark. Where Spark would fail, or where Python cannot tell, there is no
value: :class:`Uncombinable`, and the state's tables are read as if there were no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.states.core.binding import LAST
from trident.states.core.copyable import why_not_copied

Combine = Callable[[Any, Any], Any]
_EXACT = Context(prec=80)


class Uncombinable(ArithmeticError):
    """The two have no value here: Spark's own arithmetic is to decide."""


def combine_of(aggregator: str, kind: pa.DataType) -> Combine | None:
    """The combining of a native aggregator's values of a type; None when it is left to Spark.

    Args:
        aggregator: its name in the state's descriptor.
        kind: Arrow's type of the value.
    """
    if aggregator in ("count", "sum"):
        return _adding(kind)
    if aggregator in ("min", "max") and not pa.types.is_nested(kind):
        return _skipping_null(_least if aggregator == "min" else _greatest)
    return None


def _adding(kind: pa.DataType) -> Combine | None:
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)

        def add(a: int, b: int) -> int:
            if not -limit <= a + b < limit:
                raise Uncombinable(f"{a} + {b} does not fit {kind}")
            return a + b

        return _skipping_null(add)
    if pa.types.is_float64(kind):
        return _skipping_null(lambda a, b: a + b)
    if pa.types.is_decimal(kind):

        def add_exactly(a: Decimal, b: Decimal) -> Decimal:
            total = _EXACT.add(a, b)
            if total.adjusted() + kind.scale >= kind.precision and total:
                raise Uncombinable(f"{a} + {b} does not fit {kind}")
            return total

        return _skipping_null(add_exactly)
    return None


def _skipping_null(combine: Combine) -> Combine:
    def combined(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return combine(a, b)

    return combined


def _least(a: Any, b: Any) -> Any:
    return b if _order(b) < _order(a) else a


def _greatest(a: Any, b: Any) -> Any:
    return b if _order(b) > _order(a) else a


def _order(value: Any) -> Any:
    """As Spark orders: NaN above every number; texts by their UTF-8 bytes, which is Python's order of them too."""
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value


def why_no_copy(schema: StructType, keys: Sequence[str], merging: str, aggregator: str | None) -> str | None:
    """Tells why a keyed state has no local copy, in a few words; None when it has one.

    Args:
        schema: of keys and values.
        keys: the key columns.
        merging, aggregator: as in the state's descriptor.
    """
    reason = why_not_copied(schema, keys)
    if reason is None and merging != LAST and state_combine(arrow_schema(schema), keys, aggregator) is None:
        return f"its values are combined by {aggregator}"
    return reason


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of a state's rows in Arrow's types, instants in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def state_combine(schema: pa.Schema, keys: Sequence[str], aggregator: str | None) -> Combine | None:
    """The combining of a state's values; None when it is left to Spark."""
    values = [field for field in schema if field.name not in keys]
    return combine_of(aggregator or "", values[0].type) if len(values) == 1 else None
