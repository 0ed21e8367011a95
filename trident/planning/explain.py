"""A topology as text: its batch groups, their operations, and the passes that they become."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trident.planning.compiled import passes
from trident.planning.graph import TopologyGraph
from trident.planning.groups import GroupPlan, plan
from trident.planning.kept import is_one_job, why_not_kept
from trident.planning.nodes import Node, is_source
from trident.planning.operation import Operation, names_of
from trident.planning.requests import DrpcPlan, drpc_plans
from trident.planning.segments import Lowered, Segment

_KEPT = "the plan is kept from batch to batch, where a batch of rows or of whole files is one Spark partition"
_ANEW = "the plan is made anew for each batch"
_MOVES = " [shuffle]"
_IF_SEVERAL = " (unless the batch is one Spark partition)"


def explain(graph: TopologyGraph) -> str:
    """The text of ``TridentTopology.explain``."""
    lines = [f"topology {graph.name}"]
    for group in plan(graph):
        lines += ["", f"group {group.name}", *_group(group).lines()]
        why_not = why_not_kept(group)
        lines.append(f"  {_KEPT if why_not is None else f'{_ANEW}: {why_not}'}")
    for request in drpc_plans(graph).values():
        described = _Described(request.nodes, request.lowered, False, request.in_driver is not None)
        lines += ["", f"requests {request.function}", *described.lines(), f"  {_answered(request)}"]
    return "\n".join(lines)


def _answered(request: DrpcPlan) -> str:
    if request.in_driver is not None:
        return "each is answered in the leader's process"
    if request.together is not None:
        return "those that wait are answered together, each for itself in one Spark job"
    return f"each takes Spark jobs of its own: {request.why_alone}"


def _group(group: GroupPlan) -> _Described:
    return _Described(group.nodes, group.lowered, True, group.late_in_driver is not None, is_one_job(group))


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


@dataclass(frozen=True)
class _Described:
    """Describes a batch group, or the plan of a DRPC function.

    Attributes:
        of_batches: whether it has transactions, in whose turn the late half runs.
        in_driver: few rows go through the late half in the coordinator's process.
        in_one_job: both halves are one Spark job for few rows whose turn has come when the early half begins.
    """

    nodes: Sequence[Node]
    lowered: Lowered
    of_batches: bool
    in_driver: bool = False
    in_one_job: bool = False

    @property
    def numbers(self) -> Mapping[Node, int]:
        """A node is named by its number where a branch begins."""
        return {node: number for number, node in enumerate(self.nodes, 1)}

    def lines(self) -> Iterator[str]:
        yield from _indented(self._nodes())
        yield from _indented(self._segments(self.lowered.segments))
        if self.lowered.late_segments:
            turn = "in the transaction's turn, as of the transaction before:"
            if self.in_driver or self.lowered.copied_states:
                turn = f"{turn[:-1]} (few rows: {self._few_rows}):"
            asked = "as of one advanced transaction of each group:"
            if self.in_driver and not self.of_batches:
                asked = f"{asked[:-1]} (from local copies in the leader's process, without a Spark job):"
            yield f"  {turn if self.of_batches else asked}"
            yield from _indented(_indented(self._segments(self.lowered.late_segments)))

    @property
    def _few_rows(self) -> str:
        """The form in which few rows go through the late half of a transaction."""
        here = "in the coordinator's process, without a Spark job"
        if not self.in_one_job:
            return here if self.in_driver else "one Spark job"
        later = here if self.in_driver else "by another"
        return f"by the early half's Spark job when it begins in the turn, else {later}"

    def _nodes(self) -> Iterator[str]:
        numbers = self.numbers
        for node, number in numbers.items():
            parents = " and ".join(str(numbers[parent]) for parent in node.parents)
            origin = f" of {parents}" if parents else ""
            file, _, line = node.location.rpartition(":")
            fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields)
            yield f"{number}{origin}: {node.operation} -> {fields}   [{os.path.basename(file)}:{line}]"
            yield from (f"   note: {note}" for note in node.notes())

    def _segments(self, segments: Sequence[Segment]) -> Iterator[str]:
        hinted, numbers = self.lowered.source_partitions, self.numbers
        for segment in segments:
            origins = (node.operation if is_source(node) else str(numbers[node]) for node in segment.anchors)
            yield f"from {' and '.join(origins)} to {self._target(segment.target)}:"
            steps = [
                f"Spark: {anchor.operation} into {hinted[anchor]} partitions{_MOVES}"
                for anchor in segment.anchors
                if anchor in hinted
            ]
            steps += described_passes(segment.ops)
            yield from (f"  {step}" for step in steps or ["as it is"])

    def _target(self, node: Node) -> str:
        lowered = self.lowered
        if node.writes is not None:
            return f"{node.writes.kind} state {node.writes.name}"
        if node.output_name is not None:
            return "the answer"
        number = self.numbers[node]
        if node in lowered.boundaries and not self.of_batches:
            return str(number)
        if node in lowered.boundaries and node not in lowered.shared:
            return f"{number}, staged for the transaction's turn"
        if node in lowered.single_use:
            return str(number)
        if node not in lowered.shared:
            return f"{number}, which no state takes"
        once = "computed once" if node in lowered.checkpointed else "computed by each of them"
        return f"{number}, which several branches use ({once})"


def described_passes(ops: Sequence[Operation]) -> Iterator[str]:
    """A line per operation by Spark, and one per pass of Python workers."""
    for run in passes(ops):
        last = run[-1]
        if last.in_python:
            steps = filter(None, (op.describe() for op in run))
            yield f"Python: {', '.join(steps)} -> {', '.join(names_of(last.fields))}"
        else:
            moves = _MOVES if last.shuffles else ""
            yield f"Spark: {last.describe()}{moves}{_IF_SEVERAL if last.no_op_on_one_partition else ''}"
