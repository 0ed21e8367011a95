"""merge, join and multi_reduce of streams: all of one topology, and a warning where only rows of one batch meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.coordinators.errors import TopologyError
from trident.operations import joins, merging, multi_reduce, row_functions
from trident.operations.joins import JoinOutFieldsMode
from trident.operations.same_batch import warn_if_independent
from trident.operations.timed import TimedNode
from trident.operations.timed_joins import join_within
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node
from trident.streams.rows import RowOperations


def merge(graph: TopologyGraph, streams: Sequence[Any], outputs: Any) -> Node:
    """The node of :meth:`TridentTopology.merge`, in the graph."""
    _check(graph, streams, "merge")
    node = merging.merge([stream._node for stream in streams], outputs)
    graph.add(node)
    return node


def join(
    graph: TopologyGraph, streams: Sequence[Any], keys: Any, outputs: Any, type: Any, mode: JoinOutFieldsMode
) -> Node:
    """The node of :meth:`TridentTopology.join`, in the graph."""
    _check(graph, streams, "join")
    node = joins.join([stream._node for stream in streams], keys, outputs, type, mode)
    graph.add(node)
    warn_if_independent(node, node.operation)
    if not node.hidden:
        return node
    given = row_functions.project(node, node.names[node.hidden :])
    graph.add(given)
    return given


def joined_within(
    graph: TopologyGraph,
    streams: Sequence[Any],
    keys: Any,
    outputs: Any,
    how: Any,
    mode: JoinOutFieldsMode,
    within: Any,
    name: Any,
) -> TimedNode:
    """The node of a join with a time bound; the caller adds it to the graph."""
    _check(graph, streams, "join")
    return join_within(graph, [stream._node for stream in streams], keys, how, outputs, mode, within, name)


def reduce_several(graph: TopologyGraph, streams: Sequence[Any], inputs: Any, reducer: Any, outputs: Any) -> Node:
    """The node of :meth:`TridentTopology.multi_reduce`, in the graph."""
    what = "multi_reduce"
    keys = tuple(stream._keys if isinstance(stream, RowOperations) else () for stream in streams)
    if any(keys) and not all(keys):
        raise TopologyError(f"{what}: some of the streams are grouped and others not", expected="all of them, or none")
    _check(graph, streams, what, grouped=any(keys))
    node = multi_reduce.multi_reduce([stream._node for stream in streams], keys, inputs, reducer, outputs)
    graph.add(node)
    warn_if_independent(node, node.operation)
    return node


def _check(graph: TopologyGraph, streams: Sequence[Any], what: str, grouped: bool = False) -> None:
    if not streams:
        raise TopologyError(f"{what} has no streams", expected="at least one")
    for stream in streams:
        if not isinstance(stream, RowOperations) or bool(stream._keys) is not grouped:
            raise TopologyError(f"{what} takes streams", found=repr(stream), expected="a Stream of this topology")
        if stream._graph is not graph:
            raise TopologyError(
                f"{what}: the streams are of two topologies",
                found=f"one of {stream._graph.name!r} and one of {graph.name!r}",
                expected="streams of one topology: they meet within a transaction",
                action="read the other topology's table with a DeltaSpout",
            )
