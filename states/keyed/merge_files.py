"""Rewrites the files of a keyed state's plain table in which keys have changed: the work of one native MERGE.

It reads files and writes new ones; no log entry names these before the caller has committed them. A table that only
native MERGEs have written is files of key ranges, in the order of the keys, none of which overlaps another: of such a
table only the ranges are rewritten in which keys have changed. A table with other files is written anew as a whole.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN, StagedFile
from trident.states.delta.file_layout import rows_in_a_group
from trident.states.delta.parquet_files import ParquetWriter, statistics
from trident.states.keyed.merge_rows import NotInOrder, RowMerge

# How large the files of a keyed state's plain table are, and which a native MERGE rewrites together: pure.


@dataclass(frozen=True)
class Sizes:
    """How large files are made.

    A file has about one in ``files`` of the table's rows, within two bounds: small files cost readers time, large
    ones are rewritten for few rows.

    Attributes:
        rows_min, rows_max: the bounds.
        bytes_at_once: rows of the table that are about so large in memory are there at once, twice or three times while
            they are put together; a file has half of it at the most.
    """

    rows_min: int = 250_000
    rows_max: int = 1_000_000
    files: int = 32
    bytes_at_once: int = 256 << 20

    def rows_a_file(self, rows: int) -> int:
        return min(max(rows // self.files, self.rows_min), self.rows_max)

    def rows_of_each(self, rows: int, all_rows: int) -> int:
        """How many rows each file gets when some of the table's rows are written: up to half more than it should."""
        wanted = self.rows_a_file(all_rows)
        return rows if rows <= wanted * 1.5 else math.ceil(rows / round(rows / wanted))

    def is_small(self, rows: int, all_rows: int) -> bool:
        """Tells whether a file is joined to one beside it that is rewritten."""
        return rows < self.rows_a_file(all_rows) / 4


def runs(changed: Sequence[bool], small: Sequence[bool]) -> list[list[int]]:
    """Which of a table's files are rewritten together, given in the order of their keys.

    Args:
        changed: whether keys of the file's range have changed.
        small: whether the file is joined to one beside it that is rewritten.

    Returns:
        the places of files that lie side by side, a list for each run.
    """
    taken = list(changed)
    for places in (range(1, len(taken)), range(len(taken) - 2, -1, -1)):
        for at in places:
            neighbour = at - 1 if places.step > 0 else at + 1
            taken[at] = taken[at] or (small[at] and taken[neighbour])
    found: list[list[int]] = []
    for at, chosen in enumerate(taken):
        if chosen and at and taken[at - 1]:
            found[-1].append(at)
        elif chosen:
            found.append([at])
    return found


# Data files as a native MERGE reads and writes them: whole, of the length that the log says, with statistics.


# So many rows at the most are read at once, and so many first, which tell how large rows are in memory.
_BATCH_ROWS = 100_000
_PROBE_ROWS = 64
_BUFFER_BYTES = 1 << 20


class FileUnreadable(Exception):
    """A data file is not there, not of its length, or cannot be read."""


@dataclass(frozen=True)
class InFile:
    """A file of a table: its path below the table's root, and its bytes."""

    path: str
    size: int


