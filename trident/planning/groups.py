"""The batch groups of a topology, and the plan by which each builds every batch.

Three layers, as in Trident: the user's calls made **nodes**; connected nodes
are a **batch group**, with a coordinator of its own; a group becomes, per
batch, DataFrames for its states. In between stands a pure description, the
*lowering* (``trident/planning/lowering.py``): a list of operations per state,
where consecutive Python operations stand side by side and become one
``mapInArrow`` pass.

Only fields that are read later are carried along ("live"): a word count hands
words to the JVM and not the lines that they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TopologyError
from trident.coordinators.transactions import TransactionAttempt
from trident.planning.arrow_plans import arrow_plan
from trident.planning.compiled import BuiltBatch, LoweredPlan
from trident.planning.graph import TopologyGraph
from trident.planning.lowering import lower
from trident.planning.nodes import Node, above, sources
from trident.planning.session_frames import Batch
from trident.spouts.rich import is_rich_spout
from trident.states.core.binding import StateBinding
from trident.states.publishing.dead_letters import dead_letter_binding, message_binding
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import ArrowPlan, OwnPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident.workers.look_up import CopyOfState

Stored = Callable[[StateBinding, Any], "DataFrame"]


@dataclass(kw_only=True)
class GroupPlan(LoweredPlan):
    """How one batch group runs on Spark.

    Attributes:
        name: the group's: the smallest tx_id of its streams.
        spout_tables: tx_id → the table that its spout owns.
        tracked: streams whose messages are acknowledged one by one.
        message_tables: stream → the name of the table of its messages; "" → that of the dead letters; none
            where nothing is tracked.
    """

    name: str
    nodes: list[Node]
    bindings: list[StateBinding] = field(default_factory=list)
    spout_tables: dict[str, StateBinding] = field(default_factory=dict)
    tracked: frozenset[str] = frozenset()
    message_tables: dict[str, str] = field(default_factory=dict)

    def build(
        self, inputs: Mapping[str, "DataFrame"], attempt: TransactionAttempt, info: BatchInfo | None = None
    ) -> BuiltBatch:
        """The rows to stage for each early state, and for each boundary of late ones.

        The columns are those of ``binding.log_schema`` and of the boundary's fields.

        Lazy, except where a stream with Python functions feeds several
        branches: that is computed here (a Spark job in the calling thread), and
        so are branches that end in Python functions without a state. May be
        called from several threads at once.

        Args:
            inputs: tx_id → the batch, with the columns of the spout's output_schema.
            attempt: whose batch it is; given to aggregators as their batch id.
            info: for users' own states; made of the attempt when None.
        """
        session = next(iter(inputs.values())).sparkSession
        return self.compiled(session).build(inputs, info or BatchInfo(attempt))

    def build_late(
        self,
        inputs: Mapping[str, "DataFrame"],
        info: BatchInfo,
        stored: Stored,
        copies: Mapping[str, CopyOfState] | None = None,
        rows: int | None = None,
    ) -> BuiltBatch:
        """The rows to stage for states that are read in the transaction's turn, and for those behind them.

        Args:
            inputs: boundary name → the rows that were staged for it; with copies each in one Spark partition.
            stored: gives a state's keys and values as of the transaction before.
            copies: the local copies of ``lowered.copied_states`` as of that transaction; None: states are only read
                from their tables.
            rows: how many there are in all inputs; None: few.
        """
        session = next(iter(inputs.values())).sparkSession
        return self.compiled(session).build_late(inputs, Batch(info, stored, copies=copies, rows=rows))

    @cached_property
    def late_in_driver(self) -> OwnPlan | None:
        """The late part for few rows, in the coordinator's process; None where it calls code of the user's."""
        return None if self.late_on_arrow is None else self.late_on_arrow.in_driver

    @cached_property
    def late_on_arrow(self) -> ArrowPlan | None:
        """The late part over Arrow, with local copies of states; None where it is left to Spark."""
        if not self.lowered.copied_states:
            return None
        return arrow_plan(self.lowered.late_segments, self._boundary_names)

    @property
    def _boundary_names(self) -> dict[Node, str]:
        return {node: boundary.name for node, boundary in self.lowered.boundaries.items()}

    @property
    def spouts(self) -> dict[str, Any]:
        """tx_id → spout."""
        return {node.tx_id: node.spout for node in sources(self.nodes)}

    @property
    def is_late(self) -> bool:
        """Tells whether there is anything to do in the transaction's turn."""
        return bool(self.lowered.late_segments)

    @property
    def late_states(self) -> frozenset[str]:
        """The states that are staged by :meth:`build_late`."""
        written = (segment.target.writes for segment in self.lowered.late_segments)
        return frozenset(binding.name for binding in written if binding is not None)

    @property
    def anchored(self) -> frozenset[str]:
        """The tracked streams whose rows need anchors: a function behind them may fail for a row."""
        return frozenset(node.tx_id for node in self.lowered.anchored)


