"""The local copy of a keyed state: every key as of one transaction, in files of this host that lookups map.

It is disposable. The Delta tables are the truth; nothing here is ever flushed, and a doubtful copy is deleted and built
again.

A copy is a list of sorted, immutable *runs* (``copy_rows.py``), the oldest first, and a small file ``current`` that
names them with their *mark*: of which incarnation of the topology they are, of which state in which form, and as of
which transaction. A transaction adds one run; of a key that several runs have the newest counts. ``current`` is a link
that is replaced atomically, so a process that dies at any moment leaves the copy of one mark, and a reader finds the
rows of the mark that it wants, or none at all. Runs that no list names any more are deleted; who has them mapped reads
on.

A thread merges runs, so that each is at least twice as large as the next one: lookups search few of them.

Several processes may read a copy at once, Spark's workers among them; the one that holds ``owner.lock`` writes it.
"""

from __future__ import annotations

import fcntl
import logging
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
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators import faults
from trident.states.core.copy_rows import RowCodec, Rows, Run, by_key, hashes, merged, newest, write_run
from trident.states.core.copyable import StaleCopy as StaleCopy
from trident.states.core.shards import WHOLE, Shard

log = logging.getLogger(__name__)
PUBLISH = faults.register("copy.publish", "replacing the list of a local copy's files")
COMPACT = faults.register("copy.compact", "merging the files of a local copy")

_CURRENT = "current"
_SUFFIX = ".copy"
# A transaction's rows are sorted in memory in parts of so many bytes.
PART_BYTES = 64 << 20
# A reader that finds a file gone reads the list again, which has another one in its place by then.
_TRIES = 20
_CHECK_SECS = 0.0005
_CHECK_BYTES = 4
_SMALL_ROWS = 8192
# After a merge that failed, as where the disk is full: the next one would read as much in vain.
_PAUSE_SECS = 60.0
# Positions are read in such steps at least.
_STEP_ROWS = 1 << 14

# (values before, null where the key is new; the parts of all keys; of each part the place of its key) → the values
# then, and their positions; None: each key keeps that of its parts.
Combining = Callable[[pa.Table, pa.Table, "np.ndarray"], tuple[pa.Table, "pa.Array | None"]]


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


class _Listed(msgspec.Struct, frozen=True):
    """A run as the list names it; see ``Run``.

    Attributes:
        passed: so many of its rows, in the order of their positions, are known to be replaced or deleted.
    """

    name: str
    rows: int
    bytes: int
    check: int
    passed: int = 0


class _Current(msgspec.Struct, frozen=True):
    """The list.

    Attributes:
        folder: that it was written into, by its inode: a copy of the folder says nothing of the state.
    """

    mark: CopyMark
    folder: str
    runs: tuple[_Listed, ...]


@dataclass(frozen=True)
class CopyAsOf:
    """A copy as of one transaction, for its readers in this process or another of the host.

    Attributes:
        folder: of the copy.
        mark: of what is read.
        schema: of keys and values, in Arrow's types.
        keys: the key columns.
        ordered_by: the column that is the position of each row; "": the copy has no order.
        shard: the keys that it has.
    """

    folder: Path
    mark: CopyMark
    schema: pa.Schema
    keys: tuple[str, ...]
    ordered_by: str = ""
    shard: Shard = WHOLE

    @property
    def values(self) -> pa.Schema:
        """That of the values."""
        return pa.schema([field for field in self.schema if field.name not in self.keys])


