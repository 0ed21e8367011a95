"""The inputs of a replay: the kept transaction, its source rows, states as of the one before, rows committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from trident.config import TridentConfig
from trident.coordinators.errors import SourceError, TableError, TopologyError, TransactionNotKept, described
from trident.coordinators.identities import TransactionAttempt, first_id, up_to
from trident.coordinators.records import Decision
from trident.maintenance.inventory import choose_group, incarnation_of
from trident.operations.windows import windows_with_rows
from trident.planning.groups import GroupPlan, plan
from trident.planning.nodes import Built, TopologyGraph, sources
from trident.planning.session_frames import compute_once, is_single
from trident.spark.rows import parquet_reader, to_dataframe
from trident.spouts.contracts import Emitted, GivenOnce, PartitionedTridentSpout, SpoutContext, SpoutKind
from trident.spouts.executors import is_batch_spout, spout_kind
from trident.spouts.tasks import PartitionRows
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.descriptor import load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import backquoted, checked_txid
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile
from trident.states.core.typed_values import python_values
from trident.states.delta.data_files import require_whole
from trident.states.delta.manifest import Manifest
from trident.states.history.kept import KeptManifests, published_as_of
from trident.states.keyed.reading import StoredFrames, read_state, read_with
from trident.udf.types import spout_schema

# Finds a kept transaction, and checks that a topology's code is that of the transaction.


@dataclass(frozen=True)
class KeptBatch:
    """A transaction whose manifest is kept, and the plan of its batch group by the code that is at hand.

    Attributes:
        manifest: of the attempt that was decided.
    """

    warehouse: Place
    plan: GroupPlan
    manifest: Manifest

    @property
    def txid(self) -> int:
        return self.manifest.attempt.txid


def find_kept(topology: Built, warehouse: Place, txid: int, group: str | None = None) -> KeptBatch:
    """The kept transaction of a topology.

    Args:
        group: the batch group, where the topology has several.

    Raises:
        TopologyError: it is no topology, has no such group, or the warehouse has nothing of it.
        ConfigError: that cannot be a txid.
        TransactionNotKept: the transaction never was, or is no longer kept; the message says which are.
        TableError: its manifest cannot be read.
    """
    if not isinstance(getattr(topology, "graph", None), TopologyGraph):
        raise TopologyError("this is no topology", found=described(topology), expected="a TridentTopology")
    txid = checked_txid(txid)
    # As a start does: windows whose stored rows an older version has made go on as they are.
    topology.graph.kept_rows |= windows_with_rows(warehouse, topology.graph.sinks)
    chosen = group_of(plan(topology.graph, tracking=False), topology.name, group)
    incarnation = incarnation_of(warehouse, topology.name)
    manifest = read_kept(GroupContext(warehouse, topology.name, chosen.name, incarnation), txid)
    check_streams(manifest, chosen)
    return KeptBatch(warehouse, chosen, manifest)


def read_kept(of: GroupContext, txid: int) -> Manifest:
    """The manifest of a transaction: also of one from before a rollback, which has left it there.

    Args:
        of: with the incarnation that the topology has now.

    Raises:
        TransactionNotKept: there is none, or no longer; or a rollback has taken the transaction back.
        TableError: it cannot be read.
    """
    try:
        return KeptManifests(of).read(txid)
    except TransactionNotKept:
        for earlier in up_to(of.incarnation)[1:]:
            kept = KeptManifests(replace(of, incarnation=earlier), upto=txid)
            if txid in kept.txids():
                decision, manifest = kept.decided(txid)
                if _tables_have(of, manifest, decision):
                    return manifest
        raise


def _tables_have(of: GroupContext, manifest: Manifest, decision: Decision) -> bool:
    """Tells whether the tables, as they are now, have the transaction of a manifest from before a rollback."""
    for path in sorted({table.path for table in manifest.tables if table.state_kind.has_table}):
        try:
            found = published_as_of(of.warehouse / path, of.topology, of.group, of.incarnation, manifest.attempt.txid)
        except TableError:  # its log does not reach back so far, or it is there no more
            continue
        if found.control.is_of(decision):
            return True
    return False


def group_of(plans: list[GroupPlan], topology: str, group: str | None) -> GroupPlan:
    """The batch group of that name; without a name the only one.

    Raises:
        TopologyError: there is none of that name, or there are several.
    """
    named = {one.name: one for one in plans}
    return named[choose_group(topology, list(named), group)]


def check_streams(manifest: Manifest, chosen: GroupPlan) -> None:
    """Raises TopologyError where the code has other streams, or other spouts, than the transaction had."""
    ran = {tx_id: str(spout.get("spout")) for tx_id, spout in manifest.spouts.items()}
    code = {tx_id: type(spout).__qualname__ for tx_id, spout in chosen.spouts.items()}
    if ran != code:
        raise TopologyError(
            f"transaction {manifest.attempt.txid} of {manifest.topology}/{manifest.group} was made by other spouts "
            "than the code has",
            found=_named(code),
            expected=_named(ran),
            action="take the code that ran then, or one that has changed after the spouts only",
        )
    skipped = [tx_id for tx_id, spout in manifest.spouts.items() if not spout.get("kind")]
    if skipped:
        raise TopologyError(
            f"transaction {manifest.attempt.txid} of {manifest.topology}/{manifest.group} was skipped: it was "
            "committed as empty, and no code of the topology made it",
            found="`trident skip`",
            action="`trident dead-letters list` shows its metadata; replay the transaction before or after it",
        )


def _named(spouts: dict[str, str]) -> str:
    return ", ".join(f"{tx_id} ({spout})" for tx_id, spout in sorted(spouts.items()))


# The rows that an attempt staged for a state, from the files that its manifest names.


_ACTION = (
    "replay a newer transaction: rows of a keyed state stay for snapshot_retention_txids transactions, those of an "
    "append table until another program removes their files"
)


def staged_rows(
    spark: "SparkSession",
    root: Place,
    files: Sequence[StagedFile],
    schema: StructType,
    partition_columns: Sequence[str],
) -> "DataFrame":
    """The staged rows of a table as a frame; few files.

    Args:
        root: the table's folder.
        schema: the columns that are wanted; null in one that a file does not have.

    Raises:
        TableError: a file is gone, or has another length.
    """
    require_staged(root, files)
    inside = StructType([field for field in schema.fields if field.name not in partition_columns])
    frames = []
    for values, paths in _by_partition(files):
        rows = parquet_reader(spark, inside).parquet(*(str(root / path) for path in paths))
        columns = [
            F.lit(values.get(field.name)).cast(field.dataType).alias(field.name)
            if field.name in partition_columns
            else F.col(backquoted(field.name))
            for field in schema.fields
        ]
        frames.append(rows.select(columns))
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(lambda one, other: one.union(other), frames)


def staged_table(root: Place, files: Sequence[StagedFile]) -> pa.Table | None:
    """The staged rows of a table in this process; None where no file was staged.

    A column by which the table is partitioned is of texts, as Delta has it.

    Raises:
        TableError: a file is gone, has another length or cannot be read.
    """
    require_staged(root, files)
    tables = [_read(root, file) for file in files]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def require_staged(root: Place, files: Iterable[StagedFile]) -> None:
    """Raises TableError for a staged file that is gone or has another length."""
    require_whole(f"table {root}", str(root), files, _ACTION)


def _read(root: Place, file: StagedFile) -> pa.Table:
    try:
        with storage.input(root / file.path) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read()
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"a staged file of {root} cannot be read: {file.path}", found=error) from error
    for name, text in file.partition_values.items():
        rows = rows.append_column(name, pa.array([text] * rows.num_rows, pa.string()))
    return rows


def _by_partition(files: Iterable[StagedFile]) -> Iterator[tuple[Mapping[str, str | None], list[str]]]:
    """The files with the same values of the columns by which the table is partitioned."""
    found: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in files:
        found.setdefault(tuple(sorted(file.partition_values.items())), []).append(file.path)
    for values, paths in found.items():
        yield dict(values), paths


# The input rows of a kept transaction: from its spouts by the pinned metadata, or from the rows that were staged.


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
        expected="a transactional source; or a DeltaAppend right after the stream, which has kept its rows",
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


# Where a replay has its rows from: its input, states as of the transaction before, and what was committed.


_SPOUT_SETTINGS = ("max_spout_pending", "ackers")


class ReplayInputs(ABC):
    """The inputs and stored rows of one transaction, for its replay."""

    attempt: TransactionAttempt
    incarnation: str

    @abstractmethod
    def sources(self, plan: GroupPlan) -> SourceRows:
        """The input rows of the streams of a plan."""

    @abstractmethod
    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        """Keys and values of a state as of the transaction before, of the keys at least."""

    @abstractmethod
    def before(self, binding: StateBinding) -> "DataFrame":
        """A state as of the transaction before, as readers have it."""

    @abstractmethod
    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        """The same with the rows that were staged for it on top."""

    @abstractmethod
    def committed(self, binding: StateBinding) -> pa.Table | None:
        """The rows that were staged for a state in the transaction that was committed; None: there were none."""

    @abstractmethod
    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """State → the rows that were committed to it, of states that the plan has not."""


class WarehouseInputs(ReplayInputs):
    """The inputs of a kept transaction, from its sources and from the warehouse."""

    def __init__(self, spark: "SparkSession", kept: KeptBatch, config: TridentConfig) -> None:
        self._spark, self._kept, self._config = spark, kept, config
        self.attempt, self.incarnation = kept.manifest.attempt, kept.manifest.incarnation
        self._frames = StoredFrames(spark, kept.warehouse)
        self._parts = {table.state: table for table in kept.manifest.tables}

    @property
    def _before(self) -> int:
        return self.attempt.txid - 1

    def sources(self, plan: GroupPlan) -> SourceRows:
        kept, config = self._kept, self._config
        options = {"warehouse": str(kept.warehouse), **{name: getattr(config, name) for name in _SPOUT_SETTINGS}}
        return source_rows(self._spark, plan, kept.manifest, kept.warehouse, config.batch_partitions, options)

    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        if not self._is_there(binding):
            return self._spark.createDataFrame([], binding.schema)
        return self._frames(binding, keys, self._before)

    def before(self, binding: StateBinding) -> "DataFrame":
        self._require_table(binding)
        if not self._is_there(binding):
            return self._spark.createDataFrame([], binding.schema)
        return read_state(
            self._spark,
            self._kept.warehouse,
            binding.name,
            self._before,
            binding.aggregator,
            advanced_txid=self._before,
            here=True,
        )

    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        self._require_table(binding)
        if not self._is_there(binding):
            raise TableError(
                f"state {binding.name} is new in the code: the warehouse has no table of it",
                action="its rows are in `rows`",
            )
        return read_with(self._spark, self._kept.warehouse, binding.name, self._before, rows, binding.aggregator)

    def committed(self, binding: StateBinding) -> pa.Table | None:
        part = self._parts.get(binding.name)
        return None if part is None else staged_table(self._kept.warehouse / part.path, part.files)

    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        known = {binding.name for binding in plan.bindings}
        found: dict[str, list[Mapping[str, Any]]] = {}
        for name, part in self._parts.items():
            if name not in known and part.files and part.state_kind.is_described:
                table = staged_table(self._kept.warehouse / part.path, part.files)
                assert table is not None
                values = [python_values(column) for column in table.columns]
                found[name] = [dict(zip(table.column_names, row)) for row in zip(*values)]
        return found

    @cached_property
    def _there(self) -> dict[str, bool]:
        return {}

    def _is_there(self, binding: StateBinding) -> bool:
        """Tells whether the warehouse has the state, of this topology."""
        if binding.name not in self._there:
            self._there[binding.name] = self._described(binding)
        return self._there[binding.name]

    def _described(self, binding: StateBinding) -> bool:
        try:
            state = load_descriptor(self._kept.warehouse, binding.name)
        except FileNotFoundError:
            return False
        owner = (self._kept.manifest.topology, self._kept.manifest.group)
        if (state.topology, state.group) != owner:
            raise TableError(
                f"state {binding.name} belongs to another topology or batch group",
                found=f"{state.topology}/{state.group}",
                expected="/".join(owner),
                action="give the code the names that it had when the transaction ran",
            )
        return True

    def _require_table(self, binding: StateBinding) -> None:
        if not binding.state_kind.is_described:
            raise TableError(
                f"state {binding.name} has no table that tells of earlier transactions",
                found=f"a state of kind {binding.kind!r}",
                expected="a state in Delta tables of the warehouse",
                action="its rows in the transaction are in `rows`",
            )
