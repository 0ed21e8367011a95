"""Aggregators: the three contracts of Trident, and the built-in ones.

A **combiner** is associative, so a batch is combined in parts before anything
is moved, and its results can be persisted. A **reducer** folds row by row. An
**aggregator** sees the whole group and may give any number of rows.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, DoubleType, LongType, MapType, NumericType, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.states.core.native import NATIVE, NativeMerge
from trident.states.core.typed_values import two_values
from trident.udf.types import FRACTIONAL, PLAIN


@runtime_checkable
class Combiner(Protocol):
    """Combines values of any part of a batch, in any order (docs/semantics.md 4).

    The caller's duty: ``combine`` is associative and commutative, and
    ``combine(zero(), x) == x``. The value is one field; its type is ``init``'s
    return annotation or is given with the output.
    """

    def init(self, *values: Any) -> Any:
        """The value of one row; called with one argument per input field."""

    def combine(self, a: Any, b: Any) -> Any:
        """Two values into one."""

    def zero(self) -> Any:
        """The value of no row."""


@runtime_checkable
class Reducer(Protocol):
    """Folds the rows of a batch or group one by one, in no promised order (docs/semantics.md 4)."""

    def init(self) -> Any:
        """The value before the first row."""

    def reduce(self, curr: Any, *values: Any) -> Any:
        """The value after a row; one argument per input field."""


@runtime_checkable
class Aggregator(Protocol):
    """Sees all rows of a batch or group and gives any number of rows (docs/semantics.md 4)."""

    def init(self, batch_id: Any) -> Any:
        """The state before the first row; batch_id is the TransactionAttempt."""

    def aggregate(self, state: Any, *values: Any) -> Any:
        """The state after a row, or None when the state was changed in place."""

    def complete(self, state: Any) -> Any:
        """The results: as what a function of ``each`` returns."""


def aggregator_kind(aggregator: object, operation: str) -> str:
    """ "native", "combiner", "reducer" or "aggregator".

    Raises:
        TopologyError: it is none of them.
    """
    if callable(getattr(aggregator, "partial", None)) and getattr(aggregator, "native_name", None):
        return "native"
    for kind, methods in (
        ("combiner", ("init", "combine", "zero")),
        ("reducer", ("init", "reduce")),
        ("aggregator", ("init", "aggregate", "complete")),
    ):
        if all(callable(getattr(aggregator, method, None)) for method in methods):
            return kind
    raise TopologyError(
        f"{operation} needs an aggregator",
        found=repr(aggregator),
        expected="Count(), Sum(), Min(), Max(), or an object with init/combine/zero, init/reduce or "
        "init/aggregate/complete",
    )


# --- native ------------------------------------------------------------------------------


class _Native:
    """An aggregator that Spark computes itself, and that combines in Python too."""

    native_name = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def _native(self) -> "NativeMerge":
        return NATIVE[self.native_name]

    def combine(self, a: Any, b: Any) -> Any:
        """Two values into one, in Python."""
        return two_values(self.native_name)(a, b)

    def merge(self, col: "Column") -> "Column":
        """The aggregate expression over partial values."""
        return self._native().merge(col)

    def combine_columns(self, a: "Column", b: "Column") -> "Column":
        """Two partial values of one row into one."""
        return self._native().combine_columns(a, b)

    def _one_input(self, input_types: list[DataType]) -> DataType:
        if len(input_types) != 1:
            raise TopologyError(
                f"{self!r} takes one field", found=f"{len(input_types)} fields", expected="the field as the inputs"
            )
        return input_types[0]


class Count(_Native):
    """The number of rows: a bigint, 0 for none. Null values count, as rows do in Trident."""

    native_name = "count"

    def init(self, *values: Any) -> int:
        return 1

    def zero(self) -> int:
        return 0

    def partial(self, inputs: list["Column"]) -> "Column":
        return F.count(F.lit(1))

    def result_type(self, input_types: list[DataType]) -> DataType:
        return LongType()


class Sum(_Native):
    """The sum of one number field; nulls are skipped, and nothing to add gives 0.

    Integers become bigint, fractions double, a decimal(p,s) decimal(p+10,s). A
    sum that does not fit fails the batch: as long as ``spark.sql.ansi.enabled`` is
    true, as it is by default; a session where it is not is warned about.
    """

    native_name = "sum"

    def init(self, value: Any) -> Any:
        return 0 if value is None else value

    def zero(self) -> int:
        return 0

    def partial(self, inputs: list["Column"]) -> "Column":
        return F.sum(inputs[0])  # the planner puts zero() where there was nothing to add

    def result_type(self, input_types: list[DataType]) -> DataType:
        kind = self._one_input(input_types)
        if isinstance(kind, DecimalType):
            return DecimalType(min(kind.precision + 10, 38), kind.scale)
        if isinstance(kind, FRACTIONAL):
            return DoubleType()
        if isinstance(kind, NumericType):
            return LongType()
        raise OutputTypeError("Sum() adds numbers", found=f"a field of type {kind.simpleString()}", expected="a number")


class _Extreme(_Native):
    def init(self, value: Any) -> Any:
        return value

    def zero(self) -> None:
        return None

    def partial(self, inputs: list["Column"]) -> "Column":
        return self.merge(inputs[0])

    def result_type(self, input_types: list[DataType]) -> DataType:
        kind = self._one_input(input_types)
        if not is_ordered(kind):
            raise OutputTypeError(
                f"{self!r} needs values that have an order", found=f"a field of type {kind.simpleString()}"
            )
        return kind


class Min(_Extreme):
    """The least value of one field; nulls are skipped, and no value gives null."""

    native_name = "min"


class Max(_Extreme):
    """The greatest value of one field; nulls are skipped, and no value gives null."""

    native_name = "max"


def own_name(aggregator: object) -> str:
    """The name under which states keep a built-in aggregator's values; "" where it is another one.

    A class of the user's below a built-in one may compute anything: only Spark runs it.
    """
    kind = type(aggregator)
    return kind.native_name if kind in (Count, Sum, Min, Max) else ""


def is_ordered(kind: DataType) -> bool:
    """Tells whether Spark can compare values of the type."""
    if isinstance(kind, ArrayType):
        return is_ordered(kind.elementType)
    if isinstance(kind, StructType):
        return all(is_ordered(field.dataType) for field in kind.fields)
    return is_plain(kind)


def is_plain(kind: DataType) -> bool:
    """Tells whether it is one of the everyday types without parts, which Spark, Arrow and Python all can group by."""
    return isinstance(kind, PLAIN)


def is_groupable(kind: DataType) -> bool:
    """Tells whether Spark can group by values of the type: maps have no equality."""
    if isinstance(kind, MapType):
        return False
    if isinstance(kind, ArrayType):
        return is_groupable(kind.elementType)
    if isinstance(kind, StructType):
        return all(is_groupable(field.dataType) for field in kind.fields)
    return True
