"""The keys that a reader asks of a keyed state: as users give them, and how they are told among the rows of files."""

from __future__ import annotations

import datetime
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.coordinators.errors import FieldError
from trident.states.core.copy_rows import RowCodec, as_bytes
from trident.states.delta.kernel_files import LiveFile

# Delta keeps instants in a log's statistics in milliseconds, and writers round them as they like.
_MILLISECOND = datetime.timedelta(milliseconds=1)


class AskedKeys:
    """Keys of one state, in the order in which they are asked; ``file_rows.WantedRows`` of their rows.

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
        self._asked = {name: _Column(rows.column(name).combine_chunks()) for name in self.columns}

    def codes_of(self, rows: pa.Table) -> list[bytes]:
        """The keys of some rows as bytes."""
        return as_bytes(self._codec.key_array(rows)) if self.columns else [b""] * rows.num_rows

    def may_be_in(self, file: LiveFile) -> bool:
        stats = file.stats or {}
        low, high, nulls = (stats.get(name) for name in ("minValues", "maxValues", "nullCount"))
        if not (isinstance(low, Mapping) and isinstance(high, Mapping) and isinstance(nulls, Mapping)):
            return True
        for name, asked in self._asked.items():
            has_nulls = nulls.get(name) != 0
            if not asked.may_be_within(asked.told(low.get(name)), asked.told(high.get(name), up=True), has_nulls):
                return False
        return True

    def may_be_in_group(self, group: pq.RowGroupMetaData, kinds: dict[str, pa.DataType]) -> bool:
        for at in range(group.num_columns):
            column = group.column(at)
            # A field of a struct has a name with a dot, and so may a column: bounds of such a name may be of either.
            asked = None if "." in column.path_in_schema else self._asked.get(column.path_in_schema)
            # Where the file has another type than the table, as of a writer that keeps other units, bounds say nothing.
            if asked is None or kinds.get(column.path_in_schema) != asked.kind:
                continue
            low, high, has_nulls = _bounds(column)
            if not asked.may_be_within(low, high, has_nulls):
                return False
        return True

    def found_in(self, rows: pa.Table) -> pa.Array:
        if not self.columns:
            return pa.array(range(rows.num_rows), pa.int64())
        may_be = None
        for name, asked in self._asked.items():
            if (mask := asked.may_be(rows.column(name))) is not None:
                may_be = mask if may_be is None else pc.and_(may_be, mask)
        places = pa.array(range(rows.num_rows), pa.int64()) if may_be is None else pc.indices_nonzero(may_be)
        if not len(places):
            return places
        found = pc.is_in(self._codec.key_array(rows.take(places)), value_set=self._code_set)
        return places.filter(found)


class _Column:
    """The values that are asked of one key column."""

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
            return False  # null alone is asked, and there is none
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
        """Of each row whether its value may be asked; None where every one may."""
        if not self._plain:
            return None
        if not self._float:
            return pc.is_in(column, value_set=self._values)
        zero = pa.scalar(0, self.kind)  # -0.0 + 0 is 0.0
        mask = pc.is_in(pc.add(column, zero), value_set=pc.add(self._values, zero))
        return pc.or_(mask, pc.fill_null(pc.is_nan(column), False)) if self._nan else mask

    def told(self, bound: Any, up: bool = False) -> Any:
        """A bound of a log's statistics as a value of the column; None where it cannot be told exactly enough."""
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


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[Any, Any, bool]:
    """The least and greatest value of a column in a row group, None where they are not known; whether nulls may be."""
    stats = column.statistics
    if stats is None:
        return None, None, True
    has_nulls = not stats.has_null_count or stats.null_count > 0
    if not stats.has_min_max:
        return None, None, has_nulls
    try:
        return stats.min, stats.max, has_nulls
    except (OverflowError, ValueError, NotImplementedError):  # a time that Python has not; a text that was cut
        return None, None, has_nulls


# --- as users give them ----------------------------------------------------------------------------


def asked_keys(state: str, schema: pa.Schema, names: Sequence[str], keys: Sequence[Any], codec: RowCodec) -> AskedKeys:
    """The keys that a user asks.

    Args:
        schema: of the state.
        names: the key columns, in the state's order.
        keys: each a value (of one key column), a tuple in that order, or a dict by their names.

    Raises:
        FieldError: a key has other columns, or a value is not of its column's type.
    """
    rows = key_rows(state, schema, names, keys)
    columns = [_array([row[at] for row in rows], schema.field(name).type) for at, name in enumerate(names)]
    return AskedKeys(pa.table(columns, names=list(names)), codec, len(rows))


def key_rows(state: str, schema: pa.Schema, names: Sequence[str], keys: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The keys that a user asks, each as a tuple in the order of the key columns, with the values as they were given.

    Args and Raises: as for :func:`asked_keys`.
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
