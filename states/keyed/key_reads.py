"""Reads a few keys of a keyed state from its tables by pyarrow: without a JVM, as of one transaction.

The result is that of ``trident.states.keyed.reading`` for the same transaction: the plain table's row of a key, and on
top the log's rows that wait. Of each file only the row groups are decoded whose bounds hold a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import TableError
from trident.states.core.copy_rows import RowCodec
from trident.states.core.copyable import why_not_exact
from trident.states.core.descriptor import StateDescriptor, descriptor_signature
from trident.states.core.local_copy import StaleCopy, look_up
from trident.states.core.place import Place
from trident.states.core.plain_values import python_values
from trident.states.core.storage import Signature
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN
from trident.states.delta.delta_log import LogSnapshot
from trident.states.delta.file_rows import rows_of, wanted_rows
from trident.states.delta.key_order import positions_in_order
from trident.states.delta.log_tables import LogTables
from trident.states.keyed.asked_keys import AskedKeys, asked_keys
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.copy_combine import Uncombinable, arrow_schema, combine_of
from trident.states.keyed.log_merge import combiner_of, doubled, fold_of, is_sequenced, keeps_last, native_merge
from trident.states.keyed.pinning import Pinned, load_state, pin
from trident.states.keyed.tables import greatest_txid

_TRIES = 5
Values = dict[str, Any]


class NotByKey(TableError):
    """The state cannot be read key by key without Spark; with Spark it can be read all the same."""


class KeyReader:
    """Reads keys of the states of one warehouse.

    Keep one for as long as reads may come: what a table's log says, and the footers of its files, are read once. May be
    used by several threads.
    """

    def __init__(self, warehouse: Place) -> None:
        self._warehouse, self._tables = warehouse, LogTables()
        self._states: dict[str, tuple[Signature, StateDescriptor]] = {}

    def asked(self, name: str, keys: Sequence[Any]) -> AskedKeys:
        """The keys of a state as its user gives them.

        Args:
            keys: of a state without keys one empty tuple.

        Raises:
            TableError: there is no such keyed state.
            NotByKey: its keys are of a type of which values that differ may be equal.
            FieldError: a key does not fit.
        """
        state = self._state(name)
        return asked_keys(name, _arrow(state), state.keys, keys, _codec(state))

    def get(
        self,
        name: str,
        keys: AskedKeys,
        txid: int | None = None,
        aggregator: Any = None,
        advanced_txid: int | None = None,
    ) -> list[Values | None]:
        """The values of the keys, None where the state has not the key.

        Args and Raises: as for ``reading.read_state``.

        Raises:
            NotByKey: the tables ask more of a reader than whole Parquet files.
        """
        state = self._state(name)
        for attempt in range(_TRIES):
            views, asked = pin(self._tables, self._warehouse, [state], txid, advanced_txid)
            try:
                rows = _rows(views[name], asked, keys)
                break
            except TableError:
                # A vacuum or a sweep took a file of a table version that was the newest a moment ago.
                again = pin(self._tables, self._warehouse, [state], txid, advanced_txid)[0]
                if attempt == _TRIES - 1 or _versions(again[name]) == _versions(views[name]):
                    raise
        return _combined(state, keys, rows, aggregator)

    def _state(self, name: str) -> StateDescriptor:
        signature = descriptor_signature(self._warehouse, name)
        known = self._states.get(name)
        if known is not None and known[0] == signature:
            return known[1]
        state = self._readable(name)
        if signature is not None:
            self._states[name] = signature, state
        return state

    def _readable(self, name: str) -> StateDescriptor:
        state = load_state(self._warehouse, name)
        if not state.state_kind.has_log:
            raise TableError(
                f"state {name} has no keys to be read by",
                found=f"a state of kind {state.kind!r}",
                expected="a keyed state (DeltaMapState)",
                action="read its rows with trident.read(spark, …), or query.snapshot(name)",
            )
        if state.history_by:
            raise TableError(
                f"state {name} has periods of its keys, which are known when all changes of a key are read",
                found="an Upsert with history",
                expected="a state with one value per key",
                action="read it with trident.read(spark, …), or query.snapshot(name), and filter the frame by its keys",
            )
        reason = why_not_exact(state.schema, state.keys)
        if reason is not None:
            raise not_by_key(name, reason)
        return state


def not_by_key(name: str, reason: object) -> NotByKey:
    """The error of a state that Spark alone can read."""
    return NotByKey(
        f"state {name} cannot be read key by key without Spark",
        found=reason,
        action="read it with trident.read(spark, warehouse, state) and filter the frame by its keys",
    )


def held_values(copies: StateCopies, name: str, keys: AskedKeys, txid: int) -> list[Values | None] | None:
    """The values of the keys in the local copy of a state, as of an advanced transaction or a later one that has.

    Returns:
        None where there is no copy to be used.

    Raises:
        TableError: a file of the state's tables is gone or not whole.
    """
    for _ in range(_TRIES):
        copy = copies.held(name, txid)
        if copy is None:
            return None
        try:
            found = look_up(copy.folder, keys.codes, copy.mark)
        except StaleCopy as error:
            copies.damaged(name, copy, str(error))  # unless a transaction advanced meanwhile
            continue
        codec = RowCodec(copy.schema, copy.keys)
        values = as_python(name, codec.values, codec.decode_values(found))
        return [None if row is None else one for row, one in zip(found, values, strict=True)]
    return None


def _values_of(state: StateDescriptor, rows: pa.Table) -> list[Values]:
    """The values of rows as Python has them, one dict for each."""
    return as_python(state.name, state.value_fields, rows)


def as_python(name: str, fields: Sequence[str], rows: pa.Table) -> list[Values]:
    """Some columns of rows as Python has them, one dict for each row."""
    try:
        columns = [python_values(rows.column(field)) for field in fields]
    except (OverflowError, ValueError) as error:
        raise TableError(
            f"a value of state {name} cannot be shown in Python",
            found=error,
            action="read it with trident.read(spark, warehouse, state), and cast the column in Spark",
        ) from error
    if not columns:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _versions(view: Pinned) -> tuple[int, int | None]:
    return view.published.version, None if view.plain is None else view.plain.version


@lru_cache(maxsize=256)
def _codec(state: StateDescriptor) -> RowCodec:
    return RowCodec(_arrow(state), state.keys)


@lru_cache(maxsize=256)
def _arrow(state: StateDescriptor) -> pa.Schema:
    return arrow_schema(state.schema)


def _rows(view: Pinned, txid: int, keys: AskedKeys) -> pa.Table:
    """The rows of the keys in table and log, with their txid; the table's have 0, before all, unless it has theirs."""
    state, control = view.state, view.control
    assert view.merged is not None, "a keyed state has a log"
    hidden = [pa.field(TXID_COLUMN, pa.int64())]
    if keeps_last(state):
        hidden.append(pa.field(DELETED_COLUMN, pa.bool_()))
    schema = pa.schema([*_arrow(state), *hidden])
    found = [schema.empty_table()]
    of_table = schema if is_sequenced(state) else _arrow(state)
    if txid < control.starts_at and not view.was_adopted:
        return found[0]
    if view.plain is not None:
        for rows in _of_table(view.plain, list(view.plain.files), of_table, keys):
            if is_sequenced(state):
                found.append(rows)
                continue
            zeros = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
            columns = [*rows.columns, zeros, *([pa.nulls(rows.num_rows, pa.bool_())] if keeps_last(state) else [])]
            found.append(pa.Table.from_arrays(columns, schema=schema))
    if view.merged < min(txid, control.txid):
        log = view.published
        waiting = [path for path, file in log.files.items() if greatest_txid(file) > view.merged]
        for rows in _of_table(log, waiting, schema, keys):
            txids = rows.column(TXID_COLUMN)
            found.append(rows.filter(pc.and_(pc.greater(txids, view.merged), pc.less_equal(txids, txid))))
    return pa.concat_tables(found)


