"""Reads a few keys of a keyed state from its tables by pyarrow: without a JVM, as of one transaction.

The result is that of ``trident.states.keyed.reading`` for the same transaction: the plain table's row of a key, and on
top the log's rows that wait. Of each file only the row groups are decoded whose bounds hold a key.
"""

from __future__ import annotations

import datetime
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.coordinators.errors import FieldError, TableError
from trident.states.core.copy_rows import RowCodec, as_bytes
from trident.states.core.copyable import arrow_schema, why_not_exact
from trident.states.core.descriptor import StateDescriptor, descriptor_signature
from trident.states.core.local_copy import StaleCopy, look_up
from trident.states.core.place import Place
from trident.states.core.storage import Signature
from trident.states.core.tables import TXID_COLUMN
from trident.states.core.typed_values import python_values
from trident.states.delta.data_files import group_bounds, rows_of, wanted_rows
from trident.states.delta.delta_log import LogSnapshot, LogTables
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.log_merge import combiner_of, doubled, fold_of, keeps_last
from trident.states.keyed.merge_rows import NotMergeable, RowMerge, between, why_not
from trident.states.keyed.pinning import Pinned, load_state, pin
from trident.states.keyed.tables import greatest_txid

# The keys that a reader requests from a keyed state: as users give them, and how they are found in the rows of files.


# Delta keeps instants in a log's statistics in milliseconds, and writers round them as they like.
_MILLISECOND = datetime.timedelta(milliseconds=1)


class RequestedKeys:
    """Keys of one state, in the order in which they are requested; ``file_rows.WantedRows`` of their rows.

    Args:
        rows: the key columns by name, in the state's types.
        count: how many keys there are, also where there are no key columns.

    Attributes:
        columns: the key columns.
        rows: as given.
        codes: each key as bytes: equal keys are equal bytes.
    """

    def __init__(self, rows: pa.Table, codec: RowCodec, count: int) -> None:
        self.rows, self.columns, self._codec = rows, tuple(rows.column_names), codec
        self.codes: list[bytes] = codec.encode_keys(rows) if rows.num_columns else [b""] * count
        self._code_set = pa.array(sorted(set(self.codes)), pa.large_binary())
        self._requested = {name: _Column(rows.column(name).combine_chunks()) for name in self.columns}

    def codes_of(self, rows: pa.Table) -> list[bytes]:
        """The keys of some rows as bytes."""
        return as_bytes(self._codec.key_array(rows)) if self.columns else [b""] * rows.num_rows

    def may_be_in(self, file: LiveFile) -> bool:
        stats = file.stats or {}
        low, high, nulls = (stats.get(name) for name in ("minValues", "maxValues", "nullCount"))
        if not (isinstance(low, Mapping) and isinstance(high, Mapping) and isinstance(nulls, Mapping)):
            return True
        for name, requested in self._requested.items():
            has_nulls = nulls.get(name) != 0
            if not requested.may_be_within(
                requested.as_value(low.get(name)), requested.as_value(high.get(name), up=True), has_nulls
            ):
                return False
        return True

    def may_be_in_group(self, group: pq.RowGroupMetaData, kinds: dict[str, pa.DataType]) -> bool:
        for at in range(group.num_columns):
            column = group.column(at)
            # A field of a struct has a name with a dot, and so may a column: bounds of such a name may be of either.
            requested = None if "." in column.path_in_schema else self._requested.get(column.path_in_schema)
            # Where the file has another type than the table, as of a writer that keeps other units, bounds say nothing.
            if requested is None or kinds.get(column.path_in_schema) != requested.kind:
                continue
            low, high, has_nulls = group_bounds(column)
            if not requested.may_be_within(low, high, has_nulls):
                return False
        return True

    def found_in(self, rows: pa.Table) -> pa.Array:
        if not self.columns:
            return pa.array(range(rows.num_rows), pa.int64())
        may_be = None
        for name, requested in self._requested.items():
            if (mask := requested.may_be(rows.column(name))) is not None:
                may_be = mask if may_be is None else pc.and_(may_be, mask)
        places = pa.array(range(rows.num_rows), pa.int64()) if may_be is None else pc.indices_nonzero(may_be)
        if not len(places):
            return places
        found = pc.is_in(self._codec.key_array(rows.take(places)), value_set=self._code_set)
        return places.filter(found)


