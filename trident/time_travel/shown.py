"""A replay in a notebook: a table for each stream, and for what it does to each state."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX = 20
_VALUE_LENGTH = 100


def as_html(caption: str, streams: Mapping[str, "DataFrame"], changes: Mapping[str, "DataFrame"]) -> str:
    """A table of rows for each stream, then one for each state; every text is escaped."""
    parts = [f"<b>{escape(caption)}</b>"]
    parts += [_table(f"stream {name}", streams[name]) for name in streams]
    parts += [_table(f"changes of {name}", rows) for name, rows in changes.items()]
    return "".join(parts)


def _table(caption: str, frame: "DataFrame") -> str:
    rows = frame.limit(ROWS_MAX + 1).collect()
    more = f"; the first {ROWS_MAX} rows" if len(rows) > ROWS_MAX else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows[:ROWS_MAX])
    none = "" if rows else f"<tr><td colspan='{max(1, len(frame.columns))}'>no row</td></tr>"
    return f"<table><caption>{escape(caption)}{more}</caption><tr>{head}</tr>{body}{none}</table>"


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    shown = text if len(text) <= _VALUE_LENGTH else text[:_VALUE_LENGTH] + "…"
    return f"<td style='text-align:left'>{escape(shown)}</td>"
