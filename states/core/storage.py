"""All access to stored files: warehouse, staging, manifests, ledgers, descriptors, status and logs of tables.

One small interface, :class:`Storage`, and functions of the same names that find the storage of a path. The local file
system, S3 and HDFS are its implementations (``local_storage.py``, ``object_storage.py``, ``hdfs_storage.py``). A file's
name is an absolute path or a URL.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from trident.coordinators.errors import StorageProblem, StoreProblem, StoreUnreachable, TableError
from trident.states.core.local_storage import AnyPath as AnyPath
from trident.states.core.local_storage import Appending as Appending
from trident.states.core.local_storage import CannotLink as CannotLink
from trident.states.core.local_storage import LocalStorage
from trident.states.core.local_storage import LockHeld as LockHeld
from trident.states.core.local_storage import NotExclusive as NotExclusive
from trident.states.core.local_storage import OutcomeUnknown as OutcomeUnknown
from trident.states.core.local_storage import Signature as Signature
from trident.states.core.local_storage import Stat as Stat
from trident.states.core.local_storage import opened_stat as opened_stat
from trident.states.core.remote_files import AT_ONCE as AT_ONCE
from trident.states.core.remote_files import run_concurrently as run_concurrently
from trident.states.core.remote_files import store_settings


class Folder(AbstractContextManager["Folder"], Protocol):
    """A folder as it was when it was held, whatever takes its place meanwhile: see ``hold``. Names are those in it."""

    renames: bool  # whether a writer that does not ask may rename a file over another one here
    drafts: bool  # whether a writer that was killed may leave a draft here

    def names(self) -> list[str]:
        """The names in the folder, in any order."""

    def stat(self, name: str) -> Stat | None:
        """As ``stat`` of the storage."""

    def claim(self, draft: AnyPath, name: str) -> Signature:
        """Gives a draft a name that is free. One of two that claim a name gets it, for good.

        A writer that takes names without asking can still replace the file: the signature tells. The draft keeps its
        own name too; the new one outlives a power cut once the folder is flushed.

        Args:
            draft: a file that is whole and flushed.
            name: of the file then.

        Returns:
            its signature.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: the draft is gone, or the folder.
            NotExclusive: the storage cannot tell one of two from the other.
            OutcomeUnknown: the name may be the draft's, now or later.
        """

    def rename(self, name: str, other: str) -> None:
        """Gives a file another name, which is free."""

    def delete(self, name: str) -> bool:
        """Removes a file; tells whether there was one."""

    def flush(self) -> None:
        """Makes the names outlive a power cut."""


class Storage(Protocol):
    """The place where the framework keeps its files.

    A call that fails raises the ``OSError`` that fits; then nothing is known of its outcome but where a method says
    more. Paths are absolute. A folder is where names are: a storage without folders has those in which something lies.
    """

    keeps_names: bool  # whether names outlive a power cut without a flush
    lists_after: bool  # whether a listing can begin behind a name

    def read(self, path: AnyPath, start: int = 0) -> bytes:
        """The whole file, or what is in it from the byte ``start`` on.

        Raises:
            FileNotFoundError: it is not there.
            Unreadable: it is no file, or the storage refuses.
        """

    def input(self, path: AnyPath, buffering: int = 0) -> BinaryIO:
        """A regular file, opened to read parts of it.

        Args:
            buffering: so many bytes are asked of a store at a time; 0: some megabytes.

        Raises:
            OSError: it is not there, or the storage refuses; while it is read, it is another one by now.
        """

    def fetch(self, path: AnyPath) -> tuple[bytes, Stat]:
        """A whole file, and what it was as it was read.

        Raises:
            OSError: it is not there, or the storage refuses, or it changes meanwhile.
        """

    def pages(self, folder: AnyPath, after: str = "", deep: bool = False) -> Iterator[Sequence[tuple[str, Stat]]]:
        """Names and stats of the files in a folder, some hundreds at a time.

        They are in the order of their names as bytes where ``lists_after`` says so, else in any order.

        Args:
            after: names up to this one are left out; where ``lists_after`` says so without being asked for.
            deep: with the files in the folders below, whose names are paths.
        """

    def write(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        """Puts a whole file in the place of what is there: a reader sees the old one or the new one.

        Args:
            path: in a folder that is there.
            data: all of it.
            durable: it outlives a power cut once this returns; else it may be lost, or be the old one.

        Raises:
            OSError: the storage refused; the old file is there, unless only the flush of the folder failed.
        """

    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        """Makes a file that was not there. One of two that make it wins.

        A process that dies in the middle may leave a part of it, under this name.

        Args:
            durable: it outlives a power cut once this returns; else the caller flushes it, where that matters.

        Raises:
            FileExistsError: the name is taken.
        """

    def output(self, path: AnyPath, durable: bool = True) -> BinaryIO:
        """A new file that is written piece by piece; whole once its ``close`` returns, and durable unless told not.

        A process that dies before may leave a part of it: such a file is named nowhere.
        """

    def append(self, path: AnyPath, known: int = 0) -> AbstractContextManager[Appending]:
        """Opens a file to append to, made if it is not there.

        Others that do the same wait until this one ends; where they cannot, the write of one of two fails.

        Args:
            known: so many bytes the caller has read. A store is not asked again whether there are more: the write
                tells, by FileExistsError.
        """

    def read_appended(self, path: AnyPath, start: int = 0) -> bytes | None:
        """The part of a file that was appended to, from the byte ``start`` on; None where there is none.

        Args:
            start: where something that was read, or appended, has ended.
        """

    def list(self, folder: AnyPath) -> list[str]:
        """The names in a folder, in any order; none where there is no such folder."""

    def stat(self, path: AnyPath) -> Stat | None:
        """Kind, size and time of what is there, of a link what it leads to; None where nothing is."""

    def stat_file(self, path: AnyPath) -> Stat | None:
        """As ``stat``, where only a file is of interest: of a folder it may say that nothing is there."""

    def delete(self, path: AnyPath) -> bool:
        """Removes a file, or a folder with all that is in it; of a link the link.

        Returns:
            whether there was something.

        Raises:
            NotAllDeleted: of a folder something is left; as much as could be is deleted.
        """

    def delete_files(self, paths: Sequence[AnyPath]) -> None:
        """Removes files, as many as it can with one request; those that are not there need nothing.

        Raises:
            OSError: some may be left.
        """

    def make_folder(self, folder: AnyPath, anchor: AnyPath) -> None:
        """Makes a folder, and those above it as far as the anchor, unless they are there.

        Never above it: a warehouse that was renamed or deleted while a topology runs must not be made anew at its old
        place, where what is written is lost to its readers.

        Args:
            folder: at or below the anchor.
            anchor: is there, or nothing is made.

        Raises:
            FileNotFoundError: the anchor is gone.
        """

    def flush(self, path: AnyPath) -> None:
        """Makes a file's bytes, or the names in a folder, outlive a power cut."""

    def draft(self, folder: AnyPath, name: str) -> str:
        """The place of a draft that is going to claim a name in a folder: there, or on this host's disk."""

    def hold(self, folder: AnyPath) -> Folder:
        """Holds a folder, until the end of a ``with``, to look and to write where no other folder can be meant.

        Raises:
            FileNotFoundError: there is none.
        """

    def lock(
        self, path: AnyPath, anchor: AnyPath, shared: bool = False, timeout_secs: float | None = None
    ) -> AbstractContextManager[object]:
        """Locks a file, made if it is not there, until the end of a ``with``, or of the process.

        It keeps processes of one machine apart; a storage that machines share may do nothing.

        Args:
            path: the file; its folder is made as ``make_folder`` does.
            anchor: as there.
            shared: together with others that share it.
            timeout_secs: how long to wait; None for ever.

        Raises:
            LockHeld: others hold it.
        """


