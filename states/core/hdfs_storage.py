"""HDFS as a storage, by hdfs-native: no JVM, so that the driver and Python tasks read and write in the same way.

Of two that create or rename to the same name the name node lets one win. A file is durable when it is closed behind an
``hsync``. Settings and credentials are Hadoop's own: ``HADOOP_CONF_DIR``, Kerberos tickets, delegation tokens.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any, BinaryIO, cast

from hdfs_native import Client, WriteOptions

from trident.coordinators.threads import bounded
from trident.states.core.local_storage import AnyPath, LocalStorage, OutcomeUnknown, Signature, Stat
from trident.states.core.remote_files import AppendedParts, RangedFile, read_parts

_READ_BYTES = 4 << 20
_PAGE = 1_000
# A name node that is away is tried again for some ten seconds; the library's own 15 tries take three minutes.
_FEW_TRIES = {"dfs.client.failover.max.attempts": "4"}
# How long a name node may take for the first answer, and any server for a later one; for a megabyte a second more.
ANSWER_SECS, CALL_SECS = 30.0, 60.0


class HdfsStorage:
    """Implements ``Storage`` on one name service.

    Args:
        root: hdfs://HOST:PORT, or hdfs://NAME of a name service with several name nodes.
        settings: Hadoop's, over those of ``HADOOP_CONF_DIR``.

    Raises:
        OSError: no name node can be reached, or none answers.
    """

    keeps_names, lists_after = True, False

    def __init__(self, root: str, settings: Mapping[str, str]) -> None:
        self._root = root
        with _as_os_error(root):
            self._client = Client(root, {**_FEW_TRIES, **settings})
            _bounded(self._client.get_file_info, "/", secs=ANSWER_SECS)

    def read(self, path: AnyPath, start: int = 0) -> bytes:
        with _as_os_error(path):
            file = _bounded(self._client.read, self._at(path))
            count = len(file) - start
            return bytes(_bounded(file.read_range, start, count, secs=_secs(count))) if count > 0 else b""

    def input(self, path: AnyPath, buffering: int = 0) -> BinaryIO:
        with _as_os_error(path):
            file = _bounded(self._client.read, self._at(path))

        def read_range(start: int, count: int) -> Any:
            with _as_os_error(path):
                return _bounded(file.read_range, start, count, secs=_secs(count))

        return cast("BinaryIO", io.BufferedReader(RangedFile(len(file), read_range), buffering or _READ_BYTES))

    def fetch(self, path: AnyPath) -> tuple[bytes, Stat]:
        with _as_os_error(path):
            found = _stat(_bounded(self._client.get_file_info, self._at(path)))
            data = self.read(path)
            if _stat(_bounded(self._client.get_file_info, self._at(path))) != found or len(data) != found.size:
                raise OSError(errno.ESTALE, "the file changes while it is read", os.fspath(path))
        return data, found

    def pages(self, folder: AnyPath, after: str = "", deep: bool = False) -> Iterator[Sequence[tuple[str, Stat]]]:
        begin = len(self._at(folder).rstrip("/")) + 1
        with _as_os_error(folder):
            found = iter(_bounded(self._client.list_status, self._at(folder), recursive=deep))
            while page := _bounded(lambda: list(islice(found, _PAGE))):
                named = ((each.path[begin:], each) for each in page if not each.isdir)
                yield [(name, _stat(each)) for name, each in named if name > after]

    def write(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        at = self._at(path)
        folder, name = posixpath.split(at)
        draft = posixpath.join(folder, f".{name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        with _as_os_error(path), self._removed_if_it_fails(draft):
            self._create(draft, data, durable)
            try:
                _bounded(self._client.rename, draft, at, overwrite=True)
            except FileNotFoundError:
                # A rename that the client has sent again finds nothing, where the first has done it.
                if self.read(path) != data:
                    raise

    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None:
        self.take(path, data, durable)

    def take(self, path: AnyPath, data: bytes, durable: bool = True) -> Signature:
        """Makes a file that was not there, whole at once: by a rename, which fails where the name is taken.

        The client sends requests again by itself. Where it is not told who has the name, the file is read: no two log
        entries are alike (each has a random number in it), and length and time do not tell two writers of one moment.
        """
        folder, _, name = os.fspath(path).rpartition("/")
        copy = f"{folder}/.{name}.{uuid.uuid4().hex}.trident.tmp"
        with self._removed_if_it_fails(self._at(copy)):
            with _as_os_error(path):
                try:
                    self._create(self._at(copy), data, durable)
                except FileExistsError as error:
                    raise OSError(errno.EIO, "a request was sent twice, and the second refused") from error
            own = self.stat(copy)
            if own is None:
                raise FileNotFoundError(errno.ENOENT, "another writer has removed the draft", copy)
            self._rename_to(copy, path, own.signature, data)
        return own.signature

    def _rename_to(self, copy: str, path: AnyPath, own: Signature, data: bytes) -> None:
        try:
            self.move(copy, path)
        except (FileExistsError, FileNotFoundError):
            # A name node that was asked before may have done it: then the copy is gone.
            if not self._is(path, own, data) or self.stat(copy) is not None:
                raise
        except OSError as error:
            # Once the copy is deleted, a request that is still under way finds nothing to rename.
            try:
                done = not self.delete(copy) and self._is(path, own, data)
            except OSError as second:
                text = f"{error.strerror}; then {second.strerror}"
                raise OutcomeUnknown(errno.EIO, text, os.fspath(path)) from error
            if not done:
                raise

    def _is(self, path: AnyPath, signature: Signature, data: bytes) -> bool:
        there = self.stat(path)
        return there is not None and there.signature == signature and self.read(path) == data

    @contextmanager
    def _removed_if_it_fails(self, draft: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Exception):
                _bounded(self._client.delete, draft)
            raise

    def _create(self, at: str, data: bytes, durable: bool) -> None:
        # The folder must be there: one that was deleted is not made again.
        file = _bounded(self._client.create, at, WriteOptions(overwrite=False, create_parent=False))
        _bounded(file.write, data, secs=_secs(len(data)))
        if durable and data:
            _bounded(file.hsync)
        _bounded(file.close)  # not where the flush has failed: it would wait for the same data node

    def output(self, path: AnyPath, durable: bool = True) -> BinaryIO:
        with _as_os_error(path):
            file = _bounded(self._client.create, self._at(path), WriteOptions(overwrite=False, create_parent=False))
        return cast("BinaryIO", _Writer(file, path))

    @contextmanager
    def append(self, path: AnyPath, known: int = 0) -> Iterator[AppendedParts]:
        if not known:
            with suppress(FileExistsError):
                self.make_folder(path, posixpath.dirname(os.fspath(path)))
        yield AppendedParts(self, path, known)

    def read_appended(self, path: AnyPath, start: int = 0) -> bytes | None:
        return read_parts(self, path, start)

    def move(self, path: AnyPath, other: AnyPath) -> None:
        """Gives a file another name, which is free.

        Raises:
            FileExistsError: it is not.
        """
        with _as_os_error(other):
            _bounded(self._client.rename, self._at(path), self._at(other), overwrite=False)

    def list(self, folder: AnyPath) -> list[str]:
        try:
            with _as_os_error(folder):
                found = _bounded(lambda: list(self._client.list_status(self._at(folder))))
                return [posixpath.basename(each.path) for each in found]
        except FileNotFoundError:
            return []

    def stat(self, path: AnyPath) -> Stat | None:
        try:
            with _as_os_error(path):
                return _stat(_bounded(self._client.get_file_info, self._at(path)))
        except FileNotFoundError:
            return None

    stat_file = stat

    def delete(self, path: AnyPath) -> bool:
        with _as_os_error(path):
            return bool(_bounded(self._client.delete, self._at(path), recursive=True))

    def delete_files(self, paths: Sequence[AnyPath]) -> None:
        for path in paths:
            self.delete(path)

    def make_folder(self, folder: AnyPath, anchor: AnyPath) -> None:
        at, above = self._at(folder), self._at(anchor)
        if at == above or above == "/":
            with _as_os_error(anchor):
                _bounded(self._client.mkdirs, at, create_parent=True)
            return
        with suppress(FileNotFoundError), _as_os_error(folder):
            # Mostly the folder above is there, and so is the anchor: one request.
            _bounded(self._client.mkdirs, at, create_parent=False)
            return
        with _as_os_error(anchor):
            _bounded(self._client.get_file_info, above)
            below, made = posixpath.relpath(at, above), above
            for part in below.split("/"):
                made = f"{made}/{part}"
                _bounded(self._client.mkdirs, made, create_parent=False)

    def flush(self, path: AnyPath) -> None:
        """Nothing: the name node keeps the names, and files were flushed when they were written."""

    def draft(self, folder: AnyPath, name: str) -> str:
        return os.path.join(tempfile.gettempdir(), f"trident-{uuid.uuid4().hex}{name}")

    def hold(self, folder: AnyPath) -> HdfsFolder:
        return HdfsFolder(self, os.fspath(folder))

    def lock(self, path: AnyPath, anchor: AnyPath, shared: bool = False, timeout_secs: float | None = None) -> Any:
        """Nothing: machines share the store."""
        return nullcontext()

    def _at(self, path: AnyPath) -> str:
        text = os.fspath(path)
        if text != self._root and not text.startswith(f"{self._root}/"):
            raise ValueError(f"{text} is not in {self._root}")
        return text[len(self._root) :].rstrip("/") or "/"


class HdfsFolder:
    """Implements ``Folder``; there is no handle: a folder that was deleted and made again is the same one."""

    renames, drafts = False, True

    def __init__(self, storage: HdfsStorage, path: str) -> None:
        self._storage, self._path = storage, path.rstrip("/")
        if (found := storage.stat(path)) is None or not found.is_folder:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)

    def __enter__(self) -> HdfsFolder:
        return self

    def __exit__(self, *_: object) -> None: ...

    def names(self) -> list[str]:
        return self._storage.list(self._path)

    def stat(self, name: str) -> Stat | None:
        return self._storage.stat(f"{self._path}/{name}")

    def claim(self, draft: AnyPath, name: str) -> Signature:
        return self._storage.take(f"{self._path}/{name}", LocalStorage().read(draft))

    def rename(self, name: str, other: str) -> None:
        self._storage.move(f"{self._path}/{name}", f"{self._path}/{other}")

    def delete(self, name: str) -> bool:
        return self._storage.delete(f"{self._path}/{name}")

    def flush(self) -> None: ...


class _Writer(io.RawIOBase):
    """A new file, whole and durable once it is closed without an error."""

    def __init__(self, file: Any, path: AnyPath) -> None:
        self._file, self._path, self._size = file, path, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        with _as_os_error(self._path):
            _bounded(self._file.write, bytes(data), secs=_secs(count))
        self._size += count
        return count

    def close(self) -> None:
        if self.closed:
            return
        try:
            with _as_os_error(self._path):
                if self._size:
                    _bounded(self._file.hsync)
                _bounded(self._file.close)
        finally:
            super().close()


def _stat(found: Any) -> Stat:
    # The name node's times are milliseconds; a rename keeps them.
    signature = found.modification_time, found.length
    return Stat(found.length, found.modification_time * 1_000_000, not found.isdir, found.isdir, signature)


def _secs(count: int) -> float:
    return CALL_SECS + count / 1_000_000


def _bounded(call: Callable[..., Any], *args: Any, secs: float | None = None, **named: Any) -> Any:
    """Returns the result of a call of the library; ``NoAnswer`` after so many seconds, ``CALL_SECS`` without any.

    The library waits for ever for a name node that takes a connection and is silent, and for the acknowledgement of a
    flush by a data node that has died meanwhile.
    """
    return bounded(CALL_SECS if secs is None else secs, "HDFS", call, *args, **named)


@contextmanager
def _as_os_error(path: AnyPath) -> Iterator[None]:
    """Raises the ``OSError`` that fits what the library raises, with the first line of a name node's answer."""
    text = os.fspath(path)
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file", text) from error
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, "the name is taken", text) from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or _first_line(error), text) from error
    except RuntimeError as error:
        said = _first_line(error)
        kind = PermissionError if "AccessControlException" in said else OSError
        code = errno.EACCES if kind is PermissionError else errno.EROFS if "SafeMode" in said else errno.EIO
        raise kind(code, said, text) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().replace("\\n", "\n").partition("\n")[0][:500]
