"""The nodes that write to states, and those of the values that were written.

A state that is written without being read is written by any attempt, side by
side. One that is read first is written in the transaction's turn: ``mode``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, StringType, StructField

from trident.operations.aggregates import NativeAggregateOp, lower_aggregation
from trident.operations.aggregation import Aggregation
from trident.operations.state_lookups import CombineStoredOp, fold_on, join_stored
from trident.planning.basic_operations import PARTITION_FIELD, KeepRowsOp, SelectOp
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node
from trident.planning.operation import MARKER, Fields, Operation, PyOp, arrow_op, arrow_types, names_of
from trident.planning.session_frames import SessionFrames, Transform, column
from trident.states.core.binding import StateBinding
from trident.states.core.tables import DELETED_COLUMN
from trident.states.publishing.user_tasks import KEY, PARTITION, STORED
from trident.workers.failures import Label
from trident.workers.own_steps import WithConstant
from trident.workers.states import SHOWN, UpdateMap

_MAP_FIELDS: Fields = (
    StructField(KEY, StringType(), True),
    StructField(STORED, StringType(), True),
    StructField(PARTITION, IntegerType(), True),
    StructField(SHOWN, BooleanType(), True),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PersistNode(Node):
    """partition_persist or persistent_aggregate: writes to a state.

    Attributes:
        aggregation: of the rows; None where they are written, or put, as they are.
        mode: how a state that is read before it is written takes a row: "merge"
            (partial values), "reduce", "aggregate" or "put"; None where it is
            written without being read.
        takes: the parent's fields that it reads, where they are not those of the schema.
    """

    row_by_row = False
    is_called_through = False
    keeps_all_fields = True
    drawn_as = "state"

    binding: StateBinding
    aggregation: Aggregation | None = None
    mode: str | None = None
    takes: tuple[str, ...] | None = None

    @property
    def writes(self) -> StateBinding:
        return self.binding

    @property
    def late(self) -> bool:
        return self.mode is not None

    @property
    def takes_anchors(self) -> bool:
        return self.aggregation is not None and self.aggregation.kind == "combiner"

    @property
    def gathers(self) -> bool:
        return self.aggregation is not None and not self.aggregation.keys

    def carried(self, side: int, field: str) -> str | None:
        return super().carried(side, field) if self.aggregation is None or field in self.aggregation.keys else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        if self.aggregation is not None:
            return self.aggregation.reads
        return frozenset(self.names if self.takes is None else self.takes)

    @property
    def _updates_map(self) -> bool:
        return self.binding.state_kind.updated_before_decision

    def fields_left(self, live: frozenset[str]) -> Fields:
        """The rows of the state's log; of a map its updates with the stream of new values."""
        if self._updates_map:
            return (*self.shown_fields, *_MAP_FIELDS)
        fields = tuple(self.binding.log_schema.fields)
        return (*fields, PARTITION_FIELD) if self.binding.state_kind.updated_when_published else fields

    @property
    def shown_fields(self) -> Fields:
        """Of a map, the fields of its stream of new values."""
        return tuple(self.schema.fields)

    def output(self, frame: "DataFrame") -> "DataFrame":
        """The rows of the log; of a map the key/value rows to write to it."""
        return frame.where(F.col(KEY).isNotNull()).select(KEY, STORED, PARTITION) if self._updates_map else frame

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if self._updates_map:
            self._update_map(builder)
        elif self.mode is not None:
            self._go_on_from_stored(builder)
        elif self.aggregation is not None:
            lower_aggregation(builder, self.aggregation, self, tuple(self.schema.fields), persists=True)
        elif self.binding.state_kind.updated_when_published:
            builder.into_partitions(self.binding.keys, getattr(self.binding.state, "partitions", 1))
        # an append changes nothing here: the segment ends with the columns of the log

    def _go_on_from_stored(self, builder: SegmentBuilder) -> None:
        assert self.aggregation is not None and self.mode is not None
        inputs = self.aggregation.inputs
        if not self.binding.keys:
            _mark(builder, inputs)
        fold_on(builder, self, self.binding, self.aggregation, self.mode, inputs)
        builder.push(NotDeletedOp(tuple(self.binding.log_schema.fields)))

    # --- maps ----------------------------------------------------------------------------

    def _update_map(self, builder: SegmentBuilder) -> None:
        binding, mode = self.binding, self.mode
        assert mode is not None
        keys, inputs, outputs = self._map_fields()
        deleted = DELETED_COLUMN if mode == "put" else ""
        if not binding.keys and mode in ("reduce", "aggregate"):
            _mark(builder, inputs)
            marker, place = MARKER, ""
        else:
            builder.into_partitions(binding.keys, binding.state.partitions)
            marker, place = "", PARTITION
        step = UpdateMap(
            Label(self.operation, self.location),
            binding.name,
            binding.state,
            None if mode == "put" else binding.aggregator,  # an Upsert has no part in it, and would load the planner
            mode,
            keys,
            inputs,
            names_of(outputs),
            arrow_types(outputs),
            deleted,
            marker,
            place,
            self.aggregation.many if self.aggregation is not None else None,
        )
        takes = (*keys, *inputs, *filter(None, (deleted, marker, place)))
        builder.push_python(step, self.fields_left(frozenset()), takes, batch_id=True)

    def _map_fields(self) -> tuple[tuple[str, ...], tuple[str, ...], Fields]:
        """Keys and inputs of the update, and the fields of the new values behind the keys."""
        binding = self.binding
        if self.aggregation is not None:
            return binding.keys, self.aggregation.inputs, self.aggregation.outputs
        return binding.keys, binding.value_fields, tuple(binding.schema[name] for name in binding.value_fields)


