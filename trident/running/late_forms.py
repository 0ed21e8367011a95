"""The forms of a group's late part: in the coordinator's process, in one pass of a worker, by Spark on the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.coordinators import faults
from trident.coordinators.errors import TridentError
from trident.coordinators.transactions import TransactionAttempt
from trident.operations.window_spec import Unit
from trident.running.boundaries import SMALL_BYTES, Staged, StagedBoundary, bytes_of
from trident.running.large_looks import LargeLooks
from trident.running.late_in_driver import LateInDriver
from trident.running.late_in_worker import LateInWorker
from trident.states.core.host_bound import is_local_master
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, stage
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
NOTHING, IN_DRIVER, PASS, TABLES = "nothing", "driver", "pass", "tables"


class LateForms:
    """Runs the late part of each batch in the first form that can take it.

    Args:
        targets: the states that it stages rows for.
        reader: (state, frame of its keys or None, txid) → its keys and values as of that transaction.
        copies: the local copies of the states that the group looks up; None: there are none here.
        host_copies: those on the hosts of a cluster's executors; None: tasks use none, or find those of this host.
        keep_plans: whether the plan of a pass may serve the batches after it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        plan: "GroupPlan",
        boundaries: Sequence[StagedBoundary],
        targets: Sequence[StagingTarget],
        incarnation: str,
        codec: str,
        reader: Callable[..., "DataFrame"],
        copies: StateCopies | None,
        host_copies: HostCopies | None,
        keep_plans: bool,
    ) -> None:
        self._spark, self._plan, self._boundaries, self._targets = spark, plan, boundaries, targets
        self._incarnation, self._codec, self._reader = incarnation, codec, reader
        self._copies, self._host_copies = copies, host_copies
        self._workers_are_here = is_local_master(spark.sparkContext.master)
        self._large_looks, self._has_told = LargeLooks(), False
        self._in_driver: LateInDriver | None = None
        self._in_worker: LateInWorker | None = None
        if copies is None:
            return
        if plan.late_in_driver is not None:
            self._in_driver = LateInDriver(plan.late_in_driver, boundaries, targets, incarnation, codec)
        if keep_plans and self._workers_are_here and plan.late_on_arrow is not None and not plan.tracked:
            made = LateInWorker(spark, plan.late_on_arrow, boundaries, targets, incarnation, codec)
            self._in_worker = made if made.works else None

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo
    ) -> tuple[str, dict[str, list[StagedFile]]]:
        """Stages the rows of late states, in the transaction's turn.

        Args:
            staged: the files of the boundaries, by name; others' are not looked at.

        Returns:
            The form, and what was staged.
        """
        if self._is_empty(staged):
            return NOTHING, {target.name: [] for target in self._targets}
        found = self._copies_for(attempt, staged)
        if found is not None and not self._large_looks.rests(found[1], attempt.txid):
            form, copies = found
            on_hosts = self._host_copies if form == PASS and not self._workers_are_here else None
            try:
                late = self._on_copies(form, attempt, staged, info, copies)
            except Exception as error:
                report = find_report(error, STALE, SPARKS)
                if report is None:
                    raise
                if report["kind"] == STALE and on_hosts is not None:
                    on_hosts.failed(report["state"], report["error"], bool(report.get("building")))
                elif report["kind"] == STALE:
                    assert self._copies is not None
                    self._copies.failed(report["state"], report["error"])
                elif report.get("large"):
                    self._large_looks.found(report["large"], attempt.txid)
            else:
                self._large_looks.fitted(copies)
                if on_hosts is not None:
                    on_hosts.used(copies, attempt.txid - 1)
                else:
                    assert self._copies is not None
                    self._copies.served(copies)
                return form, late
        return TABLES, self._by_spark(attempt, staged, info, None)

    def close(self) -> None:
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
            with faults.fault_point(RESOLVE):
                return self._in_worker.stage(attempt, staged, info, copies)
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
        with self._plan.build_late(inputs, info, stored, copies) as frames, faults.fault_point(RESOLVE):
            return stage(frames, self._targets, self._incarnation, attempt, self._codec)
