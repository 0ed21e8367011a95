"""The nodes that look up states as of the transaction before, those that write to states, and the values written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DecimalType, IntegerType, StringType, StructField

from trident.operations.aggregates import Aggregation, NativeAggregateOp, groups_step, lower_aggregation
from trident.operations.aggregators import own_name
from trident.planning.nodes import Node
from trident.planning.operation import (
    MARKER,
    PARTITION_FIELD,
    Fields,
    KeepRowsOp,
    Operation,
    PyOp,
    SegmentBuilder,
    SelectOp,
    arrow_op,
    arrow_types,
    names_of,
)
from trident.planning.session_frames import (
    Batch,
    SessionFrames,
    Transform,
    bytes_read,
    column,
    column_list,
    partitions_of,
)
from trident.states.core.binding import StateBinding
from trident.states.core.copyable import is_folded, why_no_copy
from trident.states.core.tables import DELETED_COLUMN
from trident.states.publishing.user_tasks import KEY, PARTITION, STORED
from trident.workers.arrow_plan import CombineStored, WithConstant
from trident.workers.failures import Label
from trident.workers.look_up import LookUp
from trident.workers.states import SHOWN, UpdateMap

# Puts a state's values, as of the transaction before, beside the rows that look them up.


FOUND = "__trident_found"
_STORED_PREFIX = "__trident_stored_"
# The values of so few rows are sent to every task; of more, rows and values are moved to each other, and may spill.
_FEW_ROWS = 50_000
# The keys of so many rows, in so many bytes of files, are sent to every task; for more the state is moved.
_BROADCAST_ROWS_MAX, _BROADCAST_BYTES_MAX = 1_000_000, 32 << 20
# The same where Spark does not know the bytes.
_UNKNOWN_ROWS_MAX = 250_000
_SENT, _MOVED = "broadcast", "merge"
_DIGITS = 38  # of a decimal of Spark, at most
_KEPT_SCALE = 6  # so many digits behind the point every sum of decimals keeps
_PARTITION, _AT = "__trident_was_in", "__trident_was_at"


@dataclass(frozen=True)
class JoinStateOp(Operation):
    """Puts a state's values for the key of each row beside it, as of the transaction before.

    Attributes:
        inputs: the fields that are looked up, in the order of the state's keys; none: a state without keys.
        columns: (the state's field, its new name), in order.
        found: the name of a boolean field that is true where the state has the key; None: not needed.
        every: all entries of the state beside each row, instead of those of its key.
        materialise: the rows must be computed once before.
        in_place: what comes behind counts on the Spark partition in which a row is, and on their order.
    """

    reads_state = True

    binding: StateBinding
    inputs: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    found: str | None
    every: bool
    materialise: bool
    in_place: bool = True

    def transform(self, frames: SessionFrames) -> Transform:
        keys = [] if self.every else list(zip(self.inputs, self.binding.keys))
        added = [new for _, new in self.columns] + ([self.found] if self.found else [])
        carried = [field.name for field in self.fields if field.name not in added]
        place = [F.spark_partition_id().alias(_PARTITION), F.monotonically_increasing_id().alias(_AT)]

        def transform(frame: "DataFrame", batch: Batch) -> "DataFrame":
            assert batch.stored is not None and batch.once is not None, "states are read by late segments only"
            rows = batch.rows or 0  # what is cheap to repeat gives no more
            if self.materialise:
                # The keys that are asked and the rows beside which the answers are put must be the same.
                frame, rows = batch.once(frame)
            moves, lookup_keys = bool(keys) and rows > _FEW_ROWS, None
            if keys:
                lookup_keys = frame.select(*[column(name).alias(key) for name, key in keys]).distinct()
                lookup_keys = lookup_keys.hint(_MOVED if moves and _are_many(lookup_keys, rows) else _SENT)
            stored = batch.stored(self.binding, lookup_keys)
            columns = [column(key).alias(f"__trident_k{n}") for n, (_, key) in enumerate(keys)]
            columns += [column(name).alias(new) for name, new in self.columns]
            if self.found:
                columns.append(F.lit(True).alias(self.found))
            right = stored.select(*columns).hint(_MOVED if moves else _SENT)
            same = [column(name).eqNullSafe(F.col(f"__trident_k{n}")) for n, (name, _) in enumerate(keys)]
            condition = reduce(lambda a, b: a & b, same) if same else F.lit(True)
            fields = column_list((*carried, *added))
            if not moves or not self.in_place:
                return frame.join(right, condition, "inner" if self.every else "left").select(*fields)
            count = partitions_of(frame)
            placed = frame.select(*column_list(carried), *place).join(right, condition, "left")
            # An operation behind may count on where a row is, and behind which.
            back = placed.repartitionById(count, F.col(_PARTITION)).sortWithinPartitions(_AT)
            return back.select(*fields)

        return transform

    @property
    def on_arrow(self) -> PyOp | None:
        state = self.binding
        if self.every or not state.state_kind.has_log:
            return None
        if why_no_copy(state.schema, state.keys, state.merging, state.aggregator_name) is not None:
            return None
        added = [new for _, new in self.columns] + ([self.found] if self.found else [])
        keep = tuple(field.name for field in self.fields if field.name not in added)
        step = LookUp(state.name, self.inputs, tuple(state.keys), self.columns, self.found, keep)
        return arrow_op(self.fields, step, (*keep, *self.inputs), state.name)

    def describe(self) -> str:
        place = "" if self.on_arrow is None else " (of few rows in its local copy, without moving them)"
        return f"look up {', '.join(self.inputs) or 'everything'} in {self.binding.name}{place}"


def _are_many(lookup_keys: "DataFrame", rows: int) -> bool:
    """Tells whether keys are too many, or too large, to be sent to every task."""
    size = bytes_read(lookup_keys)
    # Spark says of a frame of unknown size that it is huge beyond any disk.
    return (
        rows > (_BROADCAST_ROWS_MAX if size < 1 << 50 else _UNKNOWN_ROWS_MAX) or _BROADCAST_BYTES_MAX < size < 1 << 50
    )


def join_stored(builder: SegmentBuilder, binding: StateBinding) -> tuple[str, ...]:
    """Puts the stored values beside each row, and into FOUND whether there are any; returns their names.

    The caller's duty: what it pushes behind this does not count on the place of a row.
    """
    fields = tuple(
        StructField(_STORED_PREFIX + str(number), binding.schema[name].dataType, True)
        for number, name in enumerate(binding.value_fields)
    )
    names = tuple(field.name for field in fields)
    columns = tuple(zip(binding.value_fields, names))
    made = (*builder.fields, *fields, StructField(FOUND, BooleanType(), True))
    builder.push(JoinStateOp(made, binding, binding.keys, columns, FOUND, False, builder.computed, in_place=False))
    return names


def fold_on(
    builder: SegmentBuilder,
    node: Node,
    binding: StateBinding,
    aggregation: Aggregation,
    mode: str,
    inputs: tuple[str, ...],
) -> None:
    """Looks up the stored values, and folds the batch's rows or partial values on from them, on the worker.

    Args:
        mode: "merge", "reduce" or "aggregate"; see Groups.
    """
    stored, keys = join_stored(builder, binding), binding.keys
    marker = "" if keys or mode == "merge" else MARKER
    if keys:
        builder.by_key(keys)
    step = groups_step(aggregation, node, mode, inputs)
    step = replace(step, stored=stored, found=FOUND, marker=marker, always=not keys)
    takes = (*keys, *inputs, *stored, FOUND, *filter(None, (marker,)))
    builder.push_python(step, tuple(binding.schema.fields), takes, batch_id=mode == "aggregate")


@dataclass(frozen=True)
class CombineStoredOp(Operation):
    """A native aggregate's stored value and the batch's partial value of it become one.

    Attributes:
        value, stored: the partial and the stored value by name; the result has the first name.
    """

    keys: tuple[str, ...]
    value: str
    stored: str
    aggregator: Any

    def transform(self, frames: SessionFrames) -> Transform:
        (kind,) = (field.dataType for field in self.fields if field.name == self.value)
        value, stored = column(self.value), column(self.stored)
        both = self._combined(stored, value, kind).cast(kind)
        return frames.select([*column_list(self.keys), F.when(F.col(FOUND), both).otherwise(value).alias(self.value)])

    def _combined(self, stored: "Column", value: "Column", kind: DataType) -> "Column":
        if not (isinstance(kind, DecimalType) and kind.precision == _DIGITS and self.aggregator.native_name == "sum"):
            combined: Column = self.aggregator.combine_columns(stored, value)
            return combined
        # With more than six digits behind the point Spark rounds the sum of two such decimals, but not of 37 digits.
        narrow = DecimalType(_DIGITS - 1, kind.scale) if kind.scale > _KEPT_SCALE else kind
        exact = F.try_add(stored.try_cast(narrow), value.try_cast(narrow))
        text = f"{self.aggregator!r}: the stored {self.value!r} and the batch's have no exact sum of {_DIGITS} digits"
        failed = F.raise_error(F.lit(text)).cast(kind)
        one_alone = stored.isNull() | value.isNull()
        return F.when(one_alone, F.coalesce(stored, value)).otherwise(F.coalesce(exact, failed))

    @property
    def on_arrow(self) -> PyOp | None:
        (kind,) = arrow_types(tuple(field for field in self.fields if field.name == self.value))
        name = own_name(self.aggregator)
        if not is_folded(name, kind):
            return None
        step = CombineStored(self.keys, self.value, self.stored, name, kind)
        return arrow_op(self.fields, step, (*self.keys, self.value, self.stored))

    def describe(self) -> str:
        return f"{self.aggregator!r} of the stored value and the batch's"


# The nodes that write to states, and those of the values that were written.
#
# A state that is written without being read is written by any attempt, side by
# side. One that is read first is written in the transaction's turn: ``mode``.


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

    @property
    def together(self) -> tuple[str, ...] | None:
        if self._updates_map or self.binding.state_kind.updated_when_published:
            return None
        return () if self.mode is None and self.aggregation is None else self.binding.keys or None

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
            self._continue_from_stored(builder)
        elif self.aggregation is not None:
            lower_aggregation(builder, self.aggregation, self, tuple(self.schema.fields), persists=True)
        elif self.binding.state_kind.updated_when_published:
            builder.into_partitions(self.binding.keys, getattr(self.binding.state, "partitions", 1))
        # an append changes nothing here: the segment ends with the columns of the log

    def _continue_from_stored(self, builder: SegmentBuilder) -> None:
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

    @property
    def together(self) -> tuple[str, ...] | None:
        return self.persisted.binding.keys or None

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
