"""Rows of a keyed state for its local copy: keys and values as Arrow and as bytes, and runs that are sorted by keys.

A column at a time, by Arrow and numpy: no Python object is made for a value of a plain type. Dates and instants are
written as the integers that Arrow has for them, so that those beyond Python's years are kept, and no time zone comes
in. NaN is one key, as in Spark's grouping and joins; 0.0 and -0.0 are one.

A key: of each column a byte that says whether it is null, and its bytes; behind all, the lengths of the columns that
have no fixed width, but for the last of them. Integers stand so that their bytes have their order.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.copyable import StaleCopy

# A run of a local copy: rows sorted by the hash of their keys, in files that are written once and mapped by readers.
#
# A run has three files: the hashes, from the least to the greatest, as 64-bit numbers; the rows in the same order as
# Arrow record batches (key, value columns, whether the key is deleted); and, where rows have positions, these in their
# order, each with the number of its row. Every operation works on columns: none makes a Python object for a row.


# Rows of a record batch: the unit in which runs are merged.
BATCH_ROWS, _BATCH_BYTES = 1 << 17, 64 << 20
_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF_WORD = np.uint64(32)
_WORD = 8
# The columns of a run that are not the state's, which stand behind them.
_OURS = ("key", "gone", "position")
_KEY, _GONE, _POSITION = range(3)


@dataclass(frozen=True)
class Rows:
    """Rows for a run.

    Attributes:
        keys: as bytes that are equal where the keys are; see ``copy_rows.RowCodec``.
        values: their columns.
        gone: whether the key is deleted.
        positions: of each row, or null; of type null where the copy has no order.
    """

    keys: pa.LargeBinaryArray
    values: pa.Table
    gone: pa.BooleanArray
    positions: pa.Array

    @classmethod
    def of(
        cls,
        keys: pa.LargeBinaryArray,
        values: pa.Table,
        gone: pa.BooleanArray | None = None,
        positions: pa.Array | None = None,
    ) -> Rows:
        """The same, where no key is deleted or no row has a position."""
        count = len(keys)
        none = pa.array(np.zeros(count, bool)) if gone is None else gone
        return cls(keys, values, none, pa.nulls(count) if positions is None else positions)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)

    def take(self, places: np.ndarray) -> Rows:
        at = pa.array(places)
        return Rows(self.keys.take(at), self.values.take(at), self.gone.take(at), self.positions.take(at))

    @classmethod
    def together(cls, parts: Sequence[Rows]) -> Rows:
        if len(parts) == 1:
            return parts[0]
        return cls(
            pa.concat_arrays([part.keys for part in parts]),
            pa.concat_tables([part.values for part in parts]).combine_chunks(),
            pa.concat_arrays([part.gone for part in parts]),
            pa.concat_arrays([part.positions for part in parts]),
        )


def hashes(keys: pa.LargeBinaryArray) -> np.ndarray:
    """A 64-bit hash of each key."""
    count = len(keys)
    if not count:
        return np.zeros(0, np.uint64)
    _, ends, data = keys.buffers()
    offsets = np.frombuffer(ends, np.int64)[keys.offset : keys.offset + count + 1]
    first, lengths = int(offsets[0]), np.diff(offsets)
    raw = np.zeros(int(offsets[-1]) - first + _WORD, np.uint8)  # the last word may end beyond the last key
    if data is not None:
        raw[: -_WORD or None] = np.frombuffer(data, np.uint8)[first : int(offsets[-1])]
    # Each 8 bytes of the data, from any place.
    words = np.ndarray((len(raw) - _WORD + 1,), "<u8", raw, 0, (1,))
    found = _mixed(lengths.astype(np.uint64) * _ODD + np.uint64(1))
    starts, longest = offsets[:-1] - first, int(lengths.max())
    same = bool((lengths == longest).all())
    for at in range(0, longest, _WORD):
        live: Any = slice(None) if same else np.flatnonzero(lengths > at)
        word = words[starts[live] + at]
        over = np.maximum(at + _WORD - lengths[live], 0).astype(np.uint64) * np.uint64(_WORD)  # bits of the next key
        found[live] = _mixed(found[live] * _ODD + ((word << over) >> over))
    return found


def shards_of(keys: pa.LargeBinaryArray, count: int) -> pa.Array:
    """The shard of each key, from 0: each has a range of hashes, which is a part of each run."""
    return pa.array((hashes(keys) >> _HALF_WORD) * np.uint64(count) >> _HALF_WORD)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    numbers = (numbers ^ (numbers >> _HALF_WORD)) * _MIX
    numbers = (numbers ^ (numbers >> _HALF_WORD)) * _MIX
    return numbers ^ (numbers >> _HALF_WORD)


def by_key(hashed: np.ndarray, keys: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Groups rows by their keys.

    Args:
        hashed: of the keys, which may stand in any order.

    Returns:
        The order of the rows by their hashes, in which equal keys are side by side and as they were among each other;
        and of each row in that order whether its key is another one than that of the row before.
    """
    order = np.argsort(hashed, kind="stable")
    count, by_hash = len(order), hashed[order]
    begins = np.ones(count, bool)
    begins[1:] = by_hash[1:] != by_hash[:-1]
    equal = np.flatnonzero(~begins)
    if len(equal):
        others = equal[_differ(keys, order[equal], keys, order[equal - 1])]
        if len(others):  # two keys of one hash
            groups = np.cumsum(begins) - 1
            ends = np.append(np.flatnonzero(begins), count)
            for group in np.unique(groups[others]).tolist():
                start, end = int(ends[group]), int(ends[group + 1])
                rows = sorted(order[start:end].tolist(), key=lambda row: keys[row].as_py())  # stable
                order[start:end] = rows
                for at in range(start + 1, end):
                    begins[at] = keys[int(order[at])].as_py() != keys[int(order[at - 1])].as_py()
    return order, begins


