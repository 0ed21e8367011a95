"""Looks up what a keyed state holds as of the transaction before: the Resolve step's reads (docs/semantics.md 9.3).

The result is that of ``trident.states.keyed.reading`` for the same transaction, but of a few
keys, and at a price that a transaction can pay: no table is loaded anew and no
folder listed, the files come from the log entries (``trident.states.delta.table_files``); and
where the keys that are asked are few, they go to every task, and neither table nor log is moved.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import AnyPath, Place
from trident.states.delta.delta_log import LogSnapshot, TableMissing
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_tables import LogTables
from trident.states.delta.table_files import PATHS_PER_SCAN, NotFollowed, scan
from trident.states.delta.whole_files import require_whole
from trident.states.keyed import reading
from trident.states.keyed.log_merge import log_rows, quoted, same_key, shown, table_rows
from trident.states.keyed.pinning import load_state
from trident.states.keyed.snapshot import Stored
from trident.states.keyed.tables import greatest_txid, merged_upto, own_control

_TRIES = 5


class StatePins:
    """The facts of one keyed state's tables from the look before.

    Keep one per state for as long as a coordinator leads, and give it to each
    :func:`base_of`; without one every call finds the tables' files anew. May be
    used by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tables = LogTables()
        self._scans: dict[tuple[str, ...], "DataFrame"] = {}

    def _look(self, spark: "SparkSession", root: Place, state: StateDescriptor, txid: int) -> Stored:
        """The table and what waits in the log, as of txid."""
        with self._lock:
            for _ in range(_TRIES):
                # The table first: what is merged meanwhile is in the log still, or the floor says that it is not.
                plain = self.tables.load(str(root / state.plain_path))
                log = self.tables.load(str(root / state.published_path))
                own_control(state, plain)
                control = own_control(state, log)
                merged = merged_upto(state, plain, control.starts_at)
                if merged > txid:
                    raise NotFollowed(f"table {plain.path} is merged up to {merged}, past transaction {txid}")
                if control.floor <= merged:
                    return self._stored(spark, state, plain, log, (merged, txid))
            raise NotFollowed(f"the tables of state {state.name} change all the time")

    def _stored(
        self, spark: "SparkSession", state: StateDescriptor, plain: LogSnapshot, log: LogSnapshot, span: tuple[int, int]
    ) -> Stored:
        (merged, txid), before, self._scans = span, self._scans, {}
        control, files = own_control(state, log), list(plain.files.values())
        waiting = [file for file in log.files.values() if greatest_txid(file) > merged]
        base = self._scan(spark, plain, files, before)
        waits = merged < min(txid, control.txid) and bool(waiting)
        rows = log_rows(state, self._scan(spark, log, waiting, before), merged, txid) if waits else None
        size = sum(file.size for file in (*files, *waiting))
        return Stored(state, control, table_rows(state, base), rows, (merged, txid), size)

    def _scan(
        self,
        spark: "SparkSession",
        table: LogSnapshot,
        files: Sequence[LiveFile],
        before: dict[tuple[str, ...], "DataFrame"],
    ) -> "DataFrame":
        """The rows of some files of a table; a file that was scanned before has a frame already."""
        if table.why_not_rows is not None:
            raise NotFollowed(f"table {table.path} has {table.why_not_rows}")
        scans = []
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
    stored, base, rows = parts_of(spark, warehouse, name, keys_frame, txid, pins)
    if keys_frame is None or not stored.state.keys:
        return stored.frame(aggregator)
    return shown(stored.state, base) if rows is None else stored.grouped(base, rows, aggregator)


def parts_of(
    spark: "SparkSession",
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
    stored = _stored_as_of(spark, root, state, txid, pins or StatePins())
    base, rows = stored.base, stored.rows
    if keys_frame is None or not state.keys:
        return stored, base, rows
    asked = keys_frame.select(*[quoted(key) for key in state.keys]).alias("s")
    base = base.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    if rows is not None:
        rows = rows.alias("t").join(asked, same_key(state.keys, "t", "s"), "left_semi")
    return stored, base, rows


def _stored_as_of(spark: "SparkSession", root: Place, state: StateDescriptor, txid: int, pins: StatePins) -> Stored:
    if storage.reached_path(str(root)) is not None:
        try:
            return pins._look(spark, root, state, txid)
        except (NotFollowed, TableMissing):
            pass  # an older transaction, another table layout, or no plain table yet
    return reading.stored_as_of(spark, root, state, txid, pins.tables)
