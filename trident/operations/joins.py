"""Streams that meet within a batch: merge, join, multi_reduce (docs/semantics.md 4).

Streams that meet are one batch group: the rows that meet are those of one
transaction, never of two.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union, runtime_checkable

from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.operations.aggregates import lower_aggregation
from trident.operations.aggregation import Aggregation
from trident.operations.aggregators import is_groupable
from trident.operations.join_ops import JoinOp, TaggedUnionOp, UnionOp
from trident.operations.same_batch import note_if_independent, warn_if_independent
from trident.planning.basic_operations import ONLY_BRANCH
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import MultiInputNode, Node, field_names, picked, require_fields
from trident.planning.operation import ANCHORS_FIELD
from trident.udf.signatures import (
    call_site,
    check_arity,
    check_lifecycle,
    check_serialisable,
    describe,
    resolve_outputs,
)
from trident.udf.types import check_distinct, parse_outputs
from trident.workers.anchors import ANCHORS

if TYPE_CHECKING:
    from trident.streams.stream import GroupedStream, Stream

_INDEX = "__trident_stream"
_SIDE = "__trident_side"


# --- merge -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeNode(MultiInputNode):
    """The rows of several streams.

    Attributes:
        sides: of each parent the fields, in the order of this node's.
    """

    passes_anchors = True

    sides: tuple[tuple[str, ...], ...]

    def carried(self, side: int, field: str) -> str | None:
        return next((name for name, given in zip(self.names, self.sides[side]) if given == field), None)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        found = {
            given
            for side, names in zip(self.parents, self.sides)
            if side is parent
            for name, given in zip(self.names, names)
            if name in live
        }
        return frozenset(found)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = [name for name in self.names if name in live]
        places = [self.names.index(name) for name in kept]
        sides = tuple(tuple(names[place] for place in places) for names in self.sides)
        fields = tuple(self.schema[name] for name in kept)
        if ANCHORS not in live:
            builder.push(UnionOp(fields, sides))
            return
        # A side without messages of its own has rows without anchors.
        branches = tuple(
            builder.branches.get((self, side), ONLY_BRANCH) if any(field.name == ANCHORS for field in given) else None
            for side, given in enumerate(builder.inputs)
        )
        builder.push(UnionOp((*fields, ANCHORS_FIELD), sides, branches))


def merge(graph: TopologyGraph, streams: Sequence["Stream"], outputs: Any = None) -> "Stream":
    """See :meth:`trident.streams.topology.TridentTopology.merge`."""
    from trident.streams.stream import Stream

    _check_streams(graph, streams, "merge", Stream)
    first = streams[0].schema
    if outputs is None:
        names = first.names
        sides = [_by_name(first, stream, number) for number, stream in enumerate(streams)]
    else:
        names = _named(outputs, [field.dataType for field in first.fields], first.names, "merge")
        sides = [_by_position(names, stream, number) for number, stream in enumerate(streams)]
    for number, (stream, side) in enumerate(zip(streams, sides)):
        for name, given, base in zip(names, side, sides[0]):
            if stream.schema[given].dataType != first[base].dataType:
                raise FieldError(
                    f"merge: field {name!r} has two types",
                    found=f"{stream.schema[given].dataType.simpleString()} in stream {number + 1}",
                    expected=f"{first[base].dataType.simpleString()}, as in the first stream",
                    action=f"cast it in one of them, as in with_column({given!r}, "
                    f"F.col({given!r}).cast({first[base].dataType.simpleString()!r}))",
                )
    fields = [StructField(name, first[base].dataType, True) for name, base in zip(names, sides[0])]
    node = MergeNode(
        parents=tuple(stream._node for stream in streams),
        schema=StructType(fields),
        operation="merge",
        location=call_site(),
        sides=tuple(sides),
    )
    graph.add(node)
    return Stream(graph, node)


def _by_name(first: StructType, stream: "Stream", number: int) -> tuple[str, ...]:
    if set(stream.fields) != set(first.names):
        missing = [name for name in first.names if name not in stream.fields]
        more = [name for name in stream.fields if name not in first.names]
        raise FieldError(
            "merge: the streams have other fields",
            found=f"stream {number + 1} has {', '.join(stream.fields)}"
            + (f"; it lacks {', '.join(missing)}" if missing else "")
            + (f"; only it has {', '.join(more)}" if more else ""),
            expected=f"{', '.join(first.names)}, as the first stream",
            action="use project, rename or map before the merge; or name the outputs: then fields go by their position",
        )
    return tuple(first.names)


def _by_position(names: Sequence[str], stream: "Stream", number: int) -> tuple[str, ...]:
    if len(stream.fields) != len(names):
        raise FieldError(
            "merge: a stream has another number of fields than there are outputs",
            found=f"stream {number + 1} has {', '.join(stream.fields)}",
            expected=f"{len(names)}: {', '.join(names)}",
        )
    return stream.fields


# --- join --------------------------------------------------------------------------------


class JoinType(enum.Enum):
    """What one side of a join does for a key that it has no row for."""

    INNER = "inner"
    """The key is dropped."""
    OUTER = "outer"
    """Its fields are null."""

    @staticmethod
    def mixed(*types: "JoinType") -> tuple["JoinType", ...]:
        """One type per side: ``JoinType.mixed(JoinType.INNER, JoinType.OUTER)`` is a left outer join."""
        return types


class JoinOutFieldsMode(enum.Enum):
    """Which fields a join has (Storm's names)."""

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
        types: of each parent.
    """

    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[str, ...], ...]
    types: tuple[JoinType, ...]

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
        builder.push(JoinOp(fields, self.names[: len(self.keys[0])], self.keys, others, outer))


def join(
    graph: TopologyGraph,
    streams: Sequence["Stream"],
    keys: Any,
    outputs: Any,
    type: Any,
    mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT,
) -> "Stream":
    """See :meth:`trident.streams.topology.TridentTopology.join`."""
    from trident.streams.stream import Stream

    what = "join"
    _check_streams(graph, streams, what, Stream)
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
        tuple(name for name in stream.fields if preserve or name not in names)
        for stream, names in zip(streams, compared)
    )
    kinds = [streams[0].schema[name].dataType for name in compared[0]]
    kinds += [stream.schema[name].dataType for stream, names in zip(streams, others) for name in names]
    given = [*compared[0], *(name for names in others for name in names)]
    if preserve:
        count = len(compared[0])
        shown = _join_outputs(given[count:], kinds[count:], outputs)
        prefix = _COMPARED
        while any(name.lower().startswith(prefix) for name in shown):
            prefix += "_"
        hidden = [f"{prefix}{place}" for place in range(count)]
        names: Sequence[str] = [*hidden, *shown]
    else:
        names = _join_outputs(given, kinds, outputs)
    schema = StructType([StructField(name, kind, True) for name, kind in zip(names, kinds)])
    node = JoinNode(
        parents=tuple(stream._node for stream in streams),
        schema=schema,
        operation=f"join({', '.join(compared[0])})",
        location=call_site(),
        keys=compared,
        others=others,
        types=_join_types(type, len(streams)),
    )
    graph.add(node)
    warn_if_independent(node, node.operation)
    joined = Stream(graph, node)
    return joined.project(*[[name] for name in shown]) if preserve else joined


def _join_keys(streams: Sequence["Stream"], keys: Any) -> tuple[tuple[str, ...], ...]:
    """The keys of each side: one choice of fields for all, or one for each."""
    several = (
        isinstance(keys, (list, tuple))
        and len(keys) == len(streams)
        and (
            any(not isinstance(one, str) or "," in one for one in keys)
            or len(set(keys)) < len(keys)
            # Plain names are one for each side only where they can mean nothing else.
            or all(
                (name in stream.fields) is (own == side)
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


def _named(outputs: Any, kinds: Sequence[DataType], given: Sequence[str], what: str) -> list[str]:
    """The names of outputs, whose types, where they are given, are those that there are."""
    named = parse_outputs(outputs)
    if len(named) != len(given):
        raise FieldError(
            f"{what} has another number of outputs than fields",
            found=f"{len(named)}: {', '.join(name for name, _ in named)}",
            expected=f"{len(given)}, for {', '.join(given)}",
        )
    for (name, wanted), kind in zip(named, kinds):
        if wanted is not None and wanted != kind:
            raise OutputTypeError(
                f"output {name!r} of {what} has another type",
                found=kind.simpleString(),
                expected=wanted.simpleString(),
                action="leave the type out",
            )
    return [name for name, _ in named]


def _join_outputs(given: Sequence[str], kinds: Sequence[DataType], outputs: Any) -> Sequence[str]:
    if outputs is not None:
        return _named(outputs, kinds, given, "join")
    seen: set[str] = set()
    for name in given:
        if name.lower() in seen:
            raise FieldError(
                "join would give two fields of one name",
                found=repr(name),
                expected="outputs that name the fields",
                action=f"give outputs={', '.join(given)!r} with other names; or rename the field before the join",
            )
        seen.add(name.lower())
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


# --- multi_reduce ------------------------------------------------------------------------


@runtime_checkable
class MultiReducer(Protocol):
    """Sees the rows of several streams of a batch, of one group or all (docs/semantics.md 4)."""

    def init(self, batch_id: Any) -> Any:
        """The state before the first row; batch_id is the TransactionAttempt."""

    def execute(self, state: Any, stream_index: int, *values: Any) -> Any:
        """The state after a row, or None when it was changed in place.

        Args:
            state: so far.
            stream_index: which of the streams the row is of, from 0.
            values: the inputs of that stream.
        """

    def complete(self, state: Any) -> Any:
        """The results: as what a function of ``each`` returns."""


class _AsAggregator:
    """A MultiReducer over rows that hold the values of one of the streams."""

    def __init__(self, reducer: Any, names: Sequence[Sequence[str]]) -> None:
        self._reducer, self._names = reducer, [tuple(side) for side in names]
        for hook in ("prepare", "cleanup"):
            if callable(getattr(reducer, hook, None)):
                setattr(self, hook, getattr(reducer, hook))

    def init(self, batch_id: Any) -> Any:
        return self._reducer.init(batch_id)

    def aggregate(self, state: Any, index: int, *sides: Any) -> Any:
        values = sides[index]
        return self._reducer.execute(state, index, *[values[name] for name in self._names[index]])

    def complete(self, state: Any) -> Any:
        return self._reducer.complete(state)


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiReduceNode(MultiInputNode):
    """multi_reduce.

    Attributes:
        keys: of each parent the grouping fields; empty ones for the whole batch.
        inputs: of each parent the fields that the reducer is given.
        reduces: the reducer, over the rows of all.
    """

    repeatable = False
    calls_user = True

    keys: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]
    reduces: Aggregation

    @property
    def gathers(self) -> bool:
        return not self.keys[0]

    def carried(self, side: int, field: str) -> str | None:
        return self.names[self.keys[side].index(field)] if field in self.keys[side] else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(
            name
            for side, node in enumerate(self.parents)
            if node is parent
            for name in (*self.keys[side], *self.inputs[side])
        )

    def notes(self) -> Iterator[str]:
        return note_if_independent(self)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        keys = [self.parents[0].schema[name] for name in self.keys[0]]
        sides = [
            StructField(f"{_SIDE}{number}", picked(node.schema, names), True)
            for number, (node, names) in enumerate(zip(self.parents, self.inputs))
        ]
        fields = (*keys, StructField(_INDEX, IntegerType(), False), *sides)
        builder.push(TaggedUnionOp(fields, self.keys, self.inputs))
        lower_aggregation(builder, self.reduces, self, tuple(self.schema.fields))


def multi_reduce(
    graph: TopologyGraph,
    streams: Sequence[Union["Stream", "GroupedStream"]],
    inputs: Any,
    reducer: Any,
    outputs: Any,
) -> "Stream":
    """See :meth:`trident.streams.topology.TridentTopology.multi_reduce`."""
    from trident.streams.stream import GroupedStream, Stream

    what = "multi_reduce"
    grouped = [isinstance(stream, GroupedStream) for stream in streams]
    if any(grouped) and not all(grouped):
        raise TopologyError(f"{what}: some of the streams are grouped and others not", expected="all of them, or none")
    plain: list[Stream] = [stream._stream if isinstance(stream, GroupedStream) else stream for stream in streams]
    _check_streams(graph, plain, what, Stream)
    keys = tuple(stream.keys if isinstance(stream, GroupedStream) else () for stream in streams)
    _check_group_keys(plain, keys)
    taken = _multi_inputs(plain, keys, inputs)
    aggregation, fields = _reduces(reducer, taken, keys, outputs, what)
    schema = StructType([*picked(plain[0].schema, keys[0]).fields, *fields])
    check_distinct(schema.names, f"the keys and outputs of {what}")
    node = MultiReduceNode(
        parents=tuple(stream._node for stream in plain),
        schema=schema,
        operation=f"{what}({type(reducer).__name__})",
        location=call_site(),
        keys=keys,
        inputs=taken,
        reduces=aggregation,
    )
    graph.add(node)
    warn_if_independent(node, node.operation)
    return Stream(graph, node)


def _check_group_keys(streams: Sequence["Stream"], keys: Sequence[tuple[str, ...]]) -> None:
    kinds = [[stream.schema[name].dataType for name in names] for stream, names in zip(streams, keys)]
    for side, found in enumerate(kinds):
        if found != kinds[0]:
            raise FieldError(
                "multi_reduce: the streams are grouped by fields of other types",
                found=f"stream {side + 1}: " + ", ".join(kind.simpleString() for kind in found),
                expected=", ".join(kind.simpleString() for kind in kinds[0]) + ", as the first",
            )


def _multi_inputs(
    streams: Sequence["Stream"], keys: Sequence[tuple[str, ...]], inputs: Any
) -> tuple[tuple[str, ...], ...]:
    if inputs is None:
        return tuple(tuple(n for n in s.fields if n not in names) or s.fields for s, names in zip(streams, keys))
    if isinstance(inputs, str) or len(inputs) != len(streams):
        raise FieldError(
            "multi_reduce takes the inputs of each stream",
            found=repr(inputs),
            expected=f"a list of {len(streams)}, as in ['a, b', 'c']",
        )
    taken = tuple(field_names(one, "multi_reduce") for one in inputs)
    for side, (stream, names) in enumerate(zip(streams, taken)):
        require_fields(names, stream.schema, f"multi_reduce, stream {side + 1},")
    return taken


def _reduces(
    reducer: Any, taken: Sequence[Sequence[str]], keys: Sequence[tuple[str, ...]], outputs: Any, what: str
) -> tuple[Aggregation, list[StructField]]:
    if isinstance(reducer, type) or not isinstance(reducer, MultiReducer):
        raise TopologyError(
            f"{what} needs a multi-reducer",
            found=repr(reducer),
            expected="an object with init(batch_id), execute(state, stream_index, *values) and complete(state)",
        )
    check_arity(reducer.init, 0, f"init of {what}", ("the batch id",))
    for names in taken:
        check_arity(reducer.execute, len(names), f"execute of {what}", ("the state", "the stream's index"))
    check_arity(reducer.complete, 0, f"complete of {what}", ("the state",))
    check_serialisable(reducer, what)
    check_lifecycle(reducer, what)
    described = describe(reducer.complete, what, call_site())
    found, many = resolve_outputs("each", described, parse_outputs(outputs), what)
    if not found:
        raise OutputTypeError(f"{what} has no outputs", expected="the fields that complete() gives")
    fields = [StructField(name, kind, True) for name, kind in found]
    sides = tuple(f"{_SIDE}{number}" for number in range(len(taken)))
    aggregation = Aggregation(
        aggregator=_AsAggregator(reducer, taken),
        kind="aggregator",
        keys=keys[0],
        inputs=(_INDEX, *sides),
        outputs=tuple(fields),
        location=described.location,
        many=many,
    )
    return aggregation, fields


# --- all of them -------------------------------------------------------------------------


def _check_streams(graph: TopologyGraph, streams: Sequence[Any], what: str, cls: Callable[..., Any]) -> None:
    if not streams:
        raise TopologyError(f"{what} has no streams", expected="at least one")
    for stream in streams:
        if not isinstance(stream, cls):  # type: ignore[arg-type]
            raise TopologyError(f"{what} takes streams", found=repr(stream), expected="a Stream of this topology")
        if stream._graph is not graph:
            raise TopologyError(
                f"{what}: the streams are of two topologies",
                found=f"one of {stream._graph.name!r} and one of {graph.name!r}",
                expected="streams of one topology: they meet within a transaction",
                action="read the other topology's table with a DeltaSpout",
            )
