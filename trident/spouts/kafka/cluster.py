"""The driver's view of a Kafka cluster: its topics with their ids, where their partitions begin and end."""

from __future__ import annotations

import concurrent.futures
import datetime
import logging
import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Union

from trident.coordinators.errors import BrokersAway, SourceError, TopologyError, TridentError, described
from trident.kafka.client import Connection, Watched, error_text, is_away, kafka_module, settings_refused, timed_out
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.contracts import is_whole
from trident.spouts.kafka.ranges import At, Batch, TopicRanges, TopicState

log = logging.getLogger(__name__)

REQUEST_SECS = 5.0
# The id that the client shows for a broker that knows no ids: sixteen bytes of zeros.
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
# The offset that a leader gives for a time behind its last message.
NO_MESSAGE = -1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class KafkaCluster:
    """Asks a cluster. Safe for threads.

    Args:
        isolation: ends are those for readers of this isolation.
        what: the source, for messages.
    """

    def __init__(self, connection: Connection, isolation: str, what: str) -> None:
        self._connection, self._isolation, self._what = connection, isolation, what
        self._kafka, self._module = kafka_module(), kafka_module("confluent_kafka.admin")
        self._lock = threading.Lock()
        self._client: Watched | None = None
        self._problems: list[str] = []

    # --- questions ----------------------------------------------------------------------------

    def describe_topics(self, topics: Sequence[str], pattern: str | None) -> list[TopicState]:
        """The topics that are there now, of those named or of all whose whole name fits the pattern.

        Raises:
            BrokersAway: no broker answers.
            SourceError: the cluster refuses.
        """
        if pattern is not None:
            names = [name for name in self._names() if re.fullmatch(pattern, name) and not name.startswith("__")]
        else:
            names = list(topics)
        found = {one.name: one for one in self._described(names)}
        ats = [At(name, number) for name in found for number in range(len(found[name].partitions))]
        ends = self._offsets(ats, self._module.OffsetSpec.latest())
        return [
            TopicState(name, str(one.topic_id), [ends.get(At(name, number)) for number in range(len(one.partitions))])
            for name, one in found.items()
        ]

    def ids(self, topics: Iterable[str], led: Iterable[At] = ()) -> dict[str, str]:
        """Topic → its id now, of those that are there.

        Args:
            led: partitions that must have a leader.

        Raises:
            BrokersAway: no broker answers, or a leader is away.
            SourceError: the cluster refuses.
        """
        found = {one.name: one for one in self._described(sorted(set(topics)))}
        away = [at for at in led if at.topic in found and not _is_led(found[at.topic], at.partition)]
        if away:
            raise BrokersAway(f"{self._what} waits: {_listed(away)} without a leader")
        return {name: str(one.topic_id) for name, one in found.items()}

    def begins(self, ats: Sequence[At]) -> dict[At, int]:
        """The first offset that there is, of partitions whose leader is there."""
        return self._offsets(ats, self._module.OffsetSpec.earliest())

    def ends(self, ats: Sequence[At]) -> dict[At, int]:
        """Where partitions end now, of those whose leader is there."""
        return self._offsets(ats, self._module.OffsetSpec.latest())

    def at_time(self, ats: Sequence[At], milliseconds: int) -> dict[At, int]:
        """The offset of the first message from that time on; -1 where the leader says that there is none."""
        return self._offsets(ats, self._module.OffsetSpec.for_timestamp(milliseconds), least=NO_MESSAGE)

    def committed(self, group: str, ats: Sequence[At]) -> dict[At, int]:
        """The offsets that a group has committed, without the partitions of which it has committed none.

        Raises:
            BrokersAway: no broker answers, or a transaction that commits some of them is not yet decided.
            SourceError: the cluster refuses.
        """
        requested = self._kafka.ConsumerGroupTopicPartitions(group, [self._kafka.TopicPartition(*at) for at in ats])
        futures = self._admin().list_consumer_group_offsets(
            [requested], require_stable=True, request_timeout=REQUEST_SECS
        )
        what = f"the committed offsets of group {group!r}"
        found = self._result(next(iter(futures.values())), what)
        for one in found.topic_partitions:
            if one.error is not None:
                raise self._problem(self._kafka.KafkaException(one.error), what)
        return {At(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}

    def commit(self, group: str, offsets: Mapping[At, int]) -> None:
        """Stores offsets under a group's name.

        Raises:
            SourceError: the cluster refuses, or does not answer.
        """
        partitions = [self._kafka.TopicPartition(*at, offset) for at, offset in offsets.items()]
        requested = self._kafka.ConsumerGroupTopicPartitions(group, partitions)
        futures = self._admin().alter_consumer_group_offsets([requested], request_timeout=REQUEST_SECS)
        found = self._result(next(iter(futures.values())), f"the offsets of group {group!r}")
        refused = next((one for one in found.topic_partitions if one.error is not None), None)
        if refused is not None:
            raise SourceError(
                f"the offsets of group {group!r} cannot be committed", found=self._connection.clean(str(refused.error))
            )

    def close(self) -> None:
        """Lets go of the client, whose threads end; it is connected anew if it is asked again."""
        with self._lock:
            held, self._client = [self._client], None
        # In a thread: its own threads are waited for, but not for ever. Another call that uses it goes on.
        closing = threading.Thread(target=held.clear, name="trident-kafka-close", daemon=True)
        closing.start()
        closing.join(REQUEST_SECS)

    # --- requests -----------------------------------------------------------------------------

    def _admin(self) -> Watched:
        with self._lock:
            if self._client is None or self._client.has_hung:
                settings = {
                    "reconnect.backoff.max.ms": 2_000,
                    "log_level": 0,
                    **self._connection.config,
                    "error_cb": lambda error: self._problems.__setitem__(
                        slice(None), [self._connection.clean(error.str())]
                    ),
                }
                try:
                    self._client = Watched(self._module.AdminClient(settings))
                except Exception as error:  # the client's, for a setting that it does not take
                    raise settings_refused(self._connection, self._what, error) from None
            self._client.poll(0)  # calls error_cb
            return self._client

    def _names(self) -> list[str]:
        try:
            return sorted(self._admin().watched(REQUEST_SECS, "list_topics", timeout=REQUEST_SECS).topics)
        except self._kafka.KafkaException as error:
            raise self._problem(error, "its topics") from None

    def _described(self, names: Sequence[str]) -> list[Any]:
        """Those of the topics that are there."""
        if not names:
            return []
        collection = self._kafka.TopicCollection(list(names))
        futures = self._admin().describe_topics(collection, request_timeout=REQUEST_SECS)
        found = []
        for name, future in futures.items():
            try:
                found.append(self._answer(future))
            except self._kafka.KafkaException as error:
                if error.args[0].code() != self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._problem(error, f"topic {name!r}") from None
        for one in found:
            if str(one.topic_id) == NO_ID:
                raise SourceError(
                    f"{self._what} cannot tell topic {one.name!r} from one that is made again under its name",
                    found="brokers that give topics no ids",
                    expected="Kafka 2.8 or a later one; where it is upgraded, on all brokers",
                )
        return found

    def _offsets(self, ats: Sequence[At], spec: Any, least: int = 0) -> dict[At, int]:
        """One request for all; without the partitions whose leader is away, unless all of them are.

        Args:
            least: lower numbers are no answer: the client puts them where a leader has not answered in time.
        """
        if not ats:
            return {}
        level = self._kafka.IsolationLevel[self._isolation.upper()]
        requested = {self._kafka.TopicPartition(*at): spec for at in ats}
        futures = self._admin().list_offsets(requested, isolation_level=level, request_timeout=REQUEST_SECS)
        found: dict[At, int] = {}
        problem: SourceError | None = None
        for one, future in futures.items():
            at = At(one.topic, one.partition)
            try:
                offset = self._answer(future).offset
                if offset >= least:
                    found[at] = offset
                else:
                    problem = self._silent(at)
            except self._kafka.KafkaException as error:
                problem = self._problem(error, f"the offsets of {at}")
                if not isinstance(problem, BrokersAway):
                    raise problem from None
        if problem is not None and not found:
            raise problem
        return found

    def _answer(self, future: Any) -> Any:
        """Raises KafkaException, also where the client itself has not answered in time."""
        try:
            return future.result(2 * REQUEST_SECS)
        except concurrent.futures.TimeoutError:
            with self._lock:
                if self._client is not None:
                    self._client.has_hung = True  # the next request has another client
            raise timed_out("no answer of the client") from None

    def _result(self, future: Any, what: str) -> Any:
        try:
            return self._answer(future)
        except self._kafka.KafkaException as error:
            raise self._problem(error, what) from None

    def _silent(self, at: At) -> SourceError:
        return BrokersAway(
            f"{self._what} cannot ask the cluster for the offsets of {at}",
            found="no answer of its leader" + (f" ({self._problems[0]})" if self._problems else ""),
            action="it is queried again, for as long as it takes",
        )

    def _problem(self, error: Any, what: str) -> SourceError:
        inner = error.args[0]
        text = error_text(self._connection, error)
        away = is_away(inner)
        said = f" ({self._problems[0]})" if self._problems else ""
        return (BrokersAway if away else SourceError)(
            f"{self._what} cannot ask the cluster for {what}",
            found=f"{inner.name()}: {text}{said}",
            expected=f"brokers that answer at {self._connection.config['bootstrap.servers']}",
            action="it is queried again, for as long as it takes" if away else None,
        )


def _is_led(topic: Any, partition: int) -> bool:
    leader = topic.partitions[partition].leader if partition < len(topic.partitions) else None
    return leader is not None and leader.id >= 0


def _listed(ats: Sequence[At]) -> str:
    return ", ".join(map(str, ats[:5])) + (f" and {len(ats) - 5} others" if len(ats) > 5 else "")


# Of transactions that succeed within this time only the last one's offsets are committed.
_PAUSE_SECS = 0.2
_CLOSE_SECS = 5.0


class GroupCommits:
    """Commits the offsets of the newest durable transaction, on a thread of its own.

    A commit that fails is logged once for each kind of failure, and the next one is tried.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self._changed = threading.Condition()
        self._newest: tuple[int, Mapping[At, int]] = (0, {})
        self._done = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failed = ""

    def commit(self, txid: int, offsets: Mapping[At, int]) -> None:
        """The transaction is durable: its offsets are committed soon. Returns at once."""
        with self._changed:
            if txid <= self._newest[0] or self._closing or not offsets:
                return
            self._newest = (txid, offsets)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trident-kafka-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Commits what is not yet; waits for at most some seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._done < self._newest[0])
                (txid, offsets), closing = self._newest, self._closing
            if self._done < txid:
                self._commit(offsets)
                self._done = txid
            if closing:
                return
            time.sleep(_PAUSE_SECS)

    def _commit(self, offsets: Mapping[At, int]) -> None:
        try:
            self._cluster.commit(self._group, offsets)
            self._failed = ""
        except TridentError as error:
            if error.message != self._failed:
                log.warning(
                    "offsets are not committed to group %s, which nothing here depends on: %s", self._group, error
                )
            self._failed = error.message


# Where a stream begins in a topic: earliest, latest, at a time, at given offsets, or where a group had got to.


EARLIEST, LATEST = "earliest", "latest"
Offsets = Mapping[str, Mapping[int, int]]
Start = Union[str, datetime.datetime, Offsets]


def check_start(start: Any, user: str, topics: Collection[str] = ()) -> None:
    """Raises TopologyError where a stream cannot begin so.

    Args:
        topics: those that it names; none: it reads those of a pattern.
    """
    if isinstance(start, str) and start in (EARLIEST, LATEST):
        return
    if isinstance(start, datetime.datetime) and start.tzinfo is not None:
        return
    if isinstance(start, Mapping) and all(isinstance(topic, str) and _are_offsets(one) for topic, one in start.items()):
        others = [topic for topic in start if topics and topic not in topics]
        if others:
            raise TopologyError(
                f"start of {user} has offsets of topic {others[0]!r}, which it does not read",
                found=", ".join(start),
                expected=", ".join(topics),
            )
        return
    raise TopologyError(
        f"start of {user} cannot be used",
        found=described(start),
        expected='"earliest", "latest", a datetime with a time zone, or {"topic": {0: offset, 1: offset, …}}',
    )


def _are_offsets(value: Any) -> bool:
    return isinstance(value, Mapping) and all(is_whole(part, 0) and is_whole(at, 0) for part, at in value.items())


class Starts:
    """Finds the offsets at which partitions begin that a stream has not read yet.

    Args:
        group: whose committed offsets go before ``start``; None: none.
        what: the source, for messages.
    """

    def __init__(self, cluster: KafkaCluster, start: Start, group: str | None, what: str) -> None:
        self._cluster, self._start, self._group, self._what = cluster, start, group, what

    @property
    def is_fixed(self) -> bool:
        """Tells whether the stream would begin at the same offsets if it were asked later."""
        return self._group is None and (self._start == EARLIEST or isinstance(self._start, Mapping))

    def later(self, ats: Sequence[At]) -> dict[At, int]:
        """Partitions that appeared while the stream ran are read from their first message on."""
        return self._cluster.begins(ats)

    def first(self, ats: Sequence[At]) -> dict[At, int]:
        """The offsets of a stream that has read nothing yet; all partitions are there, or none.

        Args:
            ats: every partition that the topics have: one that is left out now would begin at its first message later.

        Raises:
            SourceError: a partition has no such offset, or it is not known, since a leader does not answer.
        """
        lows = self._cluster.begins(ats)
        highs = self._cluster.ends(ats)
        self._check_known([at for at in ats if at in lows and at in highs], ats)
        committed = {} if self._group is None else self._cluster.committed(self._group, ats)
        rest = [at for at in ats if at not in committed]
        found = {**self._wanted(rest, lows, highs), **committed}
        for at, offset in found.items():
            if not lows[at] <= offset <= highs[at]:
                raise SourceError(
                    f"{self._what} cannot begin at offset {offset} of {at}"
                    + (f", which group {self._group!r} has committed" if at in committed else ""),
                    found=f"offsets {lows[at]} … {highs[at]}",
                    expected="an offset that is still there",
                    action='give the offsets to begin at: start={"topic": {partition: offset}}',
                )
        return found

    def _check_known(self, known: Collection[At], ats: Sequence[At]) -> None:
        away = [at for at in ats if at not in known]
        if away:
            raise SourceError(
                f"{self._what} cannot begin: it is not known where {away[0]} begins",
                found="no answer of its leader",
                expected="a leader of each partition when a stream starts for the first time",
                action="it is queried again, for as long as it takes",
            )

    def _wanted(self, ats: Sequence[At], lows: Mapping[At, int], highs: Mapping[At, int]) -> dict[At, int]:
        start = self._start
        if not ats:
            return {}
        if start == EARLIEST:
            return {at: lows[at] for at in ats}
        if start == LATEST:
            return {at: highs[at] for at in ats}
        if isinstance(start, datetime.datetime):
            # The next whole millisecond: none that is before the start.
            found = self._cluster.at_time(ats, -((_EPOCH - start) // datetime.timedelta(milliseconds=1)))
            self._check_known(found, ats)
            # A partition without a message from then on begins where it ends.
            return {at: highs[at] if found[at] == NO_MESSAGE else found[at] for at in ats}
        assert isinstance(start, Mapping)
        missing = [at for at in ats if at.partition not in start.get(at.topic, {})]
        if missing:
            raise SourceError(
                f"{self._what} does not hear where {missing[0]} begins",
                found=f"start= without {', '.join(map(str, missing[:10]))}",
                expected="an offset for each partition that is there",
            )
        return {at: start[at.topic][at.partition] for at in ats}


def batch_after(source: SourceOffset, cluster: KafkaCluster, what: str) -> Batch:
    """The empty batch at the source's offsets.

    Partitions that the source does not know yet are read from their first message on, as Spark would.

    Raises:
        SourceError: a topic is gone, or its messages from there on are; or the source read some partitions only.
    """
    offsets = {topic: _offsets(source, topic, what) for topic in sorted(source.value)}
    topic_states = {one.topic: one for one in cluster.describe_topics(list(offsets), None)}
    missing = [
        topic
        for topic, ends in offsets.items()
        if topic not in topic_states or len(topic_states[topic].ends) < len(ends)
    ]
    if missing:
        raise SourceError(
            f"{what} cannot continue with topic {missing[0]!r}",
            found="no such topic, or fewer partitions",
            expected=f"the {len(offsets[missing[0]])} partitions that the checkpoint has read",
        )
    ats = {At(topic, number): offset for topic, ends in offsets.items() for number, offset in enumerate(ends)}
    lows, highs = cluster.begins(list(ats)), cluster.ends(list(ats))
    for at, offset in ats.items():
        if at not in lows or at not in highs:
            raise SourceError(f"{what} cannot inspect {at}", found="no answer of its leader", action="try it again")
        if not lows[at] <= offset <= highs[at]:
            raise SourceError(
                f"{what} cannot continue at offset {offset} of {at}",
                found=f"offsets {lows[at]} … {highs[at]}",
                expected="the message after the last one that the checkpoint has read",
                action="the messages have expired, or the topic was made again; or the query read messages of open "
                'transactions: isolation="read_uncommitted"',
            )
    return Batch(tuple(TopicRanges(topic, topic_states[topic].id, ends, ends) for topic, ends in offsets.items()))


def _offsets(source: SourceOffset, topic: str, what: str) -> tuple[int, ...]:
    found = source.value[topic]
    numbers = [str(number) for number in range(len(found))]
    if set(found) != set(numbers) or not all(is_whole(offset, 0) for offset in found.values()):
        raise SourceError(
            f"{what} cannot continue with topic {topic!r}",
            found=f"{topic}: {dict(found)}",
            expected="an offset of each partition from 0 on, as a query has that subscribes to topics",
        )
    return tuple(found[number] for number in numbers)
