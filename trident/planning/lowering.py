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
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from trident.planning.basic_operations import Branch, BranchOp, CoalesceOp
from trident.planning.builder import PartitionHints, SegmentBuilder
from trident.planning.live_fields import Live, anchor_branches, anchored_nodes, live_fields
from trident.planning.nodes import Node, above, is_source, joined, sources
from trident.planning.operation import Fields
from trident.planning.partition_hints import partition_hints
from trident.planning.segments import Boundary, Lowered, Segment
from trident.workers.anchors import ANCHORS


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
