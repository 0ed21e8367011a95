"""Tells the type of simple Columns, and the fields they read, without Spark.

Only Spark knows every rule of its types, and starting it takes ten seconds. For
the Columns that most topologies are made of (a field, a literal, comparisons,
``&``, ``|``, ``~``, sums of numbers, casts between plain types, ``alias``) the
rules are few; whatever else there is, gives None: Spark is asked. A test
compares every rule with Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
    StructType,
)

from trident.coordinators.errors import FieldError, TridentError
from trident.states.core.names import folded
from trident.udf.deferred import DeferredColumn
from trident.udf.types import FRACTIONAL, INTEGRAL, PLAIN, did_you_mean, parse_type

_INTEGRAL = tuple(kind() for kind in INTEGRAL)
_NUMBERS = (*_INTEGRAL, *(kind() for kind in FRACTIONAL))
_COMPARED = tuple(kind() for kind in PLAIN if not issubclass(kind, NumericType))
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eqNullSafe")
_SUMS = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__")
_OF_TEXT = ("upper", "lower", "trim", "ltrim", "rtrim", "initcap")
_PATTERNS = ("like", "ilike", "rlike")  # PySpark takes a text there, and no Column
_TEXT_TESTS = (*_PATTERNS, "contains", "startswith", "endswith")
# Where there is no field of such a name, Spark takes it for a function.
_NO_FIELDS = (
    "current_date",
    "current_timestamp",
    "current_time",
    "current_user",
    "user",
    "session_user",
    "grouping__id",
)


@dataclass(frozen=True)
class Known:
    """The facts of a Column.

    Attributes:
        name: that Spark would give it; None where only Spark knows.
    """

    type: DataType
    reads: frozenset[str]
    name: str | None = None


class _AskSpark(Exception):
    """No rule here covers it."""


def known(column: Any, schema: StructType, what: str) -> Known | None:
    """Returns what is known of a Column over rows of the schema; None: Spark must be asked.

    Raises:
        FieldError: it names a field that does not exist.
    """
    try:
        return _of(column, schema, what)
    except _AskSpark:
        return None


def _of(value: Any, schema: StructType, what: str) -> Known:
    if not isinstance(value, DeferredColumn):
        return Known(_literal(value), frozenset())
    name, on, args = value._name, value._on, value._args
    if value._kwargs:
        raise _AskSpark
    if on is None:
        return _called(name, args, schema, what)
    base = _of(on, schema, what)
    if name == "alias" and len(args) == 1 and isinstance(args[0], str):
        return Known(base.type, base.reads, args[0])
    if name in ("cast", "astype"):
        return Known(_cast(base.type, args[0]), base.reads)
    if name in ("isNull", "isNotNull"):
        return Known(BooleanType(), base.reads)
    if name in _PATTERNS and not all(isinstance(one, str) for one in args):
        raise _AskSpark
    others = [_of(one, schema, what) for one in _flat(name, args)]
    reads = base.reads.union(*(one.reads for one in others))
    return Known(_result(name, base.type, [one.type for one in others]), reads)


def _flat(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "isin" and len(args) == 1 and isinstance(args[0], (list, set)):  # of a tuple PySpark makes one value
        return tuple(args[0])
    return args


def _called(name: str, args: tuple[Any, ...], schema: StructType, what: str) -> Known:
    if len(args) != 1:
        raise _AskSpark
    given = args[0]
    if name in ("col", "column") and isinstance(given, str):
        return _field(given, schema, what)
    if name == "lit":
        return _of(given, schema, what)
    if name in (*_OF_TEXT, "length"):
        text = _field(given, schema, what) if isinstance(given, str) else _of(given, schema, what)
        if text.type == StringType():
            return Known(IntegerType() if name == "length" else StringType(), text.reads)
    raise _AskSpark


def _field(name: str, schema: StructType, what: str) -> Known:
    if any(mark in name for mark in ".`*"):
        raise _AskSpark
    near = [field for field in schema.fields if folded(field.name) == folded(name)]
    if not near and not name.startswith("_") and name.lower() not in _NO_FIELDS:  # such as _metadata
        raise FieldError(
            f"{what} uses a field that does not exist",
            found=f"`{name}`",
            expected=f"one of {', '.join(schema.names)}",
            action=did_you_mean(name, schema.names),
        )
    if len(near) != 1 or near[0].name != name:
        raise _AskSpark
    return Known(near[0].dataType, frozenset((name,)), name)


def _literal(value: Any) -> DataType:
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        for kind, bits in ((IntegerType(), 31), (LongType(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return kind
    if type(value) is str:
        return StringType()
    if type(value) is float:
        return DoubleType()
    raise _AskSpark


def _cast(source: DataType, target: Any) -> DataType:
    try:
        found = parse_type(target) if isinstance(target, str) else target
    except TridentError:  # a type that our own grammar does not have
        raise _AskSpark from None
    if isinstance(target, str) and target.strip().lower() == "bool":  # our own word for it
        raise _AskSpark
    plain = (*_NUMBERS, StringType())
    if source in (*plain, BooleanType()) and found in plain or source == found and found in (*plain, *_COMPARED):
        return found
    raise _AskSpark


def _result(name: str, base: DataType, others: list[DataType]) -> DataType:
    every = [base, *others]
    if name in _COMPARISONS or name == "isin" and others or name == "between":
        if all(one in _NUMBERS for one in every) or base in _COMPARED and all(one == base for one in others):
            return BooleanType()
    elif name in ("__and__", "__or__", "__rand__", "__ror__", "__invert__"):
        if all(one == BooleanType() for one in every):
            return BooleanType()
    elif name in _SUMS:
        return _sum(every)
    elif name == "__neg__" and base in _NUMBERS:
        return base
    elif name in _TEXT_TESTS and all(one == StringType() for one in every):
        return BooleanType()
    raise _AskSpark


def _sum(types: list[DataType]) -> DataType:
    if all(one in _INTEGRAL for one in types):
        return max(types, key=_INTEGRAL.index)
    if all(one == FloatType() for one in types):
        return FloatType()
    if DoubleType() in types and all(one in _NUMBERS for one in types):
        return DoubleType()
    raise _AskSpark
