"""Prepares, publishes and checks the Delta tables of one batch group (DESIGN 2.3, 2.5, 3).

Prepare checks that each table is as this group left it and makes the manifest
durable. Publish brings each table from the last published transaction to the
decided one with a compare-and-set on its control record; doing it again, in
this process or another, changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq

from coordinators import faults
from coordinators.errors import CommitConflict, ForeignTable, Halted, SchemaMismatch, StagedFileMissing, TableError
from coordinators.ports import PreparedBatch, ProcessedBatch, Published
from coordinators.records import Decision, GroupRecord, TableMark
from coordinators.transactions import TransactionAttempt
from states import delta_log
from states.binding import DELETED_COLUMN, LAST, StateBinding
from states.compactor import open_plain
from states.control import DOMAIN, ControlRecord, decode_control
from states.dead_letters import BESIDE, tables_beside
from states.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from states.evolution import add_columns, columns_only_added
from states.kernel import CommitOutcomeUnknown, KernelEngine, TableMissing, TableSnapshot, TxnAlreadyApplied
from states.manifest import Manifest, ManifestStore, ManifestTable
from states.memory_map import memory_map
from states.staged import StagedFile
from states.staging import StagingTarget, verify_staged
from states.tables import TableSpec, plain_table, published_table
from states.user_publish import UserStatePublisher

log = logging.getLogger("trident.committer")
PUBLISH = faults.register("publish.table", "the Kernel commit of one table of a decided batch")
MEMORY = faults.register("publish.memory", "updating a memory map with a decided batch")
_COMMIT_TRIES = 20
# States that publishing makes no Delta commit for.
_WITHOUT_TABLE = ("memory", "map", "user")


@dataclass
class _Open:
    """A table as this process last saw it."""

    snapshot: TableSnapshot
    signature: tuple[int, int, int]  # of the newest log entry: a recreated table has another


class DeltaCommitter:
    """The committer of one batch group under one lease.

    Args:
        engine: Delta's Kernel on the session.
        warehouse: the folder of all tables.
        topology, group, incarnation: whose tables these are.
        epoch: of the lease; written into every control record.
        bindings: the group's states, in the order in which they are published.
        check_fence: raises Deposed when another coordinator leads.
    """

    def __init__(
        self, engine: KernelEngine, warehouse: Path, topology: str, group: str, incarnation: str, epoch: int,
        bindings: Sequence[StateBinding], check_fence: Callable[[], None],
    ) -> None:  # fmt: skip
        self._engine, self._warehouse = engine, warehouse
        self._topology, self._group, self._incarnation, self._epoch = topology, group, incarnation, epoch
        self._bindings = {binding.name: binding for binding in bindings}
        self._check_fence = check_fence
        self._manifests = ManifestStore(warehouse, topology, group)
        self._open_tables: dict[str, _Open] = {}  # by path
        self._last_manifest: str | None = None
        self._decided_here: set[TransactionAttempt] = set()
        self._users = UserStatePublisher(engine.spark, topology, group, incarnation, epoch, check_fence)
        # With the incarnation: after a reset txids begin at 1 again, and Delta refuses a smaller one of the same app.
        self.txn_app_id = f"trident/{topology}/{group}/{incarnation}"
        self.engine_info = f"trident/{incarnation}"

    # --- the tables when a coordinator takes over ---------------------------------------------

    def open(self, record: GroupRecord) -> None:
        """Creates the tables that are missing and checks the others (DESIGN 2, recovery).

        Call it with no decision pending.

        Raises:
            Halted: a table is not as this group left it: which side is older is said.
            ForeignTable, SchemaMismatch: a table cannot be this state's.
        """
        seen: set[str] = set()
        for binding in self._bindings.values():
            spec = published_table(binding)
            if spec is not None:
                seen.add(self._open_table(binding, spec, record))
        for path in self._detached_paths(record):
            seen.add(self._engine.load(str(path)).table_id)
        gone = set(record.tables) - seen
        if gone:
            raise Halted(
                f"a table that batch group {self._group!r} has written is gone, or was dropped and made again",
                found=f"no table with the id {', '.join(sorted(gone))} under {self._warehouse}",
                expected=f"the tables as of transaction {record.last_published.txid if record.last_published else 0}",
                action="bring the table back from a back-up, or begin again with `trident reset`",
            )

    def _detached_paths(self, record: GroupRecord) -> list[Path]:
        """Tables of states that the topology no longer has: kept, detached."""
        paths = []
        for descriptor in descriptors_of_group(self._warehouse, self._topology, self._group):
            path = self._warehouse / descriptor.published_path
            if descriptor.name in self._bindings or not path.exists():
                continue
            paths.append(path)
            if descriptor.ends_at is None:
                # From now on readers of the group must not wait for this table.
                replace(descriptor, ends_at=record.current_txid - 1).save(self._warehouse)
        beside = tables_beside(self._warehouse, self._topology)
        return [*paths, *(path for path, group in beside if group == self._group and path.name not in self._bindings)]

    def _open_table(self, binding: StateBinding, spec: TableSpec, record: GroupRecord) -> str:
        path = self._warehouse / spec.path
        first = ControlRecord(
            self._topology, self._group, self._incarnation, record.current_txid - 1, -1, "", self._epoch,
            starts_at=record.current_txid, floor=record.current_txid - 1,
        )  # fmt: skip
        try:
            snapshot = self._engine.load(str(path))
        except TableMissing:
            snapshot = self._engine.create_table(
                str(path), spec.schema_json, spec.partition_columns, spec.properties, {DOMAIN: first.encode()},
                self.engine_info,
            )  # fmt: skip
        else:
            if getattr(binding.state, "adopt", False) and self._may_adopt(path, snapshot):
                snapshot = self._adopt(snapshot, first)
        self._remember(snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        self._check_owner(path, control)
        mark = record.tables.get(snapshot.table_id)
        if mark is None:
            if control.attempt_id != -1:
                self._check_fence()
                raise self._contradiction(path, control, "no transaction of this table")
        elif not control.same_batch(mark):
            # A successor may have published since the record was read.
            self._check_fence()
            raise self._contradiction(path, control, f"transaction {mark.txid}, attempt {mark.attempt_id}")
        # Without a mark the control record was the last thing written: what is before it was adopted with the table.
        version = mark.version if mark else delta_log.find_version_by_control(str(path), DOMAIN, control.txid)
        self._check_foreign(path, snapshot.version if version is None else version, snapshot)
        if _may_grow(binding) and spec.lacks_columns(snapshot.schema_json):
            snapshot = self._add_columns(binding, spec, path)
        self._check_schema(path, snapshot, spec)
        if binding.kind in ("append", "keyed"):
            StateDescriptor.of(binding, self._topology, self._group, self._incarnation, control.starts_at).save(
                self._warehouse
            )
        if binding.kind == "keyed":
            plain = plain_table(binding)
            descriptor = load_descriptor(self._warehouse, binding.name)
            found = open_plain(self._engine, descriptor, str(self._warehouse / plain.path), str(path))
            self._check_schema(self._warehouse / plain.path, found, plain)
        return snapshot.table_id

    def _add_columns(self, binding: StateBinding, spec: TableSpec, path: Path) -> TableSnapshot:
        """The topology has been given further fields for this state: old rows have nulls there.

        The plain table first: a compactor merges the columns that both tables have.
        """
        plain = plain_table(binding)
        if plain is not None and (self._warehouse / plain.path / "_delta_log").is_dir():
            add_columns(self._engine, str(self._warehouse / plain.path), plain.schema_json)
        snapshot = add_columns(self._engine, str(path), spec.schema_json)
        self._remember(snapshot)
        return snapshot

    def _may_adopt(self, path: Path, snapshot: TableSnapshot) -> bool:
        """A table that no topology has, or that this one had in an earlier life."""
        text = snapshot.control(DOMAIN)
        if text is None:
            return True
        control = decode_control(path, text)
        return control.topology == self._topology and control.incarnation != self._incarnation

    def _adopt(self, snapshot: TableSnapshot, control: ControlRecord) -> TableSnapshot:
        self._engine.enable_control(snapshot)
        snapshot = self._engine.load(snapshot.path)
        return self._engine.commit_files(snapshot, [], None, {DOMAIN: control.encode()}, self.engine_info)

    def _check_owner(self, path: Path, control: ControlRecord) -> None:
        owner, own = (control.topology, control.group), (self._topology, self._group)
        if owner != own:
            raise ForeignTable(
                f"the table {path} belongs to another topology or batch group",
                found="{}/{}".format(*owner),
                expected="{}/{}".format(*own),
                action="choose another state name, or run that topology",
            )
        if control.incarnation != self._incarnation:
            raise Halted(
                f"the table {path} is of another life of topology {self._topology!r} than ZooKeeper",
                found=f"the table: incarnation {control.incarnation}, transaction {control.txid}",
                expected=f"incarnation {self._incarnation}, as in ZooKeeper",
                action="ZooKeeper was wiped or the table comes from elsewhere: restore ZooKeeper's data, "
                "or begin again with `trident reset NAME --drop-tables`",
            )

    def _contradiction(self, path: Path, control: ControlRecord, expected: str) -> Halted:
        return Halted(
            f"the table {path} and ZooKeeper do not agree on the last transaction",
            found=f"the table has transaction {control.txid}, attempt {control.attempt_id}",
            expected=f"{expected}, as in ZooKeeper",
            action="the side with the smaller transaction is older, probably restored from a copy: bring both from "
            "the same moment, or begin again with `trident reset NAME --drop-tables`",
        )

    def _check_schema(self, path: Path, snapshot: TableSnapshot, spec: TableSpec) -> None:
        if not spec.fits(snapshot.schema_json) or tuple(snapshot.partition_columns) != tuple(spec.partition_columns):
            raise SchemaMismatch(
                f"the table {path} does not have the schema of its state",
                found=f"{_columns(snapshot.schema_json)} partitioned by {list(snapshot.partition_columns)}",
                expected=f"{_columns(spec.schema_json)} partitioned by {list(spec.partition_columns)}",
                action="choose another state name, or make the topology deliver those columns",
            )

    def _check_foreign(self, path: Path, version: int, snapshot: TableSnapshot) -> None:
        if snapshot.version <= version:
            return
        for commit in delta_log.commits_since(str(path), version):
            reason = delta_log.foreign(commit, self._is_ours)
            if reason:
                raise Halted(
                    f"somebody else changed the table {path}",
                    found=f"table version {commit.version}: {reason}",
                    expected="commits of this topology, OPTIMIZE, VACUUM or statistics only",
                    action="bring the table back from a back-up of before that, or begin again with "
                    "`trident reset NAME --drop-tables`",
                )

    def _is_ours(self, commit: delta_log.Commit) -> bool:
        control = commit.control.get(DOMAIN)
        return (
            (commit.engine_info or "").split(" ")[-1].endswith(self.engine_info)
            and isinstance(control, Mapping)
            and control.get("incarnation") == self._incarnation
        )

    # --- prepare ---------------------------------------------------------------------------------

    @property
    def staging_targets(self) -> list[StagingTarget]:
        """Where an attempt's rows are staged."""
        targets = []
        for binding in self._bindings.values():
            spec = published_table(binding)
            if spec is None:
                targets.append(StagingTarget(binding.name, self._own_root(binding.name)))
            else:
                targets.append(
                    StagingTarget(binding.name, self._warehouse / spec.path, spec.partition_columns, spec.txid_column)
                )
        return targets

    @property
    def epoch(self) -> int:
        """Of the lease."""
        return self._epoch

    @property
    def folder(self) -> Path:
        """Of the group: manifests, and staged rows of states without a table."""
        return self._warehouse / "_trident" / self._topology / self._group

    def _own_root(self, name: str) -> Path:
        root = self.folder / "states" / name
        root.mkdir(parents=True, exist_ok=True)
        return root

    def prepare(
        self, attempt: TransactionAttempt, parent: TransactionAttempt | None, processed: ProcessedBatch,
        record: GroupRecord,
    ) -> PreparedBatch:  # fmt: skip
        staged: Mapping[str, list[StagedFile]] = processed.staged
        tables = tuple(
            self._part(binding, staged[binding.name], record) for binding in self._bindings.values()
            if binding.kind not in BESIDE or staged[binding.name]
        )
        rows = {table.state: table.rows for table in tables}
        wants_commit = any(spout.get("commit_data") is not None for spout in processed.spouts.values())
        if not any(rows.values()) and not wants_commit:
            return PreparedBatch(None, rows)
        manifest = Manifest(
            self._topology, self._group, self._incarnation, attempt, parent, tables, processed.spouts
        )
        self._decided_here = {other for other in self._decided_here if other.txid == attempt.txid} | {attempt}
        return PreparedBatch(self._manifests.write(manifest), rows)

    def _part(self, binding: StateBinding, files: list[StagedFile], record: GroupRecord) -> ManifestTable:
        spec = published_table(binding)
        if spec is None:
            path = self._own_root(binding.name).relative_to(self._warehouse).as_posix()
            details = {"keys": list(binding.keys), "values": list(binding.value_fields), "merging": binding.merging}
            return ManifestTable(binding.name, binding.kind, path, "", "", tuple(files), details)
        snapshot = self._check_table(self._warehouse / spec.path, record)
        schema_hash = hashlib.sha256(snapshot.schema_json.encode()).hexdigest()
        return ManifestTable(binding.name, binding.kind, spec.path, snapshot.table_id, schema_hash, tuple(files))

    def _check_table(self, path: Path, record: GroupRecord) -> TableSnapshot:
        """The table must be as this group left it; cheap when nothing has happened to it."""
        known = self._open_tables[str(path)]
        version = known.snapshot.version
        unchanged = _signature(path, version) == known.signature and not _log_entry(path, version + 1).exists()
        if unchanged:
            return known.snapshot
        try:
            snapshot = self._engine.load(str(path))
        except TableMissing:
            raise Halted(
                f"the table {path} is gone",
                found="no Delta table",
                expected=f"the table at version {version} or later",
                action="bring it back from a back-up, or begin again with `trident reset NAME --drop-tables`",
            ) from None
        if snapshot.table_id != known.snapshot.table_id:
            raise Halted(
                f"the table {path} was dropped and made again",
                found=f"table id {snapshot.table_id}",
                expected=f"table id {known.snapshot.table_id}",
                action="bring the old table back from a back-up, or begin again with `trident reset NAME --drop-tables`",
            )
        self._check_foreign(path, version, snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        mark = record.tables.get(snapshot.table_id) or decode_control(path, known.snapshot.control(DOMAIN)).mark(0)
        if not control.same_batch(mark):
            self._check_fence()
            raise self._contradiction(path, control, f"transaction {mark.txid}, attempt {mark.attempt_id}")
        self._remember(snapshot)
        return snapshot

    # --- publish ---------------------------------------------------------------------------------

    def publish(self, decision: Decision, record: GroupRecord) -> Published:
        try:
            manifest = self._manifests.read(decision)
        except Halted:
            # A deposed coordinator that wakes up here: its successor has published, and cleaned up.
            self._check_fence()
            raise
        try:
            for table in manifest.tables:
                verify_staged(self._warehouse / table.path, table.files)
        except StagedFileMissing as error:
            self._check_fence()
            raise Halted(f"transaction {decision.txid} is decided and cannot be published: {error}") from error
        marks = {}
        own = [table for table in manifest.tables if table.kind in _WITHOUT_TABLE]
        for table in manifest.tables:
            if table.kind not in _WITHOUT_TABLE:
                with faults.fault_point(PUBLISH):
                    marks[table.table_id] = self._publish_table(table, decision, record)
        # Behind the tables: a user's code is what may have to be tried most often.
        for table in own:
            if table.kind == "memory":
                self._publish_memory(table, decision)
            else:
                self._publish_user(table, decision)
        self._last_manifest = Path(decision.manifest).name
        return Published(marks, manifest.spouts)

    def _publish_user(self, table: ManifestTable, decision: Decision) -> None:
        binding = self._bindings.get(table.state)
        if binding is None or binding.kind != table.kind:
            self._check_fence()
            raise Halted(
                f"transaction {decision.txid} is decided and has rows for state {table.state!r}, whose code is not here",
                found=f"a topology with the states {', '.join(sorted(self._bindings)) or 'none'}",
                expected=f"one with {table.state}, a state of kind {table.kind!r}",
                action="start the topology as it was once; then the state can be taken out",
            )
        first = decision.attempt in self._decided_here
        self._users.publish(binding, table, self._warehouse / table.path, decision.attempt, first)

    def _publish_table(self, table: ManifestTable, decision: Decision, record: GroupRecord) -> TableMark:
        path = self._warehouse / table.path
        known = self._open_tables.get(str(path))
        snapshot = known.snapshot if known else self._load_for_publish(path, table)
        for _ in range(_COMMIT_TRIES):
            control = decode_control(path, snapshot.control(DOMAIN))
            self._check_identity(path, snapshot, control, table)
            if control.same_batch(TableMark(0, decision.txid, decision.attempt_id, decision.sha256)):
                self._remember(snapshot)
                return control.mark(snapshot.version)
            mark = record.tables.get(table.table_id)
            expected = control.attempt_id == -1 if mark is None else control.same_batch(mark)
            if not expected:
                self._check_fence()
                raise self._contradiction(path, control, f"transaction {mark.txid if mark else 'none'}")
            after = control.after(decision.txid, decision.attempt_id, decision.sha256, self._epoch)
            try:
                committed = self._engine.commit_files(
                    snapshot, table.files, (self.txn_app_id, decision.txid), {DOMAIN: after.encode()}, self.engine_info
                )
            except (CommitConflict, TxnAlreadyApplied, CommitOutcomeUnknown) as error:
                # A log drop, an OPTIMIZE, our own earlier try or a zombie came first: the control record tells.
                log.info("publishing %s to %s met %s; reading the table again", decision.attempt, path, error)
                snapshot = self._load_for_publish(path, table)
                continue
            self._remember(committed)
            return after.mark(committed.version)
        raise TableError(f"publishing to {path} met {_COMMIT_TRIES} conflicts in a row")

    def _load_for_publish(self, path: Path, table: ManifestTable) -> TableSnapshot:
        try:
            return self._engine.load(str(path))
        except TableMissing:
            self._check_fence()
            raise Halted(
                f"a decided transaction cannot be published: the table {path} is gone",
                found="no Delta table",
                expected=f"table id {table.table_id}",
                action="bring the table back from a back-up, then start again",
            ) from None

    def _check_identity(
        self, path: Path, snapshot: TableSnapshot, control: ControlRecord, table: ManifestTable
    ) -> None:
        if snapshot.table_id != table.table_id or control.incarnation != self._incarnation:
            self._check_fence()
            raise Halted(
                f"a decided transaction cannot be published: {path} is another table",
                found=f"table id {snapshot.table_id}, incarnation {control.incarnation}",
                expected=f"table id {table.table_id}, incarnation {self._incarnation}",
                action="bring the table back from a back-up, then start again",
            )
        same = hashlib.sha256(snapshot.schema_json.encode()).hexdigest() == table.schema_hash
        if not same and not columns_only_added(str(path), snapshot.version, table.schema_hash):
            self._check_fence()
            raise Halted(
                f"a decided transaction cannot be published: the schema of {path} has changed since",
                found=_columns(snapshot.schema_json),
                expected="the schema when the rows were staged",
                action="bring the schema back, then start again",
            )

    def _publish_memory(self, table: ManifestTable, decision: Decision) -> None:
        binding = self._bindings.get(table.state)
        if binding is None:
            return  # a memory map is gone with its process; there is nothing to bring up to date
        keys, values = table.details["keys"], table.details["values"]
        root = self._warehouse / table.path
        rows: list[tuple] = []
        for file in table.files:
            for row in pq.read_table(root / file.path).to_pylist():
                value = None if row.get(DELETED_COLUMN) else tuple(row[name] for name in values)
                rows.append((tuple(row[name] for name in keys), value))
        with faults.fault_point(MEMORY):
            if table.details["merging"] == LAST:
                memory_map(table.state).put(decision.txid, rows, self._incarnation)
            else:
                memory_map(table.state).update(decision.txid, rows, binding.aggregator.combine, self._incarnation)

    def _remember(self, snapshot: TableSnapshot) -> None:
        path = Path(snapshot.path)
        self._open_tables[str(path)] = _Open(snapshot, _signature(path, snapshot.version))

    # --- after -------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Checkpoints and the like: background work of the tables, off the critical path."""
        for known in list(self._open_tables.values()):
            self._engine.run_maintenance(known.snapshot)

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        """Cleans what is left of attempts up to this txid; never another attempt's before that."""
        try:
            self._manifests.clean(attempt.txid, self._last_manifest)
            if attempt.attempt_id > 0:
                self._drop_other_attempts(attempt)
            self._drop_published_rows(attempt.txid)
            self.maintain()
        except Exception as error:  # left over files cost space, nothing else
            log.warning("cleaning up after %s failed: %s", attempt, error)

    def _drop_published_rows(self, txid: int) -> None:
        """Rows that waited for their transaction's turn, or were given to states without a table."""
        for kind in ("states", "boundaries"):
            for folder in (self.folder / kind).glob(f"*/data/{self._incarnation}"):
                for entry in os.scandir(folder):
                    number = entry.name.split("-", 1)[0]
                    if number.isdigit() and int(number) <= txid:
                        shutil.rmtree(entry.path, ignore_errors=True)

    def _drop_other_attempts(self, attempt: TransactionAttempt) -> None:
        for target in self.staging_targets:
            folder = target.root / "data" / self._incarnation
            if not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                parts = entry.name.split("-")
                if parts[0] == str(attempt.txid) and parts[1:2] != [str(attempt.attempt_id)]:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _may_grow(binding: StateBinding) -> bool:
    """Whether old rows may have nulls in new columns: rows and whole values may, parts of an aggregate not."""
    return binding.kind == "append" or (binding.kind == "keyed" and binding.aggregator_name == "upsert")


def _log_entry(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def _signature(path: Path, version: int) -> tuple[int, int, int]:
    """Tells a log entry from one of the same version in a table that was made anew."""
    try:
        status = os.stat(_log_entry(path, version))
    except FileNotFoundError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _columns(schema_json: str) -> str:
    import json

    return ", ".join(f"{field['name']} {field['type']}" for field in json.loads(schema_json)["fields"])
