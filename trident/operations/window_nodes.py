"""The nodes of windows: what a window keeps, decided by the operations behind it, and what it gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Union

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField

from trident.operations.aggregates import AggregateNode, Aggregation
from trident.operations.chained import NativeChainNode
from trident.operations.state_nodes import PersistNode
from trident.operations.window_parts import (
    KeptParts,
    OpenWindowsOp,
    PanesOp,
    of_fired,
    of_late,
    push_parts,
    why_no_parts,
)
from trident.operations.window_spec import SessionSpec, Unit, WindowSpec, sql_position
from trident.planning.nodes import Node, TopologyGraph
from trident.planning.operation import Fields, Operation, SegmentBuilder, names_of
from trident.planning.session_frames import Batch, SessionFrames, Transform, bytes_read, is_single
from trident.states.core.binding import StateBinding
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN
from trident.workers.chain import Step
from trident.workers.open_windows import FIRED, LATE, START, STATE, TAG, Given

# Windows on Spark: one frame per transaction, for the state and for the fired and late rows.
#
# The frame is computed once. Each of its rows has a tag: a change of the state,
# or that it is a row of a fired window, or late. Watermarks and row numbers are
# found first, by one small job, and are constants in the frame's plan.


_NEW, _PLACE, _EVENT, _TURN = "__trident_new", "__trident_place", "__trident_event", "__trident_turn"
# monotonically_increasing_id: the Spark partition, and in the lower bits the row's number in it.
_PLACE_BITS = 33
_SMALL_BYTES = 4 << 20


def window_fields(binding: StateBinding) -> Fields:
    """The columns that a window's segment leaves: the rows of the log, the start of a fired window, and the tag."""
    start, tag = StructField(START, LongType(), True), StructField(TAG, IntegerType(), True)
    return (*binding.log_schema.fields, start, tag)


def of_state(frame: "DataFrame", binding: StateBinding) -> "DataFrame":
    """The rows of the log among those that a window gives."""
    return frame.where(f"{TAG} = {STATE}").select(*[backquoted(name) for name in binding.log_schema.names])


def _select(frames: SessionFrames, *texts: str) -> Callable[[Any], "DataFrame"]:
    """Columns as SQL text, made once per session: each call to the JVM costs."""
    return frames.prepared_select([F.expr(text) for text in texts])


@dataclass(frozen=True)
class TaggedOp(Operation):
    """The rows with one tag, as the user sees them.

    Attributes:
        tag: FIRED or LATE.
    """

    tag: int
    spec: WindowSpec

    def transform(self, frames: SessionFrames) -> Transform:
        edges = (START, f"{START} + {self.spec.length}L")
        kind = "greatest({}, 0L)" if self.spec.unit is Unit.ROWS else "timestamp_micros({})"
        window = "named_struct('start', {}, 'end', {}) as window".format(*map(kind.format, edges))
        fired, condition = self.tag == FIRED, f"{TAG} = {self.tag}"
        names = [field.name for field in self.fields]
        chosen = _select(frames, *[window if fired and name == "window" else backquoted(name) for name in names])
        return lambda frame, _: chosen(frame.where(condition))

    def describe(self) -> str:
        return f"{'rows of fired windows' if self.tag == FIRED else 'rows that came too late'} of {self.spec}"


@dataclass(frozen=True)
class _Turn:
    """The watermarks and counts of a transaction, found before its rows are looked at.

    Attributes:
        before: the watermark of the transaction before; None: none yet.
        first: the number of the first new row.
        late: how many rows were late before this transaction.
    """

    before: int | None
    now: int | None
    first: int
    rows: int
    late: int

    def sql(self, spec: WindowSpec) -> str:
        """The constants of the transaction's plan."""
        fires = spec.fires_between(self.before, self.now)
        opened = None if self.before is None else spec.first_open(self.before)
        closed = spec.last_closed(self.now) if fires and self.now is not None else None
        values = {
            "before": self.before,
            "now": self.now,
            "first": self.first,
            "next": self.first + self.rows,
            "late": self.late,
            "opened": opened,
            "closed": closed,
        }
        parts = [f"'{name}', {'cast(null as bigint)' if v is None else f'{v}L'}" for name, v in values.items()]
        return f"named_struct({', '.join(parts)}) as {_TURN}"


