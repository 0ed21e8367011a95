"""Messages that are handed out and not settled, by column: a batch of a fast spout has 100,000 of them.

An object for each of them would cost the driver more than all else that is done for it, half of that in the garbage
collector. So ids, rows and keys are lists, and roots an array; only of the few that have failed, or come from a replay
request, there is more to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any

import numpy as np

from trident.messages.ledger import Failure


@dataclass(slots=True)
class TrackedMessage:
    """One message that is handed out and not settled.

    Attributes:
        message_id, rows: as the spout emitted it.
        key: its id as text; "" for one that is not tracked.
        root: of its tree; 0 for one that is not tracked.
        attempts: how often it has failed.
        request: the replay request that it comes from, instead of the spout; "".
        suspect: why it has failed already, as far as its transaction knows; None.
    """

    message_id: Any
    rows: tuple[tuple[Any, ...], ...]
    key: str
    root: int
    attempts: int = 0
    request: str = ""
    suspect: Failure | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The part of :class:`TrackedMessage` that most messages have not."""

    attempts: int = 0
    request: str = ""
    suspect: Failure | None = None


@dataclass(frozen=True, slots=True)
class PendingMessages:
    """Messages in their order; never changed.

    Attributes:
        ids: as the spout chose them.
        rows: of each the tuples that it was emitted as.
        keys: ids as text; "" for one that is not tracked.
        roots: of their trees; 0 for one that is not tracked.
        past: root → the past of those that have one.
    """

    ids: Sequence[Any] = ()
    rows: Sequence[tuple[tuple[Any, ...], ...]] = ()
    keys: Sequence[str] = ()
    roots: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    past: dict[int, Past] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[TrackedMessage]:
        for message_id, rows, key, root in zip(self.ids, self.rows, self.keys, self.roots.tolist()):
            past = self.past.get(root, _NOTHING)
            yield TrackedMessage(message_id, rows, key, root, past.attempts, past.request, past.suspect)

    @property
    def counts(self) -> np.ndarray:
        """How many tuples each message has."""
        return np.fromiter(map(len, self.rows), np.int64, len(self.rows))

    @property
    def tuples(self) -> list[tuple[Any, ...]]:
        """Those of all messages."""
        return list(chain.from_iterable(self.rows))

    def nameless(self) -> int:
        """Counts the messages that are not tracked."""
        return len(self) - int(np.count_nonzero(self.roots))

    def tracked(self) -> "PendingMessages":
        return self.where(self.roots != 0) if self.nameless() else self

    def is_of(self, roots: Collection[int]) -> np.ndarray:
        """Of each message whether its root is one of some."""
        found: np.ndarray = np.isin(self.roots, np.fromiter(roots, np.uint64, len(roots)))
        return found & (self.roots != 0)

    def where(self, chosen: np.ndarray) -> "PendingMessages":
        """Those of which a boolean says so."""
        keys, ids, rows = (list(compress(column, chosen)) for column in (self.keys, self.ids, self.rows))
        return PendingMessages(ids, rows, keys, *self._of(self.roots[chosen]))

    def part(self, start: int, stop: int | None = None) -> "PendingMessages":
        """Those between two places."""
        piece = slice(start, stop)
        return PendingMessages(self.ids[piece], self.rows[piece], self.keys[piece], *self._of(self.roots[piece]))

    def changed(self, roots: Collection[int], change: Callable[[int, Past], Past]) -> "PendingMessages":
        """The same messages, of which some have another past."""
        wanted = self.roots[self.is_of(roots)].tolist() if roots else ()
        if not wanted:
            return self
        past = {root: change(root, self.past.get(root, _NOTHING)) for root in wanted}
        return replace(self, past={**self.past, **past})

    def _of(self, roots: np.ndarray) -> tuple[np.ndarray, dict[int, Past]]:
        if not self.past:
            return roots, {}
        there = set(roots.tolist())
        return roots, {root: past for root, past in self.past.items() if root in there}


_NOTHING = Past()


def joined(parts: Sequence[PendingMessages]) -> PendingMessages:
    """The messages of several, in this order."""
    if len(parts) == 1:
        return parts[0]
    keys, ids, rows = (
        list(chain.from_iterable(getattr(part, name) for part in parts)) for name in ("keys", "ids", "rows")
    )
    roots = np.concatenate([np.zeros(0, np.uint64), *(part.roots for part in parts)])
    return PendingMessages(ids, rows, keys, roots, {root: past for part in parts for root, past in part.past.items()})
