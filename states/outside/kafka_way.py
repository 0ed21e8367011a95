"""The way to a topic that a state writes: its clients, their errors, and the marks of parts: offsets of a group."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trident.coordinators.errors import EnvironmentProblem, StateAway, TridentError
from trident.kafka.answers import error_text, is_away, is_fenced, settings_refused
from trident.kafka.settings import Connection, kafka_module
from trident.kafka.watched import Watched
from trident.states.outside.port import OutsideMark

ASK_SECS = 10.0
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
class Way:
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
                found = client.within(ASK_SECS, "list_topics", self.topic).topics[self.topic]
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
            asked = [kafka.TopicPartition(self.topic, number, kafka.OFFSET_END) for number in range(count)]
            found = consumer.within(ASK_SECS, "offsets_for_times", asked)
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
            asked = [kafka.TopicPartition(self.topic, part) for part in parts]
            found = self._committed(consumer, asked)
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

    def _committed(self, consumer: Watched, asked: list[Any]) -> list[Any]:
        """Waits for the group's coordinator: a cluster chooses one when it is first asked for it, or has elected."""
        kafka, deadline = kafka_module(), time.monotonic() + ASK_SECS
        while True:
            try:
                return list(consumer.within(ASK_SECS, "committed", asked))
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

    def __init__(self, way: Way) -> None:
        self._way = way

    @cached_property
    def stable(self) -> Watched:
        """Waits for a transaction that is not yet decided."""
        return self._way.reader(stable=True)

    @cached_property
    def at_once(self) -> Watched:
        """Waits for no open transaction: other parts of the same transaction may have theirs."""
        return self._way.reader()

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
