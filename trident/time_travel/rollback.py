"""``trident rollback``: all Delta tables of a batch group, its current txid and its positions, as of one transaction.

Without ``apply`` nothing is written. With it the command leads the topology like a coordinator, looks and decides again
under the fence, and stores what it is going to do before it does it. Then each table gets one commit, a log before its
plain table, so that no MERGE comes between; each commit begins the next incarnation, by which a table that has it is
known. ZooKeeper's records follow, and the stored intent goes last: killed anywhere, the same command does the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, CoordinationError, TableError, TopologyError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import same_start, up_to
from trident.coordinators.leadership import Lease
from trident.coordinators.records import Marker, TableMark, UnfinishedRollback
from trident.coordinators.registration import begin_rollback, finish_rollback, unfinished_rollback
from trident.coordinators.repairing import RepairStore
from trident.coordinators.stored_json import Unreadable
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.applying import carry_out, check_leads, engine_for
from trident.maintenance.facts import (
    AUXILIARY,
    LOG,
    PLAIN,
    GroupFacts,
    NonDeltaState,
    TableAt,
    TableFacts,
    TopologyFacts,
    positions,
)
from trident.maintenance.inventory import StoredTable, choose_group, registered, table_now, tables_of, warehouse_of
from trident.running.zookeeper import leading, own_zookeeper
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.kinds import stored_kind
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, LogTables, stored_adds
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableSnapshot
from trident.states.delta.kernel_files import LiveFile, is_plain
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.delta.torn_entries import table_lock
from trident.states.history.kept import plain_as_of, published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.table_watch import ACCEPTED
from trident.states.keyed.tables import adopted_version, merged_upto
from trident.time_travel.rollback_plan import (
    Choices,
    Plan,
    TableMove,
    control_after,
    last_kept_transaction,
    merged_after,
    move_of,
    moved_files,
    plan,
    record_after,
)

# Looks at a topology for a rollback: ZooKeeper, the logs of its tables, manifests. Reads only; no Spark, no JVM.


def inspect_topology(zk: ZooKeeper, warehouse: Place, name: str, group: str | None, txid: int) -> TopologyFacts:
    """Collects the facts that a rollback of a batch group to a transaction needs.

    Args:
        group: None: the only one.

    Raises:
        TopologyError: ZooKeeper knows no such topology or group, or it has several.
        CorruptZnode, TableError: something cannot be read.
    """
    incarnation, identity = registered(zk, name)
    chosen = choose_group(name, list(identity["groups"]), group)
    groups = [chosen, *sorted(identity["groups"].keys() - {chosen})]
    states = list_descriptors(warehouse, name)
    tables = tables_of(states, warehouse, name, incarnation)
    facts = []
    for each in groups:
        own = [table for table in tables if table.group == each]
        looking = _GroupInspection(zk, warehouse, name, each, own, identity["groups"][each])
        facts.append(looking.facts(txid if each == chosen else None))
    wanted = sorted(identity["states"].keys() - {state.name for state in states})
    non_delta_states = _non_delta_states(warehouse, name, incarnation, groups, wanted)
    return TopologyFacts(name, incarnation, identity, tuple(facts), non_delta_states=non_delta_states)


def _non_delta_states(
    warehouse: Place, name: str, incarnation: str, groups: Iterable[str], wanted: Sequence[str]
) -> dict[str, NonDeltaState]:
    """The states without a descriptor; those of a process go with it."""
    found = {state: NonDeltaState("of a kind that no manifest names") for state in wanted}
    for group in groups if wanted else ():
        # Every transaction names all states of its group. After a rollback the newest has not the greatest number.
        store = ManifestStore(warehouse, name, group)
        manifest = store.newest_of(up_to(incarnation)) or next((one for _, one in store.newest_first()), None)
        for table in manifest.tables if manifest is not None else ():
            if table.state in found and stored_kind(table.kind, table.state).in_process:
                del found[table.state]
            elif table.state in found:
                found[table.state] = NonDeltaState(table.kind, group)
    return found


@dataclass
class _GroupInspection:
    """Inspects one batch group."""

    zk: ZooKeeper
    warehouse: Place
    topology: str
    group: str
    tables: Sequence[StoredTable]
    tx_ids: Sequence[str]

    def facts(self, txid: int | None) -> GroupFacts:
        """Args:
        txid: of the rollback; None of a group that stays.
        """
        record, decision, _ = GroupStore(self.zk, self.topology, self.group, self.tx_ids).load()
        if record is None:
            raise TopologyError(
                f"batch group {self.group!r} of {self.topology} has no transaction yet",
                action="start the topology once, and stop it",
            )
        tables = tuple(self._table(table, txid) for table in self.tables)
        facts = GroupFacts(self.group, record, decision, tables)
        if txid is None:
            return facts
        last = last_kept_transaction(tables)
        facts = replace(facts, begun=self._begun(tables, last.txid if last else 0))
        if last is None:
            return facts
        manifest = decided_manifest(self.warehouse, self.topology, self.group, record.incarnation, last)
        since = tuple(self._since(last, record.incarnation)) if manifest else ()
        return replace(facts, manifest=manifest, since=since)

    def _table(self, table: StoredTable, txid: int | None) -> TableFacts:
        snapshot = DeltaLog(self.warehouse / table.path).at()
        control_of(snapshot)
        now = replace(table_now(table, snapshot, None), unwritable=why_unwritable(snapshot))
        if txid is None:
            return replace(now, then=now.now)
        try:
            older = self._then(table, now.now.control, txid)
        except TableError as error:
            return replace(now, unknown=error.message)
        now = replace(now, then=table_at(table, older), unwritable=now.unwritable or why_unwritable(older))
        return replace(now, gone=tuple(missing_files(self.warehouse / table.path, move_of(now).comes)))

    def _then(self, table: StoredTable, now: ControlRecord, txid: int) -> LogSnapshot:
        """The newest version without a later transaction; of a table that began later the one with which it began.

        Raises:
            TableError: what is left of the log does not say.
        """
        path = self.warehouse / table.path
        try:
            plain = plain_as_of(self.warehouse, table.state, txid) if table.role == PLAIN and table.state else None
            found = plain or published_as_of(path, self.topology, self.group, now.incarnation, txid)
            version = found.version
        except SnapshotUnavailable:
            began = self._beginning(DeltaLog(path), now, txid)
            if began is None:
                raise
            version = began
        return DeltaLog(path).at(version)

    def _beginning(self, log: DeltaLog, now: ControlRecord, txid: int) -> int | None:
        """The version with which a table that began after a transaction began; None of a table that had begun."""
        for version in log.versions():
            found = log.commit(version).control.get(DOMAIN)
            if isinstance(found, Mapping) and same_start(str(found.get("incarnation")), now.incarnation):
                return version if found.get("attempt_id") == -1 and int(found.get("starts_at", 0)) > txid else None
        return None

    def _since(self, last: Marker, incarnation: str) -> Iterator[Mapping[str, Mapping[str, Any]]]:
        """The streams of later attempts, as their manifests have them: a stream may have come after ``last``."""
        for decision, manifest in ManifestStore(self.warehouse, self.topology, self.group).newest_first():
            if decision.txid <= last.txid:
                return  # so are all that follow; each that is kept is a file to read
            if same_start(manifest.incarnation, incarnation):
                yield manifest.spouts

    def _begun(self, tables: Sequence[TableFacts], txid: int) -> dict[int, int]:
        """Attempts at later transactions, of all that the tables' logs tell."""
        found: dict[int, int] = {}
        for table in tables:
            if table.role == PLAIN or table.then is None:
                continue
            log = DeltaLog(self.warehouse / table.path)
            for version in log.versions():
                control = log.commit(version).control.get(DOMAIN) if version > table.then.version else None
                if isinstance(control, Mapping):
                    each, attempt = int(control["txid"]), int(control["attempt_id"])
                    if each > txid and attempt >= 0:
                        found[each] = max(found.get(each, 0), attempt)
        return found


