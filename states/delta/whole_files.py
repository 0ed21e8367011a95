"""Checks that the files which a Delta table names are there and whole, before their rows are used.

Spark lists the files that it is given by path and leaves empty ones out
without a word, and an empty log entry is to Delta a commit that did nothing: a
disk that lost a file's bytes would be read as fewer rows, and a transaction
would commit what follows from them. The log says how long each data file is,
so one ``stat`` a file tells.

Bytes that changed within a file of the right length are found by Parquet
where they matter to its reading, and else not at all: see docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog, has_log


class SizedFile(Protocol):
    """A file as a log entry, a manifest or a task's report names it."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


def require_whole(what: str, root: str, files: Iterable[SizedFile], action: str = "") -> None:
    """Looks whether each file is a file and has its length.

    Args:
        what: whose files these are, for the error: "table /w/counts".
        root: the folder that their paths are relative to, on a local disk.
        files: with path and size.
        action: what to do when one is not; by default to bring it back.
    """
    for file in files:
        problem: OSError | None = None
        try:
            there = storage.stat(f"{root}/{file.path}")
        except OSError as error:
            found, problem = str(error), error
        else:
            if there is not None and there.is_file and there.size == file.size:
                continue
            found = "no such file" if there is None else there.described
        # With its cause: a storage that does not answer is told from a file that is damaged.
        raise TableError(
            f"a data file of {what} is not what was written: {file.path}",
            found=found,
            expected=f"a file of {file.size} bytes",
            action=action or "bring it back from a back-up: without it rows would be missing without a word",
        ) from problem


def require_whole_log(path: str, version: int | None = None) -> None:
    """Looks whether the log entries that make a table version are all there, none of them empty.

    Delta itself takes an empty entry for a commit without actions. Entries
    below the last checkpoint are not needed, and not looked at; an empty
    checkpoint is none (Delta passes over it too). Of a version whose beginning was
    cleaned up behind a later checkpoint only what is there is looked at: Delta
    refuses it. On other file systems than a local disk this does nothing, and
    where there is no log.

    Args:
        version: the table version; None for the newest.
    """
    if storage.local_path(path) is None:
        return
    log = DeltaLog(path)
    try:
        versions, checkpoints = log.listed()
        if not (versions or checkpoints) and not has_log(path):
            return  # no table: Kernel and Spark say so
        last = max(versions, default=-1) if version is None else version
        whole = (at for at in sorted(checkpoints, reverse=True) if at <= last and log.whole_checkpoint(checkpoints[at]))
        begin = next(whole, -1)
    except (OSError, TableError):
        return  # no table, or one of which its reader will say more
    first = begin + 1
    if begin < 0 and any(at > last for at in checkpoints):
        first = min(versions, default=0)  # cleaned up behind a later checkpoint: the version's reader says so
    for each in range(first, last + 1):
        wrong = _wrong(log.entry(each))
        if wrong is not None:
            raise TableError(
                f"log entry {each} of table {path} is not what was written",
                found=wrong,
                expected=f"{each:020d}.json with the actions of a commit",
                action="bring the file back from a back-up: the rows that it names would be missing without a word",
            )


def _wrong(file: str) -> str | None:
    try:
        found = storage.stat(file)
    except OSError as error:
        return str(error)
    if found is None:
        return "no such file"
    return None if found.is_file and found.size else found.described
