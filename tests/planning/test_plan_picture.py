"""The picture of a plan that a notebook shows: made without another program, readable by any reader of SVG."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from typing import Any

import pytest

from tests.planning.test_plan_graph import demo, small
from tests.streams.stream_helpers import RowsSpout
from trident import DeltaAppend
from trident.streams.shown import to_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each node."""
    found = []
    for group in root.iter(f"{SVG}g"):
        (rect,) = group.iter(f"{SVG}rect")
        x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def test_a_plan_draws_itself_in_a_notebook_and_is_text_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    topology = demo()
    plan = topology.plan()
    assert str(plan) == repr(plan) and str(plan).startswith("topology demo\n")
    picture = plan._repr_svg_()
    found = texts(drawn(picture))
    for wanted in ("batch group asked", "filter(is_short)", "RowsSpout", "spout · stream rows", "answers", "is read"):
        assert wanted in found, found
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", ""), "nothing of another host"
    topology.new_stream("late", RowsSpout("x long")).partition_persist(DeltaAppend("late"))
    assert plan._repr_svg_() == picture, "it is the plan of that moment"


def test_a_small_plan_runs_down_with_the_names_of_its_fields() -> None:
    root = drawn(small().plan()._repr_svg_())
    tops = [box[1] for box in boxes(root)]
    assert tops == sorted(set(tops)) and len(tops) == 4 and len({box[0] for box in boxes(root)}) == 1
    assert [text for text in texts(root) if text in ("line", "line, word")] == ["line", "line, word", "line, word"]
    assert "plan of topology small: RowsSpout to each(Split)" in root.get("aria-label", "")


@pytest.mark.parametrize("seed", range(20))
def test_no_box_lies_on_another_one_and_no_arrow_passes_through_one(seed: int) -> None:
    rng = random.Random(seed)
    plan = some_plan(rng)
    root = drawn(to_svg(plan))
    places = boxes(root)
    width, height = (float(root.get(name, "")) for name in ("width", "height"))
    for one in places:
        assert 0 <= one[0] and one[2] <= width and 0 <= one[1] and one[3] <= height
    for one, other in combinations(places, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    arrows = [one for one in root.iter(f"{SVG}path")]
    assert len(arrows) == sum(len(group["edges"]) for group in plan["groups"])
    for arrow in arrows:
        points = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+),(-?[\d.]+)", arrow.get("d", ""))]
        for x, y in points[1:-1]:
            assert not any(left < x < right and top < y < bottom for left, top, right, bottom in places), points
        begin, end = points[0], points[-1]
        assert any(begin[0] == right or begin[1] == bottom for _, _, right, bottom in places)
        assert any(end[0] == right or end[1] == top for _, top, right, _ in places)


def some_plan(rng: random.Random) -> dict[str, Any]:
    groups = []
    for number in range(rng.randint(1, 2)):
        nodes: list[dict[str, Any]] = []
        edges: list[dict[str, Any]] = []
        for place in range(rng.randint(1, 12)):
            above = rng.sample(range(place), min(place, rng.randint(0, 3)))
            depth = 1 + max((nodes[one]["depth"] for one in above), default=-1)
            kind = rng.choice(["Spark", "Python", "repartition"]) if above else "spout"
            label = rng.choice(["each(Split)", "过滤(很短的名字)", "x" * 60, "a<b>&'\"", "nul\0 and half \ud800"])
            nodes.append(
                {"id": f"{number}:{place}", "label": label, "kind": kind, "depth": depth, "location": "job.py:7"}
            )
            for one in above:
                fields = rng.choice([["line"], ["line", "word"], [f"field{n}" for n in range(20)]])
                edges.append({"from": f"{number}:{one}", "to": f"{number}:{place}", "fields": fields, "reads": not one})
        groups.append({"name": f"group{number}", "nodes": nodes, "edges": edges})
    return {"topology": "any & all", "groups": groups}
