"""Rewrites the files of a keyed state's plain table in which keys have changed: the work of one native MERGE.

It reads files and writes new ones; no log entry names these before the caller has committed them. A table that only
native MERGEs have written is files of key ranges, in the order of the keys, none of which overlaps another: of such a
table only the ranges are rewritten in which keys have changed. A table with other files is written anew as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN
from trident.states.keyed.change_rows import ChangeWriter
from trident.states.keyed.merge_io import InFile, Spill, batches, opened, reading, shaped, spill_folder, written
from trident.states.keyed.merge_rows import NotInOrder, RowMerge
from trident.states.keyed.merge_sizes import Sizes, runs

# How the folders of native MERGEs are named; Delta's own writers name none so.
FOLDER = "merge-"
# Rows of the log, in memory all at once; of more Delta's MERGE is done.
_LOG_BYTES_MAX = 512 << 20
_PIECE_BYTES = 16 << 20
_BOUNDS_MAX = 10_000
# A file is written anew once more than one in so many of its rows are of deleted keys that are forgotten.
_FORGOTTEN_SHARE = 20
# So many keys for each range tell where a table is parted.
_SAMPLE = 256


class Abandoned(Exception):
    """The process that wanted the files is gone."""


class MergeFailed(Exception):
    """It failed otherwise, or is too large for one process: Delta's MERGE may do it."""


@dataclass(frozen=True)
class MergeJob:
    """One native MERGE.

    Attributes:
        merge: how rows merge.
        plain, log: the roots of the two tables, on a disk or in a store, with what reaches the store.
        files: all that the plain table has.
        log_files: with all rows of after < txid ≤ upto.
        folder: for the new files, below the root of the plain table; it is not there.
        ordered: the beginnings of the paths of files that native MERGEs have written.
        change_folder: for files of the table's change data feed; "": it has none.
    """

    merge: RowMerge
    plain: Place
    log: Place
    files: tuple[InFile, ...]
    log_files: tuple[InFile, ...]
    after: int
    upto: int
    folder: str
    ordered: tuple[str, ...]
    change_folder: str = ""

    @property
    def forgets(self) -> bool:
        """Tells whether it is the first behind which more rows of deleted keys are forgotten."""
        retention = self.merge.retention
        return retention.below(self.upto) > retention.below(self.after)


@dataclass(frozen=True)
class MergedFiles:
    """The result of a job.

    Attributes:
        written: the new files; durable, but for the names of their folders.
        replaced: the paths of the files whose rows they have.
        changes: the files of the table's change data feed, durable as the others.
        log_rows, keys: how many rows of the log were merged, of how many keys.
        secs, cpu_secs: how long it took, and of the processor's time.
    """

    written: tuple[StagedFile, ...]
    replaced: tuple[str, ...]
    log_rows: int
    keys: int
    secs: float = 0.0
    cpu_secs: float = 0.0
    changes: tuple[StagedFile, ...] = ()


@dataclass(frozen=True)
class _Bounds:
    """The first and the last key of a file in the order of keys, and how many rows it has."""

    first: pa.Table
    last: pa.Table
    rows: int


@dataclass
class _Looked:
    """The findings of a look through a table.

    Attributes:
        held: all of its rows; None where they are too large.
        rows, bytes: how many there are, and how large in memory.
        sample: keys of some of them.
    """

    held: list[pa.Table] | None
    rows: int
    bytes: int
    sample: list[pa.Table]


@dataclass
class _Rewritten:
    """Files that were written, the paths of those in whose place they are, and files of changes."""

    written: list[StagedFile] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    changes: list[StagedFile] = field(default_factory=list)


