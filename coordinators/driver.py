"""Drives one batch group: carries out the commands of the pure coordinator (``master.py``) on threads.

One thread owns the state: it takes an event, calls ``step`` and hands the
commands to others, which report back with events:

- one thread asks readiness, begins attempts (in order, by construction); one that begins ahead of the window's free
  place is stored by the thread that commits, in the multi of the advance that frees it, or behind that;
- up to ``max_spout_pending`` threads run batches;
- one thread commits: resolve, prepare, decide, publish, commit the spouts, advance, strictly one at a time;
- one thread tells success, one cleans up, off the critical path.

Failures: before the decision an error becomes ``Failed``; from the decision on
it is retried with back-off, and at the cap the driver halts with the record
kept (docs/semantics.md 9.5). A lost session or a new leader ends the driver as deposed.
"""

from __future__ import annotations

import heapq
import logging
import queue
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators import faults, master
from trident.coordinators.errors import (
    AttemptCapReached,
    BatchError,
    BatchOutOfMemory,
    BatchTimeout,
    Deposed,
    Halted,
    OutcomeUnknown,
    SessionEnded,
    StaleState,
    StateAway,
)
from trident.coordinators.group_store import Begin, GroupStore
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.master import CoordinatorState, Limits, Mode
from trident.coordinators.ports import (
    AttemptHistory,
    BatchRunner,
    Beginning,
    Committer,
    FailedAttempt,
    Observer,
    PreparedBatch,
    ProcessedBatch,
    Published,
    SpoutHost,
)
from trident.coordinators.records import Decision, Marker
from trident.coordinators.retries import AttemptTimeouts, after_giving_up
from trident.coordinators.threads import THREADS, Threads, facts_of, working_on

log = logging.getLogger("trident.coordinator")
_NEVER: Any = object()
# How often a spout is told of a success before it is left to the next start.
_SUCCESS_TRIES = 3
# A spout that raises the same whenever it is asked is reported so often, and logged once.
_REPORT_AGAIN_SECS = 1.0
# Of a transaction's failures so many are kept with its manifest.
_FAILURES_KEPT = 8
SPOUT_COMMIT = faults.register("spout.commit", "telling a committer spout that its batch is published")
SUCCESS = faults.register("spout.success", "telling the spouts that a transaction has succeeded")