def control_of(snapshot: LogSnapshot) -> ControlRecord:
    """A table version's control record.

    Raises:
        ForeignTable: it has none.
    """
    return decode_control(snapshot.path, snapshot.control(DOMAIN))


def table_at(table: StoredTable, snapshot: LogSnapshot) -> TableAt:
    """A table version as a rollback sees it."""
    control_of(snapshot)
    return table_now(table, snapshot, None).now


def why_unwritable(snapshot: LogSnapshot) -> str:
    """Why this framework does not write log entries of a table itself; "" where it does."""
    if storage.reached_path(snapshot.path) is None:
        return "it is on a file system that Spark alone reads"
    if snapshot.has_vectors:
        return "it has files of which only some rows count (deletion vectors)"
    if not is_plain(snapshot.protocol, snapshot.schema_json):
        return "it has features of Delta whose log entries are left to Delta"
    return ""


def missing_files(root: Place, files: Iterable[LiveFile]) -> Iterator[str]:
    """Those files of a table that are not there, or not whole."""
    for file in files:
        found = storage.stat_file(root / file.path)
        if found is None or found.size != file.size:
            yield file.path


def decided_manifest(warehouse: Place, topology: str, group: str, incarnation: str, last: Marker) -> Manifest | None:
    """The manifest of the attempt that was decided: the one that has the digest; None where it is not kept."""
    folder = warehouse / "_trident" / topology / group / "manifests"
    names = f"{last.txid}-{last.attempt_id}"
    for place in (*(folder / each for each in up_to(incarnation)), folder):
        for name in storage.list_names(place):
            if name != f"{names}.json" and not (name.startswith(f"{names}-") and name.endswith(".json")):
                continue
            try:
                data = storage.read(place / name)
                if hashlib.sha256(data).hexdigest() == last.digest:
                    return Manifest.decode(data)
            except (FileNotFoundError, TableError, Unreadable):
                continue
    return None


