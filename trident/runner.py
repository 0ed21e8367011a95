"""Runs attempts on Spark: emit, the topology's plan, stage (DESIGN 2.2, 5)."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinators.errors import BatchTimeout
from coordinators.ports import ProcessedBatch
from coordinators.transactions import TransactionAttempt
from states.staging import StagingTarget, stage
from trident.file_reading import source_failure
from trident.functions import translate_failure
from trident.rows import to_dataframe
from trident.spouts import Emitted, Emitter, Json, Prepares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planner import GroupPlan

log = logging.getLogger("trident.runner")
# How often running attempts are looked at for their timeout; short ones are never looked at.
_WATCH_SECS = 0.5


@dataclass
class _Running:
    attempt: TransactionAttempt
    job_group: str
    timeout_secs: float | None
    started: float
    first_task_at: float | None = None
    timed_out: bool = False
    cancelled: bool = False


class SparkBatchRunner:
    """The batch runner of one group: each attempt in its own job group and FAIR pool.

    Args:
        spark: the session.
        topology: for the names of job groups.
        plan: the group's Spark plan.
        emitters: tx_id → emitter.
        targets: where results are staged.
        incarnation: of the topology.
        batch_partitions: Spark partitions of every batch; None = as its spout says.
    """

    def __init__(
        self, spark: "SparkSession", topology: str, plan: "GroupPlan", emitters: Mapping[str, Emitter],
        targets: Sequence[StagingTarget], incarnation: str, batch_partitions: int | None = None,
    ) -> None:  # fmt: skip
        self._spark, self._topology, self._plan, self._emitters = spark, topology, plan, emitters
        self._targets, self._incarnation, self._batch_partitions = targets, incarnation, batch_partitions
        self._codec = spark.conf.get("spark.sql.parquet.compression.codec", "snappy")
        self._context = spark.sparkContext
        self._running: dict[TransactionAttempt, _Running] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    def process(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json], timeout_secs: float | None
    ) -> ProcessedBatch:
        job_group = f"trident-{self._topology}-{self._plan.name}-{attempt}-{uuid.uuid4().hex[:6]}"
        running = _Running(attempt, job_group, timeout_secs, time.monotonic())
        with self._lock:
            self._running[attempt] = running
            if timeout_secs is not None and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="trident-timeouts", daemon=True)
                self._watcher.start()
        try:
            self._context.setJobGroup(job_group, f"{self._topology} {self._plan.name} {attempt}")
            self._context.setLocalProperty("spark.scheduler.pool", f"trident-{attempt.txid % 16}")
            return self._run(attempt, metadata)
        except Exception as error:
            if running.timed_out:
                raise BatchTimeout(
                    f"processing attempt {attempt} took longer than message_timeout_secs",
                    found=f"more than {timeout_secs:g} s since its first Spark task",
                    expected=f"at most {timeout_secs:g} s",
                    action="raise message_timeout_secs, or make batches smaller; the next attempt has twice the time",
                ) from error
            translated = source_failure(error) or translate_failure(error, attempt)
            if translated is error:
                raise
            raise translated from error
        finally:
            with self._lock:
                self._running.pop(attempt, None)

    def _run(self, attempt: TransactionAttempt, metadata: Mapping[str, Json]) -> ProcessedBatch:
        started = time.monotonic()
        inputs: dict[str, "DataFrame"] = {}
        spouts: dict[str, dict[str, Any]] = {}
        for tx_id, emitter in self._emitters.items():
            spout = self._plan.spouts[tx_id]
            emitted = emitter.emit_batch(attempt, metadata[tx_id])
            if not isinstance(emitted, Emitted):
                emitted = Emitted(emitted)
            inputs[tx_id] = self._frame(emitted, spout)
            spouts[tx_id] = {
                "spout": type(spout).__name__, "kind": spout.kind.value,
                "metadata": metadata[tx_id], "commit_data": emitted.commit_data,
            }  # fmt: skip
        emitted_at = time.monotonic()
        frames = self._plan.build(inputs, attempt)
        built_at = time.monotonic()
        try:
            staged = stage(frames, self._targets, self._incarnation, attempt, self._codec)
        finally:
            frames.release()
        for emitter in self._emitters.values():
            if isinstance(emitter, Prepares):
                emitter.prepare(attempt)
        done_at = time.monotonic()
        return ProcessedBatch(
            staged,
            spouts,
            _input_rows(metadata),
            {
                "emit": (emitted_at - started) * 1000,
                "plan": (built_at - emitted_at) * 1000,
                "stage": (done_at - built_at) * 1000,
            },
        )

    def _frame(self, emitted: Emitted, spout: Any) -> "DataFrame":
        frame = to_dataframe(self._spark, emitted.data, spout.output_schema)
        wanted = self._batch_partitions or emitted.partitions
        if wanted is None:
            return frame
        # Fewer partitions need no shuffle; more do, and the spout has asked for them.
        return frame.coalesce(wanted)

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            running = self._running.get(attempt)
        if running is not None:
            running.cancelled = True
            self._context.cancelJobGroup(running.job_group)

    def close(self) -> None:
        """Cancels what runs; call it before waiting for the driver's threads."""
        self._closed.set()
        with self._lock:
            attempts = list(self._running)
        for attempt in attempts:
            self.cancel(attempt)

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_SECS):
            now = time.monotonic()
            with self._lock:
                candidates = [r for r in self._running.values() if r.timeout_secs is not None]
            for running in candidates:
                try:
                    self._look_at(running, now)
                except Exception as error:  # a session that is being stopped
                    log.debug("cannot look at %s: %s", running.job_group, error)

    def _look_at(self, running: _Running, now: float) -> None:
        if running.first_task_at is None and now - running.started >= _WATCH_SECS and self._has_tasks(running):
            running.first_task_at = now
        began = running.first_task_at
        if began is not None and now - began > running.timeout_secs and not running.timed_out:
            running.timed_out = True
            self._context.cancelJobGroup(running.job_group)

    def _has_tasks(self, running: _Running) -> bool:
        tracker = self._context.statusTracker()
        for job_id in tracker.getJobIdsForGroup(running.job_group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                info = tracker.getStageInfo(stage_id)
                if info and (info.numActiveTasks or info.numCompletedTasks or info.numFailedTasks):
                    return True
        return False


def _input_rows(metadata: Mapping[str, Json]) -> int | None:
    """Rows of the batch for progress, as far as the spouts' metadata say so (an estimate for text files)."""
    rows = []
    for value in metadata.values():
        if isinstance(value, dict):
            count = value.get("rows", value.get("rows_estimate"))
            if isinstance(count, int):
                rows.append(count)
    return sum(rows) if rows else None
