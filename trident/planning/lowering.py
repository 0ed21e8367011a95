"""The pure half of planning: nodes become lists of operations, before any session.

Every list begins at an *anchor* (a stream's source, or a node that several
branches share) and ends at a state, at a shared node or at a dangling end.

Nodes that read a state of the group are *late*: they run in the transaction's
turn, when the one before is published, and everything else has run long
before that. Where rows pass from early to late nodes is a *boundary*: there
they are staged, and the late segments begin (``trident/planning/late.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Union

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StructField, StructType

from trident.coordinators.errors import OutputTypeError
from trident.operations.aggregation import AggregateNode, Aggregation
from trident.operations.aggregators import is_plain
from trident.operations.row_nodes import NativeNode, ProjectNode, PythonNode
from trident.operations.state_queries import StateQueryNode
from trident.operations.state_writes import NewValuesNode, PersistNode
from trident.operations.upsert import LastNode
from trident.planning.nodes import MeetNode, Node, OwnNode, SourceNode, above
from trident.planning.results import ResultNode
from trident.states.core.binding import StateBinding
from trident.states.core.tables import DELETED_COLUMN as DELETED
from trident.states.publishing.user_tasks import PARTITION
from trident.udf.expressions import Expression
from trident.workers.anchors import ANCHORS
from trident.workers.chain import CountRows, Keep, Peek, Rows, WithoutMarker
from trident.workers.failures import Label
from trident.workers.groups import Folded, Groups
from trident.workers.states import QueryRows
from trident.workers.tracking import ROW, BeginTrees, EndTrees, Tracked, TrackedGroups
from trident.workers.vectors import Call, vector_step

MARKER = "__trident_marker"
PARTIAL = "__trident_partial"
PARTIALS = "__trident_partials"
PLACE = StructField(PARTITION, IntegerType(), True)
_PAIR = StructType([StructField("root", LongType(), True), StructField("id", LongType(), True)])
ANCHORS_FIELD = StructField(ANCHORS, ArrayType(_PAIR, True), True)

Fields = tuple[StructField, ...]


@dataclass(frozen=True)
class PyOp:
    """A step on the worker; neighbours become one pass.

    Attributes:
        step: see trident.workers.chain and trident.workers.groups.
        fields: what there is behind it.
        takes: the fields that it reads or carries on.
        uses_batch_id: whether user code is given the attempt.
    """

    step: Any
    fields: Fields
    takes: frozenset[str]
    uses_batch_id: bool = False


@dataclass(frozen=True)
class SelectOp:
    """Some columns in an order, and perhaps the outputs of an expression behind them."""

    keep: tuple[str, ...]
    expression: Expression | None
    fields: Fields


@dataclass(frozen=True)
class FilterOp:
    expression: Expression
    fields: Fields


@dataclass(frozen=True)
class NativeAggregateOp:
    """An aggregate by Spark; without keys it gives one row for no input too.

    Attributes:
        keys: the grouping fields.
        inputs: of the aggregator.
        aggregator: a native one.
        merges: its input is partial values already.
        fields: the keys and the output.
        parts_suffice: the partial values can go on as they are: a state combines
            them, so this only saves rows where they come from several partitions.
    """

    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    aggregator: Any
    merges: bool
    fields: Fields
    parts_suffice: bool = False

    @property
    def output(self) -> StructField:
        """The field of the result."""
        return next(field for field in reversed(self.fields) if field.name != ANCHORS)

    @property
    def gathers_anchors(self) -> bool:
        """Whether a group has the anchors of all of its rows."""
        return self.fields[-1].name == ANCHORS


@dataclass(frozen=True)
class LastOp:
    """One row per key: the last; see LastNode."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None
    order_by: str | None
    fields: Fields


@dataclass(frozen=True)
class JoinStateOp:
    """Puts beside each row what a state has for its key, as of the transaction before.

    Attributes:
        binding: the state.
        inputs: the fields that are looked up, in the order of the state's keys; none: a state without keys.
        columns: (the state's field, its new name), in order.
        found: the name of a boolean field that is true where the state has the key; None: not needed.
        every: all entries of the state beside each row, instead of those of its key.
        materialise: the rows must be computed once before.
        fields: the row's and the new ones.
    """

    binding: StateBinding
    inputs: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    found: str | None
    every: bool
    materialise: bool
    fields: Fields


@dataclass(frozen=True)
class CombineStoredOp:
    """A native aggregate's stored value and the batch's partial value of it become one.

    Attributes:
        keys: carried on.
        pairs: (partial value, stored value) by name; the result has the first name.
        found: the field that says whether there is a stored value.
    """

    keys: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    found: str
    aggregator: Any
    fields: Fields


