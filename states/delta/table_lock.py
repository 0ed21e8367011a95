"""The lock of a table on a local disk: for what Spark commits, and for who repairs the table."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trident.coordinators.errors import TableError
from trident.states.core import storage

log = logging.getLogger(__name__)

LOCK_NAME = "_trident.lock"
_WARN_AFTER_SECS = 30.0


@contextmanager
def table_lock(path: str, shared: bool = False, timeout_secs: float | None = None) -> Iterator[None]:
    """Hold the lock of a table on a local disk: for what Spark commits, which may not come between two looks.

    No commit of a transaction takes it: there the file system decides (``log_commit``), and a process that is stopped
    keeps nobody waiting. MERGEs hold it together (``shared``): they need no protection from each other. A repair that
    restores a table, and whoever sets a torn log entry aside, hold it alone. The operating system releases it when its
    holder dies, so a SIGKILL leaves nothing behind but the empty file.

    Not re-entrant. A holder that is stopped or hangs is waited for; after half a minute a warning names it. On other
    file systems this does nothing.

    Args:
        path: the table's root.
        shared: together with others that share it.
        timeout_secs: how long to wait; None for ever.

    Raises:
        TableError: the lock file cannot be opened, or others still hold the lock.
    """
    root = storage.local_path(path)
    if root is None:
        yield
        return
    lock = os.path.join(root, LOCK_NAME)
    while True:
        try:
            storage.make_folder(root, storage.anchor_of(root))
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise TableError(
                f"the lock of table {path} cannot be opened", found=error, action="check the permissions"
            ) from error
        try:
            _wait_for(handle, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout_secs)
            # The table's folder may have been deleted and made again while we
            # waited: then we hold the lock of a file that nobody else opens.
            if _same_file(handle, lock):
                yield
                return
        finally:
            os.close(handle)


def _wait_for(handle: int, path: str, kind: int, timeout_secs: float | None) -> None:
    if _try(handle, kind):
        return
    if timeout_secs is not None:
        deadline = time.monotonic() + timeout_secs
        while time.monotonic() < deadline:
            if _try(handle, kind):
                return
            time.sleep(0.02)
        raise TableError(
            f"the lock of table {path} is not free",
            found=f"held by {_holder(os.fstat(handle)) or 'another process'}",
            expected=f"a free lock within {timeout_secs:.0f} s",
            action="if that process is stopped or hangs: let it go on, or kill it",
        )
    warning = threading.Timer(_WARN_AFTER_SECS, _warn, (path, os.fstat(handle)))
    warning.daemon = True
    warning.start()
    try:
        fcntl.flock(handle, kind)
    finally:
        warning.cancel()


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _warn(path: str, lock: os.stat_result) -> None:
    log.warning(
        "waiting for the lock of table %s since %.0f s; it is held by %s. A process that is stopped or hangs "
        "inside a MERGE keeps it: let it go on, or kill it",
        path,
        _WARN_AFTER_SECS,
        _holder(lock) or "another process",
    )


def _holder(lock: os.stat_result) -> str | None:
    """Who holds a file's lock: "process 17 (stopped)". Linux tells; elsewhere None."""
    wanted = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if wanted in line.split()]
        # "7: FLOCK ADVISORY WRITE 17 fe:01:131 0 EOF"; who waits has "->" after the number.
        pid = next(fields[4] for fields in held if fields[1] == "FLOCK")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, StopIteration, IndexError):
        return None
    return f"process {pid}" + (" (stopped)" if state in "Tt" else "")


def _same_file(handle: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
