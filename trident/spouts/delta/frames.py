"""Rows of files of a Delta table: the one place that calls Delta's Spark classes.

There is no public way to read chosen files of a table with its partition
columns, deletion vectors and column mapping. Delta's own streaming source uses
``DeltaLog.createDataFrame``, and so does this: 5 ms for a batch of a few files,
30 ms for one of a thousand (Delta 4.4.0).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trident.coordinators.causes import first_line
from trident.coordinators.errors import SourceError, TableError
from trident.spouts.delta.log import Change
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN, HIDDEN_COLUMNS, UPTO_COLUMN
from trident.states.delta.whole_files import require_whole_log

_LOSES_ROWS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")


class DeltaFrames:
    """Reads files of one table. May be used from several threads.

    Raises:
        SourceError: the session is set to leave out files that it cannot read.
    """

    def __init__(self, spark: Any, table: str) -> None:
        for setting in _LOSES_ROWS:
            if spark.conf.get(setting, "false").lower() == "true":
                raise SourceError(
                    f"with {setting} rows of the Delta table {table} could be lost",
                    found="true",
                    expected="false",
                    action=f"set {setting} to false in the Spark session",
                )
        self._spark, self._table, self._jvm = spark, table, spark._jvm
        self._log: Any = None
        self._lock = threading.RLock()
        self._snapshots: dict[int, Any] = {}
        self._listed: tuple[int, Any] | None = None

    def sizes(self, version: int) -> list[tuple[int, int | None]]:
        """Of the live files of a version, in the order of :meth:`listed`: bytes, rows (None: not known).

        Raises:
            SourceError: the version cannot be read any more.
        """
        files = ClassicDataFrame(self._live(version).toDF(), self._spark)
        rows = (
            "CAST(get_json_object(stats, '$.numRecords') AS bigint) - coalesce(deletionVector.cardinality, 0L) AS rows"
        )
        return [(row.size, row.rows) for row in files.selectExpr("size", rows).collect()]

    def listed(self, version: int, begin: int, end: int) -> Any:
        """Some of the live files of a version, in an order that is always the same."""
        with self._lock:
            if self._listed is None or self._listed[0] != version:
                files = self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(self._live(version).collect())
                self._listed = (version, files)
            files = self._listed[1]
        if files.size() < end:
            raise SourceError(
                f"version {version} of the Delta table {self._table} has other files than a batch was planned with",
                found=f"{files.size()} files",
                expected=f"at least {end}",
            )
        return files.slice(begin, end)

    def forget_listed(self) -> None:
        """Frees the list of a version's files."""
        with self._lock:
            self._listed = None

    def parsed(self, actions: Sequence[str]) -> Any:
        """Files from their ``add`` actions."""
        kind = self._jvm.java.lang.Class.forName(
            "[Lorg.apache.spark.sql.delta.actions.AddFile;",
            True,
            self._jvm.java.lang.Thread.currentThread().getContextClassLoader(),
        )
        # One call for all of them: a call for each file would be 500 ms for a thousand.
        array = self._jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper().readValue(f"[{','.join(actions)}]", kind)
        return self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(array)

    def frame(self, files: Any, version: int) -> "DataFrame":
        """The live rows of files, with the schema of a version.

        Raises:
            SourceError: the version cannot be read any more.
        """
        java = self._delta_log().createDataFrame(self._snapshot(version), files, False, self._none())
        return ClassicDataFrame(java, self._spark)

    def changes(self, begin: int, last: int) -> "DataFrame":
        """The table's change data feed from one version to another, both inclusive.

        Raises:
            SourceError: it cannot be read.
        """
        options = {"readChangeFeed": "true", "startingVersion": str(begin), "endingVersion": str(last)}
        self._delta_log()
        try:
            found: "DataFrame" = self._spark.read.format("delta").options(**options).load(self._table)
        except Exception as error:  # Delta's, of many types
            raise SourceError(
                f"the change data feed of the Delta table {self._table} cannot be read",
                found=first_line(error),
                expected=f"the versions {begin} to {last}",
            ) from error
        return found

    def time_ms(self, version: int) -> int:
        """When a version was committed, as the change data feed has it."""
        return int(self._snapshot(version).timestamp())

    # --- Delta's objects ---------------------------------------------------------------------

    def _live(self, version: int) -> Any:
        path = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(["path"])
        return self._snapshot(version).allFiles().sort("modificationTime", path)

    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def _delta_log(self) -> Any:
        # Delta takes the thread's active session for a part of its work; a thread of the driver has none by itself.
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        with self._lock:
            if self._log is None:
                path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.io.File(self._table).toURI())
                logs = self._jvm.org.apache.spark.sql.delta.DeltaLog
                # One that Spark has kept may be of a table that was here before.
                logs.invalidateCache(self._spark._jsparkSession, path)
                self._log = logs.forTable(self._spark._jsparkSession, path)
            return self._log

    def _snapshot(self, version: int) -> Any:
        log, found = self._delta_log(), self._snapshots.get(version)
        if found is None:
            try:
                require_whole_log(self._table, version)
            except TableError as error:
                raise SourceError(error.message) from error
            try:
                found = log.getSnapshotAt(version, self._none(), self._none(), False)
            except Exception as error:  # Delta's, of many types
                raise SourceError(
                    f"version {version} of the Delta table {self._table} cannot be read",
                    found=first_line(error),
                    action="its log may have been cleaned up: begin again with `trident reset NAME`",
                ) from error
            # Two: the one that a table begins with, and the one of the last change of its schema.
            self._snapshots = {**dict(list(self._snapshots.items())[-1:]), version: found}
        return found


