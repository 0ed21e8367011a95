"""A topology as text, as plain data, and as a picture by Graphviz: groups, operations, Spark passes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError, EnvironmentProblem
from trident.coordinators.tracebacks import with_cells
from trident.planning.compiled import left_to_spark, passes
from trident.planning.groups import GroupPlan, is_one_job, plan, why_not_kept
from trident.planning.lowering import Lowered, Segment
from trident.planning.nodes import Node, TopologyGraph, is_source
from trident.planning.operation import Operation, names_of
from trident.planning.requests import DrpcPlan, drpc_plans

_KEPT = "the plan is kept from batch to batch, where a batch of rows or of whole files is one Spark partition"
_ANEW = "the plan is made anew for each batch"
_MOVES = " [shuffle]"
_IF_SEVERAL = " (unless the batch is one Spark partition)"


def explain(graph: TopologyGraph) -> str:
    """The text of ``TridentTopology.explain``."""
    lines = [f"topology {graph.name}"]
    for group in plan(graph):
        lines += ["", f"group {group.name}", *_group(group).lines()]
        why_not = why_not_kept(group)
        lines.append(f"  {_KEPT if why_not is None else f'{_ANEW}: {why_not}'}")
    for request in drpc_plans(graph).values():
        here = "from local copies in the leader's process, without a Spark job" if request.in_driver else ""
        described = _Described(request.nodes, request.lowered, False, here)
        lines += ["", f"requests {request.function}", *described.lines(), f"  {_answered(request)}"]
    return "\n".join(lines)


def _answered(request: DrpcPlan) -> str:
    if request.in_driver is not None:
        return "each is answered in the leader's process"
    if request.together is not None:
        return "those that wait are answered together, each for itself in one Spark job"
    return f"each takes Spark jobs of its own: {request.reason_alone}"


def _group(group: GroupPlan) -> _Described:
    late, by = group.lowered.late_segments, ""
    left = left_to_spark(late)
    if is_one_job(group):
        by = "few rows: by the early half's Spark job when it begins in the turn, else by another"
    elif group.late_on_arrow is not None:
        by = "few rows: one Spark job"
    elif left is not None and any(op.on_arrow and op.on_arrow.looks_up for one in late for op in one.ops):
        by = f"on the states' tables: {left.describe()} is left to Spark"
    return _Described(group.nodes, group.lowered, True, by)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


@dataclass(frozen=True)
class _Described:
    """Describes a batch group, or the plan of a DRPC function.

    Attributes:
        of_batches: whether it has transactions, in whose turn the late half runs.
        by: how its late half runs.
    """

    nodes: Sequence[Node]
    lowered: Lowered
    of_batches: bool
    by: str

    @property
    def numbers(self) -> Mapping[Node, int]:
        """A node is named by its number where a branch begins."""
        return {node: number for number, node in enumerate(self.nodes, 1)}

    def lines(self) -> Iterator[str]:
        yield from _indented(self._nodes())
        yield from _indented(self._segments(self.lowered.segments))
        if self.lowered.late_segments:
            turn = "in the transaction's turn, as of the transaction before:"
            as_of_text = "as of one advanced transaction of each group:"
            begin = turn if self.of_batches else as_of_text
            yield f"  {begin[:-1]} ({self.by}):" if self.by else f"  {begin}"
            yield from _indented(_indented(self._segments(self.lowered.late_segments)))

    def _nodes(self) -> Iterator[str]:
        numbers = self.numbers
        for node, number in numbers.items():
            parents = " and ".join(str(numbers[parent]) for parent in node.parents)
            origin = f" of {parents}" if parents else ""
            file, _, line = node.location.rpartition(":")
            fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields)
            yield f"{number}{origin}: {node.operation} -> {fields}   [{os.path.basename(file)}:{line}]"
            yield from (f"   note: {note}" for note in node.notes())

    def _segments(self, segments: Sequence[Segment]) -> Iterator[str]:
        hinted, numbers = self.lowered.source_partitions, self.numbers
        for segment in segments:
            origins = (node.operation if is_source(node) else str(numbers[node]) for node in segment.anchors)
            yield f"from {' and '.join(origins)} to {self._target(segment.target)}:"
            steps = [
                f"Spark: {anchor.operation} into {hinted[anchor]} partitions{_MOVES}"
                for anchor in segment.anchors
                if anchor in hinted
            ]
            steps += described_passes(segment.ops)
            yield from (f"  {step}" for step in steps or ["as it is"])

    def _target(self, node: Node) -> str:
        lowered = self.lowered
        if node.writes is not None:
            return f"{node.writes.kind} state {node.writes.name}"
        if node.output_name is not None:
            return "the answer"
        number = self.numbers[node]
        if node in lowered.boundaries and not self.of_batches:
            return str(number)
        if node in lowered.boundaries and node not in lowered.shared:
            return f"{number}, staged for the transaction's turn"
        if node in lowered.single_use:
            return str(number)
        if node not in lowered.shared:
            return f"{number}, which no state takes"
        once = "computed once" if node in lowered.checkpointed else "computed by each of them"
        return f"{number}, which several branches use ({once})"


def described_passes(ops: Sequence[Operation]) -> Iterator[str]:
    """A line per operation by Spark, and one per pass of Python workers."""
    for run in passes(ops):
        last = run[-1]
        if last.in_python:
            steps = filter(None, (op.describe() for op in run))
            yield f"Python: {', '.join(steps)} -> {', '.join(names_of(last.fields))}"
        else:
            moves = _MOVES if last.shuffles else ""
            yield f"Spark: {last.describe()}{moves}{_IF_SEVERAL if last.no_op_on_one_partition else ''}"


# A topology's plan as plain data, for a page that draws it: nodes and edges of each batch group.


_LABEL_CHARS = 60


def plan_graph(graph: TopologyGraph, plans: Sequence[GroupPlan]) -> dict[str, Any]:
    """The plan for JSON.

    Returns:
        ``topology``, and ``groups``: of each its ``name``, its ``nodes`` and its ``edges``. A node has ``id``,
        ``label`` (of a spout its class), ``kind`` as ``Node.drawn_as``, ``location``, ``depth`` (0 for a spout, of
        others one more than the deepest above), a spout its ``stream``, and one that writes its ``state``. An edge has
        ``from``, ``to``, ``fields``, and ``reads``: no rows flow, the second looks rows up in the first one's state.
    """
    return {"topology": graph.name, "groups": [_group_data(plan) for plan in plans]}


def _group_data(plan: GroupPlan) -> dict[str, Any]:
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


# A topology as a picture by Graphviz: its batch groups, their operations, and the Spark passes they become.
#
# The text of the picture is made by the package ``graphviz`` (extra ``plan``);
# drawing it needs the program ``dot`` too. A notebook draws a plan without
# either, and without the passes: ``shown.py``.


# Node.drawn_as → (colour, shape)
_COLOURS_AND_SHAPES = {
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
        colour, shape = _COLOURS_AND_SHAPES[kind]
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
