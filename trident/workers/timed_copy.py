"""Keyed states with a time in their local copies: the rows of a transaction become those that a rule needs, over Arrow.

Does to few rows that are all together what the operations of ``trident.operations.timed`` do by Spark. Imported by
workers: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.shards import WHOLE, Shard
from trident.workers.arrow_plan import SIDE
from trident.workers.chain import Frame, Meter, Step
from trident.workers.look_up import copy_error
from trident.workers.timed import (
    AT,
    BEFORE,
    CLOCK,
    DUE,
    FARTHEST,
    KIND,
    LAST,
    MARK,
    NOW,
    ORDER,
    PART,
    ROWS,
    STORED,
    TAG,
    Typed,
    later,
    least_of,
    whole,
)

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf


@dataclass(frozen=True)
class NewRows(Step):
    """The new rows of one stream or of two in the form that rules take; SIDE says which where there are two.

    Attributes:
        compared: of each stream (the field, the key's name).
        fields: of each stream those of the row's struct.
        positions: of each stream the field that is the event time; None: processing time.
        clock: of processing time; microseconds since 1970.
        gives: the columns that go out, with their types.
    """

    own = True
    text = "new rows"

    compared: tuple[tuple[tuple[str, str], ...], ...]
    fields: tuple[tuple[str, ...], ...]
    positions: tuple[str | None, ...]
    clock: Callable[[], int] | None
    gives: Typed

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        types, count = dict(self.gives), 0
        for frame in frames:
            side = frame.array(SIDE)[0].as_py() if len(self.fields) > 1 and frame.length else 0
            row, names, position = types[ROWS[side]], self.fields[side], self.positions[side]
            columns = [_of_type(frame.array(name), row.field(at).type) for at, name in enumerate(names)]
            made = {key: _of_type(frame.array(name), types[key]) for name, key in self.compared[side]}
            made[ROWS[side]] = pa.StructArray.from_arrays(columns, fields=list(row))
            made[KIND] = pa.repeat(pa.scalar(side, pa.int32()), frame.length)
            made[ORDER] = pa.array(range(count, count + frame.length), pa.int64())
            if position is not None:
                micros = pc.cast(_of_type(frame.array(position), pa.timestamp("us", "UTC")), pa.int64())
                near = pc.min_element_wise(micros, FARTHEST, skip_nulls=False)
                made[AT] = pc.max_element_wise(near, -FARTHEST, skip_nulls=False)
            count += frame.length
            yield _filled(self.gives, made, frame.length)
        if self.clock is not None:
            made = {KIND: pa.array([CLOCK], pa.int32()), AT: pa.array([self.clock()], pa.int64())}
            yield _filled(self.gives, made, 1)


@dataclass(frozen=True)
class GatherFromCopy(Step):
    """Puts the entries of the rows' keys, those that are due, and the watermarks beside new rows.

    Attributes:
        state: its name.
        keys: the state's key columns behind PART.
        event: whether rows have times of their own.
        delays: of each side, by how much its watermark follows its greatest position.
        takes, gives: the columns that come in and go out, with their types.
        copy: as of the transaction before; given with each batch.
        shard: the keys of which rows and entries are given. The watermarks are of all rows.
    """

    own = True

    state: str
    keys: tuple[str, ...]
    event: bool
    delays: tuple[int, ...]
    takes: Typed
    gives: Typed
    copy: CopyAsOf | None = None
    shard: Shard = WHOLE

    def with_copies(self, copies: Mapping[str, CopyAsOf]) -> GatherFromCopy:
        """The step with the copy of its state."""
        return replace(self, copy=copies[self.state])

    @property
    def text(self) -> str:
        return f"entries of {self.state} for the rows' keys, and those that are due, in its local copy"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        columns, length = whole(frames, self.takes)
        if not length:
            return
        assert self.copy is not None, "the batch has given no copy"
        # Hosts of a cluster may lack what copies need.
        from trident.states.core.local_copy import StaleCopy

        try:
            yield from self._gathered(columns, self.copy)
        except StaleCopy as error:
            raise StaleCopy(copy_error(self.state, error)) from error

    def _gathered(self, columns: dict[str, pa.Array], copy: CopyAsOf) -> Iterator[Frame]:
        # Hosts of a cluster may lack what copies need.
        from trident.states.core.copy_rows import RowCodec, plain_values
        from trident.states.core.local_copy import in_order, look_up

        assert copy.ordered_by == DUE, "the batch has given no copy in the order of what is due"
        codec, sides, kinds = RowCodec(copy.schema, copy.keys), len(self.delays), columns[KIND]
        is_new = pc.greater_equal(kinds, 0)
        if self.shard.count > 1:
            is_new = pc.and_(is_new, self.shard.of_rows(pa.table(columns), copy.schema, copy.keys[1:]))
        new = pc.indices_nonzero(is_new)
        keys = codec.key_array(self._lookup_keys(columns, new, copy)).unique()  # those of the sides' watermarks first
        values, found = look_up(copy, keys)
        marks = plain_values(values.column(0).slice(0, sides), copy.values.types[0])
        greatest = list(marks)
        for side in range(sides):
            of_side = pc.equal(kinds, side) if side else pc.less_equal(kinds, 0)  # the clock is of the first one
            at = pc.max(columns[AT].filter(of_side)).as_py()
            if at is not None:
                mark = later(at, -self.delays[side]) if self.event else at
                greatest[side] = mark if greatest[side] is None else max(mark, greatest[side])
        before, now = least_of(marks), least_of(greatest)
        found[:sides] = False  # they have positions, and are no entries

        def given(part: Mapping[str, pa.Array], count: int) -> Frame:
            marked = {name: pa.repeat(pa.scalar(at, pa.int64()), count) for name, at in ((BEFORE, before), (NOW, now))}
            return _filled(self.gives, {**part, **marked}, count)

        def stored(names: pa.Array, entries: pa.Table) -> Frame:
            part = {**_columns(codec.decode_keys(names.to_pylist())), **_columns(entries)}
            return given({**part, KIND: pa.repeat(pa.scalar(STORED, pa.int32()), len(names))}, len(names))

        yield given({name: column.take(new) for name, column in columns.items()}, len(new))
        held = pa.array(found)
        yield stored(keys.filter(held), values.filter(held))
        below = now + 1 if now is not None and now < LAST else None
        for due in in_order(copy, None, below, self.shard) if now is not None else ():
            others = pc.invert(pc.is_in(due.keys, keys))  # an entry may be due and that of a row
            yield stored(due.keys.filter(others), due.values.filter(others))
        changed = [side for side in range(sides) if greatest[side] is not None and greatest[side] != marks[side]]
        if self.shard.number > 0:
            return  # the first shard's task has the watermarks
        parts, dues = [side + 1 for side in changed], [greatest[side] for side in changed]
        made = {PART: pa.array(parts, pa.int32()), DUE: pa.array(dues, pa.int64())}
        yield given({**made, KIND: pa.repeat(pa.scalar(MARK, pa.int32()), len(changed))}, len(changed))

    def _lookup_keys(self, columns: Mapping[str, pa.Array], new: pa.Array, copy: CopyAsOf) -> pa.Table:
        """The keys of the sides' watermarks, and behind them those of the rows."""
        sides = len(self.delays)
        parts = pa.array([*range(1, sides + 1), *[0] * len(new)], pa.int32())
        places = pa.concat_arrays([pa.nulls(sides, new.type), new])
        lookup_keys = {PART: parts, **{name: columns[name].take(places) for name in self.keys}}
        return pa.table([lookup_keys[name] for name in copy.keys], names=list(copy.keys))


@dataclass(frozen=True)
class Tagged(Step):
    """The rows with one tag: some of their columns, or the fields of a struct of theirs.

    Attributes:
        tag: the one.
        struct: the column that has the fields; "": they are columns themselves.
        fields: (the place in the struct, name).
        says: its text.
    """

    own = True

    tag: int
    struct: str
    fields: tuple[tuple[int, str], ...]
    says: str = ""

    @property
    def text(self) -> str:
        return self.says

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            places = pc.indices_nonzero(pc.equal(frame.array(TAG), self.tag))
            if len(places):
                yield Frame(self._fields(frame, places), len(places), frame.meter)

    def _fields(self, frame: Frame, places: pa.Array) -> dict[str, pa.Array]:
        if not self.struct:
            return {name: frame.array(name).take(places) for _, name in self.fields}
        rows = frame.array(self.struct).take(places)
        return {name: pc.struct_field(rows, [at]) for at, name in self.fields}


def _columns(table: pa.Table) -> dict[str, Any]:
    # A table without rows has columns without chunks.
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def _filled(fields: Typed, columns: Mapping[str, pa.Array], length: int) -> Frame:
    """A frame of these columns; nulls in those that are not given."""
    made = {name: columns[name] if name in columns else pa.nulls(length, kind) for name, kind in fields}
    return Frame(made, length, Meter())


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else pc.cast(array, kind)
