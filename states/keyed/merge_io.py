"""Data files as a native MERGE reads and writes them: whole, of the length that the log says, with statistics."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from trident.states.core import storage
from trident.states.core.staged import StagedFile
from trident.states.delta.key_order import rows_in_a_group
from trident.states.delta.parquet_files import statistics

_BATCH_ROWS = 100_000


class FileUnreadable(Exception):
    """A data file is not there, not of its length, or cannot be read."""


@dataclass(frozen=True)
class InFile:
    """A file of a table: its path below the table's root, and its bytes."""

    path: str
    size: int


def written(root: str, folder: str, rows: pa.Table, keys: Sequence[str]) -> StagedFile:
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
        writer = pq.ParquetWriter(
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


def read(root: str, file: InFile, schema: pa.Schema) -> pa.Table:
    """All rows of a file; null in a column that it does not have."""
    opened = open_file(root, file)
    with reading(file):
        return shaped(opened.read(columns=_there(opened, schema), use_threads=False), schema)


def batches(root: str, file: InFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """As :func:`read`, piece by piece."""
    opened = open_file(root, file)
    with reading(file):
        for batch in opened.iter_batches(_BATCH_ROWS, columns=_there(opened, schema), use_threads=False):
            yield shaped(pa.Table.from_batches([batch]), schema)


def open_file(root: str, file: InFile) -> pq.ParquetFile:
    with reading(file):
        data = storage.read(storage.join(root, file.path))
        if len(data) != file.size:
            raise FileUnreadable(f"{file.path} has {len(data)} bytes, and the table's log says {file.size}")
        return pq.ParquetFile(io.BytesIO(data), coerce_int96_timestamp_unit="us")


@contextmanager
def reading(file: InFile) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise FileUnreadable(f"{file.path}: {error}") from error


def _there(opened: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    names = set(opened.schema_arrow.names)
    return [name for name in schema.names if name in names]


def shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    there = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


class Spill:
    """Rows of ranges of keys, on disk until all rows of a range are there."""

    def __init__(self, folder: str, root: str, schema: pa.Schema, parts: int) -> None:
        self._folder = folder
        storage.make_folder(folder, root)
        self._files = [storage.output(self._path(part)) for part in range(parts)]
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
            yield pa.ipc.open_stream(storage.read(self._path(part))).read_all()
            storage.delete(self._path(part))
        storage.delete(self._folder)
