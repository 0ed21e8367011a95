"""Decides which offsets are in each batch: looks at the cluster, and cuts ranges."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from trident.coordinators.errors import BrokersAway, LogCut, SourceError, TopicGone
from trident.spouts.contracts import Backlog, Json
from trident.spouts.kafka.cluster import GroupCommits, KafkaCluster, Starts
from trident.spouts.kafka.ranges import (
    At,
    Batch,
    TopicRanges,
    TopicState,
    all_partitions,
    cut,
    ends_of,
    follow,
    new_partitions,
    shrunk,
    waiting,
)
from trident.spouts.ranged import AdaptiveBatchSize, RangedCoordinator

log = logging.getLogger(__name__)


class KafkaPlan(Protocol):
    """The part of a KafkaSpout that says how its topics are cut into batches."""

    topics: tuple[str, ...]
    pattern: str | None
    forget: tuple[str, ...]
    lossy: bool
    min_rows: int
    max_rows: int
    poll_interval_secs: float

    def selects(self, topic: str) -> bool:
        """Tells whether the stream reads the topic."""


class KafkaCoordinator(RangedCoordinator[Batch]):
    """Looks where the partitions end and decides where each batch ends. Metadata: as :class:`Batch`.

    Args:
        what: the source, for messages.
        in_flight: batches that may be active at once.
        commits: gets the offsets of batches that are durable; None: no group wants them.
    """

    waits_for_source = True
    pause_per_poll = 10  # brokers that answer slowly, or for many partitions, are asked less often

    def __init__(
        self,
        spout: KafkaPlan,
        cluster: KafkaCluster,
        starts: Starts,
        what: str,
        in_flight: int,
        commits: GroupCommits | None,
    ) -> None:
        super().__init__(AdaptiveBatchSize(spout.min_rows, spout.max_rows, in_flight), spout.poll_interval_secs)
        self._spout, self._cluster, self._starts, self._what = spout, cluster, starts, what
        self._commits = commits
        self._unsettled: set[int] = set()  # begun here, and not known yet to be durable
        self._lost: dict[At, int] = {}  # where logs were seen to end before what was read, if the spout takes that
        self._logged: dict[At, int] = {}  # the ends of such logs that the log of this process has
        self._seen: Sequence[TopicState] | None = None  # by the newest poll; None: there was none yet, or it has failed
        self._must_know = False  # asked for by refresh(): "nothing waits" is an answer of all partitions

    @property
    def start_is_fixed(self) -> bool:
        return self._starts.is_fixed

    # --- looks --------------------------------------------------------------------------------

    def resume(self, txid: int, metadata: Json) -> None:
        """Called, if at all, before the first question: the greatest txid that has metadata."""
        super().resume(txid, metadata)
        # It begins again before any later one, unless it is durable.
        self._unsettled.clear()

    def refresh(self) -> None:
        """The next question is answered from a new poll of the cluster, however recent the last one was.

        That nothing waits is said then only once the leaders of all partitions have answered.
        """
        self._must_know = True
        super().refresh()

    def poll(self) -> None:
        try:
            self._seen = self._cluster.describe_topics(self._spout.topics, self._spout.pattern)
        except SourceError:
            self._seen = None
            raise

    def waits(self, empty: Batch) -> bool:
        """Tells whether messages wait.

        Raises:
            BrokersAway: none does so far, and a leader of which an answer is required has given none.
        """
        topic_states = self._seen or ()
        with self._lock:
            if self._waiting(empty, topic_states) > 0:
                return True
        self._require_all(topic_states)
        return False

    def _require_all(self, topic_states: Sequence[TopicState]) -> None:
        """Raises BrokersAway where all there is was asked for, and a leader has not said where its partition ends."""
        if not self._must_know:
            return
        away = [At(one.topic, number) for one in topic_states for number, end in enumerate(one.ends) if end is None]
        if away:
            raise BrokersAway(
                f"{self._what} cannot tell whether messages wait in {', '.join(map(str, away[:5]))}",
                found=f"no answer of the leaders of {len(away)} partitions",
                action="it is queried again, for as long as it takes",
            )
        self._must_know = False

    def start(self) -> Batch:
        """Raises SourceError where a topic that is named is not there, or the stream cannot begin as it is to."""
        topic_states = self._seen or ()
        wrong = self._wrong(Batch(), topic_states)
        if wrong is not None:
            raise wrong
        return follow(Batch(), topic_states, self._starts.first(all_partitions(topic_states)))

    def after(self, before: Batch) -> Batch:
        return follow(before.without(self._spout.forget), [], {})

    def _waiting(self, known: Batch, topic_states: Sequence[TopicState]) -> int:
        """Offsets that wait behind a batch; at least 1 where something is wrong, which the transaction's begin says."""
        ends = ends_of(topic_states)
        self._note_lost(known, ends)
        new = sum(ends[at] for at in new_partitions(known, topic_states))
        return waiting(known, ends) + new + len(self._lost) + (self._wrong(known, topic_states) is not None)

    def backlog(self) -> Backlog:
        """Offsets that wait; not known where a leader is away, or until a batch says where a new partition begins.

        It asks the cluster itself: while as many transactions are in flight as may be, is_ready is not called.

        Raises:
            SourceError: the cluster cannot be asked.
        """
        if self._asking.acquire(blocking=False):  # else another thread is asking, and there will be an answer soon
            try:
                self._poll()
            finally:
                self._asking.release()
        after, topic_states = self._last() or self._fresh, self._seen
        if topic_states is None or after is None:
            return Backlog()
        known = self.after(after)
        if any(end is None for one in topic_states for end in one.ends) or new_partitions(known, topic_states):
            return Backlog()
        return Backlog(rows=waiting(known, ends_of(topic_states)))

    # --- planning -----------------------------------------------------------------------------

    def read(self, metadata: Json) -> Batch:
        return Batch.read(metadata)

    def stored(self, planned: Batch) -> Json:
        return planned.to_json()

    def cut(self, empty: Batch, txid: int) -> Batch:
        """Cuts a batch.

        Raises:
            TopicGone, LogCut: a topic is gone or is another one; it has lost messages at its end.
            SourceError: a topic that is named is not there.
        """
        topic_states = self._seen or ()
        wrong = self._wrong(empty, topic_states)
        if wrong is not None:
            raise wrong
        later, ends = self._later(new_partitions(empty, topic_states)), ends_of(topic_states)
        with self._lock:
            self._note_lost(empty, ends)
        begin = follow(self._moved_back(empty), topic_states, later)
        planned = cut(begin, ends, self.next_size(waiting(begin, ends)), txid)
        self._lost.clear()
        return planned

    def _later(self, new: Sequence[At]) -> dict[At, int]:
        try:
            return self._starts.later(new) if new else {}
        except BrokersAway as error:
            log.info("new partitions of %s come later: %s", self._what, error)
            return {}

    def size(self, planned: Batch) -> int:
        return planned.rows_estimate

    def shrunk(self, found: Batch, size: int, txid: int) -> Batch:
        return shrunk(found, size, txid)

    def _wrong(self, before: Batch, topic_states: Sequence[TopicState]) -> SourceError | None:
        """The error of what is not as the stream has left it."""
        found = {one.topic: one for one in topic_states}
        known_topics = {one.topic for one in before.topics}
        missing = sorted(set(self._spout.topics) - found.keys() - known_topics)
        if missing:
            return SourceError(
                f"{self._what} cannot read topic {missing[0]!r}",
                found="no such topic in the cluster, or no right to see it",
                expected="the topics that it names",
                action="create it; it is looked for again",
            )
        for known in before.topics:
            if not self._spout.selects(known.topic):
                continue
            now = found.get(known.topic)
            if now is None or now.id != known.id:
                return topic_is_another(self._what, known, None if now is None else now.id)
            if len(now.ends) < len(known.end):
                return TopicGone(
                    f"{self._what}: topic {known.topic!r} has fewer partitions than it had",
                    found=f"{len(now.ends)}",
                    expected=f"{len(known.end)}",
                )
            for number, end in enumerate(known.end):
                newest = now.ends[number]
                if newest is not None and newest < end and not self._spout.lossy:
                    return LogCut(
                        f"{self._what}: the log of {At(known.topic, number)} has lost messages that were read, as "
                        "after an unclean election of a leader",
                        found=f"its end at offset {newest}",
                        expected=f"offset {end} or a later one",
                        action="new messages get offsets that were read already, so continuing would leave some out: "
                        "begin again with `trident reset NAME`, or read the topic by an OpaqueKafkaSpout, which "
                        "continues from its end",
                    )
        return None

    def _note_lost(self, known: Batch, ends: Mapping[At, int]) -> None:
        """Notes where logs end before the stream has got to: a spout that takes losses goes on there.

        It does so also where the log has grown beyond that until the next batch is cut. While a batch with offsets
        of the partition is in flight it does not: that batch may yet read what grows there, and it would come twice.
        """
        for at, end in known.ends.items():
            now = ends.get(at, end)
            if now >= end or not self._spout.lossy:
                continue
            if not self._is_settled(at):
                if self._logged.get(at) != now:
                    log.warning("%s: the log of %s ends at %d, before offset %d of a batch", self._what, at, now, end)
                self._logged[at] = now
                continue
            self._lost[at] = min(now, self._lost.get(at, now))

    def _is_settled(self, at: At) -> bool:
        """Tells whether all batches with offsets of a partition are durable, so that none reads it any more."""
        live = [self._planned[txid] for txid in self._unsettled if txid in self._planned]
        return not any(one.at == at for batch in live for one in batch.ranges)

    def _moved_back(self, before: Batch) -> Batch:
        """The batch before, as though it had ended where logs were seen to end since."""
        topics = []
        for one in before.topics:
            to = [min(end, self._lost.get(At(one.topic, number), end)) for number, end in enumerate(one.end)]
            if to != list(one.end):
                log.warning(
                    "%s: logs of topic %s end before what was read; it continues from %s", self._what, one.topic, to
                )
            topics.append(TopicRanges(one.topic, one.id, to, to))
        return Batch(tuple(topics))

    def _remember(self, txid: int, planned: Batch) -> None:
        problem = planned.problem()
        if problem is not None:  # stored, it could not be read again
            raise SourceError(f"{self._what} cannot cut transaction {txid}", found=problem)
        with self._lock:
            super()._remember(txid, planned)
            self._unsettled.add(txid)

    def success(self, txid: int) -> None:
        super().success(txid)
        with self._lock:
            self._unsettled = {one for one in self._unsettled if one > txid}
            planned = self._planned.get(txid)
        if planned is not None and self._commits is not None:
            self._commits.commit(txid, planned.ends)

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._cluster.close()


def topic_is_another(what: str, known: TopicRanges, found: str | None) -> TopicGone:
    """The error for a topic that was deleted, or deleted and made again."""
    return TopicGone(
        f"{what}: topic {known.topic!r} "
        + ("was deleted" if found is None else "is another one: it was deleted and made again"),
        found="no such topic" if found is None else f"topic id {found}",
        expected=f"topic id {known.id}",
        action="messages may be lost that were not read. To continue, with a topic of that name that there is now from "
        f"its first message on: forget=[{known.id!r}]; to begin again: `trident reset NAME`",
    )
