"""The rows that an attempt staged for a state, from the files that its manifest names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from trident.coordinators.errors import TableError
from trident.spark.rows import parquet_reader
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.delta.whole_files import require_whole

_ACTION = (
    "replay a newer transaction: rows of a keyed state stay for snapshot_retention_txids transactions, those of an "
    "append table until another program removes their files"
)


def staged_rows(
    spark: "SparkSession",
    root: Place,
    files: Sequence[StagedFile],
    schema: StructType,
    partition_columns: Sequence[str],
) -> "DataFrame":
    """The staged rows of a table as a frame; few files.

    Args:
        root: the table's folder.
        schema: the columns that are wanted; null in one that a file does not have.

    Raises:
        TableError: a file is gone, or has another length.
    """
    require_staged(root, files)
    inside = StructType([field for field in schema.fields if field.name not in partition_columns])
    frames = []
    for values, paths in _by_partition(files):
        rows = parquet_reader(spark, inside).parquet(*(str(root / path) for path in paths))
        columns = [
            F.lit(values.get(field.name)).cast(field.dataType).alias(field.name)
            if field.name in partition_columns
            else F.col(backquoted(field.name))
            for field in schema.fields
        ]
        frames.append(rows.select(columns))
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(lambda one, other: one.union(other), frames)


def staged_table(root: Place, files: Sequence[StagedFile]) -> pa.Table | None:
    """The staged rows of a table in this process; None where no file was staged.

    A column by which the table is partitioned is of texts, as Delta has it.

    Raises:
        TableError: a file is gone, has another length or cannot be read.
    """
    require_staged(root, files)
    tables = [_read(root, file) for file in files]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def require_staged(root: Place, files: Iterable[StagedFile]) -> None:
    """Raises TableError for a staged file that is gone or has another length."""
    require_whole(f"table {root}", str(root), files, _ACTION)


def _read(root: Place, file: StagedFile) -> pa.Table:
    try:
        with storage.input(root / file.path) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read()
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"a staged file of {root} cannot be read: {file.path}", found=error) from error
    for name, text in file.partition_values.items():
        rows = rows.append_column(name, pa.array([text] * rows.num_rows, pa.string()))
    return rows


def _by_partition(files: Iterable[StagedFile]) -> Iterator[tuple[Mapping[str, str | None], list[str]]]:
    """The files with the same values of the columns by which the table is partitioned."""
    found: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in files:
        found.setdefault(tuple(sorted(file.partition_values.items())), []).append(file.path)
    for values, paths in found.items():
        yield dict(values), paths
