"""The nodes of windows: what a window keeps, decided by the operations behind it, and what it gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Union

from pyspark.sql import DataFrame

from trident.operations.aggregates import AggregateNode
from trident.operations.aggregation import Aggregation
from trident.operations.chained import NativeChainNode
from trident.operations.state_writes import PersistNode
from trident.operations.window_changes import SessionSpec
from trident.operations.window_combiners import push_parts
from trident.operations.window_ops import TaggedOp, WindowOp, of_state, window_fields
from trident.operations.window_parts import KeptParts, OpenWindowsOp, PanesOp, of_fired, of_late, why_no_parts
from trident.operations.window_spec import Unit, WindowSpec
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node
from trident.planning.operation import Fields, names_of
from trident.states.core.binding import StateBinding
from trident.workers.chain import Step
from trident.workers.open_windows import FIRED, LATE, STATE, Given

WINDOW = "window"
Clock = Callable[[], int]


def now_us() -> int:
    """The time of this machine; microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowNode(PersistNode):
    """Keeps what open windows hold, and gives what is fired and the rows that come too late.

    Attributes:
        binding: of the state as it is where rows are kept; ``writes`` is the one that there is.
        graph: of the topology: the operations behind decide what is kept.
        clock: of processing time; microseconds since 1970.
    """

    ends_watermark = True

    spec: Union[WindowSpec, SessionSpec]
    graph: TopologyGraph
    clock: Clock = now_us

    @property
    def kept(self) -> KeptParts | str:
        """The parts that are kept; or why rows are."""
        found = _parts_behind(self)
        return found if isinstance(found, str) else why_no_parts(found) or found

    @property
    def writes(self) -> StateBinding:
        kept = self.kept
        return self.binding if isinstance(kept, str) else kept.binding(self.binding.name)

    def fields_left(self, live: frozenset[str]) -> Fields:
        kept = self.kept
        return window_fields(self.binding) if isinstance(kept, str) else kept.given_fields

    def output(self, frame: "DataFrame") -> "DataFrame":
        return of_state(frame, self.writes)

    @property
    def output_step(self) -> Step | None:
        return Given(STATE, tuple((name, name) for name in self.writes.log_schema.names))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = self.kept
        if not isinstance(kept, str):
            builder.push(OpenWindowsOp(kept.given_fields, kept, self.writes, builder.computed))
            return
        assert isinstance(self.spec, WindowSpec), "sessions keep parts"
        fields = window_fields(self.binding)
        builder.push(WindowOp(fields, self.binding, self.spec, self.clock, builder.computed))

    def notes(self) -> Iterator[str]:
        kept = self.kept
        yield f"stores rows: {kept}" if isinstance(kept, str) else kept.text


@dataclass(frozen=True, eq=False, kw_only=True)
class PanesNode(Node):
    """The parts of a batch, where its window keeps parts; else the batch as it is."""

    row_by_row = False
    is_stream = False

    graph: TopologyGraph

    @property
    def _kept(self) -> KeptParts | str:
        (window,) = _behind(self.graph, self)
        assert isinstance(window, WindowNode)
        return window.kept

    @property
    def calls_user(self) -> bool:
        kept = self._kept
        return not isinstance(kept, str) and kept.calls_user

    @property
    def repeatable(self) -> bool:
        return not self.calls_user

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        kept = self._kept
        return frozenset(parent.names) if isinstance(kept, str) else kept.reads

    def fields_left(self, live: frozenset[str]) -> Fields:
        kept = self._kept
        return super().fields_left(live) if isinstance(kept, str) else kept.pane_fields

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = self._kept
        if isinstance(kept, str):
            return
        if kept.calls_user:
            push_parts(builder, kept)
        else:
            builder.push(PanesOp(kept.pane_fields, kept))


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowRowsNode(Node):
    """Rows that a WindowNode gives: those of fired windows, or late ones."""

    late = True
    fired: bool = True

    @property
    def window(self) -> WindowNode:
        (window,) = self.parents
        assert isinstance(window, WindowNode)
        return window

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    @property
    def is_stream(self) -> bool:
        return not self.aggregates_for(self)

    def aggregates_for(self, node: Node) -> bool:
        kept = self.window.kept
        return self.fired and not isinstance(kept, str) and not kept.rows

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        window, kept = self.window, self.window.kept
        fields = tuple(field for field in self.schema.fields if field.name in live)
        if isinstance(kept, str):
            assert isinstance(window.spec, WindowSpec), "sessions keep parts"
            builder.push(TaggedOp(fields, FIRED if self.fired else LATE, window.spec))
        elif not self.fired:
            builder.push(of_late(kept, fields))
        elif kept.rows:
            builder.push(of_fired(kept, fields, ()))
        else:
            (node,) = _behind(window.graph, self)
            builder.push(of_fired(kept, tuple(node.schema.fields), _outputs_of(node, window)))


