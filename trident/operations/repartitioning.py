"""Trident's repartitionings, and hints: they choose the Spark partition of each row (docs/semantics.md 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField

from trident.coordinators.errors import TopologyError
from trident.operations.aggregates import check_groupable
from trident.planning.nodes import Node, require_fields
from trident.planning.operation import MARKER, MARKER_FIELD, GatherOp, Operation, SegmentBuilder
from trident.planning.session_frames import Batch, SessionFrames, Transform, column, column_list, rows_max
from trident.udf.signatures import UserFunction, call_site, check_arity, check_for_workers, describe
from trident.workers.chain import Rows
from trident.workers.failures import Label
from trident.workers.groups import Targets

_TARGET = "__trident_target"


@dataclass(frozen=True, eq=False, kw_only=True)
class PassNode(Node):
    """Changes nothing: a name, or a hint.

    Attributes:
        parallelism: how many Spark partitions the rows are to be in; None: not said.
    """

    passes_anchors = True

    parallelism: int | None = None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Nothing: hints are read before."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RepartitionNode(Node):
    """Moves rows between Spark partitions.

    Attributes:
        kind: "shuffle", "partition_by", "broadcast", "partition" or "global".
        keys: the fields of partition_by, or those that the function takes.
        function: of "partition": gives the partitions of a row.
    """

    row_by_row = False
    repeatable = False  # the order of rows that come from several partitions is not promised
    places_rows = True
    drawn_as = "repartition"

    kind: str
    keys: tuple[str, ...] = ()
    function: UserFunction | None = None

    @property
    def calls_user(self) -> bool:
        return self.function is not None

    @property
    def passes_anchors(self) -> bool:
        return self.kind in ("shuffle", "partition_by", "global")

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live | frozenset(self.keys)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        hint, exact = builder.hints.counts.get(self), self in builder.hints.exact
        fields = tuple(field for field in builder.fields if field.name in live or field.name in self.keys)
        builder.narrow(fields)
        if self.kind == "global":
            if not exact:
                builder.push(GatherOp(fields))
                return
            builder.mark_one_partition()
            builder.drop_marker()
            return
        kind, keys = self.kind, self.keys
        if self.function is not None:
            self._choose(builder, fields)
            kind, keys = "chosen", (_TARGET,)
        if not exact:
            builder.push(PlaceOp(fields, kind, keys, hint))
            return
        builder.push(PlaceOp((*fields, MARKER_FIELD), kind, keys, hint, marked=True))
        builder.drop_marker()

    def _choose(self, builder: SegmentBuilder, fields: tuple[StructField, ...]) -> None:
        assert self.function is not None
        step = Rows(
            Label(self.operation, self.function.location),
            Targets(self.function.call),
            self.keys,
            (_TARGET,),
            (pa.int64(),),
            True,
            tuple(field.name for field in fields),
            drop_none=True,
        )
        target = StructField(_TARGET, LongType(), True)
        builder.push_python(step, (*fields, target), tuple(field.name for field in fields))


# --- operations --------------------------------------------------------------------------


@dataclass(frozen=True)
class PlaceOp(Operation):
    """Moves rows between partitions.

    Attributes:
        kind: "shuffle", "partition_by", "broadcast", or "chosen": the column in keys says which.
        count: of partitions; None: as many as Spark has cores.
        marked: a marker row is added to every partition, so that each exists.
    """

    spreads_rows = True
    shuffles = True

    kind: str
    keys: tuple[str, ...]
    count: int | None
    marked: bool = False

    @property
    def gives_rows_for_empty_batch(self) -> bool:
        return self.marked

    def transform(self, frames: SessionFrames) -> Transform:
        count = self.count or frames.context.defaultParallelism
        data = [field for field in self.fields if field.name != MARKER]
        names = [column(field.name) for field in data]
        if not self.marked and self.kind == "partition_by":
            return frames.repartition(self.keys, count)
        if not self.marked and self.kind == "shuffle":
            return lambda frame, _: frame.repartition(count)
        target = self._target(count).alias(_TARGET)
        if not self.marked:
            return lambda frame, _: frame.select(*names, target).repartitionById(count, _TARGET).select(*names)
        unmarked, marker = [*names, F.lit(0).cast("long").alias(MARKER), target], self._markers(frames, count)
        kept = [*names, F.col(MARKER)]
        return lambda frame, _: frame.select(*unmarked).union(marker).repartitionById(count, _TARGET).select(*kept)

    def _markers(self, frames: SessionFrames, count: int) -> Any:
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in self.fields if field.name != MARKER]
        rows = frames.session.range(0, count, 1, 1)
        return rows.select(*nothing, F.lit(1).cast("long").alias(MARKER), F.col("id").cast("int").alias(_TARGET))

    def _target(self, count: int) -> Any:
        if self.kind == "broadcast":
            return F.explode(F.sequence(F.lit(0), F.lit(count - 1)))
        if self.kind == "partition_by":  # as Spark's own repartition by columns
            return F.pmod(F.hash(*column_list(self.keys)), F.lit(count))
        if self.kind == "chosen":
            return F.pmod(F.col(self.keys[0]), F.lit(count)).cast("int")
        # In turn; each partition begins with another one, or few rows in each would all go to the same.
        return F.pmod(F.monotonically_increasing_id() + F.spark_partition_id(), F.lit(count)).cast("int")

    def describe(self) -> str:
        by = f" by {', '.join(self.keys)}" if self.kind == "partition_by" else ""
        every = (
            ", each row in every one" if self.kind == "broadcast" else ", as chosen" if self.kind == "chosen" else ""
        )
        into = f"{self.count} partitions" if self.count else "as many partitions as cores"
        return f"into {into}{by}{every}"


@dataclass(frozen=True)
class AtLeastOneOp(Operation):
    """Partitions as they are; where Spark has none as many as there must be, made by marker rows.

    Attributes:
        count: how many; None: not said, so one.
    """

    gives_rows_for_empty_batch = True

    count: int | None = None

    def transform(self, frames: SessionFrames) -> Transform:
        keep_empty_partitions(frames.session)
        data = [field for field in self.fields if field.name != MARKER]
        names = [column(field.name) for field in data]
        unmarked = [*names, F.lit(0).cast("long").alias(MARKER)]
        made = PlaceOp(self.fields, "shuffle", (), self.count or 1, marked=True).transform(frames)

        def transform(frame: Any, batch: Batch) -> Any:
            rows = frame.select(*unmarked)
            # Spark drops a relation that it can see is empty, with its partitions.
            return made(frame, batch) if rows_max(rows) == 0 else rows

        return transform

    def describe(self) -> str:
        return "in at least one partition"


_EXCLUDED = "spark.sql.adaptive.optimizer.excludedRules"
_DROPS_EMPTY = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


def keep_empty_partitions(session: Any) -> None:
    """Tells Spark not to drop the partitions behind a shuffle when it sees that they are all empty."""
    rules = [rule for rule in session.conf.get(_EXCLUDED, "").split(",") if rule.strip()]
    if _DROPS_EMPTY not in rules:
        session.conf.set(_EXCLUDED, ",".join([*rules, _DROPS_EMPTY]))


# --- what streams call ---------------------------------------------------------------------


def repartition(parent: Node, kind: str, operation: str, keys: tuple[str, ...] = (), function: Any = None) -> Node:
    """Moves the rows; see the methods of Stream."""
    if kind == "partition_by":
        check_groupable(parent, keys, operation)
    else:
        require_fields(keys, parent.schema, operation)
    site, described = call_site(), None
    if function is not None:
        described = describe(function, operation, site)
        if described.vectors is not None:
            raise TopologyError(
                f"{operation} calls its function row by row",
                found=f"{described.name}, which takes columns",
                expected="a function of a row's values",
            )
        check_arity(function, len(keys), f"{operation}({described.name})")
        check_for_workers(function, f"{operation}({described.name})")
    label = described.name if described else ", ".join(keys)
    return RepartitionNode(
        parents=(parent,),
        schema=parent.schema,
        operation=f"{operation}({label})",
        location=site,
        kind=kind,
        keys=keys,
        function=described,
    )


def parallelism_hint(parent: Node, count: int) -> Node:
    """See :meth:`trident.streams.stream.Stream.parallelism_hint`."""
    check_hint(count)
    return _pass(parent, f"parallelism_hint({count})", parallelism=count)


def check_hint(count: Any) -> None:
    """Raises TopologyError unless it can be a number of Spark partitions."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TopologyError(
            "parallelism_hint takes a number of Spark partitions", found=repr(count), expected="a whole number from 1"
        )


def named(parent: Node, name: str) -> Node:
    """See :meth:`trident.streams.stream.Stream.name`."""
    if not isinstance(name, str) or not name.strip():
        raise TopologyError("name takes a name", found=repr(name), expected="a text")
    return _pass(parent, f"name({name})")


def unchanged(parent: Node, operation: str) -> Node:
    """Leaves the rows in their partitions."""
    return _pass(parent, operation)


def _pass(parent: Node, operation: str, **more: Any) -> Node:
    return PassNode(parents=(parent,), schema=parent.schema, operation=operation, **more)
