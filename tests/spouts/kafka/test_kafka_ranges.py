"""Ranges of offsets: pure cuts, for any partitions and any sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.errors import SourceError
from trident.spouts.kafka.ranges import (
    At,
    Batch,
    OffsetRange,
    TopicRanges,
    TopicState,
    cut,
    ends_of,
    follow,
    groups,
    new_partitions,
    pieces,
    shrunk,
    waiting,
)

LOOKS = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.integers(0, 60) | st.none(), min_size=1, max_size=5), max_size=3
)


def looks(ends: dict[str, list[int | None]]) -> list[TopicState]:
    return [TopicState(name, f"id-{name}", found) for name, found in ends.items()]


def begins(before: Batch, look: list[TopicState]) -> dict[At, int]:
    return {at: 0 for at in new_partitions(before, look)}


@given(st.lists(st.tuples(LOOKS, st.integers(1, 40), st.booleans()), max_size=12))
def test_batches_of_any_growth_have_each_offset_once_and_partitions_keep_their_order(steps) -> None:
    before, ends, order = Batch(), {}, []
    read: dict[At, int] = {}
    for turn, (found, rows, shrink) in enumerate(steps):
        for name, numbers in found.items():  # partitions are never fewer, and ends never go back
            known = ends.setdefault(name, [])
            known += [0] * (len(numbers) - len(known))
            for number, end in enumerate(numbers):
                known[number] = max(known[number], end or 0)
        look = looks(
            {
                name: [
                    None if number < len(found.get(name, ())) and found[name][number] is None else end
                    for number, end in enumerate(known)
                ]
                for name, known in ends.items()
            }
        )
        empty = follow(before, look, begins(before, look))
        batch = cut(empty, ends_of(look), rows, turn)
        assert batch.problem() is None and batch.rows_estimate <= max(rows, 0)
        assert batch.rows_estimate == min(rows, waiting(empty, ends_of(look)))
        if shrink and batch.rows_estimate > 1:
            smaller = shrunk(batch, batch.rows_estimate // 2, turn)
            assert [one.begin for one in smaller.topics] == [one.begin for one in batch.topics]
            assert smaller.rows_estimate == batch.rows_estimate // 2
            assert all(smaller.ends[at] <= end for at, end in batch.ends.items())
            batch = smaller
        for one in batch.ranges:
            assert one.begin == read.get(one.at, 0)
            read[one.at] = one.end
        names = [one.topic for one in batch.topics]
        assert names[: len(order)] == order
        order = names
        before = Batch.read(json.loads(json.dumps(batch.to_json())))
        assert before.ends == batch.ends


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 60), st.integers(0, 9))
def test_each_partition_with_messages_gets_its_share(lags: list[int], rows: int, turn: int) -> None:
    empty = Batch((TopicRanges("t", "i", [0] * len(lags), [0] * len(lags)),))
    taken = cut(empty, {At("t", number): lag for number, lag in enumerate(lags)}, rows, turn)
    sizes = list(taken.topics[0].end)
    assert sum(sizes) == min(rows, sum(lags))
    if rows >= len(lags):
        assert all(sizes)
        fair = [lag * rows / sum(lags) for lag in lags]
        assert all(size < share + 2 for size, share in zip(sizes, fair))  # one for each, and one by rounding
    else:
        assert max(sizes) == 1


def test_partitions_take_turns_where_a_batch_is_smaller_than_they_are_many() -> None:
    empty = Batch((TopicRanges("t", "i", [0] * 5, [0] * 5),))
    ends = {At("t", number): 10 for number in range(5)}
    seen = [tuple(cut(empty, ends, 2, turn).topics[0].end) for turn in range(5)]
    assert len(set(seen)) == 5 and [sum(column) for column in zip(*seen)] == [2] * 5


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 90), st.integers(1, 5))
def test_tasks_read_every_offset_once_and_each_partition_at_most_once(lengths, most, count) -> None:
    ranges = [OffsetRange("t", number, 7, 7 + length) for number, length in enumerate(lengths)]
    made = groups(pieces(ranges, most), count)
    assert 1 <= len(made) <= count
    offsets = [(one.partition, at) for group in made for one in group for at in range(one.begin, one.end)]
    assert sorted(offsets) == [(one.partition, at) for one in ranges for at in range(one.begin, one.end)]
    assert all(len({one.at for one in group}) == len(group) for group in made)
    assert max(sum(one.end - one.begin for one in group) for group in made) < sum(lengths) / count + 1 + most


def test_a_partition_whose_leader_is_away_stays_and_holds_back_new_ones_behind_it() -> None:
    before = Batch((TopicRanges("t", "i", [0], [4]),))
    look = [TopicState("t", "i", [None, 5, None, 9])]
    assert new_partitions(before, look) == [At("t", 1)]
    batch = cut(follow(before, look, {At("t", 1): 2}), ends_of(look), 100, 0)
    assert batch.ranges == [OffsetRange("t", 1, 2, 5)] and list(batch.topics[0].end) == [4, 5]


def test_topics_that_are_no_longer_selected_keep_their_place() -> None:
    before = Batch((TopicRanges("b", "i", [0], [4]), TopicRanges("a", "j", [0], [3])))
    batch = follow(before, [TopicState("a", "j", [8])], {})
    assert [(one.topic, list(one.end)) for one in batch.topics] == [("b", [4]), ("a", [3])]
    assert cut(batch, {At("a", 0): 8}, 10, 0).ranges == [OffsetRange("a", 0, 3, 8)]


@pytest.mark.parametrize(
    "metadata",
    [
        {"batch": 3},
        {"topics": [{"topic": "t", "id": "i", "begin": [3], "end": [2]}], "rows_estimate": 0},
        {"topics": [{"topic": "t", "id": "i", "begin": [0], "end": [2, 3]}], "rows_estimate": 0},
        {"topics": [{"topic": "t", "id": "i", "begin": [], "end": []}] * 2, "rows_estimate": 0},
    ],
)
def test_metadata_of_another_spout_or_damaged_is_refused(metadata) -> None:
    with pytest.raises(SourceError, match="not written by a KafkaSpout"):
        Batch.read(metadata)
