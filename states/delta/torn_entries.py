"""Sets aside the newest log entry of a Delta table when it is torn, so that the table can be read and written again.

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
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog, TableMissing
from trident.states.delta.kernel_files import fsync_log_entry
from trident.states.delta.table_lock import table_lock

log = logging.getLogger(__name__)
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
