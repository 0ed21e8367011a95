"""Tumbling and sliding windows: ``tumbling_window``, ``sliding_window`` and ``with_watermark``.

The rows that open windows still need are a state like every other: written by
the transaction that they came with, read by the next one in its turn. So a
window fires exactly once and with exactly its rows, whatever fails in between.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Union

from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.state_checks import check_fields
from trident.operations.state_writes import PersistNode
from trident.operations.window_ops import FIRED, LATE, TaggedOp, WindowOp, of_state, window_fields
from trident.operations.window_spec import Unit, WindowSpec, duration_text, duration_us, read_spec
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node, require_fields
from trident.planning.operation import Fields
from trident.states.core.binding import LAST, StateBinding
from trident.states.keyed.delta_map import KEYED, DeltaMapState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


WINDOW = "window"
# Fields of the state: the row's number, its position; and in the one row about all, numbered -1, what comes next.
SEQ, POSITION, NEXT, LATE_ROWS = "_seq", "_position", "_next", "_late"
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
    """Keeps the rows of open windows, and gives those that are fired and those that come too late.

    Attributes:
        clock: of processing time; microseconds since 1970.
    """

    ends_watermark = True

    spec: WindowSpec
    clock: Clock = now_us

    def fields_left(self, live: frozenset[str]) -> Fields:
        return window_fields(self.binding)

    def output(self, frame: "DataFrame") -> "DataFrame":
        return of_state(frame, self.binding)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = window_fields(self.binding)
        builder.push(WindowOp(fields, self.binding, self.spec, self.clock, builder.computed))


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowRowsNode(Node):
    """Rows that a WindowNode gives: those of fired windows, or late ones."""

    late = True
    fired: bool = True

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        (window,) = self.parents
        assert isinstance(window, WindowNode)
        fields = tuple(field for field in self.schema.fields if field.name in live)
        builder.push(TaggedOp(fields, FIRED if self.fired else LATE, window.spec))


def window_rows(node: WindowNode, fired: bool) -> WindowRowsNode:
    """The rows of fired windows, ``window`` before their fields; or those that came too late.

    Raises:
        TopologyError: late ones are asked for, and the windows are not of event time.
    """
    if not fired and node.spec.unit is not Unit.EVENT_TIME:
        raise TopologyError(
            f"no row is late for {node.operation}",
            found=f"windows of {node.spec.unit.value}",
            expected="windows of event time",
            action="put with_watermark(field, delay) before the window",
        )
    (parent,) = node.parents
    fields = parent.schema.fields
    if fired:
        kind = LongType() if node.spec.unit is Unit.ROWS else TimestampType()
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
    state = DeltaMapState(name)
    for field in parent.names:
        if field.lower() in (*_OF_STATE, WINDOW):
            raise FieldError(
                f"{what} cannot keep field {field!r}",
                expected=f"a name other than {', '.join((WINDOW, *_OF_STATE))}",
                action="give the field another name",
            )
    check_fields(state, KEYED, parent.schema, ())
    long = LongType()
    schema = StructType([*(StructField(field, long, True) for field in _OF_STATE), *parent.schema.fields])
    binding = StateBinding(state, KEYED, (SEQ,), schema, tuple(schema.names[1:]), spec, merging=LAST)
    return WindowNode(
        parents=(parent,),
        schema=schema,
        operation=f"{what}({spec})",
        binding=binding,
        mode="window",
        takes=parent.names,
        spec=spec,
        clock=clock,
    )


def default_name(graph: TopologyGraph) -> str:
    """The topology's name, since several may share a warehouse, and which of its windows this is."""
    number = 1 + sum(isinstance(node, WindowNode) for node in graph.nodes)
    return f"{re.sub('[-_]+', '_', graph.name)[:80].rstrip('_')}_window{number}"


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
