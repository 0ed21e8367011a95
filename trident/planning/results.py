"""The rows of a stream for a caller, instead of for a state.

A target of its own: the planner lowers up to it as to a state, and
``GroupPlan.build`` gives its rows under :data:`RESULT`. It is never part of a
topology; a caller that wants the rows plans the nodes above a stream with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node

# The name of the rows among a batch's frames; no state can have it.
RESULT = "__trident_result"


@dataclass(frozen=True, eq=False, kw_only=True)
class ResultNode(Node):
    """The end of a stream whose rows are given back: all fields, in their order."""

    keeps_all_fields = True
    output_name = RESULT

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Nothing to do: the segment ends here, with the fields in order."""


def result_of(node: Node) -> ResultNode:
    """The end behind a stream's node."""
    return ResultNode(parents=(node,), schema=node.schema, operation="result", location=node.location)
