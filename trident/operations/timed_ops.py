"""The Spark operations of keyed states with a time: the rows that a rule needs, and those that it gives, by tag.

The new rows of a transaction, the entries of the state for their keys, and those that are due come together by key; the
step of ``trident.workers.timed`` does the rest. Watermarks are found first, by one small job, and are constants in the
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StructField

from trident.operations.timed_spec import TimedSpec
from trident.operations.window_spec import sql_position
from trident.planning.operation import Fields, MultiInputOp, Operation, PyOp, arrow_op, arrow_types, names_of
from trident.planning.session_frames import Batch, Join, SessionFrames, Transform, bytes_read, column, column_list
from trident.states.core.binding import StateBinding
from trident.states.core.names import backquoted
from trident.states.keyed.copy_combine import why_no_copy
from trident.workers.timed import (
    AT,
    BEFORE,
    CLOCK,
    DUE,
    GIVEN,
    GOES_ON,
    IS_LATE,
    KIND,
    LATE,
    MARK,
    NOW,
    ORDER,
    PART,
    ROWS,
    STORED,
    TAG,
    Typed,
    later,
)
from trident.workers.timed_copy import GatherFromCopy, NewRows, Tagged

# Rows in so few bytes are worth one Spark partition.
_SMALL_BYTES = 4 << 20
# Keys of rows in this many bytes are sent to every task; of more both sides are moved.
_ASKED_BYTES_MAX = 64 << 20
_ASKED = "__trident_asked"


def new_fields(keys: Fields, sides: Sequence[DataType]) -> Fields:
    """The columns of the new rows: their side, keys, order and position, and a struct per side."""
    rows = (StructField(name, kind, True) for name, kind in zip(ROWS, sides))
    return (_int(KIND), *keys, _long(ORDER), _long(AT), *rows)


def turn_fields(binding: StateBinding, new: Fields) -> Fields:
    """The columns that the step takes: those of new rows, those of the state, and the transaction's watermarks."""
    own = {field.name for field in new}
    state = (field for field in binding.schema.fields if field.name not in own)
    return (*new, *state, _long(BEFORE), _long(NOW))


def given_fields(binding: StateBinding, given: DataType, sides: Sequence[DataType]) -> Fields:
    """The columns that the step gives: the rows of the log, the tag, and a struct for each kind of row behind it."""
    late = (StructField(name, kind, True) for name, kind in zip(LATE, sides))
    return (*binding.log_schema.fields, _int(TAG), StructField(GIVEN, given, True), *late)


def _int(name: str) -> StructField:
    return StructField(name, IntegerType(), True)


def _long(name: str) -> StructField:
    return StructField(name, LongType(), True)


