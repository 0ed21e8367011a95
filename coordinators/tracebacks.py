"""Exceptions as people see them: their chain of causes, and tracebacks without the framework's own lines."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

# The chain of causes behind an exception: the one walk over it, and a search through its texts.


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what caused it, the outermost first, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def text_of(error: BaseException) -> str:
    """Returns what an exception says; "" where that cannot be known."""
    try:
        return str(error)
    except Exception:  # str() of a Java error asks the JVM, which may be gone
        return ""


def search_causes(error: BaseException, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The first match in the texts of an exception and of what caused it."""
    return next((match for one in causes(error) if (match := pattern.search(text_of(one)))), None)


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, its type where it says nothing; for a log or another error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


# An error as a notebook, or Python at the end of a script, shows it: without the framework's own lines.


# Packages below which no line is the user's: their frames would push the one that matters off the screen.
_NOT_THE_USERS = ("pyspark", "py4j", "kazoo", "IPython", "ipykernel")
# The package, and the two of its folders that are links in a checkout.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOTS = tuple(
    os.path.join(os.path.realpath(os.path.join(_PACKAGE, name)), "") for name in ("", "coordinators", "states")
)
# A cell's file, with its folder or without: a plan and an error give the last part of a path.
_IN_CELL = re.compile(r"(?P<file>(?:[^\s'\"(\[]*[/\\])?\d{4,}\.py):(?P<line>\d+)")
_FRAME = re.compile(r'^(\s*)File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<rest>.*)$')


def render(error: BaseException) -> list[str]:
    """The error's lines as a notebook prints them.

    First the frames of a user's function that raised on a worker, with their source where this process knows it; then
    the error; then the lines of the user's code that led here.
    """
    lines: list[str] = []
    for frames in _on_workers(error):
        lines += ["Your function (most recent call last):", *_with_source(frames.splitlines()), ""]
    lines += [f"{type(error).__name__}: {with_cells(text_of(error))}"]
    called = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    if called:
        lines += ["", "Called at (most recent call last):"]
        lines += _with_source("".join(traceback.format_list(called)).splitlines())
    return lines


def install() -> None:
    """Has Python show an uncaught error of ours with the user's own lines alone; called when one is made.

    A program that shows errors in a way of its own keeps that, and Python's development mode (``python -X dev``) shows
    all lines. The error itself is not changed: who catches it finds its whole traceback.
    """
    if sys.excepthook is sys.__excepthook__ and not sys.flags.dev_mode:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    called = [frame for frame in traceback.extract_tb(trace) if is_users(frame.filename)]
    if not called or not hasattr(error, "_render_traceback_"):
        sys.__excepthook__(kind, error, trace)
        return
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(called)]
    for frames in _on_workers(error):
        lines += ["Your function (most recent call last):\n", f"{frames.rstrip()}\n"]
    print("".join([*lines, *traceback.format_exception_only(error)]), end="", file=sys.stderr)


def _on_workers(error: BaseException) -> list[str]:
    """The frames of a user's function that raised on a worker."""
    # Told by its name: its class is in a room above.
    return [str(one.args[0]) for one in causes(error) if type(one).__name__ == "UsersTraceback"]


def is_users(filename: str) -> bool:
    """Tells whether a file is the user's, by its path."""
    where = os.path.realpath(filename)
    is_ours = any(where.startswith(root) for root in _ROOTS)
    parts = where.split(os.sep)
    return not is_ours and not filename.startswith("<frozen") and not any(name in parts for name in _NOT_THE_USERS)


def _with_source(lines: list[str]) -> list[str]:
    """Lines of a traceback, with a cell's number and source: a worker knows neither."""
    shown: list[str] = []
    for place, line in enumerate(lines):
        found = _FRAME.match(line)
        if found is None:
            shown.append(line)
            continue
        name = _cell(found["file"])
        shown.append(line if name is None else f"{found[1]}{name}, line {found['line']}{found['rest']}")
        has_source = place + 1 < len(lines) and lines[place + 1].startswith(f"{found[1]}  ")
        source = "" if has_source else linecache.getline(found["file"], int(found["line"])).strip()
        if source:
            shown.append(f"{found[1]}  {source}")
    return shown


def with_cells(text: str) -> str:
    """The text with a notebook's own names for its cells, "In[3]:2" for "1234567.py:2"."""
    return _IN_CELL.sub(_as_cell, text)


def _as_cell(found: re.Match[str]) -> str:
    name = _cell(found["file"])
    return found[0] if name is None else f"{name.removeprefix('Cell ')}:{found['line']}"


def _cell(filename: str) -> str | None:
    """The name that the notebook shows for a file of its own, "Cell In[3]"; None where it is none."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    compiler: Any = getattr(shell, "compile", None)
    try:
        whole = filename if os.path.isabs(filename) else _of_cells(compiler, filename)
        found = compiler.format_code_name(whole)
    except Exception:  # another shell, or an older one
        return None
    return None if found is None else f"{found[0]} {found[1]}"


def _of_cells(compiler: Any, name: str) -> str:
    """The path of the cell's file with this name."""
    return next((path for path in reversed(compiler._filename_map) if os.path.basename(path) == name), name)
