"""Collects requests to a function that wait, so that one Spark job answers many of them.

As a database commits several transactions by one write, the requests that come while a job runs go together into the
next one. A job takes as many as it can probably answer in ``_BATCH_SECS``. Each of them is answered for itself, as of
the same transactions; where a job fails or takes long, each of its requests goes on in a job of its own, so that only
the one that is to blame has the trouble.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row

from trident.drpc.in_driver import length
from trident.planning.requests import DrpcPlan
from trident.workers.requests import ALONE, ANSWERED, FAILED, LATER, MOVED, Outcome

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


class Moved(Exception):
    """A state cannot be read as of the transaction that was pinned: one more try, or each request by Spark alone."""


class Together:
    """The requests to one function.

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

    def look(self, waiting: Waiting) -> None:
        """A caller waits for long: its job may be one that another request keeps from ending."""
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
        log.info("requests of function %s take long: each is asked in a job of its own", self._plan.function)
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
        except Moved:
            if not self._was_given_up(job):
                self._moved(job.waiting)
        except Exception as error:
            self._failed(job, error)
        else:
            elsewhere = self._was_given_up(job)
            if found is not None:
                self._settle(job, found, elsewhere)
            elif not elsewhere:
                self._go_alone(job.waiting)

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
                log.info("a job of %d requests failed: each goes on alone", len(job.waiting), exc_info=error)
                self._again(job.waiting)
        if not several:
            self._go_alone(job.waiting)

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
                told = self._fails(self._plan, outcome.error, one.request_id)
                if told is None:
                    alone.append(one)
                else:
                    fail(one.answer, told)
            else:
                {LATER: later, MOVED: moved, ALONE: alone}[outcome.kind].append(one)
        if elsewhere:
            return
        self._moved(moved)
        self._go_alone(alone)
        self._put_back(later)

    def _moved(self, waiting: Sequence[Waiting]) -> None:
        for one in waiting:
            one.tries += 1
        self._go_alone([one for one in waiting if one.tries >= _TRIES])
        self._put_back([one for one in waiting if one.tries < _TRIES])

    def _put_back(self, waiting: Sequence[Waiting]) -> None:
        """They are the first of the next job."""
        with self._lock:
            for one in waiting:
                one.job = None
            self._waiting.extendleft(reversed(waiting))

    def _go_alone(self, waiting: Sequence[Waiting]) -> None:
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
