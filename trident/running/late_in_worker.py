"""The late part of a small batch as one pass of a Python worker, by a plan that is kept: with code of the user's."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from trident.coordinators.transactions import TransactionAttempt
from trident.running.boundaries import Staged, StagedBoundary
from trident.spark.kept_plans_jar import kept_plan_class
from trident.spark.slots import RowsSlot
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, file_target, reports_by, stage_by
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import ArrowPlan
from trident.workers.late_pass import LateBatch, LatePass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SENT = StructType([StructField("batch", BinaryType())])
_PROPERTY = "trident.rows.0"


def late_pass(
    plan: ArrowPlan, schemas: Mapping[str, pa.Schema], targets: Sequence[StagingTarget], codec: str
) -> LatePass | None:
    """The work of a worker; None where that is left to Spark: it stages nothing, or has times between its segments.

    Between segments Spark gives times in the session's zone, which functions of the user's see; the framework's own
    steps do not look at the zone.

    Args:
        schemas: of the rows that the plan begins with, by name.
    """
    if not targets or (not plan.is_own and plan.has_times(schemas.values())):
        return None
    return LatePass(plan, schemas, [(file_target(target, codec), target.txid_column) for target in targets])


class WorkerPass:
    """Runs one batch after the other in one pass of a Python worker; the plan is the same for each batch.

    Args:
        spark: a session that has the jar of kept plans.
    """

    def __init__(self, spark: "SparkSession", late: LatePass) -> None:
        self._spark, self._pass = spark, late
        self._kept: Any = kept_plan_class(spark.sparkContext)
        self._plan: Any = None
        self._fields: Sequence[str] = ()
        self._lock = threading.Lock()

    def reports(self, batch: LateBatch) -> list[dict[str, Any]]:
        """The reports on the files that a worker has staged, with one Spark job."""
        slot = RowsSlot(self._spark, pa.table({"batch": pa.array([pickle.dumps(batch)], pa.binary())}), _SENT)
        properties = json.dumps({_PROPERTY: slot.rows})
        while True:
            plan, fields = self._planned(slot)
            reports = plan.run(properties)
            if reports is not None:
                return [dict(zip(fields, report)) for partition in json.loads(reports) for report in partition]
            with self._lock:  # the session is in another state than when the plan was made
                self._plan = None

    def _planned(self, slot: RowsSlot) -> tuple[Any, Sequence[str]]:
        with self._lock:
            if self._plan is None:
                spark: Any = self._spark
                state = self._kept.stateOf(spark._jsparkSession)
                made: Any = reports_by(slot.over(self._kept, _PROPERTY), self._pass)
                self._plan, self._fields = self._kept.of(made._jdf, state), made.columns
                assert self._plan.refusal() is None, self._plan.refusal()
            return self._plan, self._fields


@dataclass(frozen=True)
class LateInWorker:
    """How a group's late part runs in one pass.

    Attributes:
        worker: runs it.
        targets: the states that it stages rows for.
    """

    worker: WorkerPass
    boundaries: Sequence[StagedBoundary]
    targets: Sequence[StagingTarget]
    incarnation: str

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]]:
        """Stages the rows of late states, from those that were staged for the boundaries.

        Raises:
            TableError: a staged file is gone or not whole.
        """
        files = {one.name: one.paths(staged[one.name]) for one in self.boundaries}

        def run(attempt_property: str) -> list[dict[str, Any]]:
            return self.worker.reports(LateBatch(info, dict(copies), attempt_property, files))

        return stage_by(run, self.targets, self.incarnation, attempt)
