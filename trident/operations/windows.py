"""Tumbling, sliding and session windows, and ``with_watermark``.

The content of open windows is a state like every other: written by the
transaction that it came with, read by the next one in its turn. So a
window fires exactly once and with exactly its rows, whatever fails in between.
It keeps parts of the aggregates behind it where these are enough, else rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.aggregates import AggregateNode, check_groupable
from trident.operations.aggregation import Aggregation
from trident.operations.chained import NativeChainNode
from trident.operations.state_checks import check_fields
from trident.operations.state_writes import PersistNode
from trident.operations.window_changes import SessionSpec
from trident.operations.window_ops import TaggedOp, WindowOp, of_state, window_fields
from trident.operations.window_parts import (
    RESERVED,
    KeptParts,
    OpenWindowsOp,
    PanesOp,
    of_fired,
    of_late,
    why_no_parts,
)
from trident.operations.window_spec import GREATEST, Unit, WindowSpec, duration_text, duration_us, read_spec
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node, require_fields
from trident.planning.operation import Fields, names_of
from trident.states.core.binding import LAST, StateBinding
from trident.states.core.descriptor import load_descriptor
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.workers.chain import Step
from trident.workers.open_windows import FIRED, LATE, LATE_ROWS, NEXT, POSITION, STATE, Given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


WINDOW = "window"
# Fields of the state: the row's number, its position; and in the one row about all, numbered -1, what comes next.
SEQ = "_seq"
_OF_STATE = (SEQ, POSITION, NEXT, LATE_ROWS)

Clock = Callable[[], int]


def now_us() -> int:
    """The time of this machine; microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class WatermarkNode(Node):
    """Says which field is the event time; changes nothing.

    Attributes:
        delay: microseconds.
    """

    field: str
    delay: int

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowNode(PersistNode):
    """Keeps what open windows hold, and gives what is fired and the rows that come too late.

    Attributes:
        binding: of the state as it is where rows are kept; ``writes`` is the one that there is.
        graph: of the topology: the operations behind decide what is kept.
        clock: of processing time; microseconds since 1970.
    """

    ends_watermark = True

    spec: Union[WindowSpec, SessionSpec]
    graph: TopologyGraph
    clock: Clock = now_us

    @property
    def kept(self) -> KeptParts | str:
        """The parts that are kept; or why rows are."""
        found = _parts_behind(self)
        return found if isinstance(found, str) else why_no_parts(found) or found

    @property
    def writes(self) -> StateBinding:
        kept = self.kept
        return self.binding if isinstance(kept, str) else kept.binding(self.binding.name)

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

    graph: TopologyGraph

    @property
    def _kept(self) -> KeptParts | str:
        (window,) = _behind(self.graph, self)
        assert isinstance(window, WindowNode)
        return window.kept

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        kept = self._kept
        return frozenset(parent.names) if isinstance(kept, str) else kept.reads

    def fields_left(self, live: frozenset[str]) -> Fields:
        kept = self._kept
        return super().fields_left(live) if isinstance(kept, str) else kept.pane_fields

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = self._kept
        if not isinstance(kept, str):
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
            (node,) = _behind(window.graph, self)
            builder.push(of_fired(kept, tuple(node.schema.fields), _outputs_of(node, window)))


# --- what is kept ------------------------------------------------------------------------


def _behind(graph: TopologyGraph, node: Node) -> list[Node]:
    return [one for one in graph.nodes if node in one.parents]


def _aggregations_of(node: Node) -> tuple[Aggregation, ...]:
    """The native aggregates that a node makes; none where it makes others, or something else."""
    if isinstance(node, AggregateNode) and node.aggregation.kind == "native":
        return (node.aggregation,)
    return node.members if isinstance(node, NativeChainNode) else ()


def _outputs_of(node: Node, window: WindowNode) -> list[tuple[str, str]]:
    """The fields of an aggregate, and the parts that they are."""
    kept = window.kept
    assert isinstance(kept, KeptParts)
    parts = dict(zip(map(id, kept.aggregations), names_of(kept.part_fields)))
    return [(one.outputs[0].name, parts[id(one)]) for one in _aggregations_of(node)]


