"""Failures of users' functions on a worker, as text for the driver, and the reports that carry them.

Spark carries nothing else: :func:`fail` writes the report into an exception's
text (``trident.workers.failures``), ``trident.udf.signatures.translate_failure`` finds
it there. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import base64
import binascii
import json
import linecache
import os
import re
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Union

from trident.coordinators.errors import FailedException, TridentError
from trident.coordinators.tracebacks import causes, text_of
from trident.states.core.typed_values import WrongValue, cut_repr

# Between Python values and typed Arrow arrays, for steps of a chain; the rule is in ``states.core.typed_values``.


Values = Union[list[Any], tuple[Any, ...], Sequence[Any]]


# The one form in which a worker's failure travels to the driver: a report within an exception's text.
#
# Spark carries nothing else. A worker writes the report with :func:`marked`, the
# driver finds it with :func:`find_report`. Imported by every worker: keep its
# imports light.


MARK = "trident-failure"
_REPORT = re.compile(rf"<<{MARK}:([A-Za-z0-9+/=\s]+)>>")
# The kinds of report: a user's function raised FailedException, or anything else; a source's data is at fault; the
# local copy of a state cannot be used; a value is one of which only Spark knows what becomes of it; the rows of a batch
# are too many for one worker.
FAILED, ERROR, SOURCE, STALE, SPARKS, LARGE = "failed", "error", "source", "stale", "sparks", "large"


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


@dataclass(frozen=True)
class Label:
    """Where a step comes from, for messages.

    Attributes:
        operation: the operation as plans name it.
        location: "file:line" of the user's function.
    """

    operation: str
    location: str


class UserCodeFailed(Exception):
    """A user's function failed; its text carries the report to the driver."""


_INSTALLED = tuple(
    {os.path.join(sysconfig.get_path(key), "") for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
# Also those of the operating system's packages, and of the user's own folder.
_INSTALLED_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_LIBRARIES = (*_INSTALLED, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""))


def fail(label: Label, error: BaseException, row: Mapping[str, Any], *, place: str = "", **wrong: str) -> NoReturn:
    """Raises the report of a failed function, in a form that survives the way through Spark.

    Args:
        place: where it was instead, when it was not for a row.
        wrong: "found" and "expected".
    """
    report = {
        "kind": FAILED if isinstance(error, FailedException) else ERROR,
        "operation": label.operation,
        "location": _own_line(error, label.location),
        "error": _text(error) if not isinstance(error, WrongValue) else str(error),
        "place": place or f"for the row {describe_row(row)}",
        "frames": "" if isinstance(error, WrongValue) else _own_frames(error, label.location),
        "may_pass": may_pass(error),
        **wrong,
    }
    raise UserCodeFailed(f"{report['operation']} at {report['location']}: {report['error']} {marked(report)}")


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:2000]
    except Exception as broken:  # a user's exception class
        text = f"(its text raised {type(broken).__name__})"
    return text if isinstance(error, FailedException) and text else f"{type(error).__name__}: {text}"


def _own_line(error: BaseException, location: str) -> str:
    """The innermost line of the user's own code, not of a library that it called."""
    own = _own(error, location)
    return f"{own[-1].tb_frame.f_code.co_filename}:{own[-1].tb_lineno}" if own else location


def _own(error: BaseException, location: str) -> list[types.TracebackType]:
    """The frames of the user's own code, the innermost last."""
    own_file = location.rpartition(":")[0]
    found = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        own = file == own_file or not (file.startswith(_LIBRARIES) or file.startswith("<frozen"))
        # The pass itself may be shipped to a worker under another path: told by its module.
        if own and not trace.tb_frame.f_globals.get("__name__", "").startswith("trident.workers."):
            found.append(trace)
        trace = trace.tb_next
    return found


def _own_frames(error: BaseException, location: str) -> str:
    """The user's own part of the traceback, as Python writes it."""
    try:
        lines = []
        for trace in _own(error, location)[-_FRAMES_MAX:]:
            code = trace.tb_frame.f_code
            source = linecache.getline(code.co_filename, trace.tb_lineno, trace.tb_frame.f_globals).strip()
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
            lines += [f"    {source[:_TEXT_MAX]}"] if source else []
        return "\n".join([*lines, _text(error)]) if lines else ""
    except Exception:  # the failure itself must be told, whatever its frames are like
        return ""


_FRAMES_MAX = 10
_TEXT_MAX = 200


def may_pass(error: BaseException) -> bool:
    """Tells whether the same rows may be taken another time: something outside was asked, and it did not answer.

    That is what an OSError says, or the own error class of a library, installed or Python's own (a database's, a
    broker's, http.client's), unless that is one for wrong values. All else is the user's own code, and the errors
    that are built into Python, which it raises for a row as often as it sees it.
    """
    for current in causes(error):
        if isinstance(current, (OSError, MemoryError)):
            return True
        home = type(current).__module__
        # On a worker __main__ is PySpark's own; the class is of the user's script.
        module = None if home == "__main__" else sys.modules.get(home)
        file = getattr(module, "__file__", None) or ""
        library = file.startswith(_INSTALLED) or any(folder in file for folder in _INSTALLED_FOLDERS)
        if library and not isinstance(current, (*_OF_VALUES, WrongValue)):
            return True
    return False


_OF_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)


def describe_row(row: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {cut_repr(value)}" for name, value in row.items()) + "}"
