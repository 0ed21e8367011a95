"""How the failure of a user's function on a worker becomes text that the driver can read.

Spark carries nothing else: :func:`fail` writes the report into an exception's
text, ``trident.signatures.translate_failure`` finds it there. Imported by every
worker: keep its imports light.
"""

from __future__ import annotations

import base64
import json
import os
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from trident.arrow_values import WrongValue, cut_repr
from trident.coordinators.errors import FailedException


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


_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(key), "") for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.join(os.path.dirname(os.path.abspath(__file__)), "")}
)


def fail(label: Label, error: BaseException, row: Mapping[str, Any], *, place: str = "", **wrong: str) -> NoReturn:
    """Raises the report of a failed function, in a form that survives the way through Spark.

    Args:
        label: the operation.
        error: what was raised.
        row: the values that the function was called with.
        place: where it was instead, when it was not for a row.
        wrong: "found" and "expected".
    """
    report = {
        "kind": "failed" if isinstance(error, FailedException) else "error",
        "operation": label.operation,
        "location": _own_line(error, label.location),
        "error": _text(error) if not isinstance(error, WrongValue) else str(error),
        "place": place or f"for the row {describe_row(row)}",
        **wrong,
    }
    mark = base64.b64encode(json.dumps(report).encode()).decode()
    raise UserCodeFailed(f"{report['operation']} at {report['location']}: {report['error']} <<trident-failure:{mark}>>")


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:2000]
    except Exception as broken:  # a user's exception class
        text = f"(its text raised {type(broken).__name__})"
    return text if isinstance(error, FailedException) and text else f"{type(error).__name__}: {text}"


def _own_line(error: BaseException, location: str) -> str:
    """The innermost line of the user's own code, not of a library that it called."""
    own_file = location.rpartition(":")[0]
    found = location
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        own = file == own_file or not (file.startswith(_LIBRARIES) or file.startswith("<frozen"))
        # The pass itself may be shipped to a worker under another path: told by its module.
        if own and not trace.tb_frame.f_globals.get("__name__", "").startswith("trident.arrow_"):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def describe_row(row: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {cut_repr(value)}" for name, value in row.items()) + "}"
