"""The rows that a native MERGE changes, before and after, for the change data feed of a keyed state's plain table.

As Delta's protocol has them: the table's rows, with the kind of their change in a column of their own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trident.states.core.place import Place
from trident.states.core.staged import StagedFile
from trident.states.core.tables import UPTO_COLUMN
from trident.states.keyed.merge_io import written
from trident.states.keyed.merge_rows import RowMerge

CHANGE_TYPE = "_change_type"
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
# The folder that Delta gives such files; VACUUM cleans it.
FOLDER = "_change_data"


def change_schema(merge: RowMerge) -> pa.Schema:
    return pa.schema([*merge.table_schema, pa.field(CHANGE_TYPE, pa.string())])


def changed_rows(merge: RowMerge, before: pa.Table, after: pa.Table, upto: int) -> pa.Table:
    """The changes between the rows of a range of keys before a MERGE and behind it.

    Args:
        before, after: with one row per key.
        upto: of the MERGE: each row that it wrote has it.
    """
    size, keys = before.num_rows, list(merge.keys)
    both = pa.concat_tables([before.select(keys), after.select(keys)])
    rows = size + after.num_rows
    order = np.asarray(merge.order(both), np.int64) if keys else np.arange(rows)
    begins = merge.begins(both.take(pa.array(order)) if keys else both, rows)
    # The order is stable: of two rows with one key the first is the one before.
    second = np.flatnonzero(~begins)
    ours = after.column(UPTO_COLUMN).to_numpy() == upto
    old, new = order[second - 1], order[second] - size
    was, becomes = np.ones(size, bool), np.ones(after.num_rows, bool)
    was[old], becomes[new] = False, False
    places = [np.flatnonzero(was), old[ours[new]], new[ours[new]] + size, np.flatnonzero(becomes) + size]
    kinds = np.repeat([DELETE, BEFORE, AFTER, INSERT], [len(some) for some in places])
    found = pa.concat_tables([before, after]).take(pa.array(np.concatenate(places)))
    return found.append_column(pa.field(CHANGE_TYPE, pa.string()), pa.array(kinds, pa.string()))


class ChangeWriter:
    """Writes the changes of one MERGE.

    Args:
        folder: for the files, below the root of the plain table; "": none are written.
        bytes_max: a file is written when so many are in memory.
    """

    def __init__(self, merge: RowMerge, plain: Place, folder: str, upto: int, bytes_max: int) -> None:
        self._merge, self._plain, self._folder, self._upto = merge, plain, folder, upto
        self._bytes_max = bytes_max
        self._waiting = change_schema(merge).empty_table()
        self._files: list[StagedFile] = []

    def append(self, before: pa.Table, after: pa.Table) -> None:
        """The rows of a range of keys, before and after."""
        if not self._folder:
            return
        self._waiting = pa.concat_tables([self._waiting, changed_rows(self._merge, before, after, self._upto)])
        if self._waiting.nbytes > self._bytes_max:
            self._write()

    def finish(self) -> list[StagedFile]:
        """The files; at least one, or readers would take all rows of the files for changed."""
        if self._folder and (self._waiting.num_rows or not self._files):
            self._write()
        return self._files

    def _write(self) -> None:
        rows, self._waiting = self._waiting, self._waiting.schema.empty_table()
        self._files.append(written(self._plain, self._folder, rows, self._merge.keys))