@dataclass(frozen=True)
class KeepRowsOp:
    """Rows where a boolean field is true (or, negated, is not), without that field where it is not in ``fields``."""

    condition: str
    negated: bool
    fields: Fields


@dataclass(frozen=True)
class NotDeletedOp:
    """Adds the field of a "last" log that says that no key is removed."""

    fields: Fields


@dataclass(frozen=True)
class IntoPartitionsOp:
    """The rows of a key in one of so many Spark partitions, always the same one; and which, in PARTITION.

    The Spark task cannot be asked that: the job of a batch is a union, whose
    tasks are counted over all of its parts.
    """

    keys: tuple[str, ...]
    count: int
    fields: Fields


@dataclass(frozen=True)
class CollectOp:
    """All values of one column as one row with one list, also when there is none; and all anchors, where there are."""

    column: str
    fields: Fields


@dataclass(frozen=True)
class ByKeyOp:
    """Brings the rows of a group into one Spark partition, unless there is only one."""

    keys: tuple[str, ...]
    fields: Fields


@dataclass(frozen=True)
class OnePartitionOp:
    """All rows in one Spark partition, with a marker row so that it exists for an empty batch too."""

    fields: Fields


@dataclass(frozen=True)
class OwnOp:
    """An operation by Spark that knows itself what it becomes: for modules beside this one.

    Attributes:
        fields: what there is behind it.
        spreads: a batch in one Spark partition may be in several behind it.
        shuffles: it moves rows, so a Spark stage ends with it.
        fills: it leads to rows also where there were none.
    """

    fields: Fields
    spreads = False
    shuffles = False
    fills = False

    def transform(self, compiler: Any) -> Any:
        """(DataFrame, Batch) → DataFrame.

        Args:
            compiler: a trident.planning.compiled.CompiledGroup; what it makes of the session may be kept.
        """
        raise AssertionError(f"{type(self).__name__} has no transform")

    def text(self) -> str:
        """For ``explain``."""
        raise AssertionError(f"{type(self).__name__} has no text")


@dataclass(frozen=True)
class GroupingOp(OwnOp):
    """An aggregate by Spark over the batch, or over each group of it.

    Attributes:
        keys: the grouping columns; none: one row, also for no input.
    """

    shuffles = True

    keys: tuple[str, ...]

    @property
    def fills(self) -> bool:  # type: ignore[override]
        return not self.keys

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        return bool(self.keys)


@dataclass(frozen=True)
class MeetOp(OwnOp):
    """Makes one frame of several: always the first operation of its segment."""

    def meet(self, compiler: Any) -> Any:
        """(DataFrames, one per anchor; Batch) → DataFrame."""
        raise AssertionError(f"{type(self).__name__} has no meet")


Op = Union[
    PyOp,
    SelectOp,
    FilterOp,
    NativeAggregateOp,
    CollectOp,
    ByKeyOp,
    OnePartitionOp,
    LastOp,
    JoinStateOp,
    CombineStoredOp,
    KeepRowsOp,
    NotDeletedOp,
    IntoPartitionsOp,
    OwnOp,
]


@dataclass(frozen=True)
class Segment:
    """The operations from an anchor to a target.

    Attributes:
        anchor: a source, a shared node or one that meets others.
        target: a state's node, a shared node, one that meets others or a dangling end.
        ops: in order.
        fields: of the result.
        others: further anchors, where the first operation makes one frame of several.
    """

    anchor: Node
    target: Node
    ops: tuple[Op, ...]
    fields: Fields
    others: tuple[Node, ...] = ()

    @property
    def anchors(self) -> tuple[Node, ...]:
        return (self.anchor, *self.others)


@dataclass(frozen=True)
class Lowered:
    """A group's segments; those of shared nodes come before what uses them.

    Attributes:
        segments: in the order in which they are built.
        shared: nodes that several branches use.
        passing: nodes that one operation with several parents uses.
        checkpointed: those of them that must be computed once.
        boundaries: nodes whose rows are staged for late segments, with the name they are staged under.
        late_segments: what runs in the transaction's turn, in order.
        spreads: source → the Spark partitions that its batches are given, where a hint says so.
        anchored: sources whose batches must have anchors: something behind them may fail for a row.
    """

    segments: tuple[Segment, ...]
    shared: frozenset[Node] = frozenset()
    checkpointed: frozenset[Node] = frozenset()
    boundaries: Mapping[Node, "Boundary"] = field(default_factory=dict)
    late_segments: tuple[Segment, ...] = ()
    passing: frozenset[Node] = frozenset()
    spreads: Mapping[Node, int] = field(default_factory=dict)
    anchored: frozenset[Node] = frozenset()

    @property
    def late_order(self) -> bool:
        """Whether something late depends on the order of the batch's rows."""
        ops = [op for segment in self.late_segments for op in segment.ops]
        return any(getattr(op, "in_order", False) or (isinstance(op, LastOp) and op.order_by is None) for op in ops)

    @property
    def late_fills(self) -> bool:
        """Whether something late has rows of none, as an aggregate over an empty batch has."""
        return any(fills(op) for segment in self.late_segments for op in segment.ops)

    @property
    def depends_on_partitions(self) -> bool:
        """Whether less needs to be done for a batch in one Spark partition."""
        return any(only_for_several(op) for segment in self.segments for op in segment.ops)


