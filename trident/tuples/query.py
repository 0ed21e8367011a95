"""A running tuple topology: one thread that asks the spouts, runs rounds, and notifies the spouts.

Every call to a spout is made by that thread, from ``open`` to ``close``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import BatchError, SourceError, TridentError
from trident.coordinators.retries import backoff_secs
from trident.running import interrupts
from trident.running.failures import session_end
from trident.running.interrupts import stuck_calls
from trident.running.query_base import QueryBase
from trident.running.shown import short
from trident.spouts.contracts import SpoutContext
from trident.states.core import storage
from trident.streams.shown import Facts
from trident.tuples.plan import TuplePlan
from trident.tuples.rounds import RoundRunner, RoundStopped
from trident.tuples.spouts import Fetched, Tracker, TupleFailure, make_tasks
from trident.watching.events import Event, MessageFailed, RoundEnded, Started, Terminated, Watchers
from trident.watching.listeners import Listeners, TopologyListener

log = logging.getLogger("trident.tuples")
# How often spouts that have nothing are asked.
_IDLE_SECS = 0.05
_ROUND_MESSAGES = 10_000
# A round that failed comes again in parts of an eighth: a message that kills its worker is soon alone.
_SMALLER, _LARGER = 8, 2
_BACKOFF_SECS = (0.2, 30.0)
# How long ``stop`` waits for the round that runs before it cancels it.
_GRACE_SECS = 5.0


class TupleQuery(QueryBase):
    """A topology of spouts and bolts that runs in this process.

    Made by ``TupleTopology.start``. All methods may be called from any thread. As a context manager it is stopped
    at the end of its block; an exception of the block goes on, and otherwise one that has ended the topology.
    """

    def __init__(
        self,
        plan: TuplePlan,
        spark: "SparkSession",
        config: TridentConfig,
        listeners: Iterable[TopologyListener],
    ) -> None:
        self._plan, self._spark, self._config = plan, spark, config
        self._watchers = Watchers()
        super().__init__(plan.topology, uuid.uuid4().hex, Listeners(self._watchers), threading.Event())
        for listener in listeners:
            self._listeners.add(listener)
        self._ending = threading.Lock()  # taken by the first call that ends it, and never released
        resets = config.warehouse_place() / "_trident" / plan.topology / "resets"
        storage.make_warehouse(resets.parent.parent.parent)
        self._runner = RoundRunner(spark, plan, config.message_timeout_secs, resets)
        self._tracker = Tracker(
            make_tasks(plan.spouts, self._spout_context),
            config.max_pending_messages,
            config.message_timeout_secs or math.inf,
            tracking=config.ackers > 0,
            failed=self._message_failed,
        )
        self._rounds = 0
        self._messages_max, self._failures, self._spout_failures = _ROUND_MESSAGES, 0, 0
        self._stop_requested = threading.Event()
        self._error: BaseException | None = None
        # Of the passes over the spouts: the last that began, and the last that found nothing to do at all.
        self._changed = threading.Condition()
        self._passes = self._idle_pass = 0
        self._thread = threading.Thread(target=self._run, name=f"trident-{plan.topology}", daemon=True)

    def _started(self) -> "TupleQuery":
        self._notify(Started)
        self._thread.start()
        # Two of one name both work, each on what its own spouts give it: none is in the other's place.
        interrupts.add((self.name, "tuples", self.run_id), self)
        return self

    # --- what a user asks ---------------------------------------------------------------------

    def _facts(self) -> Facts:
        error, numbers = self.exception(), self.status
        state = "running" if self.is_active else "stopped" if error is None else "failed"
        shown = ("pending", "acked", "failed", "timed_out", "rounds")
        last = self.last_errors[-1].error if self.last_errors else None
        facts = [("", state), *((name.replace("_", " "), str(numbers[name])) for name in shown)]
        return [*facts, ("last error", short(last)), ("ended by", short(error))]

    def _end_error(self) -> BaseException | None:
        return self._error

    @property
    def spark(self) -> "SparkSession":
        """The session that the rounds run on."""
        return self._spark

    @property
    def status(self) -> dict[str, int]:
        """Numbers of messages, and what they cost.

        ``pending``: now. ``emitted`` (those without an id, too), ``acked``,
        ``failed``, ``timed_out``: since the start. ``acker_bytes``: about the memory of
        what is pending. ``rounds``: so far, those that failed included.
        """
        tracker = self._tracker
        return {
            "pending": tracker.pending,
            "emitted": tracker.emitted,
            **tracker.settled,
            "acker_bytes": tracker.nbytes,
            "rounds": self._rounds,
        }

    @property
    def last_errors(self) -> list[TupleFailure]:
        """Why messages failed: the last 100 reasons, the oldest first. A round that failed is one of them."""
        return list(self._tracker.errors.copy())

    def process_all_available(self, timeout_secs: float | None = None) -> None:
        """Blocks until the spouts have nothing more and every message is settled.

        A message that fails and comes again is waited for; one that its spout
        holds back after ``fail`` is not. A message that always fails makes this block for ever.

        Raises:
            TridentError: the topology ended with it.
            TimeoutError: timeout_secs went by.
        """
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        with self._changed:
            after = self._passes
            while self._idle_pass <= after:
                if self._has_ended.is_set():
                    self._raise_error()
                    raise TridentError(f"{self.name} was stopped before all available messages were processed")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"{self.name} did not process all available messages within {timeout_secs} s: {self.status}"
                    )
                self._changed.wait(left)

    def stop(self, timeout_secs: float | None = None) -> None:
        """Ends it: the round that runs is finished, or cancelled after five seconds.

        Messages that are not settled stay with their source; the next start
        processes them. A spout that calls it does not wait. It always ends: a call of a
        spout that does not return within ``stop_timeout_secs`` is left behind, which a line in the log says.

        Args:
            timeout_secs: how long to wait for the end; then a line says that it goes on ending.
        """
        self.request_stop()
        if threading.current_thread() is self._thread:
            return
        began = time.monotonic()
        until = None if timeout_secs is None else began + timeout_secs
        grace_secs = _GRACE_SECS if timeout_secs is None else min(_GRACE_SECS, timeout_secs / 2)
        if not self._has_ended.wait(grace_secs):
            self._runner.stop()
            leave_at = began + grace_secs + self._config.stop_timeout_secs
            if not self._has_ended.wait((leave_at if until is None else min(until, leave_at)) - time.monotonic()):
                if until is not None and until < leave_at:
                    log.warning("%s is still ending after %g s; is_active says when it has", self.name, timeout_secs)
                else:
                    self._abandon()

    def request_stop(self, compact: bool = True) -> None:
        """Asks for the end, without waiting for it; there is nothing to compact."""
        self._stop_requested.set()

    def _abandon(self) -> None:
        """Has it ended without a call of a spout that does not return."""
        calls = stuck_calls(lambda name: name == self._thread.name)
        log.warning(
            "%s: its stop continues without %s; messages that are not acknowledged come again at the next start",
            self.name,
            " and ".join(calls) + (" (of yours), which does not return" if calls else "what still runs"),
        )
        self._end()

    def _end(self) -> None:
        """The last of everything; the first call waits a few seconds for listeners."""
        if self._ending.acquire(blocking=False):
            self._notify(Terminated, error=self._error)
            self._listeners.close()
        with self._changed:
            self._has_ended.set()
            self._changed.notify_all()

    # --- its events -----------------------------------------------------------------------------

    def _notify(self, kind: type[Event], **facts: Any) -> None:
        self._watchers.notify(kind(topology=self.name, incarnation="", run_id=self.run_id, **facts))

    def _notify_failure(self, part: str, error: BaseException, **more: Any) -> None:
        self._notify(MessageFailed, group="", txid=self._rounds, attempt_id=None, part=part, error=error, **more)

    def _message_failed(self, failure: TupleFailure) -> None:
        error = TridentError(failure.error)
        self._notify_failure("message", error, message_id=failure.message_id, bolt=failure.bolt)

    def _round_ended(self, messages: int, secs: float) -> None:
        progress = {"num_input_rows": messages, "duration_ms": {"total": round(secs * 1000, 1)}, **self.status}
        of_all = {"group": "", "attempt_id": 0, "published": False, "recovered": False}
        self._notify(RoundEnded, txid=self._rounds, progress=progress, **of_all)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                for task in self._tracker.tasks:
                    task.call("open")
                self._loop()
                self._tracker.notify_spouts()
            finally:
                self._tracker.close()
        except Exception as error:
            self._error = error
            log.debug("the topology ended", exc_info=True)
        finally:
            self._end()

    def _loop(self) -> None:
        while not self._stop_requested.is_set():
            with self._changed:
                self._passes += 1
            try:
                worked = self._pass()
            except SourceError as error:
                self._spout_failed(error)
                continue
            self._spout_failures = 0
            if not worked:
                self._stop_requested.wait(_IDLE_SECS)

    def _pass(self) -> bool:
        """Asks the spouts, runs a round, notifies the spouts; returns whether there was anything to do."""
        fetched = self._tracker.fetch(self._messages_max)
        if fetched.copies:
            self._round(fetched)
        else:
            self._tracker.end_round(fetched.roots)
        self._tracker.advance()
        settled = self._tracker.notify_spouts()
        if fetched.messages or settled:
            return True
        if not fetched.blocked and not self._tracker.pending:
            with self._changed:
                self._idle_pass = self._passes
                self._changed.notify_all()
        return False

    def _spout_failed(self, error: SourceError) -> None:
        """A spout whose broker is away for a moment is asked, and told, again."""
        self._spout_failures += 1
        log.warning("%s: a spout failed (%d): %s", self.name, self._spout_failures, error)
        self._notify_failure("spout", error)
        if self._spout_failures >= self._config.max_attempts:
            raise error
        self._stop_requested.wait(backoff_secs(self._spout_failures, *_BACKOFF_SECS))

    def _round(self, fetched: Fetched) -> None:
        """Runs one round. When it fails its messages fail, and the topology goes on, unless it fails too often."""
        self._rounds += 1
        began = time.monotonic()
        try:
            for report in self._runner.run(self._rounds, fetched.copies):
                self._tracker.take(report)
        except RoundStopped:  # by stop(): messages that are not settled stay with their source, which is told nothing
            self._tracker.end_round(fetched.roots)
        except Exception as error:
            self._failed(fetched, error)
        else:
            self._tracker.end_round(fetched.roots)
            self._round_ended(fetched.messages, time.monotonic() - began)
            self._failures = 0
            self._messages_max = min(_ROUND_MESSAGES, self._messages_max * _LARGER)

    def _failed(self, fetched: Fetched, error: Exception) -> None:
        gone = session_end(self._spark, ask=True)
        if gone is not None:
            self._tracker.end_round(fetched.roots, str(gone))
            raise gone from error
        self._failures += 1
        self._notify_failure("round", error)
        text = f"round {self._rounds} failed, and with it its messages ({fetched.messages} at most): {_short(error)}"
        log.info("%s: %s", self.name, text)
        self._tracker.end_round(fetched.roots, text)
        self._tracker.notify_spouts()
        self._messages_max = max(1, fetched.messages // _SMALLER)
        if self._failures >= self._config.max_attempts:
            if isinstance(error, TridentError):
                raise error
            raise BatchError(
                f"{self._failures} rounds in a row failed; the topology {self.name!r} has stopped",
                found=_short(error),
                expected="fewer than max_attempts",
                action="what is not acknowledged comes again at the next start",
            ) from error
        self._stop_requested.wait(backoff_secs(self._failures, *_BACKOFF_SECS))

    def _spout_context(self, spout: str, task: int, tasks: int) -> SpoutContext:
        tx_id = spout if tasks == 1 else f"{spout}-{task}"
        folder = self._config.warehouse_place() / "_trident" / self.name / "streams" / tx_id
        storage.make_folder(folder, storage.anchor_of(folder))
        # There is no registration, so no reset: the topology has one incarnation.
        return SpoutContext(self._spark, self.name, tx_id, folder, self.name, {"task": task, "tasks": tasks})


def _short(error: BaseException) -> str:
    """The line that says it: of Spark's pages the one that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = [line for line in lines if "Exception: " in line or "Error: " in line]
    return (telling or lines)[0][:500]
