"""The rows that each version of a Delta table adds for a source, and the table's schema, from its log.

The log itself is read by ``trident.states.delta.delta_log``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trident.coordinators.errors import SourceError, TableError
from trident.coordinators.stored_json import Unreadable, parse_stored, shown
from trident.coordinators.tracebacks import first_line
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.storage import Signature
from trident.states.core.tables import CHANGE_FEED, DELETED_COLUMN, HIDDEN_COLUMNS, KEYS, UPTO_COLUMN
from trident.states.delta.data_files import require_whole_log
from trident.states.delta.delta_log import DeltaLog, TableCommit, by_protocol

# Tables of which commits may be elsewhere than in the log folder.
_MANAGED = ("catalogManaged", "catalogOwned-preview")
# Files described by versions that are kept in memory.
_KEPT_FILES_MAX = 100_000


@dataclass(frozen=True)
class AddedFile:
    """A file that a version adds.

    Attributes:
        size: bytes.
        rows: live ones; None when the writer did not say.
        action: Delta's ``add`` as JSON, without statistics.
    """

    size: int
    rows: int | None
    action: str


@dataclass(frozen=True)
class Change:
    """One version, as far as rows are concerned.

    Attributes:
        added: the files with new rows; files only moved together (OPTIMIZE) are not among them.
        removed: the path of a file whose rows were removed or rewritten, or None.
        rewritten: the changed rows as one unit, as the change data feed has them; None: no row is changed. Its action
            is the JSON list of the files that these are in, below the table's folder.
        metadata: the table's from here on, when the version sets it.
        reads_differently: whether files from here on need the table as of this version to be read.
    """

    version: int
    operation: str
    added: tuple[AddedFile, ...]
    removed: str | None
    metadata: Mapping[str, Any] | None
    reads_differently: bool
    rewritten: AddedFile | None = None


@dataclass(frozen=True)
class TableInfo:
    """A table as of a version.

    Attributes:
        table_id: another one after the table was dropped and created again.
        schema: without Delta's own metadata, every field nullable.
        change_feed: whether its versions from here on have their changes written down.
        keys: of a keyed state's table with such a feed the names of its key columns; none: they are not known.
    """

    version: int
    table_id: str
    schema: "StructType"
    change_feed: bool = False
    keys: tuple[str, ...] = ()


class DeltaChanges:
    """Reads the log of one table; keeps what was read last. May be used from several threads.

    Args:
        table: the table's folder.
    """

    def __init__(self, table: str) -> None:
        self.table, self._log = table, DeltaLog(table)
        self._kept: dict[int, Change] = {}  # the one that was not asked for longest is the first
        self._kept_files = 0
        self._lock = threading.Lock()

    def stamp(self, version: int) -> Signature | None:
        """Returns what tells this file of the log from another one made in its place."""
        try:
            return self._log.signature(version)
        except OSError:
            return None

    def newest(self, known: int | None = None) -> int:
        """The newest version.

        Args:
            known: a version that was there: only what follows it is looked for, without listing the folder.

        Raises:
            SourceError: there is no table.
        """
        if known is None:
            try:
                known = max(self._log.versions(), default=None)
            except TableError as error:
                raise self._no_table(error.message) from error
            if known is None:
                raise self._no_table("no version in its log")
        while self._log.signature(known + 1) is not None:
            known += 1
        return known

    def checkpointed(self) -> int:
        """The version of the last checkpoint, -1 when there is none or its pointer cannot be read."""
        try:
            return int((self._log.last_checkpoint() or {"version": -1})["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def read(self, version: int) -> Change:
        """Returns what a version did.

        Raises:
            SourceError: its log entry is gone, or cannot be read.
        """
        with self._lock:
            change = self._kept.pop(version, None)
            if change is None:
                change = self._read(version)
                self._kept_files += 1 + len(change.added)
            self._kept[version] = change
            while self._kept_files > _KEPT_FILES_MAX and len(self._kept) > 1:
                dropped = self._kept.pop(next(iter(self._kept)))
                self._kept_files -= 1 + len(dropped.added)
            return change

    def _read(self, version: int) -> Change:
        try:
            commit = self._log.commit(version)
            with by_protocol(f"log entry {version} of table {self.table}"):
                return _change(commit)
        except TableError as error:
            if self._log.signature(version) is None:
                raise self.cleaned(version, "the rows that it added are not known") from None
            raise SourceError(error.message) from error

    def info(self, version: int | None = None) -> TableInfo:
        """The table as of a version, by default the newest."""
        if version is None:
            version = self.newest()
        try:
            found = self._log.described(version)
        except TableError as error:
            raise SourceError(error.message) from error
        if found is None:
            for each in range(version, -1, -1):
                if self._log.signature(each) is None:
                    raise self.cleaned(each, "its schema is not known")
            raise self._no_table("a log without metadata")
        managed = [name for name in _MANAGED if name in ((found.protocol or {}).get("readerFeatures") or ())]
        if managed:
            raise SourceError(
                f"the Delta table {self.table} is managed by a catalog", found=managed[0], expected="a table by path"
            )
        metadata = found.metadata
        keys = _keys_of(metadata, self.table)
        return TableInfo(version, str(metadata["id"]), schema_of(metadata), has_feed(metadata), keys)

    def cleaned(self, version: int, why: str) -> SourceError:
        """The error for a log entry that is needed and gone."""
        return SourceError(
            f"the log of the Delta table {self.table} has no entry for version {version}: {why}",
            found="a log that was cleaned up, or lost a file",
            expected=f"{version:020d}.json",
            action="raise delta.logRetentionDuration above the longest time that the topology may be stopped; "
            "then begin again with `trident reset NAME`, or with a later starting_version",
        )

    def _no_table(self, found: str) -> SourceError:
        return SourceError(
            f"there is no Delta table at {self.table}",
            found=found,
            expected="a folder with a _delta_log in it",
            action="give its path; that of a table in a catalog is shown by DESCRIBE DETAIL",
        )


def _change(commit: TableCommit) -> Change:
    moved = [
        (kind, body) for kind, body in commit.actions if kind in ("add", "remove") and body.get("dataChange", True)
    ]
    listed = [body for kind, body in commit.actions if kind == "cdc"]
    return Change(
        commit.version,
        commit.operation,
        tuple(_added(body) for kind, body in moved if kind == "add"),
        next((str(body["path"]) for kind, body in moved if kind == "remove"), None),
        commit.metadata,
        commit.metadata is not None or commit.protocol is not None,
        _rewritten(listed or [body for _, body in moved]),
    )


def _rewritten(files: list[Mapping[str, Any]]) -> AddedFile | None:
    if not files:
        return None
    paths = [unquote(str(file["path"])) for file in files]
    return AddedFile(sum(int(file.get("size") or 0) for file in files), None, json.dumps(paths))


def _added(body: Mapping[str, Any]) -> AddedFile:
    statistics = body.get("stats")
    rows = json.loads(statistics).get("numRecords") if statistics else None
    vector = body.get("deletionVector")
    if rows is not None and vector:
        rows -= int(vector["cardinality"])
    action = json.dumps({key: value for key, value in body.items() if key not in ("stats", "stats_parsed", "tags")})
    return AddedFile(int(body["size"]), rows, action)


def schema_of(metadata: Mapping[str, Any]) -> "StructType":
    """The schema in a ``metaData`` action, its fields nullable and without Delta's own metadata."""
    schema = StructType.fromJson(json.loads(metadata["schemaString"]))
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def _keys_of(metadata: Mapping[str, Any], table: str) -> tuple[str, ...]:
    text = (metadata.get("configuration") or {}).get(KEYS)
    try:
        found = parse_stored(text or "[]")
    except Unreadable as problem:
        found = problem
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise SourceError(
            f"the property {KEYS} of the Delta table {table} is not as a keyed state writes it",
            found=shown(str(text)),
            expected="a JSON array of names",
            action=f"ALTER TABLE … UNSET TBLPROPERTIES ('{KEYS}'), and start the state's topology: it sets it again",
        )
    return tuple(found)