def plan(graph: TopologyGraph, tracking: bool = True) -> list[GroupPlan]:
    """The batch groups of a topology, in the order of their names.

    Args:
        tracking: whether the messages of rich spouts are tracked.

    Raises:
        TopologyError: there is nothing to do, or a stream leads nowhere.
    """
    graph.check_chains()
    graph.check_order()
    if not graph.sources and not graph.functions:
        raise TopologyError(f"topology {graph.name!r} has no stream", action="begin with new_stream")
    plans = [_group_plan(name, nodes, tracking) for name, nodes in sorted(_groups(graph).items())]
    for one in plans:
        _add_message_tables(graph.name, one)
    return plans


def _add_message_tables(topology: str, group: GroupPlan) -> None:
    """The tables beside the states in which a tracked stream keeps how its messages ended."""
    if not group.tracked:
        return
    tables = {tx_id: message_binding(topology, tx_id) for tx_id in sorted(group.tracked)}
    tables[""] = dead_letter_binding(topology, group.name)
    group.bindings += tables.values()
    group.message_tables = {key: binding.name for key, binding in tables.items()}


def group_members(graph: TopologyGraph) -> dict[str, list[str]]:
    """Group name → the tx_ids of its streams."""
    return {name: sorted(node.tx_id for node in sources(nodes)) for name, nodes in sorted(_groups(graph).items())}


def group_of_states(graph: TopologyGraph) -> dict[str, str]:
    """State name → the group that writes it."""
    return {
        node.writes.name: name for name, nodes in _groups(graph).items() for node in nodes if node.writes is not None
    }


def _groups(graph: TopologyGraph) -> dict[str, list[Node]]:
    """Connected components: streams that meet anywhere are one batch group. DRPC streams are in none."""
    root: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while root.setdefault(node, node) is not node:
            node = root[node]
        return node

    batched = [node for node in graph.nodes if graph.origins[node] is None]
    for node in batched:
        for other in (*node.parents, *node.links):
            root[find(node)] = find(other)
    members: dict[Node, list[Node]] = {}
    for node in batched:  # in the order of creation: parents first
        members.setdefault(find(node), []).append(node)
    return {min(node.tx_id for node in sources(nodes)): nodes for nodes in members.values()}


def _group_plan(name: str, nodes: list[Node], tracking: bool) -> GroupPlan:
    tables = {node.table_of: node.writes for node in nodes if node.table_of is not None and node.writes is not None}
    sinks = {node: node.writes for node in nodes if node.writes is not None and node.table_of is None}
    targets = [*sinks, *_dangling(nodes)]
    if not targets:
        raise TopologyError(
            f"stream {name!r} leads nowhere",
            found="no state and no Python function behind it",
            expected="partition_persist or persistent_aggregate",
        )
    used = list(nodes_above(targets, nodes))
    lonely = [node.tx_id for node in sources(nodes) if node not in used]
    if lonely:
        raise TopologyError(f"stream {lonely[0]!r} leads nowhere", expected="an operation that uses it")
    tracked = [node for node in sources(used) if tracking and is_rich_spout(node.spout)]
    return GroupPlan(
        name=name,
        nodes=used,
        bindings=[*sinks.values(), *tables.values()],
        lowered=lower(used, targets, tracked),
        spout_tables=tables,
        tracked=frozenset(node.tx_id for node in tracked),
    )


def _dangling(nodes: Collection[Node]) -> list[Node]:
    """Ends of streams that no state takes, but whose Python functions are to be called all the same."""
    parents = {parent for node in nodes for parent in node.parents}
    return [node for node in nodes if node not in parents and node.writes is None and _calls_python(node)]


def _calls_python(end: Node) -> bool:
    """Tells whether the node itself or one between it and the last shared node calls a user's function."""
    seen, waiting = {end}, [end]
    while waiting:
        node = waiting.pop()
        if node.calls_user:
            return True
        if node.is_called_through:
            fresh = set(node.parents) - seen
            seen |= fresh
            waiting += fresh
    return False


def nodes_above(targets: Sequence[Node], nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes that the targets need, parents first."""
    needed = {node for target in targets for node in above(target)}
    return (node for node in nodes if node in needed)
