"""A queue of messages in this process, and the spout that takes from it: for tests and programs that feed a topology.

It is the smallest source that keeps to message-level reliability
(docs/semantics.md 6): a message stays in the queue until it is acknowledged, and is
handed out again when it fails or its time runs out. It is memory: nothing of
it survives the end of the process, neither messages nor what was acknowledged.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from trident.coordinators.errors import ConfigError, SourceError, TridentError
from trident.spouts.contracts import Backlog
from trident.spouts.rich import RichSpout, message_key


class Delivery(NamedTuple):
    """A message that was taken from an :class:`InProcessQueue`.

    Attributes:
        id: the same at each delivery.
        value: what was put.
        deliveries: how often it was handed out, this time included.
    """

    id: Any
    value: Any
    deliveries: int


class _Queued:
    """One message that is not acknowledged, or was while it waited."""

    def __init__(self, message_id: Any, value: Any) -> None:
        self.id, self.value = message_id, value
        self.deliveries = 0
        self.acknowledged = False


class InProcessQueue:
    """Messages in memory, handed out until they are acknowledged; for any number of threads.

    Messages that come again (failed, or their time was up) are handed out before
    new ones, each of the two in their order. So a message that fails every time comes
    again at once every time: give it up after some of its ``deliveries``.

    One spout takes from a queue at a time. A queue outlives it: messages that the
    spout of a stopped topology had taken are given to that of the next.

    Args:
        redeliver_after_secs: a message that was handed out and neither
            acknowledged nor failed within them is handed out again. None: only when it
            fails. Longer than the topology's message timeout, or messages
            come again that are still being processed.
        clock: seconds that never go back; for tests.

    Raises:
        ConfigError: the time is impossible.
    """

    def __init__(self, redeliver_after_secs: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        if redeliver_after_secs is not None and not 0 < redeliver_after_secs < math.inf:
            raise ConfigError(
                "the redelivery time of an InProcessQueue is impossible",
                found=repr(redeliver_after_secs),
                expected="seconds, over 0, or None",
            )
        self._redeliver_after_secs, self._clock = redeliver_after_secs, clock
        self._changed = threading.Condition()
        self._messages: dict[str, _Queued] = {}  # all that are not acknowledged, by the key of the id
        self._new: deque[_Queued] = deque()
        self._again: deque[_Queued] = deque()  # may hold messages that were acknowledged meanwhile
        # Until when each is hidden, the earliest first: all are hidden for the same time.
        self._pending: OrderedDict[str, float] = OrderedDict()

    def put(self, value: Any, message_id: Any = None) -> Any:
        """Adds a message, from any thread; returns its id.

        Args:
            value: one value, or a tuple of one per field of the spout.
            message_id: text, a number or a list of these, used for one message only; None makes a random one.

        Raises:
            SourceError: the id cannot be one, or a message that is not acknowledged has it.
        """
        # Random: a topology may remember ids beyond the process, where a count would begin again.
        given = uuid.uuid4().hex if message_id is None else message_id
        key = message_key(given)
        with self._changed:
            if key in self._messages:
                raise SourceError(
                    "two messages have the same id",
                    found=repr(given)[:200],
                    expected="an id that no message has which is not acknowledged",
                )
            queued = self._messages[key] = _Queued(given, value)
            self._new.append(queued)
        return given

    def take(self) -> Delivery | None:
        """The next message, hidden from now on until its time is up; None when there is none. Does not wait."""
        with self._changed:
            self._expire()
            while self._again or self._new:
                queued = (self._again or self._new).popleft()
                if queued.acknowledged:
                    continue
                queued.deliveries += 1
                hidden_secs = math.inf if self._redeliver_after_secs is None else self._redeliver_after_secs
                self._pending[message_key(queued.id)] = self._clock() + hidden_secs
                return Delivery(queued.id, queued.value, queued.deliveries)
            return None

    def acknowledge(self, message_id: Any) -> None:
        """Removes a message for good, whichever of its deliveries is meant, also while it waits to come again.

        Nothing happens if it was acknowledged before, is not known, or was never handed out.
        """
        key = message_key(message_id)
        with self._changed:
            queued = self._messages.get(key)
            if queued is None or not queued.deliveries:
                return
            queued.acknowledged = True
            del self._messages[key]
            self._pending.pop(key, None)
            if not self._messages:
                self._changed.notify_all()

    def fail(self, message_id: Any) -> None:
        """Hands a message out again, before what is new. Nothing happens unless it is handed out now."""
        key = message_key(message_id)
        with self._changed:
            if self._pending.pop(key, None) is not None:
                self._again.append(self._messages[key])

    def release(self) -> None:
        """Hands out again all that is handed out now, before all else, in the order in which it was taken."""
        with self._changed:
            self._again.extendleft(self._messages[key] for key in reversed(self._pending))
            self._pending.clear()

    def deliveries(self, message_id: Any) -> int:
        """How often a message was handed out; 0 also of one that is not here (any more)."""
        with self._changed:
            queued = self._messages.get(message_key(message_id))
            return queued.deliveries if queued is not None else 0

    @property
    def pending(self) -> int:
        """Messages that are handed out, neither acknowledged nor failed, and whose time is not up."""
        with self._changed:
            self._expire()
            return len(self._pending)

    def __len__(self) -> int:
        """Messages that are not acknowledged, handed out or not."""
        with self._changed:
            return len(self._messages)

    def __bool__(self) -> bool:
        return True  # an empty queue is a queue

    def wait_empty(self, timeout_secs: float = 60.0) -> None:
        """Returns as soon as every message is acknowledged.

        Raises:
            TridentError: not in that time (by the true clock).
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._messages, timeout_secs):
                raise TridentError(
                    f"the messages of an InProcessQueue were not acknowledged within {timeout_secs:g} s",
                    found=f"{len(self._messages)} left, {len(self._pending)} of them delivered",
                    expected="a topology that runs and processes them",
                )

    def _expire(self) -> None:
        now = self._clock()
        while self._pending:
            key = next(iter(self._pending))
            if self._pending[key] > now:
                return
            del self._pending[key]
            self._again.append(self._messages[key])


class InProcessQueueSpout(RichSpout):
    """Emits the messages of an :class:`InProcessQueue`; every message at least once while the process lives.

    ``open`` hands out again what a spout before it had taken and not settled.
    A message whose value does not fit the fields raises at ``next_tuple``; it
    stays in the queue, handed out, until its time is up or it is acknowledged there.

    Args:
        queue: where messages are put.
        fields: one per value of a message.
    """

    def __init__(self, queue: InProcessQueue, fields: Any = "message string") -> None:
        if not isinstance(queue, InProcessQueue):
            raise ConfigError(
                "an InProcessQueueSpout was given no queue", found=repr(queue)[:200], expected="an InProcessQueue"
            )
        self.queue, self.fields = queue, fields

    def open(self) -> None:
        self.queue.release()

    def next_tuple(self) -> None:
        """Emits one message, or nothing.

        Raises:
            SourceError: the message's value does not fit the fields.
        """
        delivery = self.queue.take()
        if delivery is not None:
            self.collector.emit(delivery.value, delivery.id)

    def backlog(self) -> Backlog:
        return Backlog(rows=len(self.queue) - self.queue.pending)

    def ack(self, message_id: Any) -> None:
        self.queue.acknowledge(message_id)

    def fail(self, message_id: Any) -> None:
        self.queue.fail(message_id)
