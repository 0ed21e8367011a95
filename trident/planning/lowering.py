"""The pure half of planning: nodes become segments of operations, before any session.

Every segment begins at an *anchor* (a stream's source, or a node that several
branches share) and ends at a state, at a shared node or at a dangling end.

Nodes that read a state of the group are *late*: they run in the transaction's
turn, when the one before is published, and everything else has run long
before that. Where rows pass from early to late nodes is a *boundary*: there
they are staged, and the late segments begin. A late segment may look a state up
by key, go on from the value found, or update a map of the user's against a buffer
(``trident.workers.states.UpdateMap``).

A node that several branches use is computed once per batch and checkpointed,
if a Python function or a non-deterministic expression lies at or above it: the
branches must see the same rows; and if it costs a shuffle. A projection or
filter by Spark is computed by each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from trident.planning.nodes import Node, SourceNode, above, is_source, joined, sources
from trident.planning.operation import (
    Branch,
    BranchOp,
    CoalesceOp,
    Fields,
    Operation,
    PartitionHints,
    PyOp,
    SegmentBuilder,
)
from trident.workers.anchors import ANCHORS

# A lowered group: segments of operations between anchors and targets, pure and without a session.


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
    def late_gives_rows_for_empty_batch(self) -> bool:
        """Tells whether something late emits rows for an empty batch, as an aggregate over the batch does."""
        return any(op.gives_rows_for_empty_batch for op in self._late_ops)

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

    @property
    def _late_ops(self) -> Iterator[Operation]:
        return (op for segment in self.late_segments for op in segment.ops)


# Brings the user's hints about Spark partitions to the nodes that decide about partitions.


def partition_hints(nodes: Sequence[Node]) -> PartitionHints:
    """Brings each hint up to the node that decides about partitions; of two hints the greater one counts."""
    counts: dict[Node, int] = {}
    exact: set[Node] = set()
    for node in nodes:
        if node.parallelism is not None:
            above = partitioner_of(node.parents[0])
            counts[above] = max(node.parallelism, counts.get(above, 0))
        if node.per_partition:
            exact.add(partitioner_of(node.parents[0]))
    return PartitionHints(counts, frozenset(exact))


def partitioner_of(node: Node) -> Node:
    """The nearest node, upwards, that says which rows are in which Spark partition."""
    while node.row_by_row:
        node = node.parents[0]
    return node


# Finds the fields of each node that are read behind it, and the rows that have anchors.


Live = Mapping[Node, frozenset[str]]


def live_fields(nodes: Sequence[Node], anchored: frozenset[Node] = frozenset()) -> dict[Node, frozenset[str]]:
    """The fields of each node that something behind it reads.

    Args:
        nodes: parents first.
        anchored: those whose rows can have anchors, which are then a field too.
    """
    live: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    for node in reversed(nodes):
        if node.keeps_all_fields:
            live[node] = frozenset(node.names)
        elif not live[node]:
            # Rows are counted even when no field is read, and without a column there are no rows.
            live[node] = frozenset(node.names[-1:])
        for parent in node.parents:
            live[parent] |= node.reads(parent, live[node])
            if parent in anchored and _wants_anchors(node, live):
                live[parent] |= {ANCHORS}
    return live


def anchored_nodes(nodes: Sequence[Node], late: frozenset[Node], tracked: Collection[Node]) -> frozenset[Node]:
    """The nodes whose rows can have anchors: from the tracked sources to where rows of several messages meet."""
    found: set[Node] = set()
    for node in nodes:  # parents first
        passes = node.passes_anchors and node not in late and any(parent in found for parent in node.parents)
        if passes or node in tracked:
            found.add(node)
    return frozenset(found)


def anchor_branches(early: Sequence[Node], anchors: Container[Node], live: Live) -> dict[tuple[Node, int], Branch]:
    """(node, which of its parents) → its branch, where several nodes take the anchors of one."""
    edges: dict[Node, list[tuple[Node, int]]] = {}
    for node in early:
        for side, parent in enumerate(node.parents):
            if parent in anchors and ANCHORS in live[parent] and _wants_anchors(node, live):
                edges.setdefault(parent, []).append((node, side))
    return {
        edge: Branch(number, len(found))
        for found in edges.values()
        if len(found) > 1
        for number, edge in enumerate(found)
    }


def _wants_anchors(node: Node, live: Live) -> bool:
    """Tells whether a parent's rows must bring their anchors to the node, where they have any."""
    return node.takes_anchors or ANCHORS in live[node]