class LocalCopy:
    """A copy that this process writes.

    Args:
        folder: of the copy, on a local disk. Made where it is missing.
        bytes_max: the greatest size of its files.
        values: their schema.

    Raises:
        StaleCopy: another process writes it, or it cannot be opened.
    """

    def __init__(self, folder: Path, bytes_max: int, values: pa.Schema) -> None:
        self.folder, self._bytes_max, self._values = folder, bytes_max, values
        self._lock, self._closed = threading.Lock(), False
        self._merger: threading.Thread | None = None
        self._merges_from = 0.0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owner = open(folder / "owner.lock", "ab")
        except OSError as error:
            raise StaleCopy(f"there can be no copy in {folder}", found=error) from error
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._owner.close()
            raise StaleCopy(f"the copy in {folder} cannot be written", found=error) from error
        try:
            self._current = _read(folder)
            self._runs = list(_runs(folder, self._current)) if self._current is not None else []
            self._list = os.readlink(folder / _CURRENT) if self._current is not None else ""
            known = {_CURRENT if self._list else "", self._list, *(file for run in self._runs for file in run.files)}
            for name in os.listdir(folder):
                if name != "owner.lock" and name not in known:
                    os.unlink(folder / name)  # a process died before it was listed
        except (OSError, StaleCopy) as error:
            self.delete()  # no process has it, and it is damaged
            raise StaleCopy(f"the copy in {folder} cannot be opened", found=error) from error

    @property
    def mark(self) -> CopyMark | None:
        """The mark of its content; None where it is empty."""
        return None if self._current is None else self._current.mark

    @property
    def disk_bytes(self) -> int:
        """The size of its files; 0 where they are gone."""
        return sum(run.bytes for run in self._runs) if (self.folder / _CURRENT).exists() else 0

    def apply(
        self, rows: Iterable[Rows], before: CopyMark | None, after: CopyMark, combine: Combining | None = None
    ) -> None:
        """Makes the copy that of a later transaction, at once, however many rows there are.

        Args:
            rows: in the order of their transactions; of a key that comes twice the last counts.
            before: what it holds now; None: nothing yet.
            after: what it holds then.
            combine: the values are parts, to be combined with what is stored.

        Raises:
            StaleCopy: it holds something else, or the disk refused; nothing changed.
        """
        if self.mark != before:
            raise StaleCopy(f"the copy in {self.folder} holds something else", found=self.mark, expected=before)
        added, first, begun = list[Run](), len(self._runs), False
        try:
            with _refused(self.folder):
                for part in _parts(rows):
                    if combine is not None:
                        part = self._combined(part, combine, [*self._runs, *added])
                    if not begun:  # a few rows are written together with the small runs before them
                        first, begun = self._small(len(part.keys)), True
                        part = Rows.together([*(run.rows_of(0, run.rows) for run in self._runs[first:]), part])
                    added += write_run(self.folder, [newest(part, keep_deleted=first > 0 or bool(added))])
                with self._lock:
                    if self._closed:
                        raise StaleCopy(f"the copy in {self.folder} is closed")
                    old = self._runs[first:]
                    self._publish(after, [*self._runs[:first], *added])
                added = old
        finally:
            for run in added:  # those that are listed no more, or never were
                run.delete()
        self._tidy()

    def _combined(self, rows: Rows, combine: Combining, runs: Sequence[Run]) -> Rows:
        """The rows of a part with the values that their keys have then."""
        order, begins = by_key(hashes(rows.keys), rows.keys)
        starts = np.flatnonzero(begins)
        keys = rows.keys.take(pa.array(order[starts]))
        values, _ = _look_up(runs, keys, self._values)
        parts = rows.values.take(pa.array(order))
        made, positions = combine(values, parts, np.cumsum(begins) - 1)
        if positions is None:
            positions = rows.positions.take(pa.array(order[starts]))
        return Rows.of(keys, made, None, positions)

    def _publish(self, mark: CopyMark, runs: list[Run]) -> None:
        """Replaces the list. The caller has the lock."""
        size = sum(run.bytes for run in runs)
        if size > self._bytes_max:
            raise StaleCopy(f"the copy in {self.folder} is full", found=size, expected=self._bytes_max)
        runs = [run.since(self._passed(runs, at)) for at, run in enumerate(runs)]
        listed = tuple(_Listed(run.name, run.rows, run.bytes, run.check, run.passed) for run in runs)
        current = _Current(mark, _inode(self.folder), listed)
        # A link is renamed, and not the file: to rename a file over another one makes some file systems write it first.
        name, link = f"{uuid.uuid4().hex}.list", self.folder / f"{_CURRENT}.next"
        replaced = name
        try:
            text = msgspec.msgpack.encode(current)
            (self.folder / name).write_bytes(zlib.crc32(text).to_bytes(_CHECK_BYTES, "big") + text)
            os.symlink(name, link)
            with faults.fault_point(PUBLISH):
                os.replace(link, self.folder / _CURRENT)
            replaced, self._list = self._list, name
        finally:
            link.unlink(missing_ok=True)
            if replaced:
                (self.folder / replaced).unlink(missing_ok=True)
        self._current, self._runs = current, runs

    def _passed(self, runs: Sequence[Run], at: int) -> int:
        """How many rows of a run, in the order of their positions, have been replaced: more of them at each look."""
        run, step = runs[at], 16
        passed, newer = run.passed, runs[at + 1 :]
        while newer and passed < len(run.positions):
            alive = run.alive(passed, min(passed + step, len(run.positions)), newer)
            if alive.any():
                return passed + int(np.argmax(alive))
            passed, step = passed + len(alive), min(4 * step, _STEP_ROWS)
        return passed

    def _tidy(self) -> None:
        """Merges runs in a thread, where one is not twice as large as all that follow it."""
        with self._lock:
            may = self._merger is None and not self._closed and time.monotonic() >= self._merges_from
            if may and self._to_merge() is not None:
                self._merger = threading.Thread(target=self._merge_all, name="copy-merge", daemon=True)
                self._merger.start()

    def _to_merge(self) -> int | None:
        """The first of the runs to be merged into one."""
        sizes = [run.rows for run in self._runs]
        first = _unsorted(sizes)
        return first if first < len(sizes) - 1 else None

    def _small(self, count: int) -> int:
        """The first of the last runs that are written anew together with so many rows."""
        with self._lock:
            sizes = [*(run.rows for run in self._runs), count]
            first = _unsorted(sizes)
            return first if sum(sizes[first:]) <= _SMALL_ROWS and self._merger is None else len(self._runs)

    def _merge_all(self) -> None:
        while True:
            with self._lock:
                first = None if self._closed else self._to_merge()
                if first is None:
                    self._merger = None
                    return
                old, oldest = self._runs[first:], first == 0
            made: list[Run] = []
            try:
                with _refused(self.folder), faults.fault_point(COMPACT):
                    made += write_run(self.folder, merged(old, keep_deleted=not oldest))
                    with self._lock:
                        assert self._current is not None
                        if not self._closed:
                            later = self._runs[first + len(old) :]
                            self._publish(self._current.mark, [*self._runs[:first], *made, *later])
                            made, old = old, []
            except Exception as error:  # the disk is full, or the copy was deleted: it stays as it was
                with self._lock:
                    if not self._closed:
                        log.warning("files of the local copy in %s are not merged: %s", self.folder, error)
                    self._merger, self._merges_from = None, time.monotonic() + _PAUSE_SECS
                    return
            finally:
                for run in made:  # those that are listed no more, or never were
                    run.delete()

    def wait_for_merge(self) -> None:
        """Waits until the thread that merges has nothing to do."""
        while (thread := self._merger) is not None:
            thread.join()

    def close(self) -> None:
        """Leaves the copy to the next process on this host."""
        with self._lock:
            self._closed = True
        self._owner.close()

    def delete(self) -> None:
        """Deletes the copy. A reader that has its files mapped reads on."""
        with self._lock:
            self._closed = True
        shutil.rmtree(self.folder, ignore_errors=True)
        _forget(self.folder)
        self._owner.close()


