"""The hash that tells the code of a batch group: another for other code, the same for the same in another process."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

from trident.planning.groups import code_id, plan

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = """
from trident import Count, DeltaMapState, FileSpout, TridentTopology
from functions import longer

class Split:
    def __init__(self, mark): self.mark = mark
    def __call__(self, value: str) -> str: return value + self.mark

def made(folder):
    topology = TridentTopology("coded")
    lines = topology.new_stream("lines", FileSpout(folder))
    words = lines.each("value", longer, "word string").each("word", Split("x"), "key string")
    words.group_by("key").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    return topology
"""
FUNCTIONS = "def longer(value: str) -> str: return value + 'x'\n"
PROGRAM = """
import sys
from trident.planning.groups import code_id
from trident.planning.groups import plan
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    for name in ("topology", "functions"):
        sys.modules.pop(name, None)
    import topology
    (group,) = plan(topology.made(folder).graph)
    print(code_id(group))
"""


def written(folder: Path, topology: str = TOPOLOGY, functions: str = FUNCTIONS) -> str:
    folder.mkdir()
    (folder / "topology.py").write_text(topology)
    (folder / "functions.py").write_text(functions)
    return str(folder)


def codes(*folders: str) -> list[str]:
    command = [sys.executable, "-B", "-c", PROGRAM, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_same_code_has_the_same_id_wherever_it_lies_and_other_code_another(tmp_path: Path) -> None:
    first, *changed = codes(
        written(tmp_path / "a"),
        written(tmp_path / "b", TOPOLOGY.replace('"x"', '"y"')),
        written(tmp_path / "c", functions=FUNCTIONS.replace("'x'", "'y'")),
        written(tmp_path / "d", TOPOLOGY.replace('"n"', '"m"')),
    )
    assert len(first) == 16 and int(first, 16) >= 0
    assert len({first, *changed}) == 4
    assert codes(written(tmp_path / "e")) == [first], "another process, another folder"


def test_a_file_that_was_edited_and_is_run_again_in_one_process_is_other_code(tmp_path: Path) -> None:
    """As a notebook's reader does who edits a module, or a test that runs a program twice."""
    file = tmp_path / "words.py"
    found = []
    for size in (1, 2):
        text = TOPOLOGY.replace("from functions import longer", f"def longer(value: str) -> str: return value * {size}")
        file.write_text(text + "#" * size)  # two edits within one tick of the clock differ in their size
        (group,) = plan(runpy.run_path(str(file))["made"](str(tmp_path)).graph)
        found.append(code_id(group))
    assert found[0] != found[1]
