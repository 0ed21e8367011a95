"""The threads and clocks of the coordinator, in one place so that a simulation can have its own.

Driver, store, leadership and connection take everything that waits, runs
beside them or tells the time from a :class:`Threads`. In production that is
:data:`THREADS`: Python's own classes, nothing added. The simulator
(``tests/simulator``) gives its own, on virtual time, and so runs the
production code itself in any order that a seed chooses.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from trident.coordinators.backoff import backoff_secs
from trident.coordinators.daemon_pool import DaemonPool

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
