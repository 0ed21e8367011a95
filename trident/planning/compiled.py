"""The other half of planning: a lowered group becomes DataFrames, batch after batch, or a plan over Arrow."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.planning.lowering import Lowered, Segment
from trident.planning.nodes import Node, SourceNode, is_source
from trident.planning.operation import Fields, MultiInputOp, Operation, arrow_types, names_of
from trident.planning.session_frames import (
    Batch,
    Join,
    SessionFrames,
    Transform,
    compute_and_count,
    compute_once,
    free,
    is_single,
)
from trident.states.core.place import reached_stores
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.anchors import ANCHORS
from trident.workers.arrow_plan import ArrowPlan, ArrowSegment
from trident.workers.chain import Chain, Step

# Makes plans over Arrow of segments all of whose operations have a form as a step.


def arrow_plan(segments: Iterable[Segment], named: Mapping[Node, str]) -> ArrowPlan | None:
    """The segments as one plan; None where one of them is left to Spark.

    Args:
        segments: in the order in which they run.
        named: the nodes whose rows are given or taken under a name.
    """
    made: list[ArrowSegment] = []
    outputs: dict[str, str] = {}
    states: set[str] = set()
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
        states |= {op.looks_up for op in steps if op.looks_up}
        if target.output_name is not None:
            outputs[target.output_name] = ends
            if target.output_step is not None and target.writes is not None:
                log = tuple(target.writes.log_schema.fields)
                outputs[target.output_name] = output = f"{ends} of the state"
                made.append(_segment((ends,), output, (target.output_step,), log, len(made)))
    return ArrowPlan(tuple(made), outputs, frozenset(states))


def left_to_spark(segments: Iterable[Segment]) -> Operation | None:
    """The first operation without a form as a step; None: there is none."""
    return next((op for segment in segments for op in segment.ops if op.on_arrow is None), None)


def _segment(begins: tuple[str, ...], ends: str, steps: tuple[Step, ...], fields: Fields, number: int) -> ArrowSegment:
    schema = pa.schema(list(zip(names_of(fields), arrow_types(fields))))
    return ArrowSegment(begins, ends, Chain(steps, schema, f"arrow{number}"))


CALL = faults.register("batch.call", "the Spark job of an operation whose rows no state takes")


class BuiltBatch(dict[str, "DataFrame"]):
    """State name → DataFrame of one attempt, and the checkpoints kept in memory for it."""

    def __init__(self, frames: Mapping[str, "DataFrame"], checkpoints: Sequence["DataFrame"]) -> None:
        super().__init__(frames)
        self.checkpoints = list(checkpoints)

    def release(self) -> None:
        """Frees the blocks of checkpoints, once the frames are no longer read. May be called again."""
        free(self.checkpoints)

    def __enter__(self) -> "BuiltBatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True)
class _Compiled:
    """A segment's transforms, behind the join of its anchors where it has several."""

    segment: Segment
    join: Join | None
    transforms: list[Transform]

    def build(self, frames: Mapping[Node, "DataFrame"], batch: Batch) -> "DataFrame":
        given = [frames[anchor] for anchor in self.segment.anchors]
        frame = given[0] if self.join is None else self.join(given, batch)
        for transform in self.transforms:
            frame = transform(frame, batch)
        return frame


