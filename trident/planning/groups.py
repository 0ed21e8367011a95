"""From nodes to Spark: batch groups, live fields, fused passes.

Three layers, as in Trident: the user's calls made **nodes**; connected nodes
are a **batch group**, with a coordinator of its own; a group becomes, per
batch, DataFrames for its states. In between stands a pure description, the
*lowering*: a list of operations per state, where consecutive Python operations
stand side by side and become one ``mapInArrow`` pass.

Only fields that are read later are carried along ("live"): a word count hands
words to the JVM and not the lines that they came from.

A node that several branches use is computed once per batch and checkpointed,
if a Python function or a non-deterministic expression lies at or above it: the
branches must see the same rows; and if it costs a shuffle. A projection or
filter by Spark is computed by each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TopologyError
from trident.coordinators.transactions import TransactionAttempt
from trident.operations.aggregation import AggregateNode
from trident.operations.row_nodes import NativeNode, ProjectNode, PythonNode
from trident.operations.state_queries import StateQueryNode
from trident.operations.state_writes import PersistNode, SpoutTableNode
from trident.planning.graph import TopologyGraph
from trident.planning.lowering import Lowered, lower
from trident.planning.nodes import Node, OwnNode, SourceNode
from trident.spouts.rich import is_rich_spout
from trident.states.core.binding import StateBinding
from trident.states.publishing.dead_letters import dead_letter_binding, message_binding
from trident.states.publishing.user_tasks import BatchInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident.planning.compiled import CompiledGroup


Stored = Callable[[StateBinding, Any], "DataFrame"]


class BuiltBatch(dict):
    """State name → DataFrame of one attempt, with what was kept in memory for it."""

    def __init__(self, frames: Mapping[str, "DataFrame"], checkpoints: Sequence["DataFrame"]) -> None:
        super().__init__(frames)
        self.checkpoints = list(checkpoints)

    def release(self) -> None:
        """Frees the blocks of checkpoints, once the frames are no longer read. May be called again."""
        while self.checkpoints:
            frame = self.checkpoints.pop()
            frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


@dataclass
class GroupPlan:
    """How one batch group runs on Spark.

    Attributes:
        name: the group's: the smallest tx_id of its streams.
        spouts: tx_id → spout.
        bindings: what is written to which state.
        nodes: of the group, parents first.
        tables: of spouts that own one.
        tracked: streams whose messages are acknowledged one by one.
        message_tables: stream → the name of the table of its messages; "" → that of the dead letters; none
            where nothing is tracked.
    """

    name: str
    spouts: dict[str, Any]
    bindings: list[StateBinding]
    nodes: list[Node]
    _lowered: "Lowered" = field(repr=False)
    tables: list[SpoutTableNode] = field(default_factory=list)
    tracked: frozenset[str] = frozenset()
    message_tables: dict[str, str] = field(default_factory=dict)
    _compiled: "CompiledGroup | None" = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
            info: what users' own states are told; made of the attempt when None.
        """
        session = next(iter(inputs.values())).sparkSession
        return self._compile(session).build(inputs, info or BatchInfo(attempt))

    def build_late(self, inputs: Mapping[str, "DataFrame"], info: BatchInfo, stored: "Stored") -> BuiltBatch:
        """The rows to stage for states that are read in the transaction's turn, and for what is made of them.

        Args:
            inputs: boundary name → the rows that were staged for it.
            info: of the batch.
            stored: gives a state's keys and values as of the transaction before.
        """
        from trident.planning.compiled import Batch

        session = next(iter(inputs.values())).sparkSession
        return self._compile(session).build_late(inputs, Batch(info, stored))

    @property
    def is_late(self) -> bool:
        """Whether there is anything to do in the transaction's turn."""
        return bool(self._lowered.late_segments)

    @property
    def late_states(self) -> frozenset[str]:
        """The states that are staged by :meth:`build_late`."""
        targets = (segment.target for segment in self._lowered.late_segments)
        return frozenset(target.binding.name for target in targets if isinstance(target, PersistNode))

    @property
    def spout_tables(self) -> dict[str, StateBinding]:
        """tx_id → the table that its spout owns."""
        return {node.tx_id: node.binding for node in self.tables}

    @property
    def anchored(self) -> frozenset[str]:
        """The tracked streams whose rows need anchors: a function behind them may fail for a row."""
        return frozenset(node.tx_id for node in self._lowered.anchored if isinstance(node, SourceNode))

    def _compile(self, session: Any) -> "CompiledGroup":
        from trident.planning.compiled import CompiledGroup

        with self._lock:
            # What is compiled belongs to one SparkContext.
            if self._compiled is None or self._compiled.context is not session.sparkContext:
                self._compiled = CompiledGroup(self._lowered, session)
            return self._compiled

    @property
    def lowered(self) -> "Lowered":
        """The pure description, for ``explain``."""
        return self._lowered


