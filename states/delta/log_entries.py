"""A Delta table's log entries as they are: what one commit did, and what the table's metadata then was.

Pure Python over the JSON entries of a table on a local disk; no JVM, nothing is
written.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import read_stored
from trident.states.delta.kernel_files import LiveFile, live_file, local_path

_ENTRY = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True)
class Commit:
    """One log entry.

    Attributes:
        version: the table version that the commit made.
        operation: as the writer named it ("WRITE", "OPTIMIZE", ...), "" when it did not.
        engine_info: the writer; Kernel puts "Kernel-<its version>/" before what we give it.
        user_metadata: what the writer stored with the commit, or None.
        control: domain -> its JSON as Python values (None: the domain was removed).
        txns: ``txn_app_id`` -> ``txn_version`` that the commit set.
        added: the files added.
        removes: paths of the files removed, not URL-encoded.
        metadata_changed: schema, properties or the table's name may have changed.
        protocol_changed: table features may have changed.
        data_change: whether a file action says that rows changed.
        metadata: the whole metadata that holds from this commit on, None when it set none.
        deletion_vectors: whether a file was added of which only some rows count.
        only_adds_columns: whether all that it changed in the metadata is that there are further,
            nullable columns. Known of commits from :func:`commits_since`.
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
    only_adds_columns: bool = False

    @property
    def adds(self) -> tuple[str, ...]:
        """Paths of the files added, not URL-encoded."""
        return tuple(file.path for file in self.added)


def read_commit(path: str, version: int) -> Commit:
    """The commit that made a table version.

    Args:
        path: the table's root, on a local disk.
        version: the table version.

    Raises:
        TableError: the entry is not there (any more), or cannot be read.
    """
    file = entry_of(path, version)
    try:
        lines = read_stored(file).decode("utf-8").split("\n")
        actions = [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError:
        raise TableError(
            f"the log of table {path} has no entry for version {version}",
            expected=os.path.basename(file),
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
    try:
        return _commit(version, actions)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TableError(
            f"log entry {version} of table {path} is not as Delta's protocol says", found=repr(error)
        ) from error


def _commit(version: int, actions: list[dict]) -> Commit:
    info: dict = {}
    control: dict[str, object] = {}
    txns: dict[str, int] = {}
    added: list[LiveFile] = []
    removes: list[str] = []
    metadata: dict | None = None
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
                data_change = True
    return Commit(
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


def metadata_at(path: str, version: int) -> tuple[Mapping[str, Any], int] | None:
    """The metadata in force at a table version, and a version from which on it has been.

    Found in the log entries, or where those were cleaned up in a checkpoint.

    Returns:
        None when what is left of the log does not say.

    Raises:
        TableError: an entry or a checkpoint cannot be read.
    """
    for each in range(version, -1, -1):
        try:
            commit = read_commit(path, each)
        except TableError:
            if entry_signature(path, each) is not None:
                raise
            found = _checkpointed_metadata(path, each)
            return None if found is None else (found, each)
        if commit.metadata is not None:
            return commit.metadata, each
        found = _checkpointed_metadata(path, each)
        if found is not None:
            return found, each
    return None


def _checkpointed_metadata(path: str, version: int) -> Mapping[str, Any] | None:
    file = os.path.join(_root(path), "_delta_log", f"{version:020d}.checkpoint.parquet")
    if not os.path.exists(file):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(file, columns=["metaData"]).column("metaData").to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise TableError(f"checkpoint {version} of table {path} cannot be read", found=error) from error
    found = next((row for row in rows if row is not None), None)
    if found is None:
        return None
    return {**found, "configuration": dict(found.get("configuration") or ())}


def only_adds_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether two metadata of a table differ in nothing but further, nullable columns without meaning of their own.

    Rows of before read as null there, and nobody who does not know the columns
    needs to write them: no default, no generated value, no constraint.
    """
    for part in ("id", "name", "description", "partitionColumns", "configuration"):
        if (before.get(part) or None) != (after.get(part) or None):
            return False
    old, new = json.loads(before["schemaString"])["fields"], json.loads(after["schemaString"])["fields"]
    known = {field["name"] for field in old}
    added = [field for field in new if field["name"] not in known]
    return [field for field in new if field["name"] in known] == old and all(
        field["nullable"] and set(field.get("metadata") or ()) <= {"comment"} for field in added
    )


def follow(files: dict[str, LiveFile], commit: Commit) -> None:
    """Brings the live files of a table, by path, from the version before a commit to the commit's."""
    for path in commit.removes:
        files.pop(path, None)
    for file in commit.added:
        files[file.path] = file


def entry_signature(path: str, version: int) -> tuple[int, int, int] | None:
    """Tells a log entry from one of the same version in a table that was made anew; None when there is none."""
    try:
        stat = os.stat(entry_of(path, version))
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def newest_version(path: str) -> int:
    """The newest table version that has a log entry.

    Raises:
        TableError: there is none.
    """
    versions = versions_of(path)
    if not versions:
        raise TableError(f"there is no Delta log at {path}")
    return versions[-1]


def versions_of(path: str) -> list[int]:
    folder = os.path.join(_root(path), "_delta_log")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TableError(f"the log of table {path} cannot be listed", found=error) from error
    return sorted(int(found[1]) for name in names if (found := _ENTRY.fullmatch(name)))


def entry_of(path: str, version: int) -> str:
    """The file of a log entry, which may not be there."""
    return os.path.join(_root(path), "_delta_log", f"{version:020d}.json")


def _root(path: str) -> str:
    root = local_path(path)
    if root is None:
        raise TableError(
            f"the log of table {path} is not on this machine's file system", expected="a path, or a file: URI"
        )
    return root