@dataclass(frozen=True)
class Boundary:
    """Rows that are staged early and read late.

    Attributes:
        name: what they are staged under; of a state's own rows the state's name.
        fields: of the rows.
        own: whether a folder of its own is needed: not for a state's own rows.
    """

    name: str
    fields: Fields
    own: bool


@dataclass(frozen=True)
class AtMostOp(OwnOp):
    """At most so many Spark partitions, without moving rows that need not be."""

    count: int

    def transform(self, compiler: Any) -> Any:
        return lambda frame, _: frame.coalesce(self.count)

    def text(self) -> str:
        return f"into at most {self.count} partitions"


@dataclass(frozen=True)
class BranchOp(OwnOp):
    """The rows as one of several branches gets them: with ids that XOR to the rows' own over all branches."""

    branch: "Branch"

    def transform(self, compiler: Any) -> Any:
        from trident.planning.compiled import branch_column

        names = [field.name for field in self.fields if field.name != ANCHORS]
        columns = [*map(compiler.column, names), branch_column(self.branch).alias(ANCHORS)]
        # In the order of the fields, of which the anchors are the last.
        return lambda frame, _: frame.select(*columns)

    def text(self) -> str:
        return f"branch {self.branch.number + 1} of {self.branch.of}"


def spreads_rows(op: Op) -> bool:
    """Whether a batch in one Spark partition may be in several behind the operation."""
    if isinstance(op, (NativeAggregateOp, LastOp)):
        return bool(op.keys)
    if isinstance(op, IntoPartitionsOp):
        return op.count > 1
    return isinstance(op, OwnOp) and op.spreads


def moves_rows(op: Op) -> bool:
    """Whether a Spark stage ends with the operation."""
    if isinstance(op, (NativeAggregateOp, LastOp, ByKeyOp, CollectOp)):
        return True
    if isinstance(op, IntoPartitionsOp):
        return op.count > 1 and bool(op.keys)
    return isinstance(op, OwnOp) and op.shuffles


def fills(op: Op) -> bool:
    """Whether there are rows behind the operation where there were none before it."""
    if isinstance(op, NativeAggregateOp):
        return not op.keys
    return isinstance(op, (CollectOp, OnePartitionOp)) or (isinstance(op, OwnOp) and op.fills)


def only_for_several(op: Op) -> bool:
    """Whether the operation is for nothing when the batch is one Spark partition."""
    return isinstance(op, ByKeyOp) or (isinstance(op, NativeAggregateOp) and op.parts_suffice)


def lower(nodes: Sequence[Node], targets: Sequence[Node], tracked: Collection[Node] = ()) -> Lowered:
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
    uses: dict[Node, int] = {node: 1 for node in boundaries if not isinstance(node, PersistNode)}
    for node in early:
        for parent in node.parents:
            # A state that is written is a use of its own, beside what is made of its new values.
            uses[parent] = uses.get(parent, int(isinstance(parent, PersistNode))) + 1
    shared = {node for node in early if uses.get(node, 0) > 1 and not isinstance(node, SourceNode)}
    passing = {node for node in meeting(early) if not isinstance(node, SourceNode)} - shared
    anchors = {node for node in early if isinstance(node, SourceNode)} | shared | passing
    ends = {*targets, *(node for node in boundaries if not isinstance(node, PersistNode))}
    spread = spreads(nodes)
    branches = _branches(early, anchors, live)
    segments = [
        _segment(node, anchors, live, spread, branches)
        for node in early
        if node in shared or node in passing or node in ends
    ]
    # What several branches use is computed once where it could give them other rows, or costs a shuffle.
    costly = {segment.target for segment in segments if any(map(moves_rows, segment.ops))}
    checkpointed = {node for node in shared if not _repeatable(node) or node in costly}
    of_sources = {node: count for node, count in spread.counts.items() if isinstance(node, SourceNode)}
    lowered = Lowered(
        tuple(segments),
        frozenset(shared),
        frozenset(checkpointed),
        boundaries,
        passing=frozenset(passing),
        spreads=of_sources,
        anchored=frozenset(node for node in tracked if ANCHORS in live.get(node, ())),
    )
    if not late:
        return lowered
    from trident.planning.late import lower_late

    return lower_late(lowered, [node for node in nodes if node in late], targets, live)