# --- what is kept ------------------------------------------------------------------------


def _behind(graph: TopologyGraph, node: Node) -> list[Node]:
    return [one for one in graph.nodes if node in one.parents]


def _aggregations_of(node: Node) -> tuple[Aggregation, ...]:
    """The native aggregates and combiners that a node makes; none where it makes others, or something else."""
    if isinstance(node, AggregateNode) and node.aggregation.kind in ("native", "combiner"):
        return (node.aggregation,)
    return node.members if isinstance(node, NativeChainNode) else ()


def _outputs_of(node: Node, window: WindowNode) -> list[tuple[str, str]]:
    """The fields of an aggregate, and the parts that they are."""
    kept = window.kept
    assert isinstance(kept, KeptParts)
    parts = dict(zip(map(id, kept.aggregations), names_of(kept.part_fields)))
    return [(one.outputs[0].name, parts[id(one)]) for one in _aggregations_of(node)]


def rows_once_more(graph: TopologyGraph, node: Node) -> Node:
    """The node whose rows one more aggregate takes: a new one where the rows of windows have an aggregate already.

    So each aggregate of one grouping asks for parts of its own, as if it were behind a grouping of its own. The rows of
    sessions stay one node's: what a session that is stored holds may not change.
    """
    if not isinstance(node, WindowRowsNode) or not node.fired or isinstance(node.window.spec, SessionSpec):
        return node
    behind = _behind(graph, node)
    if not behind or not all(map(_aggregations_of, behind)):
        return node
    more = replace(node)
    graph.add(more)
    return more


def _parts_behind(window: WindowNode) -> KeptParts | str:
    """The parts that the operations behind a window ask for; or why they ask for rows."""
    spec, name, fields = window.spec, window.binding.name, window.parents[0].schema
    session = spec if isinstance(spec, SessionSpec) else None
    if isinstance(spec, WindowSpec) and spec.unit is not Unit.EVENT_TIME:
        return f"windows of {spec.unit.value} keep rows"
    if session is None and name in window.graph.kept_rows:
        return "an earlier version has stored rows"
    users = [node for node in _behind(window.graph, window) if isinstance(node, WindowRowsNode)]
    raws = tuple(fields.fields) if any(not node.fired for node in users) else ()
    own_keys = () if session is None else tuple(fields[key] for key in session.keys)
    rows = KeptParts(spec, own_keys, (), tuple(fields.fields), raws)

    def because(reason: str) -> KeptParts | str:
        return reason if session is None else rows

    behind = [_behind(window.graph, node) or [node] for node in users if node.fired]
    if any(len(found) > 1 for found in behind):
        return because("one grouping has several uses")
    ends = [end for found in behind for end in found]
    found = [_aggregations_of(end) for end in ends]
    if not ends or not all(found):
        what = next((end.operation for end, one in zip(ends, found) if not one), "no operation")
        return because(f"{what} needs them")
    aggregations = tuple(one for several in found for one in several)
    groups = {frozenset(one.keys) for one in aggregations}
    if len(groups) > 1:
        return because("they are grouped in more than one way")
    keys = tuple(key for key in aggregations[0].keys if key != WINDOW)
    inputs = [given for one in aggregations for given in one.inputs]
    if WINDOW in inputs or len(keys) == len(aggregations[0].keys):
        return because("they are not grouped by window")
    if session is not None and set(keys) != set(session.keys):
        return rows
    kept = KeptParts(spec, tuple(fields[key] for key in keys), aggregations, (), raws)
    if session is not None and kept.calls_user:
        return rows  # as those that are stored
    return rows if session is not None and why_no_parts(kept) is not None else kept
