"""Runs streams in tests: on Spark as the runner does, or a Python pass alone without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import GroupPlan, plan
from trident.planning.operation import PyOp, arrow_type
from trident.states.core.typed_values import python_values
from trident.states.delta.append import DeltaAppend
from trident.streams.run_batch import _plan_of, run_batch
from trident.streams.stream import Stream
from trident.topology import TridentTopology
from trident.udf.types import parse_outputs
from trident.workers.chain import Chain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPT = TransactionAttempt(7, 2)


def split(line: str) -> Iterator[str]:
    yield from line.split()


class Longest:
    """A reducer: the longest word, of equals the first."""

    def init(self) -> str:
        return ""

    def reduce(self, longest: str, word: str) -> str:
        return max(longest, word, key=len)


class RowsSpout:
    """A spout's description only: tests hand batches to the plan themselves."""

    def __init__(self, fields: str) -> None:
        self.output_schema = StructType([StructField(name, kind) for name, kind in parse_outputs(fields)])

    def get_coordinator(self, context: Any) -> Any:
        raise AssertionError("a plan asks no coordinator")

    def get_emitter(self, context: Any) -> Any:
        raise AssertionError("a plan asks no emitter")


class Rows:
    """A combiner: the number of rows."""

    def init(self, *values: Any) -> int:
        return 1

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


class Sides:
    """A multi-reducer: the values with the number of their stream."""

    def init(self, batch_id: Any) -> list:
        return []

    def execute(self, state: list, stream_index: int, *values: Any) -> None:
        state.append(f"{stream_index}:{'/'.join(map(str, values))}")

    def complete(self, state: list) -> str:
        return " ".join(sorted(state))


def stream_of(fields: str, name: str = "test") -> Stream:
    return TridentTopology(name).new_stream("rows", RowsSpout(fields))


def topology_of(stream: Any) -> TridentTopology:
    """The topology of a stream, for what is asked of topologies."""
    topology = TridentTopology(stream._graph.name)
    topology.graph = stream._graph
    return topology


def append_plan(stream: Stream) -> GroupPlan:
    """The plan that appends the stream's rows."""
    stream.partition_persist(DeltaAppend("out"))
    return plan(stream._graph)[0]


def batch(spark: "SparkSession", plan_: GroupPlan, rows: Sequence[tuple], partitions: int = 1) -> "DataFrame":
    """A batch as the runner makes it. No rows and partitions=0: a relation that Spark optimises away."""
    schema = plan_.spouts["rows"].output_schema
    frame = spark.createDataFrame(list(rows), schema)
    if partitions == 0:
        return frame.where("false")
    return frame.coalesce(1) if partitions == 1 else frame.repartition(partitions)


def run(spark: "SparkSession", stream: Stream, rows: Sequence[tuple], partitions: int = 1) -> list[tuple]:
    """The stream's rows on Spark, in no order but sorted by their text."""
    plan_ = append_plan(stream)
    return collect(plan_.build({"rows": batch(spark, plan_, rows, partitions)}, ATTEMPT)["out"])


def collect(frame: "DataFrame") -> list[tuple]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def together(spark: "SparkSession", streams: Sequence[Stream], rows: Any, partitions: int = 1) -> list[list[tuple]]:
    """The rows of each of several streams with the same fields, all in one batch, in Spark's order."""
    first, *others = [stream.each(F.lit(place), "of int") for place, stream in enumerate(streams)]
    found = run_batch(first.merge(*others), rows, spark=spark, partitions=partitions, attempt=ATTEMPT)
    return [[row[:-1] for row in found if row[-1] == place] for place in range(len(streams))]


def run_pass(stream: Stream, rows: Sequence[tuple], cut: int | None = None) -> list[tuple]:
    """The stream's rows through its one Python pass, in order, without Spark.

    Args:
        stream: made of Python operations only.
        rows: the batch.
        cut: rows per Arrow batch.
    """
    plan_, *_ = _plan_of(stream)
    (segment,) = plan_.lowered.segments
    assert all(isinstance(op, PyOp) for op in segment.ops), segment.ops
    chain = Chain(
        tuple(op.step for op in segment.ops), pa.schema([(f.name, arrow_type(f.dataType)) for f in segment.fields])
    )
    spout = plan_.spouts["rows"].output_schema
    columns = list(zip(*rows)) if rows else [()] * len(spout.names)
    table = pa.table({f.name: pa.array(column, arrow_type(f.dataType)) for f, column in zip(spout.fields, columns)})
    out: list[tuple] = []
    for piece in chain(iter(table.to_batches(max_chunksize=cut))):
        out.extend(zip(*map(python_values, piece.columns)))
    return out


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:  # whatever it is, the test looks at it
        return error
    raise AssertionError("nothing was raised")
