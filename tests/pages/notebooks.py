"""Runs the notebooks of ``examples/notebooks``: ``python -m tests.pages.notebooks [NAME]`` writes their outputs.

A notebook is run in a kernel of its own, in an empty folder, with the ZooKeeper server and the Spark settings that the
environment names. Committed, it has the outputs of such a run. ``tests/whole/test_notebooks.py`` runs it again and
compares: the outputs of a cell must be the same, unless its tag says otherwise:

- ``varies``: its outputs have times, ids or rates; they are shown, and not compared;
- ``raises-exception``: it ends with an error, whose text is compared (a tag of nbclient's own).

Standard error is Spark's; it is neither kept nor compared, but for the framework's own lines.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
# How long a cell may take: the first one starts Spark.
CELL_SECS = 300
_OURS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+ (?P<text>.*)$")
_RUN = re.compile(r"\(run [0-9a-f]{8}\)")
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
# The file that a kernel takes a cell for.
_CELL_FILE = re.compile(r"[^\s'\"]*ipykernel_\d+/\d+\.py")


def run(path: Path, folder: Path, environment: dict[str, str]) -> Any:
    """The notebook with the outputs of a run in the folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    before = dict(os.environ)
    os.environ.update(environment)  # a kernel takes its parent's
    try:
        client.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    for cell in code_cells(notebook):
        cell["outputs"] = [
            nbformat.from_dict(kept) for output in cell["outputs"] if (kept := _kept(output)) is not None
        ]
        cell["metadata"].pop("execution", None)
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _kept(output: Any) -> Any:
    """The output as it is committed; None where none of it is."""
    if output.get("name") == "stderr":
        found = (_OURS.match(line) for line in output["text"].splitlines())
        lines = [_CELL_FILE.sub("cell", _RUN.sub("(run …)", one["text"])) for one in found if one is not None]
        return {**output, "text": "".join(f"{line}\n" for line in lines)} if lines else None
    if output["output_type"] == "error":
        told = [_CELL_FILE.sub("cell", _COLOURS.sub("", line)) for line in output["traceback"]]
        return {**output, "evalue": _CELL_FILE.sub("cell", output["evalue"]), "traceback": told}
    return output


def compared(cell: Any) -> list[str]:
    """What two runs of a cell must both give."""
    if "varies" in cell["metadata"].get("tags", ()):
        return []
    printed = {"stdout": "", "stderr": ""}
    texts = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            printed[output["name"]] += output["text"]  # a kernel cuts it where it likes
        elif output["output_type"] == "error":
            texts.append("\n".join(output["traceback"]))
        else:
            texts.append(output["data"].get("text/plain", ""))
    return [*texts, *printed.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs notebooks and writes their outputs into them.")
    parser.add_argument("name", nargs="*", help="of a notebook, without .ipynb; none: all of them")
    names = parser.parse_args().name
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory(prefix="trident-notebook-") as folder:
                notebook = run(path, Path(folder), {"PYSPARK_PYTHON": sys.executable, "TERM": "dumb"})
            notebook["metadata"] = {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            }
            nbformat.write(notebook, path)
            print(path.name)


if __name__ == "__main__":
    main()
