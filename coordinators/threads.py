"""Threads and clocks: daemon pools, calls with a time limit, and the transaction that a thread works on.

Driver, store, leadership and connection take everything that waits, runs
beside them or tells the time from a :class:`Threads`. In production that is
:data:`THREADS`: Python's own classes, nothing added. The simulator
(``tests/simulator``) gives its own, on virtual time, and so runs the
production code itself in any order that a seed chooses.
"""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextvars import ContextVar
from typing import Any

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.retries import backoff_secs

# A pool of daemon threads: the interpreter ends without waiting for them.
#
# ``concurrent.futures`` joins its threads at the interpreter's end and refuses
# work from then on. A call of a user's that never returns would keep such a
# process for ever, and a coordinator that is still at work there would fail
# with an error that no user can mend.


class DaemonPool:
    """Runs what is submitted, in order, ``size`` at a time.

    Args:
        size: threads at most; each is started when it is first needed.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """After :meth:`shutdown` nothing is run any more: the future is cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._work.put((future, function, args))
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self._size:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, timeout_secs: float | None = None) -> bool:
        """Takes no more work; with ``wait`` until all that was submitted is done.

        Args:
            timeout_secs: how long to wait at most; None: as long as it takes.

        Returns:
            whether all threads have ended.
        """
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        for thread in threads if wait else ():
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function, args = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:  # the future tells its caller
                    future.set_exception(error)
            del item, future, function, args
            with self._lock:
                self._idle += 1


TRIES = 10
_TRY_SECS, _TRY_SECS_MAX = 0.01, 0.64


def tries(count: int = TRIES) -> Iterator[int]:
    """Yields 0 to ``count`` - 1, with a wait between each two: 10 ms, then twice as long each time."""
    for number in range(count):
        if number:
            time.sleep(backoff_secs(number, _TRY_SECS, _TRY_SECS_MAX))
        yield number


class Threads:
    """Python's ``threading``, ``queue``, ``time`` and ``concurrent.futures`` as one object; times in seconds."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_time(self) -> float:
        """Seconds since the epoch; for people only, since it may jump."""
        return time.time()

    def sleep(self, secs: float) -> None:
        time.sleep(secs)

    def lock(self) -> Any:
        """A re-entrant lock."""
        return threading.RLock()

    def condition(self, lock: Any = None) -> threading.Condition:
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        return threading.Event()

    def inbox(self) -> queue.SimpleQueue[Any]:
        return queue.SimpleQueue()

    def pool(self, size: int, name: str) -> DaemonPool:
        """Runs what is submitted, in order, ``size`` at a time."""
        return DaemonPool(size, name)

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Not started yet; does not keep the interpreter alive."""
        return threading.Thread(target=target, name=name, daemon=True)

    def timer(self, delay_secs: float, action: Callable[..., None], *args: Any) -> threading.Timer:
        """Not started yet; does not keep the interpreter alive."""
        timer = threading.Timer(delay_secs, action, args)
        timer.daemon = True
        return timer

    def wait_done(self, future: Future[Any], timeout_secs: float) -> bool:
        """Tells whether what was submitted to a pool has ended, after waiting for it for that long at most."""
        return bool(wait([future], timeout=timeout_secs).done)

    def interpreter_ends(self) -> bool:
        """Tells whether the interpreter is closing down: pools refuse work then."""
        return not threading.main_thread().is_alive()


THREADS = Threads()


# Calls into foreign libraries that may never return: each has a watch of ours, whatever its own time-out.


class NoAnswer(TimeoutError):
    """The call has not returned in time; it goes on in a thread that nothing waits for."""


def bounded(secs: float, who: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Returns the result of ``call(*args, **named)``, or raises what it raises.

    The call runs in a thread of its own. An object of which a call has not returned is in an unknown state: the caller
    gives it up, and uses it no more.

    Args:
        secs: how long the call may take.
        who: the party that does not answer, for the message and for the thread's name.

    Raises:
        NoAnswer: it took longer.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call(*args, **named))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=f"trident-call-{who}", daemon=True).start()
    try:
        return done.result(secs)
    except FutureTimeout:
        if done.done():  # the call itself has raised it
            raise
        raise NoAnswer(errno.ETIMEDOUT, f"no answer of {who} in {secs:.0f} s") from None


# The transaction that a thread works on, for the records that it logs.


_NONE: Mapping[str, Any] = {}
_facts: ContextVar[Mapping[str, Any]] = ContextVar("trident_log_facts", default=_NONE)


def facts() -> Mapping[str, Any]:
    """Of the calling thread's work ``topology``, ``group``, ``txid`` and ``attempt``, as far as they are known."""
    return _facts.get()


def working_on(function: Callable[..., Any], **known: Any) -> Callable[..., Any]:
    """The function with facts that the records have which are logged meanwhile by its thread."""

    def call(*args: Any, **named: Any) -> Any:
        before = _facts.set({**_facts.get(), **known})
        try:
            return function(*args, **named)
        finally:
            _facts.reset(before)

    return call


def facts_of(attempt: TransactionAttempt) -> dict[str, int]:
    """The facts that say which attempt it is."""
    return {"txid": attempt.txid, "attempt": attempt.attempt_id}
