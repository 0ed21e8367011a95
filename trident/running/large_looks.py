"""Which transactions read the tables at once, since the last ones have looked at too much of a local copy."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

# So many transactions at most read the tables before the copy is tried again.
_REST_MAX = 10
# No text: its letters would be taken for names.
Names = Mapping[str, Any] | AbstractSet[str]


@dataclass(frozen=True)
class _Rest:
    times: int
    since: int
    until: int


class LargeLooks:
    """The states of which a transaction has looked at too much in a copy: the work until then was for nothing.

    The next transaction tries the copy again: often one alone fires many windows, and those behind it none. Where it
    looks at too much as well, one reads the tables without a try; then three, seven, and ten each time.
    """

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}

    def found(self, state: str, txid: int) -> None:
        """A transaction has looked at too much of a state."""
        times = self._rests[state].times + 1 if state in self._rests else 1
        self._rests[state] = _Rest(times, txid, txid + min(2 ** (times - 1), _REST_MAX + 1))

    def fitted(self, states: Names) -> None:
        """A transaction was computed with the copies of these."""
        for state in states:
            self._rests.pop(state, None)

    def rests(self, states: Names, txid: int) -> bool:
        """Tells whether a transaction that looks at these reads the tables at once; another attempt at one does too."""
        rests = [self._rests[state] for state in states if state in self._rests]
        return any(rest.since <= txid < rest.until for rest in rests)
