"""Data files as a native MERGE reads and writes them: whole, of the length that the log says, with statistics."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.delta.key_order import rows_in_a_group
from trident.states.delta.parquet_files import ParquetWriter, statistics

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
    for field in rows.schema:
        if pa.types.is_floating(field.type):
            stats["nullCount"][field.name] = rows.column(field.name).null_count
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
