"""A topology's plan as a picture: boxes in layers and arrows between them, as SVG text that needs no other program."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_HEIGHT, _ACROSS, _MARGIN, _TITLE = 46, 20, 14, 26
_WIDTH_MIN, _WIDTH_MAX = 120, 250
# Between layers; more from left to right, where the names of fields stand on the arrows.
_DOWN, _ALONG = 46, 34
# A picture that would be wider from left to right is drawn from top to bottom.
_WIDE = 1_200
_FIELDS_CHARS = 24
_LETTER, _SMALL = 7.0, 6.2  # of 12.5 and 11 pixels
_INK, _QUIET, _LINE, _GROUND = "#1b1f27", "#565e6c", "#8a93a1", "#ffffff"
# Node.drawn_as → (colour, how the line below says it)
_KINDS = {
    "spout": ("#d9efdc", "spout"),
    "Spark": ("#dbe9fa", "by Spark"),
    "Python": ("#fdf3c8", "your functions"),
    "repartition": ("#e9def6", "moves rows"),
    "state": ("#fae0cf", "state"),
}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Point = tuple[float, float]


def to_svg(plan: Mapping[str, Any]) -> str:
    """The picture of a plan as ``plan_graph`` gives it; the same plan always gives the same text."""
    groups = [_Group(group) for group in plan["groups"]]
    kinds = [kind for kind in _KINDS if any(node["kind"] == kind for group in groups for node in group.nodes)]
    width = max([_legend_width(kinds), *(group.width for group in groups)]) + 2 * _MARGIN
    parts, top = [], float(_MARGIN)
    for group in groups:
        title = _text(_MARGIN, top + 13, f"batch group {group.name}", "font-weight='600'")
        parts += [title, *group.drawn(_MARGIN, top + _TITLE)]
        top += _TITLE + group.height + _MARGIN
    parts += _legend(kinds, top + 10)
    height = top + (24 if kinds else 0)
    said = f"plan of topology {plan['topology']}: {'; '.join(one for group in groups for one in group.said())}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_number(width)}' height='{_number(height)}'"
        f" viewBox='0 0 {_number(width)} {_number(height)}' role='img' aria-label='{_plain(said)}'"
        f" font-family='system-ui, sans-serif' font-size='12.5'>"
        f"<rect width='100%' height='100%' fill='{_GROUND}'/>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class _Edge:
    """An arrow, by the cells that it passes: its first node, a free cell in each layer between, its last node."""

    cells: tuple[str, ...]
    label: str
    reads: bool


class _Group:
    """A batch group, laid out: each node, and each free cell that an arrow passes, has a layer and a rank in it."""

    def __init__(self, group: Mapping[str, Any]) -> None:
        self.name: str = group["name"]
        self.nodes: Sequence[Mapping[str, Any]] = group["nodes"]
        depths = {node["id"]: node["depth"] for node in self.nodes}
        self._edges = [_edge(edge, number, depths) for number, edge in enumerate(group["edges"])]
        layers: list[list[str]] = [[] for _ in range(1 + max(depths.values(), default=0))]
        for node in self.nodes:
            layers[node["depth"]].append(node["id"])
        above: dict[str, list[str]] = {}
        for edge in self._edges:
            for depth, cell in enumerate(edge.cells[1:-1], depths[edge.cells[0]] + 1):
                layers[depth].append(cell)
            for before, cell in zip(edge.cells, edge.cells[1:]):
                above.setdefault(cell, []).append(before)
        self._depths, self._ranks = _ranked(layers, above)
        self._place(len(layers), max(map(len, layers), default=0))

    def _place(self, layers: int, most: int) -> None:
        lines = [_lines(node) for node in self.nodes]
        widths = [max(_length(first) * _LETTER, _length(second) * _SMALL) + 22 for first, second in lines]
        self._box = min(max([_WIDTH_MIN, *widths]), _WIDTH_MAX)
        label = max((_length(edge.label) * _SMALL + 12 for edge in self._edges), default=0.0)
        along = layers * self._box + (layers - 1) * (_ALONG + label)
        self._down = along > _WIDE
        if self._down:
            self._steps = self._box + _ACROSS, float(_HEIGHT + _DOWN)
            self.width, self.height = most * self._steps[0] - _ACROSS, layers * self._steps[1] - _DOWN
        else:
            self._steps = self._box + _ALONG + label, float(_HEIGHT + _ACROSS)
            self.width, self.height = along, most * self._steps[1] - _ACROSS

    def said(self) -> Iterable[str]:
        """Its arrows in words, for who does not see them."""
        names = {node["id"]: _lines(node)[0] for node in self.nodes}
        ends = [(names[edge.cells[0]], "is read by" if edge.reads else "to", edge) for edge in self._edges]
        return [f"{first} {what} {names[edge.cells[-1]]}" for first, what, edge in ends]

    def drawn(self, left: float, top: float) -> list[str]:
        corners = {cell: self._corner(cell, left, top) for cell in self._ranks}
        lines = [part for edge in self._edges for part in self._arrow(edge, corners)]
        return lines + [part for node in self.nodes for part in self._node(node, corners[node["id"]])]

    def _corner(self, cell: str, left: float, top: float) -> Point:
        across, along = self._steps
        depth, rank = self._depths[cell], self._ranks[cell]
        return (
            (left + rank * across, top + depth * along) if self._down else (left + depth * across, top + rank * along)
        )

    def _node(self, node: Mapping[str, Any], corner: Point) -> list[str]:
        (x, y), (first, second) = corner, _lines(node)
        round_by = 14 if node["kind"] == "state" else 6
        return [
            f"<g><title>{_plain(' '.join(filter(None, (node['label'], node['location']))))}</title>"
            f"<rect x='{_number(x)}' y='{_number(y)}' width='{_number(self._box)}' height='{_HEIGHT}' rx='{round_by}'"
            f" fill='{_KINDS[node['kind']][0]}' stroke='{_LINE}'/>",
            _text(x + 10, y + 20, _fitting(first, (self._box - 18) / _LETTER)),
            _text(x + 10, y + 36, _fitting(second, (self._box - 18) / _SMALL), f"font-size='11' fill='{_QUIET}'"),
            "</g>",
        ]

    def _arrow(self, edge: _Edge, corners: Mapping[str, Point]) -> list[str]:
        ways = [self._ends(corners[cell]) for cell in edge.cells]
        begin, end = ways[0][1], ways[-1][0]
        path, at = [f"M{_pair(begin)}"], begin
        for entry, exit_ in ways[1:]:
            turn = ((at[0], (at[1] + entry[1]) / 2), (entry[0], (at[1] + entry[1]) / 2))
            if not self._down:
                turn = (((at[0] + entry[0]) / 2, at[1]), ((at[0] + entry[0]) / 2, entry[1]))
            path.append(f"C{_pair(turn[0])} {_pair(turn[1])} {_pair(entry)}")
            if entry != end:  # through a cell that is free for it
                path.append(f"L{_pair(exit_)}")
            at = exit_
        x, y = end
        sides = ((x - 4, y - 8), (x + 4, y - 8)) if self._down else ((x - 8, y - 4), (x - 8, y + 4))
        dashed = " stroke-dasharray='5 4'" if edge.reads else ""
        drawn = [
            f"<path d='{' '.join(path)}' fill='none' stroke='{_LINE}' stroke-width='1.4'{dashed}/>",
            f"<polygon points='{' '.join(map(_pair, (end, *sides)))}' fill='{_LINE}'/>",
        ]
        return drawn + self._label(edge.label, begin, ways[1][0])

    def _ends(self, corner: Point) -> tuple[Point, Point]:
        """Where an arrow enters a cell, and where it leaves it."""
        x, y = corner
        if self._down:
            return (x + self._box / 2, y), (x + self._box / 2, y + _HEIGHT)
        return (x, y + _HEIGHT / 2), (x + self._box, y + _HEIGHT / 2)

    def _label(self, label: str, begin: Point, end: Point) -> list[str]:
        if not label:
            return []
        x, y, width = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2, _length(label) * _SMALL + 8
        ground = f"<rect x='{_number(x - width / 2)}' y='{_number(y - 8)}' width='{_number(width)}' height='16'"
        small = f"font-size='11' fill='{_QUIET}' text-anchor='middle'"
        return [f"{ground} fill='{_GROUND}'/>", _text(x, y + 4, label, small)]


def _edge(edge: Mapping[str, Any], number: int, depths: Mapping[str, int]) -> _Edge:
    first, last = edge["from"], edge["to"]
    between = (f"{number} passes {depth}" for depth in range(depths[first] + 1, depths[last]))
    fields = ", ".join(edge["fields"])
    label = "is read" if edge["reads"] else fields if _length(fields) <= _FIELDS_CHARS else ""
    return _Edge((first, *between, last), label, edge["reads"])


def _ranked(
    layers: Sequence[Sequence[str]], above: Mapping[str, Sequence[str]]
) -> tuple[dict[str, int], dict[str, float]]:
    """Layer and rank of each cell: below the middle of those above it, as far as others leave it room."""
    depths: dict[str, int] = {}
    ranks: dict[str, float] = {}
    most = max(map(len, layers), default=0)
    for depth, layer in enumerate(layers):
        middles = {cell: [ranks[one] for one in above.get(cell, ())] or [0.0] for cell in layer}
        ordered = sorted(layer, key=lambda cell: sum(middles[cell]) / len(middles[cell]))
        for place, cell in enumerate(ordered):
            depths[cell], ranks[cell] = depth, place + (most - len(ordered)) / 2
    return depths, ranks


def _lines(node: Mapping[str, Any]) -> tuple[str, str]:
    """The two lines of a node's box."""
    if "state" in node:
        return node["state"], node["label"]
    return node["label"], f"stream {node['stream']}" if "stream" in node else node["location"]


