"""What a query or a topology shows of itself at a prompt and in a notebook: facts as a line, or as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trident.running.progress import describe_backlog

if TYPE_CHECKING:
    from trident.running.query import TopologyQuery
    from trident.streams.topology import TridentTopology
    from trident.tuples.query import TupleQuery

Facts = Sequence[tuple[str, str]]
_ERROR_LENGTH = 300


def as_line(kind: str, name: str, facts: Facts) -> str:
    """``<Kind name: fact value, …>``."""
    return f"<{kind} {name}: " + ", ".join(f"{key} {value}" if key else value for key, value in facts if value) + ">"


def as_html(kind: str, name: str, facts: Facts) -> str:
    """A table of two columns; every text is escaped."""
    left = "style='text-align:left'"
    rows = "".join(
        f"<tr><th {left}>{escape(key or 'role')}</th><td {left}>{escape(value)}</td></tr>"
        for key, value in facts
        if value
    )
    return f"<table><caption><b>{escape(name)}</b> ({escape(kind)})</caption>{rows}</table>"


def query_facts(query: "TopologyQuery") -> Facts:
    """Role, and of each batch group the mode, the current txid, the backlog and the last error."""
    status = query.status
    facts = [("", status["role"])]
    groups = status["groups"]
    for group in groups:
        of = f" of {group['name']}" if len(groups) > 1 else ""
        if group["mode"] != status["role"]:
            facts.append((f"mode{of}", group["mode"]))
        facts.append((f"current txid{of}", str(group["current_txid"])))
        facts.append((f"backlog{of}", describe_backlog(group["backlog"])))
        facts.append((f"last error{of}", _short(group["last_error"])))
    return [*facts, ("ended by", _short(status["error"])), ("run", status["run_id"][:8])]


def tuple_query_facts(query: "TupleQuery") -> Facts:
    """Whether it runs, and its numbers of messages."""
    error, numbers = query.exception(), query.status
    state = "running" if query.is_active else "stopped" if error is None else "failed"
    shown = ("pending", "acked", "failed", "timed_out", "rounds")
    last = query.last_errors[-1].error if query.last_errors else None
    facts = [("", state), *((name.replace("_", " "), str(numbers[name])) for name in shown)]
    return [*facts, ("last error", _short(last)), ("ended by", _short(error))]


def topology_facts(topology: "TridentTopology") -> Facts:
    """Its streams with their spouts, its states with their kinds, its DRPC functions."""
    streams = {tx_id: type(node.spout).__name__ for tx_id, node in topology._sources.items()}
    states = {name: sink.binding.kind for name, sink in topology._sinks.items()}
    found = [("streams", _named(streams)), ("states", _named(states)), ("requests", ", ".join(topology._functions))]
    return found if any(value for _, value in found) else [("", "nothing in it yet")]


def _named(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in kinds.items())


def _short(error: Any) -> str:
    text = "" if error is None else str(error).strip()
    return text if len(text) <= _ERROR_LENGTH else text[:_ERROR_LENGTH] + "…"
