"""The waits between tries: doubled with each failure, up to a greatest one."""

from __future__ import annotations

import math

_DOUBLINGS_MAX = 60  # a float ends at 1,023, which a disk that is full for a day reaches


def backoff_secs(failures: int, first_secs: float, max_secs: float = math.inf) -> float:
    """The seconds to wait after ``failures`` in a row (1 or more): doubled with each, at most ``max_secs``."""
    return min(first_secs * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), max_secs)
