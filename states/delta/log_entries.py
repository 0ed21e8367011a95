"""The one reader of a Delta table's log: tells what one commit did, and the table's metadata behind it.

Pure Python over the entries and checkpoints of a table on a local disk, of ours
or of others; no JVM, nothing is written. Only metadata and protocol are taken
from checkpoints, of every kind: whole, in parts, V2 with sidecars (which have
files only).

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import shown
from trident.states.core import storage
from trident.states.core.side_by_side import side_by_side
from trident.states.core.storage import AnyPath, Signature
from trident.states.delta.kernel_files import LiveFile, live_file

ENTRY = re.compile(r"(\d{20})\.json")
# Whole, in parts, or with a unique name (a V2 checkpoint, Parquet or JSON).
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10}|\.[0-9a-f-]{36})?\.(?:parquet|json)")

# Entries that are held at once while many of a store are read.
_READ_AT_ONCE = 64


@dataclass(frozen=True)
class TableCommit:
    """One log entry.

    Attributes:
        operation: as the writer named it ("WRITE", "OPTIMIZE", ...), "" when it did not.
        engine_info: the writer; Kernel puts "Kernel-<its version>/" before what we give it.
        user_metadata: what the writer stored with the commit, or None.
        control: domain -> its JSON as Python values (None: the domain was removed).
        txns: ``txn_app_id`` -> ``txn_version`` that the commit set.
        added: the files added.
        removes: paths of the files removed, not URL-encoded.
        changes: paths of the files of its change data feed, not URL-encoded.
        metadata_changed: schema, properties or the table's name may have changed.
        protocol_changed: table features may have changed.
        data_change: whether a file action says that rows changed.
        metadata: the whole metadata that holds from this commit on, None when it set none.
        deletion_vectors: whether a file was added of which only some rows count.
        harm: what it changed in the metadata that may not stay; "": nothing. Known of commits from
            ``history.commits_since``.
    """

    version: int
    operation: str
    engine_info: str
    user_metadata: str | None
    control: Mapping[str, object]
    txns: Mapping[str, int]
    added: tuple[LiveFile, ...]
    removes: tuple[str, ...]
    metadata_changed: bool
    protocol_changed: bool
    data_change: bool
    metadata: Mapping[str, Any] | None = None
    deletion_vectors: bool = False
    harm: str = "changed the schema or the table properties"
    changes: tuple[str, ...] = ()

    @property
    def adds(self) -> tuple[str, ...]:
        """Paths of the files added, not URL-encoded."""
        return tuple(file.path for file in self.added)

    def noted(self, key: str) -> Mapping[str, Any]:
        """The JSON object under a key of the user metadata; an empty one when there is none."""
        try:
            said = json.loads(self.user_metadata or "null")
        except (ValueError, RecursionError):
            return {}
        found = said.get(key) if isinstance(said, dict) else None
        return found if isinstance(found, dict) else {}


def read_actions(path: str, version: int) -> list[dict[str, Any]]:
    """The actions of the commit that made a table version, at least one, by Delta's protocol.

    Raises: as :func:`read_commit`.
    """
    file = entry_of(path, version)
    try:
        actions = json_lines(file)
    except FileNotFoundError:
        raise TableError(
            f"the log of table {path} has no entry for version {version}",
            expected=f"{version:020d}.json",
            action="if it was cleaned up, raise delta.logRetentionDuration",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TableError(
            f"log entry {version} of table {path} cannot be read: {error}",
            found=getattr(error, "found", None),
            expected="a file of JSON objects, one a line, by Delta's protocol",
            action="bring the table back from a back-up",
        ) from error
    if not actions:
        raise TableError(
            f"log entry {version} of table {path} is empty",
            found="no action",
            expected="the actions of a commit",
            action="bring the file back from a back-up: the rows that it names would be missing without a word",
        )
    wrong = next((action for action in actions if not isinstance(action, dict)), None)
    if wrong is not None:
        raise TableError(
            f"log entry {version} of table {path} is not as Delta's protocol says", found=shown(json.dumps(wrong))
        )
    return actions


def json_lines(file: str) -> list[Any]:
    return [json.loads(line) for line in storage.read(file).decode("utf-8").split("\n") if line.strip()]


def domains_of(path: str, version: int) -> dict[str, str | None]:
    """Domain → its configuration as it was stored, of those that the version's own entry speaks of; None: removed.

    Raises: as :func:`read_commit`.
    """
    found = [action["domainMetadata"] for action in read_actions(path, version) if "domainMetadata" in action]
    return {one["domain"]: None if one.get("removed") else one["configuration"] for one in found}


def read_commits(path: str, versions: Sequence[int]) -> Iterator[TableCommit]:
    """The commits that made some table versions, in their order; at a store some are read side by side.

    Raises: as :func:`read_commit`, of the first of them.
    """
    at_once = 1 if storage.local_path(path) is not None else _READ_AT_ONCE
    for first in range(0, len(versions), at_once):
        yield from side_by_side([partial(read_commit, path, each) for each in versions[first : first + at_once]])


def read_commit(path: str, version: int) -> TableCommit:
    """The commit that made a table version."""
    actions = read_actions(path, version)
    try:
        return _commit(version, actions)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TableError(
            f"log entry {version} of table {path} is not as Delta's protocol says", found=repr(error)
        ) from error


def _commit(version: int, actions: list[dict[str, Any]]) -> TableCommit:
    info: dict[str, Any] = {}
    control: dict[str, object] = {}
    txns: dict[str, int] = {}
    added: list[LiveFile] = []
    removes: list[str] = []
    changes: list[str] = []
    metadata: dict[str, Any] | None = None
    kinds: set[str] = set()
    data_change = deletion_vectors = False
    for action in actions:
        for kind, body in action.items():
            if body is None:
                continue
            kinds.add(kind)
            if kind == "commitInfo":
                info = body
            elif kind == "txn":
                txns[body["appId"]] = int(body["version"])
            elif kind == "domainMetadata":
                control[body["domain"]] = None if body.get("removed") else _parsed(body["configuration"])
            elif kind == "metaData":
                metadata = body
            elif kind in ("add", "remove"):
                if kind == "add":
                    added.append(live_file(json.dumps({"add": body})))
                    deletion_vectors = deletion_vectors or body.get("deletionVector") is not None
                else:
                    removes.append(unquote(body["path"]))
                # Delta's protocol has no default: an action that does not say is taken as a change.
                data_change = data_change or body.get("dataChange", True)
            elif kind == "cdc":
                changes.append(unquote(body["path"]))
                data_change = True
    return TableCommit(
        version=version,
        operation=str(info.get("operation") or ""),
        engine_info=str(info.get("engineInfo") or ""),
        user_metadata=info.get("userMetadata"),
        control=control,
        txns=txns,
        added=tuple(added),
        removes=tuple(removes),
        metadata_changed=metadata is not None,
        protocol_changed="protocol" in kinds,
        data_change=data_change,
        metadata=metadata,
        deletion_vectors=deletion_vectors,
        changes=tuple(changes),
    )


def _parsed(text: str) -> object:
    """A domain's configuration: JSON by Delta's protocol, but other writers may store any text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def as_text(configuration: object) -> str:
    """A domain's configuration, as :func:`read_commit` gives it, as JSON text again."""
    return configuration if isinstance(configuration, str) else json.dumps(configuration)


