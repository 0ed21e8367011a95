"""Keyed states with a time: their nodes, their Spark operations, and ``drop_duplicates``, which uses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StructField, StructType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.aggregates import check_groupable
from trident.operations.persisting import check_fields
from trident.operations.state_nodes import PersistNode
from trident.operations.window_nodes import now_us
from trident.operations.window_spec import Unit, duration_text, duration_us, sql_position
from trident.operations.windows import Watermark, watermark_of
from trident.planning.nodes import Node, TopologyGraph, above
from trident.planning.operation import (
    Fields,
    MultiInputOp,
    Operation,
    PyOp,
    SegmentBuilder,
    arrow_op,
    arrow_types,
    names_of,
)
from trident.planning.session_frames import Batch, Join, SessionFrames, Transform, bytes_read, column, column_list
from trident.states.core.binding import LAST, StateBinding
from trident.states.core.copyable import why_no_copy, why_not_copied
from trident.states.core.names import backquoted, folded
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.workers.chain import Step
from trident.workers.failures import Label
from trident.workers.timed import (
    AT,
    BEFORE,
    CHANGED,
    DELETED,
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
    FirstOfKey,
    Rule,
    TimedStep,
    Typed,
    UserTimedStep,
    later,
    least_of,
)
from trident.workers.timed_copy import GatherFromCopy, NewRows, Tagged

# The times of a keyed state: positions and delays, a part of the topology's identity.


@dataclass(frozen=True)
class TimedSpec:
    """The times of a keyed state: the aggregator of its binding.

    Attributes:
        native_name: names the state's contents in its descriptor; Spark alone merges them.
        positions: of each side the timestamp that is its rows' position; None: processing time.
        delays: of each side, by how much its watermark follows its greatest timestamp; microseconds.
    """

    native_name: str
    positions: tuple[str | None, ...]
    delays: tuple[int, ...]

    @property
    def event(self) -> bool:
        """Tells whether rows have times of their own."""
        return self.positions[0] is not None

    @property
    def unit(self) -> Unit:
        return Unit.EVENT_TIME if self.event else Unit.PROCESSING_TIME

    def watermark(self, marks: Sequence[int | None]) -> int | None:
        """The watermark of all sides together."""
        return least_of(marks)


# The Spark operations of keyed states with a time: the rows that a rule needs, and those that it gives, by tag.
#
# The new rows of a transaction, the entries of the state for their keys, and those that are due come together by key;
# the
# step of ``trident.workers.timed`` does the rest. Watermarks are found first, by one small job, and are constants in
# the
# plan.


# Rows in so few bytes are worth one Spark partition.
_SMALL_BYTES = 4 << 20
# Keys of rows in this many bytes are sent to every task; of more both sides are moved.
_BROADCAST_BYTES_MAX = 64 << 20
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
    def gives_rows_for_empty_batch(self) -> bool:
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

        def join(sides: Sequence[Any], batch: Batch) -> Any:
            return reduce(lambda a, b: a.union(b), [select(frame) for select, frame in zip(selects, sides)])

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
        self._lookup_keys = frames.prepared_select([*column_list(op.keys), F.lit(True).alias(_ASKED)])

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
        asked = self._lookup_keys(new).distinct()
        asked = (F.broadcast(asked) if size <= _BROADCAST_BYTES_MAX else asked).alias("asked")
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


# Makes the rule, when the node is lowered.
MakeRule = Callable[["TimedNode"], Rule]


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedNode(PersistNode):
    """Keeps a keyed state with a time; gives the rows that its rule lets go on, and those that come too late.

    Attributes:
        compared: of each parent the fields that are the key.
        spec: of positions and delays.
        given: the fields of the rows that go on.
        rule: made for the worker, when the node is lowered.
        clock: of processing time; microseconds since 1970.
        keeps_watermark: whether the rows that go on have the watermark of those that came.
        user_code: whether the rule calls a function of the user's.
    """

    sees_all = True

    compared: tuple[tuple[str, ...], ...]
    spec: TimedSpec
    given: StructType
    rule: MakeRule
    clock: Callable[[], int] = now_us
    keeps_watermark: bool = False
    user_code: bool = False

    @property
    def joins(self) -> bool:
        return len(self.parents) > 1

    @property
    def together(self) -> tuple[str, ...] | None:
        # Each task would have a processing time of its own.
        return self.compared[0] if self.spec.event else None

    @property
    def calls_user(self) -> bool:
        return self.user_code

    @property
    def ends_watermark(self) -> bool:
        return not self.keeps_watermark

    def carried(self, side: int, field: str) -> str | None:
        return field if self.keeps_watermark else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    @property
    def keys(self) -> tuple[str, ...]:
        """The state's key columns behind PART."""
        return tuple(self.binding.keys[1:])

    @property
    def sides(self) -> tuple[StructType, ...]:
        """The fields of each parent's rows."""
        return tuple(parent.schema for parent in self.parents)

    def fields_left(self, live: frozenset[str]) -> Fields:
        return given_fields(self.binding, self.given, self.sides)

    def output(self, frame: "DataFrame") -> "DataFrame":
        return frame.where(f"{TAG} = {CHANGED}").drop(TAG, GIVEN, *LATE[: len(self.sides)])

    @property
    def output_step(self) -> Step:
        return Tagged(CHANGED, "", tuple(enumerate(self.binding.log_schema.names)))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        keys = tuple(self.binding.schema[name] for name in self.keys)
        new = new_fields(keys, self.sides)
        builder.push(
            NewRowsOp(new, self.compared, tuple(tuple(side.names) for side in self.sides), self.spec, self.clock)
        )
        # Rows that are late themselves are computed as often as they are used, unless they were staged.
        computed = builder.computed or any(one.late for parent in self.parents for one in above(parent))
        takes = turn_fields(self.binding, new)
        builder.push(GatherOp(takes, self.binding, self.spec, self.keys, self.clock, computed))
        gives = self.fields_left(live)
        typed = tuple(tuple(zip(names_of(fields), arrow_types(fields))) for fields in (takes, gives))
        kind = UserTimedStep if self.user_code else TimedStep
        step = kind(Label(self.operation, self.location), self.rule(self), self.keys, self.spec.event, *typed)
        builder.push_python(step, gives, names_of(takes))


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedRowsNode(Node):
    """Rows that a TimedNode gives: those that go on, or the late ones of a side.

    Attributes:
        side: of late rows; None: the rows that go on.
    """

    late = True
    row_by_row = False
    together = ()
    is_called_through = False
    side: int | None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = tuple(field for field in self.schema.fields if field.name in live)
        builder.push(TaggedRowsOp(fields, self.side, tuple(self.schema.names), self.operation))


