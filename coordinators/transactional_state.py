"""Small persistent maps in ZooKeeper (docs/semantics.md 2).

:class:`TransactionalState` maps keys to JSON values, one child znode each.
:class:`RotatingTransactionalState` maps txids to values in the lenient or the
strict order; what it decides is :func:`plan`, which does no I/O.

Both write by themselves, or let their writes be part of a larger multi: make
:class:`Changes`, send ``changes.ops`` with the other operations, and call
``changes.applied()`` once that multi has happened.

A map has one writer. Give it a ``guard``, the check of a fence, and a second
writer is refused as deposed; without one a foreign write shows as StaleState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trident.coordinators.errors import OutcomeUnknown, StaleState
from trident.coordinators.records import decode_txid, decode_value, encode_value
from trident.coordinators.zookeeper import Create, Delete, MultiRefused, Op, SetData, ZooKeeper, check_name

GONE: Any = object()
"""Instead of a value: it is deleted."""

Initializer = Callable[[int, Any], Any]
"""(txid, value of the greatest txid below, or None) -> the new value."""


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

    def visible(self, stored: dict[str, _Entry]) -> bool:
        """Tells whether what is stored is what these changes lead to."""
        return all(stored.get(key) == entry for key, entry in self._after.items())

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

    def __init__(
        self, zk: ZooKeeper, path: str, *, guard: Callable[[list[Op]], None] | None = None, owner: str = ""
    ) -> None:
        """Args:
        zk: a connected ZooKeeper.
        path: the map's znode.
        guard: adds the check of a fence to a multi, such as ``Fence.check_op``.
        owner: whose values these are, for messages ("spout lines").
        """
        self._zk, self._path, self._guard = zk, path, guard
        self.owner = owner or f"the map {path}"
        self._entries: dict[str, _Entry] = {}

    def load(self) -> None:
        """Read everything again.

        Raises:
            CorruptZnode: a value cannot be read.
        """
        self._entries = self._read()

    def keys(self) -> list[str]:
        """The keys that have a value, sorted."""
        return sorted(self._entries)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        entry = self._entries.get(key)
        return default if entry is None else entry.value

    def put(self, key: str, value: Any) -> None:
        """Store a value durably.

        Raises:
            Deposed: the guard's fence is not the newest.
            StaleState: another writer wrote this key.
            ValueTooLarge: the value is over 512 KiB.
            OutcomeUnknown: the ZooKeeper session was lost meanwhile.
        """
        self.write(lambda changes: changes.put(key, value))

    def delete(self, key: str) -> None:
        """Delete a value durably, if there is one; errors as in :meth:`put`."""
        self.write(lambda changes: changes.delete(key))

    def write(self, edit: Callable[[Changes], Any]) -> Any:
        """Do the edits in one multi, exactly once as far as the map can tell; errors as in :meth:`put`."""
        while True:
            changes = Changes(self)
            result = edit(changes)
            if not changes.ops:
                return result
            session_number = self._zk.session_number
            self._zk.ensure_path(self._path)
            ops: list[Op] = []
            if self._guard:
                self._guard(ops)
            try:
                self._zk.multi([*ops, *changes.ops])
            except OutcomeUnknown:
                self._zk.recover(session_number, self._path)
                stored = self._read()
                if not changes.visible(stored):
                    self._entries = stored
                    continue
            except MultiRefused as refusal:
                raise StaleState(
                    f"another writer wrote {refusal.op.path}", found=refusal.reason, expected="one writer"
                ) from refusal
            changes.applied()
            return result

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

    def _read(self) -> dict[str, _Entry]:
        entries = {}
        for key in self._zk.children(self._path):
            found = self._zk.get(f"{self._path}/{key}")
            if found is not None:
                entries[key] = _Entry(decode_value(f"{self._path}/{key}", found[0]), found[1].znode_version)
        return entries


# -- values per txid --------------------------------------------------------


@dataclass(frozen=True)
class Existing:
    """The txid is stored: its value is the answer."""


@dataclass(frozen=True)
class Initialize:
    """The answer is init(txid, value of ``previous``); it is stored."""

    previous: int | None


@dataclass(frozen=True)
class StoreNone:
    """The txid was passed over: None is the answer, and it is stored."""


def plan(stored: Sequence[int], txid: int, *, strict: bool = False) -> Existing | Initialize | StoreNone:
    """Returns what asking for ``txid`` means, given the txids stored, in ascending order.

    Lenient: a txid above all stored is initialised from the greatest one;
    a missing one with a greater one stored is None. Strict: a new txid is 1
    with nothing stored, or directly follows the greatest (docs/semantics.md 2).

    Raises:
        StaleState: the strict order is broken.
    """
    if txid in stored:
        return Existing()
    greatest = stored[-1] if stored else None
    if strict and txid != (1 if greatest is None else greatest + 1):
        raise StaleState(
            f"transaction {txid} is out of order",
            found=f"transaction {greatest} as the last one stored" if stored else "nothing stored",
            expected=f"transaction {1 if greatest is None else greatest + 1}",
        )
    if greatest is not None and greatest > txid:
        return StoreNone()
    return Initialize(greatest)


def previous_of(stored: Sequence[int], txid: int) -> int | None:
    """The greatest stored txid below ``txid``."""
    return max((known for known in stored if known < txid), default=None)


class RotatingTransactionalState:
    """Values per txid, such as a spout's metadata, in ZooKeeper (docs/semantics.md 2).

    Errors of every write are those of :meth:`TransactionalState.put`.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        path: str,
        *,
        strict: bool = False,
        guard: Callable[[list[Op]], None] | None = None,
        owner: str = "",
    ) -> None:
        """Args as of :class:`TransactionalState`; ``strict``: see :func:`plan`."""
        self._path, self._strict = path, strict
        self._state = TransactionalState(zk, path, guard=guard, owner=owner)

    def load(self) -> None:
        """Read everything again.

        Raises:
            CorruptZnode: a value, or a name that should be a txid, cannot be read.
        """
        self._state.load()
        for name in self._state.keys():
            decode_txid(self._path, name)

    @property
    def txids(self) -> list[int]:
        """The txids that have a value, ascending."""
        return sorted(int(name) for name in self._state.keys())

    def list_states(self) -> dict[int, Any]:
        """Every value by txid, ascending."""
        return {txid: self._state.get(str(txid)) for txid in self.txids}

    def get_state(self, txid: int, init: Initializer) -> Any:
        """The value of a txid, initialised and stored when it has none (see :func:`plan`).

        Raises:
            StaleState: the strict order is broken.
        """
        return self._state.write(lambda changes: self.get_state_in(changes, txid, init))

    def get_previous_state(self, txid: int) -> Any:
        """The value of the greatest txid below, None if there is none."""
        previous = previous_of(self.txids, txid)
        return None if previous is None else self._state.get(str(previous))

    def override_state(self, txid: int, value: Any) -> None:
        """Store another value for a txid."""
        self._state.put(str(txid), value)

    def remove(self, txid: int) -> None:
        """Delete the value of a txid."""
        self._state.delete(str(txid))

    def cleanup_before(self, txid: int) -> None:
        """Delete the values of every txid strictly below."""
        self._state.write(lambda changes: self.cleanup_before_in(changes, txid))

    # -- as parts of a larger multi -----------------------------------------

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

    def get_state_in(self, changes: Changes, txid: int, init: Initializer) -> Any:
        """:meth:`get_state` as part of ``changes``."""
        step = plan(self.txids, txid, strict=self._strict)
        if isinstance(step, Existing):
            return self.value(txid)
        if isinstance(step, StoreNone):
            return changes.put(str(txid), None)
        before = None if step.previous is None else self.value(step.previous)
        return changes.put(str(txid), init(txid, before))

    def put_in(self, changes: Changes, txid: int, value: Any) -> Any:
        """:meth:`override_state` as part of ``changes``; returns the value as it will be read."""
        return changes.put(str(txid), value)

    def cleanup_before_in(self, changes: Changes, txid: int) -> None:
        """:meth:`cleanup_before` as part of ``changes``."""
        for stored in self.txids:
            if stored < txid:
                changes.delete(str(stored))

    def remove_after_in(self, changes: Changes, txid: int) -> None:
        """Delete the values of every txid strictly above, as part of ``changes``."""
        for stored in self.txids:
            if stored > txid:
                changes.delete(str(stored))
