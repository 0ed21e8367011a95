"""Runs attempts on Spark: emit, the topology's plan, stage (docs/semantics.md 9.2, 12)."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from trident.coordinators.errors import BatchError, BatchTimeout, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.messages.batches import TrackedBatches
from trident.planning.compiled import BuiltBatch
from trident.planning.operation import ANCHORS_FIELD
from trident.planning.session_frames import compute_and_count
from trident.running.kept_plans import early_plans
from trident.running.late_part import Form, LatePart, StagedBoundary, Staging
from trident.spark.jobs import JobWatch, cancel_group
from trident.spark.rows import ROWS_BYTES_MAX, FilesSlot, RowsSlot, Slot, TaskSlot, held_rows, to_dataframe
from trident.spouts.contracts import Emitted, Json, SpoutKind
from trident.spouts.executors import spout_kind
from trident.spouts.files.reading import source_failure
from trident.spouts.host import TridentSpoutHost
from trident.states.core import spark_jobs, storage
from trident.states.core.place import Place
from trident.states.delta.staging import StagingTarget, stage
from trident.states.keyed.copies import HostCopies, StateCopies
from trident.states.publishing.user_tasks import BatchInfo
from trident.udf.expressions import expression_failure
from trident.udf.signatures import translate_failure
from trident.udf.types import spout_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident.messages.executor import MessageSpoutExecutor
    from trident.planning.groups import GroupPlan


# The Spark jobs of an attempt: their group, their pool, and whether they were given up.


class AttemptJobs(JobWatch):
    """The jobs of an attempt, or of its part in the transaction's turn.

    Args:
        text: describes them.
        pool: of Spark's scheduler.
    """

    cancelled = False

    def __init__(self, context: Any, job_group: str, timeout_secs: float | None, text: str, pool: str) -> None:
        super().__init__(context, job_group, timeout_secs)
        self._text, self._pool = text, pool

    def begin_jobs(self) -> None:
        """From here on jobs of the calling thread are in its group. It takes two calls to the JVM, so not for none."""
        self._context.setJobGroup(self.job_group, self._text)
        self._context.setLocalProperty("spark.scheduler.pool", self._pool)

    @property
    def given_up(self) -> bool:
        return self.cancelled or self.timed_out


log = logging.getLogger("trident.runner")


class SparkBatchRunner:
    """The batch runner of one group: each attempt in its own job group and FAIR pool.

    Args:
        folder: of the group, for rows that wait for the transaction's turn.
        reader: (state, frame of its keys or None, txid) → its keys and values as of that transaction.
        batch_partitions: Spark partitions of every batch; None = as its spout says.
        copies: the local copies of the states that the group looks up; None: there are none here.
        host_copies: those on the hosts of a cluster's executors; None: tasks use none, or find those of this host.
        keep_plans: whether the plan of a batch may serve those after it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        topology: str,
        plan: "GroupPlan",
        host: TridentSpoutHost,
        targets: Sequence[StagingTarget],
        folder: Place,
        reader: Callable[..., "DataFrame"],
        incarnation: str,
        epoch: int,
        batch_partitions: int | None = None,
        copies: StateCopies | None = None,
        keep_plans: bool = True,
        host_copies: HostCopies | None = None,
    ) -> None:
        self._spark, self._topology, self._plan, self._host = spark, topology, plan, host
        self._incarnation, self._epoch = incarnation, epoch
        self._batch_partitions = batch_partitions
        self._boundaries = [
            StagingTarget(name, folder / "boundaries" / name, durable=False) for name in plan.lowered.staged_boundaries
        ]
        auxiliary = set(plan.message_tables.values())
        self._early = [
            target for target in targets if target.name not in plan.late_states and target.name not in auxiliary
        ] + self._boundaries
        self._tracked: TrackedBatches | None = None
        if plan.message_tables:
            self._tracked = TrackedBatches(
                spark,
                cast("Mapping[str, MessageSpoutExecutor]", {tx_id: host.executors[tx_id] for tx_id in plan.tracked}),
                plan.anchored,
                self._tracked_input,
                [*targets, *self._boundaries],
                plan.message_tables,
                folder,
                incarnation,
            )
        self._config = {"topology": topology, "group": plan.name, "spark_master": spark.sparkContext.master}
        self._codec = spark.conf.get("spark.sql.parquet.compression.codec", None) or "snappy"
        self._kept_plans = early_plans(spark, plan, self._early, self._codec, keep_plans)
        self._context = spark.sparkContext
        self._spouts = plan.spouts
        self._schemas = {tx_id: spout_schema(spout) for tx_id, spout in self._spouts.items()}  # text is read once
        self._repeats = replays_rows(self._spouts.values())
        self._copies, self._late = copies, None
        if plan.is_late:
            roots = {target.name: target.root for target in self._early}
            staging = Staging(
                [StagedBoundary(one.name, roots[one.name], one.fields) for one in plan.lowered.boundaries.values()],
                [target for target in self._early if target not in self._boundaries],
                [target for target in targets if target.name in plan.late_states],
                incarnation,
                self._codec,
            )
            where_tasks_run = copies if host_copies is None else host_copies
            self._late = LatePart(spark, plan, staging, reader, where_tasks_run, keep_plans)
        self._running: dict[TransactionAttempt, AttemptJobs] = {}
        self._lock = threading.Lock()

    def process(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json], timeout_secs: float | None
    ) -> ProcessedBatch:
        def run() -> ProcessedBatch:
            self._watched(attempt).begin_jobs()
            return self._run(attempt, metadata)

        return self._as_job(attempt, timeout_secs, "", run)

    def _as_job(
        self, attempt: TransactionAttempt, timeout_secs: float | None, part: str, run: Callable[[], ProcessedBatch]
    ) -> ProcessedBatch:
        """Runs; jobs that it begins are in a group that can be cancelled, and is when it takes too long."""
        job_group = f"trident-{self._topology}-{self._plan.name}-{attempt}-{uuid.uuid4().hex[:6]}"
        text = f"{self._topology} {self._plan.name} {attempt} {part}".rstrip()
        running = AttemptJobs(self._context, job_group, timeout_secs, text, spark_jobs.of_batch(attempt.txid))
        with self._lock:
            self._running[attempt] = running
        try:
            with running:
                return run()
        except Exception as error:
            if running.timed_out:
                secs = (timeout_secs or 0.0) * running.parts
                raise BatchTimeout(
                    f"processing attempt {attempt} took longer than message_timeout_secs",
                    found=f"more than {secs:g} s since its first Spark task",
                    expected=f"at most {secs:g} s",
                    action="raise message_timeout_secs, or make batches smaller; the next attempt has twice the time",
                ) from error
            translated = source_failure(error) or translate_failure(error, attempt)
            if translated is error:
                translated = expression_failure(error, attempt) or error
            if not self._repeats and isinstance(translated, (BatchError, SourceError)):
                translated.fingerprint = None
            if translated is error:
                raise
            raise translated from translated.__cause__
        finally:
            with self._lock:
                self._running.pop(attempt, None)

    def _run(self, attempt: TransactionAttempt, metadata: Mapping[str, Json]) -> ProcessedBatch:
        with BuiltBatch({}, []) as kept:
            return self._run_keeping(attempt, metadata, kept)

    def _run_keeping(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json], kept: BuiltBatch
    ) -> ProcessedBatch:
        started = time.monotonic()
        inputs: dict[str, "DataFrame | Slot"] = {}
        spouts: dict[str, dict[str, Any]] = {}
        tables: dict[str, "DataFrame"] = {}
        counts: list[int | Callable[[], int | None] | None] = []
        for tx_id, executor in self._host.executors.items():
            spout = self._spouts[tx_id]
            if tx_id in self._plan.tracked:
                pinned: Any = metadata[tx_id]  # MessageSpoutExecutor's: an object with the count of rows
                spouts[tx_id] = _described(spout, pinned, None)
                counts.append(pinned["rows"])
                continue
            emitted = _listed(executor.emit_batch(attempt, metadata[tx_id]))
            if emitted.table_rows is not None and tx_id not in self._plan.spout_tables:
                raise SourceError(
                    f"stream {tx_id!r} gives rows for a table that its spout does not own",
                    found="Emitted.table_rows",
                    expected="a spout with `table` and `table_schema` (OwnsTable)",
                )
            try:
                given = self._input(emitted, self._schemas[tx_id])
            except SourceError as error:
                error.fingerprint = str(error)  # rows that do not fit the spout's schema
                raise
            count = _rows_of(emitted)
            if (
                spout_kind(spout) is not SpoutKind.TRANSACTIONAL
                and executor.pins
                and isinstance(emitted.data, DataFrame)
            ):
                # Such a source may give other rows when a task is tried again, or to the next state.
                given, count = compute_and_count(_frame_of(given), kept.checkpoints)
            counts.append(count)
            inputs[tx_id] = given
            spouts[tx_id] = _described(spout, metadata[tx_id], emitted.commit_data)
            opaque = executor.opaque_metadata(metadata[tx_id])
            if opaque is not None:
                spouts[tx_id]["opaque"] = dict(opaque)
            binding = self._plan.spout_tables.get(tx_id)
            if binding is not None:
                rows = emitted.table_rows if emitted.table_rows is not None else []
                tables[binding.name] = to_dataframe(self._spark, rows, binding.schema).coalesce(1)
        emitted_at = built_at = time.monotonic()

        def run(given: Mapping[str, "DataFrame | Slot"]) -> dict[str, list[Any]]:
            nonlocal built_at
            slots = {tx_id: one for tx_id, one in given.items() if not isinstance(one, DataFrame)}
            are_slots = len(slots) == len(given)
            if self._late is not None:
                if are_slots:
                    whole = self._late.stage_fused(attempt, slots, self._info(attempt), self._watched(attempt))
                    if whole is not None:
                        return whole
                self._late.job_begins()
            if are_slots:
                kept_staged = self._kept_plans.stage(slots, self._incarnation, attempt)
                if kept_staged is not None:
                    return kept_staged
            frames_of = {tx_id: _frame_of(one) for tx_id, one in given.items()}
            with self._plan.build(frames_of, attempt, self._info(attempt)) as frames:
                frames.update(tables)
                built_at = time.monotonic()
                return stage(frames, self._early, self._incarnation, attempt, self._codec)

        if self._tracked is None:
            staged = run(inputs)
        else:
            staged = self._tracked.process(attempt, inputs, run, self._watched(attempt))
        for executor in self._host.executors.values():
            executor.prepare(attempt)
        done_at = time.monotonic()
        counted = [one() if callable(one) else one for one in counts]
        return ProcessedBatch(
            staged,
            spouts,
            None if None in counted else sum(one or 0 for one in counted),
            {
                "emit": (emitted_at - started) * 1000,
                "plan": (built_at - emitted_at) * 1000,
                "stage": (done_at - built_at) * 1000,
            },
        )

    def _info(self, attempt: TransactionAttempt) -> BatchInfo:
        return BatchInfo(attempt, self._incarnation, self._epoch, self._config)

    def _watched(self, attempt: TransactionAttempt) -> AttemptJobs:
        with self._lock:
            return self._running[attempt]

    # --- what reads states (docs/semantics.md 9.3) -------------------------------------------------------

    def resolve(
        self, attempt: TransactionAttempt, processed: ProcessedBatch, timeout_secs: float | None
    ) -> ProcessedBatch:
        if self._late is None:
            return processed
        if self._is_whole(processed):
            parts = {"resolve": 0.0, f"resolve_by_{Form.ONE_JOB.value}": 0.0}  # in the time of "stage"
            return replace(processed, duration_ms={**processed.duration_ms, **parts})
        return self._as_job(attempt, timeout_secs, "resolves", lambda: self._resolve_or_blame(attempt, processed))

    def _is_whole(self, processed: ProcessedBatch) -> bool:
        """Tells whether the late part's rows are staged too."""
        return bool(self._plan.late_states & processed.staged.keys())

    def _resolve_or_blame(self, attempt: TransactionAttempt, processed: ProcessedBatch) -> ProcessedBatch:
        try:
            return self._resolve(attempt, processed)
        except Exception as error:
            # Other streams' rows of this batch are gone: then the attempt fails as it does without messages.
            if self._tracked is not None and set(self._spouts) == set(self._plan.tracked):
                run = partial(self._run_late, attempt)
                self._tracked.blame_late(attempt, run, error, self._watched(attempt))
            raise

    def _run_late(self, attempt: TransactionAttempt, inputs: Mapping[str, "DataFrame | Slot"]) -> dict[str, Any]:
        """A batch up to the end of its turn, for nothing but to see whether it fails."""
        self._watched(attempt).begin_jobs()
        given = {tx_id: _frame_of(one) for tx_id, one in inputs.items()}
        with self._plan.build(given, attempt, self._info(attempt)) as frames:
            staged = stage(frames, self._early, self._incarnation, attempt, self._codec)
        return dict(self._resolve(attempt, ProcessedBatch(staged)).staged)

    def _resolve(self, attempt: TransactionAttempt, processed: ProcessedBatch) -> ProcessedBatch:
        started = time.monotonic()
        assert self._late is not None
        staged = dict(processed.staged)
        form, late = self._late.stage(attempt, staged, self._info(attempt), self._watched(attempt).begin_jobs)
        for boundary in self._boundaries:
            for file in staged.pop(boundary.name):
                storage.delete(boundary.root / file.path)
        took = (time.monotonic() - started) * 1000
        duration = {"resolve": took, f"resolve_by_{form.value}": took}
        return replace(processed, staged={**staged, **late}, duration_ms={**processed.duration_ms, **duration})

    def _tracked_input(self, tx_id: str, emitted: Emitted, anchors: bool) -> "DataFrame | Slot":
        schema = self._schemas[tx_id]
        return self._input(emitted, StructType([*schema.fields, ANCHORS_FIELD]) if anchors else schema)

    def _input(self, emitted: Emitted, schema: StructType) -> "DataFrame | Slot":
        slot = self._slot(emitted, schema)
        return self._frame(emitted, schema) if slot is None else slot

    def _frame(self, emitted: Emitted, schema: StructType) -> "DataFrame":
        frame = to_dataframe(self._spark, emitted.data, schema)
        wanted = self._batch_partitions or emitted.partitions
        if wanted is None:
            return frame
        # Fewer partitions need no shuffle; more do, and the spout has asked for them.
        return frame.coalesce(wanted)

    def _slot(self, emitted: Emitted, schema: StructType) -> Slot | None:
        """The batch as a kept plan reads it; None: it cannot, or is large."""
        data = emitted.data
        if self._kept_plans.why_not is not None or (self._batch_partitions or emitted.partitions) != 1:
            return None
        if isinstance(data, (FilesSlot, TaskSlot)):
            return data
        table = held_rows(data, schema)
        if table is None or not table.num_rows or table.nbytes > ROWS_BYTES_MAX:
            return None
        return RowsSlot(self._spark, table, schema)

    def advanced(self, txid: int) -> None:
        """Tells that a transaction has advanced; returns at once."""
        if self._late is not None:
            self._late.advanced(txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            running = self._running.get(attempt)
        if running is not None:
            running.cancelled = True
            cancel_group(self._context, running.job_group)

    def close(self) -> None:
        """Cancels what runs; call it before waiting for the driver's threads."""
        with self._lock:
            attempts = list(self._running)
        for attempt in attempts:
            self.cancel(attempt)
        if self._late is not None:
            self._late.close()
        if self._copies is not None:
            self._copies.close()


def _frame_of(one: "DataFrame | Slot") -> "DataFrame":
    return one if isinstance(one, DataFrame) else one.frame().coalesce(1)


def replays_rows(spouts: Iterable[Any]) -> bool:
    """Tells whether a row that has failed is in the next attempt too.

    A transactional source gives the same batch, an opaque one goes on from where the last commit left it. Others may
    leave the row out, so that it failed the same way proves nothing of the next attempt.
    """
    return all(spout_kind(spout) is not SpoutKind.NON_TRANSACTIONAL for spout in spouts)


def _described(spout: Any, metadata: Json, commit_data: Json) -> dict[str, Any]:
    """Returns what the manifest says of a stream's part in the batch."""
    return {
        "spout": type(spout).__qualname__,
        "kind": spout_kind(spout).value,
        "metadata": metadata,
        "commit_data": commit_data,
    }


def _listed(emitted: Emitted) -> Emitted:
    """With rows that a spout gives one by one as a list, which is counted."""
    return replace(emitted, data=list(emitted.data)) if isinstance(emitted.data, Iterator) else emitted


def _rows_of(emitted: Emitted) -> int | Callable[[], int | None] | None:
    """The number of rows of a batch, or what says it once they were read; None: not known."""
    data = emitted.data
    return len(data) if isinstance(data, Sized) else emitted.rows
