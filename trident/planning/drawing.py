"""A topology as a picture by Graphviz: its batch groups, their operations, and the Spark passes they become.

The text of the picture is made by the package ``graphviz`` (extra ``plan``);
drawing it needs the program ``dot`` too. A notebook draws a plan without
either, and without the passes: ``picture.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError, EnvironmentProblem
from trident.planning.explain import described_passes
from trident.planning.graph import TopologyGraph
from trident.planning.groups import GroupPlan, plan
from trident.planning.nodes import Node

# Node.drawn_as → (colour, shape)
_LOOK = {
    "spout": ("#cfe8cf", "cds"),
    "Python": ("#fff2b3", "box"),
    "Spark": ("#d6e6f7", "box"),
    "repartition": ("#e6d9f2", "hexagon"),
    "state": ("#f7d9c4", "cylinder"),
}
_PASS = {"shape": "note", "fillcolor": "#f5f5f5", "fontname": "monospace", "fontsize": "9"}
_LABEL_MAX = 24


def to_dot(graph: TopologyGraph) -> str:
    """The picture in the language of Graphviz; the same topology always gives the same text.

    Operations stand in one box per batch group, coloured by kind; a note at a
    state, or where rows are kept, shows the passes that lead there.

    Raises:
        EnvironmentProblem: the package graphviz is missing.
        TopologyError: as ``TridentTopology.explain``.
    """
    return str(_digraph(graph).source)


def write_svg(graph: TopologyGraph, path: str) -> None:
    """Draws the picture into a file.

    Raises:
        EnvironmentProblem: the package graphviz or its program ``dot`` is missing.
        ConfigError: the file cannot be written.
    """
    picture = _digraph(graph)
    try:
        drawn = picture.pipe(format="svg")
    except _graphviz().ExecutableNotFound:
        raise EnvironmentProblem(
            "the plan cannot be drawn",
            found="no program `dot`",
            expected="Graphviz on the PATH",
            action="install it (apt-get install graphviz), or print the picture's text with --dot",
        ) from None
    try:
        Path(path).write_bytes(drawn)
    except OSError as error:
        raise ConfigError(f"the picture cannot be written to {path}", found=error.strerror or str(error)) from None


def _graphviz() -> Any:
    try:
        return importlib.import_module("graphviz")
    except ImportError:
        raise EnvironmentProblem(
            "the plan cannot be drawn",
            found="no Python package graphviz",
            expected="the extra `plan`",
            action="install it: pip install graphviz",
        ) from None


def _digraph(graph: TopologyGraph) -> Any:
    picture = _graphviz().Digraph(
        graph.name,
        graph_attr={"rankdir": "LR", "label": _escaped(f"topology {graph.name}"), "labelloc": "t"},
        node_attr={"style": "filled", "fontname": "sans-serif", "fontsize": "11"},
        edge_attr={"fontname": "sans-serif", "fontsize": "9"},
    )
    begun = 0
    for number, group in enumerate(plan(graph), 1):
        with picture.subgraph(name=f"cluster{number}") as box:
            box.attr(label=_escaped(f"batch group {group.name}"), style="rounded")
            ids = {node: f"n{begun + place}" for place, node in enumerate(group.nodes, 1)}
            begun += len(ids)
            _draw_nodes(box, ids)
            _draw_passes(box, group, ids)
    return picture


def _draw_nodes(box: Any, ids: dict[Node, str]) -> None:
    for node, own in ids.items():
        kind = node.drawn_as
        colour, shape = _LOOK[kind]
        box.node(own, label=_escaped(node.operation), fillcolor=colour, shape=shape, tooltip=_escaped(kind))
    for node, own in ids.items():
        for parent in node.parents:
            names = ", ".join(parent.names)
            box.edge(ids[parent], own, label=_escaped(names) if len(names) <= _LABEL_MAX else "")
        for link in node.links:
            if link in ids:
                box.edge(ids[link], own, style="dashed", label="is read")


def _draw_passes(box: Any, group: GroupPlan, ids: dict[Node, str]) -> None:
    lowered = group.lowered
    for turn, segments in (("", lowered.segments), ("in the transaction's turn: ", lowered.late_segments)):
        for segment in segments:
            origin = " and ".join(anchor.operation for anchor in segment.anchors)
            lines = [f"{turn}from {origin}:", *(list(described_passes(segment.ops)) or ["as it is"])]
            own = f"{ids[segment.target]}{'late' if turn else ''}passes"
            box.node(own, label="".join(_escaped(line) + r"\l" for line in lines), **_PASS)
            box.edge(own, ids[segment.target], style="dotted", arrowhead="none")


def _escaped(text: str) -> str:
    """Text as it is, whatever Graphviz would read in it."""
    escape = _graphviz().escape
    return str(escape(text.replace("\n", " ")))
