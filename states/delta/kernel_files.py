"""The actions of a Delta commit as JSON text, and the live files of a table version, without a JVM.

Action rows as JSON text, and the files of a table version. Knows no JVM, so that
all of it can be tested and read without one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from trident.states.core import storage
from trident.states.core.tables import StagedFile

# A commit that only adds whole files owes such a table its actions and nothing more, by Delta's protocol: no table
# feature makes it read, number, map or check the rows.
# With a change data feed one that also removes files owes it their rows (``replace_entry``).
_PLAIN_FEATURES = frozenset({"appendOnly", "changeDataFeed", "domainMetadata", "invariants"})
# Characters that both Java's URI and Spark leave alone in the path of a file action.
_SAFE = "/=:@!$&'()*+,;-._~"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of a table version.

    Attributes:
        path: relative to the table's root, not URL-encoded.
        size: bytes.
        partition_values: partition column -> value as Delta writes it, None for null.
        stats: Delta's statistics as a dict, or None when the writer gave none.
        num_records: rows in the file, or None when unknown.
        modification_ms: milliseconds since the epoch.
        has_vector: whether only some of the rows count (a deletion vector says which).
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    stats: Mapping[str, object] | None
    num_records: int | None
    modification_ms: int
    has_vector: bool = False


def add_action(file: StagedFile) -> str:
    """The ``add`` action that makes a staged file part of the table, as JSON."""
    return _json(
        {
            "add": {
                "path": quote(file.path, safe=_SAFE),
                "partitionValues": dict(file.partition_values),
                "size": file.size,
                "modificationTime": file.mtime_ms,
                "dataChange": True,
                "stats": file.stats,
            }
        }
    )


def remove_action(file: LiveFile) -> str:
    """The ``remove`` action that takes a live file out of the table, as JSON."""
    return _json(
        {
            "remove": {
                "path": quote(file.path, safe=_SAFE),
                "deletionTimestamp": time.time_ns() // 1_000_000,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition_values),
                "size": file.size,
            }
        }
    )


def change_action(file: StagedFile) -> str:
    """The ``cdc`` action that names a file of a table's change data feed, as JSON."""
    path = quote(file.path, safe=_SAFE)
    return _json({"cdc": {"path": path, "partitionValues": {}, "size": file.size, "dataChange": False}})


def _json(action: Mapping[str, Any]) -> str:
    """One line of a log entry: no byte of it is a line's end."""
    return json.dumps(action, ensure_ascii=False, separators=(",", ":"))


def is_plain(protocol: Mapping[str, Any], schema_json: str) -> bool:
    """Tells whether Python may write the log entry that adds files to a table; else Kernel does, which knows features.

    Args:
        protocol: the table's ``protocol`` action.
        schema_json: its schema. A column with a rule of Delta's own, such as an invariant, says so in its metadata.
    """
    reader, writer = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    writer_features = set(protocol.get("writerFeatures") or ())
    return (
        writer == 7
        and (reader == 1 or (reader == 3 and not protocol.get("readerFeatures")))
        and "domainMetadata" in writer_features
        and writer_features <= _PLAIN_FEATURES
        and '"delta.' not in schema_json
    )


def append_entry(
    files: Sequence[StagedFile], txn: tuple[str, int] | None, control: Mapping[str, str], engine_info: str
) -> bytes:
    """The log entry that adds files, a ``txn_version`` and control records to a plain table.

    It is, action for action, the entry that Kernel writes for the same commit (tests/states/delta/test_plain_entries.py
    compares them).
    """
    actions = [_commit_info("WRITE", engine_info)]
    if txn is not None:
        actions.append(_txn(txn))
    for domain, text in control.items():
        actions.append({"domainMetadata": {"domain": domain, "configuration": text, "removed": False}})
    return _lines([*map(_json, actions), *map(add_action, files)])


def replace_entry(
    removed: Sequence[LiveFile],
    files: Sequence[StagedFile],
    changes: Sequence[StagedFile],
    txn: tuple[str, int],
    engine_info: str,
    user_metadata: str,
    metrics: Mapping[str, int],
) -> bytes:
    """The log entry of a MERGE into a plain table: files in the place of others, and a ``txn_version``.

    Args:
        changes: files with the changed rows, where the table has a change data feed.
        user_metadata: kept in the table's history.
        metrics: of the operation, as Delta names them.
    """
    details = {"userMetadata": user_metadata, "operationMetrics": {name: str(n) for name, n in metrics.items()}}
    info = _commit_info("MERGE", engine_info, **details)
    moved = [*map(remove_action, removed), *map(add_action, files), *map(change_action, changes)]
    return _lines([_json(info), _json(_txn(txn)), *moved])


