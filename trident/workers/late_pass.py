"""The late part of a small batch in one Python worker: takes its rows, runs a plan over Arrow, stages rows."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from trident.coordinators.errors import TridentError
from trident.states.core import storage
from trident.states.core.shards import WHOLE, SentCopy, Shard
from trident.states.delta.parquet_files import FileTarget, attempt_of_job, of_attempt, report_batches, write_partition
from trident.workers.arrow_plan import ArrowPlan
from trident.workers.failures import LARGE, left_to_spark, marked
from trident.workers.look_up import copy_here

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf

# The local property of a job that runs early and late part at once: a LateBatch, pickled, in base 64.
LATE = "trident.late"
_ROWS_AT_ONCE = 1 << 17


class TooLarge(TridentError):
    """The rows between the two parts of a batch are too many for one worker. The text has a report for the driver."""


@dataclass(frozen=True)
class LateBatch:
    """One batch's late part, as the driver sends it with the job: pickled, in base 64, as the local property LATE.

    Attributes:
        info: a BatchInfo.
        copies: the copies of the states that are looked up: the coordinator's, or those that each host has.
        files: boundary → the paths of its staged files, in the order of the batch; none: its rows come in.
    """

    info: Any
    copies: Mapping[str, "CopyAsOf | SentCopy"]
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def copies_here(self, shard: Shard = WHOLE) -> dict[str, "CopyAsOf"]:
        """The copies on this host, at their marks: the coordinator's, or those of a shard."""
        return {
            state: copy_here(state, replace(copy, shard=shard) if isinstance(copy, SentCopy) else copy)
            for state, copy in self.copies.items()
        }


@dataclass(frozen=True)
class LatePass:
    """The function for mapInArrow: the number of a shard in, reports on files out. It is the same for each batch.

    Attributes:
        boundaries: name → the schema of its rows.
        targets: where rows are staged, each with its txid column.
        keys: boundary → the fields by whose values its rows are cut into shards; None: an operation cuts them; None for
            all: there is one shard.
        shards: how many there are; each task has the rows of one.
    """

    plan: ArrowPlan
    boundaries: Mapping[str, pa.Schema]
    targets: Sequence[tuple[FileTarget, str | None]]
    keys: Mapping[str, tuple[str, ...] | None] | None = None
    shards: int = 1

    def staged(
        self, inputs: Mapping[str, pa.Table], info: Any, copies: Mapping[str, "CopyAsOf"], shard: Shard = WHOLE
    ) -> Iterator[dict[str, Any]]:
        """The reports on the files of one batch."""
        tables, attempt = self._run(inputs, info, copies, shard), attempt_of_job()
        for target, txid_column in self.targets:
            yield from write_partition(of_attempt(target, txid_column, attempt), tables[target.name].to_batches())

    def _run(
        self, inputs: Mapping[str, pa.Table], info: Any, copies: Mapping[str, "CopyAsOf"], shard: Shard
    ) -> dict[str, pa.Table]:
        try:
            return self.plan.run(inputs, info, copies, shard)
        except TridentError:
            raise
        except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
            if self.plan.is_own:  # no code of the user's has run: Spark, on the tables, has the last word
                raise left_to_spark(error) from error
            raise

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from report_batches(self._reports(_batch_of_job(), Shard(number, self.shards)))

    def _reports(self, batch: LateBatch, shard: Shard) -> Iterator[dict[str, Any]]:
        copies = batch.copies_here(shard)  # before all else: a host without copies may lack what shards need, too
        inputs = {
            name: rows_of(batch.files[name], schema, self._in_shard(name, schema, shard))
            for name, schema in self.boundaries.items()
        }
        yield from self.staged(inputs, batch.info, copies, shard)

    def _in_shard(self, boundary: str, schema: pa.Schema, shard: Shard) -> Callable[[pa.Table], pa.Table] | None:
        """Keeps the rows of a shard; None: all rows of the boundary are taken."""
        if shard.count == 1 or self.keys is None or (keys := self.keys[boundary]) is None:
            return None
        if not keys:
            return None if shard.number == 0 else lambda rows: rows.slice(0, 0)
        return lambda rows: rows.filter(shard.of_rows(rows, schema, keys))


@dataclass(frozen=True)
class FusedLatePass:
    """The function for mapInArrow where the early part's rows are not staged, but come in as they are made.

    Attributes:
        late: of one boundary.
        bytes_max: more bytes of rows are not held by a worker, but staged between the two parts.
        marker: the field that is 1 in a row that is none: the late part does something for a batch without rows, and
            so that there is a Spark partition; "": it does not.
        state: where the rows are staged too, being a state's own, with its txid column; None: they are no state's.
    """

    late: LatePass
    bytes_max: int
    marker: str = ""
    state: tuple[FileTarget, str | None] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from report_batches(self._reports(batches))

    def _reports(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        batch = _batch_of_job()
        ((name, schema),) = self.late.boundaries.items()
        held, size = [schema.empty_table()], 0
        for one in batches:
            table = pa.Table.from_batches([one])
            held.append(_as(table.filter(pc.equal(table[self.marker], 0)) if self.marker else table, schema))
            size += held[-1].nbytes
            if size > self.bytes_max:
                raise TooLarge(f"more than {self.bytes_max >> 20} MB of rows {marked({'kind': LARGE})}")
        rows = pa.concat_tables(held)
        if self.state is not None:
            target, txid_column = self.state
            yield from write_partition(of_attempt(target, txid_column, attempt_of_job()), rows.to_batches())
        if rows.num_rows or self.marker:
            yield from self.late.staged({name: rows.combine_chunks()}, batch.info, batch.copies_here())


def _batch_of_job() -> LateBatch:
    task: Any = TaskContext.get()
    batch: LateBatch = pickle.loads(base64.b64decode(task.getLocalProperty(LATE)))
    return batch


def rows_of(files: Iterable[Any], schema: pa.Schema, kept: Callable[[pa.Table], pa.Table] | None = None) -> pa.Table:
    """The rows of staged files, in the order of the batch.

    Args:
        kept: chooses some rows of each piece; None: all are given.
    """
    found = [schema.empty_table()]
    for path in files:
        file = pq.ParquetFile(io.BytesIO(storage.read(path)))
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=schema.names, use_threads=False):
            rows = _as(pa.Table.from_batches([batch]), schema)
            found.append(rows if kept is None else kept(rows))
    return pa.concat_tables(found).combine_chunks()


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema)
