"""Records the rows that each live attempt has taken from a source whose readers use it up.

A source such as a queue has no offsets: no other attempt may have what an
attempt takes until it is known that the first one is dead. An emitter
hears nothing of failures, but two calls tell it all it needs:

- the coordinator's ``initialize_transaction(txid)`` is called each time txid
  begins, from one thread, in the order of the begins. A transaction begins
  only when it is not live; so whatever was taken for it, or for a later one,
  was taken by attempts that are dead, and none of them can have been decided.
- ``emit_batch(attempt)`` with a greater attempt id says the same of the
  smaller ones, and a call with a smaller id comes from a thread that was
  cancelled and does not know it yet.

The order of the ``emit_batch`` calls alone is not enough: they come from
several threads, so the new attempt at N+1 may be emitted before the new
attempt at N. A spout that concluded from N that all of N+1 is dead would hand
out the messages of a live attempt a second time.

A committer spout can be built on these classes; the feeder, queue and directory
spouts are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from trident.coordinators.errors import SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import Json, SpoutContext, whole_of

Taken = TypeVar("Taken")


class LiveAttempts(Generic[Taken]):
    """The attempts that may still be decided, and the takings of each.

    Methods that return a list give what dead attempts had taken: the caller
    makes it available again. All take ``lock``, which is reentrant: hold it
    around taking from the source and ``keep``, so that nothing is taken twice.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._taken: dict[TransactionAttempt, Taken] = {}
        self._greatest: dict[int, int] = {}  # txid -> greatest attempt id that came to be emitted
        self._given_up: set[TransactionAttempt] = set()
        self._awaited: set[int] = set()
        self._succeeded = 0
        self._closed = False

    @property
    def awaited(self) -> int:
        """Counts how many transactions have begun and not been emitted: they will take something too."""
        with self.lock:
            return len(self._awaited)

    @property
    def closed(self) -> bool:
        return self._closed

    def begin(self, txid: int) -> list[Taken]:
        """txid begins: every earlier attempt at it, and at later ones, is dead."""
        with self.lock:
            self._awaited = {other for other in self._awaited if other < txid} | {txid}
            return self._drop(attempt for attempt in self._taken if attempt.txid >= txid)

    def enter(self, attempt: TransactionAttempt) -> list[Taken]:
        """An attempt is emitted: smaller attempt ids of its transaction are dead.

        Raises:
            SourceError: the attempt itself is dead; nothing may be taken for it.
        """
        with self.lock:
            dead = attempt.attempt_id <= self._greatest.get(attempt.txid, -1)
            if dead or attempt.txid <= self._succeeded or attempt in self._given_up or self._closed:
                raise given_up(attempt)
            self._greatest[attempt.txid] = attempt.attempt_id
            self._awaited.discard(attempt.txid)
            return self._drop(other for other in self._taken if other.txid == attempt.txid)

    def keep(self, attempt: TransactionAttempt, taken: Taken) -> None:
        """Keeps what the attempt has taken: no other attempt may have it from now on."""
        with self.lock:
            self._taken[attempt] = taken

    def get(self, attempt: TransactionAttempt) -> Taken | None:
        """Returns what a live attempt has taken; None when it is dead or took nothing."""
        with self.lock:
            return self._taken.get(attempt)

    def all(self) -> list[Taken]:
        """Returns what all live attempts have taken."""
        with self.lock:
            return list(self._taken.values())

    def cancel(self, attempt: TransactionAttempt) -> Taken | None:
        """One attempt is dead, whether it was emitted yet or not."""
        with self.lock:
            if attempt.txid > self._succeeded:
                self._given_up.add(attempt)
            return self._taken.pop(attempt, None)

    def committed(self, attempt: TransactionAttempt) -> Taken | None:
        """Forgets what the attempt took: it is gone from the source and goes back to no other attempt."""
        with self.lock:
            return self._taken.pop(attempt, None)

    def succeeded(self, txid: int) -> list[Taken]:
        """No attempt at txid or before is live any more."""
        with self.lock:
            self._succeeded = max(self._succeeded, txid)
            self._greatest = {known: at for known, at in self._greatest.items() if known > txid}
            self._given_up = {attempt for attempt in self._given_up if attempt.txid > txid}
            self._awaited = {known for known in self._awaited if known > txid}
            return self._drop(attempt for attempt in self._taken if attempt.txid <= txid)

    def close(self) -> list[Taken]:
        """Nothing is emitted any more. Gives everything: the caller decides what may go back.

        The caller must keep from others what a decided attempt took, and cannot
        know which attempt was decided (see ``QueueSpout``).
        """
        with self.lock:
            self._closed = True
            return self._drop(self._taken)

    def _drop(self, attempts: Iterable[TransactionAttempt]) -> list[Taken]:
        return [self._taken.pop(attempt) for attempt in list(attempts)]


def given_up(attempt: TransactionAttempt) -> SourceError:
    """For a thread that works for an attempt that is dead; the error reaches no user."""
    return SourceError(f"attempt {attempt} was given up before it was processed")


class TakesAtEmission(Protocol):
    """A source as :class:`TakingCoordinator` sees it."""

    def ready(self, more_than: int) -> bool:
        """Tells whether more than this many are there that no live attempt has; quick."""

    def begin(self, txid: int) -> None:
        """txid begins; see :meth:`LiveAttempts.begin`."""

    @property
    def awaited(self) -> int: ...

    def backlog(self) -> Any: ...


class TakingCoordinator:
    """The coordinator of a source whose batches are taken when they are emitted.

    Metadata: ``{limit: most}``, or {} without a limit. The limit is halved for
    a transaction that timed out, and doubles again with each that follows.

    Args:
        source: shared with the emitter.
        limit: the name of the limit, such as "max_messages"; None: there is none.
        most: its greatest value.
    """

    def __init__(self, source: TakesAtEmission, limit: str | None = None, most: int = 1) -> None:
        self._source, self._limit, self._most = source, limit, most

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        self._source.begin(txid)
        if curr_metadata is not None:
            return curr_metadata
        return self._metadata(2 * self._known(prev_metadata))

    def shrink_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        self._source.begin(txid)
        return self._metadata(self._known(curr_metadata) // 2)

    def _metadata(self, most: int) -> Json:
        return {} if self._limit is None else {self._limit: max(1, min(most, self._most))}

    def _known(self, metadata: Json) -> int:
        return self._most if metadata is None else limit_of(metadata, self._limit, self._most)

    def is_ready(self, txid: int) -> bool:
        # Messages that begun transactions will take are theirs: else one would begin for nothing.
        return self._source.ready(self._source.awaited * self._most)

    def success(self, txid: int) -> None:
        """The emitter is told too."""

    def backlog(self) -> Any:
        return self._source.backlog()

    def close(self) -> None:
        """The emitter closes what they share."""


def limit_of(metadata: Json, limit: str | None, most: int) -> int:
    """The limit that a transaction's metadata sets.

    Raises:
        SourceError: the metadata was not written by a TakingCoordinator.
    """
    if limit is None:
        return most
    return whole_of(metadata, limit, 1, "this kind of spout", f'{{"{limit}": n}}')


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