def clone_entry(
    protocol: Mapping[str, Any],
    metadata: Mapping[str, Any],
    adds: Sequence[Mapping[str, Any]],
    txn: tuple[str, int] | None,
    control: Mapping[str, str],
    engine_info: str,
) -> bytes:
    """The log entry that begins a table with the files, the schema and the properties of another one.

    Args:
        protocol, metadata: of the other table, the metadata with this one's own id.
        adds: the bodies of its ``add`` actions.
    """
    actions: list[dict[str, Any]] = [_commit_info("CLONE", engine_info), {"protocol": protocol}, {"metaData": metadata}]
    if txn is not None:
        actions.append(_txn(txn))
    for domain, text in control.items():
        actions.append({"domainMetadata": {"domain": domain, "configuration": text, "removed": False}})
    added = ({"add": {key: body[key] for key in _ADDED if body.get(key) is not None}} for body in adds)
    return _lines([*map(_json, actions), *(_json({"add": {**one["add"], "dataChange": True}}) for one in added)])


_ADDED = ("path", "partitionValues", "size", "modificationTime", "stats")


def take_back_entry(
    removed: Sequence[LiveFile],
    added: Sequence[Mapping[str, Any]],
    txns: Mapping[str, int],
    control: Mapping[str, str],
    engine_info: str,
    user_metadata: str,
) -> bytes:
    """The log entry of a rollback of a plain table: files of one of its versions in the place of those that it has.

    Args:
        removed: files that it has, and had not then.
        added: the ``add`` actions of then of the files that it had then, and has no more.
        txns: ``txn_app_id`` -> ``txn_version``.
        control: domain -> JSON text.
        user_metadata: kept in the table's history.
    """
    info = _commit_info("ROLLBACK", engine_info, userMetadata=user_metadata)
    actions = [info, *(_txn(txn) for txn in txns.items())]
    for domain, text in control.items():
        actions.append({"domainMetadata": {"domain": domain, "configuration": text, "removed": False}})
    back = [_json({"add": {**body, "dataChange": True}}) for body in added]
    return _lines([*map(_json, actions), *map(remove_action, removed), *back])


def _commit_info(operation: str, engine_info: str, **more: Any) -> dict[str, Any]:
    info = {
        "timestamp": time.time_ns() // 1_000_000,
        "engineInfo": f"Trident/{engine_info}",
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "txnId": str(uuid.uuid4()),
        "operationMetrics": {},
    }
    return {"commitInfo": {**info, **more}}


def _txn(txn: tuple[str, int]) -> dict[str, Any]:
    return {"txn": {"appId": txn[0], "version": txn[1], "lastUpdated": time.time_ns() // 1_000_000}}


def _lines(actions: Sequence[str]) -> bytes:
    return "".join(f"{action}\n" for action in actions).encode()


def live_file(add: Mapping[str, Any]) -> LiveFile:
    """Reads the body of an ``add`` action."""
    stats = json.loads(add["stats"]) if add.get("stats") else None
    return LiveFile(
        path=unquote(add["path"]),
        size=add["size"],
        partition_values=add.get("partitionValues") or {},
        stats=stats,
        num_records=None if stats is None else stats.get("numRecords"),
        modification_ms=add["modificationTime"],
        has_vector=add.get("deletionVector") is not None,
    )


def fsync_log_entry(path: str, version: int) -> None:
    """Make a log entry outlive a power cut, and remove Hadoop's checksum beside it.

    Older ones first: an entry that is durable before the one below it would
    leave a hole in the log. Delta's protocol knows no checksum file of that
    name, and a stale one makes the entry unreadable.

    Raises:
        OSError: the disk refused; the entry may be durable or not.
    """
    root = storage.local_path(path)
    if root is None:
        return
    folder = storage.join(root, "_delta_log")
    storage.delete(f"{folder}/.{version:020d}.json.crc")
    storage.flush(f"{folder}/{version:020d}.json")
    storage.flush(folder)
