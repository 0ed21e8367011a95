"""The Spark half of planning: a lowered group becomes DataFrames, batch after batch.

A small batch takes about 100 ms in all, and a call to the JVM up to one, so
everything that does not change is made once per session: Columns, UDFs, Java
sequences. For that this module uses PySpark's classic inner objects
(``_jdf``, ``_jc``); it is the only one of the planner's that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from coordinators.transactions import TransactionAttempt
from trident.arrow_ops import Chain
from trident.lowering import (
    MARKER,
    ByKeyOp,
    CollectOp,
    FilterOp,
    Lowered,
    NativeAggregateOp,
    OnePartitionOp,
    Op,
    PyOp,
    Segment,
    SelectOp,
    arrow_type,
    only_for_several,
)
from trident.nodes import Node, PersistNode, SourceNode
from trident.planner import BuiltBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A transform of a classic DataFrame: the session was checked to be classic when the topology started.
Transform = Callable[["DataFrame", TransactionAttempt], "DataFrame"]


class CompiledGroup:
    """A group's plan bound to one session.

    Args:
        lowered: the group.
        session: whose JVM the Columns belong to.
    """

    def __init__(self, lowered: Lowered, session: Any) -> None:
        self._lowered, self._session, self.context = lowered, session, session.sparkContext
        variants = (False, True) if lowered.depends_on_partitions else (False,)
        self._transforms = {single: self._compile(single) for single in variants}

    def build(self, inputs: Mapping[str, DataFrame], attempt: TransactionAttempt) -> BuiltBatch:
        single = self._lowered.depends_on_partitions and all(map(_is_single, inputs.values()))
        frames: dict[Node, DataFrame] = {}
        batch: dict[str, DataFrame] = {}
        checkpoints: list[DataFrame] = []
        built = BuiltBatch(batch, checkpoints)
        try:
            for segment, transforms in self._transforms[single]:
                self._build_one(segment, transforms, inputs, attempt, frames, built)
        except BaseException:
            built.release()
            raise
        return built

    def _build_one(
        self, segment: Segment, transforms: Sequence[Transform], inputs: Mapping[str, DataFrame],
        attempt: TransactionAttempt, frames: dict[Node, DataFrame], built: BuiltBatch,
    ) -> None:  # fmt: skip
        anchor, target = segment.anchor, segment.target
        frame = inputs[anchor.tx_id] if isinstance(anchor, SourceNode) else frames[anchor]
        for transform in transforms:
            frame = transform(frame, attempt)
        if isinstance(target, PersistNode):
            built[target.binding.name] = frame
        elif target in self._lowered.shared:
            frames[target] = self._once(frame, built) if target in self._lowered.checkpointed else frame
        else:  # a dangling end: nobody takes its rows, but its functions are to be called
            frame.write.format("noop").mode("overwrite").save()

    def _once(self, frame: Any, built: BuiltBatch) -> DataFrame:
        """Computes the frame now. Known to ``built`` before that: what a failure leaves is released too."""
        kept: Any = frame.localCheckpoint(eager=False)
        built.checkpoints.append(kept)
        kept._jdf.queryExecution().analyzed().rdd().count()
        return kept

    def _compile(self, single: bool) -> list[tuple[Segment, list[Transform]]]:
        return [(segment, list(self._transforms_of(segment.ops, single))) for segment in self._lowered.segments]

    def _transforms_of(self, ops: Sequence[Op], single: bool) -> Iterator[Transform]:
        kept = [op for op in ops if not (single and only_for_several(op))]
        for in_python, run in groupby(kept, key=lambda op: isinstance(op, PyOp)):
            if in_python:
                yield self._python_pass(cast("list[PyOp]", list(run)))
            else:
                for op in run:
                    yield self._native(op)

    # --- operations ----------------------------------------------------------------------

    def _python_pass(self, ops: Sequence[PyOp]) -> Transform:
        fields = ops[-1].fields
        chain = Chain(
            tuple(op.step for op in ops), pa.schema([(field.name, arrow_type(field.dataType)) for field in fields])
        )
        schema, takes = StructType(list(fields)), sorted(ops[0].takes)
        if any(op.uses_batch_id for op in ops):

            def with_batch_id(frame: Any, attempt: TransactionAttempt) -> DataFrame:
                return self._map_in_arrow(frame, self._udf(chain.for_batch(attempt), takes, schema))

            return with_batch_id
        udf = self._udf(chain, takes, schema)
        return lambda frame, _: self._map_in_arrow(frame, udf)

    def _udf(self, chain: Chain, takes: Sequence[str], schema: StructType) -> Any:
        """What ``DataFrame.mapInArrow`` makes anew, and pickles, at every call."""
        from pyspark.sql.pandas.functions import pandas_udf

        make: Any = pandas_udf
        udf = make(chain, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        return udf(*[F.col(_quoted(name)) for name in takes])

    def _map_in_arrow(self, frame: Any, udf: Any) -> DataFrame:
        return _frame(frame, frame._jdf.mapInArrow(udf._jc, False, None))

    def _native(self, op: Op) -> Transform:
        if isinstance(op, SelectOp):
            return self._select([F.col(_quoted(name)) for name in op.keep], op)
        if isinstance(op, FilterOp):
            return self._filter(op)
        if isinstance(op, NativeAggregateOp):
            return self._aggregate(op)
        if isinstance(op, CollectOp):
            value = F.struct(F.col(_quoted(op.column)).alias("value"))
            return self._agg((), F.collect_list(value).alias(op.fields[0].name))
        if isinstance(op, ByKeyOp):
            return self._by_key(op)
        assert isinstance(op, OnePartitionOp)
        return self._one_partition(op)

    def _select(self, columns: list[Any], op: SelectOp) -> Transform:
        if op.expression is not None:
            columns = [*columns, *op.expression.columns()]
        chosen = self._seq(columns)
        return lambda frame, _: _frame(frame, frame._jdf.select(chosen))

    def _filter(self, op: FilterOp) -> Transform:
        from trident.expressions import to_column

        op.expression.analysed()
        condition = _to_java_column(to_column(op.expression.source))
        return lambda frame, _: _frame(frame, frame._jdf.filter(condition))

    def _aggregate(self, op: NativeAggregateOp) -> Transform:
        inputs, output = [F.col(_quoted(name)) for name in op.inputs], op.fields[-1]
        value = op.aggregator.merge(inputs[0]) if op.merges else op.aggregator.partial(inputs)
        zero = op.aggregator.zero()
        if zero is not None and not op.merges:
            value = F.coalesce(value, F.lit(zero).cast(output.dataType))
        return self._agg(op.keys, value.alias(output.name))

    def _agg(self, keys: Sequence[str], value: Any) -> Transform:
        grouping, first, rest = self._seq([F.col(_quoted(name)) for name in keys]), value._jc, self._seq([])
        return lambda frame, _: _frame(frame, frame._jdf.groupBy(grouping).agg(first, rest))

    def _by_key(self, op: ByKeyOp) -> Transform:
        keys = self._seq([F.col(_quoted(name)) for name in op.keys])
        return lambda frame, _: _frame(frame, frame._jdf.repartition(keys))

    def _one_partition(self, op: OnePartitionOp) -> Transform:
        """Spark gives an empty batch no partition at all, and then no worker would run."""
        data = [field for field in op.fields if field.name != MARKER]
        unmarked = self._seq([*(F.col(_quoted(field.name)) for field in data), F.lit(0).cast("long").alias(MARKER)])
        # One row of nulls; Spark cannot optimise a range away as it does an empty relation.
        marker = self._session.range(0, 1, 1, 1).select(
            *[F.lit(None).cast(field.dataType).alias(field.name) for field in data], F.lit(1).cast("long").alias(MARKER)
        )

        def transform(frame: Any, attempt: TransactionAttempt) -> DataFrame:
            return _frame(frame, frame._jdf.select(unmarked).union(marker._jdf).coalesce(1))

        return transform

    def _seq(self, columns: Sequence[Any]) -> Any:
        return _to_seq(self.context, columns, _to_java_column)


def _frame(origin: Any, java: Any) -> "DataFrame":
    return ClassicDataFrame(java, origin.sparkSession)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_single(frame: Any) -> bool:
    """Whether the batch certainly is one Spark partition: ``coalesce(1)`` or ``repartition(1)`` was its last step.

    Asking the physical plan would say more, at the price of planning the batch twice.
    """
    last = frame._jdf.queryExecution().logical()
    return last.nodeName() in ("Repartition", "RepartitionByExpression") and last.numPartitions() == 1
