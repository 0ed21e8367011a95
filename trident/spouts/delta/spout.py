"""A transactional source of the rows that are added to a Delta table (docs/semantics.md 3).

`log.py` reads from the table's log what a version adds; `coordinator.py` decides
what is in each batch; `log.py` reads the files as Delta itself reads them.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Union

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spark.stores import reach, require_connector
from trident.spouts import contracts as spout_arguments
from trident.spouts.checkpoint import DELTA, SourceOffset
from trident.spouts.contracts import Emitted, Emitter, Json, SpoutContext, SpoutKind
from trident.spouts.delta.coordinator import DeltaCoordinator, Range, added_files, check_same, range_after
from trident.spouts.delta.log import (
    FEED_COLUMNS,
    DeltaChanges,
    DeltaFrames,
    as_inserts,
    differences,
    in_order,
    require_files,
    shown_schema,
    visible_changes,
)
from trident.spouts.files.reading import partitions_for
from trident.states.core.names import backquoted
from trident.states.core.place import Place
from trident.states.core.storage import STORES, reached_path
from trident.udf.types import as_schema


class DeltaSpout:
    """The rows of a Delta table, each once, in the order of its versions.

    The first batches are the table as it is when the topology first starts;
    then come the rows that each new version adds. Partition columns, deletion vectors and column
    mapping are those of Delta. OPTIMIZE and other commits that say that no row changed are passed over.

    Transactional: a batch is a range of versions and files; a version with many files may
    be cut into several batches, a file never.

    Nothing is skipped silently. These end the topology with a SourceError: a version that removes or
    rewrites rows (DELETE, UPDATE, MERGE, overwriting), unless ``ignore_changes``; a schema other than
    the one the topology was built with; a table that was dropped and created again, or restored from
    a copy; a log cleaned up, or data files vacuumed, before they were read.

    Args:
        table: the table's folder, on a file system that all processes share; or its URL in a store: ``s3a://``,
            ``hdfs://``. The schema of a table in a store is read when the topology is built, by the settings of the
            active Spark session or of ``spark-defaults.conf``; with ``schema`` it is not.
        starting_version: None begins with the whole table; a number with what that version adds;
            "latest" with the first version after the topology's first start.
        max_files: of a batch.
        ignore_changes: leave out each version that removes or rewrites rows, as a whole: the new rows in
            it too, such as those that a MERGE inserts (Structured Streaming's ``skipChangeCommits``).
        schema: a StructType or DDL text: these of the table's columns. None takes all that there are when
            the topology is built; the log is read then. With a schema the table may get further columns.
        changes: the table's change data feed in place of the rows that are added: each row that a version inserts,
            updates or deletes, with ``_change_type`` ("insert", "update_preimage", "update_postimage", "delete"),
            ``_commit_version`` and ``_commit_timestamp``. The rows that the table begins with are inserts of
            the version that was read. A batch has whole versions, at most max_files of them. The table has
            the feed from the first such version on (``DeltaMapState(…, change_feed=True)``), else, or where files of it
            are gone, the topology ends with a SourceError. Of a keyed state's table a deleted key is a "delete", and
            its hidden columns are left out (docs/cdc.md).
        max_bytes: about how many bytes a batch has at most, but at least one file.
        poll_interval_secs: least time between two looks at the log.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(
        self,
        table: Union[str, "PathLike[str]"],
        starting_version: Union[int, str, None] = None,
        max_files: int = 1_000,
        ignore_changes: bool = False,
        schema: Union[str, "StructType", None] = None,
        max_bytes: int = 1 << 30,
        poll_interval_secs: float = 0.5,
        changes: bool = False,
    ) -> None:
        usable = isinstance(table, (str, PathLike)) and str(table) and "\0" not in str(table)
        path = reached_path(str(table)) if usable else None
        if path is None:
            raise TopologyError(
                "the table of a DeltaSpout cannot be used",
                found=repr(table),
                expected=f"the path of its folder, or its URL: {', '.join(f'{scheme}://…' for scheme in STORES)}",
            )
        is_number = (
            isinstance(starting_version, int) and not isinstance(starting_version, bool) and starting_version >= 0
        )
        if not (starting_version is None or starting_version == "latest" or is_number):
            raise TopologyError(
                "starting_version is impossible", found=repr(starting_version), expected="a version, 'latest' or None"
            )
        if changes and ignore_changes:
            raise TopologyError("a DeltaSpout reads changes, or ignores them", found="changes and ignore_changes")
        for name, value in (("max_files", max_files), ("max_bytes", max_bytes)):
            spout_arguments.whole(name, value, 1)
        poll_interval_secs = spout_arguments.seconds("poll_interval_secs", poll_interval_secs)
        place = Place(path)
        self.places = () if place.is_local else (Place(place.root),)  # stores that the session has to reach for it
        self.table, self.starting_version, self.ignore_changes = path, starting_version, bool(ignore_changes)
        self.folders_of_tasks = (str(path),)  # a cluster's hosts must have it at the same path
        self.max_files, self.max_bytes, self.poll_interval_secs = max_files, max_bytes, poll_interval_secs
        self.changes = bool(changes)
        self.given_schema = None if schema is None else as_schema(schema, "DeltaSpout")
        self._schema = self.given_schema

    @property
    def output_schema(self) -> "StructType":
        """Raises SourceError when there is no such table."""
        return StructType([*self._table_schema.fields, *FEED_COLUMNS]) if self.changes else self._table_schema

    @property
    def _table_schema(self) -> "StructType":
        if self._schema is None:
            reach(self.places, SparkSession.getActiveSession())
            self._schema = self._shown(DeltaChanges(self.table).info().schema)
        return self._schema

    def _shown(self, table: "StructType") -> "StructType":
        return shown_schema(table) if self.changes and self.given_schema is None else table

    def get_coordinator(self, context: SpoutContext) -> "DeltaCoordinator":
        """Raises SourceError when the table is not there, or its schema is not the topology's."""
        self._reach(context.spark)
        return DeltaCoordinator(
            self, DeltaFrames(context.spark, self.table), context.options.get("max_spout_pending") or 3
        )

    def _reach(self, spark: SparkSession) -> None:
        reach(self.places, spark)
        for place in self.places:
            require_connector(place, spark)

    def get_emitter(self, context: SpoutContext) -> "DeltaEmitter":
        self._reach(context.spark)
        return DeltaEmitter(self, context)

    def reads_source(self, source: SourceOffset) -> bool:
        """Tells whether a source of Structured Streaming reads this table (trident.spouts.checkpoint)."""
        return source.kind == DELTA and source.value["reservoirId"] == DeltaChanges(self.table).info().table_id

    def position_after(self, source: SourceOffset, context: SpoutContext) -> Json:
        """Where the stream continues after a source's offset (trident.spouts.checkpoint)."""
        what = f"the stream {context.tx_id!r}"
        if self.changes:
            raise SourceError(
                f"{what} reads the change data feed of {self.table}, and a checkpoint does not say that its query did",
                found="changes=True",
                expected="a DeltaSpout of the rows that are added",
                action="start a stream of changes without `trident migrate`, with starting_version=N: the version "
                "after the last one that the query read",
            )
        return range_after(source, str(self.table), self.ignore_changes, what).to_json()

    def check_schema(self, found: "StructType", version: int) -> None:
        """Raises SourceError when the table's schema is not the one that the topology was built with."""
        wrong = differences(self._table_schema, self._shown(found), exactly=self.given_schema is None)
        if wrong:
            raise SourceError(
                f"the schema of the Delta table {self.table} is another one since version {version}",
                found=", ".join(wrong)[:500],
                expected=self._table_schema.simpleString()[:500],
                action="build the topology anew, with the schema that the table has now; or give the spout a schema",
            )


class DeltaEmitter(Emitter):
    """Turns ranges of files into DataFrames."""

    def __init__(self, spout: DeltaSpout, context: SpoutContext) -> None:
        self._spout, self._spark = spout, context.spark
        self._log = DeltaChanges(spout.table)
        self._frames = DeltaFrames(context.spark, spout.table)
        info = self._log.info()
        spout.check_schema(info.schema, info.version)
        self._table_id, self._read_at = info.table_id, info.version
        self._cores = max(1, context.spark.sparkContext.defaultParallelism)

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The rows of a range.

        Raises:
            SourceError: they cannot be read as they were planned.
        """
        planned = Range.read(metadata)
        check_same(self._table_id, planned.table_id, self._spout.table)
        if not planned.files:
            return Emitted([], partitions=1)
        frame: "DataFrame"
        if planned.changes:
            return self._emit_changes(planned)
        frame = self._frames.frame(self._files(planned), max(planned.read_at, self._read_at))
        if self._spout.given_schema is not None:
            frame = frame.select([frame[backquoted(name)] for name in self._spout.output_schema.names])
        rows = planned.rows if planned.rows >= 0 else None
        return Emitted(frame, partitions=partitions_for(planned.bytes, self._cores), rows=rows)

    def _emit_changes(self, planned: Range) -> Emitted:
        begin, last = planned.begin.version, planned.end.version - 1
        partitions, schema = partitions_for(planned.bytes, self._cores), self._spout.output_schema
        if begin == planned.snapshot:
            rows = self._frames.frame(self._files(planned), max(planned.read_at, self._read_at))
            return Emitted(
                visible_changes(as_inserts(rows, begin, self._frames.time_ms(begin)), schema), partitions=partitions
            )
        self._frames.forget_listed()
        require_files(self._spout.table, (self._log.read(version) for version in range(begin, last + 1)))
        changes = visible_changes(self._frames.changes(begin, last), schema, planned.keys)
        return Emitted(in_order(changes, partitions) if begin < last else changes, partitions=partitions)

    def _files(self, planned: Range) -> Any:
        begin, end = planned.begin, planned.end
        if begin.version == planned.snapshot:
            last = end.file if end.version == begin.version else begin.file + planned.files
            return self._frames.listed(begin.version, begin.file, last)
        self._frames.forget_listed()
        actions: list[str] = []
        for version in range(begin.version, end.version + (1 if end.file else 0)):
            files = added_files(self._log.read(version), planned.ignore_changes, self._spout.table)
            first = begin.file if version == begin.version else 0
            actions += [one.action for one in files[first : end.file if version == end.version else None]]
        if len(actions) != planned.files:
            raise SourceError(
                f"the log of the Delta table {self._spout.table} is not the one that the batch was planned with",
                found=f"{len(actions)} files",
                expected=f"{planned.files} files",
                action="bring back its log, or begin again with `trident reset NAME`",
            )
        return self._frames.parsed(actions)
