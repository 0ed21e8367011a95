"""``with_watermark``, and the watermark that a stream carries on to what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import TimestampType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.window_spec import duration_text, duration_us
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node, require_fields


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
    if micros < 0:
        raise TopologyError(f"the delay of {what} is negative", found=repr(delay), expected="'0 seconds' or more")
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
