"""An error in a notebook: the user's lines first, none of the framework's."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest

import trident
from tests.programs import python
from trident.coordinators import tracebacks
from trident.coordinators.errors import AttemptCapReached, UserFunctionError
from trident.coordinators.tracebacks import is_users, render
from trident.errors import TopologyError
from trident.udf.signatures import UsersTraceback

# Spark imports no source of a cell on its workers: frames have no line of source.
FRAMES = '  File "/tmp/ipykernel_12/34567.py", line 2, in split\nValueError: cannot be split'


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of a notebook, whose source and number this process knows."""
    source = ["def split(line):\n", '    raise ValueError("cannot be split")\n']
    monkeypatch.setitem(linecache.cache, "/tmp/ipykernel_12/34567.py", (0, None, source, "/tmp/ipykernel_12/34567.py"))
    names = {"/tmp/ipykernel_12/34567.py": "Cell In[3]"}
    monkeypatch.setattr(tracebacks, "_cell", names.get)


def test_the_users_line_on_a_worker_comes_first_then_the_error(cell: None) -> None:
    failed = UserFunctionError(
        "each(split) failed at /tmp/ipykernel_12/34567.py:2 in attempt 1:0: cannot be split",
        operation="each(split)",
        location="34567.py:2",
    )
    failed.__cause__ = UsersTraceback(FRAMES)
    ended = AttemptCapReached(f"it failed 8 times: {failed}", txid=1)
    ended.__cause__ = failed
    lines = ended._render_traceback_()
    assert lines[:4] == [
        "Your function (most recent call last):",
        "  Cell In[3], line 2, in split",
        '    raise ValueError("cannot be split")',
        "ValueError: cannot be split",
    ]
    assert lines[5].startswith("AttemptCapReached: it failed 8 times: each(split) failed at In[3]:2 in")
    assert "ipykernel" not in "\n".join(lines)


def test_only_the_users_frames_led_here() -> None:
    with pytest.raises(TopologyError) as raised:
        trident.TridentTopology("no name")
    lines = render(raised.value)
    assert lines[0].startswith("TopologyError: ")
    assert any("test_shown_errors.py" in line for line in lines)
    assert not any("names.py" in line or "topology.py" in line for line in lines)


def test_a_file_of_the_framework_is_not_the_users_by_any_of_its_paths() -> None:
    package = Path(trident.__file__).parent
    for file in ("cli.py", "states/core/names.py", "coordinators/driver.py"):
        assert not is_users(str(package / file)) and not is_users(str((package / file).resolve()))
    assert is_users(__file__) and is_users("/tmp/ipykernel_12/34567.py") and is_users("<stdin>")
    assert not is_users("<frozen importlib._bootstrap>")


SCRIPT = """
import sys, trident

def ask():
    return trident.get("nowhere", "counts", "a")

ask()
"""


@pytest.mark.parametrize("mode", [[], pytest.param(["-X", "dev"], marks=pytest.mark.long)])
def test_a_script_that_ends_with_an_error_of_ours_shows_its_own_lines_alone(tmp_path: Path, mode: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(*mode, "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("trident.coordinators.errors.TableError: ")
    frames = [line for line in done.stderr.splitlines() if line.startswith('  File "')]
    if mode:
        assert len(frames) > 2  # all of them
    else:
        own = [frame.rpartition("script.py")[2] for frame in frames]
        assert own == ['", line 7, in <module>', '", line 5, in ask'], done.stderr


def test_the_hook_of_a_program_and_every_other_error_are_left_alone(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "excepthook", print)
    TopologyError("no")
    assert sys.excepthook is print
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    TopologyError("no")
    assert sys.excepthook is not sys.__excepthook__
    with pytest.raises(ValueError) as raised:
        int("x")
    sys.excepthook(raised.type, raised.value, raised.value.__traceback__)
    assert capsys.readouterr().err.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")
