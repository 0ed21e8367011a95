"""Runs one batch of a stream: for tests of users' own streams, and of this package's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.transactions import TransactionAttempt
from trident.planning.groups import GroupPlan, nodes_above
from trident.planning.lowering import late_nodes, lower
from trident.planning.nodes import SourceNode, sources
from trident.planning.results import RESULT, result_of
from trident.spark.rows import to_dataframe
from trident.spark.session import make_session
from trident.streams.stream import Stream
from trident.udf.expressions import current_session
from trident.udf.schemas import spout_schema
from trident.udf.signatures import translate_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Rows = Union["DataFrame", Sequence[Sequence[Any]]]

_PLACE = "__trident_place"
_FIRST = TransactionAttempt(1, 0)


def run_batch(
    stream: Stream,
    rows: Union[Rows, Mapping[str, Rows]],
    *,
    spark: "SparkSession | None" = None,
    partitions: int = 1,
    attempt: TransactionAttempt = _FIRST,
) -> list[tuple[Any, ...]]:
    """Returns what a stream gives for one batch, computed by Spark as the topology would.

    ::

        assert run_batch(words, [("a b",), ("c",)]) == [("a",), ("b",), ("c",)]

    No ZooKeeper, spout or table takes part, and the topology stays as it is:
    what other branches of it would do is not done. Nothing is written.

    Args:
        stream: of any topology. It may not read a state, nor be made of one's new values.
        rows: the batch: tuples in the order of the spout's fields, or a DataFrame
            with these fields; for a stream that is made of several spouts'
            streams a mapping from each one's tx_id to its rows.
        spark: the session; None takes the active one, or makes one.
        partitions: Spark partitions that listed rows are put into, in runs of
            equal length; without rows they are all empty. 0, for no rows only:
            a relation that Spark removes from its plan. A DataFrame keeps its own.
        attempt: what aggregators are told.

    Returns:
        the rows, as tuples in the order of the fields; those of Spark's first
        partition first. Timestamps are as ``DataFrame.collect`` gives them.

    Raises:
        TopologyError: the stream reads a state, or the rows are not those of its spouts.
        SourceError: a row does not fit its spout's fields.
        UserFunctionError, FailedException: a function of the stream raised.
    """
    plan, found = _plan_of(stream)
    batches = _per_source(rows, found)
    session = spark or current_session() or make_session("run_batch")
    frames = {
        tx_id: _frame(session, batches[tx_id], spout_schema(node.spout), partitions) for tx_id, node in found.items()
    }
    try:
        with plan.build(frames, attempt) as built:
            return [tuple(row) for row in built[RESULT].collect()]
    except Exception as error:
        translated = translate_failure(error, attempt)
        if translated is error:
            raise
        raise translated from translated.__cause__


def _plan_of(stream: Stream) -> tuple[GroupPlan, dict[str, SourceNode]]:
    """The plan of the nodes above the stream, and its sources by tx_id."""
    if not isinstance(stream, Stream):
        raise TopologyError(
            "run_batch takes a stream", found=repr(stream), expected="what new_stream or an operation of a stream gave"
        )
    result = result_of(stream._node)
    nodes = [*nodes_above([stream._node], stream._graph.nodes), result]
    late = late_nodes(nodes)
    reads = next((node for node in nodes if node in late), None)
    if reads is not None:
        raise TopologyError(
            "run_batch cannot run a stream that reads a state",
            found=f"{reads.operation} at {reads.location}",
            expected="a stream of rows, operations and aggregates",
            action="test the stream in front of it, and the rest with start() and a MemoryMapState",
        )
    found = {node.tx_id: node for node in sources(nodes)}
    return GroupPlan(name="run_batch", nodes=nodes, lowered=lower(nodes, [result])), found


def _per_source(rows: Any, sources: Mapping[str, SourceNode]) -> Mapping[str, Rows]:
    if not isinstance(rows, Mapping):
        if len(sources) == 1:
            return dict.fromkeys(sources, rows)
        raise TopologyError(
            "run_batch needs rows for each spout of the stream",
            found=f"rows for one of {', '.join(sorted(sources))}",
            expected=f"a mapping from tx_id to rows, such as {{{min(sources)!r}: […], …}}",
        )
    if set(rows) != set(sources):
        raise TopologyError(
            "run_batch needs rows for exactly the spouts of the stream",
            found=", ".join(sorted(map(str, rows))) or "none",
            expected=", ".join(sorted(sources)),
        )
    return rows


def _frame(session: Any, rows: Rows, schema: "StructType", partitions: int) -> "DataFrame":
    if isinstance(rows, DataFrame):
        return to_dataframe(session, rows, schema)
    listed = list(rows)
    if partitions < 0 or (partitions == 0 and listed):
        raise SourceError(
            "the rows cannot be put into this number of partitions",
            found=f"{len(listed)} rows in {partitions} partitions",
            expected="at least 1; or 0 without rows",
        )
    if partitions == 0:
        return to_dataframe(session, [], schema).where("false")
    if not listed:
        # Spark would remove an empty list from its plan, and with it the partitions.
        empty = session.range(0, partitions, 1, partitions).where("id < 0")
        return empty.select(*[F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields])
    frame = to_dataframe(session, listed, schema).coalesce(1)
    if partitions == 1:
        return frame
    place = F.floor(F.monotonically_increasing_id() * partitions / len(listed)).cast("int")
    return frame.withColumn(_PLACE, place).repartitionById(partitions, F.col(_PLACE)).drop(_PLACE)
