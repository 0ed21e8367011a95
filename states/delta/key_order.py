"""The order of the rows in a keyed state's files, which lets a reader of few keys pass over most of each file.

Rows are in the order of the key columns, and row groups are small: a reader that looks for one key decodes those
whose bounds hold it. Bounds decide, never the order: files of earlier releases and of other writers are in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    return table.take(positions_in_order([table.column(name) for name in keys]))


def positions_in_order(keys: Sequence[Any]) -> pa.Array:
    """The positions of rows in the order of one or more columns, ascending, nulls last; equal rows stay in order."""
    # By numbered names: Arrow would take a name that begins with "." or "[" for a path into a struct.
    rows = pa.table({f"k{n}": key for n, key in enumerate(keys)})
    # Pairs: Arrow puts nulls last by itself, and before its version 25 it takes no third part that says so.
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])


def rows_in_a_group(rows: int) -> int:
    """How many rows a row group of an ordered file has: few enough to skip by, and at most a hundred groups a file."""
    return max(_GROUP_ROWS_MIN, -(-rows // _GROUPS_MAX))
