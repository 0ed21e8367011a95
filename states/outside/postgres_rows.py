"""Rows of Arrow as the text that PostgreSQL's COPY reads."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

# In this order: the backslashes of the others must not be doubled.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_lines(batch: pa.RecordBatch, names: Sequence[str]) -> bytes:
    """The batch's columns as lines of COPY's text format, in which a null is ``\\N`` and every value is escaped.

    Not CSV, where a line ``\\.`` within a quoted text ends the data of servers before PostgreSQL 18.
    """
    if not batch.num_rows:
        return b""
    columns = [_texts(batch.column(name)) for name in names]
    last = pc.binary_join_element_wise(
        columns[-1], pa.scalar("\n", pa.large_string()), pa.scalar("", pa.large_string())
    )
    lines = (
        pc.binary_join_element_wise(*columns[:-1], last, pa.scalar("\t", pa.large_string())) if columns[1:] else last
    )
    return "".join(lines.to_pylist()).encode()


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if value is None else "\\\\x" + value.hex() for value in column.to_pylist()]
        text = pa.array(texts, pa.large_string())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        plain = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.timestamp("us"))
        text = pc.binary_join_element_wise(
            pc.cast(plain, pa.large_string()), pa.scalar("+00", pa.large_string()), pa.scalar("", pa.large_string())
        )
    else:
        text = pc.cast(column, pa.large_string())
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            for found, written in _ESCAPES:
                text = pc.replace_substring(text, found, written)
    return pc.fill_null(text, "\\N")
