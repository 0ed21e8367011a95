"""Every notebook of examples/notebooks runs, and its cells give what is committed; see tests/pages/notebooks.py."""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path

import nbformat
import pytest

from tests.pages import notebooks
from trident.running.interrupts import in_notebook

NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert {"word_count", "requests"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_is_committed(path: Path, zk_server: str, tmp_path: Path) -> None:
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "TRIDENT_ZOOKEEPER": zk_server,
        "TRIDENT_ZOOKEEPER_ROOT": f"/notebook-{uuid.uuid4().hex}",
        "TERM": "dumb",
    }
    ran = notebooks.run(path, tmp_path, environment)
    committed = notebooks.code_cells(nbformat.read(path, as_version=4))
    for before, now in zip(committed, notebooks.code_cells(ran), strict=True):
        assert notebooks.compared(now) == notebooks.compared(before), before["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_well_before_it_is_run(path: Path) -> None:
    """It has outputs, no paths of the machine where it ran, and no error that its tag does not announce."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = notebooks.code_cells(notebook)
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) / 2
    text = json.dumps(notebook)
    for place in (os.getcwd(), str(Path.home()), "/tmp/", "site-packages", "ipykernel_"):
        assert place not in text, place
    for cell in cells:
        raised = any(output["output_type"] == "error" for output in cell["outputs"])
        assert raised == ("raises-exception" in cell["metadata"].get("tags", ())), cell["source"]


CELLS = [
    """
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology
from trident.running.interrupts import in_notebook

def counted() -> TridentTopology:
    topology = TridentTopology("kernel")
    rows = topology.new_stream("rows", FixedBatchSpout("word string", []))
    rows.group_by("word").persistent_aggregate(DeltaMapState("kernel_counts"), Count(), "count")
    return topology

counted()
""",
    "print(in_notebook(), counted().plan())",
    "def misspelt():\n    return counted().new_stream('rows', None)\n\nmisspelt()",
]


def test_a_kernel_is_told_from_a_script_and_shows_an_error_without_the_frameworks_lines(tmp_path: Path) -> None:
    """Without Spark."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    for cell in notebook["cells"]:
        cell["metadata"]["tags"] = ["raises-exception"]
    path = tmp_path / "made.ipynb"
    nbformat.write(notebook, path)
    shown, printed, failed = notebooks.code_cells(notebooks.run(path, tmp_path, {}))
    assert "<table>" in shown["outputs"][-1]["data"]["text/html"]
    text = notebooks.compared(printed)[0]
    assert text.startswith("True topology kernel") and "[In[1]:" in text and ".py" not in text
    (told,) = notebooks.compared(failed)[:1]
    lines = told.splitlines()
    assert lines[0].startswith("TopologyError: the topology has a stream 'rows' already")
    assert "misspelt()" in told and "return counted().new_stream('rows', None)" in told
    assert "Cell In[3], line 2" in told and "topology.py" not in told
    assert not in_notebook()
