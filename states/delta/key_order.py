"""The order of the rows in a keyed state's files, which lets a reader of few keys pass over most of each file.

Rows are in the order of the key columns, and row groups are small: a reader that looks for one key decodes those
whose bounds hold it. Bounds decide, never the order: files of earlier releases and of other writers are in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

_GROUP_ROWS_MIN = 4_000
_GROUPS_MAX = 100


def in_order(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table's rows in the order of some columns, ascending, nulls last; rows that are equal there stay in order.

    Arrow has no order for nested values: columns of such types are left out.
    """
    keys = [name for name in columns if not pa.types.is_nested(table.schema.field(name).type)]
    if not keys or table.num_rows < 2:
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))


def rows_in_a_group(rows: int) -> int:
    """How many rows a row group of an ordered file has: few enough to skip by, and at most a hundred groups a file."""
    return max(_GROUP_ROWS_MIN, -(-rows // _GROUPS_MAX))
