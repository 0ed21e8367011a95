"""The late part of a small batch in the coordinator's process, over Arrow: no Spark job, and no code of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trident.coordinators.transactions import TransactionAttempt
from trident.running.boundaries import Staged, StagedBoundary
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, stage_tables
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import OwnPlan

# More rows than this are worth a Spark job, whose Python runs beside the coordinator's threads (docs/decisions/0031).
ROWS_MAX = 10_000


@dataclass(frozen=True)
class LateInDriver:
    """How a group's late part runs here.

    Attributes:
        plan: with the boundaries' names for the rows that it begins with.
        targets: the states that it stages rows for.
    """

    plan: OwnPlan
    boundaries: Sequence[StagedBoundary]
    targets: Sequence[StagingTarget]
    incarnation: str
    codec: str

    def takes(self, staged: Staged) -> bool:
        """Tells whether the rows of a batch's boundaries are few enough."""
        return sum(file.num_records for one in self.boundaries for file in staged[one.name]) <= ROWS_MAX

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Mapping[str, CopyAsOf]
    ) -> dict[str, list[StagedFile]]:
        """Stages the rows of late states, from those that were staged for the boundaries.

        Raises:
            StaleCopy: a copy is not that of its mark.
            LeftToSpark: only Spark knows what becomes of a value.
            TableError: a staged file is gone or not whole.
        """
        inputs = {one.name: one.rows(staged[one.name]) for one in self.boundaries}
        tables = self.plan.run(inputs, info, copies)
        return stage_tables(tables, self.targets, self.incarnation, attempt, self.codec)
