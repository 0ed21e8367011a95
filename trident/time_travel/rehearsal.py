"""Rehearses a leader's last transactions with the code of a standby, and compares them with what was committed.

A rehearsal is a replay (``replay.py``) in the standby's own session: it reads the pinned metadata, the sources and the
tables, and writes nothing at all. So there is no folder to be thrown away either.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import SourceError, TableError, TopologyError, TransactionNotKept
from trident.coordinators.handing_over import DIFFERENT, EQUAL, FAILED, NOT_COMPARED
from trident.planning.groups import GroupPlan, plan
from trident.planning.nodes import TopologyGraph
from trident.running.standby import Rehearsed
from trident.spark.jobs import cancel_group
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.history.kept import KeptManifests
from trident.time_travel.differences import Difference
from trident.time_travel.replay import Replay, require_readable
from trident.time_travel.replay_inputs import KeptBatch, WarehouseInputs, check_streams, read_kept

# Differences that are told of one state in one transaction, and characters of each: an answer is one znode.
_SHOWN, _CHARS, _LINES = 5, 600, 120
_CHECK_SECS = 0.1


class Rehearsal:
    """Of one standby; called with what is to be rehearsed.

    Args:
        graph: of the topology, as the standby has built it.
    """

    def __init__(
        self, spark: "SparkSession", topology: str, graph: TopologyGraph, warehouse: Place, config: TridentConfig
    ) -> None:
        self._spark, self._topology, self._warehouse, self._config = spark, topology, warehouse, config
        self._plans = {one.name: one for one in plan(graph, tracking=False)}

    def __call__(
        self, incarnation: str, advanced: Mapping[str, int], last: int, ends: Callable[[], bool] = lambda: False
    ) -> Rehearsed:
        """Rehearses each batch group's last transactions.

        Args:
            advanced: batch group → its last transaction that has advanced.
            last: how many of each group.
            ends: tells whether it is to end, since this process is about to lead.
        """
        findings = _Findings(ends)
        with self._cancelled_where(ends):
            for group, txid in advanced.items():
                if group not in self._plans:
                    findings.left_out.append(f"batch group {group}: the code has none of this name")
                elif txid:
                    self._group(self._plans[group], incarnation, txid, last, findings)
        return findings.rehearsed()

    @contextmanager
    def _cancelled_where(self, ends: Callable[[], bool]) -> Iterator[None]:
        """The jobs of this thread end where it is to end: the first transaction of a leader has the cores."""
        context, done = self._spark.sparkContext, threading.Event()
        job_group = f"trident-{self._topology}-rehearsal-{uuid.uuid4().hex[:8]}"

        def poll() -> None:
            while not done.wait(_CHECK_SECS):
                if ends():
                    with suppress(Exception):  # a session that is being stopped
                        cancel_group(context, job_group)
                    return

        context.setJobGroup(job_group, "a rehearsal for a hand-over")
        threading.Thread(target=poll, name="trident-rehearsal-end", daemon=True).start()
        try:
            yield
        finally:
            done.set()
            with suppress(Exception):
                context._jsc.clearJobGroup()

    def _group(self, of: GroupPlan, incarnation: str, upto: int, last: int, findings: "_Findings") -> None:
        if not of.bindings:
            findings.outside[of.name] = f"batch group {of.name}: it has no state"
            return
        context = GroupContext(self._warehouse, self._topology, of.name, incarnation)
        kept = KeptManifests(context, upto=upto).txids()
        if not kept:
            findings.left_out.append(
                f"batch group {of.name}: none of its transactions is kept (history_retention_txids says how many are)"
            )
        try:
            require_readable(of)
        except TopologyError as error:
            findings.left_out.append(f"batch group {of.name}: {error.message}")
            return
        for txid in kept[-last:]:
            if findings.ends():
                findings.left_out.append(f"transaction {txid} of batch group {of.name}: the standby leads by now")
                return
            self._transaction(of, context, txid, findings)

    def _transaction(self, of: GroupPlan, context: GroupContext, txid: int, findings: "_Findings") -> None:
        name = f"transaction {txid} of batch group {of.name}"
        try:
            manifest = read_kept(context, txid)
            if any(not spout.get("kind") for spout in manifest.spouts.values()):
                findings.outside[name] = f"{name}: it was skipped, and no code has made it"
                return
            check_streams(manifest, of)
            given_inputs = WarehouseInputs(self._spark, KeptBatch(self._warehouse, of, manifest), self._config)
            with Replay(self._spark, self._topology, of, given_inputs) as replay:
                self._compare(name, txid, replay, of, given_inputs, findings)
        except (SourceError, TransactionNotKept, TopologyError, TableError) as error:
            findings.left_out.append(f"{name}: {error}")
        except Exception as error:  # of a user's function, or of Spark: the code would fail so as the leader
            if findings.ends():
                findings.left_out.append(f"{name}: the standby leads by now")
                return
            findings.failures.append(f"{name} fails with the new code: {type(error).__name__}: {error}"[:_CHARS])

    def _compare(
        self, name: str, txid: int, replay: Replay, of: GroupPlan, given_inputs: WarehouseInputs, findings: "_Findings"
    ) -> None:
        compared = False
        for state, replayed in replay.states.items():
            binding = next(one for one in of.bindings if one.name == state)
            if not binding.state_kind.is_described:
                findings.outside.setdefault(state, f"state {state} ({binding.kind}): its rows are not in the warehouse")
                continue
            try:
                found = replayed.differences()
            except TableError as error:
                findings.left_out.append(f"{name}, state {state}: {error.message}")
                continue
            compared = True
            findings.differ(of.name, txid, state, found)
        for binding in of.bindings:
            if binding.name not in replay.states:
                text = f"state {binding.name} ({binding.kind}): its spout does not give its rows again"
                findings.outside.setdefault(binding.name, text)
        for state, rows in given_inputs.others(of).items():
            findings.differ(of.name, txid, state, [Difference(state, {}, row, None) for row in rows])
        if compared:
            findings.compared.setdefault(of.name, []).append(txid)


class _Findings:
    """The findings of a rehearsal so far."""

    def __init__(self, ends: Callable[[], bool]) -> None:
        self.ends = ends
        self.compared: dict[str, list[int]] = {}
        self.differences: list[str] = []
        self.left_out: list[str] = []
        self.failures: list[str] = []
        self.outside: dict[str, str] = {}

    def differ(self, group: str, txid: int, state: str, found: list[Difference]) -> None:
        where = f"batch group {group}, transaction {txid}, table {state}"
        for one in found[:_SHOWN]:
            shown = f"key {dict(one.key)}: " if one.key else ""
            sides = [_row(one.committed), _row(one.replayed)]
            text = f"{where}, {shown}committed {sides[0]}, the new code {sides[1]}"
            self.differences.append(text if len(text) <= _CHARS else f"{text[:_CHARS]}…")
        if len(found) > _SHOWN:
            self.differences.append(f"{where}: {len(found) - _SHOWN} more rows differ")

    def rehearsed(self) -> Rehearsed:
        outcome = (
            FAILED
            if self.failures
            else DIFFERENT
            if self.differences
            else NOT_COMPARED
            if self.left_out or not self.compared
            else EQUAL
        )
        return Rehearsed(outcome, tuple(self._lines()), not self.left_out)

    def _lines(self) -> Iterator[str]:
        for group, txids in self.compared.items():
            yield f"batch group {group}: transactions {', '.join(map(str, txids))} were run again and compared"
        if not (self.compared or self.left_out or self.failures):
            yield "there is no transaction that could be rehearsed"
        yield from self.failures[:_LINES]
        yield from self.differences[:_LINES]
        if len(self.differences) > _LINES:
            yield f"and {len(self.differences) - _LINES} more"
        yield from (f"not compared: {text}" for text in [*self.outside.values(), *self.left_out[:_LINES]])


def _row(row: Mapping[str, object] | None) -> str:
    return "no row" if row is None else str(dict(row))
