"""Runs `trident repair`: finds out what ZooKeeper and the tables say, and does what diagnose.py has decided.

Without ``apply`` nothing is written. With it the command leads the topology
like a coordinator: it is refused while one is alive, it bumps the fence, and
looks and decides again under it. Each step is one Delta commit or one multi,
and the next look takes a step that was done for what it is: killed anywhere,
the command is run again and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.errors import Halted, TableError, TopologyError
from trident.coordinators.leadership import Lease
from trident.coordinators.repairing import RepairStore, leap_epochs
from trident.coordinators.unfinished import refuse_unfinished
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.applying import carry_out, engine_for
from trident.maintenance.facts import TopologyFacts
from trident.repair.diagnose import diagnose
from trident.repair.file_ledger import write_ledger
from trident.repair.look import look
from trident.repair.rebuild import EPOCH_LEAP
from trident.repair.steps import (
    AbandonDecision,
    Choices,
    ClampValues,
    Finding,
    NewOutbox,
    PutPositions,
    Restore,
    SetMarks,
    Step,
    WriteLedger,
    WriteRecord,
)
from trident.running.connecting import open_zookeeper
from trident.running.own_zookeeper import leading, refuse_leader_elsewhere
from trident.states.core.descriptor import load_descriptor
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.table_lock import table_lock
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.log_watch import repair_marker
from trident.states.outside.outbox_log import OutboxLog, outbox_folder

log = logging.getLogger("trident.repair")
RESTORE = faults.register("repair.restore", "the RESTORE of a repair, of which ZooKeeper does not know yet")


@dataclass(frozen=True)
class Repaired:
    """The findings of a repair, and the steps that it took.

    Attributes:
        facts: as seen first.
        findings: of them.
        done: what was done, a text each; empty for a dry run.
        left: findings that are still there; those of a dry run are all.
    """

    facts: TopologyFacts
    findings: list[Finding]
    done: list[str]
    left: list[Finding]


def repair(
    name: str,
    choices: Choices | None = None,
    apply: bool = False,
    config: TridentConfig | None = None,
    spark: "SparkSession | None" = None,
) -> Repaired:
    """Diagnoses a topology, and with ``apply`` repairs what the choices say.

    Args:
        name: the topology.
        choices: what was asked for by name.
        apply: False looks only.
        config: the settings: warehouse and ZooKeeper.
        spark: a session with Delta; None makes one.

    Raises:
        TopologyError: nothing is known of the topology, or a state that was named is not its.
        CoordinationError: the topology runs, by this ZooKeeper or, as its status says, by another.
    """
    config, choices = as_config(config), choices or Choices()
    warehouse = config.warehouse_place()
    with closing(open_zookeeper(config, warehouse)) as zk:
        refuse_unfinished(zk, name)
        engine = engine_for(f"repair {name}", config, warehouse, spark)
        facts = look(zk, engine, warehouse, name)
        _check_choices(facts, choices)
        findings = diagnose(facts, choices)
        if not apply or not any(finding.chosen for finding in findings):
            return Repaired(facts, findings, [], findings)
        refuse_leader_elsewhere(zk, config, warehouse, name, "repair")
        with leading(zk, name, [group.name for group in facts.groups]) as lease:
            # Again, now that no other process writes.
            refuse_unfinished(zk, name)
            facts = now = look(zk, engine, warehouse, name)
            findings = steps_of = diagnose(facts, choices)
            done = []
            while restores := [step for step in _steps(steps_of) if isinstance(step, Restore)]:
                # First: what ZooKeeper is to say of a table depends on the version that its RESTORE makes.
                done += _Repair(zk, engine, lease, warehouse, now).run(restores)
                now = look(zk, engine, warehouse, name)
                steps_of = diagnose(now, choices)
            steps = list(_steps(steps_of))
            if any(isinstance(step, WriteRecord) for step in steps):
                leap_epochs(zk, lease, now.epoch + EPOCH_LEAP)
            done += _Repair(zk, engine, lease, warehouse, now).run(steps)
        return Repaired(facts, findings, done, diagnose(look(zk, engine, warehouse, name), choices))


def _check_choices(facts: TopologyFacts, choices: Choices) -> None:
    known = {table.state for group in facts.groups for table in group.tables}
    unknown = sorted(choices.states - known)
    if unknown:
        raise TopologyError(f"{facts.name} has no state {unknown[0]!r}", expected=f"one of {sorted(known)}")
    outside = {one.state for group in facts.groups for one in group.outside}
    unknown = sorted(choices.accept_outside - outside)
    if unknown:
        raise TopologyError(
            f"ZooKeeper has no mark of a state {unknown[0]!r} outside of the warehouse",
            expected=f"one of {sorted(outside)}" if outside else "none: it knows of no such state",
        )
    both = sorted(choices.undo_foreign & choices.accept_foreign)
    if both:
        raise TopologyError(
            f"the change of {both[0]} cannot be both taken back and accepted", expected="one of the two"
        )


def _steps(findings: list[Finding]) -> Iterator[Step]:
    for finding in findings:
        if finding.chosen is not None:
            yield from finding.chosen.steps


class _Repair:
    """Carries out steps under one lease."""

    def __init__(
        self, zk: ZooKeeper, engine: KernelEngine, lease: Lease, warehouse: Place, facts: TopologyFacts
    ) -> None:
        self._zk, self._engine, self._lease, self._warehouse, self._facts = zk, engine, lease, warehouse, facts

    def run(self, steps: Iterable[Step]) -> list[str]:
        return carry_out(self._zk, self._lease, self._warehouse, [partial(self._do, step) for step in steps])

    def _do(self, step: Step) -> str:
        if isinstance(step, Restore):
            return self._restore(step)
        if isinstance(step, SetMarks):
            self._store(step.group).put_tables(step.marks, step.forget)
            return f"ZooKeeper now says of {len(step.marks) + len(step.forget)} table(s) of {step.group} what they are"
        if isinstance(step, WriteRecord):
            return self._write(step)
        if isinstance(step, PutPositions):
            self._store(step.group).put_positions(step.pins, step.opaque, step.opaque_txid)
            return f"the positions of {', '.join(sorted({*step.pins, *step.opaque}))} are in ZooKeeper again"
        if isinstance(step, ClampValues):
            state = load_descriptor(self._warehouse, step.state)
            compactor = Compactor(self._engine.spark, self._engine, self._warehouse, state)
            planned = compactor.plan(step.upto)
            if planned is not None:
                compactor.merge(*planned, clamps=True)
            return f"the log of {step.state} is merged up to transaction {step.upto}, what did not fit is clamped"
        if isinstance(step, WriteLedger):
            return write_ledger(step.damage)
        if isinstance(step, NewOutbox):
            OutboxLog(outbox_folder(self._warehouse, self._facts.name, step.state)).begin_anew()
            return f"the record of the outbox of {step.state} begins anew"
        assert isinstance(step, AbandonDecision)
        self._store(step.group).abandon(step.decision)
        return f"the decision of transaction {step.decision.txid} is given up; its next attempt begins anew"

    def _store(self, group: str, tx_ids: tuple[str, ...] | None = None) -> RepairStore:
        of_group = next(found for found in self._facts.groups if found.name == group)
        fence = self._lease.fences[group]
        store = RepairStore(self._zk, self._facts.name, group, of_group.tx_ids if tx_ids is None else tx_ids, fence)
        store.load()
        return store

    def _restore(self, step: Restore) -> str:
        path = str(self._warehouse / step.path)
        # MERGEs share this lock, and need no lease: a commit since the look must not go with the rest.
        with table_lock(path):
            found = self._engine.load(path)
            if (found.table_id, found.version) != (step.table_id, step.seen):
                raise Halted(
                    f"{path} was changed while it was repaired; nothing was done to it",
                    found=f"table {found.table_id}, version {found.version}",
                    expected=f"table {step.table_id}, version {step.seen}",
                    action="run the command again: it looks at what is there now",
                )
            session = self._engine.spark.newSession()
            marker = repair_marker(self._facts.name, step.version, step.seen)
            session.conf.set("spark.databricks.delta.commitInfo.userMetadata", marker)
            try:
                with faults.fault_point(RESTORE):
                    DeltaTable.forPath(session, path).restoreToVersion(step.version)
            except faults.InjectedFault:
                raise
            except Exception as error:
                raise TableError(
                    f"{path} could not be restored to version {step.version}: {str(error).splitlines()[0][:500]}",
                    action="nothing was changed; bring the table back from a back-up, or look at the other choices",
                ) from error
        return f"{step.path} has the rows of its version {step.version} again"

    def _write(self, step: WriteRecord) -> str:
        store, record = self._store(step.group, step.tx_ids), step.record
        txid = record.last_published.txid if record.last_published else 1
        registered = step.incarnation, step.identity
        store.rebuild(record, step.decision, step.pins, step.opaque, txid, registered)
        return f"ZooKeeper's record of {step.group} is written: current transaction {record.current_txid}"
