"""A file of a store, read range by range: what it takes from the store is a size and a request for some bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any


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
