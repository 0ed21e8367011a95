"""How far the states outside of the warehouse are, as ``trident status`` shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from trident.coordinators.errors import StateAway
from trident.coordinators.stored_json import MAY_BE_MISSING


@dataclass(frozen=True)
class OutsideHealth:
    """How far an outside state is.

    Attributes:
        condition: "up to date"; "publishing"; "away" while its store does not answer; "refuses".
        txid: the last transaction that it has rows of; 0: none is known.
        waits: the transaction that is to be published to it; None: none waits.
        since: when that began, seconds since the epoch.
        tries: how often it was tried and did not succeed.
        error: of the last of these.
        dead_letters: how many there are of it in all.
    """

    state: str
    condition: str = "up to date"
    txid: int = 0
    waits: int | None = None
    since: float | None = None
    tries: int = 0
    error: str | None = None
    dead_letters: int = field(default=0, metadata={MAY_BE_MISSING: True})


class OutsideProgress:
    """How far the outside states of a batch group are, for status; outlives the terms of this process."""

    def __init__(self, states: Iterable[str] = (), clock: Callable[[], float] = time.time) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._found = {name: OutsideHealth(name) for name in states}

    def health(self) -> list[OutsideHealth]:
        with self._lock:
            return list(self._found.values())

    def begins(self, state: str, txid: int | None) -> None:
        """A try: to publish a transaction, or (None) to look at the store."""
        with self._lock:
            known = self._found.get(state) or OutsideHealth(state)
            if known.since is None or known.waits != txid:
                known = replace(known, condition="publishing", waits=txid, since=self._clock(), tries=0, error=None)
            self._found[state] = known

    def failed(self, state: str, error: BaseException) -> None:
        with self._lock:
            known = self._found[state]
            condition = "away" if isinstance(error, StateAway) else "refuses"
            self._found[state] = replace(known, condition=condition, tries=known.tries + 1, error=str(error))

    def has(self, state: str, txid: int, dead_letters: int) -> None:
        with self._lock:
            known = self._found.get(state) or OutsideHealth(state)
            self._found[state] = OutsideHealth(state, txid=max(txid, known.txid), dead_letters=dead_letters)
