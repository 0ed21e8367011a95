"""The spout that takes from a reliable queue over a Redis list.

Messages stay in the server until their transaction is durable, so they outlive
this process; the rule of succession, at the class, says what becomes of those
that it had taken when it ended.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trident.coordinators.errors import ConfigError, SourceError, TopologyError
from trident.spouts import arguments as spout_arguments
from trident.spouts.contracts import Backlog
from trident.spouts.queues.redis import REDELIVER_AFTER_SECS, RedisListQueue, Taken, new_owner
from trident.spouts.rich import RichSpout
from trident.states.core.host_bound import is_this_host
from trident.states.maps.redis_server import REDIS_OF_ALL


class RedisListSpout(RichSpout):
    """Emits the messages of a Redis list; every message at least once, whatever process dies.

    A message stays in the server until ``ack`` has returned. It comes again
    after ``fail``; when it was emitted and not settled for
    ``redeliver_after_secs``; and when the next process of the same consumer opens.

    *The rule of succession*: ``open`` takes over its consumer's name. Messages
    that processes of that name had taken and not acknowledged are handed out
    again at once. So processes that run at the same time need consumers of
    different names; they share the list. A process that was taken over and
    still runs does no harm: its ``ack`` counts, its ``fail`` does not.

    ``ack`` acknowledges the message wherever it is, also if it was handed out
    again meanwhile, to this process or another, and may be told any number of
    times: nothing acknowledged is taken again, though another process that had taken it
    by then still emits it. A fail of what this process does not have any more does nothing.

    When the server does not answer, each method raises and may be called
    again; after it is back, it hands out again at once the messages that it had
    given out and this process has not received.

    A message that cannot be decoded, or does not fit the fields, raises at
    ``next_tuple`` and comes again when its time is up; the next call goes on with the next message.

    Args:
        url: as of :class:`RedisListQueue`.
        key: of the list that producers LPUSH to, best with :meth:`RedisListQueue.put`.
        fields: one per value of a message, all of one stream.
        decode: called with a message's value (that of its JSON object, or its
            text) for a value or a tuple of one per field; None takes it as it is, a list as a tuple.
        consumer: None takes the names of the topology and the stream.
        redeliver_after_secs: longer than the topology's message timeout, or messages come
            again that are still being processed. By the server's clock.
        retry_after_secs: how long after ``fail`` a message comes again.
        prefetch: how many messages one round trip may take; those that are not emitted
            yet are taken too. With more than one, what was emitted last may
            come again a quarter later than said.
        durable: as of :class:`RedisListQueue`.

    Raises:
        ConfigError: an argument cannot be used.
        TopologyError: fields of several streams.
    """

    def __init__(
        self,
        url: str,
        key: str,
        fields: Any = "message string",
        decode: Callable[[Any], Any] | None = None,
        consumer: str | None = None,
        redeliver_after_secs: float = REDELIVER_AFTER_SECS,
        retry_after_secs: float = 0.0,
        prefetch: int = 100,
        durable: bool = True,
    ) -> None:
        self.queue = RedisListQueue(url, key, durable)
        if isinstance(fields, Mapping):
            raise TopologyError("a RedisListSpout has one stream", found=repr(fields)[:200], expected="its fields")
        redeliver_after_secs = spout_arguments.seconds(
            "redeliver_after_secs of a RedisListSpout", redeliver_after_secs, zero=False, error=ConfigError
        )
        retry_after_secs = spout_arguments.seconds(
            "retry_after_secs of a RedisListSpout", retry_after_secs, error=ConfigError
        )
        spout_arguments.flag("durable of a RedisListSpout", durable, ConfigError)
        _check(prefetch, isinstance(prefetch, int) and prefetch >= 1, "prefetch", "a number, from 1")
        _check(consumer, consumer is None or (isinstance(consumer, str) and consumer != ""), "consumer", "a name")
        self.fields, self._decode, self._consumer = fields, decode, consumer
        self._redeliver_after_secs, self._retry_after_secs = float(redeliver_after_secs), float(retry_after_secs)
        self._prefetch = prefetch
        self._waiting_secs = self._redeliver_after_secs / 4 if prefetch > 1 else 0.0
        self._owner = ""
        self._fetched: OrderedDict[str, Taken] = OrderedDict()  # taken and not emitted, by id
        self._fetched_until = 0.0
        self._emitted: set[str] = set()  # … and neither acknowledged nor failed
        self._astray = False  # the server may have given us messages that we do not know of

    @property
    def consumer(self) -> str:
        """The name under which messages are taken.

        Raises:
            ConfigError: none was given and there is no topology to take it from.
        """
        context: Any = getattr(self, "context", None)
        if self._consumer is None and context is None:
            raise ConfigError("a RedisListSpout has no consumer name", action="give it one: consumer='…'")
        return self._consumer or f"{context.topology}/{context.tx_id}"

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A standby on another host would take from another server."""
        return REDIS_OF_ALL if is_this_host(self.queue.url) else False

    def open(self) -> None:
        """Takes over what earlier processes of this consumer had taken.

        Raises:
            SourceError: the server does not answer or refuses.
            EnvironmentProblem: the client is missing, or the server could forget messages.
        """
        self.queue.release(self.consumer)
        self._owner = new_owner(self.consumer)
        self._fetched.clear()
        self._emitted.clear()
        self._astray = False

    def next_tuple(self) -> None:
        """Emits one message, or nothing; at most two round trips, seldom more than one in ``prefetch`` messages.

        Raises:
            SourceError: the server does not answer or refuses; or a message cannot be emitted.
        """
        if self._fetched and time.monotonic() > self._fetched_until:
            # They may soon come again elsewhere, and would have too little time left here.
            self._astray = True
        if self._astray:
            self._fetched.clear()
            self._release_unknown()
        if not self._fetched:
            self._fetch()
        if self._fetched:
            self._emit(self._fetched.popitem(last=False)[1])

    def backlog(self) -> Backlog:
        """Messages that no consumer has taken, and those taken here that are not emitted yet; asks the server.

        Raises:
            SourceError: the server does not answer or refuses.
        """
        return Backlog(rows=len(self.queue) - self.queue.pending + len(self._fetched))

    def ack(self, message_id: str) -> None:
        """Removes the message from the server.

        Raises:
            SourceError: the server does not answer; it may have happened. Tell it again.
        """
        self.ack_many([message_id])

    def ack_many(self, message_ids: Collection[str]) -> None:
        """As ``ack`` of each, in one round trip; up to 1,000 are removed as one.

        Much faster than one by one where the server makes each write durable (appendfsync always).
        """
        self.queue.acknowledge(message_ids)
        for message_id in message_ids:
            self._settled(message_id)

    def fail(self, message_id: str) -> None:
        """Hands the message out again after ``retry_after_secs``.

        Raises:
            SourceError: the server does not answer. Unless it is told again, the message comes when its time is up.
        """
        self.queue.give_back(self._owner, message_id, self._retry_after_secs)
        self._settled(message_id)

    def close(self) -> None:
        """Gives back what was not emitted; the rest waits for the next process, or its time."""
        if self._fetched or self._astray:
            self._fetched.clear()
            try:
                self._release_unknown()
            except SourceError:
                pass  # The server is gone: they come again when their time is up.

    def _fetch(self) -> None:
        until = time.monotonic() + self._waiting_secs
        self._astray = True  # until the answer is here
        hidden_secs = self._redeliver_after_secs + self._waiting_secs
        for message in self.queue.take(self._owner, self._prefetch, hidden_secs):
            self._fetched[message.id] = message
        self._fetched_until = until if self._prefetch > 1 else math.inf
        self._astray = False

    def _settled(self, message_id: str) -> None:
        self._emitted.discard(message_id)
        # Its time was up, and it was fetched again before this was told.
        self._fetched.pop(message_id, None)

    def _release_unknown(self) -> None:
        self.queue.release(self.consumer, self._owner[:32], self._emitted)
        self._astray = False

    def _emit(self, message: Taken) -> None:
        try:
            value = self.queue.value(message.body)
            self.collector.emit(value if self._decode is None else self._decode(value), message.id)
        except Exception as problem:
            raise SourceError(
                f"a message of the Redis queue {self.queue.key} cannot be emitted",
                found=f"id {message.id!r}: {type(problem).__name__}: {problem}",
                expected="a value per field",
                action=f"change decode, or throw it away: RedisListQueue(…).acknowledge([{message.id!r}])",
            ) from problem
        self._emitted.add(message.id)


def _check(value: Any, usable: bool, name: str, expected: str) -> None:
    if not usable or isinstance(value, bool):
        raise ConfigError(f"{name} of a RedisListSpout is impossible", found=repr(value)[:200], expected=expected)
