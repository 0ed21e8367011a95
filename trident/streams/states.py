"""A state in a topology: its name, what is written to it, and how it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TopologyError
from trident.operations.guarantees import warn_if_not_exactly_once
from trident.operations.repartitioning import check_hint
from trident.operations.state_nodes import PersistNode
from trident.operations.state_queries import QueriedState
from trident.planning.nodes import TopologyGraph
from trident.states.core.binding import StateBinding
from trident.streams.other_names import STATE_NAMES, OtherNames

if TYPE_CHECKING:
    from typing_extensions import Self


class StateHandle(OtherNames):
    """A state as its topology knows it; :class:`trident.streams.stream.TridentState` adds the stream of new values."""

    _OTHER_NAMES = STATE_NAMES

    def __init__(self, graph: TopologyGraph, node: PersistNode | None, source: Any = None) -> None:
        self._graph, self._node, self.source = graph, node, source

    @property
    def binding(self) -> StateBinding | None:
        return self._node.binding if self._node is not None else None

    @property
    def name(self) -> str:
        return self._node.binding.name if self._node is not None else ""

    def __repr__(self) -> str:
        return f"TridentState({self.name or self.source!r})"

    def parallelism_hint(self, count: int) -> "Self":
        """The state itself. In Storm it says how many tasks write to the state, as programs of Trident do at their end.

        Here that follows from the rows that are written: give the hint to the
        stream in front of the state, or ``partitions=`` to a map of your own. A
        DeltaMapState and a DeltaAppend are written by the tasks that have the rows.

        Raises:
            TopologyError: it is no whole number from 1.
        """
        check_hint(count)
        return self


def queried_state(graph: TopologyGraph, state: Any) -> QueriedState:
    """The state that a ``state_query`` asks.

    Raises:
        TopologyError: it is none, or one of another topology.
    """
    if not isinstance(state, StateHandle):
        raise TopologyError(
            "state_query needs a state of the topology",
            found=repr(state),
            expected="what persistent_aggregate, partition_persist or new_static_state gave",
        )
    if state._graph is not graph:
        raise TopologyError(
            "state_query needs a state of its own topology",
            found=repr(state),
            action="query it from a stream of that topology",
        )
    return QueriedState(state._node, state.source)


def add_sink(graph: TopologyGraph, node: PersistNode) -> None:
    """Adds a node that writes to a state; warns where state and spout are not exactly once together."""
    graph.add_sink(node)
    warn_if_not_exactly_once(node, graph.name)