class _Column:
    """The requested values of one key column."""

    def __init__(self, values: pa.Array) -> None:
        self.kind, self._values = values.type, values
        self._null = values.null_count > 0
        self._plain = not pa.types.is_nested(values.type)
        self._float = pa.types.is_floating(values.type)
        self._nan = bool(self._float and pc.any(pc.is_nan(values)).as_py())

    @cached_property
    def _sorted(self) -> list[Any]:
        return sorted({value for value in self._values.drop_null().to_pylist() if value == value})

    def may_be_within(self, low: Any, high: Any, has_nulls: bool) -> bool:
        """Tells whether one of the values may be among those of a column with such bounds; None: it is not known."""
        if not self._plain or self._nan or self._null and has_nulls:
            return True
        if not self._sorted:
            return False  # null alone is requested, and there is none
        if low is None or high is None:
            return True
        kind = type(self._sorted[0])
        if type(low) is not kind or type(high) is not kind or self._float and (math.isnan(low) or math.isnan(high)):
            return True
        try:
            at = bisect_left(self._sorted, low)
            return at < len(self._sorted) and bool(self._sorted[at] <= high)
        except TypeError:  # an instant with a zone and one without
            return True

    def may_be(self, column: pa.ChunkedArray) -> Any:
        """Tells of each row whether its value may be requested; None where every one may."""
        if not self._plain:
            return None
        if not self._float:
            return pc.is_in(column, value_set=self._values)
        zero = pa.scalar(0, self.kind)  # -0.0 + 0 is 0.0
        mask = pc.is_in(pc.add(column, zero), value_set=pc.add(self._values, zero))
        return pc.or_(mask, pc.fill_null(pc.is_nan(column), False)) if self._nan else mask

    def as_value(self, bound: Any, up: bool = False) -> Any:
        """A bound of a log's statistics as a value of the column; None where it is not exact enough."""
        try:
            if pa.types.is_integer(self.kind) and isinstance(bound, int) or _is_text(self.kind):
                return bound
            if pa.types.is_date(self.kind):
                return datetime.date.fromisoformat(bound)
            if pa.types.is_timestamp(self.kind):
                at = datetime.datetime.fromisoformat(bound.replace("Z", "+00:00"))
                at = at if self.kind.tz else at.replace(tzinfo=None)
                return at + _MILLISECOND if up else at - _MILLISECOND
        except (TypeError, ValueError, AttributeError, OverflowError):
            pass
        return None  # of floats and decimals JSON may have lost digits


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# --- as users give them ----------------------------------------------------------------------------


def requested_keys(
    state: str, schema: pa.Schema, names: Sequence[str], keys: Sequence[Any], codec: RowCodec
) -> RequestedKeys:
    """The keys that a user requests.

    Args:
        schema: of the state.
        names: the key columns, in the state's order.
        keys: each a value (of one key column), a tuple in that order, or a dict by their names.

    Raises:
        FieldError: a key has other columns, or a value is not of its column's type.
    """
    rows = key_rows(state, schema, names, keys)
    columns = [_array([row[at] for row in rows], schema.field(name).type) for at, name in enumerate(names)]
    return RequestedKeys(pa.table(columns, names=list(names)), codec, len(rows))


