"""The history of a Delta table, from its log entries: what was *done* to it, where Kernel tells what it *is*.

So a foreign change is found that keeps the control record (RESTORE and TRUNCATE do: docs/semantics.md 10).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from trident.coordinators.errors import TableError
from trident.coordinators.identities import first_id
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.storage import AnyPath, Signature
from trident.states.delta.delta_log import DeltaLog, TableCommit

# Tells what another writer changed in the metadata of a table of ours, and which of it may stay.
#
# Harmless is what neither we nor a reader of the table's rows could notice: comments, a table's name, properties that
# are
# not Delta's, and those of Delta in ``HARMLESS_PROPERTIES``; and further, plainly nullable columns. Everything else is
# named: a constraint, a default or a feature asks more of a writer than ours does.


# Properties of Delta that change how long something is kept, or how files are laid out, and no rows: docs/operations.md
# lists them. Not delta.setTransactionRetentionDuration: it would let go of the txn_version of the MERGEs.
HARMLESS_PROPERTIES: Final = frozenset(
    {
        "delta.autoOptimize",
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpoint.writeStatsAsStruct",
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
# Ours begin so: docs/semantics.md 10.
_OURS = "trident."


def harmful_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Names the first difference of two metadata of a table that may not stay, as errors say it; "": all of it may.

    Rows from before read as null in a further column, and a writer that does not know it need not write it: no
    default, no generated value, no constraint.
    """
    if before.get("id") != after.get("id"):
        return "made another table of it"
    if (before.get("partitionColumns") or []) != (after.get("partitionColumns") or []):
        return f"changed the partition columns to {after.get('partitionColumns')}"
    return _in_properties(before, after) or _in_columns(before, after)


