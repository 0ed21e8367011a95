"""What a Delta commit is made of, apart from the Java calls that make it.

Action rows as JSON text, the files of a table version, and the lock that a
repair has against a MERGE. Knows no JVM, so that all of it can be tested and
read without one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from trident.coordinators.errors import TableError
from trident.states.core.folders import anchor_of, make_folder
from trident.states.core.staged import StagedFile

log = logging.getLogger(__name__)

LOCK_NAME = "_trident.lock"
_WARN_AFTER_SECS = 30.0
# Characters that both Java's URI and Spark leave alone in the path of a file action.
_SAFE = "/=:@!$&'()*+,;-._~"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of a table version.

    Attributes:
        path: relative to the table's root, not URL-encoded.
        size: bytes.
        partition_values: partition column -> value as Delta writes it, None for null.
        stats: Delta's statistics as a dict, or None when the writer gave none.
        num_records: rows in the file, or None when unknown.
        modification_ms: milliseconds since the epoch.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    stats: Mapping[str, object] | None
    num_records: int | None
    modification_ms: int


def add_action(file: StagedFile, *, data_change: bool = True) -> str:
    """The ``add`` action that makes a staged file part of the table, as JSON."""
    return json.dumps(
        {
            "add": {
                "path": quote(file.path, safe=_SAFE),
                "partitionValues": dict(file.partition_values),
                "size": file.size,
                "modificationTime": file.mtime_ms,
                "dataChange": data_change,
                "stats": file.stats,
            }
        },
        ensure_ascii=False,
    )


def remove_action(file: LiveFile, *, data_change: bool) -> str:
    """The ``remove`` action that takes a live file out of the table, as JSON."""
    return json.dumps(
        {
            "remove": {
                "path": quote(file.path, safe=_SAFE),
                "deletionTimestamp": time.time_ns() // 1_000_000,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition_values),
                "size": file.size,
            }
        },
        ensure_ascii=False,
    )


def live_file(action: str) -> LiveFile:
    """Read one ``add`` action, given as the JSON that Kernel prints."""
    add = json.loads(action)["add"]
    stats = json.loads(add["stats"]) if add.get("stats") else None
    return LiveFile(
        path=unquote(add["path"]),
        size=add["size"],
        partition_values=add.get("partitionValues") or {},
        stats=stats,
        num_records=None if stats is None else stats.get("numRecords"),
        modification_ms=add["modificationTime"],
    )


def local_path(path: str) -> str | None:
    """The path on this machine's file system, or None for another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return unquote(parts.path)
    return os.path.abspath(path) if not parts.scheme else None


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
    root = local_path(path)
    if root is None:
        yield
        return
    lock = os.path.join(root, LOCK_NAME)
    while True:
        try:
            make_folder(root, anchor_of(root))
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


def settle_log_entry(path: str, version: int) -> None:
    """Make a log entry outlive a power cut, and remove Hadoop's checksum beside it.

    Older ones first: an entry that is durable before the one below it would
    leave a hole in the log. Delta's protocol knows no checksum file of that
    name, and a stale one makes the entry unreadable.

    Raises:
        OSError: the disk refused; whether the entry is durable is not known.
    """
    root = local_path(path)
    if root is None:
        return
    folder = os.path.join(root, "_delta_log")
    entry = f"{version:020d}.json"
    try:
        os.unlink(os.path.join(folder, f".{entry}.crc"))
    except FileNotFoundError:
        pass
    for name in (os.path.join(folder, entry), folder):
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _same_file(handle: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