class FileMerger:
    """Does jobs, one after the other. It remembers the bounds of files, which never change.

    Args:
        is_wanted: asked before each piece of rows is read and each file is written; False ends the job.
    """

    def __init__(self, sizes: Sizes | None = None, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._sizes, self._is_wanted = sizes or Sizes(), is_wanted
        self._known: dict[str, _Bounds] = {}

    def run(self, job: MergeJob) -> MergedFiles:
        """Writes the files that take the place of some.

        Raises:
            FileUnreadable: a file of the tables cannot be read.
            NotMergeable: a value does not fit its column, or the table has a key twice.
            MergedMeanwhile: a row has transactions of this job already, or is another writer's.
            Abandoned: it is no longer wanted.
            OSError: the disk refused.
        """
        began, cpu = time.monotonic(), time.process_time()
        rows = self._log_rows(job)
        new, count = job.merge.reduced(rows), rows.num_rows
        del rows
        found = self._rewritten(job, new) if new.num_rows or job.forgets else _Rewritten()
        took = time.monotonic() - began, time.process_time() - cpu
        written, replaced, changes = tuple(found.written), tuple(found.replaced), tuple(found.changes)
        return MergedFiles(written, replaced, count, new.num_rows, *took, changes)

    def _rewritten(self, job: MergeJob, new: pa.Table) -> _Rewritten:
        if job.merge.keys and job.files and all(file.path.startswith(job.ordered) for file in job.files):
            try:
                return self._by_ranges(job, new)
            except NotInOrder:
                for folder in filter(None, (job.folder, job.change_folder)):
                    storage.delete(storage.join(job.plain, folder))
        if not new.num_rows:
            return _Rewritten()  # forgotten rows go with the next change
        return self._as_a_whole(job, new)

    def _changes(self, job: MergeJob) -> ChangeWriter:
        return ChangeWriter(job.merge, job.plain, job.change_folder, job.upto, self._sizes.bytes_at_once // 4)

    # --- a table in the order of its keys -------------------------------------------------------------------

    def _by_ranges(self, job: MergeJob, new: pa.Table) -> _Rewritten:
        """Rewrites the files whose ranges have changed; those that lie side by side together."""
        by_path = {file.path: self._bounds(job, file) for file in job.files}
        self._remember(str(job.plain), by_path)
        order = job.merge.order(pa.concat_tables([bounds.first for bounds in by_path.values()]))
        files = [job.files[at] for at in order]
        bounds = [by_path[file.path] for file in files]
        if not job.merge.are_apart([(one.first, one.last) for one in bounds]):
            raise NotInOrder
        parts = job.merge.split(new, pa.concat_tables([one.first for one in bounds]))
        total = sum(one.rows for one in bounds)
        small = [self._sizes.is_small(one.rows, total) for one in bounds]
        found, changes = _Rewritten(), self._changes(job)
        changed = [bool(part.num_rows) or self._forgets(job, file) for part, file in zip(parts, files, strict=True)]
        for run in runs(changed, small):
            rows = sum(bounds[at].rows + parts[at].num_rows for at in run)
            writer = _Writer(job, self._sizes, rows, max(total, rows), self._is_wanted)
            for at in run:
                base = self._whole(job, files[at])
                rows = job.merge.overlaid(base, parts[at], job.after, job.upto, in_order=True)
                changes.append(base, rows)
                writer.append(rows)
            found.written += writer.finish()
            found.replaced += [files[at].path for at in run]
        if found.replaced:
            found.changes += changes.finish()
        return found

    def _forgets(self, job: MergeJob, file: InFile) -> bool:
        """Tells whether so much of a file is forgotten now that it is written anew."""
        if not job.forgets:
            return False
        hidden = pa.schema([job.merge.table_schema.field(name) for name in (DELETED_COLUMN, TXID_COLUMN)])
        rows = forgotten = 0
        for piece in self._pieces(job.plain, file, hidden):
            rows += piece.num_rows
            forgotten += pc.sum(job.merge.forgotten(piece, job.upto)).as_py() or 0
        return forgotten * _FORGOTTEN_SHARE > rows

    def _remember(self, plain: str, bounds: Mapping[str, _Bounds]) -> None:
        """Keeps the bounds of a table's files, and of its own only these; at most so many of all tables."""
        others = {path: one for path, one in self._known.items() if not path.startswith(f"{plain}/")}
        self._known = dict(
            [*others.items(), *((f"{plain}/{path}", one) for path, one in bounds.items())][-_BOUNDS_MAX:]
        )

    def _whole(self, job: MergeJob, file: InFile) -> pa.Table:
        """All rows of a file that a native MERGE has written."""
        found, size = [job.merge.table_schema.empty_table()], 0
        for rows in self._pieces(job.plain, file, job.merge.table_schema):
            found.append(rows)
            size += rows.nbytes
            if size > 2 * self._sizes.bytes_at_once:
                raise NotInOrder  # a file of other sizes than these: its rows are put into smaller ones
        return pa.concat_tables(found)

    def _bounds(self, job: MergeJob, file: InFile) -> _Bounds:
        self._require_wanted()
        known = self._known.get(f"{job.plain}/{file.path}")
        if known is not None:
            return known
        keys = list(job.merge.keys)
        schema = pa.schema([job.merge.schema.field(name) for name in keys])
        with opened(job.plain, file) as source, reading(file):
            groups = source.metadata.num_row_groups
            if not groups:
                raise NotInOrder  # a file of no rows has no bounds
            first = shaped(source.read_row_group(0, columns=keys, use_threads=False), schema)
            last = shaped(source.read_row_group(groups - 1, columns=keys, use_threads=False), schema)
            rows = source.metadata.num_rows
        # Copies: a slice would hold its whole row group.
        ends = [pa.Table.from_pylist(some.to_pylist(), schema=schema) for some in (first[:1], last[-1:])]
        return _Bounds(ends[0], ends[1], rows)

    # --- any other ------------------------------------------------------------------------------------------

    def _as_a_whole(self, job: MergeJob, new: pa.Table) -> _Rewritten:
        """Writes the whole table in the order of its keys."""
        found = self._looked_through(job)
        count = found.rows + new.num_rows
        writer, changes = _Writer(job, self._sizes, count, count, self._is_wanted), self._changes(job)
        for base, part in self._parts(job, found, new):
            rows = job.merge.overlaid(base, part, job.after, job.upto)
            changes.append(base, rows)
            writer.append(rows)
        done, replaced = writer.finish(), [file.path for file in job.files]
        return _Rewritten(done, replaced, changes.finish() if done or replaced else [])

    def _parts(self, job: MergeJob, found: _Looked, new: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The table's rows with those of the log that lie over them, part by part, in the order of the keys."""
        if found.held is not None:
            yield pa.concat_tables([job.merge.table_schema.empty_table(), *found.held]), new
            return
        bounds = self._even_bounds(job, found)
        with spill_folder(job.plain, job.folder) as folder:
            spill = Spill(folder, job.merge.table_schema, bounds.num_rows)
            for file in job.files:
                for piece in self._pieces(job.plain, file, job.merge.table_schema):
                    spill.append(job.merge.split(job.merge.sorted(piece), bounds))
            for base, part in zip(spill.tables(), job.merge.split(new, bounds), strict=True):
                self._require_wanted()
                yield base, part

    def _looked_through(self, job: MergeJob) -> _Looked:
        """Reads the table once: all of its rows if they may be in memory at once, else keys of them here and there."""
        found = _Looked([], 0, 0, [])
        keys = list(job.merge.keys)
        every = max(self._sizes.bytes_at_once // (2 * _SAMPLE), 1)
        for file in job.files:
            for piece in self._pieces(job.plain, file, job.merge.table_schema):
                found.rows += piece.num_rows
                found.bytes += piece.nbytes
                if keys and found.bytes > self._sizes.bytes_at_once:
                    found.held = None
                if found.held is not None:
                    found.held.append(piece)
                if keys and piece.num_rows:
                    # By bytes, not by rows: ranges are to be about equally large.
                    count = min(math.ceil(piece.nbytes / every), piece.num_rows)
                    places = np.arange(count) * piece.num_rows // count
                    found.sample.append(piece.select(keys).take(pa.array(places)))
        return found

    def _even_bounds(self, job: MergeJob, found: _Looked) -> pa.Table:
        """Keys that part the table's rows into about equal parts, of half of what may be in memory."""
        parts = math.ceil(found.bytes / (self._sizes.bytes_at_once / 2))
        sample = job.merge.sorted(pa.concat_tables(found.sample))
        return sample.take(pa.array(np.unique(np.arange(parts) * sample.num_rows // parts)))

    # --- reading ----------------------------------------------------------------------------------------------

    def _pieces(self, root: Place, file: InFile, schema: pa.Schema) -> Iterator[pa.Table]:
        for rows in batches(root, file, schema, min(self._sizes.bytes_at_once // 8, _PIECE_BYTES)):
            self._require_wanted()
            yield rows

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise Abandoned

    def _log_rows(self, job: MergeJob) -> pa.Table:
        """The log's rows of the job's transactions, in the order of the files."""
        schema = job.merge.log_schema
        found = [schema.empty_table()]
        size = 0
        for file in job.log_files:
            for rows in self._pieces(job.log, file, schema):
                txids = rows.column(TXID_COLUMN)
                chosen = pc.and_(pc.greater(txids, job.after), pc.less_equal(txids, job.upto))
                found.append(rows if pc.all(chosen).as_py() else rows.filter(chosen))
                size += found[-1].nbytes
                if size > _LOG_BYTES_MAX:
                    raise MergeFailed(f"more than {_LOG_BYTES_MAX} bytes of rows wait in the log")
        return pa.concat_tables(found)


class _Writer:
    """Writes rows that come in the order of their keys to files of about equal length.

    Args:
        rows: at most so many will come.
        all_rows: so many the table will have, about.
    """

    def __init__(self, job: MergeJob, sizes: Sizes, rows: int, all_rows: int, is_wanted: Callable[[], bool]) -> None:
        self._job, self._is_wanted = job, is_wanted
        self._rows_max, self._bytes_max = sizes.rows_of_each(rows, all_rows), sizes.bytes_at_once // 2
        self._waiting = job.merge.table_schema.empty_table()
        self._files: list[StagedFile] = []

    def append(self, rows: pa.Table) -> None:
        self._waiting = pa.concat_tables([self._waiting, rows])
        bytes_a_row = max(self._waiting.nbytes / max(self._waiting.num_rows, 1), 1)
        length = min(self._rows_max, max(int(self._bytes_max / bytes_a_row), 1))
        # So much is kept back that the last file is no small one.
        while self._waiting.num_rows >= length * 1.25 and self._waiting.num_rows > length:
            self._write(length)

    def finish(self) -> list[StagedFile]:
        if self._waiting.num_rows:
            self._write(self._waiting.num_rows)
        return self._files

    def _write(self, length: int) -> None:
        if not self._is_wanted():
            raise Abandoned
        rows, self._waiting = self._waiting.slice(0, length), self._waiting.slice(length)
        self._files.append(written(self._job.plain, self._job.folder, rows, self._job.merge.keys))
