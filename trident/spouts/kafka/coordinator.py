"""Decides which offsets are in each batch: looks at the cluster, and cuts ranges."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from trident.coordinators.errors import BrokersAway, LogCut, SourceError, TopicGone
from trident.spouts.batch_size import AdaptiveBatchSize
from trident.spouts.contracts import Backlog, BatchCoordinator, Json
from trident.spouts.kafka.cluster import KafkaCluster
from trident.spouts.kafka.group_commits import GroupCommits
from trident.spouts.kafka.looks import Looks
from trident.spouts.kafka.ranges import (
    At,
    Batch,
    TopicLook,
    TopicRanges,
    all_partitions,
    cut,
    ends_of,
    follow,
    new_partitions,
    shrunk,
    waiting,
)
from trident.spouts.kafka.starts import Starts

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


class KafkaCoordinator(BatchCoordinator):
    """Looks where the partitions end and decides where each batch ends. Metadata: as :class:`Batch`.

    Args:
        what: the source, for messages.
        in_flight: batches that may be active at once.
        commits: gets the offsets of batches that are durable; None: no group wants them.
    """

    def __init__(
        self,
        spout: KafkaPlan,
        cluster: KafkaCluster,
        starts: Starts,
        what: str,
        in_flight: int,
        commits: GroupCommits | None,
    ) -> None:
        self._spout, self._cluster, self._starts, self._what = spout, cluster, starts, what
        self._adaptive = AdaptiveBatchSize(spout.min_rows, spout.max_rows, in_flight)
        self._commits = commits
        self._planned: dict[int, Batch] = {}
        self._planned_at: dict[int, float] = {}
        self._unsettled: set[int] = set()  # begun here, and not told yet that they are durable
        self._lost: dict[At, int] = {}  # where logs were seen to end before what was read, if the spout takes that
        self._told: dict[At, int] = {}  # the ends of such logs that the log of this process has
        self._fresh: Batch | None = None  # where the stream begins, until its first batch is pinned
        self._looks = Looks(cluster, spout.topics, spout.pattern, spout.poll_interval_secs)
        self._must_know = False  # asked for by refresh(): "nothing waits" is an answer of all partitions
        # Held while brokers are asked, which may take seconds: by threads that cannot go on without the answer, and by
        # the one that measures the backlog, unless another asks already. A replay and an end need no answer: they take
        # _lock alone, which is held for no wait.
        self._asking = threading.RLock()
        self._lock = threading.RLock()  # the batches; taken behind _asking, never before it

    # --- looks --------------------------------------------------------------------------------

    def resume(self, txid: int, metadata: Json) -> None:
        """Told, if at all, before the first question: the greatest txid that has metadata."""
        self._remember(txid, Batch.read(metadata))
        # It begins again before any later one, unless it is durable.
        self._unsettled.clear()

    def refresh(self) -> None:
        """The next question is answered from a new look at the cluster, however recent the last one was.

        That nothing waits is said then only once the leaders of all partitions have answered.
        """
        self._must_know = True
        self._looks.ask_again()

    def is_ready(self, txid: int) -> bool:
        """Tells whether messages wait.

        Raises:
            SourceError: the cluster cannot be asked, or has not what belongs to the stream. It is asked again.
        """
        with self._asking:
            look = self._looks.newest()
            with self._lock:
                before, begins = self._planned.get(txid - 1), not self._planned
            if before is None:
                if not begins:
                    return True  # after a restart: the metadata of txid - 1 comes with initialize_transaction
                before = self._first()
                # Where the stream begins is written down at once, before it could be another place.
                if not self._starts.is_fixed:
                    return True
            with self._lock:
                if self._waiting(before, look) > 0:
                    return True
            self._require_all(look)
            return False

    def _require_all(self, look: Sequence[TopicLook]) -> None:
        """Raises BrokersAway where all there is was asked for, and a leader has not said where its partition ends."""
        if not self._must_know:
            return
        away = [At(one.topic, number) for one in look for number, end in enumerate(one.ends) if end is None]
        if away:
            raise BrokersAway(
                f"{self._what} cannot tell whether messages wait in {', '.join(map(str, away[:5]))}",
                found=f"no answer of the leaders of {len(away)} partitions",
                action="it is asked again, for as long as it takes",
            )
        self._must_know = False

    def _first(self) -> Batch:
        """The empty batch that everything begins after.

        Raises:
            SourceError: a topic that is named is not there, or the stream cannot begin as it is told to.
        """
        if self._fresh is None:
            look = self._looks.newest()
            wrong = self._wrong(Batch(), look)
            if wrong is not None:
                raise wrong
            self._fresh = follow(Batch(), look, self._starts.first(all_partitions(look)))
        return self._fresh

    def _waiting(self, after: Batch, look: Sequence[TopicLook]) -> int:
        """Offsets that wait behind a batch; at least 1 where something is wrong, which the transaction's begin says."""
        known, ends = after.without(self._spout.forget), ends_of(look)
        self._note_lost(known, ends)
        new = sum(ends[at] for at in new_partitions(known, look))
        return waiting(known, ends) + new + len(self._lost) + (self._wrong(known, look) is not None)

    def backlog(self) -> Backlog:
        """Offsets that wait; not known where a leader is away, or until a batch says where a new partition begins.

        It asks the cluster itself: while as many transactions are in flight as may be, is_ready is not called.

        Raises:
            SourceError: the cluster cannot be asked.
        """
        if self._asking.acquire(blocking=False):  # else another thread is asking, and there will be an answer soon
            try:
                self._looks.newest()
            finally:
                self._asking.release()
        with self._lock:
            after, look = self._planned[max(self._planned)] if self._planned else self._fresh, self._looks.seen
            if look is None or after is None:
                return Backlog()
            known = after.without(self._spout.forget)
            if any(end is None for one in look for end in one.ends) or new_partitions(known, look):
                return Backlog()
            return Backlog(rows=waiting(known, ends_of(look)))

    # --- planning -----------------------------------------------------------------------------

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """Cuts a batch.

        Raises:
            TopicGone, LogCut: a topic is gone or is another one; it has lost messages at its end.
            SourceError: a topic that is named is not there, or the stream cannot begin as it is told to.
        """
        if curr_metadata is not None:
            with self._lock:
                return self._remember(txid, Batch.read(curr_metadata))
        with self._asking:
            if prev_metadata is None:
                before = self._first()
            else:
                before = Batch.read(prev_metadata).without(self._spout.forget)
            begun_at = time.monotonic()
            try:
                look = self._looks.newest()
            except SourceError as error:
                # It answered when it was asked whether messages wait: the transaction takes none, rather than fail.
                log.info("transaction %d begins without messages of %s: %s", txid, self._what, error)
                with self._lock:
                    self._planned_at[txid] = begun_at
                    return self._remember(txid, follow(before, [], {}))
            wrong = self._wrong(before, look)
            if wrong is not None:
                raise wrong
            later = self._later(new_partitions(before, look))
            with self._lock:
                self._planned_at[txid] = begun_at
                ends = ends_of(look)
                self._note_lost(before, ends)
                empty = follow(self._moved_back(before), look, later)
                rows = self._adaptive.next_size(max(1, waiting(empty, ends)))
                begun = self._remember(txid, cut(empty, ends, rows, txid))
                self._lost.clear()
                return begun

    def _later(self, new: Sequence[At]) -> dict[At, int]:
        try:
            return self._starts.later(new) if new else {}
        except BrokersAway as error:
            log.info("new partitions of %s come later: %s", self._what, error)
            return {}

    def shrink_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """Half of the offsets of what timed out, but at least one."""
        with self._lock:
            found = Batch.read(curr_metadata)
            rows = self._adaptive.timed_out(max(1, found.rows_estimate))
            self._planned_at[txid] = time.monotonic()
            return self._remember(txid, shrunk(found, rows, txid))

    def _wrong(self, before: Batch, look: Sequence[TopicLook]) -> SourceError | None:
        """The error of what is not as the stream has left it."""
        found = {one.topic: one for one in look}
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
                        action="new messages get offsets that were read already, so going on would leave some out: "
                        "begin again with `trident reset NAME`, or read the topic by an OpaqueKafkaSpout, which goes "
                        "on from its end",
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
                if self._told.get(at) != now:
                    log.warning("%s: the log of %s ends at %d, before offset %d of a batch", self._what, at, now, end)
                self._told[at] = now
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
                    "%s: logs of topic %s end before what was read; it goes on from %s", self._what, one.topic, to
                )
            topics.append(TopicRanges(one.topic, one.id, to, to))
        return Batch(tuple(topics))

    def _remember(self, txid: int, planned: Batch) -> Json:
        problem = planned.problem()
        if problem is not None:  # stored, it could not be read again
            raise SourceError(f"{self._what} cannot cut transaction {txid}", found=problem)
        self._planned[txid] = planned
        self._unsettled.add(txid)
        for known in [known for known in self._planned if known < txid - 100]:
            del self._planned[known]
            self._unsettled.discard(known)
            self._planned_at.pop(known, None)
        return planned.to_json()

    # --- afterwards ---------------------------------------------------------------------------

    def success(self, txid: int) -> None:
        with self._lock:
            self._unsettled = {one for one in self._unsettled if one > txid}
            planned_at, planned = self._planned_at.pop(txid, None), self._planned.get(txid)
            if planned_at is not None:
                self._adaptive.succeeded(time.monotonic() - planned_at)
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
        action="messages may be lost that were not read. To go on, with a topic of that name that there is now from "
        f"its first message on: forget=[{known.id!r}]; to begin again: `trident reset NAME`",
    )