@dataclass(frozen=True)
class NewRowsOp(MultiInputOp):
    """The new rows of one stream or of two, in one form.

    Attributes:
        keys: of each stream the fields that are compared.
        rows: of each stream the fields of its struct.
        spec: says which field of each has its position.
    """

    keys: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    spec: TimedSpec
    clock: Any

    @property
    def gives_rows_for_none(self) -> bool:
        return not self.spec.event  # the transaction's time

    @property
    def on_arrow(self) -> PyOp | None:
        clock, names = None if self.spec.event else self.clock, names_of(self.fields[1:])
        compared = tuple(tuple(zip(keys, names)) for keys in self.keys)
        step = NewRows(compared, self.rows, self.spec.positions, clock, _typed(self.fields))
        return arrow_op(self.fields, step, frozenset(name for side in self.rows for name in side))

    def transform(self, frames: SessionFrames) -> Transform:
        join = self.join(frames)
        return lambda frame, batch: join([frame], batch)

    def join(self, frames: SessionFrames) -> Join:
        selects = [frames.prepared_select(self._side(side)) for side in range(len(self.rows))]
        marker = frames.prepared_select(
            [column(field.name).cast(field.dataType).alias(field.name) for field in self.fields]
        )

        def join(sides: Sequence[Any], batch: Batch) -> Any:
            new = reduce(lambda a, b: a.union(b), [select(frame) for select, frame in zip(selects, sides)])
            if batch.copies is None:
                return new
            if not self.spec.event:
                # Also for an empty batch, which has no Spark partition.
                values = {KIND: f"{CLOCK}", AT: f"{self.clock()}L"}
                texts = [f"{values.get(field.name, 'null')} as {backquoted(field.name)}" for field in self.fields]
                new = new.union(marker(frames.session.range(0, 1, 1, 1).selectExpr(*texts)))
            return new.coalesce(1)

        return join

    def _side(self, side: int) -> list[Any]:
        names = [field.name for field in self.fields[1 : 1 + len(self.keys[side])]]
        at = self.spec.positions[side]
        made = [F.lit(side).alias(KIND)]
        made += [column(given).alias(name) for given, name in zip(self.keys[side], names)]
        made.append(F.monotonically_increasing_id().alias(ORDER))
        made.append((F.lit(None).cast("long") if at is None else F.expr(sql_position(at))).alias(AT))
        for other, field in enumerate(self.fields[3 + len(names) :]):
            own = F.struct(*[column(name).alias(name) for name in self.rows[other]]) if other == side else F.lit(None)
            made.append(own.cast(field.dataType).alias(field.name))
        return made

    def describe(self) -> str:
        return f"new rows of {len(self.rows)} streams" if len(self.rows) > 1 else "new rows"


@dataclass(frozen=True)
class GatherOp(Operation):
    """Puts the entries of the state that a transaction needs beside its new rows, and brings both together by key.

    Attributes:
        keys: the state's key columns behind PART.
        clock: of processing time.
        materialise: the new rows must be computed once before.
    """

    needs_order = True
    shuffles = True
    spreads_rows = True
    reads_state = True

    binding: StateBinding
    spec: TimedSpec
    keys: tuple[str, ...]
    clock: Any
    materialise: bool

    @property
    def on_arrow(self) -> PyOp | None:
        state = self.binding
        if why_no_copy(state.schema, state.keys, state.merging, state.aggregator_name) is not None:
            return None
        own = {KIND, ORDER, AT, *ROWS, *self.keys}
        takes = tuple(field for field in self.fields if field.name in own)
        step = GatherFromCopy(
            state.name, self.keys, self.spec.event, self.spec.delays, _typed(takes), _typed(self.fields)
        )
        return arrow_op(self.fields, step, names_of(takes), state.name)

    def describe(self) -> str:
        place = "" if self.on_arrow is None else " (of few rows in its local copy)"
        return f"entries of {self.binding.name} for the rows' keys, and those that are due{place}"

    def transform(self, frames: SessionFrames) -> Transform:
        return _Gather(self, frames)


