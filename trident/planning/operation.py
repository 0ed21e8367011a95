"""The operations of a segment, by Spark or on a Python worker: their base, the shared ones, the segment's builder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StructField, StructType

from trident.coordinators.errors import OutputTypeError
from trident.planning.session_frames import Join, SessionFrames, Transform, column, column_list
from trident.states.publishing.user_tasks import PARTITION
from trident.udf.expressions import Expression
from trident.workers.anchors import ANCHORS
from trident.workers.arrow_plan import Columns, KeepTrue, Unchanged, WithConstant, WithMarker
from trident.workers.chain import Step, WithoutMarker
from trident.workers.tracking import TrackedStep

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
    def gives_rows_for_empty_batch(self) -> bool:
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
        per_batch: whether the step is given the attempt.
        looks_up: the state whose local copy the step asks; "": it asks none, and Spark may run it too.
    """

    in_python = True

    step: Step
    takes: frozenset[str]
    per_batch: bool = False
    looks_up: str = ""

    @property
    def on_arrow(self) -> PyOp:
        return self

    @property
    def needs_order(self) -> bool:
        return self.step.needs_order

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
    return PyOp(fields, step, frozenset(takes), looks_up=looks_up)


@dataclass(frozen=True)
class GroupingOp(Operation):
    """An aggregate by Spark over the batch, or over each group of it.

    Attributes:
        keys: the grouping columns; none: one row, also for no input.
    """

    shuffles = True

    keys: tuple[str, ...]

    @property
    def gives_rows_for_empty_batch(self) -> bool:
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


# The operations that many nodes become: columns and rows are chosen, rows are brought together.


PARTITION_FIELD = StructField(PARTITION, IntegerType(), True)


@dataclass(frozen=True)
class SelectOp(Operation):
    """Some columns in an order, and perhaps the outputs of an expression behind them."""

    keep: tuple[str, ...]
    expression: Expression | None = None

    @property
    def cheap_to_repeat(self) -> bool:
        return self.expression is None or self.expression.deterministic

    def transform(self, frames: SessionFrames) -> Transform:
        return frames.select([*column_list(self.keep), *(self.expression.columns() if self.expression else ())])

    @property
    def on_arrow(self) -> PyOp | None:
        if self.expression is None:
            return arrow_op(self.fields, Columns(self.keep), self.keep)
        own = self.expression.own
        if own is None:
            return None
        (output,) = self.expression.outputs
        return arrow_op(self.fields, own.made(output.name, self.keep), (*self.keep, *own.inputs))

    def describe(self) -> str:
        made = [f"{self.expression} as {', '.join(f.name for f in self.expression.outputs)}"] if self.expression else []
        return f"select {', '.join([*self.keep, *made])}"


@dataclass(frozen=True)
class KeepRowsOp(Operation):
    """Rows where a boolean field is true (or, negated, is not), without that field where it is not in ``fields``."""

    cheap_to_repeat = True

    condition: str
    negated: bool

    def transform(self, frames: SessionFrames) -> Transform:
        holds = F.coalesce(column(self.condition), F.lit(False))
        kept = frames.where(~holds if self.negated else holds)
        chosen = frames.select(column_list(names_of(self.fields)))
        return lambda frame, batch: chosen(kept(frame, batch), batch)

    @property
    def on_arrow(self) -> PyOp | None:
        keep = names_of(self.fields)
        return arrow_op(self.fields, KeepTrue(self.condition, self.negated, keep), (*keep, self.condition))

    def describe(self) -> str:
        return f"filter {'not ' if self.negated else ''}{self.condition}"


@dataclass(frozen=True)
class ByKeyOp(Operation):
    """Brings the rows of a group into one Spark partition, unless there is only one."""

    shuffles = True
    no_op_on_one_partition = True

    keys: tuple[str, ...]

    def transform(self, frames: SessionFrames) -> Transform:
        return frames.repartition(self.keys)

    @property
    def on_arrow(self) -> PyOp | None:
        return arrow_op(self.fields, Unchanged(), names_of(self.fields))

    def describe(self) -> str:
        return f"repartition by {', '.join(self.keys)}"