def _parts_behind(window: WindowNode) -> KeptParts | str:
    """The parts that the operations behind a window ask for; or why they ask for rows."""
    spec, name, fields = window.spec, window.binding.name, window.parents[0].schema
    session = spec if isinstance(spec, SessionSpec) else None
    if isinstance(spec, WindowSpec) and spec.unit is not Unit.EVENT_TIME:
        return f"windows of {spec.unit.value} keep rows"
    if session is None and name in window.graph.kept_rows:
        return "an earlier version has stored rows"
    users = [node for node in _behind(window.graph, window) if isinstance(node, WindowRowsNode)]
    raws = tuple(fields.fields) if any(not node.fired for node in users) else ()
    own_keys = () if session is None else tuple(fields[key] for key in session.keys)
    rows = KeptParts(spec, own_keys, (), tuple(fields.fields), raws)

    def because(reason: str) -> KeptParts | str:
        return reason if session is None else rows

    behind = [_behind(window.graph, node) or [node] for node in users if node.fired]
    if any(len(found) > 1 for found in behind):
        return because("one grouping has several uses")
    ends = [end for found in behind for end in found]
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
    return rows if session is not None and why_no_parts(kept) is not None else kept


def window_rows(node: WindowNode, fired: bool) -> WindowRowsNode:
    """The rows of fired windows, ``window`` before their fields; or those that came too late.

    Raises:
        TopologyError: late ones are asked for, and the windows are not of event time.
    """
    if not fired and isinstance(node.spec, WindowSpec) and node.spec.unit is not Unit.EVENT_TIME:
        raise TopologyError(
            f"no row is late for {node.operation}",
            found=f"windows of {node.spec.unit.value}",
            expected="windows of event time",
            action="put with_watermark(field, delay) before the window",
        )
    (parent,) = node.parents
    fields = parent.schema.fields
    if fired:
        in_rows = isinstance(node.spec, WindowSpec) and node.spec.unit is Unit.ROWS
        kind = LongType() if in_rows else TimestampType()
        fields = [StructField(WINDOW, StructType([StructField("start", kind), StructField("end", kind)])), *fields]
    return WindowRowsNode(
        parents=(node,),
        schema=StructType(fields),
        fired=fired,
        operation=f"{'rows' if fired else 'late_rows'}({node.binding.name})",
    )


def with_watermark(parent: Node, field: str, delay: str) -> WatermarkNode:
    """See :meth:`trident.streams.stream.Stream.with_watermark`."""
    what = "with_watermark"
    if not isinstance(field, str):
        raise FieldError(f"{what} takes a field name", found=repr(field), expected="the name of a timestamp")
    require_fields([field], parent.schema, what)
    kind = parent.schema[field].dataType
    if not isinstance(kind, TimestampType):
        raise TopologyError(
            f"{what} needs a timestamp",
            found=f"field {field!r} of type {kind.simpleString()}",
            expected="timestamp",
            action="make one with each(expr('...'), 'at timestamp')",
        )
    micros = duration_us(delay, f"the delay of {what}")
    if micros < 0:
        raise TopologyError(f"the delay of {what} is negative", found=repr(delay), expected="'0 seconds' or more")
    return WatermarkNode(
        parents=(parent,),
        schema=parent.schema,
        operation=f"{what}({field}, {duration_text(micros)})",
        field=field,
        delay=micros,
    )


def window(
    graph: TopologyGraph,
    parent: Node,
    what: str,
    length: Union[int, str],
    slide: Union[int, str],
    name: str,
    clock: Clock = now_us,
) -> WindowNode:
    """See :meth:`trident.streams.stream.Stream.sliding_window`.

    Args:
        clock: of processing time; microseconds since 1970.
    """
    watermark = watermark_of(parent) if isinstance(slide, str) else None
    spec = read_spec(what, length, slide, None if watermark is None else (watermark.field, watermark.delay))
    return _window(graph, parent, what, spec, name, _OF_STATE, clock)


def session_window(graph: TopologyGraph, parent: Node, gap: Any, name: str, keys: tuple[str, ...]) -> WindowNode:
    """See :meth:`trident.streams.stream.Stream.session_window`.

    Raises:
        TopologyError: there is no watermark, the gap is none, or a field cannot be kept.
        FieldError: a key does not exist, or a field has a name that windows use themselves.
    """
    what, watermark = "session_window", watermark_of(parent)
    check_groupable(parent, keys, what)
    spec = SessionSpec(read_gap(gap), *_watermark_for_sessions(watermark), keys)
    made = _window(graph, parent, what, spec, name, RESERVED, now_us)
    fields = tuple(parent.schema.fields)
    reason = why_no_parts(KeptParts(spec, tuple(parent.schema[key] for key in keys), (), fields, fields))
    if reason is not None:
        raise TopologyError(f"{what} cannot keep its rows", found=reason, action="project the fields that are needed")
    return made