class Described(NamedTuple):
    """How a log describes a table as of a version.

    Attributes:
        metadata: the metadata in force.
        since: a version from which on it has been.
        protocol: the protocol, where it was met on the way to the metadata.
    """

    metadata: Mapping[str, Any]
    since: int
    protocol: Mapping[str, Any] | None


def metadata_at(path: str, version: int) -> Described | None:
    """The metadata in force at a table version.

    Found in the log entries, or where those were cleaned up in a checkpoint.

    Returns:
        None when what is left of the log does not say.
    """
    checkpoints = checkpoints_of(path)
    protocol = None
    for each in range(version, -1, -1):
        try:
            actions = read_actions(path, each)
        except TableError:
            if entry_signature(path, each) is not None:
                raise
            actions = []
        try:
            metadata, its_protocol = _said(actions)
            if metadata is None:
                metadata, checkpointed = _said(_checkpoint_actions(path, checkpoints.get(each, ())))
                its_protocol = its_protocol or checkpointed
        except (AttributeError, TypeError, ValueError) as error:
            raise TableError(
                f"log entry {each} of table {path}, or its checkpoint, is not as Delta's protocol says", found=error
            ) from error
        protocol = protocol or its_protocol
        if metadata is not None:
            return Described(metadata, each, protocol)
        if not actions:
            return None
    return None


