"""The PySpark style: select, with_column, agg with Columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import FieldError, TopologyError, described
from trident.planning.nodes import GroupingNode, Node, field_names, picked, require_fields
from trident.planning.operation import ANCHORS_FIELD, GroupingOp, Operation, PyOp, SegmentBuilder, arrow_op
from trident.planning.session_frames import SessionFrames, Transform, column
from trident.states.core.names import folded
from trident.udf.expressions import Expression, analyse, analyse_aggregates, is_expression, to_column
from trident.udf.types import check_distinct
from trident.workers.anchors import ANCHORS
from trident.workers.cogroups import Renamed


@dataclass(frozen=True)
class Made:
    """A field and where it is from.

    Attributes:
        given: the earlier field that it is; None: it is the expression's.
    """

    name: str
    given: str | None
    expression: Expression | None

    @property
    def reads(self) -> frozenset[str]:
        if self.expression is None:
            return frozenset((self.given,)) if self.given else frozenset()
        return self.expression.reads

    @property
    def deterministic(self) -> bool:
        return self.expression is None or self.expression.deterministic


@dataclass(frozen=True, eq=False, kw_only=True)
class SelectNode(Node):
    """select, with_column, drop, rename: fields that are earlier ones or expressions."""

    made: tuple[Made, ...]

    @property
    def passes_anchors(self) -> bool:
        # ``*`` would mean the hidden column too.
        return not any(one.expression is not None and one.expression.all_fields for one in self.made)

    @property
    def repeatable(self) -> bool:
        return all(one.deterministic for one in self.made)

    def carried(self, side: int, field: str) -> str | None:
        names = [one.name for one in self.made if one.given == field]
        return field if field in names else next(iter(names), None)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset().union(*(one.reads for one in self.made if one.name in live))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        made = tuple(one for one in self.made if one.name in live)
        fields = tuple(self.schema[one.name] for one in made)
        if ANCHORS in live:
            made, fields = (*made, Made(ANCHORS, ANCHORS, None)), (*fields, ANCHORS_FIELD)
        if any(one.expression is not None and one.expression.all_fields for one in made):
            builder.narrow(tuple(self.parents[0].schema.fields))
        builder.push(SelectColumnsOp(fields, made))


@dataclass(frozen=True)
class SelectColumnsOp(Operation):
    """A projection."""

    made: tuple[Made, ...]

    def transform(self, frames: SessionFrames) -> Transform:
        columns = []
        for one in self.made:
            if one.expression is None:
                assert one.given is not None
                columns.append(column(one.given).alias(one.name))
            else:
                columns += one.expression.columns()
        return frames.select(columns)

    @property
    def on_arrow(self) -> PyOp | None:
        given = tuple((one.given, one.name) for one in self.made if one.given is not None)
        if len(given) < len(self.made):
            return None
        return arrow_op(self.fields, Renamed(given), (name for name, _ in given))

    def describe(self) -> str:
        parts = []
        for one in self.made:
            source = one.given if one.expression is None else str(one.expression)
            parts.append(one.name if source == one.name else f"{source} as {one.name}")
        return f"select {', '.join(parts)}"


def select(parent: Node, chosen: Sequence[Any], what: str = "select") -> Node:
    """Fields by name and Columns side by side."""
    made: list[Made] = []
    for one in chosen:
        if is_expression(one):
            made.append(_made(parent, one, what))
        else:
            names = field_names(one, what)
            require_fields(names, parent.schema, what)
            made += [Made(name, name, None) for name in names]
    return _select(parent, made, what)


def with_columns(parent: Node, columns: Mapping[str, Any]) -> Node:
    """See :meth:`trident.streams.stream.Stream.with_column`."""
    _require_names(columns, "with_columns", "{'name': a Column, …}")
    made = {folded(name): Made(name, name, None) for name in parent.names}  # Spark ignores case
    for name, given in columns.items():
        if not is_expression(given):
            raise TopologyError(
                f"with_column({name!r}) needs a Column",
                found=repr(given),
                expected="a Column or trident.expr(…)",
                action="use each for a function",
            )
        made[folded(name)] = _made(parent, given, "with_column", name)
    return _select(parent, list(made.values()), "with_column")


def drop(parent: Node, names: tuple[str, ...]) -> Node:
    """See :meth:`trident.streams.stream.Stream.drop`."""
    require_fields(names, parent.schema, "drop")
    made = [Made(name, name, None) for name in parent.names if name not in names]
    if not made:
        raise FieldError("drop leaves no field", found=", ".join(names), expected="at least one that stays")
    return _select(parent, made, "drop")


def rename(parent: Node, names: Mapping[str, str]) -> Node:
    """See :meth:`trident.streams.stream.Stream.rename`."""
    _require_names(names, "rename", "{'field': 'its new name', …}")
    odd = [name for name in names.values() if not isinstance(name, str)]
    if odd:
        raise FieldError("rename needs names", found=described(odd[0]), expected="text")
    require_fields(names, parent.schema, "rename")
    return _select(parent, [Made(names.get(name, name), name, None) for name in parent.names], "rename")


def _require_names(given: Any, what: str, expected: str) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise FieldError(f"{what} needs the fields by name", found=described(given), expected=expected)


def _select(parent: Node, made: Sequence[Made], what: str) -> Node:
    if not made:
        raise FieldError(f"{what} has no fields", expected="at least one")
    check_distinct([one.name for one in made], f"the fields of {what}")
    fields = []
    for one in made:
        if one.expression is None:
            assert one.given is not None
            fields.append(StructField(one.name, parent.schema[one.given].dataType, True))
        else:
            fields.append(one.expression.outputs[0])
    return SelectNode(
        parents=(parent,),
        schema=StructType(fields),
        operation=f"{what}({', '.join(o.name for o in made)})",
        made=tuple(made),
    )


def _made(parent: Node, column: Any, what: str, name: str | None = None) -> Made:
    found = analyse(column, parent.schema, what, needs_name=name is None)
    if found.aggregates:
        raise TopologyError(
            f"{what} cannot aggregate", found=str(column), expected="an expression over a single row", action="use agg"
        )
    if found.generates or len(found.fields) != 1:
        raise TopologyError(
            f"{what} makes one row of each",
            found=str(column),
            expected="an expression that gives one value of each row",
            action="to multiply rows and keep the other fields write each(expr('explode(items)'), 'item') before it; "
            "for the new rows alone flat_map(expr('explode(items)'), 'item')",
        )
    field = found.fields[0]
    field = StructField(name or field.name, field.dataType, True)
    return Made(field.name, None, Expression(column, parent.schema, (field,), found, what))


# --- agg with Columns ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class ColumnAggregateNode(GroupingNode):
    """agg(F.sum("n").alias("total"), …): an aggregate by Spark.

    Attributes:
        taken: the fields that they refer to.
        all_fields: whether one says ``*``.
    """

    columns: tuple[Any, ...]
    taken: frozenset[str]
    deterministic: bool
    all_fields: bool

    @property
    def repeatable(self) -> bool:
        return self.deterministic

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names) if self.all_fields else self.taken | frozenset(self.keys)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if self.all_fields:
            builder.narrow(tuple(self.parents[0].schema.fields))
        builder.push(ColumnAggregateOp(tuple(self.schema.fields), self.keys, self.columns))


@dataclass(frozen=True)
class ColumnAggregateOp(GroupingOp):
    """groupBy(keys).agg(columns)."""

    columns: tuple[Any, ...]

    def transform(self, frames: SessionFrames) -> Transform:
        made = [to_column(one).alias(field.name) for one, field in zip(self.columns, self.fields[len(self.keys) :])]
        return frames.aggregate(self.keys, *made)

    def describe(self) -> str:
        names = ", ".join(field.name for field in self.fields[len(self.keys) :])
        return f"aggregate {names}{self.by_keys}"


def column_aggregate(parent: Node, keys: tuple[str, ...], columns: Sequence[Any]) -> Node:
    """See :meth:`trident.streams.stream.Stream.agg`."""
    for one in columns:
        if not is_expression(one):
            raise TopologyError(
                "agg takes aggregate Columns, or inputs, an aggregator and outputs",
                found=repr(one),
                expected="F.sum('n').alias('total'), or ('n', Sum(), 'total')",
            )
    found = analyse_aggregates(columns, keys, parent.schema, "agg")
    schema = StructType([*picked(parent.schema, keys).fields, *found.fields])
    check_distinct(schema.names, "the keys and outputs of agg")
    return ColumnAggregateNode(
        parents=(parent,),
        schema=schema,
        operation=f"agg({', '.join(f.name for f in found.fields)})",
        keys=keys,
        columns=tuple(columns),
        taken=found.reads,
        deterministic=found.deterministic,
        all_fields=found.all_fields,
    )
