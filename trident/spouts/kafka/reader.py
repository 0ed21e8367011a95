"""Reads ranges of offsets into Arrow: in Spark's Python workers, and few of them in the driver; workers import it.

A range ends where a message at or behind its end arrives, or where the broker says that the log ends there or later:
compaction, control records and aborted transactions leave holes. A log that ends before, or no longer has the
beginning, is an error, never fewer rows.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from trident.coordinators.errors import EnvironmentProblem, LogCut, MessagesExpired
from trident.kafka.client import Connection, Watched, error_text, kafka_module
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.decoding import Decoder
from trident.spouts.kafka.ranges import At, OffsetRange
from trident.spouts.kafka.rows import Rows

# As long as a partition's log is asked for more at its end: behind the last message there may be holes.
_FETCH_WAIT_MS = 20
# Read ahead: what comes behind a range is thrown away.
_AHEAD_MESSAGES, _AHEAD_KB = 20_000, 16 << 10
# How long the client fetches nothing once so much is there: by default a second, in which a fast reader stands still.
_QUEUE_BACKOFF_MS = 10
SOCKET_TIMEOUT_MS = 30_000


def consumer_of(connection: Connection, group: str, isolation: str, problems: list[str]) -> Watched:
    """A consumer that is told which offsets to read, and neither commits nor moves by itself.

    Args:
        group: its name towards the cluster's rights; it joins no group.
        problems: gets the latest problem of the connection, as text.
    """
    settings = {
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "queued.min.messages": _AHEAD_MESSAGES,
        "queued.max.messages.kbytes": _AHEAD_KB,
        "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
        "reconnect.backoff.max.ms": 2_000,
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "group.id": group,
        "check.crcs": True,
        "log_level": 0,
        **connection.config,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "error_cb": lambda error: problems.__setitem__(slice(None), [connection.clean(error.str())]),
    }
    return Watched(kafka_module().Consumer(settings))


class Clients(NamedTuple):
    """How a range is read by other clients.

    Attributes:
        make: a consumer that reads nothing yet.
        what: the source, for messages.
        patience_secs: without an answer for so long the read fails.
    """

    make: Callable[[], Watched]
    what: str
    patience_secs: float


def is_damaged(code: int) -> bool:
    """Tells whether an error says that a record batch, which the broker has sent, cannot be read.

    Its checksum is another one, it cannot be decompressed, or its codec or format is not known.
    """
    errors = kafka_module().KafkaError
    return code in (errors._BAD_MSG, errors._BAD_COMPRESSION, errors._NOT_IMPLEMENTED)


def end_of_damage(clients: Clients, wanted: OffsetRange, base: int, check: Callable[[], None]) -> int:
    """The first offset of a range after the record batch at offset ``base``, which cannot be read.

    The client does not say where it ends. So other clients read from one offset after the other, each halving what is
    left: other ones, since a client goes on anywhere after such an error. If the first can read the range's first
    offset, that is returned: the network had damaged the record batch.

    Args:
        check: called again and again; raises if the messages are not wanted any more.

    Raises:
        SourceFailure: no broker answers.
    """
    low, middle, high = wanted.begin - 1, wanted.begin, wanted.end
    while high - low > 1:
        if _is_in_damage(clients, wanted._replace(begin=middle), base, check):
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return high


def _is_in_damage(clients: Clients, at: OffsetRange, base: int, check: Callable[[], None]) -> bool:
    """Tells whether what comes first at an offset is the error of the record batch at ``base``."""
    client = clients.make()
    deadline = time.monotonic() + clients.patience_secs
    try:
        client.watched(_QUERY_SECS, "assign", [kafka_module().TopicPartition(at.topic, at.partition, at.begin)])
        while time.monotonic() < deadline:
            check()
            message = client.poll(_POLL_SECS)
            if message is not None and message.topic() is not None:
                error = message.error()
                return error is not None and is_damaged(error.code()) and message.offset() == base
    finally:
        client.end()
    raise SourceFailure(
        f"{clients.what} cannot be read, at {at.at} from offset {at.begin} on",
        found=f"no answer for {clients.patience_secs:g} s",
        expected="the leader of the partition",
        action="the batch is tried again; it waits for the brokers",
    )


log = logging.getLogger(__name__)

# One Arrow batch has about so much; and a message may be as large as it is.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 << 20
_CHUNK = 2_000
_POLL_SECS = 0.25
# After an election the new leader may not yet know that messages are replicated: its log seems to end earlier.
_SETTLE_SECS = 5.0
# How long a leader has to say where its log begins and ends.
_QUERY_SECS = 10.0


@dataclass(frozen=True)
class Reading:
    """How ranges are read; it travels to the tasks.

    Attributes:
        group: the consumer's name towards the cluster.
        columns: those of COLUMNS that are made, in this order.
        lossy: read what is left of a range of which messages are gone.
        patience_secs: without an answer of the brokers for so long the read fails.
        what: the source, for messages.
        decoder, letters: as Rows has them.
    """

    connection: Connection
    group: str
    isolation: str
    columns: tuple[str, ...]
    lossy: bool
    patience_secs: float
    what: str
    decoder: Decoder | None = None
    letters: bool = False


class Stopped(Exception):
    """The rows are wanted no more."""


def read_groups(
    reading: Reading, groups: Sequence[Sequence[OffsetRange]] | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function of a mapInArrow over tasks: the messages of each task's ranges.

    Args:
        groups: the ranges of each task, when rows have a task's number; None: they have the pickled ranges.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield from CONSUMERS.read(reading, pickle.loads(task) if groups is None else groups[task])


class Consumers:
    """The idle consumers of a process: connecting takes longer than reading a small batch. Safe for threads."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[Any, ...], Watched, list[str]]] = []
        self._closed = False

    def read(
        self, reading: Reading, ranges: Sequence[OffsetRange], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[pa.RecordBatch]:
        """The messages of some ranges, of each partition in the order of its offsets.

        Raises:
            SourceFailure: they cannot be read; or not all of them are there.
            Stopped: as ``stopped`` says.
        """
        names = (
            reading.group,
            reading.isolation,
            *sorted((key, str(value)) for key, value in reading.connection.config.items()),
        )
        consumer, problems = self._take(names, reading)
        try:
            yield from _Read(reading, consumer, problems, ranges, stopped).batches()
            consumer.watched(_QUERY_SECS, "unassign")
        except BaseException:  # a generator that is closed early, too
            consumer.end()
            raise
        with self._lock:
            self._idle.append((names, consumer, problems))
            kept = 0 if self._closed else self._most
            over = self._idle[: len(self._idle) - kept] if len(self._idle) > kept else []
            del self._idle[: len(over)]
        for _, old, _ in over:
            old.end()

    def _take(self, names: tuple[Any, ...], reading: Reading) -> tuple[Watched, list[str]]:
        with self._lock:
            for number, (key, consumer, problems) in enumerate(self._idle):
                if key == names:
                    del self._idle[number]
                    problems.clear()
                    return consumer, problems
        problems = []
        try:
            return consumer_of(reading.connection, reading.group, reading.isolation, problems), problems
        except EnvironmentProblem:
            raise
        except Exception as error:  # the client's, for a setting that it does not take
            raise SourceFailure(
                f"{reading.what} cannot be read: the Kafka client refuses its settings",
                found=error_text(reading.connection, error),
                expected="settings of librdkafka in config=",
            ) from None

    def close(self) -> None:
        """Closes them; those that read close when they have read."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, consumer, _ in idle:
            consumer.end()


CONSUMERS = Consumers()


class _Early(NamedTuple):
    """A log that ended before a range did: at which offset, seen first when; answered last, or asked again, when."""

    offset: int
    first: float
    last: float
    asked: bool = False


class _Read:
    """One read of some ranges by one consumer."""

    def __init__(
        self,
        reading: Reading,
        consumer: Watched,
        problems: list[str],
        ranges: Sequence[OffsetRange],
        stopped: Callable[[], bool],
    ) -> None:
        self._reading, self._consumer, self._problems, self._stopped = reading, consumer, problems, stopped
        self._open = {one.at: one for one in ranges}
        self._early: dict[At, _Early] = {}
        self._kafka = kafka_module()
        assert len(self._open) == len(ranges), "a partition is there twice"

    def batches(self) -> Iterator[pa.RecordBatch]:
        reading = self._reading
        rows = Rows(reading.columns, reading.decoder, reading.letters, reading.what)
        partition = self._kafka.TopicPartition
        self._move("assign", [partition(one.topic, one.partition, one.begin) for one in self._open.values()])
        heard = time.monotonic()
        while self._open:
            self._check_wanted()
            first = self._consumer.poll(_POLL_SECS if not self._early else 0.05)
            if first is None:
                self._wait(heard)
                continue
            self._take([first, *self._consumer.consume(_CHUNK, 0)], rows)
            if rows.count >= _BATCH_ROWS or rows.bytes >= _BATCH_BYTES:
                yield rows.taken()
            heard = time.monotonic()
        if rows.count:
            yield rows.taken()

    def _check_wanted(self) -> None:
        if self._stopped():
            raise Stopped

    def _wait(self, heard: float) -> None:
        """Nothing came for a moment."""
        now = time.monotonic()
        for at, early in list(self._early.items()):
            if now - early.last >= (SOCKET_TIMEOUT_MS / 1_000 if early.asked else _SETTLE_SECS / 20):
                self._early[at] = early._replace(last=now, asked=True)
                self._go_to(at, early.offset)  # asks the broker again
        if now - heard > self._reading.patience_secs:
            raise SourceFailure(
                f"{self._reading.what} cannot be read: no broker has sent anything of "
                f"{', '.join(f'{one.at} from offset {one.begin} on' for one in list(self._open.values())[:5])} for "
                f"{self._reading.patience_secs:g} s",
                found=self._problems[0] if self._problems else "no answer",
                expected="the leaders of its partitions, and the right to read them",
                action="the batch is tried again; it waits for the brokers",
            )

    def _take(self, messages: list[Any], rows: Rows) -> None:
        by_partition: dict[tuple[str, int], list[Any]] = {}
        passed: set[At] = set()  # their further messages come again, from another offset on
        for message in messages:
            if passed and message.topic() is not None and At(message.topic(), message.partition()) in passed:
                continue
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)
            else:  # after the messages before it
                for key, some in by_partition.items():
                    self._add(At(*key), some, rows)
                by_partition = {}
                if self._is_passed(message, rows):
                    passed.add(At(message.topic(), message.partition()))
                else:
                    self._event(message)
        for key, some in by_partition.items():
            self._add(At(*key), some, rows)

    def _add(self, at: At, messages: list[Any], rows: Rows) -> None:
        wanted = self._open.get(at)
        if wanted is None:
            return  # read ahead
        offsets = [message.offset() for message in messages]
        first, last = bisect_left(offsets, wanted.begin), bisect_left(offsets, wanted.end)
        if first < last:
            rows.add(at, messages[first:last], offsets[first:last])
            self._early.pop(at, None)
            # Read on behind it, also where the log is cut below it and grows anew: no offset comes twice.
            self._open[at] = wanted._replace(begin=offsets[last - 1] + 1)
        if offsets[-1] >= wanted.end - 1:
            self._end(at)

    def _event(self, message: Any) -> None:
        error = message.error()
        at = At(message.topic(), message.partition()) if message.topic() is not None else None
        wanted = self._open.get(at) if at is not None else None
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            if wanted is None or at is None:
                return
            if message.offset() >= wanted.end:
                self._end(at)
                return
            now, known = time.monotonic(), self._early.get(at)
            first = now if known is None or known.offset != message.offset() else known.first
            self._early[at] = _Early(message.offset(), first, now)
            if now - first >= _SETTLE_SECS and self._is_confirmed(at, message.offset()):
                self._ends_early(at, message.offset())
            return
        if error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET and at is not None:
            if wanted is not None:
                self._out_of_range(at, wanted)
            return
        if error.code() == self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # of a question that the client asks of itself: the group is used for nothing
        if error.retriable() or error.code() in (
            self._kafka.KafkaError._TRANSPORT,
            self._kafka.KafkaError._ALL_BROKERS_DOWN,
        ):
            self._problems[:] = [self._reading.connection.clean(error.str())]
            return
        if at is None or wanted is not None:
            place = f", at {at} from offset {wanted.begin} on" if wanted is not None else ""
            raise SourceFailure(
                f"{self._reading.what} cannot be read{place}",
                found=self._reading.connection.clean(f"{error.name()}: {error.str()}"),
                action="the batch is tried again up to max_attempts",
            )

    def _is_passed(self, message: Any, rows: Rows) -> bool:
        """Makes one row of the offsets of a record batch that cannot be read, and reads on after them."""
        error, base = message.error(), message.offset()
        if not is_damaged(error.code()) or message.topic() is None or base is None:
            return False
        at = At(message.topic(), message.partition())
        wanted = self._open.get(at)
        if wanted is None:
            return True  # read ahead
        if base < wanted.end:
            reading = self._reading
            make = partial(consumer_of, reading.connection, reading.group, reading.isolation, [])
            others = Clients(make, reading.what, reading.patience_secs)
            begin = end_of_damage(others, wanted, base, self._check_wanted)
            if begin == wanted.begin:
                return False
            reason = self._reading.connection.clean(f"{error.name()}: {error.str()}")
            rows.add_unreadable(at, max(base, wanted.begin), begin, reason)
            if begin < wanted.end:
                self._open[at] = wanted._replace(begin=begin)
                self._go_to(at, begin)
                return True
        self._end(at)
        return True

    def _out_of_range(self, at: At, wanted: OffsetRange) -> None:
        """The log has no message at the offset that was asked for, and none behind it that would do."""
        try:
            low, high = self._watermarks(at)
        except self._kafka.KafkaException as error:
            raise SourceFailure(
                f"{self._reading.what} cannot be read, at {at}: it is not known which messages there are",
                found=error_text(self._reading.connection, error),
                expected="an answer of its leader",
                action="the batch is tried again up to max_attempts",
            ) from None
        if low <= wanted.begin <= high:  # the client asked for another one, as it does after a damaged record batch
            self._go_to(at, wanted.begin)
            return
        if self._reading.lossy:
            begin = max(low, wanted.begin)
            log.warning(
                "%s: messages of %s from offset %d on are gone: found %d … %d",
                self._reading.what,
                at,
                wanted.begin,
                low,
                high,
            )
            if begin >= wanted.end or begin > high:
                self._end(at)
            else:
                self._open[at] = wanted._replace(begin=begin)
                self._go_to(at, begin)
            return
        expired = low > wanted.begin
        raise SourceFailure(
            f"{self._reading.what}: messages of {at} that belong to this batch are gone: "
            + (
                "they have expired" if expired else "its log ends before them, as after an unclean election of a leader"
            ),
            found=f"offsets {low} … {high}",
            expected=f"offsets {wanted.begin} … {wanted.end}",
            action=_GONE,
            error=(MessagesExpired if expired else LogCut).__name__,
        )

    def _is_confirmed(self, at: At, offset: int) -> bool:
        """Asks the leader, which gives no end of its log while it may not yet know where that is."""
        try:
            _, high = self._watermarks(at)
        except self._kafka.KafkaException as error:
            self._problems[:] = [error_text(self._reading.connection, error)]
            return False
        return bool(0 <= high <= offset)

    def _ends_early(self, at: At, offset: int) -> None:
        wanted = self._open[at]
        del self._early[at]
        if self._reading.lossy:
            log.warning("%s: the log of %s ends at %d, before %d", self._reading.what, at, offset, wanted.end)
            self._end(at)
            return
        raise SourceFailure(
            f"{self._reading.what}: messages of {at} that belong to this batch are gone: its log ends before them, as "
            "after an unclean election of a leader",
            found=f"its end at offset {offset}",
            expected=f"offsets {wanted.begin} … {wanted.end}",
            action=_GONE,
            error=LogCut.__name__,
        )

    def _go_to(self, at: At, offset: int) -> None:
        """Reads a partition on from an offset, also one whose last fetch has failed: a seek refuses that."""
        partition = self._kafka.TopicPartition(at.topic, at.partition, offset)
        self._move("incremental_unassign", [partition])
        self._move("incremental_assign", [partition])

    def _move(self, method: str, partitions: list[Any]) -> None:
        """Says which partitions are read: the client is asked in its own thread, without a time-out of its own."""
        try:
            self._consumer.watched(_QUERY_SECS, method, partitions)
        except self._kafka.KafkaException as error:
            raise SourceFailure(
                f"{self._reading.what} cannot be read: its client does not take partitions",
                found=error_text(self._reading.connection, error),
                action="the batch is tried again up to max_attempts, by another client",
            ) from None

    def _watermarks(self, at: At) -> tuple[int, int]:
        found: tuple[int, int] = self._consumer.within(
            _QUERY_SECS, "get_watermark_offsets", self._kafka.TopicPartition(*at), cached=False
        )
        return found

    def _end(self, at: At) -> None:
        del self._open[at]
        self._early.pop(at, None)
        if self._open:
            self._move("incremental_unassign", [self._kafka.TopicPartition(*at)])


_GONE = (
    "bring the messages back, or give the batch up with `trident skip`; an OpaqueKafkaSpout reads what is left. Keep "
    "messages for longer (retention.ms), and elect no leader uncleanly (unclean.leader.election.enable)"
)
