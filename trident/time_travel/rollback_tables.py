"""Commits to the tables of a rollback: each gets the files of one of its versions again, and the next incarnation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.coordinators.records import TableMark, UnfinishedRollback
from trident.maintenance.facts import LOG, PLAIN
from trident.maintenance.inventory import StoredTable
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, stored_adds
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableSnapshot
from trident.states.delta.log_tables import LogTables
from trident.states.delta.table_lock import table_lock
from trident.states.keyed.plain_watch import ACCEPTED
from trident.states.keyed.tables import adopted_version, merged_upto
from trident.time_travel.rollback_look import control_of, missing_files, table_at, why_unwritable
from trident.time_travel.rollback_plan import control_after, merged_after, moved_files

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
        for commit in DeltaLog(path).commits_down(newest):
            found = commit.control.get(DOMAIN)
            if isinstance(found, Mapping) and found.get("incarnation") == self._intent.incarnation:
                return commit.version
        raise TableError(f"{path} has no commit of incarnation {self._intent.incarnation}")
