"""Who led a topology before: the epochs of its kept transactions, from their table and manifests, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.states.core.place import Place
from trident.states.history.recorded import recorded_transactions

LEADERSHIPS = 50


def led_before(warehouse: Place, topology: str, groups: Sequence[str]) -> list[dict[str, Any]]:
    """The leaderships of which a transaction is kept, the newest first.

    Returns:
        of each ``epoch``, ``first_at`` and ``last_at`` (of its transactions, seconds since the epoch; None: not known),
        ``transactions``, how many are kept. A leadership that has committed nothing is not among them.

    Raises:
        OSError: the warehouse cannot be read.
    """
    rows = [row for group in groups for row in recorded_transactions(warehouse, topology, group).rows.values()]
    return leaderships(rows)


def leaderships(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As :func:`led_before`, of rows of the table of transactions. Pure."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["epoch"] is None:
            continue
        at = row["decided_at"] or row["published_at"]
        moment = None if at is None else at.timestamp()
        one = found.setdefault(
            row["epoch"], {"epoch": row["epoch"], "first_at": moment, "last_at": moment, "transactions": 0}
        )
        one["transactions"] += 1
        if moment is not None:
            one["first_at"] = moment if one["first_at"] is None else min(one["first_at"], moment)
            one["last_at"] = moment if one["last_at"] is None else max(one["last_at"], moment)
    return [found[epoch] for epoch in sorted(found, reverse=True)][:LEADERSHIPS]
