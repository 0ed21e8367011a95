"""Finds the fields of each node that are read behind it, and the rows that have anchors."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from trident.planning.basic_operations import Branch
from trident.planning.nodes import Node
from trident.workers.anchors import ANCHORS

Live = Mapping[Node, frozenset[str]]


def live_fields(nodes: Sequence[Node], anchored: frozenset[Node] = frozenset()) -> dict[Node, frozenset[str]]:
    """The fields of each node that something behind it reads.

    Args:
        nodes: parents first.
        anchored: those whose rows can have anchors, which are then a field too.
    """
    live: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    for node in reversed(nodes):
        if node.keeps_all_fields:
            live[node] = frozenset(node.names)
        elif not live[node]:
            # Rows are counted even when no field is read, and without a column there are no rows.
            live[node] = frozenset(node.names[-1:])
        for parent in node.parents:
            live[parent] |= node.reads(parent, live[node])
            if parent in anchored and _wants_anchors(node, live):
                live[parent] |= {ANCHORS}
    return live


def anchored_nodes(nodes: Sequence[Node], late: frozenset[Node], tracked: Collection[Node]) -> frozenset[Node]:
    """The nodes whose rows can have anchors: from the tracked sources to where rows of several messages meet."""
    found: set[Node] = set()
    for node in nodes:  # parents first
        passes = node.passes_anchors and node not in late and any(parent in found for parent in node.parents)
        if passes or node in tracked:
            found.add(node)
    return frozenset(found)


def anchor_branches(early: Sequence[Node], anchors: Container[Node], live: Live) -> dict[tuple[Node, int], Branch]:
    """(node, which of its parents) → its branch, where several nodes take the anchors of one."""
    edges: dict[Node, list[tuple[Node, int]]] = {}
    for node in early:
        for side, parent in enumerate(node.parents):
            if parent in anchors and ANCHORS in live[parent] and _wants_anchors(node, live):
                edges.setdefault(parent, []).append((node, side))
    return {
        edge: Branch(number, len(found))
        for found in edges.values()
        if len(found) > 1
        for number, edge in enumerate(found)
    }


def _wants_anchors(node: Node, live: Live) -> bool:
    """Tells whether a parent's rows must bring their anchors to the node, where they have any."""
    return node.takes_anchors or ANCHORS in live[node]
