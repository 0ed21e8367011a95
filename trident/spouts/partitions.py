"""Partitioned spouts: one Spark job emits all partitions when an attempt begins (docs/semantics.md 9.2).

The rows go from the tasks into files and from there into the batch's Spark
jobs; the driver sees metadata, paths and counts only.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.errors import BatchError, BatchTimeout, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.spark.jobs import JobWatch, cancel_group
from trident.spark.rows import FilesSlot, parquet_reader
from trident.spouts.contracts import Emitted, Json, SpoutContext
from trident.spouts.executors import BeginContext, TridentSpoutCoordinator
from trident.spouts.tasks import AGAIN, EMISSION_SCHEMA, NEW, OPAQUE, PartitionTask, Request
from trident.states.core import spark_jobs, storage
from trident.states.core.place import Place
from trident.states.delta.data_files import require_whole
from trident.states.delta.parquet_files import FileTarget
from trident.states.delta.staging import attempt_folder, drop_attempts_up_to
from trident.udf.signatures import translate_failure
from trident.udf.types import spout_schema

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
            raise AssertionError(f"{len(requests)} partitions were requested and {len(reports)} reports came")
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
            context.setLocalProperty("spark.scheduler.pool", spark_jobs.of_batch(attempt.txid))
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
        slot = FilesSlot(("emitted", self.context.tx_id, schema.json()), files, read, _unchanged)
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


def _unchanged(rows: "DataFrame") -> "DataFrame":
    return rows


# The executors of partitioned spouts: their batches are emitted on executors when an attempt begins.


_METADATA_BYTES_MAX = 512 * 1024

_NAME_BYTES_MAX = 1024


class _InPartitions(TridentSpoutCoordinator):
    """The common part of the two executors of partitioned spouts: emission ahead of processing.

    The metadata of a batch comes out of the job that emits it, so it is emitted
    when the attempt begins; its rows wait in files until it is processed.
    """

    mode: str  # of the emission of a new batch

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._emission = PartitionEmission(spout, context)
        self._held: dict[TransactionAttempt, Emission] = {}
        self._partitions: tuple[str, ...] | None = None
        self._lock = threading.Lock()

    def _emit(self, context: BeginContext, last: Mapping[str, Json]) -> dict[str, Json]:
        """The metadata of a batch that is emitted now, each partition from its last metadata on.

        It is {"partitions": {id: metadata} of the batch, "absent": {id: metadata} of partitions that were there
        earlier, "rows": their number}.
        """
        partitions = self._ordered_partitions()
        requests = [Request(partition, self.mode, last.get(partition)) for partition in partitions]
        emission = self._emission.run(context.attempt, requests, context.timeout_secs)
        absent = {partition: value for partition, value in last.items() if partition not in partitions}
        with self._lock:
            self._held[context.attempt] = emission
        return {"partitions": dict(emission.metadata), "absent": absent, "rows": emission.rows}

    def _ordered_partitions(self) -> tuple[str, ...]:
        partitions = tuple(self._coordinator.get_partitions_for_batch())
        if not all(map(_usable, partitions)) or len(set(partitions)) != len(partitions):
            raise SourceError(
                f"the partitions of stream {self._tx_id!r} cannot be used",
                found=repr(partitions)[:200],
                expected=f"distinct texts of at most {_NAME_BYTES_MAX} bytes, not empty and not only dots",
            )
        if partitions != self._partitions:
            if self._partitions is not None:
                self._coordinator.refresh_partitions(partitions)
            self._partitions = partitions
        return partitions

    def _take(self, attempt: TransactionAttempt) -> Emission | None:
        with self._lock:
            return self._held.pop(attempt, None)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            self._held = {held: emission for held, emission in self._held.items() if held.txid > attempt.txid}
        self._coordinator.success(attempt.txid)
        self._emission.drop_up_to(attempt.txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._emission.cancel(attempt)
        held = self._take(attempt)
        if held is not None:
            self._emission.drop(held)

    def cancel_all(self) -> None:
        self._emission.cancel_all()

    def close(self) -> None:
        self._coordinator.close()


def _usable(partition: object) -> bool:
    """Tells whether it can be written as a znode's name: that is only tried when the transaction is decided already."""
    try:
        return isinstance(partition, str) and partition.strip(".") != "" and len(partition.encode()) <= _NAME_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


