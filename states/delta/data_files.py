"""The data files of a Delta table: checked to be whole, and read as rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.kernel_files import LiveFile

# Checks that the files which a Delta table names are there and whole, before their rows are used.
#
# Spark lists the files that it is given by path and leaves empty ones out
# without a word, and an empty log entry is to Delta a commit that did nothing: a
# disk that lost a file's bytes would be read as fewer rows, and a transaction
# would commit what follows from them. The log says how long each data file is,
# so one ``stat`` a file tells.
#
# Bytes that changed within a file of the right length are found by Parquet
# where they matter to its reading, and else not at all: see docs/faults.md.


class SizedFile(Protocol):
    """A file as a log entry, a manifest or a task's report names it."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


def require_whole(what: str, root: str, files: Iterable[SizedFile], action: str = "") -> None:
    """Looks whether each file is a file and has its length.

    Args:
        what: whose files these are, for the error: "table /w/counts".
        root: the folder that their paths are relative to, on a local disk.
        files: with path and size.
        action: what to do when one is not; by default to bring it back.
    """
    for file in files:
        problem: OSError | None = None
        try:
            there = storage.stat(f"{root}/{file.path}")
        except OSError as error:
            found, problem = str(error), error
        else:
            if there is not None and there.is_file and there.size == file.size:
                continue
            found = "no such file" if there is None else there.described
        # With its cause: a storage that does not answer is told from a file that is damaged.
        raise TableError(
            f"a data file of {what} is not what was written: {file.path}",
            found=found,
            expected=f"a file of {file.size} bytes",
            action=action or "bring it back from a back-up: without it rows would be missing without a word",
        ) from problem


def require_whole_log(path: str, version: int | None = None) -> None:
    """Looks whether the log entries that make a table version are all there, none of them empty.

    Delta itself takes an empty entry for a commit without actions. Entries
    below the last checkpoint are not needed, and not looked at; an empty
    checkpoint is none (Delta passes over it too). Of a version whose beginning was
    cleaned up behind a later checkpoint only what is there is looked at: Delta
    refuses it. On other file systems than a local disk this does nothing, and
    where there is no log.

    Args:
        version: the table version; None for the newest.
    """
    if storage.local_path(path) is None:
        return
    log = DeltaLog(path)
    try:
        versions, checkpoints = log.listed()
        if not (versions or checkpoints) and not has_log(path):
            return  # no table: Kernel and Spark say so
        last = max(versions, default=-1) if version is None else version
        whole = (at for at in sorted(checkpoints, reverse=True) if at <= last and log.whole_checkpoint(checkpoints[at]))
        begin = next(whole, -1)
    except (OSError, TableError):
        return  # no table, or one of which its reader will say more
    first = begin + 1
    if begin < 0 and any(at > last for at in checkpoints):
        first = min(versions, default=0)  # cleaned up behind a later checkpoint: the version's reader says so
    for each in range(first, last + 1):
        wrong = _wrong(log.entry(each))
        if wrong is not None:
            raise TableError(
                f"log entry {each} of table {path} is not what was written",
                found=wrong,
                expected=f"{each:020d}.json with the actions of a commit",
                action="bring the file back from a back-up: the rows that it names would be missing without a word",
            )


def _wrong(file: str) -> str | None:
    try:
        found = storage.stat(file)
    except OSError as error:
        return str(error)
    if found is None:
        return "no such file"
    return None if found.is_file and found.size else found.described


# The rows of a table's data files, read by pyarrow: whole files, or the row groups that can have some keys.
#
# Each file has the size that the log says, or it is not read. Which row groups are read, their bounds decide, never an
# order that the rows may have; and where a bound is missing, or may be another writer's mistake, the row group is read.


_ROWS_A_BATCH = 100_000
_FOOTERS_MAX = 1_024


