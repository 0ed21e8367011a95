"""The clients of a Kafka state: transactional producers, one for each part, and the marks of parts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from trident.coordinators.errors import EnvironmentProblem, StateAway, StateLostTransactions, TridentError
from trident.kafka.client import (
    WATCH_SECS,
    Connection,
    Watched,
    error_text,
    is_away,
    is_fenced,
    kafka_module,
    settings_refused,
    timed_out,
)
from trident.states.outside.port import OutsideMark, OutsidePart
from trident.states.outside.row_formats import Message

# The way to a topic that a state writes: its clients, their errors, and the marks of parts: offsets of a group.


QUERY_SECS = 10.0
# A message that is not acknowledged within this time ends the transaction, which is tried again from its beginning.
_MESSAGE_MS = 20_000
MESSAGE_TIMEOUT, OPEN_TIMEOUT = "message.timeout.ms", "transaction.timeout.ms"
# The client connects to its second broker (the one that a bootstrap address has named) half of this time after the
# first, 11 ms at least: a producer that is made for each transaction waits for that. Doubled at each failure.
_QUICKLY = {"reconnect.backoff.ms": 20}
_RETRY_MS = 10
# The client's own default of transaction.timeout.ms.
OPEN_MS = 60_000
KNOWN_SECS = 0.3


class Fenced(TridentError):
    """Another producer with the same transactional id has begun, or the cluster has ended the transaction."""


@dataclass(frozen=True)
class Stored:
    """A part's mark as it is in the group's offsets.

    Attributes:
        owner: the topology and the state that wrote it.
        topic_partitions: how many the topic had when it was written: by them a key's partition was chosen.
        ends: of the topic's first partitions, behind the messages of the mark's transaction.
    """

    owner: tuple[str, str]
    mark: OutsideMark
    topic_partitions: int
    ends: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        mark = self.mark
        fields = [*self.owner, mark.incarnation, mark.epoch, mark.txid, mark.attempt_id, self.topic_partitions]
        return json.dumps([*fields, *self.ends], separators=(",", ":"))

    @classmethod
    def read(cls, text: str | None, what: str) -> "Stored":
        try:
            topology, state, incarnation, *numbers = json.loads(text or "")
            epoch, txid, attempt_id, topic_partitions, *ends = map(int, numbers)
        except (ValueError, TypeError):
            raise TridentError(
                f"{what} keeps offsets that are no marks of this framework",
                found=repr(text),
                action="give the state a group of its own: KafkaState(…, group=…)",
            ) from None
        return cls((topology, state), OutsideMark(incarnation, epoch, txid, attempt_id), topic_partitions, tuple(ends))


@dataclass(frozen=True)
class TopicRoute:
    """The way to the topic of one state of one topology.

    Attributes:
        group: keeps the marks, part i's as the offset of the topic's partition i.
        ids: part i's transactional id is ``ids/i``; no other state has it.
        owner: the topology and the state, as they are in the marks.
        what: the state, for messages.
    """

    connection: Connection
    topic: str
    group: str
    ids: str
    owner: tuple[str, str]
    what: str

    def identity(self, part: int) -> tuple[Any, ...]:
        """The same for producers that may stand for one another."""
        config = tuple(sorted((key, str(value)) for key, value in self.connection.config.items()))
        return (self.owner, part, self.topic, self.group, self.ids, config)

    @property
    def open_secs_max(self) -> float:
        """How long Kafka lets a transaction be open."""
        return int(self.connection.config.get(OPEN_TIMEOUT, OPEN_MS)) / 1000

    @property
    def message_secs_max(self) -> float:
        """After this time a message that is not acknowledged fails: the client wants at most the transaction's time."""
        return int(self.connection.config.get(MESSAGE_TIMEOUT, min(_MESSAGE_MS, self.open_secs_max * 1000))) / 1000

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turns the client's errors into those of an outside state.

        Raises:
            Fenced: another producer has the transactional id.
            StateAway: the cluster does not answer, or not in time.
            TridentError: it refuses.
        """
        kafka = kafka_module()
        try:
            yield
        except (kafka.KafkaException, SystemError) as raised:
            error = _of_client(raised)
            inner = error.args[0]
            text = f"{inner.name()}: {error_text(self.connection, error)}"
            if is_fenced(inner):
                raise Fenced(f"{self.what} cannot {what}: another producer has begun", found=text) from None
            if is_away(inner):
                brokers = self.connection.config["bootstrap.servers"]
                raise StateAway(
                    f"{self.what} cannot {what}: no answer of the brokers at {brokers}", found=text
                ) from None
            raise TridentError(
                f"{self.what} cannot {what}: Kafka refuses", found=text, action=_ADVICE.get(inner.name())
            ) from None

    # --- questions

    def count(self, client: Watched) -> int:
        """How many partitions the topic has.

        Raises:
            EnvironmentProblem: there is no such topic.
        """
        with self.asking(f"ask for topic {self.topic!r}"):
            for last in (False, True):  # a broker that has just started may not know it yet
                found = client.within(QUERY_SECS, "list_topics", self.topic).topics[self.topic]
                if found.error is None:
                    return len(found.partitions)
                if last or found.error.code() != kafka_module().KafkaError.UNKNOWN_TOPIC_OR_PART:
                    break
                time.sleep(KNOWN_SECS)
        if found.error.code() == kafka_module().KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise EnvironmentProblem(
                f"{self.what} writes to a topic that is not there",
                found=f"no topic {self.topic!r} at {self.connection.config['bootstrap.servers']}",
                action="make it, with as many partitions as it is to keep: the order of a key's messages needs that",
            )
        with self.asking(f"ask for topic {self.topic!r}"):
            raise kafka_module().KafkaException(found.error)

    @contextmanager
    def consumer(self, *, stable: bool = False) -> Iterator[Watched]:
        """A :meth:`reader` that is closed in the end."""
        consumer = self.reader(stable=stable)
        try:
            yield consumer
        finally:
            consumer.end()

    def reader(self, *, stable: bool = False) -> Watched:
        """A consumer that joins no group and reads no message: it asks for topics and for marks.

        Args:
            stable: a mark of a transaction that is not yet decided is waited for; else the one before it is told.
        """
        settings = {
            **self.connection.config,
            "group.id": self.group,
            # By read_committed the client asks for offsets with require_stable.
            "isolation.level": "read_committed" if stable else "read_uncommitted",
            "enable.auto.commit": False,
        }
        return self._client(kafka_module().Consumer, settings)

    def ends(self, consumer: Watched, count: int) -> tuple[int, ...]:
        """Where the topic's first ``count`` partitions end, with messages that are not yet decided.

        Args:
            consumer: one that is not ``stable``.
        """
        kafka = kafka_module()
        with self.asking(f"ask where topic {self.topic!r} ends"):
            requested = [kafka.TopicPartition(self.topic, number, kafka.OFFSET_END) for number in range(count)]
            found = consumer.within(QUERY_SECS, "offsets_for_times", requested)
            for one in found:
                if one.error is not None:
                    raise kafka.KafkaException(one.error)
        return tuple(one.offset for one in sorted(found, key=lambda one: one.partition))

    def marks(self, consumer: Watched, parts: Iterable[int]) -> dict[int, Stored]:
        """The marks of those of the parts that have one.

        Raises:
            TridentError: another state keeps its marks there: they say nothing of what this one has written.
        """
        kafka = kafka_module()
        with self.asking(f"read its marks in group {self.group!r}"):
            requested = [kafka.TopicPartition(self.topic, part) for part in parts]
            found = self._committed(consumer, requested)
            for one in found:
                if one.error is not None:
                    raise kafka.KafkaException(one.error)
        where = f"group {self.group!r} of {self.what}"
        marks = {one.partition: Stored.read(one.metadata, where) for one in found if one.offset >= 0}
        for stored in marks.values():
            if stored.owner != self.owner:
                topology, state = stored.owner
                raise TridentError(
                    f"{where} keeps the marks of another state",
                    found=f"state {state} of topology {topology}",
                    expected=f"state {self.owner[1]} of topology {self.owner[0]}",
                    action="give each state a group of its own: KafkaState(…, group=…)",
                )
        return marks

    def _committed(self, consumer: Watched, requested: list[Any]) -> list[Any]:
        """Waits for the group's coordinator: a cluster chooses one when it is first asked for it, or has elected."""
        kafka, deadline = kafka_module(), time.monotonic() + QUERY_SECS
        while True:
            try:
                return list(consumer.within(QUERY_SECS, "committed", requested))
            except kafka.KafkaException as error:
                moves = (kafka.KafkaError.NOT_COORDINATOR, kafka.KafkaError.COORDINATOR_NOT_AVAILABLE)
                if error.args[0].code() not in moves or time.monotonic() > deadline:
                    raise
                time.sleep(KNOWN_SECS)

    def producer(self, part: int, on_delivery: Any) -> Watched:
        settings = {
            # The partition of a key as Java's clients choose it.
            "partitioner": "murmur2_random",
            MESSAGE_TIMEOUT: int(self.message_secs_max * 1000),
            # The cluster ends a transaction behind its commit: the next one that comes sooner is to ask again.
            "retry.backoff.ms": _RETRY_MS,
            **self.connection.config,
            "transactional.id": f"{self.ids}/{part}",
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
        }
        return self._client(kafka_module().Producer, settings)

    def _client(self, kind: Any, settings: dict[str, Any]) -> Watched:
        try:
            return Watched(kind({"log_level": 0, **_QUICKLY, **settings}))
        except Exception as error:  # the client's, for a setting that it does not take
            raise settings_refused(self.connection, self.what, error) from None