def lower(nodes: Sequence[Node], targets: Collection[Node], tracked: Collection[Node] = ()) -> Lowered:
    """Lowers a group.

    Args:
        nodes: those that the targets need, parents first.
        targets: states and dangling ends.
        tracked: sources whose messages are acknowledged one by one.
    """
    late = late_nodes(nodes)
    live = live_fields(nodes, anchored_nodes(nodes, late, tracked))
    early = [node for node in nodes if node not in late]
    boundaries = _boundaries(early, late, live)
    lowered = _lower_early(nodes, early, targets, boundaries, live)
    lowered = replace(lowered, anchored=frozenset(n for n in sources(tracked) if ANCHORS in live.get(n, ())))
    return _lower_late(lowered, [node for node in nodes if node in late], targets, live) if late else lowered


def shard_keys(nodes: Sequence[Node], boundaries: Mapping[Node, Boundary]) -> dict[str, tuple[str, ...] | None] | None:
    """The fields by whose values a late part's rows may go to several tasks, which have nothing to do with each other.

    Args:
        nodes: those of the late part.

    Returns:
        boundary name → its fields, none where any task may have its rows; None where each task sees all of its rows and
        an operation keeps those of its shard. None for all: all rows go to one task.
    """
    found: dict[str, tuple[str, ...] | None] = {boundary.name: () for boundary in boundaries.values()}
    for node in nodes:
        if node.together is None or (len(node.parents) > 1 and not node.sees_all):
            return None
        for parent in node.parents if node.together else ():
            path, names = _traced(parent, node.together, boundaries)
            begin = path[-1]
            if node.sees_all:
                # Each task makes these rows: they must be the same in each, and nothing else may take them.
                if any(one.writes is not None or one.together != () or not one.repeatable for one in path[:-1]):
                    return None
                if begin not in boundaries or any(
                    not other.sees_all and other not in path and not set(path).isdisjoint(other.parents)
                    for other in nodes
                ):
                    return None
                found[boundaries[begin].name] = None
            elif begin in boundaries:
                if names is None or found[boundaries[begin].name] not in ((), names):
                    return None
                found[boundaries[begin].name] = names
            elif not parent.aggregates_for(node):
                return None
    several = {len(names) for names in found.values() if names}
    return found if len(several) == 1 or (not several and None in found.values()) else None


def _traced(
    begin: Node, names: tuple[str, ...], boundaries: Mapping[Node, Boundary]
) -> tuple[list[Node], tuple[str, ...] | None]:
    """The nodes that rows come through, up to a boundary or one that sees all rows; and the names of some fields there.

    The names are None where one of the fields is made on the way.
    """
    path, known = [begin], list(names)
    while begin not in boundaries and not begin.sees_all and len(begin.parents) == 1:
        (above_it,) = begin.parents
        given = {begin.carried(0, name): name for name in above_it.names}
        known = [given[name] for name in known if name in given]
        begin = above_it
        path.append(begin)
    return path, tuple(known) if len(known) == len(names) else None


def late_nodes(nodes: Sequence[Node]) -> frozenset[Node]:
    """The nodes that read a state of the group, and everything behind them."""
    late: set[Node] = set()
    for node in nodes:  # parents first
        if node.late or any(parent in late for parent in node.parents):
            late.add(node)
    return frozenset(late)


def repeatable(node: Node) -> bool:
    """Tells whether computing the node's rows again must give the same rows."""
    return all(one.repeatable for one in above(node))


def _boundaries(early: Sequence[Node], late: frozenset[Node], live: Live) -> dict[Node, Boundary]:
    read = {parent for node in late for parent in node.parents}
    found: dict[Node, Boundary] = {}
    for node in early:
        if node in read:
            if node.writes is not None:
                found[node] = Boundary(node.writes.name, tuple(node.writes.log_schema.fields), own=False)
            else:
                fields = tuple(field for field in node.fields_left(live[node]) if field.name != ANCHORS)
                found[node] = Boundary(f"boundary{len(found)}", fields, own=True)
    return found


