"""``trident rollback``: all Delta tables of a batch group, its current txid and its positions, as of one transaction.

Without ``apply`` nothing is written. With it the command leads the topology like a coordinator, looks and decides again
under the fence, and stores what it is going to do before it does it. Then each table gets one commit, a log before its
plain table, so that no MERGE comes between; each commit begins the next incarnation, by which a table that has it is
known. ZooKeeper's records follow, and the stored intent goes last: killed anywhere, the same command does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import CoordinationError, TableError, TopologyError
from trident.coordinators.leadership import Lease
from trident.coordinators.records import UnfinishedRollback
from trident.coordinators.repairing import RepairStore
from trident.coordinators.unfinished import begin_rollback, finish_rollback, unfinished_rollback
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.applying import carry_out, check_leads, engine_for
from trident.maintenance.facts import PLAIN, positions
from trident.maintenance.inventory import StoredTable, registered, tables_of, warehouse_of
from trident.running.own_zookeeper import leading, own_zookeeper
from trident.states.core.descriptor import list_descriptors
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.time_travel.rollback_look import decided_manifest, look
from trident.time_travel.rollback_plan import Choices, Plan, plan, record_after
from trident.time_travel.rollback_tables import TableCommits


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
    config, choices = as_config(config), choices or Choices()
    # Before an embedded ZooKeeper is started, which makes the warehouse: a wrong name changes nothing.
    warehouse = warehouse_of(config, name)
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
        with leading(zk, name, list(registered(zk, name)[1]["groups"])) as lease:
            # Again, now that no other process publishes, or rolls back.
            unfinished, planned = unfinished_rollback(zk, name), None
            _check_same(name, unfinished, txid, group)
            if unfinished is None:
                planned = plan(look(zk, warehouse, name, group, txid), txid, choices)
                _refuse(name, planned)
                if planned.is_there:
                    return RolledBack(planned)
                begin_rollback(zk, lease, name, planned.intent)
            intent = unfinished or (planned.intent if planned else None)
            assert intent is not None
            engine = engine_for(f"rollback {name}", config, warehouse, spark)
            done = _Rollback(zk, engine, lease, warehouse, name, intent).run()
        return RolledBack(planned, unfinished, tuple(done))


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
        epoch = max(fence.epoch for fence in lease.fences.values())
        self._tables = TableCommits(engine, warehouse, name, intent, epoch)

    def run(self) -> list[str]:
        """Returns what was done, a text each."""
        states = list_descriptors(self._warehouse, self._name)
        tables = tables_of(states, self._warehouse, self._name, self._intent.incarnation)
        groups = registered(self._zk, self._name)[1]["groups"]
        check = partial(check_leads, self._zk, self._lease)
        steps: list[Callable[[], str]] = [partial(self._tables.take_back, table, check) for table in tables]
        steps.append(partial(self._describe, tables))
        steps += [partial(self._write_record, group, tx_ids, tables) for group, tx_ids in groups.items()]
        return carry_out(self._zk, self._lease, self._warehouse, [*steps, self._finish])

    def _describe(self, tables: Sequence[StoredTable]) -> str:
        """Tells readers of the next incarnation; one that was taken out later takes part again."""
        for table in tables:
            state = table.state
            if state is None or table.role == PLAIN:
                continue
            ends_at = state.ends_at
            if state.group == self._intent.group and ends_at is not None and ends_at > self._intent.last.txid:
                ends_at = None
            starts_at = self._tables.control(table).starts_at
            check_leads(self._zk, self._lease)
            replace(state, incarnation=self._intent.incarnation, starts_at=starts_at, ends_at=ends_at).save(
                self._warehouse
            )
        return f"states are of incarnation {self._intent.incarnation}"

    def _write_record(self, group: str, tx_ids: Sequence[str], tables: Sequence[StoredTable]) -> str:
        intent = self._intent
        store = RepairStore(self._zk, self._name, group, tx_ids, self._lease.fences[group])
        record, _, _ = store.load()
        if record is not None and record.incarnation != intent.incarnation:
            marks = self._tables.marks([table for table in tables if table.group == group], record.tables)
            if group != intent.group:
                store.carry(intent.incarnation, marks)
            else:
                manifest = decided_manifest(self._warehouse, self._name, group, intent.incarnation, intent.last)
                if manifest is None:
                    raise TableError(
                        f"the manifest of transaction {intent.last.txid} is gone since the rollback was begun",
                        expected=f"the manifest of attempt {intent.last.attempt_id} with sha256 "
                        f"{intent.last.digest[:16]}…",
                        action="bring it back from a back-up of the warehouse, and run the command again",
                    )
                pins, opaque = positions(manifest.spouts, intent.last.txid)
                store.rebuild(record_after(record, intent, marks), None, pins, opaque, intent.last.txid)
        return f"ZooKeeper's record of batch group {group} is of incarnation {intent.incarnation}"

    def _finish(self) -> str:
        finish_rollback(self._zk, self._lease, self._name, self._intent.incarnation)
        return f"batch group {self._intent.group} goes on with transaction {self._intent.last.txid + 1}"
