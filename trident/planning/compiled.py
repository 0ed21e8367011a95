"""The Spark half of planning: a lowered group becomes DataFrames, batch after batch.

A small batch takes about 100 ms in all, and a call to the JVM up to one, so
everything that does not change is made once per session: Columns, UDFs, Java
sequences. For that this module uses PySpark's classic inner objects
(``_jdf``, ``_jc``); it is the only one of the planner's that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions as F
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from trident.coordinators import faults
from trident.operations.state_writes import PersistNode
from trident.operations.window_ops import of_state
from trident.planning.groups import BuiltBatch
from trident.planning.lowering import (
    DELETED,
    MARKER,
    Branch,
    ByKeyOp,
    CollectOp,
    CombineStoredOp,
    FilterOp,
    IntoPartitionsOp,
    JoinStateOp,
    KeepRowsOp,
    LastOp,
    Lowered,
    MeetOp,
    NativeAggregateOp,
    NotDeletedOp,
    OnePartitionOp,
    Op,
    OwnOp,
    PyOp,
    Segment,
    SelectOp,
    arrow_type,
    only_for_several,
    spreads_rows,
)
from trident.planning.nodes import Node, SourceNode
from trident.planning.results import RESULT, ResultNode
from trident.states.publishing.user_tasks import KEY, PARTITION, STORED, BatchInfo
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Chain, SentChain

KEEP = faults.register("batch.keep", "the Spark job that keeps the rows of a batch which are used more than once")
CALL = faults.register("batch.call", "the Spark job of an operation whose rows nobody takes")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident.states.core.binding import StateBinding


@dataclass(frozen=True)
class Batch:
    """What transforms are told of the batch that they build.

    Attributes:
        info: what user code may be told.
        stored: (state, frame of its keys or None) → its keys and values as of the
            transaction before; for late segments.
        once: computes a frame now, so that it can be used twice.
    """

    info: BatchInfo
    stored: Callable[["StateBinding", "DataFrame | None"], "DataFrame"] | None = None
    once: Callable[["DataFrame"], "DataFrame"] | None = None


_LARGE_BYTES = 1 << 17
_ROW, _PLACE = "__trident_row", "__trident_place"

# A transform of a classic DataFrame: the session was checked to be classic when the topology started.
Transform = Callable[["DataFrame", Batch], "DataFrame"]


class CompiledGroup:
    """A group's plan bound to one session.

    Args:
        lowered: the group.
        session: whose JVM the Columns belong to.
    """

    def __init__(self, lowered: Lowered, session: Any) -> None:
        self._lowered, self.session, self.context = lowered, session, session.sparkContext
        self._passes = 0
        variants = (False, True) if lowered.depends_on_partitions else (False,)
        self._transforms = {single: self._compile(lowered.segments, single) for single in variants}
        self._late = self._compile(lowered.late_segments, False)

    def build(self, inputs: Mapping[str, DataFrame], info: BatchInfo) -> BuiltBatch:
        single = self._lowered.depends_on_partitions and all(map(_is_single, inputs.values()))
        frames = {node: self._spread(node, inputs[node.tx_id]) for node in self._sources() if node.tx_id in inputs}
        return self._build(self._transforms[single], frames, Batch(info))

    def build_late(self, inputs: Mapping[str, DataFrame], batch: Batch) -> BuiltBatch:
        """The rows of late states.

        Args:
            inputs: boundary name → its rows.
            batch: with ``stored``.
        """
        frames = {node: inputs[boundary.name] for node, boundary in self._lowered.boundaries.items()}
        return self._build(self._late, frames, batch)

    def _sources(self) -> Iterator[SourceNode]:
        for segment in self._lowered.segments:
            for anchor in segment.anchors:
                if isinstance(anchor, SourceNode):
                    yield anchor

    def _spread(self, source: SourceNode, frame: DataFrame) -> DataFrame:
        """The batch in as many Spark partitions as a hint says."""
        count = self._lowered.spreads.get(source)
        if count is None:
            return frame
        return frame.coalesce(1) if count == 1 else frame.repartition(count)

    def _build(
        self, segments: Sequence[tuple[Segment, Any, list[Transform]]], frames: dict[Node, DataFrame], batch: Batch
    ) -> BuiltBatch:
        built = BuiltBatch({}, [])
        batch = replace(batch, once=lambda frame: self._once(frame, built))
        try:
            for segment, meet, transforms in segments:
                if meet is not None:
                    frame = meet([frames[anchor] for anchor in segment.anchors], batch)
                else:
                    frame = frames[segment.anchor]
                for transform in transforms:
                    frame = transform(frame, batch)
                self._deliver(segment, frame, frames, built)
        except BaseException:
            built.release()
            raise
        return built

    def _deliver(self, segment: Segment, frame: DataFrame, frames: dict[Node, DataFrame], built: BuiltBatch) -> None:
        used, target = False, segment.target
        boundary = self._lowered.boundaries.get(target)
        if target in self._lowered.shared:
            frame = frames[target] = self._once(frame, built) if target in self._lowered.checkpointed else frame
            used = True
        elif target in self._lowered.passing:
            frames[target] = frame
            used = True
        if isinstance(target, PersistNode):
            if target.binding.state_kind.updated_before_decision:
                frame = _map_updates(frame)
            elif target.mode == "window":
                frame = of_state(frame, target.binding)
            built[target.binding.name] = frame
        elif isinstance(target, ResultNode):
            built[RESULT] = frame
        elif boundary is not None:
            built[boundary.name] = frame.drop(ANCHORS) if len(segment.fields) > len(boundary.fields) else frame
        elif not used:  # a dangling end: nobody takes its rows, but its functions are to be called
            with faults.fault_point(CALL):
                frame.write.format("noop").mode("overwrite").save()

    def _once(self, frame: Any, built: BuiltBatch) -> DataFrame:
        """Computes the frame now. Known to ``built`` before that: what a failure leaves is released too."""
        with faults.fault_point(KEEP):
            kept: Any = frame.localCheckpoint(eager=False)
            built.checkpoints.append(kept)
            kept._jdf.queryExecution().analyzed().rdd().count()
        return kept

    def _compile(self, segments: Sequence[Segment], single: bool) -> list[tuple[Segment, Any, list[Transform]]]:
        compiled = []
        # Nodes whose rows certainly are in one Spark partition.
        alone: dict[Node, bool] = {}
        for segment in segments:
            meet, ops = None, segment.ops
            together = single and self._stays_single(segment.anchor, alone)
            if ops and isinstance(ops[0], MeetOp):
                meet, ops, together = ops[0].meet(self), ops[1:], False
            kept = []
            for op in ops:
                if together and only_for_several(op):
                    continue
                kept.append(op)
                together = (together and not spreads_rows(op)) or isinstance(op, OnePartitionOp)
            alone[segment.target] = together
            compiled.append((segment, meet, list(self._transforms_of(kept))))
        return compiled

    def _stays_single(self, anchor: Node, alone: Mapping[Node, bool]) -> bool:
        if isinstance(anchor, SourceNode):
            return self._lowered.spreads.get(anchor, 1) == 1
        return alone.get(anchor, False)

    def _transforms_of(self, kept: Sequence[Op]) -> Iterator[Transform]:
        for in_python, run in groupby(kept, key=lambda op: isinstance(op, PyOp)):
            if in_python:
                yield self._python_pass(cast("list[PyOp]", list(run)))
            else:
                for op in run:
                    yield self._native(op)

    # --- operations ----------------------------------------------------------------------

    def _python_pass(self, ops: Sequence[PyOp]) -> Transform:
        fields = ops[-1].fields
        self._passes += 1
        chain = Chain(
            tuple(op.step for op in ops),
            pa.schema([(field.name, arrow_type(field.dataType)) for field in fields]),
            f"pass{self._passes}",
        )
        schema, takes = StructType(list(fields)), sorted(ops[0].takes)
        if any(op.uses_batch_id for op in ops):
            chain = self._sent_once(chain)

            def with_info(frame: Any, batch: Batch) -> DataFrame:
                return self._map_in_arrow(frame, self._udf(chain.for_batch(batch.info), takes, schema))

            return with_info
        udf = self._udf(chain, takes, schema)
        return lambda frame, _: self._map_in_arrow(frame, udf)

    def _sent_once(self, chain: Chain) -> Chain | SentChain:
        """A large chain is broadcast: PySpark would write it to a file anew for every batch, and keep the files."""
        pickled = CloudPickleSerializer().dumps(chain)
        return chain if len(pickled) <= _LARGE_BYTES else SentChain(self.context.broadcast(pickled))

    def _udf(self, chain: Chain, takes: Sequence[str], schema: StructType) -> Any:
        """What ``DataFrame.mapInArrow`` makes anew, and pickles, at every call."""
        from pyspark.sql.pandas.functions import pandas_udf

        make: Any = pandas_udf
        udf = make(chain, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        return udf(*[F.col(_quoted(name)) for name in takes])

    def _map_in_arrow(self, frame: Any, udf: Any) -> DataFrame:
        return _frame(frame, frame._jdf.mapInArrow(udf._jc, False, None))

    def _native(self, op: Op) -> Transform:
        if isinstance(op, OwnOp):
            return op.transform(self)
        if isinstance(op, SelectOp):
            return self._select([F.col(_quoted(name)) for name in op.keep], op)
        if isinstance(op, FilterOp):
            return self._filter(op)
        if isinstance(op, NativeAggregateOp):
            return self._aggregate(op)
        if isinstance(op, CollectOp):
            value = F.struct(F.col(_quoted(op.column)).alias("value"))
            anchors = [_all_anchors()] if op.fields[-1].name == ANCHORS else []
            return self._agg((), F.collect_list(value).alias(op.fields[0].name), *anchors)
        if isinstance(op, ByKeyOp):
            return self._by_key(op)
        if isinstance(op, LastOp):
            return self._last(op)
        if isinstance(op, JoinStateOp):
            return self._join_state(op)
        if isinstance(op, CombineStoredOp):
            return self._combine_stored(op)
        if isinstance(op, KeepRowsOp):
            return self._keep_rows(op)
        if isinstance(op, NotDeletedOp):
            added = [F.col(_quoted(f.name)) for f in op.fields if f.name != DELETED]
            chosen = self._seq([*added, F.lit(False).alias(DELETED)])
            return lambda frame, _: _frame(frame, frame._jdf.select(chosen))
        if isinstance(op, IntoPartitionsOp):
            return self._into_partitions(op)
        assert isinstance(op, OnePartitionOp)
        return self._one_partition(op)

    def _select(self, columns: list[Any], op: SelectOp) -> Transform:
        if op.expression is not None:
            columns = [*columns, *op.expression.columns()]
        chosen = self._seq(columns)
        return lambda frame, _: _frame(frame, frame._jdf.select(chosen))

    def _filter(self, op: FilterOp) -> Transform:
        from trident.udf.expressions import to_column

        op.expression.analysed()
        condition = _to_java_column(to_column(op.expression.source))
        return lambda frame, _: _frame(frame, frame._jdf.filter(condition))

    def _aggregate(self, op: NativeAggregateOp) -> Transform:
        inputs, output = [F.col(_quoted(name)) for name in op.inputs], op.output
        value = op.aggregator.merge(inputs[0]) if op.merges else op.aggregator.partial(inputs)
        zero = op.aggregator.zero()
        if zero is not None and not op.merges:
            value = F.coalesce(value, F.lit(zero).cast(output.dataType))
        return self._agg(op.keys, value.alias(output.name), *([_all_anchors()] if op.gathers_anchors else []))

    def _agg(self, keys: Sequence[str], value: Any, *more: Any) -> Transform:
        grouping, first, rest = self._seq([F.col(_quoted(name)) for name in keys]), value._jc, self._seq(more)
        return lambda frame, _: _frame(frame, frame._jdf.groupBy(grouping).agg(first, rest))

    def _by_key(self, op: ByKeyOp) -> Transform:
        keys = self._seq([F.col(_quoted(name)) for name in op.keys])
        return lambda frame, _: _frame(frame, frame._jdf.repartition(keys))

    def _one_partition(self, op: OnePartitionOp) -> Transform:
        """Spark gives an empty batch no partition at all, and then no worker would run."""
        data = [field for field in op.fields if field.name != MARKER]
        unmarked = self._seq([*(F.col(_quoted(field.name)) for field in data), F.lit(0).cast("long").alias(MARKER)])
        # One row of nulls; Spark cannot optimise a range away as it does an empty relation.
        marker = self.session.range(0, 1, 1, 1).select(
            *[F.lit(None).cast(field.dataType).alias(field.name) for field in data], F.lit(1).cast("long").alias(MARKER)
        )

        def transform(frame: Any, _: Batch) -> DataFrame:
            return _frame(frame, frame._jdf.select(unmarked).union(marker._jdf).coalesce(1))

        return transform

    def _last(self, op: LastOp) -> Transform:
        gone = F.coalesce(F.col(_quoted(op.delete_when)), F.lit(False)) if op.delete_when else F.lit(False)
        place = F.monotonically_increasing_id()
        order = F.struct(F.col(_quoted(op.order_by)), place) if op.order_by else place
        row = F.struct(*[F.col(_quoted(name)) for name in op.values], gone.alias(DELETED))
        placed = self._seq([*[F.col(_quoted(name)) for name in op.keys], row.alias(_ROW), order.alias(_PLACE)])
        # Positions are given before the rows move.
        keys = [F.col(_quoted(name)) for name in op.keys]
        grouping, last = self._seq(keys), F.max_by(_ROW, _PLACE).alias(_ROW)._jc
        nothing = self._seq([])
        chosen = self._seq(
            [*keys, *[F.col(f"{_ROW}.{_quoted(name)}").alias(name) for name in op.values], F.col(f"{_ROW}.{DELETED}")]
        )
        return lambda frame, _: _frame(
            frame, frame._jdf.select(placed).groupBy(grouping).agg(last, nothing).select(chosen)
        )

    def _join_state(self, op: JoinStateOp) -> Transform:
        keys = [] if op.every else list(zip(op.inputs, op.binding.keys))
        carried = [field.name for field in op.fields if field.name not in {new for _, new in op.columns} | {op.found}]

        def transform(frame: DataFrame, batch: Batch) -> DataFrame:
            assert batch.stored is not None and batch.once is not None, "states are read by late segments only"
            if op.materialise:
                # The keys that are asked and the rows beside which the answers are put must be the same.
                frame = batch.once(frame)
            asked = None
            if keys:
                asked = frame.select(*[F.col(_quoted(name)).alias(key) for name, key in keys]).distinct()
            stored = batch.stored(op.binding, asked)
            columns = [F.col(_quoted(key)).alias(f"__trident_k{n}") for n, (_, key) in enumerate(keys)]
            columns += [F.col(_quoted(name)).alias(new) for name, new in op.columns]
            if op.found:
                columns.append(F.lit(True).alias(op.found))
            right = F.broadcast(stored.select(*columns))
            same = [F.col(_quoted(name)).eqNullSafe(F.col(f"__trident_k{n}")) for n, (name, _) in enumerate(keys)]
            condition = reduce(lambda a, b: a & b, same) if same else F.lit(True)
            joined = frame.join(right, condition, "inner" if op.every else "left")
            added = [new for _, new in op.columns] + ([op.found] if op.found else [])
            return joined.select(*[F.col(_quoted(name)) for name in (*carried, *added)])

        return transform

    def _combine_stored(self, op: CombineStoredOp) -> Transform:
        kinds = {field.name: field.dataType for field in op.fields}
        columns = [F.col(_quoted(key)) for key in op.keys]
        for value, stored in op.pairs:
            both = op.aggregator.combine_columns(F.col(_quoted(stored)), F.col(_quoted(value))).cast(kinds[value])
            columns.append(F.when(F.col(op.found), both).otherwise(F.col(_quoted(value))).alias(value))
        chosen = self._seq(columns)
        return lambda frame, _: _frame(frame, frame._jdf.select(chosen))

    def _keep_rows(self, op: KeepRowsOp) -> Transform:
        holds = F.coalesce(F.col(_quoted(op.condition)), F.lit(False))
        condition = _to_java_column(~holds if op.negated else holds)
        chosen = self._seq([F.col(_quoted(field.name)) for field in op.fields])
        return lambda frame, _: _frame(frame, frame._jdf.filter(condition).select(chosen))

    def _into_partitions(self, op: IntoPartitionsOp) -> Transform:
        columns = [F.col(_quoted(field.name)) for field in op.fields if field.name != PARTITION]
        if op.count == 1 or not op.keys:
            first = self._seq([*columns, F.lit(0).alias(PARTITION)])
            return lambda frame, _: _frame(frame, frame._jdf.coalesce(1).select(first))
        keys = self._seq([F.col(_quoted(name)) for name in op.keys])
        placed = self._seq([*columns, F.spark_partition_id().alias(PARTITION)])
        return lambda frame, _: _frame(frame, frame._jdf.repartition(op.count, keys).select(placed))

    def column(self, name: str) -> Any:
        """A column of a frame by its name, whatever characters are in it."""
        return F.col(_quoted(name))

    def _seq(self, columns: Sequence[Any]) -> Any:
        return _to_seq(self.context, columns, _to_java_column)


def _frame(origin: Any, java: Any) -> "DataFrame":
    return ClassicDataFrame(java, origin.sparkSession)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _all_anchors() -> Any:
    """The anchors of all rows of a group."""
    return F.flatten(F.collect_list(F.col(ANCHORS))).alias(ANCHORS)


def branch_column(branch: Branch) -> Any:
    """The anchors of a row as one branch gets them: the last one's ids close the sum."""

    def own(number: int, id: Any) -> Any:
        return F.xxhash64(id, F.lit(number))

    def pair(one: Any) -> Any:
        id = one.getField("id")
        if branch.number < branch.of - 1:
            id = own(branch.number, id)
        else:
            id = reduce(lambda sum_, number: sum_.bitwiseXOR(own(number, one.getField("id"))), range(branch.of - 1), id)
        return F.struct(one.getField("root").alias("root"), id.alias("id"))

    return F.transform(F.col(ANCHORS), pair)


def _is_single(frame: Any) -> bool:
    """Whether the batch certainly is one Spark partition: ``coalesce(1)`` or ``repartition(1)`` was its last step.

    Asking the physical plan would say more, at the price of planning the batch twice.
    """
    last = frame._jdf.queryExecution().logical()
    return last.nodeName() in ("Repartition", "RepartitionByExpression") and last.numPartitions() == 1


def _map_updates(frame: "DataFrame") -> "DataFrame":
    """Of what an update of a map gives, that which is to be put."""
    return frame.where(F.col(KEY).isNotNull()).select(KEY, STORED, PARTITION)
