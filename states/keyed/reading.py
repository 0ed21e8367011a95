"""Reads keyed states as of one transaction: snapshots, look-ups of a batch's keys, and DataFrames for users.

Needs no running topology and no ZooKeeper. A transaction that is published to
only some of a group's tables is never read: without a txid a read gives the last transaction
that *every* table of the group has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from trident.coordinators.errors import TableError
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.core.copyable import arrow_schema
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import AnyPath, Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.delta_log import LogTables
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed.delta_map import periods
from trident.states.keyed.key_reads import as_python, key_rows, plain_rows
from trident.states.keyed.live_read import live_frame, rows_here
from trident.states.keyed.log_merge import log_rows, no_rows, quoted, same_key, shown, table_rows
from trident.states.keyed.pinning import Pinned, load_state, pin, pin_alone
from trident.states.keyed.snapshot import Stored, StoredFiles, load_frame, log_frame, plain_frame

# Of readers that keep none of their own.
TABLES = LogTables()


def read_state(
    spark: "SparkSession",
    warehouse: AnyPath,
    name: str,
    txid: int | None = None,
    aggregator: Any = None,
    advanced_txid: int | None = None,
    here: bool = False,
    tables: LogTables = TABLES,
) -> "DataFrame":
    """A state as of one transaction: exact, and fixed for as long as the frame lives.

    A keyed state gives its keys and values, one row per key; an append gives
    its rows. A state that takes part in no transaction up to ``txid`` is empty:
    also a global aggregate, which has its row from its first transaction on.

    Args:
        txid: the transaction; None for the last that every table of the group
            has. One that committed nothing reads as the one before it.
        aggregator: of the topology; needed for a Python combiner only, and
            only while part of the log is not merged.
        advanced_txid: the last advanced txid, when the caller knows it (from
            before this call): transactions that committed nothing leave no
            trace in the tables, and a txid above the last trace is else "not
            committed yet".
        here: a small keyed state is read by this process at once, and not when Spark asks for it.
        tables: what is known of the logs.

    Raises:
        SnapshotUnavailable: the transaction is not committed yet, or is older
            than what is kept (the error names the oldest that can be read).
        TableError: there is no such state, or a table of it is missing.
        ForeignTable: a table is not of the state that the descriptor names.
        ConfigError: a Python combiner is needed and was not given.
    """
    frames, _ = read_group(spark, warehouse, [name], txid, {name: aggregator}, advanced_txid, here, tables)
    return frames[name]


def read_group(
    spark: "SparkSession",
    warehouse: AnyPath,
    names: Sequence[str],
    txid: int | None = None,
    aggregators: Mapping[str, Any] | None = None,
    advanced_txid: int | None = None,
    here: bool = False,
    tables: LogTables = TABLES,
) -> tuple[dict[str, "DataFrame"], int]:
    """Several states of one batch group, all as of the same transaction.

    Returns:
        The frame of each name, and the txid.

    Raises:
        TableError: the states are not of one group; else as :func:`read_state`.
    """
    states = [load_state(warehouse, name) for name in names]
    _require_one_group(states)
    views, asked = pin(tables, warehouse, states, txid, advanced_txid)
    given = aggregators or {}
    return {name: _frame(spark, views[name], asked, given.get(name), here) for name in names}, asked


def read_with(
    spark: "SparkSession",
    warehouse: AnyPath,
    name: str,
    txid: int,
    further: "DataFrame",
    aggregator: Any = None,
) -> "DataFrame":
    """A state as it is with the rows of one further transaction behind ``txid``, which no table needs to have.

    Args:
        txid: as of which transaction; one that has advanced, or is known to have committed nothing.
        further: the rows of the transaction behind it, with the columns that are staged for the state.
        aggregator: as for :func:`read_state`; needed for a Python combiner.

    Raises: as :func:`read_state`.
    """
    state = load_state(warehouse, name)
    if not state.state_kind.has_log:
        before = read_state(spark, warehouse, name, txid, advanced_txid=txid)
        return before.unionByName(further, allowMissingColumns=True).select(before.columns)
    stored = stored_as_of(spark, Place(warehouse), state, txid)
    new = log_rows(state, further.withColumn(TXID_COLUMN, F.lit(txid + 1).cast("bigint")), txid, txid + 1)
    rows, after = (new, txid) if stored.rows is None else (stored.rows.unionByName(new), stored.span[0])
    with_new = replace(stored, rows=rows, span=(after, txid + 1), size=None, files=None).frame(aggregator)
    return periods(state, with_new) if state.history_by else with_new


def latest_txid(warehouse: AnyPath, name: str) -> int:
    """The last transaction that every table of the state's group has; 0 before the first.

    Raises:
        TableError: there is no such state, or a table of it is missing.
    """
    return pin(TABLES, warehouse, [load_state(warehouse, name)], None, None)[1]


def _require_one_group(states: Sequence[StateDescriptor]) -> None:
    groups = {(state.topology, state.group) for state in states}
    if len(groups) != 1:
        raise TableError(
            "only the states of one batch group are committed as one, and can be read as one",
            found=", ".join(f"{state.name} of {state.topology}/{state.group}" for state in states),
            expected="states of one group",
            action="read each group on its own",
        )


def _frame(spark: "SparkSession", table: Pinned, txid: int, aggregator: Any, here: bool) -> "DataFrame":
    if table.merged is None:
        rows = table_rows(table.state, load_frame(spark, table.published))
        return rows.where("false") if txid < table.control.starts_at else rows
    stored = _stored(spark, table, txid)
    at_once = rows_here(spark, stored) if here else None
    rows = live_frame(spark, stored, aggregator) if at_once is None else at_once
    return periods(table.state, rows) if table.state.history_by else rows


def _stored(spark: "SparkSession", table: Pinned, txid: int, as_files: bool = False) -> Stored:
    """A keyed state as of txid, from pinned tables that fit: floor <= merged <= txid."""
    assert table.merged is not None, "an append has no log"
    state, control = table.state, table.control
    base = no_rows(spark, state)
    if txid < control.starts_at and not table.was_adopted:
        return Stored(state, control, base, None, (0, 0))
    plain_files: list[LiveFile] | None = []
    if table.plain is not None:
        frame, plain_files = plain_frame(spark, table.plain, as_files)
        base = table_rows(state, frame)
    if table.merged >= min(txid, control.txid):  # later transactions, if any, committed nothing
        return Stored(state, control, base, None, (0, 0))
    rows, log_files = log_frame(spark, table.published, table.merged, as_files)
    span = (table.merged, txid)
    waiting = log_rows(state, rows, *span)
    if plain_files is None or log_files is None:
        return Stored(state, control, base, waiting, span)
    plain = "" if table.plain is None else table.plain.path
    files = StoredFiles(plain, table.published.path, plain_files, log_files, table.merged, txid)
    return Stored(state, control, base, waiting, span, files.size, files)


def stored_as_of(
    spark: "SparkSession", warehouse: Place, state: StateDescriptor, txid: int, tables: LogTables = TABLES
) -> Stored:
    """A keyed state as of a transaction that is known to have advanced, or to have committed nothing.

    It is made for each batch: of a table's log new entries alone are read, and no table is loaded by Spark.

    Raises: as :func:`read_state`.
    """
    return _stored(spark, pin_alone(tables, warehouse, state, txid), txid, as_files=True)


# --- looking up some keys (docs/semantics.md 9.3) -----------------------------------------------------


def base_of(
    spark: "SparkSession",
    warehouse: AnyPath,
    name: str,
    keys_frame: "DataFrame | None",
    txid: int,
    aggregator: Any = None,
    tables: LogTables = TABLES,
) -> "DataFrame":
    """The values of some keys of a keyed state as of exactly one transaction.

    The caller's duty: txid has advanced, or is known to have committed nothing;
    this looks at the state's own tables only. And ``keys_frame`` gives the same
    rows each time it is computed: it is used for the table and for the log.

    Args:
        keys_frame: the keys that are asked, with the state's key columns by
            name. Nulls are keys, and one may occur several times. With the hint
            "broadcast" where they are few; else both sides of a join are moved.
            None for all, and for a state without keys.
        aggregator: the state's, when that is a Python combiner.
        tables: what is known of the logs.

    Returns:
        Keys and values; no row for a key that the state does not have. Lazy,
        and fixed: later transactions and MERGEs do not change it.

    Raises:
        SnapshotUnavailable: txid is older than what is kept.
        TableError: there is no such keyed state, or a table of it is missing.
        ForeignTable: a table is not the state's.
        ConfigError: a Python combiner is needed and was not given.
    """
    stored, base, rows = parts_of(spark, warehouse, name, keys_frame, txid, tables)
    if keys_frame is None or not stored.state.keys:
        return stored.frame(aggregator)
    return shown(stored.state, base) if rows is None else stored.grouped(base, rows, aggregator)


def parts_of(
    spark: "SparkSession",
    warehouse: AnyPath,
    name: str,
    keys_frame: "DataFrame | None",
    txid: int,
    tables: LogTables = TABLES,
) -> "tuple[Stored, DataFrame, DataFrame | None]":
    """A state as :func:`base_of` finds it, with the rows that table and log have of the keys, not combined yet."""
    state = load_state(warehouse, name)
    if not state.state_kind.has_log:
        raise TableError(
            f"state {name} has no values to look up", found=f"a state of kind {state.kind!r}", expected="a keyed state"
        )
    stored = stored_as_of(spark, Place(warehouse), state, txid, tables)
    base, rows = stored.base, stored.rows
    if keys_frame is None or not state.keys:
        return stored, base, rows
    asked = keys_frame.select(*[quoted(key) for key in state.keys]).alias("s")
    base = base.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    if rows is not None:
        rows = rows.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    return stored, base, rows


# States as DataFrames: as of the transaction before, for what a batch looks up; and as users ask for them.


_ASKED = "__trident_asked"


class StoredFrames:
    """Gives a group's states, as of exact transactions, to the batch that looks them up, or to requests side by side.

    Each of the two has its own: a batch never waits for a request.
    """

    def __init__(self, spark: "SparkSession", warehouse: Place) -> None:
        self._spark, self._warehouse = spark, warehouse
        self._tables = LogTables()
        self._memory: dict[str, tuple[Any, "DataFrame"]] = {}

    def __call__(
        self,
        binding: StateBinding,
        keys: "DataFrame | None",
        txid: int,
        entries: Mapping[tuple[Any, ...], Any] | None = None,
    ) -> "DataFrame":
        """Keys and values of the state as of txid, of the keys asked at least.

        Args:
            entries: of a memory map, as of txid; None: as it is now.

        Raises:
            SnapshotUnavailable: that transaction is no longer kept.
        """
        if entries is not None:
            return self._of_memory(binding, entries)
        if isinstance(kind := binding.state_kind, TablelessKind):
            return self._spark.createDataFrame(kind.rows_now(binding, ""), binding.schema)
        return base_of(self._spark, self._warehouse, binding.name, keys, txid, binding.aggregator, self._tables)

    def _of_memory(self, binding: StateBinding, entries: Mapping[tuple[Any, ...], Any]) -> "DataFrame":
        """A frame of the entries; the last one is kept, since a map that has not changed gives the same."""
        known, frame = self._memory.get(binding.name, (None, None))
        if frame is None or known is not entries:
            rows = [key + value for key, (_, value) in entries.items()]
            frame = self._spark.createDataFrame(rows, binding.schema)
            self._memory[binding.name] = entries, frame
        return frame


def own_snapshot(
    spark: "SparkSession", kind: TablelessKind, binding: StateBinding, txid: int | None, incarnation: str
) -> "DataFrame":
    """Returns what a state that is not a Delta table holds now.

    Raises:
        TableError: an earlier transaction was asked for, which it does not keep.
        TopologyError: the state cannot be listed.
    """
    if txid is not None:
        raise TableError(f"state {binding.name} keeps no earlier transactions", found=f"txid={txid}", expected="None")
    return spark.createDataFrame(kind.rows_now(binding, incarnation), binding.schema)


def values_by_spark(
    frame: "DataFrame", name: str, keys: Sequence[str], asked: Sequence[Any]
) -> list[dict[str, Any] | None]:
    """The values of some keys of a frame with a keyed state's rows, as ``key_reads`` gives them, by a job of Spark.

    Raises:
        FieldError: a key does not fit.
    """
    columns = [StructField(key, frame.schema[key].dataType) for key in keys]
    arrow = arrow_schema(StructType(columns))
    rows = plain_rows(key_rows(name, arrow, keys, asked), arrow)
    schema = StructType([StructField(_ASKED, LongType()), *columns])
    sent = frame.sparkSession.createDataFrame([(at, *row) for at, row in enumerate(rows)], schema)
    found = frame.alias("t").join(F.broadcast(sent).alias("s"), same_key(keys, "t", "s"))
    values = [field for field in frame.columns if field not in keys]
    table = found.select(quoted(_ASKED, "s"), *(quoted(field, "t") for field in values)).toArrow()
    answers = dict(zip(table.column(_ASKED).to_pylist(), as_python(name, values, table), strict=True))
    return [answers.get(at) for at in range(len(asked))]
