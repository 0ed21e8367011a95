"""A pool of daemon threads: the interpreter ends without waiting for them.

``concurrent.futures`` joins its threads at the interpreter's end and refuses
work from then on. A call of a user's that never returns would keep such a
process for ever, and a coordinator that is still at work there would fail
with an error that no user can mend.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


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
