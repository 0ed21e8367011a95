"""The rows of a table's data files, read by pyarrow: whole files, or the row groups that can have some keys.

Each file has the size that the log says, or it is not read. Which row groups are read, their bounds decide, never an
order that the rows may have; and where a bound is missing, or may be another writer's mistake, the row group is read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.whole_files import require_whole

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
