"""The identity of a transaction and of each attempt at it (docs/semantics.md 1)."""

from __future__ import annotations

from typing import NamedTuple


class TransactionAttempt(NamedTuple):
    """One try at one transaction.

    ``txid`` counts 1, 2, 3… within a batch group. ``attempt_id`` counts 0, 1,
    2… within a txid and grows for ever: it is never used again, not even
    after a restart (docs/semantics.md 1, 7.8).
    """

    txid: int
    attempt_id: int

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt_id}"