class WantedRows(Protocol):
    """The rows that a reader looks for, by some columns of them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell."""

    def may_be_in(self, file: LiveFile) -> bool:
        """Tells by the log's statistics of a file; False only where it surely has none."""

    def may_be_in_group(self, group: pq.RowGroupMetaData, kinds: dict[str, pa.DataType]) -> bool:
        """Tells by the bounds of a row group.

        Args:
            kinds: the types of the file's columns.
        """

    def found_in(self, rows: pa.Table) -> pa.Array:
        """The positions of those among some rows, of which only ``columns`` are given, in the types that they have."""


def group_bounds(column: pq.ColumnChunkMetaData) -> tuple[Any, Any, bool]:
    """The least and greatest value of a column in a row group, None where they are not known; whether nulls may be."""
    stats = column.statistics
    if stats is None:
        return None, None, True
    has_nulls = not stats.has_null_count or stats.null_count > 0
    if not stats.has_min_max:
        return None, None, has_nulls
    try:
        return stats.min, stats.max, has_nulls
    except (OverflowError, ValueError, NotImplementedError):  # a time that Python has not; a text that is not UTF-8
        return None, None, has_nulls


def rows_of(root: str, files: Sequence[LiveFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of some files of a table; null in a column that a file does not have.

    Raises:
        TableError: a file is gone, has not its size, or cannot be read.
    """
    for file in files:
        with _opened(root, file) as opened:
            there = _there(opened.schema_arrow, schema.names)
            for batch in opened.iter_batches(_ROWS_A_BATCH, columns=there):
                yield _shaped(batch, schema)


def wanted_rows(root: str, files: Sequence[LiveFile], schema: pa.Schema, wanted: WantedRows) -> Iterator[pa.Table]:
    """Those rows of some files of a table that are wanted; null in a column that a file does not have.

    Raises: as :func:`rows_of`.
    """
    require_whole(f"table {root}", root, files)
    for file in files:
        if not wanted.may_be_in(file):
            continue
        with _opened(root, file) as opened:
            names = opened.schema_arrow.names
            kinds = {field.name: field.type for field in opened.schema_arrow if field.name in wanted.columns}
            telling = _there(opened.schema_arrow, wanted.columns)
            others = [name for name in schema.names if name in names and name not in telling]
            for at in range(opened.num_row_groups):
                if not wanted.may_be_in_group(opened.metadata.row_group(at), kinds):
                    continue
                keys = opened.read_row_group(at, columns=telling, use_threads=False).select(telling)
                found = wanted.found_in(_shaped_table(keys, pa.schema([schema.field(name) for name in wanted.columns])))
                if not len(found):
                    continue
                rows = keys.take(found)
                if others:
                    values = opened.read_row_group(at, columns=others, use_threads=False).take(found)
                    for name in others:
                        rows = rows.append_column(values.schema.field(name), values.column(name))
                yield _shaped_table(rows, schema)


_footers: dict[tuple[str, int], pq.FileMetaData] = {}
_footers_lock = threading.Lock()


@contextmanager
def _opened(root: str, file: LiveFile) -> Iterator[pq.ParquetFile]:
    """A data file, opened; its footer is remembered, since a file of a table never changes."""
    path = f"{root}/{file.path}"
    require_whole(f"table {root}", root, [file])
    try:
        with storage.input(path) as source:
            known = _footers.get((path, file.size))
            opened = pq.ParquetFile(source, metadata=known, coerce_int96_timestamp_unit="us")
            if known is None:
                _remember((path, file.size), opened.metadata)
            yield opened
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"a data file of table {root} cannot be read: {file.path}", found=error) from error


def _remember(key: tuple[str, int], footer: pq.FileMetaData) -> None:
    with _footers_lock:
        _footers[key] = footer
        while len(_footers) > _FOOTERS_MAX:
            del _footers[next(iter(_footers))]


def _there(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in schema.names]


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(_columns(batch, schema), schema=schema)


def _shaped_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(_columns(table, schema), schema=schema)


def _columns(rows: Any, schema: pa.Schema) -> list[Any]:
    return [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
