"""Explains a failed Spark job whose expression met a value that it cannot take: a division by zero, a cast."""

from __future__ import annotations

import logging
import re

from trident.coordinators.causes import search_causes
from trident.coordinators.errors import BatchError

_log = logging.getLogger("trident.failures")
# Class 22 of the SQL standard's states: the data is at fault. It fails the same way whenever it is computed.
_DATA_FAILURE = re.compile(r"\[([A-Z_0-9.]+)\] ((?:(?!SQLSTATE: )[^\n])*)SQLSTATE: 22\w{3}")


def expression_failure(exc: BaseException, attempt: object) -> BatchError | None:
    """The error behind a failed Spark job, when the values of a row were the cause; else None."""
    match = search_causes(exc, _DATA_FAILURE)
    if match is None:
        return None
    said = f"[{match[1]}] {match[2].strip()}"
    error = BatchError(
        f"an expression of Spark cannot take a value of attempt {attempt}: {said}",
        action="correct the expression or the data",
    )
    error.attempt, error.fingerprint = str(attempt), said
    _log.debug("what Spark says of the failure of %s", attempt, exc_info=exc)
    return error
