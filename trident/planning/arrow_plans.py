"""Makes plans over Arrow of segments all of whose operations have a form as a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from trident.planning.nodes import Node
from trident.planning.operation import arrow_types, names_of
from trident.planning.segments import Segment
from trident.workers.arrow_plan import ArrowPlan, ArrowSegment
from trident.workers.chain import Chain


def arrow_plan(segments: Iterable[Segment], named: Mapping[Node, str]) -> ArrowPlan | None:
    """The segments as one plan; None where one of them is left to Spark.

    Args:
        segments: in the order in which they run.
        named: the nodes whose rows are given or taken under a name.
    """
    made: list[ArrowSegment] = []
    outputs: dict[str, str] = {}
    names = dict(named)
    segments = list(segments)
    used = {anchor for segment in segments for anchor in segment.anchors}
    for segment in segments:
        target, steps = segment.target, segment.steps
        if steps is None or not (target in used or target in named or target.output_name):
            return None
        if target.writes is not None and target.writes.state_kind.updated_before_decision:
            return None  # its rows are those of the map and of the stream of new values
        begins, ends = names[segment.anchors[0]], names.setdefault(target, f"#{len(names)}")
        schema = pa.schema(list(zip(names_of(segment.fields), arrow_types(segment.fields))))
        made.append(ArrowSegment(begins, ends, Chain(tuple(op.step for op in steps), schema, f"arrow{len(made)}")))
        if target.output_name is not None:
            outputs[target.output_name] = ends
            if target.output_step is not None and target.writes is not None:
                log = tuple(target.writes.log_schema.fields)
                schema = pa.schema(list(zip(names_of(log), arrow_types(log))))
                outputs[target.output_name] = f"{ends} of the state"
                chain = Chain((target.output_step,), schema, f"arrow{len(made)}")
                made.append(ArrowSegment(ends, outputs[target.output_name], chain))
    return ArrowPlan(tuple(made), outputs)
