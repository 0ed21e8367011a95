"""Commits to the tables of a rollback: each gets the files of one of its versions again, and the next incarnation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.coordinators.records import TableMark, UnfinishedRollback
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, stored_adds
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableSnapshot
from trident.states.delta.log_tables import LogTables
from trident.states.delta.table_lock import table_lock
from trident.states.keyed.plain_watch import ACCEPTED
from trident.states.keyed.tables import adopted_version, merged_upto
from trident.time_travel.rollback_facts import APPEND, BESIDE, LOG, PLAIN
from trident.time_travel.rollback_look import control_of, missing_files, own_tables_beside, table_at, why_unwritable
from trident.time_travel.rollback_plan import control_after, merged_after, moved_files

TABLE = faults.register("rollback.table", "the commit that takes a table back to an earlier transaction")
_COMMIT_TRIES = 20


@dataclass(frozen=True)
class TableOf:
    """A table that a rollback commits to.

    Attributes:
        path: relative to the warehouse.
        state: of a plain table.
        log_of: the state of a log.
    """

    group: str
    role: str
    path: str
    state: StateDescriptor | None = None
    log_of: StateDescriptor | None = None


@dataclass(frozen=True)
class Marks:
    """The marks that ZooKeeper is to have of a group's tables behind a rollback.

    Attributes:
        by_id: table id → mark; of a plain table without its digest.
        adopted: plain tables that have rows of others.
        plain: the ids of plain tables.
    """

    by_id: Mapping[str, TableMark] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    adopted: frozenset[str] = frozenset()

    def over(self, before: Mapping[str, TableMark]) -> dict[str, TableMark]:
        """The marks, where a plain table's goes on saying that it has rows of others.

        Args:
            before: ZooKeeper's. Marks of states outside of the warehouse have no successor: the next incarnation has
                not given them anything yet.
        """
        found = dict(self.by_id)
        for table_id in self.plain:
            known = before.get(table_id)
            digest = known.digest if known is not None else ACCEPTED if table_id in self.adopted else ""
            found[table_id] = replace(found[table_id], digest=digest)
        return found


def tables_of(warehouse: Place, topology: str, incarnation: str) -> list[TableOf]:
    """All Delta tables of a topology, logs before plain tables: no MERGE reads a log of the next incarnation.

    Raises:
        TableError: a descriptor cannot be read.
    """
    states = list_descriptors(warehouse, topology)
    published = [
        TableOf(state.group, LOG, state.published_path, log_of=state)
        if state.state_kind.has_log
        else TableOf(state.group, APPEND, state.published_path)
        for state in states
    ]
    beside = [TableOf(group, BESIDE, path.name) for path, group in own_tables_beside(warehouse, topology, incarnation)]
    plain = [TableOf(state.group, PLAIN, state.plain_path, state) for state in states if state.state_kind.has_log]
    return [*published, *beside, *plain]


class TableCommits:
    """Commits what an intent says; a table that has the next incarnation is done."""

    def __init__(
        self, engine: KernelEngine, warehouse: Place, topology: str, intent: UnfinishedRollback, epoch: int
    ) -> None:
        self._engine, self._warehouse, self._topology = engine, warehouse, topology
        self._intent, self._epoch = intent, epoch
        self._logs = LogTables()

    def control(self, table: TableOf) -> ControlRecord:
        """A table's control record, as it is now."""
        return control_of(self._logs.load(str(self._warehouse / table.path)))

    def take_back(self, table: TableOf, check_leads: Callable[[], None]) -> str:
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

    def _commit(self, table: TableOf, snapshot: TableSnapshot) -> None:
        path, intent = snapshot.path, self._intent
        stays = table.group != intent.group
        log = DeltaLog(path)
        newest = log.at(snapshot.version)
        older = newest if stays else log.at(self._wanted(table))
        now, then = (table_at(each, control_of(each), table.state) for each in (newest, older))
        if table.log_of is not None and not stays:
            now = replace(now, control=replace(now.control, floor=self._floor(table.log_of, now.control)))
        goes, comes = moved_files(table.role, now, then)
        gone = list(missing_files(self._warehouse / table.path, comes))
        problem = why_unwritable(newest) or why_unwritable(older) or (f"{gone[0]} is gone" if gone else "")
        if problem:
            raise TableError(
                f"table {path} cannot be taken back to its version {older.version}: {problem}",
                action="it was another table when the rollback was begun: mend that, and run the command again",
            )
        last = None if stays else intent.last
        adds = stored_adds(log.segment(older.version).replay()) if comes else {}
        control = control_after(table.role, now.control, then.control, last, intent.incarnation, self._epoch)
        note = {"topology": self._topology, "txid": intent.txid, "from": newest.version, "version": older.version}
        self._engine.take_back(
            snapshot,
            goes,
            [adds[file.path] for file in comes],
            {} if table.state is None else self._txns(table.state, newest, merged_after(then, last)),
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

    def _wanted(self, table: TableOf) -> int:
        if table.path not in self._intent.tables:
            raise TableError(
                f"table {table.path} was not there when the rollback was begun",
                expected=f"the tables {', '.join(sorted(self._intent.tables))}",
                action="move it out of the warehouse, and run the command again",
            )
        return self._intent.tables[table.path]

    def _txns(self, state: StateDescriptor, newest: LogSnapshot, merged: int) -> dict[str, int]:
        """P under the next incarnation's app, first; and the present one's as it is.

        Delta lets no MERGE of that one come behind this commit that began before it: both write its app.
        """
        before = newest.txn_version(state.merge_app)
        after = {replace(state, incarnation=self._intent.incarnation).merge_app: merged}
        return after if before is None else {**after, state.merge_app: before}

    def marks(self, tables: Iterable[TableOf]) -> Marks:
        """The marks of a group's tables, all of which are taken back."""
        by_id, plain, adopted = dict[str, TableMark](), set[str](), set[str]()
        for table in tables:
            snapshot = self._logs.load(str(self._warehouse / table.path))
            control, table_id = control_of(snapshot), str(snapshot.metadata["id"])
            version = self._version_of(snapshot.path, snapshot.version)
            if table.state is not None:
                plain.add(table_id)
                state = replace(table.state, incarnation=self._intent.incarnation)
                by_id[table_id] = TableMark(version, merged_upto(state, snapshot, control.starts_at), 0, "")
                if adopted_version(snapshot.schema_json) is not None:
                    adopted.add(table_id)
            elif control.attempt_id >= 0:
                by_id[table_id] = control.mark(version)
        return Marks(by_id, frozenset(plain), frozenset(adopted))

    def _version_of(self, path: str, newest: int) -> int:
        """The version that the rollback has made; others may have come behind it."""
        for commit in DeltaLog(path).commits_down(newest):
            found = commit.control.get(DOMAIN)
            if isinstance(found, Mapping) and found.get("incarnation") == self._intent.incarnation:
                return commit.version
        raise TableError(f"{path} has no commit of incarnation {self._intent.incarnation}")
