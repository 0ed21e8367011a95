"""A file that is appended to, where a storage has no appending: each write is a file of its own."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Protocol

from trident.states.core.local_storage import AnyPath, Stat

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
