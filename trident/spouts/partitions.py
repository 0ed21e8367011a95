"""Emits partitions of a source on executors, in one Spark job (docs/semantics.md 9.2).

The rows go from the tasks into files and from there into the batch's Spark
jobs; the driver sees metadata, paths and counts only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.errors import BatchError, BatchTimeout, SourceError
from trident.coordinators.transactions import TransactionAttempt
from trident.spark.jobs import JobWatch, cancel_group
from trident.spark.rows import parquet_reader
from trident.spark.slots import FilesSlot
from trident.spouts.contracts import Emitted, Json, SpoutContext
from trident.spouts.partition_tasks import EMISSION_SCHEMA, PartitionTask, Request
from trident.states.core import pools, storage
from trident.states.core.place import Place
from trident.states.delta.parquet_files import FileTarget
from trident.states.delta.staging import attempt_folder, drop_attempts_up_to
from trident.states.delta.whole_files import require_whole
from trident.udf.schemas import spout_schema
from trident.udf.signatures import translate_failure

EMIT = faults.register("spout.emit", "the Spark job in which the partitions of a spout are emitted")
# Files of up to this many bytes are worth one Spark partition: several small batches fill the cores.
_SMALL_BYTES = 8 << 20


class EmittedFile(NamedTuple):
    """A file that a task has reported."""

    path: str
    size: int


@dataclass(frozen=True)
class Emission:
    """The rows that an attempt has emitted and not yet processed.

    Attributes:
        metadata: partition → its new metadata, in the order of the partitions.
        parts: the Parquet files relative to the stream's folder, with their sizes, in the same order.
        folder: that holds them, relative to the stream's folder.
    """

    metadata: Mapping[str, Json]
    rows: int = 0
    folder: str = ""
    parts: Sequence[EmittedFile] = ()


@dataclass
class PartitionEmission:
    """Runs the emission jobs of one stream.

    Args:
        spout: a partitioned spout; pickled to the executors.
    """

    spout: Any
    context: SpoutContext
    _jobs: dict[TransactionAttempt, str] = field(default_factory=dict)
    _closed: bool = False

    @property
    def _root(self) -> Place:
        return Place(self.context.state_folder) / "emitted"

    def run(
        self,
        attempt: TransactionAttempt,
        requests: Sequence[Request],
        timeout_secs: float | None = None,
        in_job: bool = False,
    ) -> Emission:
        """One job over all requests; blocks.

        Args:
            timeout_secs: bounds the job from its first task on; None = unbounded.
            in_job: this thread's job group is the attempt's already, watched and cancelled as that.

        Raises:
            BatchTimeout: it took longer than timeout_secs.
            Exception: what the user's emitter raised, translated.
        """
        if not requests:
            return Emission({})
        spark, schema = self.context.spark, spout_schema(self.spout)
        folder = attempt_folder(self.context.incarnation, attempt)
        target = FileTarget(self.context.tx_id, str(self._root), folder)
        there = replace(self.context, spark=None)
        task = PartitionTask(self.spout, there, schema, attempt, tuple(requests), target)
        slices = min(len(requests), 4 * spark.sparkContext.defaultParallelism)
        frame = spark.range(0, len(requests), 1, slices).mapInArrow(task, EMISSION_SCHEMA)
        reports = frame.collect() if in_job else self._collect(attempt, frame, timeout_secs)
        if len({report.partition for report in reports}) != len(requests):
            raise AssertionError(f"{len(requests)} partitions were asked and {len(reports)} reports came")
        found = {report.partition: json.loads(report.metadata) for report in reports}
        order = {request.partition: number for number, request in enumerate(requests)}
        files = sorted((r for r in reports if r.path is not None), key=lambda r: (order[r.partition], r.path))
        return Emission(
            {request.partition: found[request.partition] for request in requests},
            sum(report.num_records for report in files),
            folder,
            tuple(EmittedFile(report.path, report.size) for report in files),
        )

    def _collect(self, attempt: TransactionAttempt, frame: "DataFrame", timeout_secs: float | None) -> list[Any]:
        context = self.context.spark.sparkContext
        job_group = f"trident-emit-{self.context.topology}-{self.context.tx_id}-{attempt}-{uuid.uuid4().hex[:6]}"
        watch = JobWatch(context, job_group, timeout_secs)
        self._jobs[attempt] = job_group
        if self._closed:
            raise SourceError(f"stream {self.context.tx_id} was closed before attempt {attempt} was emitted")
        try:
            context.setJobGroup(job_group, f"{self.context.topology} {self.context.tx_id} emits {attempt}")
            context.setLocalProperty("spark.scheduler.pool", pools.of_batch(attempt.txid))
            with watch, faults.fault_point(EMIT):
                return frame.collect()
        except Exception as error:
            if watch.timed_out:
                raise BatchTimeout(
                    f"emitting attempt {attempt} of stream {self.context.tx_id} took too long",
                    found=f"more than {timeout_secs:g} s since its first Spark task",
                    expected=f"at most {timeout_secs:g} s",
                    action="raise message_timeout_secs, or give fewer rows a batch; the next attempt has twice as long",
                ) from error
            translated = translate_failure(error, attempt)
            if isinstance(translated, BatchError):
                translated.fingerprint = None  # a spout asks something outside, which may answer another time
            if translated is error:
                raise
            raise translated from translated.__cause__
        finally:
            self._jobs.pop(attempt, None)

    def cancel(self, attempt: TransactionAttempt) -> None:
        job_group = self._jobs.get(attempt)
        if job_group is not None:
            cancel_group(self.context.spark.sparkContext, job_group)

    def cancel_all(self) -> None:
        """Ends what runs; nothing more is begun."""
        self._closed = True
        for attempt in list(self._jobs):
            self.cancel(attempt)

    def emitted(self, emission: Emission) -> Emitted:
        """The rows as a batch."""
        spark, schema = self.context.spark, spout_schema(self.spout)
        if not emission.parts:
            return Emitted([], partitions=1)
        what = f"an emitted batch of stream {self.context.tx_id}"
        require_whole(what, str(self._root), emission.parts, "the batch is emitted again; check the disk")
        read = partial(_read, spark, schema)
        files = [(str(self._root / part.path), part.size, 0) for part in emission.parts]
        slot = FilesSlot(("emitted", self.context.tx_id, schema.json()), files, read, _as_they_are)
        if sum(part.size for part in emission.parts) <= _SMALL_BYTES:
            return Emitted(slot, partitions=1, rows=emission.rows)
        return Emitted(slot.frame(), rows=emission.rows)

    def drop(self, emission: Emission) -> None:
        """The files are no longer needed."""
        if emission.folder:
            storage.try_delete(self._root / emission.folder)

    def drop_up_to(self, txid: int) -> None:
        """Deletes the files that attempts up to a txid, of any process, have left."""
        drop_attempts_up_to(self._root / "data" / self.context.incarnation, txid)


def _read(spark: Any, schema: "StructType", paths: Sequence[str]) -> "DataFrame":
    return parquet_reader(spark, schema).parquet(*paths)


def _as_they_are(rows: "DataFrame") -> "DataFrame":
    return rows
