"""Aggregates per Spark partition, and several aggregates side by side (docs/semantics.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import TopologyError
from trident.operations.aggregates import (
    Aggregation,
    aggregated,
    aggregator_class,
    groups_step,
    lower_aggregation,
    partial_value,
    read_aggregation,
)
from trident.operations.repartitioning import AtLeastOneOp, PlaceOp
from trident.planning.lowering import partitioner_of
from trident.planning.nodes import GroupingNode, Node, TopologyGraph, is_source, picked
from trident.planning.operation import MARKER_FIELD, GroupingOp, Operation, PyOp, SegmentBuilder, arrow_op, names_of
from trident.planning.session_frames import SessionFrames, Transform, column_list
from trident.states.core.names import backquoted
from trident.udf.signatures import call_site
from trident.udf.types import check_distinct
from trident.workers.arrow_plan import Expanded
from trident.workers.groups import MODES, AnyChain, CombinerChain

CHAIN = "__trident_chain"


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
        mode, takes = MODES[aggregation.kind], (*aggregation.keys, *aggregation.inputs)
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
        step = replace(groups_step(aggregation, self, mode, aggregation.inputs), always=not aggregation.keys)
        builder.push_python(step, tuple(self.schema.fields), takes, batch_id=mode == "aggregate")


def partition_aggregate(parent: Node, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any) -> Node:
    """See :meth:`trident.streams.stream.Stream.partition_aggregate`."""
    aggregation = read_aggregation(parent.schema, "partition_aggregate", keys, inputs, aggregator, outputs, call_site())
    return _partition_aggregate(parent, aggregation, aggregator_class(aggregator))


def _partition_aggregate(parent: Node, aggregation: Aggregation, name: str) -> Node:
    schema = StructType([*picked(parent.schema, aggregation.keys).fields, *aggregation.outputs])
    operation = f"partition_aggregate({name})"
    return PartitionAggregateNode(parents=(parent,), schema=schema, operation=operation, aggregation=aggregation)


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
    about: dict[str, Any] = {"parents": (parent,), "schema": schema, "operation": name, "keys": keys}
    kinds = {link.kind for link in links}
    inputs = tuple(dict.fromkeys(name for link in links for name in link.inputs))
    arguments: dict[str, Any] = {"keys": keys, "inputs": inputs, "location": links[0].location}
    if kinds == {"native"} and not per_partition:
        return NativeChainNode(**about, members=links)
    if kinds <= {"native", "combiner"} and not per_partition:
        parts = StructType([StructField(f"f{place}", field.dataType, True) for place, field in enumerate(outputs)])
        made = (StructField(CHAIN, parts, True),)
        whole = Aggregation(aggregator=CombinerChain(links, inputs), kind="combiner", outputs=made, **arguments)
        return CombinerChainNode(**about, whole=whole)
    whole = Aggregation(aggregator=AnyChain(links, inputs), kind="aggregator", outputs=outputs, many=True, **arguments)
    return _partition_aggregate(parent, whole, name) if per_partition else AnyChainNode(**about, whole=whole)


# --- chains of native aggregates -----------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeChainNode(GroupingNode):
    """Several native aggregates: one aggregate of Spark."""

    members: tuple[Aggregation, ...]

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset((*self.keys, *(name for link in self.members for name in link.inputs)))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if not self.parents[0].aggregates_for(self):
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
        return frames.aggregate(self.keys, *values)

    @property
    def on_arrow(self) -> PyOp | None:
        keys = tuple(field for field in self.fields if field.name in self.keys)
        if len(keys) + len(self.links) != len(self.fields):
            return None  # anchors go on
        return aggregated(
            self.fields, self.keys, [(one.inputs, *one.outputs, one.aggregator) for one in self.links], False
        )

    def describe(self) -> str:
        values = ", ".join(f"{link.aggregator!r} -> {link.outputs[0].name}" for link in self.links)
        return f"{values}{self.by_keys}"


# --- chains in Python ----------------------------------------------------------------------


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


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinerChainNode(AnyChainNode):
    """Several combiners: one combiner whose value is a struct, combined in parts before the shuffle."""

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
        places = {name: f"{CHAIN}.{place}" for name, place in self.values.items()}
        columns = [F.col(places.get(field.name, backquoted(field.name))).alias(field.name) for field in self.fields]
        return frames.select(columns)

    @property
    def on_arrow(self) -> PyOp | None:
        names = names_of(self.fields)
        values = tuple((name, place) for name, place in self.values.items() if name in names)
        kept = tuple(name for name in names if name not in self.values)
        return arrow_op(self.fields, Expanded(names, CHAIN, values), (*kept, CHAIN))

    def describe(self) -> str:
        return f"select {', '.join(field.name for field in self.fields)}"