def _lower_early(
    nodes: Sequence[Node],
    early: Sequence[Node],
    targets: Collection[Node],
    boundaries: Mapping[Node, Boundary],
    live: Live,
) -> Lowered:
    staged = {node for node, boundary in boundaries.items() if boundary.own}
    uses = Counter(staged)
    for node in early:
        for parent in node.parents:
            # A state that is written is a use of its own, beside the streams of its new values.
            uses[parent] += 1 + int(parent.writes is not None and not uses[parent])
    begins = set(sources(early))
    shared = {node for node in early if uses[node] > 1} - begins
    single_use = joined(early) - begins - shared
    anchors = begins | shared | single_use
    hints = partition_hints(nodes)
    lower_segment = _SegmentLowering(anchors, live, hints, anchor_branches(early, anchors, live))
    ends = {*targets, *staged}
    segments = [lower_segment(node) for node in early if node in shared or node in single_use or node in ends]
    # A node that several branches use is computed once where it could give them other rows, or costs a shuffle.
    costly = {segment.target for segment in segments if any(op.shuffles for op in segment.ops)}
    return Lowered(
        segments=tuple(segments),
        shared=frozenset(shared),
        checkpointed=frozenset(node for node in shared if not repeatable(node) or node in costly),
        boundaries=boundaries,
        single_use=frozenset(single_use),
        source_partitions={node: count for node, count in hints.counts.items() if is_source(node)},
    )


def _lower_late(lowered: Lowered, late: Sequence[Node], targets: Collection[Node], live: Live) -> Lowered:
    """Adds the late segments.

    Args:
        late: the late nodes, parents first.
        targets: states and dangling ends, of both halves.
    """
    uses = Counter(parent for node in late for parent in node.parents)
    # A state whose new values are used is computed once for both.
    shared = {node for node in late if uses[node] > 1 or (node.writes is not None and uses[node])}
    single_use = joined(late) - lowered.boundaries.keys() - shared
    begun = {node: boundary.fields for node, boundary in lowered.boundaries.items()}
    anchors = begun.keys() | shared | single_use
    lower_segment = _SegmentLowering(anchors, live, partition_hints(late), staged=begun)
    segments = [lower_segment(node) for node in late if node in shared or node in single_use or node in targets]
    return replace(
        lowered,
        shared=lowered.shared | shared,
        checkpointed=lowered.checkpointed | shared,
        late_segments=tuple(segments),
        single_use=lowered.single_use | single_use,
    )


@dataclass(frozen=True)
class _SegmentLowering:
    """How the segments of a half are made.

    Attributes:
        anchors: the nodes at which segments begin.
        staged: node → the columns of its rows that were staged; of the early half none.
    """

    anchors: Set[Node]
    live: Live
    hints: PartitionHints
    branches: Mapping[tuple[Node, int], Branch] = field(default_factory=dict)
    staged: Mapping[Node, Fields] | None = None

    def __call__(self, target: Node) -> Segment:
        path, begins = self._path_to(target)
        wanted = target.fields_left(self.live[target])
        builder = SegmentBuilder([self._fields_at(node) for node in begins], self.hints, self.branches)
        if path and not path[0].joins and (path[0], 0) in self.branches:
            builder.push(BranchOp(builder.fields, self.branches[path[0], 0]))
        for node in path:
            node.lower(builder, self.live[node])
            self._follow_hint(builder, node)
        builder.narrow(wanted)
        return Segment(begins, target, tuple(builder.ops), wanted)

    def _path_to(self, target: Node) -> tuple[list[Node], tuple[Node, ...]]:
        """The nodes behind the nearest anchor up to the target, and that anchor; several, where they are joined."""
        if not target.parents:  # a boundary right behind a spout
            return [], (target,)
        path = [target]
        while path[-1].parents[0] not in self.anchors:
            path.append(path[-1].parents[0])
        return path[::-1], path[-1].parents

    def _fields_at(self, anchor: Node) -> Fields:
        if self.staged is not None and anchor in self.staged:
            return self.staged[anchor]
        return anchor.fields_begun(self.live[anchor])

    def _follow_hint(self, builder: SegmentBuilder, node: Node) -> None:
        count = self.hints.counts.get(node)
        # In the turn only the rows of a join are spread enough for a hint to matter.
        follows = self.staged is None or node.joins
        if count is not None and follows and not node.places_rows:
            builder.push(CoalesceOp(builder.fields, count))
