"""Users' objects with ``prepare`` and ``cleanup``: opened and closed around the calls of a Spark task.

Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from trident.workers.failures import Label, fail


@dataclass(frozen=True)
class OperationContext:
    """An operation's ``prepare`` is given it.

    Attributes:
        partition_index: a number of the Spark task, distinct within its job, and
            the same when the task is tried again. The job of a batch may hold
            several streams: do not expect the numbers to begin at 0.
    """

    partition_index: int


class Several:
    """Users' objects that are one to a step.

    Attributes:
        users: each is prepared and cleaned up for itself.
    """

    users: Sequence[Any]


def owner_of(function: Any) -> Any:
    """The object whose ``prepare`` and ``cleanup`` go with the function; None when there is none.

    It is the function itself, the object of a bound method, or what a partial
    or a wrapper (``__wrapped__``) calls.
    """
    while function is not None and not isinstance(function, (type, types.ModuleType)):
        if callable(getattr(function, "prepare", None)) or callable(getattr(function, "cleanup", None)):
            return function
        if isinstance(function, functools.partial):
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None) or getattr(function, "__self__", None)
    return None


@contextmanager
def prepared(steps: Sequence[Any]) -> Iterator[None]:
    """Prepares the objects of the steps, each once, and cleans them up behind, also after a failure.

    A step that calls user code has it as ``user``. Of what was prepared
    everything is cleaned up, in reverse order; an object whose own ``prepare``
    raised is not. After a failure what ``cleanup`` raises is dropped: the
    failure is what must be told.
    """
    ready: list[tuple[Label, Any]] = []
    try:
        owners = _owners(steps)
        context = OperationContext(task_number()) if owners else None
        for label, owner in owners:
            _call(label, owner, "prepare", context)
            ready.append((label, owner))
        yield
    except BaseException:  # a task that is stopped early, too
        _clean(ready)
        raise
    for error in _clean(ready):
        raise error


def _owners(steps: Sequence[Any]) -> list[tuple[Label, Any]]:
    """In the order of the steps; an object that several of them use comes once."""
    owners: dict[int, tuple[Label, Any]] = {}
    for step in steps:
        user = getattr(step, "user", None)
        for one in user.users if isinstance(user, Several) else (user,):
            owner = owner_of(one)
            if owner is not None:
                owners.setdefault(id(owner), (step.label, owner))
    return list(owners.values())


def task_number() -> int:
    """The number of the Spark task within its stage; the same when it is tried again."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()  # without Spark there is only one


def _call(label: Label, owner: Any, method: str, *args: Any) -> None:
    call = getattr(owner, method, None)
    if not callable(call):
        return
    try:
        call(*args)
    except (Exception, SystemExit) as error:
        fail(label, error, {}, place=f"in {method}")


def _clean(ready: list[tuple[Label, Any]]) -> list[Exception]:
    """Cleans up all of them, whatever one raises; gives what was raised."""
    failures = []
    while ready:
        label, owner = ready.pop()
        try:
            _call(label, owner, "cleanup")
        except Exception as error:
            failures.append(error)
    return failures
