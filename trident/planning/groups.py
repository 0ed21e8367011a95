"""The batch groups of a topology: the plan of each batch, whether it can be kept, and the id of its code.

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

import functools
import hashlib
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from trident.coordinators.errors import TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.planning.compiled import BuiltBatch, LoweredPlan, arrow_plan
from trident.planning.lowering import late_nodes, lower, shard_keys
from trident.planning.nodes import Node, TopologyGraph, above, result_of, sources
from trident.planning.operation import Operation
from trident.planning.session_frames import Batch, compute_and_count
from trident.spouts.rich import is_rich_spout
from trident.states.core.binding import StateBinding
from trident.states.publishing.dead_letters import dead_letter_binding, message_binding
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import ArrowPlan

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
        self, inputs: Mapping[str, "DataFrame"], info: BatchInfo, stored: Stored, rows: int | None = None
    ) -> BuiltBatch:
        """The rows to stage for states that are read in the transaction's turn, and for those behind them.

        Args:
            inputs: boundary name → the rows that were staged for it.
            stored: gives a state's keys and values as of the transaction before.
            rows: how many there are in all inputs; None: few.
        """
        session = next(iter(inputs.values())).sparkSession
        return self.compiled(session).build_late(inputs, Batch(info, stored, rows=rows))

    @cached_property
    def late_on_arrow(self) -> ArrowPlan | None:
        """The late part over Arrow, with local copies of states; None where it is left to Spark."""
        found = arrow_plan(self.lowered.late_segments, self._boundary_names)
        return found if found is not None and found.states else None

    @property
    def copied_states(self) -> frozenset[str]:
        """The states that are looked up in their local copies."""
        return frozenset() if self.late_on_arrow is None else self.late_on_arrow.states

    @cached_property
    def shard_keys(self) -> Mapping[str, tuple[str, ...] | None] | None:
        """See ``lowering.shard_keys``."""
        late = late_nodes(self.nodes)
        return shard_keys([node for node in self.nodes if node in late], self.lowered.boundaries)

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
            found="no state and no Python function after it",
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


# Decides which early plans can be kept from batch to batch, as far as that shows before a session (no Spark here).


# Functions of Spark whose value is fixed when a plan is made, or differs from plan to plan. The session decides
# (java/trident/kept/KeptPlan.java); this is to say so in `explain`.
_FIXED = re.compile(
    r"\b(current_\w+|curdate|now|localtimestamp|rand\w*|uuid\w*|shuffle|user|session_user"
    r"|monotonically_increasing_id|spark_partition_id|input_file_name)\(|\bunix_timestamp\(\)",
    re.IGNORECASE,
)


def why_not_kept(plan: GroupPlan) -> str | None:
    """Why the plan of a group's early part is made anew for each batch; None: it is kept where the session agrees."""
    lowered = plan.lowered
    if plan.spout_tables:
        return "a spout writes a table of its own"
    targets = [segment.target for segment in lowered.segments]
    if not lowered.checkpointed.isdisjoint(targets):
        return "several branches use rows that are computed once"
    taken = lowered.boundaries.keys() | lowered.shared | lowered.single_use
    if any(target.output_name is None and target not in taken for target in targets):
        return "a branch ends in a function without a state"
    for op in _ops(plan):
        if getattr(op, "per_batch", False):
            return f"{op.describe()} is given the batch"
        if _FIXED.search(op.describe()):
            return f"{op.describe()}: its value is fixed when a plan is made"
    return None


def is_one_job(plan: GroupPlan) -> bool:
    """Tells whether both parts of a small batch can be one Spark job in the batch's turn, where the session agrees.

    Not so of tracked messages: a job that gives up has written its ledger, and the one after it would write another
    beside it, whose ids would cancel the first one's.
    """
    on_arrow = plan.late_on_arrow is not None and not plan.tracked
    return on_arrow and len(plan.lowered.boundaries) == 1 and why_not_kept(plan) is None


def _ops(plan: GroupPlan) -> Iterator[Operation]:
    return (op for segment in plan.lowered.segments for op in segment.ops)


# Builds a whole batch, early part and late part, in one session: nothing is staged, so nothing is left behind.


# So few rows are one Spark partition behind a boundary: about those that a running topology reads from 8 MB of files.
_SMALL_ROWS = 100_000


def plan_of_stream(name: str, node: Node, nodes: Sequence[Node]) -> GroupPlan:
    """The plan of the nodes above a stream, whose rows it gives under :data:`RESULT`; no state takes any.

    Args:
        name: of the plan, for messages.
        nodes: of the topology, parents first.
    """
    result = result_of(node)
    used = [*nodes_above([node], nodes), result]
    # The states that it goes on from are computed as in their topology.
    return GroupPlan(name=name, nodes=used, lowered=lower(used, [result, *(one for one in used if one.writes)]))


