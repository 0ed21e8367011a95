"""Runs a part of a group's batches by plans that are kept from batch to batch."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trident.coordinators.transactions import TransactionAttempt
from trident.planning.kept import why_not_kept
from trident.spark.kept_plans_jar import kept_plan_class
from trident.spark.slots import Slot
from trident.states.core import own_jar
from trident.states.core.staged import StagedFile
from trident.states.delta.parquet_files import ATTEMPT
from trident.states.delta.staging import StagingTarget, reports_of, stage_by
from trident.states.publishing.user_tasks import BatchInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

log = logging.getLogger("trident.runner")
# More shapes than this are no shapes: then a plan is made for each batch, and none is kept.
_SHAPES_MAX = 8
# A plan that could not be made so often in a row is not tried again.
_FAILURES_MAX = 3
_NOTHING: Mapping[str, str] = {}
_NO_FIT = "the jar of kept plans does not fit this session's Spark"


@dataclass
class _Shape:
    """Batches of one shape, and their plan once it is made; ``refusal`` says why there is none.

    Attributes:
        failures: so often in a row their plan could not be made.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    plan: Any = None
    fields: Sequence[str] = ()
    refusal: str | None = None
    failures: int = 0


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
        self._shapes: dict[Hashable, _Shape] = {}
        self.why_not = why_not
        if self.why_not is None:
            self._kept = kept_plan_class(spark.sparkContext)
            if self._kept is None:
                self.why_not = "this session has not the jar of kept plans"
        if not targets:
            self.why_not = "nothing is staged"

    def stage(
        self,
        slots: Mapping[str, Slot],
        incarnation: str,
        attempt: TransactionAttempt,
        told: Mapping[str, str] = _NOTHING,
    ) -> dict[str, list[StagedFile]] | None:
        """Stages a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            slots: tx_id → the batch, of every stream of the group.
            told: local properties of its job, beside those of the slots.
        """
        if self.why_not is not None:
            return None
        names = sorted(slots)
        shape = self._shape(tuple((tx_id, slots[tx_id].shape) for tx_id in names))
        if shape is None:
            return None
        properties = {**told, **{_property(number): slots[tx_id].rows for number, tx_id in enumerate(names)}}
        while True:
            with shape.lock:
                if shape.plan is None and shape.refusal is None:
                    self._make(shape, names, slots)
                plan, fields = shape.plan, shape.fields
            if plan is None:
                return None
            run = partial(_run, plan, fields, properties)
            try:
                return stage_by(run, self._targets, incarnation, attempt)
            except _Outdated:
                with shape.lock:
                    if shape.plan is plan:
                        shape.plan = None
            except Exception as error:
                if not own_jar.does_not_fit(self._spark.sparkContext, error):
                    raise
                self.why_not = _NO_FIT
                return None

    def _shape(self, key: Hashable) -> _Shape | None:
        with self._lock:
            if key not in self._shapes and len(self._shapes) >= _SHAPES_MAX:
                return None
            return self._shapes.setdefault(key, _Shape())

    def _make(self, shape: _Shape, names: Sequence[str], slots: Mapping[str, Slot]) -> None:
        """Plans batches of a shape, or finds out why their plan cannot be kept."""
        spark: Any = self._spark
        try:
            state = self._kept.stateOf(spark._jsparkSession)  # before anything is planned
            inputs: dict[str, DataFrame] = {}
            for number, tx_id in enumerate(names):
                inputs[tx_id] = slots[tx_id].over(self._kept, _property(number)).coalesce(1)
            with self._reports(inputs) as reports:
                made: Any = reports
                plan = self._kept.of(made._jdf, state)
            shape.refusal = plan.refusal()
            shape.fields = made.columns
        except Exception as error:  # the batch's own plan says it better, or runs
            if own_jar.does_not_fit(spark.sparkContext, error):
                self.why_not = shape.refusal = _NO_FIT
                return
            shape.failures += 1
            log.warning("the plan of group %s could not be made to be kept: %s", self._group, error)
            if shape.failures >= _FAILURES_MAX:
                shape.refusal = f"it could not be planned {shape.failures} times in a row: {error}"
                log.warning("the plan of group %s is made anew for each batch from now on", self._group)
            return
        shape.failures = 0
        if shape.refusal is None:
            shape.plan = plan
            log.info("the plan of group %s is kept from batch to batch", self._group)
        else:
            log.info("the plan of group %s is made anew for each batch: %s", self._group, shape.refusal)


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


class _Outdated(Exception):
    """The session is in another state than when the plan was made: in its settings, or what it takes names for."""


def _property(number: int) -> str:
    return f"trident.rows.{number}"


def _run(plan: Any, fields: Sequence[str], properties: Mapping[str, str], attempt: str) -> Iterable[dict[str, Any]]:
    reports = plan.run(json.dumps({**properties, ATTEMPT: attempt}))
    if reports is None:
        raise _Outdated
    return [dict(zip(fields, report)) for partition in json.loads(reports) for report in partition]
