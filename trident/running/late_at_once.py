"""Early and late part of a small batch as one Spark job, by a kept plan: for the transaction that commits next."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trident.coordinators.transactions import TransactionAttempt
from trident.running.kept_plans import KeptPlans
from trident.spark.slots import Slot
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, reports_by, reports_of
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.late_pass import LATE, LateAtOncePass, LateBatch, LatePass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

# More bytes of rows than these are staged between the two parts, and not held by a worker.
_BYTES_MAX = 32 << 20


class LateAtOnce:
    """The rows of the one boundary are not staged: one worker is given them all, and goes on with the late part.

    Args:
        late: of one boundary, which has a folder of its own: no state's rows are staged there.
        for_none: whether the late part does something for a batch without rows.
        early: the states of which the early part stages rows.
        targets: those of which the late part does.
    """

    def __init__(
        self,
        spark: "SparkSession",
        plan: "GroupPlan",
        late: LatePass,
        for_none: bool,
        early: Sequence[StagingTarget],
        targets: Sequence[StagingTarget],
        incarnation: str,
        codec: str,
    ) -> None:
        (self._boundary,) = late.boundaries
        self._pass, self._early = LateAtOncePass(late, for_none, _BYTES_MAX), early
        self._incarnation, self._codec = incarnation, codec
        self._plans = KeptPlans(spark, plan, [*early, *targets], codec, True, self._reports)

    def stage(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]] | None:
        """Stages all rows of a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            copies: as of the transaction before.
        """
        batch = base64.b64encode(pickle.dumps(LateBatch(info, dict(copies)))).decode("ascii")
        return self._plans.stage(slots, self._incarnation, attempt, {LATE: batch})

    def _reports(self, frames: Mapping[str, "DataFrame"]) -> "DataFrame":
        # Also where streams or a hint have put rows into several: each task would go on from the same values.
        late = reports_by(frames[self._boundary].coalesce(1), self._pass)
        return reports_of(frames, self._early, self._codec).union(late) if self._early else late
