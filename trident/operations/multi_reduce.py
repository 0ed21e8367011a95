"""multi_reduce: one reducer over the rows of several streams, within each batch (docs/semantics.md 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pyspark.sql.types import IntegerType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.operations.aggregates import Aggregation, lower_aggregation
from trident.operations.guarantees import note_if_independent
from trident.operations.merging import TaggedUnionOp
from trident.planning.nodes import MultiInputNode, Node, field_names, picked, require_fields
from trident.planning.operation import SegmentBuilder
from trident.udf.signatures import call_site, check_arity, check_for_workers, describe, resolve_outputs
from trident.udf.types import check_distinct, parse_outputs
from trident.workers.groups import AsAggregator

_INDEX = "__trident_stream"
_SIDE = "__trident_side"


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
    streams: Sequence[Node],
    keys: tuple[tuple[str, ...], ...],
    inputs: Any,
    reducer: Any,
    outputs: Any,
) -> MultiReduceNode:
    """See :meth:`trident.topology.TridentTopology.multi_reduce`."""
    what = "multi_reduce"
    _check_group_keys(streams, keys)
    taken = _multi_inputs(streams, keys, inputs)
    aggregation, fields = _reduces(reducer, taken, keys, outputs, what)
    schema = StructType([*picked(streams[0].schema, keys[0]).fields, *fields])
    check_distinct(schema.names, f"the keys and outputs of {what}")
    return MultiReduceNode(
        parents=tuple(streams),
        schema=schema,
        operation=f"{what}({type(reducer).__name__})",
        keys=keys,
        inputs=taken,
        reduces=aggregation,
    )


def _check_group_keys(streams: Sequence[Node], keys: Sequence[tuple[str, ...]]) -> None:
    kinds = [[stream.schema[name].dataType for name in names] for stream, names in zip(streams, keys)]
    for side, found in enumerate(kinds):
        if found != kinds[0]:
            raise FieldError(
                "multi_reduce: the streams are grouped by fields of other types",
                found=f"stream {side + 1}: " + ", ".join(kind.simpleString() for kind in found),
                expected=", ".join(kind.simpleString() for kind in kinds[0]) + ", as the first",
            )


def _multi_inputs(streams: Sequence[Node], keys: Sequence[tuple[str, ...]], inputs: Any) -> tuple[tuple[str, ...], ...]:
    if inputs is None:
        return tuple(tuple(n for n in s.names if n not in names) or s.names for s, names in zip(streams, keys))
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
    check_arity(reducer.init, 0, f"init of {what}", ("the batch id",), yields=False)
    for names in taken:
        check_arity(
            reducer.execute, len(names), f"execute of {what}", ("the state", "the stream's index"), yields=False
        )
    check_arity(reducer.complete, 0, f"complete of {what}", ("the state",))
    check_for_workers(reducer, what)
    described = describe(reducer.complete, what, call_site())
    found, many = resolve_outputs("each", described, parse_outputs(outputs), what)
    if not found:
        raise OutputTypeError(f"{what} has no outputs", expected="the fields that complete() gives")
    fields = [StructField(name, kind, True) for name, kind in found]
    sides = tuple(f"{_SIDE}{number}" for number in range(len(taken)))
    aggregation = Aggregation(
        aggregator=AsAggregator(reducer, taken),
        kind="aggregator",
        keys=keys[0],
        inputs=(_INDEX, *sides),
        outputs=tuple(fields),
        location=described.location,
        many=many,
    )
    return aggregation, fields
