"""The keys of a keyed state as bytes, which are equal where the keys are; and its rows for a local copy.

A column at a time, by Arrow and numpy: no Python object is made for a value of a plain type. Dates and instants are
written as the integers that Arrow has for them, so that those beyond Python's years are kept, and no time zone comes
in. NaN is one key, as in Spark's grouping and joins; 0.0 and -0.0 are one.

A key: of each column a byte that says whether it is null, and its bytes; behind all, the lengths of the columns that
have no fixed width, but for the last of them. Integers stand so that their bytes have their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.sorted_run import Rows

BYTES = pa.large_binary()
_NAN = float("nan")
_LENGTH = np.dtype("<u4")
_DECIMAL = np.dtype("V16")
_Matrix = Any  # of numpy: the bytes of each row, all rows of one length


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

    # --- keys -----------------------------------------------------------------------------------------

    def key_array(self, table: pa.Table | pa.RecordBatch) -> pa.LargeBinaryArray:
        """The key of each row. The columns are found by their names, and cast where an instant has another zone."""
        pieces, lengths = [], []
        for name, kind in zip(self.keys, self._key_types, strict=True):
            column = _wire(table.column(name), kind)
            pieces.append(_nulls(column))
            if _width(kind) is not None:
                pieces.append(_key_bytes(column, kind))
            else:
                packed = _packed(
                    column, kind, [_one_zero(v) for v in column.to_pylist()] if _has_floats(kind) else None
                )
                lengths.append(_lengths(packed))
                pieces.append(packed)
        return _joined([*pieces, *lengths[:-1]])

    def encode_keys(self, table: pa.Table | pa.RecordBatch) -> list[bytes]:
        """As :meth:`key_array`, as Python's bytes."""
        return as_bytes(self.key_array(table))

    def plain_keys(self, keys: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """Some encoded keys as Python has them, with one NaN and one zero: instants and dates as integers."""
        return list(zip(*[column.to_pylist() for column in self._key_columns(keys)], strict=True))

    def decode_keys(self, keys: Sequence[bytes]) -> pa.Table:
        """The key columns of encoded keys."""
        arrays = [column.cast(kind) for column, kind in zip(self._key_columns(keys), self._key_types, strict=True)]
        return pa.table(arrays, names=list(self.keys))

    def _key_columns(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """The key columns of encoded keys, in the types that are written."""
        widths = [_width(kind) for kind in self._key_types]
        count = len(keys)
        text, sizes = b"".join(keys), np.fromiter(map(len, keys), np.int64, count)
        ends = np.cumsum(sizes)
        whole, at = np.frombuffer(text, np.uint8), ends - sizes
        several = max(widths.count(None) - 1, 0)
        ends = ends - several * _LENGTH.itemsize  # behind it the lengths
        known = _view_rows(whole[ends[:, None] + np.arange(several * _LENGTH.itemsize)], _LENGTH, several)
        columns, seen = [], 0
        for number, (width, kind) in enumerate(zip(widths, self._key_types, strict=True)):
            nulls, start = whole[at].astype(bool), at + 1
            if width is not None:
                columns.append(_key_array(whole[start[:, None] + np.arange(width)], nulls, kind))
                at = start + width
                continue
            if seen < several:
                at = start + known[:, seen]
            else:  # the length of the last one is what is left
                at = ends - sum(1 + (other or 0) for other in widths[number + 1 :])
            seen += 1
            places = zip(start.tolist(), at.tolist(), nulls.tolist(), strict=True)
            columns.append(_unpacked([None if null else text[a:b] for a, b, null in places], kind))
        return columns

    # --- values ---------------------------------------------------------------------------------------

    def rows(self, table: pa.Table | pa.RecordBatch, ordered_by: str = "", gone: pa.BooleanArray | None = None) -> Rows:
        """Rows for a local copy.

        Args:
            ordered_by: the column that is the position of each row: integers, days or instants; "": none is.
            gone: whether the key is deleted; None: none is.
        """
        kinds = dict(zip((*self.keys, *self.values), (*self._key_types, *self._value_types)))
        values = [_whole(table.column(name), kinds[name]) for name in self.values]
        positions = positions_of(table.column(ordered_by), kinds[ordered_by]) if ordered_by else None
        return Rows.of(self.key_array(table), pa.table(values, names=list(self.values)), gone, positions)


def plain_values(column: Any, kind: pa.DataType) -> list[Any]:
    """The values of a column, cast to a type, as Python has them: instants and dates as integers."""
    return cast("list[Any]", _wire(column, kind).to_pylist())


def positions_of(column: Any, kind: pa.DataType) -> pa.Int64Array:
    """The positions of rows by a column of theirs: integers, days or instants."""
    return _wire(column, kind).cast(pa.int64())


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of such values."""
    return pa.array(values, _wire_type(kind)).cast(kind)


def key_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as Spark's grouping gives its values: with one NaN and one zero."""
    if not _has_floats(kind):
        return column if column.type == kind else column.cast(kind)
    return array_of([_one_zero(value) for value in plain_values(column, kind)], kind)


def as_bytes(array: pa.Array) -> list[bytes]:
    """An array of bytes as a list."""
    return cast("list[bytes]", array.to_numpy(zero_copy_only=False).tolist())


def matrix_array(matrix: _Matrix) -> pa.LargeBinaryArray:
    """Rows of bytes, all of one length, as an array."""
    count, width = matrix.shape
    fixed = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(np.ascontiguousarray(matrix))])
    return fixed.cast(BYTES)


def joined(*pieces: pa.Array | pa.Scalar) -> pa.LargeBinaryArray:
    """The bytes of each row, one behind the other."""
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", BYTES))


