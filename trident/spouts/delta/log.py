"""What each version of a Delta table adds, and the table's schema, from its log. Pure Python, no JVM.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ENTRY = re.compile(r"(\d{20})\.json")
# Whole, in parts, or with a unique name (a V2 checkpoint, Parquet or JSON).
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10}|\.[0-9a-f-]{36})?\.(parquet|json)")
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
        version: the table version.
        operation: as the writer named it.
        added: the files with new rows; files only moved together (OPTIMIZE) are not among them.
        removed: the path of a file whose rows were removed or rewritten, or None.
        metadata: Delta's ``metaData`` action, when there is one.
        reads_differently: whether files from here on need the table as of this version to be read.
    """

    version: int
    operation: str
    added: tuple[AddedFile, ...]
    removed: str | None
    metadata: dict[str, Any] | None
    reads_differently: bool


@dataclass(frozen=True)
class TableInfo:
    """A table as of a version.

    Attributes:
        version: the table version.
        table_id: another one after the table was dropped and created again.
        schema: without Delta's own metadata, every field nullable.
    """

    version: int
    table_id: str
    schema: "StructType"


class DeltaChanges:
    """Reads the log of one table; keeps what was read last. May be used from several threads.

    Args:
        table: the table's folder, on a local disk.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self._folder = os.path.join(table, "_delta_log")
        self._kept: OrderedDict[int, Change] = OrderedDict()
        self._kept_files = 0
        self._lock = threading.Lock()

    def exists(self, version: int) -> bool:
        return os.path.exists(self._entry(version))

    def stamp(self, version: int) -> tuple[int, int, int] | None:
        """What tells this file of the log from another one made in its place."""
        try:
            status = os.stat(self._entry(version))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def newest(self, known: int | None = None) -> int:
        """The newest version.

        Args:
            known: a version that was there: only what follows it is looked for, without listing the folder.

        Raises:
            SourceError: there is no table.
        """
        if known is None:
            entries = [int(found[1]) for name in self._names() if (found := _ENTRY.fullmatch(name))]
            if not entries:
                raise self._no_table("no version in its log")
            known = max(entries)
        while self.exists(known + 1):
            known += 1
        return known

    def checkpointed(self) -> int:
        """The version of the last checkpoint, -1 when there is none or its pointer cannot be read."""
        try:
            with open(os.path.join(self._folder, "_last_checkpoint"), encoding="utf-8") as file:
                return int(json.load(file)["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def read(self, version: int) -> Change:
        """What a version did.

        Raises:
            SourceError: its log entry is gone, or cannot be read.
        """
        with self._lock:
            found = self._kept.get(version)
            if found is not None:
                self._kept.move_to_end(version)
                return found
        change = _change(version, list(self._actions(version)), self.table)
        with self._lock:
            if version not in self._kept:
                self._kept[version] = change
                self._kept_files += 1 + len(change.added)
            while self._kept_files > _KEPT_FILES_MAX and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_files -= 1 + len(dropped.added)
        return change

    def info(self, version: int | None = None) -> TableInfo:
        """The table as of a version, by default the newest.

        Raises:
            SourceError: there is no table, or its log cannot be read.
        """
        names = self._names()
        entries = {int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))}
        if version is None:
            version = self.newest()
        checkpoints = [(int(found[1]), name) for name in names if (found := _CHECKPOINT.fullmatch(name))]
        base = max((at for at, _ in checkpoints if at <= version), default=-1)
        metadata = protocol = None
        for each in range(version, -1, -1):
            if each == base and metadata is None:
                metadata, protocol = self._of_checkpoint([name for at, name in checkpoints if at == base])
                break
            if each not in entries:
                raise self.cleaned(each, "its schema is not known")
            for action in self._actions(each):
                metadata = action.get("metaData") or metadata
                protocol = action.get("protocol") or protocol
            if metadata is not None:
                break
        if metadata is None:
            raise self._no_table("a log without metadata")
        managed = [name for name in _MANAGED if name in ((protocol or {}).get("readerFeatures") or ())]
        if managed:
            raise SourceError(
                f"the Delta table {self.table} is managed by a catalog", found=managed[0], expected="a table by path"
            )
        return TableInfo(version, str(metadata["id"]), schema_of(metadata))

    def cleaned(self, version: int, why: str) -> SourceError:
        """The error for a log entry that is needed and gone."""
        return SourceError(
            f"the log of the Delta table {self.table} has no entry for version {version}: {why}",
            found="a log that was cleaned up, or lost a file",
            expected=os.path.basename(self._entry(version)),
            action="raise delta.logRetentionDuration above the longest time that the topology may be stopped; "
            "then begin again with `trident reset NAME`, or with a later starting_version",
        )

    # --- files ------------------------------------------------------------------------------

    def _entry(self, version: int) -> str:
        return os.path.join(self._folder, f"{version:020d}.json")

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError as error:
            raise self._no_table(str(error)) from error

    def _no_table(self, found: str) -> SourceError:
        return SourceError(
            f"there is no Delta table at {self.table}",
            found=found,
            expected="a folder with a _delta_log in it",
            action="give its path; that of a table in a catalog is shown by DESCRIBE DETAIL",
        )

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        empty = True
        try:
            with open(self._entry(version), encoding="utf-8") as lines:
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
                        empty = False
        except FileNotFoundError:
            raise self.cleaned(version, "what it added is not known") from None
        except (OSError, ValueError) as error:
            raise SourceError(
                f"log entry {version} of the Delta table {self.table} cannot be read", found=error
            ) from error
        if empty:
            raise SourceError(
                f"log entry {version} of the Delta table {self.table} is empty",
                found="no action",
                expected="the actions of a commit",
                action="bring the file back from a back-up: the rows that it names would be missing without a word",
            )

    def _of_checkpoint(self, names: list[str]) -> tuple[dict | None, dict | None]:
        """The metadata and protocol of a checkpoint; of one in parts either may be in any of them."""
        import pyarrow.parquet as pq

        found: dict[str, dict | None] = {"metaData": None, "protocol": None}
        for name in sorted(names):
            file = os.path.join(self._folder, name)
            try:
                if name.endswith(".json"):
                    with open(file, encoding="utf-8") as lines:
                        rows = [json.loads(line) for line in lines if line.strip()]
                    values = {kind: [row[kind] for row in rows if row.get(kind)] for kind in found}
                else:
                    table = pq.read_table(file, columns=list(found))
                    values = {kind: table.column(kind).drop_null().to_pylist() for kind in found}
            except (OSError, ValueError, KeyError) as error:  # Arrow's errors are ValueErrors
                raise SourceError(f"the checkpoint {file} cannot be read", found=error) from error
            for kind, of_kind in values.items():
                found[kind] = of_kind[-1] if of_kind else found[kind]
        return found["metaData"], found["protocol"]


def _change(version: int, actions: list[dict[str, Any]], table: str) -> Change:
    added, removed, metadata, operation, differently = [], None, None, "", False
    try:
        for action in actions:
            for kind, body in action.items():
                if kind == "add" and body.get("dataChange", True):
                    added.append(_added(body))
                elif kind == "remove" and body.get("dataChange", True):
                    removed = removed or str(body["path"])
                elif kind == "metaData":
                    metadata, differently = body, True
                elif kind == "protocol":
                    differently = True
                elif kind == "commitInfo" and body:
                    operation = str(body.get("operation") or "")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SourceError(
            f"log entry {version} of the Delta table {table} is not as Delta's protocol says", found=repr(error)
        ) from error
    return Change(version, operation, tuple(added), removed, metadata, differently)


def _added(body: dict[str, Any]) -> AddedFile:
    statistics = body.get("stats")
    rows = json.loads(statistics).get("numRecords") if statistics else None
    vector = body.get("deletionVector")
    if rows is not None and vector:
        rows -= int(vector["cardinality"])
    action = json.dumps({key: value for key, value in body.items() if key not in ("stats", "stats_parsed", "tags")})
    return AddedFile(int(body["size"]), rows, action)


def schema_of(metadata: dict[str, Any]) -> "StructType":
    """The schema in a ``metaData`` action, its fields nullable and without Delta's own metadata."""
    from pyspark.sql.types import StructField, StructType

    schema = StructType.fromJson(json.loads(metadata["schemaString"]))
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def differences(expected: "StructType", found: "StructType", exactly: bool) -> list[str]:
    """How a table's schema differs from one that is expected of it; nullability does not count.

    Args:
        expected: the fields that are wanted.
        found: those of the table.
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
