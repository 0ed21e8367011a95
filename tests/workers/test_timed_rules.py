"""Dedup, joins within a time and timers: the rules that workers apply, against oracles that forget nothing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.operations import timed_oracle as oracle
from tests.operations.timed_turns import at
from tests.operations.timed_users import Baskets, Wrong
from tests.streams.stream_helpers import RowsSpout, stream_of, topology_of
from tests.workers.timed_steps import Steps
from trident import expr
from trident.streams.stream import Stream
from trident.workers.failures import ERROR, UserCodeFailed, find_report

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 60)), max_size=6)
EXAMPLES = 12 * max(int(os.environ.get("TRIDENT_RANDOM", "1")), 1)
BATCHES = st.lists(st.tuples(ROWS, st.booleans()), max_size=7)


def numbered(batches: list) -> list[list[tuple]]:
    """(key, at, number) of rows that are all different."""
    numbers = iter(range(10_000))
    return [[(key, time, next(numbers)) for key, time in rows] for rows in batches]


def rows_of(batch: list[tuple]) -> list[tuple]:
    return [(key, at(time), n) for key, time, n in batch]


def seconds(count: int) -> str:
    return f"{count} seconds"


@pytest.fixture(scope="module", params=["tables", "copy"])
def copies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where the step's entries come from: the folder of local copies; None: as by Spark."""
    return tmp_path_factory.mktemp("copies") if request.param == "copy" else None


# The examples are those that the planted bugs need.
@settings(deadline=None, max_examples=EXAMPLES)
@example(batches=[([("a", at)], False) for at in (0, 9, 9)], delay=0, within=10)
@given(batches=BATCHES, delay=st.integers(0, 20), within=st.integers(1, 40))
def test_dedup_gives_what_the_oracle_gives(copies: Path | None, batches: list, delay: int, within: int) -> None:
    """Over any cut into batches, with attempts that fail behind it."""
    stream = stream_of("key string, at timestamp, n long").with_watermark("at", seconds(delay))
    passed = stream.drop_duplicates("key", within=seconds(within))
    steps, cut = Steps(passed, copies=copies), numbered([rows for rows, _ in batches])
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


@settings(deadline=None, max_examples=EXAMPLES)
@example(batches=[([("a", 0)], [("a", 0)], False)], delays=(0, 0), bounds=(0, 0), how="inner")
@example(
    batches=[([("a", 60)], [("a", 0)], False), ([("b", 1)], [("b", 1)], False)],
    delays=(0, 0),
    bounds=(0, 5),
    how="inner",
)
@example(
    batches=[([("a", 0)], [("a", 0)], False), ([("b", 60)], [("b", 60)], False)],
    delays=(0, 0),
    bounds=(0, 5),
    how="full",
)
@given(
    batches=st.lists(st.tuples(ROWS, ROWS, st.booleans()), max_size=7),
    delays=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    bounds=st.tuples(st.integers(-30, 30), st.integers(0, 30)).map(lambda both: (both[0], both[0] + both[1])),
    how=st.sampled_from(["inner", "left", "right", "full"]),
)
def test_a_join_within_a_time_gives_what_the_oracle_gives(copies, batches, delays, bounds, how):
    left, right = two(delays)
    joined = left.join(
        right, "key", how, "key, at, n, its_at, its_n", within=tuple(f"{bound} seconds" for bound in bounds)
    )
    steps = Steps(joined, copies=copies)
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


STATE, OUTPUTS = "n long, last timestamp", "what string, n long"


@settings(deadline=None, max_examples=EXAMPLES)
@given(batches=BATCHES, delay=st.integers(0, 20))
def test_timers_give_what_the_oracle_gives(copies: Path | None, batches: list, delay: int) -> None:
    stream = stream_of("key string, at timestamp, n long").with_watermark("at", seconds(delay))
    steps = Steps(stream.group_by("key").process("at", Baskets(), OUTPUTS, state=STATE), copies=copies)
    cut = numbered([rows for rows, _ in batches])
    want = oracle.baskets([[(key, time, n) for key, time, n in batch] for batch in cut], delay)
    for turn, batch in enumerate(cut):
        if batches[turn][1]:
            steps.run([("a", at(3600), -1), ("b", None, -2)], commits=False)
        found, (late,) = steps.run(rows_of(batch))
        assert (Counter(found), [row[2] for row in late]) == (Counter(want[turn][0]), want[turn][1])
    watermark = oracle.marks(cut, delay)[-1] if cut else None
    for key, entry in steps.state.items():
        assert key[0] == 1 or entry["_due"] is None or watermark is None or entry["_due"] > watermark * 10**6


@settings(deadline=None, max_examples=EXAMPLES)
@given(batches=BATCHES, seconds_=st.lists(st.integers(0, 60), min_size=7, max_size=7))
def test_timers_of_processing_time_give_what_the_oracle_gives(copies, batches, seconds_):
    ticks = iter([second * 10**6 for second in seconds_])

    def clock() -> int:
        return next(ticks)

    stream = stream_of("key string, at timestamp, n long").select("key", "n", "at")
    given_ = stream.with_column("at", expr("cast(null as timestamp)")).group_by("key")
    steps = Steps(given_._process("at", Baskets(), OUTPUTS, STATE, None, clock=clock), clock, copies)
    cut = numbered([rows for rows, _ in batches])
    want = oracle.baskets([[(key, None, n) for key, _, n in batch] for batch in cut], None, seconds_)
    for turn, batch in enumerate(cut):
        found, (late,) = steps.run([(key, n, None) for key, _, n in batch])
        assert (Counter(found), late) == (Counter(want[turn][0]), [])


@pytest.mark.parametrize(
    ("what", "error", "place"),
    [
        ("a row", "ValueError: of no use", "for the row {key: 'a', at: "),
        ("a time without a zone", "a datetime with a time zone", "for the row"),
        ("a state of another type", "a value of the state's field 'n' is not of its type", "for the row {key: 'a'}"),
        ("an output of another type", "a value of output 'n' is not of its type", "for the row {key: 'a'}"),
        ("a timer for itself", "must be later than its own time", "in on_time(1970-01-01 00:00:03+00:00) of the key"),
    ],
)
def test_the_failure_of_a_process_says_where_it_was(what: str, error: str, place: str) -> None:
    stream = stream_of("key string, at timestamp, n long").with_watermark("at", "0 seconds")
    steps = Steps(stream.group_by("key").process("at", Wrong(what), "n long", state="n long"))
    with pytest.raises(UserCodeFailed) as raised:
        steps.run([("a", at(3), 1)])
    report = find_report(raised.value, ERROR)
    assert report is not None and error in report["error"] and place in report["place"]
    assert "timed_users.py" in report["location"]