def has_feed(metadata: Mapping[str, Any]) -> bool:
    """Tells by a ``metaData`` action whether versions from there on have their changes written down."""
    return str((metadata.get("configuration") or {}).get(CHANGE_FEED)).lower() == "true"


def differences(expected: "StructType", found: "StructType", exactly: bool) -> list[str]:
    """How a table's schema differs from one that is expected of it; nullability does not count.

    Args:
        exactly: whether fields that are not wanted count.
    """
    there = {field.name: field.dataType.simpleString() for field in found.fields}
    wanted = {field.name: field.dataType.simpleString() for field in expected.fields}
    lacking = [f"no {name}" for name in wanted if name not in there]
    other = [
        f"{name} {there[name]} instead of {kind}" for name, kind in wanted.items() if there.get(name, kind) != kind
    ]
    new = [f"a new {name}" for name in there if name not in wanted] if exactly else []
    return [*lacking, *other, *new]


# Rows of files of a Delta table: the one place that calls Delta's Spark classes.
#
# There is no public way to read chosen files of a table with its partition
# columns, deletion vectors and column mapping. Delta's own streaming source uses
# ``DeltaLog.createDataFrame``, and so does this: 5 ms for a batch of a few files,
# 30 ms for one of a thousand (Delta 4.4.0).


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
                stored = "://" in self._table
                path = self._jvm.org.apache.hadoop.fs.Path(
                    self._table if stored else self._jvm.java.io.File(self._table).toURI()
                )
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
    columns = {kind: F.lit("insert"), number: F.lit(version).cast("bigint"), moment: F.timestamp_millis(F.lit(time_ms))}
    return rows.select("*", *[value.alias(name) for name, value in columns.items()])


def visible_changes(rows: "DataFrame", schema: StructType, keys: Sequence[str] = ()) -> "DataFrame":
    """Changes with the wanted columns.

    Of an Upsert by a sequence a deleted key is a row of the table: here it is deleted, and such rows give
    nothing else.

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
        there = storage.run_concurrently([partial(storage.exists, storage.join(table, path)) for path in inside])
        gone = [path for path, exists in zip(inside, there) if not exists]
        if gone:
            raise SourceError(
                f"the changes of version {change.version} of the Delta table {table} are gone",
                found=f"no file {gone[0]}",
                expected=f"{len(paths)} files, as the version's log entry names them",
                action="a VACUUM has deleted them: let it keep more than the longest time that the topology may be "
                "stopped (delta.deletedFileRetentionDuration); then begin again with `trident reset NAME`",
            )
