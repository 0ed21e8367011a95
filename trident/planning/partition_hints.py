"""Brings the user's hints about Spark partitions to the nodes that decide about partitions."""

from __future__ import annotations

from collections.abc import Sequence

from trident.planning.builder import PartitionHints
from trident.planning.nodes import Node


def partition_hints(nodes: Sequence[Node]) -> PartitionHints:
    """Brings each hint up to the node that decides about partitions; of two hints the greater one counts."""
    counts: dict[Node, int] = {}
    exact: set[Node] = set()
    for node in nodes:
        if node.parallelism is not None:
            above = partitioner_of(node.parents[0])
            counts[above] = max(node.parallelism, counts.get(above, 0))
        if node.per_partition:
            exact.add(partitioner_of(node.parents[0]))
    return PartitionHints(counts, frozenset(exact))


def partitioner_of(node: Node) -> Node:
    """The nearest node, upwards, that says which rows are in which Spark partition."""
    while node.row_by_row:
        node = node.parents[0]
    return node
