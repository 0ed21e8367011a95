"""Where a stream begins in a topic: earliest, latest, at a time, at given offsets, or where a group had got to."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Union

from trident.coordinators.errors import SourceError, TopologyError, described
from trident.spouts.arguments import is_whole
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.kafka.cluster import NO_MESSAGE, KafkaCluster
from trident.spouts.kafka.ranges import At, Batch, TopicRanges

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
                action="it is asked again, for as long as it takes",
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
            found = self._cluster.at_time(ats, int(start.timestamp() * 1000))
            self._check_known(found, ats)
            # A partition without a message from then on begins where it ends.
            return {at: highs[at] if found[at] == NO_MESSAGE else found[at] for at in ats}
        assert isinstance(start, Mapping)
        missing = [at for at in ats if at.partition not in start.get(at.topic, {})]
        if missing:
            raise SourceError(
                f"{self._what} is not told where {missing[0]} begins",
                found=f"start= without {', '.join(map(str, missing[:10]))}",
                expected="an offset for each partition that is there",
            )
        return {at: start[at.topic][at.partition] for at in ats}


def batch_behind(source: SourceOffset, cluster: KafkaCluster, what: str) -> Batch:
    """The empty batch at the source's offsets.

    Partitions that the source does not know yet are read from their first message on, as Spark would.

    Raises:
        SourceError: a topic is gone, or its messages from there on are; or the source read some partitions only.
    """
    offsets = {topic: _offsets(source, topic, what) for topic in sorted(source.value)}
    look = {one.topic: one for one in cluster.look(list(offsets), None)}
    missing = [topic for topic, ends in offsets.items() if topic not in look or len(look[topic].ends) < len(ends)]
    if missing:
        raise SourceError(
            f"{what} cannot go on with topic {missing[0]!r}",
            found="no such topic, or fewer partitions",
            expected=f"the {len(offsets[missing[0]])} partitions that the checkpoint has read",
        )
    ats = {At(topic, number): offset for topic, ends in offsets.items() for number, offset in enumerate(ends)}
    lows, highs = cluster.begins(list(ats)), cluster.ends(list(ats))
    for at, offset in ats.items():
        if at not in lows or at not in highs:
            raise SourceError(f"{what} cannot look at {at}", found="no answer of its leader", action="try it again")
        if not lows[at] <= offset <= highs[at]:
            raise SourceError(
                f"{what} cannot go on at offset {offset} of {at}",
                found=f"offsets {lows[at]} … {highs[at]}",
                expected="the message behind the last one that the checkpoint has read",
                action="the messages have expired, or the topic was made again; or the query read messages of open "
                'transactions: isolation="read_uncommitted"',
            )
    return Batch(tuple(TopicRanges(topic, look[topic].id, ends, ends) for topic, ends in offsets.items()))


def _offsets(source: SourceOffset, topic: str, what: str) -> tuple[int, ...]:
    found = source.value[topic]
    numbers = [str(number) for number in range(len(found))]
    if set(found) != set(numbers) or not all(is_whole(offset, 0) for offset in found.values()):
        raise SourceError(
            f"{what} cannot go on with topic {topic!r}",
            found=f"{topic}: {dict(found)}",
            expected="an offset of each partition from 0 on, as a query has that subscribes to topics",
        )
    return tuple(found[number] for number in numbers)
