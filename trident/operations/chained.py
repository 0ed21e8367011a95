"""Aggregates per Spark partition, and several aggregates side by side (docs/semantics.md 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import TopologyError
from trident.operations.aggregates import groups_step, lower_aggregation, partial_value
from trident.operations.aggregation import Aggregation, aggregator_class, read_aggregation
from trident.operations.repartitioning import AtLeastOneOp, PlaceOp
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import GroupingNode, Node, is_source, picked
from trident.planning.operation import MARKER_FIELD, GroupingOp, Operation
from trident.planning.partition_hints import partitioner_of
from trident.planning.session_frames import SessionFrames, Transform, column_list
from trident.states.core.names import backquoted
from trident.udf.signatures import call_site
from trident.udf.types import check_distinct
from trident.workers.groups import _NOTHING, Folds
from trident.workers.lifecycle import Several

_CHAIN = "__trident_chain"
_MODES = {"native": "combine", "combiner": "combine", "reducer": "reduce", "aggregator": "aggregate"}


# --- per partition -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionAggregateNode(Node):
    """partition_aggregate: a result per Spark partition, or per group of each.

    Attributes:
        aggregation: whose outputs, behind the keys, are the fields.
    """

    repeatable = False
    per_partition = True

    aggregation: Aggregation

    @property
    def calls_user(self) -> bool:
        return self.aggregation.kind != "native"

    def carried(self, side: int, field: str) -> str | None:
        return field if field in self.aggregation.keys else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return self.aggregation.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        aggregation = self.aggregation
        mode, takes = _MODES[aggregation.kind], (*aggregation.keys, *aggregation.inputs)
        if not aggregation.keys:
            builder.narrow(builder.narrowed(takes))
            above = partitioner_of(self.parents[0])
            if not above.places_rows:
                count, marked = builder.hints.counts.get(above), (*builder.fields, MARKER_FIELD)
                if is_source(above):
                    builder.push(AtLeastOneOp(marked, count))
                else:
                    # Spark may merge and drop partitions behind its own shuffles, so there are none to keep.
                    count = 1 if above.gathers else count
                    builder.push(PlaceOp(marked, "shuffle", (), count, marked=True))
                builder.drop_marker()
        # An empty partition gives the initial value too; a group that has no row is no group.
        step = replace(
            groups_step(aggregation, self, mode, aggregation.inputs),
            always=not aggregation.keys,
        )
        builder.push_python(step, tuple(self.schema.fields), takes, batch_id=mode == "aggregate")


def partition_aggregate(parent: Node, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any) -> Node:
    """See :meth:`trident.streams.stream.Stream.partition_aggregate`."""
    aggregation = read_aggregation(parent.schema, "partition_aggregate", keys, inputs, aggregator, outputs, call_site())
    return _partition_aggregate(parent, aggregation, aggregator_class(aggregator))


def _partition_aggregate(parent: Node, aggregation: Aggregation, name: str) -> Node:
    schema = StructType([*picked(parent.schema, aggregation.keys).fields, *aggregation.outputs])
    return PartitionAggregateNode(
        parents=(parent,),
        schema=schema,
        operation=f"partition_aggregate({name})",
        location=call_site(),
        aggregation=aggregation,
    )


# --- several side by side ------------------------------------------------------------------


class AggregationChain:
    """The links of a ``chained_agg()`` so far; the graph knows of it until its end is said."""

    def __init__(self, graph: TopologyGraph, parent: Node, keys: tuple[str, ...]) -> None:
        self._graph, self._parent, self._keys = graph, parent, keys
        self._links: list[Aggregation] = []
        self._kind: str | None = None
        self._ended = False
        self._location = graph.open_chains[self] = call_site()

    def __repr__(self) -> str:
        return f"ChainedAggregation({', '.join(aggregator_class(link.aggregator) for link in self._links)})"

    def add(self, kind: str, inputs: Any, aggregator: Any, outputs: Any) -> None:
        """Adds a link of a kind, "aggregate" or "partition_aggregate"."""
        self._check_open()
        if self._kind not in (None, kind):
            raise TopologyError(
                "a chained_agg is over the batch or per Spark partition",
                found=f"{self._kind} and {kind}",
                expected="aggregate in all links, or partition_aggregate in all",
            )
        # A chain whose last link was refused is not waited for.
        self._graph.open_chains.pop(self, None)
        link = read_aggregation(self._parent.schema, kind, self._keys, inputs, aggregator, outputs, call_site())
        self._kind = kind
        self._links.append(link)
        self._graph.open_chains[self] = self._location

    def end(self) -> Node:
        """The node that all links become."""
        self._check_open()
        if not self._links:
            raise TopologyError("the chained_agg has no aggregate", expected="at least one before chain_end()")
        names = [field.name for link in self._links for field in link.outputs]
        check_distinct([*self._keys, *names], "the outputs of chained_agg")
        self._graph.open_chains.pop(self, None)
        self._ended = True
        return _chain(self._parent, self._keys, tuple(self._links), self._kind == "partition_aggregate")

    def _check_open(self) -> None:
        if self._ended:
            raise TopologyError("this chained_agg has ended already", found=repr(self), expected="one chain_end()")


def _chain(parent: Node, keys: tuple[str, ...], links: tuple[Aggregation, ...], per_partition: bool) -> Node:
    name = f"chained({', '.join(aggregator_class(link.aggregator) for link in links)})"
    outputs = tuple(field for link in links for field in link.outputs)
    schema = StructType([*picked(parent.schema, keys).fields, *outputs])
    kinds = {link.kind for link in links}
    inputs = tuple(dict.fromkeys(name for link in links for name in link.inputs))
    location = links[0].location
    if kinds == {"native"} and not per_partition:
        return NativeChainNode(
            parents=(parent,), schema=schema, operation=name, location=call_site(), keys=keys, members=links
        )
    if kinds <= {"native", "combiner"} and not per_partition:
        parts = StructType([StructField(f"f{place}", field.dataType, True) for place, field in enumerate(outputs)])
        whole = Aggregation(
            aggregator=_CombinerChain(links, inputs),
            kind="combiner",
            keys=keys,
            inputs=inputs,
            outputs=(StructField(_CHAIN, parts, True),),
            location=location,
        )
        return CombinerChainNode(
            parents=(parent,), schema=schema, operation=name, location=call_site(), keys=keys, whole=whole
        )
    whole = Aggregation(
        aggregator=_AnyChain(links, inputs),
        kind="aggregator",
        keys=keys,
        inputs=inputs,
        outputs=outputs,
        location=location,
        many=True,
    )
    if per_partition:
        return _partition_aggregate(parent, whole, name)
    return AnyChainNode(parents=(parent,), schema=schema, operation=name, location=call_site(), keys=keys, whole=whole)


# --- chains of native aggregates -----------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeChainNode(GroupingNode):
    """Several native aggregates: one aggregate of Spark."""

    members: tuple[Aggregation, ...]

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset((*self.keys, *(name for link in self.members for name in link.inputs)))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        builder.push(NativeChainOp(tuple(self.schema.fields), self.keys, self.members))


@dataclass(frozen=True)
class NativeChainOp(GroupingOp):
    """Several native aggregates by the same keys; without keys one row, also for no input."""

    links: tuple[Aggregation, ...]

    def transform(self, frames: SessionFrames) -> Transform:
        values = []
        for link in self.links:
            (output,) = link.outputs
            values.append(partial_value(link.aggregator, column_list(link.inputs), output).alias(output.name))
        keys = column_list(self.keys)
        return lambda frame, _: frame.groupBy(*keys).agg(*values)

    def describe(self) -> str:
        values = ", ".join(f"{link.aggregator!r} -> {link.outputs[0].name}" for link in self.links)
        return f"{values}{self.by_keys}"


# --- chains in Python ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinerChainNode(GroupingNode):
    """Several combiners: one combiner whose value is a struct, combined in parts before the shuffle."""

    repeatable = False
    calls_user = True

    whole: Aggregation

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return self.whole.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        keys = tuple(self.schema[name] for name in self.whole.keys)
        lower_aggregation(builder, self.whole, self, (*keys, self.whole.outputs[0]))
        kept = tuple(field for field in self.schema.fields if field.name in live)
        values = {output: f"f{place}" for place, output in enumerate(self.names[len(keys) :])}
        builder.push(ExpandOp(kept, values))


@dataclass(frozen=True)
class ExpandOp(Operation):
    """Keys, and fields of the chain's struct, as columns.

    Attributes:
        values: output → its field of the struct.
    """

    values: Mapping[str, str]

    def transform(self, frames: SessionFrames) -> Transform:
        places = {name: f"{_CHAIN}.{place}" for name, place in self.values.items()}
        columns = [F.col(places.get(field.name, backquoted(field.name))).alias(field.name) for field in self.fields]
        return lambda frame, _: frame.select(*columns)

    def describe(self) -> str:
        return f"select {', '.join(field.name for field in self.fields)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class AnyChainNode(GroupingNode):
    """Several aggregates of any kind: one aggregator that sees all rows."""

    repeatable = False
    calls_user = True

    whole: Aggregation

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return self.whole.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        lower_aggregation(builder, self.whole, self, tuple(self.schema.fields))


class _Links(Several):
    """The links with the places of their inputs among those of the chain."""

    def __init__(self, links: Sequence[Aggregation], inputs: Sequence[str]) -> None:
        self.users = self._aggregators = [link.aggregator for link in links]
        self._places = [tuple(inputs.index(name) for name in link.inputs) for link in links]


class _CombinerChain(_Links):
    """Combiners side by side; the value is a dict, as Spark's structs are in Python."""

    def init(self, *values: Any) -> dict[str, Any]:
        pairs = zip(self._aggregators, self._places)
        return _struct(aggregator.init(*[values[place] for place in places]) for aggregator, places in pairs)

    def combine(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        parts = zip(self._aggregators, a.values(), b.values())
        return _struct(aggregator.combine(one, other) for aggregator, one, other in parts)

    def zero(self) -> dict[str, Any]:
        return _struct(aggregator.zero() for aggregator in self._aggregators)


def _struct(values: Iterable[Any]) -> dict[str, Any]:
    return {f"f{place}": value for place, value in enumerate(values)}


class _AnyChain(_Links):
    """Aggregates of any kind side by side; their rows are combined in every way."""

    def __init__(self, links: Sequence[Aggregation], inputs: Sequence[str]) -> None:
        super().__init__(links, inputs)
        self._modes = [_MODES[link.kind] for link in links]
        self._several = [len(link.outputs) > 1 for link in links]
        self._many = [link.many for link in links]
        self._wide = sum(len(link.outputs) for link in links) > 1
        self._at: Any = None

    def init(self, batch_id: Any) -> list[Any]:
        # One batch at a time: the folds that its first group makes serve the others.
        if self._at is None or self._at[0] is not batch_id:
            folds = [Folds(*one, batch_id) for one in zip(self._aggregators, self._modes)]
            self._at = (batch_id, folds, [one.fold() for one in folds])
        return [_NOTHING] * len(self._aggregators)

    def aggregate(self, state: list[Any], *values: Any) -> None:
        for number, (fold, places) in enumerate(zip(self._at[2], self._places)):
            state[number] = fold(state[number], tuple(values[place] for place in places))

    def complete(self, state: list[Any]) -> Iterator[Any]:
        results = [self._rows(number, value) for number, value in enumerate(state)]
        for rows in product(*results):
            values = tuple(value for row in rows for value in row)
            yield values if self._wide else values[0]

    def _rows(self, number: int, value: Any) -> list[tuple[Any, ...]]:
        if value is _NOTHING:
            value = self._at[1][number].initial()
        several = self._several[number]
        if self._modes[number] != "aggregate":
            return [(value,)]
        found, many = self._aggregators[number].complete(value), self._many[number]
        if found is None:
            return []
        one = many is False or isinstance(found, (str, bytes, dict)) or not hasattr(found, "__iter__")
        if many is None and several and isinstance(found, tuple):
            one = True
        rows = [found] if one else list(found)
        return [tuple(row) if several else (row,) for row in rows]