def _of_table(table: LogSnapshot, paths: Sequence[str], schema: pa.Schema, keys: AskedKeys) -> "list[pa.Table]":
    if table.why_not_rows is not None:
        raise NotByKey(
            f"table {table.path} cannot be read without Spark",
            found=table.why_not_rows,
            expected="a table of whole Parquet files, as its topology makes it",
            action="read it with trident.read(spark, warehouse, state) and filter the frame by its keys",
        )
    files = [table.files[path] for path in paths]
    if not keys.columns:
        return [pa.Table.from_batches([batch]) for batch in rows_of(table.path, files, schema)]
    return list(wanted_rows(table.path, files, schema, keys))


def _combined(state: StateDescriptor, keys: AskedKeys, rows: pa.Table, aggregator: Any) -> list[Values | None]:
    """The value of each asked key, from its rows in table and log."""
    combiner = combiner_of(state, aggregator)
    codes = keys.codes_of(rows)
    places: list[int] = rows.column(TXID_COLUMN).to_pylist()
    # In the order of transactions, of each in that of the log's files; or in that of the changes' sequence.
    in_order: Sequence[int] = sorted(range(rows.num_rows), key=places.__getitem__)
    if is_sequenced(state):
        in_order = positions_in_order([rows.column(state.sequence), rows.column(TXID_COLUMN)]).to_pylist()
    of_key: dict[bytes, list[int]] = {}
    for at in in_order:
        of_key.setdefault(codes[at], []).append(at)
    for some in of_key.values():
        if len(some) > 1 and places[some[1]] == 0:
            raise doubled(state.name, rows.select(list(keys.columns)).slice(some[0], 1).to_pylist()[0])
    if combiner is not None:
        return _folded(state, keys, rows, of_key, combiner)
    values = _values_of(state, rows)
    if keeps_last(state):
        gone = rows.column(DELETED_COLUMN).to_pylist()
        newest = {code: some[-1] for code, some in of_key.items()}
        if state.retention.forgets:
            newest = {code: _in_turn(state, some, places, gone) for code, some in of_key.items()}
        found = {code: values[at] for code, at in newest.items() if not gone[at]}
    else:
        found = {code: _merged(state, rows.schema, [values[at] for at in some]) for code, some in of_key.items()}
    return [found.get(code) for code in keys.codes]


