"""Merges the rows of a keyed state's log into rows of its plain table, on Arrow alone: for the native MERGE.

The same as Delta's MERGE does with ``states/core/native.py``. :func:`why_not` names the states for which it cannot be.
Equal keys are those of Arrow: null is a key, and no key column has two values that Spark takes for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.copyable import is_folded
from trident.states.core.folds import DoesNotFit as Overflow
from trident.states.core.folds import folded, onto
from trident.states.core.retention import FOR_GOOD, Retention
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN
from trident.states.delta.file_layout import positions_in_order


class NotMergeable(ArithmeticError):
    """The rows cannot be merged: a sum does not fit, or a key is there twice."""


class DoesNotFit(NotMergeable):
    """A sum does not fit on the way: where the total does, Spark finds it."""


class NotInOrder(Exception):
    """Rows that should be in the order of their keys are not."""


class MergedMeanwhile(Exception):
    """A row of the table has some of the log's rows already, or was not written by a MERGE."""


@dataclass(frozen=True)
class RowMerge:
    """How rows of one state merge.

    Attributes:
        schema: of keys and values in Arrow's types, instants in UTC.
        keys: the key columns; none for the one row of a global aggregate.
        aggregator: the stored name of the native aggregator; None where the last value counts.
        sequence: of whole values the column by which the greatest (sequence, txid) counts; "" where the newest does.
            Then the table's rows have their ``_deleted`` and ``_txid``, and those of deleted keys are kept.
        retention: for how long.
        adopted: whether the table has rows that no MERGE has written, from before the first transaction.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    aggregator: str | None
    sequence: str = ""
    retention: Retention = FOR_GOOD
    adopted: bool = False

    @property
    def values(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.keys]

    @property
    def log_schema(self) -> pa.Schema:
        """Of the log's rows that :meth:`reduced` takes."""
        hidden = [pa.field(TXID_COLUMN, pa.int64())]
        if self.aggregator is None:
            hidden.append(pa.field(DELETED_COLUMN, pa.bool_()))
        return pa.schema([*self.schema, *hidden])

    @property
    def table_schema(self) -> pa.Schema:
        """Of the plain table's rows."""
        return pa.schema([*self.kept_schema, pa.field(UPTO_COLUMN, pa.int64())])

    @property
    def kept_schema(self) -> pa.Schema:
        """Of the plain table's rows without ``_upto``."""
        hidden = [pa.field(DELETED_COLUMN, pa.bool_()), pa.field(TXID_COLUMN, pa.int64())] if self.sequence else []
        return pa.schema([*self.schema, *hidden])

    def shown(self, rows: Any) -> Any:
        """Keys and values of the keys that are there, of rows of the table: a table, or a record batch."""
        if self.sequence:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column(DELETED_COLUMN), False)))
        return rows.select(self.schema.names)

    def forgotten(self, rows: Any, txid: int) -> Any:
        """Tells of rows of the table, a table or a batch, which do not hold against changes of a transaction."""
        old = pc.less(rows.column(TXID_COLUMN), self.retention.below(txid))
        return pc.and_(pc.fill_null(rows.column(DELETED_COLUMN), False), pc.fill_null(old, False))

    def reduced(self, rows: pa.Table) -> pa.Table:
        """One row per key of log rows, sorted by key: as ``log_schema`` has them, without the txid but for a sequence.

        Args:
            rows: of the transactions that are merged, of one of the retention's stretches; of one transaction in the
                order of its files.

        Raises:
            NotMergeable: a sum does not fit its column.
        """
        if not rows.num_rows:
            return rows if self.sequence else rows.drop_columns([TXID_COLUMN])
        if self.aggregator is None:
            return self.sorted(self._newest(rows))
        return self.sorted(self._folded(rows))

    def in_parts(self, log: pa.Table, after: int, upto: int) -> list[tuple[int, int, pa.Table]]:
        """Log rows of the transactions after < txid ≤ upto, :meth:`reduced`, in parts that merge one after the other.

        Raises:
            NotMergeable: a transaction's own sum does not fit its column.
        """
        try:
            return [(*part, self.reduced(between(log, *part))) for part in self.retention.stretches(after, upto)]
        except DoesNotFit:
            # A sum of the log alone need not fit; each transaction's does, and so does the total after each of them.
            txids = sorted(set(log.column(TXID_COLUMN).to_pylist()))
            return [(txid - 1, txid, self.reduced(between(log, txid - 1, txid))) for txid in txids]

    def with_parts(self, base: pa.Table, parts: Sequence[tuple[int, int, pa.Table]]) -> pa.Table:
        """Keys and values of rows of a table with a log on top: the fold of every read over Arrow.

        Args:
            base: as ``kept_schema`` has them; with one row per key, none of which has a transaction of the parts.
            parts: as :meth:`in_parts` gives them.

        Raises:
            NotMergeable: a sum does not fit its column, or a key of ``base`` is there twice.
        """
        first = pa.scalar(parts[0][0] if parts else 0, pa.int64())
        rows = base.append_column(pa.field(UPTO_COLUMN, pa.int64()), pa.repeat(first, base.num_rows))
        for after, upto, new in parts:
            rows = self.overlaid(rows, new, after, upto)
        return self.shown(rows)

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows by their keys, ascending, nulls last; a row stays before those of its key that came behind it."""
        return rows.take(self._order(rows)) if self.keys else rows

    def order(self, rows: pa.Table) -> list[int]:
        """The places of rows, in the order of their keys."""
        found: list[int] = self._order(rows).to_pylist()
        return found

    def are_apart(self, ranges: Sequence[tuple[pa.Table, pa.Table]]) -> bool:
        """Tells whether ranges of keys, each given by its first and its last, follow each other without overlapping."""
        ends = pa.concat_tables([key for pair in ranges for key in pair])
        in_order = np.all(np.diff(self._order(ends).to_numpy().astype(np.int64)) > 0)
        return bool(in_order and np.all(self.begins(ends)[::2]))

    def overlaid(self, base: pa.Table, new: pa.Table, after: int, upto: int, in_order: bool = False) -> pa.Table:
        """Rows of the table with a reduced log on top, sorted by key.

        Args:
            base: with one row per key.
            new: as :meth:`reduced` gives it.
            after, upto: the transactions of ``new``: after < txid ≤ upto.
            in_order: the rows of ``base`` must be in the order of their keys.

        Raises:
            NotInOrder: they are not.
            NotMergeable: a sum does not fit its column, or a key of ``base`` is there twice.
            MergedMeanwhile: a row of ``base`` that ``new`` changes has a part of it.
        """
        size = base.num_rows
        keys = pa.concat_tables([base.select(list(self.keys)), new.select(list(self.keys))])
        order = self._order(keys).to_numpy().astype(np.int64) if self.keys else np.arange(size + new.num_rows)
        if in_order and np.any(np.diff(order[order < size]) < 0):
            raise NotInOrder
        begins = self.begins(keys.take(pa.array(order)) if self.keys else keys, len(order))
        second = np.flatnonzero(~begins)
        old_rows, new_rows = order[second - 1], order[second] - size
        if np.any(new_rows < 0):
            raise NotMergeable(
                f"a key is in the table twice: {keys.slice(int(old_rows[new_rows < 0][0]), 1).to_pylist()}"
            )
        uptos = base.column(UPTO_COLUMN).take(pa.array(old_rows))
        if self.adopted:
            uptos = uptos.fill_null(0)
        if uptos.null_count or pc.any(pc.greater(uptos, after)).as_py():
            raise MergedMeanwhile("a row that the log changes holds rows of it already, or no MERGE has written it")
        # Each key's last row: of the table, of the log, or what both make together, behind all others.
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(order) - 1) if len(order) else order
        chosen = order[last]
        names = self.kept_schema.names
        if self.sequence:
            old = base.take(pa.array(old_rows))
            forgotten = self.forgotten(base, upto).to_numpy()
            stays = np.flatnonzero(self._is_later(old, new.take(pa.array(new_rows))) & ~forgotten[old_rows])
            instead = np.arange(size + new.num_rows)
            instead[order[second][stays]] = old_rows[stays]
            chosen = instead[chosen]
            chosen = chosen[~np.append(forgotten, np.zeros(new.num_rows, bool))[chosen]]
            both = [base.select(names), new.select(names)]
        elif self.aggregator is None:
            gone = new.column(DELETED_COLUMN).fill_null(False).to_numpy(zero_copy_only=False)
            chosen = chosen[~((chosen >= size) & np.append(np.zeros(size, bool), gone)[chosen])]
            both = [base.select(names), new.select(names)]
        else:
            pairs = self._pairs(base, new, pa.array(old_rows), pa.array(new_rows))
            together = np.full(len(order), -1)
            together[order[second]] = size + new.num_rows + np.arange(len(second))
            chosen = np.where(together[chosen] >= 0, together[chosen], chosen) if len(order) else chosen
            both = [base.select(names), new.select(names), pairs]
        rows = pa.concat_tables(both).take(pa.array(chosen, pa.int64()))
        old = pa.array(np.where(chosen < size, chosen, 0))
        kept = base.column(UPTO_COLUMN).take(old) if size else pa.nulls(len(chosen), pa.int64())
        uptos = pc.if_else(pa.array(chosen >= size), pa.scalar(upto, pa.int64()), kept)
        return rows.append_column(pa.field(UPTO_COLUMN, pa.int64()), uptos)

    def split(self, new: pa.Table, bounds: pa.Table) -> list[pa.Table]:
        """A reduced log in parts: part i has the keys from bound i on and below the next; the first those below it too.

        Args:
            bounds: keys, ascending; one or more.
        """
        if not self.keys:
            return [new]
        # A bound stands before a row of its key: the order is stable.
        keys = pa.concat_tables([bounds.select(list(self.keys)), new.select(list(self.keys))])
        at = np.flatnonzero(self._order(keys).to_numpy() < bounds.num_rows)
        starts = at - np.arange(len(at))  # without the bounds before it
        starts[0] = 0
        ends = np.append(starts[1:], new.num_rows)
        return [new.slice(int(start), int(end - start)) for start, end in zip(starts, ends, strict=True)]

    # --- the parts of it ------------------------------------------------------------------------------

    def _order(self, rows: pa.Table) -> pa.Array:
        keys = rows.select(list(self.keys)).combine_chunks()
        return positions_in_order(keys.columns)

    def begins(self, rows: pa.Table, count: int | None = None) -> Any:
        """Tells of each sorted row whether its key is another than that of the row before it."""
        count = rows.num_rows if count is None else count
        begins = np.zeros(count, bool)
        begins[:1] = True
        for name in self.keys:
            column = rows.column(name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                raise OverflowError(f"too many bytes in the key column {name!r} at once")
            before, this = column.slice(0, max(count - 1, 0)), column.slice(1)
            differs = pc.fill_null(pc.not_equal(before, this), False)
            differs = pc.or_(differs, pc.xor(before.is_null(), this.is_null()))
            begins[1:] |= differs.to_numpy(zero_copy_only=False)
        return begins

    def _newest(self, rows: pa.Table) -> pa.Table:
        if self.sequence:
            # Stable: rows of one place in the order of their files, which do not differ.
            rows = rows.take(positions_in_order([rows.column(self.sequence), rows.column(TXID_COLUMN)]))
        else:
            rows = _by_txid(rows).drop_columns([TXID_COLUMN])
        if not self.keys:
            return rows.slice(rows.num_rows - 1)
        return rows.take(
            folded("max", [rows.column(name) for name in self.keys], pa.array(np.arange(rows.num_rows)))[1]
        )

    def _is_later(self, old: pa.Table, new: pa.Table) -> Any:
        """Tells which rows of the table are later than the log's of the same key, by (sequence, txid)."""
        ours, theirs = old.column(self.sequence), new.column(self.sequence)
        later = pc.greater(old.column(TXID_COLUMN), new.column(TXID_COLUMN))
        stays = pc.or_(pc.greater(ours, theirs), pc.and_(pc.equal(ours, theirs), later))
        return pc.fill_null(stays, False).to_numpy(zero_copy_only=False)

    def _folded(self, rows: pa.Table) -> pa.Table:
        assert self.aggregator is not None
        rows = _by_txid(rows)  # for sums of doubles, which have an order
        keys = [rows.column(name) for name in self.keys]
        found: dict[str, Any] = {}
        for name in self.values:
            try:
                groups, found[name] = folded(self.aggregator, keys, rows.column(name))
            except Overflow as error:
                raise DoesNotFit(f"{error} of column {name!r}; key: {error.key}") from error
            found.update(zip(self.keys, groups, strict=True))
        return pa.table([found[field.name] for field in self.schema], schema=self.schema)

    def _pairs(self, base: pa.Table, new: pa.Table, old_rows: pa.Array, new_rows: pa.Array) -> pa.Table:
        """Rows of the table and of the log with the same keys, together."""
        assert self.aggregator is not None
        keys = base.select(list(self.keys)).take(old_rows)
        columns = {name: keys.column(name) for name in self.keys}
        for name in self.values:
            a, b = base.column(name).take(old_rows), new.column(name).take(new_rows)
            try:
                columns[name] = onto(self.aggregator, a, b)
            except Overflow as error:
                key = keys.slice(error.key[0], 1).to_pylist()
                raise DoesNotFit(f"{error} of column {name!r}; key: {key}") from error
        return pa.table([columns[field.name] for field in self.schema], schema=self.schema)


