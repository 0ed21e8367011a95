"""Simulated Delta tables, and the production committer's publishing over them.

A table is a list of versions; a commit takes the next one or conflicts, as a
put-if-absent in a log does. ``Publisher.publish`` is production code: the
compare-and-set on the control record, the check of the fence, what conflicts
and lost answers lead to. Staging, manifests and Kernel are simulated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.simulator.checker import Checker
from tests.simulator.faults import Faults, SimulatedFailure
from tests.simulator.threads import SimThreads
from tests.simulator.world import Process, World
from trident.coordinators.errors import CommitConflict, Halted
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import AttemptHistory, PreparedBatch, ProcessedBatch, Published
from trident.coordinators.records import Decision, GroupRecord
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.delta.log_commit import CommitOutcomeUnknown, TxnAlreadyApplied
from trident.states.delta.manifest import ManifestTable
from trident.states.publishing.group_tables import GroupTables, SeenTable
from trident.states.publishing.publishing import Publisher

NAMES = ("counts", "lines")
_SCHEMA_JSON = '{"fields":[]}'
_SCHEMA_HASH = hashlib.sha256(_SCHEMA_JSON.encode()).hexdigest()
_WAREHOUSE = Path("/w")
_LATE_COMMIT_ODDS = 0.04


class Version(NamedTuple):
    """A table version.

    Attributes:
        txns: SetTransaction: app → version.
        content: (txid, rows) of every commit that a reader of this version sees.
    """

    number: int
    control: str
    txns: Mapping[str, int]
    content: tuple[tuple[int, tuple[Any, ...]], ...]


class Table:
    """One table; ``put_away``: its newest versions while an older copy is in its place."""

    def __init__(self, name: str) -> None:
        self.name, self.table_id = name, f"id-{name}"
        self.path = str(_WAREHOUSE / name)
        self.versions: list[Version] = []
        self.put_away: list[Version] = []

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def optimize(self) -> None:
        """Somebody rewrites files: a new version with the same content."""
        if self.versions:
            self.versions.append(self.newest._replace(number=self.newest.number + 1))

    def put_older_copy(self, back: int) -> bool:
        if self.put_away or len(self.versions) <= back or self.versions[-back - 1].content == self.newest.content:
            return False
        self.versions, self.put_away = self.versions[:-back], self.versions[-back:]
        return True

    def repair(self) -> None:
        put_away, self.put_away = self.put_away, []
        if put_away and len(put_away[-1].content) > len(self.newest.content):
            self.versions += put_away


class Snapshot:
    """What ``trident.states.delta.kernel.TableSnapshot`` is to the committer."""

    schema_json = _SCHEMA_JSON

    def __init__(self, table: Table) -> None:
        self.table, self.table_id, self.path = table, table.table_id, table.path
        self.seen = table.newest
        self.version = self.seen.number
        self.of_copy = bool(table.put_away)

    def control(self, domain: str) -> str:
        return self.seen.control


class Staged(tuple):
    """The staged files of a table: none to be looked for on a disk, but the rows that would be in them."""

    rows: tuple[Any, ...] = ()


class Warehouse:
    """The tables and the manifests, which survive every process; stands in for ``ManifestStore``."""

    def __init__(self) -> None:
        self.tables = {name: Table(name) for name in NAMES}
        self.manifests: dict[str, bytes] = {}
        self.keeps_manifests = False

    def decoded(self, data: bytes) -> Any:
        return json.loads(data)

    def read(self, decision: Decision) -> Any:
        data = self.manifests.get(decision.manifest, b"")
        if hashlib.sha256(data).hexdigest() != decision.sha256:
            raise Halted(f"the manifest {decision.manifest} is not the one that was decided")
        manifest = json.loads(data)
        files = Staged()
        files.rows = tuple(tuple(row) for row in manifest["rows"])
        tables = [ManifestTable(name, "append", name, f"id-{name}", _SCHEMA_HASH, files) for name in NAMES]
        return SimpleNamespace(tables=tables, spouts=manifest["spouts"])

    def clean(self, published_txid: int, keep: TransactionAttempt | None) -> None:
        if self.keeps_manifests:
            return
        for path in list(self.manifests):
            txid, attempt_id = path.removesuffix(".json").split("/")[1].split("-")
            if int(txid) <= published_txid and (int(txid), int(attempt_id)) != keep:
                del self.manifests[path]


class Engine:
    """What ``trident.states.delta.kernel.KernelEngine`` is to the committer, for one process."""

    def __init__(self, process: Process, faults: Faults, warehouse: Warehouse, checker: Checker) -> None:
        self._process, self._faults, self._warehouse, self._checker = process, faults, warehouse, checker
        self._world: World = process.world

    def load(self, path: str) -> Snapshot:
        table = self._warehouse.tables[path.rpartition("/")[2]]
        return self._faults.io(self._process, f"load of {table.name}", lambda: Snapshot(table), _load_failed)

    def table(self, name: str) -> Table:
        return self._warehouse.tables[name]

    def replace(self, snapshot: Snapshot, version: Version) -> None:
        """A commit of a rollback: other files, all at once."""
        table = snapshot.table

        def land() -> None:
            if table.newest is not snapshot.seen:
                raise CommitConflict(f"{table.name} is at version {table.newest.number}")
            table.versions.append(version)
            self._world.tell("rollback of", table.name, "done")
            self._checker.on_taken_back(table.name, [txid for txid, _ in version.content])

        self._faults.io(self._process, f"rollback of {table.name}", land, _commit_failed)

    def commit_files(
        self, snapshot: Snapshot, files: Staged, txn: tuple[str, int], domains: Mapping[str, str], info: str
    ) -> Snapshot:
        if snapshot.seen.txns.get(txn[0], 0) >= txn[1]:
            raise TxnAlreadyApplied(f"{snapshot.path} has {snapshot.seen.txns}")
        table = snapshot.table

        def land() -> Snapshot:
            return self._land(snapshot, files.rows, txn, domains[DOMAIN])

        if self._faults.chance(_LATE_COMMIT_ODDS) and self._faults.active:
            # The store takes its time: the writer gives up waiting, and the commit may come after its next try.
            self._world.reached("a commit lands long after its writer gave up waiting")
            self._world.later(self._world.rng.random() * 20.0, self._land_late, land)
            self._world.sleep(self._faults.delay())
            raise CommitOutcomeUnknown(f"no answer from {table.name}")
        return self._faults.io(self._process, f"publish of {table.name}", land, _commit_failed)

    def _land_late(self, land: Any) -> None:
        self._world.running = self._process
        try:
            land()
        except CommitConflict:
            pass

    def _land(self, snapshot: Snapshot, rows: tuple[Any, ...], txn: tuple[str, int], control: str) -> Snapshot:
        table, world, (app, txid) = snapshot.table, self._world, txn
        leads = self._checker.leads(self._process)
        # What was under way when an older copy was put in place does not come through to it.
        if table.newest is not snapshot.seen or bool(table.put_away) != snapshot.of_copy:
            world.tell("publish of", table.name, txid, "conflicts")
            world.reached("publish met another commit" if leads else "publish of a deposed coordinator refused")
            raise CommitConflict(f"{table.name} is at version {table.newest.number}")
        if not leads:
            world.reached("a deposed coordinator publishes what was decided, before its successor")
        before = table.newest
        content = (*before.content, (txid, rows))
        table.versions.append(Version(before.number + 1, control, {**before.txns, app: txid}, content))
        world.tell("publish of", table.name, txid, "done")
        self._checker.on_commit(self._process, table.name, txid, control, rows, before.content, snapshot.of_copy)
        return Snapshot(table)


class SimTables(GroupTables):
    """The tables as one simulated process last saw them."""

    def check_foreign(self, *_: Any) -> None:
        """Whose commits a table has is read from its log's files: test_contradictions.py does that for real."""

    def remember(self, snapshot: Any) -> None:
        self.seen[snapshot.path] = SeenTable(snapshot, (0, 0, 0))


