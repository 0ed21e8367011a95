"""Prepares, publishes, checks and cleans up the Delta tables of one batch group (docs/semantics.md 9.3, 9.5, 10).

Prepare checks that each table is as this group left it and makes the manifest
durable. Publish brings each table from the last published transaction to the
decided one with a compare-and-set on its control record; doing it again, in
this process or another, changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from trident.coordinators import faults
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import AttemptHistory, PreparedBatch, ProcessedBatch, Published
from trident.coordinators.records import Decision, GroupRecord
from trident.states.core import storage
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile, TableSpec
from trident.states.delta.delta_log import unchanged as unchanged_tables
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import CommitAnnotations, Manifest, ManifestStore, ManifestTable, Retention
from trident.states.delta.parquet_files import AGAIN
from trident.states.delta.staging import StagingTarget, drop_attempts_up_to
from trident.states.history.recorder import RecentPublications
from trident.states.keyed.fitting import Fitting
from trident.states.outside.health import OutsideProgress
from trident.states.publishing.group_tables import GroupTables
from trident.states.publishing.opening import TableOpener
from trident.states.publishing.other_stores import OutsidePublisher, UserStatePublisher
from trident.states.publishing.publishing import Publisher

# Removes what is left of a transaction that has advanced: manifests, staged rows, files of attempts that failed.


log = logging.getLogger("trident.committer")
CLEAN = faults.register("clean.staged", "removing staged rows that are not needed any more")
# How long after its attempt was cancelled a task may still write: it ends when its worker next says something.
_STRAGGLER_SECS = 60.0
# A store is cleaned up behind so many transactions at once: a look costs a request, and what is left over only space.
# So are manifests where a history of them is kept, which a look goes through: of a long one less often.
CLEAN_EVERY = 20
HISTORY_PER_READ = 50
_EMPTY_MAX = 1_000


class Cleaner:
    """Cleans up after the transactions of one batch group.

    Args:
        roots: gives the folders that rows are staged in.

    Attributes:
        last_published: the attempt whose manifest stays.
    """

    def __init__(self, tables: GroupTables, manifests: ManifestStore, roots: Callable[[], Iterable[Place]]) -> None:
        self._tables, self._manifests, self._roots = tables, manifests, roots
        self.last_published: TransactionAttempt | None = None
        self._tables_of: dict[TransactionAttempt, Iterable[ManifestTable]] = {}  # of those not cleaned up after yet
        self._to_clean: deque[TransactionAttempt] = deque()
        self._replayed: dict[TransactionAttempt, float] = {}  # when it was cleaned up after
        self._list_attempts_at = 0.0  # for files of other attempts, at the earliest
        self._cleaned = 0  # transactions, under this lease
        self._without_effect: set[TransactionAttempt] = set()  # prepared without a manifest, and not advanced yet
        self._empty: set[int] = set()  # transactions that have advanced so, since the last clean-up
        self._is_speculative: bool | None = None  # whether Spark may try a task a second time beside the first

    def published(self, attempt: TransactionAttempt, tables: Iterable[ManifestTable]) -> None:
        """An attempt is published; its rows are needed until it has advanced."""
        self.last_published = attempt
        self._tables_of[attempt] = tables

    def without_effect(self, attempt: TransactionAttempt) -> None:
        """An attempt is prepared and has no manifest; one of another attempt that is there was never decided."""
        self._without_effect.add(attempt)

    def opened(self, record: GroupRecord) -> None:
        """The group is opened, with no decision pending."""
        if record.last_published is not None:
            self.last_published = record.last_published.attempt
        published, last = (marker.txid if marker else 0 for marker in (record.last_published, record.last))
        self._empty |= set(range(max(published + 1, last - _EMPTY_MAX), last + 1))

    def advanced(self, attempt: TransactionAttempt) -> None:
        """Cleans what is left of attempts up to this txid; never another attempt's before that.

        Files that could not be cleaned are tried again with the next transaction. So are, for a minute or more, those
        of a transaction's other attempts: a task that was cancelled with its attempt may write its file after all.
        """
        self._to_clean.append(attempt)
        try:
            while self._to_clean:
                self._clean_up_after(self._to_clean[0])
                self._to_clean.popleft()
            self._tables.maintain()
        except Exception as error:  # left over files cost space, nothing else
            log.warning("cleaning up after %s failed: %s", self._to_clean[0] if self._to_clean else attempt, error)

    def _clean_up_after(self, attempt: TransactionAttempt) -> None:
        due = self._tables.warehouse.is_local or self._cleaned % CLEAN_EVERY == 0
        self._clean_manifests(attempt, due)
        with faults.fault_point(CLEAN):
            if attempt.attempt_id > 0:
                self._replayed[attempt], self._list_attempts_at = time.monotonic(), 0.0
            if self._replayed and time.monotonic() >= self._list_attempts_at:
                self._drop_other_attempts()
            for table in self._tables_of.get(attempt, ()):
                self._drop_unnamed(table)
            if due:
                self._drop_published_rows(attempt.txid)
        self._tables_of.pop(attempt, None)
        self._cleaned += 1

    def _clean_manifests(self, attempt: TransactionAttempt, due: bool) -> None:
        # Behind attempt 0 there was no other, which could have a manifest.
        if attempt.attempt_id > 0 and attempt in self._without_effect:
            self._empty.add(attempt.txid)
        if kept := self._manifests.retention.txids:
            every = CLEAN_EVERY * max(1, kept // (CLEAN_EVERY * HISTORY_PER_READ))
            # A manifest of a transaction that came to nothing goes at once, lest it be taken for a decided one.
            due = due and (self._cleaned % every == 0 or bool(self._empty))
        self._manifests.clean(attempt.txid, self.last_published, due, self._empty)
        self._without_effect = {other for other in self._without_effect if other.txid > attempt.txid}
        if due:
            self._empty.clear()

    def _drop_published_rows(self, txid: int) -> None:
        """Rows that waited for their transaction's turn, or were given to states without a table."""
        for kind in ("states", "boundaries"):
            for state in storage.list_names(self._tables.folder / kind):
                drop_attempts_up_to(self._tables.folder / kind / state / "data" / self._tables.incarnation, txid)

    def _drop_unnamed(self, table: ManifestTable) -> None:
        """Files that a task has written before it, or its worker, was killed and the task was tried again."""
        root, named = self._tables.warehouse / table.path, {file.path for file in table.files}
        if not root.is_local and not self._may_have_unnamed(named):
            return
        for folder in {path.rpartition("/")[0] for path in named}:
            for path in (f"{folder}/{name}" for name in storage.list_names(root / folder)):
                if path not in named:
                    storage.delete(root / path)

    def _may_have_unnamed(self, named: Iterable[str]) -> bool:
        """Tells whether a task was tried twice: a store is not asked for what was certainly written once."""
        if self._is_speculative is None:
            conf = self._tables.engine.spark.sparkContext.getConf()
            self._is_speculative = conf.get("spark.speculation", "false") == "true"
        return self._is_speculative or any(f"-{AGAIN}" in name for name in named)

    def _drop_other_attempts(self) -> None:
        """Lists every staged attempt that is not merged yet; for at most a tenth of the time."""
        now = time.monotonic()
        good = {str(attempt.txid): str(attempt.attempt_id) for attempt in self._replayed}
        for root in self._roots():
            folder = root / "data" / self._tables.incarnation
            for name in storage.list_names(folder):
                parts = name.split("-")
                if parts[0] in good and parts[1:2] != [good[parts[0]]]:
                    storage.try_delete(folder / name)
        # An attempt older than the time that a straggler has was looked for once more just now.
        self._replayed = {attempt: since for attempt, since in self._replayed.items() if now - since < _STRAGGLER_SECS}
        self._list_attempts_at = time.monotonic() + 10 * (time.monotonic() - now)


