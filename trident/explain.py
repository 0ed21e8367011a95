"""A topology as text: its batch groups, their operations, and the passes that they become."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from trident.arrow_groups import Groups
from trident.arrow_ops import CountRows, WithoutMarker
from trident.lowering import (
    ByKeyOp,
    CollectOp,
    CombineStoredOp,
    FilterOp,
    IntoPartitionsOp,
    JoinStateOp,
    KeepRowsOp,
    LastOp,
    NativeAggregateOp,
    NotDeletedOp,
    OnePartitionOp,
    Op,
    PyOp,
    Segment,
    SelectOp,
    only_for_several,
)
from trident.nodes import Node, PersistNode, SourceNode
from trident.planner import GroupPlan, plan

if TYPE_CHECKING:
    from trident.topology import TridentTopology

_IF_SEVERAL = " (unless the batch is one Spark partition)"


def explain(topology: "TridentTopology") -> str:
    """The text of ``TridentTopology.explain``."""
    lines = [f"topology {topology.name}"]
    for group in plan(topology):
        lines += ["", f"group {group.name}", *_indented(_nodes(group)), *_indented(_passes(group))]
    return "\n".join(lines)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _nodes(group: GroupPlan) -> Iterator[str]:
    """One line per node; a node is named by its number where a branch begins."""
    numbers = {node: number for number, node in enumerate(group.nodes, 1)}
    for node, number in numbers.items():
        origin = "".join(f" of {numbers[parent]}" for parent in node.parents)
        file, _, line = node.location.rpartition(":")
        yield f"{number}{origin}: {node.operation} -> {_fields(node)}   [{os.path.basename(file)}:{line}]"


def _fields(node: Node) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields)


def _passes(group: GroupPlan) -> Iterator[str]:
    numbers = {node: number for number, node in enumerate(group.nodes, 1)}
    yield from _segments(group.lowered.segments, group, numbers)
    if group.lowered.late_segments:
        yield "in the transaction's turn, as of the transaction before:"
        yield from _indented(_segments(group.lowered.late_segments, group, numbers))


def _segments(segments: Sequence[Segment], group: GroupPlan, numbers: dict[Node, int]) -> Iterator[str]:
    for segment in segments:
        yield f"from {_anchor(segment.anchor, numbers)} to {_target(segment, group, numbers)}:"
        steps = list(_steps(segment.ops))
        yield from (f"  {step}" for step in steps or ["as it is"])


def _anchor(node: Node, numbers: dict[Node, int]) -> str:
    return node.operation if isinstance(node, SourceNode) else str(numbers[node])


def _target(segment: Segment, group: GroupPlan, numbers: dict[Node, int]) -> str:
    node = segment.target
    if isinstance(node, PersistNode):
        return f"{node.binding.kind} state {node.binding.name}"
    if node in group.lowered.boundaries and node not in group.lowered.shared:
        return f"{numbers[node]}, staged for the transaction's turn"
    if node not in group.lowered.shared:
        return f"{numbers[node]}, which no state takes"
    once = "computed once" if node in group.lowered.checkpointed else "computed by each of them"
    return f"{numbers[node]}, which several branches use ({once})"


def _steps(ops: Sequence[Op]) -> Iterator[str]:
    for in_python, run in groupby(ops, key=lambda op: isinstance(op, PyOp)):
        if in_python:
            found = cast("list[PyOp]", list(run))
            names = ", ".join(field.name for field in found[-1].fields)
            yield f"Python: {', '.join(filter(None, map(_python_step, found)))} -> {names}"
        else:
            yield from (f"Spark: {_native_step(op)}{_IF_SEVERAL if only_for_several(op) else ''}" for op in run)


def _python_step(op: PyOp) -> str:
    step = op.step
    if isinstance(step, CountRows):
        return f"count by {', '.join(step.keys)}"
    if isinstance(step, WithoutMarker):
        return ""
    if isinstance(step, Groups):
        return f"{step.label.operation}: {step.mode}{' by ' if step.keys else ''}{', '.join(step.keys)}"
    return str(step.label.operation)


def _native_step(op: Op) -> str:
    if isinstance(op, SelectOp):
        made = [f"{op.expression} as {', '.join(f.name for f in op.expression.outputs)}"] if op.expression else []
        return f"select {', '.join([*op.keep, *made])}"
    if isinstance(op, FilterOp):
        return f"filter {op.expression}"
    if isinstance(op, NativeAggregateOp):
        verb = "merge" if op.merges else "partial"
        by = f" by {', '.join(op.keys)}" if op.keys else ""
        return f"{verb} {op.aggregator!r}{by} -> {op.fields[-1].name}"
    if isinstance(op, CollectOp):
        return "gather the partial values"
    if isinstance(op, ByKeyOp):
        return f"repartition by {', '.join(op.keys)}"
    if isinstance(op, LastOp):
        return f"the last row of each {', '.join(op.keys)}"
    if isinstance(op, JoinStateOp):
        return f"look up {', '.join(op.inputs) or 'everything'} in {op.binding.name}"
    if isinstance(op, CombineStoredOp):
        return f"{op.aggregator!r} of the stored value and the batch's"
    if isinstance(op, KeepRowsOp):
        return f"filter {'not ' if op.negated else ''}{op.condition}"
    if isinstance(op, NotDeletedOp):
        return "nothing is deleted"
    if isinstance(op, IntoPartitionsOp):
        return f"into {op.count} partitions{' by ' if op.keys else ''}{', '.join(op.keys)}"
    assert isinstance(op, OnePartitionOp)
    return "into one partition"
