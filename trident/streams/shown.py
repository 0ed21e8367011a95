"""A topology at a prompt and in a notebook: its facts as a line, or as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from trident.planning.graph import TopologyGraph

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


def topology_facts(graph: TopologyGraph) -> Facts:
    """Its streams with their spouts, its states with their kinds, its DRPC functions."""
    streams = {tx_id: type(node.spout).__name__ for tx_id, node in graph.sources.items()}
    states = {name: sink.binding.kind for name, sink in graph.sinks.items()}
    found = [("streams", _named(streams)), ("states", _named(states)), ("requests", ", ".join(graph.functions))]
    return found if any(value for _, value in found) else [("", "nothing in it yet")]


def _named(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
