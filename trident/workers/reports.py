"""The one form in which a worker's failure travels to the driver: a report within an exception's text.

Spark carries nothing else. A worker writes the report with :func:`marked`, the
driver finds it with :func:`find_report`. Imported by every worker: keep its
imports light.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from trident.coordinators.causes import causes, text_of
from trident.coordinators.errors import TridentError

MARK = "trident-failure"
_REPORT = re.compile(rf"<<{MARK}:([A-Za-z0-9+/=\s]+)>>")
# The kinds of report: a user's function raised FailedException, or anything else; a source's data is at fault; the
# local copy of a state cannot be used; a value is one of which only Spark knows what becomes of it.
FAILED, ERROR, SOURCE, STALE, SPARKS = "failed", "error", "source", "stale", "sparks"


def marked(report: Mapping[str, Any]) -> str:
    """A report, with its "kind", as text that survives the way through Spark."""
    return f"<<{MARK}:{base64.b64encode(json.dumps(report).encode()).decode()}>>"


def find_report(error: BaseException, *kinds: str) -> dict[str, Any] | None:
    """The first report of these kinds in the texts of an exception and of what caused it.

    Args:
        kinds: by default those of users' functions.

    Returns:
        None when there is none, or it was cut off on its way.
    """
    for one in causes(error):
        for match in _REPORT.finditer(text_of(one)):
            try:
                report: Any = json.loads(base64.b64decode("".join(match[1].split()), validate=True))
            except (binascii.Error, ValueError):  # cut off on its way
                continue
            if isinstance(report, dict) and report.get("kind") in (kinds or (FAILED, ERROR)):
                return report
    return None


class LeftToSpark(TridentError):
    """Only Spark knows what becomes of a value: the rows are to be computed by it, from the tables."""


def left_to_spark(reason: object) -> LeftToSpark:
    """The error that says so, on a worker too."""
    report = {"kind": SPARKS, "error": str(reason)}
    return LeftToSpark(f"Spark is to compute this: {reason} {marked(report)}")
