"""A topology's plan as plain data, for a page that draws it: nodes and edges of each batch group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.coordinators.shown_errors import with_cells
from trident.planning.graph import TopologyGraph
from trident.planning.groups import GroupPlan
from trident.planning.nodes import Node, is_source

_LABEL_CHARS = 60


def plan_graph(graph: TopologyGraph, plans: Sequence[GroupPlan]) -> dict[str, Any]:
    """The plan for JSON.

    Returns:
        ``topology``, and ``groups``: of each its ``name``, its ``nodes`` and its ``edges``. A node has ``id``,
        ``label`` (of a spout its class), ``kind`` as ``Node.drawn_as``, ``location``, ``depth`` (0 for a spout, of
        others one more than the deepest above), a spout its ``stream``, and one that writes its ``state``. An edge has
        ``from``, ``to``, ``fields``, and ``reads``: no rows flow, the second looks rows up in the first one's state.
    """
    return {"topology": graph.name, "groups": [_group(plan) for plan in plans]}


def _group(plan: GroupPlan) -> dict[str, Any]:
    ids = {node: f"{plan.name}:{number}" for number, node in enumerate(plan.nodes)}
    depths: dict[Node, int] = {}
    for node in plan.nodes:  # parents first
        above = [depths[other] for other in (*node.parents, *node.links) if other in depths]
        depths[node] = 1 + max(above) if above else 0
    return {
        "name": plan.name,
        "nodes": [{"id": own, "depth": depths[node], **_facts(node)} for node, own in ids.items()],
        "edges": [edge for node in ids for edge in _edges(node, ids)],
    }


def _facts(node: Node) -> dict[str, Any]:
    label = " ".join(node.operation.split())
    facts = {
        "label": label if len(label) <= _LABEL_CHARS else f"{label[:_LABEL_CHARS]}…",
        "kind": node.drawn_as,
        "location": with_cells(node.location.rpartition("/")[2]),
    }
    if is_source(node):
        facts |= {"label": type(node.spout).__name__, "stream": node.tx_id}
    if node.writes is not None:
        facts["state"] = node.writes.name
    return facts


def _edges(node: Node, ids: dict[Node, str]) -> list[dict[str, Any]]:
    found = [
        {"from": ids[parent], "to": ids[node], "fields": list(parent.names), "reads": False}
        for parent in node.parents
        if parent in ids
    ]
    links = [{"from": ids[link], "to": ids[node], "fields": [], "reads": True} for link in node.links if link in ids]
    return found + links
