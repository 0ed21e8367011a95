"""Answers many requests at once: by one Spark job, or in the leader's process from local copies of states."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from trident.planning.nodes import RESULT
from trident.planning.requests import DrpcPlan
from trident.planning.session_frames import Batch, SessionFrames
from trident.spark.jars import kept_plan_class
from trident.spark.kept_plan import KeptPlan, NotKept
from trident.spark.rows import RowsSlot, arrow_rows
from trident.states.core import spark_jobs
from trident.states.core.local_copy import CopyAsOf, StaleCopy
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.state_copy import LogIsAhead
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.failures import STALE, LeftToSpark, find_report
from trident.workers.requests import (
    ALONE,
    ANSWERED,
    FAILED,
    LATER,
    MOVED,
    Answers,
    Outcome,
    RequestBatch,
    RequestId,
    read_answers,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Answers requests in the leader's process from the local copies of states: no Spark job, no code of the user's.


# Longer arguments may become more rows than this process should work on beside its threads.
_ARGUMENT_CHARS_MAX = 64 << 10
# So long a transaction that is published and not advanced yet is waited for.
_ADVANCES_SECS = 0.05
_LOOK_UP_TRIES = 10


def is_long(values: Sequence[Any]) -> bool:
    """Tells whether a request's arguments may become more rows than should be held beside those of others."""
    return length(values) > _ARGUMENT_CHARS_MAX


def length(values: Sequence[Any]) -> int:
    """The characters and bytes of a request's arguments."""
    return sum(len(value) for value in values if isinstance(value, (str, bytes)))


class StatesAsOf:
    """The local copies of the states that functions ask, as of the last advanced transactions.

    Args:
        copies: batch group → the copies of its states; None: it has none here.
        advanced: batch group → a function that gives its last advanced txid.
        workers_are_here: Spark's tasks run on this host, and so find the copies.
    """

    def __init__(
        self,
        copies: Callable[[str], StateCopies | None],
        advanced: Mapping[str, Callable[[], int]],
        workers_are_here: bool = True,
    ) -> None:
        self._copies, self._advanced, self.workers_are_here = copies, advanced, workers_are_here
        self._known: dict[tuple[str, frozenset[str]], tuple[int, dict[str, CopyAsOf]]] = {}
        self._locks = {group: threading.Lock() for group in advanced}

    def pinned(self, plan: DrpcPlan) -> dict[str, int]:
        """The last advanced transaction of each group that a function asks."""
        return {group: self._advanced[group]() for group in plan.groups}

    def get(self, plan: DrpcPlan, as_of: Mapping[str, int]) -> dict[str, CopyAsOf] | None:
        """The copies of the states of a function as of these transactions; None where one of them has none.

        Raises:
            LogIsAhead: a state's log has a later transaction already, which is about to advance.
        """
        found: dict[str, CopyAsOf] = {}
        for group, txid in as_of.items():
            copied = plan.copied_states
            states = frozenset(name for name, (_, of) in plan.states.items() if of == group and name in copied)
            if not states:
                continue
            with self._locks[group]:  # one thread brings them on; the others find them
                known = self._known.get((group, states))
                if known is None or known[0] != txid:
                    copies = self._copies(group)
                    made = None if copies is None else copies.as_of_unless_ahead(states, txid)
                    if made is None:
                        return None
                    known = self._known[group, states] = (txid, made)
            found |= known[1]
        return found

    def for_tasks(self, plan: DrpcPlan, as_of: Mapping[str, int]) -> dict[str, CopyAsOf] | None:
        """As ``get``, for Spark's tasks; None also where they do not find the copies."""
        return self.get(plan, as_of) if self.workers_are_here else None

    def moved(self, plan: DrpcPlan, as_of: Mapping[str, int], deadline: float) -> bool:
        """Waits for a transaction that is published and will advance; False where none does."""
        end = min(deadline, time.monotonic() + _ADVANCES_SECS)
        while time.monotonic() < end:
            if self.pinned(plan) != as_of:
                return True
            time.sleep(0.001)
        return False

    def could_not_use(self, plan: DrpcPlan, used: Mapping[str, CopyAsOf], error: BaseException) -> None:
        """A copy was not what its mark says: the next request asks for it anew.

        Most often it has gone on since. One that has not is damaged, and is built again.
        """
        for group in plan.groups:
            with self._locks[group]:
                for key in [key for key in self._known if key[0] == group]:
                    del self._known[key]
        report = find_report(error, STALE)
        if report is not None and report["state"] in used:
            copies = self._copies(plan.states[report["state"]][1])
            if copies is not None:
                copies.damaged(report["state"], used[report["state"]], report["error"])