def key_rows(state: str, schema: pa.Schema, names: Sequence[str], keys: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The keys that a user asks, each as a tuple in the order of the key columns, with the values as they were given.

    Args and Raises: as for :func:`requested_keys`.
    """
    rows = [_row(state, names, key) for key in keys]
    for at, name in enumerate(names):
        _check(state, name, schema.field(name).type, [row[at] for row in rows])
    return rows


def plain_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[tuple[Any, ...]]:
    """Keys that :func:`key_rows` gives, in Python's own values of their columns' types, which Spark asks for.

    Args:
        schema: of the key columns, in the order of the rows'.
    """
    columns = [_array([row[at] for row in rows], field.type).to_pylist() for at, field in enumerate(schema)]
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _row(state: str, names: Sequence[str], key: Any) -> tuple[Any, ...]:
    if isinstance(key, dict) and set(key) == set(names) and names:
        return tuple(key[name] for name in names)
    if isinstance(key, tuple) and len(key) == len(names):
        return key
    if len(names) == 1 and not isinstance(key, tuple):
        return (key,)
    if names:
        one = "a value, a tuple of one" if len(names) == 1 else f"a tuple ({', '.join(names)})"
        expected = f"{one}, or a dict of {', '.join(names)}"
    else:
        expected = "none: the state has one row"
    raise FieldError(
        f"this is no key of state {state}",
        found=repr(key) if key != () else "no key",
        expected=expected,
        action="a list of keys asks for several",
    )


def _check(state: str, name: str, kind: pa.DataType, values: list[Any]) -> None:
    for value in values:
        if not _may_be_of(kind, value):
            raise _wrong(state, name, kind, value)
    try:
        _array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _wrong(state, name, kind, next((one for one in values if not _converts(one, kind)), values)) from error


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_nested(kind) or not values:
        return pa.array(values, kind, from_pandas=False)
    # One by one: Arrow takes dicts for structs, and tuples, but not both at once.
    return pa.concat_arrays([pa.array([value], kind, from_pandas=False) for value in values])


def _converts(value: Any, kind: pa.DataType) -> bool:
    try:
        _array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _may_be_of(kind: pa.DataType, value: Any) -> bool:
    """Tells whether Arrow may be asked to take a value as one of a type: of some it would make others than they are."""
    if value is None:
        return True
    types = pa.types
    if types.is_boolean(kind):
        return isinstance(value, bool)
    if types.is_integer(kind):
        return isinstance(value, Integral) and not isinstance(value, bool)
    if types.is_floating(kind):
        return isinstance(value, Real) and not isinstance(value, bool)
    if types.is_decimal(kind):
        return isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if _is_text(kind):
        return isinstance(value, str)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return isinstance(value, (bytes, bytearray))
    if types.is_timestamp(kind):
        return isinstance(value, datetime.datetime) and (value.tzinfo is not None) == (kind.tz is not None)
    if types.is_date(kind):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    if types.is_struct(kind):
        if isinstance(value, dict):  # of another name Arrow would make no field, without a word
            return all(
                kind.get_field_index(name) >= 0 and _may_be_of(kind.field(name).type, one)
                for name, one in value.items()
            )
        if not isinstance(value, (list, tuple)) or len(value) != kind.num_fields:
            return False
        return all(_may_be_of(field.type, one) for field, one in zip(kind, value, strict=True))
    if types.is_list(kind) or types.is_large_list(kind):
        return isinstance(value, (list, tuple)) and all(_may_be_of(kind.value_type, one) for one in value)
    return isinstance(value, (dict, list, tuple))


def _wrong(state: str, name: str, kind: pa.DataType, value: Any) -> FieldError:
    zone = ", with a time zone" if pa.types.is_timestamp(kind) and kind.tz else ""
    return FieldError(
        f"a value of key column {name!r} of state {state} is not of its type",
        found=f"{value!r} ({type(value).__name__})",
        expected=f"{kind}{zone}",
        action="a list asks for several keys; a key of several columns is a tuple, or a dict by their names",
    )


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

    def requested(self, name: str, keys: Sequence[Any]) -> RequestedKeys:
        """The keys of a state as its user gives them.

        Args:
            keys: of a state without keys one empty tuple.

        Raises:
            TableError: there is no such keyed state.
            NotByKey: its keys are of a type of which values that differ may be equal.
            FieldError: a key does not fit.
        """
        state = self._state(name)
        return requested_keys(name, _arrow(state), state.keys, keys, _codec(state))

    def get(
        self,
        name: str,
        keys: RequestedKeys,
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
            views, requested = pin(self._tables, self._warehouse, [state], txid, advanced_txid)
            try:
                rows = _rows(views[name], requested, keys)
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


def held_values(copies: StateCopies, name: str, keys: RequestedKeys, txid: int) -> list[Values | None] | None:
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


def _rows(view: Pinned, txid: int, keys: RequestedKeys) -> _Found:
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


def _of_table(table: LogSnapshot, paths: Sequence[str], schema: pa.Schema, keys: RequestedKeys) -> "list[pa.Table]":
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


def _combined(state: StateDescriptor, keys: RequestedKeys, found: _Found, aggregator: Any) -> list[Values | None]:
    """The value of each requested key, from its rows in table and log."""
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


def _coded(keys: RequestedKeys, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    codes = pa.array(keys.codes_of(rows), pa.binary())
    return pa.table([codes if name == _CODE else rows.column(name) for name in schema.names], schema=schema)


def _folded(state: StateDescriptor, keys: RequestedKeys, found: _Found, combiner: Any) -> list[Values | None]:
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
