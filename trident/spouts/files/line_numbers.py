"""Which line of a file a malformed one is, for its error: the file is read once more, and only then."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from trident.coordinators.errors import SourceError
from trident.spouts.files.format import path_of
from trident.spouts.files.packing import BROKEN, opened
from trident.spouts.files.tasks import BOM, reported

_SECS = 10.0  # a file that takes longer is named without the line


def with_line_number(report: Mapping[str, Any]) -> SourceError:
    """The error of a worker's report, with the number of the line where the report has the line's digest.

    Its fingerprint is without the number, which is not found where the file has gone.
    """
    file = report.get("file")
    if not file:
        return reported(report)
    path = path_of(file)
    message = report["message"].replace(file, path)
    error = reported({**report, "message": message})
    number = _line_number(path, report["digest"], report["charset"])
    if number is None:
        return error
    numbered = reported({**report, "message": f"{message}, line {number}"})
    numbered.fingerprint = error.fingerprint
    return numbered


def _line_number(path: str, digest: str, charset: str) -> int | None:
    """From 1; None: no line is the one, or it took too long to look."""
    end = time.monotonic() + _SECS
    try:
        with open(path, "rb") as raw, opened(raw, path) as content:
            for number, line in enumerate(content, 1):
                text = (line.removeprefix(BOM) if number == 1 else line).removesuffix(b"\n")
                if digest in {_digest(text, charset), _digest(text.removesuffix(b"\r"), charset)}:
                    return number
                if not number % 1_000 and time.monotonic() > end:
                    return None
    except BROKEN:
        pass
    return None


def _digest(line: bytes, charset: str) -> str:
    """As Spark's sha2 gives it for the text of a line."""
    text = line if charset == "UTF-8" else line.decode(charset).encode()
    return hashlib.sha256(text).hexdigest()
