"""The local file system as a storage: whole and durable by draft, fsync, rename and a flush of the folder."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import stat as modes
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from trident.coordinators.stored_json import read_stored

AnyPath = str | os.PathLike[str]
Signature = tuple[object, ...]
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Stat(NamedTuple):
    """One look at something stored.

    Attributes:
        size: bytes.
        mtime_ns: of its last change, nanoseconds since the epoch.
        is_file, is_folder: neither holds of a FIFO, a socket or a device.
        signature: tells the file from one that was put in its place, or was changed; only to be compared.
    """

    size: int
    mtime_ns: int
    is_file: bool
    is_folder: bool
    signature: Signature

    @property
    def described(self) -> str:
        """Returns what is there, for an error."""
        return f"{self.size} bytes" if self.is_file else "something that is not a file"


class NotAllDeleted(OSError):
    """Something of a folder is left.

    Attributes:
        problems: why, one for each that could not be deleted.
    """

    def __init__(self, problems: list[OSError]) -> None:
        first = problems[0]
        super().__init__(first.errno, first.strerror or str(first), first.filename)
        self.problems = problems


class NotExclusive(OSError):
    """The storage cannot give a name to one of two alone."""


class CannotLink(OSError):
    """A file cannot have a second name there: another file system, or one without links."""


class OutcomeUnknown(OSError):
    """The storage did not answer, and whether the name is ours could not be found out, or may yet change."""


class LockHeld(OSError):
    """Others hold a lock.

    Attributes:
        holder: who, such as "process 17 (stopped)"; None where the system does not tell.
    """

    def __init__(self, path: str, holder: str | None) -> None:
        super().__init__(errno.EWOULDBLOCK, "others hold the lock", path)
        self.holder = holder


class Appending(Protocol):
    """A file that is appended to: see ``append``."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, start: int) -> bytes:
        """All from this byte on."""

    def cut(self, size: int) -> None:
        """Takes away all behind this byte."""

    def write(self, data: bytes) -> None:
        """Appends; durable when this returns, the file's name too."""