# Commits to the tables of a rollback: each gets the files of one of its versions again, and the next incarnation.


TABLE = faults.register("rollback.table", "the commit that takes a table back to an earlier transaction")
_COMMIT_TRIES = 20


class TableCommits:
    """Commits what an intent says; a table that has the next incarnation is done."""

    def __init__(
        self, engine: KernelEngine, warehouse: Place, topology: str, intent: UnfinishedRollback, epoch: int
    ) -> None:
        self._engine, self._warehouse, self._topology = engine, warehouse, topology
        self._intent, self._epoch = intent, epoch
        self._logs = LogTables()

    def control(self, table: StoredTable) -> ControlRecord:
        """A table's control record, as it is now."""
        return control_of(self._logs.load(str(self._warehouse / table.path)))

    def take_back(self, table: StoredTable, check_leads: Callable[[], None]) -> str:
        """One commit, tried again where another came first.

        Args:
            check_leads: raises where this process leads no longer.

        Returns:
            what was done, as text.

        Raises:
            TableError: it was not done; nothing of this table was changed, or it is not known.
        """
        path = str(self._warehouse / table.path)
        met: TableError | None = None
        for _ in range(_COMMIT_TRIES):
            snapshot = self._engine.load(path)
            if decode_control(path, snapshot.control(DOMAIN)).incarnation == self._intent.incarnation:
                return f"table {table.path} is of then again, as version {self._version_of(path, snapshot.version)}"
            # Behind the look: a version that another leader has made meanwhile is not this process's to take back.
            check_leads()
            try:
                # MERGEs of other processes of this host share this lock, and need no lease.
                with faults.fault_point(TABLE), table_lock(path):
                    self._commit(table, snapshot)
            except (CommitConflict, CommitOutcomeUnknown) as error:
                met = error
        raise TableError(f"no commit to {path} came about {_COMMIT_TRIES} times in a row", found=met) from met

    def _commit(self, table: StoredTable, snapshot: TableSnapshot) -> None:
        path, intent = snapshot.path, self._intent
        stays = table.group != intent.group
        log = DeltaLog(path)
        newest = log.at(snapshot.version)
        older = newest if stays else log.at(self._wanted(table))
        now, then = table_at(table, newest), table_at(table, older)
        if table.role == LOG and table.state is not None and not stays:
            now = replace(now, control=replace(now.control, floor=self._floor(table.state, now.control)))
        goes, comes = moved_files(table.role, now, then)
        gone = list(missing_files(self._warehouse / table.path, comes))
        problem = why_unwritable(newest) or why_unwritable(older) or (f"{gone[0]} is gone" if gone else "")
        if problem:
            raise TableError(
                f"table {path} cannot be taken back to its version {older.version}: {problem}",
                action="it was another table when the rollback was begun: fix that, and run the command again",
            )
        last = None if stays else intent.last
        adds = stored_adds(log.segment(older.version).replay()) if comes else {}
        control = control_after(table.role, now.control, then.control, last, intent.incarnation, self._epoch)
        note = {"topology": self._topology, "txid": intent.txid, "from": newest.version, "version": older.version}
        self._engine.take_back(
            snapshot,
            goes,
            [adds[file.path] for file in comes],
            self._txns(table, newest, merged_after(then, last)),
            {DOMAIN: control.encode()},
            f"trident/{intent.incarnation}",
            json.dumps({"trident-rollback": note}),
        )

    def _floor(self, state: StateDescriptor, now: ControlRecord) -> int:
        """Up to where the log's rows are in the plain table of then.

        A compactor that was stopped, or a version of this framework that knows no rollbacks, may have dropped more
        since the rollback was planned. Those files are there for an hour longer; later the rollback is refused.
        """
        path = str(self._warehouse / state.plain_path)
        if state.plain_path not in self._intent.tables:
            return min(now.floor, state.starts_at - 1)
        plain = DeltaLog(path).at(self._intent.tables[state.plain_path])
        return min(now.floor, merged_upto(state, plain, now.starts_at))

    def _wanted(self, table: StoredTable) -> int:
        if table.path not in self._intent.tables:
            raise TableError(
                f"table {table.path} was not there when the rollback was begun",
                expected=f"the tables {', '.join(sorted(self._intent.tables))}",
                action="move it out of the warehouse, and run the command again",
            )
        return self._intent.tables[table.path]

    def _txns(self, table: StoredTable, newest: LogSnapshot, merged: int) -> dict[str, int]:
        """P of a plain table under the next incarnation's app, first; and the present one's as it is.

        Delta lets no MERGE of that one come after this commit that began before it: both write its app.
        """
        if table.role != PLAIN or table.state is None:
            return {}
        before = newest.txn_version(table.state.merge_app)
        after = {self._next(table.state).merge_app: merged}
        return after if before is None else {**after, table.state.merge_app: before}

    def _next(self, state: StateDescriptor) -> StateDescriptor:
        return replace(state, incarnation=self._intent.incarnation)

    def marks(self, tables: Iterable[StoredTable], before: Mapping[str, TableMark]) -> dict[str, TableMark]:
        """Table id → the mark that ZooKeeper is to have of a table; all are taken back.

        Args:
            before: ZooKeeper's: a plain table's goes on saying that it has rows of others. Marks of states outside of
                the warehouse have no successor: the next incarnation has not given them anything yet.
        """
        found: dict[str, TableMark] = {}
        for table in tables:
            snapshot = self._logs.load(str(self._warehouse / table.path))
            control, table_id = control_of(snapshot), str(snapshot.metadata["id"])
            version = self._version_of(snapshot.path, snapshot.version)
            if table.role == PLAIN and table.state is not None:
                adopted = adopted_version(snapshot.schema_json) is not None
                digest = before[table_id].digest if table_id in before else ACCEPTED if adopted else ""
                merged = merged_upto(self._next(table.state), snapshot, control.starts_at)
                found[table_id] = TableMark(version, merged, 0, digest)
            elif control.attempt_id >= 0:
                found[table_id] = control.mark(version)
        return found

    def _version_of(self, path: str, newest: int) -> int:
        """The version that the rollback has made; others may have come behind it."""
        for commit in DeltaLog(path).commits_backwards(newest):
            found = commit.control.get(DOMAIN)
            if isinstance(found, Mapping) and found.get("incarnation") == self._intent.incarnation:
                return commit.version
        raise TableError(f"{path} has no commit of incarnation {self._intent.incarnation}")


