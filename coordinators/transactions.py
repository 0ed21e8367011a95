"""The identity of a transaction and of each attempt at it (docs/semantics.md 1)."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

from trident.coordinators.errors import ConfigError, described


def checked_txid(txid: Any) -> int:
    """A transaction's number as a user gives it.

    Raises:
        ConfigError: it is none.
    """
    try:
        number = 0 if isinstance(txid, bool) else index(txid)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError("this is no transaction", found=described(txid), expected="a txid: 1, 2, 3…")
    return number


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
