"""Small persistent maps in ZooKeeper: Storm's TransactionalState, and the metadata of opaque partitions in pages.

:class:`TransactionalState` maps keys to JSON values, one child znode each;
:class:`RotatingTransactionalState` maps txids to values. Neither writes by
itself: make :class:`Changes`, send ``changes.ops`` with the other operations of
a multi, and call ``changes.applied()`` once that multi has happened.

A map has one writer. Every operation has the znode version that the map knows,
so that a foreign write refuses the multi.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from trident.coordinators.errors import CorruptZnode
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


# The metadata of one stream's opaque partitions in ZooKeeper, in pages.
#
# ::
#
#     <stream>/partitions/<number>            a page: {"<txid>": {"<partition>": metadata, …}, …}
#     <stream>/user/<partition>/<txid>        one partition, as versions before this one wrote it
#
# A transaction that moves 5,000 partitions is one write and not 10,000: with two
# operations for each partition an advance was too large for ZooKeeper from about
# 3,300 on, when the transaction was decided and published already.
#
# A page is made once and never changed. A transaction writes the partitions that
# it moves to a new page, whose number is greater than any before; of two pages
# with one partition the later counts. Pages that are no longer needed are deleted by the same
# write; small ones are taken into the new one, each time at most as much as it
# has itself, so that there are few of them and a partition that stays away costs
# nothing. Whatever a page says counts before what the older layout says; of
# that, a little is deleted with each write.


PAGE_BYTES_MAX = 256 * 1024
# A page below this is taken into the next one whatever that has: it costs little, and there are fewer of them.
_SMALL_PAGE_BYTES = 4 * 1024
# Deletions of the older layout with one write.
_OLD_BYTES_PER_WRITE = 64 * 1024
_DELETION_BYTES = 96


class Entry(NamedTuple):
    """A partition's metadata, the transaction that stored it, and about how many bytes it takes."""

    txid: int
    metadata: Any
    size: int


@dataclass
class PageChanges:
    """Writes to the pages of one stream, to be part of a multi; call :meth:`applied` once that has happened."""

    _of: OpaqueMetadata
    ops: list[Op] = field(default_factory=list)
    pages: dict[int, dict[str, Entry]] = field(default_factory=dict)
    old: dict[str, RotatingTransactionalState] = field(default_factory=dict)
    greatest: int = 0

    def applied(self) -> None:
        self._of.follow(self)

    def of(self, metadata: OpaqueMetadata) -> bool:
        """Tells whether these are writes to that stream's pages."""
        return self._of is metadata

    @property
    def root(self) -> str:
        """The znode that must be there before."""
        return self._of.root

    def values(self) -> dict[str, Entry]:
        """Returns what is stored once they are applied."""
        return _effective(self.pages, self.old)