@dataclass(frozen=True)
class WindowOp(Operation):
    """Makes a transaction's changes and fired rows, of its new rows and those that open windows hold.

    Attributes:
        binding: the state that holds them.
        clock: of processing time.
        materialise: the rows must be computed once before.
    """

    needs_order = True
    spreads_rows = True  # where its windows hold much

    binding: StateBinding
    spec: WindowSpec
    clock: Any
    materialise: bool

    def describe(self) -> str:
        return f"windows of {self.spec}: rows to keep, rows of fired windows, late rows"

    def transform(self, frames: SessionFrames) -> Transform:
        return _Windows(self, frames)


class _Windows:
    """A WindowOp in one session."""

    def __init__(self, op: WindowOp, frames: SessionFrames) -> None:
        self._op, spec = op, op.spec
        names = [backquoted(name) for name in op.binding.value_fields[3:]]
        none = "cast(null as bigint)"
        in_events = spec.unit is Unit.EVENT_TIME
        # Null for a row without a time; the other positions are known only with the turn.
        self._position = sql_position(spec.field or "") if in_events else none
        newest = f"max({self._position})" if in_events else none
        self._place = _select(frames, "*", f"monotonically_increasing_id() as {_PLACE}")
        self._of_all = _select(frames, "0 as part", "_position as mark", "_next as rows", "_late as late")
        self._of_new = _select(frames, "1 as part", f"{newest} as mark", "count(1) as rows", "0L as late")
        self._old = _select(frames, "_seq", "_position", f"false as {_NEW}", *names)
        self._new = _select(frames, _PLACE, self._position, f"true as {_NEW}", *names)
        numbered = f"if({_NEW}, _seq + {_TURN}.first, _seq) as _seq"
        place = {Unit.ROWS: f"_seq + {_TURN}.first", Unit.PROCESSING_TIME: f"{_TURN}.now", Unit.EVENT_TIME: "_position"}
        placed = f"if({_NEW}, {place[spec.unit]}, _position) as _position"
        self._placed = _select(frames, numbered, placed, _NEW, _TURN, *names)
        self._events = _select(
            frames,
            "_seq",
            "_position",
            f"{none} as _next",
            f"{none} as _late",
            *names,
            f"not {_NEW} as {DELETED_COLUMN}",
            f"explode({self._event_texts()}) as {_EVENT}",
        )
        log = [backquoted(name) for name in op.binding.log_schema.names]
        self._given = _select(frames, *log, f"{_EVENT}.start as {START}", f"{_EVENT}.tag as {TAG}")
        late = f"{_TURN}.late"
        if in_events:
            late = f"max({_TURN}.late) + count_if({self._is_late(self._position)})"
        last = "max" if in_events else ""
        self._about_all = _select(
            frames,
            "-1L as _seq",
            f"{last}({_TURN}.now) as _position",
            f"{last}({_TURN}.next) as _next",
            f"{late} as _late",
            *[f"null as {name}" for name in names],
            f"false as {DELETED_COLUMN}",
            f"{none} as {START}",
            f"{STATE} as {TAG}",
        )

    def __call__(self, frame: "DataFrame", batch: Batch) -> "DataFrame":
        assert batch.stored is not None, "states are read by late segments only"
        frame, rows = self._numbered(frame, batch)
        stored = batch.stored(self._op.binding, None)
        turn = self._turn(stored, frame, rows)
        constants = turn.sql(self._op.spec)
        both = self._old(stored.where("_seq >= 0")).unionAll(self._new(frame))
        given = self._given(self._events(self._placed(both.selectExpr("*", constants))))
        if turn.rows or self._op.spec.fires_between(turn.before, turn.now):
            source = frame if self._op.spec.unit is Unit.EVENT_TIME else frame.sparkSession.range(0, 1, 1, 1)
            given = given.unionAll(self._about_all(source.selectExpr("*", constants)))
        return given.coalesce(1) if rows is None and bytes_read(stored) <= _SMALL_BYTES else given

    # --- before the rows are looked at ---------------------------------------------------

    def _numbered(self, frame: Any, batch: Any) -> "tuple[DataFrame, int | None]":
        """The rows with their numbers from 0, without gaps, in the batch's order; how many, if that was to be known."""
        if not self._op.materialise and is_single(frame):
            return self._place(frame), None
        # Each Spark partition must know how many rows are before it.
        placed, _ = batch.once(self._place(frame))
        of = f"shiftright({_PLACE}, {_PLACE_BITS})"
        counts = {row[0]: row[1] for row in placed.selectExpr(f"{of} as of").groupBy("of").count().collect()}
        before, ahead = 0, []
        for partition in sorted(counts):
            # The number in the partition begins behind the bits of the partition.
            ahead.append(f"{partition}L, {before - (partition << _PLACE_BITS)}L")
            before += counts[partition]
        if not ahead:
            return placed, 0
        return placed.withColumn(_PLACE, F.expr(f"{_PLACE} + map({', '.join(ahead)})[{of}]")), before

    def _turn(self, stored: "DataFrame", frame: "DataFrame", rows: int | None) -> _Turn:
        watermarks = self._of_all(stored.where("_seq = -1")).unionAll(self._of_new(frame))
        parts = {row.part: row for row in watermarks.collect()}
        count = parts[1].rows if rows is None else rows
        before, first, late = (parts[0].mark, parts[0].rows, parts[0].late) if 0 in parts else (None, 0, 0)
        spec = self._op.spec
        if spec.unit is Unit.ROWS:
            found = first + count
        elif spec.unit is Unit.PROCESSING_TIME:
            found = self._op.clock()
        else:
            found = None if parts[1].mark is None else parts[1].mark - spec.delay
        now = max((mark for mark in (before, found) if mark is not None), default=None)
        return _Turn(before, now, first, count, late)

    # --- the rows ------------------------------------------------------------------------

    def _is_late(self, at: str) -> str:
        return f"({at} is null or {self._is_closed(at, 'before')})"

    def _is_closed(self, at: str, mark: str) -> str:
        """Tells whether a watermark has reached the end of every window of a position."""
        spec = self._op.spec
        return f"coalesce({spec.sql_last_start(at)} + {spec.length}L <= {_TURN}.{mark}, false)"

    def _event_texts(self) -> str:
        """The events of a row: a change of the state, its fired windows, that it is late."""
        spec, at = self._op.spec, "_position"
        closed = self._is_closed(at, "now")
        changes = f"if({_NEW}, {at} is not null and not {closed}, {closed})"
        first = f"greatest({spec.sql_first_start(at)}, {_TURN}.opened)"  # null: nothing was fired before
        last = f"least({spec.sql_last_start(at)}, {_TURN}.closed)"
        starts = f"sequence({first}, {last}, {spec.slide}L)"

        def events(condition: str, tag: int) -> str:
            return f"if({condition}, array(named_struct('tag', {tag}, 'start', cast(null as bigint))), array())"

        fires = f"{_TURN}.closed is not null and {at} is not null and {first} <= {last}"
        fired = f"if({fires}, transform({starts}, s -> named_struct('tag', {FIRED}, 'start', s)), array())"
        return f"concat({events(changes, STATE)}, {events(f'{_NEW} and {self._is_late(at)}', LATE)}, {fired})"