class DeltaCommitter:
    """The committer of one batch group under one lease.

    Args:
        bindings: the group's states, in the order in which they are published.
        outside: is told how far states outside of the warehouse are, if given.
        retention: how long manifests of published transactions are kept.
        code_id: tells the code that runs; kept with each manifest.

    Attributes:
        manifests: the group's.
        recent: this process's recent publications.
    """

    def __init__(
        self,
        engine: KernelEngine,
        of: LeaderContext,
        bindings: Sequence[StateBinding],
        outside: OutsideProgress | None,
        retention: Retention,
        code_id: str = "",
    ) -> None:
        self._bindings = {binding.name: binding for binding in bindings}
        self._tables = GroupTables(engine, of)
        self.manifests = ManifestStore(of.warehouse, of.topology, of.group, of.incarnation, retention)
        self.recent, self._code_id = RecentPublications(), code_id
        self._outside = OutsidePublisher(engine.spark, of, outside or OutsideProgress())
        user_code = UserStatePublisher(engine.spark, of, self._outside)
        self._opener = TableOpener(self._tables, self._bindings)
        self._publisher = Publisher(self._tables, self._bindings, self.manifests, user_code)
        self._fitting = Fitting(engine, of)
        self._cleaner = Cleaner(self._tables, self.manifests, lambda: [target.root for target in self.staging_targets])
        self._decided_here: set[TransactionAttempt] = set()

    def open(self, record: GroupRecord) -> None:
        """Creates the tables that are missing and checks the others (docs/semantics.md 9, recovery).

        Call it with no decision pending.

        Raises:
            Halted: a table is not as this group left it: which side is older is said.
            ForeignTable, SchemaMismatch: a table cannot be this state's.
        """
        self._cleaner.opened(record)
        self._opener.open(record)
        self._outside.open(self._bindings.values(), record)

    @property
    def staging_targets(self) -> list[StagingTarget]:
        """Where an attempt's rows are staged."""
        targets = []
        for binding in self._bindings.values():
            spec = binding.published_table
            if spec is None:
                targets.append(StagingTarget(binding.name, self._own_root(binding.name)))
            else:
                root = self._tables.warehouse / spec.path
                targets.append(
                    StagingTarget(binding.name, root, spec.partition_columns, spec.txid_column, spec.sorted_by)
                )
        return targets

    def _own_root(self, name: str) -> Place:
        root = self._tables.folder / "states" / name
        storage.make_folder(root, self._tables.warehouse)
        return root

    def prepare(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        processed: ProcessedBatch,
        record: GroupRecord,
        story: AttemptHistory | None = None,
    ) -> PreparedBatch:
        staged: Mapping[str, list[StagedFile]] = processed.staged
        parts = [
            (binding, binding.published_table)
            for binding in self._bindings.values()
            if staged[binding.name] or not binding.state_kind.only_with_rows
        ]
        own = [self._tables.watched(self._tables.warehouse / spec.path) for _, spec in parts if spec is not None]
        unchanged = unchanged_tables([*self._tables.plains.watched(self._bindings), *own])
        self._tables.plains.check(self._bindings, unchanged)
        for binding, _ in parts:
            self._fitting.check(binding, staged[binding.name], attempt.txid)
        tables = tuple(self._part(binding, spec, staged[binding.name], record, unchanged) for binding, spec in parts)
        rows = {table.state: table.rows for table in tables}
        wants_commit = any(spout.get("commit_data") is not None for spout in processed.spouts.values())
        if not any(rows.values()) and not wants_commit:
            self._cleaner.without_effect(attempt)
            return PreparedBatch(None, rows)
        manifest = Manifest(
            self._tables.topology,
            self._tables.group,
            self._tables.incarnation,
            attempt,
            parent,
            tables,
            processed.spouts,
            CommitAnnotations.now(self._tables.epoch, self._code_id, story, processed.skipped),
        )
        self._decided_here = {other for other in self._decided_here if other.txid == attempt.txid} | {attempt}
        written = {name: sum(file.size for file in files) for name, files in staged.items() if files}
        return PreparedBatch(self.manifests.write(manifest), rows, written)

    def _part(
        self,
        binding: StateBinding,
        spec: TableSpec | None,
        files: list[StagedFile],
        record: GroupRecord,
        unchanged: Collection[str],
    ) -> ManifestTable:
        if spec is None:
            path = self._own_root(binding.name).relative_to(self._tables.warehouse)
            details = {"keys": list(binding.keys), "values": list(binding.value_fields), "merging": binding.merging}
            if isinstance(kind := binding.state_kind, TablelessKind):
                details |= kind.staging_details(binding)
            return ManifestTable(binding.name, binding.kind, path, "", "", tuple(files), details)
        snapshot = self._tables.check_unchanged(binding.name, self._tables.warehouse / spec.path, record, unchanged)
        schema_hash = hashlib.sha256(snapshot.schema_json.encode()).hexdigest()
        return ManifestTable(binding.name, binding.kind, spec.path, snapshot.table_id, schema_hash, tuple(files))

    def publish(self, decision: Decision, record: GroupRecord) -> Published:
        """Publishes what was decided; doing it again, in this process or another, changes nothing."""
        first = decision.attempt in self._decided_here
        published, manifest = self._publisher.publish(decision, record, first)
        self._cleaner.published(decision.attempt, manifest.tables)
        self._outside.renew(self._bindings.values())
        if self.manifests.retention.txids:
            self.recent.add(decision, manifest, {table: mark.version for table, mark in published.marks.items()})
        return published

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        """Cleans up after attempts up to this txid; files that are left over cost space, nothing else."""
        self._cleaner.advanced(attempt)

    def close(self) -> None:
        """Closes the connections that publishing keeps; nothing is published after it."""
        self._outside.close(self._bindings.values())
