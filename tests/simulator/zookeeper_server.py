"""A ZooKeeper ensemble as its clients see it: one order of writes, reads that may lag behind, sessions.

Every znode keeps its history by zxid, so that a read can be served as of an
earlier moment, as by a follower that has not caught up. Multis are all or
nothing; ephemeral znodes go with their session; a watch is told once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo import exceptions as kz


class Stat(NamedTuple):
    """The parts of kazoo's ZnodeStat that are read."""

    version: int
    ephemeralOwner: int
    numChildren: int


class Entry(NamedTuple):
    """A znode from one zxid on; ``data`` is None where it does not exist."""

    zxid: int
    data: bytes | None
    version: int = -1
    owner: int = 0


NEVER = Entry(0, None)
Op = tuple[str, str, Any, int]  # kind, path, value, version


class Session:
    """A client's session; ``alive`` as the ensemble sees it."""

    def __init__(self, number: int, timeout_secs: float) -> None:
        self.number, self.timeout_secs = number, timeout_secs
        self.alive = True
        self.unheard = 0  # counts the silences: an expiry is of one of them


class Ensemble:
    """The servers together.

    Args:
        on_write: told of every write that happened: (writer, zxid, {path: data or None}).
    """

    def __init__(self, on_write: Callable[[Any, int, dict[str, bytes | None]], None]) -> None:
        self.zxid = 0
        self._on_write = on_write
        self._znodes: dict[str, list[Entry]] = {"": [Entry(0, b"", 0)]}
        self._names: dict[str, list[str]] = defaultdict(list)  # every name that ever was
        self._sessions = 0
        self._ephemerals: dict[int, list[str]] = defaultdict(list)
        self._watches: dict[str, list[Callable[[], None]]] = {}

    # --- reading -------------------------------------------------------------------------------

    def at(self, path: str, zxid: int) -> Entry:
        for entry in reversed(self._znodes.get(path, ())):
            if entry.zxid <= zxid:
                return entry
        return NEVER

    def now(self, path: str) -> Entry:
        entries = self._znodes.get(path)
        return entries[-1] if entries else NEVER

    def names(self, path: str, zxid: int) -> list[str]:
        return sorted(name for name in self._names.get(path, ()) if self.at(f"{path}/{name}", zxid).data is not None)

    def stat(self, path: str, entry: Entry, zxid: int) -> Stat:
        return Stat(entry.version, entry.owner, 0)

    def watch(self, path: str, told: Callable[[], None]) -> None:
        self._watches.setdefault(path, []).append(told)

    def paths(self) -> list[str]:
        """Every znode that exists."""
        return [path for path, entries in self._znodes.items() if entries[-1].data is not None]

    # --- writing -------------------------------------------------------------------------------

    def multi(self, writer: Any, session: Session, ops: list[Op]) -> list[Any]:
        """Results as kazoo gives them; on a failure nothing happens, and the one at fault is known by its error."""
        after: dict[str, Entry] = {}
        for index, op in enumerate(ops):
            error = self._do(op, session, after)
            if error is not None:
                undone = [kz.RolledBackError() for _ in range(index)]
                return [*undone, error, *(kz.RuntimeInconsistency() for _ in ops[index + 1 :])]
        changes = {path: entry for path, entry in after.items() if entry.zxid > self.zxid}
        if changes:
            self._apply(writer, changes)
        return [True for _ in ops]

    def _do(self, op: Op, session: Session, after: dict[str, Entry]) -> Exception | None:
        kind, path, value, version = op
        entry = after.get(path) or self.now(path)
        exists = entry.data is not None
        zxid = self.zxid + 1
        if kind == "create":
            parent = path.rpartition("/")[0]
            if (after.get(parent) or self.now(parent)).data is None:
                return kz.NoNodeError()
            if exists:
                return kz.NodeExistsError()
            after[path] = Entry(zxid, value, 0, session.number if version else 0)
            return None
        if not exists:
            return kz.NoNodeError()
        if version not in (-1, entry.version):
            return kz.BadVersionError()
        if kind == "set":
            after[path] = Entry(zxid, value, entry.version + 1, entry.owner)
        elif kind == "delete":
            if any((after.get(child) or self.now(child)).data is not None for child in self._children(path)):
                return kz.NotEmptyError()
            after[path] = Entry(zxid, None)
        return None

    def _children(self, path: str) -> list[str]:
        return [f"{path}/{name}" for name in self._names.get(path, ())]

    def ensure(self, writer: Any, path: str) -> None:
        parts = path.split("/")
        changes = {}
        for end in range(2, len(parts) + 1):
            ancestor = "/".join(parts[:end])
            if self.now(ancestor).data is None:
                changes[ancestor] = Entry(self.zxid + 1, b"", 0)
        if changes:
            self._apply(writer, changes)

    def _apply(self, writer: Any, changes: dict[str, Entry]) -> None:
        self.zxid += 1
        for path, entry in changes.items():
            if path not in self._znodes:
                self._znodes[path] = []
                parent, _, name = path.rpartition("/")
                self._names[parent].append(name)
            self._znodes[path].append(entry)
            if entry.owner and entry.version == 0:
                self._ephemerals[entry.owner].append(path)
        self._on_write(writer, self.zxid, {path: entry.data for path, entry in changes.items()})
        for path in changes:
            for told in self._watches.pop(path, ()):
                told()

    def put(self, path: str, data: bytes) -> None:
        """A process that is not simulated makes a znode below one that there is."""
        assert self.now(path).data is None and self.now(path.rpartition("/")[0]).data is not None
        self._apply(None, {path: Entry(self.zxid + 1, data, 0)})

    def remove(self, path: str) -> None:
        """A person deletes a znode by hand."""
        if self.now(path).data is not None:
            self._apply(None, {path: Entry(self.zxid + 1, None)})

    # --- sessions ------------------------------------------------------------------------------

    def open(self, timeout_secs: float) -> Session:
        self._sessions += 1
        return Session(self._sessions, timeout_secs)

    def expire(self, session: Session) -> None:
        if not session.alive:
            return
        session.alive = False
        mine = self._ephemerals.pop(session.number, ())
        gone = {path: Entry(self.zxid + 1, None) for path in mine if self.now(path).owner == session.number}
        if gone:
            self._apply(None, gone)