def rows_of(node: TimedNode) -> TimedRowsNode:
    """The rows that go on."""
    return TimedRowsNode(parents=(node,), schema=node.given, side=None, operation=f"rows({node.binding.name})")


def late_rows_of(given: Node, side: int) -> TimedRowsNode:
    """The rows of a side that were too late for the operation of a node.

    Raises:
        TopologyError: no row is late for it.
    """
    (node,) = given.parents if isinstance(given, TimedRowsNode) and given.side is None else (given,)
    if not isinstance(node, TimedNode) or side not in range(len(node.sides)):
        raise TopologyError(
            "there are no such late rows",
            found=f"late_rows({side}) of {given.operation}",
            expected="what drop_duplicates, process or a join within a time gave; of a join side 0 or 1",
            action="of windows call late_rows() on the windows themselves",
        )
    if not node.spec.event:
        raise TopologyError(
            f"no row is late for {node.operation}",
            found="processing time",
            expected="event time",
            action="put with_watermark(field, delay) before it",
        )
    name = f"late_rows({node.binding.name})"
    return TimedRowsNode(parents=(node,), schema=node.sides[side], side=side, operation=name)


def timed(
    parents: Sequence[Node],
    what: str,
    operation: str,
    compared: Sequence[tuple[str, ...]],
    spec: TimedSpec,
    values: Sequence[StructField],
    name: str,
    **more: Any,
) -> TimedNode:
    """Makes the node.

    Args:
        what: the operation, for messages; ``operation`` with its arguments.
        compared: of each parent the fields that are the key; those of the first name the state's.
        values: the columns of the state behind the keys and DUE.
        name: of the state.
        more: the further attributes of the node.

    Raises:
        FieldError: a field cannot be a key, or has a name that the state uses itself.
        TopologyError: the state cannot keep such rows.
    """
    keys = [parents[0].schema[key] for key in compared[0]]
    reason = why_not_copied(StructType(keys), [key.name for key in keys])
    if reason is not None:
        raise FieldError(f"{what} cannot compare its keys", found=reason, expected="keys whose equality Python knows")
    own = (PART, DUE, DELETED, *(field.name for field in values))
    for key in keys:
        if folded(key.name) in own:
            raise FieldError(
                f"{what} cannot have the key {key.name!r}",
                expected=f"a name other than {', '.join(own)}",
                action="give the field another name",
            )
    state = DeltaMapState(name)
    part, due = StructField(PART, IntegerType(), True), StructField(DUE, LongType(), True)
    schema = StructType([part, *(StructField(key.name, key.dataType, True) for key in keys), due, *values])
    check_fields(state, KEYED, schema, ())
    by = (PART, *compared[0])
    binding = StateBinding(state, KEYED, by, schema, tuple(schema.names[len(by) :]), spec, merging=LAST, ordered_by=DUE)
    return TimedNode(
        parents=tuple(parents),
        schema=schema,
        operation=operation,
        binding=binding,
        mode="timed",
        compared=tuple(compared),
        spec=spec,
        **more,
    )