def _in_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (dict(one.get("configuration") or ()) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        other = not name.startswith(("delta.", _OURS))
        if old.get(name) == new.get(name) or other or name in HARMLESS_PROPERTIES:
            continue
        constraint = name.removeprefix("delta.constraints.")
        if constraint != name:
            return f"took away the constraint {constraint}" if name in old else f"added the constraint {constraint}"
        return f"took away the property {name}" if name not in new else f"set the property {name} to {new[name]!r}"
    return ""


def _in_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = ([_plain(field) for field in json.loads(one["schemaString"])["fields"]] for one in (before, after))
    known = {field["name"] for field in old}
    for field in new:
        if field["name"] in known:
            continue
        if not field["nullable"] or field["metadata"]:
            return f"added the column {field['name']} with a constraint, a default or a generated value"
    kept = [field for field in new if field["name"] in known]
    if kept == old:
        return ""
    if [field["name"] for field in kept] != [field["name"] for field in old]:
        return "took away, renamed or moved a column"
    changed = next(field for field, was in zip(kept, old, strict=True) if field != was)
    was = next(field for field in old if field["name"] == changed["name"])
    if was["nullable"] and not changed["nullable"]:
        return f"made the column {changed['name']} NOT NULL"
    return f"changed the column {changed['name']}: its type, or what a writer must know of it"


def _plain(field: Mapping[str, Any]) -> dict[str, Any]:
    """A column without its comment."""
    known = {name: value for name, value in (field.get("metadata") or {}).items() if name != "comment"}
    return {**field, "metadata": known}


def writer_requirements(metadata: Mapping[str, Any]) -> list[str]:
    """The constraints and the like that a table requires of its writers, by name."""
    found = []
    for name, value in sorted(dict(metadata.get("configuration") or ()).items()):
        constraint = name.removeprefix("delta.constraints.")
        if constraint != name:
            found.append(f"the constraint {constraint} ({value})")
    for field in json.loads(metadata["schemaString"])["fields"]:
        known, column = field.get("metadata") or {}, field["name"]
        for key, what in (
            ("delta.generationExpression", "is generated"),
            ("delta.identity.start", "is an identity"),
            ("delta.invariants", "has an invariant"),
            ("CURRENT_DEFAULT", "has a default"),
        ):
            if key in known:
                found.append(f"the column {column}, which {what}")
    return found


IsOurs = Callable[[TableCommit], bool]
"""Recognises the commits of the topology that asks."""

# Operations of others that leave every row as it is, as Delta names them.
_HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS"})


class LogCleaned(TableError):
    """Entries of a log that are needed were cleaned up."""


def commits_since(path: AnyPath, version: int) -> list[TableCommit]:
    """All commits after a table version, oldest first.

    Args:
        version: the last table version that is known.

    Raises:
        LogCleaned: an entry in between was cleaned up, so what happened cannot be known.
        TableError: an entry cannot be read; or the table's newest version is older than ``version``.
    """
    log = DeltaLog(path)
    newest = log.newest()
    if newest < version:
        raise TableError(
            f"table {path} is older than it was",
            found=f"version {newest}",
            expected=f"version {version} or later",
            action="it was restored from a copy or recreated",
        )
    try:
        return [_judged(log, commit) for commit in log.commits(version + 1, newest)]
    except TableError as error:
        if all(log.signature(each) is not None for each in range(version + 1, newest + 1)):
            raise
        raise LogCleaned(
            f"the log of table {path} was cleaned too far: its changes since version {version} are not known",
            found=error.message,
            expected=f"every log entry from {version + 1} to {newest}",
            action="raise delta.logRetentionDuration",
        ) from error


def _judged(log: DeltaLog, commit: TableCommit) -> TableCommit:
    before = None if commit.metadata is None else log.described(commit.version - 1)
    if before is None or commit.metadata is None:
        return commit
    return replace(commit, harm=harmful_change(before.metadata, commit.metadata))


def control_at(path: AnyPath, version: int | None = None) -> ControlRecord | None:
    """The control record that holds at a version, by default the newest; None where what is left of the log has none.

    Raises:
        TableError: there is no log, or an entry that is there cannot be read.
        ForeignTable: the control record cannot be read.
    """
    for commit in DeltaLog(path).commits_backwards(version):
        text = commit.domains.get(DOMAIN)
        if text is not None:
            return decode_control(path, text)
    return None


def columns_only_added_since(path: str, version: int, was: Callable[[str], bool]) -> bool:
    """Tells whether a table's schema at a version is an earlier one, but for further, nullable columns and comments.

    Args:
        was: recognises the earlier schema, given as ``schema_json``.

    Raises:
        TableError: the log cannot be read.
    """
    log = DeltaLog(path)
    after = log.described(version)
    while after is not None:
        if was(after.metadata["schemaString"]):
            return True
        before = log.described(after.since - 1)
        if before is None or harmful_change(before.metadata, after.metadata):
            return False
        after = before
    return False


def foreign(commit: TableCommit, is_ours: Callable[[TableCommit], bool]) -> str | None:
    """Why a commit must stop the topology, or None when it may stay.

    Accepted are our own commits and those of others that provably leave every
    row, the transaction ids and the control records as they are: OPTIMIZE,
    VACUUM, statistics, and changes of the metadata alone that are harmless
    (``metadata_changes``): columns added that may be null, comments, some
    properties. The operation's name alone is not trusted.

    Args:
        is_ours: recognises our own commits. It must look at something that
            RESTORE and its like do not copy: the engine, and the control record
            *within this commit*.
    """
    if is_ours(commit):
        return None
    name = commit.operation or "a commit without a name"
    by = f"{name} by {commit.engine_info or 'an unknown writer'}"
    # Nothing but metadata, whatever the writer calls that.
    described = commit.metadata is not None and not (commit.added or commit.removes or commit.changes)
    if commit.operation not in _HARMLESS and not described:
        return by
    harm = commit.harm if commit.metadata is not None else ""
    for changed, what in (
        (commit.data_change, "changed rows"),
        (harm, harm),
        (commit.protocol is not None, "changed the table's features"),
        (commit.domains, f"changed the domain metadata {sorted(commit.domains)}"),
        (commit.txns, f"set transaction ids for {sorted(commit.txns)}"),
    ):
        if changed:
            return f"{by}, which {what}"
    return None


def find_version_by_control(path: str, domain: str, txid: int) -> int | None:
    """The newest table version whose control record has a ``txid`` of at most ``txid``, since the last reset.

    Within one epoch of one incarnation control records only grow with the
    table version, so few entries are read. The next may begin lower: a
    rollback takes the table back; the newest version counts, for what lies
    between was taken back. An append table that was
    adopted after a reset has records of an earlier first start below, whose txids are
    other transactions: the newest version says which first start it goes back to, and only
    versions of that are looked at. An entry never changes, and this process
    remembers it.

    Returns:
        The table version, or None when what is left of the log has none.

    Raises:
        TableError: there is no log, or it cannot be read.
    """
    return _find(path, txid, lambda marks: marks.control.get(domain))


def find_version_by_txn(path: str, app: str, txn: int) -> int | None:
    """The newest table version whose ``txn_version`` for ``app`` is at most ``txn``.

    A version before the first transaction of ``app`` counts as lower than all.
    ``app/1`` is the same app after a rollback, which begins lower, ``app/2`` after two. Otherwise as
    :func:`find_version_by_control`.
    """

    def of_app(marks: _Marks) -> _Mark | None:
        found = latest_of_app(marks.txns, app)
        return None if found is None else _Mark(found[1], found[0], None)

    return _find(path, txn, of_app)


def latest_of_app(txns: Mapping[str, int], app: str) -> tuple[int, int] | None:
    """How many rollbacks had been, and the ``txn_version`` of an app behind the last of them; None without one."""
    found = [(0, txns[app])] if app in txns else []
    for name, version in txns.items():
        before, _, rollbacks = name.rpartition("/")
        if before == app and rollbacks.isdecimal():
            found.append((int(rollbacks), version))
    return max(found, default=None)


class _Mark(NamedTuple):
    """A mark by which a version is looked for.

    Attributes:
        stretch: versions side by side with the same one have marks that only grow.
        life: versions with another one are not looked at.
    """

    value: int
    stretch: Hashable
    life: Hashable


class _Marks(NamedTuple):
    """The remembered part of a log entry: small, unlike the entry.

    Attributes:
        control: by domain.
    """

    control: Mapping[str, _Mark]
    txns: Mapping[str, int]


@lru_cache(maxsize=100_000)
def _marks(path: str, version: int, signature: Signature | None) -> _Marks:
    del signature  # part of the key only: a table made anew at the same path has other entries
    commit, control = DeltaLog(path).commit(version), {}
    for domain, value in commit.control.items():
        if isinstance(value, dict) and isinstance(value.get("txid"), int):
            incarnation = value.get("incarnation")
            stretch = incarnation, value.get("epoch")
            control[domain] = _Mark(value["txid"], stretch, incarnation and first_id(incarnation))
    return _Marks(control, commit.txns)


def _find(path: str, at_most: int, mark_of: Callable[[_Marks], _Mark | None]) -> int | None:
    log = DeltaLog(path)
    versions = log.contiguous_versions()
    if not versions:
        raise TableError(f"there is no Delta log at {path}")
    lowest, high = versions[0], versions[-1]

    def in_force(version: int) -> _Mark | None:
        """The mark that holds at a version: its own, or of the newest entry before it."""
        marks = (mark_of(_marks(path, each, log.signature(each))) for each in range(version, lowest - 1, -1))
        return next((mark for mark in marks if mark is not None), None)

    newest = mark = in_force(high)
    while mark is not None and newest is not None and mark.life == newest.life:
        if mark.value <= at_most:
            return high
        first = _first_of(in_force, lowest, high, mark.stretch)
        begins = in_force(first)
        if begins is not None and begins.value <= at_most:
            return _last_where(first, high, lambda version: _value(in_force(version)) <= at_most)
        high = first - 1
        mark = in_force(high)
    # Without a mark down to version 0 there was none yet; in a log whose beginning is cleaned up there may have been.
    return high if mark is None and lowest == 0 and high >= 0 else None


def _first_of(in_force: Callable[[int], _Mark | None], lowest: int, high: int, stretch: Hashable) -> int:
    """The first version of the stretch that ``high`` is in."""

    def before(version: int) -> bool:
        found = in_force(version)
        return found is None or found.stretch != stretch

    return _last_where(lowest, high, before) + 1 if before(lowest) else lowest


def _value(mark: _Mark | None) -> float:
    return -math.inf if mark is None else mark.value


def _last_where(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last version at which something holds: at ``low``, not at ``high``, and never again once it ended."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