class LocalAppending:
    """Implements ``Appending`` on a file that this process alone appends to."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, start: int) -> bytes:
        self._file.seek(start)
        return self._file.read()

    def cut(self, size: int) -> None:
        self._file.truncate(size)

    def write(self, data: bytes) -> None:
        is_new = self.size == 0
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        if is_new:
            _fsync(os.path.dirname(self._path))


class LocalStorage:
    """Implements ``Storage`` on a file system with rename, flock and fsync: Linux's own, NFSv4, CephFS."""

    keeps_names = lists_after = False

    def read(self, path: AnyPath, start: int = 0) -> bytes:
        return read_stored(local(path), start)

    def input(self, path: AnyPath, buffering: int = 0) -> BinaryIO:
        return open(local(path), "rb")

    def fetch(self, path: AnyPath) -> tuple[bytes, Stat]:
        with self.input(path) as file:
            found, data = opened_stat(file), file.read()
            if opened_stat(file) != found or len(data) != found.size:
                raise OSError(errno.ESTALE, "the file changes while it is read", local(path))
            return data, found

    def pages(self, folder: AnyPath, after: str = "", deep: bool = False) -> Iterator[Sequence[tuple[str, Stat]]]:
        root, found = local(folder), []
        for above, folders, names in os.walk(root):
            below = os.path.relpath(above, root)
            for name in names if deep or below == "." else ():
                there = self.stat(os.path.join(above, name))
                if there is not None and there.is_file:
                    found.append((name if below == "." else f"{below}/{name}", there))
            if not deep:
                folders.clear()
        found.sort(key=lambda one: os.fsencode(one[0]))
        if page := [one for one in found if os.fsencode(one[0]) > os.fsencode(after)]:
            yield page

    def write(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        path = local(path)
        folder, name = os.path.split(path)
        # A name of its own: two processes that write at once must not share the draft.
        draft = os.path.join(folder, f".{name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        try:
            self._create(draft, data, durable)
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise
        if durable:
            _fsync(folder)

    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        path = local(path)
        self._create(path, data, durable)
        if durable:
            _fsync(os.path.dirname(path))

    def _create(self, path: str, data: bytes, durable: bool) -> None:
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def output(self, path: AnyPath, durable: bool = True) -> BinaryIO:
        return _Output(open(local(path), "xb", buffering=0)) if durable else open(local(path), "xb")

    @contextmanager
    def append(self, path: AnyPath, known: int = 0) -> Iterator[LocalAppending]:
        path = local(path)
        with open(path, "a+b") as file:
            # Closing the file gives the lock back, also when this process is killed.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield LocalAppending(file, path)

    def read_appended(self, path: AnyPath, start: int = 0) -> bytes | None:
        found = self.stat(path)
        if found is None:
            return None
        return b"" if found.is_file and found.size <= start else self.read(path, start)

    def list(self, folder: AnyPath) -> list[str]:
        try:
            return os.listdir(local(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def stat(self, path: AnyPath) -> Stat | None:
        try:
            return _stat(os.stat(local(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    stat_file = stat

    def delete_files(self, paths: Sequence[AnyPath]) -> None:
        for path in paths:
            self.delete(path)

    def delete(self, path: AnyPath) -> bool:
        path = local(path)
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                self._delete_folder(path)
            else:
                os.unlink(path)  # what a link leads to lies elsewhere
        except FileNotFoundError:
            return False
        return True

    def _delete_folder(self, path: str) -> None:
        problems: list[OSError] = []

        def left(_call: object, where: str, error: tuple[Any, ...]) -> None:
            if not isinstance(error[1], FileNotFoundError):  # another process deletes as well
                problems.append(error[1] if error[1].filename else OSError(error[1].errno, error[1].strerror, where))

        shutil.rmtree(path, onerror=left)
        if not problems and os.path.lexists(path):
            problems.append(OSError(errno.ENOTEMPTY, "another process writes to it", path))
        if problems:
            raise NotAllDeleted(problems)

    def make_folder(self, folder: AnyPath, anchor: AnyPath) -> None:
        folder, anchor = local(folder), local(anchor)
        if os.path.isdir(folder):
            return
        if not os.path.isdir(anchor):
            raise FileNotFoundError(errno.ENOENT, "the folder is gone, and it is not made again", anchor)
        for part in Path(folder).relative_to(anchor).parts:
            anchor = os.path.join(anchor, part)
            with suppress(FileExistsError):
                os.mkdir(anchor)

    def flush(self, path: AnyPath) -> None:
        _fsync(local(path))

    def draft(self, folder: AnyPath, name: str) -> str:
        return os.path.join(local(folder), name)

    def hold(self, folder: AnyPath) -> LocalFolder:
        return LocalFolder(local(folder))

    def link(self, path: AnyPath, other: AnyPath) -> None:
        """Gives a file a second name, which is free, in a folder that is there; no byte is written again.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: the file is gone, or the folder.
            CannotLink: the names are on two file systems, or this one has no links.
        """
        try:
            os.link(local(path), local(other))
        except OSError as error:
            if error.errno in (*_NO_LINKS, errno.EXDEV):
                raise CannotLink(error.errno, error.strerror, local(path)) from error
            raise

    def lock(self, path: AnyPath, anchor: AnyPath, shared: bool = False, timeout_secs: float | None = None) -> BinaryIO:
        path = local(path)
        while True:
            self.make_folder(os.path.dirname(path), anchor)
            with ExitStack() as stack:
                # Closing the file gives the lock back, also when this process is killed.
                file = stack.enter_context(open(path, "a+b"))
                _flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout_secs)
                # The folder may have been deleted and made again meanwhile: then others lock another file.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                        stack.pop_all()
                        return file


class LocalFolder:
    """Implements ``Folder`` by a handle: nothing can be made in a folder that was removed."""

    renames = drafts = True

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> LocalFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def names(self) -> list[str]:
        return os.listdir(self._handle)

    def stat(self, name: str) -> Stat | None:
        try:
            return _stat(os.stat(name, dir_fd=self._handle))
        except FileNotFoundError:
            return None

    def claim(self, draft: AnyPath, name: str) -> Signature:
        draft = local(draft)
        own = _stat(os.stat(draft)).signature
        try:
            os.link(draft, name, dst_dir_fd=self._handle)
        except OSError as error:
            there = self.stat(name)
            if there is not None and there.signature == own:
                return own  # a network file system had done it, and its answer was lost
            if error.errno in _NO_LINKS:
                raise NotExclusive(error.errno, error.strerror, draft) from error
            raise
        return own

    def rename(self, name: str, other: str) -> None:
        os.rename(name, other, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def delete(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return False
        return True

    def flush(self) -> None:
        os.fsync(self._handle)


class _Output(io.BufferedWriter):
    """A new file that is durable once it is closed."""

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()


def local(path: AnyPath) -> str:
    """The path as the operating system takes it."""
    text = os.fspath(path)
    return unquote(urlsplit(text).path) if text.startswith("file:") else text


def opened_stat(file: IO[bytes]) -> Stat:
    """Of a file that is open."""
    return _stat(os.fstat(file.fileno()))


def _stat(found: os.stat_result) -> Stat:
    is_file, is_folder = modes.S_ISREG(found.st_mode), modes.S_ISDIR(found.st_mode)
    signature = found.st_ino, found.st_mtime_ns, found.st_size
    return Stat(found.st_size, found.st_mtime_ns, is_file, is_folder, signature)


def _flock(file: BinaryIO, kind: int, timeout_secs: float | None) -> None:
    if timeout_secs is None:
        fcntl.flock(file, kind)
        return
    deadline = time.monotonic() + timeout_secs
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockHeld(file.name, _holder(os.fstat(file.fileno()))) from None
        time.sleep(0.02)


def _holder(lock: os.stat_result) -> str | None:
    """Who holds a file's lock, as Linux tells it."""
    wanted = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if wanted in line.split()]
        # "7: FLOCK ADVISORY WRITE 17 fe:01:131 0 EOF"; who waits has "->" after the number.
        pid = next(fields[4] for fields in held if fields[1] == "FLOCK")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, StopIteration, IndexError):
        return None
    return f"process {pid}" + (" (stopped)" if state in "Tt" else "")


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
