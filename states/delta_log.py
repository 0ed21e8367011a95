"""Reads a Delta table's log entries as they are: what each commit did, and by whom.

Pure Python over the JSON entries of a table on a local disk; no JVM, nothing is
written. Kernel tells what a table *is*; this tells what *happened* to it, which
is how a foreign change is found that keeps the control record (RESTORE and
TRUNCATE do: DESIGN 3).

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from coordinators.errors import TableError
from states.kernel_files import local_path

_ENTRY = re.compile(r"(\d{20})\.json")
# Operations of others that leave every row as it is, as Delta names them.
_HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS"})


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
        adds: paths of the files added, not URL-encoded.
        removes: paths of the files removed.
        metadata_changed: schema, properties or the table's name may have changed.
        protocol_changed: table features may have changed.
        data_change: whether a file action says that rows changed.
    """

    version: int
    operation: str
    engine_info: str
    user_metadata: str | None
    control: Mapping[str, object]
    txns: Mapping[str, int]
    adds: tuple[str, ...]
    removes: tuple[str, ...]
    metadata_changed: bool
    protocol_changed: bool
    data_change: bool


def read_commit(path: str, version: int) -> Commit:
    """The commit that made a table version.

    Args:
        path: the table's root, on a local disk.
        version: the table version.

    Raises:
        TableError: the entry is not there (any more), or cannot be read.
    """
    file = _entry(path, version)
    try:
        with open(file, encoding="utf-8") as lines:
            actions = [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError:
        raise TableError(
            f"the log of table {path} has no entry for version {version}",
            expected=os.path.basename(file),
            action="if it was cleaned up, raise delta.logRetentionDuration",
        ) from None
    except (OSError, ValueError) as error:
        raise TableError(f"log entry {version} of table {path} cannot be read", found=error) from error
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
    files: dict[str, list[str]] = {"add": [], "remove": []}
    kinds: set[str] = set()
    data_change = False
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
            elif kind in files:
                files[kind].append(unquote(body["path"]))
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
        adds=tuple(files["add"]),
        removes=tuple(files["remove"]),
        metadata_changed="metaData" in kinds,
        protocol_changed="protocol" in kinds,
        data_change=data_change,
    )


