"""A transaction as a row of the table of transactions, and the mark in that table's log that says what it has. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import ForeignTable, TableError
from trident.coordinators.records import Decision
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, shown
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.manifest import Manifest

# The name of the table of transactions, and the mark in its log that says what it has.


DOMAIN = "trident.transactions"
_SCHEMA = 1


def table_name(topology: str, group: str) -> str:
    """The folder of a batch group's table of transactions, in the warehouse."""
    return f"{topology}__{group}__transactions"


@dataclass(frozen=True)
class RecordedUpTo:
    """The table's own statement of what it has, in its log.

    Attributes:
        topology, group: whose table it is.
        incarnation: of the topology, that wrote last.
        upto: of that incarnation it has every transaction up to this one.
        generation: grows when rows are taken back: the commits behind that have an app id of their own.
    """

    topology: str
    group: str
    incarnation: str
    upto: int
    generation: int = 0

    def encode(self) -> str:
        return json.dumps({"schema": _SCHEMA, **vars(self)}, sort_keys=True)

    @classmethod
    def decode(cls, path: object, text: str | None) -> RecordedUpTo:
        """Reads what encode() gave.

        Raises:
            ForeignTable: there is none, or it cannot be read.
        """
        try:
            return as_record(parse_stored(text or "null"), cls, _SCHEMA)
        except Unreadable as problem:
            raise ForeignTable(
                f"the Delta table {path} is no table of transactions, or another program has changed its mark",
                found="no mark" if text is None else shown(text),
                expected=f"the domain {DOMAIN} of schema {_SCHEMA} ({problem})",
                action="move the table away: it is made again from the manifests that are kept",
            ) from None

    @property
    def app_id(self) -> str:
        """Of the commits that add rows."""
        return f"trident/{self.topology}/{self.group}/{self.incarnation}/transactions/{self.generation}"


def owner_by_log(path: Place) -> tuple[str, str] | None:
    """Topology and batch group of a table of transactions, by the newest log entry that says so and can be read."""
    log = DeltaLog(path)
    try:
        versions = log.versions()
    except TableError:
        return None
    for version in reversed(versions):
        try:
            text = log.commit(version).domains.get(DOMAIN)
            if text is not None:
                mark = RecordedUpTo.decode(path, text)
                return mark.topology, mark.group
        except TableError:
            continue
    return None


_INSTANT = pa.timestamp("us", tz="UTC")
_TABLES = pa.struct(
    [
        ("state", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("table_id", pa.string()),
        ("version", pa.int64()),
        ("rows", pa.int64()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_SOURCES = pa.struct(
    [
        ("stream", pa.string()),
        ("spout", pa.string()),
        ("kind", pa.string()),
        ("metadata", pa.string()),
        ("positions", pa.string()),
        ("commit_data", pa.string()),
    ]
)
_FAILURES = pa.struct([("attempt_id", pa.int64()), ("failed_at", _INSTANT), ("error", pa.string())])
# Columns may be added at the end, never changed: older rows read as null there.
SCHEMA = pa.schema(
    [
        ("txid", pa.int64()),
        ("attempt_id", pa.int64()),
        ("parent_attempt_id", pa.int64()),
        ("incarnation", pa.string()),
        ("epoch", pa.int64()),
        ("code_id", pa.string()),
        ("begun_at", _INSTANT),
        ("decided_at", _INSTANT),
        ("published_at", _INSTANT),
        ("rows", pa.int64()),
        ("files", pa.int64()),
        ("bytes", pa.int64()),
        ("tables", pa.list_(_TABLES)),
        ("sources", pa.list_(_SOURCES)),
        ("failures", pa.list_(_FAILURES)),
        ("skipped", pa.string()),
        ("manifest", pa.string()),
        ("manifest_sha256", pa.string()),
    ]
)
Row = dict[str, Any]


@dataclass(frozen=True)
class PublishedAs:
    """The traces that publishing has left.

    Attributes:
        versions: table id → the table version that the transaction made, as far as known.
        at: when all tables had it, seconds since the epoch; None: not known.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    at: float | None = None


def transaction_row(decision: Decision, manifest: Manifest, published: PublishedAs) -> Row:
    """The row of a published transaction; null where a manifest of an older version does not say."""
    annotations, parent = manifest.told, manifest.parent
    tables = [
        {
            "state": table.state,
            "kind": table.kind,
            "path": table.path,
            "table_id": table.table_id or None,
            "version": published.versions.get(table.table_id),
            "rows": table.rows,
            "files": len(table.files),
            "bytes": sum(file.size for file in table.files),
        }
        for table in manifest.tables
    ]
    return {
        "txid": manifest.attempt.txid,
        "attempt_id": manifest.attempt.attempt_id,
        "parent_attempt_id": parent.attempt_id if parent else None,
        "incarnation": manifest.incarnation,
        "epoch": annotations.epoch if annotations else None,
        "code_id": (annotations.code_id or None) if annotations else None,
        "begun_at": instant(annotations.begun_at if annotations else None),
        "decided_at": instant(annotations.prepared_at if annotations else None),
        "published_at": instant(published.at),
        **{name: sum(int(table[name] or 0) for table in tables) for name in ("rows", "files", "bytes")},
        "tables": tables,
        "sources": [_source(stream, spout) for stream, spout in sorted(manifest.spouts.items())],
        "failures": [
            {"attempt_id": one.attempt_id, "failed_at": instant(one.at), "error": one.error}
            for one in (annotations.failures if annotations else ())
        ],
        "skipped": annotations.skipped if annotations else None,
        "manifest": decision.manifest,
        "manifest_sha256": decision.sha256,
    }


def _source(stream: str, spout: Mapping[str, Any]) -> Row:
    return {
        "stream": stream,
        "spout": spout.get("spout"),
        "kind": spout.get("kind"),
        "metadata": _text(spout.get("metadata")),
        "positions": _text(spout.get("opaque")),
        "commit_data": _text(spout.get("commit_data")),
    }


def _text(value: Any) -> str | None:
    """As JSON; of a user's metadata, so that half of a surrogate pair stays written as such."""
    return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def instant(seconds: float | None) -> datetime.datetime | None:
    """Seconds since the epoch as an instant; None where they are no time that a clock can show."""
    if seconds is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
