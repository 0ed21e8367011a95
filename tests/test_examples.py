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


def test_01_word_count(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    settings = {"TRIDENT_ZOOKEEPER": zk_server, "TRIDENT_ZOOKEEPER_ROOT": zk_root}
    assert "|   the|    4|" in run("01_word_count.py", tmp_path, **settings)


def test_02_two_tables_always_add_up(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    settings = {"TRIDENT_ZOOKEEPER": zk_server, "TRIDENT_ZOOKEEPER_ROOT": zk_root}
    out = run("02_two_tables.py", tmp_path, **settings)
    assert "transaction 1: 2 orders worth 30.0, revenue 30.0" in out
    assert "transaction 3: 6 orders worth 46.0, revenue 46.0" in out


def test_03_a_queue_is_acknowledged_at_commit(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    out = run("03_committer_spout.py", tmp_path, TRIDENT_ZOOKEEPER=zk_server, TRIDENT_ZOOKEEPER_ROOT=zk_root)
    assert "before: 6 messages in the queue" in out and "after: 0 messages in the queue" in out
    assert "|        de|     3|" in out


def test_04_files_that_change_before_they_are_committed(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    out = run("04_opaque_source.py", tmp_path, TRIDENT_ZOOKEEPER=zk_server, TRIDENT_ZOOKEEPER_ROOT=zk_root)
    assert "|    ann|     15|" in out and "|    bob|      7|" in out
    assert "consumed: 1.txt, 2.txt" in out and "waiting: nothing" in out


def test_05_a_map_of_ones_own(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    out = run("05_own_backing_map.py", tmp_path, TRIDENT_ZOOKEEPER=zk_server, TRIDENT_ZOOKEEPER_ROOT=zk_root)
    assert "put twice: 30 bolts are gone" in out and "refuses it; found: epoch" in out