LOCAL = LocalStorage()


def storage_for(path: AnyPath) -> Storage:
    """The storage that a path or URL is in.

    Raises:
        TableError: it is on a file system that this framework cannot use, or whose library is not installed.
    """
    text = os.fspath(path)
    if "://" not in text or text.startswith("file:"):
        return LOCAL
    scheme, _, rest = text.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    found = _shared.get(root)
    if found is None:
        found = _shared.setdefault(root, _opened(root, scheme))
    return found


def configure(root: str, settings: Mapping[str, str]) -> None:
    """Says how a shared store is reached, in this process; what is not said comes from the store's own chain.

    Args:
        root: the store: scheme and bucket, or name service.
        settings: Hadoop's, such as ``fs.s3a.endpoint``.
    """
    if _settings.get(root, {}) != dict(settings):
        _settings[root] = dict(settings)
        _shared.pop(root, None)


def settings_of(root: str) -> Mapping[str, str]:
    return _settings.get(root, {})


def configured_roots() -> list[str]:
    """The stores that ``configure`` was told of."""
    return sorted(_settings)


# Scheme and bucket, or name service → its storage, and what `configure` was told.
_shared: dict[str, Storage] = {}
_settings: dict[str, dict[str, str]] = {}


def _opened(root: str, scheme: str) -> Storage:
    if scheme == "s3a":
        try:
            from trident.states.core.object_storage import ObjectStorage  # an optional dependency
        except ImportError as error:
            raise _not_installed(root, "s3", error) from error
        return ObjectStorage(root, store_settings(settings_of(root), root.partition("://")[2]))
    if scheme == "hdfs":
        try:
            from trident.states.core.hdfs_storage import HdfsStorage  # an optional dependency
        except ImportError as error:
            raise _not_installed(root, "hdfs", error) from error
        return HdfsStorage(root, settings_of(root))
    raise TableError(
        f"the framework cannot keep files on {root}", found=f"{scheme}:", expected="a path, file:, hdfs: or s3a:"
    )


