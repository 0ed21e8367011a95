"""Looks up what a keyed state holds as of the transaction before: the Resolve step's reads (docs/semantics.md 9.3).

The result is that of ``trident.states.keyed.reading`` for the same transaction, but of a few
keys, and at a price that a transaction can pay: no table is loaded anew and no
folder listed, the files come from the log entries (``trident.states.delta.table_files``); and
where the keys that are asked are few, they go to every task, and neither table nor log is moved.
"""

from __future__ import annotations

import threading
from functools import reduce
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import AnyPath, Place
from trident.states.delta.kernel import KernelEngine, TableMissing
from trident.states.delta.table_files import PATHS_PER_SCAN, NotFollowed, TableFiles, scan
from trident.states.delta.whole_files import require_whole
from trident.states.keyed import reading
from trident.states.keyed.log_merge import log_rows, quoted, same_key, shown, table_rows
from trident.states.keyed.pinning import load_state
from trident.states.keyed.snapshot import Stored
from trident.states.keyed.tables import check_own, greatest_txid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 5


class StatePins:
    """The facts of one keyed state's tables from the look before.

    Keep one per state for as long as a coordinator leads, and give it to each
    :func:`base_of`; without one every call finds the tables' files anew. May be
    used by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plain: TableFiles | None = None
        self._log: TableFiles | None = None
        self._above = 0
        self._scans: dict[tuple[str, ...], "DataFrame"] = {}

    def _look(
        self, spark: "SparkSession", engine: KernelEngine, root: Place, state: StateDescriptor, txid: int
    ) -> Stored:
        """The table and what waits in the log, as of txid."""
        with self._lock:
            for _ in range(_TRIES):
                plain, log = self._pair(engine, root, state)
                merged = max(plain.merged or 0, log.control.starts_at - 1)
                if merged > txid:
                    raise NotFollowed(f"table {plain.path} is merged up to {merged}, past transaction {txid}")
                if log.control.floor <= merged:
                    return self._stored(spark, state, plain, log, merged, txid)
            raise NotFollowed(f"the tables of state {state.name} change all the time")

    def _pair(self, engine: KernelEngine, root: Place, state: StateDescriptor) -> tuple[TableFiles, TableFiles]:
        """The plain table, and then the log."""
        if self._plain is not None and not self._plain.refresh():
            self._plain = self._log = None
        if self._plain is None:
            self._plain = TableFiles(engine, str(root / state.plain_path), state.merge_app)
        merged = self._plain.merged or 0
        # A plain table that was brought back from a copy has a smaller P than the files that were let go of.
        if self._log is not None and (self._above > merged or not self._log.refresh()):
            self._log = None
        if self._log is None:
            self._log, self._above = TableFiles(engine, str(root / state.published_path), None, merged), merged
        for table in (self._plain, self._log):
            check_own(state, table.path, table.control)
        return self._plain, self._log

    def _stored(
        self, spark: "SparkSession", state: StateDescriptor, plain: TableFiles, log: TableFiles, merged: int, txid: int
    ) -> Stored:
        if merged > self._above:
            log.files = {path: file for path, file in log.files.items() if greatest_txid(file) > merged}
            self._above = merged
        before, self._scans = self._scans, {}
        base = self._scan(spark, plain, before)
        waits = merged < min(txid, log.control.txid) and bool(log.files)
        rows = log_rows(state, self._scan(spark, log, before), merged, txid) if waits else None
        size = sum(file.size for table in (plain, log) for file in table.files.values())
        return Stored(state, log.control, table_rows(state, base), rows, (merged, txid), size)

    def _scan(
        self, spark: "SparkSession", table: TableFiles, before: dict[tuple[str, ...], "DataFrame"]
    ) -> "DataFrame":
        """The table's rows; a file that was scanned before has a frame already."""
        files, scans = list(table.files.values()), []
        for start in range(0, max(len(files), 1), PATHS_PER_SCAN):
            part = files[start : start + PATHS_PER_SCAN]
            key = (table.path, table.schema_json, *[file.path for file in part])
            known = before.get(key)
            if known is not None:  # else the scan looks
                require_whole(f"table {table.path}", table.path, part)
            self._scans[key] = scan(spark, table.path, table.schema_json, part) if known is None else known
            scans.append(self._scans[key])
        return reduce(lambda a, b: a.union(b), scans)


def base_of(
    spark: "SparkSession",
    engine: KernelEngine,
    warehouse: AnyPath,
    name: str,
    keys_frame: "DataFrame | None",
    txid: int,
    aggregator: Any = None,
    pins: StatePins | None = None,
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
        pins: what an earlier call has found.

    Returns:
        Keys and values; no row for a key that the state does not have. Lazy,
        and fixed: later transactions and MERGEs do not change it.

    Raises:
        SnapshotUnavailable: txid is older than what is kept.
        TableError: there is no such keyed state, or a table of it is missing.
        ForeignTable: a table is not the state's.
        ConfigError: a Python combiner is needed and was not given.
    """
    stored, base, rows = parts_of(spark, engine, warehouse, name, keys_frame, txid, pins)
    if keys_frame is None or not stored.state.keys:
        return stored.frame(aggregator)
    return shown(stored.state, base) if rows is None else stored.grouped(base, rows, aggregator)


def parts_of(
    spark: "SparkSession",
    engine: KernelEngine,
    warehouse: AnyPath,
    name: str,
    keys_frame: "DataFrame | None",
    txid: int,
    pins: StatePins | None = None,
) -> "tuple[Stored, DataFrame, DataFrame | None]":
    """A state as :func:`base_of` finds it, with the rows that table and log have of the keys, not combined yet."""
    root, state = Place(warehouse), load_state(warehouse, name)
    if not state.state_kind.has_log:
        raise TableError(
            f"state {name} has no values to look up", found=f"a state of kind {state.kind!r}", expected="a keyed state"
        )
    stored = _stored_as_of(spark, engine, root, state, txid, pins or StatePins())
    base, rows = stored.base, stored.rows
    if keys_frame is None or not state.keys:
        return stored, base, rows
    asked = keys_frame.select(*[quoted(key) for key in state.keys]).alias("s")
    base = base.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    if rows is not None:
        rows = rows.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    return stored, base, rows


def _stored_as_of(
    spark: "SparkSession", engine: KernelEngine, root: Place, state: StateDescriptor, txid: int, pins: StatePins
) -> Stored:
    if storage.reached_path(str(root)) is not None:
        try:
            return pins._look(spark, engine, root, state, txid)
        except (NotFollowed, TableMissing):
            pass  # an older transaction, another table layout, or no plain table yet
    return reading.stored_as_of(spark, engine, root, state, txid)
