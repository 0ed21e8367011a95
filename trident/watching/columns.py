"""The columns that a state's columns are made of, as far as the nodes of the plan say."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from trident.planning.nodes import Node, SourceNode, is_source


class Way(enum.IntEnum):
    """How a column comes from another one: the strongest of the steps in between."""

    IDENTITY = 0
    TRANSFORMATION = 1
    AGGREGATION = 2
    INDIRECT = 3  # it decides which rows there are, or which rows are put together


Origins = Mapping[tuple[SourceNode, str], Way]


class ColumnOrigins:
    """Follows columns back to the fields of the spouts. Calls nothing of the user's."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, str], Origins] = {}

    def of(self, node: Node, field: str) -> Origins:
        """The spouts' fields that a field of the node is made of."""
        if is_source(node):
            return {(node, field): Way.IDENTITY}
        key = (node, field)
        if key not in self._known:
            found: dict[tuple[SourceNode, str], Way] = {}
            for (parent, read), way in self._step(node, field).items():
                for origin, before in self.of(parent, read).items():
                    found[origin] = min(found.get(origin, Way.INDIRECT), max(way, before))
            self._known[key] = found
        return self._known[key]

    def _step(self, node: Node, field: str) -> dict[tuple[Node, str], Way]:
        """The parents' fields that one field of the node is made of."""
        keys = _grouping(node)
        found: dict[tuple[Node, str], Way] = {}
        for side, parent in enumerate(node.parents):
            reads = [name for name in node.reads(parent, frozenset((field,))) if name in parent.names]
            same = [name for name in reads if node.carried(side, name) == field]
            if same and keys is None and node.writes is not None:
                reads = same  # it writes each of its rows as it is, so no other column decides about this one
            for name in reads:
                if name in same:
                    way = Way.IDENTITY
                elif keys is not None:
                    if field in keys and name not in keys:
                        continue  # what is aggregated has no part in the keys
                    way = Way.INDIRECT if name in keys else Way.AGGREGATION
                else:
                    way = Way.INDIRECT if same else Way.TRANSFORMATION
                found[parent, name] = min(found.get((parent, name), Way.INDIRECT), way)
        return found


def _grouping(node: Node) -> tuple[str, ...] | None:
    """The keys by which a node aggregates; None where it does not."""
    aggregation = getattr(node, "aggregation", None) or getattr(node, "whole", None)
    keys = getattr(aggregation, "keys", None)
    if keys is None and not node.joins and not node.row_by_row:
        keys = getattr(node, "keys", None) if hasattr(node, "keys") and node.drawn_as != "repartition" else None
    return tuple(keys) if isinstance(keys, (tuple, list)) and all(isinstance(key, str) for key in keys) else None
