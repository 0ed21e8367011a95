"""A file that is appended to, where a storage has no appending: each write is a file of its own."""

from __future__ import annotations

import errno
import os
from typing import Protocol

from trident.states.core.local_storage import AnyPath, Stat

_DIGITS = 20


class _Storage(Protocol):
    def read(self, path: AnyPath, start: int = 0) -> bytes: ...
    def create(self, path: AnyPath, data: bytes, durable: bool = True) -> None: ...
    def list(self, folder: AnyPath) -> list[str]: ...
    def stat(self, path: AnyPath) -> Stat | None: ...
    def delete(self, path: AnyPath) -> bool: ...


class AppendedParts:
    """The parts lie in a folder at the file's path, each named by the byte at which it begins.

    Of two processes that append at once one gets the name of the next part: the other one's write fails, and it reads
    on before it tries again.
    """

    def __init__(self, storage: _Storage, path: AnyPath) -> None:
        self._storage, self._path = storage, os.fspath(path)

    @property
    def size(self) -> int:
        begins = self._begins()
        if not begins:
            return 0
        last = self._storage.stat(self._part(begins[-1]))
        if last is None:
            raise FileNotFoundError(errno.ENOENT, "the part was just there", self._part(begins[-1]))
        return begins[-1] + last.size

    def read(self, start: int) -> bytes:
        """All from this byte on.

        Raises:
            OSError: a part is missing, or shorter than the next one's place says.
        """
        begins = self._begins()
        first = max((at for at in begins if at <= start), default=0)
        data, end = b"", first
        for at in (at for at in begins if at >= first):
            if at != end:
                raise OSError(errno.EIO, f"a part is missing, or cut: one begins at {at}, expected {end}", self._path)
            part = self._storage.read(self._part(at))
            data, end = data + part, end + len(part)
        return data[start - first :]

    def cut(self, size: int) -> None:
        """Takes away all behind this byte, where a part begins: parts are whole."""
        for at in self._begins():
            if at >= size:
                self._storage.delete(self._part(at))

    def write(self, data: bytes) -> None:
        """Appends; durable when this returns.

        Raises:
            FileExistsError: another process has appended meanwhile.
        """
        self._storage.create(self._part(self.size), data)

    def _part(self, at: int) -> str:
        return f"{self._path}/{at:0{_DIGITS}d}"

    def _begins(self) -> list[int]:
        return sorted(int(name) for name in self._storage.list(self._path) if name.isdigit())
