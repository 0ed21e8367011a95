"""The late part of a small batch in one Python worker: reads its staged rows, runs a plan over Arrow, stages rows."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from trident.states.core import storage
from trident.states.delta.parquet_files import FileTarget, of_attempt, report_batches, write_partition
from trident.workers.arrow_plan import ArrowPlan

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf


@dataclass(frozen=True)
class LateBatch:
    """One batch's late part, as the driver sends it: as the one row of the pass, pickled.

    Attributes:
        attempt: the value of the local property ATTEMPT.
        info: a BatchInfo.
        copies: the local copies of the states that are looked up.
        files: boundary → the paths of its staged files, in the order of the batch.
    """

    attempt: str
    info: Any
    copies: Mapping[str, "CopyAsOf"]
    files: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class LatePass:
    """The function for mapInArrow: batches as rows in, reports on staged files out. It is the same for each batch.

    Attributes:
        boundaries: name → the schema of its rows.
        targets: where rows are staged, each with its txid column.
    """

    plan: ArrowPlan
    boundaries: Mapping[str, pa.Schema]
    targets: Sequence[tuple[FileTarget, str | None]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for sent in batch.column(0).to_pylist():
                yield from report_batches(self._reports(pickle.loads(sent)))

    def _reports(self, batch: LateBatch) -> Iterator[dict[str, Any]]:
        inputs = {name: rows_of(batch.files[name], schema) for name, schema in self.boundaries.items()}
        tables = self.plan.run(inputs, batch.info, batch.copies)
        for target, txid_column in self.targets:
            yield from write_partition(of_attempt(target, txid_column, batch.attempt), tables[target.name].to_batches())


def rows_of(files: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """The rows of staged files, in the order of the batch."""
    read = [pq.ParquetFile(io.BytesIO(storage.read(path))).read(schema.names, use_threads=False) for path in files]
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in read] or [schema.empty_table()])
