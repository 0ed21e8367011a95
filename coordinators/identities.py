"""The identities of a transaction, of each attempt at it, and of its incarnation (docs/semantics.md 1)."""

from __future__ import annotations

import re
from typing import NamedTuple

# The identity of a transaction and of each attempt at it (docs/semantics.md 1).


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


# Incarnation ids: which first start a topology's stored state goes back to, and after how many rollbacks.
#
# A first start makes a random id; each rollback makes the next one of it: ``9f3c…``, ``9f3c…-r1``, ``9f3c…-r2``. So all
# that is told apart by its incarnation is told apart from what a rollback took back, too: transaction ids of Delta,
# control records, staged files, manifests, local copies. Sources know the first id alone: for them nothing begins anew.


_ROLLED_BACK = re.compile(r"(.+)-r([1-9]\d{0,8})", re.ASCII | re.DOTALL)


def first_id(incarnation: str) -> str:
    """The id that the first start, or the last reset, has made."""
    found = _ROLLED_BACK.fullmatch(incarnation)
    return found[1] if found else incarnation


def rollbacks_of(incarnation: str) -> int:
    """How many rollbacks there were since then."""
    found = _ROLLED_BACK.fullmatch(incarnation)
    return int(found[2]) if found else 0


def after_rollback(incarnation: str) -> str:
    """The id that a rollback gives a topology of this incarnation."""
    return f"{first_id(incarnation)}-r{rollbacks_of(incarnation) + 1}"


def same_start(one: str | None, other: str | None) -> bool:
    """Tells whether two incarnations go back to one first start: their transactions are one sequence.

    Of what a rollback has taken back the numbers come again, in the later of the two.
    """
    if one is None or other is None:
        return one is other
    return first_id(one) == first_id(other)


def up_to(incarnation: str) -> list[str]:
    """The incarnations of one first start up to this one, the newest first."""
    first = first_id(incarnation)
    return [f"{first}-r{number}" for number in range(rollbacks_of(incarnation), 0, -1)] + [first]
