"""Runs calls that wait for a store side by side: a few threads, shared by the whole process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import cache
from typing import TypeVar

from trident.coordinators.daemon_pool import DaemonPool

AT_ONCE = 16
_NAME = "trident-store"

_Found = TypeVar("_Found")


def side_by_side(calls: Sequence[Callable[[], _Found]]) -> list[_Found]:
    """The answers of the calls, in their order; all of them have ended when this returns or raises.

    A call that uses this itself runs its own calls one by one: the threads would wait for each other.

    Raises:
        Exception: the error of the first of them, by their order, that raised.
    """
    if len(calls) < 2 or threading.current_thread().name.startswith(f"{_NAME}_"):
        return [call() for call in calls]
    futures = [_pool().submit(call) for call in calls]
    wait(futures)
    return [future.result() for future in futures]


@cache
def _pool() -> DaemonPool:
    return DaemonPool(AT_ONCE, _NAME)
