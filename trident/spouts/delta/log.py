"""The rows that each version of a Delta table adds for a source, and the table's schema, from its log.

The log itself is read by ``trident.states.delta.log_entries``.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import SourceError, TableError
from trident.coordinators.stored_json import Unreadable, parse_stored, shown
from trident.states.core import storage
from trident.states.core.storage import Signature
from trident.states.core.tables import CHANGE_FEED, KEYS
from trident.states.delta.log_entries import (
    entry_of,
    entry_signature,
    last_checkpoint,
    metadata_at,
    read_actions,
    versions_of,
)

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
        metadata: Delta's ``metaData`` action, when there is one.
        reads_differently: whether files from here on need the table as of this version to be read.
    """

    version: int
    operation: str
    added: tuple[AddedFile, ...]
    removed: str | None
    metadata: dict[str, Any] | None
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
        self.table = table
        self._kept: OrderedDict[int, Change] = OrderedDict()
        self._kept_files = 0
        self._lock = threading.Lock()

    def exists(self, version: int) -> bool:
        return storage.exists(entry_of(self.table, version))

    def stamp(self, version: int) -> Signature | None:
        """Returns what tells this file of the log from another one made in its place."""
        try:
            return entry_signature(self.table, version)
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
                entries = versions_of(self.table)
            except TableError as error:
                raise self._no_table(error.message) from error
            if not entries:
                raise self._no_table("no version in its log")
            known = entries[-1]
        while self.exists(known + 1):
            known += 1
        return known

    def checkpointed(self) -> int:
        """The version of the last checkpoint, -1 when there is none or its pointer cannot be read."""
        try:
            return int((last_checkpoint(self.table) or {"version": -1})["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def read(self, version: int) -> Change:
        """Returns what a version did.

        Raises:
            SourceError: its log entry is gone, or cannot be read.
        """
        with self._lock:
            found = self._kept.get(version)
            if found is not None:
                self._kept.move_to_end(version)
                return found
        change = _change(version, self._actions(version), self.table)
        with self._lock:
            if version not in self._kept:
                self._kept[version] = change
                self._kept_files += 1 + len(change.added)
            while self._kept_files > _KEPT_FILES_MAX and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_files -= 1 + len(dropped.added)
        return change

    def info(self, version: int | None = None) -> TableInfo:
        """The table as of a version, by default the newest."""
        if version is None:
            version = self.newest()
        try:
            found = metadata_at(self.table, version)
        except TableError as error:
            raise SourceError(error.message) from error
        if found is None:
            for each in range(version, -1, -1):
                if not self.exists(each):
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

    def _actions(self, version: int) -> list[dict[str, Any]]:
        try:
            return read_actions(self.table, version)
        except TableError as error:
            if not self.exists(version):
                raise self.cleaned(version, "the rows that it added are not known") from None
            raise SourceError(error.message) from error


def _change(version: int, actions: list[dict[str, Any]], table: str) -> Change:
    added, removed, metadata, operation, differently = [], None, None, "", False
    moved: list[dict[str, Any]] = []  # files with changed rows
    listed: list[dict[str, Any]] = []  # files of changed rows, instead of those
    try:
        for action in actions:
            for kind, body in action.items():
                if kind == "add" and body.get("dataChange", True):
                    added.append(_added(body))
                    moved.append(body)
                elif kind == "remove" and body.get("dataChange", True):
                    removed = removed or str(body["path"])
                    moved.append(body)
                elif kind == "cdc":
                    listed.append(body)
                elif kind == "metaData":
                    metadata, differently = body, True
                elif kind == "protocol":
                    differently = True
                elif kind == "commitInfo" and body:
                    operation = str(body.get("operation") or "")
        rewritten = _rewritten(listed or moved)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SourceError(
            f"log entry {version} of the Delta table {table} is not as Delta's protocol says", found=repr(error)
        ) from error
    return Change(version, operation, tuple(added), removed, metadata, differently, rewritten)


def _rewritten(files: list[dict[str, Any]]) -> AddedFile | None:
    if not files:
        return None
    paths = [unquote(str(file["path"])) for file in files]
    return AddedFile(sum(int(file.get("size") or 0) for file in files), None, json.dumps(paths))


def _added(body: dict[str, Any]) -> AddedFile:
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
