"""Clones a version of a Delta table into another warehouse: a table of its own, whose files are the other's by link.

The clone begins with one log entry: the other table's protocol, schema and properties, an id and a control record of
its own, and the files that are live at that version. A data file never changes, so on one local file system it gets a
second name and not a byte is written; elsewhere it is copied, if the caller allows that. A file that its first table
removes (VACUUM, a log drop) loses that name alone: the clone keeps its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, TableError
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog, Facts, stored_adds
from trident.states.delta.kernel_files import LiveFile, clone_entry, live_file
from trident.states.keyed.tables import ADOPTED

LINK = faults.register("clone.file", "giving a data file a second name in a clone's folder, or copying it")
ENTRY = faults.register("clone.entry", "the first log entry of a clone")

# Features of a table whose live files, named again, are the same rows.
_FEATURES = frozenset(
    {
        *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "domainMetadata"),
        *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    }
)
_COPIED_BYTES = 1 << 20


@dataclass(frozen=True)
class LiveTable:
    """A table at one version, as its log says.

    Attributes:
        adds: the bodies of the ``add`` actions of the live files, by their path, which is not URL-encoded.
    """

    path: Place
    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    adds: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def files(self) -> list[tuple[LiveFile, Mapping[str, Any]]]:
        """The live files, each with the body of its action."""
        return [(live_file(body), body) for body in self.adds.values()]


def live_table(path: Place, version: int) -> LiveTable:
    """A table at one version.

    Raises:
        TableError: its log cannot be read back to that version, or its rows are more than the files that it names.
    """
    segment = DeltaLog(path).segment(version)
    facts = Facts.of(None)
    adds = stored_adds(facts.seen(segment.replay()))
    found = facts.at(segment.table)
    _check_plain(path, found["protocol"], adds.values())
    return LiveTable(path, version, found["protocol"], found["metadata"], adds)


def _check_plain(path: Place, protocol: Mapping[str, Any], adds: Iterable[Mapping[str, Any]]) -> None:
    features = {*(protocol.get("writerFeatures") or ()), *(protocol.get("readerFeatures") or ())} - _FEATURES
    found = ""
    if features:
        found = f"table features {', '.join(sorted(features))}"
    elif any(body.get("deletionVector") is not None for body in adds):
        found = "files of which only some rows count (deletion vectors)"
    elif any("://" in body["path"] or body["path"].startswith("/") for body in adds):
        found = "files outside of its folder, as a shallow clone has them"
    if found:
        raise TableError(
            f"table {path} cannot be cloned",
            found=found,
            expected="whole Parquet files in the table's own folder",
            action="rewrite the table's files (OPTIMIZE, or REORG … APPLY (PURGE)), and name a transaction after that",
        )


@dataclass(frozen=True)
class Clone:
    """A table that is to be made of another one's version.

    Attributes:
        source: the other table.
        target: the folder of the table to be made.
        anchor: a folder above it, which is there.
        table_id: Delta's id of the table to be made.
        control: domain → the text of its control record.
        txn: the ``txn_version`` that the table begins with, if any.
        keeps: tells of a live file whether the clone has it.
        engine_info: who makes it, in Delta's log.
    """

    source: LiveTable
    target: Place
    anchor: Place
    table_id: str
    control: Mapping[str, str]
    txn: tuple[str, int] | None
    engine_info: str
    keeps: Callable[[LiveFile], bool] = lambda file: True

    def adds(self) -> list[Mapping[str, Any]]:
        return [body for file, body in self.source.files if self.keeps(file)]

    def entry(self) -> bytes:
        """The clone's first log entry."""
        metadata = {**self.source.metadata, "id": self.table_id, "schemaString": _unadopted(self.source.metadata)}
        metadata["format"] = {"provider": "parquet", "options": {}}
        plain = {key: value for key, value in metadata.items() if value is not None}
        return clone_entry(
            {key: value for key, value in self.source.protocol.items() if value is not None},
            plain,
            self.adds(),
            self.txn,
            self.control,
            self.engine_info,
        )


