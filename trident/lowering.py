"""The pure half of planning: nodes become lists of operations, before any session.

Every list begins at an *anchor* (a stream's source, or a node that several
branches share) and ends at a state, at a shared node or at a dangling end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from coordinators.errors import OutputTypeError
from trident.aggregators import is_plain
from trident.arrow_failures import Label
from trident.arrow_groups import Folded, Groups
from trident.arrow_ops import CountRows, Keep, Peek, Rows, WithoutMarker
from trident.expressions import Expression
from trident.nodes import (
    AggregateNode,
    Aggregation,
    NativeNode,
    Node,
    PersistNode,
    PythonNode,
    SourceNode,
)

MARKER = "__trident_marker"
PARTIAL = "__trident_partial"
PARTIALS = "__trident_partials"

Fields = tuple[StructField, ...]


@dataclass(frozen=True)
class PyOp:
    """A step on the worker; neighbours become one pass.

    Attributes:
        step: see trident.arrow_ops and trident.arrow_groups.
        fields: what there is behind it.
        takes: the fields that it reads or carries on.
        uses_batch_id: whether user code is given the attempt.
    """

    step: Any
    fields: Fields
    takes: frozenset[str]
    uses_batch_id: bool = False


@dataclass(frozen=True)
class SelectOp:
    """Some columns in an order, and perhaps the outputs of an expression behind them."""

    keep: tuple[str, ...]
    expression: Expression | None
    fields: Fields


@dataclass(frozen=True)
class FilterOp:
    expression: Expression
    fields: Fields


@dataclass(frozen=True)
class NativeAggregateOp:
    """An aggregate by Spark; without keys it gives one row for no input too.

    Attributes:
        keys: the grouping fields.
        inputs: of the aggregator.
        aggregator: a native one.
        merges: its input is partial values already.
        fields: the keys and the output.
        parts_suffice: the partial values can go on as they are: a state combines
            them, so this only saves rows where they come from several partitions.
    """

    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    aggregator: Any
    merges: bool
    fields: Fields
    parts_suffice: bool = False


@dataclass(frozen=True)
class CollectOp:
    """All values of one column as one row with one list, also when there is none."""

    column: str
    fields: Fields


@dataclass(frozen=True)
class ByKeyOp:
    """Brings the rows of a group into one Spark partition, unless there is only one."""

    keys: tuple[str, ...]
    fields: Fields


@dataclass(frozen=True)
class OnePartitionOp:
    """All rows in one Spark partition, with a marker row so that it exists for an empty batch too."""

    fields: Fields


Op = Union[PyOp, SelectOp, FilterOp, NativeAggregateOp, CollectOp, ByKeyOp, OnePartitionOp]


@dataclass(frozen=True)
class Segment:
    """The operations from an anchor to a target.

    Attributes:
        anchor: a source or a shared node.
        target: a state's node, a shared node or a dangling end.
        ops: in order.
        fields: of the result.
    """

    anchor: Node
    target: Node
    ops: tuple[Op, ...]
    fields: Fields


@dataclass(frozen=True)
class Lowered:
    """A group's segments; those of shared nodes come before what uses them.

    Attributes:
        segments: in the order in which they are built.
        shared: nodes that several branches use.
        checkpointed: those of them that must be computed once.
    """

    segments: tuple[Segment, ...]
    shared: frozenset[Node] = frozenset()
    checkpointed: frozenset[Node] = frozenset()

    @property
    def depends_on_partitions(self) -> bool:
        """Whether less needs to be done for a batch in one Spark partition."""
        return any(only_for_several(op) for segment in self.segments for op in segment.ops)


def only_for_several(op: Op) -> bool:
    """Whether the operation is for nothing when the batch is one Spark partition."""
    return isinstance(op, ByKeyOp) or (isinstance(op, NativeAggregateOp) and op.parts_suffice)


def lower(nodes: Sequence[Node], targets: Sequence[Node]) -> Lowered:
    """Lowers a group.

    Args:
        nodes: those that the targets need, parents first.
        targets: states and dangling ends.
    """
    uses: dict[Node, int] = {}
    for node in nodes:
        for parent in node.parents:
            uses[parent] = uses.get(parent, 0) + 1
    live = live_fields(nodes)
    shared = {node for node in nodes if uses.get(node, 0) > 1 and not isinstance(node, SourceNode)}
    anchors = {node for node in nodes if isinstance(node, SourceNode)} | shared
    segments = [
        _segment(node, anchors, live) for node in nodes if node in shared or node in targets
    ]  # fmt: skip
    return Lowered(tuple(segments), frozenset(shared), frozenset(node for node in shared if not _repeatable(node)))


def live_fields(nodes: Sequence[Node]) -> dict[Node, frozenset[str]]:
    """The fields of each node that something behind it reads."""
    live: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    ends = set(nodes) - {parent for node in nodes for parent in node.parents}
    for node in reversed(nodes):
        if node in ends and isinstance(node, PersistNode):
            live[node] = frozenset(node.names)
        elif not live[node]:
            # Rows are counted even when no field is read, and without a column there are no rows.
            live[node] = frozenset(node.names[-1:])
        for parent in node.parents:
            live[parent] |= _reads(node, parent, live[node])
    return live


def _reads(node: Node, parent: Node, live: frozenset[str]) -> frozenset[str]:
    """The parent's fields that the node needs when only its live ones are read behind it."""
    aggregation = getattr(node, "aggregation", None)
    if aggregation is not None:
        return frozenset((*aggregation.keys, *aggregation.inputs))
    if isinstance(node, PersistNode):
        return frozenset(node.names)
    if isinstance(node, PythonNode):
        return (live - set(node.outputs)) | set(node.inputs)
    if isinstance(node, NativeNode):
        found = node.expression.analysis
        return (live - set(node.outputs)) | (found.reads if found else set(parent.names))
    return live