def plan(graph: TopologyGraph, tracking: bool = True) -> list[GroupPlan]:
    """The batch groups of a topology, in the order of their names.

    Args:
        graph: of the topology.
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
    groups = sorted(_groups(graph).items())
    return {name: sorted(node.tx_id for node in nodes if isinstance(node, SourceNode)) for name, nodes in groups}


def group_of_states(graph: TopologyGraph) -> dict[str, str]:
    """State name → the group that writes it."""
    return {
        node.binding.name: name
        for name, nodes in _groups(graph).items()
        for node in nodes
        if isinstance(node, PersistNode)
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
    return {min(node.tx_id for node in nodes if isinstance(node, SourceNode)): nodes for nodes in members.values()}


def _group_plan(name: str, nodes: list[Node], tracking: bool) -> GroupPlan:
    tables = [node for node in nodes if isinstance(node, SpoutTableNode)]
    sinks = [node for node in nodes if isinstance(node, PersistNode) and node not in tables]
    targets = sinks + _dangling(nodes)
    if not targets:
        raise TopologyError(
            f"stream {name!r} leads nowhere",
            found="no state and no Python function behind it",
            expected="partition_persist or persistent_aggregate",
        )
    used = list(nodes_above(targets, nodes))
    lonely = [node.tx_id for node in nodes if isinstance(node, SourceNode) and node not in used]
    if lonely:
        raise TopologyError(f"stream {lonely[0]!r} leads nowhere", expected="an operation that uses it")
    spouts = {node.tx_id: node.spout for node in used if isinstance(node, SourceNode)}
    tracked = [node for node in used if isinstance(node, SourceNode) and tracking and is_rich_spout(node.spout)]
    lowered = lower(used, targets, tracked)
    bindings = [sink.binding for sink in [*sinks, *tables]]
    return GroupPlan(name, spouts, bindings, used, lowered, tables, frozenset(node.tx_id for node in tracked))


def _dangling(nodes: list[Node]) -> list[Node]:
    """Ends of streams that no state takes, but whose Python functions are to be called all the same."""
    parents = {parent for node in nodes for parent in node.parents}
    ends = [node for node in nodes if node not in parents and not isinstance(node, (PersistNode, SourceNode))]
    return [node for node in ends if calls_python(node)]


def calls_python(node: Node) -> bool:
    """Whether the node itself or one between it and the last shared node calls a user's function."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        if _calls_itself(one):
            return True
        if isinstance(one, (OwnNode, NativeNode, ProjectNode, AggregateNode)):
            fresh = set(one.parents) - seen
            seen |= fresh
            waiting += fresh
    return False


def _calls_itself(node: Node) -> bool:
    if isinstance(node, OwnNode):
        return node.calls_user
    if isinstance(node, StateQueryNode):
        return hasattr(node.query, "execute")
    return isinstance(node, PythonNode) or (isinstance(node, AggregateNode) and node.aggregation.kind != "native")


def nodes_above(targets: list[Node], nodes: list[Node]) -> Iterator[Node]:
    """The nodes that the targets need, parents first."""
    needed: set[Node] = set()
    waiting = list(targets)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.parents)
    return (node for node in nodes if node in needed)
