"""The graph of a topology: its nodes, sources and states, as the user's calls made them; planner and runner read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from trident.coordinators.errors import TopologyError
from trident.planning.nodes import Node, SourceNode
from trident.planning.request_nodes import DrpcNode, no_committer, origin_of


class Built(Protocol):
    """A topology as the user's calls have built it: a ``TridentTopology``, which stands above."""

    name: str
    graph: TopologyGraph


@dataclass(eq=False)
class TopologyGraph:
    """The nodes of a topology, and its sources, states and functions; each call of the user adds to it.

    Attributes:
        nodes: in the order of the user's calls: parents first.
        sources: tx_id → the node that a spout's rows come from.
        functions: DRPC function → the node that its requests come from.
        sinks: state name → the node that writes to it.
        origins: node → the DRPC source above it; None: its rows are those of batches.
        open_chains: chained aggregation without its ``chain_end()`` → "file:line" of the call that began it.
        kept_rows: windows whose state is there already, and has rows: it goes on as it is.
        window_names: of the windows that calls have made; those of sessions have no node before their keys are known.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    sources: dict[str, SourceNode] = field(default_factory=dict)
    functions: dict[str, DrpcNode] = field(default_factory=dict)
    sinks: dict[str, Any] = field(default_factory=dict)
    origins: dict[Node, DrpcNode | None] = field(default_factory=dict)
    open_chains: dict[Any, str] = field(default_factory=dict)
    kept_rows: set[str] = field(default_factory=set)
    window_names: set[str] = field(default_factory=set)

    def add(self, node: Node) -> None:
        """Adds a node, behind those of its parents that are new; one that is there stays where it is.

        Raises:
            TopologyError: rows of a request would meet others.
        """
        if node in self.origins:
            return
        for parent in node.parents:
            self.add(parent)
        self.origins[node] = origin_of(node, self.origins)
        self.nodes.append(node)

    def add_source(self, node: SourceNode) -> None:
        """Adds the source of a stream, of batches or of requests."""
        self.add(node)
        if isinstance(node, DrpcNode):
            self.functions[node.function] = node
        else:
            self.sources[node.tx_id] = node

    def add_sink(self, sink: Any) -> None:
        """Adds a node that writes to a state.

        Raises:
            TopologyError: another node writes to that state, or it is below a DRPC stream.
        """
        binding, other = sink.binding, self.sinks.get(sink.binding.name)
        if other is not None and other.binding.state_kind is not binding.state_kind:
            raise TopologyError(
                f"state {binding.name!r} is used as two kinds",
                found=f"{other.binding.state!r} at {other.location} and {binding.state!r} at {sink.location}",
                expected="one state of one name",
                action="give one of them another name",
            )
        if other is not None:
            raise TopologyError(
                f"state {binding.name!r} is written twice",
                found=f"{other.operation} at {other.location} and {sink.operation} at {sink.location}",
                expected="one operation that writes to a state",
                action="give one of them another state",
            )
        for parent in sink.parents:
            self.check_commits(parent, sink.operation)
        kind, sinks = binding.state_kind, self.sinks.values()
        kind.check_beside(binding.state, [one.binding.state for one in sinks if one.binding.state_kind is kind])
        self.add(sink)
        self.sinks[binding.name] = sink

    def check_commits(self, node: Node, operation: str) -> None:
        """Raises TopologyError for an operation that needs transactions below a DRPC stream: a request is none."""
        origin = self.origins.get(node)
        if origin is not None:
            raise no_committer(origin, operation)

    def check_chains(self) -> None:
        """Raises TopologyError for a chained aggregation that was not ended."""
        for chain, location in self.open_chains.items():
            raise TopologyError(
                "a chained aggregation was left open",
                found=f"{chain!r} at {location}",
                expected="chain_end() behind its last link",
            )

    def check_order(self) -> None:
        """Raises TopologyError for a cycle: streams are made of earlier ones, so only one made by hand closes it."""
        known: set[Node] = set()
        for node in self.nodes:
            for other in (*node.parents, *node.links):
                if other not in known:
                    raise TopologyError(
                        "the topology has a cycle",
                        found=f"{node.operation} at {node.location} depends on {other.operation}, which comes later",
                        expected="operations on streams that there are already",
                    )
            known.add(node)