@dataclass
class _Work:
    """The driver's own notes on one attempt, kept between commands."""

    parent: TransactionAttempt | None
    timeout_factor: int
    started: float
    began_at: float
    timeout_secs: float | None = None
    unpinned: Mapping[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    processed: ProcessedBatch | None = None
    prepared: PreparedBatch | None = None
    decision: Decision | None = None
    published: Published | None = None
    duration_ms: dict[str, float] = field(default_factory=dict)


class GroupDriver:
    """Drives one batch group under one lease, from recovery to its end.

    Args:
        store: the group's ZooKeeper state, fenced by the lease.
        message_timeout_secs: bounds processing (see ``coordinators/retries.py``); None = unbounded.
        explain: says of an error what is behind it (a full disk); gives it back when it does not know more.
    """

    def __init__(
        self,
        store: GroupStore,
        spouts: SpoutHost,
        runner: BatchRunner,
        committer: Committer,
        observer: Observer,
        limits: Limits,
        message_timeout_secs: float | None,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        threads: Threads = THREADS,
    ) -> None:
        self._threads = threads
        self._store, self._spouts, self._runner, self._committer = store, spouts, runner, committer
        self._observer, self._limits = observer, limits
        self._message_timeout_secs, self._timeouts = message_timeout_secs, AttemptTimeouts(message_timeout_secs, {})
        self._explain = explain
        self._state = master.initial(limits)
        self._inbox: queue.SimpleQueue[master.Event] = threads.inbox()
        self._timers: list[tuple[float, int, master.Timer]] = []
        self._timer_count = 0
        self._work: dict[TransactionAttempt, _Work] = {}
        self._ended = threads.event()
        self._stopping = threads.event()  # wakes retries when the driver must end
        self._idle = threads.condition()
        self._ahead: Begin | None = None  # waits for the advance that frees its place
        self._ahead_lock = threads.lock()
        self._window_end = 0  # the greatest txid that may begin, as the coordinator knows it
        self._not_ready_at = 0.0  # when a question that got "not ready" was asked
        self._success_call: Future[None] | None = None  # telling the last success
        # After a take-over what counts is the first commit: the first transaction has the cores to itself.
        self._first_txid = 0
        self._first_over = threads.event()
        self.error: BaseException | None = None
        self.last_error: BaseException | None = None
        self.last_error_at = 0.0  # seconds since the epoch
        self._failures: dict[int, BaseException] = {}  # txid -> its last failure
        self._failed: dict[int, tuple[FailedAttempt, ...]] = {}  # txid -> its last failures
        self._alike: dict[int, tuple[str, int]] = {}  # txid -> its last failure as text, and how often it came in a row
        # Since when the spouts raise whenever they are asked whether they have something, and what; None: they do not.
        self.unready: tuple[float, Exception] | None = None
        self._unready_reported_at = 0.0
        name = f"trident-{store.group}"
        self._begin_pool = threads.pool(1, f"{name}-begin")
        self._batch_pool = threads.pool(max(1, 2 * limits.max_spout_pending), f"{name}-batch")
        self._commit_pool = threads.pool(1, f"{name}-commit")
        self._success_pool = threads.pool(1, f"{name}-success")
        self._clean_pool = threads.pool(1, f"{name}-clean")
        self._named = {"topology": store.topology, "group": store.group}
        self._thread = threads.thread(working_on(self._loop, **self._named), f"{name}-coordinator")
        self._started = False

    # --- control, from any thread ---------------------------------------------------------

    def start(self) -> None:
        """Reads ZooKeeper and goes on from what is there."""
        record, decision = self._store.record, self._store.decision
        decided = decision.attempt if decision else None
        # Those that a rollback took back say nothing of how long a transaction takes.
        tries = {txid: attempt_id - record.first_attempt(txid) for txid, attempt_id in record.attempts.items()}
        self._timeouts = AttemptTimeouts(self._message_timeout_secs, tries)
        if decision is not None:
            self._work[decision.attempt] = self._new_work(None, 1, decision)
        last = TransactionAttempt(record.last.txid, record.last.attempt_id) if record.last else None
        self._window_end = record.current_txid - 1 + self._limits.max_spout_pending
        self._first_txid = record.current_txid if decided is None else record.current_txid + 1
        if last is None:
            self._first_over.set()  # a first start: no spout waits for it
        used = TransactionAttempt(record.used.upto, record.used.attempt_id) if record.used else None
        self.post(master.Recovered(record.current_txid, dict(record.attempts), last, decided, used))
        self._started = True
        self._thread.start()

    def post(self, event: master.Event) -> None:
        self._inbox.put(event)

    def stop(self) -> None:
        """Finishes everything that is decided, then ends the driver."""
        self.post(master.StopRequested())

    def abandon(self) -> None:
        """The lease is lost: nothing more is written, and running attempts are cancelled."""
        self._stopping.set()
        self.post(master.LostLeadership())

    def wait(self, timeout_secs: float | None = None) -> bool:
        """True when the driver has ended, or was never started."""
        return not self._started or self._ended.wait(timeout_secs)

    def close(self) -> None:
        """Waits for this driver's threads: none of them outlives the lease unnoticed.

        A call of a user's that never returns is waited for without end; a caller that cannot wait leaves this behind.
        """
        for pool in (self._begin_pool, self._batch_pool, self._commit_pool, self._success_pool, self._clean_pool):
            pool.shutdown(wait=True)
        self._committer.close()

    @property
    def state(self) -> CoordinatorState:
        """The coordinator's state, for status; a value, never changed in place."""
        return self._state

    @property
    def last_advanced(self) -> int:
        """The last advanced txid, 0 before the first."""
        return self._store.record.current_txid - 1

    def began_at(self) -> dict[TransactionAttempt, float]:
        """When each live attempt began, seconds since the epoch."""
        return {attempt: work.began_at for attempt, work in list(self._work.items())}

    def wait_idle(self, deadline: float | None, check: Callable[[], None] = lambda: None) -> bool:
        """True once a readiness question asked after this call was answered "no" and nothing is in flight.

        Args:
            deadline: when to give up; None: never.
            check: called meanwhile, twice a second at least; an exception of its ends the waiting.
        """
        since = self._threads.monotonic()
        with self._idle:
            while not self._ended.is_set():
                state = self._state
                quiet = not state.live and state.next_txid > state.begun_to
                if quiet and self._not_ready_at >= since:
                    return True
                check()
                left = None if deadline is None else deadline - self._threads.monotonic()
                if left is not None and left <= 0:
                    return False
                self._idle.wait(0.5 if left is None else min(left, 0.5))
        return False

    # --- the loop ---------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._state.mode.ended:
                event = self._next_event()
                if event is None:
                    continue
                self._state, commands = master.step(self._state, event)
                for command in commands:
                    self._carry_out(command)
                with self._idle:
                    self._idle.notify_all()
        except BaseException as error:  # a bug: the coordinator must not go on with a state it does not trust
            if not self._threads.interpreter_ends():
                log.exception("the coordinator of %s failed", self._store.group)
            # else the interpreter ends and has closed the pools: nothing is lost, the next start goes on
            self.error = error
        finally:
            self._stopping.set()
            self._first_over.set()
            self._ended.set()
            with self._idle:
                self._idle.notify_all()

    def _next_event(self) -> master.Event | None:
        timeout = None
        if self._timers:
            due, _, timer = self._timers[0]
            timeout = due - self._threads.monotonic()
            if timeout <= 0:
                heapq.heappop(self._timers)
                return master.TimerFired(timer)
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None

    def _carry_out(self, command: master.Command) -> None:
        if isinstance(command, master.StartTimer):
            self._timer_count += 1
            due = self._threads.monotonic() + command.delay_secs
            heapq.heappush(self._timers, (due, self._timer_count, command.timer))
        elif isinstance(command, master.AskReady):
            self._begin_pool.submit(working_on(self._ask_ready, **self._named), command)
        elif isinstance(command, master.Begin):
            work = self._work[command.attempt] = self._new_work(command.parent, command.timeout_factor)
            work.timeout_secs = self._timeouts.secs(command.attempt, command.timeout_factor)
            self._begin_pool.submit(self._on(command.attempt, self._begin), command)
        elif isinstance(command, master.EmitBatch):
            self._batch_pool.submit(self._on(command.attempt, self._process), command.attempt)
        elif isinstance(command, master.Cancel):
            self._work.pop(command.attempt, None)
            self._take_ahead(command.attempt)
            self._batch_pool.submit(self._on(command.attempt, self._cancel), command.attempt)
        elif isinstance(command, master.Success):
            call = self._on(command.attempt, self._success)
            self._success_call = self._success_pool.submit(call, command.attempt)
        elif isinstance(command, master.End):
            self._on_end(command)
        else:
            handlers: dict[type, Callable[[Any], None]] = {
                master.Prepare: self._prepare,
                master.Decide: self._decide,
                master.Commit: self._commit,
                master.Advance: self._advance,
            }
            of_attempt: Any = command
            self._commit_pool.submit(self._on(of_attempt.attempt, handlers[type(command)]), command)

    def _on(self, attempt: TransactionAttempt, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose log records say which attempt it is for."""
        return working_on(call, **self._named, **facts_of(attempt))

    def _on_end(self, command: master.End) -> None:
        if command.mode is Mode.GAVE_UP:
            txid = command.txid or 0
            # Another transaction may have failed since, and be tried no more.
            cause, count = self._failures.get(txid, self.last_error), self._state.failures_of(txid)
            where = f"transaction {txid} of batch group {self._store.group!r}"
            same = count.same >= self._limits.max_same_failures
            if same:
                said = f"{where} fails the same way each time ({count.same} times in a row): {cause}"
            else:
                said = f"{where} failed {count.failures} times; the last error: {cause}"
            action = after_giving_up(self._store.topology, txid, cause, same)
            self.error = AttemptCapReached(said, txid=txid, action=action)
            # The place in this framework where a batch fails does not tell its reader why it did.
            self.error.__cause__ = cause.with_traceback(None) if isinstance(cause, BatchError) else cause

    # --- beginning and processing -----------------------------------------------------------

    def _ask_ready(self, command: master.AskReady) -> None:
        # A spout that has one transaction in flight says no while that is live, and yes after it.
        polled_at, nothing_live = self._threads.monotonic(), not self._state.live
        try:
            ready = self._spouts.is_ready(command.txid)
        except Exception as error:
            if self._ends_driver(error):
                return
            self._record_unready(error, polled_at)
            ready = False
        else:
            self.unready = None
            if not ready and nothing_live:
                self._not_ready_at = polled_at
        self.post(master.Ready(command.txid, ready))

    def _begin(self, command: master.Begin) -> None:
        attempt = command.attempt
        work = self._work.get(attempt)
        if work is None:
            return
        started = self._threads.monotonic()
        try:
            pins, committed = self._store.pins, self._store.partition_values
            initialized = self._spouts.initialize(
                Beginning(attempt, command.parent, pins, committed, command.shrink, work.timeout_secs)
            )
            wanted = initialized.pinned
            before = {tx_id: pins.get(tx_id, {}).get(attempt.txid) for tx_id in wanted}
            smaller = command.shrink and any(before[tx_id] not in (None, wanted[tx_id]) for tx_id in wanted)
        except Exception as error:
            self._fail(attempt, error)
            return
        work.unpinned = initialized.unpinned
        work.duration_ms["begin"] = self._ms(started)
        begin = Begin(attempt, command.parent, wanted, smaller)
        with self._ahead_lock:
            if attempt.txid > self._window_end:
                self._ahead = begin
                return
        self._store_begin(begin)

    def _store_begin(self, begin: Begin) -> None:
        work = self._work.get(begin.attempt)
        if work is None:
            return
        started = self._threads.monotonic()
        try:
            pinned = self._store.begin(*begin)
        except Exception as error:
            self._fail(begin.attempt, error)
            return
        work.duration_ms["begin"] += self._ms(started)
        self._began(begin.attempt, pinned)

    def _began(self, attempt: TransactionAttempt, pinned: Mapping[str, Any]) -> None:
        work = self._work.get(attempt)
        if work is not None:
            work.metadata = {**pinned, **work.unpinned}
            self._observer.began(attempt)
            self.post(master.Began(attempt))

    def _take_ahead(self, attempt: TransactionAttempt | None = None) -> Begin | None:
        """The begin that waits for an advance, of the attempt where one is named; it waits no more."""
        with self._ahead_lock:
            if self._ahead is None or attempt not in (None, self._ahead.attempt):
                return None
            ahead, self._ahead = self._ahead, None
            return ahead

    def _cancel(self, attempt: TransactionAttempt) -> None:
        self._runner.cancel(attempt)
        self._spouts.cancel(attempt)

    def _process(self, attempt: TransactionAttempt) -> None:
        work = self._work.get(attempt)
        if work is None:
            return  # cancelled before it started
        while attempt.txid > self._first_txid and not self._first_over.wait(0.1):
            pass
        if self._stopping.is_set() or attempt not in self._work:
            return
        started = self._threads.monotonic()
        try:
            work.processed = self._runner.process(attempt, work.metadata, work.timeout_secs)
        except Exception as error:
            self._fail(attempt, error)
            return
        work.duration_ms.update(work.processed.duration_ms)
        work.duration_ms["process"] = self._ms(started)
        self.post(master.Processed(attempt))

    def _fail(self, attempt: TransactionAttempt, error: Exception) -> None:
        """An error before the decision: it fails the attempt, ends the driver, or is late."""
        if self._ends_driver(error):
            return
        if attempt.txid <= self._first_txid:
            self._first_over.set()  # it waits before it is tried again, and the others need not
        meaning = self._explain(error)
        if attempt in self._work:  # a cancelled attempt's error concerns no caller
            self._failures = {
                txid: failure for txid, failure in self._failures.items() if txid >= self._state.current
            } | {attempt.txid: meaning}
            self._failed = self._failed_with(attempt, meaning)
            times = self._times_repeated(attempt, meaning)
            if times == 1:
                log.warning("attempt %s of %s/%s failed: %s", attempt, self._store.topology, self._store.group, meaning)
            else:
                log.info(
                    "attempt %s of %s/%s failed the same way: %d times in a row",
                    attempt,
                    self._store.topology,
                    self._store.group,
                    times,
                )
            self._record_failure(attempt, meaning)
        # A batch that did not fit into memory is tried smaller, like one that did not fit into its time.
        smaller = isinstance(meaning, (BatchTimeout, BatchOutOfMemory))
        self.post(master.Failed(attempt, smaller, getattr(meaning, "fingerprint", None)))

    def _failed_with(self, attempt: TransactionAttempt, error: BaseException) -> dict[int, tuple[FailedAttempt, ...]]:
        """The failures of transactions that have not advanced, and this one."""
        one = FailedAttempt(attempt.attempt_id, self._threads.wall_time(), str(error))
        found = {txid: of_txid for txid, of_txid in self._failed.items() if txid >= self._state.current}
        found[attempt.txid] = (*found.get(attempt.txid, ()), one)[-_FAILURES_KEPT:]
        return found

    def _times_repeated(self, attempt: TransactionAttempt, error: BaseException) -> int:
        """How often in a row a transaction has failed with one text; the attempt that it names does not count."""
        text = str(error).replace(str(attempt), "")
        self._alike = {txid: alike for txid, alike in self._alike.items() if txid >= self._state.current}
        before, times = self._alike.get(attempt.txid, ("", 0))
        times = times + 1 if text == before else 1
        self._alike[attempt.txid] = (text, times)
        return times

    def _record_unready(self, raised: Exception, polled_at: float) -> None:
        """The spouts have raised when they were asked for something, which they are ten times a second."""
        error = self._explain(raised)
        before, self.unready = self.unready, (self.unready[0] if self.unready else polled_at, raised)
        if before is None or str(self._explain(before[1])) != str(error):
            store = self._store
            log.warning("the spouts of %s/%s cannot say what waits: %s", store.topology, store.group, error)
        elif polled_at - self._unready_reported_at < _REPORT_AGAIN_SECS:
            return
        self._unready_reported_at = polled_at
        self._record_failure(TransactionAttempt(self._state.next_txid, -1), error)

    def _record_failure(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self.last_error, self.last_error_at = error, self._threads.wall_time()
        self._observer.failed(attempt, error)

    # --- committing: one thread, one attempt at a time ---------------------------------------

    def _prepare(self, command: master.Prepare) -> None:
        attempt = command.attempt
        work = self._work.get(attempt)
        if work is None or work.processed is None:
            return
        started = self._threads.monotonic()
        try:
            # The transaction before has advanced: lookups read the states as of it.
            work.processed = self._runner.resolve(attempt, work.processed, work.timeout_secs)
            work.duration_ms.update(work.processed.duration_ms)
            # Before it is decided: metadata that cannot be stored now never could be.
            self._store.check_advance(attempt.txid, self._opaque(work))
            story = AttemptHistory(work.began_at, self._failed.get(attempt.txid, ()))
            work.prepared = self._committer.prepare(attempt, work.parent, work.processed, self._store.record, story)
        except Exception as error:
            self._fail(attempt, error)
            return
        work.decision = work.prepared.decision
        work.duration_ms["prepare"] = self._ms(started)
        self.post(master.Prepared(attempt, empty=work.decision is None))

    def _decide(self, command: master.Decide) -> None:
        work = self._work[command.attempt]
        assert work.decision is not None
        decision, parent = work.decision, work.parent
        self._until_done(
            command.attempt, "decide", lambda: self._store.decide(decision, parent), master.Decided(command.attempt)
        )

    def _commit(self, command: master.Commit) -> None:
        work = self._work[command.attempt]
        assert work.decision is not None
        decision = work.decision

        def publish() -> None:
            work.published = self._committer.publish(decision, self._store.record)

        if not self._until_done(command.attempt, "publish", publish, None):
            return
        assert work.published is not None
        # A queue is acknowledged only when the data is durable.
        data = {
            tx_id: spout["commit_data"]
            for tx_id, spout in work.published.spouts.items()
            if spout.get("commit_data") is not None
        }

        def commit() -> None:
            if data:
                with faults.fault_point(SPOUT_COMMIT):
                    self._spouts.commit(command.attempt, data)

        self._until_done(command.attempt, "spout_commit", commit, master.Committed(command.attempt))

    def _advance(self, command: master.Advance) -> None:
        work = self._work[command.attempt]
        digest = work.decision.sha256 if work.decision else ""
        marker = Marker(command.attempt.txid, command.attempt.attempt_id, digest)

        # A crash right after this advance tells success of this transaction only: the one before must have heard.
        self._wait_success()

        begin = self._take_ahead()
        began: dict[str, Any] | None = None
        if begin is not None and (next_work := self._work.get(begin.attempt)) is not None:
            # From here on it is in the window: the time that it has waited for a place is not its own.
            secs = next_work.duration_ms["begin"] / 1000.0
            next_work.started, next_work.began_at = self._threads.monotonic() - secs, self._threads.wall_time()
        else:
            begin = None

        def advance() -> None:
            nonlocal began
            marks = work.published.marks if work.published else {}
            began = self._store.advance(
                marker,
                published=command.published,
                tables=marks,
                opaque_metadata=self._opaque(work),
                begin=begin,
            )

        if self._until_done(command.attempt, "advance", advance, None):
            if work.processed is not None:
                self._timeouts.advanced(command.attempt, work.timeout_factor)
            self._report(command.attempt, work, command.published)
            self._work.pop(command.attempt, None)
            if command.attempt.txid >= self._first_txid:
                self._first_over.set()
            with self._ahead_lock:
                # One after the other: an attempt that hears of the new place is stored behind this report.
                self.post(master.Advanced(command.attempt))
                self._window_end = command.attempt.txid + self._limits.max_spout_pending
                late = self._take_ahead()
            if begin is not None and began is not None:
                self._began(begin.attempt, began)
                begin = None
            for waiting in filter(None, (begin, late)):
                self._begin_pool.submit(self._on(waiting.attempt, self._store_begin), waiting)

    def _opaque(self, work: _Work) -> dict[str, dict[str, Any]]:
        """The partitions whose metadata this transaction changes; an empty batch may have moved them too."""
        spouts = work.published.spouts if work.published else work.processed.spouts if work.processed else {}
        before = self._store.partition_values
        changed = {
            tx_id: {
                partition: metadata
                for partition, metadata in spout["opaque"].items()
                if before.get(tx_id, {}).get(partition, _NEVER) != metadata
            }
            for tx_id, spout in spouts.items()
            if spout.get("opaque")
        }
        return {tx_id: found for tx_id, found in changed.items() if found}

    def _until_done(
        self, attempt: TransactionAttempt, part: str, action: Callable[[], Any], event: master.Event | None
    ) -> bool:
        """Rolls forward: retries with back-off until it is done, deposed, or at the cap halted."""
        work, started, failures, refusals = self._work[attempt], self._threads.monotonic(), 0, 0
        while not self._stopping.is_set():
            try:
                action()
            except Exception as raised:
                if self._ends_driver(raised):
                    return False
                failures += 1
                refusals += not isinstance(raised, StateAway)  # a store that is away is waited for as long as it takes
                error = self._explain(raised)
                self.last_error, self.last_error_at = error, self._threads.wall_time()
                log.warning(
                    "%s of a transaction of %s/%s that is decided failed (%d), trying again: %s",
                    part,
                    self._store.topology,
                    self._store.group,
                    failures,
                    error,
                )
                self._observer.retries(attempt, part, error)
                if refusals >= self._limits.max_attempts:
                    halted = Halted(
                        f"a decided transaction could not be finished after {failures} tries of {part}: {error}",
                        action="fix the cause and start again: the decision is kept and will be finished",
                    )
                    halted.__cause__ = error
                    self._ends_driver(halted)
                    return False
                self._stopping.wait(self._limits.backoff_secs(failures))
            else:
                work.duration_ms[part] = self._ms(started)
                if event is not None:
                    self.post(event)
                return True
        return False

    def _ends_driver(self, error: BaseException) -> bool:
        """Errors after which this driver must not go on, whatever it was doing."""
        # An unknown outcome of a queue's or a map's write is an error like any other: it is tried again.
        if isinstance(error, Deposed) or (isinstance(error, OutcomeUnknown) and self._store.is_broken):
            log.warning("%s/%s is deposed: %s", self._store.topology, self._store.group, error)
            self._stopping.set()
            self.post(master.LostLeadership())
            return True
        ended = error if isinstance(error, SessionEnded) else self._explain(error)
        if isinstance(ended, SessionEnded):
            # Trying again is of no use, and no person need look: the next start finishes the decision.
            self.error = self.last_error = ended
            self._stopping.set()
            self.post(master.LostLeadership())
            return True
        if isinstance(error, (Halted, StaleState)):
            self.error = self.last_error = error
            self._stopping.set()
            self.post(master.HaltRequested())
            return True
        return False

    # --- success -----------------------------------------------------------------------------

    def _success(self, attempt: TransactionAttempt) -> None:
        for tries in range(1, _SUCCESS_TRIES + 1):
            try:
                with faults.fault_point(SUCCESS):
                    self._spouts.success(attempt)
                break
            except Exception as error:  # told again after the next restart at the latest; the data is safe
                log.warning("a spout's success(%s) of %s raised: %s", attempt, self._store.topology, error)
                if self._stopping.wait(self._limits.backoff_secs(tries)):
                    break
        # Cleaning up must not hold back the next advance.
        self._clean_pool.submit(self._on(attempt, self._committer.advanced), attempt, True)

    def _wait_success(self) -> None:
        call = self._success_call
        while call is not None and not self._stopping.is_set() and not self._threads.wait_done(call, 0.5):
            pass

    def _report(self, attempt: TransactionAttempt, work: _Work, published: bool) -> None:
        work.duration_ms["total"] = self._ms(work.started)
        self._observer.advanced(
            attempt,
            {
                "input_rows": work.processed.input_rows if work.processed else None,
                "rows": dict(work.prepared.rows) if work.prepared else {},
                "bytes": dict(work.prepared.bytes) if work.prepared else {},
                "duration_ms": {part: round(ms, 1) for part, ms in work.duration_ms.items()},
                "in_flight": min(len(self._state.live), self._limits.max_spout_pending),
                "published": published,
                "recovered": work.processed is None,
            },
        )

    def _new_work(
        self, parent: TransactionAttempt | None, timeout_factor: int, decision: Decision | None = None
    ) -> _Work:
        clock = self._threads
        return _Work(parent, timeout_factor, clock.monotonic(), clock.wall_time(), decision=decision)

    def _ms(self, started: float) -> float:
        return (self._threads.monotonic() - started) * 1000.0
