"""The late part of a small batch in a Python worker, by plans that are kept: with the early part, or after it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BooleanType, StructField, StructType

from trident.coordinators.transactions import TransactionAttempt
from trident.planning.basic_operations import OnePartitionOp
from trident.planning.kept import why_not_kept
from trident.planning.operation import MARKER, MARKER_FIELD
from trident.planning.session_frames import Batch, SessionFrames
from trident.running.boundaries import Staged, Staging
from trident.running.kept_plans import NONE, KeptPlans
from trident.spark.slots import RowsSlot, Slot
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import file_target, reports_by, reports_of
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.late_pass import LATE, LateAtOncePass, LateBatch, LatePass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan

# More bytes of rows than these are staged between the two parts, and not held by a worker.
_BYTES_MAX = 32 << 20


class OneJob:
    """The early part by Spark. The rows of the one boundary are not staged between: one worker is given them all.

    Args:
        late: of one boundary.
        for_none: whether it does something for a batch without rows.
    """

    def __init__(
        self, spark: "SparkSession", plan: "GroupPlan", late: LatePass, for_none: bool, staging: Staging
    ) -> None:
        self._plan, self._staging = plan, staging
        (self._boundary,) = late.boundaries
        # Spark may give a batch no partition (a filter that is always false): then no worker would run.
        fields = (*staging.boundaries[0].fields, MARKER_FIELD)
        self._there = OnePartitionOp(fields).transform(SessionFrames(spark)) if for_none else None
        # A state's own rows are staged by the worker that goes on with them.
        own = next((one for one in staging.early if one.name == self._boundary), None)
        state = None if own is None else (file_target(own, staging.codec), own.txid_column)
        self._pass = LateAtOncePass(late, _BYTES_MAX, MARKER if for_none else "", state)
        self._others = [one for one in staging.early if one is not own]
        targets = [*staging.early, *staging.late]
        self._plans = KeptPlans(spark, plan.name, targets, why_not_kept(plan), self._reports)

    def stage(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]] | None:
        """Stages all rows of a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            copies: as of the transaction before.
        """
        return self._plans.stage(slots, self._staging.incarnation, attempt, _sent(LateBatch(info, dict(copies))))

    @contextmanager
    def _reports(self, inputs: Mapping[str, "DataFrame"]) -> Iterator["DataFrame"]:
        with self._plan.build(inputs, NONE, BatchInfo(NONE)) as frames:
            # Also where streams or a hint have put rows into several: each task would go on from the same values.
            frame = frames[self._boundary]
            frame = frame.coalesce(1) if self._there is None else self._there(frame, Batch(BatchInfo(NONE)))
            late, others = reports_by(frame, self._pass), self._others
            yield reports_of(frames, others, self._staging.codec).union(late) if others else late


class WorkerPass:
    """The late part in one pass of a Python worker, from the files that the early part has staged."""

    def __init__(self, spark: "SparkSession", group: str, late: LatePass, staging: Staging) -> None:
        self._pass, self._staging = late, staging
        # One row for the one task; what it does is sent with the job.
        self._one = RowsSlot(spark, pa.table({"one": [True]}), StructType([StructField("one", BooleanType())]))
        self._plans = KeptPlans(spark, group, staging.late, None, self._reports)

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]] | None:
        """Stages the rows of late states; None: no plan is kept, and nothing has been done.

        Raises:
            TableError: a staged file is gone or not whole.
        """
        files = {one.name: one.paths(staged[one.name]) for one in self._staging.boundaries}
        batch = _sent(LateBatch(info, dict(copies), files))
        return self._plans.stage({"one": self._one}, self._staging.incarnation, attempt, batch)

    @contextmanager
    def _reports(self, inputs: Mapping[str, "DataFrame"]) -> Iterator["DataFrame"]:
        yield reports_by(inputs["one"], self._pass)


def _sent(batch: LateBatch) -> dict[str, str]:
    """The local property that sends a worker its batch."""
    return {LATE: base64.b64encode(pickle.dumps(batch)).decode("ascii")}
