"""The forms of a late part: in the early part's job, in the coordinator's process, in a worker, by Spark on tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.coordinators import faults
from trident.coordinators.daemon_pool import DaemonPool
from trident.coordinators.errors import TridentError
from trident.coordinators.transactions import TransactionAttempt
from trident.operations.window_spec import Unit
from trident.running.boundaries import SMALL_BYTES, Staged, bytes_of
from trident.running.large_looks import LargeLooks
from trident.running.late_at_once import LateAtOnce, Staging
from trident.running.late_in_driver import LateInDriver
from trident.running.late_in_worker import LateInWorker, WorkerPass, late_pass
from trident.spark.jobs import JobWatch
from trident.spark.kept_plans_jar import kept_plan_class
from trident.spark.slots import Slot
from trident.states.core import own_jar
from trident.states.core.host_bound import is_local_master
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import stage
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.host_copies import HostCopies
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.look_up import CopyOfState
from trident.workers.reports import SPARKS, STALE, find_report, left_to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

log = logging.getLogger("trident.runner")
RESOLVE = faults.register("resolve.stage", "the Spark job that reads states and stages what depends on them")
_CLOSE_SECS = 10.0
# So long the thread that submits a job needs the interpreter, which another one would keep for 5 ms.
_JOB_SECS = 0.0015
NOTHING, AT_ONCE, IN_DRIVER, PASS, TABLES = "nothing", "one_job", "driver", "pass", "tables"
_BATCH = "the rows of a batch between its halves"


class LateForms:
    """Runs the late part of each batch in the first form that can take it.

    Args:
        staging: where rows are staged.
        reader: (state, frame of its keys or None, txid) → its keys and values as of that transaction.
        copies: the local copies of the states that the group looks up; None: there are none here.
        host_copies: those on the hosts of a cluster's executors; None: tasks use none, or find those of this host.
        keep_plans: whether the plan of a pass may serve the batches after it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        plan: "GroupPlan",
        staging: Staging,
        reader: Callable[..., "DataFrame"],
        copies: StateCopies | None,
        host_copies: HostCopies | None,
        keep_plans: bool,
    ) -> None:
        self._spark, self._plan, self._reader = spark, plan, reader
        boundaries, targets = self._boundaries, self._targets = staging.boundaries, staging.late
        incarnation, codec = self._incarnation, self._codec = staging.incarnation, staging.codec
        self._copies, self._host_copies = copies, host_copies
        self._workers_are_here = is_local_master(spark.sparkContext.master)
        self._large_looks, self._large_batches, self._has_told = LargeLooks(), LargeLooks(), False
        self._last_advanced, self._behind = -1, False
        self._left_to_spark: TransactionAttempt | None = None
        self._bringing = DaemonPool(1, "trident-copies")
        self._in_driver: LateInDriver | None = None
        self._in_worker: LateInWorker | None = None
        self._at_once: LateAtOnce | None = None
        if copies is None:
            return
        if plan.late_in_driver is not None:
            self._in_driver = LateInDriver(plan.late_in_driver, boundaries, targets, incarnation, codec)
        if not keep_plans or not self._workers_are_here or plan.late_on_arrow is None or plan.tracked:
            return
        late = late_pass(plan.late_on_arrow, {one.name: one.schema for one in boundaries}, targets, codec)
        if late is None or kept_plan_class(spark.sparkContext) is None:
            return
        self._in_worker = LateInWorker(WorkerPass(spark, late), boundaries, targets, incarnation)
        if len(boundaries) == 1:
            for_none = not self._is_empty({boundaries[0].name: []})
            self._at_once = LateAtOnce(spark, plan, late, for_none, staging)

    def advanced(self, txid: int) -> None:
        """Tells that a transaction has advanced; returns at once."""
        self._last_advanced, self._behind = txid, True

    def job_begins(self) -> None:
        """Tells that this process is about to wait for a Spark job; returns at once.

        Meanwhile another thread brings the copies to the transaction that has advanced last: no turn waits for it
        then, and it takes no time of this process's threads, which have one interpreter.
        """
        behind, self._behind = self._behind, False
        if behind and self._copies is not None:
            self._bringing.submit(self._copies.bring_on, self._plan.lowered.copied_states, self._last_advanced)

    def _bring_soon(self, states: Collection[str], txid: int) -> bool:
        time.sleep(_JOB_SECS)
        assert self._copies is not None
        return self._copies.bring_on(states, txid)

    def stage_at_once(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, watch: JobWatch
    ) -> dict[str, list[StagedFile]] | None:
        """Stages the rows of a whole batch with one Spark job, where its transaction is the one that commits next.

        Args:
            slots: tx_id → the batch, of every stream of the group.
            watch: of the attempt; it has the time of both parts.

        Returns:
            target → its files, without the boundaries; None: nothing is staged, and the parts run one behind the other.
        """
        before = attempt.txid - 1
        if self._at_once is None or self._last_advanced != before or self._large_batches.rests({_BATCH}, attempt.txid):
            return None
        assert self._copies is not None
        states, brought = self._plan.lowered.copied_states, None
        copies = self._copies.promised(states, before)
        if copies is not None:
            self._behind, brought = False, self._bringing.submit(self._bring_soon, states, before)
        else:
            copies = self._copies.as_of(states, before)
        if copies is None or self._large_looks.rests(copies, attempt.txid):
            return None
        watch.parts = 2
        try:
            with faults.fault_point(RESOLVE):
                staged = self._at_once.stage(attempt, slots, info, copies)
        except Exception as error:
            report = find_report(error, STALE, SPARKS)
            if report is None:
                raise
            if report["kind"] == SPARKS or brought is None:
                self._could_not(report, attempt.txid)
            elif _is_true(brought):
                self._copies.damaged(report["state"], copies[report["state"]], report["error"])
            if report["kind"] == SPARKS:
                self._large_batches.found(_BATCH, attempt.txid)
                self._left_to_spark = attempt
            staged = None
        if staged is None:
            watch.parts = 1
            watch.begin_run()
            return None
        self._large_batches.fitted({_BATCH})
        self._large_looks.fitted(copies)
        self._copies.served(copies)
        return staged

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, begin_jobs: Callable[[], None]
    ) -> tuple[str, dict[str, list[StagedFile]]]:
        """Stages the rows of late states, in the transaction's turn.

        Args:
            staged: the rows of the boundaries, by name; others' are not looked at.
            begin_jobs: called before a Spark job.

        Returns:
            The form, and what was staged.
        """
        if self._is_empty(staged):
            return NOTHING, {target.name: [] for target in self._targets}
        found = None if attempt == self._left_to_spark else self._copies_for(attempt, staged)
        if found is not None and not self._large_looks.rests(found[1], attempt.txid):
            form, copies = found
            if form == PASS:
                begin_jobs()
            on_hosts = self._host_copies if form == PASS and not self._workers_are_here else None
            try:
                late = self._on_copies(form, attempt, staged, info, copies)
            except Exception as error:
                report = find_report(error, STALE, SPARKS)
                if report is None:
                    raise
                self._could_not(report, attempt.txid, on_hosts)
            else:
                self._large_looks.fitted(copies)
                if on_hosts is not None:
                    on_hosts.used(copies, attempt.txid - 1)
                else:
                    assert self._copies is not None
                    self._copies.served(copies)
                return form, late
        begin_jobs()
        return TABLES, self._by_spark(attempt, staged, info, None)

    def _could_not(self, report: Mapping[str, Any], txid: int, on_hosts: HostCopies | None = None) -> None:
        """Takes note of why a batch could not be computed with copies."""
        if report["kind"] == STALE and on_hosts is not None:
            on_hosts.failed(report["state"], report["error"], bool(report.get("building")))
        elif report["kind"] == STALE:
            assert self._copies is not None
            self._copies.failed(report["state"], report["error"])
        elif report.get("large"):
            self._large_looks.found(report["large"], txid)

    def _without_the_jar(self, error: Exception) -> bool:
        """Tells whether the jar of kept plans does not fit; then no late part is a pass of a kept plan again."""
        if not own_jar.does_not_fit(self._spark.sparkContext, error):
            return False
        self._in_worker = None
        return True

    def close(self) -> None:
        self._bringing.shutdown(timeout_secs=_CLOSE_SECS)
        if self._copies is not None:
            self._copies.close()

    def _is_empty(self, staged: Staged) -> bool:
        """Tells whether late segments would have nothing to do: an aggregate without groups always has."""
        if any(staged[one.name] for one in self._boundaries) or self._plan.lowered.late_gives_rows_for_none:
            return False
        if any(getattr(binding.aggregator, "unit", None) is Unit.PROCESSING_TIME for binding in self._plan.bindings):
            return False  # windows may be due
        return not any(
            binding.name in self._plan.late_states
            and not binding.keys
            and binding.aggregator is not None
            and not hasattr(binding.aggregator, "update_state")
            for binding in self._plan.bindings
        )

    def _copies_for(self, attempt: TransactionAttempt, staged: Staged) -> tuple[str, Mapping[str, Any]] | None:
        """The form in which the late part can look up in copies, and these: as of the transaction before.

        For few rows; else it reads the tables.
        """
        states, before = self._plan.lowered.copied_states, attempt.txid - 1
        if not states or any(bytes_of(staged[one.name]) > SMALL_BYTES for one in self._boundaries):
            return None
        form, copies = PASS, self._copies if self._workers_are_here else self._host_copies
        if self._in_driver is not None and self._in_driver.takes(staged):
            form, copies = IN_DRIVER, self._copies
        found = None if copies is None else copies.as_of(states, before)
        return None if found is None else (form, found)

    def _on_copies(
        self, form: str, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, Any]
    ) -> dict[str, list[StagedFile]]:
        if form == PASS:
            if self._in_worker is None:
                return self._by_spark(attempt, staged, info, copies)
            try:
                with faults.fault_point(RESOLVE):
                    return self._in_worker.stage(attempt, staged, info, copies)
            except Exception as error:
                if not self._without_the_jar(error):
                    raise
                return self._by_spark(attempt, staged, info, copies)
        assert self._in_driver is not None
        try:
            with faults.fault_point(RESOLVE):
                return self._in_driver.stage(attempt, staged, info, copies)
        except TridentError:
            raise
        except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
            if not self._has_told:  # no code of the user's has run: Spark, on the tables, has the last word
                log.warning("batches of group %s for which Spark reads the tables: %s", self._plan.name, error)
                self._has_told = True
            raise left_to_spark(error) from error

    def _by_spark(
        self,
        attempt: TransactionAttempt,
        staged: Staged,
        info: BatchInfo,
        copies: Mapping[str, CopyOfState] | None,
    ) -> dict[str, list[StagedFile]]:
        ordered = self._plan.lowered.late_order
        inputs = {one.name: one.frame(self._spark, staged[one.name], ordered) for one in self._boundaries}
        stored = partial(self._reader, txid=attempt.txid - 1)
        rows = sum(file.num_records for one in self._boundaries for file in staged[one.name])
        with self._plan.build_late(inputs, info, stored, copies, rows) as frames, faults.fault_point(RESOLVE):
            return stage(frames, self._targets, self._incarnation, attempt, self._codec)


def _is_true(brought: Future[bool]) -> bool:
    """Tells whether the copies were brought on: one that could not be is gone already."""
    wait([brought], _CLOSE_SECS)
    return brought.done() and not brought.cancelled() and brought.result()
