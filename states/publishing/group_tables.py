"""The Delta tables of one batch group as this process last saw them; opening, preparing and publishing share them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from trident.coordinators.records import GroupRecord
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.core.storage import Signature
from trident.states.delta import halts
from trident.states.delta.delta_log import DeltaLog, Watched
from trident.states.delta.history import writer_requirements
from trident.states.delta.kernel import KernelEngine, TableMissing, TableSnapshot
from trident.states.keyed.table_watch import PlainWatch, check_commits, is_our_publish


@dataclass
class SeenTable:
    """A table as this process last saw it."""

    snapshot: TableSnapshot
    signature: Signature | None  # of the newest log entry: a recreated table has another
    refused: bool = False  # a commit based on this snapshot was refused: reload before the next


class GroupTables:
    """The tables that publishing commits to, under one lease.

    Attributes:
        warehouse, topology, group, incarnation, epoch, check_fence, folder: see LeaderContext.
        plains: the plain tables of keyed states.
        txn_app_id: with the incarnation, for after a reset txids begin at 1 again, and Delta refuses a smaller one of
            the same app.
        engine_info: who commits, in Delta's logs.
    """

    def __init__(self, engine: KernelEngine, of: LeaderContext) -> None:
        self.engine, self.warehouse, self.folder = engine, of.warehouse, of.folder
        self.topology, self.group, self.incarnation = of.topology, of.group, of.incarnation
        self.epoch, self.check_fence = of.epoch, of.check_fence
        self.seen: dict[str, SeenTable] = {}
        self.plains = PlainWatch(engine, of.warehouse)
        self.txn_app_id = f"trident/{of.topology}/{of.group}/{of.incarnation}"
        self.engine_info = f"trident/{of.incarnation}"

    def remember(self, snapshot: TableSnapshot) -> None:
        self.seen[str(Place(snapshot.path))] = SeenTable(snapshot, snapshot.entry)

    def check_foreign(self, state: str, path: Place, version: int, snapshot: TableSnapshot) -> None:
        """Every commit after the version must be ours, or leave all rows as they are: else raises Halted."""
        incarnation = self.incarnation
        check_commits(
            self.topology, state, path, version, snapshot.version, lambda commit: is_our_publish(commit, incarnation)
        )

    def check_writable(self, path: Place, snapshot: TableSnapshot) -> None:
        """Raises Halted where a table asks of its writers what these do not do: no transaction is decided for it."""
        reason = self.engine.why_not_written(snapshot)
        if reason is not None:
            described = DeltaLog(path).described(snapshot.version)
            requirements = [] if described is None else writer_requirements(described.metadata)
            raise halts.not_written(self.topology, path, snapshot.version, requirements, reason)

    def watched(self, path: Place) -> Watched:
        """The table as this process left it, for ``unchanged``."""
        known = self.seen[str(path)]
        return Watched(str(path), known.snapshot.version, known.signature)

    def check_unchanged(
        self, state: str, path: Place, record: GroupRecord, unchanged: Collection[str]
    ) -> TableSnapshot:
        """The table must be as this group left it.

        Args:
            unchanged: tables of which a look just now has found that.
        """
        known = self.seen[str(path)]
        version = known.snapshot.version
        if str(path) in unchanged:
            return known.snapshot
        try:
            snapshot = self.engine.load(str(path))
        except TableMissing:
            raise halts.table_missing(self.topology, path, version) from None
        if snapshot.table_id != known.snapshot.table_id:
            raise halts.recreated(self.topology, path, snapshot.table_id, known.snapshot.table_id)
        self.check_foreign(state, path, version, snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        mark = record.tables.get(snapshot.table_id) or decode_control(path, known.snapshot.control(DOMAIN)).mark(0)
        if not control.same_batch(mark):
            self.check_fence()
            raise halts.transactions_differ(self.topology, path, control, mark)
        self.check_writable(path, snapshot)
        self.remember(snapshot)
        return snapshot

    def maintain(self) -> None:
        """Checkpoints and the like: background work of the tables, off the critical path."""
        for known in list(self.seen.values()):
            self.engine.run_maintenance(known.snapshot)


def columns_text(schema_json: str) -> str:
    """The columns of a schema as errors show them."""
    return ", ".join(f"{field['name']} {field['type']}" for field in json.loads(schema_json)["fields"])
