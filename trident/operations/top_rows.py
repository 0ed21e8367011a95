"""The least and greatest rows, and the first ones (docs/semantics.md 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.operations.aggregators import is_ordered
from trident.planning.nodes import Node, require_fields
from trident.planning.operation import Fields, GatherOp, Operation, PyOp, SegmentBuilder, arrow_types, names_of
from trident.planning.session_frames import SessionFrames, Transform, column, column_list
from trident.states.core.copyable import why_not_exact
from trident.states.core.names import backquoted
from trident.udf.signatures import call_site, check_arity, check_for_workers, function_location
from trident.workers.best_row import BestOfBatch, BestRow
from trident.workers.chain import Step
from trident.workers.cogroups import FirstRows
from trident.workers.failures import Label

_PLACE = "__trident_place"
_PART = StructField("__trident_part", IntegerType(), True)
SCOPES = ("partition", "batch")


@dataclass(frozen=True, eq=False, kw_only=True)
class ExtremeNode(Node):
    """min, max, min_by, max_by: one row, of each Spark partition or of the batch.

    Attributes:
        scope: "partition" or "batch".
    """

    repeatable = False
    together = None

    by: tuple[str, ...]
    greatest: bool
    comparator: Callable[..., Any] | None
    scope: str
    defined: str

    @property
    def row_by_row(self) -> bool:
        return self.scope == "partition"

    @property
    def gathers(self) -> bool:
        return self.scope == "batch"

    @property
    def calls_user(self) -> bool:
        return self.comparator is not None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live | frozenset(self.by)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = tuple(field for field in builder.fields if field.name in live or field.name in self.by)
        builder.narrow(fields)
        names = tuple(field.name for field in fields)
        if self.comparator is None and self.scope == "batch":
            builder.push(ExtremeOp(fields, self.by, self.greatest))
            return
        label = Label(self.operation, self.defined)
        part = (_PART.name,) if self.scope == "batch" else ()
        step = BestRow(label, self.by, self.greatest, self.comparator, names, part)
        builder.push_python(step, (*fields, *(_PART,) * len(part)), names)
        if self.scope == "batch":
            # The best row of each partition, with its number: of equal ones the last partition's wins.
            builder.push(GatherOp(builder.fields))
            again = BestRow(label, self.by, self.greatest, self.comparator, names, (), _PART.name)
            builder.push_python(again, fields, (*names, _PART.name))


@dataclass(frozen=True)
class ExtremeOp(Operation):
    """The row of the batch with the least or greatest fields; of equal ones the last. None for no row.

    Attributes:
        by: the columns that are compared; a row with a null in one is skipped.
    """

    shuffles = True
    needs_order = True

    by: tuple[str, ...]
    greatest: bool

    def transform(self, frames: SessionFrames) -> Transform:
        place = F.monotonically_increasing_id()
        by = column_list(self.by)
        row = F.struct(*[column(field.name) for field in self.fields]).alias("row")
        order = F.struct(*by, place if self.greatest else -place).alias(_PLACE)
        best = (F.max_by if self.greatest else F.min_by)("row", _PLACE).alias("row")
        present = by[0].isNotNull()
        for one in by[1:]:
            present &= one.isNotNull()
        kept = [F.col(f"row.{backquoted(field.name)}").alias(field.name) for field in self.fields]

        def transform(frame: Any, _: Any) -> Any:
            # Places are given before the rows move, and before any is dropped.
            placed = frame.select(row, order, present.alias("present")).where("present")
            return placed.groupBy().agg(best).where("row is not null").select(*kept)

        return transform

    @property
    def on_arrow(self) -> PyOp | None:
        fields = {field.name: field.dataType for field in self.fields}
        if not all(_is_exact(fields[name]) for name in self.by):
            return None
        names = names_of(self.fields)
        label = Label(self.describe(), "")
        return _step(self.fields, BestOfBatch(label, self.by, self.greatest, names))

    def describe(self) -> str:
        return f"the row with the {'greatest' if self.greatest else 'least'} {', '.join(self.by)}"


def _is_exact(kind: DataType) -> bool:
    """Tells whether Arrow compares values as Spark does: those with a collation it does not."""
    return why_not_exact(StructType([StructField("k", kind)]), ["k"]) is None


def _step(fields: Fields, step: Step) -> PyOp | None:
    """An operation's form for rows that are all together in a worker's process."""
    try:
        arrow_types(fields)
    except OutputTypeError:
        return None
    return PyOp(fields, step, frozenset(names_of(fields)))


def extreme(parent: Node, what: str, by: tuple[str, ...], greatest: bool, comparator: Any, scope: str) -> Node:
    """See :meth:`trident.streams.stream.Stream.min_by` and the like."""
    if scope not in SCOPES:
        raise TopologyError(f"{what} has no such scope", found=repr(scope), expected="'partition' or 'batch'")
    require_fields(by, parent.schema, what)
    defined = call_site()
    if comparator is not None:
        if not callable(comparator):
            raise TopologyError(
                f"{what} needs a comparator",
                found=repr(comparator),
                expected="a function of two values: below 0, 0 or above 0",
            )
        check_arity(comparator, 0, f"the comparator of {what}", ("two values",) * 2, yields=False)
        check_for_workers(comparator, f"the comparator of {what}")
        defined = function_location(comparator) or defined
    else:
        for name in by:
            if not is_ordered(parent.schema[name].dataType):
                raise FieldError(
                    f"{what} cannot compare field {name!r}",
                    found=parent.schema[name].dataType.simpleString(),
                    expected="a type with an order, or a comparator",
                )
    return ExtremeNode(
        parents=(parent,),
        schema=parent.schema,
        by=by,
        greatest=greatest,
        operation=f"{what}({', '.join(by)})",
        comparator=comparator,
        scope=scope,
        defined=defined,
    )


# --- the first rows ------------------------------------------------------------------------


class FirstN:
    """The first n rows of the batch: an assembly, ``stream.apply_assembly(FirstN(3, "n", reverse=True))``.

    Args:
        n: how many, at least 1.
        by: the field that orders the rows; None: the order that the batch has.
        reverse: the greatest first. Nulls come last either way; of equal rows the earlier one first.

    Raises:
        TopologyError: n is no number of rows.
    """

    def __init__(self, n: int, by: str | None = None, reverse: bool = False) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise TopologyError("FirstN takes a number of rows", found=repr(n), expected="a whole number from 1")
        self.n, self.by, self.reverse = n, by, reverse

    def __repr__(self) -> str:
        return f"FirstN({self.n}{f', {self.by!r}' if self.by else ''}{', reverse=True' if self.reverse else ''})"

    def apply(self, stream: Any) -> Any:
        """Returns what ``apply_assembly`` calls."""
        return stream.first_n(self.n, self.by, self.reverse)

    def node(self, parent: Node) -> Node:
        """The node behind a parent."""
        if self.by is not None:
            require_fields((self.by,), parent.schema, repr(self))
            kind = parent.schema[self.by].dataType
            if not is_ordered(kind):
                raise FieldError(
                    f"{self!r} cannot order by {self.by!r}", found=kind.simpleString(), expected="a type with an order"
                )
        return FirstNode(
            parents=(parent,),
            schema=parent.schema,
            operation=repr(self),
            n=self.n,
            by=self.by,
            reverse=self.reverse,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class FirstNode(Node):
    """FirstN."""

    row_by_row = False
    repeatable = False
    gathers = True

    n: int
    by: str | None
    reverse: bool

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live | ({self.by} if self.by else frozenset())

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        wanted = tuple(field for field in builder.fields if field.name in live or field.name == self.by)
        builder.narrow(wanted)
        builder.push(FirstOp(wanted, self.n, self.by, self.reverse))


@dataclass(frozen=True)
class FirstOp(Operation):
    """The first n rows, in one partition and in order."""

    shuffles = True
    needs_order = True

    n: int
    by: str | None
    reverse: bool

    def transform(self, frames: SessionFrames) -> Transform:
        place = F.monotonically_increasing_id().alias(_PLACE)
        names = [column(field.name) for field in self.fields]
        order = [F.col(_PLACE)]
        if self.by is not None:
            by = column(self.by)
            order.insert(0, by.desc_nulls_last() if self.reverse else by.asc_nulls_last())
        return lambda frame, _: frame.select(*names, place).orderBy(*order).limit(self.n).select(*names)

    @property
    def on_arrow(self) -> PyOp | None:
        kinds = [field.dataType for field in self.fields if field.name == self.by]
        if not all(map(_is_exact, kinds)):
            return None
        try:
            schema = pa.schema(list(zip(names_of(self.fields), arrow_types(self.fields))))
        except OutputTypeError:
            return None
        return _step(self.fields, FirstRows(schema, self.n, self.by, self.reverse))

    def describe(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"the first {self.n}{by}{', the greatest first' if self.reverse else ''}"
