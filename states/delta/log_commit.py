"""Makes a draft the log entry of a table version, on a local disk: the storage decides who wins.

Hadoop renames over an existing file: Delta's log stores look whether the entry is there and then rename, and two
writers that look at the same moment both "win". So Kernel (:class:`DraftCommitter`) or Python (:func:`write_draft`)
only writes a draft here, and the draft claims the entry's name (``Folder.claim``: a hard link, which fails when the
name is taken). There is no lock, so that a process that is stopped in the middle keeps no other waiting; its next step,
once it goes on, fails, or is what every reader has seen.

Two more things can come between, and both are looked at:

- *The table was deleted and made again* while this process was stopped (``trident reset``). The folder is held
  in which the entry lies that the commit builds on; in a folder that was removed nothing can be made.
- *A foreign writer that renames* (Delta's own log store, in another Spark) had looked before the claim and renames
  after it. Its draft was there when it looked, so it is there after the claim: it has a moment to find out that it has
  lost, then the draft is removed, and with it all that it could rename. Only then it is looked who has the entry.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import CommitConflict, TableError
from trident.states.core import storage
from trident.states.core.storage import Folder, Signature

# So long a writer that renames has to look again, or to rename: it takes it a fraction of a millisecond.
RIVAL_SECS = 0.1
# A draft of a draft, which Kernel renames, and its checksum have a dot more each.
_DRAFT = re.compile(r"\.{1,3}(\d{20})\.json\.[^/]*\.tmp(?:\.crc)?")
# Of checkpoints and checksums: writing one takes a second; one that was not touched for this time is left over.
_OTHER_DRAFT = re.compile(r"\.{1,2}\d{20}\.[^/]*\.tmp(?:\.crc)?")
_OTHER_SECS = 600.0
_OWN = ".trident.tmp"


class EntryMayBeLost(Exception):
    """The entry was there, and it is not known whether it is for good, or outlives a power cut."""


@dataclass
class Expected:
    """The commit that a thread is about to make.

    Attributes:
        thread: Java's id of the thread.
        draft: the file that the actions go into.
        failure: why it could not be written.
    """

    thread: int
    draft: str
    failure: Exception | None = None


# By the Java thread; not by engine: a snapshot of one may be committed upon by another.
_expected: dict[int, Expected] = {}


class DraftCommitter:
    """Kernel's ``Committer`` for tables on a local disk: writes the entry as a draft, and commits nothing.

    Kernel calls it back on the Java thread of the Python thread that called
    Kernel, which is how it is known whose draft it is. Usually that is the same
    Python thread; not where a callback server was started meanwhile, for a
    stream's ``foreachBatch`` or a listener of the user's.

    Args:
        engine: Kernel's engine, a Java object.
        kernel: the Java package ``io.delta.kernel``.
        this_thread: ``java.lang.Thread.currentThread``.
    """

    class Java:
        implements = ["io.delta.kernel.commit.Committer"]

    def __init__(self, engine: Any, kernel: Any, this_thread: Callable[[], Any]) -> None:
        self._this_thread = this_thread
        self._write = engine.getJsonHandler().writeJsonFileAtomically
        self._status = kernel.utils.FileStatus.of
        self._entry = kernel.internal.files.ParsedPublishedDeltaData.forFileStatus
        self._response = kernel.commit.CommitResponse

    def expect(self, path: str, version: int) -> Expected:
        """Names the draft of this thread's next commit."""
        thread = self._this_thread().getId()
        expected = _expected[thread] = Expected(thread, draft_of(path, version))
        return expected

    def commit(self, _engine: Any, actions: Any, metadata: Any) -> Any:
        """Called by Kernel, with the actions of one commit in the order in which they are written."""
        expected = _expected[self._this_thread().getId()]
        try:
            # With its scheme: without one Hadoop's slow local file system is taken, which forks for every call.
            self._write(f"file:{expected.draft}", actions, True)
            found = storage.stat(expected.draft)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "another writer has removed the draft", expected.draft)
            status = self._status(metadata.getPublishedDeltaFilePath(), found.size, found.mtime_ns // 1_000_000)
            return self._response(self._entry(status))
        except Exception as error:
            # py4j would print it, and hand Kernel a text. Kernel fails over None, and written() says why.
            expected.failure = error
            return None

    def written(self, expected: Expected, call: Callable[[], Any]) -> Any:
        """Runs Kernel's commit; when the draft could not be written, raises what that raised."""
        try:
            return call()
        except Exception as error:
            if expected.failure is not None:
                raise expected.failure from error
            raise
        finally:
            _expected.pop(expected.thread, None)


def write_draft(path: str, version: int, draft: str, entry: bytes) -> None:
    """Writes a log entry as a draft, which :func:`publish_draft` flushes.

    Raises:
        TableError: the disk refused; nothing happened.
    """
    try:
        storage.create(draft, entry, durable=False)
    except OSError as error:
        raise _refused(path, version, error) from error


def draft_of(path: str, version: int) -> str:
    """A name for a draft of a table version, which no other draft has."""
    return storage.draft(_log_of(path), f".{version:020d}.json.{uuid.uuid4().hex}{_OWN}")


def remove_draft(draft: str) -> None:
    """With the checksum that Hadoop's local file system puts beside it."""
    folder, name = os.path.split(draft)
    for each in (draft, os.path.join(folder, f".{name}.crc")):
        storage.try_delete(each)  # the next commit sweeps what stays


def publish_draft(path: str, version: int, draft: str, base: Signature | None) -> Signature:
    """Makes a draft the entry of a table version, durably; the draft's own name is left.

    Args:
        path: the table's root, on a local disk.
        version: the table version.
        draft: a file that is whole, in the table's log folder.
        base: the signature of the entry before it, which the commit builds on; None when it is not known.

    Returns:
        The entry's signature.

    Raises:
        CommitConflict: another writer has the version, or the table is not the one that was read; nothing happened.
        TableError: the disk refused; nothing happened.
        EntryMayBeLost: the commit was there; the disk then refused something, or it is gone again.
    """
    try:
        if storage.local_path(path) is not None:
            storage.flush(draft)
        held = storage.hold(_log_of(path))
    except FileNotFoundError as error:
        raise _lost(path, version, error) from error
    except OSError as error:
        raise _refused(path, version, error) from error
    with held as folder:
        if base is not None and signature_in(folder, version - 1) != base:
            raise CommitConflict(
                f"version {version - 1} of table {path} is not the one that this commit builds on",
                found=signature_in(folder, version - 1) or "no such entry",
                expected=base,
                action="read the table again: it was made anew, or another writer has replaced the entry",
            )
        try:
            own = folder.claim(draft, f"{version:020d}.json")
        except (FileExistsError, FileNotFoundError) as error:
            raise _lost(path, version, error) from error
        except storage.OutcomeUnknown as error:
            raise EntryMayBeLost(error) from error
        except OSError as error:
            raise _refused(path, version, error) from error
        if not folder.renames:
            return own  # the entry stays as it is, and outlives a power cut
        try:
            _turn_rivals_away(folder, version)
            there = signature_in(folder, version)
            if there is None:  # this process was stopped for so long that the log was cleaned up
                raise EntryMayBeLost("the entry is gone")
            if there != own:
                raise _lost(path, version, "a writer that renames over entries has replaced it")
            folder.delete(f".{version:020d}.json.crc")  # Hadoop's, of another writer: it makes the entry unreadable
            folder.flush()
        except OSError as error:  # the entry is there: no error behind the claim is a refusal
            raise EntryMayBeLost(error) from error
        return own


def _turn_rivals_away(folder: Folder, version: int) -> list[str]:
    """Leaves no draft of this version, or an older one, that a writer could still rename over an entry."""
    deadline = time.monotonic() + RIVAL_SECS
    while rivals := drafts_in(folder, version):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.002)
    for name in rivals:
        folder.delete(name)
    return rivals