WINDOW = "window"
Clock = Callable[[], int]


def now_us() -> int:
    """The time of this machine; microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowNode(PersistNode):
    """Keeps what open windows hold, and gives what is fired and the rows that come too late.

    Attributes:
        binding: of the state as it is where rows are kept; ``writes`` is the one that there is.
        graph: of the topology: the operations behind decide what is kept.
        clock: of processing time; microseconds since 1970.
    """

    ends_watermark = True
    sees_all = True

    spec: Union[WindowSpec, SessionSpec]
    graph: TopologyGraph
    clock: Clock = now_us

    @property
    def kept(self) -> KeptParts | str:
        """The parts that are kept; or why rows are."""
        found = _parts_after(self)
        return found if isinstance(found, str) else why_no_parts(found) or found

    @property
    def writes(self) -> StateBinding:
        kept = self.kept
        return self.binding if isinstance(kept, str) else kept.binding(self.binding.name)

    @property
    def together(self) -> tuple[str, ...] | None:
        kept = self.kept
        return None if isinstance(kept, str) else names_of(kept.keys) or None

    def fields_left(self, live: frozenset[str]) -> Fields:
        kept = self.kept
        return window_fields(self.binding) if isinstance(kept, str) else kept.given_fields

    def output(self, frame: "DataFrame") -> "DataFrame":
        return of_state(frame, self.writes)

    @property
    def output_step(self) -> Step | None:
        return Given(STATE, tuple((name, name) for name in self.writes.log_schema.names))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = self.kept
        if not isinstance(kept, str):
            builder.push(OpenWindowsOp(kept.given_fields, kept, self.writes, builder.computed))
            return
        assert isinstance(self.spec, WindowSpec), "sessions keep parts"
        fields = window_fields(self.binding)
        builder.push(WindowOp(fields, self.binding, self.spec, self.clock, builder.computed))

    def notes(self) -> Iterator[str]:
        kept = self.kept
        yield f"stores rows: {kept}" if isinstance(kept, str) else kept.text


@dataclass(frozen=True, eq=False, kw_only=True)
class PanesNode(Node):
    """The parts of a batch, where its window keeps parts; else the batch as it is."""

    row_by_row = False
    is_stream = False

    graph: TopologyGraph

    @property
    def _kept(self) -> KeptParts | str:
        (window,) = _children(self.graph, self)
        assert isinstance(window, WindowNode)
        return window.kept

    @property
    def calls_user(self) -> bool:
        kept = self._kept
        return not isinstance(kept, str) and kept.calls_user

    @property
    def repeatable(self) -> bool:
        return not self.calls_user

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        kept = self._kept
        return frozenset(parent.names) if isinstance(kept, str) else kept.reads

    def fields_left(self, live: frozenset[str]) -> Fields:
        kept = self._kept
        return super().fields_left(live) if isinstance(kept, str) else kept.pane_fields

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = self._kept
        if isinstance(kept, str):
            return
        if kept.calls_user:
            push_parts(builder, kept)
        else:
            builder.push(PanesOp(kept.pane_fields, kept))


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowRowsNode(Node):
    """Rows that a WindowNode gives: those of fired windows, or late ones."""

    late = True
    fired: bool = True

    @property
    def window(self) -> WindowNode:
        (window,) = self.parents
        assert isinstance(window, WindowNode)
        return window

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    @property
    def is_stream(self) -> bool:
        return not self.aggregates_for(self)

    def aggregates_for(self, node: Node) -> bool:
        kept = self.window.kept
        return self.fired and not isinstance(kept, str) and not kept.rows

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        window, kept = self.window, self.window.kept
        fields = tuple(field for field in self.schema.fields if field.name in live)
        if isinstance(kept, str):
            assert isinstance(window.spec, WindowSpec), "sessions keep parts"
            builder.push(TaggedOp(fields, FIRED if self.fired else LATE, window.spec))
        elif not self.fired:
            builder.push(of_late(kept, fields))
        elif kept.rows:
            builder.push(of_fired(kept, fields, ()))
        else:
            (node,) = _children(window.graph, self)
            builder.push(of_fired(kept, tuple(node.schema.fields), _outputs_of(node, window)))


# --- what is kept ------------------------------------------------------------------------


def _children(graph: TopologyGraph, node: Node) -> list[Node]:
    return [one for one in graph.nodes if node in one.parents]


def _aggregations_of(node: Node) -> tuple[Aggregation, ...]:
    """The native aggregates and combiners that a node makes; none where it makes others, or something else."""
    if isinstance(node, AggregateNode) and node.aggregation.kind in ("native", "combiner"):
        return (node.aggregation,)
    return node.members if isinstance(node, NativeChainNode) else ()


def _outputs_of(node: Node, window: WindowNode) -> list[tuple[str, str]]:
    """The fields of an aggregate, and the parts that they are."""
    kept = window.kept
    assert isinstance(kept, KeptParts)
    parts = dict(zip(map(id, kept.aggregations), names_of(kept.part_fields)))
    return [(one.outputs[0].name, parts[id(one)]) for one in _aggregations_of(node)]


def rows_once_more(graph: TopologyGraph, node: Node) -> Node:
    """The node whose rows one more aggregate takes: a new one where the rows of windows have an aggregate already.

    So each aggregate of one grouping asks for parts of its own, as if it were behind a grouping of its own. The rows of
    sessions stay one node's: what a session that is stored holds may not change.
    """
    if not isinstance(node, WindowRowsNode) or not node.fired or isinstance(node.window.spec, SessionSpec):
        return node
    after_window = _children(graph, node)
    if not after_window or not all(map(_aggregations_of, after_window)):
        return node
    more = replace(node)
    graph.add(more)
    return more


def _parts_after(window: WindowNode) -> KeptParts | str:
    """The parts that the operations after a window need; or why they need rows."""
    spec, name, fields = window.spec, window.binding.name, window.parents[0].schema
    session = spec if isinstance(spec, SessionSpec) else None
    if isinstance(spec, WindowSpec) and spec.unit is not Unit.EVENT_TIME:
        return f"windows of {spec.unit.value} keep rows"
    if session is None and name in window.graph.kept_rows:
        return "an earlier version has stored rows"
    users = [node for node in _children(window.graph, window) if isinstance(node, WindowRowsNode)]
    raws = tuple(fields.fields) if any(not node.fired for node in users) else ()
    own_keys = () if session is None else tuple(fields[key] for key in session.keys)
    rows = KeptParts(spec, own_keys, (), tuple(fields.fields), raws)

    def because(reason: str) -> KeptParts | str:
        return reason if session is None else rows

    after_window = [_children(window.graph, node) or [node] for node in users if node.fired]
    if any(len(found) > 1 for found in after_window):
        return because("one grouping has several uses")
    ends = [end for found in after_window for end in found]
    found = [_aggregations_of(end) for end in ends]
    if not ends or not all(found):
        what = next((end.operation for end, one in zip(ends, found) if not one), "no operation")
        return because(f"{what} needs them")
    aggregations = tuple(one for several in found for one in several)
    groups = {frozenset(one.keys) for one in aggregations}
    if len(groups) > 1:
        return because("they are grouped in more than one way")
    keys = tuple(key for key in aggregations[0].keys if key != WINDOW)
    inputs = [given for one in aggregations for given in one.inputs]
    if WINDOW in inputs or len(keys) == len(aggregations[0].keys):
        return because("they are not grouped by window")
    if session is not None and set(keys) != set(session.keys):
        return rows
    kept = KeptParts(spec, tuple(fields[key] for key in keys), aggregations, (), raws)
    if session is not None and kept.calls_user:
        return rows  # as those that are stored
    return rows if session is not None and why_no_parts(kept) is not None else kept
