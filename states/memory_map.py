"""A map in this process's memory with the value semantics of a transactional state: for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from states.names import check_name


@dataclass(frozen=True)
class MemoryMapState:
    """A keyed state that lives as long as this process (SEMANTICS 5: memory map).

    Within one process it survives a stop and a start of the topology, so a
    test can compare it; it is gone with the process, so it is for tests only.

    Args:
        name: the state's name; two states of one name in one process are one.
    """

    name: str

    def __post_init__(self) -> None:
        check_name("state", self.name)

    def values(self) -> dict[tuple, tuple]:
        """A copy: keys to value tuples."""
        return memory_map(self.name).values()

    def clear(self) -> None:
        memory_map(self.name).clear()


class MemoryMap:
    """key → (txid, value); an update whose txid is not newer is skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple, tuple[int, tuple]] = {}
        self._txid = 0

    def update(self, txid: int, rows: Iterable[tuple[tuple, tuple]], combine: Callable[[Any, Any], Any]) -> None:
        """Combines the partial values of one transaction in; again for the same txid: nothing."""
        with self._lock:
            if txid <= self._txid:
                return
            for key, partial in rows:
                old = self._entries.get(key)
                value = partial if old is None else tuple(combine(a, b) for a, b in zip(old[1], partial))
                self._entries[key] = (txid, value)
            self._txid = txid

    def values(self) -> dict[tuple, tuple]:
        with self._lock:
            return {key: value for key, (_, value) in self._entries.items()}

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._txid = 0


_maps: dict[str, MemoryMap] = {}


def memory_map(name: str) -> MemoryMap:
    return _maps.setdefault(name, MemoryMap())
