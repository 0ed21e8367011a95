"""The lock of a table on a local disk: MERGEs of Spark share it, a repair of the table holds it alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from trident.coordinators.errors import TableError
from trident.states.core import storage

log = logging.getLogger(__name__)

LOCK_NAME = "_trident.lock"
_WARN_AFTER_SECS = 30.0


@contextmanager
def table_lock(path: str, shared: bool = False, timeout_secs: float | None = None) -> Iterator[None]:
    """Hold the lock of a table on a local disk: for what Spark commits, which may not come between two looks.

    No commit of a transaction takes it: there the file system decides (``log_commit``), and a process that is stopped
    keeps no other waiting. MERGEs hold it together (``shared``): they need no protection from each other. A repair that
    restores a table, and a process that sets a torn log entry aside, hold it alone. The operating system releases it
    when its holder dies, so a SIGKILL leaves nothing behind but the empty file.

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
    with nullcontext() if root is None else _taken(path, root, shared, timeout_secs):
        yield


def _taken(path: str, root: str, shared: bool, timeout_secs: float | None) -> AbstractContextManager[object]:
    lock, anchor = storage.join(root, LOCK_NAME), storage.anchor_of(root)
    try:
        try:
            return storage.lock(lock, anchor, shared, _WARN_AFTER_SECS if timeout_secs is None else timeout_secs)
        except storage.LockHeld as error:
            holder = error.holder or "another process"
            if timeout_secs is not None:
                raise TableError(
                    f"the lock of table {path} is not free",
                    found=f"held by {holder}",
                    expected=f"a free lock within {timeout_secs:.0f} s",
                    action="if that process is stopped or hangs: let it go on, or kill it",
                ) from error
        log.warning(
            "waiting for the lock of table %s since %.0f s; it is held by %s. A process that is stopped or hangs "
            "inside a MERGE keeps it: let it go on, or kill it",
            path,
            _WARN_AFTER_SECS,
            holder,
        )
        return storage.lock(lock, anchor, shared)
    except OSError as error:
        raise TableError(
            f"the lock of table {path} cannot be opened", found=error, action="check the permissions"
        ) from error
