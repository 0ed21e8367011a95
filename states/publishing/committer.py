"""Prepares, publishes and checks the Delta tables of one batch group (docs/semantics.md 9.3, 9.5, 10).

Prepare checks that each table is as this group left it and makes the manifest
durable. Publish brings each table from the last published transaction to the
decided one with a compare-and-set on its control record; doing it again, in
this process or another, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trident.coordinators import faults
from trident.coordinators.errors import (
    CommitConflict,
    Halted,
    SchemaMismatch,
    StagedFileMissing,
    TableError,
)
from trident.coordinators.ports import PreparedBatch, ProcessedBatch, Published
from trident.coordinators.records import Decision, GroupRecord, TableMark
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core import storage
from trident.states.core.binding import DecidedRows, StateBinding
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from trident.states.core.names import other_owner
from trident.states.core.staged import StagedFile
from trident.states.core.tables import TableSpec
from trident.states.delta import halts as contradictions
from trident.states.delta import history as delta_log
from trident.states.delta.evolution import add_columns, columns_only_added
from trident.states.delta.kernel import (
    CommitOutcomeUnknown,
    KernelEngine,
    TableMissing,
    TableSnapshot,
    TxnAlreadyApplied,
)
from trident.states.delta.log_entries import entry_signature, has_log
from trident.states.delta.manifest import Manifest, ManifestStore, ManifestTable
from trident.states.delta.staging import StagingTarget, drop_attempts_up_to, verify_staged
from trident.states.delta.torn_entries import settle_log_entries
from trident.states.keyed.plain_watch import PlainWatch, check_commits
from trident.states.publishing.dead_letters import kind_beside, same_name, tables_beside
from trident.states.publishing.user_publish import UserStatePublisher

log = logging.getLogger("trident.committer")
PUBLISH = faults.register("publish.table", "the Kernel commit of one table of a decided batch")
CLEAN = faults.register("clean.staged", "removing staged rows that nobody needs any more")
_COMMIT_TRIES = 20
# How long after its attempt was cancelled a task may still write: it ends when its worker next says something.
_STRAGGLER_SECS = 60.0
_LED_SECS = 1.0


@dataclass
class _Open:
    """A table as this process last saw it."""

    snapshot: TableSnapshot
    signature: tuple[int, int, int] | None  # of the newest log entry: a recreated table has another
    refused: bool = False  # a commit on this snapshot: the next one needs a table that is loaded anew


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
        self,
        engine: KernelEngine,
        warehouse: Path,
        topology: str,
        group: str,
        incarnation: str,
        epoch: int,
        bindings: Sequence[StateBinding],
        check_fence: Callable[[], None],
    ) -> None:
        self._engine, self._warehouse = engine, warehouse
        self._topology, self._group, self._incarnation, self._epoch = topology, group, incarnation, epoch
        self._bindings = {binding.name: binding for binding in bindings}
        self._check_fence = check_fence
        self._manifests = ManifestStore(warehouse, topology, group, incarnation)
        self._open_tables: dict[str, _Open] = {}  # by path
        self._plains = PlainWatch(engine, warehouse)
        self._last_published: TransactionAttempt | None = None  # whose manifest stays
        self._decided_here: set[TransactionAttempt] = set()
        self._published: dict[TransactionAttempt, tuple[ManifestTable, ...]] = {}  # not cleaned up yet
        self._to_clean: deque[TransactionAttempt] = deque()
        self._replayed: dict[TransactionAttempt, float] = {}  # when it was cleaned up after
        self._look_again = 0.0  # for files of other attempts, at the earliest
        self._led_at = float("-inf")  # when the fence was last asked before a commit
        self._users = UserStatePublisher(engine.spark, topology, group, incarnation, epoch, check_fence)
        # With the incarnation: after a reset txids begin at 1 again, and Delta refuses a smaller one of the same app.
        self.txn_app_id = f"trident/{topology}/{group}/{incarnation}"
        self.engine_info = f"trident/{incarnation}"

    # --- the tables when a coordinator takes over ---------------------------------------------

    def open(self, record: GroupRecord) -> None:
        """Creates the tables that are missing and checks the others (docs/semantics.md 9, recovery).

        Call it with no decision pending.

        Raises:
            Halted: a table is not as this group left it: which side is older is said.
            ForeignTable, SchemaMismatch: a table cannot be this state's.
        """
        if record.last_published is not None:
            self._last_published = record.last_published.attempt
        loaded = self._check_all_there(record)
        for binding in self._bindings.values():
            spec = binding.published_table
            if spec is not None:
                self._open_table(binding, spec, record, loaded.get(self._warehouse / spec.path))

    def _check_all_there(self, record: GroupRecord) -> dict[Path, TableSnapshot]:
        """Every table that ZooKeeper has a mark of must be there, before any is made anew in its place."""
        own = [spec.path for binding in self._bindings.values() for spec in binding.tables]
        missing: list[Path] = []
        loaded: dict[Path, TableSnapshot] = {}
        for path in [*(self._warehouse / each for each in own), *self._detached_paths(record)]:
            if not has_log(path):
                missing.append(path)
                continue
            loaded[path] = self._engine.load(str(path))
        gone = set(record.tables) - {snapshot.table_id for snapshot in loaded.values()}
        if gone:
            strange = {path: found for path, found in loaded.items() if found.table_id not in record.tables}
            for path, snapshot in strange.items():
                text = snapshot.control(DOMAIN)
                if text is not None and self._is_other_life(control := decode_control(path, text)):
                    raise contradictions.other_incarnation(self._topology, path, control, self._incarnation)
            raise contradictions.tables_gone(self._topology, self._group, record, missing, strange, gone)
        return loaded

    def _is_other_life(self, control: ControlRecord) -> bool:
        return control.topology == self._topology and control.incarnation != self._incarnation

    def _detached_paths(self, record: GroupRecord) -> list[Path]:
        """Tables of states that the topology no longer has: kept, detached."""
        paths = []
        for descriptor in descriptors_of_group(self._warehouse, self._topology, self._group):
            path = self._warehouse / descriptor.published_path
            if descriptor.name in self._bindings or not storage.exists(path):
                continue
            paths.append(path)
            if descriptor.state_kind.has_log and storage.exists(self._warehouse / descriptor.plain_path):
                paths.append(self._warehouse / descriptor.plain_path)
            if descriptor.ends_at is None:
                # From now on readers of the group must not wait for this table.
                replace(descriptor, ends_at=record.current_txid - 1).save(self._warehouse)
        beside = tables_beside(self._warehouse, self._topology)
        return [*paths, *(path for path, group in beside if group == self._group and path.name not in self._bindings)]

    def _open_table(
        self, binding: StateBinding, spec: TableSpec, record: GroupRecord, loaded: TableSnapshot | None
    ) -> None:
        path = self._warehouse / spec.path
        first = ControlRecord(
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
        try:
            snapshot = loaded or self._engine.load(str(path))
        except TableMissing:
            self._check_fence()  # of a life that was reset meanwhile: its tables would stop the next one
            snapshot = self._engine.create_table(
                str(path),
                spec.schema_json,
                spec.partition_columns,
                spec.properties,
                {DOMAIN: first.encode()},
                self.engine_info,
            )
        else:
            if getattr(binding.state, "adopt", False) and self._may_adopt(path, snapshot):
                self._check_fence()
                snapshot = self._adopt(snapshot, first)
        self._engine.expect_litter(str(path))
        self._remember(snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        self._check_owner(path, control)
        mark = record.tables.get(snapshot.table_id)
        if control.attempt_id != -1 if mark is None else not control.same_batch(mark):
            self._check_fence()  # a successor may have published since the record was read
            raise contradictions.transactions_differ(self._topology, path, control, mark)
        # Without a mark the control record was the last thing written: what is before it was adopted with the table.
        version = mark.version if mark else delta_log.find_version_by_control(str(path), DOMAIN, control.txid)
        self._check_foreign(binding.name, path, snapshot.version if version is None else version, snapshot)
        if binding.state_kind.may_grow(binding) and spec.lacks_columns(snapshot.schema_json):
            snapshot = self._add_columns(binding, spec, path)
        self._check_schema(path, snapshot, spec)
        if binding.state_kind.is_described:
            StateDescriptor.of(binding, self._topology, self._group, self._incarnation, control.starts_at).save(
                self._warehouse
            )
        plain = binding.state_kind.plain_table(binding)
        if plain is not None:
            descriptor = load_descriptor(self._warehouse, binding.name)
            found = self._plains.open(descriptor, record.tables, path, control.starts_at)
            self._check_schema(self._warehouse / plain.path, found, plain)

    def _add_columns(self, binding: StateBinding, spec: TableSpec, path: Path) -> TableSnapshot:
        """The topology has been given further fields for this state: old rows have nulls there.

        The plain table first: a compactor merges the columns that both tables have.
        """
        plain = binding.state_kind.plain_table(binding)
        if plain is not None and has_log(self._warehouse / plain.path):
            add_columns(self._engine, str(self._warehouse / plain.path), plain.schema_json)
        snapshot = add_columns(self._engine, str(path), spec.schema_json)
        self._remember(snapshot)
        return snapshot

    def _may_adopt(self, path: Path, snapshot: TableSnapshot) -> bool:
        """A table that no topology has, or that this one had in an earlier life."""
        text = snapshot.control(DOMAIN)
        if text is None:
            return True
        return self._is_other_life(decode_control(path, text))

    def _adopt(self, snapshot: TableSnapshot, control: ControlRecord) -> TableSnapshot:
        self._engine.enable_control(snapshot)
        snapshot = self._engine.load(snapshot.path)
        return self._engine.commit_files(snapshot, [], None, {DOMAIN: control.encode()}, self.engine_info)

    def _check_owner(self, path: Path, control: ControlRecord) -> None:
        owner, own = (control.topology, control.group), (self._topology, self._group)
        if owner[0] != own[0] and kind_beside(path):
            raise same_name(path, self._topology, control.topology)
        if owner != own:
            raise other_owner(path, owner, own, control.txid)
        if control.incarnation != self._incarnation:
            raise contradictions.other_incarnation(self._topology, path, control, self._incarnation)

    def _check_schema(self, path: Path, snapshot: TableSnapshot, spec: TableSpec) -> None:
        if not spec.fits(snapshot.schema_json) or tuple(snapshot.partition_columns) != tuple(spec.partition_columns):
            raise SchemaMismatch(
                f"the table {path} does not have the schema of its state",
                found=f"{_columns(snapshot.schema_json)} partitioned by {list(snapshot.partition_columns)}",
                expected=f"{_columns(spec.schema_json)} partitioned by {list(spec.partition_columns)}",
                action="choose another state name, or make the topology deliver those columns",
            )

    def _check_foreign(self, state: str, path: Path, version: int, snapshot: TableSnapshot) -> None:
        check_commits(self._topology, state, path, version, snapshot.version, self._is_ours)

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
            spec = binding.published_table
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
        storage.make_folder(root, self._warehouse)
        return root

    def prepare(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        processed: ProcessedBatch,
        record: GroupRecord,
    ) -> PreparedBatch:
        staged: Mapping[str, list[StagedFile]] = processed.staged
        self._plains.check(self._bindings)
        tables = tuple(
            self._part(binding, staged[binding.name], record)
            for binding in self._bindings.values()
            if staged[binding.name] or not binding.state_kind.only_with_rows
        )
        rows = {table.state: table.rows for table in tables}
        wants_commit = any(spout.get("commit_data") is not None for spout in processed.spouts.values())
        if not any(rows.values()) and not wants_commit:
            return PreparedBatch(None, rows)
        manifest = Manifest(self._topology, self._group, self._incarnation, attempt, parent, tables, processed.spouts)
        self._decided_here = {other for other in self._decided_here if other.txid == attempt.txid} | {attempt}
        return PreparedBatch(self._manifests.write(manifest), rows)

    def _part(self, binding: StateBinding, files: list[StagedFile], record: GroupRecord) -> ManifestTable:
        spec = binding.published_table
        if spec is None:
            path = self._own_root(binding.name).relative_to(self._warehouse).as_posix()
            details = {"keys": list(binding.keys), "values": list(binding.value_fields), "merging": binding.merging}
            return ManifestTable(binding.name, binding.kind, path, "", "", tuple(files), details)
        snapshot = self._check_table(binding.name, self._warehouse / spec.path, record)
        schema_hash = hashlib.sha256(snapshot.schema_json.encode()).hexdigest()
        return ManifestTable(binding.name, binding.kind, spec.path, snapshot.table_id, schema_hash, tuple(files))

    def _check_table(self, state: str, path: Path, record: GroupRecord) -> TableSnapshot:
        """The table must be as this group left it; cheap when nothing has happened to it."""
        known = self._open_tables[str(path)]
        version = known.snapshot.version
        unchanged = entry_signature(str(path), version) == known.signature
        if unchanged and entry_signature(str(path), version + 1) is None:
            return known.snapshot
        try:
            snapshot = self._engine.load(str(path))
        except TableMissing:
            raise contradictions.table_gone(self._topology, path, version) from None
        if snapshot.table_id != known.snapshot.table_id:
            raise contradictions.made_again(self._topology, path, snapshot.table_id, known.snapshot.table_id)
        self._check_foreign(state, path, version, snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        mark = record.tables.get(snapshot.table_id) or decode_control(path, known.snapshot.control(DOMAIN)).mark(0)
        if not control.same_batch(mark):
            self._check_fence()
            raise contradictions.transactions_differ(self._topology, path, control, mark)
        self._remember(snapshot)
        return snapshot

    # --- publish ---------------------------------------------------------------------------------

    def publish(self, decision: Decision, record: GroupRecord) -> Published:
        try:
            manifest = self._manifests.read(decision)
        except Halted:
            # A successor may have finished this transaction and cleaned up behind it.
            self._check_fence()
            raise
        self._verify_files(manifest, decision)
        marks = self._plains.marks()
        for table in manifest.tables:
            if table.state_kind.has_table:
                with faults.fault_point(PUBLISH):
                    marks[table.table_id] = self._publish_table(table, decision, record)
        # Behind the tables: a user's code is what may have to be tried most often.
        for table in manifest.tables:
            if not table.state_kind.has_table:
                self._publish_without_table(table, decision)
        self._last_published = decision.attempt
        self._published[decision.attempt] = manifest.tables
        return Published(marks, manifest.spouts)

    def _verify_files(self, manifest: Manifest, decision: Decision) -> None:
        problems = []
        for table in manifest.tables:
            try:
                verify_staged(self._warehouse / table.path, table.files)
            except StagedFileMissing as error:
                # A table that has the transaction needs its files no more: OPTIMIZE and VACUUM may have removed them.
                if not self._has_batch(table, decision):
                    problems.append(error.message)
        if problems:
            self._check_fence()
            raise contradictions.files_missing(self._topology, decision, problems)

    def _has_batch(self, table: ManifestTable, decision: Decision) -> bool:
        if not table.state_kind.has_table:
            return False
        try:
            snapshot = self._engine.load(str(self._warehouse / table.path))
        except TableMissing:
            return False
        control = decode_control(snapshot.path, snapshot.control(DOMAIN))
        same = control.same_batch(TableMark(0, decision.txid, decision.attempt_id, decision.sha256))
        return same and snapshot.table_id == table.table_id

    def _publish_without_table(self, table: ManifestTable, decision: Decision) -> None:
        binding = self._bindings.get(table.state)
        if binding is None and table.state_kind.in_process:
            return  # it is gone with its process; there is nothing to bring up to date
        if binding is None or binding.kind != table.kind:
            self._check_fence()
            raise Halted(
                f"transaction {decision.txid} is decided and has rows for state {table.state!r}; its code is not here",
                found=f"a topology with the states {', '.join(sorted(self._bindings)) or 'none'}",
                expected=f"one with {table.state}, a state of kind {table.kind!r}",
                action="start the topology as it was once; then the state can be taken out",
            )
        rows = DecidedRows(
            decision.attempt,
            self._incarnation,
            self._warehouse / table.path,
            table.files,
            table.details,
            decision.attempt in self._decided_here,
            self._users,
        )
        binding.state_kind.publish(binding, rows)

    def _publish_table(self, table: ManifestTable, decision: Decision, record: GroupRecord) -> TableMark:
        path = self._warehouse / table.path
        known = self._open_tables.get(str(path))
        mark = record.tables.get(table.table_id)
        usable = known is not None and not known.refused
        snapshot = known.snapshot if usable else self._load_for_publish(path, table, mark, decision)
        met: TableError | None = None
        for _ in range(_COMMIT_TRIES):
            control = decode_control(path, snapshot.control(DOMAIN))
            self._check_identity(path, snapshot, control, table)
            if control.same_batch(TableMark(0, decision.txid, decision.attempt_id, decision.sha256)):
                # Whoever committed it may not have come to the flush, and what advances must outlive a power cut.
                first = mark.version + 1 if mark else snapshot.version
                settle_log_entries(str(path), first, snapshot.version)
                self._remember(snapshot)
                return control.mark(snapshot.version)
            expected = control.attempt_id == -1 if mark is None else control.same_batch(mark)
            if not expected:
                self._check_fence()
                raise contradictions.transactions_differ(self._topology, path, control, mark)
            after = control.after(decision.txid, decision.attempt_id, decision.sha256, self._epoch)
            self._check_leads()
            try:
                committed = self._engine.commit_files(
                    snapshot, table.files, (self.txn_app_id, decision.txid), {DOMAIN: after.encode()}, self.engine_info
                )
            except (CommitConflict, TxnAlreadyApplied, CommitOutcomeUnknown) as error:
                # A log drop, an OPTIMIZE, our own earlier try or a zombie came first: the control record tells.
                met = error
                log.info("publishing %s to %s met %s; reading the table again", decision.attempt, path, error)
                # Somebody else's rows are not committed upon: from then on nobody would look at them.
                snapshot = self._load_for_publish(path, table, control.mark(snapshot.version), decision)
                continue
            except TableError:
                # Two coordinators may have written one checkpoint, and a snapshot knows the size of the first.
                if known:
                    known.refused = True
                raise
            self._remember(committed)
            return after.mark(committed.version)
        raise TableError(f"no commit to {path} came about {_COMMIT_TRIES} times in a row", found=met) from met

    def _check_leads(self) -> None:
        """Asks the fence before a table is committed to; not again within a second, which no session ends in.

        What a deposed coordinator would commit is refused by the table itself, too: by its control record, and, where
        the table was made anew, by the log entry that the commit builds on.
        """
        now = time.monotonic()
        if now - self._led_at > _LED_SECS:
            self._check_fence()
            self._led_at = now

    def _load_for_publish(
        self, path: Path, table: ManifestTable, mark: TableMark | None, decision: Decision
    ) -> TableSnapshot:
        """The table as it is now, with nobody's commits but ours since ``mark``."""
        try:
            snapshot = self._engine.load(str(path))
        except TableMissing:
            self._check_fence()
            raise contradictions.table_gone(self._topology, path, mark.version if mark else -1, decision) from None
        if mark is not None and snapshot.table_id == table.table_id:
            try:
                self._check_foreign(table.state, path, mark.version, snapshot)
            except Halted:
                self._check_fence()  # what a deposed coordinator finds is for the leader to judge
                raise
        return snapshot

    def _check_identity(
        self, path: Path, snapshot: TableSnapshot, control: ControlRecord, table: ManifestTable
    ) -> None:
        if snapshot.table_id != table.table_id or control.incarnation != self._incarnation:
            self._check_fence()
            raise Halted(
                f"a decided transaction cannot be published: {path} is another table",
                found=f"table id {snapshot.table_id}, incarnation {control.incarnation}",
                expected=f"table id {table.table_id}, incarnation {self._incarnation}",
                action=f"bring the table back from a back-up, then start again; "
                f"`trident repair {self._topology}` shows what else can be done and changes nothing",
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

    def _remember(self, snapshot: TableSnapshot) -> None:
        path = Path(snapshot.path)
        self._open_tables[str(path)] = _Open(snapshot, snapshot.entry)

    # --- after -------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Checkpoints and the like: background work of the tables, off the critical path."""
        for known in list(self._open_tables.values()):
            self._engine.run_maintenance(known.snapshot)

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        """Cleans what is left of attempts up to this txid; never another attempt's before that.

        What could not be cleaned is tried again with the next transaction. So is, for a minute or more, what other
        attempts of a transaction have left: a task that was cancelled with its attempt may write its file after all.
        """
        self._to_clean.append(attempt)
        try:
            while self._to_clean:
                self._clean_up_after(self._to_clean[0])
                self._to_clean.popleft()
            self.maintain()
        except Exception as error:  # left over files cost space, nothing else
            log.warning("cleaning up after %s failed: %s", self._to_clean[0] if self._to_clean else attempt, error)

    def _clean_up_after(self, attempt: TransactionAttempt) -> None:
        self._manifests.clean(attempt.txid, self._last_published)
        with faults.fault_point(CLEAN):
            if attempt.attempt_id > 0:
                self._replayed[attempt], self._look_again = time.monotonic(), 0.0
            if self._replayed and time.monotonic() >= self._look_again:
                self._drop_other_attempts()
            for table in self._published.get(attempt, ()):
                self._drop_unnamed(table)
            self._drop_published_rows(attempt.txid)
        self._published.pop(attempt, None)

    def _drop_published_rows(self, txid: int) -> None:
        """Rows that waited for their transaction's turn, or were given to states without a table."""
        for kind in ("states", "boundaries"):
            for state in storage.list_names(self.folder / kind):
                drop_attempts_up_to(self.folder / kind / state / "data" / self._incarnation, txid)

    def _drop_unnamed(self, table: ManifestTable) -> None:
        """Files that a task has written before it, or its worker, was killed and the task was tried again."""
        root, named = self._warehouse / table.path, {file.path for file in table.files}
        for folder in {path.rpartition("/")[0] for path in named}:
            for path in (f"{folder}/{name}" for name in storage.list_names(root / folder)):
                if path not in named:
                    storage.delete(root / path)

    def _drop_other_attempts(self) -> None:
        """Lists every staged attempt that is not merged yet; for at most a tenth of the time."""
        now = time.monotonic()
        good = {str(attempt.txid): str(attempt.attempt_id) for attempt in self._replayed}
        for target in self.staging_targets:
            folder = target.root / "data" / self._incarnation
            for name in storage.list_names(folder):
                parts = name.split("-")
                if parts[0] in good and parts[1:2] != [good[parts[0]]]:
                    storage.try_delete(folder / name)
        # What is older than the time that a straggler has was looked for once more just now.
        self._replayed = {attempt: since for attempt, since in self._replayed.items() if now - since < _STRAGGLER_SECS}
        self._look_again = time.monotonic() + 10 * (time.monotonic() - now)


def _columns(schema_json: str) -> str:
    return ", ".join(f"{field['name']} {field['type']}" for field in json.loads(schema_json)["fields"])
