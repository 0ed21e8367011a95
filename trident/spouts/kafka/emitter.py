"""Turns ranges of offsets into rows: read in the driver where they are few, and by Spark's tasks."""

from __future__ import annotations

import functools
import logging
import pickle
import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from trident.coordinators.errors import BrokersAway, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.retries import backoff_secs
from trident.spark.rows import ROWS_BYTES_MAX, RowsSlot, TaskSlot
from trident.spouts.contracts import Emitted, Emitter, Json
from trident.spouts.files.tasks import reported
from trident.spouts.kafka.cluster import KafkaCluster
from trident.spouts.kafka.coordinator import topic_is_another
from trident.spouts.kafka.ranges import Batch, OffsetRange, groups, pieces
from trident.spouts.kafka.reader import Consumers, Reading, Stopped, read_groups
from trident.spouts.kafka.rows import LETTER
from trident.spouts.tasks import TaskRows, counted_by_row
from trident.workers.failures import SOURCE, find_report

log = logging.getLogger(__name__)

# One Spark partition per so many messages: a batch below that runs fastest in one.
PARTITION_ROWS = 100_000
# So many messages the driver reads itself: a job that reads them takes longer than they do.
_HERE_ROWS = 5_000
_WAIT_SECS_MAX = 5.0
_SENT = StructType([StructField("ranges", BinaryType()), StructField("emission", StringType())])


