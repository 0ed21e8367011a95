"""A transaction as a row of the table of transactions: made of its manifest, and of the versions that it made. Pure."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from trident.coordinators.records import Decision
from trident.states.delta.manifest import Manifest

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
    told, parent = manifest.told, manifest.parent
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
        "epoch": told.epoch if told else None,
        "code_id": (told.code_id or None) if told else None,
        "begun_at": instant(told.begun_at if told else None),
        "decided_at": instant(told.prepared_at if told else None),
        "published_at": instant(published.at),
        **{name: sum(int(table[name] or 0) for table in tables) for name in ("rows", "files", "bytes")},
        "tables": tables,
        "sources": [_source(stream, spout) for stream, spout in sorted(manifest.spouts.items())],
        "failures": [
            {"attempt_id": one.attempt_id, "failed_at": instant(one.at), "error": one.error}
            for one in (told.failures if told else ())
        ],
        "skipped": told.skipped if told else None,
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
