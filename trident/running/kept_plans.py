"""Runs a part of a group's batches by plans that are kept from batch to batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import why_not_kept
from trident.spark.jars import kept_plan_class
from trident.spark.kept_plan import NO_FIT, NO_JAR, KeptPlan, NotKept
from trident.spark.rows import ShardsSlot, Slot
from trident.states.core import spark_jobs
from trident.states.core.tables import StagedFile
from trident.states.delta.parquet_files import ATTEMPT
from trident.states.delta.staging import StagingTarget, reports_of, stage_by
from trident.states.publishing.user_tasks import BatchInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

# More shapes than this are no shapes: then a plan is made for each batch, and none is kept.
_SHAPES_MAX = 8
_NOTHING: Mapping[str, str] = {}


class KeptPlans:
    """The kept plans of one group's part: one for each shape of its inputs.

    Each attempt runs the plan as a job of its own, whose local properties name its rows and its folder. So attempts
    in flight share the plan and nothing else.

    Args:
        targets: that rows are staged for.
        why_not: a reason to keep none.
        reports: gives the reports on their files, of a frame for each input.
    """

    def __init__(
        self,
        spark: "SparkSession",
        group: str,
        targets: Sequence[StagingTarget],
        why_not: str | None,
        reports: Callable[[Mapping[str, "DataFrame"]], AbstractContextManager["DataFrame"]],
    ) -> None:
        self._spark, self._group, self._targets, self._reports = spark, group, targets, reports
        self._kept: Any = None
        self._lock = threading.Lock()
        self._shapes: dict[Hashable, KeptPlan] = {}
        self.why_not = why_not
        if self.why_not is None:
            self._kept = kept_plan_class(spark.sparkContext)
            if self._kept is None:
                self.why_not = NO_JAR
        if not targets:
            self.why_not = "nothing is staged"

    def stage(
        self,
        slots: Mapping[str, Slot],
        incarnation: str,
        attempt: TransactionAttempt,
        sent: Mapping[str, str] = _NOTHING,
    ) -> dict[str, list[StagedFile]] | None:
        """Stages a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            slots: tx_id → the batch, of every stream of the group.
            sent: further local properties of its job.
        """
        if self.why_not is None and not spark_jobs.fits(self._spark.sparkContext):
            self.why_not = NO_FIT
        if self.why_not is not None:
            return None
        names = sorted(slots)
        plan = self._plan(tuple((tx_id, slots[tx_id].shape) for tx_id in names))
        make = partial(self._made, names, slots)
        if plan is None or not plan.is_made(make):
            return None
        properties = {**sent, **{_property(number): slots[tx_id].rows for number, tx_id in enumerate(names)}}
        try:
            return stage_by(
                lambda value: plan.rows({**properties, ATTEMPT: value}, make), self._targets, incarnation, attempt
            )
        except NotKept:
            return None

    def _plan(self, shape: Hashable) -> KeptPlan | None:
        """That of batches of a shape; it may still have to be made."""
        with self._lock:
            if shape not in self._shapes and len(self._shapes) >= _SHAPES_MAX:
                return None
            return self._shapes.setdefault(shape, KeptPlan(self._spark, self._kept, f"group {self._group}"))

    def _made(self, names: Sequence[str], slots: Mapping[str, Slot], kept: Any) -> AbstractContextManager["DataFrame"]:
        inputs: dict[str, DataFrame] = {}
        for number, tx_id in enumerate(names):
            slot = slots[tx_id]
            rows = slot.over(kept, _property(number))
            inputs[tx_id] = rows if isinstance(slot, ShardsSlot) else rows.coalesce(1)
        return self._reports(inputs)


def early_plans(
    spark: "SparkSession", plan: "GroupPlan", targets: Sequence[StagingTarget], codec: str, enabled: bool
) -> KeptPlans:
    """Those of a group's early part.

    Args:
        targets: that it stages rows for.
        enabled: the setting ``keep_plans``.
    """

    @contextmanager
    def reports(inputs: Mapping[str, "DataFrame"]) -> Iterator["DataFrame"]:
        # A plan with an operation that is given the batch is not kept.
        with plan.build(inputs, NONE, BatchInfo(NONE)) as frames:
            yield reports_of(frames, targets, codec)

    why_not = why_not_kept(plan) if enabled else "the setting keep_plans is off"
    return KeptPlans(spark, plan.name, targets, why_not, reports)


# A kept plan is of no batch.
NONE = TransactionAttempt(0, 0)


def _property(number: int) -> str:
    return f"trident.rows.{number}"
