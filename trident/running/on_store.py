"""Refuses, before anything runs, parts of a topology whose files a disk alone can hold, for a warehouse in a store."""

from __future__ import annotations

from collections.abc import Sequence

from trident.coordinators.errors import TopologyError
from trident.planning.graph import TopologyGraph
from trident.planning.groups import GroupPlan
from trident.planning.nodes import SourceNode
from trident.spouts.queues.directory_spout import DirectoryQueueSpout
from trident.states.core.place import Place


def check_on_store(graph: TopologyGraph, plans: Sequence[GroupPlan], warehouse: Place) -> None:
    """Raises TopologyError where a part of the topology keeps files in the warehouse that only a disk can hold."""
    if warehouse.is_local:
        return
    tracked = sorted(name for plan in plans for name in plan.tracked)
    copied = sorted(
        node.tx_id
        for node in graph.nodes
        if isinstance(node, SourceNode) and isinstance(node.spout, DirectoryQueueSpout)
    )
    for names, what in ((copied, "the copies of a DirectoryQueueSpout's files"), (tracked, "the ledgers of messages")):
        if names:
            raise TopologyError(
                f"{what} cannot be kept in {warehouse}",
                found=f"the streams {', '.join(names)}",
                expected="a warehouse on a disk, which all hosts share where there are several",
                action="set warehouse to a path, or take another spout",
            )
