"""Rows of Arrow as text: in a local property of a Spark job, or in a task's report."""

from __future__ import annotations

import base64

import pyarrow as pa


def rows_as_text(table: pa.Table) -> str:
    """The rows as an Arrow stream in base 64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def rows_of_text(text: str) -> pa.Table:
    """The rows of such a text."""
    with pa.ipc.open_stream(base64.b64decode(text)) as stream:
        return stream.read_all()
