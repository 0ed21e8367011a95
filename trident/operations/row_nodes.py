"""The nodes of each, map, flat_map, filter, peek and project: each row alone decides what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

from trident.planning.basic_operations import SelectOp
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node, OutputsNode
from trident.planning.operation import ANCHORS_FIELD, Operation, PyOp, arrow_op, arrow_types, names_of
from trident.planning.session_frames import SessionFrames, Transform
from trident.udf.expressions import Expression, to_column
from trident.udf.signatures import UserFunction
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Keep, Peek, Rows, Step
from trident.workers.failures import Label
from trident.workers.tracking import ROW, BeginTrees, EndTrees
from trident.workers.vectors import Call, vector_step

# --- by a Python function ----------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class PythonNode(OutputsNode):
    """each, map, flat_map, filter or peek with a Python function.

    Attributes:
        many: whether a call gives an iterable of rows; None: told by the result.
    """

    repeatable = False
    calls_user = True
    takes_anchors = True

    kind: str
    function: UserFunction
    inputs: tuple[str, ...]
    many: bool | None = None

    @property
    def passes_anchors(self) -> bool:
        # Of the rows that a function makes of whole columns it is not known which row they come from.
        return not (self.kind == "flat_map" and self.function.vectors)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return (live - set(self.outputs)) | set(self.inputs)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        earlier = tuple(field for field in self.schema.fields if field.name in live and field.name not in self.outputs)
        keep = names_of(earlier)
        made = tuple(self.schema[name] for name in self.outputs)
        goes_on = ANCHORS in live
        step = self._step((*keep, ROW) if goes_on else keep)
        builder.push_rows(step, (*earlier, *made), (*keep, *self.inputs), goes_on)

    def _step(self, keep: tuple[str, ...]) -> Step:
        function = self.function
        label = Label(self.operation, function.location)
        types = arrow_types(tuple(self.schema[name] for name in self.outputs))
        if function.vectors:
            call = Call(label, function.call, self.inputs, function.vectors, function.table)
            return vector_step(self.kind, call, self.outputs, types, keep)
        if self.kind == "filter":
            return Keep(label, function.call, self.inputs, keep)
        if self.kind == "peek":
            return Peek(label, function.call, self.inputs)
        drop_none = self.kind != "map"
        return Rows(label, function.call, self.inputs, self.outputs, types, self.many, keep, drop_none)


# --- by an expression of Spark -----------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeNode(OutputsNode):
    """each, map, flat_map or filter with an expression of Spark."""

    kind: str
    expression: Expression

    @property
    def passes_anchors(self) -> bool:
        # ``*`` would mean the hidden column too.
        return not self.expression.all_fields

    @property
    def repeatable(self) -> bool:
        return self.expression.deterministic

    @property
    def one_to_one(self) -> bool:
        """Tells whether each row certainly gives one row."""
        found = self.expression.analysis
        return self.kind == "map" or (self.kind == "each" and found is not None and not found.generates)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return (live - set(self.outputs)) | self.expression.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if self.expression.all_fields:
            builder.narrow(tuple(self.parents[0].schema.fields))
        if ANCHORS in live and not self.one_to_one:
            # Spark does not say which rows it drops or multiplies: the trees end before it and begin anew behind it.
            label = Label(self.operation, self.location)
            builder.push_unchanged(EndTrees(label))
            builder.push(self._operation(builder, live))
            builder.push_unchanged(BeginTrees(label))
        else:
            builder.push(self._operation(builder, live))

    def _operation(self, builder: SegmentBuilder, live: frozenset[str]) -> Operation:
        if self.kind == "filter":
            return FilterOp(builder.fields, self.expression)
        kept = (*self.schema.fields, ANCHORS_FIELD)
        keep = tuple(field for field in kept if field.name in live and field.name not in self.outputs)
        made = tuple(self.schema[name] for name in self.outputs)
        return SelectOp((*keep, *made), names_of(keep), self.expression)


@dataclass(frozen=True)
class FilterOp(Operation):
    """The rows for which an expression holds."""

    expression: Expression

    @property
    def cheap_to_repeat(self) -> bool:
        return self.expression.deterministic

    def transform(self, frames: SessionFrames) -> Transform:
        self.expression.analysed()
        return frames.where(to_column(self.expression.source))

    @property
    def on_arrow(self) -> PyOp | None:
        own, keep = self.expression.own, names_of(self.fields)
        return None if own is None else arrow_op(self.fields, own.kept(keep), (*keep, *own.inputs))

    def describe(self) -> str:
        return f"filter {self.expression}"


# --- fewer fields ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectNode(Node):
    """Some of the fields."""

    passes_anchors = True

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Nothing: fields that are not live are dropped anyway."""