def look_up(copy: CopyAsOf, keys: pa.LargeBinaryArray) -> tuple[pa.Table, np.ndarray]:
    """The values of some keys in a copy, from any process of the host, and which keys the state has.

    Returns:
        The values in the order of the keys, nulls where the state has not the key; of each key whether it has it.

    Raises:
        StaleCopy: the copy is not there, not that of the mark, or damaged.
    """
    with _refused(copy.folder):
        return _look_up(_as_of(copy), keys, copy.values)


def wait_for(folder: Path, mark: CopyMark, secs: float) -> None:
    """Waits until a copy is that of a mark, where its writer is on the way there; from any process of the host.

    Raises:
        StaleCopy: it is gone or past the mark, or it was not there in time.
    """
    end = time.monotonic() + secs
    while True:
        current = _read(folder)
        found = None if current is None else current.mark
        if found == mark:
            return
        on_its_way = found is not None and found.txid < mark.txid and found.incarnation == mark.incarnation
        if not on_its_way or time.monotonic() > end:
            raise StaleCopy(f"the copy in {folder} holds something else", found=found, expected=mark)
        time.sleep(_CHECK_SECS)


@dataclass(frozen=True)
class Placed:
    """Rows in the order of their positions, and of their keys where these are equal."""

    positions: np.ndarray
    keys: pa.LargeBinaryArray
    values: pa.Table

    @classmethod
    def together(cls, parts: Sequence[Placed], schema: pa.Schema) -> Placed:
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(part.positions for part in parts)]),
            pa.concat_arrays([pa.array([], pa.large_binary()), *(part.keys for part in parts)]),
            pa.concat_tables([schema.empty_table(), *(part.values for part in parts)]).combine_chunks(),
        )

    def take(self, rows: np.ndarray) -> Placed:
        at = pa.array(rows, pa.int64())
        return Placed(self.positions[rows], self.keys.take(at), self.values.take(at))


