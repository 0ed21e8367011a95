"""Runs the late part of each batch: in the first of its forms that can take it (``late_part.py`` says which)."""

from __future__ import annotations

import base64
import logging
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.threads import DaemonPool
from trident.coordinators.tracebacks import search_causes
from trident.operations.window_spec import Unit
from trident.planning.groups import is_one_job, why_not_kept
from trident.planning.operation import MARKER, MARKER_FIELD, Fields, OnePartitionOp
from trident.planning.session_frames import Batch, SessionFrames
from trident.running.kept_plans import NONE, KeptPlans
from trident.spark.jobs import JobWatch
from trident.spark.rows import ShardsSlot, Slot, parquet_reader
from trident.states.core.local_copy import CopyAsOf
from trident.states.core.place import Place
from trident.states.core.shards import SentCopy
from trident.states.core.tables import StagedFile
from trident.states.delta.data_files import require_whole
from trident.states.delta.parquet_files import ATTEMPT
from trident.states.delta.staging import StagingTarget, collected, file_target, reports_by, reports_of, stage, stage_by
from trident.states.keyed.copies import HostCopies, StateCopies
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.failures import LARGE, SPARKS, STALE, find_report
from trident.workers.late_pass import LATE, FusedLatePass, LateBatch, LatePass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan


# Chooses the form in which a batch's late part runs, from plain data: no Spark here.


# Rows in so few bytes are worth one Spark partition.
SMALL_BYTES = 8 << 20
# So few rows are one task's; more, or larger ones, are cut into shards, one for each core.
TASK_ROWS = 20_000
# Tasks hold the rows of a batch in memory, those with a watermark each of them all.
SHARDS_BYTES = 1 << 30
# So many transactions at most read the tables before another form is tried again.
_PAUSE_MAX = 10


class Form(Enum):
    """How a late part runs; the progress names it: ``resolve_by_…``."""

    NOTHING = "nothing"
    ONE_JOB = "one_job"
    PASS = "pass"
    TABLES = "tables"


@dataclass(frozen=True)
class Able:
    """The forms that a group's plan, its session and its local copies allow.

    Attributes:
        one_job: early and late part as one Spark job.
        tasks: in a task, with copies where it runs.
        shards: in several tasks, each with the rows of some keys.
    """

    one_job: bool
    tasks: bool
    shards: bool


@dataclass(frozen=True)
class Rows:
    """The rows that the early part of a batch has staged for the late one.

    Attributes:
        idle: the late part has nothing to do.
        size: in bytes, of the largest boundary.
    """

    idle: bool
    size: int


def choose(able: Able, staged: Rows | None, is_next: bool, is_open: bool) -> Form | None:
    """The form of a batch's late part.

    Args:
        staged: None before the early part has run.
        is_next: the transaction before has advanced.
        is_open: see Breaker.

    Returns:
        None: the early part runs first.
    """
    if staged is None:
        return Form.ONE_JOB if able.one_job and is_next and not is_open else None
    if staged.idle:
        return Form.NOTHING
    if is_open or staged.size > (SHARDS_BYTES if able.shards else SMALL_BYTES):
        return Form.TABLES
    return Form.PASS if able.tasks else Form.TABLES


class Breaker:
    """Open for batches that a form is not tried for, after one for which it has worked in vain.

    Another attempt at such a batch does not try it. The next transaction does: often one alone fires many windows, and
    those after it none. Where it fails as well, one transaction after it goes without a try; then three, seven, and ten
    each time.
    """

    def __init__(self) -> None:
        self._times = self._since = self._until = 0

    def failed(self, txid: int) -> None:
        """A form was given up: it read too much, met a value that only Spark can compute, or its workers died."""
        self._times += 1
        self._since, self._until = txid, txid + min(2 ** (self._times - 1), _PAUSE_MAX + 1)

    def worked(self) -> None:
        """A batch was computed in the form."""
        self._times = self._since = self._until = 0

    def is_open(self, txid: int) -> bool:
        return self._since <= txid < self._until