# --- values -----------------------------------------------------------------------------------------------


def why_not(schema: pa.Schema, keys: Sequence[str], aggregator: str | None) -> str | None:
    """Tells why rows of a state cannot be merged here, in a few words; None when they can.

    Args:
        schema: of keys and values; only types of which equal values have one form (``copyable.why_not_copied``).
        aggregator: the stored name of the state's native aggregator; None where the last value counts.
    """
    for name in keys:
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            return f"its key {name!r} is of type {kind}"
    for name in () if aggregator is None else schema.names:
        kind = schema.field(name).type
        if name not in keys and not is_folded(aggregator or "", kind):
            return f"its value {name!r} of type {kind} is combined by {aggregator}"
    return None


def between(rows: pa.Table, after: int, upto: int) -> pa.Table:
    """The log rows of the transactions after < txid ≤ upto."""
    txids = rows.column(TXID_COLUMN)
    return rows.filter(pc.and_(pc.greater(txids, after), pc.less_equal(txids, upto)))


def _by_txid(rows: pa.Table) -> pa.Table:
    """Log rows in the order of their transactions; those of one as they are, which is as its files have them."""
    txids = rows.column(TXID_COLUMN).to_numpy()
    return rows if np.all(txids[1:] >= txids[:-1]) else rows.take(pc.sort_indices(rows.column(TXID_COLUMN)))
