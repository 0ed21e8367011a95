"""The one kind of operation: a step of a segment, by Spark or on a Python worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from trident.coordinators.errors import OutputTypeError
from trident.planning.session_frames import Join, SessionFrames, Transform
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Step

# Marks a row that is none, added so that a Spark partition exists.
MARKER = "__trident_marker"
MARKER_FIELD = StructField(MARKER, LongType(), False)
_PAIR = StructType([StructField("root", LongType(), True), StructField("id", LongType(), True)])
ANCHORS_FIELD = StructField(ANCHORS, ArrayType(_PAIR, True), True)

Fields = tuple[StructField, ...]


@dataclass(frozen=True)
class Operation:
    """A step of a segment, which transforms itself.

    A new operation is a subclass with ``transform`` and ``describe``. The
    properties have the values of an operation that looks at each row alone.
    """

    fields: Fields

    def transform(self, frames: SessionFrames) -> Transform:
        """(DataFrame, Batch) → DataFrame; made once per session, so it may keep Columns."""
        raise AssertionError(f"{type(self).__name__} has no transform")

    def describe(self) -> str:
        """For ``explain``; "" for nothing to say."""
        raise AssertionError(f"{type(self).__name__} has no describe")

    @property
    def on_arrow(self) -> PyOp | None:
        """The same as a step over Arrow, for few rows that are all together; None: Spark alone can do it."""
        return None

    @property
    def looks_up(self) -> str:
        """The name of the state whose local copy it asks; "": it asks none."""
        return ""

    @property
    def in_python(self) -> bool:
        """Tells whether it runs on a Python worker, in one pass with its neighbours that do."""
        return False

    @property
    def spreads_rows(self) -> bool:
        """Tells whether a batch in one Spark partition may be in several behind it."""
        return False

    @property
    def gathers_rows(self) -> bool:
        """Tells whether all rows are in one Spark partition behind it."""
        return False

    @property
    def shuffles(self) -> bool:
        """Tells whether it moves rows, so that a Spark stage ends with it."""
        return False

    @property
    def gives_rows_for_none(self) -> bool:
        """Tells whether it emits rows for an empty batch."""
        return False

    @property
    def no_op_on_one_partition(self) -> bool:
        """Tells whether it is a no-op on a single-partition batch."""
        return False

    @property
    def needs_order(self) -> bool:
        """Tells whether its result depends on the order of the batch's rows."""
        return False

    @property
    def reads_state(self) -> bool:
        """Tells whether it asks a state for the keys of its rows, so that it reads them twice."""
        return False

    @property
    def cheap_to_repeat(self) -> bool:
        """Tells whether it is a projection or a filter that gives the same rows each time."""
        return False


@dataclass(frozen=True)
class PyOp(Operation):
    """A step on the worker; neighbours become one pass.

    Attributes:
        step: see trident.workers.chain and trident.workers.groups.
        takes: the columns that it reads or carries on.
        per_batch: whether the step is given the attempt, or the local copy of a state.
    """

    in_python = True

    step: Step
    takes: frozenset[str]
    per_batch: bool = False
    looks_up: str = ""

    @property
    def on_arrow(self) -> PyOp:
        return self

    def describe(self) -> str:
        return self.step.text


def arrow_op(fields: Fields, step: Step, takes: Iterable[str], looks_up: str = "") -> PyOp | None:
    """An operation's form as a step of the framework's own; None where a field has no type in Arrow.

    Args:
        takes: the columns that it reads or carries on.
        looks_up: the state whose local copy the step asks.
    """
    assert step.own, f"{type(step).__name__} does not say that it is the framework's own"
    return users_op(fields, step, takes, looks_up)


def users_op(fields: Fields, step: Step, takes: Iterable[str], looks_up: str) -> PyOp | None:
    """As :func:`arrow_op`, of a step that calls code of the user's: it runs on workers alone."""
    try:
        arrow_types(fields)
    except OutputTypeError:
        return None
    return PyOp(fields, step, frozenset(takes), bool(looks_up), looks_up)


@dataclass(frozen=True)
class GroupingOp(Operation):
    """An aggregate by Spark over the batch, or over each group of it.

    Attributes:
        keys: the grouping columns; none: one row, also for no input.
    """

    shuffles = True

    keys: tuple[str, ...]

    @property
    def gives_rows_for_none(self) -> bool:
        return not self.keys

    @property
    def spreads_rows(self) -> bool:
        return bool(self.keys)

    @property
    def by_keys(self) -> str:
        """The keys as a part of ``describe``."""
        return f" by {', '.join(self.keys)}" if self.keys else ""


@dataclass(frozen=True)
class MultiInputOp(Operation):
    """Makes one frame of several: always the first operation of its segment."""

    spreads_rows = True

    def join(self, frames: SessionFrames) -> Join:
        """(DataFrames, one per anchor; Batch) → DataFrame."""
        raise AssertionError(f"{type(self).__name__} has no join")


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which a worker gives values of a Spark type.

    Raises:
        OutputTypeError: there is none.
    """
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        raise OutputTypeError(
            f"values of type {kind.simpleString()} cannot come from Python", expected="a type that Arrow has"
        ) from error


def arrow_types(fields: Fields) -> tuple[pa.DataType, ...]:
    return tuple(arrow_type(field.dataType) for field in fields)


def names_of(fields: Fields) -> tuple[str, ...]:
    return tuple(field.name for field in fields)
