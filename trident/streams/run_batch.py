"""Runs one batch of a stream: for tests of users' own streams, and of this package's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import GroupPlan, ReadState, build_whole, plan_of_stream, states_read
from trident.planning.nodes import RESULT, SourceNode, sources
from trident.spark.cluster_files import renew_workers
from trident.spark.rows import to_dataframe
from trident.spark.session import make_session
from trident.states.core.binding import StateBinding
from trident.states.core.typed_values import python_values
from trident.states.publishing.user_tasks import BatchInfo
from trident.streams.stream import Stream
from trident.udf.expressions import current_session
from trident.udf.signatures import translate_failure
from trident.udf.types import spout_schema

Rows = Union["DataFrame", pa.Table, Sequence[Sequence[Any]]]

_PLACE = "__trident_place"
_FIRST = TransactionAttempt(1, 0)


def run_batch(
    stream: Stream,
    rows: Union[Rows, Mapping[str, Rows]],
    *,
    spark: "SparkSession | None" = None,
    partitions: int = 1,
    attempt: TransactionAttempt = _FIRST,
    states: Mapping[str, Rows] | None = None,
) -> list[tuple[Any, ...]]:
    """Returns what a stream gives for one batch, computed by Spark as the topology would.

    ::

        assert run_batch(words, [("a b",), ("c",)]) == [("a",), ("b",), ("c",)]

    A stream that reads a state, or is made of one's new values, is given what the state holds before the batch::

        assert run_batch(counts.new_values_stream(), [("a",)], states={"counts": [("a", 2)]}) == [("a", 3)]

    No ZooKeeper, spout or table takes part, and the topology stays as it is:
    what other branches of it would do is not done. Nothing is written.

    Args:
        stream: of any topology. It may not read a state whose values code of the user's keeps, such as a map of theirs.
        rows: the batch: tuples in the order of the spout's fields, or a DataFrame or an Arrow table
            with these fields; for a stream that is made of several spouts'
            streams a mapping from each one's tx_id to its rows.
        spark: the session; None takes the active one, or makes one.
        partitions: Spark partitions that listed rows are put into, in runs of
            equal length; without rows they are all empty. 0, for no rows only:
            a relation that Spark removes from its plan. A DataFrame keeps its own.
        attempt: what aggregators are told.
        states: name → the rows, of every state that the stream reads: its keys and then its values; [] is an empty
            state.

    Returns:
        the rows, as tuples in the order of the fields; those of Spark's first
        partition first. Timestamps are as ``DataFrame.collect`` gives them.

    Raises:
        TopologyError: the stream reads a state whose rows were not given, or cannot be; or the rows are not those
            of its spouts.
        SourceError: a row does not fit its spout's fields.
        UserFunctionError, FailedException: a function of the stream raised.
    """
    plan, found, read = _plan_of(stream)
    given = _given_states(read, states)
    batches = _per_source(rows, found)
    session = spark or current_session() or make_session("run_batch")
    renew_workers(session.sparkContext)
    frames = {
        tx_id: _frame(session, batches[tx_id], spout_schema(node.spout), partitions) for tx_id, node in found.items()
    }

    def stored(binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        return to_dataframe(session, given[binding.name], binding.schema)

    try:
        with build_whole(plan, frames, BatchInfo(attempt), stored) as built:
            return [tuple(row) for row in built[RESULT].collect()]
    except Exception as error:
        translated = translate_failure(error, attempt)
        if translated is error:
            raise
        raise translated from translated.__cause__


def _plan_of(stream: Stream) -> tuple[GroupPlan, dict[str, SourceNode], dict[str, ReadState]]:
    """The plan of the nodes above the stream; its sources by tx_id; the states that it reads."""
    if not isinstance(stream, Stream):
        raise TopologyError(
            "run_batch takes a stream", found=repr(stream), expected="what new_stream or an operation of a stream gave"
        )
    plan = plan_of_stream("run_batch", stream._node, stream._graph.nodes)
    return plan, {node.tx_id: node for node in sources(plan.nodes)}, states_read(plan.nodes)


def _given_states(read: Mapping[str, ReadState], states: Mapping[str, Rows] | None) -> Mapping[str, Rows]:
    """The rows of the states that a stream reads.

    Raises:
        TopologyError: some were not given, or cannot be.
    """
    given = states or {}
    own = next((one for one in read.values() if one.binding.state_kind.users_code), None)
    missing = [name for name in read if name not in given]
    if own is None and not missing:
        return given
    binding, node = own or read[missing[0]]
    name = binding.name
    raise TopologyError(
        f"run_batch cannot run a stream that reads a state, {name!r}, "
        + ("whose values code of yours keeps" if own else "without its rows"),
        found=f"{node.operation} at {node.location}",
        expected="a stream of rows, operations and aggregates; states whose rows are given",
        action=(
            "test the stream in front of it, and the rest with start() and a MemoryMapState"
            if own
            else f"say what the state holds before the batch: run_batch(…, states={{{name!r}: […]}})"
        ),
    )


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
    if isinstance(rows, pa.Table):
        rows = [tuple(row) for row in zip(*map(python_values, rows.select(schema.names).columns))]
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
