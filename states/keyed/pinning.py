"""Pins the tables of a batch group's states at versions that can be read as of one transaction.

Asks only what the tables' logs say, so that it is the same for who reads with Spark and for who reads without a JVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trident.coordinators.errors import TableError
from trident.coordinators.identities import rollbacks_of
from trident.coordinators.threads import tries
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor, described_states, descriptors_of_group, load_descriptor
from trident.states.core.place import AnyPath, Place
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, LogTables, TableMissing, check_keeps_ids
from trident.states.delta.torn_entries import read_whole
from trident.states.keyed.compaction import READ_AGAIN, LogView, SnapshotUnavailable, TableView, plan_live_read
from trident.states.keyed.tables import adopted_version, merged_upto, own_control, plain_as_of


@dataclass(frozen=True)
class Pinned:
    """One state's tables at fixed table versions.

    Attributes:
        published: the log of a keyed state, or the append table.
        plain: the plain table; None when it was not made yet, or for an append.
        merged: P of the plain table; None for an append.
    """

    state: StateDescriptor
    published: LogSnapshot
    control: ControlRecord
    plain: LogSnapshot | None = None
    merged: int | None = None

    @property
    def was_adopted(self) -> bool:
        """Tells whether the plain table had rows before the state's first transaction."""
        return self.plain is not None and adopted_version(self.plain.schema_json) is not None

    @property
    def pair(self) -> tuple[LogView, TableView] | None:
        """The pinned log and table of a keyed state; None for an append."""
        if self.merged is None:
            return None
        view = LogView(self.published.version, self.control.txid, self.control.floor)
        return view, TableView(-1 if self.plain is None else self.plain.version, self.merged)


def load_state(warehouse: AnyPath, name: str) -> StateDescriptor:
    try:
        return load_descriptor(warehouse, name)
    except FileNotFoundError:
        known = described_states(warehouse)
        raise TableError(
            f"there is no state {name!r} in the warehouse {warehouse}",
            found=f"the states {', '.join(known)}" if known else "no state at all",
            action="check the name and the warehouse folder; a state exists from its topology's first start on",
        ) from None


def pin(
    tables: LogTables,
    warehouse: AnyPath,
    states: Sequence[StateDescriptor],
    txid: int | None,
    advanced_txid: int | None,
) -> tuple[dict[str, Pinned], int]:
    """Pins the states' tables at versions that can be read as of one transaction; and which one."""
    for _ in tries():
        controls, pinned = _pin_tables(tables, Place(warehouse), states)
        # A merged transaction had advanced before any log was looked at; an empty one leaves no other trace.
        merged = [table.merged or 0 for table in pinned.values() if table.plain is not None]
        known = max(advanced_txid or 0, *merged, 0)
        newest = max(min(controls), known)
        txid_read = newest if txid is None else min(txid, newest)
        views = {name: _as_of(table, txid_read) for name, table in pinned.items()}
        pairs = [view.pair for view in views.values() if view.pair is not None and txid_read >= view.control.starts_at]
        try:
            plan = plan_live_read(pairs, controls, txid, known)
        except SnapshotUnavailable as error:
            if txid is not None and txid < newest:
                raise _too_old(pinned, txid) from error
            if rollbacks_of(states[0].incarnation):
                raise _after_a_rollback(error, states[0].topology) from error
            raise
        if plan is not READ_AGAIN:
            return views, plan.txid
        if any(view.merged != pinned[name].merged for name, view in views.items()):
            # An older table version was wanted, and the log no longer reaches back to its P.
            raise _too_old(pinned, txid_read)
        # Merged and dropped between our looks at the two tables: look again.
    raise _not_together(states, views)


def _not_together(states: Sequence[StateDescriptor], views: Mapping[str, Pinned]) -> TableError:
    return TableError(
        f"the tables of batch group {states[0].group} of {states[0].topology} do not fit together",
        found="; ".join(f"{name}: {view.pair}" for name, view in views.items()),
        expected="floor <= merged <= the last common transaction, for each keyed state",
        action="if a table was restored from a copy, bring all from the same moment",
    )


def pin_alone(tables: LogTables, root: Place, state: StateDescriptor, txid: int) -> Pinned:
    """Pins one keyed state as of a transaction that has advanced, or committed nothing: no other table is looked at."""
    for _ in tries():
        # The table first: what is merged meanwhile is in the log still, or the floor says that it is not.
        plain = _try_load(tables, root / state.plain_path)
        published = _try_load(tables, root / state.published_path)
        if published is None:
            raise _no_table(root, state)
        pinned = _pinned(state, published, own_control(state, published), plain)
        view = _as_of(pinned, txid)
        assert view.merged is not None, "a keyed state has a log"
        if view.control.floor <= view.merged or txid < view.control.starts_at:
            return view
        if view.merged != pinned.merged:
            raise _too_old({state.name: pinned}, txid)
    raise _not_together([state], {state.name: view})


