"""Makes a draft the log entry of a table version, on a local disk; and classifies failed commits.

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
import logging
import os
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.coordinators.threads import TRIES, tries
from trident.states.core import storage
from trident.states.core.storage import Folder, Signature
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.delta_log import TableMissing as TableMissing

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
            _remove_rival_drafts(folder, version)
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


def _remove_rival_drafts(folder: Folder, version: int) -> list[str]:
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
        removed = _remove_rival_drafts(folder, version)
        left = [*drafts_in(folder, version, own=True), *_abandoned_drafts(folder)]
        return [*removed, *(name for name in left if folder.delete(name))]


def _abandoned_drafts(folder: Folder) -> list[str]:
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


# Classifies Java exceptions of Delta's Kernel for a commit: certain failure, conflict, or unknown.
#
# The difference decides what the caller may do next: a conflict certainly did not
# happen, an unknown outcome must be read from the table (docs/semantics.md 9.5).


log = logging.getLogger(__name__)

Result = TypeVar("Result")

COMMIT = faults.register("delta.commit", "one commit to a Delta table, with the flush of its log entry")

_EXCEPTIONS = "io.delta.kernel.exceptions."
_COMMIT_FAILED = "io.delta.kernel.commit.CommitFailedException"
_CONFLICTS = frozenset(
    _EXCEPTIONS + name
    for name in (
        "ConcurrentWriteException",
        "ProtocolChangedException",
        "MetadataChangedException",
        "TableAlreadyExistsException",
    )
)


class TxnAlreadyApplied(TableError):
    """The table holds this ``txn_app_id`` with the same or a higher ``txn_version``.

    Certainly not committed *now*; only the control record can tell whether the
    commit that is there is the one that was meant.
    """


class CommitOutcomeUnknown(TableError):
    """The commit failed in a way that leaves open whether it happened.

    Never a failure: load the table again and compare its control record.
    """


class CheckpointExists(TableError):
    """Another writer has written this checkpoint."""


def until_committed(table: object, commit: Callable[[], Result]) -> Result:
    """Calls ``commit``, which reads a table and commits to it, again after each conflict or lost answer.

    Another commit came first, or our own happened and its answer was lost: reading the table again tells which.

    Raises:
        CommitConflict: so it was each time.
    """
    met: TableError | None = None
    for _ in tries():
        try:
            return commit()
        except (CommitConflict, CommitOutcomeUnknown) as error:
            met = error
            log.info("a commit to %s met %s; reading the table again", table, error)
    raise CommitConflict(
        f"no commit to the table {table} came about",
        found=f"{TRIES} conflicts in a row, the last: {met}",
        action="try again, or start the topology again, when no other process writes to the table",
    ) from met


def java_causes(java: Any) -> list[Any]:
    """A Java exception and what caused it, the outermost first; none of None."""
    found: list[Any] = []
    while java is not None and len(found) < 20:
        found.append(java)
        java = java.getCause()
    return found


def guard(path: str, call: Callable[[], Any]) -> Any:
    """Run Java calls that commit nothing; a failure of theirs certainly changed nothing."""
    try:
        return call()
    except Py4JJavaError as error:
        java = error.java_exception
        name, text = java.getClass().getName(), str(java.getMessage())
        if name == _EXCEPTIONS + "TableNotFoundException":
            raise TableMissing(f"there is no Delta table at {path}", found=text) from error
        if name == _EXCEPTIONS + "ConcurrentTransactionException":
            raise TxnAlreadyApplied(f"table {path} has this transaction already", found=text) from error
        if name == _EXCEPTIONS + "CheckpointAlreadyExistsException":
            raise CheckpointExists(f"table {path} has this checkpoint", found=text) from error
        if name in _CONFLICTS:
            raise CommitConflict(f"table {path} was changed by another commit", found=text) from error
        raise TableError(f"Delta refused table {path}", found=f"{name}: {text}") from error
    except PySparkException as error:
        # PySpark turns a few Java exceptions of others, too, into its own.
        raise TableError(f"Delta refused table {path}", found=error) from error
    except (Py4JError, OSError) as error:
        raise TableError(f"the JVM did not answer about table {path}", found=error) from error


def guard_commit(path: str, version: int, call: Callable[[], Any], publish: Callable[[], Any] | None) -> Any:
    """Run ``Transaction.commit`` and, on a local disk, ``publish``, which makes its draft the log entry.

    Args:
        call: Kernel's part.
        publish: see :func:`log_commit.publish_draft`; None where Kernel's log store commits: then ``call`` does it.

    Returns:
        The result of ``call``, and what ``publish`` did.

    Raises:
        TableError: it certainly did not happen.
        CommitConflict: another commit has the version; this one did not happen.
        CommitOutcomeUnknown: anything else that went wrong.
    """
    unknown = f"it is not known whether the commit of version {version} to table {path} happened"
    action = "read the table again and compare its control record"
    try:
        with faults.fault_point(COMMIT):
            if publish is None:
                return _committed(path, version, call, unknown, action), None
            made = _drafted(path, version, call)
            try:
                return made, publish()
            except EntryMayBeLost as error:
                raise CommitOutcomeUnknown(
                    f"version {version} of table {path} was written, but may be gone, or not outlive a power cut",
                    found=error,
                    action="check the disk, then read the table again",
                ) from error
    except faults.InjectedFault as error:
        raise CommitOutcomeUnknown(unknown, found=error, action=action) from error


def _drafted(path: str, version: int, call: Callable[[], Any]) -> Any:
    """Nothing is committed before ``publish``: an error of Kernel's is no open question."""
    try:
        return guard(path, call)
    except TableError as error:
        if isinstance(error, CommitConflict) or DeltaLog(path).signature(version) is None:
            raise
        # The writer that has the version has swept our draft away, while it was written.
        raise CommitConflict(
            f"another commit took version {version} of table {path}", found=error.found, action="read the table again"
        ) from error


def _committed(path: str, version: int, call: Callable[[], Any], unknown: str, action: str) -> Any:
    try:
        return call()
    except Py4JJavaError as error:
        causes = [(java, java.getClass().getName()) for java in java_causes(error.java_exception)]
        found = "; ".join(f"{name}: {java.getMessage()}" for java, name in causes)
        for java, name in causes:
            # Kernel reports an exhausted retry for a conflict and for an I/O
            # error alike; only its cause says which one it was.
            if name in _CONFLICTS or (name == _COMMIT_FAILED and java.isConflict()):
                raise CommitConflict(
                    f"another commit took version {version} of table {path}", found=found, action="read the table again"
                ) from error
        raise CommitOutcomeUnknown(unknown, found=found, action=action) from error
    except (Py4JError, PySparkException, OSError) as error:
        # The JVM went away, or an exception came from where none was expected.
        raise CommitOutcomeUnknown(unknown, found=repr(error), action=action) from error