# The rows of a batch between its two halves: as files that the early part has staged.


Staged = Mapping[str, Sequence[StagedFile]]
Files = dict[str, list[StagedFile]]
# State → its copy as of the transaction before: of this host, or of each host for itself.
Copies = Mapping[str, CopyAsOf] | Mapping[str, SentCopy]


@dataclass(frozen=True)
class StagedBoundary:
    """Where rows pass from early to late operations.

    Attributes:
        root: the folder that its files' paths are relative to.
    """

    name: str
    root: Place
    fields: Fields

    @cached_property
    def schema(self) -> pa.Schema:
        """That of its rows; times are instants in UTC."""
        return to_arrow_schema(StructType(list(self.fields)), timezone="UTC")

    def paths(self, files: Iterable[StagedFile]) -> list[str]:
        """The paths of its files, in the order of the batch.

        Raises:
            TableError: one is gone or not whole.
        """
        files = list(files)
        where = "a batch between its two halves"
        require_whole(where, str(self.root), files, "the batch is tried again; check the disk")
        return [str(self.root / file.path) for file in files]

    def frame(self, spark: "SparkSession", files: Sequence[StagedFile], ordered: bool) -> "DataFrame":
        """Its rows in Spark; few of them are one Spark partition.

        Args:
            ordered: whether they are to be in the order of the batch.

        Raises:
            TableError: a file is gone or not whole.
        """
        schema = StructType(list(self.fields))
        if not files:
            return spark.createDataFrame([], schema)
        reader, paths = parquet_reader(spark, schema), self.paths(files)
        if ordered and len(paths) > 1:
            # Spark would sort the files by size; their order is that of the batch.
            frame = reduce(lambda a, b: a.union(b), [reader.parquet(path).coalesce(1) for path in paths])
        else:
            frame = reader.parquet(*paths)
        return frame.coalesce(1) if bytes_of(files) <= SMALL_BYTES else frame


@dataclass(frozen=True)
class Staging:
    """Where the rows of a group's batches are staged.

    Attributes:
        boundaries: between its parts.
        early, late: the states of which each part stages rows.
    """

    boundaries: Sequence[StagedBoundary]
    early: Sequence[StagingTarget]
    late: Sequence[StagingTarget]
    incarnation: str
    codec: str


def bytes_of(files: Iterable[StagedFile]) -> int:
    return sum(file.size for file in files)


# The late part of a small batch in a Python worker, by plans that are kept: with the early part, or after it.


# More bytes of rows than these are staged between the two parts, and not held by a worker.
_BYTES_MAX = 32 << 20


_SHARDS = "shards"


class OneJob:
    """The early part by Spark. The rows of the one boundary are not staged between: one worker is given them all.

    Args:
        late: of one boundary.
        for_empty_batch: whether it does something for a batch without rows.
    """

    def __init__(
        self, spark: "SparkSession", plan: "GroupPlan", late: LatePass, for_empty_batch: bool, staging: Staging
    ) -> None:
        self._plan, self._staging = plan, staging
        (self._boundary,) = late.boundaries
        # Spark may give a batch no partition (a filter that is always false): then no worker would run.
        fields = (*staging.boundaries[0].fields, MARKER_FIELD)
        self._there = OnePartitionOp(fields).transform(SessionFrames(spark)) if for_empty_batch else None
        # A state's own rows are staged by the worker that goes on with them.
        own = next((one for one in staging.early if one.name == self._boundary), None)
        state = None if own is None else (file_target(own, staging.codec), own.txid_column)
        self._pass = FusedLatePass(late, _BYTES_MAX, MARKER if for_empty_batch else "", state)
        self._others = [one for one in staging.early if one is not own]
        targets = [*staging.early, *staging.late]
        self._plans = KeptPlans(spark, plan.name, targets, why_not_kept(plan), self._reports)

    def stage(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, copies: Copies
    ) -> Files | None:
        """Stages all rows of a batch; None: no plan is kept for such batches, and nothing has been done.

        Args:
            copies: as of the transaction before.
        """
        return self._plans.stage(slots, self._staging.incarnation, attempt, _sent(LateBatch(info, copies)))

    @contextmanager
    def _reports(self, inputs: Mapping[str, "DataFrame"]) -> Iterator["DataFrame"]:
        with self._plan.build(inputs, NONE, BatchInfo(NONE)) as frames:
            # Also where streams or a hint have put rows into several: each task would go on from the same values.
            frame = frames[self._boundary]
            frame = frame.coalesce(1) if self._there is None else self._there(frame, Batch(BatchInfo(NONE)))
            late, others = reports_by(frame, self._pass), self._others
            yield reports_of(frames, others, self._staging.codec).union(late) if others else late


