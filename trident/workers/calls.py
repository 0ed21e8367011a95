"""Calls users' functions for rows, and opens and closes users' objects around them. Imported by every worker."""

from __future__ import annotations

import functools
import types
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from trident.states.core.typed_values import WrongValue, cut_repr, to_arrow
from trident.workers.failures import Label, Values, fail

# Users' objects with ``prepare`` and ``cleanup``: opened and closed around the calls of a Spark task.
#
# Imported by every worker: keep its imports light.


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


_NOT_ROWS = frozenset({str, bytes, bytearray, dict})
# Told apart without asking for __iter__, which costs more than the rest of a short function.
_SINGLE = _NOT_ROWS | {int, float, bool}


@dataclass(frozen=True)
class Results:
    """The results of calling a function once per row.

    Attributes:
        ends: how many results there were after each call.
    """

    rows: list[Any]
    ends: Sequence[int]

    def one_each(self) -> bool:
        """Tells whether each call gave exactly one result, however it was given: returned, yielded, or in a list."""
        return all(end == row for row, end in enumerate(self.ends, 1))

    def index(self) -> list[int] | None:
        """The input row of each result; None when each row is known to have given exactly one.

        Where a function's annotation does not say so there is an index, also when each gave one: see ``one_each``.
        """
        ends = self.ends
        if isinstance(ends, range):
            return None
        index: list[int] = []
        start = 0
        for row, end in enumerate(ends):
            if end == start + 1:
                index.append(row)
            elif end > start:
                index.extend(repeat(row, end - start))
            start = end
        return index


def call_rows(
    label: Label,
    function: Callable[..., Any],
    columns: Sequence[Values],
    names: Sequence[str],
    length: int,
    many: bool | None = False,
    several: bool = False,
    drop_none: bool = False,
) -> Results:
    """Calls the function for each row and gathers what it returns.

    Args:
        many: True: each result is an iterable of rows; False: it is one; None: told by its type.
        several: a row has several values, so a tuple is one row.
        drop_none: None means no row (else it is a null value).
    """
    calls = map(function, *columns) if columns else starmap(function, repeat((), length))
    rows: list[Any] = []
    ends: list[int] = []
    try:
        if many is False:
            rows.extend(calls)  # when a call raises, the results before it stay: they say which row it was
            done = len(rows)
        else:
            gather = _gather_many if many else _gather_any
            gather(calls, rows, ends, several)
            done = len(ends)
        if done != length:
            raise StopIteration("a function may not raise StopIteration: rows would be lost")
    except (Exception, SystemExit) as error:
        at = len(rows) if many is False else len(ends)
        fail(
            label,
            error,
            {name: column[at] for name, column in zip(names, columns)} if at < length else {},
            **(error.details if isinstance(error, WrongValue) else {}),
        )
    if many is not False:
        return Results(rows, ends)
    if not drop_none or type(None) not in set(map(type, rows)):
        return Results(rows, range(1, length + 1))
    count = 0
    for row in rows:
        count += row is not None
        ends.append(count)
    return Results([row for row in rows if row is not None], ends)


def _gather_many(calls: Iterable[Any], rows: list[Any], ends: list[int], several: bool) -> None:
    extend, append = rows.extend, ends.append
    for result in calls:
        if result is not None:
            # A text is iterable too, but no user means its characters.
            if result.__class__ in _NOT_ROWS or not hasattr(result, "__iter__"):
                raise WrongValue("the function returned a single value", cut_repr(result), "an iterable of rows")
            extend(result)
        append(len(rows))


def _gather_any(calls: Iterable[Any], rows: list[Any], ends: list[int], several: bool) -> None:
    for result in calls:
        if result is not None:
            one = result.__class__ in _SINGLE or not hasattr(result, "__iter__")
            if one or (several and isinstance(result, tuple)):
                rows.append(result)
            else:
                rows.extend(result)
        ends.append(len(rows))


def one_row(result: Any, many: bool | None, several: bool) -> Any:
    """The only row that one call of an aggregator's ``complete`` gave, for a state that keeps one for each key.

    Args:
        many, several: as of ``call_rows``.

    Raises:
        ValueError: it gave none, or more.
    """
    rows: list[Any] = []
    if many is False:
        rows = [] if result is None else [result]
    else:
        (_gather_many if many else _gather_any)([result], rows, [], several)
    if len(rows) != 1:
        raise not_one_row(len(rows))
    return rows[0]


def not_one_row(count: int) -> ValueError:
    return ValueError(f"complete gave {count} rows for a key: a state keeps exactly one for each")


def output_arrays(
    label: Label,
    results: Results,
    outputs: Sequence[str],
    types: Sequence[pa.DataType],
    row_at: Callable[[int], Mapping[str, Any]],
) -> tuple[dict[str, pa.Array], dict[str, Values]]:
    """The results as typed columns, and their Python values where these are the same as the typed ones."""
    columns: Sequence[Sequence[Any]] = [results.rows]
    try:
        if len(outputs) > 1:
            columns = _transpose(results.rows, outputs)
        arrays, values = {}, {}
        for name, kind, column in zip(outputs, types, columns):
            arrays[name], exact = to_arrow(column, kind, name)
            if exact:
                values[name] = column
    except WrongValue as error:
        fail(label, error, row_at(bisect_right(results.ends, error.position)), **error.details)
    return arrays, values


def _transpose(rows: Sequence[Any], outputs: Sequence[str]) -> Sequence[Sequence[Any]]:
    count = len(outputs)
    kinds = set(map(type, rows))
    if not all(issubclass(kind, (tuple, list)) for kind in kinds) or set(map(len, rows)) - {count}:
        for position, row in enumerate(rows):
            if not isinstance(row, (tuple, list)) or len(row) != count:
                raise WrongValue(
                    "a result has another number of values than there are outputs",
                    cut_repr(row),
                    f"a tuple of {count} for {', '.join(outputs)}",
                    position,
                )
    return list(zip(*rows)) if rows else [()] * count