class SimPublisher(Publisher):
    def _check_leads(self) -> None:
        """Each time: real clocks have no place in a simulated world."""
        self._tables.check_fence()


class SimCommitter:
    """``trident.coordinators.ports.Committer``; see the top of this file for what of it is production code."""

    def __init__(
        self,
        engine: Any,
        process: Process,
        faults: Faults,
        warehouse: Any,
        names: tuple[str, str, str],
        epoch: int,
        check_fence: Any,
    ) -> None:
        self._engine, self._process, self._faults, self._store = engine, process, faults, warehouse
        self._topology, self._group, self._incarnation = names
        self._epoch, self._check_fence = epoch, check_fence
        self._tables = SimTables(engine, LeaderContext(Place(_WAREHOUSE), *names, epoch, check_fence))
        self._publisher = SimPublisher(self._tables, {}, warehouse, None, SimThreads(process))  # type: ignore[arg-type]
        self._last_published: TransactionAttempt | None = None

    def open(self, record: GroupRecord) -> None:
        for table in self._store.tables.values():
            if not table.versions:
                control = ControlRecord(
                    self._topology,
                    self._group,
                    self._incarnation,
                    record.current_txid - 1,
                    -1,
                    "",
                    self._epoch,
                    starts_at=record.current_txid,
                    floor=record.current_txid - 1,
                )
                table.versions.append(Version(0, control.encode(), {}, ()))
            self._check(table, record, self._engine.load(table.path))

    def _check(self, table: Table, record: GroupRecord, snapshot: Snapshot) -> None:
        path = _WAREHOUSE / table.name
        control = decode_control(path, snapshot.control(DOMAIN))
        mark = record.tables.get(table.table_id)
        if not (control.attempt_id == -1 if mark is None else control.same_batch(mark)):
            self._check_fence()
            raise halts.transactions_differ(self._topology, path, control, mark)
        self._tables.remember(snapshot)

    def publish(self, decision: Decision, record: GroupRecord) -> Published:
        published, _ = self._publisher.publish(decision, record, first=True)
        self._last_published = decision.attempt
        return published

    def prepare(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        processed: ProcessedBatch,
        record: GroupRecord,
        story: AttemptHistory | None = None,
    ) -> PreparedBatch:
        for table in self._store.tables.values():
            known: Any = self._tables.seen[table.path].snapshot
            if known.seen is not table.newest:
                self._check(table, record, self._engine.load(known.path))
        rows = processed.staged
        wants_commit = any(spout.get("commit_data") is not None for spout in processed.spouts.values())
        if not rows and not wants_commit:
            return PreparedBatch(None, {name: 0 for name in NAMES})
        path = f"manifests/{attempt.txid}-{attempt.attempt_id}.json"
        data = json.dumps({"rows": rows, "spouts": processed.spouts}).encode()

        def write() -> None:
            if self._store.manifests.setdefault(path, data) is not data:
                raise SimulatedFailure(f"{path} exists")

        self._faults.io(self._process, "write of the manifest", write, _load_failed)
        decision = Decision(attempt.txid, attempt.attempt_id, path, len(data), hashlib.sha256(data).hexdigest())
        return PreparedBatch(decision, {name: len(rows) for name in NAMES})

    def close(self) -> None: ...

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        self._store.clean(attempt.txid, self._last_published)


def _load_failed(when: str) -> Exception:
    return SimulatedFailure(f"the store failed {when} it was done")


def _commit_failed(when: str) -> Exception:
    return CommitOutcomeUnknown("no answer") if when == "after" else SimulatedFailure("the store did not take it")