def in_order(
    copy: CopyAsOf, first: int | None = None, below: int | None = None, shard: Shard = WHOLE
) -> Iterator[Placed]:
    """The rows of a copy with first <= position < below, least first, in pieces, from any process of the host.

    A row without a position is in no range. The caller's duty: the copy has an order; one without gives no row.

    Args:
        first, below: None: from the least one, to the greatest one.
        shard: whose groups' rows are given; a group is a key without its first column.

    Raises:
        StaleCopy: the copy is not there, not that of the mark, or damaged.
    """
    codec = RowCodec(copy.schema, copy.keys)
    with _refused(copy.folder):
        runs = _as_of(copy)
        spans = [run.span(first, below) for run in runs]
        while any(start < end for start, end in spans):
            step = _step(runs, spans, copy.values)
            if shard.count > 1:
                keys = codec.decode_keys(step.keys.to_pylist())
                step = step.take(pc.indices_nonzero(shard.of_rows(keys, copy.schema, copy.keys[1:])).to_numpy())
            yield step


def count_in_order(copy: CopyAsOf, first: int | None = None, below: int | None = None) -> int:
    """How many rows :func:`in_order` gives at most; raises as it does."""
    with _refused(copy.folder):
        return sum(end - start for start, end in (run.span(first, below) for run in _as_of(copy)))


def _step(runs: Sequence[Run], spans: list[tuple[int, int]], schema: pa.Schema) -> Placed:
    """The next rows of all runs, whose spans begin after them then."""
    # Up to the least position at which a run has so many rows: each run's rows of one position are read together.
    upto = min(run.positions[min(start + _STEP_ROWS, end) - 1] for run, (start, end) in zip(runs, spans) if start < end)
    parts = []
    for at, (run, (start, end)) in enumerate(zip(runs, spans)):
        stop = start + int(np.searchsorted(run.positions[start:end], upto, "right"))
        spans[at] = (stop, end)
        alive = run.alive(start, stop, runs[at + 1 :])
        rows, positions = run.placed[start:stop][alive], run.positions[start:stop][alive]
        order = np.argsort(rows)
        parts.append(Placed(positions[order], run.column(rows[order], 0), run.values(rows[order])))
    step = Placed.together(parts, schema)
    rows = pa.table([pa.array(step.positions), step.keys], names=["position", "key"])
    return step.take(pc.sort_indices(rows, [("position", "ascending"), ("key", "ascending")]).to_numpy())


# --- how it is kept ---------------------------------------------------------------------------------


def _unsorted(sizes: Sequence[int]) -> int:
    """From which run on one is not twice as large as all that follow it."""
    at, total = len(sizes) - 1, sizes[-1] if sizes else 0
    while at > 0 and sizes[at - 1] < 2 * total:
        at -= 1
        total += sizes[at]
    return at


