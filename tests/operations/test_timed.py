"""Dedup, joins within a time and timers on Spark: against oracles, over crashes and restarts, and what they refuse."""

from __future__ import annotations

import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.chaos.oracle import Table
from tests.operations import timed_oracle as oracle
from tests.operations.timed_turns import SECOND, Turns, at, rows_of
from tests.operations.timed_users import Baskets
from tests.streams.stream_helpers import RowsSpout, stream_of, topology_of
from tests.topology_helpers import Starter
from trident import DeltaAppend, FixedBatchSpout, TridentTopology, expr
from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.operations.joins import JoinOutFieldsMode
from trident.streams.stream import Stream

FIELDS = "key string, at timestamp, n long"
STATE, OUTPUTS = "n long, last timestamp", "what string, n long"
NO_TIME = expr("cast(null as timestamp) as at")
ROUNDS = int(os.environ.get("TRIDENT_RANDOM", "0"))
CLOCK = [20, 33, 31, *range(40, 40 + ROUNDS, 5)]  # of processing time; seconds


def batches_of(rng: random.Random, turns: int) -> list[list[tuple]]:
    """(key, seconds, number) of rows that are all different; in each batch one of the keys is silent."""
    numbers = iter(range(10_000))
    found: list[list[tuple]] = [[("b", 0, next(numbers))]]
    for turn in range(turns):
        times = [rng.choice([None, *[8 * turn + rng.randrange(-6, 12)] * 9]) for _ in range(7)]
        keys = [key for place, key in enumerate(("a", "b", None)) if place != turn % 3]
        found.append([*(found.pop() if not turn else []), *((rng.choice(keys), at, next(numbers)) for at in times)])
    return found


def stamped(batches: list) -> list:
    return [[(key, at(time), n) for key, time, n in rows] for rows in batches]


def numbers(rows: list, field: int) -> Counter:
    return Counter(row[field] for row in rows)


@pytest.mark.long
def test_dedup_a_join_and_timers_give_what_the_oracles_give(spark: SparkSession, rng: random.Random) -> None:
    """In one Spark partition and in several, with an empty batch."""
    left = stream_of(FIELDS)
    right = topology_of(left).new_stream("others", RowsSpout(FIELDS)).with_watermark("at", "2 seconds")
    left = left.with_watermark("at", "4 seconds")
    passed = left.drop_duplicates("key", within="9 seconds")
    passed.partition_persist(DeltaAppend("passed"))
    passed.late_rows().partition_persist(DeltaAppend("late"))
    joined = left.join(right, "key", "full", "key, at, n, its_at, its_n", within=("-3 seconds", "7 seconds"))
    joined.partition_persist(DeltaAppend("joined"))
    joined.late_rows(1).partition_persist(DeltaAppend("late_right"))
    ticks = iter([second * SECOND for second in CLOCK])
    by_time = left.group_by("key").process("at", Baskets(), OUTPUTS, state=STATE)
    by_time.partition_persist(DeltaAppend("timed"))
    unmarked = stream_of(FIELDS, "clock").select("key", "n", NO_TIME).group_by("key")
    by_clock = unmarked._process("at", Baskets(), OUTPUTS, STATE, None, clock=lambda: next(ticks))
    by_clock.partition_persist(DeltaAppend("clocked"))
    turns, alone, count = Turns(spark, left), Turns(spark, by_clock), 3 + ROUNDS // 10
    lefts, rights = batches_of(rng, count), batches_of(rng, count)
    lefts[rng.randrange(count)] = []
    rows = [[[(key, time, (key, n)) for key, time, n in batch] for batch in side] for side in (lefts, rights)]
    deduped = oracle.dedup(rows[0], 4, 9)
    pairs = oracle.join(*rows, (4, 2), (-3, 7), (True, True))
    timed = oracle.baskets(rows[0], 4)
    clocked = oracle.baskets(rows[0], None, CLOCK)
    for turn in range(count):
        found = turns.run({"rows": stamped(lefts)[turn], "others": stamped(rights)[turn]}, rng.choice([1, 3]))
        found |= alone.run({"rows": stamped(lefts)[turn]})
        assert numbers(found["passed"], 2) == Counter(n for _, n in deduped[turn][0])
        assert numbers(found["late"], 2) == Counter(n for _, n in deduped[turn][1])
        assert Counter((row[2], row[4]) for row in found["joined"]) == Counter(
            (one and one[1], other and other[1]) for one, other in pairs[turn][0]
        )
        assert Counter(found["timed"]) == Counter(timed[turn][0])
        assert Counter(found["clocked"]) == Counter(clocked[turn][0])
        assert numbers(found["late_right"], 2) == Counter(n for _, n in pairs[turn][2])


