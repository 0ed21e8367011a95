"""The late part of a small batch in the coordinator's process, over Arrow: no Spark job, and no code of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.coordinators.transactions import TransactionAttempt
from trident.planning.operation import Fields
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.staged import StagedFile
from trident.states.delta.staging import StagingTarget, stage_tables
from trident.states.delta.whole_files import require_whole
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import OwnPlan
from trident.workers.late_pass import rows_of

# More rows than this are worth a Spark job, whose Python runs beside the coordinator's threads (docs/decisions/0031).
ROWS_MAX = 10_000


@dataclass(frozen=True)
class LateInDriver:
    """How a group's late part runs here.

    Attributes:
        plan: with the boundaries' names for the rows that it begins with.
        boundaries: name → (the folder that its files' paths are relative to, its fields).
        targets: the states that it stages rows for.
    """

    plan: OwnPlan
    boundaries: Mapping[str, tuple[Path, Fields]]
    targets: Sequence[StagingTarget]
    incarnation: str
    codec: str

    def takes(self, staged: Mapping[str, Sequence[StagedFile]]) -> bool:
        """Tells whether the rows of a batch's boundaries are few enough."""
        return sum(file.num_records for name in self.boundaries for file in staged[name]) <= ROWS_MAX

    def stage(
        self,
        attempt: TransactionAttempt,
        staged: Mapping[str, Sequence[StagedFile]],
        info: BatchInfo,
        copies: Mapping[str, CopyAsOf],
    ) -> dict[str, list[StagedFile]]:
        """Stages the rows of late states, from those that were staged for the boundaries.

        Raises:
            StaleCopy: a copy is not that of its mark.
            LeftToSpark: only Spark knows what becomes of a value.
            TableError: a staged file is gone or not whole.
        """
        inputs = {name: _rows(root, staged[name], fields) for name, (root, fields) in self.boundaries.items()}
        tables = self.plan.run(inputs, info, copies)
        return stage_tables(tables, self.targets, self.incarnation, attempt, self.codec)


def _rows(root: Path, files: Sequence[StagedFile], fields: Fields) -> pa.Table:
    """The rows of staged files, in the order of the batch."""
    require_whole("a batch between its two halves", str(root), files, "the batch is tried again; check the disk")
    schema = to_arrow_schema(StructType(list(fields)), timezone="UTC")
    return rows_of([root / file.path for file in files], schema)
