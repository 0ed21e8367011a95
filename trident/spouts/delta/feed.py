"""Rows of a Delta table's change data feed, and those of a keyed state's table as its readers take them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from trident.coordinators.errors import SourceError
from trident.spouts.delta.log import Change
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN, HIDDEN_COLUMNS, UPTO_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
