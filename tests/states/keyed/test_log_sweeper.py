"""Dropped log files go from the disk after their grace, and nothing else does."""

from __future__ import annotations

from pathlib import Path

from trident.states.keyed.compactor import GRACE_SECS, LogSweeper


def test_what_was_dropped_goes_after_the_grace_and_what_was_not_stays(tmp_path: Path) -> None:
    now = [0.0]
    for name in ("mine/1-0-a", "mine/2-1-b", "mine/3-0-c", "mine/10-0-d", "mine/not-ours", "other/1-0-a"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / "part.parquet").touch()

    def left() -> set[str]:
        return {str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").glob("*/*")}

    sweeper = LogSweeper(tmp_path, "mine", lambda: now[0])
    sweeper.dropped(1)
    assert sweeper.sweep() == 0, "a reader that began before the drop may still be at it"
    now[0] = GRACE_SECS / 2
    sweeper.dropped(3)
    sweeper.dropped(3)
    now[0] = GRACE_SECS
    assert sweeper.sweep() == 1
    assert left() == {"mine/2-1-b", "mine/3-0-c", "mine/10-0-d", "mine/not-ours", "other/1-0-a"}
    now[0] = 1.5 * GRACE_SECS
    assert sweeper.sweep() == 2
    assert left() == {"mine/10-0-d", "mine/not-ours", "other/1-0-a"}
    assert sweeper.sweep() == 0


def test_a_log_without_staged_files_is_nothing_to_sweep(tmp_path: Path) -> None:
    now = [0.0]
    sweeper = LogSweeper(tmp_path, "mine", lambda: now[0])
    sweeper.dropped(5)
    now[0] = 2 * GRACE_SECS
    assert sweeper.sweep() == 0
