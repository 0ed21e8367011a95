"""Shows a query at a prompt and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trident.running.progress import describe_backlog
from trident.streams.shown import Facts

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
