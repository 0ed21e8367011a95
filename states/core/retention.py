"""For how long the rows of deleted keys hold against older changes that come later: pure.

A deleted key is forgotten by stretches of as many transactions as it is kept: a change of stretch n does not meet the
rows of keys that were deleted in stretch n - 2 or before. So two rows tell by their txids alone, and each reader and
each MERGE, early or late, gives one answer. Within a stretch changes merge in any order; over its end they do not.

A start may give a state another retention. That counts from the start's first transaction on, and those before it keep
theirs: whether their changes have met a deleted key must not hang on when they are merged. So the bound below which
rows do not hold never goes back, and a key that was forgotten once stays so, whichever MERGE has dropped its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Transactions with one retention.

    Attributes:
        last: of them; None: there is none yet.
        txids: for how many transactions keys are kept; 0: for good.
        floor: rows with a lesser txid were forgotten before.
    """

    last: int | None
    txids: int
    floor: int


@dataclass(frozen=True)
class Retention:
    """The retention of a state, and those that it had before.

    Attributes:
        txids: for how many transactions the rows of deleted keys hold; 0: for good.
        earlier: (the last transaction with it, txids) of each one before, ascending.
    """

    txids: int = 0
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def forgets(self) -> bool:
        """Tells whether there is a transaction for which a deleted key may be forgotten."""
        return any(txids for _, txids in (*self.earlier, (None, self.txids)))

    def changed(self, txids: int, first: int) -> Retention:
        """The retention once it is another one from a transaction on."""
        if txids == self.txids:
            return self
        last = first - 1
        before = tuple(one for one in self.earlier if one[0] < last)
        in_force = self._span(last).txids  # not self.txids, with which no transaction may have been begun
        return Retention(txids, before if last < 1 or in_force == txids else (*before, (last, in_force)))

    def spans(self) -> list[Span]:
        """The transactions from 0 on, by their retention."""
        found: list[Span] = []
        for last, txids in (*self.earlier, (None, self.txids)):
            before = found[-1] if found else None
            floor = -txids if before is None or before.last is None else _below(before, before.last)
            found.append(Span(last, txids, floor))
        return found

    def below(self, txid: int) -> int:
        """Rows of deleted keys with a lesser txid do not hold against a change of this transaction."""
        return _below(self._span(txid), txid)

    def stretches(self, after: int, upto: int) -> list[tuple[int, int]]:
        """The transactions ``after < txid <= upto`` in parts, in each of which changes merge in any order."""
        ends: list[int] = []
        low = after
        for span in self.spans():
            high = upto if span.last is None else min(upto, span.last)
            if low < high:
                if span.txids:
                    ends += range(low + span.txids - low % span.txids - 1, high, span.txids)
                ends.append(high)
                low = high
        return [(low, high) for low, high in zip([after, *ends], ends) if low < high]

    def _span(self, txid: int) -> Span:
        return next(span for span in self.spans() if span.last is None or txid <= span.last)


FOR_GOOD = Retention()


def _below(span: Span, txid: int) -> int:
    return max(span.floor, txid - txid % span.txids - span.txids) if span.txids else span.floor