@dataclass(frozen=True)
class RolledBack:
    """The outcome of the command: a dry run's, or of one that was done.

    Attributes:
        plan: None where one that was begun before is finished: its intent says what it does.
        unfinished: the one that was begun before.
        done: what was done, a text each; empty for a dry run.
    """

    plan: Plan | None
    unfinished: UnfinishedRollback | None = None
    done: tuple[str, ...] = ()


def roll_back(
    name: str,
    txid: int,
    *,
    group: str | None = None,
    choices: Choices | None = None,
    apply: bool = False,
    config: TridentConfig | None = None,
    spark: "SparkSession | None" = None,
) -> RolledBack:
    """Takes a topology's batch group back to a transaction, or says what that would do.

    Run again after it was killed, with the same arguments, it does what is left. Until then no process leads the
    topology. Nothing is deleted: a table version that a reader has pinned stays readable.

    Args:
        name: the topology; no process may lead it.
        txid: the last transaction that stays.
        group: the batch group, where the topology has several.
        choices: what is refused unless it is said.
        apply: False looks only.
        config: the settings: warehouse and ZooKeeper.
        spark: a session with Delta; None makes one, with ``apply`` only.

    Raises:
        TopologyError: there is no such topology or group; or, with ``apply``, the rollback is refused.
        CoordinationError: the topology runs, or another rollback or a reset of it has not ended.
        TableError: a table cannot be read or written; run the command again.
    """
    config, choices = as_config(config), choices or Choices()
    # Before an embedded ZooKeeper is started, which makes the warehouse: a wrong name changes nothing.
    warehouse = warehouse_of(config, name)
    with own_zookeeper(config, warehouse, name, "rollback") as zk:
        unfinished = unfinished_rollback(zk, name)
        _check_same(name, unfinished, txid, group)
        planned = None
        if unfinished is None:
            planned = plan(inspect_topology(zk, warehouse, name, group, txid), txid, choices)
            if apply:
                _refuse(name, planned)
        if not apply or (planned is not None and planned.is_there):
            return RolledBack(planned, unfinished)
        with leading(zk, name, list(registered(zk, name)[1]["groups"])) as lease:
            # Again, now that no other process publishes, or rolls back.
            unfinished, planned = unfinished_rollback(zk, name), None
            _check_same(name, unfinished, txid, group)
            if unfinished is None:
                planned = plan(inspect_topology(zk, warehouse, name, group, txid), txid, choices)
                _refuse(name, planned)
                if planned.is_there:
                    return RolledBack(planned)
                begin_rollback(zk, lease, name, planned.intent)
            intent = unfinished or (planned.intent if planned else None)
            assert intent is not None
            engine = engine_for(f"rollback {name}", config, warehouse, spark)
            done = _Rollback(zk, engine, lease, warehouse, name, intent).run()
        return RolledBack(planned, unfinished, tuple(done))