@dataclass(frozen=True)
class OnePartitionOp(Operation):
    """All rows in one Spark partition, with a marker row so that it exists for an empty batch too."""

    gathers_rows = True
    gives_rows_for_empty_batch = True

    def transform(self, frames: SessionFrames) -> Transform:
        """Spark gives an empty batch no partition at all, and then no worker would run."""
        data = [field for field in self.fields if field.name != MARKER]
        unmarked = frames.select([*column_list(names_of(tuple(data))), F.lit(0).cast("long").alias(MARKER)])
        # One row of nulls; Spark cannot optimise a range away as it does an empty relation.
        marker = frames.session.range(0, 1, 1, 1).select(
            *[F.lit(None).cast(field.dataType).alias(field.name) for field in data], F.lit(1).cast("long").alias(MARKER)
        )
        return lambda frame, batch: unmarked(frame, batch).union(marker).coalesce(1)

    @property
    def on_arrow(self) -> PyOp | None:
        data = tuple(field for field in self.fields if field.name != MARKER)
        try:
            schema = pa.schema(list(zip(names_of(data), arrow_types(data))))
        except OutputTypeError:
            return None
        return arrow_op(self.fields, WithMarker(schema, MARKER), names_of(data))

    def describe(self) -> str:
        return "into one partition"


@dataclass(frozen=True)
class IntoPartitionsOp(Operation):
    """Puts the rows of a key into one of ``count`` Spark partitions, always the same, and its number into PARTITION.

    The Spark task cannot be asked for that number: the job of a batch is a union, whose
    tasks are counted over all of its parts.
    """

    keys: tuple[str, ...]
    count: int

    @property
    def spreads_rows(self) -> bool:
        return self.count > 1

    @property
    def shuffles(self) -> bool:
        return self.count > 1 and bool(self.keys)

    def transform(self, frames: SessionFrames) -> Transform:
        columns = column_list([field.name for field in self.fields if field.name != PARTITION])
        if not self.shuffles:
            first = frames.select([*columns, F.lit(0).alias(PARTITION)])
            return lambda frame, batch: first(frame.coalesce(1), batch)
        moved = frames.repartition(self.keys, self.count)
        placed = frames.select([*columns, F.spark_partition_id().alias(PARTITION)])
        return lambda frame, batch: placed(moved(frame, batch), batch)

    @property
    def on_arrow(self) -> PyOp | None:
        if self.shuffles:
            return None
        keep = tuple(name for name in names_of(self.fields) if name != PARTITION)
        return arrow_op(self.fields, WithConstant(keep, PARTITION, 0, pa.int32()), keep)

    def describe(self) -> str:
        return f"into {self.count} partitions{' by ' if self.keys else ''}{', '.join(self.keys)}"


@dataclass(frozen=True)
class CoalesceOp(Operation):
    """Coalesces to at most ``count`` partitions, without a shuffle."""

    count: int

    def transform(self, frames: SessionFrames) -> Transform:
        return lambda frame, _: frame.coalesce(self.count)

    @property
    def on_arrow(self) -> PyOp | None:
        return arrow_op(self.fields, Unchanged(), names_of(self.fields))

    def describe(self) -> str:
        return f"into at most {self.count} partitions"


@dataclass(frozen=True)
class GatherOp(Operation):
    """All rows in one partition; the operations above stay parallel."""

    shuffles = True

    def transform(self, frames: SessionFrames) -> Transform:
        return lambda frame, _: frame.repartition(1)

    @property
    def on_arrow(self) -> PyOp | None:
        return arrow_op(self.fields, Unchanged(), names_of(self.fields))

    def describe(self) -> str:
        return "into one partition"


@dataclass(frozen=True)
class Branch:
    """Marks one of the branches that want anchors: each has other ids, which XOR to those of the rows."""

    number: int
    of: int

    def anchors(self) -> Any:
        """The anchors of a row as this branch gets them: the last one's ids close the sum."""

        def own(number: int, id: Any) -> Any:
            return F.xxhash64(id, F.lit(number))

        def pair(one: Any) -> Any:
            id = one.getField("id")
            if self.number < self.of - 1:
                id = own(self.number, id)
            else:
                id = reduce(
                    lambda sum_, number: sum_.bitwiseXOR(own(number, one.getField("id"))), range(self.of - 1), id
                )
            return F.struct(one.getField("root").alias("root"), id.alias("id"))

        return F.transform(F.col(ANCHORS), pair)


ONLY_BRANCH = Branch(0, 1)


@dataclass(frozen=True)
class BranchOp(Operation):
    """The rows as one of several branches gets them: with ids that XOR to the rows' own over all branches."""

    branch: Branch

    def transform(self, frames: SessionFrames) -> Transform:
        names = [name for name in names_of(self.fields) if name != ANCHORS]
        # In the order of the fields, of which the anchors are the last.
        return frames.select([*column_list(names), self.branch.anchors().alias(ANCHORS)])

    def describe(self) -> str:
        return f"branch {self.branch.number + 1} of {self.branch.of}"