def _joined(pieces: Sequence[_Matrix | pa.Array]) -> pa.LargeBinaryArray:
    arrays: list[pa.Array] = []
    beside: list[_Matrix] = []
    for piece in [*pieces, None]:
        if isinstance(piece, np.ndarray):
            beside.append(piece)
            continue
        if beside:
            arrays.append(matrix_array(beside[0] if len(beside) == 1 else np.hstack(beside)))
            beside = []
        if piece is not None:
            arrays.append(piece)
    return arrays[0] if len(arrays) == 1 else joined(*arrays)


# --- columns of a fixed width -------------------------------------------------------------------------


def _dtype(kind: pa.DataType) -> Any:
    """The form in which a column of a fixed width is written; None of another one."""
    if pa.types.is_boolean(kind):
        return np.dtype("u1")
    if pa.types.is_decimal128(kind):
        return _DECIMAL
    wire = _wire_type(kind)
    if pa.types.is_integer(wire) or pa.types.is_float32(wire) or pa.types.is_float64(wire):
        return np.dtype(wire.to_pandas_dtype()).newbyteorder("<")
    return None


def _width(kind: pa.DataType) -> int | None:
    form = _dtype(kind)
    return None if form is None else int(form.itemsize)


def _nulls(column: pa.Array) -> _Matrix:
    """Of each row 1 where the column is null, else 0."""
    if not column.null_count:
        return np.zeros((len(column), 1), np.uint8)
    return column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1)


def _numbers(column: pa.Array) -> Any:
    """A column as numpy has it; zero where it is null."""
    form = _dtype(column.type)
    if form == _DECIMAL:
        start = column.offset * form.itemsize
        numbers = np.frombuffer(column.buffers()[1], form, len(column), start) if len(column) else np.zeros(0, form)
    else:
        numbers = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
        return numbers.astype(form, copy=False)
    if column.null_count:
        numbers = numbers.copy()
        numbers[column.is_null().to_numpy(zero_copy_only=False)] = np.zeros((), form)
    return numbers


def _key_bytes(column: pa.Array, kind: pa.DataType) -> _Matrix:
    """A key column's bytes: those of one NaN and one zero; of integers in their order."""
    numbers = _numbers(column)
    if pa.types.is_floating(kind):
        numbers = numbers + numbers.dtype.type(0)  # of -0.0 it is 0.0
        numbers[np.isnan(numbers)] = _NAN
    elif numbers.dtype.kind == "i":
        matrix = _plain_bytes(numbers.astype(numbers.dtype.newbyteorder(">")))
        matrix[:, 0] ^= 0x80
        return matrix
    return _plain_bytes(numbers)


def _plain_bytes(numbers: Any) -> _Matrix:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)


def _array(matrix: _Matrix, nulls: Any, kind: pa.DataType) -> pa.Array:
    """A column from its bytes."""
    if pa.types.is_decimal128(kind):
        valid = pa.array(~nulls).buffers()[1] if nulls.any() else None
        return pa.Array.from_buffers(kind, len(matrix), [valid, pa.py_buffer(matrix)])
    numbers = _view(matrix, _dtype(kind))
    wire = _wire_type(kind)
    given = numbers.astype(bool) if pa.types.is_boolean(kind) else numbers
    return pa.array(given, wire, mask=nulls, from_pandas=False) if nulls.any() else pa.array(given, wire)


def _view_rows(matrix: _Matrix, form: Any, count: int) -> Any:
    """Of each row of bytes so many numbers."""
    return np.ascontiguousarray(matrix).view(form).reshape(len(matrix), count).astype(np.int64)


def _view(matrix: _Matrix, form: Any) -> Any:
    return np.ascontiguousarray(matrix).view(form).reshape(len(matrix))


def _key_array(matrix: _Matrix, nulls: Any, kind: pa.DataType) -> pa.Array:
    """A key column from the bytes of each row, as :func:`_key_bytes` gives them."""
    if _dtype(kind).kind == "i":
        matrix[:, 0] ^= 0x80
        matrix = np.ascontiguousarray(matrix[:, ::-1])
    return _array(matrix, nulls, kind)


# --- the other columns --------------------------------------------------------------------------------


def _packed(column: pa.Array, kind: pa.DataType, values: list[Any] | None = None) -> pa.LargeBinaryArray:
    """The bytes of a column's values: of texts and bytes their own, of others those of MessagePack; none of a null.

    Args:
        values: the values to be written instead.
    """
    if not _is_text(kind):
        found = column.to_pylist() if values is None else values
        import msgspec  # optional: executors of a cluster, which have windows too, may not have it

        encode = msgspec.msgpack.Encoder().encode
        return pa.array([b"" if value is None else encode(value) for value in found], BYTES)
    return (column if column.type == BYTES else column.cast(BYTES)).fill_null(b"")


def _unpacked(packed: list[bytes | None], kind: pa.DataType) -> pa.Array:
    if _is_text(kind):
        return pa.array(packed, BYTES).cast(kind)
    import msgspec  # optional: as above

    decode = msgspec.msgpack.Decoder(_python_type(kind)).decode
    return pa.array([None if value is None else decode(value) for value in packed], _wire_type(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _lengths(packed: pa.LargeBinaryArray) -> _Matrix:
    return _plain_bytes(pc.binary_length(packed).to_numpy(zero_copy_only=False).astype(_LENGTH))


def _whole(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == kind else column.cast(kind)


def _wire(column: Any, kind: pa.DataType) -> pa.Array:
    """A column in the types that are written."""
    column = _whole(column, kind)
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
    """The type that a value's MessagePack is decoded to, for ``pa.array`` of the written type."""
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
