"""A topology at a prompt and in a notebook: its facts as a line, a small table, and its plan as an SVG picture."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from trident.coordinators.tracebacks import with_cells
from trident.planning.nodes import TopologyGraph

# A topology's plan as a picture: boxes, one below the other, and arrows, as SVG text that needs no other program.


_HEIGHT, _DOWN, _MARGIN, _TITLE = 46, 36, 14, 26
# An arrow that passes boxes bends to the right of them, so far for each.
_BEND = 24
_FIELDS_CHARS = 24
_LETTER, _SMALL = 7.0, 6.2  # of 12.5 and 11 pixels
_LINE = "#8a93a1"
_QUIET = "font-size='11' fill='#565e6c'"
# Node.drawn_as → (colour, in words)
_KINDS = {
    "spout": ("#d9efdc", "spout"),
    "Spark": ("#dbe9fa", "by Spark"),
    "Python": ("#fdf3c8", "your functions"),
    "repartition": ("#e9def6", "moves rows"),
    "state": ("#fae0cf", "state"),
}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_svg(plan: Mapping[str, Any]) -> str:
    """The picture of a plan as ``plan_graph`` gives it; the same plan always gives the same text."""
    parts: list[str] = []
    said: list[str] = []
    top, width = _MARGIN, 0.0
    for group in plan["groups"]:
        parts.append(_text(_MARGIN, top + 13, f"batch group {group['name']}", "font-weight='600'"))
        width = max(width, _drawn(group, top + _TITLE, parts, said))
        top += _TITLE + len(group["nodes"]) * (_HEIGHT + _DOWN)
    about = f"plan of topology {plan['topology']}: {'; '.join(said)}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width + _MARGIN:g}' height='{top}'"
        f" viewBox='0 0 {width + _MARGIN:g} {top}' role='img'"
        f" aria-label='{_plain(about)}'"
        f" font-family='system-ui, sans-serif' font-size='12.5'>"
        f"<rect width='100%' height='100%' fill='#ffffff'/>{''.join(parts)}</svg>"
    )


def _drawn(group: Mapping[str, Any], top: int, parts: list[str], said: list[str]) -> float:
    """Adds the boxes and arrows of a group, and the arrows in words; returns how far to the right they are."""
    lines = {node["id"]: _lines(node) for node in group["nodes"]}
    box = max(max(_length(first) * _LETTER, _length(second) * _SMALL) for first, second in lines.values()) + 22
    rows = {own: top + number * (_HEIGHT + _DOWN) for number, own in enumerate(lines)}
    right, width = _MARGIN + box, _MARGIN + box
    entered = dict.fromkeys(rows, 0)
    for edge in group["edges"]:
        begin, end = rows[edge["from"]], rows[edge["to"]]
        names = ", ".join(edge["fields"])
        label = "is read" if edge["reads"] else names if _length(names) <= _FIELDS_CHARS else ""
        said.append(f"{lines[edge['from']][0]} {'is read by' if edge['reads'] else 'to'} {lines[edge['to']][0]}")
        passed = (end - begin) // (_HEIGHT + _DOWN) - 1
        if passed:
            entered[edge["to"]] += 1
            entry, exit_ = end + min(12 * entered[edge["to"]], _HEIGHT - 4), begin + _HEIGHT / 2
            bend = right + _BEND * (passed + 1)
            path = f"M{right:g},{exit_:g} C{bend:g},{exit_:g} {bend:g},{entry:g} {right:g},{entry:g}"
            head = f"{right:g},{entry:g} {right + 8:g},{entry - 4:g} {right + 8:g},{entry + 4:g}"
            at = right + 14, entry - 3
            width = max(width, bend)
        else:
            middle = _MARGIN + box / 2
            path = f"M{middle:g},{begin + _HEIGHT} L{middle:g},{end}"
            head = f"{middle:g},{end} {middle - 4:g},{end - 8} {middle + 4:g},{end - 8}"
            at = middle + 10, end - 14
        dashed = " stroke-dasharray='5 4'" if edge["reads"] else ""
        parts.append(f"<path d='{path}' fill='none' stroke='{_LINE}' stroke-width='1.4'{dashed}/>")
        parts.append(f"<polygon points='{head}' fill='{_LINE}'/>")
        if label:
            parts.append(_text(*at, label, _QUIET))
            width = max(width, at[0] + _length(label) * _SMALL)
    for node in group["nodes"]:
        y, (first, second) = rows[node["id"]], lines[node["id"]]
        round_by = 14 if node["kind"] == "state" else 6
        parts.append(
            f"<g><title>{_plain(' '.join(filter(None, (node['label'], node['location']))))}</title>"
            f"<rect x='{_MARGIN}' y='{y}' width='{box:g}' height='{_HEIGHT}' rx='{round_by}'"
            f" fill='{_KINDS[node['kind']][0]}' stroke='{_LINE}'/>"
            f"{_text(_MARGIN + 10, y + 20, first)}{_text(_MARGIN + 10, y + 36, second, _QUIET)}</g>"
        )
    return width


def _lines(node: Mapping[str, Any]) -> tuple[str, str]:
    """The two lines of a node's box."""
    name = node.get("state", node["label"])
    more = node["label"] if "state" in node else f"stream {node['stream']}" if "stream" in node else node["location"]
    return name, " · ".join(filter(None, (_KINDS[node["kind"]][1], more)))


def _length(text: str) -> int:
    """How many letters wide: a letter of East Asia is as wide as two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _text(x: float, y: float, text: str, more: str = "fill='#1b1f27'") -> str:
    return f"<text x='{x:g}' y='{y:g}' {more}>{_plain(text)}</text>"


def _plain(text: str) -> str:
    """As XML has it, without letters that it has no way to write."""
    return escape(_NO_XML.sub("�", text))


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
        drawn: as ``trident.planning.explain.plan_graph`` gives it.
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