def _pin_tables(
    tables: LogTables, root: Place, states: Sequence[StateDescriptor]
) -> tuple[list[int], dict[str, Pinned]]:
    """The control txids of all of the group's tables, and the tables of the wanted states, pinned."""
    wanted = {state.name for state in states}
    # Plain tables before any log: by the time a log is looked at, a merged transaction is published everywhere.
    plains = {state.name: _try_load(tables, root / state.plain_path) for state in states if state.state_kind.has_log}
    controls: list[int] = []
    detached: list[int] = []
    pinned = {}
    for state in descriptors_of_group(root, states[0].topology, states[0].group):
        published = _try_load(tables, root / state.published_path)
        if published is None:
            if state.name in wanted:
                raise _no_table(root, state)
            continue  # a state that is just being made: no transaction has it yet
        control = own_control(state, published)
        (controls if state.ends_at is None else detached).append(control.txid)
        if state.name in wanted:
            pinned[state.name] = _pinned(state, published, control, plains.get(state.name))
    return controls or detached, pinned


def _no_table(root: Place, state: StateDescriptor) -> TableError:
    return TableError(
        f"the table {root / state.published_path} of state {state.name} does not exist",
        action="start the topology that writes it, or bring the table back from a back-up",
    )


def _pinned(
    state: StateDescriptor, published: LogSnapshot, control: ControlRecord, plain: LogSnapshot | None
) -> Pinned:
    if not state.state_kind.has_log:
        return Pinned(state, published, control)
    if plain is None:
        return Pinned(state, published, control, None, control.starts_at - 1)
    own_control(state, plain)
    return Pinned(state, published, control, plain, merged_upto(state, plain, control.starts_at))


def _try_load(tables: LogTables, path: Place) -> LogSnapshot | None:
    try:
        found = read_whole(str(path), lambda: tables.load(str(path)))
    except TableMissing:
        return None
    check_keeps_ids(found.path, found.metadata["configuration"])
    return found


def _as_of(table: Pinned, txid: int) -> Pinned:
    """The state's tables, at older versions where txid is older than what they hold."""
    state, starts_at = table.state, table.control.starts_at
    if txid < starts_at:
        if not table.was_adopted:
            return table
        txid = starts_at - 1  # its rows are those that it was adopted with
    if table.merged is None:
        published = _append_as_of(table.published, txid)
        if published is None:
            raise _too_old({state.name: table}, txid)
        return replace(table, published=published)
    if table.plain is None or table.merged <= txid:
        return table
    plain = plain_as_of(state, table.plain, txid)
    if plain is None:
        raise _too_old({state.name: table}, txid)
    return replace(table, plain=plain, merged=merged_upto(state, plain, starts_at))


def _after_a_rollback(error: SnapshotUnavailable, topology: str) -> SnapshotUnavailable:
    return SnapshotUnavailable(
        f"transaction {error.txid} is not committed in every table: it may have been taken back by a rollback",
        txid=error.txid,
        available=error.available,
        found=f"committed in all of them: {error.available}",
        action=f"read that one, or an earlier one; `trident history {topology}` names what was taken back",
    )


def _too_old(tables: Mapping[str, Pinned], txid: int) -> SnapshotUnavailable:
    oldest = max(_oldest(table) for table in tables.values())
    return SnapshotUnavailable(
        f"transaction {txid} is no longer kept for {', '.join(tables)}",
        txid=txid,
        available=oldest,
        found=f"the oldest that can be read is {oldest}",
        action=f"read transaction {oldest} or a newer one; snapshot_retention_txids of a state sets how many are kept",
    )


def _oldest(table: Pinned) -> int:
    """The least transaction that a state can be read as of, when not all can."""
    low, high = 0, table.control.txid  # the newest can be read; so the boundary lies between
    while low < high:
        middle = (low + high) // 2
        if _readable(table, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _readable(table: Pinned, txid: int) -> bool:
    if table.merged is None:
        return _append_as_of(table.published, txid) is not None
    plain = None if table.plain is None else plain_as_of(table.state, table.plain, txid)
    return plain is not None and merged_upto(table.state, plain, table.control.starts_at) >= table.control.floor


def _append_as_of(published: LogSnapshot, txid: int) -> LogSnapshot | None:
    """The newest version of an append table that has no later transaction; None when it was cleaned up."""
    version = history.find_version_by_control(published.path, DOMAIN, txid)
    if version is None or version >= published.version:
        return None if version is None else published
    return DeltaLog(published.path).kept(version)
