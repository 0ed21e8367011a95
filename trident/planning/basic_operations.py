"""The operations that many nodes become: columns and rows are chosen, rows are brought together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField

from trident.coordinators.errors import OutputTypeError
from trident.planning.operation import MARKER, Operation, PyOp, arrow_op, arrow_types, names_of
from trident.planning.session_frames import SessionFrames, Transform, column, column_list
from trident.states.publishing.user_tasks import PARTITION
from trident.udf.expressions import Expression
from trident.workers.anchors import ANCHORS
from trident.workers.own_steps import AsTheyAre, Columns, KeepTrue, WithConstant, WithMarker

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
        return arrow_op(self.fields, AsTheyAre(), names_of(self.fields))

    def describe(self) -> str:
        return f"repartition by {', '.join(self.keys)}"


@dataclass(frozen=True)
class OnePartitionOp(Operation):
    """All rows in one Spark partition, with a marker row so that it exists for an empty batch too."""

    gathers_rows = True
    gives_rows_for_none = True

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
        return arrow_op(self.fields, AsTheyAre(), names_of(self.fields))

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
        return arrow_op(self.fields, AsTheyAre(), names_of(self.fields))

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
