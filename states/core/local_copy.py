"""The local copy of a keyed state: a store beside the workers that has every key as of one transaction.

It is disposable. The Delta tables are the truth; nothing here is ever flushed, and a copy of which anything is doubted
is thrown away and built again. Its *mark* says of which incarnation of the topology it is, of which state in which
form, and as of which transaction. Values and mark change in one LMDB transaction, so a process that dies in the middle
leaves the values of the mark, and a reader finds the values of the mark that it asks for, or none at all. While it is
filled, or many rows are put in part by part, a copy has no mark.

Beside its values a copy may keep its keys in the *order* of a position that each row has, such as a time: what is due
is a range of it. Entries of this index change in the same LMDB transaction as values and mark.

Several processes may read a copy at once, Spark's workers among them; the one that holds ``owner.lock`` writes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators import faults
from trident.states.core.copy_rows import BYTES, as_bytes, joined, matrix_array
from trident.states.core.sorted_runs import RUN_BYTES, sort_by
from trident.states.core.stale_copy import StaleCopy as StaleCopy

APPLY_PART = faults.register("copy.apply_part", "putting a part of many rows into a local copy")
# LMDB takes keys of up to 511 bytes; longer ones go by their digest, and stand whole before their value.
_KEY_BYTES_MAX = 500
_MARK = b"\x00mark"
_SHORT, _LONG = b"k", b"l"
# Entries of the index: the position so that greater ones are greater bytes, then the name of the row's entry.
_INDEX = b"i"
_POSITION_BYTES, _HALF = 8, 1 << 63
# Rows are put so many at a time: as Python's bytes they take five times what they take in arrays, and a page that is
# written takes 4 kB until the copy is closed.
PART_ROWS = 20_000
_READERS_MAX = 1024
_CHECK_BYTES = 4
_SUFFIX = ".copy"
_BLOCK_BYTES = 512  # of st_blocks
# Between two looks at whether a copy has been brought on.
_LOOK_SECS = 0.0005

Combining = Callable[[list[bytes | None], list[list[bytes]]], list[bytes]]
# (keys, their values) → the position of each row, of 64 bits; None: it is in no order.
Order = Callable[[Sequence[bytes], Sequence[bytes]], Sequence[int | None]]
# A row that is found by its position: position, key, value.
Placed = tuple[int, bytes, bytes]


class CopyMark(msgspec.Struct, frozen=True):
    """The content of a copy: whose state, in which form, as of when.

    Attributes:
        incarnation: of the topology.
        txid: the transaction as of which all its keys are.
        digest: of the state's descriptor, the form of the copy, and the boot of the machine.
        commit: the last commit of the state's log up to the transaction: tells two histories apart.
    """

    incarnation: str
    txid: int
    digest: str
    commit: str


class _Held(msgspec.Struct, frozen=True):
    """The mark as it is kept, with the file that it was written into: in a copy of that file it says nothing."""

    mark: CopyMark
    file: str


@dataclass(frozen=True)
class CopyAsOf:
    """A copy as of one transaction, as its readers are told of it, in this process or another of the host.

    Attributes:
        folder: of the copy.
        mark: of what is read.
        schema: of keys and values, in Arrow's types.
        keys: the key columns.
        ordered_by: the column that is the position of each row; "": the copy has no index.
    """

    folder: Path
    mark: CopyMark
    schema: pa.Schema
    keys: tuple[str, ...]
    ordered_by: str = ""


@dataclass(frozen=True)
class CopiedRows:
    """Rows for a copy, as bytes: see ``copy_rows.RowCodec``.

    Attributes:
        keys, values: of each row.
        gone: whether the key is deleted; None: none is.
    """

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    gone: pa.BooleanArray | None = None


class LocalCopy:
    """A copy that this process writes.

    Args:
        folder: of the copy, on a local disk. Made where it is missing.
        bytes_max: the greatest size of its file.
        order: the position of a row; the same one for as long as the copy is there. None: it has no index.
        stays: whether a key has the same position with each value.

    Raises:
        StaleCopy: another process writes it, or it cannot be opened.
    """

    def __init__(self, folder: Path, bytes_max: int, order: Order | None = None, stays: bool = False) -> None:
        self.folder, self._order, self._stays = folder, order, stays
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner = open(folder / "owner.lock", "ab")
        except OSError as error:
            raise StaleCopy(f"there can be no copy in {folder}", found=error) from error
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._opened = _opened(folder, bytes_max)
        except OSError as error:
            self._owner.close()
            raise StaleCopy(f"the copy in {folder} cannot be written", found=error) from error
        except StaleCopy:
            self.delete()  # no process has it, and it is damaged
            raise

    @property
    def mark(self) -> CopyMark | None:
        """The mark of its content; None where it is empty, or its writer died while it put many rows."""
        with _refused(self.folder), self._opened as env, env.begin() as txn:
            return _mark(txn, self._opened.file)

    @property
    def disk_bytes(self) -> int:
        """How much disk its file takes; 0 where it is gone."""
        try:
            return (self.folder / "data.mdb").stat().st_blocks * _BLOCK_BYTES
        except OSError:
            return 0

    def fill(
        self,
        batches: Iterable[CopiedRows],
        after: CopyMark,
        combine: Combining | None = None,
        run_bytes: int = RUN_BYTES,
    ) -> None:
        """Puts all keys into an empty copy, in their order; in many transactions, the mark in the last.

        Args:
            batches: of a key that comes twice the last counts.
            after: what it holds then.
            combine: as in :meth:`apply`: of a key that comes twice all are combined, in their order.
            run_bytes: of so many bytes a part is sorted in memory.

        Raises:
            StaleCopy: it is not empty, or the disk refused; then it has no mark.
        """
        with _refused(self.folder), self._opened as env:
            with env.begin() as txn:
                if txn.stat()["entries"]:
                    raise StaleCopy(f"the copy in {self.folder} is not empty")
            for table in sort_by((_entries(batch) for batch in batches), "name", self.folder, run_bytes):
                kept = _last_of_each(table) if combine is None else _combined_of_each(self.folder, table, combine)
                for start in range(0, kept.num_rows, PART_ROWS):
                    part = kept.slice(start, PART_ROWS)
                    # In order: each page is filled once, and none is split.
                    with env.begin(write=True) as txn, txn.cursor() as cursor:
                        cursor.putmulti(self._index_of(part))  # below all other entries
                        if cursor.putmulti(_named(part), append=True, overwrite=False)[1] != part.num_rows:
                            raise StaleCopy(f"the rows for the copy in {self.folder} came out of order")
            with env.begin(write=True) as txn:
                txn.put(_MARK, msgspec.msgpack.encode(_Held(after, self._opened.file)))
        pa.default_memory_pool().release_unused()  # a copy is filled once; what it took would stay with the process

    def apply(
        self,
        rows: Iterable[tuple[bytes, bytes | None]],
        before: CopyMark,
        after: CopyMark,
        combine: Combining | None = None,
    ) -> None:
        """Makes the copy that of a later transaction, at once.

        Args:
            rows: (key, its new value, or None where the key is deleted); of a key that comes twice the last counts.
            before: what it holds now.
            after: what it holds then.
            combine: where the values are parts: (of each key what is stored or None, of each key its parts in order)
                → of each key what is stored then.

        Raises:
            StaleCopy: it holds something else, or the disk refused; nothing changed.
        """
        with _refused(self.folder), self._opened as env, env.begin(write=True) as txn:
            env.reader_check()  # a worker that was killed while it read would keep old pages for ever
            _require(txn, before, self.folder, self._opened.file)
            self._put(txn, rows, combine)
            txn.put(_MARK, msgspec.msgpack.encode(_Held(after, self._opened.file)))

    def apply_many(
        self,
        batches: Iterable[CopiedRows],
        before: CopyMark,
        after: CopyMark,
        combine: Combining | None = None,
        run_bytes: int = RUN_BYTES,
    ) -> None:
        """As :meth:`apply`, of more rows than there is memory for: in parts, and not at once.

        From the first part to the last the copy has no mark, and no reader finds it; behind a failure it has none
        either, and is to be deleted. Until the first part, while the rows are read and sorted, nothing has changed.

        Args:
            batches: in the order of their transactions.
            run_bytes: of so many bytes a part is sorted in memory.

        Raises:
            StaleCopy: it holds something else, or the disk refused.
        """
        with _refused(self.folder), self._opened as env:
            with env.begin(write=True) as txn:
                env.reader_check()
                _require(txn, before, self.folder, self._opened.file)
            # An index has pages of its own, which the rows of a part do not share.
            count = PART_ROWS if self._order is None else max(1, PART_ROWS // 4)
            # In the order of the keys a part touches few pages: in theirs, every part would touch most.
            for table in sort_by(map(_as_table, batches), "key", self.folder, run_bytes):
                for start in range(0, table.num_rows, count):
                    part = table.slice(start, count)
                    values = zip(as_bytes(part.column("value")), part.column("gone").to_pylist(), strict=True)
                    rows = zip(as_bytes(part.column("key")), [None if gone else value for value, gone in values])
                    with faults.fault_point(APPLY_PART), env.begin(write=True) as txn:
                        txn.delete(_MARK)  # with the first part
                        self._put(txn, rows, combine)
            with env.begin(write=True) as txn:
                txn.put(_MARK, msgspec.msgpack.encode(_Held(after, self._opened.file)))
        pa.default_memory_pool().release_unused()

    def _put(
        self, txn: lmdb.Transaction, rows: Iterable[tuple[bytes, bytes | None]], combine: Combining | None
    ) -> None:
        """Puts changed rows over what there is."""
        changed = dict(rows) if combine is None else self._combined(txn, rows, combine)
        keys = sorted(changed)  # neighbours share pages
        gone = [key for key in keys if changed[key] is None]
        kept = [(key, value) for key in keys if (value := changed[key]) is not None]
        with txn.cursor() as cursor:
            if self._order is not None:
                moved = gone if self._stays else keys
                old = zip(moved, _stored(self.folder, txn, moved))
                for name, _ in self._index([(key, value) for key, value in old if value is not None]):
                    txn.delete(name)
                cursor.putmulti(self._index(self._unplaced(txn, kept)))
            for name in _names(gone):
                txn.delete(name)
            cursor.putmulti(_pairs(kept))

    def _unplaced(self, txn: lmdb.Transaction, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
        """Those of some rows whose entry of the index may be lacking: a key that is there, and stays, has its own."""
        if not self._stays:
            return rows
        names = _names([key for key, _ in rows])
        return [row for row, name in zip(rows, names, strict=True) if txn.get(name) is None]

    def _index(self, rows: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The entries of the index for some rows, in their order."""
        if self._order is None or not rows:
            return []
        keys = [key for key, _ in rows]
        positions = self._order(keys, [value for _, value in rows])
        placed = [
            (position, name) for position, name in zip(positions, _names(keys), strict=True) if position is not None
        ]
        # As _placed.
        numbers = np.array([position for position, _ in placed], np.int64).view(np.uint64) ^ np.uint64(_HALF)
        heads, width = numbers.astype(">u8").tobytes(), _POSITION_BYTES
        starts = range(0, len(heads), width)
        names = sorted([_INDEX + heads[at : at + width] + name for at, (_, name) in zip(starts, placed)])
        return list(zip(names, _each(_crcs(names))))

    def _index_of(self, entries: pa.Table) -> list[tuple[bytes, bytes]]:
        if self._order is None:
            return []
        return self._index([_pair(self.folder, *pair) for pair in _named(entries)])

    def _combined(
        self, txn: lmdb.Transaction, rows: Iterable[tuple[bytes, bytes | None]], combine: Combining
    ) -> dict[bytes, bytes | None]:
        parts: dict[bytes, list[bytes]] = {}
        for key, part in rows:
            assert part is not None, "a part is a value"
            parts.setdefault(key, []).append(part)
        keys = sorted(parts)
        stored = _stored(self.folder, txn, keys)
        return dict(zip(keys, combine(stored, [parts[key] for key in keys]), strict=True))

    def get(self, keys: Sequence[bytes], mark: CopyMark) -> list[bytes | None]:
        """As :func:`look_up`, in the process that writes."""
        return _look_up(self._opened, self.folder, keys, mark)

    def in_order(
        self,
        mark: CopyMark,
        first: int | None = None,
        below: int | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Placed]:
        """As :func:`in_order`, in the process that writes."""
        return _in_order(self._opened, self.folder, mark, (first, below, limit, bytes_max))

    def close(self) -> None:
        """Leaves the copy to the next process on this host."""
        _forget(self.folder)
        self._owner.close()

    def delete(self) -> None:
        """Throws the copy away. A reader that has it open reads on in what it has opened."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()


def look_up(folder: Path, keys: Sequence[bytes], mark: CopyMark) -> list[bytes | None]:
    """The values of some keys as of a mark, from any process of the host; None for a key that the state has not.

    Raises:
        StaleCopy: the copy is not there, not that of the mark, or damaged.
    """
    return _look_up(_opened(folder, None), folder, keys, mark)


def wait_for(folder: Path, mark: CopyMark, secs: float) -> None:
    """Waits until a copy is that of a mark, where its writer is on the way there; from any process of the host.

    Raises:
        StaleCopy: it is gone or past the mark, or it was not there in time.
    """
    end = time.monotonic() + secs
    while True:
        opened = _opened(folder, None)
        with _refused(folder), opened as env, env.begin() as txn:
            found = _mark(txn, opened.file)
        if found == mark:
            return
        on_its_way = found is not None and found.txid < mark.txid and found.incarnation == mark.incarnation
        if not on_its_way or time.monotonic() > end:
            raise StaleCopy(f"the copy in {folder} holds something else", found=found, expected=mark)
        time.sleep(_LOOK_SECS)


def _look_up(opened: _Opened, folder: Path, keys: Sequence[bytes], mark: CopyMark) -> list[bytes | None]:
    with _refused(folder), opened as env, env.begin() as txn:
        _require(txn, mark, folder, opened.file)
        return _stored(folder, txn, keys)


def in_order(
    folder: Path,
    mark: CopyMark,
    first: int | None = None,
    below: int | None = None,
    limit: int | None = None,
    bytes_max: int | None = None,
) -> list[Placed]:
    """The rows with first <= position < below as of a mark, least first, from any process of the host.

    Of equal positions the order is that of the keys' bytes. A row without a position is in no range. The caller's duty:
    the copy has an index; one without gives no row.

    Args:
        first, below: None: from the least one, to the greatest one.
        limit: the number of rows at most.
        bytes_max: the row with which the values are of more bytes is the last one that is read.

    Raises:
        StaleCopy: the copy is not there, not that of the mark, or damaged.
    """
    return _in_order(_opened(folder, None), folder, mark, (first, below, limit, bytes_max))


def _in_order(
    opened: _Opened, folder: Path, mark: CopyMark, asked: tuple[int | None, int | None, int | None, int | None]
) -> list[Placed]:
    (first, below, limit, bytes_max), found, size = asked, list[Placed](), 0
    with _refused(folder), opened as env, env.begin() as txn, txn.cursor() as cursor:
        _require(txn, mark, folder, opened.file)
        end = None if below is None else _placed(below)
        more = cursor.set_range(_INDEX if first is None else _placed(first))
        while more and (limit is None or len(found) < limit) and (bytes_max is None or size <= bytes_max):
            name = cursor.key()
            if name[:1] != _INDEX or (end is not None and name >= end):
                break
            start = len(_INDEX) + _POSITION_BYTES
            entry = txn.get(name[start:])
            if entry is None or cursor.value() != _check(name):
                raise StaleCopy(f"the copy in {folder} is damaged")
            position = int.from_bytes(name[len(_INDEX) : start], "big") - _HALF
            key, value = _pair(folder, name[start:], entry)
            found.append((position, key, value))
            size += len(value)
            more = cursor.next()
    return found


# --- how it is kept ---------------------------------------------------------------------------------


def _name(key: bytes) -> bytes:
    return _SHORT + key if len(key) <= _KEY_BYTES_MAX else _LONG + sha256(key).digest()


def _entry(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """An entry: a check of key and value; of a long key its length and itself; the value."""
    name = _name(key)
    check = zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECK_BYTES, "big")
    return name, check + (len(key).to_bytes(_CHECK_BYTES, "big") + key if name[:1] == _LONG else b"") + value


def _names(keys: Sequence[bytes]) -> list[bytes]:
    """As :func:`_name`, of many at once."""
    if max(map(len, keys), default=0) > _KEY_BYTES_MAX:
        return list(map(_name, keys))
    return [_SHORT + key for key in keys]


def _pairs(rows: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """As :func:`_entry`, of many at once."""
    keys = [key for key, _ in rows]
    if max(map(len, keys), default=0) > _KEY_BYTES_MAX:
        return [_entry(*row) for row in rows]
    checks = _each(_crcs([key + value for key, value in rows]))
    return [(_SHORT + key, check + value) for check, (key, value) in zip(checks, rows)]


def _crcs(texts: Sequence[bytes]) -> bytes:
    """The checks of some bytes, one behind the other."""
    return np.fromiter(map(zlib.crc32, texts), f">u{_CHECK_BYTES}", len(texts)).tobytes()


def _each(checks: bytes) -> list[bytes]:
    return [checks[at : at + _CHECK_BYTES] for at in range(0, len(checks), _CHECK_BYTES)]


def _entries(rows: CopiedRows) -> pa.Table:
    """As :func:`_entry`, of many at once."""
    keys, values = rows.keys, rows.values
    checks = np.fromiter(map(zlib.crc32, as_bytes(joined(keys, values))), ">u4", len(keys))
    names = joined(pa.scalar(_SHORT, BYTES), keys)
    entries = joined(matrix_array(checks.view(np.uint8).reshape(-1, _CHECK_BYTES)), values)
    is_long = pc.greater(pc.binary_length(keys), _KEY_BYTES_MAX)
    if pc.any(is_long).as_py():
        pairs = [_entry(*pair) for pair in zip(as_bytes(keys.filter(is_long)), as_bytes(values.filter(is_long)))]
        names = pc.replace_with_mask(names, is_long, pa.array([name for name, _ in pairs], BYTES))
        entries = pc.replace_with_mask(entries, is_long, pa.array([entry for _, entry in pairs], BYTES))
    gone = pa.repeat(False, len(keys)) if rows.gone is None else rows.gone
    return pa.table([names, entries, gone], names=["name", "entry", "gone"])


def _as_table(rows: CopiedRows) -> pa.Table:
    gone = pa.repeat(False, len(rows.keys)) if rows.gone is None else rows.gone
    return pa.table([rows.keys, rows.values, gone], names=["key", "value", "gone"])


def _named(entries: pa.Table) -> Iterator[tuple[bytes, bytes]]:
    return zip(as_bytes(entries.column("name")), as_bytes(entries.column("entry")), strict=True)


def _is_last(table: pa.Table) -> pa.BooleanArray:
    """Of rows in the order of their names: whether it is the last of its name."""
    names = table.column("name").combine_chunks()
    count = len(names)
    if not count:
        return pa.array([], pa.bool_())
    return pa.concat_arrays([pc.not_equal(names.slice(1), names.slice(0, count - 1)), pa.array([True])])


def _last_of_each(table: pa.Table) -> pa.Table:
    return table.filter(pc.and_not(_is_last(table), table.column("gone")))


def _combined_of_each(folder: Path, table: pa.Table, combine: Combining) -> pa.Table:
    is_last = _is_last(table)
    ends = np.flatnonzero(is_last.to_numpy(zero_copy_only=False)) + 1
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    kept = table.filter(is_last)
    several = ends - starts > 1
    if not several.any():
        return kept
    keys, parts = [], []
    for start, end in zip(starts[several].tolist(), ends[several].tolist()):
        rows = table.slice(start, end - start)
        pairs = [_pair(folder, *pair) for pair in _named(rows)]
        keys.append(pairs[0][0])
        parts.append([value for _, value in pairs])
    values = combine([None] * len(keys), parts)
    entries = pa.array([_entry(key, value)[1] for key, value in zip(keys, values, strict=True)], BYTES)
    return kept.set_column(
        1, "entry", pc.replace_with_mask(kept.column("entry").combine_chunks(), pa.array(several), entries)
    )


def _pair(folder: Path, name: bytes, entry: bytes) -> tuple[bytes, bytes]:
    """The key and the value of an entry."""
    key = name[len(_SHORT) :]
    if name[:1] == _LONG:
        start = 2 * _CHECK_BYTES
        key = entry[start : start + int.from_bytes(entry[_CHECK_BYTES:start], "big")]
    value = _value(folder, key, entry)
    assert value is not None
    return key, value


def _stored(folder: Path, txn: lmdb.Transaction, keys: Sequence[bytes]) -> list[bytes | None]:
    """The values of some keys; None for a key that the state has not.

    Raises:
        StaleCopy: an entry is not what was put there.
    """
    entries = cast("list[bytes | None]", [txn.get(name) for name in _names(keys)])
    if max(map(len, keys), default=0) > _KEY_BYTES_MAX:
        return [_value(folder, key, entry) for key, entry in zip(keys, entries)]
    start = _CHECK_BYTES
    values = [None if entry is None else entry[start:] for entry in entries]
    checks = b"".join([entry[:start] for entry in entries if entry is not None])
    if checks != _crcs([key + value for key, value in zip(keys, values) if value is not None]):
        raise StaleCopy(f"the copy in {folder} is damaged")
    return values


def _value(folder: Path, key: bytes, whole: bytes | None) -> bytes | None:
    if whole is None:
        return None
    start = _CHECK_BYTES
    if len(key) > _KEY_BYTES_MAX:
        start += _CHECK_BYTES + len(key)
        if whole[_CHECK_BYTES:start] != len(key).to_bytes(_CHECK_BYTES, "big") + key:
            raise StaleCopy(f"the copy in {folder} is damaged")
    value = whole[start:]
    if int.from_bytes(whole[:_CHECK_BYTES], "big") != zlib.crc32(value, zlib.crc32(key)):
        raise StaleCopy(f"the copy in {folder} is damaged")
    return value


def _placed(position: int) -> bytes:
    """The beginning of an index entry: of a greater position greater bytes."""
    if not -_HALF <= position < _HALF:  # beyond what a row can have: from the least, or to the greatest
        return _INDEX if position < 0 else bytes([_INDEX[0] + 1])
    return _INDEX + (position + _HALF).to_bytes(_POSITION_BYTES, "big")


def _check(name: bytes) -> bytes:
    return zlib.crc32(name).to_bytes(_CHECK_BYTES, "big")


def _mark(txn: lmdb.Transaction, file: str) -> CopyMark | None:
    found = txn.get(_MARK)
    try:
        held = None if found is None else msgspec.msgpack.decode(bytes(found), type=_Held)
    except msgspec.DecodeError:
        return None
    return held.mark if held is not None and held.file == file else None


def _require(txn: lmdb.Transaction, mark: CopyMark, folder: Path, file: str) -> None:
    found = _mark(txn, file)
    if found != mark:
        raise StaleCopy(f"the copy in {folder} holds something else", found=found, expected=mark)


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError) as error:  # full, damaged, gone
        raise StaleCopy(f"the copy in {folder} cannot be used", found=error) from error


class _Opened:
    """An environment for ``with``: it is unmapped when it is to be closed and the last thread has left it.

    A thread that reads from an environment that another one closes would end the process.

    Attributes:
        key: its folder and its file.
        env: only for those who are inside.
        file: that it has open.
    """

    __slots__ = ("key", "env", "file", "_inside", "_ends")

    def __init__(self, key: tuple[str, str], env: lmdb.Environment) -> None:
        self.key, self.env, self.file = key, env, key[1]
        self._inside, self._ends = 0, False

    def __enter__(self) -> lmdb.Environment:
        with _lock:
            self._inside += 1
            return self.env

    def __exit__(self, *raised: object) -> None:
        with _lock:
            self._inside -= 1
            if self._ends:
                self.end()

    def goes_on(self) -> _Opened:
        """It is asked for again. The caller has the lock."""
        self._ends = False
        return self

    def end(self) -> None:
        """Closes it, now or when the last thread has left it. The caller has the lock."""
        self._ends = True
        if not self._inside:
            if _environments.get(self.key) is self:
                del _environments[self.key]
            self.env.close()


# One environment a process and file: LMDB's locks are those of the process, and a second one would end them.
_environments: dict[tuple[str, str], _Opened] = {}
_lock = threading.Lock()
_pid = os.getpid()


def _file(path: Path) -> str:
    """Names a file; another one has another name, also one that was copied to its place."""
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _opened(folder: Path, bytes_max: int | None) -> _Opened:
    """The environment of a folder in this process; with ``bytes_max`` for writing."""
    global _pid
    with _lock:
        if _pid != os.getpid():  # a fork must not use its parent's
            _environments.clear()
            _pid = os.getpid()
        data = folder / "data.mdb"
        try:
            file = _file(data)
            known = _environments.get((str(folder), file))
            if known is not None and (bytes_max is None or not known.env.flags()["readonly"]):
                return known.goes_on()
        except FileNotFoundError:
            if bytes_max is None:
                raise StaleCopy(f"there is no copy in {folder}") from None
        for key in [key for key in _environments if key[0] == str(folder) or not os.path.exists(key[0])]:
            _environments[key].end()  # it was deleted, and perhaps made again: its file would take space on
        try:
            env = lmdb.open(
                str(folder),
                map_size=bytes_max or 0,
                readonly=bytes_max is None,
                create=bytes_max is not None,
                sync=False,
                metasync=False,
                max_readers=_READERS_MAX,
                readahead=False,
                max_spare_txns=4,
            )
        except (lmdb.Error, OSError) as error:
            raise StaleCopy(f"the copy in {folder} cannot be opened", found=error) from error
        # LMDB maps the file: reading behind the end of one that was cut would kill the process.
        if data.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"] and env.info()["last_txnid"]:
            env.close()
            raise StaleCopy(f"the copy in {folder} was cut short")
        opened = _Opened((str(folder), _file(data)), env)
        _environments[opened.key] = opened
        return opened


def _forget(folder: Path) -> None:
    with _lock:
        for key in [key for key in _environments if key[0] == str(folder)]:
            _environments[key].end()


def new_folder(base: Path) -> Path:
    """The folder of a copy that is to be built: no reader knows it before."""
    return base / f"{uuid.uuid4().hex}{_SUFFIX}"


def copies_in(base: Path, names: Iterable[str]) -> list[Path]:
    """The folders of copies among the names in a folder."""
    return [base / name for name in names if re.fullmatch(rf"[0-9a-f]{{32}}{re.escape(_SUFFIX)}", name)]
