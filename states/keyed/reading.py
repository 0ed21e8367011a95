"""Snapshot reads: the states of a batch group, all as of one transaction (docs/semantics.md 11).

Needs no running topology and no ZooKeeper. A transaction that is published to
only some of a group's tables is never read: without a txid a read gives the last transaction
that *every* table of the group has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TableError
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor, described_states, descriptors_of_group, load_descriptor
from trident.states.delta import history
from trident.states.delta.kernel import KernelEngine, TableMissing, TableSnapshot
from trident.states.keyed.compaction import READ_AGAIN, LogView, SnapshotUnavailable, TableView, plan_live_read
from trident.states.keyed.log_merge import log_rows, table_rows
from trident.states.keyed.snapshot import Stored, load_frame, log_frame, plain_frame
from trident.states.keyed.tables import merged_upto, own_control, plain_as_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 10


@dataclass(frozen=True)
class _Pinned:
    """One state's tables at fixed table versions.

    Attributes:
        published: the log of a keyed state, or the append table.
        plain: the plain table; None when it was not made yet, or for an append.
        merged: P of the plain table; None for an append.
    """

    state: StateDescriptor
    published: TableSnapshot
    control: ControlRecord
    plain: TableSnapshot | None = None
    merged: int | None = None

    @property
    def pair(self) -> tuple[LogView, TableView] | None:
        """The pinned log and table of a keyed state; None for an append."""
        if self.merged is None:
            return None
        view = LogView(self.published.version, self.control.txid, self.control.floor)
        return view, TableView(-1 if self.plain is None else self.plain.version, self.merged)


def read_state(
    spark: "SparkSession",
    engine: KernelEngine,
    warehouse: Path | str,
    name: str,
    txid: int | None = None,
    aggregator: Any = None,
    advanced_txid: int | None = None,
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

    Raises:
        SnapshotUnavailable: the transaction is not committed yet, or is older
            than what is kept (the error names the oldest that can be read).
        TableError: there is no such state, or a table of it is missing.
        ForeignTable: a table is not of the state that the descriptor names.
        ConfigError: a Python combiner is needed and was not given.
    """
    frames, _ = read_group(spark, engine, warehouse, [name], txid, {name: aggregator}, advanced_txid)
    return frames[name]


def read_group(
    spark: "SparkSession",
    engine: KernelEngine,
    warehouse: Path | str,
    names: Sequence[str],
    txid: int | None = None,
    aggregators: Mapping[str, Any] | None = None,
    advanced_txid: int | None = None,
) -> tuple[dict[str, "DataFrame"], int]:
    """Several states of one batch group, all as of the same transaction.

    Returns:
        The frame of each name, and the txid.

    Raises:
        TableError: the states are not of one group; else as :func:`read_state`.
    """
    states = [load_state(warehouse, name) for name in names]
    _require_one_group(states)
    views, asked = _pin(engine, warehouse, states, txid, advanced_txid)
    given = aggregators or {}
    return {name: _frame(spark, engine, views[name], asked, given.get(name)) for name in names}, asked


def latest_txid(engine: KernelEngine, warehouse: Path | str, name: str) -> int:
    """The last transaction that every table of the state's group has; 0 before the first.

    Raises:
        TableError: there is no such state, or a table of it is missing.
    """
    return _pin(engine, warehouse, [load_state(warehouse, name)], None, None)[1]


def load_state(warehouse: Path | str, name: str) -> StateDescriptor:
    try:
        return load_descriptor(warehouse, name)
    except FileNotFoundError:
        known = described_states(warehouse)
        raise TableError(
            f"there is no state {name!r} in the warehouse {warehouse}",
            found=f"the states {', '.join(known)}" if known else "no state at all",
            action="check the name and the warehouse folder; a state exists from its topology's first start on",
        ) from None


def _require_one_group(states: Sequence[StateDescriptor]) -> None:
    groups = {(state.topology, state.group) for state in states}
    if len(groups) != 1:
        raise TableError(
            "only the states of one batch group are committed as one, and can be read as one",
            found=", ".join(f"{state.name} of {state.topology}/{state.group}" for state in states),
            expected="states of one group",
            action="read each group on its own",
        )


def _pin(
    engine: KernelEngine,
    warehouse: Path | str,
    states: Sequence[StateDescriptor],
    txid: int | None,
    advanced_txid: int | None,
) -> tuple[dict[str, _Pinned], int]:
    """Pins the states' tables at versions that can be read as of one transaction; and which one."""
    for attempt in range(_TRIES):
        controls, pinned = _look(engine, Path(warehouse), states)
        # A merged transaction had advanced before any log was looked at; an empty one leaves no other trace.
        merged = [table.merged or 0 for table in pinned.values() if table.plain is not None]
        known = max(advanced_txid or 0, *merged, 0)
        newest = max(min(controls), known)
        asked = newest if txid is None else min(txid, newest)
        views = {name: _as_of(engine, table, asked) for name, table in pinned.items()}
        pairs = [view.pair for view in views.values() if view.pair is not None and asked >= view.control.starts_at]
        try:
            plan = plan_live_read(pairs, controls, txid, known)
        except SnapshotUnavailable as error:
            if txid is not None and txid < newest:
                raise _too_old(engine, pinned, txid) from error
            raise
        if plan is not READ_AGAIN:
            return views, plan.txid
        if any(view.merged != pinned[name].merged for name, view in views.items()):
            # An older table version was wanted, and the log no longer reaches back to its P.
            raise _too_old(engine, pinned, asked)
        # Merged and dropped between our looks at the two tables: look again.
        time.sleep(0.01 * 2**attempt)
    raise TableError(
        f"the tables of batch group {states[0].group} of {states[0].topology} do not fit together",
        found="; ".join(f"{name}: {view.pair}" for name, view in views.items()),
        expected="floor <= merged <= the last common transaction, for each keyed state",
        action="if a table was restored from a copy, bring all from the same moment",
    )


