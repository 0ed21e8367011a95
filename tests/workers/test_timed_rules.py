"""Dedup, joins within a time and timers: the rules that workers apply, against oracles that forget nothing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import timed_oracle as oracle
from tests.stream_helpers import RowsSpout, stream_of, topology_of
from tests.timed_steps import Steps
from trident.streams.stream import Stream

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 60)), max_size=6)
BATCHES = st.lists(st.tuples(ROWS, st.booleans()), max_size=7)


def at(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)


def numbered(batches: list) -> list[list[tuple]]:
    """(key, at, number) of rows that are all different."""
    numbers = iter(range(10_000))
    return [[(key, time, next(numbers)) for key, time in rows] for rows in batches]


def rows_of(batch: list[tuple]) -> list[tuple]:
    return [(key, at(time), n) for key, time, n in batch]


def seconds(count: int) -> str:
    return f"{count} seconds"


@settings(deadline=None)
@given(BATCHES, st.integers(0, 20), st.integers(1, 40))
def test_dedup_gives_what_the_oracle_gives(batches: list, delay: int, within: int) -> None:
    """Over any cut into batches, with attempts that fail behind it."""
    stream = stream_of("key string, at timestamp, n long").with_watermark("at", seconds(delay))
    passed = stream.drop_duplicates("key", within=seconds(within))
    steps, cut = Steps(passed), numbered([rows for rows, _ in batches])
    want = oracle.dedup([[(key, time, n) for key, time, n in batch] for batch in cut], delay, within)
    for turn, batch in enumerate(cut):
        if batches[turn][1]:
            steps.run([("a", at(3600), -1), ("b", None, -2)], commits=False)
        found, (late,) = steps.run(rows_of(batch))
        assert ([row[2] for row in found], [row[2] for row in late]) == want[turn]
    # A key is forgotten as soon as no row that is punctual could be a duplicate.
    watermark = oracle.marks(cut, delay)[-1] if cut else None
    for key, entry in steps.state.items():
        assert key[0] == 1 or watermark is None or entry["_due"] > watermark * 10**6


def two(delays: tuple[int, int]) -> tuple[Stream, Stream]:
    left = stream_of("key string, at timestamp, n long")
    right = topology_of(left).new_stream("others", RowsSpout("key string, at timestamp, n long"))
    return tuple(one.with_watermark("at", seconds(delay)) for one, delay in zip((left, right), delays))  # type: ignore


@settings(deadline=None)
@given(
    st.lists(st.tuples(ROWS, ROWS, st.booleans()), max_size=7),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.integers(-30, 30), st.integers(0, 30)).map(lambda both: (both[0], both[0] + both[1])),
    st.sampled_from(["inner", "left", "right", "full"]),
)
def test_a_join_within_a_time_gives_what_the_oracle_gives(
    batches: list, delays: tuple[int, int], bounds: tuple[int, int], how: str
) -> None:
    left, right = two(delays)
    joined = left.join(
        right, "key", how, "key, at, n, its_at, its_n", within=tuple(f"{bound} seconds" for bound in bounds)
    )
    steps = Steps(joined)
    lefts, rights = (numbered([batch[side] for batch in batches]) for side in (0, 1))
    outer = (how in ("left", "full"), how in ("right", "full"))
    want = oracle.join(
        *[[[(key, time, (key, at(time), n)) for key, time, n in b] for b in side] for side in (lefts, rights)],
        delays,
        bounds,
        outer,
    )
    for turn, (_, _, fails) in enumerate(batches):
        if fails:
            steps.run([("a", at(3600), -1)], [("a", at(3600), -2), ("b", at(1), -3)], commits=False)
        found, late = steps.run(rows_of(lefts[turn]), rows_of(rights[turn]))
        pairs, *late_wanted = want[turn]
        none = (None, None, None)
        expected = Counter(((one or other)[0], *(one or none)[1:], *(other or none)[1:]) for one, other in pairs)
        assert Counter(found) == expected
        assert [Counter(rows) for rows in late] == [Counter(rows) for rows in late_wanted]
    watermarks = oracle.least(*(oracle.marks(side, delay) for side, delay in zip((lefts, rights), delays)))
    for key, entry in steps.state.items():
        assert key[0] > 0 or not watermarks or watermarks[-1] is None or entry["_due"] > watermarks[-1] * 10**6
