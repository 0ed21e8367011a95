"""Early and late part of a small batch as one Spark job, by a kept plan: for the transaction that commits next."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trident.coordinators.transactions import TransactionAttempt
from trident.planning.basic_operations import OnePartitionOp
from trident.planning.operation import MARKER, MARKER_FIELD
from trident.planning.session_frames import Batch, SessionFrames
from trident.running.boundaries import StagedBoundary
from trident.running.kept_plans import NONE, KeptPlans
from trident.spark.slots import Slot
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, file_target, reports_by, reports_of
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
