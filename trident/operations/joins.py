"""Joins: of rows with equal keys within each batch, and of pairs with near event times over all batches.

Streams that are joined are one batch group: the rows that are compared are
those of one transaction, never of two.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, StructField, StructType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.aggregators import is_groupable
from trident.operations.guarantees import note_if_independent
from trident.operations.merging import JoinOp, named_outputs
from trident.operations.timed import TimedNode, TimedSpec, default_name, timed, watermark_required
from trident.operations.window_spec import duration_text, duration_us
from trident.planning.nodes import MultiInputNode, Node, TopologyGraph, field_names, require_fields
from trident.planning.operation import SegmentBuilder, arrow_type
from trident.states.core.names import folded
from trident.workers.timed import AT_OF, MET, ROW, WAITING, JoinWithin


class JoinType(enum.Enum):
    """One side's part in a join for a key that it has no row for."""

    INNER = "inner"
    """The key is dropped."""
    OUTER = "outer"
    """Its fields are null."""

    @staticmethod
    def mixed(*types: "JoinType") -> tuple["JoinType", ...]:
        """One type per side: ``JoinType.mixed(JoinType.INNER, JoinType.OUTER)`` is a left outer join."""
        return types


class JoinOutFieldsMode(enum.Enum):
    """The fields that a join has (Storm's names)."""

    COMPACT = "compact"
    """The keys once, then the sides' other fields in order."""
    PRESERVE = "preserve"
    """All fields of each side in order, its keys too: they are null where the side has no row."""


# The keys that a PRESERVE join compares by, which it does not give.
_COMPARED = "_compared"
_HOW = {
    "inner": (JoinType.INNER, JoinType.INNER),
    "left": (JoinType.INNER, JoinType.OUTER),
    "right": (JoinType.OUTER, JoinType.INNER),
    "full": (JoinType.OUTER, JoinType.OUTER),
}
_ALIASES = {
    "left_outer": "left",
    "leftouter": "left",
    "right_outer": "right",
    "rightouter": "right",
    "outer": "full",
    "full_outer": "full",
    "fullouter": "full",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinNode(MultiInputNode):
    """A join within the batch.

    Attributes:
        keys: of each parent the fields that are compared.
        others: of each parent its other fields.
        hidden: how many of its first fields a PRESERVE join only compares by, and does not give.
    """

    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[str, ...], ...]
    types: tuple[JoinType, ...]
    hidden: int = 0

    def carried(self, side: int, field: str) -> str | None:
        names = (*zip(self.keys[side], self.names), *zip(self.others[side], self._outputs(side)))
        return next((name for given, name in names if given == field), None)

    def _outputs(self, side: int) -> tuple[str, ...]:
        """The names behind the join of a side's other fields."""
        start = len(self.keys[0]) + sum(len(names) for names in self.others[:side])
        return self.names[start : start + len(self.others[side])]

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        found: set[str] = set()
        for side, node in enumerate(self.parents):
            if node is parent:
                found.update(self.keys[side])
                found.update(given for given, name in zip(self.others[side], self._outputs(side)) if name in live)
        return frozenset(found)

    def notes(self) -> Iterator[str]:
        return note_if_independent(self)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        others = tuple(
            tuple((given, name) for given, name in zip(self.others[side], self._outputs(side)) if name in live)
            for side in range(len(self.parents))
        )
        fields = tuple(field for field in self.schema.fields if field.name in live)
        outer = tuple(type_ is JoinType.OUTER for type_ in self.types)
        compared = tuple(self.schema.fields[: len(self.keys[0])])
        builder.push(JoinOp(fields, compared, self.keys, others, outer))


