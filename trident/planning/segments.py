"""A lowered group: segments of operations between anchors and targets, pure and without a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trident.planning.nodes import Node, SourceNode, is_source
from trident.planning.operation import Fields, Operation, PyOp


@dataclass(frozen=True)
class Segment:
    """The operations from an anchor to a target.

    Attributes:
        anchors: a source, a shared node or one that meets others; several where the first operation joins them.
        target: a state's node, a shared node, one that meets others or a dangling end.
    """

    anchors: tuple[Node, ...]
    target: Node
    ops: tuple[Operation, ...]
    fields: Fields

    @cached_property
    def steps(self) -> tuple[PyOp, ...] | None:
        """Its operations as steps over Arrow; None where one of them is left to Spark."""
        steps = [op.on_arrow for op in self.ops]
        return tuple(step for step in steps if step is not None) if None not in steps else None

    @cached_property
    def on_copies(self) -> Segment:
        """For few rows in one Spark partition: one pass where it looks a state up in its copy, else as it is."""
        steps = [op.on_arrow for op in self.ops]
        if not any(step is not None and step.looks_up for step in steps):
            return self
        # Spark gives an empty batch no partition: an operation that gives rows for it stays with Spark.
        if self.steps is not None and len(self.anchors) == 1 and not any(op.gives_rows_for_none for op in self.ops):
            return replace(self, ops=self.steps)
        kept = (step if step is not None and step.looks_up else op for step, op in zip(steps, self.ops, strict=True))
        return replace(self, ops=tuple(kept))


@dataclass(frozen=True)
class Boundary:
    """Rows that are staged early and read late.

    Attributes:
        name: under which they are staged; of a state's own rows the state's name.
        own: whether a folder of its own is needed: not for a state's own rows.
    """

    name: str
    fields: Fields
    own: bool


@dataclass(frozen=True)
class Lowered:
    """A group's segments; those of shared nodes come before their users.

    Attributes:
        segments: in the order in which they are built.
        shared: nodes that several branches use.
        checkpointed: those of them that must be computed once.
        boundaries: nodes whose rows are staged for late segments, with the name they are staged under.
        late_segments: those that run in the transaction's turn, in order.
        single_use: nodes that one operation with several parents uses.
        source_partitions: source → the Spark partitions that its batches are given, where a hint says so.
        anchored: sources whose batches must have anchors: something behind them may fail for a row.
    """

    segments: tuple[Segment, ...]
    shared: frozenset[Node] = frozenset()
    checkpointed: frozenset[Node] = frozenset()
    boundaries: Mapping[Node, Boundary] = field(default_factory=dict)
    late_segments: tuple[Segment, ...] = ()
    single_use: frozenset[Node] = frozenset()
    source_partitions: Mapping[Node, int] = field(default_factory=dict)
    anchored: frozenset[SourceNode] = frozenset()

    @property
    def late_order(self) -> bool:
        """Tells whether something late depends on the order of the batch's rows."""
        return any(op.needs_order for op in self._late_ops)

    @property
    def late_gives_rows_for_none(self) -> bool:
        """Tells whether something late emits rows for an empty batch, as an aggregate over the batch does."""
        return any(op.gives_rows_for_none for op in self._late_ops)

    @property
    def depends_on_partitions(self) -> bool:
        """Tells whether less needs to be done for a batch in one Spark partition."""
        return any(op.no_op_on_one_partition for segment in self.segments for op in segment.ops)

    @property
    def sources(self) -> Iterator[SourceNode]:
        """Where early segments begin; one that several begin at as often."""
        return (anchor for segment in self.segments for anchor in segment.anchors if is_source(anchor))

    @property
    def staged_boundaries(self) -> dict[str, Fields]:
        """The boundaries that have a folder of their own: name → fields."""
        return {boundary.name: boundary.fields for boundary in self.boundaries.values() if boundary.own}

    @cached_property
    def late_on_copies(self) -> tuple[Segment, ...]:
        """The late segments with states looked up in their local copies; as they are where no state is."""
        return tuple(segment.on_copies for segment in self.late_segments)

    @cached_property
    def copied_states(self) -> frozenset[str]:
        """The states that are looked up in their local copies; none where no copy would be used."""
        ops = (op for segment in self.late_on_copies for op in segment.ops)
        return frozenset(op.looks_up for op in ops if op.looks_up)

    @property
    def _late_ops(self) -> Iterator[Operation]:
        return (op for segment in self.late_segments for op in segment.ops)
