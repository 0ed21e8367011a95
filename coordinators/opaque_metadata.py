"""The metadata of one stream's opaque partitions in ZooKeeper, in pages.

::

    <stream>/partitions/<number>            a page: {"<txid>": {"<partition>": metadata, …}, …}
    <stream>/user/<partition>/<txid>        one partition, as versions before this one wrote it

A transaction that moves 5,000 partitions is one write and not 10,000: with two
operations for each partition an advance was too large for ZooKeeper from about
3,300 on, when the transaction was decided and published already.

A page is made once and never changed. A transaction writes the partitions that
it moves to a new page, whose number is greater than any before; of two pages
with one partition the later counts. Pages that are no longer needed are deleted by the same
write; small ones are taken into the new one, each time at most as much as it
has itself, so that there are few of them and a partition that stays away costs
nothing. Whatever a page says counts before what the older layout says; of
that, a little is deleted with each write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from trident.coordinators.errors import CorruptZnode
from trident.coordinators.records import decode_txid, decode_value, encode_value
from trident.coordinators.transactional_state import RotatingTransactionalState
from trident.coordinators.znodes import Create, Delete, Op
from trident.coordinators.zookeeper import ZooKeeper

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