def _unadopted(metadata: Mapping[str, Any]) -> str:
    """The schema; of a plain table that was adopted the rows from before are those of the clone's first version."""
    text: str = metadata["schemaString"]
    if ADOPTED not in text:
        return text
    schema = json.loads(text)
    for column in schema["fields"]:
        if ADOPTED in (column.get("metadata") or {}):
            column["metadata"] = {**column["metadata"], ADOPTED: 0}
    return json.dumps(schema)


@dataclass
class Cloned:
    """The cost of making clones.

    Attributes:
        linked: files that got a second name.
        copied: files that were written again.
        copied_bytes: of those.
        entry_bytes: of the clones' log entries.
    """

    linked: int = 0
    copied: int = 0
    copied_bytes: int = 0
    entry_bytes: int = 0


def make(clone: Clone, may_copy: bool, cost: Cloned) -> None:
    """Makes a clone; one that was begun is gone on with, and one that is whole is left as it is.

    Durable when this returns. The log entry comes last: a table is there whole, or not at all.

    Raises:
        ConfigError: a file cannot have a second name there, and copying was not allowed.
        TableError: a file of the source is gone; or another table is there.
    """
    entry = DeltaLog(clone.target).entry(0)
    if storage.exists(entry):
        _check_own(clone)
        return
    adds = clone.adds()
    paths = [unquote(body["path"]) for body in adds]
    for folder in sorted({path.rpartition("/")[0] for path in paths} | {"_delta_log"}):
        storage.make_folder(clone.target / folder if folder else clone.target, clone.anchor)
    for path, body in zip(paths, adds, strict=True):
        _take(clone.source.path / path, clone.target / path, int(body["size"]), may_copy, cost)
    data = clone.entry()
    with faults.fault_point(ENTRY):
        _flush(clone, paths)
        storage.write(entry, data)
    cost.entry_bytes += len(data)


def _check_own(clone: Clone) -> None:
    found = (DeltaLog(clone.target).commit(0).metadata or {}).get("id")
    if found != clone.table_id:
        raise TableError(
            f"another table is where a clone was to be made: {clone.target}",
            found=f"table id {found}",
            expected=clone.table_id,
            action="make the fork again, in an empty folder",
        )


def _take(source: Place, target: Place, size: int, may_copy: bool, cost: Cloned) -> None:
    with faults.fault_point(LINK):
        try:
            storage.link(source, target)
            cost.linked += 1
        except FileExistsError:
            cost.linked += 1  # by an earlier try; a copy is whole before it has this name
        except FileNotFoundError as error:
            raise _source_missing(source) from error
        except storage.CannotLink as error:
            if not may_copy:
                raise _cannot_link(source, target, error) from error
            cost.copied_bytes += _copy(source, target, size)
            cost.copied += 1


def _cannot_link(source: Place, target: Place, error: OSError) -> ConfigError:
    return ConfigError(
        f"{target.parent} cannot have the files of {source.parent} by a second name",
        found=error.strerror or str(error),
        expected="a folder on the file system of the warehouse that is forked, which has hard links",
        action="name a folder there; or give --copy, which writes every file again",
    )


def _copy(source: Place, target: Place, size: int) -> int:
    there = storage.stat_file(target)
    if there is not None and there.size == size:
        return 0
    try:
        with storage.input(source) as data:
            storage.write(target, data.read())
    except FileNotFoundError as error:
        raise _source_missing(source) from error
    return size


def _source_missing(source: Place) -> TableError:
    return TableError(
        f"a data file is gone: {source}",
        found="no such file",
        expected="a file that the table's log names as of that transaction",
        action="a VACUUM, or the topology's own log drop, has removed it: name a later transaction",
    )


def _flush(clone: Clone, paths: Sequence[str]) -> None:
    """The names of the files, and of the folders that they are in."""
    folders = {clone.target.parent, clone.target, clone.target / "_delta_log"}
    for path in paths:
        parts = path.split("/")[:-1]
        folders |= {clone.target / "/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    for folder in sorted(folders):
        if not storage.storage_for(folder).keeps_names:
            storage.flush(folder)
