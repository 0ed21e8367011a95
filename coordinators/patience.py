"""The time that processing may take: ``message_timeout_secs``, and when it is more (docs/semantics.md 1).

A time-out is there for what hangs. On a machine that is merely slow, or busy,
it must not cancel and replay for ever:

- a process's first transactions have four times the time: the JVM loads its
  classes, compiles, and starts Python workers meanwhile;
- each attempt that timed out doubles the time of the next (the coordinator's
  own rule), and what a transaction came to need in that way the following ones
  have from the start; after ten that needed nothing more it is halved;
- after a restart, which knows how often a transaction was tried but not why it
  failed, each earlier try counts as one that timed out.

The last two are 32 times the time at most.
"""

from __future__ import annotations

from collections.abc import Mapping

from trident.coordinators.transactions import TransactionAttempt

_FIRST_DOUBLINGS = 2
_DOUBLINGS_MAX = 5
# This many transactions without a time-out, and the time that was learned is halved.
_CALM_TXIDS = 10


class Patience:
    """The time of each attempt of a batch group.

    Args:
        attempts: txid → the greatest attempt id known of earlier coordinators.
    """

    def __init__(self, timeout_secs: float | None, attempts: Mapping[int, int]) -> None:
        self._timeout_secs, self._earlier = timeout_secs, dict(attempts)
        self._warm = False
        self._learned = self._calm = 0

    def secs(self, attempt: TransactionAttempt, factor: int) -> float | None:
        """Tells how long the attempt may be processed.

        Args:
            factor: the coordinator's, doubled for each time-out of this transaction.
        """
        if self._timeout_secs is None:
            return None
        return self._timeout_secs * factor * 2.0 ** self._doublings(attempt)

    def _doublings(self, attempt: TransactionAttempt) -> int:
        first = 0 if self._warm else _FIRST_DOUBLINGS
        return max(first, self._learned, min(self._earlier.get(attempt.txid, -1) + 1, _DOUBLINGS_MAX))

    def advanced(self, attempt: TransactionAttempt, factor: int) -> None:
        """The attempt, which was processed here, has advanced."""
        if factor > 1:
            needed = self._doublings(attempt) + factor.bit_length() - 1
            self._learned, self._calm = max(self._learned, min(needed, _DOUBLINGS_MAX)), 0
        else:
            self._calm += 1
            if self._calm >= _CALM_TXIDS:
                self._learned, self._calm = max(0, self._learned - 1), 0
        self._warm = True
        self._earlier.pop(attempt.txid, None)
