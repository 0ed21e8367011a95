"""Calls into foreign libraries that may never return: each has a watch of ours, whatever its own time-out."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any


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
