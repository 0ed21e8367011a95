"""The versions of a batch group's Delta tables as of a transaction, from their logs alone: no Spark, no ZooKeeper.

A published table (the log of a keyed state, an append table, a table of dead letters) says in its control records which
transactions it has; the plain table of a keyed state says in the SetTransaction of its MERGEs up to which transaction
it is merged. Both only grow with the version within one stretch of a table's life (``states.delta.history``), so a
handful of entries is read, whatever the log's length: milliseconds for thousands of entries.

The transaction must have advanced, which only ZooKeeper, a kept manifest or a merged plain table tells: one that is
being published is in some tables and not yet in others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from trident.coordinators.errors import ForeignTable, TableError
from trident.coordinators.incarnation_ids import same_start
from trident.coordinators.records import Decision
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group
from trident.states.core.place import Place
from trident.states.core.side_by_side import AT_ONCE, side_by_side
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, TableMissing, has_log
from trident.states.delta.manifest import Manifest
from trident.states.history.transaction_rows import PublishedAs
from trident.states.keyed.compaction import SnapshotUnavailable


@dataclass(frozen=True)
class PublishedVersion:
    """A version of a table that transactions are published to.

    Attributes:
        path: the table's folder.
        version: the newest table version that has no later transaction.
        control: the control record that holds there: its txid is the last transaction that the table has, at most the
            wanted one; its floor, of a log, up to where rows were dropped by then.
    """

    path: Place
    version: int
    control: ControlRecord


@dataclass(frozen=True)
class PlainVersion:
    """A version of the plain table of a keyed state.

    Attributes:
        path: the table's folder.
        version: the newest table version that is not merged further than wanted.
        merged: P: it has the transactions up to this one.
    """

    path: Place
    version: int
    merged: int


@dataclass(frozen=True)
class StateVersions:
    """The tables of one state as of a transaction.

    Attributes:
        published: the log of a keyed state, or the append table.
        plain: None of an append, and where no MERGE has made the table yet.
    """

    state: StateDescriptor
    published: PublishedVersion
    plain: PlainVersion | None


def published_as_of(path: Place, topology: str, group: str, incarnation: str, txid: int) -> PublishedVersion:
    """The newest version of a published table that has no transaction after ``txid``.

    Of a txid above all that the table has this is its newest version.

    Raises:
        SnapshotUnavailable: what is left of the log does not reach back so far, or the table began later.
        TableError: there is no table, or its log cannot be read.
        ForeignTable: it is of another topology, group or incarnation.
    """
    log = _Log(path)
    newest = log.control_at(log.versions[-1])
    if newest is None:
        raise log.cleaned(txid)
    _check_own(path, newest, (topology, group, incarnation))
    version = history.find_version_by_control(str(path), DOMAIN, txid)
    control = None if version is None or not log.has(version) else log.control_at(version)
    if version is None or control is None or not same_start(control.incarnation, incarnation):
        raise log.cleaned(txid)
    return PublishedVersion(path, version, control)


def plain_as_of(warehouse: Place, state: StateDescriptor, txid: int) -> PlainVersion | None:
    """The newest version of a keyed state's plain table merged up to ``txid`` at most; None where there is none.

    Before its first MERGE a table is merged up to the transaction before the state's first.

    Raises:
        SnapshotUnavailable: what is left of the log does not reach back so far.
        TableError: the log cannot be read.
    """
    path = Place(warehouse) / state.plain_path
    if not has_log(path):
        return None
    log = _Log(path)
    version = history.find_version_by_txn(str(path), state.merge_app_at_first, txid)
    if version is None or not log.has(version):
        raise log.cleaned(txid)
    return PlainVersion(path, version, log.merged_at(version, state))


def group_as_of(
    warehouse: Place, topology: str, group: str, txid: int, incarnation: str | None = None
) -> Mapping[str, StateVersions]:
    """All states of a batch group as of one transaction, by their names.

    States that began after it are left out; a state that has left the topology is as it was last. The rows of a keyed
    state as of ``txid`` are those of ``plain`` with the log's rows of ``plain.merged`` < ``_txid`` ≤ ``txid`` on top.

    Args:
        txid: one that has advanced.
        incarnation: of the topology; None: of the descriptors.

    Raises:
        SnapshotUnavailable: a table no longer has it: ``available`` says from where on it does, if that is known.
        TableError: there is no such group, or a table is missing or cannot be read.
        ForeignTable: a table is of another topology, group or incarnation.
    """
    warehouse = Place(warehouse)
    states = descriptors_of_group(warehouse, topology, group)
    if not states:
        raise TableError(
            f"there is no state of batch group {group!r} of topology {topology!r} in {warehouse}",
            action="check the names and the warehouse",
        )
    found = {}
    for state in states:
        if state.starts_at - 1 <= txid:
            whose = incarnation or state.incarnation
            published = published_as_of(warehouse / state.published_path, topology, group, whose, txid)
            found[state.name] = _with_plain(warehouse, state, published, txid)
    return found


def _with_plain(warehouse: Place, state: StateDescriptor, published: PublishedVersion, txid: int) -> StateVersions:
    if not state.state_kind.has_log:
        return StateVersions(state, published, None)
    plain = plain_as_of(warehouse, state, txid)
    # Rows up to the floor are in the plain table alone; up to today's one, for what was dropped since is swept.
    log = _Log(published.path)
    now = log.control_at(log.versions[-1]) or published.control
    if (state.starts_at - 1 if plain is None else plain.merged) < now.floor:
        raise SnapshotUnavailable(
            f"transaction {txid} is no longer kept for state {state.name}",
            txid=txid,
            available=now.floor,
            found=f"a log that begins after {now.floor}",
            action=f"name transaction {now.floor} or a later one; snapshot_retention_txids of a state sets how many "
            "are kept",
        )
    return StateVersions(state, published, plain)


class _Log:
    """The entries that are left of a table's log, as it was when it was listed.

    Attributes:
        versions: those that have an entry, without those below a hole.
    """

    def __init__(self, path: Place) -> None:
        self.path, self._log = path, DeltaLog(path)
        self.versions = self._log.unbroken()
        if not self.versions:
            raise TableMissing(f"there is no Delta table at {path}")

    def has(self, version: int) -> bool:
        """Tells whether the log says what the table was at a version: from its beginning on, or from a checkpoint."""
        lowest = self.versions[0]
        return lowest == 0 or self._log.segment(version).begin >= lowest - 1

    def control_at(self, version: int) -> ControlRecord | None:
        """The control record that holds at a version; None where the entries that are left up to it have none."""
        return history.control_at(self.path, version)

    def merged_at(self, version: int, state: StateDescriptor) -> int:
        """P of a plain table at a version."""
        for commit in self._log.commits_down(version):
            found = history.latest_of_app(commit.txns, state.merge_app_at_first)
            if found is not None:
                return max(found[1], state.starts_at - 1)
        return state.starts_at - 1

    def cleaned(self, txid: int) -> SnapshotUnavailable:
        """The error for a transaction that the log does not reach back to."""
        oldest = self._oldest()
        from_on = "" if oldest is None else f"; of transaction {oldest} and later ones it has"
        return SnapshotUnavailable(
            f"table {self.path.name} has no version as of transaction {txid}{from_on}",
            txid=txid,
            available=oldest,
            found=f"log entries from version {self.versions[0]} on",
            expected="the entries, and the checkpoint, of that time",
            action="name a later transaction; delta.logRetentionDuration of the table sets how long its log is kept",
        )

    def _oldest(self) -> int | None:
        """The least transaction of which there is a version since the last reset."""
        newest = self.control_at(self.versions[-1])
        if newest is None:
            return None

        def is_ours(version: int) -> bool:
            control = self.control_at(version) if self.has(version) else None
            return control is not None and same_start(control.incarnation, newest.incarnation)

        first = bisect_left(self.versions, True, key=is_ours)
        control = self.control_at(self.versions[first]) if first < len(self.versions) else None
        return None if control is None else control.txid


def _check_own(path: Place, control: ControlRecord, own: tuple[str, str, str]) -> None:
    found = (control.topology, control.group, control.incarnation)
    if found != own:
        raise ForeignTable(
            f"the table {path} is of another topology, batch group or incarnation",
            found="/".join(found),
            expected="/".join(own),
            action="check the names and the warehouse; `trident reset` begins another incarnation",
        )


# --- the entries by which transactions of long ago were published --------------------------------------------------

_Entry = tuple[int, ControlRecord, float | None]  # version, control record, seconds since the epoch


def published_as(warehouse: Place, found: Sequence[tuple[Decision, Manifest]]) -> dict[int, PublishedAs]:
    """Looks the table versions of transactions up in the logs of their tables; by txid.

    A version that the log has no entry of any more is left out.

    Raises:
        OSError: a log cannot be listed.
    """
    decided = {decision.txid: decision for decision, _ in found}
    wanted: dict[tuple[str, str, str], set[int]] = {}
    for decision, manifest in found:
        for table in manifest.tables:
            if table.state_kind.has_table:
                wanted.setdefault((table.path, table.table_id, manifest.incarnation), set()).add(decision.txid)
    # txid → table id → version and time; the lowest version counts: a log drop behind it carries the record on.
    entries: dict[int, dict[str, tuple[int, float | None]]] = {txid: {} for txid in decided}
    for (path, table_id, incarnation), txids in wanted.items():
        for version, control, at in _entries_down(warehouse / path, incarnation, min(txids)):
            if control.txid in txids and control.is_of(decided[control.txid]):
                entries[control.txid][table_id] = version, at
    return {txid: _as(of_txid) for txid, of_txid in entries.items()}


def _as(entries: Mapping[str, tuple[int, float | None]]) -> PublishedAs:
    versions = {table_id: version for table_id, (version, _) in entries.items()}
    return PublishedAs(versions, max((at for _, at in entries.values() if at is not None), default=None))


def _entries_down(path: Place, incarnation: str, txid: int) -> Iterator[_Entry]:
    """The entries with a control record, the newest first, down to those of an incarnation's transactions before one.

    Those of later incarnations are passed: behind a rollback their transactions have smaller numbers again.
    """
    log = DeltaLog(path)
    versions = log.versions()
    step = 1 if path.is_local else AT_ONCE
    for end in range(len(versions), 0, -step):
        some = versions[max(end - step, 0) : end][::-1]
        for entry in side_by_side([partial(_entry, log, version) for version in some]):
            if entry is None:
                continue
            if entry[1].incarnation == incarnation and entry[1].txid < txid:
                return
            yield entry


def _entry(log: DeltaLog, version: int) -> _Entry | None:
    """None for one without a control record, as of an OPTIMIZE, and for one that cannot be read."""
    try:
        commit = log.commit(version)
        control = commit.domains.get(DOMAIN)
        if control is None:
            return None
        at = commit.info.get("timestamp")
        return version, decode_control(log.path, control), at / 1000.0 if isinstance(at, (int, float)) else None
    except TableError:
        return None