class KafkaEmitter(Emitter):
    """Reads the ranges of a batch. Safe for threads.

    Args:
        schemas: of the rows, and of the messages that cannot be decoded.
        forget: ids of topics whose ranges are left out.
        here: whether the driver may read few messages itself.
    """

    def __init__(
        self,
        spark: Any,
        cluster: KafkaCluster,
        reading: Reading,
        schemas: tuple[StructType, StructType],
        forget: tuple[str, ...],
        here: bool,
    ) -> None:
        self._spark, self._cluster, self._reading, self._forget, self._here = spark, cluster, reading, forget, here
        self._schema, self._letter_schema = schemas
        self._kept: dict[TransactionAttempt, Any] = {}  # frames of which both rows and letters are made
        self._cores = max(1, spark.sparkContext.defaultParallelism)
        self._consumers = Consumers()
        self._changed = threading.Condition()
        self._emitted: dict[TransactionAttempt, Batch] = {}
        self._cancelled: set[TransactionAttempt] = set()
        self._closed = False
        self._message_bytes = 0.0  # of those read last

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The messages of a batch; waits while the brokers that have them are away.

        Raises:
            SourceError: they cannot be read as they were planned.
        """
        batch = Batch.read(metadata).without(self._forget)
        with self._changed:
            self._emitted[attempt] = batch
        ranges = batch.ranges
        if not ranges:
            return Emitted([], partitions=1)
        self._check(self._when_answered(attempt, ranges, led=True), batch)
        rows = sum(one.end - one.begin for one in ranges)
        if self._here and rows <= _HERE_ROWS and rows * self._message_bytes <= ROWS_BYTES_MAX:
            emitted = self._read_here(attempt, ranges)
            if emitted is not None:
                return emitted
        partitions = max(1, min(-(-rows // PARTITION_ROWS), 2 * self._cores))
        grouped = groups(pieces(ranges, PARTITION_ROWS), partitions)
        if len(grouped) == 1 and not self._reading.letters and not self._reading.lossy:
            return self._slot(grouped[0])
        task = functools.partial(read_groups, self._reading, grouped)
        tasks = self._spark.range(0, len(grouped), 1, len(grouped))
        counted = TaskRows(self._spark, len(grouped))
        if not self._reading.letters:
            frame = tasks.mapInArrow(counted.counted(task), self._schema)
            return Emitted(frame, partitions=len(grouped), rows=counted)
        # Kept, so that both are of one read.
        schema = StructType([*self._schema.fields, StructField(LETTER, self._letter_schema)])
        frame = tasks.mapInArrow(counted.counted(task, _without_letters), schema).persist()
        with self._changed:
            self._kept[attempt] = frame
        letters = frame.where(f"{LETTER} IS NOT NULL").select(f"{LETTER}.*")
        good = frame.where(f"{LETTER} IS NULL").drop(LETTER)
        return Emitted(good, partitions=len(grouped), table_rows=letters, rows=counted)

    def _slot(self, ranges: list[OffsetRange]) -> Emitted:
        """A batch that one task reads, once or again: by a plan that is kept, to which a row names its ranges."""
        rows = TaskRows(self._spark, 1)
        table = pa.table({"ranges": pa.array([pickle.dumps(ranges)], pa.binary()), "emission": [rows.emission]})
        sent = RowsSlot(self._spark, table, _SENT)
        slot = TaskSlot(sent, self, self._sent, lambda: self._sent(sent.frame().coalesce(1)))
        return Emitted(slot, partitions=1, rows=rows)

    def _sent(self, sent: Any) -> Any:
        task = functools.partial(read_groups, self._reading, None)
        return sent.mapInArrow(counted_by_row(self._spark, task, len), self._schema)

    def _apart(self, table: pa.Table) -> Emitted:
        """Rows, and the messages that cannot be decoded, of what the driver has read."""
        if not self._reading.letters:
            return Emitted(table, partitions=1)
        bad = pc.is_valid(table.column(LETTER))
        letters = pa.Table.from_struct_array(table.filter(bad).column(LETTER))
        return Emitted(table.filter(pc.invert(bad)).drop_columns([LETTER]), partitions=1, table_rows=letters)

    def _read_here(self, attempt: TransactionAttempt, ranges: list[OffsetRange]) -> Emitted | None:
        """The messages of some ranges; None: they are many bytes, and so the tasks' work."""
        batches: list[pa.RecordBatch] = []
        try:
            for batch in self._consumers.read(self._reading, ranges, lambda: self._is_unwanted(attempt)):
                batches.append(batch)
                size = sum(one.nbytes for one in batches)
                self._message_bytes = size / max(1, sum(one.num_rows for one in batches))
                if size > ROWS_BYTES_MAX:
                    return None
        except Stopped:
            raise SourceError(f"{self._reading.what}: attempt {attempt} is wanted no more") from None
        except Exception as error:
            report = find_report(error, SOURCE)
            if report is None:
                raise
            raise reported(report) from None
        # None at all are those of a range that was compacted away.
        return self._apart(pa.Table.from_batches(batches)) if batches else Emitted([], partitions=1)

    def _is_unwanted(self, attempt: TransactionAttempt) -> bool:
        with self._changed:
            return self._closed or attempt in self._cancelled

    # --- topics that are other ones -------------------------------------------------------------

    def prepare(self, attempt: TransactionAttempt) -> None:
        """Looks again, once the rows are staged, whether they were those of the topics that were to be read.

        It waits while no broker answers. An id never comes again, so a topic that has it now had it all the time.

        Raises:
            TopicGone: a topic was deleted since the batch was planned.
        """
        with self._changed:
            batch = self._emitted.get(attempt)
        if batch is not None and batch.ranges:
            self._check(self._when_answered(attempt, batch.ranges, led=False), batch)

    def _check(self, found: dict[str, str], batch: Batch) -> None:
        used = {one.topic for one in batch.ranges}
        for known in batch.topics:
            if known.topic in used and found.get(known.topic) != known.id:
                raise topic_is_another(self._reading.what, known, found.get(known.topic))

    def _when_answered(self, attempt: TransactionAttempt, ranges: list[OffsetRange], led: bool) -> dict[str, str]:
        """Topic → its id, as soon as a broker answers and, with ``led``, all partitions have leaders.

        An attempt without them would fail.
        """
        failures = 0
        while True:
            try:
                found = self._cluster.ids({one.topic for one in ranges}, [one.at for one in ranges] if led else [])
                if failures:
                    log.info("%s: the brokers are back", self._reading.what)
                return found
            except BrokersAway as error:
                failures += 1
                if failures == 1:
                    log.warning("attempt %s waits for its brokers: %s", attempt, error)
            pause = backoff_secs(failures, 0.2, _WAIT_SECS_MAX)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed or attempt in self._cancelled, pause):
                    raise SourceError(f"{self._reading.what}: attempt {attempt} is wanted no more")

    # --- its end --------------------------------------------------------------------------------

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The attempt is given up: it waits and reads no more."""
        with self._changed:
            self._cancelled.add(attempt)
            self._emitted.pop(attempt, None)
            self._changed.notify_all()
            kept = [self._kept.pop(attempt)] if attempt in self._kept else []
        _unpersist(kept)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._changed:
            for known in [one for one in self._emitted if one.txid <= attempt.txid]:
                del self._emitted[known]
            self._cancelled = {one for one in self._cancelled if one.txid > attempt.txid}
            kept = [self._kept.pop(one) for one in list(self._kept) if one.txid <= attempt.txid]
        _unpersist(kept)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            kept = [self._kept.pop(one) for one in list(self._kept)]
        self._consumers.close()
        self._cluster.close()
        _unpersist(kept)


def _without_letters(batch: pa.RecordBatch) -> int:
    return int(batch.column(LETTER).null_count)


def _unpersist(frames: list[Any]) -> None:
    for frame in frames:
        try:
            frame.unpersist()
        except Exception as error:  # py4j's: the session may have ended, and they with it
            log.debug("a frame cannot be let go: %s", error)