def meeting(nodes: Sequence[Node]) -> set[Node]:
    """The nodes whose rows meet others in an operation with several parents."""
    return {parent for node in nodes if isinstance(node, MeetNode) for parent in node.parents}


@dataclass(frozen=True)
class Spread:
    """What is known of Spark partitions before there are any.

    Attributes:
        counts: node → how many Spark partitions a hint gives its rows.
        exact: repartitionings behind which every partition must exist, also an empty one.
    """

    counts: Mapping[Node, int]
    exact: frozenset[Node]


def spreads(nodes: Sequence[Node]) -> Spread:
    """Brings each hint up to the node that decides about partitions; of two hints the greater one counts."""
    counts: dict[Node, int] = {}
    exact: set[Node] = set()
    for node in nodes:
        hint = getattr(node, "parallelism", None)
        if hint is not None:
            above = decides(node.parents[0])
            counts[above] = max(hint, counts.get(above, 0))
        if getattr(node, "per_partition", False):
            exact.add(decides(node.parents[0]))
    return Spread(counts, frozenset(exact))


def decides(node: Node) -> Node:
    """The nearest node, upwards, that says which rows are in which Spark partition."""
    while _row_by_row(node):
        node = node.parents[0]
    return node


def _row_by_row(node: Node) -> bool:
    if isinstance(node, OwnNode):
        return node.row_by_row
    if isinstance(node, StateQueryNode):
        return node.writer is None
    return isinstance(node, (PythonNode, NativeNode, ProjectNode))


def late_nodes(nodes: Sequence[Node]) -> frozenset[Node]:
    """The nodes that read a state of the group, and everything behind them."""
    late: set[Node] = set()
    for node in nodes:  # parents first
        reads = (
            (isinstance(node, PersistNode) and node.mode is not None)
            or (isinstance(node, StateQueryNode) and node.writer is not None)
            or (isinstance(node, NewValuesNode) and not _known_early(node))
            or (isinstance(node, OwnNode) and node.late)
        )
        if reads or any(parent in late for parent in node.parents):
            late.add(node)
    return frozenset(late)


def _known_early(node: NewValuesNode) -> bool:
    """An upsert's new values are its rows: they need no look at the state."""
    (persist,) = node.parents
    return isinstance(persist, PersistNode) and persist.binding.merging == "last" and persist.mode is None


def _boundaries(early: Sequence[Node], late: frozenset[Node], live: dict[Node, frozenset[str]]) -> dict[Node, Boundary]:
    read = {parent for node in late for parent in node.parents}
    found: dict[Node, Boundary] = {}
    for node in early:
        if node in read:
            if isinstance(node, PersistNode):
                found[node] = Boundary(node.binding.name, tuple(node.binding.log_schema.fields), own=False)
            else:
                fields = tuple(field for field in _picked(node, live[node]) if field.name != ANCHORS)
                found[node] = Boundary(f"boundary{len(found)}", fields, own=True)
    return found


def anchored_nodes(nodes: Sequence[Node], late: frozenset[Node], tracked: Collection[Node]) -> frozenset[Node]:
    """The nodes whose rows can have anchors: from the tracked sources to where rows of several messages meet."""
    found: set[Node] = set()
    for node in nodes:  # parents first
        passes = node.passes_anchors and node not in late and any(parent in found for parent in node.parents)
        if passes or node in tracked:
            found.add(node)
    return frozenset(found)


def _wants_anchors(node: Node, live: Mapping[Node, frozenset[str]]) -> bool:
    """Whether a parent's rows must bring their anchors to the node, where they have any."""
    return node.takes_anchors or ANCHORS in live[node]


@dataclass(frozen=True)
class Branch:
    """Which of the branches that want anchors one is: each has other ids, which XOR to those of the rows."""

    number: int
    of: int


WHOLE = Branch(0, 1)


def _branches(
    early: Sequence[Node], anchors: Container[Node], live: Mapping[Node, frozenset[str]]
) -> dict[tuple[Node, int], Branch]:
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