def _check_same(name: str, unfinished: UnfinishedRollback | None, txid: int, group: str | None) -> None:
    if unfinished is None or (unfinished.txid == txid and group in (None, unfinished.group)):
        return
    raise CoordinationError(
        f"another rollback of {name} was begun and has not ended",
        found=f"one to transaction {unfinished.txid} of batch group {unfinished.group!r}",
        expected=f"that one to be finished before one to transaction {txid}",
        action=f"run `trident rollback {name} --to {unfinished.txid} --apply` first",
    )


def _refuse(name: str, planned: Plan) -> None:
    if planned.refusals:
        raise TopologyError(
            f"{name} is not taken back to transaction {planned.target_txid}; nothing was changed",
            found="; ".join(refusal.text for refusal in planned.refusals),
            action="; ".join(dict.fromkeys(refusal.action for refusal in planned.refusals)),
        )


class _Rollback:
    """Does what an intent says, or what is left of it."""

    def __init__(
        self, zk: ZooKeeper, engine: KernelEngine, lease: Lease, warehouse: Place, name: str, intent: UnfinishedRollback
    ) -> None:
        self._zk, self._lease, self._warehouse, self._name, self._intent = zk, lease, warehouse, name, intent
        epoch = max(fence.epoch for fence in lease.fences.values())
        self._tables = TableCommits(engine, warehouse, name, intent, epoch)

    def run(self) -> list[str]:
        """Returns what was done, a text each."""
        states = list_descriptors(self._warehouse, self._name)
        tables = tables_of(states, self._warehouse, self._name, self._intent.incarnation)
        groups = registered(self._zk, self._name)[1]["groups"]
        check = partial(check_leads, self._zk, self._lease)
        steps: list[Callable[[], str]] = [partial(self._tables.take_back, table, check) for table in tables]
        steps.append(partial(self._describe, tables))
        steps += [partial(self._write_record, group, tx_ids, tables) for group, tx_ids in groups.items()]
        return carry_out(self._zk, self._lease, self._warehouse, [*steps, self._finish])

    def _describe(self, tables: Sequence[StoredTable]) -> str:
        """Tells readers of the next incarnation; one that was taken out later takes part again."""
        for table in tables:
            state = table.state
            if state is None or table.role == PLAIN:
                continue
            ends_at = state.ends_at
            if state.group == self._intent.group and ends_at is not None and ends_at > self._intent.last.txid:
                ends_at = None
            starts_at = self._tables.control(table).starts_at
            check_leads(self._zk, self._lease)
            replace(state, incarnation=self._intent.incarnation, starts_at=starts_at, ends_at=ends_at).save(
                self._warehouse
            )
        return f"states are of incarnation {self._intent.incarnation}"

    def _write_record(self, group: str, tx_ids: Sequence[str], tables: Sequence[StoredTable]) -> str:
        intent = self._intent
        store = RepairStore(self._zk, self._name, group, tx_ids, self._lease.fences[group])
        record, _, _ = store.load()
        if record is not None and record.incarnation != intent.incarnation:
            marks = self._tables.marks([table for table in tables if table.group == group], record.tables)
            if group != intent.group:
                store.carry(intent.incarnation, marks)
            else:
                manifest = decided_manifest(self._warehouse, self._name, group, intent.incarnation, intent.last)
                if manifest is None:
                    raise TableError(
                        f"the manifest of transaction {intent.last.txid} is gone since the rollback was begun",
                        expected=f"the manifest of attempt {intent.last.attempt_id} with sha256 "
                        f"{intent.last.digest[:16]}…",
                        action="bring it back from a back-up of the warehouse, and run the command again",
                    )
                pins, opaque = positions(manifest.spouts, intent.last.txid)
                store.rebuild(record_after(record, intent, marks), None, pins, opaque, intent.last.txid)
        return f"ZooKeeper's record of batch group {group} is of incarnation {intent.incarnation}"

    def _finish(self) -> str:
        finish_rollback(self._zk, self._lease, self._name, self._intent.incarnation)
        return f"batch group {self._intent.group} continues with transaction {self._intent.last.txid + 1}"


