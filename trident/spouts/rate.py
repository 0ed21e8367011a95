"""Sources that make their rows themselves: at a rate, or from a function of the batch's index (docs/semantics.md 3).

For load tests, examples and benchmarks. Both are transactional: the metadata of
a transaction says exactly which rows are in it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Union

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from trident.coordinators.errors import TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import Unreadable, as_record
from trident.spouts.contracts import (
    Backlog,
    Emitted,
    Emitter,
    Json,
    SpoutContext,
    SpoutKind,
    foreign_metadata,
    is_whole,
    read_metadata,
)
from trident.spouts.fed import BatchIndex, IndexCoordinator
from trident.spouts.ranged import AdaptiveBatchSize, RangedCoordinator
from trident.spouts.tasks import TaskRows, arrow_batches, generated
from trident.udf.types import as_schema

_RATE_MAX = 1_000_000_000  # above it the time of a row, in microseconds, cannot be computed in 64 bits
# Rows are made by native expressions, some 10 million a second and core.
_ROWS_PER_PARTITION = 1_000_000
_GENERATOR = "a GeneratorSpout"


class RateSpout:
    """Makes a fixed number of rows a second: ``timestamp timestamp, value bigint``, as Spark's rate source.

    ``value`` counts 0, 1, 2, …; ``timestamp`` is when the row was due. The clock
    begins when the topology first starts and goes on while it is stopped:
    what was due meanwhile is made up for, as with Spark's source.

    Transactional: the rows of a transaction, their times too, follow from its
    metadata. Another rate at a later start holds for the rows after those that
    were planned already.

    Args:
        rows_per_second: a whole number, 1 to 10^9.
        rows_per_batch: every batch has exactly this many, and waits for the last
            one to be due; None takes what is due, up to ``max_rows``.
        max_rows: of a batch when rows_per_batch is None.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(self, rows_per_second: int, rows_per_batch: int | None = None, max_rows: int = 1_000_000) -> None:
        if not is_whole(rows_per_second) or rows_per_second > _RATE_MAX:
            raise TopologyError(
                "rows_per_second cannot be used",
                found=repr(rows_per_second),
                expected=f"a whole number, 1 to {_RATE_MAX}",
            )
        if rows_per_batch is not None and not is_whole(rows_per_batch):
            raise TopologyError(
                "rows_per_batch cannot be used",
                found=repr(rows_per_batch),
                expected="a whole number from 1 on, or None",
            )
        if rows_per_batch is None:
            AdaptiveBatchSize(1, max_rows)  # raises when the bound is impossible
        self.rows_per_second, self.rows_per_batch, self.max_rows = rows_per_second, rows_per_batch, max_rows

    @property
    def output_schema(self) -> "StructType":
        return StructType([StructField("timestamp", TimestampType()), StructField("value", LongType())])

    def get_coordinator(self, context: SpoutContext) -> "RateCoordinator":
        return RateCoordinator(self, context.options.get("max_spout_pending") or 3)

    def get_emitter(self, context: SpoutContext) -> "RateEmitter":
        return RateEmitter(context.spark)


