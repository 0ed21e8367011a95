"""Transactional producers of Kafka, one for each part of a state: messages and mark in one transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from trident.coordinators.errors import StateAway, StateBehind, TridentError
from trident.kafka.answers import is_fenced
from trident.kafka.settings import kafka_module
from trident.kafka.watched import WATCH_SECS, timed_out
from trident.states.outside.kafka_messages import Message
from trident.states.outside.kafka_way import ASK_SECS, KNOWN_SECS, Fenced, Readers, Stored, Way
from trident.states.outside.port import OutsidePart

INIT_SECS, COMMIT_SECS = 20.0, 30.0
# Over the time in which each message is acknowledged or fails.
_FLUSH_SECS = 2.0
# Of one process: parts beyond these have their producers made in their turn.
_AHEAD_MAX = 16
# A stop waits for so long for producers that are being made; each call in their making has a time-out besides.
_STOP_SECS = 10.0
# As long a transaction that was committed a moment ago may be missing in the group's offsets, and messages at a
# leader that was just elected.
_BEHIND_SECS = 5.0
# A mark has the ends of so many partitions: brokers take 4,096 bytes of it by default (offset.metadata.max.bytes).
_ENDS_MAX = 200


class PartProducer:
    """The producer of one part, for one transaction of Kafka: from its beginning on no other of its id may write.

    A transaction that another one has left open is ended by then: aborted, or committed if its commit was under way. So
    the mark that is read after that changes only through this producer, or through one that fences it.

    Each has an epoch of its own at the brokers, and the client does not change it from transaction to transaction. So
    it is used for one transaction alone: a request of an earlier one that the brokers get late (held by the network,
    sent twice) names an earlier epoch, and is refused.

    Args:
        readers: those of the producer before it.

    Attributes:
        stored: the part's mark.
        is_used: its transaction has begun; it can begin no other.
    """

    def __init__(self, way: Way, part: int, readers: Readers | None = None) -> None:
        self._way, self._part, self.owner, self.is_used = way, part, way.owner, False
        self.readers = readers or Readers(way)
        failed: list[Any] = []
        self._failed = failed
        self._producer = way.producer(part, lambda error, _: failed.append(error))
        try:
            # The client asks for its coordinator when it begins, and again half a second later: a broker is to be
            # connected by then. The first answer may come from a bootstrap address, whose connection it then closes.
            for _ in range(2):
                self.count()
            with way.asking("begin its transactional id"):
                self._producer.within(INIT_SECS, "init_transactions")
            self.stored = way.marks(self.readers.stable, [part]).get(part)
        except BaseException:
            self.end()
            raise

    def end(self, readers: bool = True) -> list[threading.Thread]:
        """Closes it in threads, which it returns; with ``readers`` these, too."""
        clients = [self._producer, *(self.readers.opened if readers else [])]
        return [thread for client in clients if (thread := client.end())]

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
            marks = way.marks(self.readers.at_once, range(count))
            ends = way.ends(self.readers.at_once, min(count, _ENDS_MAX))
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
        way = self._way
        assert not self.is_used, "a producer is used for one transaction"
        self.is_used = True
        with way.asking("begin a transaction"):
            self._producer.watched(ASK_SECS, "begin_transaction")
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
                ends = way.ends(self.readers.at_once, min(stored.topic_partitions, _ENDS_MAX))
                stored = replace(stored, ends=ends)
                self._put_mark(stored)
            if ordered and (now := self.count()) != stored.topic_partitions:
                raise TridentError(
                    f"the topic of {way.what} has other partitions", found=now, expected=stored.topic_partitions
                )
        except BaseException as error:
            # Requests that the brokers have not answered may be under way then, and the client ends the process where
            # one is answered after an abort (its assertion txn_req_cnt > 0): the next producer ends the transaction.
            if not isinstance(error, (StateAway, Fenced)):
                self._abort()
            raise
        with way.asking("commit a transaction"):
            self._producer.within(COMMIT_SECS, "commit_transaction")
        return stored

    def _put_mark(self, stored: Stored) -> None:
        at = kafka_module().TopicPartition(self._way.topic, self._part, stored.mark.txid, metadata=stored.text)
        with self._way.asking("put its mark"):
            self._producer.within(ASK_SECS, "send_offsets_to_transaction", [at], self.readers.group)

    def _produce(self, message: Message) -> None:
        with self._way.asking("send a message"):
            deadline = time.monotonic() + self._way.message_secs_max + WATCH_SECS
            while True:
                try:
                    self._producer.produce(self._way.topic, message.value, message.key, headers=message.headers)
                    return
                except BufferError:
                    if time.monotonic() > deadline:  # by then the messages before it have gone, or failed
                        self._producer.has_hung = True
                        raise timed_out("the client's queue stays full") from None
                    # See _flush.
                    with suppress(SystemError):
                        self._producer.poll(0.1)
                except kafka_module().KafkaException as error:
                    # Behind a fatal error the client may keep its messages until they time out.
                    if not is_fenced(error.args[0]):
                        self._flush()  # an earlier message has failed, perhaps
                    raise

    def _flush(self) -> None:
        """Raises for a message that was refused; the commit tells why others have failed, which were given up."""
        kafka = kafka_module()
        # The client raises a fatal error while it calls on_delivery, which Python makes a SystemError of. The next call
        # raises it as it is.
        with suppress(SystemError):
            # A message fails that is not acknowledged in time, so that none is left.
            if self._producer.within(self._way.message_secs_max + _FLUSH_SECS, "flush"):
                raise timed_out("messages are neither acknowledged nor failed")
        given_up = (kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT, kafka.KafkaError._FATAL)
        for error in self._failed:
            if error.code() not in given_up:
                raise kafka.KafkaException(error)

    def _abort(self) -> None:
        """Lets readers go on at once; if it fails, the next producer does it."""
        with suppress(kafka_module().KafkaException, SystemError):
            self._producer.within(ASK_SECS, "abort_transaction")


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
    """The producers of a process's next transactions, each made ahead: after the commit of the one before, in a thread.

    Safe for threads. Another process that begins a part's id meanwhile fences a producer that waits here, or is fenced
    by one that is being made: either finds it out by its first request, and begins again by the mark.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead: dict[tuple[Any, ...], Future[PartProducer]] = {}

    @contextmanager
    def of(self, way: Way, part: int, *, anew: bool = False, keep: bool = True) -> Iterator[PartProducer]:
        """A producer for one transaction of one part; it is closed after that, and after an error.

        Args:
            anew: not one that was made ahead: its mark is read now.
            keep: this process publishes the part's next transaction, too, perhaps.
        """
        one = self._made(way.identity(part), anew) or PartProducer(way, part)
        try:
            yield one
        except BaseException:
            one.end()
            raise
        if not keep or not self._go_on(way, part, one):
            one.end()

    def _made(self, identity: tuple[Any, ...], anew: bool) -> PartProducer | None:
        """The one that was made ahead, if it could be; waits for one that is being made: it would fence another."""
        with self._lock:
            future = self._ahead.pop(identity, None)
        if future is None or future.exception() is not None:
            return None
        one = future.result()
        if anew:
            one.end()
            return None
        return one

    def _go_on(self, way: Way, part: int, one: PartProducer) -> bool:
        """Has the next producer made, or keeps one that has begun nothing; False: there are enough."""
        future: Future[PartProducer] = Future()
        with self._lock:
            if len(self._ahead) >= _AHEAD_MAX or way.identity(part) in self._ahead:
                return False
            self._ahead[way.identity(part)] = future
        if not one.is_used:
            future.set_result(one)
            return True

        def make() -> None:
            try:
                future.set_result(PartProducer(way, part, one.readers))
            except BaseException as error:  # the next transaction makes its own, and says why it cannot
                future.set_exception(error)
            one.end(readers=False)

        try:
            threading.Thread(target=make, name="trident-kafka-ahead", daemon=True).start()
        except RuntimeError as error:  # the interpreter ends
            future.set_exception(error)
            one.end()
        return True

    def let_go(self, owner: tuple[str, str]) -> None:
        """Closes the producers that were made ahead for a state, and waits for that, for some seconds at most."""
        deadline = time.monotonic() + _STOP_SECS
        with self._lock:
            found = [self._ahead.pop(one) for one in list(self._ahead) if one[0] == owner]
        ending: list[threading.Thread] = []
        for future in found:
            future.add_done_callback(lambda made: ending.extend([] if made.exception() else made.result().end()))
        wait(found, max(0.0, deadline - time.monotonic()))
        for thread in list(ending):
            thread.join(max(0.0, deadline - time.monotonic()))
