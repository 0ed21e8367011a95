"""`trident plan --dot` and `--svg`: the picture of a topology."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.servers.redis_fixtures import apt_install
from tests.streams.stream_helpers import RowsSpout
from trident import Count, DeltaAppend, MapGet, MemoryMapState, Split, TridentTopology
from trident.cli import main
from trident.commands.exit_codes import EXIT_BAD_INPUT
from trident.coordinators.errors import ConfigError, EnvironmentProblem
from trident.planning.explain import to_dot, write_svg
from trident.streams.shown import to_svg

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def dot() -> None:
    """The program of Graphviz; installed if it can be, else the test is skipped, loudly."""
    if not shutil.which("dot"):
        problem = apt_install("graphviz")
        if not shutil.which("dot"):
            pytest.skip(f"NOT TESTED: plan --svg. No program dot: {problem}. Do: apt-get install graphviz")


def is_short(word: str) -> bool:
    return len(word) < 3


def demo() -> TridentTopology:
    topology = TridentTopology("demo")
    words = topology.new_stream("rows", RowsSpout("line string, n long")).each("line", Split(), "word")
    short = words.filter("word", is_short).shuffle().project("word")
    counts = short.group_by("word").persistent_aggregate(MemoryMapState("c"), Count(), "total")
    asked = topology.new_stream("asked", RowsSpout("word string"))
    asked.state_query(counts, "word", MapGet(), "total").partition_persist(DeltaAppend("answers"))
    odd = topology.new_stream("other", RowsSpout('`a\\b <"x"> {y|z}` timestamp'))
    odd.rename({odd.fields[0]: "at"}).partition_persist(DeltaAppend("events"))
    return topology


def test_the_picture_of_a_small_topology_is_this() -> None:
    text = to_dot(small().graph)
    assert text == SMALL.lstrip().replace("    ", "\t"), text


def small() -> TridentTopology:
    topology = TridentTopology("small")
    words = topology.new_stream("rows", RowsSpout("line string")).each("line", Split(), "word")
    words.filter("word", is_short).partition_persist(DeltaAppend("words"), "word")
    return topology


SMALL = r"""
digraph small {
    graph [label="topology small" labelloc=t rankdir=LR]
    node [fontname="sans-serif" fontsize=11 style=filled]
    edge [fontname="sans-serif" fontsize=9]
    subgraph cluster1 {
        label="batch group rows" style=rounded
        n1 [label="stream rows" fillcolor="#cfe8cf" shape=cds tooltip=spout]
        n2 [label="each(Split)" fillcolor="#d6e6f7" shape=box tooltip=Spark]
        n3 [label="filter(is_short)" fillcolor="#fff2b3" shape=box tooltip=Python]
        n4 [label="partition_persist(words)" fillcolor="#f7d9c4" shape=cylinder tooltip=state]
        n1 -> n2 [label=line]
        n2 -> n3 [label="line, word"]
        n3 -> n4 [label="line, word"]
        n4passes [label="from stream rows:\lSpark: select explode(filter(split(`line`, ' '), part -> part != '')) as word\lPython: filter(is_short) -> word\l" fillcolor="#f5f5f5" fontname=monospace fontsize=9 shape=note]
        n4passes -> n4 [arrowhead=none style=dotted]
    }
}
"""  # noqa: E501


def test_groups_are_boxes_and_states_that_are_read_are_dashed() -> None:
    text = to_dot(demo().graph)
    # The state is written by one stream and read by the other: they are one group.
    assert [text.count(f"batch group {name}") for name in ("asked", "rows", "other")] == [1, 0, 1]
    assert text.count('label="is read" style=dashed') == 1
    assert "in the transaction's turn" in text and "shape=hexagon tooltip=repartition" in text
    assert to_dot(demo().graph) == text


def test_any_name_can_be_drawn(dot, tmp_path) -> None:
    file = tmp_path / "plan.svg"
    write_svg(demo().graph, str(file))
    drawn = ElementTree.parse(file).getroot()
    texts = ["".join(node.itertext()) for node in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn.tag.endswith("svg")
    for wanted in ("topology demo", "batch group asked", "filter(is_short)", 'a\\b <"x"> {y|z}'):
        assert wanted in texts, texts
    with pytest.raises(ConfigError, match="cannot be written"):
        write_svg(small().graph, str(tmp_path / "none" / "plan.svg"))


JOB = """
from trident import DeltaAppend, TridentTopology
from trident.testing import FixedBatchSpout
topology = TridentTopology("job")
topology.new_stream("lines", FixedBatchSpout("line string", [])).partition_persist(DeltaAppend("raw"))
"""


def test_the_command_prints_or_draws_it(dot, tmp_path) -> None:
    job, svg = tmp_path / "job.py", tmp_path / "job.svg"
    job.write_text(JOB)
    printed = CliRunner().invoke(main, ["plan", str(job), "--dot"])
    assert printed.exit_code == 0 and printed.output.startswith("digraph job {")
    drawn = CliRunner().invoke(main, ["plan", str(job), "--svg", str(svg)])
    assert drawn.exit_code == 0, drawn.output
    assert drawn.output == f"drawn: {svg}\n" and b"<svg" in svg.read_bytes()


def test_what_is_missing_is_said(tmp_path, monkeypatch) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    without_dot = {**os.environ, "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "trident.cli", "plan", str(job), "--svg", "x.svg"],
        cwd=tmp_path,
        env=without_dot,
        capture_output=True,
        text=True,
    )
    assert done.returncode == EXIT_BAD_INPUT and not (tmp_path / "x.svg").exists()
    assert "no program `dot`" in done.stderr and "--dot" in done.stderr and "apt-get install graphviz" in done.stderr
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(EnvironmentProblem, match="pip install graphviz"):
        to_dot(small().graph)


# --- the drawing -----------------------------------------------------------------------------------------
# The picture of a plan that a notebook shows: made without another program, readable by any reader of SVG.

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
