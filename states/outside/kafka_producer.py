"""Transactional producers of Kafka, one for each part of a state: messages and mark in one transaction."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from trident.coordinators.errors import StateBehind, TridentError
from trident.kafka.settings import kafka_module
from trident.states.outside.kafka_messages import Message
from trident.states.outside.kafka_way import ASK_SECS, KNOWN_SECS, Fenced, Stored, Way
from trident.states.outside.port import OutsidePart

INIT_SECS, COMMIT_SECS = 20.0, 30.0
# Of processes that publish again and again: a producer that is kept saves two requests, and fences no one.
_KEPT_MAX = 16
# As long a transaction that was committed a moment ago may be missing in the group's offsets, and messages at a
# leader that was just elected.
_BEHIND_SECS = 5.0
# A mark has the ends of so many partitions: brokers take 4,096 bytes of it by default (offset.metadata.max.bytes).
_ENDS_MAX = 200


class PartProducer:
    """The producer of one part: from its beginning on no other one of its transactional id may write.

    A transaction that another one has left open is ended by then: aborted, or committed if its commit was under way. So
    the mark that is read behind that changes only through this producer, or through one that fences it.
    """

    def __init__(self, way: Way, part: int) -> None:
        self._way, self._part, self.owner = way, part, way.owner
        self._failed: list[Any] = []
        with way.consumer(stable=True) as consumer:
            self._group = consumer.consumer_group_metadata()
            self._producer = way.producer(part, lambda error, _: self._failed.append(error))
            with way.asking("begin its transactional id"):
                self._producer.init_transactions(INIT_SECS)
            self.stored = way.marks(consumer, [part]).get(part)

    @cached_property
    def _looks(self) -> Any:
        """A reader that waits for no open transaction: other parts of the same transaction may have theirs."""
        return self._way.reader()

    def count(self) -> int:
        """How many partitions the topic has now."""
        return self._way.count(self._producer)

    def check_known(self, part: OutsidePart, count: int) -> None:
        """Looks whether the cluster still has the transaction before this one, its mark and its messages.

        Args:
            count: how many partitions the topic has.

        Raises:
            StateBehind: it has lost transactions, also when it is asked again for some seconds.
            StaleEpoch: a later coordinator has written.
            StateAway: the cluster does not answer.
        """
        way, deadline = self._way, time.monotonic() + _BEHIND_SECS
        while True:
            marks = way.marks(self._looks, range(count))
            ends = way.ends(self._looks, min(count, _ENDS_MAX))
            own = marks.get(part.number)
            part.mark.is_new(own.mark if own else None, way.what)  # raises for marks of a later coordinator
            try:
                part.check_known([one.mark for one in marks.values()], way.what)
                _check_ends(part, marks.values(), ends, way.what)
                return
            except StateBehind:
                if time.monotonic() > deadline:
                    raise
            time.sleep(KNOWN_SECS)

    def write(self, stored: Stored, messages: Iterator[Message], ordered: bool) -> None:
        """Puts the mark and the messages by one transaction; the mark gets the ends behind them.

        Args:
            ordered: fail, and put nothing, if the topic has not as many partitions as ``stored`` says, at any time.

        Raises:
            Fenced: nothing was put.
            StateAway: the cluster does not answer; the transaction may have been committed.
            TridentError: Kafka refuses, and nothing was put.
        """
        way, self._failed[:] = self._way, []
        with way.asking("begin a transaction"):
            self._producer.begin_transaction()
        began = time.monotonic()
        try:
            self.stored = self._write_open(stored, messages, ordered)
        except Fenced:
            if time.monotonic() - began < way.open_secs_max:
                raise
            raise Fenced(
                f"a transaction of {way.what} was open for longer than transaction.timeout.ms: Kafka has ended it",
                found=f"{time.monotonic() - began:.1f} s",
                expected=f"at most {way.open_secs_max:.1f} s",
                action="raise transaction.timeout.ms in config=, up to the brokers' transaction.max.timeout.ms; or "
                "partitions=; or give it smaller batches",
            ) from None

    def _write_open(self, stored: Stored, messages: Iterator[Message], ordered: bool) -> Stored:
        """Fills the transaction that has begun, and commits it, or aborts it; returns the mark as it was put."""
        way = self._way
        try:
            self._put_mark(stored)  # first of all: a producer that is fenced is told so before it sends a row
            sent = False
            for message in messages:
                self._produce(message)
                sent = True
            if sent:
                with way.asking("send messages"):
                    self._flush()
                ends = way.ends(self._looks, min(stored.topic_partitions, _ENDS_MAX))
                stored = replace(stored, ends=ends)
                self._put_mark(stored)
            if ordered and (now := self.count()) != stored.topic_partitions:
                raise TridentError(
                    f"the topic of {way.what} has other partitions", found=now, expected=stored.topic_partitions
                )
        except BaseException:
            self._abort()
            raise
        with way.asking("commit a transaction"):
            self._producer.commit_transaction(COMMIT_SECS)
        return stored

    def _put_mark(self, stored: Stored) -> None:
        at = kafka_module().TopicPartition(self._way.topic, self._part, stored.mark.txid, metadata=stored.text)
        with self._way.asking("put its mark"):
            self._producer.send_offsets_to_transaction([at], self._group, ASK_SECS)

    def _produce(self, message: Message) -> None:
        with self._way.asking("send a message"):
            while True:
                try:
                    self._producer.produce(self._way.topic, message.value, message.key, headers=message.headers)
                    return
                except BufferError:
                    # See _flush.
                    with suppress(SystemError):
                        self._producer.poll(0.1)
                except kafka_module().KafkaException:
                    self._flush()  # an earlier message has failed, perhaps
                    raise

    def _flush(self) -> None:
        """Raises for a message that was refused; the commit tells why others have failed, which were given up."""
        kafka = kafka_module()
        # The client raises a fatal error while it calls on_delivery, which Python makes a SystemError of. The next call
        # raises it as it is.
        with suppress(SystemError):
            self._producer.flush()  # ends: a message fails that is not acknowledged in time
        given_up = (kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT, kafka.KafkaError._FATAL)
        for error in self._failed:
            if error.code() not in given_up:
                raise kafka.KafkaException(error)

    def _abort(self) -> None:
        """Lets readers go on at once; if it fails, the next producer does it."""
        with suppress(kafka_module().KafkaException, SystemError):
            self._producer.abort_transaction(ASK_SECS)


def _check_ends(part: OutsidePart, marks: Iterable[Stored], ends: Sequence[int], what: str) -> None:
    """Raises StateBehind if a partition ends before the messages of the transaction before this one."""
    last = part.known or (0, 0)
    known = [one.ends for one in marks if (one.mark.txid, one.mark.attempt_id) == last]
    for number, (now, *before) in enumerate(zip_longest(ends, *known, fillvalue=0)):
        if now < max(before, default=0):
            raise StateBehind(
                f"{what} lacks messages of transaction {last[0]} or an earlier one, which it had",
                found=f"partition {number} ends at offset {now}",
                expected=f"at offset {max(before)} or later",
            )


class PartProducers:
    """Producers that a process keeps for its next transactions. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], PartProducer] = OrderedDict()

    @contextmanager
    def of(self, way: Way, part: int, *, anew: bool = False, keep: bool = True) -> Iterator[PartProducer]:
        """A producer for one part; one within whose use an error is raised is not used again.

        Args:
            anew: not one that was kept.
            keep: for the next use in this process.
        """
        with self._lock:
            found = self._kept.pop(way.identity(part), None)
        one = found if found is not None and not anew else PartProducer(way, part)
        yield one
        if keep:
            with self._lock:
                self._kept[way.identity(part)] = one
                if len(self._kept) > _KEPT_MAX:
                    self._kept.popitem(last=False)
