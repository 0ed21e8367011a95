"""The rows of a batch between its two halves: as files that the early part has staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.planning.operation import Fields
from trident.running.late_choice import SMALL_BYTES
from trident.spark.rows import parquet_reader
from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget
from trident.states.delta.whole_files import require_whole
from trident.workers.late_pass import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Staged = Mapping[str, Sequence[StagedFile]]


@dataclass(frozen=True)
class StagedBoundary:
    """Where rows pass from early to late operations.

    Attributes:
        root: the folder that its files' paths are relative to.
    """

    name: str
    root: Place
    fields: Fields

    @cached_property
    def schema(self) -> pa.Schema:
        """That of its rows; times are instants in UTC."""
        return to_arrow_schema(StructType(list(self.fields)), timezone="UTC")

    def paths(self, files: Iterable[StagedFile]) -> list[str]:
        """The paths of its files, in the order of the batch.

        Raises:
            TableError: one is gone or not whole.
        """
        files = list(files)
        where = "a batch between its two halves"
        require_whole(where, str(self.root), files, "the batch is tried again; check the disk")
        return [str(self.root / file.path) for file in files]

    def rows(self, files: Sequence[StagedFile]) -> pa.Table:
        """Its rows in this process, in the order of the batch.

        Raises:
            TableError: a file is gone or not whole.
        """
        return rows_of(self.paths(files), self.schema)

    def frame(self, spark: "SparkSession", files: Sequence[StagedFile], ordered: bool) -> "DataFrame":
        """Its rows in Spark; few of them are one Spark partition.

        Args:
            ordered: whether they are to be in the order of the batch.

        Raises:
            TableError: a file is gone or not whole.
        """
        schema = StructType(list(self.fields))
        if not files:
            return spark.createDataFrame([], schema)
        reader, paths = parquet_reader(spark, schema), self.paths(files)
        if ordered and len(paths) > 1:
            # Spark would sort the files by size; their order is that of the batch.
            frame = reduce(lambda a, b: a.union(b), [reader.parquet(path).coalesce(1) for path in paths])
        else:
            frame = reader.parquet(*paths)
        return frame.coalesce(1) if bytes_of(files) <= SMALL_BYTES else frame


@dataclass(frozen=True)
class Staging:
    """Where the rows of a group's batches are staged.

    Attributes:
        boundaries: between its parts.
        early, late: the states of which each part stages rows.
    """

    boundaries: Sequence[StagedBoundary]
    early: Sequence[StagingTarget]
    late: Sequence[StagingTarget]
    incarnation: str
    codec: str


def bytes_of(files: Iterable[StagedFile]) -> int:
    return sum(file.size for file in files)
