"""The Java that is found, and the one that is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import JavaProblem
from trident.coordinators.processes import find_java


def fake_java(folder: Path, output: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit {code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "17.0.1"', 17),
    ],
)
def test_the_java_of_java_home_is_found_with_its_version(tmp_path, monkeypatch, output, major):
    home = fake_java(tmp_path / "jdk", output)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == (str(home / "bin" / "java"), major)


@pytest.mark.parametrize(
    ("output", "code", "text"),
    [
        ('java version "1.8.0_402"', 0, "too old.*Java 8 .*17 or newer"),
        ('openjdk version "11.0.2" 2019', 0, "too old.*Java 11 "),
        ("no runtime present", 1, "does not work.*no runtime present"),
        ("hello", 0, "does not work.*hello"),
    ],
)
def test_a_java_that_will_not_do_is_refused(tmp_path, monkeypatch, output, code, text):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", output, code)))
    with pytest.raises(JavaProblem, match=text):
        find_java()
    with pytest.raises(JavaProblem, match=text):
        EmbeddedZooKeeper.ensure(tmp_path / "server")


def test_no_java_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaProblem, match="JAVA_HOME="):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaProblem, match="no Java"):
        find_java()


def test_the_java_of_the_path_without_java_home(tmp_path, monkeypatch):
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.15"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == (str(home / "bin" / "java"), 17)
