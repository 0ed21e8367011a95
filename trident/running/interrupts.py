"""Stops the queries of an interrupted or ended script, and prints a line instead of pages.

Python ends a script in the middle of whatever its threads do. PySpark besides
cancels every job at Ctrl-C, so that a topology's batches fail and are tried
again, while the script is on its way out. So, once a topology has been started
in the main thread:

- Ctrl-C cancels the jobs of the user's own, not those of the batches;
- an interrupt that no code catches stops the queries, which finish what is
  decided, and is told in one line; Python's exit code for it (130 in a shell)
  stays what it is; a second one ends the process at once;
- a script that ends without ``stop()`` stops its queries, too.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from pyspark import SparkContext

from trident.coordinators import shown_errors
from trident.running.registry import all_running

# How long a script's end waits for its queries: the next start does what is left.
_STOP_SECS = 10.0
_CANCEL_SECS = 2.0
_EXIT_INTERRUPTED = 130

_lock = threading.Lock()
_of_process = 0
_starts = 0
_interrupted = False  # since a start began
_previous_hook: Any = None
_pysparks_handler: Any = None


@contextmanager
def while_starting() -> Iterator[None]:
    """An interrupt within it is none of Spark's either: no job is cancelled, of a session that may be half made.

    Where it falls into a callback whose errors Python ignores (a fork's, a destructor's), :func:`check` raises it.
    """
    global _starts, _interrupted
    _starts, _interrupted = _starts + 1, False
    prepare()
    of_python = _is_main() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if of_python:
        signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
        check()
    finally:
        _starts -= 1
        if of_python and _pysparks_handler is None:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def check() -> None:
    """Raises KeyboardInterrupt where one has been lost since the start began."""
    if _interrupted and _is_main():
        raise KeyboardInterrupt


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def prepare() -> None:
    """Sees to this process's end; called when a topology starts, and again when its session is there."""
    global _of_process, _previous_hook
    with _lock:
        if _of_process != os.getpid():
            _of_process = os.getpid()
            shown_errors.install()
            _previous_hook, sys.excepthook = sys.excepthook, _on_uncaught
            atexit.register(_at_exit)
    _spare_the_batches()


def _spare_the_batches() -> None:
    """Takes the place of PySpark's handler of SIGINT, which it sets with each session that the main thread makes."""
    global _pysparks_handler
    if not _is_main():
        return
    handler = signal.getsignal(signal.SIGINT)
    if str(getattr(handler, "__module__", "")).startswith("pyspark."):
        _pysparks_handler = handler
        signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if _starts:
        _interrupted = True
        raise KeyboardInterrupt
    if not all_running():
        _pysparks_handler(number, frame)
    # A thread of its own: this one may be in the middle of a call to the JVM.
    cancelling = threading.Thread(target=_cancel_the_users_jobs, daemon=True)
    cancelling.start()
    cancelling.join(_CANCEL_SECS)
    raise KeyboardInterrupt


def _cancel_the_users_jobs() -> None:
    """Those without a group: each batch, and each other job of the framework, has one."""
    context: Any = SparkContext._active_spark_context
    try:
        for job_id in context.statusTracker().getJobIdsForGroup(None) if context is not None else ():
            context._jsc.sc().cancelJob(job_id)  # one that has ended is passed over
    except Exception:
        return  # no session any more: nothing runs on it


def stop_all() -> list[str]:
    """Stops the queries of this process without merging; the names of those that ran."""
    queries = all_running()
    for query in queries:
        query.request_stop(compact=False)
    until = time.monotonic() + _STOP_SECS
    for query in queries:
        query.stop(max(0.0, until - time.monotonic()))
    return sorted({query.name for query in queries})


def _on_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt) or _of_process != os.getpid():
        _previous_hook(kind, error, trace)
        return
    try:
        names = ", ".join(stop_all())
        print(
            "trident: interrupted" + (f"; {names} goes on where it was at the next start" if names else ""),
            file=sys.stderr,
            flush=True,
        )
    except KeyboardInterrupt:
        print("trident: aborted", file=sys.stderr, flush=True)
        os._exit(_EXIT_INTERRUPTED)


def _at_exit() -> None:
    if _of_process == os.getpid():  # not in a child that was forked
        try:
            stop_all()
        except KeyboardInterrupt:
            os._exit(_EXIT_INTERRUPTED)
