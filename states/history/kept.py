"""The kept past of a batch group: manifests of its transactions, and the versions of its tables as of each.

A kept manifest says of its transaction: which attempt it was and on which it
built, the metadata from which each stream's batch came (of an opaque source
where it stood afterwards), and the files that each state was given. The files
themselves are there as long as their table needs them:

- of an append table until another program's VACUUM, after an OPTIMIZE or a
  DELETE, removes them;
- of a keyed state's log until it has dropped them, which it does behind
  ``snapshot_retention_txids``, and an hour has passed;
- of states without a table (maps, users' own, outside of the warehouse) until
  the transaction has advanced: of these the manifest has the counts alone.

Rows that only waited for their transaction's turn (boundaries) go with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

from trident.coordinators.errors import ForeignTable, TableError, TransactionNotKept
from trident.coordinators.identities import TransactionAttempt, same_start
from trident.coordinators.records import Decision
from trident.coordinators.stored_json import Unreadable
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.core.storage import AT_ONCE, run_concurrently
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, TableMissing, has_log
from trident.states.delta.history import control_at
from trident.states.delta.manifest import Manifest, ManifestStore, attempt_of
from trident.states.history.transaction_rows import PublishedAs
from trident.states.keyed.compaction import SnapshotUnavailable

# The versions of a batch group's Delta tables as of a transaction, from their logs alone: no Spark, no ZooKeeper.
#
# A published table (the log of a keyed state, an append table, a table of dead letters) says in its control records
# which
# transactions it has; the plain table of a keyed state says in the SetTransaction of its MERGEs up to which transaction
# it is merged. Both only grow with the version within one stretch of a table's life (``states.delta.history``), so a
# handful of entries is read, whatever the log's length: milliseconds for thousands of entries.
#
# The transaction must have advanced, which only ZooKeeper, a kept manifest or a merged plain table tells: one that is
# being published is in some tables and not yet in others.


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
        self.versions = self._log.contiguous_versions()
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
        for commit in self._log.commits_backwards(version):
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
        for version, control, at in _entries_backwards(warehouse / path, incarnation, min(txids)):
            if control.txid in txids and control.is_of(decided[control.txid]):
                entries[control.txid][table_id] = version, at
    return {txid: _as(of_txid) for txid, of_txid in entries.items()}


def _as(entries: Mapping[str, tuple[int, float | None]]) -> PublishedAs:
    versions = {table_id: version for table_id, (version, _) in entries.items()}
    return PublishedAs(versions, max((at for _, at in entries.values() if at is not None), default=None))


def _entries_backwards(path: Place, incarnation: str, txid: int) -> Iterator[_Entry]:
    """The entries with a control record, the newest first, down to those of an incarnation's transactions before one.

    Those of later incarnations are passed: behind a rollback their transactions have smaller numbers again.
    """
    log = DeltaLog(path)
    versions = log.versions()
    step = 1 if path.is_local else AT_ONCE
    for end in range(len(versions), 0, -step):
        some = versions[max(end - step, 0) : end][::-1]
        for entry in run_concurrently([partial(_entry, log, version) for version in some]):
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


# Which transactions the Delta tables of a batch group say that they have: by their control records, from their logs.
#
# A transaction that is decided is published to every table of its group. So a table tells of a transaction without a
# manifest whether it changed nothing or lost its manifest, and of two manifests which was decided.


@dataclass(frozen=True)
class Publication:
    """The last of some transactions that was published.

    Attributes:
        control: the control record of it; None: none was published, or it is not known.
        known: False where the tables cannot tell.
        silent: tables that would have to know it and do not, each with why.
    """

    control: ControlRecord | None
    known: bool
    silent: tuple[str, ...] = ()


class Publications:
    """The word of the tables of one batch group; their descriptors are read once.

    Args:
        of: with the incarnation of the topology, as its tables have it now.
    """

    def __init__(self, of: GroupContext) -> None:
        self._of = of

    def last_of(self, first: int, last: int) -> Publication:
        """The last of the transactions ``first`` to ``last`` that a table has; not known of a group without tables.

        Raises:
            TableError: a descriptor cannot be read.
        """
        known, silent = False, list[str]()
        for state in self._states:
            if state.starts_at > last:
                continue
            try:
                path = self._of.warehouse / state.published_path
                control = published_as_of(path, self._of.topology, self._of.group, self._of.incarnation, last).control
            except (SnapshotUnavailable, TableError) as error:
                silent.append(str(error))
                continue
            if control.attempt_id >= 0 and first <= control.txid:
                return Publication(control, True)
            takes_part = state.ends_at is None or state.ends_at >= last
            known = known or (takes_part and control.starts_at <= first)
        return Publication(None, known, tuple(silent))

    def check_changed_nothing(self, first: int, last: int, kept: tuple[int, int]) -> None:
        """Checks that transactions without a manifest changed nothing.

        Args:
            kept: the oldest and the newest transaction whose manifest is kept.

        Raises:
            TransactionNotKept: a table has one of them: its manifest is lost. Or no table can tell.
        """
        found = self.last_of(first, last)
        where = f"{self._of.topology}/{self._of.group}"
        if found.control is not None:
            raise TransactionNotKept(
                f"the manifest of transaction {found.control.txid} of {where} is lost: the transaction changed tables",
                txid=found.control.txid,
                oldest=kept[0],
                newest=kept[1],
                found=f"manifests of transactions before and after it, of {kept[0]} to {kept[1]}",
                expected=f"the manifest of attempt {found.control.attempt_id}",
                action="bring it back from a back-up of the warehouse; or take transactions on one side of it only",
            )
        if not found.known and found.silent:
            raise TransactionNotKept(
                f"nothing tells whether transaction {last} of {where} changed nothing, or its manifest is lost",
                txid=last,
                oldest=kept[0],
                newest=kept[1],
                found="; ".join(found.silent),
                expected="a table whose log goes back to it",
                action="take later transactions; delta.logRetentionDuration of a table sets how long its log is kept",
            )

    @cached_property
    def _states(self) -> list[StateDescriptor]:
        return descriptors_of_group(self._of.warehouse, self._of.topology, self._of.group)


class KeptManifests:
    """The manifests of one batch group, by txid: of each transaction that of the attempt that was decided.

    Reads files alone, without ZooKeeper: a manifest that is newer than what the tables have is not given, since it
    may not be decided. A transaction that changed nothing has no manifest; one whose manifest is lost is told from it
    by the tables, of which one has it. For one thread.

    Args:
        upto: the last transaction that is published, where the caller knows it (from ZooKeeper); None: the tables are
            asked. Of a group without Delta tables they cannot tell of the newest manifest, which is then not given.
    """

    def __init__(self, of: GroupContext, upto: int | None = None) -> None:
        self.of, self._upto = of, upto
        self._store = ManifestStore(of.warehouse, of.topology, of.group, of.incarnation)
        self._publications = Publications(of)
        self._changed_nothing: set[tuple[int, int]] = set()  # (first, last) of which the tables say so
        self._files: dict[int, tuple[Place, ...]] = {}  # of each txid, the latest attempt first
        self._kept: list[int] = []  # as they were last looked for
        self._read: dict[Place, tuple[Decision, Manifest] | None] = {}  # the last few; None: it cannot be read

    def txids(self) -> list[int]:
        """Returns the transactions whose manifests are kept, the oldest first.

        Raises:
            OSError: the folder cannot be listed.
        """
        files = self._store.names()
        dated = sorted((attempt_of(name) or TransactionAttempt(0, 0), name) for name in files)
        self._files = {
            txid: tuple(files[name] for _, name in reversed(list(group)))
            for txid, group in groupby(dated, key=lambda each: each[0].txid)
        }
        txids = sorted(self._files)
        if self._upto is not None:
            txids = [txid for txid in txids if txid <= self._upto]
        elif txids and not self._is_published(txids[-1]):
            txids.pop()  # one transaction is decided at a time: of the greatest alone it is not known
        self._kept = txids
        return list(txids)

    def unreadable_last(self) -> tuple[int, str] | None:
        """The transaction behind those of the last :meth:`txids` whose manifest is there and cannot be read, and why.

        It may have been decided or not; None where there is no such one.
        """
        txid = max(self._files, default=0)
        if not txid or txid in self._kept or any(self._manifest(path) is not None for path in self._files[txid]):
            return None
        return txid, f"the manifest {self._files[txid][0]}, which may have been decided or not"

    def read(self, txid: int) -> Manifest:
        """Returns the manifest of the attempt that was decided.

        Raises:
            TransactionNotKept: there is none, or no longer: the message says which are kept.
            TableError: it is there, and cannot be read.
        """
        return self.decided(txid)[1]

    def decided(self, txid: int) -> tuple[Decision, Manifest]:
        """As :meth:`read`, with the decision that named the manifest: its path, size and digest."""
        found = self._decided(txid) if txid in self._kept or txid in self.txids() else None
        if found is None:
            raise self._not_kept(txid)
        return found

    def read_if_any(self, txid: int, upto: int = 0) -> Manifest | None:
        """As :meth:`read`; None of a transaction that changed nothing, where the tables do not contradict.

        Args:
            upto: a transaction that has advanced: of those behind the newest kept manifest up to it nothing is missing.

        Raises:
            TransactionNotKept: the transaction is not among those kept; or its manifest is lost, since a table has it.
            TableError: its manifest, or a table, cannot be read.
        """
        kept = self._kept or self.txids()
        found = self._decided(txid) if txid in kept else None
        if found is not None:
            return found[1]
        if not self._kept or not self._kept[0] <= txid <= max(upto, self._kept[-1]):
            raise self._not_kept(txid)
        self._check_changed_nothing(txid)
        return None

    def _decided(self, txid: int) -> tuple[Decision, Manifest] | None:
        """None where none of the manifests that are there is that of the decision."""
        parent, control = self._parent_of_next(txid), None
        if parent is None:
            # The next transaction has no manifest, or it is not readable: the tables tell.
            published = self._publications.last_of(txid, txid)
            control = published.control
            if published.known and control is None:
                return None
            if control is not None:
                parent = TransactionAttempt(control.txid, control.attempt_id)
        files = [path for path in self._files[txid] if parent is None or attempt_of(path.name) == parent]
        for path in files:
            found = self._manifest(path)
            if found is not None and (control is None or control.is_of(found[0])):
                return found
        if not files or txid not in self.txids():  # another attempt, which had nothing to publish; or cleaned up since
            return None
        raise TableError(
            f"the manifest {files[0]} of transaction {txid} cannot be read, or is not that of its name",
            expected=f"transaction {txid} of {self.of.topology}/{self.of.group}, incarnation {self.of.incarnation}",
            action="bring it back from a back-up of the warehouse",
        )

    def _check_changed_nothing(self, txid: int) -> None:
        """Asks the tables of all transactions without a manifest around this one at once."""
        first = last = txid
        if txid not in self._kept:
            at = bisect_left(self._kept, txid)
            first = self._kept[at - 1] + 1
            last = self._kept[at] - 1 if at < len(self._kept) else txid
        if (first, last) not in self._changed_nothing:
            self._publications.check_changed_nothing(first, last, (self._kept[0], self._kept[-1]))
            self._changed_nothing.add((first, last))

    def _parent_of_next(self, txid: int) -> TransactionAttempt | None:
        """The attempt on which the next transaction builds, where its manifest is kept too."""
        for path in self._files.get(txid + 1, ()):
            found = self._manifest(path)
            if found is not None:
                return found[1].parent
        return None

    def _manifest(self, path: Place) -> tuple[Decision, Manifest] | None:
        if path not in self._read:
            while len(self._read) >= 4:
                del self._read[next(iter(self._read))]
            self._read[path] = self._read_whole(path)
        return self._read[path]

    def _read_whole(self, path: Place) -> tuple[Decision, Manifest] | None:
        """None for one that a process has left half written, or that is another's."""
        try:
            decision, manifest = self._store.read_found(path)
        except (TableError, Unreadable, FileNotFoundError):
            return None
        said = (manifest.topology, manifest.group, manifest.incarnation, manifest.attempt)
        ours = (self.of.topology, self.of.group, self.of.incarnation, attempt_of(path.name))
        return (decision, manifest) if said == ours else None

    def _is_published(self, txid: int) -> bool:
        """Tells whether a table has a transaction, or a later one: then it was decided."""
        for path in self._files[txid]:
            found = self._manifest(path)
            if found is None:
                continue
            decision, manifest = found
            for folder in {table.path for table in manifest.tables if table.state_kind.has_table}:
                table = self.of.warehouse / folder
                control = control_at(table) if has_log(table) else None
                # Also of the incarnation behind a rollback to this very transaction.
                if control is not None and control.is_of(decision):
                    return True
                if control is not None and control.incarnation == self.of.incarnation and control.txid > txid:
                    return True
            # Another incarnation has published behind it: the tables' logs tell.
            if published_as(self.of.warehouse, [found])[txid].versions:
                return True
        return False

    def _not_kept(self, txid: int) -> TransactionNotKept:
        """The error to raise; raises one itself where the manifest is lost."""
        kept = [other for other in self._kept if other != txid]
        where = f"transaction {txid} of {self.of.topology}/{self.of.group}"
        if not kept:
            return TransactionNotKept(
                f"no manifest of {where} is kept, nor of another transaction",
                txid=txid,
                expected=f"some in {self.of.folder / 'manifests'}",
                action="let the topology run with history_retention_txids above 0",
            )
        inside = kept[0] < txid < kept[-1]
        if inside:
            self._check_changed_nothing(txid)
        return TransactionNotKept(
            f"{where} has no manifest: it changed nothing" if inside else f"no manifest of {where} is kept",
            txid=txid,
            oldest=kept[0],
            newest=kept[-1],
            found=f"{len(kept)} are kept, of transactions {kept[0]} to {kept[-1]}",
            action=f"take one of {_nearest_kept(kept, txid)}; "
            "history_retention_txids and history_retention_secs say how many are kept",
        )


def _nearest_kept(kept: list[int], txid: int) -> str:
    """The nearest transactions that are kept."""
    nearest = sorted(sorted(kept, key=lambda other: abs(other - txid))[:3])
    return ", ".join(map(str, nearest))