def _parsed(text: str) -> object:
    """A domain's configuration: JSON by Delta's protocol, but other writers may store any text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def commits_since(path: str, version: int) -> list[Commit]:
    """All commits after a table version, oldest first.

    Args:
        path: the table's root, on a local disk.
        version: the last table version that is known.

    Raises:
        TableError: an entry in between was cleaned up, so what happened cannot
            be known; or the table's newest version is older than ``version``.
    """
    newest = newest_version(path)
    if newest < version:
        raise TableError(
            f"table {path} is older than it was",
            found=f"version {newest}",
            expected=f"version {version} or later",
            action="it was restored from a copy or recreated",
        )
    try:
        return [read_commit(path, each) for each in range(version + 1, newest + 1)]
    except TableError as error:
        if any(not os.path.exists(_entry(path, each)) for each in range(version + 1, newest + 1)):
            raise TableError(
                f"the log of table {path} was cleaned too far: what happened since version {version} is not known",
                found=error.message,
                expected=f"every log entry from {version + 1} to {newest}",
                action="raise delta.logRetentionDuration",
            ) from error
        raise


def foreign(commit: Commit, is_ours: Callable[[Commit], bool]) -> str | None:
    """Why a commit must stop the topology, or None when it may stay.

    Accepted are our own commits and those of others that provably leave every
    row, the schema, the transaction ids and the control records as they are:
    OPTIMIZE, VACUUM and statistics. The operation's name alone is not trusted.

    Args:
        commit: as :func:`read_commit` gives it.
        is_ours: recognises our own commits. It must look at something that
            RESTORE and its like do not copy: the engine, and the control record
            *within this commit*.
    """
    if is_ours(commit):
        return None
    name = commit.operation or "a commit without a name"
    by = f"{name} by {commit.engine_info or 'an unknown writer'}"
    if commit.operation not in _HARMLESS:
        return by
    for changed, what in (
        (commit.data_change, "changed rows"),
        (commit.metadata_changed, "changed the schema or the table properties"),
        (commit.protocol_changed, "changed the table's features"),
        (commit.control, f"changed the domain metadata {sorted(commit.control)}"),
        (commit.txns, f"set transaction ids for {sorted(commit.txns)}"),
    ):
        if changed:
            return f"{by}, which {what}"
    return None


def newest_version(path: str) -> int:
    """The newest table version that has a log entry.

    Raises:
        TableError: there is none.
    """
    versions = _versions(path)
    if not versions:
        raise TableError(f"there is no Delta log at {path}")
    return versions[-1]


def find_version_by_control(path: str, domain: str, txid: int) -> int | None:
    """The newest table version whose control record has a ``txid`` of at most ``txid``.

    Control records only grow with the table version, so few entries are read.
    What an entry says never changes and is remembered by this process.

    Returns:
        The table version, or None when what is left of the log has none.

    Raises:
        TableError: there is no log, or it cannot be read.
    """

    def value(marks: _Marks) -> int | None:
        return dict(marks.control).get(domain)

    return _find(path, txid, value)


def find_version_by_txn(path: str, app: str, txn: int) -> int | None:
    """The newest table version whose ``txn_version`` for ``app`` is at most ``txn``.

    A version before the first transaction of ``app`` counts as lower than all.
    Otherwise as :func:`find_version_by_control`.
    """

    def value(marks: _Marks) -> int | None:
        return dict(marks.txns).get(app)

    return _find(path, txn, value)


@dataclass(frozen=True)
class _Marks:
    """What of a log entry is remembered: small, unlike the entry."""

    control: tuple[tuple[str, int], ...]
    txns: tuple[tuple[str, int], ...]


@lru_cache(maxsize=100_000)
def _marks(path: str, version: int, identity: tuple[int, int, int]) -> _Marks:
    del identity  # part of the key only: a table made anew at the same path has other entries
    commit = read_commit(path, version)
    control = tuple(
        (domain, value["txid"])
        for domain, value in commit.control.items()
        if isinstance(value, dict) and isinstance(value.get("txid"), int)
    )
    return _Marks(control, tuple(commit.txns.items()))


_marks_lock = threading.Lock()


def _find(path: str, at_most: int, value: Callable[[_Marks], int | None]) -> int | None:
    versions = _unbroken(_versions(path))
    if not versions:
        raise TableError(f"there is no Delta log at {path}")
    lowest, newest = versions[0], versions[-1]

    def in_force(version: int) -> int | None:
        """The mark that holds at a version: its own, or of the newest entry before it."""
        for each in range(version, lowest - 1, -1):
            stat = os.stat(_entry(path, each))
            with _marks_lock:
                found = value(_marks(path, each, (stat.st_ino, stat.st_mtime_ns, stat.st_size)))
            if found is not None:
                return found
        return None

    def low_enough(version: int) -> bool:
        mark = in_force(version)
        # Without a mark down to version 0 there was none yet; in a log whose
        # beginning is cleaned up there may have been one.
        return lowest == 0 if mark is None else mark <= at_most

    if low_enough(newest):
        return newest
    if not low_enough(lowest):
        return None
    low, high = lowest, newest  # low_enough(low) and not low_enough(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if low_enough(middle) else (low, middle)
    return low


def _unbroken(versions: list[int]) -> list[int]:
    """The longest tail without a hole; entries below a hole belong to no readable version."""
    start = len(versions) - 1
    while start > 0 and versions[start - 1] == versions[start] - 1:
        start -= 1
    return versions[start:] if versions else []


def _versions(path: str) -> list[int]:
    folder = os.path.join(_root(path), "_delta_log")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TableError(f"the log of table {path} cannot be listed", found=error) from error
    return sorted(int(found[1]) for name in names if (found := _ENTRY.fullmatch(name)))


def _entry(path: str, version: int) -> str:
    return os.path.join(_root(path), "_delta_log", f"{version:020d}.json")


def _root(path: str) -> str:
    root = local_path(path)
    if root is None:
        raise TableError(
            f"the log of table {path} is not on this machine's file system", expected="a path, or a file: URI"
        )
    return root
