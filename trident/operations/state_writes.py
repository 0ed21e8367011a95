"""The nodes that write to states, and those of the values that were written."""

from __future__ import annotations

from dataclasses import dataclass

from trident.operations.aggregation import Aggregation
from trident.planning.nodes import Node
from trident.states.core.binding import StateBinding


@dataclass(frozen=True, eq=False, kw_only=True)
class PersistNode(Node):
    """partition_persist or persistent_aggregate: what is written to a state.

    Attributes:
        binding: the state.
        aggregation: of the rows; None where they are written, or put, as they are.
        mode: how a state that is read before it is written takes a row: "merge"
            (partial values), "reduce", "aggregate" or "put"; None where it is
            written without being read.
        takes: the parent's fields that it reads, where they are not those of the schema.
    """

    binding: StateBinding
    aggregation: Aggregation | None = None
    mode: str | None = None
    takes: tuple[str, ...] | None = None

    @property
    def takes_anchors(self) -> bool:  # type: ignore[override]
        return self.aggregation is not None and self.aggregation.kind == "combiner"


@dataclass(frozen=True, eq=False, kw_only=True)
class SpoutTableNode(PersistNode):
    """The table that a spout owns; its rows come from the spout's emitter, not from the stream."""

    tx_id: str


@dataclass(frozen=True, eq=False, kw_only=True)
class NewValuesNode(Node):
    """The values of the keys that a transaction has changed in a state, as a stream of that transaction."""