class WorkerPass:
    """The late part in a pass of a Python worker for each shard, from the files that the early part has staged.

    Args:
        late: of one shard.
        keys: see ``lowering.shard_keys``.
        cut: into how many shards the copies are cut: so many tasks has each batch; None: they are whole.
        why_not: a reason to keep no plan; then one is made for each batch.
    """

    def __init__(
        self,
        spark: "SparkSession",
        group: str,
        late: LatePass,
        staging: Staging,
        keys: Mapping[str, tuple[str, ...] | None] | None,
        cut: int | None,
        why_not: str | None,
    ) -> None:
        self._spark, self._late, self._staging, self._keys = spark, late, staging, keys
        self._few = cut or 1
        self._many = cut or (1 if keys is None else spark.sparkContext.defaultParallelism)
        self._plans = {
            count: KeptPlans(spark, group, staging.late, why_not, partial(self._reports, count))
            for count in {self._few, self._many}
        }

    def stage(self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, copies: Copies) -> Files:
        """Stages the rows of late states.

        Raises:
            TableError: a staged file is gone or not whole.
        """
        to = self._staging
        files = {one.name: one.paths(staged[one.name]) for one in to.boundaries}
        sent = _sent(LateBatch(info, copies, files))
        found = [file for one in to.boundaries for file in staged[one.name]]
        is_small = sum(file.num_records for file in found) <= TASK_ROWS and bytes_of(found) <= SMALL_BYTES
        shards = self._few if is_small else self._many
        numbers = ShardsSlot(self._spark, shards)  # what the tasks do is sent with the job
        kept = self._plans[shards].stage({_SHARDS: numbers}, to.incarnation, attempt, sent)
        if kept is not None:
            return kept
        with self._reports(shards, {_SHARDS: numbers.frame()}) as reports:
            return stage_by(
                lambda value: collected(reports, {**sent, ATTEMPT: value}), to.late, to.incarnation, attempt
            )

    @contextmanager
    def _reports(self, shards: int, inputs: Mapping[str, "DataFrame"]) -> Iterator["DataFrame"]:
        yield reports_by(inputs[_SHARDS], replace(self._late, keys=self._keys, shards=shards))


def _sent(batch: LateBatch) -> dict[str, str]:
    """The local property that sends a worker its batch."""
    return {LATE: base64.b64encode(pickle.dumps(batch)).decode("ascii")}


log = logging.getLogger("trident.runner")
RESOLVE = faults.register("resolve.stage", "the Spark job that reads states and stages what depends on them")
_CLOSE_SECS = 10.0
# So long the thread that submits a job needs the interpreter, which another one would keep for 5 ms.
_JOB_SECS = 0.0015
# A worker died, or Arrow cannot do what Spark can.
_OF_FORM = re.compile(r"Python worker exited unexpectedly|MemoryError|OutOfMemoryError|pyarrow\.lib\.Arrow")


