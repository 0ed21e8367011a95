"""The queries of a script or a notebook: registered, stopped when it ends, and the calls that they are stuck in.

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
import logging
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from pyspark import SparkContext

import trident.coordinators
import trident.states
from trident.config import TridentConfig
from trident.coordinators import tracebacks
from trident.coordinators.errors import TridentError
from trident.running.query_base import QueryBase
from trident.states.core.place import Place

# Tells whether this is a notebook: then a cell is started again, and replaces what it started before.


def in_notebook() -> bool:
    """Tells whether the code runs in a kernel of IPython, as notebooks do; not in a script, nor at a prompt."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


# Finds the lines of users' code that threads of a query have not returned from.


# Code that is not a user's: the framework, Python, and packages installed beside it.
_NOT_USERS = tuple(
    str(Path(folder).resolve())
    for folder in {
        str(Path(__file__).parent.parent),
        *trident.coordinators.__path__,
        *trident.states.__path__,
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


def stuck_calls(is_ours: Callable[[str], bool]) -> list[str]:
    """The users' functions that threads are in now.

    Args:
        is_ours: says of a thread's name whether to look at it.

    Returns:
        "close, at pipeline.py:12" for each, the function that the framework called and where it stands.
    """
    frames = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and is_ours(thread.name):
            of_user = _called(frame)
            if of_user is not None:
                code = of_user.f_code
                found.append(f"{code.co_name}, at {Path(code.co_filename).name}:{of_user.f_lineno}")
    return found


def _called(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of a user's that the framework called."""
    called = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not str(Path(file).resolve()).startswith(_NOT_USERS):
            called = frame
        frame = frame.f_back
    return called


# The queries that run in this process: a script that forgets one is told of it, and does not wait for it.


log = logging.getLogger("trident.query")
# A topology, as its processes meet: by its name, in one ZooKeeper, under one root.
LeadershipScope = tuple[str, str, str]
_lock = threading.Lock()
_queries: dict[LeadershipScope, list[QueryBase]] = {}


def scope_of(name: str, config: TridentConfig, warehouse: Place) -> LeadershipScope:
    """Where a topology of this name contends for leadership."""
    zookeeper = str(warehouse) if config.zookeeper == "embedded" else config.zookeeper
    return name, zookeeper, config.zookeeper_root


def replace_running_query(
    place: LeadershipScope, *, replace: bool, standby: bool, check: Callable[[QueryBase], None]
) -> None:
    """Stops a query of this process that a start would wait for without a word, or refuses the start.

    Args:
        replace: stops the one that runs, and says so.
        standby: a second one is wanted: it waits for its turn.
        check: is called before one is stopped, and raises where the start could not go on from it. A notebook replaces
            by itself, and the name may have been taken by mistake: the one that runs goes on then.

    Raises:
        TridentError: one runs, and neither was asked for; or it could not be stopped.
    """
    running = [] if standby else running_at(place)
    for query in running:
        if not replace:
            raise TridentError(
                f"{query.name} runs in this process already",
                found=repr(query),
                expected="one query of it in a process",
                action="call its query.stop() first, or start(replace=True), which does; start(standby=True) is for "
                "one that is to wait for its turn",
            )
        check(query)
        log.warning("%s: the query that ran here (run %s) is stopped and replaced", query.name, query.run_id[:8])
        query.request_stop(compact=False)
        query.stop()


def running_at(place: LeadershipScope) -> list[QueryBase]:
    """The queries of a topology that have not ended."""
    with _lock:
        return [query for query in _queries.get(place, ()) if query.is_active]


def add(place: LeadershipScope, query: QueryBase) -> None:
    """A query runs, until it ends."""
    with _lock:
        # Those that have ended are forgotten, wherever they ran: each holds its topology and its tables' plans.
        for known in list(_queries):
            _queries[known] = [other for other in _queries[known] if other.is_active]
            if not _queries[known]:
                del _queries[known]
        _queries.setdefault(place, []).append(query)


def all_running() -> list[QueryBase]:
    """Every query of this process that has not ended."""
    with _lock:
        return [query for queries in _queries.values() for query in queries if query.is_active]


# How long a script's end waits for its queries: the next start does what is left.
_STOP_SECS = 10.0
_CANCEL_SECS = 2.0
_EXIT_INTERRUPTED = 130

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
            tracebacks.install()
            _previous_hook, sys.excepthook = sys.excepthook, _on_uncaught
            atexit.register(_at_exit)
    _replace_sigint_handler()


def _replace_sigint_handler() -> None:
    """Replaces PySpark's handler of SIGINT, which it sets with each session that the main thread makes."""
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
            "trident: interrupted" + (f"; {names} continues where it was at the next start" if names else ""),
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
