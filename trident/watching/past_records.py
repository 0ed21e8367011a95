"""The kept transactions of a topology as the live page has them, from rows of the tables of transactions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.watching.live_feed import FAILURES, TRANSACTIONS


def past_records(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Transactions and failures as ``PageSource.since`` gives them, of rows of the tables of transactions."""
    transactions = [_transaction(group, row) for group, of_group in rows.items() for row in of_group]
    failures = [
        {
            "at": None if failure["failed_at"] is None else failure["failed_at"].timestamp(),
            "group": group,
            "txid": row["txid"],
            "attempt": failure["attempt_id"],
            "part": "processing",
            "kind": "Failed",
            "error": failure["error"],
            "traceback": failure["error"],
        }
        for group, of_group in rows.items()
        for row in of_group
        for failure in row["failures"] or ()
    ]
    transactions.sort(key=lambda one: (one["at"] or 0.0, one["group"], one["txid"]))
    failures.sort(key=lambda one: (one["at"] or 0.0, one["txid"], one["attempt"]))
    return {"seq": 0, "all": True, "transactions": transactions[-TRANSACTIONS:], "failures": failures[-FAILURES:]}


def before(past: Sequence[Mapping[str, Any]], transactions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Kept transactions and then those of a feed, at most ``TRANSACTIONS``; a page that has none yet takes them all.

    Args:
        past: of :func:`past_records`; those that the feed has too, or that are later, are left out.
        transactions: of the feed, with their sequence numbers.
    """
    first: dict[str, int] = {}
    for one in transactions:
        first[one["group"]] = min(first.get(one["group"], one["txid"]), one["txid"])
    kept = [one for one in past if one["txid"] < first.get(one["group"], one["txid"] + 1)]
    # Between 0 and the first number of a feed.
    numbered = [{**one, "seq": (at + 1) / (len(kept) + 1)} for at, one in enumerate(kept)]
    return [*numbered, *map(dict, transactions)][-TRANSACTIONS:]


def _transaction(group: str, row: Mapping[str, Any]) -> dict[str, Any]:
    begun, decided, published = (
        None if row[name] is None else row[name].timestamp() for name in ("begun_at", "decided_at", "published_at")
    )
    durations: dict[str, float] = {}
    if begun is not None and decided is not None:
        durations["process"] = max(decided - begun, 0.0) * 1000
    if decided is not None and published is not None:
        durations["publish"] = max(published - decided, 0.0) * 1000
    return {
        "at": published if published is not None else decided,
        "group": group,
        "txid": row["txid"],
        "attempt": row["attempt_id"],
        "rows": None,
        "durations": {name: round(ms, 1) for name, ms in durations.items()},
        "states": {table["state"]: table["rows"] for table in row["tables"] or ()},
        "published": True,
        "recovered": False,
    }