def written(root: Place, folder: str, rows: pa.Table, keys: Sequence[str]) -> StagedFile:
    """Writes one file of sorted rows, durable but for its name, with statistics."""
    path = f"{folder}/part-{uuid.uuid4().hex}.snappy.parquet"
    full = storage.join(root, path)
    storage.make_folder(storage.join(root, folder), root)
    # No bounds of floats, which leave NaN out, and none by a dictionary (see parquet_files).
    bounded = [
        field.name for field in rows.schema if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))
    ]
    footer: list[pq.FileMetaData] = []
    with storage.output(full) as file:
        writer = ParquetWriter(
            file,
            rows.schema,
            compression="snappy",
            store_schema=False,
            coerce_timestamps="us",
            write_statistics=bounded,
            # Values that all differ gain nothing by a dictionary.
            use_dictionary=[name for name in bounded if [name] != list(keys)],
            metadata_collector=footer,
        )
        writer.write_table(rows, row_group_size=rows_in_a_group(rows.num_rows))
        writer.close()
    found = storage.stat(full)
    assert found is not None, "it is closed and was not deleted"
    stats = statistics(footer[0])
    for column in rows.schema:
        if pa.types.is_floating(column.type):
            stats["nullCount"][column.name] = rows.column(column.name).null_count
    return StagedFile(path, found.size, found.mtime_ns // 1_000_000, rows.num_rows, json.dumps(stats))


def batches(root: Place, file: InFile, schema: pa.Schema, bytes_max: int) -> Iterator[pa.Table]:
    """All rows of a file, piece by piece; null in a column that it does not have.

    Args:
        bytes_max: a piece has about so many bytes in memory at the most, whatever it has in the file: a text that each
            row repeats is there once in a file.
    """
    with opened(root, file) as source, reading(file):
        there = _there(source, schema)
        for groups in _lots(source.metadata):
            rows = min(_rows_at_once(source, groups[0], there, bytes_max), _BATCH_ROWS)
            for batch in source.iter_batches(rows, row_groups=groups, columns=there, use_threads=False):
                yield shaped(pa.Table.from_batches([batch]), schema)


def _lots(footer: pq.FileMetaData) -> list[list[int]]:
    """Row groups side by side, of as many rows as are read at once, or one of more."""
    found: list[list[int]] = []
    rows = 0
    for group in range(footer.num_row_groups):
        length = footer.row_group(group).num_rows
        rows += length
        if not found or rows > _BATCH_ROWS:
            found.append([])
            rows = length
        found[-1].append(group)
    return found


def _rows_at_once(source: pq.ParquetFile, group: int, columns: Sequence[str], bytes_max: int) -> int:
    """How many rows of a row group are that large in memory, by its first ones."""
    for batch in source.iter_batches(_PROBE_ROWS, row_groups=[group], columns=columns, use_threads=False):
        if batch.num_rows:
            return max(int(bytes_max // max(batch.nbytes / batch.num_rows, 1)), 1)
    return _BATCH_ROWS


@contextmanager
def opened(root: Place, file: InFile) -> Iterator[pq.ParquetFile]:
    """A data file of the length that the log says; little of it is in memory."""
    with reading(file):
        source = storage.input(storage.join(root, file.path))
    with source:
        with reading(file):
            size = source.seek(0, os.SEEK_END)
            if size != file.size:
                raise FileUnreadable(f"{file.path} has {size} bytes, and the table's log says {file.size}")
            found = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us")
        yield found


@contextmanager
def reading(file: InFile) -> Iterator[None]:
    """Takes an error of reading for the file's fault.

    Not so where memory was short, or Arrow lacks something: Delta's MERGE may read the file.
    """
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCapacityError, pa.ArrowNotImplementedError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise FileUnreadable(f"{file.path}: {error}") from error


def _there(source: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    names = set(source.schema_arrow.names)
    return [name for name in schema.names if name in names]


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    there = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


@contextmanager
def spill_folder(root: Place, folder: str) -> Iterator[str]:
    """A folder on this host's disk for rows that do not fit into memory: in the table's where that is on the disk.

    There the next MERGE deletes it when this process is killed; of a table in a store the system does, as of all
    temporary files.
    """
    if not root.is_local:
        with tempfile.TemporaryDirectory(prefix="trident-merge-") as found:
            yield found
        return
    found = storage.join(root, folder, "ranges")
    storage.make_folder(found, root)
    yield found
    storage.delete(found)


class Spill:
    """Rows of ranges of keys, on disk until all rows of a range are there."""

    def __init__(self, folder: str, schema: pa.Schema, parts: int) -> None:
        self._folder = folder
        self._files = [storage.output(self._path(part), durable=False) for part in range(parts)]
        self._streams = [pa.ipc.new_stream(file, schema) for file in self._files]

    def _path(self, part: int) -> str:
        return storage.join(self._folder, str(part))

    def append(self, parts: Sequence[pa.Table]) -> None:
        for stream, rows in zip(self._streams, parts, strict=True):
            if rows.num_rows:
                stream.write_table(rows)

    def tables(self) -> Iterator[pa.Table]:
        """The rows of each range; they are gone behind it."""
        for stream, file in zip(self._streams, self._files, strict=True):
            stream.close()
            file.close()
        for part in range(len(self._files)):
            with storage.input(self._path(part)) as file:
                rows = pa.ipc.open_stream(file).read_all()
            yield rows
            del rows
            storage.delete(self._path(part))


# The rows that a native MERGE changes, before and after, for the change data feed of a keyed state's plain table.
#
# As Delta's protocol has them: the table's rows, with the kind of their change in a column of their own.


CHANGE_TYPE = "_change_type"
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
# The folder that Delta gives such files; VACUUM cleans it.
CHANGES_FOLDER = "_change_data"


def change_schema(merge: RowMerge) -> pa.Schema:
    return pa.schema([*merge.table_schema, pa.field(CHANGE_TYPE, pa.string())])


def changed_rows(merge: RowMerge, before: pa.Table, after: pa.Table, upto: int) -> pa.Table:
    """The changes between the rows of a range of keys before a MERGE and behind it.

    Args:
        before, after: with one row per key.
        upto: of the MERGE: each row that it wrote has it.
    """
    size, keys = before.num_rows, list(merge.keys)
    both = pa.concat_tables([before.select(keys), after.select(keys)])
    rows = size + after.num_rows
    order = np.asarray(merge.order(both), np.int64) if keys else np.arange(rows)
    begins = merge.begins(both.take(pa.array(order)) if keys else both, rows)
    # The order is stable: of two rows with one key the first is the one before.
    second = np.flatnonzero(~begins)
    ours = after.column(UPTO_COLUMN).to_numpy() == upto
    old, new = order[second - 1], order[second] - size
    was, becomes = np.ones(size, bool), np.ones(after.num_rows, bool)
    was[old], becomes[new] = False, False
    places = [np.flatnonzero(was), old[ours[new]], new[ours[new]] + size, np.flatnonzero(becomes) + size]
    kinds = np.repeat([DELETE, BEFORE, AFTER, INSERT], [len(some) for some in places])
    found = pa.concat_tables([before, after]).take(pa.array(np.concatenate(places)))
    return found.append_column(pa.field(CHANGE_TYPE, pa.string()), pa.array(kinds, pa.string()))


class ChangeWriter:
    """Writes the changes of one MERGE.

    Args:
        folder: for the files, below the root of the plain table; "": none are written.
        bytes_max: a file is written when so many are in memory.
    """

    def __init__(self, merge: RowMerge, plain: Place, folder: str, upto: int, bytes_max: int) -> None:
        self._merge, self._plain, self._folder, self._upto = merge, plain, folder, upto
        self._bytes_max = bytes_max
        self._waiting = change_schema(merge).empty_table()
        self._files: list[StagedFile] = []

    def append(self, before: pa.Table, after: pa.Table) -> None:
        """The rows of a range of keys, before and after."""
        if not self._folder:
            return
        self._waiting = pa.concat_tables([self._waiting, changed_rows(self._merge, before, after, self._upto)])
        if self._waiting.nbytes > self._bytes_max:
            self._write()

    def finish(self) -> list[StagedFile]:
        """The files; at least one, or readers would take all rows of the files for changed."""
        if self._folder and (self._waiting.num_rows or not self._files):
            self._write()
        return self._files

    def _write(self) -> None:
        rows, self._waiting = self._waiting, self._waiting.schema.empty_table()
        self._files.append(written(self._plain, self._folder, rows, self._merge.keys))


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
class _TableScan:
    """The result of reading a table once.

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
        # Copies: a slice would hold its whole row group. And not by Python, which has not all texts and dates.
        return _Bounds(first.take([0]), last.take([last.num_rows - 1]), rows)

    # --- any other ------------------------------------------------------------------------------------------

    def _as_a_whole(self, job: MergeJob, new: pa.Table) -> _Rewritten:
        """Writes the whole table in the order of its keys."""
        found = self._scanned(job)
        count = found.rows + new.num_rows
        writer, changes = _Writer(job, self._sizes, count, count, self._is_wanted), self._changes(job)
        for base, part in self._parts(job, found, new):
            rows = job.merge.overlaid(base, part, job.after, job.upto)
            changes.append(base, rows)
            writer.append(rows)
        done, replaced = writer.finish(), [file.path for file in job.files]
        return _Rewritten(done, replaced, changes.finish() if done or replaced else [])

    def _parts(self, job: MergeJob, found: _TableScan, new: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
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

    def _scanned(self, job: MergeJob) -> _TableScan:
        """Reads the table once: all of its rows if they may be in memory at once, else keys of them here and there."""
        found = _TableScan([], 0, 0, [])
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

    def _even_bounds(self, job: MergeJob, found: _TableScan) -> pa.Table:
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