class InProcessAnswers:
    """Answers the requests of functions all of whose steps are the framework's own.

    Args:
        binary_as_bytes: the session's setting for rows that are collected.
    """

    def __init__(self, states: StatesAsOf, binary_as_bytes: bool) -> None:
        self._states, self._binary_as_bytes = states, binary_as_bytes

    def answer(
        self, plan: DrpcPlan, values: tuple[Any, ...], info: BatchInfo, deadline: float
    ) -> tuple[list[Row], dict[str, int]] | None:
        """The rows of an answer and the transactions that it is as of; None: Spark is to answer.

        Each state that it reads is as of the same transaction of its group: a look-up asks for the copy's mark.
        """
        if plan.in_driver is None or is_long(values):
            return None
        inputs = {plan.function: arrow_rows([values], plan.arguments)}
        for _ in range(_LOOK_UP_TRIES):
            as_of = self._states.pinned(plan)
            try:
                copies = self._states.get(plan, as_of)
            except LogIsAhead:
                if not self._states.moved(plan, as_of, deadline):
                    return None
                continue
            if copies is None:
                return None
            try:
                return self.rows(plan.in_driver.run(inputs, info, copies)[RESULT], plan.result), as_of
            except StaleCopy as error:
                self._states.could_not_use(plan, copies, error)
            except (LeftToSpark, PySparkException, pa.ArrowException, ArithmeticError, TypeError, ValueError):
                return None  # Spark says what becomes of it
        return None

    def rows(self, table: pa.Table, schema: StructType) -> list[Row]:
        """Rows as Spark's ``collect`` gives them."""
        times = [at for at, field in enumerate(schema) if isinstance(field.dataType, TimestampType)]
        fields = list(schema)
        for at in times:  # PySpark's way from Arrow loses which one of an hour that comes twice it is
            table = table.set_column(at, fields[at].name, table.column(at).cast(pa.int64()))
            fields[at] = StructField(fields[at].name, LongType())
        whole = StructType(fields)
        rows = ArrowTableToRowsConversion.convert(table, whole, binary_as_bytes=self._binary_as_bytes)
        found = [row for row in rows if isinstance(row, Row)]
        return [_with_times(row, times) for row in found] if times else found


def _with_times(row: Row, times: Sequence[int]) -> Row:
    values = list(row)
    for at in times:
        values[at] = None if values[at] is None else TimestampType().fromInternal(values[at])
    return Row(**dict(zip(row.__fields__, values, strict=True)))


# Collects requests to a function that wait, so that one Spark job answers many of them.
#
# As a database commits several transactions by one write, the requests that come while a job runs go together into the
# next one. A job takes as many as it can probably answer in ``_BATCH_SECS``. Each of them is answered for itself, as of
# the same transactions; where a job fails or takes long, each of its requests goes on in a job of its own, so that only
# the one that is to blame has the trouble.


log = logging.getLogger("trident.drpc")
# As many requests as a job can probably answer in this time, and never more than so many.
_BATCH_SECS = 0.2
REQUESTS_MAX = 64
# While it is not known how long a request takes.
_FIRST = 8
# A job takes no further request where those that it has are so long together, in characters and bytes.
_LENGTH_MAX = 1 << 20
# Requests of a job that takes longer are asked again, each alone.
SLOW_SECS = 1.0
# One job is computed while the next is prepared; of requests that take a job each, more run side by side.
_JOBS, _JOBS_ALONE = 2, 16
# Of all functions and leaderships in this process: no job group is of two jobs.
_NUMBERS = itertools.count(1)
# How often states may move on between the look at their transaction and their look-up.
_TRIES = 5
# The weight of the last request in the mean time of one.
_WEIGHT = 0.2


@dataclass(eq=False)
class Waiting:
    """A request that waits for its answer.

    Attributes:
        answer: cancelled where its caller has gone.
        tries: how often a state had moved on.
        job: that is to answer it.
    """

    request_id: str
    values: tuple[Any, ...]
    deadline: float
    answer: Future[tuple[list[Row], dict[str, int]]] = field(default_factory=Future)
    tries: int = 0
    job: Job | None = None


