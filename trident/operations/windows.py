"""Tumbling, sliding and session windows, as users call for them; and ``with_watermark``.

The content of open windows is a state like every other: written by the
transaction that it came with, read by the next one in its turn. So a
window fires exactly once and with exactly its rows, whatever fails in between.
It keeps parts of the aggregates behind it where these are enough, else rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.aggregates import check_groupable
from trident.operations.persisting import check_fields
from trident.operations.window_nodes import WINDOW, Clock, PanesNode, WindowNode, WindowRowsNode, now_us
from trident.operations.window_parts import RESERVED, KeptParts, why_no_parts
from trident.operations.window_spec import (
    GREATEST,
    SessionSpec,
    Unit,
    WindowSpec,
    duration_text,
    duration_us,
    read_spec,
)
from trident.planning.nodes import Node, TopologyGraph, require_fields
from trident.planning.operation import SegmentBuilder
from trident.states.core.binding import LAST, StateBinding
from trident.states.core.descriptor import load_descriptor
from trident.states.core.names import folded
from trident.states.core.place import Place
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.workers.open_windows import LATE_ROWS, NEXT, POSITION

# ``with_watermark``, and the watermark that a stream carries on to what is behind it.


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
    if not 0 <= micros < GREATEST:
        expected = f"'0 seconds' or more, less than {duration_text(GREATEST)}"
        raise TopologyError(f"the delay of {what} is not possible", found=repr(delay), expected=expected)
    return WatermarkNode(
        parents=(parent,),
        schema=parent.schema,
        operation=f"{what}({field}, {duration_text(micros)})",
        field=field,
        delay=micros,
    )


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
                    action=f"keep the field, or put with_watermark after {node.operation}",
                )
            found.append(replace(mark, field=field))
    if len({(mark.field, mark.delay) for mark in found}) > 1:
        texts = " and ".join(sorted({mark.node.operation for mark in found}))
        raise TopologyError(
            f"streams with different watermarks meet in {node.operation}",
            found=texts,
            action="put with_watermark after it, not before",
        )
    return found[0] if found else None


# Fields of the state: the row's number, its position; and in the one row about all, numbered -1, what comes next.
SEQ = "_seq"
_OF_STATE = (SEQ, POSITION, NEXT, LATE_ROWS)


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
            found=f"{', '.join(keys) or 'no key'} after {', '.join(node.spec.keys) or 'no key'}",
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
        if folded(field) in (*reserved, WINDOW):
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


def windows_with_rows(warehouse: Place, names: Iterable[str]) -> set[str]:
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
    """The topology's name, since several may share a warehouse, and which of its windows this is.

    Stored states are found by it: sessions that are not used yet count only where their name would be given twice.
    """
    start = f"{re.sub('[-_]+', '_', graph.name)[:80].rstrip('_')}_window"
    number = 1 + sum(isinstance(node, WindowNode) for node in graph.nodes)
    while f"{start}{number}" in graph.window_names:
        number += 1
    return f"{start}{number}"
