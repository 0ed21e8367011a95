"""Requests to DRPC streams: each is answered beside the batches, from states as of transactions that have advanced.

A request has no place in the commit order and writes nothing, to ZooKeeper
neither. When it starts it is *pinned*: of every batch group that it asks, to
the last advanced transaction. A Delta state is read as of exactly that, and so
are memory maps. A map of the user's keeps at most the value before its last
transaction; where that is too new the request is pinned again and answered
anew: nothing that it computed has been seen by anybody.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from trident.coordinators.errors import ConfigError, DrpcError, DrpcTimeout, NotLeading, UnknownFunction
from trident.drpc.request_jobs import (
    SLOW_SECS,
    InProcessAnswers,
    RequestBatcher,
    SharedJobs,
    StatesAsOf,
    Waiting,
    fail,
    is_long,
    settle,
)
from trident.drpc.values import arguments
from trident.planning.nodes import RESULT
from trident.planning.requests import DrpcPlan
from trident.spark.jobs import cancel_group
from trident.spark.rows import to_dataframe
from trident.states.core import spark_jobs
from trident.states.core.addresses import is_local_master
from trident.states.core.binding import InProcessKind, StateBinding
from trident.states.core.place import Place
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.reading import StoredFrames
from trident.states.publishing.user_tasks import BatchInfo
from trident.udf.signatures import users_error
from trident.workers.failures import UserCodeFailed, find_report
from trident.workers.requests import RequestId
from trident.workers.states import NewerThanRequested

log = logging.getLogger("trident.drpc")
TIMEOUT_SECS = 30.0
# This many requests run at once; further ones wait, and their time runs.
_AT_ONCE = 16
# How often a request is pinned again because a map has gone on in the meantime.
_PINS = 10
# Threads that run jobs of several requests: at most two for a function, or one for each of its slow requests.
_JOBS_AT_ONCE = 32


class Answer(list[Row]):
    """The rows of an answer.

    Attributes:
        function: that was asked.
        request_id: of the request.
        as_of: batch group → the transaction as of which its states were read, of each group that was asked.
    """

    def __init__(self, rows: Sequence[Row], function: str, request_id: str, as_of: Mapping[str, int]) -> None:
        super().__init__(rows)
        self.function, self.request_id, self.as_of = function, request_id, dict(as_of)


@dataclass(frozen=True)
class _Pin:
    """One request's view: group → txid, and the memory maps as of it."""

    as_of: dict[str, int]
    memory: dict[str, Mapping[tuple[Any, ...], Any]]


class _Newer(Exception):
    """A state can no longer be read as of the pinned transaction."""


