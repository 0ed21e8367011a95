"""Finds the lines of users' code that threads of a query have not returned from."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import trident.coordinators
import trident.states

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