def _mark(builder: SegmentBuilder, inputs: tuple[str, ...]) -> None:
    """One partition with a marker row: an aggregate without groups has a value for an empty batch too."""
    builder.narrow(builder.narrowed(inputs))
    builder.mark_one_partition()


@dataclass(frozen=True, eq=False, kw_only=True)
class SpoutTableNode(PersistNode):
    """The table that a spout owns; its rows come from the spout's emitter, not from the stream."""

    tx_id: str

    @property
    def table_of(self) -> str:
        return self.tx_id


@dataclass(frozen=True, eq=False, kw_only=True)
class NewValuesNode(Node):
    """The values of the keys that a transaction has changed in a state, as a stream of that transaction."""

    row_by_row = False
    is_called_through = False
    drawn_as = "state"

    @property
    def persisted(self) -> PersistNode:
        """The node that writes the state."""
        (parent,) = self.parents
        assert isinstance(parent, PersistNode)
        return parent

    @property
    def _of_upsert(self) -> bool:
        """Tells whether the new values are the batch's rows: they need no look at the state."""
        return self.persisted.binding.merging == "last" and self.persisted.mode is None

    @property
    def late(self) -> bool:
        return not self._of_upsert

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        persisted, fields = self.persisted, tuple(self.schema.fields)
        if persisted.binding.state_kind.updated_before_decision:
            builder.push(KeepRowsOp(fields, SHOWN, False))
        elif self._of_upsert:
            builder.push(KeepRowsOp(fields, DELETED_COLUMN, True))
        elif persisted.mode is not None:
            builder.push(SelectOp(fields, names_of(fields)))
        else:
            self._combine_stored(builder, persisted)

    def _combine_stored(self, builder: SegmentBuilder, persisted: PersistNode) -> None:
        """The batch's partial values, which were staged for the log, on top of the stored values."""
        binding, aggregation, fields = persisted.binding, persisted.aggregation, tuple(self.schema.fields)
        assert aggregation is not None
        if aggregation.kind == "native":
            (value,) = binding.value_fields
            builder.push(NativeAggregateOp(fields, binding.keys, (value,), aggregation.aggregator, merges=True))
            (stored,) = join_stored(builder, binding)
            builder.push(CombineStoredOp(fields, binding.keys, value, stored, aggregation.aggregator))
        else:
            fold_on(builder, persisted, binding, aggregation, "merge", binding.value_fields)


@dataclass(frozen=True)
class NotDeletedOp(Operation):
    """Adds the field of a "last" log that says that no key is removed."""

    def transform(self, frames: SessionFrames) -> Transform:
        kept = [column(field.name) for field in self.fields if field.name != DELETED_COLUMN]
        return frames.select([*kept, F.lit(False).alias(DELETED_COLUMN)])

    @property
    def on_arrow(self) -> PyOp | None:
        kept = tuple(name for name in names_of(self.fields) if name != DELETED_COLUMN)
        return arrow_op(self.fields, WithConstant(kept, DELETED_COLUMN, False, pa.bool_()), kept)

    def describe(self) -> str:
        return "nothing is deleted"