def default_name(graph: TopologyGraph, kind: str) -> str:
    """The topology's name, since several may share a warehouse, the kind, and which of its kind this is."""
    number = 1 + sum(isinstance(node, TimedNode) and node.operation.startswith(f"{kind}(") for node in graph.nodes)
    return f"{re.sub('[-_]+', '_', graph.name)[:80].rstrip('_')}_{kind}{number}"


def watermark_required(parent: Node, what: str, why: str) -> Watermark:
    """The stream's watermark.

    Raises:
        TopologyError: it has none.
    """
    found = watermark_of(parent)
    if found is None:
        raise TopologyError(
            f"{what} needs a watermark",
            found=f"{parent.operation}, a stream without one",
            expected="a stream after with_watermark",
            action=f"put with_watermark(field, delay) before it: {why}",
        )
    return found


# drop_duplicates: the first row of each key goes on, and those that follow within a time do not.


_DROP_DUPLICATES = "drop_duplicates"


def drop_duplicates(graph: TopologyGraph, parent: Node, keys: tuple[str, ...], within: Any, name: Any) -> TimedNode:
    """See :meth:`trident.streams.stream.Stream.drop_duplicates`."""
    check_groupable(parent, keys, _DROP_DUPLICATES)
    if within is None:
        raise TopologyError(
            f"{_DROP_DUPLICATES} needs a time after which a key is forgotten",
            found="no `within`",
            expected="within='1 day', say",
            action="to keep one row per key for ever, use partition_persist with a DeltaMapState and Upsert(keys)",
        )
    length = duration_us(within, f"within of {_DROP_DUPLICATES}")
    if length <= 0:
        raise TopologyError(
            f"within of {_DROP_DUPLICATES} cannot be that", found=repr(within), expected="more than nothing"
        )
    watermark = watermark_required(parent, _DROP_DUPLICATES, "it tells when a key can be forgotten")
    text = f"{_DROP_DUPLICATES}({', '.join(keys)} within {duration_text(length)})"
    spec = TimedSpec(
        f"dedup(within {length} us of {watermark.field} delayed by {watermark.delay} us)",
        (watermark.field,),
        (watermark.delay,),
    )
    return timed(
        (parent,),
        _DROP_DUPLICATES,
        text,
        (keys,),
        spec,
        (),
        default_name(graph, _DROP_DUPLICATES) if name is None else name,
        given=parent.schema,
        rule=lambda _: FirstOfKey(length),
        keeps_watermark=True,
    )
