"""Defects to plant in the production code, in this process: one text of one function is replaced by another.

The simulator must find each of them. A text that is not there any more is an
error: plant the defect again in the new code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock


class Edit(NamedTuple):
    """``where``: module:function, or module:Class.function."""

    where: str
    old: str
    new: str


Defects = dict[str, tuple[Edit, ...]]
SUPERVISOR = "trident.coordinators.supervisor:Supervisor."
RECOVERY = "trident.coordinators.supervisor:Recovery."


def _read(text: str) -> Defects:
    """The defects of a part of planted.txt, which says how it is written."""
    found: Defects = {}
    for defect in text.split("\n* ")[1:]:
        name, *edits = defect.split("\n@ ")
        for edit in edits:
            where, *lines = edit.splitlines()
            old, new = ("\n".join(line[1:] for line in lines if line[:1] == mark) for mark in "-+")
            found[name] = (*found.get(name, ()), Edit(where, old, new))
    return found


# The second part is found where an operator rolls back.
PLANTED, OF_ROLLBACKS = map(
    _read, Path(__file__).with_name("planted.txt").read_text(encoding="utf-8").split("\n== rollbacks\n")
)


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The defect is in the production code meanwhile."""
    texts: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for where, old, new in {**PLANTED, **OF_ROLLBACKS}[name]:
            owner, attribute, function = _find(where)
            text = texts.get(where) or textwrap.dedent(inspect.getsource(function))
            if text.count(old) < 1:
                raise AssertionError(f"{name!r} cannot be planted: {where} has no {old!r}")
            texts[where] = text = text.replace(old, new)
            stack.enter_context(mock.patch.object(owner, attribute, _compiled(text, function)))
            _also_where_it_is_kept(stack, owner, function, getattr(owner, attribute))
        yield


def _find(where: str) -> tuple[Any, str, Any]:
    module_name, _, path = where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, attribute = path.split(".")
    for name in outer:
        owner = getattr(owner, name)
    found = inspect.getattr_static(owner, attribute)
    return owner, attribute, getattr(found, "__planted_from__", found)


def _compiled(text: str, function: Any) -> Any:
    names: dict[str, Any] = {}
    exec(
        compile("from __future__ import annotations\n" + text, function.__code__.co_filename, "exec"),
        function.__globals__,
        names,
    )
    made = names[function.__name__]
    made.__planted_from__ = function
    return made


def _also_where_it_is_kept(stack: contextlib.ExitStack, owner: Any, before: Any, after: Any) -> None:
    """The coordinator finds its handlers in a table."""
    for event, handler in getattr(owner, "_HANDLERS", {}).items():
        if getattr(handler, "__planted_from__", handler) is before:
            stack.enter_context(mock.patch.dict(owner._HANDLERS, {event: after}))
            return
