"""The feed of the live page: the last transactions, failures and take-overs of a running topology, in bounded memory.

It is a watcher (``trident/watching/events.py``): of each event it keeps a small record, and computes nothing more. A
failure's traceback becomes text at once, since the exception itself would hold the rows of its batch.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trident.coordinators.tracebacks import causes, text_of
from trident.udf.signatures import UsersTraceback
from trident.watching.events import Advanced, Event, Failed, LostLead, Terminated, TookOver, Waits

TRANSACTIONS = 100
FAILURES = 50
TAKE_OVERS = 50
RATE_SECS = 10.0
_TEXT_CHARS = 4_000
_TRACEBACK_CHARS = 16_000
_Record = dict[str, Any]


class LiveFeed:
    """Keeps what the page shows of events. Call it with each; may be used from any thread.

    Attributes:
        ended: set with the last event.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._sequence = 1  # 0 is behind nothing: not even behind the transactions of earlier processes
        self._transactions: deque[_Record] = deque(maxlen=TRANSACTIONS)
        self._failures: deque[_Record] = deque(maxlen=FAILURES)
        self._take_overs: deque[_Record] = deque(maxlen=TAKE_OVERS)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Advanced):
            self._keep(self._transactions, _transaction(event))
        elif isinstance(event, Failed):
            self._keep(self._failures, _failure(event))
        elif isinstance(event, TookOver):
            self._keep(self._take_overs, {"what": "leads", "at": event.at, "epoch": event.epoch})
        elif isinstance(event, Waits):
            self._keep(self._take_overs, {"what": "waits", "at": event.at, "host": event.host, "pid": event.pid})
        elif isinstance(event, LostLead):
            self._keep(self._take_overs, {"what": "leads no more", "at": event.at})
        elif isinstance(event, Terminated):
            self.ended.set()

    def _keep(self, kept: deque[_Record], record: _Record) -> None:
        with self._lock:
            self._sequence += 1
            kept.append({"seq": self._sequence, **record})

    @property
    def sequence(self) -> int:
        """The number of the newest record; 1 before the first."""
        return self._sequence

    def since(self, sequence: int) -> dict[str, Any]:
        """The transactions and failures behind a record, the oldest first; behind 0 all that are kept."""
        with self._lock:
            return {
                "seq": self._sequence,
                "transactions": _after(self._transactions, sequence),
                "failures": _after(self._failures, sequence),
            }

    def take_overs(self) -> list[_Record]:
        """The take-overs that this process knows of, the oldest first."""
        with self._lock:
            return [dict(record) for record in self._take_overs]

    def rates(self, now: float) -> dict[str, Any]:
        """See :func:`rates`."""
        with self._lock:
            found, is_full = list(self._transactions), len(self._transactions) == TRANSACTIONS
        return rates(found, now, is_full)


def rates(transactions: Sequence[Mapping[str, Any]], now: float, is_full: bool = False) -> dict[str, Any]:
    """Rows and transactions a second over the last ten seconds.

    Args:
        transactions: records of the feed, the oldest first.
        now: seconds since the epoch.
        is_full: older ones were dropped: where all are of the last ten seconds, the rate is over their own time.

    Returns:
        ``transactions``; ``groups``: batch group → input rows, None where they are not known; ``states``: state → rows
        written to it.
    """
    recent = [one for one in transactions if one["at"] > now - RATE_SECS]
    span = RATE_SECS
    if is_full and recent and len(recent) == len(transactions):
        span = max(now - recent[0]["at"], 0.001)
    groups: dict[str, int] = dict.fromkeys((one["group"] for one in transactions), 0)
    states: dict[str, int] = dict.fromkeys((name for one in transactions for name in one["states"]), 0)
    unknown = {one["group"] for one in recent if one["rows"] is None and not one["recovered"]}
    for one in recent:
        groups[one["group"]] += one["rows"] or 0
        for name, rows in one["states"].items():
            states[name] += rows
    return {
        "transactions": round(len(recent) / span, 2),
        "groups": {name: None if name in unknown else round(rows / span, 1) for name, rows in groups.items()},
        "states": {name: round(rows / span, 1) for name, rows in states.items()},
    }


def _after(records: Iterable[_Record], sequence: int) -> list[_Record]:
    return [record for record in records if record["seq"] > sequence]


def _transaction(event: Advanced) -> _Record:
    progress = event.progress
    return {
        "at": event.at,
        "group": event.group,
        "txid": event.txid,
        "attempt": event.attempt_id,
        "rows": None if event.recovered else progress.get("num_input_rows"),
        "durations": dict(progress.get("duration_ms") or {}),
        "states": {name: int(rows) for name, rows in (progress.get("states") or {}).items()},
        "published": event.published,
        "recovered": event.recovered,
    }


def _failure(event: Failed) -> _Record:
    return {
        "at": event.at,
        "group": event.group,
        "txid": event.txid,
        "attempt": event.attempt_id,
        "part": event.part,
        "kind": type(event.error).__name__,
        "error": text_of(event.error)[:_TEXT_CHARS],
        "traceback": _traceback(event.error),
    }


def _traceback(error: BaseException) -> str:
    """The user's own frames first, where a function of the user's is behind the error; then all of it."""
    own = next((str(one).strip() for one in causes(error) if isinstance(one, UsersTraceback)), "")
    whole = "".join(traceback.format_exception(error)).strip()
    text = f"{own}\n\n{whole}" if own else whole
    return text if len(text) <= _TRACEBACK_CHARS else f"{text[:_TRACEBACK_CHARS]}\n… (the log has the rest)"


# --- of transactions that the warehouse has kept, from rows of their tables -----------------------


def past_records(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Transactions and failures as ``PageSource.since`` gives them, of rows of the tables of transactions."""
    transactions = [_kept_transaction(group, row) for group, of_group in rows.items() for row in of_group]
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


def _kept_transaction(group: str, row: Mapping[str, Any]) -> dict[str, Any]:
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