class DrpcRequests:
    """Answers requests while a process leads its topology.

    Args:
        advanced: batch group → a function that gives its last advanced txid.
        copies: batch group → the local copies of its states; None: it has none here.
    """

    def __init__(
        self,
        spark: "SparkSession",
        warehouse: Place,
        topology: str,
        plans: Mapping[str, DrpcPlan],
        advanced: Mapping[str, Callable[[], int]],
        incarnation: str,
        epoch: int,
        copies: Callable[[str], StateCopies | None],
    ) -> None:
        self._spark, self._topology, self._plans, self._advanced = spark, topology, plans, advanced
        self._context, self._incarnation, self._epoch = spark.sparkContext, incarnation, epoch
        self._frames = StoredFrames(spark, warehouse)
        self._config = {"topology": topology, "spark_master": self._context.master}
        self._states = StatesAsOf(copies, advanced, is_local_master(self._context.master))
        as_bytes = (spark.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true") or "").lower() == "true"
        self._here = InProcessAnswers(self._states, as_bytes)
        self._threads = ThreadPoolExecutor(_AT_ONCE, f"trident-{topology}-drpc")
        self._job_threads = ThreadPoolExecutor(_JOBS_AT_ONCE, f"trident-{topology}-drpc-jobs")
        self._shared_jobs = SharedJobs(
            spark, topology, self._states, self._here, lambda as_of: self._info(RequestId(""), as_of)
        )
        self._together: dict[str, RequestBatcher] = {}
        self._running: dict[str, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def execute(
        self, function: str, given: Sequence[Any], named: Mapping[str, Any], timeout_secs: float = TIMEOUT_SECS
    ) -> Answer:
        """See ``TopologyQuery.execute``."""
        plan = find_plan(self._plans, function)
        values = arguments(function, plan.arguments, given, named)
        check_timeout(timeout_secs)
        request = RequestId(uuid.uuid4().hex)
        deadline = time.monotonic() + timeout_secs
        if not self._closed:
            here = self._here.answer(plan, values, self._info(request), deadline)
            if here is not None:
                return Answer(here[0], function, request.request_id, here[1])
        waiting = Waiting(request.request_id, values, deadline)
        together = self._of_function(plan) if plan.together is not None and not is_long(values) else None
        if together is not None:
            together.put(waiting)
        else:
            self._alone(plan, waiting)
        try:
            self._wait(waiting, together)
            if not waiting.answer.done():
                raise DrpcTimeout(
                    f"request {request} of function {function!r} was not answered in time; its jobs are cancelled",
                    found=f"more than {timeout_secs:.3g} s",
                    action="give it more time with timeout_secs, or ask for less",
                )
            rows, as_of = waiting.answer.result()
            return Answer(rows, function, request.request_id, as_of)
        except CancelledError:
            raise not_leading(self._topology) from None
        except Exception as error:
            if self._closed and not isinstance(error, DrpcTimeout):
                raise not_leading(self._topology) from error
            raise
        finally:
            if together is not None and not waiting.answer.done():  # too late, or the caller was interrupted
                together.leave(waiting)  # first: from here on no job of its own begins
            with self._lock:
                alone = self._running.pop(request.request_id, None)
            if alone is not None:
                self._cancel(request.request_id, alone)

    def _wait(self, waiting: Waiting, together: RequestBatcher | None) -> None:
        """Waits until a request is answered, or its time is over."""
        while (left := waiting.deadline - time.monotonic()) > 0:
            try:
                waiting.answer.exception(left if together is None else min(left, SLOW_SECS))
                return
            except CancelledError:
                return
            except FutureTimeout:
                if together is not None:
                    together.check_progress(waiting)

    def close(self) -> None:
        """Ends what runs; those who wait are told that this process does not lead any more."""
        with self._lock:
            self._closed = True
            running, together = dict(self._running), list(self._together.values())
        for function in together:
            function.close()
        for request_id, answer in running.items():
            self._cancel(request_id, answer)
        self._job_threads.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- requests that share jobs --------------------------------------------------------------

    def _of_function(self, plan: DrpcPlan) -> RequestBatcher:
        with self._lock:
            if self._closed:
                raise not_leading(self._topology)
            if plan.function not in self._together:
                self._together[plan.function] = RequestBatcher(
                    plan, self._shared_jobs, self._alone, _failure, self._cancel_group, self._job_threads.submit
                )
            return self._together[plan.function]

    def _alone(self, plan: DrpcPlan, waiting: Waiting) -> None:
        """Has a request answered by Spark jobs of its own."""
        request = RequestId(waiting.request_id)
        with self._lock:
            if self._closed or waiting.answer.done():
                waiting.answer.cancel()
                return
            answer = self._threads.submit(self._answer, plan, waiting.values, request, waiting.deadline)
            self._running[request.request_id] = answer
        answer.add_done_callback(partial(self._hand_over, waiting))

    def _hand_over(self, waiting: Waiting, done: "Future[Answer]") -> None:
        """Gives a request the answer that it got alone."""
        with self._lock:
            self._running.pop(waiting.request_id, None)
        if done.cancelled():
            waiting.answer.cancel()
            return
        error = done.exception()
        if error is not None:
            fail(waiting.answer, error)
        else:
            settle(waiting.answer, (list(done.result()), done.result().as_of))

    # --- one request, in a thread of its own ---------------------------------------------------

    def _answer(self, plan: DrpcPlan, values: tuple[Any, ...], request: RequestId, deadline: float) -> Answer:
        self._context.setJobGroup(_job_group(request.request_id), f"{self._topology} {plan.function} {request}")
        self._context.setLocalProperty("spark.scheduler.pool", spark_jobs.REQUESTS)
        schema = plan.arguments
        argument_rows = to_dataframe(self._spark, [values], schema).coalesce(1)
        for last in [False] * (_PINS - 1) + [True]:
            pin = self._pin(plan, deadline)
            try:
                return Answer(
                    self._rows(plan, argument_rows, request, pin), plan.function, request.request_id, pin.as_of
                )
            except (_Newer, SnapshotUnavailable) as newer:
                if isinstance(newer, SnapshotUnavailable) and not self._is_old(pin):
                    raise
                if last or time.monotonic() > deadline:
                    raise DrpcError(
                        f"request {request} of function {plan.function!r} cannot read its states as of one transaction",
                        found=f"a newer value each of {_PINS} times: {newer}",
                        action="a map keeps one or two transactions: ask again, make batches larger, or keep the state "
                        "in a DeltaMapState, which can be read as of any transaction",
                    ) from newer
                self._wait_for_newer(pin, deadline)
        raise AssertionError("the last try returns or raises")

    def _info(self, request: RequestId, as_of: Mapping[str, int] | None = None) -> BatchInfo:
        return BatchInfo(request, self._incarnation, self._epoch, self._config, as_of)

    def _rows(self, plan: DrpcPlan, argument_rows: "DataFrame", request: RequestId, pin: _Pin) -> list[Row]:
        as_of = {name: pin.as_of[group] for name, (_, group) in plan.states.items()}
        info = self._info(request, as_of)

        def stored(binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
            return self._frames(binding, keys, as_of[binding.name], pin.memory.get(binding.name))

        try:
            with plan.build(argument_rows, info, stored) as built:
                return built[RESULT].collect()
        except Exception as error:
            translated = _translated(error, plan.function, request)
            if translated is error:
                raise
            raise translated from translated.__cause__

    def _pin(self, plan: DrpcPlan, deadline: float) -> _Pin:
        """The transactions to read as of: the last advanced ones, with the memory maps as of the same."""
        while True:
            as_of = {group: self._advanced[group]() for group in plan.groups}
            memory = {
                name: binding.state_kind.entries_as_of(binding, as_of[group], self._incarnation)
                for name, (binding, group) in plan.states.items()
                if isinstance(binding.state_kind, InProcessKind)
            }
            found = {name: entries for name, entries in memory.items() if entries is not None}
            if len(found) == len(memory):
                return _Pin(as_of, found)
            if time.monotonic() > deadline:
                raise DrpcTimeout(f"function {plan.function!r} was not answered in time")  # the caller has gone
            time.sleep(0.001)  # two transactions went by between the two looks

    def _wait_for_newer(self, pin: _Pin, deadline: float) -> None:
        """Waits for a published transaction to advance, which it will soon."""
        while time.monotonic() < deadline and not self._closed:
            if self._is_old(pin):
                return
            time.sleep(0.002)

    def _is_old(self, pin: _Pin) -> bool:
        return any(self._advanced[group]() > txid for group, txid in pin.as_of.items())

    def _cancel(self, request_id: str, answer: "Future[Answer]") -> None:
        if not answer.cancel():  # it has begun
            self._cancel_group(_job_group(request_id))

    def _cancel_group(self, job_group: str) -> None:
        try:
            cancel_group(self._context, job_group)
        except Exception as error:  # a session that is being stopped
            log.debug("cannot cancel %s: %s", job_group, error)


def find_plan(plans: Mapping[str, DrpcPlan], function: str) -> DrpcPlan:
    """The function's plan.

    Raises:
        UnknownFunction: there is none; with those there are.
    """
    if function not in plans:
        known = ", ".join(plans)
        raise UnknownFunction(
            f"there is no DRPC function {function!r}",
            found=repr(function),
            expected=f"one of {known}" if known else None,
            action=None if known else "declare it with topology.new_drpc_stream(function)",
        )
    return plans[function]


def check_timeout(timeout_secs: Any) -> None:
    """Raises ConfigError unless it is a number of seconds, more than none."""
    if isinstance(timeout_secs, bool) or not isinstance(timeout_secs, (int, float)) or not 0 < timeout_secs < 1e6:
        raise ConfigError("timeout_secs cannot be used", found=repr(timeout_secs), expected="seconds, more than 0")


def not_leading(topology: str, role: str | None = None) -> NotLeading:
    """The error of a process that cannot answer."""
    return NotLeading(
        f"this process does not lead topology {topology!r}, and only the leader answers requests",
        found=role,
        action="ask the process that leads; a standby answers once it has taken over",
    )


def _failure(plan: DrpcPlan, text: str, request_id: str) -> Exception | None:
    """The error of a request whose task failed with this text; None: a map has gone on, and it is asked anew."""
    error = _translated(UserCodeFailed(text), plan.function, RequestId(request_id))
    return None if isinstance(error, (_Newer, UserCodeFailed)) else error


def _job_group(request_id: str) -> str:
    return f"trident-drpc-{request_id}"


def _translated(error: Exception, function: str, request: RequestId) -> Exception:
    """Returns what a failed job means: a user's function raised, or a map has gone on; else the error itself."""
    report = find_report(error)
    if report is None:
        return error
    if report["error"].startswith(f"{NewerThanRequested.__name__}:"):
        return _Newer(report["error"].partition(": ")[2])
    where = f"request {request} of function {function!r}"
    return users_error(report, where, action="correct the function or the arguments")