def join(
    streams: Sequence[Node],
    keys: Any,
    outputs: Any,
    type: Any,
    mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT,
) -> JoinNode:
    """See :meth:`trident.topology.TridentTopology.join`."""
    what = "join"
    if len(streams) < 2:
        raise TopologyError("join needs several streams", found="1", expected="at least 2")
    compared = _join_keys(streams, keys)
    for side, (stream, names) in enumerate(zip(streams, compared)):
        require_fields(names, stream.schema, f"{what}, stream {side + 1},")
        for name, base in zip(names, compared[0]):
            wanted, found = streams[0].schema[base].dataType, stream.schema[name].dataType
            if not is_groupable(found):
                raise TopologyError(
                    f"join cannot compare field {name!r}",
                    found=found.simpleString(),
                    expected="a type that can be compared",
                )
            if found != wanted:
                raise FieldError(
                    f"join: key {name!r} of stream {side + 1} has another type than {base!r} of the first",
                    found=found.simpleString(),
                    expected=wanted.simpleString(),
                    action="cast one of them before the join",
                )
    if not isinstance(mode, JoinOutFieldsMode):
        raise TopologyError(
            "join does not know the mode",
            found=repr(mode),
            expected="JoinOutFieldsMode.COMPACT or JoinOutFieldsMode.PRESERVE",
        )
    preserve = mode is JoinOutFieldsMode.PRESERVE
    others = tuple(
        tuple(name for name in stream.names if preserve or name not in names)
        for stream, names in zip(streams, compared)
    )
    kinds = [streams[0].schema[name].dataType for name in compared[0]]
    kinds += [stream.schema[name].dataType for stream, names in zip(streams, others) for name in names]
    given = [*compared[0], *(name for names in others for name in names)]
    if preserve:
        count = len(compared[0])
        shown = _join_outputs(given[count:], kinds[count:], outputs)
        prefix = _COMPARED
        while any(folded(name).startswith(prefix) for name in shown):
            prefix += "_"
        hidden = [f"{prefix}{place}" for place in range(count)]
        joined: Sequence[str] = [*hidden, *shown]
    else:
        joined = _join_outputs(given, kinds, outputs)
    schema = StructType([StructField(name, kind, True) for name, kind in zip(joined, kinds)])
    return JoinNode(
        parents=tuple(streams),
        schema=schema,
        operation=f"join({', '.join(compared[0])})",
        keys=compared,
        others=others,
        types=_join_types(type, len(streams)),
        hidden=len(compared[0]) if preserve else 0,
    )


def _join_keys(streams: Sequence[Node], keys: Any) -> tuple[tuple[str, ...], ...]:
    """The keys of each side: one choice of fields for all, or one for each."""
    several = (
        isinstance(keys, (list, tuple))
        and len(keys) == len(streams)
        and (
            any(not isinstance(one, str) or "," in one for one in keys)
            or len(set(keys)) < len(keys)
            # Plain names are one for each side only where they can mean nothing else.
            or all(
                (name in stream.names) is (own == side)
                for own, name in enumerate(keys)
                for side, stream in enumerate(streams)
            )
        )
    )
    if not keys:
        raise FieldError("join has no keys", found=repr(keys), expected="at least one field that is compared")
    sides = [field_names(one, "join") for one in keys] if several else [field_names(keys, "join")] * len(streams)
    counts = {len(names) for names in sides}
    if len(counts) != 1:
        raise FieldError(
            "join: the sides have keys of different lengths", found=repr(keys), expected="as many fields for each side"
        )
    return tuple(sides)


def _join_outputs(given: Sequence[str], kinds: Sequence[DataType], outputs: Any) -> Sequence[str]:
    if outputs is not None:
        return named_outputs(outputs, kinds, given, "join")
    seen: set[str] = set()
    for name in given:
        if folded(name) in seen:
            raise FieldError(
                "join would give two fields of one name",
                found=repr(name),
                expected="outputs that name the fields",
                action=f"give outputs={', '.join(given)!r} with other names; or rename the field before the join",
            )
        seen.add(folded(name))
    return given


def _join_types(type: Any, count: int) -> tuple[JoinType, ...]:
    if isinstance(type, str):
        how = type.lower()
        found = _HOW.get(_ALIASES.get(how, how))
        if found is not None and (count == 2 or len(set(found)) == 1):
            return found if count == 2 else (found[0],) * count
    elif isinstance(type, JoinType):
        return (type,) * count
    elif isinstance(type, (list, tuple)) and len(type) == count and all(isinstance(one, JoinType) for one in type):
        return tuple(type)
    raise TopologyError(
        "join does not know the type",
        found=repr(type),
        expected="JoinType.INNER, JoinType.OUTER, one of them per stream as JoinType.mixed(…); or "
        "'inner', 'left', 'right', 'full' of two streams",
    )


# A join with a time bound: pairs of rows with equal keys whose event times are near, found over all batches.


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