CHANGE_TYPE, _VERSION = "_change_type", "_commit_version"
_WAS_THERE = "__trident_was_there"
FEED_COLUMNS = (
    StructField(CHANGE_TYPE, StringType(), True),
    StructField(_VERSION, LongType(), True),
    StructField("_commit_timestamp", TimestampType(), True),
)


def shown_schema(table: StructType) -> StructType:
    """The columns of a table that a stream of its changes has: without those that are hidden in a keyed state's."""
    hidden = HIDDEN_COLUMNS if UPTO_COLUMN in table.names else ()
    return StructType([field for field in table.fields if field.name not in hidden])


def as_inserts(rows: "DataFrame", version: int, time_ms: int) -> "DataFrame":
    """The rows of a table as of a version in the form of its change data feed."""
    kind, number, moment = (field.name for field in FEED_COLUMNS)
    told = {kind: F.lit("insert"), number: F.lit(version).cast("bigint"), moment: F.timestamp_millis(F.lit(time_ms))}
    return rows.select("*", *[value.alias(name) for name, value in told.items()])


def told(rows: "DataFrame", schema: StructType, keys: Sequence[str] = ()) -> "DataFrame":
    """Changes with the wanted columns.

    Of an Upsert by a sequence a deleted key is a row of the table: here it is deleted, and nothing else is told of such
    rows.

    Args:
        keys: the table's: a key that was gone before is not told again, by another delete. Without them it is, since a
            change does not say which row it was made of.
    """
    if {UPTO_COLUMN, DELETED_COLUMN} <= set(rows.columns):
        gone, kind = F.coalesce(F.col(DELETED_COLUMN), F.lit(False)), F.col(CHANGE_TYPE)
        deletes = gone & (kind == "update_postimage")
        if keys:
            # A key is in a version once: as it was, and as it is.
            of_key = Window.partitionBy(*[F.col(backquoted(key)) for key in keys], _VERSION)
            was_there = F.max((kind == "update_preimage") & ~gone).over(of_key)
            rows = rows.withColumn(_WAS_THERE, was_there)
            deletes = deletes & F.col(_WAS_THERE)
        rows = rows.where(~gone | deletes)
        rows = rows.withColumn(CHANGE_TYPE, F.when(gone, F.lit("delete")).otherwise(kind))
    return rows.select([F.col(backquoted(name)) for name in schema.names])


def in_order(changes: "DataFrame", partitions: int) -> "DataFrame":
    """Changes version by version, in so many Spark partitions: Delta reads them by the sizes of their files."""
    if partitions == 1:
        return changes.coalesce(1).sortWithinPartitions(_VERSION)
    return changes.repartitionByRange(partitions, _VERSION).sortWithinPartitions(_VERSION)


def require_files(table: str, changes: Iterable[Change]) -> None:
    """Raises SourceError where files of changed rows are gone."""
    for change in changes:
        paths: list[str] = [] if change.rewritten is None else json.loads(change.rewritten.action)
        inside = [path for path in paths if not path.startswith("/") and "://" not in path and path[:5] != "file:"]
        gone = [path for path in inside if not storage.exists(storage.join(table, path))]
        if gone:
            raise SourceError(
                f"the changes of version {change.version} of the Delta table {table} are gone",
                found=f"no file {gone[0]}",
                expected=f"{len(paths)} files, as the version's log entry names them",
                action="a VACUUM has deleted them: let it keep more than the longest time that the topology may be "
                "stopped (delta.deletedFileRetentionDuration); then begin again with `trident reset NAME`",
            )
