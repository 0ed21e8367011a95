"""The parts of a batch for a window whose aggregates call combiners of the user's: made on the workers."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from trident.operations.window_parts import KeptParts, label_of, part_of_row, time_columns
from trident.planning.basic_operations import SelectOp
from trident.planning.builder import SegmentBuilder
from trident.planning.operation import Operation, arrow_type, names_of
from trident.planning.session_frames import SessionFrames, Transform, column
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Rows
from trident.workers.open_windows import AT, NEWEST, ROWS
from trident.workers.user_objects import FirstValue


def push_parts(builder: SegmentBuilder, kept: KeptParts) -> None:
    """Pushes what makes the parts of a batch: of each row one, and of those of a pane and group that meet one.

    Spark makes the parts of its own aggregates, so that they are what they are without a combiner beside them.
    """
    if builder.anchored:  # the trees of messages end at a window
        builder.narrow(tuple(field for field in builder.fields if field.name != ANCHORS))
    given = {field.name: field for field in builder.fields}
    users = [(one, field) for one, field in zip(kept.aggregations, kept.part_fields) if one.kind != "native"]
    theirs = names_of(tuple(field for _, field in users))
    inputs = dict.fromkeys(name for one, _ in users for name in one.inputs)
    placed = tuple(field for field in kept.pane_fields if field.name not in theirs)
    more = tuple(given[name] for name in inputs if name not in names_of(kept.keys))
    builder.push(PlacedRowsOp((*placed, *more), kept))
    for one, field in users:
        kind, keep, first = arrow_type(field.dataType), names_of(builder.fields), FirstValue(one.aggregator)
        step = Rows(label_of(one), first, one.inputs, (field.name,), (kind,), False, keep, drop_none=False)
        builder.push_python(step, (*builder.fields, field), keep)
    fields = names_of(kept.pane_fields)
    if not kept.raws:  # late rows are wanted as they are, so each row goes on by itself
        builder.push_python(kept.panes_step(), kept.pane_fields, fields)
    else:
        builder.push(SelectOp(kept.pane_fields, fields))


@dataclass(frozen=True)
class PlacedRowsOp(Operation):
    """The rows of a batch, each with its pane and its time, and with the parts that are Spark's."""

    kept: KeptParts

    def transform(self, frames: SessionFrames) -> Transform:
        kept = self.kept
        made = dict(zip((AT, NEWEST), time_columns(kept)))
        made[ROWS] = F.lit(1).cast("long").alias(ROWS)
        for one, field in zip(kept.aggregations, kept.part_fields):
            if one.kind == "native":
                made[field.name] = part_of_row(one).alias(field.name)
        made |= {b.name: column(a.name).alias(b.name) for a, b in zip(kept.raws, kept.raw_fields)}
        return frames.select([made.get(name, column(name)) for name in names_of(self.fields)])

    def describe(self) -> str:
        return f"rows of {self.kept.spec} with their panes"
