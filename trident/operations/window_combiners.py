"""The parts of a batch for a window whose aggregates call combiners of the user's: made on the workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from trident.operations.aggregates import groups_step
from trident.operations.aggregation import Aggregation, aggregator_class
from trident.operations.aggregators import Count, Max
from trident.operations.chained import CHAIN, ExpandOp
from trident.operations.window_parts import KeptParts, part_of_row, time_columns
from trident.planning.basic_operations import SelectOp
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node
from trident.planning.operation import Operation, arrow_type, names_of
from trident.planning.session_frames import SessionFrames, Transform, column
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Rows
from trident.workers.failures import Label
from trident.workers.open_windows import AT, NEWEST, ROWS
from trident.workers.user_objects import CombinerChain, FirstValue

_LONG = LongType()


def push_parts(builder: SegmentBuilder, kept: KeptParts, node: Node) -> None:
    """Pushes what makes the parts of a batch: of each pane and group of a Spark partition one, or of each row.

    Args:
        node: of the stream that comes into the window.
    """
    if builder.anchored:  # the trees of messages end at a window
        builder.narrow(tuple(field for field in builder.fields if field.name != ANCHORS))
    if kept.raws:
        _of_each_row(builder, kept)
    else:
        _of_each_group(builder, kept, node)


def _of_each_group(builder: SegmentBuilder, kept: KeptParts, node: Node) -> None:
    """All aggregates at once, with the number of rows and the newest time."""
    given = {field.name: field for field in builder.fields}
    count = _native(Count(), (), ROWS)
    links = (*kept.aggregations, count, _native(Max(), (NEWEST,), NEWEST))
    names = tuple(dict.fromkeys(name for link in links for name in link.inputs))
    times = (StructField(AT, _LONG, True), StructField(NEWEST, _LONG, True))
    carried = dict.fromkeys((*names_of(kept.keys), *(name for name in names if name != NEWEST)))
    builder.push(PlacedRowsOp((*times, *(given[name] for name in carried)), kept))
    outputs = [link.outputs[0] for link in links]
    struct = StructType([StructField(f"f{place}", one.dataType, True) for place, one in enumerate(outputs)])
    chain = StructField(CHAIN, struct, True)
    keys = (AT, *names_of(kept.keys))
    users = [one for one in kept.aggregations if one.kind != "native"]
    whole = Aggregation(
        aggregator=CombinerChain(links, names),
        kind="combiner",
        keys=keys,
        inputs=names,
        outputs=(chain,),
        location=users[0].location,
    )
    operation = ", ".join(_label(one).operation for one in users)
    step = replace(groups_step(whole, node, "combine", names, CHAIN), label=Label(operation, users[0].location))
    builder.push_python(step, (times[0], *kept.keys, chain), (*keys, *names))
    parts = (*names_of(kept.part_fields), ROWS, NEWEST)
    builder.push(ExpandOp(kept.pane_fields, {name: f"f{place}" for place, name in enumerate(parts)}))


def _of_each_row(builder: SegmentBuilder, kept: KeptParts) -> None:
    """Late rows are wanted as they are, so each row goes on by itself."""
    given = {field.name: field for field in builder.fields}
    users = [(one, field) for one, field in zip(kept.aggregations, kept.part_fields) if one.kind != "native"]
    theirs = names_of(tuple(field for _, field in users))
    inputs = dict.fromkeys(name for one, _ in users for name in one.inputs)
    placed = tuple(field for field in kept.pane_fields if field.name not in theirs)
    more = tuple(given[name] for name in inputs if name not in names_of(kept.keys))
    builder.push(PlacedRowsOp((*placed, *more), kept))
    for one, field in users:
        kind, keep = arrow_type(field.dataType), names_of(builder.fields)
        step = Rows(
            _label(one), FirstValue(one.aggregator), one.inputs, (field.name,), (kind,), False, keep, drop_none=False
        )
        builder.push_python(step, (*builder.fields, field), keep)
    builder.push(SelectOp(kept.pane_fields, names_of(kept.pane_fields)))


def _native(aggregator: Any, inputs: tuple[str, ...], output: str) -> Aggregation:
    made = (StructField(output, _LONG, True),)
    return Aggregation(aggregator=aggregator, kind="native", keys=(), inputs=inputs, outputs=made, location="")


def _label(one: Aggregation) -> Label:
    return Label(f"aggregate({aggregator_class(one.aggregator)})", one.location)


@dataclass(frozen=True)
class PlacedRowsOp(Operation):
    """The rows of a batch, each with its pane and its time; of aggregates of Spark with a part of its own."""

    kept: KeptParts

    def transform(self, frames: SessionFrames) -> Transform:
        kept = self.kept
        made = dict(zip((AT, NEWEST), time_columns(kept)))
        made[ROWS] = F.lit(1).cast("long").alias(ROWS)
        for one, field in zip(kept.aggregations, kept.part_fields):
            if one.kind == "native":
                made[field.name] = part_of_row(one).alias(field.name)
        made |= {b.name: column(a.name).alias(b.name) for a, b in zip(kept.raws, kept.raw_fields)}
        return frames.select([made[n] if n in made else column(n) for n in names_of(self.fields)])

    def describe(self) -> str:
        return f"rows of {self.kept.spec} with their panes"
