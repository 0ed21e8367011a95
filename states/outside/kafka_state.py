"""A state outside of the warehouse: a topic of Kafka, written by transactions of Kafka that hold rows and mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

import pyarrow as pa

from trident.coordinators.errors import EnvironmentProblem, SchemaMismatch, StateAway, TopologyError, described
from trident.kafka.client import KAFKA_OF_ALL, Connection, KafkaSettings, Watched, check_topic, kafka_module, timed_out
from trident.states.core.addresses import is_this_host
from trident.states.core.names import check_name
from trident.states.outside.kafka_producer import (
    MESSAGE_TIMEOUT,
    OPEN_MS,
    OPEN_TIMEOUT,
    QUERY_SECS,
    Fenced,
    PartProducer,
    PartProducers,
    Stored,
    TopicRoute,
)
from trident.states.outside.port import OutsideMark, OutsidePart, OutsideRows, OutsideState
from trident.states.outside.row_formats import Message, MessageForm

_USER = "a KafkaState"
# The settings that the state itself decides, so that no message is lost or there twice.
_OURS = {
    "transactional.id": "there is one for each part; it has the topology and the state in it",
    "enable.idempotence": "a transactional producer is idempotent",
    "acks": "all replicas in sync acknowledge",
    "request.required.acks": "all replicas in sync acknowledge",
    "queuing.strategy": "messages are sent in their order",
    "group.id": "give it as group=",
    "isolation.level": "marks are read as committed",
    "enable.auto.commit": "the marks are committed with the rows",
    "delivery.timeout.ms": "give it as message.timeout.ms",
    "delivery.report.only.error": "failures alone are inspected",
}
# The client takes no others.
_LEAST_MS, _MOST_MS = {OPEN_TIMEOUT: 1_000, MESSAGE_TIMEOUT: 1}, 2**31 - 1
_PRODUCERS = PartProducers()


@dataclass(frozen=True, repr=False)
class KafkaState(OutsideState):
    """Rows as messages of a Kafka topic, each once for readers with ``isolation.level=read_committed``.

    ``stream.partition_persist(KafkaState("kafka-1:9092", "totals", key="item"), "item, pieces", Upsert("item"))``

    Each part of a transaction is one short transaction of Kafka, which holds its messages and its mark: the offset of
    a group that is the state's own. It begins when the rows are decided and durable, and is open only while
    they are sent; a second try finds the mark and sends nothing.

    Messages of a key go to one partition of the topic, as Java's clients choose it, and come in the order of the
    transactions; within a transaction in the order of the stream, if ``stream.partition_by(key)`` has brought the key's
    rows together. With ``Upsert`` there is one message per key and transaction, a tombstone where the key is deleted.

    The topic must be there. Needs the client on each machine that writes: ``pip install 'trident-spark[kafka]'``.

    Args:
        bootstrap: ``host:port,host:port``.
        topic: its name.
        key: the field that is the message's key, or several. Binary and text go as they are, other types as JSON,
            several as a JSON object. None: messages without keys.
        value: the field that is the message's value, in the same way; null is a tombstone. None: a JSON object of all
            fields, but for the headers, as ``KafkaSpout(value="json")`` reads it.
        headers: a field that is ``array<struct<key: string, value: binary>>``, as a KafkaSpout has it; a value may be
            text.
        name: the state's; by default the topic's, with ``_`` for what a state's name cannot have.
        partitions: as of every OutsideState: transactions of Kafka per transaction; at most as many as the topic has.
        adopt: as of every OutsideState.
        topic_partitions: how many partitions the topic must have. None: as many as when it was first written. With
            keys a topic that has grown is refused until its new number is given here: its keys are placed anew.
        group: keeps the marks of this state, and of no other. None: ``trident/TOPOLOGY/NAME``. The transactional id of
            part i is ``GROUP/TOPOLOGY/NAME/i``, or ``trident/TOPOLOGY/NAME/i``.
        config: settings of librdkafka, such as ``{"compression.type": "zstd"}``; in no text or stored record.
        secrets: further settings by where they are kept: ``{"sasl.password": "env:KAFKA_PASSWORD"}`` or
            ``"file:/run/secrets/kafka"``; read in the driver, and sent to the tasks.

    Raises:
        TopologyError: an argument cannot be used.
    """

    bootstrap: str
    topic: str
    key: Union[str, Sequence[str], None] = None
    value: str | None = None
    headers: str | None = None
    name: str = ""
    partitions: int = 1
    adopt: bool = False
    topic_partitions: int | None = None
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)
    secrets: Mapping[str, str] = field(default_factory=dict, compare=False)
    _connection: Connection | None = field(default=None, init=False, compare=False)

    takes_upserts: ClassVar[bool] = True
    calls_user: ClassVar[bool] = False
    forgets_marks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        KafkaSettings(self.bootstrap, self.config, self.secrets, _USER, _OURS)
        for name, given in (
            ("topic", self.topic),
            ("value", self.value),
            ("headers", self.headers),
            ("group", self.group),
        ):
            if (given is not None or name == "topic") and not (isinstance(given, str) and given):
                raise TopologyError(f"{name} of {_USER} cannot be used", found=described(given), expected="a name")
        check_topic(self.topic, f"topic of {_USER}")
        keys = () if self.key is None else (self.key,) if isinstance(self.key, str) else self.key
        if not isinstance(keys, Sequence) or not all(isinstance(one, str) and one for one in keys):
            raise TopologyError(f"key of {_USER} cannot be used", found=described(self.key), expected="fields")
        for name, number in (("partitions", self.partitions), ("topic_partitions", self.topic_partitions)):
            if (number is not None or name == "partitions") and not (type(number) is int and number > 0):
                raise TopologyError(f"{name} of {_USER} cannot be used", found=described(number), expected="1 or more")
        _check_timeouts(self.config)
        object.__setattr__(self, "key", tuple(keys))
        object.__setattr__(self, "name", check_name("state", self.name or re.sub("[^A-Za-z0-9]+", "_", self.topic)))

    def __repr__(self) -> str:
        return f"KafkaState({self.bootstrap!r}, {self.topic!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Goes to tasks with its secrets, which only the driver can read; it is stored nowhere."""
        return {**self.__dict__, "config": {}, "secrets": {}, "_connection": self._connected()}

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A loopback address names other brokers on each host of a cluster."""
        brokers = KafkaSettings(self.bootstrap, None, None, _USER).brokers
        return KAFKA_OF_ALL if any(is_this_host(f"kafka://{broker}") for broker in brokers) else False

    def check_rows(self, rows: OutsideRows) -> None:
        self._form.check(rows, self._what)

    def check_together(self, others: Sequence[OutsideState]) -> None:
        for other in others:
            if isinstance(other, KafkaState) and self.group is not None and other.group == self.group:
                raise TopologyError(
                    f"{other._what} and {self._what} have one group for their marks",
                    found=f"group={self.group!r}",
                    expected="a group for each state, or none: then each has its own",
                )

    def check_store(self, rows: OutsideRows) -> None:
        """Looks whether the topic is there, has the partitions that it should have, and may be written.

        Raises:
            StateAway: the brokers do not answer.
            EnvironmentProblem, SchemaMismatch, TridentError: it cannot be written as it should be.
        """
        route = self._route(rows.topology)
        with route.consumer() as consumer:
            count = route.count(consumer)
            marks = route.marks(consumer, range(count))
        if self.partitions > count:
            raise SchemaMismatch(
                f"{self._what} has more parts than its topic has partitions",
                found=self.partitions,
                expected=f"at most {count}",
            )
        self._check_count(count, {one.topic_partitions for one in marks.values()})
        self._check_rights(route)

    def take_over(self, topology: str, incarnation: str, epoch: int) -> Mapping[int, OutsideMark]:
        """Fences the producers of all parts, and puts a mark of this coordinator into each, also where none is."""
        route = self._route(topology)
        with route.consumer() as consumer:
            stored = route.marks(consumer, range(route.count(consumer)))
        marks = {}
        for part in sorted({*range(self.partitions), *stored}):
            try:
                with _PRODUCERS.of(route, part, anew=True) as producer:
                    marks[part] = self._taken(producer, incarnation, epoch)
            except Fenced as error:
                raise StateAway(f"{self._what} is being taken over by another process, too", found=str(error)) from None
        return marks

    def _taken(self, producer: PartProducer, incarnation: str, epoch: int) -> OutsideMark:
        before, count = producer.stored, producer.count()
        mark = (
            before.mark.taken_over(incarnation, epoch, self.adopt) if before else OutsideMark(incarnation, epoch, 0, 0)
        )
        ours = (mark.incarnation, mark.epoch) == (incarnation, epoch)  # else a later coordinator's stays
        stored = Stored(producer.owner, mark, count, before.ends if before else ())
        if ours and before != stored:
            producer.write(stored, iter(()), False)
        return mark

    def renew(self, topology: str, incarnation: str, epoch: int) -> None:
        route = self._route(topology)
        with route.consumer() as consumer:
            parts = sorted(route.marks(consumer, range(route.count(consumer))))
        for part in parts:
            # Anew: a task may have written the part since this process has, so that what it knows of it is old.
            with _PRODUCERS.of(route, part, anew=True, keep=self._connection is None) as producer:
                stored = producer.stored
                if stored is not None and (stored.mark.incarnation, stored.mark.epoch) == (incarnation, epoch):
                    producer.write(stored, iter(()), False)

    def publish(self, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> None:
        route, rows = self._route(part.topology), _Counted(self._form.messages(batches, part.upserts, self._what))
        # A task's process may not be asked for this part again: a producer that it kept would only be fenced.
        keep = self._connection is None
        try:
            with _PRODUCERS.of(route, part.number, keep=keep) as producer:
                self._publish(producer, part, rows)
                return
        except Fenced as error:
            fenced = error
        # Who did it: a later coordinator, which has left its mark, or another process that publishes this transaction?
        with _PRODUCERS.of(route, part.number, anew=True, keep=keep) as producer:
            stored = producer.stored
            if part.mark.is_new(stored.mark if stored else None, self._what) and rows.taken:
                raise StateAway(f"{self._what} was interrupted, and begins again", found=str(fenced))
            try:
                self._publish(producer, part, rows)
            except Fenced as error:
                raise StateAway(f"{self._what} was interrupted by another producer", found=str(error)) from None

    def let_go(self, topology: str) -> None:
        _PRODUCERS.let_go(self._route(topology).owner)

    def _publish(self, producer: PartProducer, part: OutsidePart, rows: "_Counted") -> None:
        """Raises Fenced, and has put nothing, if another producer of this part has begun."""
        stored = producer.stored
        new = part.mark.is_new(stored.mark if stored else None, self._what)
        if not new and stored is not None and stored.mark == part.mark:
            return
        count = producer.count()
        self._check_count(count, {stored.topic_partitions} if stored else set())
        if new and part.known is not None:
            producer.check_known(part, count)
        mark = Stored(producer.owner, part.mark, count, stored.ends if stored else ())
        producer.write(mark, rows if new else iter(()), bool(self.key))

    # --- parts

    @property
    def _what(self) -> str:
        return f"state {self.name} (topic {self.topic!r})"

    @property
    def _form(self) -> MessageForm:
        return MessageForm(tuple(self.key or ()), self.value, self.headers)

    def _connected(self) -> Connection:
        return self._connection or KafkaSettings(self.bootstrap, self.config, self.secrets, _USER, _OURS).connection()

    def _route(self, topology: str) -> TopicRoute:
        group = self.group or f"trident/{topology}/{self.name}"
        ids = f"{self.group or 'trident'}/{topology}/{self.name}"
        return TopicRoute(self._connected(), self.topic, group, ids, (topology, self.name), self._what)

    def _check_count(self, count: int, before: set[int]) -> None:
        """Raises SchemaMismatch if a key's messages would come into another partition than before."""
        wanted = self.topic_partitions
        if wanted is not None and count != wanted:
            raise SchemaMismatch(f"the topic of {self._what} has other partitions", found=count, expected=wanted)
        others = before - {count}
        if self.key and wanted is None and others:
            raise SchemaMismatch(
                f"the topic of {self._what} has other partitions than when it was written, by which keys are placed",
                found=count,
                expected=min(others),
                action=f"if readers bear that, give topic_partitions={count}",
            )

    def _check_rights(self, route: TopicRoute) -> None:
        """Raises EnvironmentProblem if the cluster says that its user may not write to the topic."""
        kafka, module = kafka_module(), kafka_module("confluent_kafka.admin")
        with route.asking(f"ask for the rights on topic {self.topic!r}"):
            client = Watched(module.AdminClient({"log_level": 0, **route.connection.config}))
            requested = kafka.TopicCollection([self.topic])
            futures = client.describe_topics(requested, include_authorized_operations=True, request_timeout=QUERY_SECS)
            try:
                found = futures[self.topic].result(2 * QUERY_SECS).authorized_operations
            except FutureTimeout:
                raise timed_out("no answer of the client") from None
            finally:
                client.end()
        lacking = [right for right in ("WRITE", "READ", "DESCRIBE") if module.AclOperation[right] not in (found or ())]
        if found and lacking:
            raise EnvironmentProblem(
                f"{self._what} may not be written",
                found=f"no right to {', '.join(lacking)}",
                expected="WRITE, DESCRIBE, and READ for the marks",
            )