class ReadState(NamedTuple):
    """A state that a batch reads as of the transaction before, and the first node that does."""

    binding: StateBinding
    node: Node


def states_read(nodes: Iterable[Node]) -> dict[str, ReadState]:
    """The states that some nodes read, by name."""
    found: dict[str, ReadState] = {}
    for node in nodes:
        if node.late:
            read = node.queried_state or node.writes or next((one.writes for one in node.parents if one.writes), None)
            if read is not None:
                found.setdefault(read.name, ReadState(read, node))
    return found


def build_whole(plan: LoweredPlan, inputs: Mapping[str, "DataFrame"], info: BatchInfo, stored: Stored) -> BuiltBatch:
    """The rows that a batch has for every state, and for every caller's end, of both parts.

    A running topology stages the rows between the two parts; here they are kept in the session until the result is
    released. They are the same rows in the same order.

    Args:
        inputs: tx_id → the batch, one at least.
        info: for users' own code.
        stored: gives a state's keys and values as of the transaction before.

    Returns:
        name → rows; release it once they are no longer read.
    """
    compiled, lowered = plan.compiled(next(iter(inputs.values())).sparkSession), plan.lowered
    built = compiled.build(inputs, info)
    if not lowered.late_segments:
        return built
    try:
        between, rows = dict[str, "DataFrame"](), 0
        for boundary in lowered.boundaries.values():
            between[boundary.name], count = _kept(built.pop(boundary.name), built.checkpoints)
            rows += count
        late = compiled.build_late(between, Batch(info, stored, rows=rows))
        built.checkpoints += late.checkpoints
        built.update({one.name: between[one.name] for one in lowered.boundaries.values() if not one.own})
        built.update(late)
    except BaseException:
        built.release()
        raise
    return built


def _kept(rows: "DataFrame", kept: list["DataFrame"]) -> tuple["DataFrame", int]:
    """The rows between the parts, computed once, few of them in one Spark partition; and how many there are."""
    checkpoint, count = compute_and_count(rows, kept)
    return checkpoint.coalesce(1) if count <= _SMALL_ROWS else checkpoint, count


# Tells the code of a batch group from other code: a hash that is kept with each of its transactions.


_OWN = str(Path(__file__).resolve().parents[1])
_STEPS_MAX, _PARTS_MAX = 4, 200


def code_id(plan: GroupPlan) -> str:
    """A hash of the group's definition and of this package's version; sixteen hexadecimal digits.

    The definition is its nodes with their fields, and the text of the files (or cells of a notebook) in which the
    topology is built and in which the functions and classes are that it names. So an edit of such a file changes it,
    even of a comment; an edit of a module that these import does not.
    """
    digest = hashlib.sha256(_version().encode())
    files: set[str] = set()
    for node in plan.nodes:
        fields = [f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields]
        digest.update("\0".join([type(node).__name__, node.operation, *fields, "\n"]).encode("utf-8", "replace"))
        files |= {node.location.rpartition(":")[0], *_files_of(vars(node), _STEPS_MAX)}
    for file in files:
        linecache.checkcache(file)  # a file that this process has run before, and that was edited since
    texts = ("".join(linecache.getlines(file)) for file in sorted(files))
    for text in sorted(filter(None, texts)):  # by their texts: a folder that is moved is the same code
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()[:16]


def _version() -> str:
    try:
        return version("trident-spark")
    except PackageNotFoundError:  # run from its sources
        return ""


def _files_of(value: Any, steps: int) -> Iterator[str]:
    """The files of the user's functions and classes that an object of a plan leads to."""
    if steps == 0:
        return
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for each in islice(value, _PARTS_MAX):
            yield from _files_of(each, steps - 1)
        return
    function = getattr(value, "__func__", value)
    if inspect.isfunction(function):
        file = function.__code__.co_filename
        if not file.startswith(_OWN):
            yield file
            with suppress(ValueError):  # a variable that has no value yet
                yield from _files_of(list(inspect.getclosurevars(function).nonlocals.values()), steps - 1)
            return
    kind = value if isinstance(value, type) else type(value)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    if kind.__module__ in ("builtins", "pyspark") or kind.__module__.startswith("pyspark."):
        return
    if file and not file.startswith(_OWN):
        yield file
    elif kind.__module__.startswith("trident.") and hasattr(value, "__dict__"):
        # An object of this package's around the user's function.
        yield from _files_of({name: part for name, part in vars(value).items() if name != "parents"}, steps - 1)
