"""Delta tables as of a version, from their log alone: no JVM; and the port that these share with Kernel's snapshots.

Reads what Delta's protocol says of a log: the newest checkpoint, of every kind, and the entries behind it. A table that
was read before is brought on from there: an entry never changes. Of tables whose rows ask more of a reader than their
files (deletion vectors, mapped columns) :meth:`LogSnapshot.why_not_rows` says so.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.states.core.storage import Signature
from trident.states.delta import log_entries
from trident.states.delta.checkpoints import newest_checkpoint
from trident.states.delta.kernel_errors import TableMissing
from trident.states.delta.kernel_files import LiveFile, live_file

# Features of a table that leave its data files plain Parquet, or that show in its live files or its properties.
_READABLE = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_TABLES_MAX = 256


class TableAsOf(Protocol):
    """A Delta table as of one table version, as those who only read it need it. See ``kernel.TableSnapshot``."""

    @property
    def path(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def schema_json(self) -> str: ...

    def control(self, domain: str) -> str | None: ...

    def txn_version(self, app: str) -> int | None: ...


Snapshot = TypeVar("Snapshot", bound=TableAsOf)
_Given = TypeVar("_Given", bound=TableAsOf, covariant=True)


class Tables(Protocol[_Given]):
    """Looks at tables: Delta's Kernel, or :class:`LogTables`."""

    def load(self, path: str) -> _Given:
        """The newest table version. Raises TableMissing where there is no table."""

    def load_version(self, path: str, version: int) -> _Given: ...


@dataclass(frozen=True)
class LogSnapshot:
    """A Delta table as of one table version, from its log.

    Attributes:
        entry: the signature of the version's log entry.
        files: path → file.
        vectors: paths of the files of which only some rows count.
    """

    path: str
    version: int
    entry: Signature
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    domains: Mapping[str, str]
    txns: Mapping[str, int]
    files: Mapping[str, LiveFile]
    vectors: frozenset[str]

    @property
    def schema_json(self) -> str:
        found: str = self.metadata["schemaString"]
        return found

    def control(self, domain: str) -> str | None:
        return self.domains.get(domain)

    def txn_version(self, app: str) -> int | None:
        return self.txns.get(app)

    @property
    def why_not_rows(self) -> str | None:
        """Tells why the rows are not those of the live Parquet files, by their names; None where they are."""
        features = set(self.protocol.get("readerFeatures") or ()) - _READABLE
        if features or self.protocol.get("minReaderVersion", 1) > 3:
            return f"table features that a reader must know: {', '.join(sorted(features)) or self.protocol}"
        if dict(self.metadata.get("configuration") or ()).get("delta.columnMapping.mode", "none") != "none":
            return "columns that have other names in the files (column mapping)"
        if self.metadata.get("partitionColumns"):
            return "columns that are not in the files (the table is partitioned)"
        return "files of which only some rows count (deletion vectors)" if self.vectors else None


class LogTables:
    """Reads tables by their logs, and remembers the newest version that it has seen of each.

    May be used by several threads.
    """

    def __init__(self) -> None:
        self._known: dict[str, LogSnapshot] = {}
        self._lock = threading.Lock()

    def load(self, path: str) -> LogSnapshot:
        """The newest version of a table.

        Raises:
            TableMissing: there is no table.
            TableError: its log cannot be read.
        """
        with self._lock:
            found = self._brought_on(self._known.pop(path, None)) or _read(path, None)
            self._known[path] = found  # behind all others: the one that was not asked for longest goes first
            while len(self._known) > _TABLES_MAX:
                del self._known[next(iter(self._known))]
            return found

    def load_version(self, path: str, version: int) -> LogSnapshot:
        """A version of a table.

        Raises: as :meth:`load`; TableError where what is left of the log does not reach back to it.
        """
        return _read(path, version)

    def live_files(self, snapshot: LogSnapshot) -> list[LiveFile]:
        """The data files of a table version, all of whose rows count.

        Raises:
            TableError: its rows are not those of its files.
        """
        if snapshot.why_not_rows is not None:
            raise TableError(f"table {snapshot.path} has {snapshot.why_not_rows}")
        return list(snapshot.files.values())

    def _brought_on(self, known: LogSnapshot | None) -> LogSnapshot | None:
        """The newest version behind a known one; None where the log is another one by now."""
        if known is None or log_entries.entry_signature(known.path, known.version) != known.entry:
            return None
        version = known.version
        while log_entries.entry_signature(known.path, version + 1) is not None:
            version += 1
        if version == known.version:
            return known
        facts = _Facts.of(known)
        return facts.through(known.path, known.version + 1, version)


@dataclass
class _Facts:
    """The actions of a log that count, on the way to a version."""

    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    domains: dict[str, str] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    files: dict[str, LiveFile] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, known: LogSnapshot) -> _Facts:
        return cls(
            known.metadata,
            known.protocol,
            dict(known.domains),
            dict(known.txns),
            dict(known.files),
            set(known.vectors),
        )

    def through(self, path: str, first: int, version: int) -> LogSnapshot:
        """Takes the entries from ``first`` up to a version: the table as of that."""
        for each in range(first, version + 1):
            self._take(path, each, log_entries.read_actions(path, each))
        entry = log_entries.entry_signature(path, version)
        if self.metadata is None or self.protocol is None or entry is None:
            raise TableError(f"the log of table {path} does not say what the table is", found=f"version {version}")
        return LogSnapshot(
            path,
            version,
            entry,
            self.metadata,
            self.protocol,
            self.domains,
            self.txns,
            self.files,
            frozenset(self.vectors),
        )

    def _take(self, path: str, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        try:
            removed, added = self._taken(actions)
            # A file may be removed and added again by one commit: with other statistics, or with a deletion vector.
            for file in removed:
                self.files.pop(file, None)
                self.vectors.discard(file)
            for add in added:
                self.add(add)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise TableError(
                f"log entry {version} of table {path} is not as Delta's protocol says", found=repr(error)
            ) from error

    def _taken(self, actions: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[Mapping[str, Any]]]:
        removed, added = [], []
        for action in actions:
            for kind, body in action.items():
                if body is None:
                    continue
                if kind == "add":
                    added.append(body)
                elif kind == "remove":
                    removed.append(unquote(body["path"]))
                else:
                    self.take(kind, body)
        return removed, added

    def take(self, kind: str, body: Mapping[str, Any]) -> None:
        """Takes an action that is of no file."""
        if kind == "metaData":
            self.metadata = body
        elif kind == "protocol":
            self.protocol = body
        elif kind == "txn":
            self.txns[body["appId"]] = int(body["version"])
        elif kind == "domainMetadata":
            self.domains.pop(body["domain"], None)
            if not body.get("removed"):
                self.domains[body["domain"]] = body["configuration"]

    def add(self, body: Mapping[str, Any]) -> None:
        file = live_file(json.dumps({"add": body}))
        self.files[file.path] = file
        if body.get("deletionVector") is not None:
            self.vectors.add(file.path)


def _read(path: str, version: int | None) -> LogSnapshot:
    versions = log_entries.versions_of(path) if log_entries.has_log(path) else []
    if not versions:
        raise TableMissing(f"there is no Delta table at {path}")
    wanted = versions[-1] if version is None else version
    begin, actions = newest_checkpoint(path, wanted)
    facts = _Facts()
    for kind, body in actions:
        if kind == "add":
            facts.add(body)
        else:
            facts.take(kind, body)
    return facts.through(path, begin + 1, wanted)
