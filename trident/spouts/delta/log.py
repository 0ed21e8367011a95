"""The rows that each version of a Delta table adds for a source, and the table's schema, from its log.

The log itself is read by ``trident.states.delta.delta_log``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import SourceError, TableError
from trident.coordinators.stored_json import Unreadable, parse_stored, shown
from trident.states.core.storage import Signature
from trident.states.core.tables import CHANGE_FEED, KEYS
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
        table: the table's folder, on a local disk.
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
