"""Lowers what runs in a transaction's turn: reading states, and writing those that are read first.

A late segment begins at a boundary, whose rows were staged when the batch was
processed, or at another late node. It may look a state up by key
(``JoinStateOp``, by Spark, as of the transaction before), go on from what was
found (in Python, or for native aggregates in Spark), or update a map of the
user's against a buffer (``arrow_states.UpdateMap``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField

from trident.operations.state_queries import StateQueryNode
from trident.operations.state_writes import NewValuesNode, PersistNode
from trident.operations.window_ops import lower_window, window_fields
from trident.operations.windows import WindowNode
from trident.planning.lowering import (
    DELETED,
    MARKER,
    ByKeyOp,
    CombineStoredOp,
    Fields,
    FilterOp,
    JoinStateOp,
    KeepRowsOp,
    Lowered,
    NativeAggregateOp,
    NotDeletedOp,
    OnePartitionOp,
    Op,
    Segment,
    SelectOp,
    Spread,
    _Maker,
    _picked,
    arrow_type,
    groups_step,
    meeting,
    others_of,
    path_to,
    segment_fields,
    spreads,
)
from trident.planning.nodes import MeetNode, Node
from trident.states.core.queries import TupleCollectionGet
from trident.states.publishing.user_tasks import KEY, PARTITION, STORED
from trident.workers.failures import Label
from trident.workers.states import SHOWN, UpdateMap

_FOUND = "__trident_found"
_STORED_PREFIX = "__trident_stored_"
MAP_FIELDS: Fields = (
    StructField(KEY, StringType(), True),
    StructField(STORED, StringType(), True),
    StructField(PARTITION, IntegerType(), True),
    StructField(SHOWN, BooleanType(), True),
)


def lower_late(
    lowered: Lowered, late: Sequence[Node], targets: Sequence[Node], live: dict[Node, frozenset[str]]
) -> Lowered:
    """Adds the late segments.

    Args:
        lowered: the early half.
        late: the late nodes, parents first.
        targets: states and dangling ends, of both halves.
        live: as :func:`trident.planning.lowering.live_fields`.
    """
    uses: dict[Node, int] = {}
    for node in late:
        for parent in node.parents:
            uses[parent] = uses.get(parent, 0) + 1
    # A state whose new values are used is computed once for both.
    shared = {
        node for node in late if uses.get(node, 0) > 1 or (isinstance(node, PersistNode) and uses.get(node, 0) > 0)
    }
    passing = {node for node in meeting(late) if node not in lowered.boundaries} - shared
    anchors = {*lowered.boundaries, *shared, *passing}
    spread = spreads(late)
    segments = [
        _late_segment(node, anchors, lowered, live, spread)
        for node in late
        if node in shared or node in passing or node in targets
    ]
    return replace(
        lowered,
        shared=lowered.shared | shared,
        checkpointed=lowered.checkpointed | shared,
        late_segments=tuple(segments),
        passing=lowered.passing | passing,
    )


def late_sink_fields(node: PersistNode) -> Fields:
    """What a late state's segment leaves: its log rows, or a map's updates with the stream of new values."""
    if isinstance(node, WindowNode):
        return window_fields(node.binding)
    if not node.binding.state_kind.updated_before_decision:
        return tuple(node.binding.log_schema.fields)
    if node.mode == "update":
        return (*node.new_values.fields, *MAP_FIELDS)
    return (*node.schema.fields, *MAP_FIELDS)


def _late_segment(
    target: Node, anchors: set[Node], lowered: Lowered, live: dict[Node, frozenset[str]], spread: Spread
) -> Segment:
    path, anchor = path_to(target, anchors)

    def fields_of(node: Node) -> Fields:
        if node in lowered.boundaries:
            return lowered.boundaries[node].fields
        return late_sink_fields(node) if isinstance(node, PersistNode) else tuple(_picked(node, live[node]))

    maker = _LateMaker(fields_of(anchor), spread)
    for node in path:
        if isinstance(node, MeetNode):
            maker.add_any(node, live, fields_of)
        else:
            maker.add_late(node, live)
    late_sink = isinstance(target, PersistNode) and target.mode is not None
    wanted = late_sink_fields(target) if late_sink else segment_fields(target, live)  # type: ignore[arg-type]
    maker.finish(wanted)
    return Segment(anchor, target, tuple(maker.ops), wanted, others_of(path))


class _LateMaker(_Maker):
    """Knows the operations that read states."""

    def add_late(self, node: Node, live: dict[Node, frozenset[str]]) -> None:
        if isinstance(node, StateQueryNode):
            self._query(node, live[node])
        elif isinstance(node, NewValuesNode):
            self._new_values(node)
        elif isinstance(node, WindowNode):
            lower_window(self, node)
        elif isinstance(node, PersistNode) and node.mode is not None:
            if node.binding.state_kind.updated_before_decision:
                self._update_map(node)
            else:
                self._go_on_from_stored(node)
        else:
            self.add(node, live)

    @property
    def _computed(self) -> bool:
        """Whether the rows come from more than reading a boundary: they must be computed only once, then."""
        return not all(isinstance(op, KeepRowsOp) or _repeats(op) for op in self.ops)

    # --- looking up ----------------------------------------------------------------------

    def _query(self, node: StateQueryNode, live: frozenset[str]) -> None:
        binding = node.state
        # A field that a project dropped may be made again, so it must be gone.
        read = (live - set(node.outputs)) | set(node.inputs)
        self._narrow(tuple(field for field in self._physical if field.name in read) or self._physical[:1])
        if node.writer is None:  # a static state
            self.query_own(node, live)
            return
        if binding.state_kind.users_code:
            # The row goes where its key is, so that one partition of the state answers.
            self.into_partitions(node.inputs, getattr(binding.state, "partitions", 1))
            self.query_own(node, live, PARTITION)
            return
        every = isinstance(node.query, TupleCollectionGet)
        stored = (*binding.keys, *binding.value_fields) if every else binding.value_fields
        made = tuple(node.schema[name] for name in node.outputs)
        self._push(
            JoinStateOp(
                binding,
                node.inputs,
                tuple(zip(stored, node.outputs)),
                None,
                every,
                self._computed,
                (*self._physical, *made),
            )
        )
        kept = tuple(field for field in node.schema.fields if field.name in live or field.name in node.outputs)
        self._push(SelectOp(tuple(field.name for field in kept), None, kept))

    def _join_stored(self, node: PersistNode) -> tuple[tuple[str, ...], Fields]:
        """Puts the stored values beside each row; returns their names and fields."""
        binding = node.binding
        fields = tuple(
            StructField(_STORED_PREFIX + str(number), binding.schema[name].dataType, True)
            for number, name in enumerate(binding.value_fields)
        )
        names = tuple(field.name for field in fields)
        found = StructField(_FOUND, BooleanType(), True)
        self._push(
            JoinStateOp(
                binding,
                binding.keys,
                tuple(zip(binding.value_fields, names)),
                _FOUND,
                False,
                self._computed,
                (*self._physical, *fields, found),
            )
        )
        return names, (*fields, found)

    # --- new values ----------------------------------------------------------------------

    def _new_values(self, node: NewValuesNode) -> None:
        (persist,) = node.parents
        assert isinstance(persist, PersistNode)
        binding = persist.binding
        fields = tuple(node.schema.fields)
        if binding.state_kind.updated_before_decision:
            self._push(KeepRowsOp(SHOWN, False, fields))
        elif binding.merging == "last" and persist.mode is None:
            self._push(KeepRowsOp(DELETED, True, fields))
        elif persist.mode is not None:
            self._push(SelectOp(tuple(field.name for field in fields), None, fields))
        else:
            self._combine_stored(persist, fields)

    def _combine_stored(self, node: PersistNode, fields: Fields) -> None:
        """The batch's partial values, which were staged for the log, on top of what is stored."""
        binding, aggregation = node.binding, node.aggregation
        assert aggregation is not None
        if aggregation.kind == "native":
            (value,) = binding.value_fields
            self._push(NativeAggregateOp(binding.keys, (value,), aggregation.aggregator, True, fields))
            names, _ = self._join_stored(node)
            pairs = ((value, names[0]),)
            self._push(CombineStoredOp(binding.keys, pairs, _FOUND, aggregation.aggregator, fields))
            return
        names, _ = self._join_stored(node)
        self._fold_on(node, "merge", binding.value_fields, names)

    # --- states that are read first --------------------------------------------------------

    def _go_on_from_stored(self, node: PersistNode) -> None:
        assert node.aggregation is not None and node.mode is not None
        inputs = node.aggregation.inputs
        if not node.binding.keys:
            self._one_marked(inputs)
        names, _ = self._join_stored(node)
        self._fold_on(node, node.mode, inputs, names)
        self._push(NotDeletedOp(tuple(node.binding.log_schema.fields)))

    def _one_marked(self, inputs: tuple[str, ...]) -> None:
        """One partition with a marker row: an aggregate without groups has a value for an empty batch too."""
        needed = tuple(field for field in self._physical if field.name in inputs) or self._physical[:1]
        self._narrow(needed)
        self._push(OnePartitionOp((*needed, StructField(MARKER, LongType(), False))))

    def _fold_on(self, node: PersistNode, mode: str, inputs: tuple[str, ...], stored: tuple[str, ...]) -> None:
        binding, aggregation = node.binding, node.aggregation
        assert aggregation is not None
        keys = binding.keys
        marked = () if keys or mode == "merge" else (MARKER,)
        if keys:
            self._push(ByKeyOp(keys, self._physical))
        step = replace(
            groups_step(aggregation, node, mode, inputs),
            stored=stored,
            found=_FOUND,
            marker="".join(marked),
            always=not keys,
        )
        fields = tuple(binding.schema.fields)
        self._push_python(step, fields, (*keys, *inputs, *stored, _FOUND, *marked), batch_id=mode == "aggregate")

    def _update_map(self, node: PersistNode) -> None:
        binding, mode = node.binding, node.mode
        assert mode is not None
        keys = binding.keys
        if mode == "update":
            keys, inputs, outputs = (), binding.value_fields, tuple(node.new_values.fields)
        elif mode in ("merge", "put"):
            inputs, outputs = binding.value_fields, tuple(binding.schema[name] for name in binding.value_fields)
        else:
            assert node.aggregation is not None
            inputs, outputs = node.aggregation.inputs, tuple(node.aggregation.outputs)
        deleted = (DELETED,) if mode == "put" else ()
        marked: tuple[str, ...] = ()
        place: tuple[str, ...] = ()
        if not binding.keys and mode in ("reduce", "aggregate"):
            self._one_marked(inputs)
            marked = (MARKER,)
        else:
            self.into_partitions(binding.keys, binding.state.partitions)
            place = (PARTITION,)
        step = UpdateMap(
            Label(node.operation, node.location),
            binding.name,
            binding.state,
            binding.aggregator,
            mode,
            keys,
            inputs,
            tuple(field.name for field in outputs),
            tuple(arrow_type(field.dataType) for field in outputs),
            "".join(deleted),
            "".join(marked),
            "".join(place),
            node.aggregation.many if node.aggregation is not None else None,
        )
        self._push_python(step, late_sink_fields(node), (*keys, *inputs, *deleted, *marked, *place), batch_id=True)


def _repeats(op: Op) -> bool:
    """Whether a projection or filter gives the same rows each time."""
    if not isinstance(op, (SelectOp, FilterOp)):
        return False
    return op.expression is None or bool(op.expression.analysis and op.expression.analysis.deterministic)


def boundaries_of(lowered: Lowered) -> Mapping[str, Fields]:
    """The boundaries that have a folder of their own: name → fields."""
    return {boundary.name: boundary.fields for boundary in lowered.boundaries.values() if boundary.own}