@dataclass(frozen=True)
class RateRange:
    """The rows begin ≤ value < end; value ``base`` is due at ``base_us`` and the rest follow at the rate."""

    begin: int
    end: int
    base: int
    base_us: int
    rate: int

    def due_us(self, value: int) -> int:
        """When a row is due, microseconds since the epoch."""
        return self.base_us + (value - self.base) * 1_000_000 // self.rate

    def due_by(self, us: int) -> int:
        """The first row that is not due at that time."""
        return max(self.end, self.base + ((us - self.base_us) * self.rate // 1_000_000) + 1)

    def to_json(self) -> dict[str, int]:
        return {
            "from": self.begin,
            "to": self.end,
            "rows": self.end - self.begin,
            "base": self.base,
            "base_us": self.base_us,
            "rate": self.rate,
        }

    def problem(self) -> str | None:
        return None if self.begin <= self.end and self.rate >= 1 else "it ends before it begins, or has no rate"

    @classmethod
    def read(cls, metadata: Json) -> "RateRange":
        stored = dict(metadata) if isinstance(metadata, dict) else {}
        stored.pop("rows", None)  # follows from the others
        begin, end = stored.pop("from", None), stored.pop("to", None)
        try:
            return as_record({**stored, "begin": begin, "end": end}, cls)
        except Unreadable as problem:
            expected = f"whole numbers for from, to, base, base_us and rate ({problem})"
            raise foreign_metadata(metadata, "a RateSpout", expected) from None


class RateCoordinator(RangedCoordinator[RateRange]):
    """Plans by the clock. Metadata: as :class:`RateRange`, with the number of rows."""

    def __init__(self, spout: RateSpout, in_flight: int, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000):
        super().__init__(AdaptiveBatchSize(1, spout.rows_per_batch or spout.max_rows, in_flight))
        self._spout, self._clock_us = spout, clock_us
        self._begins = RateRange(0, 0, 0, clock_us(), spout.rows_per_second)

    def read(self, metadata: Json) -> RateRange:
        return RateRange.read(metadata)

    def stored(self, planned: RateRange) -> Json:
        return planned.to_json()

    def start(self) -> RateRange:
        return self._begins

    def after(self, before: RateRange) -> RateRange:
        """An empty range where another ends, at the rate that holds now."""
        start = replace(before, begin=before.end)
        if before.rate == self._spout.rows_per_second:
            return start
        # The first row at the new rate keeps its time, and those after it follow from there.
        return replace(start, base=before.end, base_us=before.due_us(before.end), rate=self._spout.rows_per_second)

    def waits(self, empty: RateRange) -> bool:
        return self._rows_due(empty) > 0

    def cut(self, empty: RateRange, txid: int) -> RateRange:
        rows = self._rows_due(empty)
        if self._spout.rows_per_batch is None:
            rows = min(rows, self.next_size(rows))
        return replace(empty, end=empty.begin + rows)

    def _rows_due(self, empty: RateRange) -> int:
        """Rows of a batch that begins there and is planned now; 0: not yet."""
        due = empty.due_by(self._clock_us()) - empty.begin
        wanted = self._spout.rows_per_batch
        return due if wanted is None else wanted if due >= wanted else 0

    def size(self, planned: RateRange) -> int:
        return planned.end - planned.begin

    def shrunk(self, found: RateRange, size: int, txid: int) -> RateRange:
        return replace(found, end=min(found.end, found.begin + size))

    def backlog(self) -> Backlog:
        start = self.after(self._last() or self._begins)
        return Backlog(rows=start.due_by(self._clock_us()) - start.begin)


class RateEmitter(Emitter):
    """Makes the rows by native expressions."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._cores = max(1, spark.sparkContext.defaultParallelism)

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        rows = RateRange.read(metadata)
        partitions = max(1, min(self._cores, -(-(rows.end - rows.begin) // _ROWS_PER_PARTITION)))
        # Whole seconds apart from the rest: (value * 1,000,000) would overflow within days at a high rate.
        ahead, rate = f"(id - {rows.base}L)", f"{rows.rate}L"
        micros = f"{rows.base_us}L + {ahead} div {rate} * 1000000L + {ahead} % {rate} * 1000000L div {rate}"
        numbers = self._spark.range(rows.begin, rows.end, 1, partitions)
        return Emitted(
            numbers.selectExpr(f"timestamp_micros({micros}) AS timestamp", "id AS value"),
            partitions=partitions,
            rows=rows.end - rows.begin,
        )


class GeneratorSpout:
    """Rows that a function makes of the batch's index: 0, 1, 2, …, one batch a transaction.

    Transactional, provided that the function is pure: called again with the
    same index, in another process too, it must give the same rows.

    It is called in a Spark task, unless it cannot be pickled: then on the driver.
    A function that raises fails the batch.

    Args:
        schema: a StructType or DDL text such as "word string, n long".
        generate: index → rows: an iterable of tuples in the schema's order, or
            an Arrow table of exactly the schema's types.
        max_batches: how many batches there are; None = no end, so that
            ``process_all_available`` never returns.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(
        self, schema: Union[str, "StructType"], generate: Callable[[int], Any], max_batches: int | None = None
    ) -> None:
        self._schema = as_schema(schema, "GeneratorSpout")
        if not callable(generate):
            raise TopologyError(
                "a GeneratorSpout needs a function", found=repr(generate), expected="generate(index) -> rows"
            )
        if max_batches is not None and not is_whole(max_batches, least=0):
            raise TopologyError(
                "max_batches cannot be used", found=repr(max_batches), expected="a whole number, or None"
            )
        self.generate, self.max_batches = generate, max_batches

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def get_coordinator(self, context: SpoutContext) -> IndexCoordinator:
        return IndexCoordinator(_GENERATOR, self.max_batches)

    def get_emitter(self, context: SpoutContext) -> "GeneratorEmitter":
        return GeneratorEmitter(self, context)


class GeneratorEmitter(Emitter):
    """Calls the function, where it can be called."""

    def __init__(self, spout: GeneratorSpout, context: SpoutContext) -> None:
        self._spout, self._spark = spout, context.spark
        self._what = f"the generate function of stream {context.tx_id!r}"
        # A function need not be safe to call from several threads.
        self._lock = threading.Lock()
        try:
            cloudpickle.dumps(spout.generate)
            self._picklable = True
        except Exception:  # pickling runs the objects' own code: anything can come
            self._picklable = False

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        found, schema = read_metadata(metadata, BatchIndex, _GENERATOR), self._spout.output_schema
        if found.empty:
            return Emitted([], partitions=1)
        index = found.batch
        if self._picklable:
            task = functools.partial(generated, self._spout.generate, index, schema, self._what)
            rows = TaskRows(self._spark, 1)
            frame = self._spark.range(0, 1, 1, 1).mapInArrow(rows.counted(task), schema)
            return Emitted(frame, partitions=1, rows=rows)

        with self._lock:
            batches = list(arrow_batches(lambda: self._spout.generate(index), schema, self._what))
        return Emitted(pa.Table.from_batches(batches) if batches else [], partitions=1)
