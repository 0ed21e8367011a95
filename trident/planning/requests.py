"""Plans DRPC streams: one plan per function, lowered and compiled once, built for every request.

The lowering is that of batch groups. Rows that it would stage between processing
a batch and its turn are handed on directly: a request has no turn to wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from trident.coordinators.errors import TopologyError
from trident.planning.compiled import BuiltBatch, LoweredPlan, arrow_plan, left_to_spark
from trident.planning.groups import Stored, group_of_states
from trident.planning.lowering import lower, repeatable
from trident.planning.nodes import DrpcNode, Node, TopologyGraph, result_of, sources
from trident.planning.session_frames import Batch, compute_once
from trident.states.core.binding import StateBinding
from trident.states.publishing.user_tasks import BatchInfo
from trident.udf.types import PLAIN
from trident.workers.arrow_plan import ArrowPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(kw_only=True)
class DrpcPlan(LoweredPlan):
    """How the requests of one function run on Spark.

    Attributes:
        result: the fields of its answers.
        states: that it asks, with the batch group that writes each.
    """

    function: str
    arguments: StructType
    result: StructType
    nodes: list[Node]
    states: dict[str, tuple[StateBinding, str]]

    @property
    def groups(self) -> list[str]:
        """The batch groups whose states it asks."""
        return sorted({group for _, group in self.states.values()})

    @cached_property
    def in_driver(self) -> ArrowPlan | None:
        """The plan for the leader's process; None where it calls code of the user's, or only Spark can do it."""
        if self._arrow is None or not all(isinstance(field.dataType, PLAIN) for field in self.result):
            return None
        return self._arrow if self._arrow.is_own else None

    @cached_property
    def together(self) -> ArrowPlan | None:
        """The plan by which a task answers several requests; None where each goes another way, for ``reason_alone``."""
        return None if self.in_driver is not None or self.reason_alone else self._arrow

    @cached_property
    def reason_alone(self) -> str:
        """Why a request cannot share its Spark job with others; "": it can."""
        for field in self.arguments:
            if not isinstance(field.dataType, PLAIN):
                return f"argument {field.name} is of type {field.dataType.simpleString()}"
        for field in self.result:
            if not _comes_from_arrow(field.dataType):
                return f"result {field.name} is of type {field.dataType.simpleString()}"
        left = left_to_spark((*self.lowered.segments, *self.lowered.late_segments))
        if left is not None:
            return f"{left.describe()} is left to Spark"
        return "" if self._arrow is not None else "its steps are left to Spark"

    @cached_property
    def _arrow(self) -> ArrowPlan | None:
        if not all(isinstance(field.dataType, PLAIN) for field in self.arguments):
            return None
        named = {node: boundary.name for node, boundary in self.lowered.boundaries.items()}
        named |= {node: node.tx_id for node in sources(self.nodes)}
        return arrow_plan((*self.lowered.segments, *self.lowered.late_segments), named)

    @property
    def copied_states(self) -> frozenset[str]:
        """The states that are looked up in their local copies."""
        found = self.in_driver or self.together
        return frozenset() if found is None else found.states

    def build(self, arguments: "DataFrame", info: BatchInfo, stored: Stored) -> BuiltBatch:
        """The answer to a request, under ``results.RESULT``; lazy as far as that of a batch is.

        Args:
            stored: gives a state's keys and values as of the transaction that the request reads.
        """
        compiled = self.compiled(arguments.sparkSession)
        early = compiled.build({self.function: arguments}, info)
        if not self.lowered.late_segments:
            return early
        try:
            inputs = dict(early)
            for name in self._needed_once():
                inputs[name] = compute_once(early[name], early.checkpoints)
            late = compiled.build_late(inputs, Batch(info, stored))
        except BaseException:
            early.release()
            raise
        late.checkpoints += early.checkpoints
        return late

    def _needed_once(self) -> list[str]:
        """The boundaries that must be computed before they are used twice: a staged file gives the same rows again."""
        uses: Counter[Node] = Counter()
        for segment in self.lowered.late_segments:
            # Rows that are looked up are read twice: as keys, and as the rows beside which the values are put.
            weight = 2 if any(op.reads_state for op in segment.ops) else 1
            for anchor in segment.anchors:
                uses[anchor] += weight
        boundaries = self.lowered.boundaries.items()
        return [boundary.name for node, boundary in boundaries if uses[node] > 1 and not repeatable(node)]


def _comes_from_arrow(kind: DataType) -> bool:
    """Tells whether values come from Arrow as ``collect`` gives them."""
    if isinstance(kind, ArrayType):
        return _comes_from_arrow(kind.elementType) and not isinstance(kind.elementType, TimestampType)
    if isinstance(kind, MapType):
        return all(
            _comes_from_arrow(one) and not isinstance(one, TimestampType) for one in (kind.keyType, kind.valueType)
        )
    if isinstance(kind, StructType):
        return all(_comes_from_arrow(one.dataType) and not isinstance(one.dataType, TimestampType) for one in kind)
    return isinstance(kind, PLAIN)


def copied_states(plans: Mapping[str, DrpcPlan]) -> dict[str, set[str]]:
    """The states that functions look up in local copies, by the batch group that writes them."""
    found: dict[str, set[str]] = {}
    for plan in plans.values():
        for state in plan.copied_states:
            found.setdefault(plan.states[state][1], set()).add(state)
    return found


def drpc_plans(graph: TopologyGraph) -> dict[str, DrpcPlan]:
    """Function → its plan, of every DRPC stream of a topology.

    Raises:
        TopologyError: a function has several results.
    """
    groups = group_of_states(graph) if graph.functions else {}
    return {name: _plan(graph, node, groups) for name, node in sorted(graph.functions.items())}


def _plan(graph: TopologyGraph, source: DrpcNode, groups: dict[str, str]) -> DrpcPlan:
    nodes = [node for node in graph.nodes if graph.origins[node] is source]
    parents = {parent for node in nodes for parent in node.parents}
    ends = [node for node in nodes if node not in parents]
    if len(ends) > 1:
        raise TopologyError(
            f"DRPC stream {source.function!r} ends in several places: which one is the result is not known",
            found=" and ".join(f"{end.operation} at {end.location}" for end in ends),
            expected="one end",
            action="merge or join them, or leave the others out",
        )
    result = result_of(ends[0])
    queried = [node.queried_state for node in nodes if node.queried_state is not None]
    return DrpcPlan(
        function=source.function,
        arguments=source.schema,
        result=result.schema,
        nodes=nodes,
        states={binding.name: (binding, groups[binding.name]) for binding in queried},
        lowered=lower([*nodes, result], [result]),
    )
