"""Compares the rows that a replay has for a state with those that were committed: pure, on Arrow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from trident.states.core.tables import DELETED_COLUMN
from trident.states.core.typed_values import frozen, python_values
from trident.states.delta.file_layout import partition_texts

# Rows that only one of two tables has, those of one key side by side: pure, on Arrow.


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
    ours, shown = _times_in(one, names, keys)
    theirs, shown_too = _times_in(other, names, keys)
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


def _times_in(
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


@dataclass(frozen=True)
class Difference:
    """A row that a replay and the committed transaction do not share.

    Attributes:
        state: the state's name.
        key: the values of the state's keys; empty of a state without keys.
        committed: the row as it was staged for the transaction that was committed; None: there was none.
        replayed: the row that the replay has in its place; None: it has none.
    """

    state: str
    key: Values
    committed: Values | None
    replayed: Values | None

    def __str__(self) -> str:
        where = f"{self.state} {dict(self.key)}" if self.key else self.state
        return f"{where}: committed {_text(self.committed)}, replayed {_text(self.replayed)}"


def _text(row: Values | None) -> str:
    return "no row" if row is None else str(dict(row))


def differences(
    state: str,
    keys: Sequence[str],
    committed: pa.Table | None,
    replayed: pa.Table,
    leave_out: Sequence[str] = (),
    partition_columns: Sequence[str] = (),
) -> list[Difference]:
    """The rows that only one of two has, those of one key side by side; in the order of the keys' texts.

    The order of the rows is not compared, and which files they are in is not. Floating-point numbers are compared to
    the bit, but that NaN is equal to NaN, and 0.0 to -0.0.

    Args:
        keys: the fields by which rows are put side by side.
        committed: None where nothing was staged.
        leave_out: columns of the committed rows that the framework has added.
        partition_columns: those that ``committed`` has as texts.
    """
    names = [name for name in replayed.column_names if name not in leave_out]
    if committed is not None:
        names += [name for name in committed.column_names if name not in names and name not in leave_out]
    if not names:
        return []
    ours = _by_row(replayed, names, partition_columns)
    theirs = {} if committed is None else _by_row(committed, names, ())
    found: dict[Any, tuple[list[Values], list[Values]]] = defaultdict(lambda: ([], []))
    for row in ours.keys() | theirs.keys():
        count, values = _counted(theirs, row)
        count_now, values_now = _counted(ours, row)
        more = count - count_now
        if more:
            shown = values if more > 0 else values_now
            place = found[frozen(tuple(shown.get(key) for key in keys))]
            place[0 if more > 0 else 1].extend([shown] * abs(more))
    return [one for _, sides in sorted(found.items(), key=_order) for one in _side_by_side(state, keys, *sides)]


def _order(item: tuple[Any, Any]) -> str:
    return repr(item[0])


Rows = dict[Any, tuple[int, Values]]


def _counted(rows: Rows, row: Any) -> tuple[int, Values]:
    return rows.get(row, (0, {}))


def _by_row(table: pa.Table, names: Sequence[str], partition_columns: Sequence[str]) -> Rows:
    """Row as a key → how often there is such a row, and its values."""
    there = table.column_names
    columns: list[list[Any]] = []
    for name in names:
        if name not in there:
            columns.append([None] * table.num_rows)
        elif name in partition_columns:
            columns.append([*partition_texts(name, table.column(name))])
        else:
            columns.append(python_values(table.column(name)))
    found: Rows = {}
    for values in zip(*columns, strict=True):
        row = frozen(values)
        count, shown = found.get(row, (0, None))
        found[row] = (count + 1, dict(zip(names, values)) if shown is None else shown)
    return found


def _side_by_side(
    state: str, keys: Sequence[str], committed: list[Values], replayed: list[Values]
) -> Iterator[Difference]:
    """The rows of one key in pairs; those of a state without keys each alone."""
    committed, replayed = sorted(committed, key=repr), sorted(replayed, key=repr)
    if not keys:
        yield from (Difference(state, {}, row, None) for row in committed)
        yield from (Difference(state, {}, None, row) for row in replayed)
        return
    for one, other in zip_longest(committed, replayed):
        either = other if one is None else one
        yield Difference(state, {key: either.get(key) for key in keys}, one, other)