def drafts_in(folder: Folder, version: int, own: bool = False) -> list[str]:
    """Drafts of entries up to a version; our own, which are linked and can replace nothing, only when asked for."""
    # Each commit looks, and a log of a day has 100,000 entries: only drafts begin with a dot.
    found = ((name, _DRAFT.fullmatch(name)) for name in folder.names() if name[0] == ".")
    return [name for name, draft in found if draft and int(draft[1]) <= version and (own or _OWN not in name)]


def remove_drafts(path: str, version: int) -> list[str]:
    """Removes the drafts of log entries up to a version that exists, and returns their names.

    A writer that is killed, or meets a full disk, leaves one. Entry N exists, so no draft of it may become one: who
    still holds it has a moment to find that out, and then loses it, which does what it must be told anyway.
    """
    if storage.reached_path(path) is None:
        return []
    with storage.hold(_log_of(path)) as folder:
        if not folder.drafts:
            return []
        removed = _turn_rivals_away(folder, version)
        left = [*drafts_in(folder, version, own=True), *_old_others(folder)]
        return [*removed, *(name for name in left if folder.delete(name))]


def _old_others(folder: Folder) -> list[str]:
    """Drafts of checkpoints and checksums that a dead writer has left."""
    names = (name for name in folder.names() if _OTHER_DRAFT.fullmatch(name) and not _DRAFT.fullmatch(name))
    found = ((name, folder.stat(name)) for name in names)
    return [name for name, there in found if there and time.time() - there.mtime_ns / 1e9 > _OTHER_SECS]


def signature_in(folder: Folder, version: int) -> Signature | None:
    """As ``DeltaLog.signature``, in a folder that is held."""
    found = folder.stat(f"{version:020d}.json")
    return None if found is None else found.signature


def hold_log_folder(path: str) -> AbstractContextManager[Folder | None]:
    """The table's log folder as it is now, whatever takes its place meanwhile; None when there is none."""
    if storage.reached_path(path) is None:
        return nullcontext()
    try:
        return storage.hold(_log_of(path))
    except OSError:
        return nullcontext()


def _log_of(path: str) -> str:
    root = storage.reached_path(path)
    assert root is not None
    return storage.join(root, "_delta_log")


def _lost(path: str, version: int, found: object) -> CommitConflict:
    return CommitConflict(
        f"another commit took version {version} of table {path}, or the table is gone",
        found=found,
        action="read the table again",
    )


def _refused(path: str, version: int, error: OSError) -> TableError:
    if isinstance(error, storage.NotExclusive) and storage.local_path(path) is None:
        return TableError(
            f"the store of table {path} refuses conditional writes: two writers could both take a version",
            found=error,
            expected="a store that honours If-None-Match: *",
            action="put the warehouse on another store",
        )
    if isinstance(error, storage.NotExclusive):
        return TableError(
            f"the file system of table {path} makes no hard links, without which two writers could both take a version",
            found=error,
            expected="a file system with link(2): any of Linux's own, NFS",
            action="put the warehouse on another file system",
        )
    return TableError(f"version {version} of table {path} could not be written; nothing happened", found=error)