def _parts(rows: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows in parts that are sorted in memory."""
    held, size = list[Rows](), 0
    for some in rows:
        held.append(some)
        size += some.nbytes
        if size > PART_BYTES:
            yield Rows.together(held)
            held, size = [], 0
    if held:
        yield Rows.together(held)


def _look_up(runs: Sequence[Run], keys: pa.LargeBinaryArray, schema: pa.Schema) -> tuple[pa.Table, np.ndarray]:
    count, hashed = len(keys), hashes(keys)
    order = np.argsort(hashed, kind="stable")
    hashed, by_hash = hashed[order], keys.take(pa.array(order))
    # The places, in that order, of keys that no run has had; of the others, where their values are in what is taken.
    left, places, taken, total = np.arange(count), np.full(count, -1, np.int64), [schema.empty_table()], 0
    for run in reversed(runs):
        if not len(left):
            break
        all_left = len(left) == count
        at = run.find(hashed if all_left else hashed[left], by_hash if all_left else by_hash.take(pa.array(left)))
        hit = at >= 0
        if hit.any():
            there = ~run.gone(at[hit])
            rows = at[hit][there]
            taken.append(run.values(rows))
            places[left[hit][there]] = np.arange(total, total + len(rows))
            total += len(rows)
            left = left[~hit]
    in_turn = np.empty(count, np.int64)
    in_turn[order] = places
    found = in_turn >= 0
    return pa.concat_tables(taken).combine_chunks().take(pa.array(in_turn, mask=~found)), found


def _read(folder: Path) -> _Current | None:
    """The list of a copy; None where it is empty."""
    for _ in range(_TRIES):
        try:
            check, text = (whole := (folder / _CURRENT).read_bytes())[:_CHECK_BYTES], whole[_CHECK_BYTES:]
            if zlib.crc32(text).to_bytes(_CHECK_BYTES, "big") != check:
                raise StaleCopy(f"the list of the copy in {folder} is damaged")
            found = msgspec.msgpack.decode(text, type=_Current)
            return found if found.folder == _inode(folder) else None
        except FileNotFoundError:
            if not folder.exists():
                raise StaleCopy(f"there is no copy in {folder}") from None
            if not os.path.islink(folder / _CURRENT):
                return None  # else it was replaced meanwhile
        except (OSError, msgspec.DecodeError) as error:
            raise StaleCopy(f"the copy in {folder} is damaged", found=error) from error
    raise StaleCopy(f"the list of the copy in {folder} is gone")


def _as_of(copy: CopyAsOf) -> list[Run]:
    """The runs of a copy, where it is that of its mark."""
    folder, mark = copy.folder, copy.mark
    for _ in range(_TRIES):
        current = _read(folder)
        if current is None or current.mark != mark:
            found = None if current is None else current.mark
            raise StaleCopy(f"the copy in {folder} holds something else", found=found, expected=mark)
        try:
            return _runs(folder, current)
        except FileNotFoundError:
            continue  # merged meanwhile: the list names another one
    raise StaleCopy(f"a file of the copy in {folder} is gone")


# The mapped runs of this process, by their paths. A mapping ends when the last one who reads it lets go of it.
_mapped: dict[Path, dict[str, Run]] = {}
_mapped_lock = threading.Lock()


def _runs(folder: Path, current: _Current) -> list[Run]:
    with _mapped_lock:
        known, runs = _mapped.get(folder, {}), {}
        for listed in current.runs:
            run = known.get(listed.name)
            runs[listed.name] = run or Run(folder, listed.name, listed.rows, listed.bytes, listed.check)
        for other in [other for other in _mapped if not other.exists()]:
            del _mapped[other]
        _mapped[folder] = runs
        return [runs[listed.name].since(listed.passed) for listed in current.runs]


def _forget(folder: Path) -> None:
    with _mapped_lock:
        _mapped.pop(folder, None)


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:  # full, damaged, gone
        raise StaleCopy(f"the copy in {folder} cannot be used", found=error) from error


def _inode(path: Path) -> str:
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def new_folder(base: Path) -> Path:
    """The folder of a copy that is to be built: no reader knows it before."""
    return base / f"{uuid.uuid4().hex}{_SUFFIX}"


def copies_in(base: Path, names: Iterable[str]) -> list[Path]:
    """The folders of copies among the names in a folder."""
    return [base / name for name in names if re.fullmatch(rf"[0-9a-f]{{32}}{re.escape(_SUFFIX)}", name)]


def is_whole(folder: Path) -> bool:
    """Tells whether a copy was filled, which its list says."""
    return os.path.lexists(folder / _CURRENT)