def _differ(ours: pa.Array, at: np.ndarray | None, theirs: pa.Array, there: np.ndarray) -> np.ndarray:
    ours = ours if at is None else ours.take(pa.array(at))
    return pc.not_equal(ours, theirs.take(pa.array(there))).to_numpy(zero_copy_only=False)


class Run:
    """A run that was written, mapped.

    Args:
        folder: of the copy.
        name: of the files, without their endings.
        rows, size, check: what the list says of them; without size and check, as they are.

    Attributes:
        hashes: of the keys, in their order.
        positions, placed: the positions in their order, and the numbers of their rows.
        passed: so many of these rows are replaced or deleted by later runs.

    Raises:
        FileNotFoundError: it was merged into another one.
        StaleCopy: a file is not what was written.
    """

    passed = 0

    def __init__(self, folder: Path, name: str, rows: int, size: int | None = None, check: int | None = None) -> None:
        self.folder, self.name, self.rows = folder, name, rows
        buffers = [_map(folder / file) for file in self.files]
        self.bytes, self.check = sum(buffer.size for buffer in buffers), _check(buffers)
        if size is not None and (size, check) != (self.bytes, self.check):
            raise StaleCopy(f"the run {name} of the copy in {folder} is damaged")
        hashed, table, placed = buffers
        self.hashes = _stored_numbers(hashed, np.uint64)
        reader = pa.ipc.open_file(table)
        self._batches = [reader.get_batch(at) for at in range(reader.num_record_batches)]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)], dtype=np.int64)
        self._names = reader.schema.names[len(_OURS) :]
        self.positions, self.placed = _stored_numbers(placed, np.int64).reshape(2, -1)

    @property
    def files(self) -> tuple[str, str, str]:
        """Their names."""
        return (f"{self.name}.hash", f"{self.name}.rows", f"{self.name}.order")

    def since(self, passed: int) -> Run:
        """The same run, of which so many rows are passed."""
        other = copy.copy(self)
        other.passed = passed
        return other

    def find(self, hashed: np.ndarray, keys: pa.LargeBinaryArray) -> np.ndarray:
        """The number of each key's row, or -1; keys come in the order of their hashes."""
        found = np.full(len(hashed), -1, np.int64)
        at = np.searchsorted(self.hashes, hashed)
        hit = np.flatnonzero(self.hashes[np.minimum(at, self.rows - 1)] == hashed)
        if len(hit):
            rows = at[hit]
            other = _differ(self.column(rows, _KEY), None, keys, hit)
            found[hit[~other]] = rows[~other]
            for place in hit[other].tolist():  # another key of the same hash
                found[place] = self._next(int(at[place]), hashed[place], keys[place].as_py())
        return found

    def _next(self, at: int, hashed: np.uint64, key: bytes) -> int:
        while at < self.rows and self.hashes[at] == hashed:
            if self.column(np.array([at]), _KEY)[0].as_py() == key:
                return at
            at += 1
        return -1

    def gone(self, rows: np.ndarray) -> np.ndarray:
        """Tells which keys of some rows are deleted; rows in ascending order, as in what follows."""
        return self.column(rows, _GONE).to_numpy(zero_copy_only=False)

    def values(self, rows: np.ndarray) -> pa.Table:
        """The values of some rows."""
        columns = [self.column(rows, len(_OURS) + at) for at in range(len(self._names))]
        return pa.table(columns, names=self._names)

    def column(self, rows: np.ndarray, number: int) -> pa.Array:
        """A column of some rows."""
        if len(self._batches) == 1:
            return self._batches[0].column(number).take(pa.array(rows))
        bounds = np.searchsorted(rows, self._starts)
        parts = [
            batch.column(number).take(pa.array(rows[low:high] - start))
            for batch, start, low, high in zip(self._batches, self._starts, bounds, bounds[1:])
            if low < high
        ]
        return pa.concat_arrays(parts or [self._batches[0].column(number).slice(0, 0)])

    def rows_of(self, start: int, end: int) -> Rows:
        """The rows from one number to another."""
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        parts = []
        while start < end:
            begin, batch = int(self._starts[first]), self._batches[first]
            part = batch.slice(start - begin, min(end - begin, batch.num_rows) - (start - begin))
            values = pa.table(part.columns[len(_OURS) :], names=self._names)
            parts.append(Rows(part.column(_KEY), values, part.column(_GONE), part.column(_POSITION)))
            start, first = begin + batch.num_rows, first + 1
        return Rows.together(parts)

    def span(self, first: int | None, below: int | None) -> tuple[int, int]:
        """Where positions from one to another stand, without those that are passed."""
        start = 0 if first is None else int(np.searchsorted(self.positions, first))
        end = len(self.positions) if below is None else int(np.searchsorted(self.positions, below))
        start = max(start, self.passed)
        return start, max(start, end)

    def alive(self, start: int, end: int, newer: Sequence[Run]) -> np.ndarray:
        """Of rows in the order of their positions: whether no later run has their keys."""
        order = np.argsort(self.placed[start:end])
        rows = self.placed[start:end][order]
        alive, keys, hashed = np.ones(len(rows), bool), self.column(rows, _KEY), self.hashes[rows]
        for run in newer:
            alive[order[run.find(hashed, keys) >= 0]] = False
        return alive

    def delete(self) -> None:
        """Deletes its files; who has them mapped reads on."""
        for file in self.files:
            (self.folder / file).unlink(missing_ok=True)