class LatePart:
    """The late part of a group's batches, in one session.

    Args:
        staging: where rows are staged.
        reader: (state, frame of its keys or None, txid) → its keys and values as of that transaction.
        copies: of the states that the group looks up, where tasks run; None: there are none.
        keep_plans: whether a plan may serve the batches after it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        plan: "GroupPlan",
        staging: Staging,
        reader: Callable[..., "DataFrame"],
        copies: StateCopies | HostCopies | None,
        keep_plans: bool,
    ) -> None:
        self._spark, self._plan, self._staging, self._reader = spark, plan, staging, reader
        self._copies, self._states = copies, plan.copied_states
        self._breaker, self._large = Breaker(), Breaker()  # of all forms on copies; of the one job, by its size
        self._always = _works_on_nothing(plan)
        self._advanced = self._followed = -1  # the last transaction; the last one that copies were to follow
        self._follower = DaemonPool(1, "trident-copies")
        self._one_job: OneJob | None = None
        self._worker: WorkerPass | None = None
        if copies is not None and plan.late_on_arrow is not None:
            targets = [(file_target(one, staging.codec), one.txid_column) for one in staging.late]
            late = LatePass(plan.late_on_arrow, {one.name: one.schema for one in staging.boundaries}, targets)
            why_not = None if keep_plans else "the setting keep_plans is off"
            # Hosts of a cluster have the copies of shards; where a late part cannot be cut, they have whole ones.
            cut = copies.shards if isinstance(copies, HostCopies) and plan.shard_keys is not None else None
            self._worker = WorkerPass(spark, plan.name, late, staging, plan.shard_keys, cut, why_not)
            if is_one_job(plan) and keep_plans and cut in (None, 1):
                self._one_job = OneJob(spark, plan, late, self._always, staging)
        self._able = Able(
            one_job=self._one_job is not None,
            tasks=self._worker is not None,
            shards=self._worker is not None and plan.shard_keys is not None,
        )

    def advanced(self, txid: int) -> None:
        """Takes note that a transaction has advanced; returns at once."""
        self._advanced = txid

    def job_begins(self) -> None:
        """Takes note that this process is about to wait for a Spark job; returns at once.

        Meanwhile another thread brings the copies to the transaction that has advanced last: no turn waits for it
        then, and it takes no time of this process's threads, which have one interpreter.
        """
        advanced = self._advanced
        if isinstance(self._copies, StateCopies) and self._followed < advanced:
            self._followed = advanced
            self._follower.submit(self._copies.catch_up, self._states, advanced)

    def stage_fused(
        self, attempt: TransactionAttempt, slots: Mapping[str, Slot], info: BatchInfo, watch: JobWatch
    ) -> Files | None:
        """Stages the rows of a whole batch with one Spark job, where its transaction is the one that commits next.

        Args:
            slots: tx_id → the batch, of every stream of the group.
            watch: of the attempt; it has the time of both parts.

        Returns:
            target → its files, without the boundaries; None: nothing is staged, and the early part runs first.
        """
        before = attempt.txid - 1
        is_open = self._breaker.is_open(attempt.txid) or self._large.is_open(attempt.txid)
        if choose(self._able, None, self._advanced == before, is_open) is None:
            return None
        assert self._one_job is not None
        copies = self._promised(before)
        if copies is None:
            return None
        watch.parts, staged = 2, None
        try:
            with faults.fault_point(RESOLVE):
                staged = self._one_job.stage(attempt, slots, info, copies)
        except Exception as error:
            report = find_report(error, STALE, SPARKS, LARGE)
            if report is None:
                if search_causes(error, _OF_FORM):  # looked-up values may be large: each part has a job then
                    self._large.failed(attempt.txid)
                raise
            if report["kind"] == LARGE:
                self._large.failed(attempt.txid)
            else:
                self._failed(report, attempt.txid, copies)
        if staged is None:
            watch.parts = 1
            watch.begin_run()
            return None
        self._worked(copies)
        self._large.worked()
        return staged

    def _promised(self, txid: int) -> Copies | None:
        """The copies as the worker will find them once it has the rows of the batch."""
        owner = self._copies
        copies = owner.promised(self._states, txid) if isinstance(owner, StateCopies) else None
        if copies is None:
            return None if owner is None else owner.as_of(self._states, txid)
        self._followed = txid
        self._follower.submit(self._follow_delayed, txid)
        return copies

    def _follow_delayed(self, txid: int) -> None:
        time.sleep(_JOB_SECS)
        assert isinstance(self._copies, StateCopies)
        self._copies.catch_up(self._states, txid)

    def stage(
        self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo, begin_jobs: Callable[[], None]
    ) -> tuple[Form, Files]:
        """Stages the rows of late states, in the transaction's turn.

        Args:
            staged: the rows of the boundaries, by name; others' are not looked at.
            begin_jobs: called before a Spark job.

        Returns:
            The form, and what was staged.
        """
        form = choose(self._able, self._size(staged), True, self._breaker.is_open(attempt.txid))
        assert form is not None, "a batch that is staged has a form"
        if form is Form.NOTHING:
            return form, {target.name: [] for target in self._staging.late}
        copies = None
        if form is Form.PASS and self._copies is not None:
            copies = self._copies.as_of(self._states, attempt.txid - 1)
        begin_jobs()
        if copies is not None:
            assert self._worker is not None
            try:
                with faults.fault_point(RESOLVE):
                    found = self._worker.stage(attempt, staged, info, copies)
            except Exception as error:
                report = find_report(error, STALE, SPARKS)
                if report is None:
                    if find_report(error) is None:  # not the user's: as where a worker has run out of memory
                        self._breaker.failed(attempt.txid)
                    raise
                self._failed(report, attempt.txid, copies)
            else:
                self._worked(copies)
                return form, found
        return Form.TABLES, self._by_spark(attempt, staged, info)

    def _worked(self, copies: Any) -> None:
        assert self._copies is not None
        self._breaker.worked()
        self._copies.served(copies)

    def _failed(self, report: Mapping[str, Any], txid: int, copies: Mapping[str, Any]) -> None:
        """Takes note of why a batch could not be computed with copies."""
        owner = self._copies
        if report["kind"] == SPARKS:
            log.info("transaction %d of group %s reads the tables: %s", txid, self._plan.name, report["error"])
            self._breaker.failed(txid)
        elif isinstance(owner, HostCopies):
            owner.failed(report["state"], report["error"], bool(report.get("building")))
        elif owner is not None:
            owner.damaged(report["state"], copies[report["state"]], report["error"])

    def close(self) -> None:
        self._follower.shutdown(timeout_secs=_CLOSE_SECS)

    def _size(self, staged: Staged) -> Rows:
        files = [staged[one.name] for one in self._staging.boundaries]
        return Rows(not (self._always or any(files)), max(map(bytes_of, files), default=0))

    def _by_spark(self, attempt: TransactionAttempt, staged: Staged, info: BatchInfo) -> Files:
        ordered, to = self._plan.lowered.late_order, self._staging
        inputs = {one.name: one.frame(self._spark, staged[one.name], ordered) for one in to.boundaries}
        stored = partial(self._reader, txid=attempt.txid - 1)
        rows = sum(file.num_records for one in to.boundaries for file in staged[one.name])
        with self._plan.build_late(inputs, info, stored, rows) as frames, faults.fault_point(RESOLVE):
            return stage(frames, to.late, to.incarnation, attempt, to.codec)


def _works_on_nothing(plan: "GroupPlan") -> bool:
    """Tells whether the late part does something for a batch without rows, such as windows that are due."""
    if plan.lowered.late_gives_rows_for_empty_batch:
        return True
    if any(getattr(binding.aggregator, "unit", None) is Unit.PROCESSING_TIME for binding in plan.bindings):
        return True
    return any(
        binding.name in plan.late_states
        and not binding.keys
        and binding.aggregator is not None
        and not hasattr(binding.aggregator, "update_state")
        for binding in plan.bindings
    )
