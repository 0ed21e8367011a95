"""Rows of several streams together, the first rows in an order, and fields under other names: over Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.workers.arrow_plan import SIDE
from trident.workers.best_row import Ordered
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import left_to_spark

# Rows of several streams that meet, the first rows in an order, and fields under other names: over Arrow, together.
#
# Imported by workers: keep its imports light.


# Joins that become more rows are Spark's: they are held as Python objects here.
_PAIRS_MAX = 200_000


@dataclass(frozen=True)
class Renamed(Step):
    """Fields under other names: (the earlier field, its name)."""

    own = True

    fields: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return f"select {', '.join(name if given == name else f'{given} as {name}' for given, name in self.fields)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            yield Frame({name: frame.array(given) for given, name in self.fields}, frame.length, frame.meter)


def _side(frame: Frame) -> int:
    """The number of the stream that a frame's rows are of."""
    number: int = frame.array(SIDE)[0].as_py()
    return number


@dataclass(frozen=True)
class Union(Step):
    """The rows of all streams.

    Attributes:
        sides: of each stream its fields, in the order of ``names``.
    """

    names: tuple[str, ...]
    sides: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        return f"union -> {', '.join(self.names)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            if frame.length:
                columns = {name: frame.array(given) for given, name in zip(self.sides[_side(frame)], self.names)}
                yield Frame(columns, frame.length, frame.meter)


@dataclass(frozen=True)
class TaggedUnion(Step):
    """The rows of all streams: their keys, the stream's number, and a struct per stream, null for the rows of others.

    Attributes:
        schema: of the rows that leave: keys, number, structs.
        keys, inputs: of each stream its keys, and the fields of its struct.
    """

    schema: pa.Schema
    keys: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        return f"union of {len(self.keys)} streams"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        count = len(self.keys[0])
        for frame in frames:
            if not frame.length:
                continue
            side = _side(frame)
            columns = [frame.array(name) for name in self.keys[side]]
            columns.append(pa.repeat(pa.scalar(side, pa.int32()), frame.length))
            for other, field in enumerate(list(self.schema)[count + 1 :]):
                if other != side:
                    columns.append(pa.nulls(frame.length, field.type))
                    continue
                values = [frame.array(name).cast(part.type) for name, part in zip(self.inputs[side], field.type)]
                columns.append(pa.StructArray.from_arrays(values, fields=list(field.type)))
            yield Frame(dict(zip(self.schema.names, columns)), frame.length, frame.meter)