class PartitionedTridentSpoutExecutor(_InPartitions):
    """A transactional source in partitions: metadata once per txid, the same rows for it again."""

    pins, mode = True, NEW

    def initialize(self, context: BeginContext) -> Json:
        if context.current is not None:
            return context.current
        return self._emit(context, _all_of(context.previous, self._tx_id))

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        held = self._take(attempt)
        of_batch = _parts_of(metadata, self._tx_id)
        if held is not None and held.metadata == of_batch:
            return self._emission.emitted(held)
        # A replay, or another coordinator's pin came first: exactly the rows of what is pinned.
        requests = [Request(partition, AGAIN, value) for partition, value in of_batch.items()]
        return self._emission.emitted(self._emission.run(attempt, requests, in_job=True))


class OpaquePartitionedTridentSpoutExecutor(_InPartitions):
    """An opaque source in partitions: each attempt emits anew; the metadata that counts is kept when it commits.

    Metadata as for a transactional one, but of one attempt. An attempt goes on
    from its parent's, in flight or committed; so when a transaction fails, those
    after it, which build on it, are emitted again too.
    """

    pins, mode = False, OPAQUE

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._of_attempt: dict[TransactionAttempt, dict[str, Json]] = {}

    def initialize(self, context: BeginContext) -> Json:
        with self._lock:
            in_flight = self._of_attempt.get(context.parent) if context.parent else None
        metadata = self._emit(context, dict(context.committed) if in_flight is None else in_flight)
        self._check_size(_parts_of(metadata, self._tx_id))
        with self._lock:
            self._of_attempt[context.attempt] = _all_of(metadata, self._tx_id)
        return metadata

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        held = self._take(attempt)
        if held is None:
            raise SourceError(f"attempt {attempt} of stream {self._tx_id!r} was given up before it was processed")
        return self._emission.emitted(held)

    def _check_size(self, metadata: Mapping[str, Json]) -> None:
        """They are stored in one write when the transaction advances: it must not turn out there that they cannot."""
        size = len(json.dumps(metadata).encode())
        if size > _METADATA_BYTES_MAX:
            raise SourceError(
                f"the metadata of the partitions of stream {self._tx_id!r} is too large",
                found=f"{size:,} bytes",
                expected=f"at most {_METADATA_BYTES_MAX:,} bytes over all partitions of a batch",
                action="keep positions in the metadata, not data",
            )

    def opaque_metadata(self, metadata: Json) -> Mapping[str, Json]:
        return _all_of(metadata, self._tx_id)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            # The next transaction may still begin on this one.
            kept = {other: value for other, value in self._of_attempt.items() if other.txid >= attempt.txid}
            self._of_attempt = kept
        super().success(attempt)


def _parts_of(metadata: Json, tx_id: str, part: str = "partitions") -> dict[str, Json]:
    value = metadata.get(part) if isinstance(metadata, dict) else None
    if not isinstance(value, dict):
        raise SourceError(
            f"the metadata of stream {tx_id!r} was not written by a spout in partitions",
            found=repr(metadata)[:200],
            expected='{"partitions": {id: metadata}, "absent": …}',
            action="give the stream another tx_id, or begin again with `trident reset NAME`",
        )
    return value


def _all_of(metadata: Json, tx_id: str) -> dict[str, Json]:
    """Partition → metadata, of all partitions ever seen."""
    if metadata is None:
        return {}
    return {**_parts_of(metadata, tx_id, "absent"), **_parts_of(metadata, tx_id)}