class _Gather:
    """A GatherOp in one session."""

    def __init__(self, op: GatherOp, frames: SessionFrames) -> None:
        self._op = op
        names = {field.name for field in op.binding.schema.fields}
        kinds = {field.name: field.dataType for field in op.fields}
        ends = [field.name for field in op.fields if field.name not in (BEFORE, NOW)]
        none = {name: F.lit(None).cast(kinds[name]).alias(name) for name in ends}
        made = {**none, KIND: F.lit(STORED).alias(KIND)}
        self._old = frames.prepared_select([column(name) if name in names else made[name] for name in ends])
        made = {**none, KIND: F.lit(MARK).alias(KIND)}
        marks = [F.expr(name).alias(name) if name in (PART, DUE) else made[name] for name in ends]
        self._marks = frames.prepared_select(marks)
        new = {KIND, ORDER, AT, *ROWS, *op.keys}
        self._new = frames.prepared_select([column(name) if name in new else none[name] for name in ends])
        self._asked = frames.prepared_select([*column_list(op.keys), F.lit(True).alias(_ASKED)])

    def __call__(self, new: Any, batch: Batch) -> Any:
        op = self._op
        assert batch.stored is not None and batch.once is not None, "states are read by late segments only"
        if op.materialise:
            new, _ = batch.once(new)
        stored = batch.stored(op.binding, None)
        before, now = self._turn(stored, new)
        least_before, least_now = op.spec.watermark(before), op.spec.watermark(now)
        sizes = bytes_read(stored), bytes_read(new)
        both = self._new(new).unionAll(self._old(self._wanted(stored, new, least_now, sizes[1])))
        changed = [
            f"struct({side + 1} as {PART}, {mark}L as {DUE})"
            for side, mark in enumerate(now)
            if mark is not None and mark != before[side]
        ]
        if changed:
            one = new.sparkSession.range(0, 1, 1, 1).selectExpr(f"inline(array({', '.join(changed)}))")
            both = both.unionAll(self._marks(one))
        both = both.selectExpr("*", f"{_constant(least_before)} as {BEFORE}", f"{_constant(least_now)} as {NOW}")
        if sum(sizes) <= _SMALL_BYTES:
            return both.coalesce(1)
        return both.repartition(*[column(key) for key in op.keys])

    def _wanted(self, stored: Any, new: Any, now: int | None, size: int) -> Any:
        """The entries of the rows' keys, and those that are due; each once."""
        asked = self._asked(new).distinct()
        asked = (F.broadcast(asked) if size <= _ASKED_BYTES_MAX else asked).alias("asked")
        same = [F.col(f"stored.{key}").eqNullSafe(F.col(f"asked.{key}")) for key in map(backquoted, self._op.keys)]
        entries = stored.where(f"{PART} = 0").alias("stored")
        joined = entries.join(asked, reduce(lambda a, b: a & b, same), "left")
        wanted = f"{_ASKED} is not null" if now is None else f"{_ASKED} is not null or {DUE} <= {now}L"
        return joined.where(wanted).select("stored.*")

    def _turn(self, stored: Any, new: Any) -> tuple[list[int | None], list[int | None]]:
        """Of each side the watermark of the transaction before, and of this one."""
        spec = self._op.spec
        sides = len(spec.positions)
        asked = stored.where(f"{PART} > 0").selectExpr(f"{PART} as side", f"{DUE} as mark", "0 as part")
        if spec.event:
            greatest = new.groupBy(KIND).agg(F.max(AT).alias("mark"))
            asked = asked.unionAll(greatest.selectExpr(f"{KIND} + 1 as side", "mark", "1 as part"))
        before: list[int | None] = [None] * sides
        found: list[int | None] = [None] * sides
        for row in asked.collect():
            if row.part == 0:
                before[row.side - 1] = row.mark
            elif row.mark is not None:
                found[row.side - 1] = later(row.mark, -spec.delays[row.side - 1])
        if not spec.event:
            found = [self._op.clock()]
        now = [max((m for m in pair if m is not None), default=None) for pair in zip(before, found)]
        return before, now


def _typed(fields: Fields) -> Typed:
    return tuple(zip(names_of(fields), arrow_types(fields)))


def _constant(mark: int | None) -> str:
    return "cast(null as bigint)" if mark is None else f"{mark}L"


@dataclass(frozen=True)
class TaggedRowsOp(Operation):
    """The rows with one tag, as the user sees them.

    Attributes:
        side: of late rows their side; None: rows that go on.
        names: of the struct that has them.
        text: for ``explain``.
    """

    side: int | None
    names: tuple[str, ...]
    text: str

    @property
    def _place(self) -> tuple[str, int]:
        return (GIVEN, GOES_ON) if self.side is None else (LATE[self.side], IS_LATE + self.side)

    @property
    def on_arrow(self) -> PyOp | None:
        struct, tag = self._place
        fields = tuple((self.names.index(field.name), field.name) for field in self.fields)
        return arrow_op(self.fields, Tagged(tag, struct, fields, self.text), (TAG, struct))

    def transform(self, frames: SessionFrames) -> Transform:
        within, tag = self._place
        chosen = frames.prepared_select([F.col(within).getField(field.name).alias(field.name) for field in self.fields])
        return lambda frame, _: chosen(frame.where(f"{TAG} = {tag}"))

    def describe(self) -> str:
        return self.text