def _repeatable(node: Node) -> bool:
    """Whether computing the node again must give the same rows."""
    if isinstance(node, PythonNode):
        return False
    if isinstance(node, NativeNode) and not (node.expression.analysis and node.expression.analysis.deterministic):
        return False
    if isinstance(node, AggregateNode) and node.aggregation.kind != "native":
        return False
    return all(map(_repeatable, node.parents))


# --- one segment -------------------------------------------------------------------------


def _segment(target: Node, anchors: set[Node], live: dict[Node, frozenset[str]]) -> Segment:
    path = [target]
    while (parent := path[-1].parents[0]) not in anchors:
        path.append(parent)
    physical = parent.schema.fields if isinstance(parent, SourceNode) else _picked(parent, live[parent])
    maker = _Maker(tuple(physical))
    for node in reversed(path):
        maker.add(node, live)
    wanted = target.schema.fields if isinstance(target, PersistNode) else _picked(target, live[target])
    maker.finish(tuple(wanted))
    return Segment(parent, target, tuple(maker.ops), tuple(wanted))


def _picked(node: Node, names: frozenset[str]) -> list[StructField]:
    return [field for field in node.schema.fields if field.name in names]


class _Maker:
    """Adds operations one by one; knows which columns there physically are."""

    def __init__(self, physical: Fields) -> None:
        self.ops: list[Op] = []
        self._physical = physical

    def add(self, node: Node, live: dict[Node, frozenset[str]]) -> None:
        if isinstance(node, PythonNode):
            self._python(node, live[node])
        elif isinstance(node, NativeNode):
            self._native(node, live[node])
        elif isinstance(node, AggregateNode):
            self._aggregate(node.aggregation, node, persists=False)
        elif isinstance(node, PersistNode) and node.aggregation is not None:
            self._aggregate(node.aggregation, node, persists=True)
        # project and an append change nothing here: live fields, and `finish`, see to it

    def finish(self, wanted: Fields) -> None:
        """Leaves exactly the wanted columns in their order."""
        last = self._last()
        if isinstance(last, PyOp):
            self.ops[-1] = replace(last, fields=wanted)
        elif [field.name for field in wanted] != [field.name for field in self._physical]:
            self._push(SelectOp(tuple(field.name for field in wanted), None, wanted))

    def _last(self) -> Op | None:
        return self.ops[-1] if self.ops else None

    def _push(self, op: Op) -> None:
        self.ops.append(op)
        self._physical = op.fields

    def _push_python(
        self, step: Any, fields: Sequence[StructField], takes: Sequence[str], batch_id: bool = False
    ) -> None:
        taken = frozenset(takes or [field.name for field in self._physical[:1]])
        if not isinstance(self._last(), PyOp) and taken != {field.name for field in self._physical}:
            # What Python does not need is not converted for it.
            kept = tuple(field for field in self._physical if field.name in taken)
            self._push(SelectOp(tuple(field.name for field in kept), None, kept))
        self._push(PyOp(step, tuple(fields), taken, batch_id))

    # --- nodes ---------------------------------------------------------------------------

    def _python(self, node: PythonNode, live: frozenset[str]) -> None:
        label = Label(node.operation, node.function.location)
        earlier = tuple(field for field in node.schema.fields if field.name in live and field.name not in node.outputs)
        keep = tuple(field.name for field in earlier)
        takes = (*keep, *node.inputs)
        if node.kind == "filter":
            self._push_python(Keep(label, node.function.call, node.inputs, keep), earlier, takes)
            return
        if node.kind == "peek":
            self._push_python(Peek(label, node.function.call, node.inputs), earlier, takes)
            return
        made = tuple(node.schema[name] for name in node.outputs)
        step = Rows(
            label, node.function.call, node.inputs, node.outputs, tuple(arrow_type(field.dataType) for field in made),
            node.many, keep, drop_none=node.kind != "map",
        )  # fmt: skip
        self._push_python(step, (*earlier, *made), takes)

    def _native(self, node: NativeNode, live: frozenset[str]) -> None:
        if node.kind == "filter":
            self._push(FilterOp(node.expression, self._physical))
            return
        keep = tuple(field for field in node.schema.fields if field.name in live and field.name not in node.outputs)
        fields = (*keep, *(node.schema[name] for name in node.outputs))
        self._push(SelectOp(tuple(field.name for field in keep), node.expression, fields))

    def _aggregate(self, aggregation: Aggregation, node: Node, persists: bool) -> None:
        fields = tuple(node.schema.fields)
        if aggregation.kind == "native":
            self._native_aggregate(aggregation, fields, persists)
        elif aggregation.kind == "combiner":
            self._combine(aggregation, node, fields, persists)
        else:
            self._fold(aggregation, node, fields)

    def _native_aggregate(self, aggregation: Aggregation, fields: Fields, persists: bool) -> None:
        merges = False
        if (
            isinstance(self._last(), PyOp) and aggregation.keys and aggregation.aggregator.native_name == "count"
            and all(is_plain(field.dataType) for field in fields)
        ):  # fmt: skip
            step = CountRows(aggregation.keys, aggregation.outputs[0].name)
            self._push_python(step, fields, aggregation.keys)
            merges = True
        inputs = tuple(field.name for field in aggregation.outputs) if merges else aggregation.inputs
        suffices = persists and merges
        self._push(NativeAggregateOp(aggregation.keys, inputs, aggregation.aggregator, merges, fields, suffices))

    def _combine(self, aggregation: Aggregation, node: Node, fields: Fields, persists: bool) -> None:
        keys, output = aggregation.keys, aggregation.outputs[0]
        if keys:
            self._push_python(_groups(aggregation, node, "combine", aggregation.inputs, output.name), fields,
                              (*keys, *aggregation.inputs))  # fmt: skip
            if not persists:  # a state combines the parts itself
                self._push(ByKeyOp(keys, fields))
                self._push_python(_groups(aggregation, node, "merge", (output.name,), output.name), fields,
                                  (*keys, output.name))  # fmt: skip
            return
        part = StructField(PARTIAL, output.dataType, True)
        self._push_python(_groups(aggregation, node, "combine", aggregation.inputs, PARTIAL), (part,),
                          aggregation.inputs)  # fmt: skip
        parts = ArrayType(StructType([StructField("value", output.dataType, True)]), False)
        self._push(CollectOp(PARTIAL, (StructField(PARTIALS, parts, False),)))
        step = Rows(
            Label(node.operation, aggregation.location), Folded(aggregation.aggregator), (PARTIALS,), (output.name,),
            (arrow_type(output.dataType),), False, (), drop_none=False,
        )  # fmt: skip
        self._push_python(step, fields, (PARTIALS,))

    def _fold(self, aggregation: Aggregation, node: Node, fields: Fields) -> None:
        keys, mode = aggregation.keys, "reduce" if aggregation.kind == "reducer" else "aggregate"
        read = {*keys, *aggregation.inputs}
        needed = tuple(field for field in self._physical if field.name in read) or self._physical[:1]
        if keys:
            self._push(ByKeyOp(keys, self._physical))
        else:
            self._narrow(needed)
            marked = (*needed, StructField(MARKER, LongType(), False))
            self._push(OnePartitionOp(marked))
            self._push_python(WithoutMarker(MARKER), needed, tuple(field.name for field in marked))
        step = _groups(aggregation, node, mode, aggregation.inputs)
        self._push_python(step, fields, (*keys, *aggregation.inputs), batch_id=mode == "aggregate")

    def _narrow(self, fields: Fields) -> None:
        if isinstance(self._last(), PyOp):
            self.finish(fields)
            self._physical = fields
        elif [field.name for field in fields] != [field.name for field in self._physical]:
            self._push(SelectOp(tuple(field.name for field in fields), None, fields))


def _groups(
    aggregation: Aggregation, node: Node, mode: str, inputs: tuple[str, ...], output: str | None = None
) -> Groups:
    outputs = aggregation.outputs
    return Groups(
        label=Label(node.operation, aggregation.location), aggregator=aggregation.aggregator, mode=mode,
        keys=aggregation.keys, inputs=inputs,
        outputs=(output,) if output else tuple(field.name for field in outputs),
        types=tuple(arrow_type(field.dataType) for field in outputs),
        many=aggregation.many, always=mode in ("reduce", "aggregate") and not aggregation.keys,
    )  # fmt: skip


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which a worker gives values of a Spark type.

    Raises:
        OutputTypeError: there is none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        raise OutputTypeError(
            f"values of type {kind.simpleString()} cannot come from Python", expected="a type that Arrow has"
        ) from error