def _legend(kinds: Sequence[str], top: float) -> list[str]:
    parts, left = [], float(_MARGIN)
    for kind in kinds:
        colour, said = _KINDS[kind]
        box = f"<rect x='{_number(left)}' y='{_number(top - 9)}' width='11' height='11' rx='2'"
        parts += [f"{box} fill='{colour}' stroke='{_LINE}'/>"]
        parts += [_text(left + 16, top, said, f"font-size='11' fill='{_QUIET}'")]
        left += 32 + _length(said) * _SMALL
    return parts


def _legend_width(kinds: Sequence[str]) -> float:
    return sum(32 + _length(_KINDS[kind][1]) * _SMALL for kind in kinds)


def _length(text: str) -> int:
    """How many letters wide: a letter of East Asia is as wide as two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _fitting(text: str, room: float) -> str:
    if _length(text) <= room:
        return text
    while text and _length(text) > room - 1:
        text = text[:-1]
    return f"{text}…"


def _text(x: float, y: float, text: str, more: str = "") -> str:
    fill = "" if "fill=" in more else f" fill='{_INK}'"
    return f"<text x='{_number(x)}' y='{_number(y)}'{fill}{' ' + more if more else ''}>{_plain(text)}</text>"


def _plain(text: str) -> str:
    """As XML has it, without letters that it has no way to write."""
    return escape(_NO_XML.sub("�", text))


def _pair(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
