"""The Delta tables of a state: schema, hidden columns, properties; and the Parquet files that are staged for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, plain
from trident.states.core.names import check_inside

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# A Parquet file that was written for a table but is not yet part of it.
#
# The one record that passes between the tasks that write files, the manifest
# that makes them durable and the commit that publishes them (docs/semantics.md 9).


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One data file, staged: complete on disk, and invisible to readers.

    Attributes:
        path: relative to the table's root, ``/`` between the parts, not URL-encoded.
        size: bytes.
        mtime_ms: modification time, milliseconds since the epoch.
        num_records: rows in the file.
        stats: Delta's statistics as JSON text (``numRecords``, ``minValues``,
            ``maxValues``, ``nullCount``). Without ``nullCount`` no reader skips
            the file, and without ``numRecords`` a count has to open it.
        partition_values: partition column -> value as Delta writes it, None for null.
    """

    path: str
    size: int
    mtime_ms: int
    num_records: int
    stats: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The file as plain JSON values, in a fixed order of keys."""
        return plain(self)

    @classmethod
    def from_json(cls, value: object) -> StagedFile:
        """Read what :meth:`to_json` gave.

        Raises:
            TableError: a key is missing, unknown or of another type; a manifest
                is never read half.
        """
        try:
            found = as_record(value, cls)
        except Unreadable as problem:
            raise TableError(f"a staged file cannot be read: {problem}", found=problem.found) from None
        check_inside("the path of a staged file", found.path)
        return found


DELETED_COLUMN = "_deleted"
TXID_COLUMN = "_txid"
UPTO_COLUMN = "_upto"
HIDDEN_COLUMNS = (TXID_COLUMN, UPTO_COLUMN, DELETED_COLUMN)
# A checkpoint costs some 125 ms of a core, a cold load over 50 commits some 40 ms: as often as the Kernel's
# maintenance makes one. Deletion vectors stay off: readers that
# do not know them refuse the table, and any Delta reader shall read it. Statistics for all columns: the
# hidden txid is the last one, and readers use those of the first 32 unless told.
CHANGE_FEED = "delta.enableChangeDataFeed"
# The names of the key columns, as JSON: in a table with the feed, whose readers tell by them what became of a key.
KEYS = "trident.keys"
PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
    "delta.dataSkippingNumIndexedCols": "-1",
}


def plain_properties(change_feed: bool, keys: Sequence[str]) -> Mapping[str, str]:
    """The properties of a keyed state's plain table."""
    return {**PROPERTIES, **feed_properties(keys)} if change_feed else PROPERTIES


def feed_properties(keys: Sequence[str]) -> Mapping[str, str]:
    """Of a plain table with a change data feed: that it has one, and the state's keys."""
    return {CHANGE_FEED: "true", KEYS: json.dumps(list(keys))}


@dataclass(frozen=True)
class TableSpec:
    """A table to be made or checked.

    Attributes:
        path: relative to the warehouse.
        schema_json: as ``StructType.json()`` gives it; all columns nullable.
        txid_column: the column that the stager fills with the txid, or None.
        sorted_by: the columns by which the stager puts each file's rows in order.
        is_log: whether it is the log of a keyed state, whose hidden columns say how its rows are to be read.
    """

    path: str
    schema_json: str
    partition_columns: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    txid_column: str | None = None
    sorted_by: Sequence[str] = ()
    is_log: bool = False

    def lacks_columns(self, found_schema_json: str) -> bool:
        """Tells whether a table with that schema could take these rows if it had a few more columns."""
        found = {column["name"]: column for column in json.loads(found_schema_json)["fields"]}
        wanted = json.loads(self.schema_json)["fields"]
        there = [column for column in wanted if column["name"] in found]
        same = all(nullable_type(found[one["name"]]["type"]) == nullable_type(one["type"]) for one in there)
        return same and len(there) < len(wanted)

    def fits(self, found_schema_json: str) -> bool:
        """Tells whether a table with that schema can take these rows: names and types are equal.

        The table may have further columns, if they are nullable; a log no hidden
        one, for a log of whole values must not be taken for one of parts.
        """
        found = {column["name"]: column for column in json.loads(found_schema_json)["fields"]}
        for column in json.loads(self.schema_json)["fields"]:
            other = found.pop(column["name"], None)
            if other is None or nullable_type(other["type"]) != nullable_type(column["type"]):
                return False
        hidden = HIDDEN_COLUMNS if self.is_log else ()
        return all(column["nullable"] and name not in hidden for name, column in found.items())


def table_schema(rows: "StructType", extra: str | None = None) -> str:
    """The schema of a table for these rows as Delta has it, with one further bigint column where it is named."""
    fields = [_asnullable_type(column.jsonValue()) for column in rows.fields]
    if extra is not None:
        fields.append({"name": extra, "type": "long", "nullable": True, "metadata": {}})
    return json.dumps({"type": "struct", "fields": fields})


def _asnullable_type(column: dict[str, Any]) -> dict[str, Any]:
    return {**column, "type": nullable_type(column["type"]), "nullable": True, "metadata": {}}


def nullable_type(kind: object) -> object:
    """A type with every nested element nullable, as a batch may hold it."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "array":
        return {**kind, "elementType": nullable_type(kind["elementType"]), "containsNull": True}
    if kind["type"] == "map":
        return {
            **kind,
            "keyType": nullable_type(kind["keyType"]),
            "valueType": nullable_type(kind["valueType"]),
            "valueContainsNull": True,
        }
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_asnullable_type(column) for column in kind["fields"]]}
    return kind
