"""What may not grow in a long run, and how much there may be of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.measure import slope_per_minute, temporary

WARM_SECS = 60.0


def broken_bounds(
    records: list[dict[str, Any]], final: dict[str, Any], folder: Path, settings: Mapping[str, int]
) -> list[str]:
    """The bounds that do not hold, as text; prints the figures.

    Args:
        records, final: of ``measure.Watch``.
        settings: ``heap_mb`` of a leader; ``log_files`` that the log of a merged state may have; ``state_files`` that
            the topology may have of its own.
    """
    return [
        *_folders(final, folder, settings["log_files"], settings["state_files"]),
        *_processes(records, settings["heap_mb"]),
    ]


def _folders(final: dict[str, Any], folder: Path, log_files: int, state_files: int) -> list[str]:
    ended = sum(final["struck"].get(kind, 0) for kind in ("leader", "sleep", "zookeeper", "supervisor"))
    # What an attempt stages: a file for each state, and one file in flight for each thing that was killed.
    checks = {
        "files under _trident/chaos": (final["state"]["files"], state_files),
        "znodes": (final.get("znodes", -1), 80),
        "MB of ZooKeeper's folder": (final["zookeeper"]["mb"], 300),
        "data files that no commit names": (sum(final["orphans"].values()), 6 * ended + 10),
        "files in Spark's local folders": (final["local"]["files"], 40 * final["struck"].get("leader", 0) + 20),
        # What is kept for snapshots, what waits for its MERGE, and what was dropped a moment ago.
        "data files of the log": (final["data_files"]["f_counts__log"], log_files),
        "kB of the queue": (final["queue_kb"], 1000),
        "temporary files": (final["temporary"], 0),
    }
    for name, (found, most) in checks.items():
        print(f"{name}: {found}, at most {most}")
    broken = [f"{name}: {found}, at most {most}" for name, (found, most) in checks.items() if found > most or found < 0]
    return broken + [f"temporary: {name}" for name in temporary(folder / "warehouse")]


def _processes(records: list[dict[str, Any]], heap_mb: int) -> list[str]:
    """A long-lived leader: its memory and its open files stay as they are."""
    quiet = [one for one in records if one["kind"] == "process" and one["quiet"]]
    pids = {one["pid"] for one in quiet[-3:]}
    points = [one for one in quiet if one["pid"] in pids and one["age"] > WARM_SECS]
    if len(points) < 10 or points[-1]["at"] - points[0]["at"] < 90:
        print("memory and open files of a long-lived leader: too short a run to say")
        return []
    minutes = (points[-1]["at"] - points[0]["at"]) / 60
    broken = []
    # Name, growth at once (Spark remembers its last 1,000 jobs), growth a minute, most.
    for name, once, each, most in (
        ("python_mb", 10, 0.3, 600),
        ("heap_mb", 30, 0.5, heap_mb),
        ("jvm_mb", 120, 1.0, heap_mb + 700),
        ("python_files", 12, 0.02, 150),
        ("jvm_files", 30, 0.05, 700),
        ("python_threads", 10, 0.02, 120),
        ("jvm_threads", 30, 0.02, 250),
    ):
        found = [(one["at"], one[name]) for one in points if name in one]
        if not found:
            print(f"{name}: NOT MEASURED here")
            continue
        slope, highest, allowed = slope_per_minute(found), max(value for _, value in found), once / minutes + each
        print(
            f"{name}: {slope:+.2f} a minute over {minutes:.1f} minutes (at most {allowed:.2f}), "
            f"from {found[0][1]:g} to {found[-1][1]:g}, highest {highest:g} of {most}"
        )
        if slope > allowed or highest > most:
            broken.append(f"{name} of the leader: {slope:+.2f} a minute, highest {highest:g}")
    return broken