def _not_installed(root: str, extra: str, error: ImportError) -> TableError:
    return TableError(
        f"the library that reads and writes {root} is not installed",
        found=error,
        action=f"pip install 'trident-spark[{extra}]'",
    )


def read(path: AnyPath, start: int = 0) -> bytes:
    return storage_for(path).read(path, start)


def input(path: AnyPath, buffering: int = 0) -> BinaryIO:
    return storage_for(path).input(path, buffering)


def fetch(path: AnyPath) -> tuple[bytes, Stat]:
    return storage_for(path).fetch(path)


def pages(folder: AnyPath, after: str = "", deep: bool = False) -> Iterator[Sequence[tuple[str, Stat]]]:
    return storage_for(folder).pages(folder, after, deep)


def write(path: AnyPath, data: bytes, durable: bool = True) -> None:
    storage_for(path).write(path, data, durable)


def create(path: AnyPath, data: bytes, durable: bool = True) -> None:
    storage_for(path).create(path, data, durable)


def output(path: AnyPath, durable: bool = True) -> BinaryIO:
    return storage_for(path).output(path, durable)


def append(path: AnyPath, known: int = 0) -> AbstractContextManager[Appending]:
    return storage_for(path).append(path, known)


def read_appended(path: AnyPath, start: int = 0) -> bytes | None:
    return storage_for(path).read_appended(path, start)


def list_names(folder: AnyPath) -> list[str]:
    return storage_for(folder).list(folder)


def stat(path: AnyPath) -> Stat | None:
    return storage_for(path).stat(path)


def stat_file(path: AnyPath) -> Stat | None:
    return storage_for(path).stat_file(path)


def delete(path: AnyPath) -> bool:
    return storage_for(path).delete(path)


def delete_files(paths: Sequence[AnyPath]) -> None:
    """Removes files of one storage."""
    if paths:
        storage_for(paths[0]).delete_files(paths)


def make_folder(folder: AnyPath, anchor: AnyPath) -> None:
    storage_for(folder).make_folder(folder, anchor)


def flush(path: AnyPath) -> None:
    storage_for(path).flush(path)


def draft(folder: AnyPath, name: str) -> str:
    return storage_for(folder).draft(folder, name)


def hold(folder: AnyPath) -> Folder:
    return storage_for(folder).hold(folder)


def lock(
    path: AnyPath, anchor: AnyPath, shared: bool = False, timeout_secs: float | None = None
) -> AbstractContextManager[object]:
    return storage_for(path).lock(path, anchor, shared, timeout_secs)


def link(path: AnyPath, other: AnyPath) -> None:
    """As ``LocalStorage.link``; a file of a store has one name alone.

    Raises:
        CannotLink: one of the two is in a store, or they are on two file systems.
    """
    if storage_for(path) is not LOCAL or storage_for(other) is not LOCAL:
        raise CannotLink(errno.EXDEV, "a store gives a file one name alone", os.fspath(path))
    LOCAL.link(path, other)


# --- made of these --------------------------------------------------------------------------------


def try_delete(path: AnyPath) -> None:
    """Removes a file that is needed no more, as far as it can: one that stays costs space, nothing else."""
    with suppress(OSError):
        delete(path)


