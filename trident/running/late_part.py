"""Runs the late part of each batch: in the first of its forms that can take it (``late_choice.py`` says which)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.coordinators import faults
from trident.coordinators.daemon_pool import DaemonPool
from trident.coordinators.errors import TridentError
from trident.coordinators.transactions import TransactionAttempt
from trident.operations.window_spec import Unit
from trident.planning.kept import is_one_job, is_worker_pass
from trident.running.boundaries import Staged, Staging, bytes_of
from trident.running.late_choice import Able, Breaker, Form, Rows, choose
from trident.running.late_jobs import OneJob, WorkerPass
from trident.spark.jobs import JobWatch
from trident.spark.slots import Slot
from trident.states.core.host_bound import is_local_master
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import file_target, stage, stage_tables
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.host_copies import HostCopies
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.late_pass import LatePass
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
Files = dict[str, list[StagedFile]]


class LatePart:
    """The late part of a group's batches, in one session.

    Args:
        staging: where rows are staged.
        reader: (state, frame of its keys or None, txid) → its keys and values as of that transaction.
        copies: the local copies of the states that the group looks up; None: there are none here.
        host_copies: those on the hosts of a cluster's executors; None: tasks use none, or find those of this host.
        keep_plans: whether a plan may serve the batches after it.
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
        self._spark, self._plan, self._staging, self._reader = spark, plan, staging, reader
        self._copies, self._states = copies, plan.lowered.copied_states
        self._is_local = is_local_master(spark.sparkContext.master)
        self._host_copies = None if self._is_local else host_copies
        self._breaker, self._always = Breaker(), _works_on_nothing(plan)
        self._advanced = self._followed = -1  # the last transaction; the last one that copies were to follow
        self._follower = DaemonPool(1, "trident-copies")
        self._one_job: OneJob | None = None
        self._worker: WorkerPass | None = None
        if copies is not None and self._is_local and keep_plans and is_worker_pass(plan):
            assert plan.late_on_arrow is not None
            targets = [(file_target(one, staging.codec), one.txid_column) for one in staging.late]
            late = LatePass(plan.late_on_arrow, {one.name: one.schema for one in staging.boundaries}, targets)
            self._worker = WorkerPass(spark, plan.name, late, staging)
            if is_one_job(plan):
                self._one_job = OneJob(spark, plan, late, self._always, staging)
        where_tasks_run = copies if self._is_local else host_copies
        self._able = Able(
            one_job=self._one_job is not None,
            driver=copies is not None and plan.late_in_driver is not None,
            one_partition=bool(self._states) and where_tasks_run is not None,
        )

    def advanced(self, txid: int) -> None:
        """Takes note that a transaction has advanced; returns at once."""
        self._advanced = txid

    def job_begins(self) -> None:
        """Takes note that this process is about to wait for a Spark job; returns at once.

        Meanwhile another thread brings the copies to the transaction that has advanced last: no turn waits for it
        then, and it takes no time of this process's threads, which have one interpreter.
        """
        advanced = self._advanced
        if self._copies is not None and self._followed < advanced:
            self._followed = advanced
            self._follower.submit(self._copies.bring_on, self._states, advanced)

    def stage_at_once(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, watch: JobWatch
    ) -> Files | None:
        """Stages the rows of a whole batch with one Spark job, where its transaction is the one that commits next.

        Args:
            slots: tx_id → the batch, of every stream of the group.
            watch: of the attempt; it has the time of both parts.

        Returns:
            target → its files, without the boundaries; None: nothing is staged, and the early part runs first.
        """
        before = attempt.txid - 1
        if choose(self._able, None, self._advanced == before, self._breaker.is_open(attempt.txid)) is None:
            return None
        assert self._copies is not None and self._one_job is not None
        copies = self._copies.promised(self._states, before)
        if copies is not None:
            self._followed = before
            self._follower.submit(self._follow_soon, before)
        else:
            copies = self._copies.as_of(self._states, before)
        if copies is None:
            return None
        watch.parts, staged = 2, None
        try:
            with faults.fault_point(RESOLVE):
                staged = self._one_job.stage(attempt, slots, info, copies)
        except Exception as error:
            report = find_report(error, STALE, SPARKS)
            if report is None:
                raise
            self._failed(report, attempt.txid, self._copies, copies)
        if staged is None:
            watch.parts = 1
            watch.begin_run()
            return None
        self._breaker.worked()
        self._copies.served(copies)
        return staged

    def _follow_soon(self, txid: int) -> None:
        time.sleep(_JOB_SECS)
        assert self._copies is not None
        self._copies.bring_on(self._states, txid)

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, begin_jobs: Callable[[], None]
    ) -> tuple[Form, Files]:
        """Stages the rows of late states, in the transaction's turn.

        Args:
            staged: the rows of the boundaries, by name; others' are not looked at.
            begin_jobs: called before a Spark job.

        Returns:
            The form, and what was staged.
        """
        form = choose(self._able, self._size(staged), True, self._breaker.is_open(attempt.txid))
        assert form is not None, "a batch that is staged has a form"
        if form is Form.NOTHING:
            return form, {target.name: [] for target in self._staging.late}
        owner: Any = self._copies if form is Form.DRIVER or self._is_local else self._host_copies
        copies = None
        if form is not Form.TABLES and owner is not None:
            copies = owner.as_of(self._states, attempt.txid - 1)
        if owner is not None and copies is not None:
            if form is Form.PASS:
                begin_jobs()
            run = self._in_driver if form is Form.DRIVER else self._in_one_partition
            try:
                found = run(attempt, staged, info, copies)
            except Exception as error:
                report = find_report(error, STALE, SPARKS)
                if report is None:
                    raise
                self._failed(report, attempt.txid, owner, copies)
            else:
                self._breaker.worked()
                owner.served(copies)
                return form, found
        begin_jobs()
        return Form.TABLES, self._by_spark(attempt, staged, info, None)

    def _failed(
        self, report: Mapping[str, Any], txid: int, owner: StateCopies | HostCopies, copies: Mapping[str, Any]
    ) -> None:
        """Takes note of why a batch could not be computed with copies."""
        if report["kind"] == SPARKS:
            log.info("transaction %d of group %s reads the tables: %s", txid, self._plan.name, report["error"])
            self._breaker.failed(txid)
        elif isinstance(owner, HostCopies):
            owner.failed(report["state"], report["error"], bool(report.get("building")))
        else:
            owner.damaged(report["state"], copies[report["state"]], report["error"])

    def close(self) -> None:
        self._follower.shutdown(timeout_secs=_CLOSE_SECS)

    def _size(self, staged: Staged) -> Rows:
        files = [staged[one.name] for one in self._staging.boundaries]
        rows = sum(file.num_records for some in files for file in some)
        return Rows(not (self._always or any(files)), rows, max(map(bytes_of, files), default=0))

    def _in_driver(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, Any]
    ) -> Files:
        plan, to = self._plan.late_in_driver, self._staging
        assert plan is not None
        try:
            with faults.fault_point(RESOLVE):
                inputs = {one.name: one.rows(staged[one.name]) for one in to.boundaries}
                return stage_tables(plan.run(inputs, info, copies), to.late, to.incarnation, attempt, to.codec)
        except TridentError:
            raise
        except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
            # No code of the user's has run: Spark, on the tables, has the last word.
            raise left_to_spark(error) from error

    def _in_one_partition(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, Any]
    ) -> Files:
        if self._worker is not None:
            with faults.fault_point(RESOLVE):
                found = self._worker.stage(attempt, staged, info, copies)
            if found is not None:
                return found
        return self._by_spark(attempt, staged, info, copies)

    def _by_spark(
        self,
        attempt: TransactionAttempt,
        staged: Staged,
        info: BatchInfo,
        copies: Mapping[str, CopyOfState] | None,
    ) -> Files:
        ordered, to = self._plan.lowered.late_order, self._staging
        inputs = {one.name: one.frame(self._spark, staged[one.name], ordered) for one in to.boundaries}
        stored = partial(self._reader, txid=attempt.txid - 1)
        rows = sum(file.num_records for one in to.boundaries for file in staged[one.name])
        with self._plan.build_late(inputs, info, stored, copies, rows) as frames, faults.fault_point(RESOLVE):
            return stage(frames, to.late, to.incarnation, attempt, to.codec)


def _works_on_nothing(plan: "GroupPlan") -> bool:
    """Tells whether the late part does something for a batch without rows, such as windows that are due."""
    if plan.lowered.late_gives_rows_for_none:
        return True
    if any(getattr(binding.aggregator, "unit", None) is Unit.PROCESSING_TIME for binding in plan.bindings):
        return True
    return any(
        binding.name in plan.late_states
        and not binding.keys
        and binding.aggregator is not None
        and not hasattr(binding.aggregator, "update_state")
        for binding in plan.bindings
    )
