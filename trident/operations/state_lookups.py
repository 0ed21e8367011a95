"""Puts a state's values, as of the transaction before, beside the rows that look them up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DecimalType, StructField

from trident.operations.aggregates import groups_step
from trident.operations.aggregation import Aggregation
from trident.operations.aggregators import own_name
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node
from trident.planning.operation import MARKER, Operation, PyOp, arrow_op, arrow_types
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
from trident.states.keyed.copy_combine import combine_of, why_no_copy
from trident.workers.look_up import LookUp
from trident.workers.own_steps import CombineStored

FOUND = "__trident_found"
_STORED_PREFIX = "__trident_stored_"
# The values of so few rows are sent to every task; of more, rows and values are moved to each other, and may spill.
_FEW_ROWS = 50_000
# The keys of so many rows, in so many bytes of files, are sent to every task; for more the state is moved.
_ASKED_ROWS_MAX, _ASKED_BYTES_MAX = 1_000_000, 32 << 20
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
            moves, asked = bool(keys) and rows > _FEW_ROWS, None
            if keys:
                asked = frame.select(*[column(name).alias(key) for name, key in keys]).distinct()
                asked = asked.hint(_MOVED if moves and _are_many(asked, rows) else _SENT)
            stored = batch.stored(self.binding, asked)
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


def _are_many(asked: "DataFrame", rows: int) -> bool:
    """Tells whether keys are too many, or too large, to be sent to every task."""
    size = bytes_read(asked)
    # Spark says of a frame of unknown size that it is huge beyond any disk.
    return rows > (_ASKED_ROWS_MAX if size < 1 << 50 else _UNKNOWN_ROWS_MAX) or _ASKED_BYTES_MAX < size < 1 << 50


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
        if combine_of(name, kind) is None:
            return None
        step = CombineStored(self.keys, self.value, self.stored, FOUND, name, kind)
        return arrow_op(self.fields, step, (*self.keys, self.value, self.stored, FOUND))

    def describe(self) -> str:
        return f"{self.aggregator!r} of the stored value and the batch's"