@dataclass(eq=False)
class Job:
    """Requests that are answered by one Spark job.

    Attributes:
        name: its job group; of one request with the request's id.
        given_up: it was cancelled, and its requests are elsewhere.
        ended: its thread settles its requests: it is given up no more.
    """

    name: str
    waiting: Sequence[Waiting]
    began: float
    given_up: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Found:
    """The result of a job.

    Attributes:
        rows: of all answers, one behind the other.
    """

    outcomes: Sequence[Outcome]
    rows: Sequence[Row]
    as_of: dict[str, int]


class PinnedStateMoved(Exception):
    """A state cannot be read as of the transaction that was pinned: one more try, or each request by Spark alone."""


class RequestBatcher:
    """Batches the requests to one function into jobs.

    Args:
        run: answers the requests of a job; None: there are no local copies, each is to go alone.
            Raises what Spark raises.
        alone: answers a request by Spark, in a job of its own, on another thread.
        fails: (a failure's text with its report, request id) → what the caller is told; None: it is to go alone.
        cancel: ends the Spark jobs of a job group.
        submit: runs a call on another thread.
    """

    def __init__(
        self,
        plan: DrpcPlan,
        run: Callable[[DrpcPlan, Job], Found | None],
        alone: Callable[[DrpcPlan, Waiting], None],
        fails: Callable[[DrpcPlan, str, str], Exception | None],
        cancel: Callable[[str], None],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._plan, self._run_job, self._alone, self._fails = plan, run, alone, fails
        self._cancel, self._submit = cancel, submit
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._singles: deque[Waiting] = deque()
        self._running: set[Job] = set()
        self._threads, self._secs = 0, 0.0
        self._closed = False

    def put(self, waiting: Waiting) -> None:
        """Has a request answered, in its future."""
        with self._lock:
            if self._closed:
                waiting.answer.cancel()
                return
            self._waiting.append(waiting)
        self._begin()

    def check_progress(self, waiting: Waiting) -> None:
        """Called where a caller waits for long: another request may keep its job from ending."""
        with self._lock:
            job = waiting.job
            if job is not None:
                if len(job.waiting) == 1 or not _is_slow(job) or job.given_up or job.ended or self._closed:
                    return
                job.given_up = True
                self._secs = max(self._secs, SLOW_SECS)  # requests go alone until they are seen to be quick
                self._again(job.waiting)
        if job is None:  # jobs of one request may hold all threads
            self._begin()
            return
        log.info("requests of function %s take long: each gets a job of its own", self._plan.function)
        self._cancel(job.name)
        self._begin()

    def leave(self, waiting: Waiting) -> None:
        """Its caller has gone: a job is cancelled with the last of its callers."""
        waiting.answer.cancel()
        with self._lock:
            job = waiting.job
            if job is None or job.given_up or job.ended or not all(one.answer.done() for one in job.waiting):
                return
            job.given_up = True
        self._cancel(job.name)

    def close(self) -> None:
        """Ends what waits and runs; the futures are cancelled."""
        with self._lock:
            self._closed = True
            running = list(self._running)
            waiting = [*self._waiting, *self._singles, *(one for job in running for one in job.waiting)]
        for one in waiting:
            one.answer.cancel()
        for job in running:
            self._cancel(job.name)

    # --- jobs -----------------------------------------------------------------------------

    def _again(self, waiting: Sequence[Waiting]) -> None:
        """Each is to have a job of its own. With the lock held."""
        for one in waiting:
            one.job = None
        self._singles.extend(waiting)

    def _begin(self) -> None:
        """Begins one more thread of jobs, where one more job may run."""
        with self._lock:
            # A job that takes long keeps no other request from its turn.
            more = min(_JOBS + sum(map(_is_slow, self._running)), _JOBS_ALONE)
            at_once = _JOBS_ALONE if self._singles or self._limit() == 1 else more
            if self._closed or self._threads >= at_once or not (self._waiting or self._singles):
                return
            self._threads += 1
        try:
            self._submit(self._jobs)
        except RuntimeError as error:  # none can be begun now: the next request, or a caller that waits, tries again
            log.info("no thread for requests of function %s: %s", self._plan.function, error)
            with self._lock:
                self._threads -= 1

    def _jobs(self) -> None:
        while (job := self._take()) is not None:
            self._begin()
            try:
                self._answer(job)
            except Exception as error:  # not the job's, whose errors are answers too
                log.exception("requests of function %s could not be settled", self._plan.function)
                for one in job.waiting if not job.given_up else ():
                    fail(one.answer, error)
            finally:
                with self._lock:
                    self._running.discard(job)

    def _take(self) -> Job | None:
        """The requests of the next job; None where the thread is to end."""
        with self._lock:
            taken: list[Waiting] = []
            size = 0
            from_ = self._singles if self._singles else self._waiting
            limit = 1 if self._singles else self._limit()
            while from_ and len(taken) < limit and size < _LENGTH_MAX and not self._closed:
                one = from_.popleft()
                if not one.answer.done():
                    taken.append(one)
                    size += length(one.values)
            if not taken:
                if not (self._waiting or self._singles) or self._closed:
                    self._threads -= 1
                    return None
            name = taken[0].request_id if len(taken) == 1 else f"{self._plan.function}-{next(_NUMBERS)}"
            job = Job(f"trident-drpc-{name}", taken, time.monotonic())
            for one in taken:
                one.job = job
            self._running.add(job)
            return job

    def _limit(self) -> int:
        if not self._secs:
            return _FIRST
        return max(1, min(REQUESTS_MAX, int(_BATCH_SECS / self._secs)))

    def _answer(self, job: Job) -> None:
        if not job.waiting:
            return
        try:
            found = self._run_job(self._plan, job)
        except PinnedStateMoved:
            if not self._was_given_up(job):
                self._retry(job.waiting)
        except Exception as error:
            self._failed(job, error)
        else:
            elsewhere = self._was_given_up(job)
            if found is not None:
                self._settle(job, found, elsewhere)
            elif not elsewhere:
                self._run_alone(job.waiting)

    def _was_given_up(self, job: Job) -> bool:
        """Tells whether a job that has ended was given up; from here on it is not."""
        with self._lock:
            job.ended = True
            return job.given_up

    def _failed(self, job: Job, error: Exception) -> None:
        """The job failed as a whole: a worker died, or it was cancelled."""
        with self._lock:
            job.ended = True
            if job.given_up or self._closed:
                return
            several = len(job.waiting) > 1
            if several:
                log.info("a job of %d requests failed: each is tried alone", len(job.waiting), exc_info=error)
                self._again(job.waiting)
        if not several:
            self._run_alone(job.waiting)

    def _settle(self, job: Job, found: Found, elsewhere: bool) -> None:
        """Gives the requests their answers.

        Args:
            elsewhere: those without one have a job of their own already.
        """
        later: list[Waiting] = []
        moved: list[Waiting] = []
        alone: list[Waiting] = []
        at = 0
        for one, outcome in zip(job.waiting, found.outcomes, strict=True):
            if outcome.kind in (ANSWERED, FAILED):
                self._learn(outcome.secs)
            if outcome.kind == ANSWERED:
                rows = list(found.rows[at : at + outcome.rows])
                at += outcome.rows
                settle(one.answer, (rows, found.as_of))
            elif outcome.kind == FAILED:
                caller_error = self._fails(self._plan, outcome.error, one.request_id)
                if caller_error is None:
                    alone.append(one)
                else:
                    fail(one.answer, caller_error)
            else:
                {LATER: later, MOVED: moved, ALONE: alone}[outcome.kind].append(one)
        if elsewhere:
            return
        self._retry(moved)
        self._run_alone(alone)
        self._put_back(later)

    def _retry(self, waiting: Sequence[Waiting]) -> None:
        for one in waiting:
            one.tries += 1
        self._run_alone([one for one in waiting if one.tries >= _TRIES])
        self._put_back([one for one in waiting if one.tries < _TRIES])

    def _put_back(self, waiting: Sequence[Waiting]) -> None:
        """They are the first of the next job."""
        with self._lock:
            for one in waiting:
                one.job = None
            self._waiting.extendleft(reversed(waiting))

    def _run_alone(self, waiting: Sequence[Waiting]) -> None:
        for one in waiting:
            with self._lock:
                one.job = None
            if not one.answer.done():
                self._alone(self._plan, one)

    def _learn(self, secs: float) -> None:
        with self._lock:
            self._secs = secs if not self._secs else (1 - _WEIGHT) * self._secs + _WEIGHT * secs


def _is_slow(job: Job) -> bool:
    return time.monotonic() - job.began > SLOW_SECS


def settle(answer: Future[Any], result: Any) -> None:
    """Gives a future its result, unless its caller has gone."""
    try:
        answer.set_result(result)
    except InvalidStateError:
        pass


def fail(answer: Future[Any], error: BaseException) -> None:
    """Gives a future its error, unless its caller has gone."""
    try:
        answer.set_exception(error)
    except InvalidStateError:
        pass


_REQUESTED = StructType([StructField("asked", BinaryType(), False)])
_ANSWERED = StructType([StructField(name, StringType(), False) for name in ("outcomes", "rows")])
_PROPERTY = "trident.requests"
_NONE = BatchInfo(RequestId(""))


class SharedJobs:
    """Answers the requests of a job, all as of the same transactions. May be called from several threads at once.

    Args:
        info: state → the transaction as of which it is read, to what the requests of a job are told of it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        topology: str,
        states: StatesAsOf,
        here: InProcessAnswers,
        info: Callable[[Mapping[str, int]], BatchInfo],
    ) -> None:
        self._spark, self._topology, self._states, self._here, self._info = spark, topology, states, here, info
        self._jobs: dict[str, RequestJobs] = {}
        self._lock = threading.Lock()

    def __call__(self, plan: DrpcPlan, job: Job) -> Found | None:
        """The result of a job; None: there are no local copies for it.

        Raises:
            Moved: a state has gone on from the transactions that were pinned.
            Exception: Spark's, where the job failed: none of the requests is answered.
        """
        with self._lock:
            if plan.function not in self._jobs:
                self._jobs[plan.function] = RequestJobs(self._spark, plan)
            jobs = self._jobs[plan.function]
        as_of, copies = self._states.pinned(plan), {}
        if plan.copied_states:
            try:
                found = self._states.for_tasks(plan, as_of)
            except LogIsAhead as error:
                if not self._states.moved(plan, as_of, max(one.deadline for one in job.waiting)):
                    return None
                raise PinnedStateMoved from error
            if found is None:
                return None
            copies = found
        context = self._spark.sparkContext
        count = f"{len(job.waiting)} requests" if len(job.waiting) > 1 else job.waiting[0].request_id
        context.setJobGroup(job.name, f"{self._topology} {plan.function} {count}")
        context.setLocalProperty("spark.scheduler.pool", spark_jobs.REQUESTS)
        ids = [one.request_id for one in job.waiting]
        rows = arrow_rows([one.values for one in job.waiting], plan.arguments)
        info = self._info({name: as_of[group] for name, (_, group) in plan.states.items()})
        outcomes, table = jobs.run(RequestBatch(ids, rows, info, copies))
        for outcome in outcomes:
            if outcome.kind == MOVED:
                self._states.could_not_use(plan, copies, RuntimeError(outcome.error))
                break
        return Found(outcomes, [] if table is None else self._here.rows(table, plan.result), as_of)


class RequestJobs:
    """Answers requests to one function by Spark jobs of one task each. May be called from several threads at once."""

    def __init__(self, spark: "SparkSession", plan: DrpcPlan) -> None:
        self._spark = spark
        serializer: Any = CloudPickleSerializer()
        pickled = serializer.dumps(plan.together)
        frames: Any = SessionFrames(spark)
        self._pass = frames.map_in_arrow(Answers(pickled, plan.function, RESULT), _REQUESTED.names, _ANSWERED, False)
        self._kept = KeptPlan(spark, kept_plan_class(spark.sparkContext), f"function {plan.function}")

    def run(self, batch: RequestBatch) -> tuple[list[Outcome], pa.Table | None]:
        """The outcome of each request, and the rows of those that were answered, in one job of the thread's group.

        Raises:
            Exception: Spark's, where the job failed: none of the requests is answered.
        """
        table = pa.table([pa.array([batch.pickled()], pa.binary())], names=_REQUESTED.names)
        slot = RowsSlot(self._spark, table, _REQUESTED)
        try:
            (answer,) = self._kept.rows(
                {_PROPERTY: slot.rows}, lambda kept: nullcontext(self._frame(slot.over(kept, _PROPERTY).coalesce(1)))
            )
            return read_answers(answer["outcomes"], answer["rows"])
        except NotKept:
            ((outcomes, rows),) = self._frame(slot.frame().coalesce(1)).collect()
            return read_answers(outcomes, rows)

    def _frame(self, batch: "DataFrame") -> "DataFrame":
        return self._pass(batch, Batch(_NONE))