# ``trident rollback NAME --to N``: the report of a dry run, and of what was done.


_ROLES = {LOG: "log of a keyed state", PLAIN: "keyed state", AUXILIARY: "with the states"}


def report(name: str, rolled_back: RolledBack, applied: bool) -> str:
    """Returns what would be done, or was done, for a terminal."""
    unfinished = rolled_back.unfinished
    lines: list[str] = []
    if rolled_back.plan is not None:
        lines += _plan_lines(rolled_back.plan)
    elif unfinished is not None:
        lines.append(
            f"{name}: a rollback to transaction {unfinished.txid} of batch group {unfinished.group} was begun and has "
            "not ended"
        )
    if rolled_back.plan is not None and rolled_back.plan.is_there:
        return "\n".join([*lines, "It is at that transaction: there is nothing to take back."])
    if applied:
        return "\n".join([*lines, *(f"done: {text}" for text in rolled_back.done), f"{name} may be started again."])
    lines.append("Nothing was changed: this was a dry run.")
    if unfinished is not None:
        lines.append("--apply does the rest of it; until then the topology does not start.")
    elif rolled_back.plan is not None and not rolled_back.plan.refusals:
        lines.append("--apply does it.")
    return "\n".join(lines)


def _plan_lines(plan: Plan) -> Iterator[str]:
    group, last = plan.group, plan.group.recorded.current_txid - 1
    yield f"{plan.facts.name}, batch group {group.name}: transaction {last} is the last that has advanced"
    if plan.is_there:
        return
    if plan.refusals:
        yield f"It cannot be taken back to transaction {plan.target_txid}:"
        for refusal in plan.refusals:
            yield f"  - {refusal.text}"
            yield f"    {refusal.action}"
        return
    assert plan.last is not None, "a plan that is not refused has it"
    if plan.last.txid < plan.target_txid:
        yield (
            f"Transactions {plan.last.txid + 1} to {plan.target_txid} changed nothing: what they read is read again, "
            f"and counted from transaction {plan.last.txid + 1} on"
        )
    if group.decision is not None:
        yield f"transaction {group.decision.txid}, which is decided and not finished, is taken back with the others"
    yield f"Taken back to transaction {plan.last.txid}; the next is {plan.last.txid + 1}:"
    yield from (_move_line(move) for move in plan.moves)
    yield from _source_lines(plan)
    yield from _reader_lines(plan)


