"""Retries: the waits between them, the time that an attempt may take, and when a batch should be given up. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from trident.coordinators.errors import (
    BatchOutOfMemory,
    BatchTimeout,
    BrokersAway,
    CoordinationError,
    EnvironmentProblem,
    FailedException,
    SourceError,
    TopicGone,
    UserFunctionError,
    ValueDoesNotFit,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.tracebacks import causes, search_causes

# The waits between tries: doubled with each failure, up to a greatest one.


_WAIT_DOUBLINGS_MAX = 60  # a float ends at 1,023, which a disk that is full for a day reaches


def backoff_secs(failures: int, first_secs: float, max_secs: float = math.inf) -> float:
    """The seconds to wait after ``failures`` in a row (1 or more): doubled with each, at most ``max_secs``."""
    return min(first_secs * 2.0 ** min(failures - 1, _WAIT_DOUBLINGS_MAX), max_secs)


# The time that processing may take: ``message_timeout_secs``, and when it is more (docs/semantics.md 1).
#
# A time-out is there for what hangs. On a machine that is merely slow, or busy,
# it must not cancel and replay for ever:
#
# - a process's first transactions have four times the time: the JVM loads its
#   classes, compiles, and starts Python workers meanwhile;
# - each attempt that timed out doubles the time of the next (the coordinator's
#   own rule), and what a transaction came to need in that way the following ones
#   have from the start; after ten that needed nothing more it is halved;
# - after a restart, which knows how often a transaction was tried but not why it
#   failed, each earlier try counts as one that timed out.
#
# The last two are 32 times the time at most.


_FIRST_DOUBLINGS = 2
_DOUBLINGS_MAX = 5
# This many transactions without a time-out, and the time that was learned is halved.
_TXIDS_IN_TIME = 10


class AttemptTimeouts:
    """The time-outs of the attempts of a batch group.

    Args:
        attempts: txid → the greatest attempt id known of earlier coordinators.
    """

    def __init__(self, timeout_secs: float | None, attempts: Mapping[int, int]) -> None:
        self._timeout_secs, self._earlier = timeout_secs, dict(attempts)
        self._warm = False
        self._learned = self._txids_in_time = 0

    def secs(self, attempt: TransactionAttempt, factor: int) -> float | None:
        """Tells how long the attempt may be processed.

        Args:
            factor: the coordinator's, doubled for each time-out of this transaction.
        """
        if self._timeout_secs is None:
            return None
        return self._timeout_secs * factor * 2.0 ** self._doublings(attempt)

    def _doublings(self, attempt: TransactionAttempt) -> int:
        first = 0 if self._warm else _FIRST_DOUBLINGS
        return max(first, self._learned, min(self._earlier.get(attempt.txid, -1) + 1, _DOUBLINGS_MAX))

    def advanced(self, attempt: TransactionAttempt, factor: int) -> None:
        """The attempt, which was processed here, has advanced."""
        if factor > 1:
            needed = self._doublings(attempt) + factor.bit_length() - 1
            self._learned, self._txids_in_time = max(self._learned, min(needed, _DOUBLINGS_MAX)), 0
        else:
            self._txids_in_time += 1
            if self._txids_in_time >= _TXIDS_IN_TIME:
                self._learned, self._txids_in_time = max(0, self._learned - 1), 0
        self._warm = True
        self._earlier.pop(attempt.txid, None)


# Advises a person about a batch that failed for good: it is given up only where its own content is the cause.
#
# `trident skip` commits a batch as empty, and its rows are gone. A disk that is full, a store, a service or a broker
# that
# is away, a host without memory fail any batch: behind the mend the same batch is processed, and nothing is lost.


_SURROUNDINGS = (
    EnvironmentProblem,
    CoordinationError,
    BatchOutOfMemory,
    BatchTimeout,
    BrokersAway,
    TopicGone,
    ConnectionError,
    TimeoutError,
    MemoryError,
)
_CONTENT = (UserFunctionError, FailedException, ValueDoesNotFit, SourceError)
# As Python's and Java's errors are named in the text of an error that a task, or a user's function, has met.
_AWAY = re.compile(
    r"\b(?:Connection(?:Error|Refused|Reset|Aborted|Timeout)\w*|BrokenPipeError|TimeoutError|Timeout|MemoryError|"
    r"OutOfMemoryError|OperationalError|gaierror|\w*SocketTimeout\w*|UnknownHostException)\b"
    r"|(?i:no space left on device|read-only file system|disk quota exceeded|connection refused)"
)
# SQL states of Spark's errors on values: a division by zero, a cast, an overflow.
_VALUES = re.compile(r"SQLSTATE: 22\w{3}\b")


def is_of_its_content(error: BaseException | None, same_each_time: bool) -> bool:
    """Tells whether a batch failed by what is in it: by its data, or by a user's function on them.

    Args:
        error: the last failure, as it was explained.
        same_each_time: whether the failures before were the same, at the same row.
    """
    if error is None:
        return False
    if any(isinstance(one, _SURROUNDINGS) for one in causes(error)) or search_causes(error, _AWAY):
        return False
    return same_each_time or isinstance(error, _CONTENT) or search_causes(error, _VALUES) is not None


def after_giving_up(topology: str, txid: int, error: BaseException | None, same_each_time: bool) -> str:
    """The action of the error with which a topology stops at a batch."""
    mend = "correct the cause and start again: the same batch is processed then, and no row is lost"
    if not is_of_its_content(error, same_each_time):
        return mend
    skip = f"`trident skip {topology} --txid {txid}` commits it as empty, and its rows are lost"
    return f"{mend}. If the batch itself cannot be corrected, {skip}"
