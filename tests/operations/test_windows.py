"""Windows: against a plain Python oracle, and exactly once over failures, crashes and restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.chaos.oracle import Table
from tests.long_cases import sample
from tests.operations.timed_turns import SECOND, Turns, at, plain, rows_of
from tests.operations.window_oracle import Given, by_count, by_event_time, by_processing_time, starts_of, windows
from tests.streams.stream_helpers import RowsSpout, stream_of, topology_of
from tests.topology_helpers import Starter
from trident import Count, DeltaAppend, FixedBatchSpout, Max, NotExactlyOnceWarning, Sum, TridentTopology, expr
from trident.coordinators import faults
from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.window_spec import Unit, WindowSpec, duration_us
from trident.planning.groups import plan
from trident.spouts.contracts import SpoutKind
from trident.streams.stream import Stream

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda both: (max(both), min(both)))


# --- the arithmetic ----------------------------------------------------------------------


@given(SIZES, st.integers(-200, 200), st.sampled_from([Unit.ROWS, Unit.EVENT_TIME]))
def test_the_windows_of_a_position(size: tuple[int, int], position: int, unit: Unit) -> None:
    spec = WindowSpec(*size, unit)
    found = range(spec.first_start(position), spec.last_start(position) + 1, spec.slide)
    assert list(found) == starts_of(position, *size, spec.offset) != []
    assert unit is Unit.EVENT_TIME or all((start + spec.length) % spec.slide == 0 for start in found)


@given(SIZES, st.integers(-200, 200), st.integers(0, 60))
def test_what_a_watermark_fires(size: tuple[int, int], before: int, step: int) -> None:
    spec = WindowSpec(*size, Unit.ROWS)
    ends = [end for end in range(before - 90, before + 200) if end % spec.slide == 0]
    fired = [end for end in ends if before < end <= before + step]
    found = range(spec.first_open(before), spec.last_closed(before + step) + 1, spec.slide)
    assert [start + spec.length for start in found] == fired
    assert spec.fires_between(before, before + step) is bool(fired)


@given(
    SIZES, st.lists(st.tuples(st.lists(st.integers(0, 120), max_size=4), st.integers(0, 60)), max_size=6), st.booleans()
)
def test_one_pass_over_stored_rows_gives_what_all_rows_ever_give(size, turns, in_rows):
    """The rule that the Spark plan follows, over Python lists, against the oracle that forgets nothing."""
    spec = WindowSpec(*size, Unit.ROWS if in_rows else Unit.EVENT_TIME)
    marks = [sum(step for _, step in turns[: n + 1]) for n in range(len(turns))]
    stored: list[int] = []
    for n, expected in enumerate(windows([[(p, p) for p in rows] for rows, _ in turns], marks, *size, spec.offset)):
        before, now = (marks[n - 1] if n else None), marks[n]
        late = [p for p in turns[n][0] if before is not None and spec.last_start(p) <= spec.last_closed(before)]
        rows = stored + [p for p in turns[n][0] if p not in late]
        first = spec.last_closed(now) if before is None else spec.first_open(before)
        fired = [
            (s, s + spec.length, p)
            for p in rows
            for s in range(
                spec.first_start(p) if before is None else max(spec.first_start(p), first),
                min(spec.last_start(p), spec.last_closed(now)) + 1,
                spec.slide,
            )
        ]
        assert Given(sorted(fired), late) == Given(sorted(expected.fired), expected.late)
        stored = [p for p in rows if spec.last_start(p) > spec.last_closed(now)]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("10 minutes", 600 * SECOND),
        ("1 hour 30 seconds", 3630 * SECOND),
        (" Interval 1 DAY  2 weeks", 15 * 86400 * SECOND),
        ("1.5 seconds 1 millisecond 2 microseconds", 1_501_002),
    ],
)
def test_durations(text: str, micros: int) -> None:
    assert duration_us(text, "it") == micros


# --- on Spark ----------------------------------------------------------------------------


def a_batch(rng: random.Random, around: int) -> list[tuple]:
    """(at, v) in seconds, with nulls; at times far from where the others are."""
    times = [rng.choice([around, around - 12, around + 7]) + rng.randrange(9) for _ in range(rng.randrange(9))]
    return [(rng.choice([None, *[time] * 9]), rng.choice([None, *range(5)])) for time in times]


def fired(rows: list[tuple]) -> Counter:
    """Rows (window, at, v) as the oracle has them."""

    return Counter((plain(row[0].start), plain(row[0].end), tuple(map(plain, row[1:]))) for row in rows)


def test_every_kind_of_window_gives_what_the_oracle_gives(spark: SparkSession, rng: random.Random) -> None:
    turns_count = 2
    clock = [30 + 6 * n + rng.randrange(-9, 9) for n in range(turns_count)]
    ticks = iter([second * SECOND for second in clock])
    batches = [a_batch(rng, 10 * n - 20) for n in range(turns_count)]
    batches[rng.randrange(turns_count)] = []
    sizes = {"rows": (5, 3), "event": (13, 5), "now": (8, 3)}
    stream = stream_of("at timestamp, v long")
    marked = stream.with_watermark("at", "6 seconds")
    made = {
        "rows": marked.sliding_window(5, 3),
        "event": marked.sliding_window("13 seconds", "5 seconds"),
        "now": stream._window("sliding_window", "8 seconds", "3 seconds", None, lambda: next(ticks)),
    }
    for name, windowed in made.items():
        windowed.rows().partition_persist(DeltaAppend(name))
    made["event"].late_rows().partition_persist(DeltaAppend("late"))
    expected = {
        "rows": by_count(batches, *sizes["rows"]),
        "event": by_event_time([[(row[0], row) for row in rows] for rows in batches], 6, *sizes["event"]),
        "now": by_processing_time(batches, clock, *sizes["now"]),
    }
    turns, late = Turns(spark, stream), 0
    for n, rows in enumerate(batches):
        found = turns.run({"rows": [(at(time), v) for time, v in rows]}, partitions=rng.choice([1, 3]))
        for name in made:
            least = 0 if name == "rows" else -100
            want = Counter((max(start, least), end, row) for start, end, row in expected[name][n].fired)
            assert fired(found[name]) == want, (name, n)
        assert Counter(tuple(map(plain, row)) for row in found["late"]) == Counter(expected["event"][n].late)
        late += len(expected["event"][n].late)
        state = turns.states[made["event"].name]
        assert not rows or state[(-1,)][1:3] == (sum(map(len, batches[: n + 1])), late)
    open_rows = [key for key in turns.states[made["rows"].name] if key != (-1,)]
    assert len(open_rows) < sum(sizes["rows"]), "rows that no window will need are not kept"


# --- whole topologies --------------------------------------------------------------------


def clicks(batches: list, spout: Callable[[list], Any] | None = None) -> TridentTopology:
    topology = TridentTopology("click-counts")
    fixed = FixedBatchSpout("at timestamp, word string, n long", batches)
    stream = topology.new_stream("clicks", fixed if spout is None else spout(batches))
    windows = stream.with_watermark("at", "5 seconds").sliding_window("20 seconds", "10 seconds", name="open")
    windows.group_by("word").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("sums"))
    windows.late_rows().project("word", "n").partition_persist(DeltaAppend("late"))
    return topology


CLICKS = [
    [(3, "a", 1), (12, "bb", 2), (None, "lost", 0), (4, "a", None)],
    [(31, None, 5), (13, "a", 7)],
    [],
    [(44, "bb", 1), (26, "bb", 1), (2, "late", 9), (9, "late", 3)],
    [(31, "ccc", 4), (61, "a", 1), (58, "a", 1)],
]


def expected_of(batches: list) -> dict[str, Counter]:
    found: dict[str, Counter] = {"sums": Counter(), "late": Counter()}
    for fired_now, late in by_event_time([[(row[0], row) for row in rows] for rows in batches], 5, 20, 10):
        found["late"].update((word, n) for _, word, n in late)
        for edges, word in {((start, end), word) for start, end, (_, word, _) in fired_now}:
            numbers = [n for s, e, (_, of, n) in fired_now if ((s, e), of) == (edges, word) and n is not None]
            found["sums"][edges, word, sum(numbers)] += 1
    return found


def found_of_clicks(folder: Path) -> dict[str, Counter]:
    return {name: rows_of(folder, name) for name in ("sums", "late")}


def stamped(batches: list) -> list:
    return [[(at(time), word, n) for time, word, n in rows] for rows in batches]


@pytest.mark.parametrize("rows_kept", sample([False, True], False), ids=["parts", "rows"])
def test_exactly_once_over_crashes(start: Starter, tmp_path: Path, rows_kept: bool) -> None:
    """A coordinator that hangs behind a decision, half published, and wakes up deposed."""
    topologies = [clicks(stamped(CLICKS)), clicks(stamped(CLICKS))]
    if rows_kept:  # as where an older version has made the state
        for topology in topologies:
            topology.graph.kept_rows.add("open")
    query = start.replace_at("publish.table", *topologies)
    assert found_of_clicks(tmp_path) == expected_of(CLICKS)
    kept = {row[0]: row for row in query.snapshot("open").collect()}
    about_all = kept.pop(-1 if rows_kept else None)
    assert (about_all._position, about_all._next, about_all._late) == (56 * SECOND, 13, 3)
    if rows_kept:
        assert sorted(plain(row.at) for row in kept.values()) == [44, 58, 61]
    else:
        found = {(at // SECOND, row.word, row._part0) for at, row in kept.items()}
        assert found == {(40, "bb", 1), (50, "a", 1), (60, "a", 1)}


class _Changing:
    """An opaque source: the first attempt of each batch has other rows than those that follow."""

    output_schema = RowsSpout("at timestamp, word string, n long").output_schema
    kind = SpoutKind.OPAQUE

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def get_coordinator(self, context: Any) -> "_Changing":
        return self

    get_emitter = get_coordinator

    def is_ready(self, txid: int) -> bool:
        return txid <= len(self.batches)

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> dict:
        return {}

    def emit_batch(self, attempt: Any, metadata: Any) -> list:
        # An hour ahead: had it counted, its watermark would make all that follows late.
        return self.batches[attempt.txid - 1] if attempt.attempt_id else [(at(3600), "never", 100)]

    def success(self, txid: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.long
def test_what_a_failed_attempt_of_an_opaque_source_held_is_in_no_window(start: Starter, tmp_path: Path) -> None:
    # The first attempt of every transaction fails behind its windows; the second one's second attempt is empty.
    for number in (1, 3, 4):
        faults.arm(f"resolve.stage:do_then_fail:{number}")
    batches = CLICKS[1:4]
    query = start.run(clicks(stamped(batches), _Changing), max_spout_pending=1)
    assert not faults.unfired()
    expected = expected_of(batches)
    assert found_of_clicks(tmp_path) == expected and all(expected.values())
    kept = query.snapshot("open").where("_pane is not null").collect()
    assert sorted((row._pane // SECOND, row.word) for row in kept) == [(20, "bb"), (30, None), (40, "bb")]


@pytest.mark.long
def test_due_windows_of_processing_time_fire_in_an_empty_batch_and_an_attempt_that_fails_leaves_nothing(
    start: Starter, tmp_path: Path
) -> None:
    topology = TridentTopology("now")
    # The second transaction looks at the clock twice: its first attempt fails when its windows are staged.
    ticks = iter([second * SECOND for second in (8, 12, 7, 21, 50)])
    stream = topology.new_stream("rows", FixedBatchSpout("n long", [[(1,), (2,)], [(7,)], [], [(5,)]]))
    made = stream._window("tumbling_window", "10 seconds", "10 seconds", None, lambda: next(ticks))
    made.aggregate("n", Sum(), "total").partition_persist(DeltaAppend("totals"))
    faults.arm("resolve.stage:do_then_fail:2")
    query = start.run(topology)
    assert not faults.unfired() and made.name == "now_window1"
    totals = Table.read(tmp_path / "warehouse" / "totals").rows()
    found = [(row["txid"], plain(row["window"]["start"]), row["total"]) for row in totals]
    assert found == [(3, 0, 10)], "the time is that of the attempt that was decided, and never goes back"
    assert {row.n for row in query.snapshot("now_window1").collect()} == {None, 5}


# --- what is known when it is built ------------------------------------------------------


def marked(fields: str = "at timestamp, word string, n long") -> Stream:
    return stream_of(fields).with_watermark("at", "1 minute")


NO_AT = TopologyError, "'at' is no longer there"
GONE, OTHER = "no longer there.*put with_watermark after", "at timestamp, other timestamp, n long"


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda s: s.tumbling_window(0), TopologyError, "cannot be that length.*found: 0.*more than nothing"),
        (lambda s: s.tumbling_window(True), TopologyError, "found: True.*whole number of rows"),
        (lambda s: s.sliding_window(5, 6), TopologyError, "slide.*greater than its length.*found: 6 after 5"),
        (lambda s: s.sliding_window("1 minute", 6), TopologyError, "differ in their unit"),
        (lambda s: s.tumbling_window("10"), TopologyError, "is no duration.*10 minutes"),
        (lambda s: s.tumbling_window("1.5 hours"), TopologyError, "is no duration"),
        (lambda s: s.tumbling_window("1 month"), TopologyError, "months and years differ in length"),
        (lambda s: s.tumbling_window(""), TopologyError, "is no duration"),
        (lambda s: s.tumbling_window("-1 minute"), TopologyError, "more than nothing"),
        (lambda s: s.with_watermark("word", "1 minute"), TopologyError, "needs a timestamp.*'word' of type string"),
        (lambda s: s.with_watermark("ta", "1 minute"), FieldError, "did you mean 'at'"),
        (lambda s: s.with_watermark("at", "-1 minute"), TopologyError, "is not possible"),
        (lambda s: s.with_watermark("at", "20000000 weeks"), TopologyError, "is not possible"),
        (lambda s: s.tumbling_window("1 minute").late_rows(), TopologyError, "of processing time.*with_watermark"),
        (lambda s: marked().tumbling_window(3).late_rows(), TopologyError, "windows of rows"),
        (lambda s: marked().project("n").tumbling_window("1 minute"), *NO_AT),
        (lambda s: marked().map(lambda *row: row, "at timestamp").tumbling_window("1 minute"), TopologyError, GONE),
        *[
            (lambda s, made=made: made(marked(OTHER)).tumbling_window("1 day"), *NO_AT)
            for made in (
                lambda s: s.with_column("at", expr("other")),
                lambda s: s.select("n", expr("other as at")),
                lambda s: s.map(expr("other"), "at timestamp"),
                lambda s: s.aggregate("other", Max(), "at"),
                lambda s: s.group_by("n").aggregate("other", Max(), "at"),
                lambda s: s.partition_aggregate("other", Max(), "at"),
                lambda s: s.group_by("n").partition_aggregate("other", Max(), "at").to_stream(),
                lambda s: s.group_by("n").agg(expr("max(other) as at")),
                lambda s: s.chained_agg().aggregate("other", Max(), "at").aggregate(Count(), "c").chain_end(),
            )
        ],
        (lambda s: s.sliding_window("365 days", "1 second"), TopologyError, "too small.*31,536,000 windows.*10,000"),
        (lambda s: stream_of("window string").tumbling_window(3), FieldError, "cannot keep field 'window'"),
        (lambda s: stream_of("_Seq long").tumbling_window(3), FieldError, "cannot keep field '_Seq'"),
        (lambda s: stream_of("_deleted boolean").tumbling_window(3), FieldError, "cannot be written to state"),
        (lambda s: s.tumbling_window(3, name="a-b"), TopologyError, "state name cannot be used"),
        (lambda s: (s.tumbling_window(3, "x"), s.tumbling_window(4, "x")), TopologyError, "'x' is written twice"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_built(build: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=f"(?si){message}"):
        build(stream_of("at timestamp, word string, n long"))


def test_the_watermark_goes_on_under_another_name() -> None:
    stream = marked()
    others = topology_of(stream).new_stream("others", RowsSpout("word string, n long"))
    for made, field in (
        (stream.rename({"at": "t"}), "t"),
        (stream.select("n", "at"), "at"),
        (stream.group_by("at").aggregate(Count(), "c"), "at"),
        (stream.merge(stream, outputs="x, y, z"), "x"),
        (stream.project("word", "at").join(others, "word"), "at"),
        (stream.max_by("n"), "at"),
    ):
        assert f"of {field} of Stream" in repr(made.tumbling_window("1 hour"))


def test_what_a_window_is_and_where_it_is_kept() -> None:
    stream = marked()
    by_time = stream.filter(expr("n > 0")).project("at", "n").sliding_window("1 hour", "30 minutes")
    assert repr(by_time).startswith("WindowedStream(1 hour every 30 minutes of at of Stream(")
    assert by_time.rows().schema["window"].dataType.simpleString() == "struct<start:timestamp,end:timestamp>"
    assert by_time.rows().fields == ("window", "at", "n")
    assert by_time.late_rows().fields == ("at", "n") and by_time.name == "test_window1"
    by_rows = stream.tumbling_window(5)
    assert by_rows.name == "test_window2" and by_rows.group_by("word").keys == ("window", "word")
    counted = by_rows.aggregate(Count(), "rows")
    assert counted.schema.simpleString() == "struct<window:struct<start:bigint,end:bigint>,rows:bigint>"
    # A window behind another one has no watermark of its own.
    assert "processing time" in repr(by_time.rows().project("at", "n").tumbling_window("1 hour"))
    lowered = plan(stream._graph)[0].lowered
    assert lowered.late_order, "rows are counted in the order of the batch"
    assert "Spark: windows of 1 hour of processing time: rows to keep, " in topology_of(stream).explain()


def test_the_windows_are_part_of_the_topologys_identity() -> None:
    def identity(build: Callable[[Stream], Any]) -> Any:
        stream = stream_of("at timestamp, n long")
        build(stream)
        return topology_of(stream).identity()

    builds = [
        lambda s: s.tumbling_window(3),
        lambda s: s.sliding_window(3, 2),
        lambda s: s.tumbling_window("3 seconds"),
        lambda s: s.with_watermark("at", "0 seconds").tumbling_window("3 seconds"),
        lambda s: s.with_watermark("at", "1 second").tumbling_window("3 seconds"),
    ]
    assert len({repr(identity(build)) for build in builds}) == len(builds)
    assert identity(builds[0]) == identity(builds[0])


class _Feed:
    """A batch spout: a replay of it may hold other rows."""

    output_schema = RowsSpout("n long").output_schema

    def open(self, context: Any) -> None: ...

    def emit_batch(self, txid: int) -> list: ...

    def ack(self, txid: int) -> None: ...

    def close(self) -> None: ...


def test_a_window_over_a_source_that_cannot_be_exact_is_warned_about() -> None:
    stream = TridentTopology("loose").new_stream("rows", _Feed())
    with pytest.warns(NotExactlyOnceWarning, match="state 'loose_window1'"):
        stream.tumbling_window(3)
