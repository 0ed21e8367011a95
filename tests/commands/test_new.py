"""``trident new``: the project that it makes is whole: its plan, its test, its unit and its compose file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from trident.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["new", "shop-words"])
    assert done.exit_code == 0, done.output
    assert "cd shop-words" in done.output
    monkeypatch.chdir(tmp_path / "shop-words")
    monkeypatch.setattr(sys, "path", list(sys.path))  # planning puts the folder into it
    return tmp_path / "shop-words"


def test_the_project_has_all_that_it_names(project: Path) -> None:
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    assert files == {
        *("README.md", "pyproject.toml", "topology.py", "test_topology.py", ".gitignore", "compose.yaml"),
        *("data/example.txt", "deploy/shop-words.service"),
    }
    for path in project.rglob("*"):
        assert not path.is_file() or "$" not in path.read_text(encoding="utf-8"), path
    described = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    assert described["project"]["name"] == "shop-words"
    assert described["project"]["dependencies"][0].startswith("trident-spark>=")


def test_its_topology_is_planned(project: Path) -> None:
    done = CliRunner().invoke(main, ["plan", "topology.py"])
    assert done.exit_code == 0 and "shop-words" in done.output and "word_counts" in done.output


@pytest.mark.long
def test_its_test_passes(project: Path) -> None:
    """In a process of its own, as a user's: Spark's workers find topology.py since it is in the current folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_its_unit_is_that_of_the_operations_page(project: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("```ini\n")[1].split("```")[0]
    unit = project / "deploy" / "shop-words.service"
    ours = set(unit.read_text(encoding="utf-8").replace("shop-words", "wordcount").splitlines())
    for line in page.splitlines():
        if line and not line.startswith(("#", "EnvironmentFile", "ExecStart")):
            assert line in ours, line
    if shutil.which("systemd-analyze"):
        # The user and the program are not on this machine: told apart from what is wrong in the file.
        text = unit.read_text(encoding="utf-8").replace("/srv/shop-words/.venv/bin/trident", "/bin/true")
        unit.write_text(text.replace("User=trident\n", ""), encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
        assert "shop-words" not in done.stderr, done.stderr


def test_its_compose_file_has_a_leader_and_a_standby(project: Path) -> None:
    compose = yaml.safe_load((project / "compose.yaml").read_text(encoding="utf-8"))
    topology = compose["services"]["topology"]
    assert topology["command"] == ["trident", "run", "topology.py"] and topology["deploy"]["replicas"] == 2
    assert topology["environment"]["TRIDENT_ZOOKEEPER"] == "zookeeper:2181"
    named = {volume.split(":")[0] for one in compose["services"].values() for volume in one["volumes"]}
    assert named - set(compose["volumes"]) == {"./data"}


@pytest.mark.parametrize("name", ["", "Shop", "a--b", "../shop", "shop words", "1shop", "shop-", "x" * 61])
def test_a_name_that_cannot_be_used_makes_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["new", "--", name])
    assert done.exit_code == 2 and "cannot be that of a project" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    done = CliRunner().invoke(main, ["new", "shop"])
    assert done.exit_code == 2 and "is there already" in done.output
    assert list((tmp_path / "shop").iterdir()) == []
