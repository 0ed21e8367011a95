"""The intake that coordinator and emitter share, of a source that its readers use up (a queue, a directory)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.contracts import SpoutContext
from trident.spouts.live_attempts import LiveAttempts, Taken


class Intake(Generic[Taken]):
    """Takes from the source for attempts, and gives back what dead attempts had taken.

    A subclass takes, holds and acknowledges; it says in :meth:`_give_back` how something goes back.
    """

    def __init__(self, context: SpoutContext) -> None:
        self.context = context
        self._live: LiveAttempts[Taken] = LiveAttempts()

    @property
    def awaited(self) -> int:
        return self._live.awaited

    @property
    def closed(self) -> bool:
        return self._live.closed

    def begin(self, txid: int) -> None:
        with self._live.lock:
            self._give_back(self._live.begin(txid))

    def succeeded(self, txid: int) -> None:
        with self._live.lock:
            self._give_back(self._live.succeeded(txid))

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._live.lock:
            taken = self._live.cancel(attempt)
            self._give_back([] if taken is None else [taken])

    def close(self) -> None:
        self._live.close()

    def _give_back(self, taken: Sequence[Taken]) -> None:
        """Makes it available again; called with the lock of the live attempts. By default it is, once it is unknown."""


class TakingEmitter(Generic[Taken]):
    """The emitter's part that is the same for every source that attempts take from."""

    def __init__(self, intake: Intake[Taken]) -> None:
        self._intake = intake

    def success(self, attempt: TransactionAttempt) -> None:
        self._intake.succeeded(attempt.txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The attempt is given up; what it took goes back now and not only when its transaction begins again."""
        self._intake.cancel(attempt)

    def close(self) -> None:
        self._intake.close()


One = TypeVar("One", bound=Intake)  # type: ignore[type-arg]


class SharedIntake(Generic[One]):
    """The one intake of coordinator and emitter, which are opened with one context; a later context gets another."""

    def __init__(self, make: Callable[[SpoutContext], One]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._current: One | None = None

    def of(self, context: SpoutContext) -> One:
        with self._lock:
            if self._current is None or self._current.context is not context or self._current.closed:
                self._current = self._make(context)
            return self._current