def _said(actions: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The metadata and the protocol among actions."""
    metadata = protocol = None
    for action in actions:
        metadata = action.get("metaData") or metadata
        protocol = action.get("protocol") or protocol
    return metadata and {**metadata, "configuration": dict(metadata.get("configuration") or ())}, protocol


def checkpoints_of(path: str) -> dict[int, list[str]]:
    """Table version -> the names of the files of its checkpoints."""
    found: dict[int, list[str]] = {}
    for name in sorted(_names(path)):
        if match := CHECKPOINT.fullmatch(name):
            found.setdefault(int(match[1]), []).append(name)
    return found


def _checkpoint_actions(path: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The metadata and protocol actions in a checkpoint's files; in one of several parts any can have either."""
    import pyarrow as pa  # late: few logs need it, and it takes a third of a second
    import pyarrow.parquet as pq

    for name in names:
        file = storage.join(_root(path), "_delta_log", name)
        try:
            if name.endswith(".json"):
                yield from json_lines(file)
            else:
                table = pq.ParquetFile(io.BytesIO(storage.read(file))).read(columns=["metaData", "protocol"])
                for kind in table.column_names:
                    yield from ({kind: row} for row in table.column(kind).drop_null().to_pylist())
        except (OSError, pa.ArrowException, ValueError, RecursionError) as error:
            raise TableError(f"checkpoint {name} of table {path} cannot be read", found=error) from error


def last_checkpoint(path: str) -> dict[str, Any] | None:
    """The pointer to a table's last checkpoint: its version, its size in actions. None when there is none.

    Raises:
        ValueError, OSError: it cannot be read.
    """
    try:
        found = json.loads(storage.read(storage.join(_root(path), "_delta_log", "_last_checkpoint")))
    except FileNotFoundError:
        return None
    if not isinstance(found, dict):
        raise ValueError(f"not an object: {found!r}")
    return found


def follow(files: dict[str, LiveFile], commit: TableCommit) -> None:
    """Brings the live files of a table, by path, from the version before a commit to the commit's."""
    for path in commit.removes:
        files.pop(path, None)
    for file in commit.added:
        files[file.path] = file


def entry_signature(path: str, version: int) -> Signature | None:
    """Tells a log entry from one of the same version in a table that was made anew; None when there is none."""
    found = storage.stat_file(entry_of(path, version))
    return None if found is None else found.signature


class Watched(NamedTuple):
    """A table as it was last seen.

    Attributes:
        entry: the signature of the version's log entry; None: not known.
    """

    path: str
    version: int
    entry: Signature | None


def unchanged(tables: Sequence[Watched]) -> set[str]:
    """The paths of those tables whose newest log entry is still the one that was seen.

    Each costs two looks; at a store all of these are under way at once.
    """

    def entry(table: Watched) -> bool:
        return table.entry is not None and entry_signature(table.path, table.version) == table.entry

    def is_newest(table: Watched) -> bool:
        return entry_signature(table.path, table.version + 1) is None

    if all(storage.local_path(table.path) is not None for table in tables):
        return {table.path for table in tables if entry(table) and is_newest(table)}
    found = side_by_side([partial(look, table) for table in tables for look in (entry, is_newest)])
    return {table.path for table, same, newest in zip(tables, found[::2], found[1::2]) if same and newest}


def newest_version(path: str) -> int:
    """The newest table version that has a log entry."""
    versions = versions_of(path)
    if not versions:
        raise TableError(f"there is no Delta log at {path}")
    return versions[-1]


def has_log(path: AnyPath) -> bool:
    """Tells whether a folder is a Delta table."""
    return storage.is_folder(storage.join(path, "_delta_log"))


def versions_of(path: str) -> list[int]:
    """The versions that have a log entry, in their order; none when there is no log."""
    return sorted(int(found[1]) for name in _names(path) if (found := ENTRY.fullmatch(name)))


def _names(path: str) -> list[str]:
    try:
        return storage.list_names(storage.join(_root(path), "_delta_log"))
    except OSError as error:
        raise TableError(f"the log of table {path} cannot be listed", found=error) from error


def entry_of(path: str, version: int) -> str:
    """The file of a log entry, which may not be there."""
    return storage.join(_root(path), "_delta_log", f"{version:020d}.json")


def _root(path: str) -> str:
    root = storage.reached_path(path)
    if root is None:
        raise TableError(
            f"the framework cannot read the log of table {path}",
            expected="a path, a file: URI, or a URL that is s3a: or hdfs:",
        )
    return root
