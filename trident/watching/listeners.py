"""Listeners: what a program is told of its topology, as PySpark's ``StreamingQueryListener`` has it."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from trident.coordinators.errors import ConfigError, described
from trident.watching.events import Advanced, Began, Event, Failed, Started, Terminated, TookOver, Watchers

# Hands events to one receiver, in a thread of its own, from a queue that never makes the teller wait.


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


# How long the end of a topology waits for its listeners, all of them together.
END_SECS = 5.0


class TopologyListener:
    """Is told what a topology does; override what you want to hear of.

    ::

        class Pager(TopologyListener):
            def on_failure(self, event: events.Failed) -> None:
                page(f"{event.topology}: transaction {event.txid} failed: {event.error}")

        topology.start(listeners=[Pager()])

    The events are of this process alone, and each is told at most once: one that happened in a process that was
    killed is told by none. A transaction that an earlier process decided and this one finished is told here, with
    ``recovered=True``; the earlier process may have told it, too. So count by ``txid``, or count in a state.

    Each listener is called from one thread of its own, with one event at a time, in the order in which they happened.
    It may be slow: nothing waits for it but the end of the topology, for five seconds at most. 10,000 events wait for
    it; then further ones of ``on_progress`` are dropped, and of ``on_failure`` those behind a hundred that wait; a
    warning says so once, and ``query.dropped_events`` counts them. An exception that it raises is logged, and ends
    nothing. In a listener call ``query.request_stop()``, not ``query.stop()``, which would wait for the listener.

    A tuple topology tells its rounds and failed messages: ``on_progress`` gets an :class:`trident.events.RoundEnded`,
    ``on_failure`` an :class:`trident.events.MessageFailed`. It has no leader, so it never calls ``on_takeover``.
    """

    def on_started(self, event: Started) -> None:
        """The topology was started in this process; perhaps as a standby."""

    def on_progress(self, event: Advanced) -> None:
        """A transaction has advanced: it is decided, published, and never processed again."""

    def on_failure(self, event: Failed) -> None:
        """Work on a transaction failed and is tried again, or the topology ends with it."""

    def on_takeover(self, event: TookOver) -> None:
        """This process leads from here on: at its start, or behind another process that led."""

    def on_terminated(self, event: Terminated) -> None:
        """The topology has ended in this process: the last call.

        ``query.stop()`` returns behind it, unless it, and what was to be told before it, takes longer than five
        seconds.
        """


_CALLS = {
    Started: TopologyListener.on_started,
    Advanced: TopologyListener.on_progress,
    Failed: TopologyListener.on_failure,
    TookOver: TopologyListener.on_takeover,
    Terminated: TopologyListener.on_terminated,
}
_METHODS = {kind: method.__name__ for kind, method in _CALLS.items()}


def _call(listener: TopologyListener, event: Event) -> None:
    method = next(name for kind, name in _METHODS.items() if isinstance(event, kind))  # of these alone: see _wanted
    getattr(listener, method)(event)


def _wanted(listener: TopologyListener) -> tuple[type[Event], ...]:
    """The kinds of events whose method it overrides."""
    kinds = (kind for kind, method in _CALLS.items() if getattr(type(listener), _METHODS[kind]) is not method)
    return tuple(kinds)


class Listeners:
    """The listeners of one query. May be used from any thread."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers, self._lock = watchers, threading.Lock()
        self._deliveries: list[tuple[object, Delivery]] = []
        self._is_closed = False

    def add(self, listener: TopologyListener) -> None:
        """Tells it every event from here on; one that is there already is told each event once.

        Raises:
            ConfigError: it is no listener.
        """
        check_listener(listener)
        self.deliver(listener, Delivery(_name(listener), lambda event: _call(listener, event), _wanted(listener)))

    def deliver(self, key: object, delivery: Delivery) -> None:
        """Tells a delivery of the framework's own; ``key`` is what it is known by."""
        with self._lock:
            if self._is_closed or any(known is key for known, _ in self._deliveries):
                return
            self._deliveries.append((key, delivery))
        self._watchers.add(delivery)

    def remove(self, listener: object) -> None:
        """Tells it nothing more, not what waits either; one that is not there is no error."""
        with self._lock:
            gone = [delivery for known, delivery in self._deliveries if known is listener]
            self._deliveries = [one for one in self._deliveries if one[0] is not listener]
        for delivery in gone:
            self._watchers.remove(delivery)
            delivery.discard()

    def dropped(self) -> int:
        """Counts the events that listeners were too slow for."""
        with self._lock:
            return sum(delivery.dropped for _, delivery in self._deliveries)

    def close(self) -> None:
        """Waits for all that was told, for ``END_SECS`` at most; nothing is told any more."""
        with self._lock:
            self._is_closed = True
            deliveries = list(self._deliveries)
        until = time.monotonic() + END_SECS
        for listener, delivery in deliveries:
            if not delivery.close(until):
                log.warning("the topology ends while %s still gets its events", _name(listener))
            if delivery.dropped:
                log.warning("%s was too slow for %d events", _name(listener), delivery.dropped)


def check_listener(listener: object) -> None:
    """Raises ConfigError where it is no listener."""
    if not isinstance(listener, TopologyListener):
        is_class = isinstance(listener, type) and issubclass(listener, TopologyListener)
        raise ConfigError(
            "a listener cannot be used",
            found=described(listener),
            expected="an object of a subclass of trident.TopologyListener",
            action=f"make one: {listener.__name__}()" if is_class else None,  # type: ignore[attr-defined]
        )


def checked_listeners(given: object) -> list[TopologyListener]:
    """The listeners of a start.

    Raises:
        ConfigError: it is no list of listeners.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise ConfigError("listeners is no list", found=described(given), expected="a list of TopologyListener objects")
    listeners = list(given)
    for listener in listeners:
        check_listener(listener)
    return listeners


def made_listeners(names: Iterable[str]) -> list[TopologyListener]:
    """Listeners of the setting ``listener_classes``: ``module:Class``, each made without arguments.

    Raises:
        ConfigError: there is no such class, it is no listener, or it cannot be made.
    """
    return [_made(name) for name in names]


def _made(name: str) -> TopologyListener:
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"listener_classes: {name} is not found",
            found=str(error),
            expected="module:Class, which this process can import",
        ) from error
    if not (isinstance(found, type) and issubclass(found, TopologyListener)):
        raise ConfigError(
            f"listener_classes: {name} is no listener",
            found=described(found),
            expected="a subclass of trident.TopologyListener",
        )
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"listener_classes: {name} cannot be made",
            found=f"{type(error).__name__}: {error}",
            expected="a class whose objects are made without arguments",
        ) from error


def _name(listener: object) -> str:
    return f"the listener {type(listener).__qualname__}"
