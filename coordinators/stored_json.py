"""The one strict reader of JSON that this framework has stored: in files, in znodes, in a table's log.

What is stored may have been damaged: by a disk, an editor, a program that took
the folder for its own. Whatever is there, the outcome is a value or one kind of
error with a reason for people; never a reader that hangs on a FIFO, an error of
Python's own, or a value that cannot be written down again.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_SHOWN = 200


class Unreadable(ValueError):
    """Something stored cannot be read; the caller says which file it is and what to do.

    Attributes:
        found: what is there, shortened.
    """

    def __init__(self, reason: str, found: object = None) -> None:
        super().__init__(reason)
        self.found = found


def read_stored(path: str | os.PathLike[str], start: int = 0) -> bytes:
    """The bytes of a regular file, from ``start`` on.

    Raises:
        FileNotFoundError, NotADirectoryError: it is not there.
        Unreadable: it is something else than a file, or cannot be read.
    """
    try:
        # A FIFO without a writer would block an ordinary open for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
                raise Unreadable(f"it is {kind}, not a file", kind)
            with open(handle, "rb", closefd=False) as file:
                file.seek(start)
                return file.read()
        finally:  # also of a folder, which the second open refuses without closing it
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise Unreadable(error.strerror or str(error), type(error).__name__) from error
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(str(error), repr(os.fspath(path))) from error  # a NUL in the path


def parse_stored(data: bytes | str, *, halves: bool = False) -> Any:
    """The value that JSON text stands for, strictly.

    Args:
        data: the text.
        halves: take text with half of a surrogate pair: of a user's value, which is his.

    Raises:
        Unreadable: it is not UTF-8 or not JSON, a key is given twice, a number is none (NaN), it is nested too deep,
            or it has half of a surrogate pair, which could not be written down again.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant)
        if not halves and "\\u" in text:  # only so written can it get through what UTF-8 allows
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Unreadable("it is nested too deep", shown(data)) from None
    except UnicodeEncodeError:
        raise Unreadable("it has half of a surrogate pair", shown(data)) from None
    except ValueError as error:
        raise Unreadable(str(error), shown(data)) from error
    return value


def shown(data: bytes | str) -> str:
    """The beginning of it, for an error."""
    return repr(data) if len(data) <= _SHOWN else f"{data[:_SHOWN]!r}… ({len(data)} in all)"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