def live_fields(nodes: Sequence[Node], anchored: frozenset[Node] = frozenset()) -> dict[Node, frozenset[str]]:
    """The fields of each node that something behind it reads.

    Args:
        nodes: parents first.
        anchored: those whose rows can have anchors, which are then a field too.
    """
    live: dict[Node, frozenset[str]] = {node: frozenset() for node in nodes}
    for node in reversed(nodes):
        if isinstance(node, (PersistNode, ResultNode)):
            live[node] = frozenset(node.names)
        elif not live[node]:
            # Rows are counted even when no field is read, and without a column there are no rows.
            live[node] = frozenset(node.names[-1:])
        for parent in node.parents:
            live[parent] |= _reads(node, parent, live[node])
            if parent in anchored and _wants_anchors(node, live):
                live[parent] |= {ANCHORS}
    return live


def _reads(node: Node, parent: Node, live: frozenset[str]) -> frozenset[str]:
    """The parent's fields that the node needs when only its live ones are read behind it."""
    if isinstance(node, OwnNode):
        return node.reads(parent, live)
    aggregation = getattr(node, "aggregation", None)
    if aggregation is not None:
        return frozenset((*aggregation.keys, *aggregation.inputs))
    if isinstance(node, PersistNode):
        return frozenset(node.names if node.takes is None else node.takes)
    if isinstance(node, NewValuesNode):
        return frozenset(parent.names)
    if isinstance(node, LastNode):
        return frozenset((*node.keys, *node.values, *filter(None, (node.delete_when, node.order_by))))
    if isinstance(node, StateQueryNode):
        return (live - set(node.outputs)) | set(node.inputs)
    if isinstance(node, PythonNode):
        return (live - set(node.outputs)) | set(node.inputs)
    if isinstance(node, NativeNode):
        found = node.expression.analysis
        everything = found is None or found.all_fields
        return (live - set(node.outputs)) | (frozenset(parent.names) if everything else found.reads)
    return live


def _repeatable(node: Node) -> bool:
    """Whether computing the node again must give the same rows."""
    return all(map(_repeats, above(node)))


def _repeats(node: Node) -> bool:
    if isinstance(node, OwnNode) and not node.repeatable:
        return False
    if isinstance(node, PythonNode):
        return False
    if isinstance(node, NativeNode) and not (node.expression.analysis and node.expression.analysis.deterministic):
        return False
    if isinstance(node, AggregateNode) and node.aggregation.kind != "native":
        return False
    if isinstance(node, StateQueryNode):  # of a static state: calls the user's query
        return False
    return True


# --- one segment -------------------------------------------------------------------------


def _segment(
    target: Node,
    anchors: set[Node],
    live: dict[Node, frozenset[str]],
    spread: Spread,
    branches: Mapping[tuple[Node, int], Branch],
) -> Segment:
    wanted = segment_fields(target, live)
    if isinstance(target, SourceNode):  # a boundary right behind a spout
        path, anchor = [], target
    else:
        path, anchor = path_to(target, anchors)

    def fields_of(node: Node) -> Fields:
        if not isinstance(node, SourceNode):
            return segment_fields(node, live)
        return (*node.schema.fields, ANCHORS_FIELD) if ANCHORS in live[node] else tuple(node.schema.fields)

    maker = _Maker(fields_of(anchor), spread, branches)
    if path and (path[0], 0) in branches and not isinstance(path[0], MeetNode):
        maker.push(BranchOp(maker.physical, branches[path[0], 0]))
    for node in path:
        maker.add_any(node, live, fields_of)
    maker.finish(wanted)
    return Segment(anchor, target, tuple(maker.ops), wanted, others_of(path))


def others_of(path: Sequence[Node]) -> tuple[Node, ...]:
    """The further anchors of a path that begins with an operation with several parents."""
    return path[0].parents[1:] if path else ()


def path_to(target: Node, anchors: Container[Node]) -> tuple[list[Node], Node]:
    """The nodes behind the nearest anchor up to the target, and that anchor."""
    path = [target]
    while (parent := path[-1].parents[0]) not in anchors:
        path.append(parent)
    return path[::-1], parent


def segment_fields(target: Node, live: dict[Node, frozenset[str]]) -> Fields:
    """What a segment leaves at its target."""
    if isinstance(target, PersistNode):
        fields = tuple(target.binding.log_schema.fields)
        return (*fields, PLACE) if target.binding.state_kind.updated_when_published else fields
    return tuple(_picked(target, live[target]))


def _picked(node: Node, names: frozenset[str]) -> list[StructField]:
    return [field for field in (*node.schema.fields, ANCHORS_FIELD) if field.name in names]


