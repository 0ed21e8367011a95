"""The rows of a keyed state as of a transaction, over Arrow in a Spark task: files of its table, their log on top."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.coordinators.errors import TableError
from trident.states.core.place import Place
from trident.states.delta.data_files import group_bounds, rows_of, wanted_rows
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed.merge_rows import NotMergeable, RowMerge, between

# Of one part's log in memory; merging takes a few times as much.
_LOG_BYTES = 1 << 30


@dataclass(frozen=True)
class KeyRange:
    """The rows whose first key lies in a range: ``low <= key < high``; None: there is no such end.

    Nulls are behind all values, as in the order of a table's files.

    Attributes:
        column: the first key column; of integers or of text.
    """

    column: str
    low: Any
    high: Any

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def may_be_in(self, file: LiveFile) -> bool:
        """Tells by the log's statistics of a file; False only where it surely has none."""
        stats: Any = file.stats or {}
        low, high, nulls = (stats.get(part, {}).get(self.column) for part in ("minValues", "maxValues", "nullCount"))
        return self._may_be_within(low, high, nulls != 0)

    def may_be_in_group(self, group: pq.RowGroupMetaData, kinds: dict[str, pa.DataType]) -> bool:
        """Tells by the bounds of a row group."""
        for at in range(group.num_columns):
            column = group.column(at)
            if column.path_in_schema == self.column:
                return self._may_be_within(*group_bounds(column))
        return True

    def found_in(self, rows: pa.Table) -> pa.Array:
        """The positions of those among some rows."""
        key = rows.column(self.column)
        inside = [pc.greater_equal(key, pa.scalar(self.low, key.type))] if self.low is not None else []
        if self.high is not None:
            inside.append(pc.less(key, pa.scalar(self.high, key.type)))
        if not inside:
            return pa.array(range(rows.num_rows), pa.int64())
        chosen = reduce(pc.and_, inside)
        if self.high is None:
            chosen = pc.fill_null(chosen, True)
        return pc.indices_nonzero(pc.fill_null(chosen, False))

    def _may_be_within(self, low: Any, high: Any, has_nulls: bool) -> bool:
        ends = [end for end in (self.low, self.high) if end is not None]
        if any(type(bound) is not type(end) for bound in (low, high) for end in ends):
            return True  # there are no bounds, or another writer's
        above = self.low is None or high >= self.low
        below = self.high is None or low < self.high
        return (above and below) or (has_nulls and self.high is None)


def key_ranges(
    files: Sequence[LiveFile], column: str, kind: pa.DataType, parts: int
) -> list[tuple[KeyRange, list[LiveFile]]] | None:
    """A table's files in ranges of their first key that do not overlap, of about equally many rows.

    Args:
        files: of the table; all of them.
        column, kind: the first key column.
        parts: how many ranges there are at the most, or a few more.

    Returns:
        None where the files are not known to be apart: the bounds in the log overlap, or are not exact for the type.
    """
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        return None
    wanted: type = str if pa.types.is_string(kind) else int
    known = []
    for file in files:
        bounds = _bounds(file, column, wanted)
        if bounds is None:
            return None
        known.append((bounds, file))
    known.sort(key=lambda pair: pair[0][:2])
    if any(before[2] or before[1] >= after[0] for (before, _), (after, _) in zip(known, known[1:])):
        return None
    total = sum(file.num_records or 0 for _, file in known)
    found: list[tuple[Any, list[LiveFile]]] = [] if known else [(None, [])]
    seen = 0
    for (low, _, _), file in known:
        if not found or seen * parts >= len(found) * total:
            found.append((low if found else None, []))
        found[-1][1].append(file)
        seen += file.num_records or 0
    ends = [*(low for low, _ in found[1:]), None]
    return [(KeyRange(column, low, end), some) for (low, some), end in zip(found, ends)]


def _bounds(file: LiveFile, column: str, kind: type) -> tuple[Any, Any, bool] | None:
    """The least and the greatest value of a column in a file, and whether it has nulls; None: they are unknown."""
    stats: Any = file.stats or {}
    low, high, nulls = (stats.get(part, {}).get(column) for part in ("minValues", "maxValues", "nullCount"))
    if type(low) is not kind or type(high) is not kind or nulls is None or not file.num_records:
        return None
    return low, high, nulls > 0