# Builds a segment: operations are pushed one by one, and the columns behind the last one are known.


@dataclass(frozen=True)
class PartitionHints:
    """The Spark partitions that hints ask for, known before any exist.

    Attributes:
        counts: node → how many Spark partitions a hint gives its rows.
        exact: repartitionings behind which every partition must exist, also an empty one.
    """

    counts: Mapping[Any, int] = field(default_factory=dict)
    exact: frozenset[Any] = frozenset()


class SegmentBuilder:
    """Takes the operations that nodes push, and knows the columns behind the last one.

    Args:
        inputs: the columns at each anchor of the segment.
        branches: (node, which of its parents) → its branch, where several nodes take the anchors of one.
    """

    def __init__(
        self,
        inputs: Sequence[Fields],
        hints: PartitionHints,
        branches: Mapping[tuple[Any, int], Branch] | None = None,
    ) -> None:
        self.inputs, self.fields = tuple(inputs), inputs[0]
        self.hints, self.branches = hints, branches or {}
        self.ops: list[Operation] = []

    @property
    def anchored(self) -> bool:
        """Tells whether the rows have anchors here."""
        return any(field.name == ANCHORS for field in self.fields)

    @property
    def ends_in_python(self) -> bool:
        """Tells whether the last operation is one on the worker."""
        return bool(self.ops) and self.ops[-1].in_python

    @property
    def computed(self) -> bool:
        """Tells whether the rows cost more than a read of staged files, and so are to be computed only once."""
        return not all(op.cheap_to_repeat for op in self.ops)

    def narrowed(self, names: Sequence[str] | frozenset[str] | set[str]) -> Fields:
        """The columns of these names; one column where there are none, since rows without columns are no rows."""
        return tuple(field for field in self.fields if field.name in names) or self.fields[:1]

    def push(self, op: Operation) -> None:
        """Adds an operation."""
        self.ops.append(op)
        self.fields = op.fields

    def push_python(self, step: Step, fields: Sequence[Any], takes: Sequence[str], batch_id: bool = False) -> None:
        """Adds a step on the worker; see PyOp."""
        taken = frozenset(takes or names_of(self.fields[:1]))
        if not self.ends_in_python and taken != set(names_of(self.fields)):
            # Columns that Python does not need are not converted for it.
            self._select(tuple(field for field in self.fields if field.name in taken))
        self.push(PyOp(tuple(fields), step, taken, batch_id))

    def push_rows(self, step: Step, fields: Fields, takes: Sequence[str], goes_on: bool) -> None:
        """Adds a step that calls a function for rows; where they have anchors, a call that raises fails its row alone.

        Args:
            step: with ROW among the columns that it keeps where the anchors go on.
            fields, takes: as of ``push_python``, without the anchors.
            goes_on: the anchors are wanted behind it.
        """
        if not self.anchored:
            self.push_python(step, fields, takes)
            return
        fields = (*fields, ANCHORS_FIELD) if goes_on else fields
        self.push_python(TrackedStep(step, goes_on), fields, (*takes, ANCHORS))

    def push_unchanged(self, step: Step) -> None:
        """Adds a step on the worker that takes and gives all columns."""
        self.push_python(step, self.fields, names_of(self.fields))

    def by_key(self, keys: tuple[str, ...]) -> None:
        """Brings the rows of a group into one Spark partition."""
        self.push(ByKeyOp(self.fields, keys))

    def into_partitions(self, keys: tuple[str, ...], count: int) -> None:
        """Brings the rows of a key into the Spark partition of its number; see IntoPartitionsOp."""
        self.push(IntoPartitionsOp((*self.fields, PARTITION_FIELD), keys, count))

    def mark_one_partition(self) -> None:
        """Brings all rows into one Spark partition with a marker row, so that it exists for an empty batch too."""
        self.push(OnePartitionOp((*self.fields, MARKER_FIELD)))

    def drop_marker(self) -> None:
        """Drops marker rows, on the worker."""
        kept = tuple(field for field in self.fields if field.name != MARKER)
        self.push_python(WithoutMarker(MARKER), kept, names_of(self.fields))

    def narrow(self, fields: Fields) -> None:
        """Leaves exactly these columns in their order."""
        if self.ends_in_python:
            self.ops[-1] = replace(self.ops[-1], fields=fields)
            self.fields = fields
        elif names_of(fields) != names_of(self.fields):
            self._select(fields)

    def _select(self, fields: Fields) -> None:
        self.push(SelectOp(fields, names_of(fields)))
