"""A topology as text: its batch groups, their operations, and the passes that they become."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from trident.operations.same_batch import notes
from trident.operations.state_writes import PersistNode
from trident.planning.graph import TopologyGraph
from trident.planning.groups import GroupPlan, plan
from trident.planning.lowering import (
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
    OwnOp,
    PyOp,
    Segment,
    SelectOp,
    moves_rows,
    only_for_several,
)
from trident.planning.nodes import Node, SourceNode
from trident.planning.requests import DrpcPlan, drpc_plans
from trident.planning.results import ResultNode
from trident.workers.chain import CountRows, WithoutMarker
from trident.workers.groups import Groups
from trident.workers.tracking import BeginTrees, EndTrees, Tracked, TrackedGroups

_MOVES = " [shuffle]"
_IF_SEVERAL = " (unless the batch is one Spark partition)"


def explain(graph: TopologyGraph) -> str:
    """The text of ``TridentTopology.explain``."""
    lines = [f"topology {graph.name}"]
    for group in plan(graph):
        lines += ["", f"group {group.name}", *_indented(_nodes(group)), *_indented(_passes(group))]
    for request in drpc_plans(graph).values():
        lines += ["", f"requests {request.function}", *_indented(_nodes(request)), *_indented(_passes(request))]
    return "\n".join(lines)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _nodes(group: "GroupPlan | DrpcPlan") -> Iterator[str]:
    """One line per node; a node is named by its number where a branch begins."""
    numbers = {node: number for number, node in enumerate(group.nodes, 1)}
    for node, number in numbers.items():
        parents = " and ".join(str(numbers[parent]) for parent in node.parents)
        origin = f" of {parents}" if parents else ""
        file, _, line = node.location.rpartition(":")
        yield f"{number}{origin}: {node.operation} -> {_fields(node)}   [{os.path.basename(file)}:{line}]"
        yield from (f"   note: {note}" for note in notes(node))


def _fields(node: Node) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields)


def _passes(group: "GroupPlan | DrpcPlan") -> Iterator[str]:
    numbers = {node: number for number, node in enumerate(group.nodes, 1)}
    yield from _segments(group.lowered.segments, group, numbers)
    if group.lowered.late_segments:
        turn = "in the transaction's turn, as of the transaction before:"
        yield "as of one advanced transaction of each group:" if isinstance(group, DrpcPlan) else turn
        yield from _indented(_segments(group.lowered.late_segments, group, numbers))


def _segments(segments: Sequence[Segment], group: "GroupPlan | DrpcPlan", numbers: dict[Node, int]) -> Iterator[str]:
    for segment in segments:
        origin = " and ".join(_anchor(anchor, numbers) for anchor in segment.anchors)
        yield f"from {origin} to {_target(segment, group, numbers)}:"
        steps = [
            f"Spark: {anchor.operation} into {group.lowered.spreads[anchor]} partitions{_MOVES}"
            for anchor in segment.anchors
            if anchor in group.lowered.spreads
        ]
        steps += _steps(segment.ops)
        yield from (f"  {step}" for step in steps or ["as it is"])


def _anchor(node: Node, numbers: dict[Node, int]) -> str:
    return node.operation if isinstance(node, SourceNode) else str(numbers[node])


def _target(segment: Segment, group: "GroupPlan | DrpcPlan", numbers: dict[Node, int]) -> str:
    node = segment.target
    if isinstance(node, PersistNode):
        return f"{node.binding.kind} state {node.binding.name}"
    if isinstance(node, ResultNode):
        return "the answer"
    if node in group.lowered.boundaries and isinstance(group, DrpcPlan):
        return str(numbers[node])
    if node in group.lowered.boundaries and node not in group.lowered.shared:
        return f"{numbers[node]}, staged for the transaction's turn"
    if node in group.lowered.passing:
        return str(numbers[node])
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
            for op in run:
                moves = _MOVES if moves_rows(op) else ""
                yield f"Spark: {_native_step(op)}{moves}{_IF_SEVERAL if only_for_several(op) else ''}"


def _python_step(op: PyOp) -> str:
    step = op.step
    if isinstance(step, CountRows):
        return f"count by {', '.join(step.keys)}"
    if isinstance(step, WithoutMarker):
        return ""
    if isinstance(step, (EndTrees, BeginTrees)):
        return f"{'end' if isinstance(step, EndTrees) else 'begin'} trees"
    if isinstance(step, Tracked):
        return f"{_python_step(replace(op, step=step.step))} (tracked)"
    if isinstance(step, Groups):
        tracked = " (tracked)" if isinstance(step, TrackedGroups) else ""
        return f"{step.label.operation}: {step.mode}{' by ' if step.keys else ''}{', '.join(step.keys)}{tracked}"
    return str(step.label.operation)


def _native_step(op: Op) -> str:
    if isinstance(op, OwnOp):
        return op.text()
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
