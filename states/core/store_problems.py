"""Errors of a store, or of a disk, in words: which of its refusals it was, and what a person can do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from trident.coordinators.errors import StorageProblem, StoreProblem, StoreUnreachable
from trident.states.core.storage import STORES, AnyPath


def store_problem(error: OSError, warehouse: AnyPath | None = None, then: str = "") -> StoreProblem:
    """The problem that an error of a storage is.

    Args:
        warehouse: named in the message; without it the file that the error names.
        then: comes of it, at the end of the message.
    """
    said = f"{error.strerror or error}"
    kind = StoreProblem
    if is_safe_mode(error):
        kind, what = StoreUnreachable, "the name node is in safe mode"
        action = "wait until it leaves it (hdfs dfsadmin -safemode get)"
    elif error.errno == errno.ENODEV:
        what, action = "the bucket does not exist", "make it, or set warehouse to another one"
    elif "RequestTimeTooSkewed" in said:
        what, action = "this machine's clock is too far from the store's", "set the clock, by NTP for example"
    elif isinstance(error, PermissionError):
        what = "the store refuses this process"
        action = "give it credentials that may read, write, list and delete below the warehouse"
    else:
        kind, what = StoreUnreachable, "the store cannot be reached, or fails"
        action = "see that it is there, and that this machine reaches it"
    where = f"the warehouse {os.fspath(warehouse)}" if warehouse is not None else f"{error.filename}"
    return kind(
        f"{where} cannot be used: {what}", found=said[:500], action="; ".join([action, *([then] if then else [])])
    )


def is_safe_mode(error: OSError) -> bool:
    """Tells whether a name node refuses, being in its safe mode, as each is for a while behind its start."""
    return "SafeMode" in f"{error.strerror or error}"


def told_by_a_store(error: BaseException, warehouse: AnyPath | None = None) -> StoreProblem | None:
    """The problem, where an error is one that a store told; a file that is missing is none.

    Args:
        warehouse: as of :func:`store_problem`.
    """
    if not isinstance(error, OSError) or isinstance(error, (FileNotFoundError, FileExistsError)):
        return None
    named = str(error.filename).partition("://")[0] in STORES
    return store_problem(error, warehouse) if named else None


_YOURS = "let this process's user use it (ls -ld, mount), or name another path"
# A disk that refuses something is a matter of this machine, not an error of the framework: error number → why, action.
_OF_A_DISK = {
    errno.EACCES: ("this process may not use it", _YOURS),
    errno.EPERM: ("this process may not use it", _YOURS),
    errno.EROFS: ("it is on a file system that is mounted read-only", _YOURS),
    errno.ENOTDIR: ("a part of the path is a file, or leads nowhere", "name another path"),
    errno.EISDIR: ("it is a folder, where a file was expected", "name another path"),
    errno.ENAMETOOLONG: ("the path is too long", "name a shorter one"),
    errno.ELOOP: ("its links lead in a circle", "name another path"),
    errno.ENOSPC: ("the disk is full", "make room there (df -h, df -i)"),
    errno.EDQUOT: ("the disk's quota is used up", "make room there, or raise the quota"),
    errno.EIO: ("the disk fails", "see the system's log, and whether the disk is there"),
}
_WITHOUT_A_PATH = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def told_by_a_disk(error: BaseException, warehouse: AnyPath | None = None) -> StorageProblem | None:
    """The problem, where an error is one of this machine's files; a file that is missing is none.

    Args:
        warehouse: named in the message; without it the file that the error names.
    """
    if not isinstance(error, OSError) or error.errno not in _OF_A_DISK:
        return None
    if error.filename is None and error.errno not in _WITHOUT_A_PATH:
        return None  # a socket's
    what, action = _OF_A_DISK[error.errno]
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "a file"
    if warehouse is not None:
        where = f"the warehouse {os.fspath(warehouse)}"
    return StorageProblem(f"{where} cannot be used: {what}", found=error.strerror, action=action)


def told_by_storage(error: BaseException, warehouse: AnyPath | None = None) -> StorageProblem | None:
    """The problem, where an error is one that a store, or a disk, told.

    Args:
        warehouse: named in the message; without it the file that the error names.
    """
    return told_by_a_store(error, warehouse) or told_by_a_disk(error, warehouse)


@contextmanager
def stores_told() -> Iterator[None]:
    """Raises the problem in place of an error that a store, or a disk, told."""
    try:
        yield
    except OSError as error:
        problem = told_by_storage(error)
        if problem is None:
            raise
        raise problem from error
