"""Calls a user's function for every row, and makes typed columns of the results. Imported by every worker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any

import pyarrow as pa

from trident.workers.failures import Label, fail
from trident.workers.values import Values, WrongValue, cut_repr, to_arrow

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
