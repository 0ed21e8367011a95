"""Shared by storages over a network: settings, concurrent calls, reads by range, files appended to as parts."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol, TypeVar

from trident.coordinators.threads import DaemonPool
from trident.states.core.local_storage import AnyPath, Stat

# How an object store is reached: Hadoop's settings in the words of the library that tasks use.


@dataclass(frozen=True)
class StoreSettings:
    """How a bucket is reached. The SDK's own chain gives each None: environment, web identity, instance.

    Attributes:
        options: obstore's names of settings, such as ``endpoint``; secrets are not shown.
        timeout_secs: of one request.
        retry_secs: for so long requests that may be repeated are.
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_secs: float = 30.0
    retry_secs: float = 20.0


def store_settings(hadoop: Mapping[str, str], bucket: str = "") -> StoreSettings:
    """Hadoop's settings of a store in obstore's words: so that Spark and the framework's tasks reach the same one.

    Args:
        bucket: of which settings of its own count more.
    """
    own = f"fs.s3a.bucket.{bucket}."
    hadoop = {**hadoop, **{f"fs.s3a.{key[len(own) :]}": value for key, value in hadoop.items() if key.startswith(own)}}
    named = {
        "fs.s3a.endpoint": "endpoint",
        "fs.s3a.endpoint.region": "region",
        "fs.s3a.access.key": "access_key_id",
        "fs.s3a.secret.key": "secret_access_key",
        "fs.s3a.session.token": "session_token",
    }
    options: dict[str, Any] = {ours: hadoop[theirs] for theirs, ours in named.items() if hadoop.get(theirs)}
    if (endpoint := options.get("endpoint", "")) and "://" not in endpoint:
        secure = hadoop.get("fs.s3a.connection.ssl.enabled", "true") != "false"
        options["endpoint"] = f"{'https' if secure else 'http'}://{endpoint}"
    if hadoop.get("fs.s3a.path.style.access", "false") == "false" and not endpoint:
        options["virtual_hosted_style_request"] = True
    return StoreSettings(options)


# Runs calls that wait for a store concurrently: a few threads, shared by the whole process.


AT_ONCE = 16
_NAME = "trident-store"

_Found = TypeVar("_Found")


def run_concurrently(calls: Sequence[Callable[[], _Found]]) -> list[_Found]:
    """The answers of the calls, in their order; all of them have ended when this returns or raises.

    A call that uses this itself runs its own calls one by one: the threads would wait for each other.

    Raises:
        Exception: the error of the first of them, by their order, that raised.
    """
    if len(calls) < 2 or threading.current_thread().name.startswith(f"{_NAME}_"):
        return [call() for call in calls]
    futures = [_pool().submit(call) for call in calls]
    wait(futures)
    return [future.result() for future in futures]


@cache
def _pool() -> DaemonPool:
    return DaemonPool(AT_ONCE, _NAME)


# A file of a store, read range by range: what it takes from the store is a size and a request for some bytes.


class RangedFile(io.RawIOBase):
    """``read_range(start, count)`` gives one to count bytes; none beyond ``size`` (in bytes) are asked for."""

    def __init__(self, size: int, read_range: Callable[[int, int], Any]) -> None:
        self._size, self._read_range, self._at = size, read_range, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readall(self) -> bytes:
        """In one request, where the store gives all of it at once: Python's own asks for 8 kB at a time."""
        data = memoryview(bytearray(max(0, self._size - self._at)))
        have = 0
        while have < len(data):
            count = self.readinto(data[have:])
            if not count:
                raise OSError(f"the store gave {have} of {len(data)} bytes; expected: all of them. Read the file again")
            have += count
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._read_range(self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


# A file that is appended to, where a storage has no appending: each write is a file of its own.


_DIGITS = 20


class _Storage(Protocol):
    def read(self, path: AnyPath, start: int = 0) -> bytes: ...
    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None: ...
    def list(self, folder: AnyPath) -> list[str]: ...
    def stat_file(self, path: AnyPath) -> Stat | None: ...
    def delete(self, path: AnyPath) -> bool: ...


class AppendedParts:
    """The parts lie in a folder at the file's path, each named by the byte at which it begins.

    Of two processes that append at once one gets the name of the next part: the other one's write fails, and it reads
    on before it tries again.

    Args:
        known: so many bytes the caller has read, up to the end of a part; they are not looked for again.
    """

    def __init__(self, storage: _Storage, path: AnyPath, known: int = 0) -> None:
        self._storage, self._path = storage, os.fspath(path)
        self._end = known or None  # as far as it is known here
        # From this byte on only this object has written, as far as it knows; None: it does not know.
        self._own_from, self._own = known or None, b""

    @property
    def size(self) -> int:
        if self._end is None:
            self._end = self._listed_end()
        return self._end

    def _listed_end(self) -> int:
        begins = self._begins()
        if not begins:
            return 0
        last = self._storage.stat_file(self._part(begins[-1]))
        if last is None:
            raise FileNotFoundError(errno.ENOENT, "the part was just there", self._part(begins[-1]))
        return begins[-1] + last.size

    def read(self, start: int) -> bytes:
        """All from this byte on; of parts that others have appended behind what is known here none.

        Raises:
            OSError: a part is missing, or shorter than the next one's place says.
        """
        if self._own_from is not None and self._own_from <= start:
            return self._own[start - self._own_from :]
        begins = self._begins()
        end = first = max((at for at in begins if at <= start), default=0)
        begins = [at for at in begins if at >= first]
        parts = run_concurrently([partial(self._storage.read, self._part(at)) for at in begins])
        for at, part in zip(begins, parts):
            if at != end:
                raise OSError(errno.EIO, f"a part is missing, or cut: one begins at {at}, expected {end}", self._path)
            end += len(part)
        return b"".join(parts)[start - first :]

    def cut(self, size: int) -> None:
        """Takes away all behind this byte, where a part begins: parts are whole."""
        for at in self._begins():
            if at >= size:
                self._storage.delete(self._part(at))
        self._end = self._own_from = None
        self._own = b""

    def write(self, data: bytes) -> None:
        """Appends; durable when this returns.

        Raises:
            FileExistsError: another process has appended meanwhile.
        """
        at = self.size
        self._storage.create(self._part(at), data)
        if self._own_from is None:
            self._own_from = at
        self._own, self._end = self._own + data, at + len(data)

    def _part(self, at: int) -> str:
        return f"{self._path}/{at:0{_DIGITS}d}"

    def _begins(self) -> list[int]:
        return sorted(int(name) for name in self._storage.list(self._path) if name.isdigit())


def read_parts(storage: _Storage, path: AnyPath, start: int) -> bytes | None:
    """As ``read_appended``: behind what was read the parts are asked for by their names, and nothing is listed."""
    if not start:
        return AppendedParts(storage, path).read(0) or None
    data, end = b"", start
    with suppress(FileNotFoundError):
        while part := storage.read(f"{os.fspath(path)}/{end:0{_DIGITS}d}"):
            data, end = data + part, end + len(part)
    return data
