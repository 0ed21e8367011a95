"""Views: the transaction at which all plain tables of a batch group have a version, found and recorded.

``<warehouse>/_trident/<topology>/<group>/view.json`` is replaced as a whole after each MERGE that has brought all plain
tables of the group to one transaction. A table version never changes: so a reader that has the file has one moment of
all tables, however long it reads (until a VACUUM removes the version's files: a week, unless told otherwise).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, ForeignTable, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, plain
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_inside
from trident.states.core.place import Place
from trident.states.core.tables import PROPERTIES
from trident.states.delta.append import VIEWS
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableSnapshot
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_commit import until_committed
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import attempt_folder, fsync_folders, staged_file
from trident.states.history.kept import plain_as_of, published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable, common_point
from trident.states.keyed.compactor import LogSweeper

VIEW = faults.register("compact.view", "the record of the versions that a group's tables have of one transaction")
_SCHEMA = 1


@dataclass(frozen=True)
class ViewedTable:
    """A table of a view.

    Attributes:
        path: the folder, relative to the warehouse.
        version: the table version that has all transactions up to the view's, and none after it.
    """

    path: str
    version: int


@dataclass(frozen=True)
class GroupView:
    """The versions of a group's tables as of one transaction.

    Attributes:
        epoch: of the coordinator that wrote it.
        txid: P: all plain tables have exactly the transactions up to this one.
        written_at: seconds since the epoch of Unix.
        tables: by the names of their states; of a keyed state the plain table.
    """

    topology: str
    group: str
    incarnation: str
    epoch: int
    txid: int
    written_at: float
    tables: Mapping[str, ViewedTable]

    @property
    def age(self) -> tuple[int, int]:
        """Orders the views of an incarnation: a later leader may begin at a lower transaction, after a rollback."""
        return self.epoch, self.txid

    def encode(self) -> bytes:
        said = {"schema": _SCHEMA, **plain(self)}
        return json.dumps({**said, "sha256": _digest(said)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> GroupView:
        """Reads what encode() gave; Unreadable where one bit of it is another."""
        said = parse_stored(data)
        digest = said.pop("sha256", None) if isinstance(said, dict) else None
        found = as_record(said, cls, _SCHEMA)
        if digest != _digest(said):
            raise Unreadable("it is not as it was written", f"sha256 {digest}")
        for table in found.tables.values():
            check_inside("the folder of a table", table.path)
        return found


def _digest(said: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def view_path(warehouse: Place, topology: str, group: str) -> Place:
    return Place(warehouse) / "_trident" / topology / group / "view.json"


def read_view(warehouse: Place, topology: str, group: str) -> GroupView | None:
    """The newest view of a batch group; None where there is none, or none since the topology began again.

    Raises:
        TableError: it cannot be read, or has another group's view.
    """
    path = view_path(warehouse, topology, group)
    try:
        view = GroupView.decode(storage.read(path))
        if (view.topology, view.group) != (topology, group):
            raise Unreadable("it is of another batch group", f"{view.topology}/{view.group}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Unreadable, TableError) as error:
        raise TableError(
            f"the view {path} cannot be read: {error}",
            found=getattr(error, "found", None),
            expected=f"a view of schema {_SCHEMA}, as a running topology writes it",
            action="delete the file: the next MERGE of the topology, or `trident compact`, writes it again",
        ) from None
    return view if _is_of_this_incarnation(warehouse, view) else None


def _is_of_this_incarnation(warehouse: Place, view: GroupView) -> bool:
    """False of a view that a coordinator from before a reset has written: its tables may have been made anew."""
    for name in view.tables:
        if "__" in name:
            continue  # beside the states: it has no descriptor
        try:
            if load_descriptor(warehouse, name).incarnation != view.incarnation:
                return False
        except FileNotFoundError:
            return False
    return True


def write_view(warehouse: Place, view: GroupView) -> bool:
    """Puts a view in the place of an older one; False where the one that is there is as new, or newer.

    Raises:
        OSError: the storage refused; the older one is there.
    """
    try:
        there = read_view(warehouse, view.topology, view.group)
    except TableError:
        there = None  # damaged: replaced
    if there is not None and there.incarnation == view.incarnation and there.age >= view.age:
        return False
    path = view_path(warehouse, view.topology, view.group)
    with faults.fault_point(VIEW):
        storage.make_folder(path.parent, warehouse)
        storage.write(path, view.encode())
    return True


# Records views: finds the transaction at which all plain tables of a batch group have a version, and writes that down.
#
# In two places: the file that ``trident.view`` reads (``views.py``), and the Delta table ``<topology>__<group>__views``
# with a row for each table of each of the last views, for any reader of Delta. Nothing rests on either but reads: a
# record that is lost is made again from the tables' logs, with the next MERGE.


log = logging.getLogger("trident.compactor")

# So many of the last views have rows in the table; it is looked at once there are as many more.
_VIEWS_KEPT, _VIEWS_MORE = 500, 100
_ROWS = pa.schema(
    [
        ("state", pa.string()),
        ("path", pa.string()),
        ("version", pa.int64()),
        ("epoch", pa.int64()),
        ("incarnation", pa.string()),
        ("written_at", pa.timestamp("us", tz="UTC")),
        ("txid", pa.int64()),
    ]
)
_TYPES: Mapping[pa.DataType, str] = {
    pa.string(): "string",
    pa.int64(): "long",
    _ROWS.field("written_at").type: "timestamp",
}


class ViewRecorder:
    """Records the views of one batch group; used by one thread.

    Any number may exist, in any processes: each writes what the tables' logs say.

    Args:
        epoch: of the leader; None: that of the tables.
        settle: called before versions are told: has all plain tables' versions stay, whatever fails.
        side_tables: the group's tables beside its states (dead letters, messages), which a view has too.
    """

    def __init__(
        self,
        engine: KernelEngine,
        of: GroupContext,
        epoch: int | None,
        settle: Callable[[], object],
        side_tables: Callable[[], Iterable[Place]] = tuple,
    ) -> None:
        self._engine, self._of, self._epoch = engine, of, epoch
        self._settle, self._side_tables = settle, side_tables
        self._path = of.warehouse / VIEWS.table_name(of.topology, of.group)
        self._sweeper = LogSweeper(self._path, of.incarnation)
        self._commits = 0
        self.last_txid: int | None = None  # of the newest view, as far as this process knows

    def last(self) -> GroupView | None:
        """The newest view that is recorded; None where there is none, or it cannot be read."""
        try:
            return read_view(self._of.warehouse, self._of.topology, self._of.group)
        except TableError:
            return None

    def record(self) -> GroupView | None:
        """Records a view where there is a newer one than was recorded; returns it.

        Raises:
            TableError, OSError: a log cannot be read, or the record cannot be written: to be tried again.
        """
        last = self.last()
        self.last_txid = None if last is None else last.txid
        view = self._newer(last)
        if view is None:
            return None
        self._settle()
        with faults.fault_point(VIEW):
            self._write_rows(view)
        write_view(self._of.warehouse, view)
        self.last_txid = view.txid
        return view

    # --- which one --------------------------------------------------------------------------------------

    def _newer(self, last: GroupView | None) -> GroupView | None:
        states = [
            state
            for state in descriptors_of_group(self._of.warehouse, self._of.topology, self._of.group)
            if state.ends_at is None and state.incarnation == self._of.incarnation
        ]
        keyed = [state for state in states if state.state_kind.has_log]
        controls = [self._published(state.published_path, None) for state in states]
        if not keyed or not controls:
            return None
        epoch = self._epoch if self._epoch is not None else max(control.epoch for _, control in controls)
        newest = max(one.txid for _, one in controls)
        # One above all that the tables have was written before a rollback, or by a coordinator that knew of none.
        above = last.txid if last is not None and last.txid <= newest else 0
        point = common_point(lambda txid: self._merged(keyed, txid), newest, above)
        if point is None:
            return None
        try:
            tables = {state.name: self._version(state, point) for state in states if state.starts_at - 1 <= point}
        except SnapshotUnavailable as error:
            # The log of a table begins behind the last MERGE, as of a fork that began between two: the next one serves.
            log.debug("no view of %s/%s as of transaction %d: %s", self._of.topology, self._of.group, point, error)
            return None
        tables |= self._side_versions(point)
        return GroupView(self._of.topology, self._of.group, self._of.incarnation, epoch, point, time.time(), tables)

    def _merged(self, keyed: Iterable[StateDescriptor], txid: int) -> list[int]:
        """P of each plain table's newest version that is merged up to ``txid`` at most; none where one has none."""
        found = []
        for state in keyed:
            if state.starts_at - 1 <= txid:
                plain = plain_as_of(self._of.warehouse, state, txid)
                if plain is None:
                    return []
                found.append(plain.merged)
        return found

    def _version(self, state: StateDescriptor, txid: int) -> ViewedTable:
        if not state.state_kind.has_log:
            return ViewedTable(state.published_path, self._published(state.published_path, txid)[0])
        plain = plain_as_of(self._of.warehouse, state, txid)
        if plain is None or plain.merged != txid:
            raise TableError(
                f"table {state.plain_path} has no version as of transaction {txid} any more",
                found="none" if plain is None else f"merged up to {plain.merged}",
                expected=txid,
                action="the next MERGE gives another; was the table restored?",
            )
        return ViewedTable(state.plain_path, plain.version)

    def _side_versions(self, txid: int) -> dict[str, ViewedTable]:
        tables = {}
        for path in self._side_tables():
            try:
                version = self._published(path.name, txid)[0]
            except ForeignTable:  # its rows are of the incarnation before
                version = DeltaLog(path).newest()
            except SnapshotUnavailable:
                continue  # it had no rows yet
            tables[path.name] = ViewedTable(path.name, version)
        return tables

    def _published(self, folder: str, txid: int | None) -> tuple[int, ControlRecord]:
        """A table's version as of a transaction, None: the newest, with its control record."""
        wanted = (1 << 62) if txid is None else txid
        path = self._of.warehouse / folder
        found = published_as_of(path, self._of.topology, self._of.group, self._of.incarnation, wanted)
        return found.version, found.control

    # --- the table --------------------------------------------------------------------------------------

    def _write_rows(self, view: GroupView) -> None:
        after = until_committed(self._path, lambda: self._commit_unless_there(view))
        if after is None:
            return
        try:
            self._commits += 1
            self._engine.run_maintenance(after)
            if self._commits % _VIEWS_MORE == 1:
                self._forget_old(after)
            self._sweeper.sweep()
        except (TableError, OSError) as error:  # costs space, nothing else
            log.warning("old views of %s stay: %s", self._path, error)

    def _open(self, view: GroupView) -> TableSnapshot:
        if not has_log(self._path):
            fields = [
                {"name": field.name, "type": _TYPES[field.type], "nullable": True, "metadata": {}} for field in _ROWS
            ]
            schema = json.dumps({"type": "struct", "fields": fields})
            before = self._control(view, 0)
            try:
                return self._engine.create_table(
                    str(self._path), schema, (), PROPERTIES, {DOMAIN: before.encode()}, f"trident/{view.incarnation}"
                )
            except (CommitConflict, CommitOutcomeUnknown):
                pass  # another process makes it: loading it tells
        return self._engine.load(str(self._path))

    def _control(self, view: GroupView, txid: int) -> ControlRecord:
        return ControlRecord(self._of.topology, self._of.group, view.incarnation, txid, 0, "", view.epoch, 1)

    def _commit_unless_there(self, view: GroupView) -> TableSnapshot | None:
        snapshot = self._open(view)
        control = decode_control(self._path, snapshot.control(DOMAIN))
        if (control.incarnation, control.epoch, control.txid) == (view.incarnation, view.epoch, view.txid):
            return None  # of a process that was killed before it wrote the file
        folder = attempt_folder(view.incarnation, TransactionAttempt(view.txid, 0))
        rows = pa.Table.from_pylist(_rows_of(view), _ROWS)
        reports = list(write_partition(FileTarget(VIEWS.name, str(self._path), folder), rows.to_batches()))
        fsync_folders(self._path, folder)
        files = [staged_file(report) for report in reports]
        after = {DOMAIN: self._control(view, view.txid).encode()}
        return self._engine.commit_files(snapshot, files, None, after, f"trident/{view.incarnation}")

    def _forget_old(self, snapshot: TableSnapshot) -> None:
        txids = sorted(_txid_of(file) for file in self._engine.live_files(snapshot))
        if len(txids) <= _VIEWS_KEPT:
            return
        floor = txids[-_VIEWS_KEPT - 1]
        control = {DOMAIN: snapshot.control(DOMAIN) or ""}
        info = f"trident/{self._of.incarnation}"
        self._engine.drop_files(snapshot, lambda file: _txid_of(file) <= floor, control, info)
        self._sweeper.dropped(floor)


def _rows_of(view: GroupView) -> list[dict[str, Any]]:
    at = datetime.datetime.fromtimestamp(view.written_at, datetime.timezone.utc)
    whole = {"epoch": view.epoch, "incarnation": view.incarnation, "written_at": at, "txid": view.txid}
    return [{"state": name, **vars(table), **whole} for name, table in view.tables.items()]


def _txid_of(file: LiveFile) -> int:
    """The transaction of a file's rows, by its folder: ``data/<incarnation>/<txid>-<attempt>-<nonce>``."""
    return int(file.path.split("/")[-2].partition("-")[0])
