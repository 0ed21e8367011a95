"""Finds something again at most every few moments, however many ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from werkzeug.exceptions import abort

_WAIT_SECS = 1.0
Found = TypeVar("Found")


class Recent(Generic[Found]):
    """The answer that was found a moment ago, or is found now.

    One request looks, and may hang where the disk does; the others are told so, and keep no thread.

    Args:
        find: looks for it.
        secs: how long it counts as found a moment ago.
    """

    def __init__(self, find: Callable[[], Found], secs: float) -> None:
        self._find, self._secs = find, secs
        self._lock = threading.Lock()
        self._found: tuple[float, Found] | None = None

    def __call__(self) -> Found:
        """Gives it.

        Raises:
            werkzeug.exceptions.HTTPException: 503, an earlier request still looks for it.
        """
        if not self._lock.acquire(timeout=_WAIT_SECS):
            abort(503, "the answer to an earlier request is still being looked for; ask again")
        try:
            known = self._found
            if known is None or time.monotonic() >= known[0] + self._secs:
                known = self._found = time.monotonic(), self._find()
            return known[1]
        finally:
            self._lock.release()

    def forget(self) -> None:
        """The next one who asks has it looked for again."""
        self._found = None
