"""A keyed state at fixed versions of its two tables, as DataFrames: the table, and the log rows that wait for it.

Two ways lead there. Where the files are few and on a local disk they are read
as they are; Delta would put each table version together in Spark jobs of its
own, which for a small state are most of a read's price. Else Delta reads both
tables, and skips files by their statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trident.states.core import storage
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.delta.data_files import require_whole
from trident.states.delta.delta_log import LogSnapshot
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.table_files import FEW_FILES, NotFollowed, scan
from trident.states.keyed.log_merge import live, merged, shown
from trident.states.keyed.tables import greatest_txid

# So little is read by one task: a task more, and moving rows between two, costs more than it gains.
SMALL_BYTES = 4 << 20


@dataclass(frozen=True)
class StoredFiles:
    """The files that a keyed state is read from, where these are known.

    Attributes:
        plain_root, log_root: the roots of its two tables.
        plain: all of the plain table.
        log: all with rows of the transactions ``after < txid <= upto``, in the order in which they came.
    """

    plain_root: str
    log_root: str
    plain: Sequence[LiveFile]
    log: Sequence[LiveFile]
    after: int
    upto: int

    @property
    def size(self) -> int:
        return sum(file.size for file in (*self.plain, *self.log))


@dataclass(frozen=True)
class Stored:
    """A keyed state as of one transaction, in two parts.

    Attributes:
        base: the rows of the table, as ``log_merge.table_rows`` gives them.
        rows: of the log, up to the transaction, that are not in the table; None when there are none.
        span: the transactions that these rows can be of: after the first, up to the second.
        size: bytes of the files that both are read from, None when unknown.
        files: these files, None when unknown.
    """

    state: StateDescriptor
    control: ControlRecord
    base: "DataFrame"
    rows: "DataFrame | None"
    span: tuple[int, int]
    size: int | None = None
    files: StoredFiles | None = None

    def frame(self, aggregator: Any) -> "DataFrame":
        """All keys and their values.

        Args:
            aggregator: the state's, when that is a Python combiner.

        Raises:
            ConfigError: a Python combiner is needed and was not given.
        """
        if self.rows is None:
            return shown(self.state, self.base)
        if self.is_small:
            return self.grouped(self.base, self.rows, aggregator)
        return live(self.state, self.base, self.rows, aggregator, self.span)

    def grouped(self, base: "DataFrame", rows: "DataFrame", aggregator: Any) -> "DataFrame":
        """The same of some keys, given the rows that both parts have of them: few enough to be moved."""
        if self.is_small:
            base, rows = base.coalesce(1), rows.coalesce(1)
        return shown(self.state, merged(self.state, base, rows, aggregator, self.span))

    @property
    def is_small(self) -> bool:
        return self.size is not None and self.size <= SMALL_BYTES


def plain_frame(
    spark: "SparkSession", plain: LogSnapshot, as_files: bool = False
) -> "tuple[DataFrame, list[LiveFile] | None]":
    """A plain table at its version, and its files (None where Delta chooses among them).

    Args:
        as_files: the files are read as they are also where they are many.
    """
    return _frame(spark, plain, list(plain.files.values()), as_files)


def log_frame(
    spark: "SparkSession", log: LogSnapshot, merged: int, as_files: bool = False
) -> "tuple[DataFrame, list[LiveFile] | None]":
    """A log at its version, of which only rows above ``merged`` are wanted, and files as :func:`plain_frame`."""
    return _frame(spark, log, [file for file in log.files.values() if greatest_txid(file) > merged], as_files)


def _frame(
    spark: "SparkSession", table: LogSnapshot, files: list[LiveFile], as_files: bool
) -> "tuple[DataFrame, list[LiveFile] | None]":
    if table.why_not_rows is None and (as_files or len(files) <= FEW_FILES):
        with suppress(NotFollowed):
            return scan(spark, table.path, table.schema_json, files), files
    return load_frame(spark, table), None


def load_frame(spark: "SparkSession", snapshot: LogSnapshot) -> "DataFrame":
    """A frame of exactly this version, as Delta reads it: one without it moves on to later ones when used again."""
    _require_whole_table(snapshot)
    return spark.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.path)


def _require_whole_table(snapshot: LogSnapshot) -> None:
    """Looks whether each data file of a table version has its length; not on other file systems than a local disk.

    Delta itself reads an empty file as no rows.
    """
    root = storage.local_path(snapshot.path)
    if root is not None:
        # A shallow clone names files that lie elsewhere.
        names = ((file, file.path) for file in snapshot.files.values())
        inside = [file for file, name in names if not name.startswith(("/", "file:")) and "://" not in name]
        require_whole(f"table {snapshot.path}", root, inside)
