"""Publishes one decided batch: its Delta tables by compare-and-set on their control records, then the other states."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, Deposed, Halted, StagedFileMissing, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import Published
from trident.coordinators.records import Decision, GroupRecord, TableMark, outside_id
from trident.coordinators.threads import THREADS, Threads
from trident.states.core.binding import DecidedRows, StateBinding, TablelessKind, UserCode
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.delta.evolution import columns_only_added
from trident.states.delta.kernel import CommitOutcomeUnknown, TableMissing, TableSnapshot, TxnAlreadyApplied
from trident.states.delta.manifest import Manifest, ManifestStore, ManifestTable
from trident.states.delta.staging import verify_staged
from trident.states.delta.torn_entries import fsync_log_entries
from trident.states.publishing.group_tables import GroupTables, columns_text

log = logging.getLogger("trident.committer")
PUBLISH = faults.register("publish.table", "the Kernel commit of one table of a decided batch")
_COMMIT_TRIES = 20
_LED_SECS = 1.0


class Publisher:
    """Publishes the decided batches of one batch group under one lease."""

    def __init__(
        self,
        tables: GroupTables,
        bindings: Mapping[str, StateBinding],
        manifests: ManifestStore,
        user_code: UserCode,
        threads: Threads = THREADS,
    ) -> None:
        self._threads = threads
        self._tables, self._bindings, self._manifests, self._user_code = tables, bindings, manifests, user_code
        self._led_at = float("-inf")  # when the fence was last asked before a commit
        self._begun: TransactionAttempt | None = None  # what was last begun to be published

    def publish(self, decision: Decision, record: GroupRecord, first: bool) -> tuple[Published, Manifest]:
        """Brings each table from the last published transaction to the decided one; again: changes nothing.

        Args:
            first: whether this process decided it, so that no other can have published it.

        Returns:
            what ZooKeeper is told, and the manifest: the tables and states that the transaction has rows for.

        Raises:
            Deposed: another coordinator leads.
            Halted: it cannot be published without losing or doubling rows.
        """
        try:
            manifest = self._manifests.read(decision)
        except Halted:
            # A successor may have finished this transaction and cleaned up behind it.
            self._tables.check_fence()
            raise
        again, self._begun = self._begun == decision.attempt, decision.attempt
        self._verify_files(manifest, decision, answered=first and not again and not self._tables.warehouse.is_local)
        marks = self._tables.plains.marks()
        with_table = [table for table in manifest.tables if table.state_kind.has_table]
        marks |= self._publish_tables(with_table, decision, record)
        # Behind the tables: a user's code is what may have to be tried most often.
        for table in manifest.tables:
            if isinstance(kind := table.state_kind, TablelessKind):
                mark = self._publish_without_table(kind, table, decision, record, first)
                marks |= {} if mark is None else {outside_id(table.state): mark}
        return Published(marks, manifest.spouts), manifest

    def _publish_tables(
        self, tables: Sequence[ManifestTable], decision: Decision, record: GroupRecord
    ) -> dict[str, TableMark]:
        """Commits to the tables side by side, since a commit is mostly waiting for the disk.

        A recovery finds any of them published and the others not, as after a crash between two. All have ended when
        this returns or raises: a table that is still committed to when the next try begins would have two writers.
        """
        marks: dict[str, TableMark] = {}
        errors: list[Exception] = []

        def publish(table: ManifestTable) -> None:
            try:
                with faults.fault_point(PUBLISH):
                    marks[table.table_id] = self._publish_table(table, decision, record)
            except Exception as error:
                errors.append(error)

        if len(tables) == 1:
            publish(tables[0])
        else:
            threads = [self._threads.thread(partial(publish, table), "trident-publish") for table in tables]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            # Deposed and Halted end the driver: they must not hide behind an error that is tried again.
            raise next((error for error in errors if isinstance(error, (Deposed, Halted))), errors[0])
        assert len(marks) == len(tables), "a thread ended without a report"
        return marks

    def _verify_files(self, manifest: Manifest, decision: Decision, answered: bool) -> None:
        problems = []
        for table in manifest.tables:
            try:
                verify_staged(self._tables.warehouse / table.path, table.files, answered)
            except StagedFileMissing as error:
                # A table that has the transaction needs its files no more: OPTIMIZE and VACUUM may have removed them.
                if not self._has_batch(table, decision):
                    problems.append(error.message)
        if problems:
            self._tables.check_fence()
            raise halts.files_missing(self._tables.topology, decision, problems)

    def _has_batch(self, table: ManifestTable, decision: Decision) -> bool:
        if not table.state_kind.has_table:
            return False
        try:
            snapshot = self._tables.engine.load(str(self._tables.warehouse / table.path))
        except TableMissing:
            return False
        control = decode_control(snapshot.path, snapshot.control(DOMAIN))
        return control.is_of(decision) and snapshot.table_id == table.table_id

    def _publish_without_table(
        self, kind: TablelessKind, table: ManifestTable, decision: Decision, record: GroupRecord, first: bool
    ) -> TableMark | None:
        """Gives a state its rows; returns the mark that ZooKeeper is to keep of it, if any."""
        binding = self._bindings.get(table.state)
        if binding is None and kind.in_process:
            return None  # it is gone with its process; there is nothing to bring up to date
        if binding is None or binding.kind != table.kind:
            self._tables.check_fence()
            raise Halted(
                f"transaction {decision.txid} is decided and has rows for state {table.state!r}; its code is not here",
                found=f"a topology with the states {', '.join(sorted(self._bindings)) or 'none'}",
                expected=f"one with {table.state}, a state of kind {table.kind!r}",
                action="start the topology as it was once; then the state can be taken out",
            )
        rows = DecidedRows(
            decision.attempt,
            self._tables.incarnation,
            self._tables.warehouse / table.path,
            table.files,
            table.details,
            first,
            self._user_code,
            record.tables.get(outside_id(table.state)),
        )
        kind.publish(binding, rows)
        if not kind.keeps_marks or not table.files:
            return None
        return TableMark(0, decision.txid, decision.attempt_id, decision.sha256)

    def _publish_table(self, table: ManifestTable, decision: Decision, record: GroupRecord) -> TableMark:
        path = self._tables.warehouse / table.path
        known = self._tables.seen.get(str(path))
        mark = record.tables.get(table.table_id)
        if known is not None and not known.refused:
            snapshot = known.snapshot
        else:
            snapshot = self._load_for_publish(path, table, mark, decision)
        met: TableError | None = None
        for _ in range(_COMMIT_TRIES):
            control = decode_control(path, snapshot.control(DOMAIN))
            self._check_identity(path, snapshot, control, table)
            if control.is_of(decision):
                # Its writer may not have come to the flush, and a transaction that advances must outlive a power cut.
                first = mark.version + 1 if mark else snapshot.version
                fsync_log_entries(str(path), first, snapshot.version)
                self._tables.remember(snapshot)
                return control.mark(snapshot.version)
            expected = control.attempt_id == -1 if mark is None else control.same_batch(mark)
            if not expected:
                self._tables.check_fence()
                raise halts.transactions_differ(self._tables.topology, path, control, mark)
            after = control.after(decision.txid, decision.attempt_id, decision.sha256, self._tables.epoch)
            self._check_leads()
            try:
                committed = self._tables.engine.commit_files(
                    snapshot,
                    table.files,
                    (self._tables.txn_app_id, decision.txid),
                    {DOMAIN: after.encode()},
                    self._tables.engine_info,
                )
            except (CommitConflict, TxnAlreadyApplied, CommitOutcomeUnknown) as error:
                # A log drop, an OPTIMIZE, our own earlier try or a zombie came first: the control record tells.
                met = error
                log.info("publishing %s to %s met %s; reading the table again", decision.attempt, path, error)
                # A commit on top of foreign rows would hide them: later checks begin behind it.
                snapshot = self._load_for_publish(path, table, control.mark(snapshot.version), decision)
                continue
            except TableError:
                # Two coordinators may have written one checkpoint, and a snapshot knows the size of the first.
                if known:
                    known.refused = True
                raise
            self._tables.remember(committed)
            return after.mark(committed.version)
        raise TableError(f"no commit to {path} came about {_COMMIT_TRIES} times in a row", found=met) from met

    def _check_leads(self) -> None:
        """Asks the fence before a table is committed to; not again within a second, which no session ends in.

        The table itself refuses a deposed coordinator's commit, too: by its control record, and, where the table was
        made anew, by the log entry that the commit builds on.
        """
        now = time.monotonic()
        if now - self._led_at > _LED_SECS:
            self._tables.check_fence()
            self._led_at = now

    def _load_for_publish(
        self, path: Place, table: ManifestTable, mark: TableMark | None, decision: Decision
    ) -> TableSnapshot:
        """Loads the table anew, and checks that all commits since ``mark`` are ours."""
        try:
            snapshot = self._tables.engine.load(str(path))
        except TableMissing:
            self._tables.check_fence()
            raise halts.table_missing(self._tables.topology, path, mark.version if mark else -1, decision) from None
        if mark is not None and snapshot.table_id == table.table_id:
            try:
                self._tables.check_foreign(table.state, path, mark.version, snapshot)
            except Halted:
                self._tables.check_fence()  # what a deposed coordinator finds is for the leader to judge
                raise
        return snapshot

    def _check_identity(
        self, path: Place, snapshot: TableSnapshot, control: ControlRecord, table: ManifestTable
    ) -> None:
        if snapshot.table_id != table.table_id or control.incarnation != self._tables.incarnation:
            self._tables.check_fence()
            raise Halted(
                f"a decided transaction cannot be published: {path} is another table",
                found=f"table id {snapshot.table_id}, incarnation {control.incarnation}",
                expected=f"table id {table.table_id}, incarnation {self._tables.incarnation}",
                action=f"bring the table back from a back-up, then start again; "
                f"`trident repair {self._tables.topology}` shows what else can be done and changes nothing",
            )
        same = hashlib.sha256(snapshot.schema_json.encode()).hexdigest() == table.schema_hash
        if not same and not columns_only_added(str(path), snapshot.version, table.schema_hash):
            self._tables.check_fence()
            raise Halted(
                f"a decided transaction cannot be published: the schema of {path} has changed since",
                found=columns_text(snapshot.schema_json),
                expected="the schema when the rows were staged",
                action="bring the schema back, then start again",
            )