def _check_timeouts(config: Mapping[str, Any]) -> None:
    """Raises TopologyError where a message may wait for longer than its transaction may be open."""
    found = {}
    for name in (OPEN_TIMEOUT, MESSAGE_TIMEOUT):
        if name in config:
            try:
                found[name] = int(config[name])
            except ValueError:
                found[name] = -1
            if not _LEAST_MS[name] <= found[name] <= _MOST_MS:
                raise TopologyError(
                    f"{name} in config= of {_USER} cannot be used",
                    found=described(config[name]),
                    expected=f"a whole number of milliseconds from {_LEAST_MS[name]:,} to {_MOST_MS:,}",
                )
    if found.get(MESSAGE_TIMEOUT, 0) > found.get(OPEN_TIMEOUT, OPEN_MS):
        raise TopologyError(
            f"{MESSAGE_TIMEOUT} of {_USER} is longer than {OPEN_TIMEOUT}, after which Kafka ends a transaction",
            found=f"{found[MESSAGE_TIMEOUT]:,}",
            expected=f"at most {found.get(OPEN_TIMEOUT, OPEN_MS):,}",
            action=f"raise {OPEN_TIMEOUT}, or leave {MESSAGE_TIMEOUT} out",
        )


class _Counted:
    """Messages, and whether one has been taken."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages, self.taken = messages, False

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> Message:
        self.taken = True
        return next(self._messages)
