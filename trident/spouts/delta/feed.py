"""Rows of a Delta table's change data feed, and those of a keyed state's table as its readers take them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trident.coordinators.errors import SourceError
from trident.spouts.delta.log import Change
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN, HIDDEN_COLUMNS, UPTO_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_TYPE = "_change_type"
FEED_COLUMNS = (
    StructField(CHANGE_TYPE, StringType(), True),
    StructField("_commit_version", LongType(), True),
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


def told(rows: "DataFrame", schema: StructType) -> "DataFrame":
    """Changes with the wanted columns.

    Of an Upsert by a sequence a deleted key is a row of the table: here it is deleted, once, and nothing else is told
    of such rows.
    """
    if {UPTO_COLUMN, DELETED_COLUMN} <= set(rows.columns):
        gone = F.coalesce(F.col(DELETED_COLUMN), F.lit(False))
        deletes = gone & (F.col(CHANGE_TYPE) == "update_postimage")
        rows = rows.where(~gone | deletes)
        rows = rows.withColumn(CHANGE_TYPE, F.when(gone, F.lit("delete")).otherwise(F.col(CHANGE_TYPE)))
    return rows.select([F.col(backquoted(name)) for name in schema.names])


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
