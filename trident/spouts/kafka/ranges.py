"""Ranges of offsets: what is in each batch, cut by pure arithmetic over where the partitions of topics end.

A batch holds, for every partition that the stream knows, where it begins and where it ends; the next batch begins
there. So nothing else is needed to go on, and a replay reads the same offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from trident.coordinators.stored_json import MAY_BE_MISSING
from trident.spouts.contracts import Json, read_metadata


class At(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class OffsetRange(NamedTuple):
    """The messages of a partition at offsets begin ≤ … < end; compaction and transactions leave holes."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def at(self) -> At:
        return At(self.topic, self.partition)


@dataclass(frozen=True)
class TopicRanges:
    """A topic's part of a batch.

    Attributes:
        id: that the cluster has given the topic; a topic made again under the name has another.
        begin, end: offsets, of the partitions 0, 1, 2, …
    """

    topic: str
    id: str
    begin: Sequence[int]
    end: Sequence[int]

    def problem(self) -> str | None:
        if len(self.begin) != len(self.end):
            return f"topic {self.topic}: {len(self.begin)} partitions begin, and {len(self.end)} end"
        if any(not 0 <= begin <= end for begin, end in zip(self.begin, self.end)):
            return f"topic {self.topic}: a range ends before it begins"
        return None


@dataclass(frozen=True)
class Batch:
    """The metadata of a transaction.

    Attributes:
        topics: in the order in which they were found; partitions that are new come behind those that were there.
        rows_estimate: offsets in it: as many rows as there are without holes.
    """

    topics: tuple[TopicRanges, ...] = ()
    rows_estimate: int = field(default=0, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        names = [one.topic for one in self.topics]
        if len(set(names)) != len(names):
            return "a topic is there twice"
        return next((problem for one in self.topics if (problem := one.problem())), None)

    def to_json(self) -> dict[str, Any]:
        topics = [{**vars(one), "begin": list(one.begin), "end": list(one.end)} for one in self.topics]
        return {"topics": topics, "rows_estimate": self.rows_estimate}

    @classmethod
    def read(cls, metadata: Json) -> "Batch":
        """Raises SourceError where another spout wrote the metadata."""
        return read_metadata(metadata, cls, "a KafkaSpout")

    @property
    def ranges(self) -> list[OffsetRange]:
        """Those with offsets in them, in order."""
        return [
            OffsetRange(one.topic, number, begin, end)
            for one in self.topics
            for number, (begin, end) in enumerate(zip(one.begin, one.end))
            if begin < end
        ]

    @property
    def ends(self) -> dict[At, int]:
        return {At(one.topic, number): end for one in self.topics for number, end in enumerate(one.end)}

    def without(self, ids: Sequence[str]) -> "Batch":
        """The batch without topics of these ids."""
        kept = tuple(one for one in self.topics if one.id not in ids)
        return Batch(kept, sum(sum(one.end) - sum(one.begin) for one in kept))


@dataclass(frozen=True)
class TopicState:
    """A topic as the cluster was found to have it.

    Attributes:
        ends: of each partition where it ends now; None: its leader is away.
    """

    topic: str
    id: str
    ends: Sequence[int | None]


def follow(before: Batch, topic_states: Sequence[TopicState], begins: Mapping[At, int]) -> Batch:
    """The empty batch after another one, with the partitions that are new.

    Args:
        topic_states: topics that both have must be of the same id.
        begins: where new partitions begin; one that is not there, and those after it, come another time.
    """
    found = {one.topic: one for one in topic_states}
    known = {one.topic for one in before.topics}
    topics = [
        _grown(TopicRanges(one.topic, one.id, one.end, one.end), found.get(one.topic), begins) for one in before.topics
    ]
    new = sorted((one for one in topic_states if one.topic not in known), key=lambda one: one.topic)
    topics += [_grown(TopicRanges(one.topic, one.id, (), ()), one, begins) for one in new]
    return Batch(tuple(one for one in topics if one.end))


def _grown(ranges: TopicRanges, found: TopicState | None, begins: Mapping[At, int]) -> TopicRanges:
    ends = list(ranges.end)
    while found is not None and len(ends) < len(found.ends) and At(found.topic, len(ends)) in begins:
        ends.append(begins[At(found.topic, len(ends))])
    return replace(ranges, begin=tuple(ends), end=tuple(ends))


def new_partitions(before: Batch, topic_states: Sequence[TopicState]) -> list[At]:
    """The partitions that a poll has found and the batch does not know, up to one whose leader is away."""
    known = {one.topic: len(one.end) for one in before.topics}
    found = []
    for one in topic_states:
        for number in range(known.get(one.topic, 0), len(one.ends)):
            if one.ends[number] is None:
                break
            found.append(At(one.topic, number))
    return found


def all_partitions(topic_states: Sequence[TopicState]) -> list[At]:
    """The partitions that a poll has found, also those whose leader is away."""
    return [At(one.topic, number) for one in topic_states for number in range(len(one.ends))]


def ends_of(topic_states: Sequence[TopicState]) -> dict[At, int]:
    """Where the partitions end, of those whose leader is there."""
    return {
        At(one.topic, number): end for one in topic_states for number, end in enumerate(one.ends) if end is not None
    }


def waiting(after: Batch, ends: Mapping[At, int]) -> int:
    """Offsets between the end of a batch and the ends of the partitions that it knows."""
    return sum(max(0, ends.get(at, end) - end) for at, end in after.ends.items())


def cut(empty: Batch, ends: Mapping[At, int], rows: int, turn: int) -> Batch:
    """A batch of at most this many offsets: of each partition its share of all that waits.

    So partitions run out together. Each with something that waits has at least one offset, where there are enough
    for all; else they take turns.

    Args:
        empty: where it begins.
        ends: where it ends at the latest; a partition that is not there stays where it is.
        rows: at least 1.
        turn: any number, another one for each batch.
    """
    lags = {at: ends[at] - begin for at, begin in empty.ends.items() if ends.get(at, begin) > begin}
    shares = _shares(list(lags.values()), rows, turn)
    taken = dict(zip(lags, shares))
    topics = tuple(
        replace(one, end=tuple(begin + taken.get(At(one.topic, number), 0) for number, begin in enumerate(one.begin)))
        for one in empty.topics
    )
    return Batch(topics, sum(shares))


def _shares(lags: Sequence[int], rows: int, turn: int) -> list[int]:
    total = sum(lags)
    if total <= rows:
        return list(lags)
    if rows <= len(lags):
        first = turn % len(lags)
        return [1 if (number - first) % len(lags) < rows else 0 for number in range(len(lags))]
    # One for each, and of the rest what is due to it: never more than all of it, since rows < total.
    rest, over = rows - len(lags), total - len(lags)
    shares = [1 + (lag - 1) * rest // over for lag in lags]
    left = rows - sum(shares)
    for number in sorted(range(len(lags)), key=lambda number: -((lags[number] - 1) * rest % over)):
        if left and shares[number] < lags[number]:
            shares[number] += 1
            left -= 1
    return shares


def shrunk(batch: Batch, rows: int, turn: int) -> Batch:
    """A batch that begins where another one does, and has at most this many of its offsets."""
    empty = Batch(tuple(replace(one, end=one.begin) for one in batch.topics))
    return cut(empty, batch.ends, rows, turn)


def pieces(ranges: Sequence[OffsetRange], most: int) -> list[OffsetRange]:
    """The ranges, none longer than this many offsets."""
    return [
        OffsetRange(one.topic, one.partition, begin, min(one.end, begin + most))
        for one in ranges
        for begin in range(one.begin, one.end, most)
    ]


def groups(items: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Pieces in order, as evenly over at most this many tasks as whole pieces go; neighbours become one again."""
    share = max(1, -(-sum(one.end - one.begin for one in items) // count))
    made: list[list[OffsetRange]] = [[]]
    filled = 0
    for item in items:
        if made[-1] and filled >= share and len(made) < count:
            made.append([])
            filled = 0
        last = made[-1][-1] if made[-1] else None
        if last is not None and (last.at, last.end) == (item.at, item.begin):
            made[-1][-1] = last._replace(end=item.end)
        else:
            made[-1].append(item)
        filled += item.end - item.begin
    return made