@dataclass(frozen=True)
class Joined(Step):
    """The rows of several streams with equal keys; null is equal to null, as in a group.

    Attributes:
        schema: of the rows that leave.
        compared: of the keys, under their names behind it.
        keys: of each stream the fields that are compared.
        others: of each stream (field, its name behind the join).
        outer: of each stream whether its fields may be null for a key that it does not have.
    """

    schema: pa.Schema
    compared: pa.Schema
    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[tuple[str, str], ...], ...]
    outer: tuple[bool, ...]

    @property
    def text(self) -> str:
        types = ", ".join("outer" if outer else "inner" for outer in self.outer)
        return f"join by {', '.join(self.compared.names)} ({types})"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        given: list[list[Frame]] = [[] for _ in self.keys]
        for frame in frames:
            if frame.length:
                given[_side(frame)].append(frame)
        names = [self._names(side, of) for side, of in enumerate(given)]
        rows = self._rows(names)
        columns = {}
        for place, field in enumerate(self.compared):
            if field.name in self.schema.names:
                columns[field.name] = self._keys(given, rows, place, field.type)
        for side, fields in enumerate(self.others):
            index = pa.array([row[side] for row in rows], pa.int64())
            for name, new in fields:
                columns[new] = _all(given[side], name, self.schema.field(new).type).take(index)
        yield Frame(columns, len(rows), Meter())

    def _names(self, side: int, frames: Sequence[Frame]) -> list[bytes]:
        """Bytes for the key of each row, which are the same for equal keys."""
        # The time that an import takes: workers without such a step need none of it.
        from trident.states.core.copy_rows import RowCodec, as_bytes, key_column

        codec = RowCodec(self.compared, self.compared.names)
        found: list[bytes] = []
        for frame in frames:
            columns = [key_column(frame.array(n), f.type) for n, f in zip(self.keys[side], self.compared)]
            found += as_bytes(codec.key_array(pa.record_batch(columns, names=self.compared.names)))
        return found

    def _rows(self, names: Sequence[Sequence[bytes]]) -> list[tuple[int | None, ...]]:
        """The rows of the join: of each stream the number of its row, None where it has none."""
        inner = [side for side, outer in enumerate(self.outer) if not outer]
        # Streams that must have the key come first: one that is joined to them cannot bring new keys.
        first, *others = [*inner, *(side for side, outer in enumerate(self.outer) if outer)]
        nothing: tuple[int | None, ...] = (None,) * len(names)
        joined = [(key, _with(nothing, first, at)) for at, key in enumerate(names[first])]
        for side in others:
            there: dict[bytes, list[int]] = {}
            for at, key in enumerate(names[side]):
                there.setdefault(key, []).append(at)
            missing: list[int | None] = [None] if self.outer[side] else []
            before = {key for key, _ in joined}
            new = [key for key in there if key not in before] if not inner else []
            count = sum(len(there.get(key) or missing) for key, _ in joined) + sum(len(there[key]) for key in new)
            if count > _PAIRS_MAX:
                raise left_to_spark(f"a join of {count:,} rows")
            joined = [(key, _with(row, side, at)) for key, row in joined for at in there.get(key) or missing]
            joined += [(key, _with(nothing, side, at)) for key in new for at in there[key]]
        return [row for _, row in joined]

    def _keys(
        self, given: Sequence[Sequence[Frame]], rows: Sequence[tuple[int | None, ...]], place: int, kind: pa.DataType
    ) -> pa.Array:
        """A key of the rows: of the first stream that has one, those that must have it before the others."""
        order = sorted(range(len(self.outer)), key=lambda side: self.outer[side])
        arrays = [_all(frames, names[place], kind) for frames, names in zip(given, self.keys)]
        starts = [0]
        for array in arrays:
            starts.append(starts[-1] + len(array))
        index = [next(starts[side] + at for side in order if (at := row[side]) is not None) for row in rows]
        return pa.concat_arrays(arrays).take(pa.array(index, pa.int64()))


def _with(row: tuple[int | None, ...], side: int, at: int | None) -> tuple[int | None, ...]:
    return (*row[:side], at, *row[side + 1 :])


def _all(frames: Sequence[Frame], name: str, kind: pa.DataType) -> pa.Array:
    """A field of all frames."""
    return pa.concat_arrays([pa.array([], kind), *(frame.array(name).cast(kind) for frame in frames)])


@dataclass(frozen=True)
class FirstRows(Step):
    """The first n rows, in an order or as they come.

    Attributes:
        by: the field that orders them, nulls last; None: the order in which they come. Of equal ones the earlier first.
        reverse: the greatest first.
    """

    needs_all = True

    schema: pa.Schema
    n: int
    by: str | None
    reverse: bool

    @property
    def text(self) -> str:
        return f"the first {self.n}{f' by {self.by}' if self.by else ''}{', the greatest first' * self.reverse}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        given = [frame for frame in frames if frame.length]
        columns = {field.name: _all(given, field.name, field.type) for field in self.schema}
        count = sum(frame.length for frame in given)
        index = list(range(count))
        if self.by is not None:
            values: list[Any] = [value for frame in given for value in frame.values(self.by)]
            some = [at for at in index if values[at] is not None]
            some.sort(key=lambda at: Ordered(values[at]), reverse=self.reverse)
            index = some + [at for at in index if values[at] is None]
        chosen = pa.array(index[: self.n], pa.int64())
        yield Frame({name: column.take(chosen) for name, column in columns.items()}, len(chosen), Meter())
