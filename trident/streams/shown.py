"""A topology at a prompt and in a notebook: its facts as a line, or as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trident.coordinators.shown_errors import with_cells
from trident.planning.graph import TopologyGraph
from trident.planning.picture import to_svg

Facts = Sequence[tuple[str, str]]


def as_line(kind: str, name: str, facts: Facts) -> str:
    """``<Kind name: fact value, …>``."""
    return f"<{kind} {name}: " + ", ".join(f"{key} {value}" if key else value for key, value in facts if value) + ">"


def as_html(kind: str, name: str, facts: Facts) -> str:
    """A table of two columns; every text is escaped."""
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{escape(key or 'role')}</th><td {left}>{escape(value)}</td></tr>"
        for key, value in facts
        if value
    )
    return f"<table><caption><b>{escape(name)}</b> ({escape(kind)})</caption>{rows}</table>"


def as_rows(kind: str, name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a line of heads; every text is escaped."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><caption><b>{escape(name)}</b> ({escape(kind)})</caption><tr>{head}</tr>{body}</table>"


class TopologyPlan:
    """The plan of a topology: its text is that of ``explain()``; a notebook draws it.

    Args:
        text: of ``explain()``.
        drawn: as ``trident.planning.plan_graph.plan_graph`` gives it.
    """

    def __init__(self, text: str, drawn: Mapping[str, Any]) -> None:
        self._text, self._drawn = text, drawn

    def __str__(self) -> str:
        return with_cells(self._text)

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return to_svg(self._drawn)


def topology_facts(graph: TopologyGraph) -> Facts:
    """Its streams with their spouts, its states with their kinds, its DRPC functions."""
    streams = {tx_id: type(node.spout).__name__ for tx_id, node in graph.sources.items()}
    states = {name: sink.binding.kind for name, sink in graph.sinks.items()}
    found = [("streams", _named(streams)), ("states", _named(states)), ("requests", ", ".join(graph.functions))]
    return found if any(value for _, value in found) else [("", "nothing in it yet")]


def _named(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
