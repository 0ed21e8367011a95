"""Sets aside a torn newest entry of a Delta table's log, under the lock that MERGEs and repairs of a table share.

A log entry is written as a draft and renamed, so it is there as a whole or not
at all; with two exceptions. A power cut right after the rename can leave a
name without its bytes (Delta flushes nothing; our commits count only once they
are flushed, see ``publish_draft``). And where a rename is refused, Hadoop's
local file system copies instead, which a full disk or a SIGKILL can interrupt
(seen: a rename refused with ENOSPC leaves the beginning of the entry there).
No writer was told that such a commit happened; but the file would stop
every reader, and every later commit.

Should it be an entry that did count (a disk that lost what it had flushed), the
control record is then older than what ZooKeeper says, and the topology halts.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog, TableMissing
from trident.states.delta.kernel_files import fsync_log_entry

# The lock of a table on a local disk: MERGEs of Spark share it, a repair of the table holds it alone.


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
                    action="if that process is stopped or hangs: let it continue, or kill it",
                ) from error
        log.warning(
            "waiting for the lock of table %s since %.0f s; it is held by %s. A process that is stopped or hangs "
            "inside a MERGE keeps it: let it continue, or kill it",
            path,
            _WARN_AFTER_SECS,
            holder,
        )
        return storage.lock(lock, anchor, shared)
    except OSError as error:
        raise TableError(
            f"the lock of table {path} cannot be opened", found=error, action="check the permissions"
        ) from error


# More than that is no power cut: a person should look.
_IN_A_ROW = 20
# A process that holds the lock longer is stopped, or hangs: the table is read as it is.
_LOCK_SECS = 20.0

_Read = TypeVar("_Read")


def set_torn_entries_aside(path: str) -> int | None:
    """Sets torn entries aside until the newest one is whole; a power cut may have torn several MERGEs in a row.

    Returns:
        The newest version; None when there is none, or the table is not on a local disk.

    Raises:
        OSError, TableError: one cannot be read or renamed.
    """
    for _ in range(_IN_A_ROW):
        if set_aside_torn_entry(path) is None:
            break
    return max(DeltaLog(path).versions(), default=None) if storage.local_path(path) is not None else None


def read_whole(path: str, read: Callable[[], _Read]) -> _Read:
    """A reading of a table's log; where it fails, once more after torn entries were set aside.

    Raises:
        TableMissing: there is no table.
        TableError: its log cannot be read: what is wrong with it is no torn entry.
    """
    try:
        return read()
    except TableMissing:
        raise
    except TableError:
        with suppress(OSError, TableError):
            set_torn_entries_aside(path)
        return read()


def set_aside_torn_entry(path: str) -> str | None:
    """Renames the newest log entry if it is torn; not re-entrant under :func:`table_lock`, which it takes.

    Returns:
        The path that the entry has now; None when it is whole, or the table is not on a local disk.

    Raises:
        OSError, TableError: it cannot be read or renamed.
    """
    if storage.local_path(path) is None or _newest_torn(path) is None:
        return None
    # Two that set the same entry aside must not take the whole one for it that a third has made meanwhile. And a MERGE
    # holds this lock: where a rename is refused, Hadoop writes its entry bit by bit.
    with table_lock(path, timeout_secs=_LOCK_SECS):
        version = _newest_torn(path)
        if version is None:
            return None
        log_folder, _, name = DeltaLog(path).entry(version).rpartition("/")
        aside = f".{name}.{uuid.uuid4().hex[:8]}.torn"
        with storage.hold(log_folder) as folder:
            folder.rename(name, aside)
    aside = storage.join(log_folder, aside)
    log.warning("the newest log entry of table %s is torn and was set aside as %s", path, aside)
    return aside


def fsync_log_entries(path: str, first: int, last: int) -> None:
    """Make log entries, from the older to the newer, outlive a power cut; those that are gone need nothing.

    On other file systems it does nothing.
    """
    try:
        for version in range(first, last + 1):
            try:
                fsync_log_entry(path, version)
            except FileNotFoundError:
                pass
    except OSError as error:
        raise TableError(
            f"versions {first} to {last} of table {path} may not outlive a power cut",
            found=error,
            action="check the disk",
        ) from error


def _newest_torn(path: str) -> int | None:
    log = DeltaLog(path)
    versions = log.versions()
    if not versions:
        return None
    try:
        data = storage.read(log.entry(versions[-1]))
    except FileNotFoundError:
        return None  # cleaned up meanwhile
    except Unreadable as error:
        raise TableError(f"the newest log entry of table {path} cannot be read: {error}") from error
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        whole = bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        whole = False
    return None if whole else versions[-1]
