"""The soak's own checks find what they are for; and the soak itself, with ``TRIDENT_SOAK=MINUTES`` (make soak)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.soak import measure
from tests.soak.bounds import broken_bounds
from tests.soak.feeder import _difference

ROOT = Path(__file__).resolve().parents[2]
MINUTES = os.environ.get("TRIDENT_SOAK", "")


def final(**changed: object) -> dict:
    found = {
        "kills": {"leader": 2},
        "state": {"files": 5},
        "znodes": 15,
        "zookeeper": {"mb": 3.0},
        "orphans": {"lines": 1, "counts__log": 0},
        "local": {"files": 3},
        "queue_kb": 40,
        "temporary": 0,
        "data_files": {"counts__log": 90},
    }
    return {**found, **changed}


def leader(**growth: float) -> list[dict]:
    """Ten minutes of a leader that is flat but for what is said, so much a minute."""
    flat = {
        "python_mb": 150.0,
        "heap_mb": 200.0,
        "jvm_mb": 900.0,
        "python_files": 30.0,
        "jvm_files": 350.0,
        "python_threads": 30.0,
        "jvm_threads": 120.0,
    }
    return [
        {
            "kind": "process",
            "quiet": True,
            "pid": 1,
            "at": at,
            "age": 100.0 + at,
            **{name: value + growth.get(name, 0.0) * at / 60 for name, value in flat.items()},
        }
        for at in range(0, 600, 10)
    ]


def test_what_is_bounded_passes(tmp_path: Path) -> None:
    assert broken_bounds(leader(), final(), tmp_path) == []


@pytest.mark.parametrize(
    "grown",
    [
        {"znodes": 500},
        {"znodes": -1},
        {"state": {"files": 200}},
        {"zookeeper": {"mb": 900.0}},
        {"temporary": 3},
        {"orphans": {"lines": 90}},
        {"local": {"files": 900}},
        {"data_files": {"counts__log": 3_000}},
    ],
)
def test_what_piles_up_on_disk_is_found(tmp_path: Path, grown: dict) -> None:
    assert len(broken_bounds(leader(), final(**grown), tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("python_mb", 3.0),
        ("heap_mb", 10.0),
        ("python_files", 3.0),
        ("jvm_files", 8.0),
        ("python_threads", 2.0),
        ("jvm_threads", 6.0),
    ],
)
def test_what_a_leader_gathers_is_found(tmp_path: Path, name: str, each: float) -> None:
    (found,) = broken_bounds(leader(**{name: each}), final(), tmp_path)
    assert found.startswith(name)


def test_a_lost_and_a_doubled_one_are_found_and_told_apart() -> None:
    fed = Counter({"a": 2, "b": 1, "c": 1})
    assert _difference("lines", dict(fed), fed) == []
    (lost,), (doubled,), (both,) = (
        _difference("lines", {"a": 1, "b": 1, "c": 1}, fed),
        _difference("lines", {"a": 2, "b": 2, "c": 1}, fed),
        _difference("lines", {"a": 3, "b": 1}, fed),
    )
    assert "1 lost, 0 doubled" in lost and "0 lost, 1 doubled" in doubled and "1 lost, 1 doubled" in both


def test_files_that_no_commit_names_and_drafts_are_counted(tmp_path: Path) -> None:
    log, data = tmp_path / "t" / "_delta_log", tmp_path / "t" / "data" / "i"
    log.mkdir(parents=True)
    for name in ("1-0-a/named.parquet", "1-1-b/left.parquet"):
        (data / name).parent.mkdir(parents=True)
        (data / name).touch()
    (log / f"{0:020d}.json").write_text('{"add":{"path":"data/i/1-0-a/named.parquet"}}\n')
    (log / f".{1:020d}.json.x.tmp").touch()
    assert measure.orphans(tmp_path / "t") == {"data/i/1-1-b/left.parquet"}
    assert measure.temporary(tmp_path) == [f"t/_delta_log/.{1:020d}.json.x.tmp"]


@pytest.mark.skipif(not MINUTES, reason="the soak: TRIDENT_SOAK=MINUTES (make soak)")
def test_nothing_is_lost_doubled_or_piled_up_under_random_kills() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.soak", "--minutes", MINUTES], cwd=ROOT)
    assert done.returncode == 0
