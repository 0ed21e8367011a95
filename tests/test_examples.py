"""Every example runs as a user would run it, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(example: str, folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *arguments], cwd=folder, capture_output=True, text=True,
        timeout=240, env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "PYTHONPATH": str(ROOT), "TRIDENT_SPARK_MASTER": "local[2]", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_01_word_count_and_a_second_run_that_adds_only_what_is_new(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    settings = {"TRIDENT_ZOOKEEPER": zk_server, "TRIDENT_ZOOKEEPER_ROOT": zk_root}
    first = run("01_word_count.py", tmp_path, **settings)
    assert "|   the|    4|" in first
    (tmp_path / "trident-warehouse/example-input/c.txt").write_text("the end\n")
    assert "|   the|    5|" in run("01_word_count.py", tmp_path, **settings)


def test_02_two_tables_always_add_up(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    settings = {"TRIDENT_ZOOKEEPER": zk_server, "TRIDENT_ZOOKEEPER_ROOT": zk_root}
    out = run("02_two_tables.py", tmp_path, **settings)
    assert "transaction 1: 2 orders worth 30.0, revenue 30.0" in out
    assert "transaction 3: 6 orders worth 46.0, revenue 46.0" in out
