"""The checks find defects: each patch plants one, and the tests named for it must fail.

Each patch is applied in a copy of the project, and the tests named for it run
there, in a process of their own; then its files are put back. `make test` plants one for each check that needs no
Spark, and runs the first of its tests; ``TRIDENT_PLANTED=all`` (`make planted`) plants all and runs every test
named. docs/faults.md has the same table in words, with what
each bug would do to a user; a test here holds the two together.

A patch that no longer applies is an error too: plant the bug again in the new
code. To add one: ``tests/planted/NN-name.patch`` (a unified diff from the
root of the project, as of ``git diff -U1``, below the lines that tests/planted/bugs.py describes), and a row in
docs/faults.md.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.planted.bugs import PATCHES, PLANTED, SUITES, read

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
# Of `make planted`: each bug, the seconds after which its tests had found it, and the tests.
FOUND = PATCHES.parent / "proof" / "planted.tsv"
COPIED = ("coordinators", "states", "trident", "java", "tests", "pyproject.toml")
JAR = "trident/spark/kept-plans.jar"
ALL = os.environ.get("TRIDENT_PLANTED") == "all"
# What a test that runs in a process of its own must load; all the rest takes most of its time.
BARE = ("--noconftest", "-p", "no:hypothesispytest", "-p", "no:anyio")
NEEDS = {
    "nothing": BARE,
    "hypothesis": ("--noconftest", "-p", "no:anyio"),
    "ZooKeeper": (*BARE, "-p", "tests.servers.zk_fixtures"),
    "Spark": (),
}


@pytest.fixture(scope="module")
def zookeeper_for_all(tmp_path_factory: pytest.TempPathFactory):
    """One server for the runs of this process; each test in them has a root of its own."""
    from trident.coordinators.embedded import EmbeddedZooKeeper

    folder = tmp_path_factory.mktemp("zookeeper")
    yield EmbeddedZooKeeper.ensure(folder, idle_secs=3600.0)
    EmbeddedZooKeeper.stop(folder)


def test_every_patch_names_what_catches_it(tmp_path):
    promised = [caught.promised for caught in PLANTED.values() if caught.promised]
    assert len(promised) == len(set(promised)) == 16
    assert {caught.needs for caught in PLANTED.values()} == set(NEEDS)
    named = {test.partition("[")[0] for caught in PLANTED.values() for test in caught.tests}
    assert [test for test in sorted(named) if f"def {test.rpartition('::')[2]}(" not in source_of(test)] == []
    (tmp_path / "bare.patch").write_text("--- a/x\n+++ b/x\n")
    with pytest.raises(ValueError, match=r"bare\.patch must begin with"):
        read(tmp_path / "bare.patch")


def source_of(test: str) -> str:
    return (ROOT / test.partition("::")[0]).read_text()


def test_every_patch_applies(copy):
    """Most are planted by `make planted` alone, long behind the change that has moved their lines."""
    stale = []
    for patch in sorted(PATCHES.glob("*.patch")):
        if _git_apply(copy, "--check", str(patch)).returncode:
            stale.append(patch.stem)
    assert not stale, "plant these again in the code of today"


def test_the_page_about_faults_has_the_same_table():
    text = PAGE.read_text()
    rows = {row[0].strip("` "): row for row in table_of(text, "bug")}
    assert sorted(rows) == sorted(PLANTED)
    for name, (_, what, suites) in rows.items():
        assert {suite.strip() for suite in suites.split(",")} == PLANTED[name].suites, name
        assert len(what) > 20, f"what does {name} do to a user?"
    for name, caught in PLANTED.items():
        if promised := caught.promised:
            assert f"**{promised}**" in rows[name][1], f"{name} must be marked as the one called {promised!r}"
    described = {row[0] for row in table_of(text, "suite")}
    assert set(SUITES) <= described


def table_of(text: str, first_column: str) -> list[list[str]]:
    """The rows of the Markdown table whose first column has this title."""
    lines = text[text.index(f"| {first_column} |") :].split("\n\n")[0].splitlines()
    return [[part.strip() for part in line.strip("| ").split(" | ")] for line in lines[2:]]


def chosen() -> list:
    """Every bug; those that a run of `make test` leaves out say so."""
    left_out = pytest.mark.skip("planted with TRIDENT_PLANTED=all (make planted)")
    return [pytest.param(name, marks=[] if ALL or name in IN_MAKE_TEST else [left_out]) for name in PLANTED]


# One bug for each check that needs no Spark: that a run of `make test` can find any.
IN_MAKE_TEST = {
    "02-advance-before-publish",
    "20-no-fence",
    "25-corrupt-value-read-as-absent",
    "30-log-dropped-beyond-what-is-merged",
    "50-opaque-base-wrong",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, without its patches. What is compiled for one bug serves the next."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        if (source := ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.patch")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


@pytest.mark.parametrize("name", chosen())
def test_the_planted_bug_is_caught(name, copy, request):
    caught = PLANTED[name]
    tests = caught.tests if ALL else caught.tests[:1]
    zookeeper = request.getfixturevalue("zookeeper_for_all") if caught.needs in ("ZooKeeper", "Spark") else ""
    began = time.monotonic()
    with planted(PATCHES / f"{name}.patch", copy):
        outcome, output = run(tests, copy, caught.needs, zookeeper)
    assert outcome == 1, f"expected failing tests, pytest ended with {outcome}:\n{output}"
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE))
    assert failed == set(tests), f"not caught by {set(tests) - failed}:\n{output}"
    assert re.search(caught.says, output), f"caught, but not for {caught.says!r}:\n{output}"
    if ALL:
        _note(name, tests, time.monotonic() - began)


def _note(name: str, tests: tuple[str, ...], secs: float) -> None:
    """Writes down what found the bug, and after how many seconds, in place of what an earlier run wrote."""
    with open(FOUND, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # test processes beside this one write to it, too
        file.seek(0)
        there = dict(line.rstrip("\n").split("\t", 1) for line in file)
        there[name] = f"{secs:.0f}\t{' '.join(tests)}"
        file.truncate(0)
        file.writelines(f"{one}\t{there[one]}\n" for one in sorted(there) if one in PLANTED)


def test_a_patch_that_does_not_apply_is_told(tmp_path, copy):
    patch = tmp_path / "old.patch"
    text = (PATCHES / "06-failure-heard-after-the-decision.patch").read_text()
    patch.write_text(text.replace("-    if live is None", "-    if nobody is None"))
    with pytest.raises(AssertionError, match="does not apply"), planted(patch, copy):
        pass


@contextmanager
def planted(patch: Path, folder: Path) -> Iterator[None]:
    """Applies the patch to the copy of the project; at the end its files are as they were."""
    changed = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
    before = {name: (folder / name).read_text() for name in changed}
    jar = (folder / JAR).read_bytes()
    try:
        _apply(patch, folder, before)
        if any(name.startswith("java/") for name in changed):
            if shutil.which("javac") is None:
                pytest.skip("there is no javac")
            command = [sys.executable, "-m", "tests.jvm.make_jar"]
            subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, check=True, timeout=120)
            assert (folder / JAR).read_bytes() != jar, "the jar is that of the sources without the bug"
        yield
    finally:
        (folder / JAR).write_bytes(jar)
        for name, text in before.items():
            (folder / name).write_text(text)
            _forget_compiled(folder / name)


def _forget_compiled(file: Path) -> None:
    """Python knows a file that has changed by its second and its size: another bug may have both."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _git_apply(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Inside a repository `git apply` passes over files outside of it without a word.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    return subprocess.run(
        ["git", "apply", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=30
    )


def _apply(patch: Path, folder: Path, before: dict[str, str]) -> None:
    applied = _git_apply(folder, str(patch))
    assert applied.returncode == 0, f"{patch.name} does not apply, plant it again: {applied.stderr}"
    for name, text in before.items():
        assert (folder / name).read_text() != text, f"{patch.name} changed nothing in {name}"
        _forget_compiled(folder / name)


def run(tests: tuple[str, ...], folder: Path, needs: str, zookeeper: str) -> tuple[int, str]:
    """pytest's exit code and output, in a process that sees the copy only."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "500"}
    for name in ("TRIDENT_EXPLORE", "TRIDENT_PLANTED", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    environment.update(TRIDENT_MATRIX="all", TRIDENT_TEST_ZOOKEEPER=zookeeper)
    options = ("-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *NEEDS[needs])
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    return ended.returncode, ended.stdout + ended.stderr
