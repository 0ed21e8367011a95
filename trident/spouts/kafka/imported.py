"""Offsets of Spark's own source for Kafka, from a checkpoint of Structured Streaming, as a position of a KafkaSpout."""

from __future__ import annotations

from trident.coordinators.errors import SourceError
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.kafka.cluster import KafkaCluster
from trident.spouts.kafka.ranges import At, Batch, TopicRanges
from trident.spouts.metadata import is_whole


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