class Readers:
    """The consumers that a part's producers ask with, kept from one producer to the next.

    They write nothing, and an answer belongs to its question: nothing of theirs can come late.
    """

    def __init__(self, route: TopicRoute) -> None:
        self._route = route

    @cached_property
    def stable(self) -> Watched:
        """Waits for a transaction that is not yet decided."""
        return self._route.reader(stable=True)

    @cached_property
    def at_once(self) -> Watched:
        """Waits for no open transaction: other parts of the same transaction may have theirs."""
        return self._route.reader()

    @cached_property
    def group(self) -> Any:
        """The group of the marks, as a producer names it."""
        return self.stable.consumer_group_metadata()

    @property
    def opened(self) -> list[Watched]:
        """Those that are open."""
        return [self.__dict__[name] for name in ("stable", "at_once") if name in self.__dict__]


def _of_client(raised: BaseException) -> BaseException:
    """The client's error: Python makes a SystemError of one that it raises while it calls on_delivery."""
    error: BaseException | None = raised
    while error is not None and not isinstance(error, kafka_module().KafkaException):
        error = error.__cause__
    if error is None:
        raise raised
    return error


_ADVICE = {
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic and message.max.bytes in config=, or write less",
    "TOPIC_AUTHORIZATION_FAILED": "let its user WRITE and DESCRIBE the topic, and READ it, for the marks",
    "GROUP_AUTHORIZATION_FAILED": "let its user READ and DESCRIBE the group of the marks",
    "INVALID_TRANSACTION_TIMEOUT": "give a transaction.timeout.ms in config= that is at most the brokers' "
    "transaction.max.timeout.ms",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "let its user WRITE and DESCRIBE transactional ids GROUP/TOPOLOGY/NAME/…",
}