class CompiledGroup:
    """A group's plan bound to one session.

    Args:
        session: whose JVM the Columns belong to.
    """

    def __init__(self, lowered: Lowered, session: Any) -> None:
        self._lowered, self._frames = lowered, SessionFrames(session)
        self.context = self._frames.context
        self._passes = 0
        variants = (False, True) if lowered.depends_on_partitions else (False,)
        self._early = {single: self._compile(lowered.segments, single) for single in variants}
        self._late = self._compile(lowered.late_segments, False)

    def build(self, inputs: Mapping[str, "DataFrame"], info: BatchInfo) -> BuiltBatch:
        """The rows of early states and of boundaries.

        Args:
            inputs: tx_id → the batch.
        """
        single = self._lowered.depends_on_partitions and all(map(is_single, inputs.values()))
        frames: dict[Node, DataFrame] = {
            node: self._spread(node, inputs[node.tx_id]) for node in self._lowered.sources if node.tx_id in inputs
        }
        return self._build(self._early[single], frames, Batch(info))

    def build_late(self, inputs: Mapping[str, "DataFrame"], batch: Batch) -> BuiltBatch:
        """The rows of late states.

        Args:
            inputs: boundary name → its rows.
            batch: with ``stored``.
        """
        frames = {node: inputs[boundary.name] for node, boundary in self._lowered.boundaries.items()}
        return self._build(self._late, frames, batch)

    def _spread(self, source: SourceNode, frame: "DataFrame") -> "DataFrame":
        """The batch in as many Spark partitions as a hint says."""
        count = self._lowered.source_partitions.get(source)
        if count is None:
            return frame
        return frame.coalesce(1) if count == 1 else frame.repartition(count)

    def _build(self, segments: Sequence[_Compiled], frames: dict[Node, "DataFrame"], batch: Batch) -> BuiltBatch:
        built = BuiltBatch({}, [])
        batch = replace(batch, once=partial(compute_and_count, kept=built.checkpoints))
        try:
            for compiled in segments:
                self._deliver(compiled.segment, compiled.build(frames, batch), frames, built)
        except BaseException:
            built.release()
            raise
        return built

    def _deliver(
        self, segment: Segment, frame: "DataFrame", frames: dict[Node, "DataFrame"], built: BuiltBatch
    ) -> None:
        lowered, target = self._lowered, segment.target
        boundary = lowered.boundaries.get(target)
        used = target in lowered.shared or target in lowered.single_use
        if target in lowered.checkpointed:
            frame = compute_once(frame, built.checkpoints)
        if used:
            frames[target] = frame
        if target.output_name is not None:
            built[target.output_name] = target.output(frame)
        elif boundary is not None:
            built[boundary.name] = frame.drop(ANCHORS) if len(segment.fields) > len(boundary.fields) else frame
        elif not used:  # a dangling end: no state takes its rows, but its functions are to be called
            with faults.fault_point(CALL):
                frame.write.format("noop").mode("overwrite").save()

    # --- once per session ----------------------------------------------------------------

    def _compile(self, segments: Sequence[Segment], single: bool) -> list[_Compiled]:
        compiled = []
        # Nodes whose rows certainly are in one Spark partition.
        alone: dict[Node, bool] = {}
        for segment in segments:
            join, ops = None, segment.ops
            together = single and self._stays_single(segment.anchors[0], alone)
            if ops and isinstance(ops[0], MultiInputOp):
                join, ops, together = ops[0].join(self._frames), ops[1:], False
            kept, alone[segment.target] = pruned_operations(ops, together)
            compiled.append(_Compiled(segment, join, list(self._transforms(kept))))
        return compiled

    def _stays_single(self, anchor: Node, alone: Mapping[Node, bool]) -> bool:
        if is_source(anchor):
            return self._lowered.source_partitions.get(anchor, 1) == 1
        return alone.get(anchor, False)

    def _transforms(self, ops: Sequence[Operation]) -> Iterator[Transform]:
        for run in passes(ops):
            if run[0].in_python:
                yield self._python_pass(run)
            else:
                yield run[0].transform(self._frames)

    def _python_pass(self, ops: Sequence[Any]) -> Transform:
        fields = ops[-1].fields
        self._passes += 1
        schema = pa.schema(list(zip(names_of(fields), arrow_types(fields))))
        steps = tuple(op.step for op in ops)
        stores = reached_stores() if any(hasattr(step, "for_task") for step in steps) else ()
        chain = Chain(steps, schema, f"pass{self._passes}", stores)
        per_batch = any(op.per_batch for op in ops)
        return self._frames.map_in_arrow(chain, sorted(ops[0].takes), StructType(list(fields)), per_batch)


def pruned_operations(ops: Sequence[Operation], together: bool) -> tuple[list[Operation], bool]:
    """The operations without those that have no effect.

    Args:
        together: whether all rows certainly are in one Spark partition.

    Returns:
        The operations; and together, as it is behind them.
    """
    kept: list[Operation] = []
    for op in ops:
        if together and op.no_op_on_one_partition:
            continue
        kept.append(op)
        together = (together and not op.spreads_rows) or op.gathers_rows
    return kept, together


def passes(ops: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Neighbouring operations on the worker together, every other one alone."""
    for in_python, run in groupby(ops, key=lambda op: op.in_python):
        if in_python:
            yield list(run)
        else:
            yield from ([op] for op in run)


@dataclass
class LoweredPlan:
    """A lowered group, which is compiled once per session."""

    lowered: Lowered = field(repr=False)
    _compiled: CompiledGroup | None = field(default=None, repr=False, kw_only=True)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, kw_only=True)

    def compiled(self, session: Any) -> CompiledGroup:
        """The plan in a session; made once."""
        with self._lock:
            # A compiled group belongs to one SparkContext.
            if self._compiled is None or self._compiled.context is not session.sparkContext:
                self._compiled = CompiledGroup(self.lowered, session)
            return self._compiled
