"""Runs ``trident repair``: inspects, does what diagnose.py has decided, and reports it.

Without ``apply`` nothing is written. With it the command leads the topology
like a coordinator: it is refused while one is alive, it bumps the fence, and
looks and decides again under it. Each step is one Delta commit or one multi,
and the next look takes a step that was done for what it is: killed anywhere,
the command is run again and goes on.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config, is_secret_setting
from trident.coordinators import faults
from trident.coordinators.errors import Halted, TableError, TopologyError
from trident.coordinators.leadership import Lease
from trident.coordinators.registration import refuse_unfinished
from trident.coordinators.repairing import RepairStore, raise_epochs
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.applying import carry_out, engine_for
from trident.maintenance.facts import GroupFacts, TableFacts, TopologyFacts
from trident.repair.diagnose import diagnose
from trident.repair.inspection import inspect_topology, write_ledger
from trident.repair.rebuild import EPOCH_INCREMENT
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
from trident.running.zookeeper import leading, open_zookeeper, refuse_other_leader
from trident.settings import ENVIRONMENT_PREFIX
from trident.states.core.descriptor import load_descriptor
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.torn_entries import table_lock
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.table_watch import repair_marker
from trident.states.outside.outbox import OutboxLog, outbox_folder

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
        facts = inspect_topology(zk, engine, warehouse, name)
        _check_choices(facts, choices)
        findings = diagnose(facts, choices)
        if not apply or not any(finding.chosen for finding in findings):
            return Repaired(facts, findings, [], findings)
        refuse_other_leader(zk, config, warehouse, name, "repair")
        with leading(zk, name, [group.name for group in facts.groups]) as lease:
            # Again, now that no other process writes.
            refuse_unfinished(zk, name)
            facts = now = inspect_topology(zk, engine, warehouse, name)
            findings = steps_of = diagnose(facts, choices)
            done = []
            while restores := [step for step in _steps(steps_of) if isinstance(step, Restore)]:
                # First: what ZooKeeper is to say of a table depends on the version that its RESTORE makes.
                done += _Repair(zk, engine, lease, warehouse, now).run(restores)
                now = inspect_topology(zk, engine, warehouse, name)
                steps_of = diagnose(now, choices)
            steps = list(_steps(steps_of))
            if any(isinstance(step, WriteRecord) for step in steps):
                raise_epochs(zk, lease, now.epoch + EPOCH_INCREMENT)
            done += _Repair(zk, engine, lease, warehouse, now).run(steps)
        return Repaired(facts, findings, done, diagnose(inspect_topology(zk, engine, warehouse, name), choices))


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
                    action="run the command again: it reads what is there now",
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
                    action="nothing was changed; bring the table back from a back-up, or read the other choices",
                ) from error
        return f"{step.path} has the rows of its version {step.version} again"

    def _write(self, step: WriteRecord) -> str:
        store, record = self._store(step.group, step.tx_ids), step.record
        txid = record.last_published.txid if record.last_published else 1
        registered = step.incarnation, step.identity
        store.rebuild(record, step.decision, step.pins, step.opaque, txid, registered)
        return f"ZooKeeper's record of {step.group} is written: current transaction {record.current_txid}"


# ``trident repair NAME``: the report of a dry run, and of the steps that were done.


_HIDDEN = "***"


def where_words(settings: Sequence[str]) -> list[str]:
    """The options that name warehouse and ZooKeeper, to be typed again; the values of secret settings are hidden."""
    words = []
    for setting in settings:
        key = setting.partition("=")[0].strip()
        words += ["--set", f"{key}={_HIDDEN}" if is_secret_setting(key) else setting]
    return words


def _secrets(where: Sequence[str]) -> list[str]:
    hidden = [word.partition("=")[0] for word in where if word.endswith(f"={_HIDDEN}")]
    return [key for key in hidden if is_secret_setting(key)]


def report(repaired: Repaired, where: Sequence[str], applied: bool) -> str:
    """Returns what was found, what could be done or was done, for a terminal.

    Args:
        repaired: what there is to say.
        where: as :func:`where_words` gives them.
        applied: whether the command was to do something.
    """
    command = shlex.join(["trident", "repair", repaired.facts.name, *where])
    lines = []
    for group in repaired.facts.groups:
        lines += _group_lines(group, repaired.facts.incarnation)
    if not repaired.findings:
        return "\n".join([*lines, "", "ZooKeeper and the tables agree: there is nothing to repair."])
    for number, finding in enumerate(repaired.findings, 1):
        lines += ["", *_finding_lines(number, finding, command, repaired.facts.name)]
    lines.append("")
    secrets = sorted({f"{ENVIRONMENT_PREFIX}{key.upper()}" for key in _secrets(where)})
    if secrets:
        lines.append(f"{_HIDDEN} stands for what is not shown; better give it as environment: {', '.join(secrets)}.")
    if not applied:
        lines.append("Nothing was changed: this was a dry run. A line with * is what --apply would do with the options")
        lines.append("given; one with - needs those that it names.")
        return "\n".join(lines)
    lines += [f"done: {text}" for text in repaired.done] or ["Nothing was changed: no repair was chosen."]
    if repaired.left:
        lines.append(f"{len(repaired.left)} contradiction(s) are left: {command} shows them.")
    elif repaired.done:
        lines.append("ZooKeeper and the tables agree now: start the topology.")
    return "\n".join(lines)


def _group_lines(group: GroupFacts, incarnation: str | None) -> list[str]:
    record, decision = group.record, group.decision
    lines = [f"batch group {group.name}"]
    if record is None:
        lines.append("  ZooKeeper  knows nothing of it")
    else:
        last = record.last_published
        published = f"transaction {last.txid} attempt {last.attempt_id}" if last else "nothing"
        pending = f", decided: transaction {decision.txid} attempt {decision.attempt_id}" if decision else ""
        lines.append(f"  ZooKeeper  current transaction {record.current_txid}, published {published}{pending}")
        lines.append(f"             incarnation {record.incarnation}")
    for table in group.tables:
        lines.append(f"  {table.path:<20} {_table_text(table, incarnation)}")
    for one in group.outside:
        known = f"transaction {one.mark.txid} attempt {one.mark.attempt_id}" if one.mark else "no transaction"
        outbox = f"its outbox: transaction {one.outbox[0]} attempt {one.outbox[1]}" if one.outbox else ""
        outbox = "its outbox is damaged" if one.damage else outbox or "its store is not queried"
        lines.append(f"  {one.state:<20} outside of the warehouse; ZooKeeper: {known}; {outbox}")
    manifests = ", ".join(f"{one.decision.txid} attempt {one.decision.attempt_id}" for one in group.manifests[-3:])
    lines.append(f"  manifests  {f'of transaction {manifests}' if manifests else 'none'}")
    return lines


def _table_text(table: TableFacts, incarnation: str | None) -> str:
    if not table.exists:
        return "no table"
    parts = [f"version {table.version}"]
    if table.role == "plain":
        parts.append(f"merged up to transaction {table.merged}")
    elif table.control is not None:
        has = f"transaction {table.control.txid} attempt {table.control.attempt_id}"
        parts.append(has if table.has_transaction else "no transaction yet")
    if table.control is None:
        parts.append("no control record of a topology")
    elif table.control.incarnation != incarnation:
        parts.append(f"incarnation {table.control.incarnation}")
    if table.mark is not None:
        about = "" if table.role == "plain" else f", transaction {table.mark.txid} attempt {table.mark.attempt_id}"
        parts.append(f"ZooKeeper: version {table.mark.version}{about}")
    if table.foreign:
        parts.append(f"{len(table.foreign)} change(s) by others")
    return "; ".join(parts)


def _finding_lines(number: int, finding: Finding, command: str, name: str) -> list[str]:
    lines = [f"{number}. {finding.kind.upper()} (batch group {finding.group})", f"   {finding.text}"]
    for offer in finding.offers:
        mark = "*" if offer is finding.chosen else "-"
        lines.append(f"   {mark} {' '.join([command, shlex.join([*offer.options, '--apply'])])}")
        lines.append(f"       {offer.text}")
    if finding.refusal:
        lines.append(f"   ! {finding.refusal.replace('NAME', name)}")
    return lines