def _move_line(move: TableMove) -> str:
    table, (goes, comes) = move.table, move.rows
    role = f" ({_ROLES[table.role]})" if table.role in _ROLES else ""
    known = ["an unknown number of rows" if count is None else f"{count:,} rows" for count in (goes, comes)]
    version = table.then.version if table.then is not None else "?"
    return f"  {table.path}{role}: {known[0]} go, {known[1]} come back: those of table version {version}"


def _source_lines(plan: Plan) -> Iterator[str]:
    spouts = plan.group.manifest.spouts if plan.group.manifest else {}
    assert plan.last is not None
    for tx_id, spout in sorted(spouts.items()):
        if tx_id in plan.lost:
            yield f"  stream {tx_id} ({spout.get('spout')}): what it has given since DOES NOT COME AGAIN"
        else:
            yield f"  stream {tx_id} ({spout.get('spout')}): continues after transaction {plan.last.txid}"
    for name in plan.left:
        stays = plan.facts.non_delta_states[name].group not in ("", plan.group.name)
        of = "of a batch group that stays, with marks of the incarnation before" if stays else "with later rows"
        yield f"  state {name}: left as it is, {of}; its next start asks what to do"
    for group in plan.facts.groups[1:]:
        yield f"  batch group {group.name}: stays at transaction {group.recorded.current_txid - 1}"


def _reader_lines(plan: Plan) -> Iterator[str]:
    yield "Readers downstream:"
    yield "  - a reader that has pinned a table version reads on: no file is deleted, until a VACUUM"
    yield "  - one that looks anew sees the rows of then; tables change one after the other, within a few seconds"
    yield (
        "  - a stream that reads one of these tables meets a commit that deletes rows: Spark's fails without "
        "skipChangeCommits, and a change data feed has the rows that go as deletes"
    )
    yield (
        f"  - states are read as of transaction {plan.last.txid if plan.last else '?'} from then on, of incarnation "
        f"{plan.incarnation}"
    )