@dataclass(frozen=True)
class LivePart:
    """One part of a state: a range of its keys.

    Attributes:
        name: the state's, for errors.
        merge: how rows merge.
        plain, log: the roots of the two tables, which bring the settings of their store to a worker.
        files: those of the plain table whose keys lie in the range, and no others do.
        log_files: of the log, in the order of their transactions; all that may have keys of the range.
        keys: the range.
        after, upto: the transactions of the log that count: after < txid <= upto.
    """

    name: str
    merge: RowMerge
    plain: Place
    log: Place
    files: tuple[LiveFile, ...]
    log_files: tuple[LiveFile, ...]
    keys: KeyRange
    after: int
    upto: int

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Keys and values, in no order.

        Raises:
            TableError: a file is gone or cannot be read, a sum does not fit its column, a key is there twice, or the
                log's rows are more bytes than a task is to hold.
        """
        merge, keys, touched = self.merge, list(self.merge.keys), []
        try:
            parts = merge.in_parts(self._log_rows(), self.after, self.upto)
        except NotMergeable as error:
            raise self._not_merged(error) from error
        log_keys = [merge.log_schema.empty_table().select(keys), *(new.select(keys) for _, _, new in parts)]
        changes = _Changes(merge.sorted(pa.concat_tables(log_keys)), keys)
        for batch in rows_of(str(self.plain), self.files, merge.kept_schema):
            may = changes.may_touch(batch)
            if may is not None:
                touched.append(batch.filter(may))
                batch = batch.filter(pc.invert(may))
            batch = merge.shown(batch)
            if batch.num_rows:
                yield batch
        try:
            merged = merge.with_parts(pa.Table.from_batches(touched, merge.kept_schema), parts)
        except NotMergeable as error:
            raise self._not_merged(error) from error
        yield from merged.combine_chunks().to_batches()

    def _log_rows(self) -> pa.Table:
        schema = self.merge.log_schema
        found, size = [schema.empty_table()], 0
        for rows in wanted_rows(str(self.log), self.log_files, schema, self.keys):
            found.append(between(rows, self.after, self.upto))
            size += found[-1].nbytes
            if size > _LOG_BYTES:
                raise TableError(
                    f"too much of the log of state {self.name} waits for a MERGE to be read at once",
                    found=f"more than {_LOG_BYTES} bytes of one range of keys",
                    action="read the state again when a MERGE has run, or ask for some of its keys",
                )
        return pa.concat_tables(found)

    def _not_merged(self, error: Exception) -> TableError:
        return TableError(
            f"rows of state {self.name} cannot be merged",
            found=error,
            action="`trident repair` of its topology names each key whose value does not fit, and what can be done",
        )


class _Changes:
    """The keys of a part's log, in order, of which a piece of the table meets few: so a look-up is in the cache.

    Args:
        new: keys of the log, in their order.
        keys: the key columns.
    """

    def __init__(self, new: pa.Table, keys: Sequence[str]) -> None:
        self._columns = {name: new.column(name).combine_chunks() for name in keys}
        self._first = _as_bytes(self._columns[keys[0]])
        self._values = _Values(self._first)

    def may_touch(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Tells of rows of the table whether the log may have their keys; None: it has none of them.

        Each key column's value is among the log's values: with several columns a row may be told that is not changed.
        """
        (name, _), *others = self._columns.items()
        column, first = _as_bytes(batch.column(name)), self._first
        bounds = pc.min_max(column)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        start, end = 0, len(self._values)
        if low is not None:
            start, end = bisect_left(self._values, low), bisect_right(self._values, high)
        if column.null_count:
            start, end = (start if low is not None else end), len(first)  # nulls stand behind all values
        if start == end:
            return None
        found = pc.is_in(column, value_set=first.slice(start, end - start))
        for name, values in others:
            found = pc.and_(found, pc.is_in(batch.column(name), value_set=values.slice(start, end - start)))
        return found


def _as_bytes(column: Any) -> Any:
    """A text as its bytes, which have its order: to Spark a text need not be UTF-8."""
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


class _Values(Sequence[Any]):
    """The values of a sorted column without its nulls, to be searched."""

    def __init__(self, column: Any) -> None:
        self._column, self._count = column, len(column) - column.null_count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        return self._column[at].as_py()
