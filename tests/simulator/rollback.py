"""``trident rollback --apply`` in the simulated world: an operator's process, which is killed, and run again.

Production code in it: what is decided (``rollback_plan``), the order of the steps (``rollback._Rollback``), which
manifest is taken (``rollback_look.decided_manifest``), leadership, the intent and the records in ZooKeeper. Simulated
are the tables' commits, and the look at their logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.simulator.coordinator_process import TOPOLOGY, Shared
from tests.simulator.faults import SimulatedFailure
from tests.simulator.tables import Engine, Table, Version
from tests.simulator.threads import SimThreads
from tests.simulator.world import Process
from tests.simulator.zookeeper_client import SimKazooClient
from trident.coordinators.errors import CommitConflict, CoordinationError, TableError, TridentError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Holder, TableMark
from trident.coordinators.registration import begin_rollback, unfinished_rollback
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.maintenance import applying
from trident.maintenance.facts import APPEND, GroupFacts, TableAt, TableFacts, TopologyFacts
from trident.maintenance.inventory import StoredTable
from trident.states.core.control import ControlRecord, decode_control
from trident.states.core.place import Place
from trident.states.delta.log_commit import CommitOutcomeUnknown
from trident.time_travel import rollback, rollback_plan
from trident.time_travel.rollback_plan import Choices, control_after, last_kept_transaction

_WAREHOUSE = Place("/w")
_TAKE_SECS, _COMMIT_TRIES = 30.0, 20


class RollbackProcess:
    """One run of the command.

    Attributes:
        error: why it ended, None when it is done, or when there is nothing to do.
        refused: why it did nothing.
    """

    driver, leading, leases, waiting = None, False, 0, False

    def __init__(
        self, shared: Shared, process: Process, host: str, txid: int, on_end: Callable[[RollbackProcess], None]
    ) -> None:
        self.shared, self.process, self.txid = shared, process, txid
        self.threads = SimThreads(process)
        self.client: SimKazooClient | None = None
        self.error: BaseException | None = None
        self.ended, self.refused = False, ""
        self._on_end = on_end
        config = ZooKeeperConfig("simulated", session_timeout_secs=shared.session_timeout_secs)
        self.zk = ZooKeeper(config, self.threads, self._make_client)
        self._holder = Holder(host, "boot", process.life, f"{process}", "token")
        self.task = process.spawn(self._main)

    def _make_client(self, **options: Any) -> SimKazooClient:
        self.client = SimKazooClient(self.shared.ensemble, self.process, self.shared.faults, **options)
        return self.client

    def _main(self) -> None:
        try:
            self.zk.connect()
            self._roll_back()
        except (TridentError, SimulatedFailure) as error:
            self.error = error
        finally:
            if not self.process.dead:
                self.zk.close()
                self.ended = True
                self._on_end(self)

    def _roll_back(self) -> None:
        unfinished = unfinished_rollback(self.zk, TOPOLOGY)
        if unfinished is not None:
            self.shared.world.reached("a rollback is finished by the next run of the command")
        give_up = self.threads.event()
        self.threads.timer(_TAKE_SECS, give_up.set).start()
        lease = Leadership(self.zk, TOPOLOGY, [self.shared.group], self._holder, self.threads).acquire(give_up)
        if lease is None:
            raise CoordinationError(f"{TOPOLOGY} is running")
        try:
            intent: Any = unfinished
            if intent is None:
                planned = rollback_plan.plan(self._look(), self.txid, Choices())
                if planned.is_there or planned.refusals:
                    self.refused = "; ".join(refusal.text for refusal in planned.refusals) or "it is there"
                    return
                intent = planned.intent
                begin_rollback(self.zk, lease, TOPOLOGY, intent)
                self.shared.world.reached("a rollback begins")
                if planned.group.decision is not None:
                    self.shared.world.reached("a rollback takes a decided transaction back")
            tables: Any = Engine(self.process, self.shared.faults, self.shared.warehouse, self.shared.checker)
            rollback._Rollback(self.zk, tables, lease, _WAREHOUSE, TOPOLOGY, intent).run()
        finally:
            lease.release()

    def _look(self) -> TopologyFacts:
        shared = self.shared
        store = GroupStore(self.zk, TOPOLOGY, shared.group, sorted(shared.sources))
        record, decision, _ = store.load()
        if record is None:
            raise CoordinationError("no transaction yet")
        tables = tuple(self._table(table) for table in shared.warehouse.tables.values() if table.versions)
        last = last_kept_transaction(tables)
        manifest: Any = None
        if last is not None:
            manifest = rollback.decided_manifest(_WAREHOUSE, TOPOLOGY, shared.group, record.incarnation, last)
        begun: dict[int, int] = {}
        for table in shared.warehouse.tables.values():
            for version in table.versions:
                control = _control(table, version)
                if control.txid > (last.txid if last else 0) and control.attempt_id >= 0:
                    begun[control.txid] = max(begun.get(control.txid, 0), control.attempt_id)
        group = GroupFacts(shared.group, record, decision, tables, manifest=manifest, begun=begun)
        return TopologyFacts(TOPOLOGY, record.incarnation, None, (group,))

    def _table(self, table: Table) -> TableFacts:
        """``then``: the newest version without a later transaction."""
        at = [TableAt(version.number, _control(table, version)) for version in table.versions]
        then = [one for one in at if one.control.txid <= self.txid]
        now = at[-1]
        return TableFacts(table.name, APPEND, table.name, table.table_id, now.version, now.control, then=then[-1])


def _control(table: Table, version: Version) -> ControlRecord:
    return decode_control(table.path, version.control)


class SimTableCommits:
    """``trident.time_travel.rollback.TableCommits`` over the simulated tables."""

    def __init__(self, engine: Engine, warehouse: Place, topology: str, intent: Any, epoch: int) -> None:
        self._engine, self._intent, self._epoch = engine, intent, epoch

    def _of(self, table: StoredTable) -> Table:
        return self._engine.table(table.path)

    def control(self, table: StoredTable) -> ControlRecord:
        found = self._of(table)
        return _control(found, found.newest)

    def take_back(self, table: StoredTable, check_leads: Callable[[], None]) -> str:
        for _ in range(_COMMIT_TRIES):
            check_leads()
            snapshot = self._engine.load(str(_WAREHOUSE / table.path))
            now = _control(snapshot.table, snapshot.seen)
            if now.incarnation == self._intent.incarnation:
                return "it is of then again"
            older = next(one for one in snapshot.table.versions if one.number == self._intent.tables[table.path])
            then = _control(snapshot.table, older)
            after = control_after(APPEND, now, then, self._intent.last, self._intent.incarnation, self._epoch)
            # As RESTORE and our commit: what SetTransaction says stays.
            version = Version(snapshot.version + 1, after.encode(), snapshot.seen.txns, older.content)
            with contextlib.suppress(CommitConflict, CommitOutcomeUnknown):
                self._engine.replace(snapshot, version)
        raise TableError(f"no commit to {table.path} came about")

    def marks(self, tables: Iterable[StoredTable], before: Mapping[str, TableMark]) -> dict[str, TableMark]:
        found: dict[str, TableMark] = {}
        for table in tables:
            of_table = self._of(table)
            for version in of_table.versions:
                control = _control(of_table, version)
                if control.incarnation == self._intent.incarnation and control.attempt_id >= 0:
                    found.setdefault(of_table.table_id, control.mark(version.number))
        return found


class _Files:
    """``states.core.storage`` for kept manifests."""

    def __init__(self, manifests: dict[str, bytes]) -> None:
        self._manifests = manifests

    def list_names(self, folder: Any) -> list[str]:
        return sorted(Path(path).name for path in self._manifests)

    def read(self, place: Any) -> bytes:
        return self._manifests[f"manifests/{place.name}"]


@contextlib.contextmanager
def simulated(shared: Shared) -> Iterator[None]:
    """What production code takes from the warehouse during a rollback."""
    tables = [StoredTable(shared.group, APPEND, name) for name in shared.warehouse.tables]

    def decode(data: bytes) -> Any:
        return SimpleNamespace(spouts=shared.warehouse.decoded(data)["spouts"])

    with (
        mock.patch.object(rollback, "tables_of", lambda *_: [one for one in tables if _is_there(shared, one)]),
        mock.patch.object(rollback, "TableCommits", SimTableCommits),
        mock.patch.object(rollback, "list_descriptors", lambda *_: []),
        mock.patch.object(applying, "forget_copies", lambda *_: None),
        mock.patch.object(rollback, "storage", _Files(shared.warehouse.manifests)),
        mock.patch.object(rollback, "Manifest", SimpleNamespace(decode=decode)),
    ):
        yield


def _is_there(shared: Shared, table: StoredTable) -> bool:
    return bool(shared.warehouse.tables[table.path].versions)