def _in_turn(state: StateDescriptor, in_order: Sequence[int], txids: Sequence[int], gone: Sequence[bool | None]) -> int:
    """The row of a key that counts, where keys that were deleted long before some of the rows are forgotten."""
    places = {at: place for place, at in enumerate(in_order)}
    retention = state.retention
    first, *later = sorted(in_order, key=txids.__getitem__)
    for at in later:
        forgotten = gone[first] and txids[first] < retention.below(txids[at])
        if forgotten or places[at] > places[first]:
            first = at
    return first


def _merged(state: StateDescriptor, schema: pa.Schema, parts: list[Values]) -> Values:
    """One value of parts, natively: of each column on its own, as Spark merges them."""
    assert native_merge(state) is not None
    if len(parts) == 1:
        return parts[0]
    merged = {}
    for name in state.value_fields:
        combine = combine_of(state.aggregator or "", schema.field(name).type)
        if combine is None:
            raise not_by_key(state.name, f"{state.aggregator} of {schema.field(name).type} is merged by Spark alone")
        try:
            value = parts[0][name]
            for part in parts[1:]:
                value = combine(value, part[name])
        except Uncombinable as error:
            raise not_by_key(state.name, error) from error
        merged[name] = value
    return merged


def _folded(
    state: StateDescriptor, keys: AskedKeys, rows: pa.Table, of_key: dict[bytes, list[int]], combiner: Any
) -> list[Values | None]:
    """As Spark's tasks fold the log: rows of a key one behind the other, in the order of transactions."""
    names = [field.name for field in state.schema.fields]
    ordered = rows.take(pa.array([at for places in of_key.values() for at in places], pa.int64()))
    fold = fold_of(combiner.combine, state.keys, state.value_fields, names, state.name)
    found: dict[bytes, Values] = {}
    for batch in fold(ordered.combine_chunks().to_batches()):
        table = pa.Table.from_batches([batch])
        found.update(zip(keys.codes_of(table), _values_of(state, table), strict=True))
    return [found.get(code) for code in keys.codes]
