"""Rows of several streams together, the first rows in an order, and fields under other names: over Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.workers.arrow_plan import SIDE
from trident.workers.best_row import in_spark_order
from trident.workers.chain import Frame, Meter, Step

# Rows of several streams that meet, the first rows in an order, and fields under other names: over Arrow, together.
#
# Imported by workers: keep its imports light.


# The rows of a join leave in pieces of so many.
_ROWS_AT_ONCE = 100_000


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
        import numpy as np  # the time that an import takes: workers without such a step need none of it

        given: list[list[Frame]] = [[] for _ in self.keys]
        for frame in frames:
            if frame.length:
                given[_side(frame)].append(frame)
        keys = [
            [_all(of, name, field.type) for name, field in zip(names, self.compared)]
            for of, names in zip(given, self.keys)
        ]
        counts = [len(columns[0]) for columns in keys]
        rows = self._rows(self._numbers(keys))
        # A key of a row is that of the first stream that has one, those that must have it before the others.
        starts, key_rows = np.cumsum([0, *counts]), np.full(len(rows[0]), -1)
        for side in reversed(sorted(range(len(counts)), key=lambda side: self.outer[side])):
            key_rows = np.where(rows[side] >= 0, starts[side] + rows[side], key_rows)
        others = [
            {new: _all(of, name, self.schema.field(new).type) for name, new in fields}
            for of, fields in zip(given, self.others)
        ]
        for start in range(0, len(key_rows), _ROWS_AT_ONCE):
            piece = slice(start, start + _ROWS_AT_ONCE)
            made = {}
            for place, field in enumerate(self.compared):
                if field.name in self.schema.names:
                    column = pa.chunked_array([columns[place] for columns in keys], field.type)
                    made[field.name] = column.take(pa.array(key_rows[piece])).combine_chunks()
            for places, columns in zip(rows, others):
                at = pa.array(places[piece], mask=places[piece] < 0)
                made |= {new: column.take(at) for new, column in columns.items()}
            yield Frame(made, len(key_rows[piece]), Meter())

    def _numbers(self, keys: Sequence[Sequence[pa.Array]]) -> list[Any]:
        """Of each stream the number of each row's key, the same for equal keys."""
        # The time that an import takes: workers without such a step need none of it.
        from trident.states.core.folds import numbered

        sides = [pa.table(columns, schema=self.compared) for columns in keys]
        numbers, found = numbered(pa.concat_tables(sides), self.compared)[0], []
        for side in sides:
            found.append(numbers[: side.num_rows])
            numbers = numbers[side.num_rows :]
        return found

    def _rows(self, numbers: Sequence[Any]) -> list[Any]:
        """The rows of the join: of each stream the places of its rows, -1 where it has none."""
        import numpy as np  # the time that an import takes: workers without such a step need none of it

        inner = [side for side, outer in enumerate(self.outer) if not outer]
        # Streams that must have the key come first: one that is joined to them cannot bring new keys.
        first, *others = [*inner, *(side for side, outer in enumerate(self.outer) if outer)]
        keys, rows = numbers[first], {first: np.arange(len(numbers[first]))}
        for side in others:
            count = np.bincount(numbers[side], minlength=max(int(one.max(initial=-1)) for one in numbers) + 1)
            in_order = np.argsort(numbers[side], kind="stable")
            begins = np.cumsum(count) - count
            times = np.maximum(count[keys], 1) if self.outer[side] else count[keys]
            before = np.repeat(np.arange(len(keys)), times)
            nth = np.arange(len(before)) - np.repeat(np.cumsum(times) - times, times)
            new = np.flatnonzero(~np.isin(numbers[side], keys)) if not inner else np.zeros(0, np.int64)
            keys = keys[before]
            at = np.append(in_order, -1)[np.where(count[keys] > 0, begins[keys] + nth, -1)]
            rows = {one: np.append(places[before], np.full(len(new), -1)) for one, places in rows.items()}
            keys, rows[side] = np.append(keys, numbers[side][new]), np.append(at, new)
        return [rows[side] for side in range(len(numbers))]


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
        chosen = pa.array(range(min(self.n, count)), pa.int64())
        if self.by is not None:
            chosen = in_spark_order([columns[self.by]], self.reverse).slice(0, self.n)
        yield Frame({name: column.take(chosen) for name, column in columns.items()}, len(chosen), Meter())