INIT_SECS, COMMIT_SECS = 20.0, 30.0
# Over the time in which each message is acknowledged or fails.
_FLUSH_SECS = 2.0
# Of one process: parts beyond these have their producers made in their turn.
_AHEAD_MAX = 16
# A stop waits for so long for producers that are being made; each call in their making has a time-out besides.
_STOP_SECS = 10.0
# As long a transaction that was committed a moment ago may be missing in the group's offsets, and messages at a
# leader that was just elected.
_LAG_SECS = 5.0
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

    def __init__(self, route: TopicRoute, part: int, readers: Readers | None = None) -> None:
        self._route, self._part, self.owner, self.is_used = route, part, route.owner, False
        self.readers = readers or Readers(route)
        failed: list[Any] = []
        self._failed = failed
        self._producer = route.producer(part, lambda error, _: failed.append(error))
        try:
            # The client asks for its coordinator when it begins, and again half a second later: a broker is to be
            # connected by then. The first answer may come from a bootstrap address, whose connection it then closes.
            for _ in range(2):
                self.count()
            with route.asking("begin its transactional id"):
                self._producer.within(INIT_SECS, "init_transactions")
            self.stored = route.marks(self.readers.stable, [part]).get(part)
        except BaseException:
            self.end()
            raise

    def end(self, readers: bool = True) -> list[threading.Thread]:
        """Closes it in threads, which it returns; with ``readers`` these, too."""
        clients = [self._producer, *(self.readers.opened if readers else [])]
        return [thread for client in clients if (thread := client.end())]

    def count(self) -> int:
        """How many partitions the topic has now."""
        return self._route.count(self._producer)

    def check_known(self, part: OutsidePart, count: int) -> None:
        """Looks whether the cluster still has the transaction before this one, its mark and its messages.

        Args:
            count: how many partitions the topic has.

        Raises:
            StateLostTransactions: it has lost transactions, also when it is asked again for some seconds.
            StaleEpoch: a later coordinator has written.
            StateAway: the cluster does not answer.
        """
        route, deadline = self._route, time.monotonic() + _LAG_SECS
        while True:
            marks = route.marks(self.readers.at_once, range(count))
            ends = route.ends(self.readers.at_once, min(count, _ENDS_MAX))
            own = marks.get(part.number)
            part.mark.is_new(own.mark if own else None, route.what)  # raises for marks of a later coordinator
            try:
                part.check_known([one.mark for one in marks.values()], route.what)
                _check_ends(part, marks.values(), ends, route.what)
                return
            except StateLostTransactions:
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
        route = self._route
        assert not self.is_used, "a producer is used for one transaction"
        self.is_used = True
        with route.asking("begin a transaction"):
            self._producer.watched(QUERY_SECS, "begin_transaction")
        began = time.monotonic()
        try:
            self.stored = self._write_open(stored, messages, ordered)
        except Fenced:
            if time.monotonic() - began < route.open_secs_max:
                raise
            raise Fenced(
                f"a transaction of {route.what} was open for longer than transaction.timeout.ms: Kafka has ended it",
                found=f"{time.monotonic() - began:.1f} s",
                expected=f"at most {route.open_secs_max:.1f} s",
                action="raise transaction.timeout.ms in config=, up to the brokers' transaction.max.timeout.ms; or "
                "partitions=; or give it smaller batches",
            ) from None

    def _write_open(self, stored: Stored, messages: Iterator[Message], ordered: bool) -> Stored:
        """Fills the transaction that has begun, and commits it, or aborts it; returns the mark as it was put."""
        route = self._route
        try:
            self._put_mark(stored)  # first of all: a producer that is fenced is told so before it sends a row
            sent = False
            for message in messages:
                self._produce(message)
                sent = True
            if sent:
                with route.asking("send messages"):
                    self._flush()
                ends = route.ends(self.readers.at_once, min(stored.topic_partitions, _ENDS_MAX))
                stored = replace(stored, ends=ends)
                self._put_mark(stored)
            if ordered and (now := self.count()) != stored.topic_partitions:
                raise TridentError(
                    f"the topic of {route.what} has other partitions", found=now, expected=stored.topic_partitions
                )
        except BaseException as error:
            # Requests that the brokers have not answered may be under way then, and the client ends the process where
            # one is answered after an abort (its assertion txn_req_cnt > 0): the next producer ends the transaction.
            if not isinstance(error, (StateAway, Fenced)):
                self._abort()
            raise
        with route.asking("commit a transaction"):
            self._producer.within(COMMIT_SECS, "commit_transaction")
        return stored

    def _put_mark(self, stored: Stored) -> None:
        at = kafka_module().TopicPartition(self._route.topic, self._part, stored.mark.txid, metadata=stored.text)
        with self._route.asking("put its mark"):
            self._producer.within(QUERY_SECS, "send_offsets_to_transaction", [at], self.readers.group)

    def _produce(self, message: Message) -> None:
        with self._route.asking("send a message"):
            deadline = time.monotonic() + self._route.message_secs_max + WATCH_SECS
            while True:
                try:
                    self._producer.produce(self._route.topic, message.value, message.key, headers=message.headers)
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
            if self._producer.within(self._route.message_secs_max + _FLUSH_SECS, "flush"):
                raise timed_out("messages are neither acknowledged nor failed")
        given_up = (kafka.KafkaError._PURGE_QUEUE, kafka.KafkaError._PURGE_INFLIGHT, kafka.KafkaError._FATAL)
        for error in self._failed:
            if error.code() not in given_up:
                raise kafka.KafkaException(error)

    def _abort(self) -> None:
        """Lets readers go on at once; if it fails, the next producer does it."""
        with suppress(kafka_module().KafkaException, SystemError):
            self._producer.within(QUERY_SECS, "abort_transaction")


