"""How large Delta tables are, by their logs: sums over the live files, none of which stays in memory.

For those who look at tables again and again beside a topology that runs: a table that is only added to costs them the
entries behind the look before, however many files it has.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.states.core.storage import Signature
from trident.states.delta import log_entries
from trident.states.delta.checkpoints import newest_checkpoint
from trident.states.delta.kernel_errors import TableMissing
from trident.states.delta.log_tables import LogSnapshot

_TABLES_MAX = 256


@dataclass(frozen=True)
class TableTotals:
    """A table as of its newest version, without its files; ``trident.states.delta.log_tables.TableAsOf``.

    Attributes:
        entry: the signature of the version's log entry.
        files, bytes: of the live files.
        counted: rows of the files whose statistics say how many count.
        uncounted: the number of the others.
    """

    path: str
    version: int
    entry: Signature
    schema_json: str
    domains: Mapping[str, str] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    counted: int = 0
    uncounted: int = 0

    @property
    def rows(self) -> int | None:
        """None where the log does not say."""
        return None if self.uncounted else self.counted

    def control(self, domain: str) -> str | None:
        return self.domains.get(domain)

    def txn_version(self, app: str) -> int | None:
        return self.txns.get(app)


def totals_of(snapshot: LogSnapshot) -> TableTotals:
    """The sums of a table whose files are known."""
    rows = [None if file.path in snapshot.vectors else file.num_records for file in snapshot.files.values()]
    return TableTotals(
        snapshot.path,
        snapshot.version,
        snapshot.entry,
        snapshot.schema_json,
        snapshot.domains,
        snapshot.txns,
        len(rows),
        sum(file.size for file in snapshot.files.values()),
        sum(one or 0 for one in rows),
        rows.count(None),
    )


class SizedTables:
    """Reads how large tables are, and remembers the sums of each. May be used by several threads."""

    def __init__(self) -> None:
        self._known: dict[str, TableTotals] = {}
        self._lock = threading.Lock()

    def load(self, path: str) -> TableTotals:
        """The newest version of a table.

        Raises:
            TableMissing: there is no table.
            TableError: its log cannot be read.
        """
        with self._lock:
            found = _brought_on(self._known.get(path)) or _read(path)
            self._known.pop(path, None)
            self._known[path] = found  # behind all others: the one that was not asked for longest goes first
            while len(self._known) > _TABLES_MAX:
                del self._known[next(iter(self._known))]
            return found


class _Sums:
    """The sums on the way to a version."""

    def __init__(self, known: TableTotals | None = None) -> None:
        self._schema = None if known is None else known.schema_json
        self._domains = {} if known is None else dict(known.domains)
        self._txns = {} if known is None else dict(known.txns)
        self._files, self._bytes = (0, 0) if known is None else (known.files, known.bytes)
        self._counted, self._uncounted = (0, 0) if known is None else (known.counted, known.uncounted)

    def add(self, body: Mapping[str, Any]) -> None:
        self._files += 1
        self._bytes += int(body["size"])
        stats = json.loads(body["stats"]) if body.get("stats") else {}
        rows = stats.get("numRecords") if body.get("deletionVector") is None else None
        if isinstance(rows, int):
            self._counted += rows
        else:
            self._uncounted += 1

    def take(self, kind: str, body: Mapping[str, Any]) -> None:
        """Takes an action that is of no file."""
        if kind == "metaData":
            self._schema = body["schemaString"]
        elif kind == "txn":
            self._txns[body["appId"]] = int(body["version"])
        elif kind == "domainMetadata":
            self._domains.pop(body["domain"], None)
            if not body.get("removed"):
                self._domains[body["domain"]] = body["configuration"]

    def as_of(self, path: str, version: int) -> TableTotals:
        entry = log_entries.entry_signature(path, version)
        if self._schema is None or entry is None:
            raise TableError(f"the log of table {path} does not say what the table is", found=f"version {version}")
        made = TableTotals(path, version, entry, self._schema, self._domains, self._txns)
        return replace(made, files=self._files, bytes=self._bytes, counted=self._counted, uncounted=self._uncounted)


def _brought_on(known: TableTotals | None) -> TableTotals | None:
    """The newest version behind a known one; None where the sums do not tell it: files went, or were replaced."""
    if known is None or log_entries.entry_signature(known.path, known.version) != known.entry:
        return None
    version, sums = known.version, _Sums(known)
    while log_entries.entry_signature(known.path, version + 1) is not None:
        version += 1
        for kind, body in _actions(known.path, version):
            # One that adds no rows may be of a file that is there already: with other statistics, for example.
            if kind == "remove" or (kind == "add" and not body.get("dataChange", True)):
                return None
            _take(known.path, version, sums, kind, body)
    return known if version == known.version else sums.as_of(known.path, version)


def _read(path: str) -> TableTotals:
    versions = log_entries.versions_of(path) if log_entries.has_log(path) else []
    if not versions:
        raise TableMissing(f"there is no Delta table at {path}")
    version = versions[-1]
    begin, checkpoint = newest_checkpoint(path, version)
    # Entries behind the checkpoint have the last word on a file; they are few.
    files: dict[str, Mapping[str, Any] | None] = {}
    others: list[tuple[str, Mapping[str, Any]]] = []
    for each in range(begin + 1, version + 1):
        actions = _actions(path, each)
        files |= {unquote(str(body.get("path"))): None for kind, body in actions if kind == "remove"}
        files |= {unquote(str(body.get("path"))): body for kind, body in actions if kind == "add"}
        others += [action for action in actions if action[0] not in ("add", "remove")]
    sums = _Sums()
    for kind, body in checkpoint:
        if kind != "add" or unquote(str(body.get("path"))) not in files:
            _take(path, begin, sums, kind, body)
    for kind, body in others:
        _take(path, version, sums, kind, body)
    for added in files.values():
        if added is not None:
            _take(path, version, sums, "add", added)
    return sums.as_of(path, version)


def _actions(path: str, version: int) -> list[tuple[str, Mapping[str, Any]]]:
    read: Iterable[Mapping[str, Any]] = log_entries.read_actions(path, version)
    return [(kind, body) for action in read for kind, body in action.items() if isinstance(body, Mapping)]


def _take(path: str, version: int, sums: _Sums, kind: str, body: Mapping[str, Any]) -> None:
    try:
        if kind == "add":
            sums.add(body)
        else:
            sums.take(kind, body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TableError(
            f"version {version} of table {path} is not as Delta's protocol says", found=repr(error)
        ) from error