def flush_names(folder: AnyPath) -> None:
    """Makes the names in a folder outlive a power cut, unless this process did and none has changed since.

    For folders that last: each one is remembered. A folder's time tells of a change, but not of two within one tick
    of the file system's clock: a folder that has changed lately is flushed each time.
    """
    if storage_for(folder).keeps_names:
        return
    now, before, key = time.time_ns(), stat(folder), os.fspath(folder)
    if before is not None and _flushed.get(key) == before.signature:
        return
    flush(folder)
    if before is not None and now - before.mtime_ns > _TICK_NS:
        _flushed[key] = before.signature
    else:
        _flushed.pop(key, None)


# Folders whose names are known to be on the disk, as they were looked at before they were flushed.
_flushed: dict[str, Signature] = {}
_TICK_NS = 1_000_000_000


def make_path(folder: AnyPath) -> None:
    """Makes a folder and all above it; for a warehouse that is to begin, and for who tries whether it can.

    Raises:
        NotADirectoryError: it leads nowhere.
    """
    folder = os.fspath(folder)
    try:
        make_folder(folder, "/" if local_path(folder) is not None else "/".join(folder.split("/", 3)[:3]))
    except FileNotFoundError as error:  # which elsewhere means no more than that a file is not there
        raise NotADirectoryError(errno.ENOTDIR, "it leads nowhere", error.filename) from error


def make_warehouse(warehouse: AnyPath) -> None:
    """Makes the folder of the framework's own in a warehouse, and all above it; only a start may."""
    folder = join(warehouse, "_trident")
    make_path(folder)
    if not is_folder(folder):  # a store without folders: one is there when something lies in it
        write(join(folder, ".warehouse"), b"of trident\n")


def exists(path: AnyPath) -> bool:
    return stat(path) is not None


def is_folder(path: AnyPath) -> bool:
    found = stat(path)
    return found is not None and found.is_folder


def anchor_of(root: AnyPath) -> str:
    """Returns what must be there for a table, or for anything of the framework's own, to be made.

    For what is in a folder ``_trident`` that is this folder; for a table the folder that it is in.
    """
    text = os.fspath(root)
    inside, own, _ = text.rpartition("/_trident/")
    return f"{inside}/_trident" if own else posixpath.dirname(text)


def is_exclusive(folder: AnyPath, writers: int = 4) -> bool:
    """Looks whether one of several writers that make the same file at once gets it, and no other.

    Args:
        folder: where two files are made, and deleted.

    Raises:
        OSError: the storage refused.
    """
    for _ in range(2):
        path = join(folder, f".exclusive-{uuid.uuid4().hex}")
        begin = threading.Barrier(writers)

        def make(writer: int, path: str = path, begin: threading.Barrier = begin) -> bool:
            begin.wait()
            try:
                create(path, str(writer).encode())
            except FileExistsError:
                return False
            return True

        try:
            with ThreadPoolExecutor(writers) as pool:
                made = list(pool.map(make, range(writers)))
            if [str(each).encode() for each in range(writers) if made[each]] != [read(path)]:
                return False
        finally:
            try_delete(path)
    return True


# --- places ---------------------------------------------------------------------------------------


def join(root: AnyPath, *names: str) -> str:
    """The path of something below a root, which may be a URL."""
    return "/".join([os.fspath(root).rstrip("/"), *names])


def reached_path(path: str) -> str | None:
    """The path on this machine's file system, or the URL of a store that has a storage; None for any other."""
    return path.rstrip("/") if path.partition("://")[0] in STORES else local_path(path)


STORES = ("hdfs", "s3a")


def local_path(path: str) -> str | None:
    """The path on this machine's file system, or None for another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return unquote(parts.path)
    return os.path.abspath(path) if not parts.scheme else None


# Errors of a store, or of a disk, in words: which of its refusals it was, and what a person can do.


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


def store_problem_of(error: BaseException, warehouse: AnyPath | None = None) -> StoreProblem | None:
    """The problem, where the error comes from a store; a missing file is none.

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


def disk_problem_of(error: BaseException, warehouse: AnyPath | None = None) -> StorageProblem | None:
    """The problem, where the error comes from this machine's files; a missing file is none.

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


def storage_problem_of(error: BaseException, warehouse: AnyPath | None = None) -> StorageProblem | None:
    """The problem, where the error comes from a store or a disk.

    Args:
        warehouse: named in the message; without it the file that the error names.
    """
    return store_problem_of(error, warehouse) or disk_problem_of(error, warehouse)


@contextmanager
def explained_storage_errors() -> Iterator[None]:
    """Raises the problem in place of an error of a store or a disk."""
    try:
        yield
    except OSError as error:
        problem = storage_problem_of(error)
        if problem is None:
            raise
        raise problem from error