def newest(rows: Rows, keep_deleted: bool = True) -> tuple[np.ndarray, Rows]:
    """Of rows in the order of their transactions the last one of each key, sorted; with their hashes.

    Args:
        keep_deleted: whether an older run may have the keys that are deleted.
    """
    return _newest(hashes(rows.keys), rows, keep_deleted)


def _newest(hashed: np.ndarray, rows: Rows, keep_deleted: bool) -> tuple[np.ndarray, Rows]:
    order, begins = by_key(hashed, rows.keys)
    kept = order[np.append(begins[1:], True)] if len(order) else order
    if not keep_deleted:
        kept = kept[~rows.gone.to_numpy(zero_copy_only=False)[kept]]
    return hashed[kept], rows.take(kept)


def merged(runs: Sequence[Run], keep_deleted: bool) -> Iterator[tuple[np.ndarray, Rows]]:
    """The rows of some runs, the oldest first, as those of one; a part of them is in memory at a time.

    Args:
        keep_deleted: as for :func:`newest`.
    """
    largest = max(runs, key=lambda run: run.rows)
    step = max(1, min(BATCH_ROWS, _BATCH_BYTES * largest.rows // largest.bytes))  # few rows where values are large
    bounds = largest.hashes[step::step]
    cuts = [np.concatenate([[0], np.searchsorted(run.hashes, bounds), [run.rows]]).tolist() for run in runs]
    for part in range(len(bounds) + 1):
        some = [(run, cut[part], cut[part + 1]) for run, cut in zip(runs, cuts) if cut[part] < cut[part + 1]]
        if some:
            hashed = np.concatenate([run.hashes[start:end] for run, start, end in some])
            yield _newest(hashed, Rows.together([run.rows_of(start, end) for run, start, end in some]), keep_deleted)


def write_run(folder: Path, parts: Iterable[tuple[np.ndarray, Rows]]) -> list[Run]:
    """Writes a run, or none where there are no rows; where that fails nothing of it stays.

    Args:
        parts: hashes and rows, in the order of the hashes.
    """
    name = uuid.uuid4().hex
    files = [folder / f"{name}.{ending}" for ending in ("hash", "rows", "order")]
    count, positions, placed = 0, list[np.ndarray](), list[np.ndarray]()
    try:
        with ExitStack() as stack:
            writer: pa.ipc.RecordBatchFileWriter | None = None
            raw = stack.enter_context(open(files[0], "wb"))
            for hashed, rows in parts:
                if not len(hashed):
                    continue
                table = _table(rows)
                if writer is None:
                    file = stack.enter_context(pa.OSFile(str(files[1]), "wb"))
                    writer = stack.enter_context(pa.ipc.new_file(file, table.schema))
                raw.write(hashed.tobytes())
                writer.write_table(table)
                there = np.flatnonzero(pc.and_not(rows.positions.is_valid(), rows.gone).to_numpy(zero_copy_only=False))
                if len(there):
                    positions.append(rows.positions.take(pa.array(there)).to_numpy(zero_copy_only=False))
                    placed.append(there + count)
                count += len(hashed)
        if not count:
            files[0].unlink()
            return []
        ordered = np.concatenate(positions) if positions else np.zeros(0, np.int64)
        order = np.argsort(ordered, kind="stable")
        numbers = np.concatenate(placed)[order] if placed else order
        with open(files[2], "wb") as raw:
            raw.write(ordered[order].astype(np.int64).tobytes() + numbers.astype(np.int64).tobytes())
        return [Run(folder, name, count)]
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


def _table(rows: Rows) -> pa.Table:
    values = [rows.values.column(at) for at in range(rows.values.num_columns)]
    names = [*_OURS, *rows.values.column_names]
    return pa.table([rows.keys, rows.gone, rows.positions, *values], names=names).combine_chunks()


def _map(path: Path) -> pa.Buffer:
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    return pa.memory_map(str(path)).read_buffer()


def _stored_numbers(buffer: pa.Buffer, kind: type) -> np.ndarray:
    return np.frombuffer(buffer, kind) if buffer.size else np.zeros(0, kind)


def _check(buffers: Sequence[pa.Buffer]) -> int:
    """A sum of all words: another one where a bit is."""
    total = 0
    for buffer in buffers:
        whole = buffer.size // _WORD * _WORD
        words = _stored_numbers(buffer.slice(0, whole), np.uint64)
        rest = int.from_bytes(buffer.slice(whole).to_pybytes(), "little")
        total = (total * 31 + int(words.sum(dtype=np.uint64)) + rest) % (1 << 64)
    return total


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
    matrices: list[_Matrix] = []
    for piece in [*pieces, None]:
        if isinstance(piece, np.ndarray):
            matrices.append(piece)
            continue
        if matrices:
            arrays.append(matrix_array(matrices[0] if len(matrices) == 1 else np.hstack(matrices)))
            matrices = []
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
        return pa.array(packed, BYTES).cast(kind, safe=False)  # to Spark a text is bytes, UTF-8 or not
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
