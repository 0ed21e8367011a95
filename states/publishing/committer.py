"""Prepares, publishes and checks the Delta tables of one batch group (docs/semantics.md 9.3, 9.5, 10).

Prepare checks that each table is as this group left it and makes the manifest
durable. Publish brings each table from the last published transaction to the
decided one with a compare-and-set on its control record; doing it again, in
this process or another, changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from trident.coordinators.ports import AttemptStory, PreparedBatch, ProcessedBatch, Published
from trident.coordinators.records import Decision, GroupRecord
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core import storage
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.core.tables import TableSpec
from trident.states.delta.delta_log import unchanged as unchanged_tables
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import Manifest, ManifestStore, ManifestTable, Retention
from trident.states.delta.staging import StagingTarget
from trident.states.delta.told import Told
from trident.states.history.lately import PublishedLately
from trident.states.keyed.fitting import Fitting
from trident.states.outside.health import OutsideProgress
from trident.states.publishing.cleaning import Cleaner
from trident.states.publishing.group_tables import GroupTables
from trident.states.publishing.opening import TableOpener
from trident.states.publishing.outside_publish import OutsidePublisher
from trident.states.publishing.publishing import Publisher
from trident.states.publishing.user_publish import UserStatePublisher


class DeltaCommitter:
    """The committer of one batch group under one lease.

    Args:
        bindings: the group's states, in the order in which they are published.
        outside: is told how far states outside of the warehouse are, if given.
        retention: how long manifests of published transactions are kept.
        code_id: tells the code that runs; kept with each manifest.

    Attributes:
        manifests: the group's.
        lately: what this process has published of late.
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
        self.lately, self._code_id = PublishedLately(), code_id
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
        story: AttemptStory | None = None,
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
            Told.now(self._tables.epoch, self._code_id, story, processed.skipped),
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
            self.lately.add(decision, manifest, {table: mark.version for table, mark in published.marks.items()})
        return published

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        """Cleans up after attempts up to this txid; files that are left over cost space, nothing else."""
        self._cleaner.advanced(attempt)

    def close(self) -> None:
        """Closes the connections that publishing keeps; nothing is published after it."""
        self._outside.close(self._bindings.values())