def _check_ends(part: OutsidePart, marks: Iterable[Stored], ends: Sequence[int], what: str) -> None:
    """Raises StateLostTransactions if a partition ends before the messages of the transaction before this one."""
    last = part.known or (0, 0)
    known = [one.ends for one in marks if (one.mark.txid, one.mark.attempt_id) == last]
    for number, (now, *before) in enumerate(zip_longest(ends, *known, fillvalue=0)):
        if now < max(before, default=0):
            raise StateLostTransactions(
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
    def of(self, route: TopicRoute, part: int, *, anew: bool = False, keep: bool = True) -> Iterator[PartProducer]:
        """A producer for one transaction of one part; it is closed after that, and after an error.

        Args:
            anew: not one that was made ahead: its mark is read now.
            keep: this process publishes the part's next transaction, too, perhaps.
        """
        one = self._made(route.identity(part), anew) or PartProducer(route, part)
        try:
            yield one
        except BaseException:
            one.end()
            raise
        if not keep or not self._make_next(route, part, one):
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

    def _make_next(self, route: TopicRoute, part: int, one: PartProducer) -> bool:
        """Has the next producer made, or keeps one that has begun nothing; False: there are enough."""
        future: Future[PartProducer] = Future()
        with self._lock:
            if len(self._ahead) >= _AHEAD_MAX or route.identity(part) in self._ahead:
                return False
            self._ahead[route.identity(part)] = future
        if not one.is_used:
            future.set_result(one)
            return True

        def make() -> None:
            try:
                future.set_result(PartProducer(route, part, one.readers))
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
