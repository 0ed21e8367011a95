"""A small disk that tests fill up, write-protect and give back; and actions at a chosen moment of a batch."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.measure import orphans, temporary
from trident.coordinators import faults


class SmallDisk:
    """A tmpfs of some megabytes.

    Attributes:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))

    @property
    def free(self) -> int:
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Takes all room but so many bytes (whole pages of 4 kB)."""
        with open(self.folder / "ballast", "ab", buffering=0) as ballast:
            while self.free > leave:
                try:
                    ballast.write(bytes(max(1, min(self.free - leave, 1 << 20))))
                except OSError:
                    return

    def make_room(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def protect(self) -> None:
        """Read-only; waits until nobody has a file open for writing."""
        deadline = time.monotonic() + 10
        while True:
            try:
                _mount("-o", "remount,ro", str(self.folder))
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def unprotect(self) -> None:
        _mount("-o", "remount,rw", str(self.folder))

    def end(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a full and a read-only disk (needs root, to mount a small file system)")
    try:
        disk = SmallDisk(folder, megabytes)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: a full and a read-only disk (mount does not work here: {error})")
    try:
        yield disk
    finally:
        disk.end()


class Moments:
    """Does something when the product comes to a fault point, just before its I/O; the I/O is then done as ever."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._actions: dict[str, list[Callable[[], None]]] = {}
        self._real = faults.fault_point
        patch.setattr(faults, "fault_point", self._enter)

    def before(self, point: str, action: Callable[[], None], nth: int = 1) -> None:
        """Once, at the nth entry from now on."""
        left = [nth]

        def counted() -> None:
            left[0] -= 1
            if left[0] == 0:
                action()

        self._actions.setdefault(point, []).append(counted)

    def _enter(self, point: str):
        for action in self._actions.get(point, ()):
            action()
        return self._real(point)


def leftovers(warehouse: Path) -> list[str]:
    """Temporary files, and staged files that no commit has named.

    What a failed MERGE of Delta leaves beside them is for VACUUM: nobody else can know that it is not needed.
    """
    tables = [path.parent for path in warehouse.glob("*/_delta_log")]
    staged = [f"{table.name}/{name}" for table in tables for name in orphans(table) if name.startswith("data/")]
    return temporary(warehouse) + sorted(staged)