def check_session_keys(node: WindowNode, keys: tuple[str, ...]) -> None:
    """Raises TopologyError unless the sessions are of these keys."""
    assert isinstance(node.spec, SessionSpec)
    if set(node.spec.keys) != set(keys):
        raise TopologyError(
            "sessions have one choice of keys",
            found=f"{', '.join(keys) or 'no key'} behind {', '.join(node.spec.keys) or 'no key'}",
            expected="the same keys",
            action="write a session_window of its own for each",
        )


def read_gap(gap: Any) -> int:
    """The gap of sessions in microseconds.

    Raises:
        TopologyError: it is none.
    """
    micros = duration_us(gap, "the gap of session_window")
    if not 0 < micros < GREATEST:
        raise TopologyError("session_window cannot have that gap", found=repr(gap), expected="more than nothing")
    return micros


def _watermark_for_sessions(watermark: Watermark | None) -> tuple[str, int]:
    if watermark is None:
        raise TopologyError(
            "sessions need event time",
            found="a stream without a watermark",
            action="put with_watermark(field, delay) before session_window",
        )
    return watermark.field, watermark.delay


def _window(
    graph: TopologyGraph,
    parent: Node,
    what: str,
    spec: Union[WindowSpec, SessionSpec],
    name: str,
    reserved: Sequence[str],
    clock: Clock,
) -> WindowNode:
    state = DeltaMapState(name)
    for field in parent.names:
        if field.lower() in (*reserved, WINDOW):
            raise FieldError(
                f"{what} cannot keep field {field!r}",
                expected=f"a name other than {', '.join((WINDOW, *reserved))}",
                action="give the field another name",
            )
    check_fields(state, KEYED, parent.schema, ())
    long = LongType()
    schema = StructType([*(StructField(field, long, True) for field in _OF_STATE), *parent.schema.fields])
    binding = StateBinding(state, KEYED, (SEQ,), schema, tuple(schema.names[1:]), spec, merging=LAST)
    above = parent
    if isinstance(spec, SessionSpec) or spec.unit is Unit.EVENT_TIME:
        above = PanesNode(parents=(parent,), schema=parent.schema, operation=f"panes({spec})", graph=graph)
    return WindowNode(
        parents=(above,),
        schema=schema,
        operation=f"{what}({spec})",
        binding=binding,
        mode="window",
        takes=parent.names,
        spec=spec,
        graph=graph,
        clock=clock,
    )


def windows_with_rows(warehouse: Path, names: Iterable[str]) -> set[str]:
    """Those of the states that are there already and hold the rows of a window: an older version has made them.

    Raises:
        TableError: a descriptor cannot be read.
    """
    found = set()
    for name in names:
        try:
            keys = load_descriptor(warehouse, name).keys
        except FileNotFoundError:
            continue
        if keys == (SEQ,):
            found.add(name)
    return found


def default_name(graph: TopologyGraph) -> str:
    """The topology's name, since several may share a warehouse, and which of its windows this is."""
    return f"{re.sub('[-_]+', '_', graph.name)[:80].rstrip('_')}_window{graph.windows + 1}"


@dataclass(frozen=True)
class Watermark:
    """How far a stream's time has come.

    Attributes:
        field: with the time of each row.
    """

    field: str
    node: WatermarkNode

    @property
    def delay(self) -> Any:
        return self.node.delay


def watermark_of(node: Node, known: dict[Node, Watermark | None] | None = None) -> Watermark | None:
    """The watermark of a stream; None when it never had one, or has it behind a window.

    Args:
        known: of nodes that were looked at.

    Raises:
        TopologyError: its field is no longer there, or streams with different ones met.
    """
    if isinstance(node, WatermarkNode):
        return Watermark(node.field, node)
    if node.ends_watermark:
        return None
    known = {} if known is None else known
    if node not in known:
        known[node] = _carried(node, [watermark_of(parent, known) for parent in node.parents])
    return known[node]


def _carried(node: Node, marks: Sequence[Watermark | None]) -> Watermark | None:
    found = []
    for side, mark in enumerate(marks):
        if mark is not None:
            field = node.carried(side, mark.field)
            if field is None:
                raise TopologyError(
                    f"the watermark's field {mark.field!r} is no longer there",
                    found=f"{node.operation} at {node.location}",
                    expected=f"a stream that carries {mark.field!r} on to its window",
                    action=f"keep the field, or put with_watermark behind {node.operation}",
                )
            found.append(replace(mark, field=field))
    if len({(mark.field, mark.delay) for mark in found}) > 1:
        texts = " and ".join(sorted({mark.node.operation for mark in found}))
        raise TopologyError(
            f"streams with different watermarks meet in {node.operation}",
            found=texts,
            action="put with_watermark behind it, not before",
        )
    return found[0] if found else None