# --- whole topologies --------------------------------------------------------------------


def visits(lefts: list, rights: list) -> TridentTopology:
    topology = TridentTopology("visits")
    views = topology.new_stream("views", FixedBatchSpout(FIELDS, stamped(lefts))).with_watermark("at", "4 seconds")
    buys = topology.new_stream("buys", FixedBatchSpout(FIELDS, stamped(rights))).with_watermark("at", "2 seconds")
    passed = views.drop_duplicates("key", within="9 seconds", name="seen")
    passed.project("n").partition_persist(DeltaAppend("passed"))
    passed.late_rows().project("n").partition_persist(DeltaAppend("late"))
    joined = views.join(buys, "key", "left", "key, at, n, its_at, its_n", within="7 seconds", name="waiting")
    joined.project("n", "its_n").partition_persist(DeltaAppend("joined"))
    # A group of its own, with code of the user's.
    again = topology.new_stream("again", FixedBatchSpout(FIELDS, stamped(lefts))).with_watermark("at", "4 seconds")
    timed = again.group_by("key").process("at", Baskets(), OUTPUTS, state=STATE, name="alarms")
    timed.partition_persist(DeltaAppend("timed"))
    return topology


@pytest.mark.long
def test_exactly_once_over_crashes(start: Starter, tmp_path: Path, rng: random.Random) -> None:
    """States that are merged in between; then a coordinator that hangs behind a decision, and wakes up deposed."""
    lefts, rights = batches_of(rng, 4), batches_of(rng, 4)
    first = start.run(visits(lefts[:1], rights[:1]))
    held = {name: first.snapshot(name).count() for name in ("seen", "waiting", "alarms")}
    progress = list(first.recent_progress)
    first.stop()  # merges what waits
    for name, count in held.items():
        assert len(list(Table.read(tmp_path / "warehouse" / name).rows())) == count > 0, name
    last = start.replace_at("publish.table", visits(lefts, rights), visits(lefts, rights))
    progress += last.recent_progress  # the one that hung may have done all batches of one group
    forms = {(one["group"], part) for one in progress for part in one["duration_ms"] if "_by_" in part}
    assert {group for group, _ in forms} == {"buys", "again"}
    assert {form for _, form in forms} <= {"resolve_by_pass", "resolve_by_one_job"}
    rows = [[[(key, time, n) for key, time, n in batch] for batch in side] for side in (lefts, rights)]
    deduped = oracle.dedup(rows[0], 4, 9)
    pairs = oracle.join(*rows, (4, 2), (-7, 7), (True, False))

    assert rows_of(tmp_path, "passed") == Counter((n,) for given, _ in deduped for n in given)
    assert rows_of(tmp_path, "late") == Counter((n,) for _, late in deduped for n in late)
    assert rows_of(tmp_path, "timed") == Counter(row for given, _ in oracle.baskets(rows[0], 4) for row in given)
    assert rows_of(tmp_path, "joined") == Counter(pair for given, *_ in pairs for pair in given)


# --- what is refused ---------------------------------------------------------------------


def marked(fields: str = FIELDS) -> Stream:
    return stream_of(fields).with_watermark("at", "4 seconds")


def beside(stream: Stream, how: Callable[[Stream], Stream] = lambda s: s.with_watermark("at", "1 second")) -> Stream:
    return how(topology_of(stream).new_stream("others", RowsSpout("key string, at timestamp, m long")))


def process(stream: Stream, processor: Any, inputs: str = "at", outputs: str = OUTPUTS, state: str = STATE) -> Stream:
    return stream.group_by("key").process(inputs, processor, outputs, state=state)


def with_bound(stream: Stream, **more: Any) -> Stream:
    given = {"on": "key", "outputs": "key, at, n, its_at, m", "within": "1 minute", **more}
    return stream.join(beside(stream), **given)


