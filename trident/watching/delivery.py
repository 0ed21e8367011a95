"""Hands events to one receiver, in a thread of its own, from a queue that never makes the teller wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from trident.watching.events import Advanced, Began, Event, Failed, Terminated

log = logging.getLogger("trident.watching")
# Events that may wait for one receiver. Those of transactions, which come for ever, leave the rest to the others.
WAITING_MAX = 10_000
_RESERVE = 1_000
# Of failures fewer: each holds an error, whose frames hold the rows of its batch.
FAILURES_MAX = 100


class Delivery:
    """A watcher that queues what it is told, for a receiver that may be slow; may be used from any thread.

    The receiver is called with one event at a time, in the order in which they were told. An exception of it is logged
    and ends nothing. Where ``WAITING_MAX`` events wait, further ones of transactions (``Began``, ``Advanced``) are
    dropped and counted, and behind a thousand more all others but ``Terminated``. Of ``Failed`` at most
    ``FAILURES_MAX`` wait.

    Args:
        name: of the receiver, for the log.
        receive: is called with each event.
        wants: the kinds of events that it is called with; no others take a place in the queue.
    """

    def __init__(self, name: str, receive: Callable[[Event], object], wants: tuple[type[Event], ...]) -> None:
        self._name, self._receive, self._wants = name, receive, wants
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._thread: threading.Thread | None = None
        self._is_called = self._is_closed = False
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Counts the events that found the queue full."""
        return self._dropped

    def __call__(self, event: Event) -> None:
        """Queues an event; returns at once."""
        if not isinstance(event, self._wants):
            return
        with self._changed:
            if self._is_closed:
                return
            waiting = len(self._waiting)
            if waiting >= self._room_for(event) or self._has_failures_enough(event):
                self._dropped += 1
                is_first = self._dropped == 1
            else:
                is_first = False
                self._waiting.append(event)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="trident-delivery", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if is_first:
            log.warning(
                "%s: %s is too slow: %d events wait for it, and further ones are dropped until it has caught up",
                event.topology,
                self._name,
                waiting,
            )

    def close(self, until: float) -> bool:
        """Takes no more, and waits until all that was told has been delivered.

        Args:
            until: how long at most, by ``time.monotonic``. The receiver goes on with what waits even then.

        Returns:
            whether all was delivered.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._thread is threading.current_thread():
                return False  # the receiver itself ends the topology, and cannot wait for its own return
            return self._changed.wait_for(self._is_idle, max(0.0, until - time.monotonic()))

    def discard(self) -> None:
        """Takes no more, and drops what waits; a call that is under way returns in its own time."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._is_called

    @staticmethod
    def _room_for(event: Event) -> float:
        if isinstance(event, (Began, Advanced)):
            return WAITING_MAX
        return float("inf") if isinstance(event, Terminated) else WAITING_MAX + _RESERVE

    def _has_failures_enough(self, event: Event) -> bool:
        return isinstance(event, Failed) and sum(isinstance(one, Failed) for one in self._waiting) >= FAILURES_MAX

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._receive(event)
            except BaseException:  # sys.exit() too: it would end the thread, and no one else
                log.warning("%s: %s raised at %s", event.topology, self._name, type(event).__name__, exc_info=True)
            del event  # it may hold an error with its frames

    def _next(self) -> Event | None:
        with self._changed:
            self._is_called = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                return None
            self._is_called = True
            return self._waiting.popleft()
