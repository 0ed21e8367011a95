"""Shows a query at a prompt and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.running.progress import describe_backlog
from trident.streams.shown import Facts, as_html, as_rows

_ERROR_LENGTH = 300


def query_facts(status: Mapping[str, Any]) -> Facts:
    """Role, and of each batch group the mode, the current txid, the backlog and the last error."""
    facts = [("", status["role"])]
    groups = status["groups"]
    for group in groups:
        of = f" of {group['name']}" if len(groups) > 1 else ""
        if group["mode"] != status["role"]:
            facts.append((f"mode{of}", group["mode"]))
        facts.append((f"current txid{of}", str(group["current_txid"])))
        facts.append((f"backlog{of}", describe_backlog(group["backlog"])))
        facts.append((f"last error{of}", short(group["last_error"])))
    return [*facts, ("ended by", short(status["error"])), ("run", status["run_id"][:8])]


def short(error: Any) -> str:
    """An error's text, cut where it is long."""
    text = "" if error is None else str(error).strip()
    return text if len(text) <= _ERROR_LENGTH else text[:_ERROR_LENGTH] + "…"


class ShownStatus(dict[str, Any]):
    """The dict of ``query.status``, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return as_html("status", self["name"], query_facts(self))


class ShownProgress(dict[str, Any]):
    """The dict of ``query.last_progress``, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return _progress_html([self])


class ShownProgresses(list[dict[str, Any]]):
    """The list of ``query.recent_progress``, which a notebook shows as a table, the newest at its end."""

    def _repr_html_(self) -> str:
        return _progress_html(self)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _progress_html(records: Sequence[Mapping[str, Any]]) -> str:
    """A row for each transaction."""
    several = len({record["group"] for record in records}) > 1
    heads = [*(["group"] if several else []), "txid", "attempt", "rows", "ms", "rows/s", "rows of states"]
    rows = [
        [
            *([record["group"]] if several else []),
            str(record["batch_id"]),
            str(record["attempt"]),
            _number(record["num_input_rows"]),
            f"{record['duration_ms'].get('total', 0.0):,.0f}",
            _number(record["processed_rows_per_second"]),
            ", ".join(f"{state} {count:,}" for state, count in record["states"].items()),
        ]
        for record in records
    ]
    return as_rows("progress", records[-1]["name"] if records else "no transaction yet", heads, rows)
