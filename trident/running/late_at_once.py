"""Early and late part of a small batch as one Spark job, by a kept plan: for the transaction that commits next."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.coordinators.transactions import TransactionAttempt
from trident.planning.basic_operations import OnePartitionOp
from trident.planning.kept import why_not_kept
from trident.planning.operation import MARKER, MARKER_FIELD
from trident.planning.session_frames import Batch, SessionFrames
from trident.running.boundaries import StagedBoundary
from trident.running.kept_plans import NONE, KeptPlans
from trident.running.late_in_worker import WorkerPass, late_pass
from trident.spark.slots import RowsSlot, Slot
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, file_target, reports_by, reports_of, stage_by
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.late_pass import LATE, LateAtOncePass, LateBatch, LatePass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

# More bytes of rows than these are staged between the two parts, and not held by a worker.
_BYTES_MAX = 32 << 20


@dataclass(frozen=True)
class Staging:
    """Where the rows of a group's batches are staged.

    Attributes:
        boundaries: between its parts.
        early, late: the states of which each part stages rows.
    """

    boundaries: Sequence[StagedBoundary]
    early: Sequence[StagingTarget]
    late: Sequence[StagingTarget]
    incarnation: str
    codec: str

    @property
    def states(self) -> list[StagingTarget]:
        return [*self.early, *self.late]


class WholeInWorker:
    """All of a batch over Arrow in one worker, which is given its rows as they are: Spark only starts the task."""

    def __init__(self, worker: WorkerPass, staging: Staging) -> None:
        self._worker, self._staging = worker, staging

    def stage(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]] | None:
        """Stages all rows of a batch; None: its rows are not held here, and nothing has been done."""
        (slot,) = slots.values()
        if not isinstance(slot, RowsSlot):
            return None

        def run(attempt_property: str) -> list[dict[str, Any]]:
            return self._worker.reports(LateBatch(info, dict(copies), attempt_property, rows=slot.stream))

        return stage_by(run, self._staging.states, self._staging.incarnation, attempt)


class LateAtOnce:
    """The early part by Spark. The rows of the one boundary are not staged between: one worker is given them all.

    Args:
        late: of one boundary.
        for_none: whether it does something for a batch without rows.
    """

    def __init__(
        self, spark: "SparkSession", plan: "GroupPlan", late: LatePass, for_none: bool, staging: Staging
    ) -> None:
        (self._boundary,) = late.boundaries
        self._staging = staging
        # Spark may give a batch no partition (a filter that is always false): then no worker would run.
        fields = (*staging.boundaries[0].fields, MARKER_FIELD)
        self._there = OnePartitionOp(fields).transform(SessionFrames(spark)) if for_none else None
        # A state's own rows are staged by the worker that goes on with them.
        own = next((one for one in staging.early if one.name == self._boundary), None)
        state = None if own is None else (file_target(own, staging.codec), own.txid_column)
        self._pass = LateAtOncePass(late, _BYTES_MAX, MARKER if for_none else "", state)
        self._beside = [one for one in staging.early if one is not own]
        self._plans = KeptPlans(spark, plan, staging.states, staging.codec, True, self._reports)

    def stage(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]] | None:
        """Stages all rows of a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            copies: as of the transaction before.
        """
        batch = base64.b64encode(pickle.dumps(LateBatch(info, dict(copies)))).decode("ascii")
        return self._plans.stage(slots, self._staging.incarnation, attempt, {LATE: batch})

    def _reports(self, frames: Mapping[str, "DataFrame"]) -> "DataFrame":
        # Also where streams or a hint have put rows into several: each task would go on from the same values.
        frame = frames[self._boundary]
        frame = frame.coalesce(1) if self._there is None else self._there(frame, Batch(BatchInfo(NONE)))
        late = reports_by(frame, self._pass)
        return reports_of(frames, self._beside, self._staging.codec).union(late) if self._beside else late


def at_once_forms(
    spark: "SparkSession",
    plan: "GroupPlan",
    late: LatePass,
    for_none: bool,
    staging: Staging,
    schemas: Mapping[str, StructType],
) -> list[WholeInWorker | LateAtOnce]:
    """The forms in which one job can run a group's batches, the better one first.

    Args:
        late: over Arrow.
        for_none: whether the late part does something for a batch without rows.
        schemas: stream → that of its rows.
    """
    forms: list[WholeInWorker | LateAtOnce] = []
    given = _on_arrow(schemas)
    if given is not None and plan.whole_on_arrow is not None and why_not_kept(plan) is None:
        whole = late_pass(plan.whole_on_arrow, given, staging.states, staging.codec)
        if whole is not None:
            forms.append(WholeInWorker(WorkerPass(spark, whole), staging))
    if len(staging.boundaries) == 1:
        forms.append(LateAtOnce(spark, plan, late, for_none, staging))
    return forms


def _on_arrow(schemas: Mapping[str, StructType]) -> dict[str, pa.Schema] | None:
    """The schemas in Arrow's types, times in UTC; None where one has a type that Arrow has not."""
    try:
        return {name: to_arrow_schema(schema, timezone="UTC") for name, schema in schemas.items()}
    except PySparkException:
        return None