class OpaqueMetadata:
    """Of one stream. Call :meth:`load` first.

    Args:
        owner: whose metadata these are, for messages ("spout lines").
    """

    def __init__(self, zk: ZooKeeper, stream: str, owner: str) -> None:
        self._zk, self._owner = zk, owner
        self.root, self._old_root = f"{stream}/partitions", f"{stream}/user"
        self._pages: dict[int, dict[str, Entry]] = {}
        self._old: dict[str, RotatingTransactionalState] = {}
        self._greatest = 0

    def load(self) -> None:
        """Reads everything again.

        Raises:
            CorruptZnode: a page, or a partition of the older layout, cannot be read.
        """
        self._pages = {}
        for name in self._zk.children(self.root):
            number = decode_txid(self.root, name)
            found = self._zk.get(f"{self.root}/{name}")
            if found is not None:
                self._pages[number] = _decode_page(f"{self.root}/{name}", found[0])
        self._greatest = max(self._pages, default=0)
        self._old = {}
        for name in self._zk.children(self._old_root):
            states = RotatingTransactionalState(self._zk, f"{self._old_root}/{name}", owner=self._owner)
            states.load()
            if states.txids:
                self._old[unquote(name)] = states

    def values(self) -> dict[str, Entry]:
        """Partition → what counts of it."""
        return _effective(self._pages, self._old)

    def change(self, txid: int, given: Mapping[str, Any]) -> PageChanges:
        """Stores what a transaction has moved; nothing is written before the multi.

        Raises:
            ConfigError: metadata is not JSON.
        """
        if not given:
            return PageChanges(self, [], self._pages, self._old, self._greatest)
        new = {partition: self._entry(partition, txid, metadata) for partition, metadata in given.items()}
        ops: list[Op] = []
        pages, may_take = dict(self._pages), True
        size, covered = sum(entry.size for entry in new.values()), set(new)
        for number in sorted(self._pages, reverse=True):
            page = self._pages[number]
            live = {partition: entry for partition, entry in page.items() if partition not in covered}
            live_size = sum(entry.size for entry in live.values())
            fits = live_size <= max(size, _SMALL_PAGE_BYTES) and size + live_size <= PAGE_BYTES_MAX
            may_take = may_take and (not live or fits)
            if not live or may_take:
                new.update(live)
                size += live_size
                ops.append(Delete(f"{self.root}/{number}", 0))
                del pages[number]
            covered |= page.keys()
        return self._with_pages(new, pages, ops)

    def replace(self, values: Mapping[str, Any], txid: int = 0) -> PageChanges:
        """Deletes everything, and stores these values."""
        ops: list[Op] = [Delete(f"{self.root}/{number}", 0) for number in self._pages]
        new = {partition: self._entry(partition, txid, metadata) for partition, metadata in values.items()}
        changes = self._with_pages(new, {}, ops, delete_old=None)
        changes.old = {}
        return changes

    def follow(self, changes: PageChanges) -> None:
        """The writes have happened: the memory follows."""
        self._pages, self._old, self._greatest = changes.pages, changes.old, changes.greatest

    def _entry(self, partition: str, txid: int, metadata: Any) -> Entry:
        encoded = encode_value({partition: metadata}, self._owner)
        return Entry(txid, json.loads(encoded)["value"][partition], len(encoded))

    def _with_pages(
        self,
        new: Mapping[str, Entry],
        pages: dict[int, dict[str, Entry]],
        ops: list[Op],
        delete_old: int | None = _OLD_BYTES_PER_WRITE,
    ) -> PageChanges:
        greatest = self._greatest
        for chunk in _chunks(new):
            greatest += 1
            data = encode_value(_page(chunk), self._owner)
            ops.append(Create(f"{self.root}/{greatest}", data, owner=self._owner))
            pages[greatest] = chunk
        stale = [p for p in self._old if delete_old is None or any(p in page for page in pages.values())]
        old = dict(self._old)
        ops += self._deletions(stale, old, delete_old)
        return PageChanges(self, ops, pages, old, greatest)

    def _deletions(
        self, stale: Iterable[str], old: dict[str, RotatingTransactionalState], bytes_max: int | None
    ) -> list[Op]:
        ops: list[Op] = []
        size = 0
        for partition in stale:
            path = f"{self._old_root}/{partition_znode(partition)}"
            changes = self._old[partition].changes()
            self._old[partition].remove_after_in(changes, 0)
            more = [*changes.ops, Delete(path)]
            size += sum(len(op.path) + _DELETION_BYTES for op in more)
            if bytes_max is not None and size > bytes_max:
                break
            ops += more
            del old[partition]
        return ops


def partition_znode(partition: str) -> str:
    """The znode of a partition in the older layout: its name is the source's, and may have a ``/`` or a blank in it."""
    return quote(partition, safe="@:=+,")


def _effective(
    pages: Mapping[int, Mapping[str, Entry]], old: Mapping[str, RotatingTransactionalState]
) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for partition, states in old.items():
        txid = states.txids[-1]
        found[partition] = Entry(txid, states.value(txid), 0)
    for number in sorted(pages):
        found.update(pages[number])
    return found


def _chunks(entries: Mapping[str, Entry]) -> Iterable[dict[str, Entry]]:
    chunk: dict[str, Entry] = {}
    size = 0
    for partition, entry in entries.items():
        if chunk and size + entry.size > PAGE_BYTES_MAX:
            yield chunk
            chunk, size = {}, 0
        chunk[partition] = entry
        size += entry.size
    if chunk:
        yield chunk


def _page(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    by_txid: dict[str, dict[str, Any]] = {}
    for partition, entry in entries.items():
        by_txid.setdefault(str(entry.txid), {})[partition] = entry.metadata
    return by_txid


def _decode_page(path: str, data: bytes) -> dict[str, Entry]:
    value = decode_value(path, data)
    if not isinstance(value, dict) or not all(isinstance(of_txid, dict) for of_txid in value.values()):
        expected = 'a page of partitions: {"<txid>": {"<partition>": metadata, …}, …}'
        raise CorruptZnode(path, found=repr(data[:120]), expected=expected)
    page: dict[str, Entry] = {}
    for name, of_txid in value.items():
        txid = decode_txid(path, name)
        for partition, metadata in of_txid.items():
            page[partition] = Entry(txid, metadata, len(encode_value({partition: metadata}, "")))
    return page
