"""``trident rollback``: all Delta tables of a batch group, its current txid and its positions, as of one transaction.

Without ``apply`` nothing is written. With it the command leads the topology like a coordinator, looks and decides again
under the fence, and stores what it is going to do before it does it. Then each table gets one commit, a log before its
plain table, so that no MERGE comes between; each commit begins the next incarnation, by which a table that has it is
known. ZooKeeper's records follow, and the stored intent goes last: killed anywhere, the same command does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import CoordinationError, TableError, TopologyError
from trident.coordinators.leadership import Lease
from trident.coordinators.records import UnfinishedRollback
from trident.coordinators.registration import Registration
from trident.coordinators.rolling_back import (
    RollbackStore,
    begin_rollback,
    finish_rollback,
    unfinished_rollback,
)
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.own_zookeeper import leading, own_zookeeper
from trident.spark.session import make_session, spark_settings
from trident.spark.stores import configure_by_session
from trident.states.core import storage
from trident.states.core.descriptor import list_descriptors
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.copies import forget_copies
from trident.time_travel.kept_batch import topologies_in
from trident.time_travel.rollback_facts import PLAIN
from trident.time_travel.rollback_look import decided_manifest, look
from trident.time_travel.rollback_plan import Choices, Plan, plan, positions, record_after
from trident.time_travel.rollback_tables import Marks, TableCommits, TableOf, tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RolledBack:
    """The outcome of the command: a dry run's, or of one that was done.

    Attributes:
        plan: None where one that was begun before is finished: its intent says what it does.
        unfinished: the one that was begun before.
        done: what was done, a text each; empty for a dry run.
    """

    plan: Plan | None
    unfinished: UnfinishedRollback | None = None
    done: tuple[str, ...] = ()


def roll_back(
    name: str,
    txid: int,
    *,
    group: str | None = None,
    choices: Choices | None = None,
    apply: bool = False,
    config: TridentConfig | None = None,
    spark: "SparkSession | None" = None,
) -> RolledBack:
    """Takes a topology's batch group back to a transaction, or says what that would do.

    Run again after it was killed, with the same arguments, it does what is left. Until then no process leads the
    topology. Nothing is deleted: a table version that a reader has pinned stays readable.

    Args:
        name: the topology; no process may lead it.
        txid: the last transaction that stays.
        group: the batch group, where the topology has several.
        choices: what is refused unless it is said.
        apply: False looks only.
        config: the settings: warehouse and ZooKeeper.
        spark: a session with Delta; None makes one, with ``apply`` only.

    Raises:
        TopologyError: there is no such topology or group; or, with ``apply``, the rollback is refused.
        CoordinationError: the topology runs, or another rollback or a reset of it has not ended.
        TableError: a table cannot be read or written; run the command again.
    """
    check_name("topology", name)
    config, choices = as_config(config), choices or Choices()
    warehouse = config.warehouse_place()
    _check_there(warehouse, name)
    with own_zookeeper(config, warehouse, name, "rollback") as zk:
        unfinished = unfinished_rollback(zk, name)
        _check_same(name, unfinished, txid, group)
        planned = None
        if unfinished is None:
            planned = plan(look(zk, warehouse, name, group, txid), txid, choices)
            if apply:
                _refuse(name, planned)
        if not apply or (planned is not None and planned.is_there):
            return RolledBack(planned, unfinished)
        with leading(zk, name, list(_groups_of(zk, name))) as lease:
            if unfinished is None:
                # Again, now that no other process publishes.
                planned = plan(look(zk, warehouse, name, group, txid), txid, choices)
                _refuse(name, planned)
                begin_rollback(zk, lease, name, planned.intent)
            intent = unfinished or (planned.intent if planned else None)
            assert intent is not None
            spark = spark or make_session(f"trident rollback {name}", spark_settings(config))
            configure_by_session(warehouse, spark)
            done = _Rollback(zk, KernelEngine(spark), lease, warehouse, name, intent).run()
        return RolledBack(planned, unfinished, tuple(done))


def _check_there(warehouse: Place, name: str) -> None:
    """Before an embedded ZooKeeper is started, which makes the warehouse: a wrong name changes nothing."""
    if not storage.is_folder(warehouse / "_trident" / name):
        others = topologies_in(warehouse)
        raise TopologyError(
            f"the warehouse {warehouse} has no topology {name!r}",
            found=f"those named {', '.join(others)}" if others else "none of any name",
            action="check the name, and the warehouse in which it runs (--warehouse)",
        )


def _groups_of(zk: ZooKeeper, name: str) -> Mapping[str, Sequence[str]]:
    """The batch groups of a registered topology, with their streams."""
    registered = Registration(zk, name).read()
    if registered is None:
        raise TopologyError(f"ZooKeeper knows no topology {name!r}", action="check the name, warehouse and zookeeper")
    groups: Mapping[str, Sequence[str]] = registered[1]["groups"]
    return groups


def _check_same(name: str, unfinished: UnfinishedRollback | None, txid: int, group: str | None) -> None:
    if unfinished is None or (unfinished.txid == txid and group in (None, unfinished.group)):
        return
    raise CoordinationError(
        f"another rollback of {name} was begun and has not ended",
        found=f"one to transaction {unfinished.txid} of batch group {unfinished.group!r}",
        expected=f"that one to be finished before one to transaction {txid}",
        action=f"run `trident rollback {name} --to {unfinished.txid} --apply` first",
    )


def _refuse(name: str, planned: Plan) -> None:
    if planned.refusals:
        raise TopologyError(
            f"{name} is not taken back to transaction {planned.asked}; nothing was changed",
            found="; ".join(refusal.text for refusal in planned.refusals),
            action="; ".join(dict.fromkeys(refusal.action for refusal in planned.refusals)),
        )


class _Rollback:
    """Does what an intent says, or what is left of it."""

    def __init__(
        self, zk: ZooKeeper, engine: KernelEngine, lease: Lease, warehouse: Place, name: str, intent: UnfinishedRollback
    ) -> None:
        self._zk, self._lease, self._warehouse, self._name, self._intent = zk, lease, warehouse, name, intent
        self._tables = TableCommits(engine, warehouse, name, intent, self._epoch())

    def run(self) -> list[str]:
        """Returns what was done, a text each."""
        forget_copies(self._warehouse)
        tables = tables_of(self._warehouse, self._name, self._intent.incarnation)
        done = []
        for table in tables:
            done.append(self._tables.take_back(table, self._check_leads))
        marks = {group: self._tables.marks(table for table in tables if table.group == group) for group in self._groups}
        self._describe(tables)
        for group, tx_ids in self._groups.items():
            self._check_leads()
            self._write_record(group, tx_ids, marks[group])
        finish_rollback(self._zk, self._lease, self._name, self._intent.incarnation)
        last = self._intent.last.txid
        return [*done, f"batch group {self._intent.group} goes on with transaction {last + 1}"]

    @cached_property
    def _groups(self) -> Mapping[str, Sequence[str]]:
        return _groups_of(self._zk, self._name)

    def _epoch(self) -> int:
        return max(fence.epoch for fence in self._lease.fences.values())

    def _check_leads(self) -> None:
        if self._lease.lost.is_set():
            raise CoordinationError("the lease was lost during a rollback", action="run the command again: it goes on")
        for fence in self._lease.fences.values():
            fence.verify(self._zk)

    def _describe(self, tables: Sequence[TableOf]) -> None:
        """Tells readers of the next incarnation; one that was taken out later takes part again."""
        starts = {table.path: self._tables.control(table).starts_at for table in tables if table.role != PLAIN}
        last = self._intent.last.txid
        for state in list_descriptors(self._warehouse, self._name):
            ends_at = state.ends_at
            if state.group == self._intent.group and ends_at is not None and ends_at > last:
                ends_at = None
            starts_at = starts[state.published_path]
            self._check_leads()
            replace(state, incarnation=self._intent.incarnation, starts_at=starts_at, ends_at=ends_at).save(
                self._warehouse
            )

    def _write_record(self, group: str, tx_ids: Sequence[str], marks: Marks) -> None:
        intent = self._intent
        store = RollbackStore(self._zk, self._name, group, tx_ids, self._lease.fences[group])
        record, _, _ = store.load()
        if record is None or record.incarnation == intent.incarnation:
            return
        tables = marks.over(record.tables)
        if group != intent.group:
            store.carry(intent.incarnation, tables)
            return
        manifest = decided_manifest(self._warehouse, self._name, group, intent.incarnation, intent.last)
        if manifest is None:
            raise TableError(
                f"the manifest of transaction {intent.last.txid} is gone since the rollback was begun",
                expected=f"the manifest of attempt {intent.last.attempt_id} with sha256 {intent.last.digest[:16]}…",
                action="bring it back from a back-up of the warehouse, and run the command again",
            )
        pins, opaque = positions(manifest.spouts, intent.last.txid)
        store.take_back(record_after(record, intent, tables), pins, opaque, intent.last.txid)
