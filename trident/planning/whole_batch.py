"""Builds a whole batch, early part and late part, in one session: nothing is staged, so nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame

from trident.planning.compiled import BuiltBatch, LoweredPlan
from trident.planning.groups import GroupPlan, Stored, nodes_above
from trident.planning.lowering import lower
from trident.planning.nodes import Node
from trident.planning.results import result_of
from trident.planning.session_frames import Batch, compute_and_count
from trident.states.core.binding import StateBinding
from trident.states.publishing.user_tasks import BatchInfo

# So few rows are one Spark partition behind a boundary: about those that a running topology reads from 8 MB of files.
_SMALL_ROWS = 100_000


def plan_of_stream(name: str, node: Node, nodes: Sequence[Node]) -> GroupPlan:
    """The plan of the nodes above a stream, whose rows it gives under :data:`RESULT`; no state takes any.

    Args:
        name: of the plan, for messages.
        nodes: of the topology, parents first.
    """
    result = result_of(node)
    used = [*nodes_above([node], nodes), result]
    # The states that it goes on from are computed as in their topology.
    return GroupPlan(name=name, nodes=used, lowered=lower(used, [result, *(one for one in used if one.writes)]))


class ReadState(NamedTuple):
    """A state that a batch reads as of the transaction before, and the first node that does."""

    binding: StateBinding
    node: Node


def states_read(nodes: Iterable[Node]) -> dict[str, ReadState]:
    """The states that some nodes read, by name."""
    found: dict[str, ReadState] = {}
    for node in nodes:
        if node.late:
            read = node.asks or node.writes or next((one.writes for one in node.parents if one.writes), None)
            if read is not None:
                found.setdefault(read.name, ReadState(read, node))
    return found


def build_whole(plan: LoweredPlan, inputs: Mapping[str, "DataFrame"], info: BatchInfo, stored: Stored) -> BuiltBatch:
    """The rows that a batch has for every state, and for every caller's end, of both parts.

    A running topology stages the rows between the two parts; here they are kept in the session until the result is
    released. They are the same rows in the same order.

    Args:
        inputs: tx_id → the batch, one at least.
        info: for users' own code.
        stored: gives a state's keys and values as of the transaction before.

    Returns:
        name → rows; release it once they are no longer read.
    """
    compiled, lowered = plan.compiled(next(iter(inputs.values())).sparkSession), plan.lowered
    built = compiled.build(inputs, info)
    if not lowered.late_segments:
        return built
    try:
        between, rows = dict[str, "DataFrame"](), 0
        for boundary in lowered.boundaries.values():
            between[boundary.name], count = _kept(built.pop(boundary.name), built.checkpoints)
            rows += count
        late = compiled.build_late(between, Batch(info, stored, rows=rows))
        built.checkpoints += late.checkpoints
        built.update({one.name: between[one.name] for one in lowered.boundaries.values() if not one.own})
        built.update(late)
    except BaseException:
        built.release()
        raise
    return built


def _kept(rows: "DataFrame", kept: list["DataFrame"]) -> tuple["DataFrame", int]:
    """The rows between the parts, computed once, few of them in one Spark partition; and how many there are."""
    checkpoint, count = compute_and_count(rows, kept)
    return checkpoint.coalesce(1) if count <= _SMALL_ROWS else checkpoint, count
