"""The input rows of a kept transaction: from its spouts by the pinned metadata, or from the rows that were staged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError
from trident.coordinators.incarnation_ids import first_id
from trident.planning.groups import GroupPlan
from trident.planning.nodes import sources
from trident.planning.session_frames import compute_once, is_single
from trident.spark.rows import to_dataframe
from trident.spouts.contracts import Emitted, GivenOnce, PartitionedTridentSpout, SpoutContext, SpoutKind
from trident.spouts.executors import is_batch_spout, spout_kind
from trident.spouts.partition_tasks import PartitionRows
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest
from trident.time_travel.staged_rows import staged_rows
from trident.udf.schemas import spout_schema


@dataclass
class SourceRows:
    """The batch of each stream, kept in the session.

    Attributes:
        rows: tx_id → the batch.
        tables: name of a spout's own table → the rows that the spout gave for it.
        checkpoints: what they are kept in, until it is freed.
    """

    rows: dict[str, "DataFrame"]
    tables: dict[str, "DataFrame"]
    checkpoints: list["DataFrame"]


def source_rows(
    spark: "SparkSession",
    plan: GroupPlan,
    manifest: Manifest,
    warehouse: Place,
    batch_partitions: int | None,
    options: Mapping[str, Any],
) -> SourceRows:
    """The rows that the streams of a batch group had in a transaction. Nothing is written.

    Args:
        batch_partitions: Spark partitions of every batch; None = as its spout says.
        options: of the topology, as its spouts are given them.

    Raises:
        SourceError: a source cannot give its rows again: the message says why.
    """
    found = SourceRows({}, {}, [])
    for tx_id, spout in plan.spouts.items():
        schema = spout_schema(spout)
        why_not = why_not_again(spout)
        if why_not is not None:
            rows = _as_staged(spark, plan, manifest, warehouse, tx_id, schema, why_not)
            found.rows[tx_id] = _kept(rows, found.checkpoints)
            continue
        folder = warehouse / "_trident" / manifest.topology / "streams" / tx_id
        own: Path | Place = Path(folder) if folder.is_local else folder
        begun = first_id(manifest.incarnation)  # for a source nothing begins anew with a rollback
        context = SpoutContext(spark, manifest.topology, tx_id, own, begun, options, replays=True)
        metadata = manifest.spouts[tx_id]["metadata"]
        if isinstance(spout, PartitionedTridentSpout):
            rows = _of_partitions(spout, context, schema, manifest, metadata)
            found.rows[tx_id] = _kept(_in_partitions(rows, batch_partitions), found.checkpoints)
            continue
        emitter = spout.get_emitter(context)
        try:
            given = emitter.emit_batch(manifest.attempt, metadata)
            emitted = given if isinstance(given, Emitted) else Emitted(given)
            rows = to_dataframe(spark, emitted.data, schema)
            rows = _in_partitions(rows, batch_partitions or emitted.partitions)
            found.rows[tx_id] = _kept(rows, found.checkpoints)
            binding = plan.spout_tables.get(tx_id)
            if binding is not None:
                given = emitted.table_rows if emitted.table_rows is not None else []
                table = to_dataframe(spark, given, binding.schema).coalesce(1)
                found.tables[binding.name] = _kept(table, found.checkpoints)
        finally:
            emitter.close()
    return found


def why_not_again(spout: Any) -> str | None:
    """The reason why a spout cannot give the rows of a transaction again; None: by its contract it does."""
    if isinstance(spout, GivenOnce):
        return spout.given_once
    kind = spout_kind(spout)
    if kind is not SpoutKind.TRANSACTIONAL:
        return f"a {type(spout).__name__} is {kind.value}: it does not give a batch again"
    if is_batch_spout(spout):
        return f"a {type(spout).__name__} is a BatchSpout: it gives a batch again only until it is acknowledged"
    return None


def _as_staged(
    spark: "SparkSession",
    plan: GroupPlan,
    manifest: Manifest,
    warehouse: Place,
    tx_id: str,
    schema: StructType,
    why_not: str,
) -> "DataFrame":
    """The rows of a stream from the append table that took them as they were."""
    source = next(node for node in sources(plan.nodes) if node.tx_id == tx_id)
    for node in plan.nodes:
        state = node.writes
        if state is None or node.table_of is not None or node.parents != (source,) or not state.state_kind.appends:
            continue
        if [field.name for field in state.schema.fields] == schema.names:
            part = next((table for table in manifest.tables if table.state == state.name), None)
            if part is not None:
                columns = getattr(state.state, "partition_columns", ())
                return staged_rows(spark, warehouse / part.path, part.files, schema, columns)
    raise SourceError(
        f"the rows that stream {tx_id!r} had in transaction {manifest.attempt.txid} are not to be had again",
        found=why_not,
        expected="a transactional source; or a DeltaAppend right behind the stream, which has kept its rows",
        action=f"append the rows of stream {tx_id!r} as they come to a table, and later transactions can be replayed",
    )


def _of_partitions(
    spout: Any, context: SpoutContext, schema: StructType, manifest: Manifest, metadata: Any
) -> "DataFrame":
    """The rows of a source in partitions, emitted again from the metadata of each."""
    parts = metadata.get("partitions") if isinstance(metadata, dict) else None
    if not isinstance(parts, dict):
        raise SourceError(
            f"the metadata of stream {context.tx_id!r} was not written by a spout in partitions",
            found=repr(metadata)[:200],
            action="take the code that ran then",
        )
    spark = context.spark
    there = replace(context, spark=None)
    task = PartitionRows(spout, there, schema, manifest.attempt, tuple(parts.items()))
    if not parts:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(task, schema)


def _in_partitions(rows: "DataFrame", wanted: int | None) -> "DataFrame":
    return rows if wanted is None else rows.coalesce(wanted)


def _kept(rows: "DataFrame", kept: list["DataFrame"]) -> "DataFrame":
    """The rows, computed now: their source may be closed then. Those of one Spark partition are known as such."""
    single = is_single(rows)
    checkpoint = compute_once(rows, kept)
    return checkpoint.coalesce(1) if single else checkpoint