def _look(engine: KernelEngine, root: Path, states: Sequence[StateDescriptor]) -> tuple[list[int], dict[str, _Pinned]]:
    """The control txids of all of the group's tables, and the tables of the wanted states, pinned."""
    wanted = {state.name for state in states}
    # Plain tables before any log: by the time a log is looked at, a merged transaction is published everywhere.
    plains = {state.name: _try_load(engine, root / state.plain_path) for state in states if state.state_kind.has_log}
    controls: list[int] = []
    detached: list[int] = []
    pinned = {}
    for state in descriptors_of_group(root, states[0].topology, states[0].group):
        published = _try_load(engine, root / state.published_path)
        if published is None:
            if state.name in wanted:
                raise TableError(
                    f"the table {root / state.published_path} of state {state.name} does not exist",
                    action="start the topology that writes it, or bring the table back from a back-up",
                )
            continue  # a state that is just being made: no transaction has it yet
        control = own_control(state, published)
        (controls if state.ends_at is None else detached).append(control.txid)
        if state.name in wanted:
            pinned[state.name] = _pinned(state, published, control, plains.get(state.name))
    return controls or detached, pinned


def _pinned(
    state: StateDescriptor, published: TableSnapshot, control: ControlRecord, plain: TableSnapshot | None
) -> _Pinned:
    if not state.state_kind.has_log:
        return _Pinned(state, published, control)
    if plain is None:
        return _Pinned(state, published, control, None, control.starts_at - 1)
    own_control(state, plain)
    return _Pinned(state, published, control, plain, merged_upto(state, plain, control.starts_at))


def _try_load(engine: KernelEngine, path: Path) -> TableSnapshot | None:
    try:
        return engine.load(str(path))
    except TableMissing:
        return None


def _as_of(engine: KernelEngine, table: _Pinned, txid: int) -> _Pinned:
    """The state's tables, at older versions where txid is older than what they hold."""
    state, starts_at = table.state, table.control.starts_at
    if txid < starts_at:
        return table
    if table.merged is None:
        published = _append_as_of(engine, table.published, txid)
        if published is None:
            raise _too_old(engine, {state.name: table}, txid)
        return replace(table, published=published)
    if table.plain is None or table.merged <= txid:
        return table
    plain = plain_as_of(engine, state, table.plain, txid)
    if plain is None:
        raise _too_old(engine, {state.name: table}, txid)
    return replace(table, plain=plain, merged=merged_upto(state, plain, starts_at))


def _too_old(engine: KernelEngine, tables: Mapping[str, _Pinned], txid: int) -> SnapshotUnavailable:
    oldest = max(_oldest(engine, table) for table in tables.values())
    return SnapshotUnavailable(
        f"transaction {txid} is no longer kept for {', '.join(tables)}",
        txid=txid,
        available=oldest,
        found=f"the oldest that can be read is {oldest}",
        action=f"read transaction {oldest} or a newer one; snapshot_retention_txids of a state sets how many are kept",
    )


def _oldest(engine: KernelEngine, table: _Pinned) -> int:
    """The least transaction that a state can be read as of, when not all can."""
    low, high = 0, table.control.txid  # the newest can be read; so the boundary lies between
    while low < high:
        middle = (low + high) // 2
        if _readable(engine, table, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _readable(engine: KernelEngine, table: _Pinned, txid: int) -> bool:
    if table.merged is None:
        return _append_as_of(engine, table.published, txid) is not None
    plain = None if table.plain is None else plain_as_of(engine, table.state, table.plain, txid)
    return plain is not None and merged_upto(table.state, plain, table.control.starts_at) >= table.control.floor


def _append_as_of(engine: KernelEngine, published: TableSnapshot, txid: int) -> TableSnapshot | None:
    """The newest version of an append table that has no later transaction; None when it was cleaned up."""
    version = history.find_version_by_control(published.path, DOMAIN, txid)
    if version is None or version >= published.version:
        return None if version is None else published
    return engine.load_version(published.path, version)


def _frame(spark: "SparkSession", engine: KernelEngine, table: _Pinned, txid: int, aggregator: Any) -> "DataFrame":
    if table.merged is None:
        rows = table_rows(table.state, load_frame(spark, table.published))
        return rows.where("false") if txid < table.control.starts_at else rows
    return _stored(spark, engine, table, txid).frame(aggregator)


def _stored(spark: "SparkSession", engine: KernelEngine, table: _Pinned, txid: int) -> Stored:
    """A keyed state as of txid, from pinned tables that fit: floor <= merged <= txid."""
    assert table.merged is not None, "an append has no log"
    state, control = table.state, table.control
    base = spark.createDataFrame([], state.schema)
    if txid < control.starts_at:
        return Stored(state, control, base, None)
    size: int | None = 0
    if table.plain is not None:
        frame, size = plain_frame(spark, engine, table.plain)
        base = table_rows(state, frame)
    if table.merged >= min(txid, control.txid):  # later transactions, if any, committed nothing
        return Stored(state, control, base, None)
    rows, log_size = log_frame(spark, table.published, table.merged)
    both = None if size is None or log_size is None else size + log_size
    return Stored(state, control, base, log_rows(state, rows, table.merged, txid), both)


def stored_as_of(
    spark: "SparkSession", engine: KernelEngine, warehouse: Path, state: StateDescriptor, txid: int
) -> Stored:
    """A keyed state as of a transaction that is known to have advanced, or to have committed nothing.

    Raises: as :func:`read_state`.
    """
    views, asked = _pin(engine, warehouse, [state], txid, txid)
    return _stored(spark, engine, views[state.name], asked)
