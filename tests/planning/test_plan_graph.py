"""`trident plan --dot` and `--svg`: the picture of a topology."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.servers.redis_fixtures import apt_install
from tests.streams.stream_helpers import RowsSpout
from trident import Count, DeltaAppend, MapGet, MemoryMapState, Split, TridentTopology
from trident.cli import main
from trident.commands.exit_codes import EXIT_BAD_INPUT
from trident.coordinators.errors import ConfigError, EnvironmentProblem
from trident.planning.explain import to_dot, write_svg

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
