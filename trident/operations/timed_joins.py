"""A join with a time bound: pairs of rows with equal keys whose event times are near, found over all batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import ArrayType, BooleanType, LongType, StructField, StructType

from trident.coordinators.errors import TopologyError
from trident.operations.joins import JoinOutFieldsMode, join
from trident.operations.timed import TimedNode, default_name, timed, watermark_required
from trident.operations.timed_spec import TimedSpec
from trident.operations.window_spec import duration_text, duration_us
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node
from trident.planning.operation import arrow_type
from trident.workers.timed_join import AT_OF, MET, ROW, WAITING, JoinWithin

KIND = "join"


def join_within(
    graph: TopologyGraph,
    streams: Sequence[Node],
    on: Any,
    how: Any,
    outputs: Any,
    mode: JoinOutFieldsMode,
    within: Any,
    name: Any,
) -> TimedNode:
    """See :meth:`trident.streams.stream.Stream.join`."""
    what = "join within a time"
    if mode is not JoinOutFieldsMode.COMPACT:
        raise TopologyError(f"{what} gives the keys once", found=repr(mode), expected="JoinOutFieldsMode.COMPACT")
    # The checks of keys, types and outputs, and the fields, are those of a join in a batch.
    plain = join(streams, on, outputs, how, mode)
    lower, upper = _bounds(within, what)
    marks = [watermark_required(stream, what, "it tells when no partner can come any more") for stream in streams]
    gives = [(-1, place) for place in range(len(plain.keys[0]))]
    gives += [(side, stream.names.index(name)) for side, stream in enumerate(streams) for name in plain.others[side]]
    outer = tuple(other.value == "outer" for other in reversed(plain.types))
    text = f"{KIND}({', '.join(plain.keys[0])} {_how(outer)} within {_text(lower, upper)})"
    of = ", ".join(f"{mark.field} delayed by {mark.delay} us" for mark in marks)
    spec = TimedSpec(
        f"join({_how(outer)}, {lower} to {upper} us, of {of})",
        tuple(mark.field for mark in marks),
        tuple(mark.delay for mark in marks),
    )
    waiting = [_waiting(stream.schema) for stream in streams]
    lists = (arrow_type(waiting[0]), arrow_type(waiting[1]))

    def rule(node: TimedNode) -> JoinWithin:
        given = arrow_type(node.given)
        return JoinWithin(lower, upper, (outer[0], outer[1]), lists, tuple(gives), node.keys, given)

    return timed(
        streams,
        what,
        text,
        plain.keys,
        spec,
        [StructField(column, kind, True) for column, kind in zip(WAITING, waiting)],
        default_name(graph, KIND) if name is None else name,
        given=plain.schema,
        rule=rule,
    )


def _waiting(schema: StructType) -> ArrayType:
    row = StructType([StructField(field.name, field.dataType, True) for field in schema.fields])
    fields = [StructField(AT_OF, LongType(), True), StructField(MET, BooleanType(), True), StructField(ROW, row, True)]
    return ArrayType(StructType(fields), True)


def _bounds(within: Any, what: str) -> tuple[int, int]:
    """Lower and upper bound of right − left; microseconds."""
    if isinstance(within, (tuple, list)) and len(within) == 2:
        lower, upper = (duration_us(one, f"within of {what}") for one in within)
    else:
        upper = duration_us(within, f"within of {what}")
        lower = -upper
    if lower > upper:
        raise TopologyError(
            f"within of {what} holds no time",
            found=repr(within),
            expected="a duration such as '10 minutes', or two, the lower one first: ('-5 minutes', '1 hour')",
        )
    return lower, upper


def _how(outer: Sequence[bool]) -> str:
    left, right = outer
    return ("full" if right else "left") if left else ("right" if right else "inner")


def _text(lower: int, upper: int) -> str:
    if lower == -upper:
        return duration_text(upper)
    return " to ".join(f"-{duration_text(-one)}" if one < 0 else duration_text(one) for one in (lower, upper))