class _Maker:
    """Adds operations one by one; knows which columns there physically are."""

    def __init__(
        self,
        physical: Fields,
        spread: Spread = Spread({}, frozenset()),
        branches: Mapping[tuple[Node, int], Branch] | None = None,
    ) -> None:
        self.ops: list[Op] = []
        self._physical = physical
        self.spread = spread
        self.branches = branches or {}

    @property
    def physical(self) -> Fields:
        """The columns that there are now."""
        return self._physical

    def push(self, op: Op) -> None:
        """Adds an operation by Spark."""
        self._push(op)

    def push_python(
        self, step: Any, fields: Sequence[StructField], takes: Sequence[str], batch_id: bool = False
    ) -> None:
        """Adds a step on the worker; see PyOp."""
        self._push_python(step, fields, takes, batch_id)

    def narrow(self, fields: Fields) -> None:
        """Drops the other columns."""
        self._narrow(fields)

    @property
    def anchored(self) -> bool:
        """Whether the rows have anchors here."""
        return any(field.name == ANCHORS for field in self._physical)

    def aggregate(self, aggregation: Aggregation, node: Node, fields: Fields) -> None:
        """An aggregate over the batch, or per group of it."""
        self._aggregate_as(aggregation, node, fields, persists=False)

    def add_any(self, node: Node, live: dict[Node, frozenset[str]], fields_of: Callable[[Node], Fields]) -> None:
        """As ``add``; also an operation with several parents, each of which has the columns that are said."""
        if isinstance(node, MeetNode):
            node.meet(self, live[node], [fields_of(parent) for parent in node.parents])
        else:
            self.add(node, live)
        count = self.spread.counts.get(node)
        if count is not None and not isinstance(node, SourceNode) and not getattr(node, "repartitions", False):
            self._push(AtMostOp(self._physical, count))

    def add(self, node: Node, live: dict[Node, frozenset[str]]) -> None:
        if isinstance(node, OwnNode):
            node.lower(self, live[node])
        elif isinstance(node, PythonNode):
            self._python(node, live[node])
        elif isinstance(node, NativeNode):
            self._native(node, live[node])
        elif isinstance(node, AggregateNode):
            self._aggregate(node.aggregation, node, persists=False, goes_on=ANCHORS in live[node])
        elif isinstance(node, PersistNode) and node.aggregation is not None:
            self._aggregate(node.aggregation, node, persists=True)
        elif isinstance(node, PersistNode) and node.binding.state_kind.updated_when_published:
            count = getattr(node.binding.state, "partitions", 1)
            self.into_partitions(node.binding.keys, count)
        elif isinstance(node, LastNode):
            self._push(LastOp(node.keys, node.values, node.delete_when, node.order_by, tuple(node.schema.fields)))
        elif isinstance(node, NewValuesNode):  # of an upsert
            kept = tuple(field for field in self._physical if field.name != DELETED)
            self._push(KeepRowsOp(DELETED, True, kept))
        elif isinstance(node, StateQueryNode):
            self.query_own(node, live[node])
        # project and an append change nothing here: live fields, and `finish`, see to it

    def finish(self, wanted: Fields) -> None:
        """Leaves exactly the wanted columns in their order."""
        last = self._last()
        if isinstance(last, PyOp):
            self.ops[-1] = replace(last, fields=wanted)
        elif [field.name for field in wanted] != [field.name for field in self._physical]:
            self._push(SelectOp(tuple(field.name for field in wanted), None, wanted))

    def _last(self) -> Op | None:
        return self.ops[-1] if self.ops else None

    def _push(self, op: Op) -> None:
        self.ops.append(op)
        self._physical = op.fields

    def _push_python(
        self, step: Any, fields: Sequence[StructField], takes: Sequence[str], batch_id: bool = False
    ) -> None:
        taken = frozenset(takes or [field.name for field in self._physical[:1]])
        if not isinstance(self._last(), PyOp) and taken != {field.name for field in self._physical}:
            # What Python does not need is not converted for it.
            kept = tuple(field for field in self._physical if field.name in taken)
            self._push(SelectOp(tuple(field.name for field in kept), None, kept))
        self._push(PyOp(step, tuple(fields), taken, batch_id))

    # --- nodes ---------------------------------------------------------------------------

    def _python(self, node: PythonNode, live: frozenset[str]) -> None:
        label = Label(node.operation, node.function.location)
        earlier = tuple(field for field in node.schema.fields if field.name in live and field.name not in node.outputs)
        keep = tuple(field.name for field in earlier)
        takes = (*keep, *node.inputs)
        made = tuple(node.schema[name] for name in node.outputs)
        goes_on = ANCHORS in live
        step = self._python_step(node, label, made, (*keep, ROW) if goes_on else keep)
        self._push_rows(step, (*earlier, *made), takes, goes_on)

    def _python_step(self, node: PythonNode, label: Label, made: Fields, keep: tuple[str, ...]) -> Any:
        types = tuple(arrow_type(field.dataType) for field in made)
        if node.function.vectors:
            call = Call(label, node.function.call, node.inputs, node.function.vectors, node.function.table)
            return vector_step(node.kind, call, node.outputs, types, keep)
        if node.kind == "filter":
            return Keep(label, node.function.call, node.inputs, keep)
        if node.kind == "peek":
            return Peek(label, node.function.call, node.inputs)
        return Rows(
            label,
            node.function.call,
            node.inputs,
            node.outputs,
            types,
            node.many,
            keep,
            drop_none=node.kind != "map",
        )

    def _push_rows(self, step: Any, fields: Fields, takes: Sequence[str], goes_on: bool) -> None:
        """Adds a step that calls a function for rows; where they have anchors, what raises fails its row alone.

        Args:
            goes_on: the anchors are wanted behind it; then the step keeps ROW.
        """
        if not self.anchored:
            self._push_python(step, fields, takes)
            return
        fields = (*fields, ANCHORS_FIELD) if goes_on else fields
        self._push_python(Tracked(step, goes_on), fields, (*takes, ANCHORS))

    def into_partitions(self, keys: tuple[str, ...], count: int) -> None:
        self._push(IntoPartitionsOp(keys, count, (*self._physical, PLACE)))

    def query_own(self, node: StateQueryNode, live: frozenset[str], place: str = "") -> None:
        """A query of a state of the user's, on the workers."""
        earlier = tuple(field for field in node.schema.fields if field.name in live and field.name not in node.outputs)
        made = tuple(node.schema[name] for name in node.outputs)
        step = QueryRows(
            Label(node.operation, node.location),
            node.state,
            node.query,
            node.inputs,
            node.outputs,
            tuple(arrow_type(field.dataType) for field in made),
            node.many,
            tuple(field.name for field in earlier),
            place,
        )
        takes = (*(field.name for field in earlier), *node.inputs, *filter(None, (place,)))
        self._push_python(step, (*earlier, *made), takes, batch_id=True)

    def _native(self, node: NativeNode, live: frozenset[str]) -> None:
        if node.expression.all_fields:
            self._narrow(tuple(node.parents[0].schema.fields))
        if ANCHORS in live and not node.one_to_one:
            # Which rows Spark drops or multiplies nobody sees: the trees end before it and begin anew behind it.
            label = Label(node.operation, node.location)
            self._in_python(EndTrees(label))
            self._native_op(node, live)
            self._in_python(BeginTrees(label))
        else:
            self._native_op(node, live)

    def _native_op(self, node: NativeNode, live: frozenset[str]) -> None:
        if node.kind == "filter":
            self._push(FilterOp(node.expression, self._physical))
            return
        kept = (*node.schema.fields, ANCHORS_FIELD)
        keep = tuple(field for field in kept if field.name in live and field.name not in node.outputs)
        fields = (*keep, *(node.schema[name] for name in node.outputs))
        self._push(SelectOp(tuple(field.name for field in keep), node.expression, fields))

    def _in_python(self, step: Any) -> None:
        self._push_python(step, self._physical, [field.name for field in self._physical])

    def _aggregate(self, aggregation: Aggregation, node: Node, persists: bool, goes_on: bool = False) -> None:
        fields = tuple(node.schema.fields)
        self._aggregate_as(aggregation, node, (*fields, ANCHORS_FIELD) if goes_on else fields, persists)

    def _aggregate_as(self, aggregation: Aggregation, node: Node, fields: Fields, persists: bool) -> None:
        if not node.takes_anchors and fields[-1].name != ANCHORS and self.anchored:
            # Nothing fails here: the trees have ended, or the anchors are another branch's.
            self._narrow(tuple(field for field in self._physical if field.name != ANCHORS))
        if aggregation.kind == "native":
            self._native_aggregate(aggregation, fields, persists)
        elif aggregation.kind == "combiner":
            self._combine(aggregation, node, fields, persists)
        else:
            self._fold(aggregation, node, fields)

    def _native_aggregate(self, aggregation: Aggregation, fields: Fields, persists: bool) -> None:
        merges = False
        if (
            isinstance(self._last(), PyOp)
            and aggregation.keys
            and aggregation.aggregator.native_name == "count"
            and not self.anchored
            and all(is_plain(field.dataType) for field in fields)
        ):
            step = CountRows(aggregation.keys, aggregation.outputs[0].name)
            self._push_python(step, fields, aggregation.keys)
            merges = True
        inputs = tuple(field.name for field in aggregation.outputs) if merges else aggregation.inputs
        suffices = persists and merges
        self._push(NativeAggregateOp(aggregation.keys, inputs, aggregation.aggregator, merges, fields, suffices))

    def _combine(self, aggregation: Aggregation, node: Node, fields: Fields, persists: bool) -> None:
        keys, output = aggregation.keys, aggregation.outputs[0]
        if keys:
            self._groups(aggregation, node, "combine", aggregation.inputs, fields, output.name, merged=not persists)
            if not persists:  # a state combines the parts itself
                self._push(ByKeyOp(keys, self._physical))
                self._groups(aggregation, node, "merge", (output.name,), fields, output.name)
            return
        part = StructField(PARTIAL, output.dataType, True)
        self._groups(aggregation, node, "combine", aggregation.inputs, (part,), PARTIAL, merged=True)
        parts = ArrayType(StructType([StructField("value", output.dataType, True)]), False)
        anchors = (ANCHORS_FIELD,) if self.anchored else ()
        self._push(CollectOp(PARTIAL, (StructField(PARTIALS, parts, False), *anchors)))
        goes_on = fields[-1].name == ANCHORS
        step = Rows(
            Label(node.operation, aggregation.location),
            Folded(aggregation.aggregator),
            (PARTIALS,),
            (output.name,),
            (arrow_type(output.dataType),),
            False,
            (ROW,) if goes_on else (),
            drop_none=False,
        )
        self._push_rows(step, (output,), (PARTIALS,), goes_on)

    def _fold(self, aggregation: Aggregation, node: Node, fields: Fields) -> None:
        keys, mode = aggregation.keys, "reduce" if aggregation.kind == "reducer" else "aggregate"
        read = {*keys, *aggregation.inputs, ANCHORS}
        needed = tuple(field for field in self._physical if field.name in read) or self._physical[:1]
        if keys:
            self._push(ByKeyOp(keys, self._physical))
        else:
            self._narrow(needed)
            marked = (*needed, StructField(MARKER, LongType(), False))
            self._push(OnePartitionOp(marked))
            self._push_python(WithoutMarker(MARKER), needed, tuple(field.name for field in marked))
        self._groups(aggregation, node, mode, aggregation.inputs, fields)

    def _groups(
        self,
        aggregation: Aggregation,
        node: Node,
        mode: str,
        inputs: tuple[str, ...],
        fields: Fields,
        output: str | None = None,
        merged: bool = False,
    ) -> None:
        """Folds rows by key; where they have anchors, a group has those of its rows.

        Args:
            fields: behind the aggregate; with the anchors, where they are wanted there.
            merged: the groups are parts, which are merged next: their anchors are wanted in any case.
        """
        step = groups_step(aggregation, node, mode, inputs, output)
        takes, batch_id = (*aggregation.keys, *inputs), mode == "aggregate"
        fields = tuple(field for field in fields if field.name != ANCHORS or not merged)
        if self.anchored:
            goes_on = merged or fields[-1].name == ANCHORS
            own = {one.name: getattr(step, one.name) for one in dataclass_fields(step)}
            step, takes = TrackedGroups(**own, keeps=goes_on), (*takes, ANCHORS)
            fields = (*fields, ANCHORS_FIELD) if merged else fields
        self._push_python(step, fields, takes, batch_id)

    def _narrow(self, fields: Fields) -> None:
        if isinstance(self._last(), PyOp):
            self.finish(fields)
            self._physical = fields
        elif [field.name for field in fields] != [field.name for field in self._physical]:
            self._push(SelectOp(tuple(field.name for field in fields), None, fields))


def groups_step(
    aggregation: Aggregation, node: Node, mode: str, inputs: tuple[str, ...], output: str | None = None
) -> Groups:
    outputs = aggregation.outputs
    return Groups(
        label=Label(node.operation, aggregation.location),
        aggregator=aggregation.aggregator,
        mode=mode,
        keys=aggregation.keys,
        inputs=inputs,
        outputs=(output,) if output else tuple(field.name for field in outputs),
        types=tuple(arrow_type(field.dataType) for field in outputs),
        many=aggregation.many,
        always=mode in ("reduce", "aggregate") and not aggregation.keys,
    )


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which a worker gives values of a Spark type.

    Raises:
        OutputTypeError: there is none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        raise OutputTypeError(
            f"values of type {kind.simpleString()} cannot come from Python", expected="a type that Arrow has"
        ) from error
