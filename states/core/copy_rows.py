"""Rows of a keyed state as bytes, for its local copy: equal keys are equal bytes, values come back exact.

Dates and instants are written as the integers that Arrow has for them, so that those beyond Python's years are kept,
and no time zone comes in. NaN is one key, as in Spark's grouping and joins; 0.0 and -0.0 are one; a value keeps its
sign and its NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa

_NAN = float("nan")
_encode = msgspec.msgpack.Encoder().encode


class RowCodec:
    """Encodes the rows of one state.

    Args:
        schema: of keys and values in Arrow's types, instants in UTC.
        keys: the key columns.

    Attributes:
        keys, values: the names of the key columns and of the others, in the schema's order.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self.keys = tuple(name for name in schema.names if name in keys)
        self.values = tuple(name for name in schema.names if name not in keys)
        self._key_types = [schema.field(name).type for name in self.keys]
        self._value_types = [schema.field(name).type for name in self.values]
        self._decode = msgspec.msgpack.Decoder(
            tuple[tuple(_python_type(kind) | None for kind in self._value_types)]  # type: ignore[misc]
            if self._value_types
            else tuple[()]
        ).decode

    def encode_keys(self, table: pa.Table | pa.RecordBatch) -> list[bytes]:
        """The key of each row. The columns are found by their names, and cast where an instant has another zone."""
        columns = [
            _keys(_wire(table.column(name), kind), kind) for name, kind in zip(self.keys, self._key_types, strict=True)
        ]
        if len(columns) == 1:
            return [_encode(value) for value in columns[0]]
        return [_encode(row) for row in zip(*columns, strict=True)]

    def encode_values(self, table: pa.Table | pa.RecordBatch) -> list[bytes]:
        """The values of each row."""
        columns = [
            _wire(table.column(name), kind).to_pylist()
            for name, kind in zip(self.values, self._value_types, strict=True)
        ]
        if not columns:
            return [_encode(())] * table.num_rows
        return [_encode(row) for row in zip(*columns, strict=True)]

    def values_of(self, row: bytes) -> tuple[Any, ...]:
        """The values of one encoded row, as they are written: instants and dates as integers."""
        found: tuple[Any, ...] = self._decode(row)
        return found

    def encoded(self, values: tuple[Any, ...]) -> bytes:
        """One row of such values."""
        return _encode(values)

    def decode_values(self, rows: Sequence[bytes | None]) -> pa.Table:
        """The value columns of encoded rows; nulls where there is no row."""
        decode, nothing = self._decode, (None,) * len(self.values)
        columns = zip(*[nothing if row is None else decode(row) for row in rows]) if rows else [()] * len(self.values)
        arrays = [
            pa.array(column, _wire_type(kind)).cast(kind)
            for column, kind in zip(columns, self._value_types, strict=True)
        ]
        return pa.table(arrays, names=list(self.values))


def _wire(column: Any, kind: pa.DataType) -> Any:
    """A column in the types that are written."""
    if column.type != kind:
        column = column.cast(kind)
    wire = _wire_type(kind)
    return column if wire == kind else column.cast(wire)


def _wire_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wire_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_wire_type(kind.key_type)), kind.item_field.with_type(_wire_type(kind.item_type))
        )
    return kind


def _python_type(kind: pa.DataType) -> Any:
    """The type that an encoded value is decoded to, for ``pa.array`` of the written type."""
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return TypedDict("Row", {field.name: _python_type(field.type) | None for field in kind})  # type: ignore[operator]
    if pa.types.is_map(kind):
        return list[tuple[_python_type(kind.key_type), _python_type(kind.item_type) | None]]  # type: ignore[misc]
    return int


def _keys(column: Any, kind: pa.DataType) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return [_one_zero(value) for value in values] if _has_floats(kind) else values


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def _one_zero(value: Any) -> Any:
    """The value with one NaN and one zero, as Spark compares keys."""
    if isinstance(value, float):
        return value + 0.0 if value == value else _NAN
    if isinstance(value, dict):
        return {name: _one_zero(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_one_zero(item) for item in value]
    return value
