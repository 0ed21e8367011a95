"""Rows that only one of two tables has, those of one key side by side: pure, on Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from trident.states.core.plain_values import frozen, python_values
from trident.states.core.tables import DELETED_COLUMN

Values = Mapping[str, Any]


class RowPair(NamedTuple):
    """Rows of one key that two tables do not share.

    Attributes:
        key: the values of the key columns; empty where there are none.
        one, other: the rows; None: there is none.
    """

    key: Values
    one: Values | None
    other: Values | None


def row_pairs(
    keys: Sequence[str], one: pa.Table | None, other: pa.Table | None, leave_out: Sequence[str] = ()
) -> list[RowPair]:
    """The rows that only one of two tables has, in the order of the keys' texts; the order of rows is not compared.

    Args:
        keys: the columns by which rows are put side by side; of a table without keys each row is alone.
        leave_out: columns that are not compared.
    """
    names = [name for table in (one, other) if table is not None for name in table.column_names]
    names = [name for name in dict.fromkeys(names) if name not in leave_out]
    ours, shown = _counted(one, names, keys)
    theirs, shown_too = _counted(other, names, keys)
    rows = {**shown_too, **shown}
    found: dict[Any, tuple[list[Values], list[Values]]] = {}
    for side, only in enumerate((ours - theirs, theirs - ours)):
        for row in only.elements():
            values = rows[row]
            key = frozen(tuple(values[name] for name in keys)) if keys else row
            found.setdefault((repr(key), side if not keys else 0), ([], []))[side].append(values)
    pairs = []
    for _, sides in sorted(found.items()):
        for mine, its in zip_longest(*(sorted(side, key=repr) for side in sides)):
            either = its if mine is None else mine
            pairs.append(RowPair({name: either[name] for name in keys}, mine, its))
    return pairs


def _counted(
    table: pa.Table | None, names: Sequence[str], keys: Sequence[str]
) -> tuple[Counter[Any], dict[Any, Values]]:
    """How often each row is there, and the values of each; of a row that deletes its key the other values are null."""
    if table is None:
        return Counter(), {}
    nulls = [None] * table.num_rows
    columns = [_values(table.column(name)) if name in table.column_names else nulls for name in names]
    if DELETED_COLUMN in names:
        deleted = columns[names.index(DELETED_COLUMN)] = [bool(flag) for flag in columns[names.index(DELETED_COLUMN)]]
        for at, name in enumerate(names):
            if name != DELETED_COLUMN and name not in keys:
                columns[at] = [None if gone else value for gone, value in zip(deleted, columns[at])]
    rows = [frozen(values) for values in zip(*columns)]
    return Counter(rows), {row: dict(zip(names, values)) for row, values in zip(rows, zip(*columns))}


def _values(column: Any) -> list[Any]:
    """Python's values; the entries of a map in the order of its keys, for its own order is no difference."""
    values = python_values(column)
    return [_ordered(value, column.type) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(at).type) for at in range(kind.num_fields))


def _ordered(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _ordered(value[key], kind.item_type) for key in sorted(value, key=repr)}
    if pa.types.is_struct(kind):
        return {each.name: _ordered(value[each.name], each.type) for each in kind}
    return [_ordered(each, kind.value_type) for each in value]