MAP = "k map<string, long>, at timestamp"


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: marked().drop_duplicates("key"), TopologyError, "needs a time.*no `within`.*Upsert"),
        (lambda: stream_of(FIELDS).drop_duplicates("key", within="1 day"), TopologyError, "needs a watermark"),
        (lambda: marked().drop_duplicates("kye", within="1 day"), FieldError, "did you mean 'key'"),
        (lambda: marked().drop_duplicates("key", within="0 days"), TopologyError, "more than nothing"),
        (lambda: marked().drop_duplicates("key", within="1 month"), TopologyError, "no duration"),
        (lambda: marked("_due long, at timestamp").drop_duplicates("_due", within="1 day"), FieldError, "key '_due'"),
        (lambda: marked(MAP).drop_duplicates("k", within="1 day"), TopologyError, "a type that can be compared"),
        (lambda: process(marked(), Baskets), TopologyError, "an object, not its class"),
        (lambda: process(marked(), object()), TopologyError, "with on_row and on_time.*without on_row"),
        (lambda: process(marked(), Baskets(), inputs="at, n"), TopologyError, "cannot be called with the fields"),
        (lambda: process(marked(), Baskets(), inputs="ta"), FieldError, "did you mean 'at'"),
        (lambda: process(marked(), Baskets(), outputs="n"), OutputTypeError, "outputs.*need types.*'n long'"),
        (lambda: process(marked(), Baskets(), state=""), OutputTypeError, "the state.*not given"),
        (lambda: process(marked(), Baskets(), outputs="key string"), FieldError, "key"),
        (lambda: process(stream_of(FIELDS), Baskets()).late_rows(), TopologyError, "no row is late.*with_watermark"),
        (lambda: marked().late_rows(), TopologyError, "no such late rows.*with_watermark"),
        (lambda: marked().drop_duplicates("key", within="1 day").late_rows(1), TopologyError, "no such late rows"),
        (lambda: with_bound(stream_of(FIELDS)), TopologyError, "join within a time needs a watermark"),
        (lambda: with_bound(marked(), within=("2 seconds", "1 second")), TopologyError, "holds no time"),
        (lambda: with_bound(marked(), within=5), TopologyError, "no duration"),
        (lambda: with_bound(marked(), mode=JoinOutFieldsMode.PRESERVE), TopologyError, "COMPACT"),
        (lambda: with_bound(marked(), outputs=None), FieldError, "two fields of one name"),
        (lambda: with_bound(marked(), how="cross"), TopologyError, "does not know the type"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_built(build: Callable[[], Any], error: type, message: str) -> None:
    with pytest.raises(error, match=f"(?si){message}"):
        build()


def test_what_they_are_and_where_it_is_kept() -> None:
    stream = marked()
    passed = stream.drop_duplicates(within="1 day")
    assert passed.fields == stream.fields == passed.late_rows().fields
    # Rows that go on keep the watermark, those of a join have none.
    assert "of at of Stream" in repr(passed.tumbling_window("1 hour"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a join within a time finds all pairs: nothing to warn of
        joined = with_bound(stream)
    assert joined.schema.simpleString() == "struct<key:string,at:timestamp,n:bigint,its_at:timestamp,m:bigint>"
    assert "processing time" in repr(joined.tumbling_window("1 hour"))
    text = topology_of(stream).explain()
    assert "drop_duplicates(key, at, n within 1 day)" in text and "keyed state test_drop_duplicates1" in text
    entries = "entries of test_drop_duplicates1 for the rows' keys, and those that are due"
    assert f"{entries} (of few rows in its local copy)" in text
    assert "join(key inner within 1 minute)" in text and "keyed state test_join1" in text


def test_its_times_are_part_of_the_topologys_identity() -> None:
    def identity(build: Callable[[Stream], Any], delay: str = "4 seconds") -> str:
        stream = stream_of(FIELDS).with_watermark("at", delay)
        build(stream)
        return repr(topology_of(stream).identity())

    builds = [
        lambda s: s.drop_duplicates("key", within="1 day"),
        lambda s: s.drop_duplicates("key", within="2 days"),
        lambda s: s.drop_duplicates("key", "n", within="1 day"),
        lambda s: process(s, Baskets()),
        lambda s: process(s, Baskets(), state="n double, last timestamp"),
        lambda s: with_bound(s),
        lambda s: with_bound(s, how="left"),
        lambda s: with_bound(s, within=("0 seconds", "1 minute")),
    ]
    assert len({identity(build) for build in builds}) == len(builds)
    assert identity(builds[0]) != identity(builds[0], "5 seconds")
    assert identity(builds[0]) == identity(builds[0])
