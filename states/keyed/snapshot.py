"""A keyed state at fixed versions of its two tables, as DataFrames: the table, and the log rows that wait for it.

Two ways lead there. Where the files are few and on a local disk they are read
as they are; Delta would put each table version together in Spark jobs of its
own, which for a small state are most of a read's price. Else Delta reads both
tables, and skips files by their statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, follow
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_tables import LogTables
from trident.states.delta.table_files import FEW_FILES, NotFollowed, scan
from trident.states.delta.whole_files import require_whole
from trident.states.keyed.log_merge import live, live_grouped, shown
from trident.states.keyed.tables import greatest_txid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
_LOGS = LogTables()
# So little is read by one task: a task more, and moving rows between two, costs more than it gains.
SMALL_BYTES = 4 << 20
# A checkpoint has the files, and for a week those that were removed.
_CHECKPOINT_ACTIONS_MAX = 2000
_LOG_ENTRIES_MAX = 200


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
        files: these files, None when unknown; they need not be given where rows are looked up by Spark alone.
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
        return live_grouped(self.state, base, rows, aggregator, self.span)

    @property
    def is_small(self) -> bool:
        return self.size is not None and self.size <= SMALL_BYTES


def plain_frame(
    spark: "SparkSession", engine: KernelEngine, plain: TableSnapshot
) -> "tuple[DataFrame, list[LiveFile] | None]":
    """A plain table at its version, and its files (None when unknown)."""
    return _frame(spark, plain, lambda: _files_of(engine, plain))


def log_frame(spark: "SparkSession", log: TableSnapshot, merged: int) -> "tuple[DataFrame, list[LiveFile] | None]":
    """A log at its version, of which only rows above ``merged`` are wanted, and files as :func:`plain_frame`."""
    return _frame(spark, log, lambda: _files_above(log, merged))


def _frame(
    spark: "SparkSession", table: TableSnapshot, files_of_it: Callable[[], list[LiveFile]]
) -> "tuple[DataFrame, list[LiveFile] | None]":
    try:
        files = files_of_it()
        return scan(spark, table.path, table.schema_json, files), files
    except NotFollowed:
        return load_frame(spark, table), None


def load_frame(spark: "SparkSession", snapshot: TableSnapshot) -> "DataFrame":
    """A frame of exactly this version, as Delta reads it: one without it moves on to later ones when used again."""
    _require_whole_table(snapshot)
    return spark.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.path)


def _require_whole_table(snapshot: TableSnapshot) -> None:
    """Looks whether each data file of a table version has its length; not on other file systems than a local disk.

    Delta itself reads an empty file as no rows. A log that only the Kernel can follow is not looked at.
    """
    root = storage.local_path(snapshot.path)
    if root is None:
        return
    try:
        found = _LOGS.load(snapshot.path)
        if found.version != snapshot.version:
            found = _LOGS.load_version(snapshot.path, snapshot.version)
    except TableError as error:
        log.debug("the files of %s are not looked at: %s", snapshot.path, error)
        return
    # A shallow clone names files that lie elsewhere.
    inside = [
        file for file in found.files.values() if not file.path.startswith(("/", "file:")) and "://" not in file.path
    ]
    require_whole(f"table {snapshot.path}", root, inside)


def _files_of(engine: KernelEngine, table: TableSnapshot) -> list[LiveFile]:
    """The files of a plain table."""
    _require_plain_files(table)
    if _actions_in_checkpoint(table.path) > _CHECKPOINT_ACTIONS_MAX:
        raise NotFollowed(f"table {table.path} may have many files")
    return _few(table.path, engine.live_files(table))


def _files_above(log: TableSnapshot, merged: int) -> list[LiveFile]:
    """The files of a log with rows that are not merged, from the entries that came with them."""
    _require_plain_files(log)
    try:
        since = history.find_version_by_control(log.path, DOMAIN, merged)
        if since is None or log.version - since > _LOG_ENTRIES_MAX:
            raise NotFollowed(f"much was committed to {log.path} since transaction {merged}")
        files = follow(DeltaLog(log.path).commits(since + 1, log.version))
    except NotFollowed:
        raise
    except TableError as error:
        raise NotFollowed(f"the log entries of {log.path} cannot be followed", found=error.message) from error
    return _few(log.path, [file for file in files.values() if greatest_txid(file) > merged])


def _few(path: str, files: list[LiveFile]) -> list[LiveFile]:
    if len(files) > FEW_FILES:
        raise NotFollowed(f"table {path} has many files", found=len(files), expected=f"at most {FEW_FILES}")
    return files


def _require_plain_files(table: TableSnapshot) -> None:
    if storage.reached_path(table.path) is None or table.properties.get("delta.enableDeletionVectors") != "false":
        raise NotFollowed(f"the files of table {table.path} are not all that there is to it")


def _actions_in_checkpoint(path: str) -> int:
    """Counts how many actions the last checkpoint has: at least as many as there were files then; 0 without one."""
    try:
        found = DeltaLog(path).last_checkpoint()
        return 0 if found is None else int(found["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return _CHECKPOINT_ACTIONS_MAX + 1
