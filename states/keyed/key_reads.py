"""Reads a few keys of a keyed state from its tables by pyarrow: without a JVM, as of one transaction.

The result is that of ``trident.states.keyed.reading`` for the same transaction: the plain table's row of a key, and on
top the log's rows that wait. Of each file only the row groups are decoded whose bounds hold a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import TableError
from trident.states.core.copy_rows import RowCodec
from trident.states.core.copyable import why_not_exact
from trident.states.core.descriptor import StateDescriptor, descriptor_signature
from trident.states.core.local_copy import StaleCopy, look_up
from trident.states.core.place import Place
from trident.states.core.plain_values import python_values
from trident.states.core.storage import Signature
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.delta_log import LogSnapshot
from trident.states.delta.file_rows import rows_of, wanted_rows
from trident.states.delta.log_tables import LogTables
from trident.states.keyed.asked_keys import AskedKeys, asked_keys
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.copy_combine import arrow_schema
from trident.states.keyed.log_merge import combiner_of, doubled, fold_of, keeps_last
from trident.states.keyed.merge_rows import NotMergeable, RowMerge, between, why_not
from trident.states.keyed.pinning import Pinned, load_state, pin
from trident.states.keyed.tables import greatest_txid

_TRIES = 5
_CODE = "__trident_key"  # as no column of a state is called
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
            rows, found = look_up(copy, pa.array(keys.codes, pa.large_binary()))
        except StaleCopy as error:
            copies.damaged(name, copy, str(error))  # unless a transaction advanced meanwhile
            continue
        values = as_python(name, copy.values.names, rows)
        return [one if there else None for there, one in zip(found.tolist(), values, strict=True)]
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


@lru_cache(maxsize=256)
def _merge(state: StateDescriptor) -> RowMerge:
    aggregator = None if keeps_last(state) else (state.aggregator or "")
    return RowMerge(_arrow(state), tuple(state.keys), aggregator, state.sequence, state.retention)


@dataclass(frozen=True)
class _Found:
    """The rows of some keys: of the table, of the log, and the transactions of these: after < txid ≤ upto."""

    base: pa.Table
    log: pa.Table
    after: int
    upto: int


def _rows(view: Pinned, txid: int, keys: AskedKeys) -> _Found:
    """The rows of the keys in table and log."""
    control, merge = view.control, _merge(view.state)
    assert view.merged is not None, "a keyed state has a log"
    base, log = [merge.kept_schema.empty_table()], [merge.log_schema.empty_table()]
    if txid >= control.starts_at or view.was_adopted:
        if view.plain is not None:
            base += _of_table(view.plain, list(view.plain.files), merge.kept_schema, keys)
        if view.merged < min(txid, control.txid):
            files = view.published.files
            waiting = [path for path, file in files.items() if greatest_txid(file) > view.merged]
            for rows in _of_table(view.published, waiting, merge.log_schema, keys):
                log.append(between(rows, view.merged, txid))
    return _Found(pa.concat_tables(base), pa.concat_tables(log), view.merged, txid)


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


def _combined(state: StateDescriptor, keys: AskedKeys, found: _Found, aggregator: Any) -> list[Values | None]:
    """The value of each asked key, from its rows in table and log."""
    combiner = combiner_of(state, aggregator)
    codes = keys.codes_of(found.base)
    if len(set(codes)) < len(codes):
        twice = next(at for at, code in enumerate(codes) if code in codes[:at])
        raise doubled(state.name, found.base.select(list(keys.columns)).slice(twice, 1).to_pylist()[0])
    if combiner is not None:
        return _folded(state, keys, found, combiner)
    # By their codes: of keys of any type equal ones are equal bytes.
    whole = _merge(state)
    values = [field for field in whole.schema if field.name not in state.keys]
    merge = replace(whole, schema=pa.schema([pa.field(_CODE, pa.binary()), *values]), keys=(_CODE,))
    if found.log.num_rows and (reason := why_not(merge.schema, merge.keys, merge.aggregator)) is not None:
        raise not_by_key(state.name, reason)
    try:
        parts = merge.in_parts(_coded(keys, found.log, merge.log_schema), found.after, found.upto)
        rows = merge.with_parts(_coded(keys, found.base, merge.kept_schema), parts)
    except NotMergeable as error:
        raise not_by_key(state.name, error) from error
    by_code = dict(zip(rows.column(_CODE).to_pylist(), _values_of(state, rows), strict=True))
    return [by_code.get(code) for code in keys.codes]


def _coded(keys: AskedKeys, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    codes = pa.array(keys.codes_of(rows), pa.binary())
    return pa.table([codes if name == _CODE else rows.column(name) for name in schema.names], schema=schema)


def _folded(state: StateDescriptor, keys: AskedKeys, found: _Found, combiner: Any) -> list[Values | None]:
    """As Spark's tasks fold the log: rows of a key one after the other, in the order of transactions."""
    names = [field.name for field in state.schema.fields]
    old = found.base.append_column(TXID_COLUMN, pa.repeat(pa.scalar(0, pa.int64()), found.base.num_rows))
    rows = pa.concat_tables([old, found.log])
    places = list(zip(keys.codes_of(rows), rows.column(TXID_COLUMN).to_pylist(), strict=True))
    ordered = rows.take(pa.array(sorted(range(rows.num_rows), key=places.__getitem__), pa.int64()))
    fold = fold_of(combiner.combine, state.keys, state.value_fields, names, state.name)
    values: dict[bytes, Values] = {}
    for batch in fold(ordered.combine_chunks().to_batches()):
        table = pa.Table.from_batches([batch])
        values.update(zip(keys.codes_of(table), _values_of(state, table), strict=True))
    return [values.get(code) for code in keys.codes]
