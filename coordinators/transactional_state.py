"""Small persistent maps in ZooKeeper: Storm's TransactionalState and its rotating one (docs/semantics.md 2).

:class:`TransactionalState` maps keys to JSON values, one child znode each;
:class:`RotatingTransactionalState` maps txids to values. Neither writes by
itself: make :class:`Changes`, send ``changes.ops`` with the other operations of
a multi, and call ``changes.applied()`` once that multi has happened.

A map has one writer. Every operation has the znode version that the map knows,
so that a foreign write refuses the multi.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trident.coordinators.records import decode_txid, decode_value, encode_value
from trident.coordinators.znodes import Create, Delete, Op, SetData, check_name
from trident.coordinators.zookeeper import ZooKeeper

GONE: Any = object()
"""Instead of a value: it is deleted."""


class _Entry(NamedTuple):
    value: Any
    znode_version: int


@dataclass
class Changes:
    """Writes to one map that are to happen together, perhaps with others.

    Attributes:
        ops: the operations, in an order in which ZooKeeper accepts them.
    """

    _state: TransactionalState
    ops: list[Op] = field(default_factory=list)
    _after: dict[str, _Entry | None] = field(default_factory=dict)

    def put(self, key: str, value: Any) -> Any:
        """Store a value; returns it as a later read will give it (JSON's types)."""
        path, owner = self._state.child(key), self._state.owner
        data = encode_value(value, owner)
        before = self._now(key)
        if before is None:
            self.ops.append(Create(path, data, owner=owner))
        else:
            self.ops.append(SetData(path, data, before.znode_version, owner=owner))
        stored = decode_value(path, data)
        self._after[key] = _Entry(stored, 0 if before is None else before.znode_version + 1)
        return stored

    def delete(self, key: str) -> None:
        """Delete a value, if there is one."""
        before = self._now(key)
        if before is not None:
            self.ops.append(Delete(self._state.child(key), before.znode_version))
            self._after[key] = None

    def applied(self) -> None:
        """The operations have happened: the map in memory follows."""
        self._state.follow(self._after)

    def of(self, state: TransactionalState) -> bool:
        """Tells whether these are writes to that map."""
        return self._state is state

    def outcome(self) -> dict[str, Any]:
        """key -> the value after them, or :data:`GONE`; of the keys that they touch."""
        return {key: GONE if entry is None else entry.value for key, entry in self._after.items()}

    def _now(self, key: str) -> _Entry | None:
        return self._after[key] if key in self._after else self._state.entry(key)


class TransactionalState:
    """A small map from names to JSON values, kept in ZooKeeper and in memory.

    Call :meth:`load` before anything else. Not for use by several threads at once.
    """

    def __init__(self, zk: ZooKeeper, path: str, owner: str) -> None:
        """Args:
        zk: a connected ZooKeeper.
        path: the map's znode.
        owner: whose values these are, for messages ("spout lines").
        """
        self._zk, self._path, self.owner = zk, path, owner
        self._entries: dict[str, _Entry] = {}

    def load(self) -> None:
        """Read everything again.

        Raises:
            CorruptZnode: a value cannot be read.
        """
        entries = {}
        for key in self._zk.children(self._path):
            found = self._zk.get(f"{self._path}/{key}")
            if found is not None:
                entries[key] = _Entry(decode_value(f"{self._path}/{key}", found[0]), found[1].znode_version)
        self._entries = entries

    def keys(self) -> list[str]:
        """The keys that have a value, sorted."""
        return sorted(self._entries)

    def get(self, key: str) -> Any:
        """The value of a key, None if it has none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    # -- for Changes --------------------------------------------------------

    def child(self, key: str) -> str:
        """The znode of a key."""
        return f"{self._path}/{check_name(key, 'a key')}"

    def entry(self, key: str) -> _Entry | None:
        """Returns what is known of a key."""
        return self._entries.get(key)

    def follow(self, after: dict[str, _Entry | None]) -> None:
        """Take over what a multi has done."""
        for key, entry in after.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry


# Of a stream that goes on where another program has got to: what was before its first transaction.
_IMPORTED = "0"


class RotatingTransactionalState:
    """Values per txid, such as a spout's metadata, in ZooKeeper (docs/semantics.md 2)."""

    def __init__(self, zk: ZooKeeper, path: str, owner: str) -> None:
        """Args as of :class:`TransactionalState`."""
        self._path, self._state = path, TransactionalState(zk, path, owner)

    def load(self) -> None:
        """Read everything again.

        Raises:
            CorruptZnode: a value, or a name that should be a txid, cannot be read.
        """
        self._state.load()
        for name in self._state.keys():
            if name != _IMPORTED:
                decode_txid(self._path, name)

    @property
    def txids(self) -> list[int]:
        """The txids that have a value, ascending."""
        return sorted(int(name) for name in self._state.keys())

    def list_states(self) -> dict[int, Any]:
        """Every value by txid, ascending."""
        return {txid: self._state.get(str(txid)) for txid in self.txids}

    def changes(self) -> Changes:
        """An empty set of changes to this map."""
        return Changes(self._state)

    def is_changed_by(self, changes: Changes) -> bool:
        """Tells whether these are writes to this map."""
        return changes.of(self._state)

    def outcome(self, changes: Changes) -> dict[int, Any]:
        """txid -> the value after these changes, or :data:`GONE`; of the txids that they touch."""
        return {int(key): value for key, value in changes.outcome().items()}

    def has(self, txid: int) -> bool:
        """Tells whether a txid has a value (which may be None)."""
        return self._state.entry(str(txid)) is not None

    def value(self, txid: int) -> Any:
        """The value of a txid, None if it has none."""
        return self._state.get(str(txid))

    def put_in(self, changes: Changes, txid: int, value: Any) -> Any:
        """Store a value for a txid, as part of ``changes``; returns it as it will be read."""
        return changes.put(str(txid), value)

    def cleanup_before_in(self, changes: Changes, txid: int) -> None:
        """Delete the values of every txid strictly below, as part of ``changes``."""
        for stored in self.txids:
            if stored < txid:
                changes.delete(str(stored))

    def remove_after_in(self, changes: Changes, txid: int) -> None:
        """Delete the values of every txid strictly above, as part of ``changes``."""
        for stored in self.txids:
            if stored > txid:
                changes.delete(str(stored))
