"""Advises a person about a batch that failed for good: it is given up only where its own content is the cause.

`trident skip` commits a batch as empty, and its rows are gone. A disk that is full, a store, a service or a broker that
is away, a host without memory fail any batch: behind the mend the same batch is processed, and nothing is lost.
"""

from __future__ import annotations

import re

from trident.coordinators.causes import causes, search_causes
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
