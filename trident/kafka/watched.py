"""Clients of librdkafka with a watch around each call that waits: the library may ignore its own time-out.

A connection that is cut at the answer of a TxnOffsetCommit, for one, lets ``send_offsets_to_transaction`` wait for ever
(librdkafka #5456, #5511).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from trident.coordinators.bounded_calls import NoAnswer, bounded
from trident.kafka.settings import kafka_module

# Over the call's own time-out: a call that has not returned by then is taken to hang.
WATCH_SECS = 5.0


class Watched:
    """A producer, consumer or admin client: :meth:`within` for calls that wait for brokers, the others go through.

    A client of which a call has hung is given up: each later call by :meth:`within` raises at once, and its threads and
    connections stay until the library lets go of them by itself.
    """

    def __init__(self, client: Any) -> None:
        self._client, self.has_hung = client, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def within(self, secs: float, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls ``client.method(*arguments, secs, **named)``: the time-out is the last argument by position.

        Raises:
            KafkaException: as the client does; with ``_TIMED_OUT`` where it has not returned ``WATCH_SECS`` after its
                time-out.
        """
        return self.watched(secs, method, *arguments, secs, **named)

    def watched(self, secs: float, method: str, *arguments: Any, **named: Any) -> Any:
        """As :meth:`within`, for a method that takes no time-out."""
        if self.has_hung:
            raise timed_out(f"{method} is not called: an earlier call of this client has not returned")
        who, call = f"Kafka's client ({method})", getattr(self._client, method)
        try:
            return bounded(secs + WATCH_SECS, who, call, *arguments, **named)
        except NoAnswer as error:
            self.has_hung = True
            raise timed_out(str(error.strerror)) from None

    def end(self) -> threading.Thread | None:
        """Closes the client in a thread: its connections and threads go once it has done what it is at.

        Returns:
            the thread; None where there is nothing to close.
        """
        held, self._client = [self._client], None
        if held[0] is None or self.has_hung:
            return None
        thread = threading.Thread(target=_closed, args=(held,), name="trident-kafka-close", daemon=True)
        thread.start()
        return thread


def timed_out(text: str) -> Exception:
    """The client's own error for a call that has taken too long, as a :class:`Watched` raises it."""
    kafka = kafka_module()
    error: Exception = kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT, text))
    return error


def _closed(held: list[Any]) -> None:
    """Closes a consumer, or lets go of a producer: its last reference is the one that this thread has."""
    client = held.pop()
    if hasattr(client, "close") and not hasattr(client, "produce"):
        with suppress(Exception):
            client.close()
