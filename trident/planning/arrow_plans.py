"""Makes plans over Arrow of segments all of whose operations have a form as a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from trident.planning.nodes import Node
from trident.planning.operation import Fields, arrow_types, names_of
from trident.planning.segments import Segment
from trident.workers.arrow_plan import ArrowPlan, ArrowSegment
from trident.workers.chain import Chain, Step


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
        if target in segment.anchors and not segment.ops:
            continue  # rows that are kept as they come
        if steps is None or not (target in used or target in named or target.output_name):
            return None
        if target.writes is not None and target.writes.state_kind.updated_before_decision:
            return None  # its rows are those of the map and of the stream of new values
        begins, ends = tuple(names[anchor] for anchor in segment.anchors), names.setdefault(target, f"#{len(names)}")
        made.append(_segment(begins, ends, tuple(op.step for op in steps), segment.fields, len(made)))
        if target.output_name is not None:
            outputs[target.output_name] = ends
            if target.output_step is not None and target.writes is not None:
                log = tuple(target.writes.log_schema.fields)
                outputs[target.output_name] = output = f"{ends} of the state"
                made.append(_segment((ends,), output, (target.output_step,), log, len(made)))
    return ArrowPlan(tuple(made), outputs)


def _segment(begins: tuple[str, ...], ends: str, steps: tuple[Step, ...], fields: Fields, number: int) -> ArrowSegment:
    schema = pa.schema(list(zip(names_of(fields), arrow_types(fields))))
    return ArrowSegment(begins, ends, Chain(steps, schema, f"arrow{number}", spark_too=True))
