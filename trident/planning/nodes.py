"""The one kind of node: a step of a stream, which lowers itself; nodes of requests and results; a topology's graph.

A node knows its parents and its fields and never changes, so a stream may be
used by several branches. It says itself what it reads and which operations it
becomes; the planner treats all nodes alike, and never asks a stream. The nodes
of each family of operations stand in trident/operations/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, Union

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.planning.operation import ANCHORS_FIELD, Fields, SegmentBuilder
from trident.states.core.binding import StateBinding
from trident.states.core.names import check_name, folded
from trident.udf.signatures import call_site
from trident.udf.types import check_distinct, did_you_mean, parse_outputs
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Step


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A step of a stream.

    A new operation is a subclass with ``reads`` and ``lower``. The properties
    have the values of an operation that looks at each row alone and calls no
    function of the user's; a subclass says where it differs.

    Attributes:
        parents: the nodes whose rows it takes.
        schema: its fields; every one nullable.
        operation: its name in plans and messages.
        location: "file:line" of the call that made it.
    """

    parents: tuple["Node", ...]
    schema: StructType
    operation: str
    location: str = field(default_factory=call_site)

    def __post_init__(self) -> None:
        # The columns that plans add beside the user's are named so.
        taken = [name for name in self.schema.names if folded(name).startswith("__trident")]
        if taken:
            raise FieldError(
                f"a field of {self.operation} has a name that is kept for the framework",
                found=", ".join(taken),
                expected="a name that does not begin with __trident",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    # --- how it becomes operations -------------------------------------------------------

    def reads(self, parent: "Node", live: frozenset[str]) -> frozenset[str]:
        """The parent's fields that it needs when only its live fields are read behind it."""
        raise AssertionError(f"{type(self).__name__} has no reads")

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Pushes its operations.

        Args:
            live: of its fields, those that are read behind it.
        """
        raise AssertionError(f"{type(self).__name__} has no lower")

    def fields_left(self, live: frozenset[str]) -> Fields:
        """The columns of a segment that ends at the node."""
        return tuple(field for field in (*self.schema.fields, ANCHORS_FIELD) if field.name in live)

    def fields_begun(self, live: frozenset[str]) -> Fields:
        """The columns of a segment that begins at the node."""
        return self.fields_left(live)

    def aggregates_for(self, node: "Node") -> bool:
        """Tells whether its rows are already those that an aggregate behind it is to make."""
        return False

    # --- for the planner -----------------------------------------------------------------

    @property
    def links(self) -> tuple["Node", ...]:
        """Nodes that it belongs together with although no rows come from them."""
        return ()

    @property
    def late(self) -> bool:
        """Tells whether it reads a state of its batch group, so that it runs in the transaction's turn."""
        return False

    @property
    def repeatable(self) -> bool:
        """Tells whether computing it again on the same rows gives the same rows, in the same order."""
        return True

    @property
    def calls_user(self) -> bool:
        """Tells whether it calls a function of the user's: then it is computed even when no state takes its rows."""
        return False

    @property
    def is_called_through(self) -> bool:
        """Tells whether an end behind it is computed for the sake of a user's function above it."""
        return True

    @property
    def joins(self) -> bool:
        """Tells whether it may have several parents: then the first of its operations is a MultiInputOp."""
        return False

    @property
    def keeps_all_fields(self) -> bool:
        """Tells whether all of its fields are needed, whatever is read behind it."""
        return False

    @property
    def passes_anchors(self) -> bool:
        """Tells whether its rows can have the anchors of those that they are made of (trident.workers.anchors)."""
        return False

    @property
    def takes_anchors(self) -> bool:
        """Tells whether it calls a function that may fail for a row, so that it needs the anchors of its rows."""
        return False

    # --- Spark partitions ----------------------------------------------------------------

    @property
    def row_by_row(self) -> bool:
        """Tells whether its rows are in the Spark partitions of those that they are made of."""
        return True

    @property
    def gathers(self) -> bool:
        """Tells whether its rows are all in one Spark partition."""
        return False

    @property
    def together(self) -> tuple[str, ...] | None:
        """The fields of its parents' rows: rows with equal values of them must be in one task; (): any; None: all rows.

        That of a node which runs in the transaction's turn, where that can be several tasks.
        """
        return () if self.row_by_row and not self.per_partition else None

    @property
    def sees_all(self) -> bool:
        """Tells whether several tasks each see all of its parents' rows, and go on with those of their own keys.

        Something that it gives depends on all rows of a batch, such as a watermark.
        """
        return False

    @property
    def places_rows(self) -> bool:
        """Tells whether it follows a hint about Spark partitions by itself."""
        return False

    @property
    def parallelism(self) -> int | None:
        """The number of Spark partitions that it wants its rows to be in; None: not said."""
        return None

    @property
    def per_partition(self) -> bool:
        """Tells whether every Spark partition of its rows must exist, also an empty one."""
        return False

    # --- where its rows go ---------------------------------------------------------------

    @property
    def writes(self) -> StateBinding | None:
        """The state that it writes to."""
        return None

    @property
    def table_of(self) -> str | None:
        """The tx_id of the spout whose emitter gives the rows that it writes; None: the stream does."""
        return None

    @property
    def queried_state(self) -> StateBinding | None:
        """The state of the topology in which it looks up rows."""
        return None

    @property
    def output_name(self) -> str | None:
        """The name under which a batch gives its rows to the caller; None: no caller takes them."""
        return None if self.writes is None else self.writes.name

    def output(self, frame: "DataFrame") -> "DataFrame":
        """Of the columns of its segment, those that the caller takes."""
        return frame

    @property
    def output_step(self) -> Step | None:
        """The same as ``output`` over Arrow, where that is a part of the rows; None: the rows as they are."""
        return None

    @property
    def is_stream(self) -> bool:
        """Tells whether its rows, with the fields of its schema, are those of a stream that a user has."""
        return self.writes is None

    # --- for checks and plans ------------------------------------------------------------

    def carried(self, side: int, field: str) -> str | None:
        """The name under which a field of its parent ``side`` goes on; None when it ends here."""
        return field if field in self.names else None

    @property
    def ends_watermark(self) -> bool:
        """Tells whether the stream behind it has no watermark, whatever it had before."""
        return False

    @property
    def drawn_as(self) -> str:
        """ "spout", "Python", "Spark", "repartition" or "state": its look in a picture of the plan."""
        return "Python" if self.calls_user else "Spark"

    def notes(self) -> Iterator[str]:
        """The notes about it that ``explain`` gives to the user."""
        return iter(())


def above(node: Node) -> Iterator[Node]:
    """The node and all that its rows come from, each once, children first."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        yield one
        for parent in one.parents:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceNode(Node):
    """A stream's spout."""

    row_by_row = False
    is_called_through = False
    drawn_as = "spout"

    tx_id: str
    spout: Any

    def fields_begun(self, live: frozenset[str]) -> Fields:
        """All fields of the spout; of a stream whose messages are tracked the anchors too."""
        return (*self.schema.fields, ANCHORS_FIELD) if ANCHORS in live else tuple(self.schema.fields)


def is_source(node: Node) -> TypeGuard[SourceNode]:
    return isinstance(node, SourceNode)


def sources(nodes: Iterable[Node]) -> list[SourceNode]:
    """Those of the nodes that are spouts."""
    return [node for node in nodes if is_source(node)]


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputsNode(Node):
    """A node that makes fields, behind those of its parent or in their place."""

    outputs: tuple[str, ...] = ()

    def carried(self, side: int, field: str) -> str | None:
        return field if field in self.names and field not in self.outputs else None


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupingNode(Node):
    """An aggregate of the batch, or of each group of it.

    Attributes:
        keys: the grouping fields; the only ones that go on.
    """

    row_by_row = False

    keys: tuple[str, ...]

    @property
    def gathers(self) -> bool:
        return not self.keys

    @property
    def together(self) -> tuple[str, ...] | None:
        return self.keys or None

    def carried(self, side: int, field: str) -> str | None:
        return field if field in self.keys else None


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiInputNode(Node):
    """An operation with several parents: the first of its operations is a MultiInputOp."""

    joins = True
    row_by_row = False


def joined(nodes: Iterable[Node]) -> set[Node]:
    """The nodes whose rows meet others in an operation with several parents."""
    return {parent for node in nodes if node.joins for parent in node.parents}


# --- fields ------------------------------------------------------------------------------

Names = Union[str, Sequence[str]]


def field_names(given: object, what: str) -> tuple[str, ...]:
    """ "a", "a, b" or ["a", "b"] as a tuple of names."""
    if isinstance(given, str):
        names = tuple(name.strip() for name in given.split(","))
    elif isinstance(given, Iterable) and all(isinstance(name, str) for name in given):
        names = tuple(given)
    else:
        raise FieldError(f"{what} takes field names", found=repr(given), expected="'a', 'a, b' or ['a', 'b']")
    check_distinct(names, f"the fields of {what}")
    return names


def require_fields(names: Iterable[str], schema: StructType, what: str) -> None:
    """Raises FieldError for a name that is not a field, with the fields there are and the nearest."""
    for name in names:
        if name not in schema.names:
            raise FieldError(
                f"{what} uses a field that does not exist",
                found=repr(name),
                expected=f"one of {', '.join(schema.names)}",
                action=did_you_mean(name, schema.names) if isinstance(name, str) else "give the name as text",
            )


def appended(schema: StructType, outputs: Iterable[tuple[str, DataType]], what: str) -> StructType:
    """The schema with new fields behind.

    Raises:
        FieldError: one exists already.
    """
    existing = {folded(name): name for name in schema.names}
    fields = []
    for name, kind in outputs:
        if folded(name) in existing:
            raise FieldError(
                f"{what} makes a field that exists already",
                found=repr(existing[folded(name)]),
                expected=f"a name that is not one of {', '.join(schema.names)}",
                action="choose another name, or use map or project to drop the earlier field",
            )
        fields.append(StructField(name, kind, True))
    return StructType([*schema.fields, *fields])


def check_given_type(name: str, given: DataType | None, actual: DataType, what: str) -> None:
    """Raises OutputTypeError when an output's type is given, and is not the one that is known."""
    if given is not None and given != actual:
        raise OutputTypeError(
            f"output {name!r} of {what} has another type",
            found=actual.simpleString(),
            expected=given.simpleString(),
            action="leave the type out",
        )


def picked(schema: StructType, names: Iterable[str]) -> StructType:
    return StructType([schema[name] for name in names])


# The rows of a stream for a caller, instead of for a state.
#
# A target of its own: the planner lowers up to it as to a state, and
# ``GroupPlan.build`` gives its rows under :data:`RESULT`. It is never part of a
# topology; a caller that wants the rows plans the nodes above a stream with it.


# The name of the rows among a batch's frames; no state can have it.
RESULT = "__trident_result"


@dataclass(frozen=True, eq=False, kw_only=True)
class ResultNode(Node):
    """The end of a stream whose rows are given back: all fields, in their order."""

    keeps_all_fields = True
    output_name = RESULT

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Nothing to do: the segment ends here, with the fields in order."""


def result_of(node: Node) -> ResultNode:
    """The end behind a stream's node."""
    return ResultNode(parents=(node,), schema=node.schema, operation="result", location=node.location)


# The sources of DRPC streams in a topology, and the operations that cannot stand below them (docs/semantics.md 4).
#
# A DRPC stream's source has no spout: its batches are requests. It belongs to no
# batch group, has no transactions and therefore no committers, and its rows can
# meet those of no other source, whose batches are others than its requests.


@dataclass(frozen=True, eq=False, kw_only=True)
class DrpcNode(SourceNode):
    """The source of a DRPC stream. Its batch is one row: the arguments of a request."""

    spout: Any = None

    @property
    def function(self) -> str:
        """The name that requests call."""
        return self.tx_id


Origins = Mapping[Node, "DrpcNode | None"]
"""Each node of a topology, and the DRPC source above it; None: its rows are those of batches."""


def drpc_node(function: str, fields: Any, known: Mapping[str, DrpcNode]) -> DrpcNode:
    """The source for a function.

    Args:
        known: the functions that the topology has.

    Raises:
        TopologyError: the name is taken or cannot be used.
        OutputTypeError: an argument has no type.
    """
    check_name("function", function)
    if function in known:
        raise TopologyError(
            f"the topology has a DRPC stream {function!r} already",
            found=f"the one at {known[function].location}",
            action="choose another name",
        )
    schema = StructType()
    for name, type_ in parse_outputs(fields):
        if type_ is None:
            raise OutputTypeError(
                f"the type of argument {name!r} of function {function!r} is not known", expected=f"'{name} string', say"
            )
        schema.add(StructField(name, type_, True))
    return DrpcNode(parents=(), schema=schema, operation=f"drpc {function}", tx_id=function)


def origin_of(node: Node, origins: Origins) -> DrpcNode | None:
    """The DRPC source above a new node; None: its rows are those of batches.

    Raises:
        TopologyError: several sources meet in it.
    """
    if isinstance(node, DrpcNode):
        return node
    found = list(dict.fromkeys(origins.get(parent) for parent in node.parents))
    if len(found) > 1:
        raise TopologyError(
            f"{node.operation} mixes rows of a request with others",
            found=" and ".join(
                "a stream of batches" if one is None else f"DRPC stream {one.function!r}" for one in found
            ),
            expected="streams of one DRPC function, or streams of spouts",
            action="let the one write a state and the other query it: state_query",
        )
    return found[0] if found else None


def no_committer(origin: DrpcNode, what: str) -> TopologyError:
    """The error for an operation that needs transactions, below a DRPC source."""
    return TopologyError(
        f"{what} cannot stand below DRPC stream {origin.function!r}: no committer below it",
        found="a request, which is no transaction: it has no txid and commits nothing",
        expected="operations that change no state",
        action="write to states from streams of spouts, and ask them with state_query",
    )


# The graph of a topology: its nodes, sources and states, as the user's calls made them; planner and runner read it.


class Built(Protocol):
    """A topology as the user's calls have built it: a ``TridentTopology``, which stands above."""

    name: str
    graph: TopologyGraph


@dataclass(eq=False)
class TopologyGraph:
    """The nodes of a topology, and its sources, states and functions; each call of the user adds to it.

    Attributes:
        nodes: in the order of the user's calls: parents first.
        sources: tx_id → the node that a spout's rows come from.
        functions: DRPC function → the node that its requests come from.
        sinks: state name → the node that writes to it.
        origins: node → the DRPC source above it; None: its rows are those of batches.
        open_chains: chained aggregation without its ``chain_end()`` → "file:line" of the call that began it.
        kept_rows: windows whose state is there already, and has rows: it goes on as it is.
        window_names: of the windows that calls have made; those of sessions have no node before their keys are known.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    sources: dict[str, SourceNode] = field(default_factory=dict)
    functions: dict[str, DrpcNode] = field(default_factory=dict)
    sinks: dict[str, Any] = field(default_factory=dict)
    origins: dict[Node, DrpcNode | None] = field(default_factory=dict)
    open_chains: dict[Any, str] = field(default_factory=dict)
    kept_rows: set[str] = field(default_factory=set)
    window_names: set[str] = field(default_factory=set)

    def add(self, node: Node) -> None:
        """Adds a node, behind those of its parents that are new; one that is there stays where it is.

        Raises:
            TopologyError: rows of a request would meet others.
        """
        if node in self.origins:
            return
        for parent in node.parents:
            self.add(parent)
        self.origins[node] = origin_of(node, self.origins)
        self.nodes.append(node)

    def add_source(self, node: SourceNode) -> None:
        """Adds the source of a stream, of batches or of requests."""
        self.add(node)
        if isinstance(node, DrpcNode):
            self.functions[node.function] = node
        else:
            self.sources[node.tx_id] = node

    def add_sink(self, sink: Any) -> None:
        """Adds a node that writes to a state.

        Raises:
            TopologyError: another node writes to that state, or it is below a DRPC stream.
        """
        binding, other = sink.binding, self.sinks.get(sink.binding.name)
        if other is not None and other.binding.state_kind is not binding.state_kind:
            raise TopologyError(
                f"state {binding.name!r} is used as two kinds",
                found=f"{other.binding.state!r} at {other.location} and {binding.state!r} at {sink.location}",
                expected="one state of one name",
                action="give one of them another name",
            )
        if other is not None:
            raise TopologyError(
                f"state {binding.name!r} is written twice",
                found=f"{other.operation} at {other.location} and {sink.operation} at {sink.location}",
                expected="one operation that writes to a state",
                action="give one of them another state",
            )
        for parent in sink.parents:
            self.check_commits(parent, sink.operation)
        kind, sinks = binding.state_kind, self.sinks.values()
        kind.check_together(binding.state, [one.binding.state for one in sinks if one.binding.state_kind is kind])
        self.add(sink)
        self.sinks[binding.name] = sink

    def check_commits(self, node: Node, operation: str) -> None:
        """Raises TopologyError for an operation that needs transactions below a DRPC stream: a request is none."""
        origin = self.origins.get(node)
        if origin is not None:
            raise no_committer(origin, operation)

    def check_chains(self) -> None:
        """Raises TopologyError for a chained aggregation that was not ended."""
        for chain, location in self.open_chains.items():
            raise TopologyError(
                "a chained aggregation was left open",
                found=f"{chain!r} at {location}",
                expected="chain_end() after its last link",
            )

    def check_order(self) -> None:
        """Raises TopologyError for a cycle: streams are made of earlier ones, so only one made by hand closes it."""
        known: set[Node] = set()
        for node in self.nodes:
            for other in (*node.parents, *node.links):
                if other not in known:
                    raise TopologyError(
                        "the topology has a cycle",
                        found=f"{node.operation} at {node.location} depends on {other.operation}, which comes later",
                        expected="operations on streams that there are already",
                    )
            known.add(node)
