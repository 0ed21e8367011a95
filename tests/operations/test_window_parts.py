"""Windows that keep parts, and sessions: against oracles that forget nothing; on Spark, over crashes, in both forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tests.operations.timed_turns import at, rows_of
from tests.operations.window_oracle import event_marks, sessions, windows
from tests.running.test_local_copies import uses  # noqa: F401 (a fixture)
from tests.streams.stream_helpers import Longest, stream_of, topology_of
from tests.topology_helpers import Starter
from trident import Aggregator, Count, DeltaAppend, FixedBatchSpout, Max, Min, Sum, TridentTopology, expr
from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.window_spec import PaneRules, SessionRules, SessionSpec, Unit, WindowSpec
from trident.operations.windows import windows_with_rows
from trident.states.core.descriptor import StateDescriptor
from trident.streams.stream import Stream
from trident.workers.calls import prepared
from trident.workers.chain import Frame, Meter
from trident.workers.failures import ERROR, Label, UserCodeFailed, find_report
from trident.workers.open_windows import AT, DUE, NEWEST, PANE, ROWS, SESSIONS, Part, PartsOfPanes, Store, UsersPart

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda both: (max(both), min(both)))
TURNS = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 120), st.sampled_from("ab")), max_size=5), st.integers(0, 60)),
    max_size=7,
)


class Held(Store):
    """A state in a dict: what the step asks a copy for."""

    def __init__(self, position: Callable[[bytes, tuple], int]) -> None:
        self.rows: dict[bytes, tuple] = {}
        self.position = position

    def get(self, keys: Any) -> list:
        return [self.rows.get(key) for key in keys]

    def due(self, first: int | None, below: int) -> Any:
        found = [(self.position(key, row), key, row) for key, row in self.rows.items()]
        return [one for one in found if one[0] < below and (first is None or first <= one[0])]

    def take(self, changes: Any, row: Callable[[Any], tuple]) -> None:
        assert not set(changes.put) & set(changes.gone)
        assert all(self.rows.pop(key) for key in changes.gone), "a group that is not stored was deleted"
        self.rows.update({key: row(value) for key, value in changes.put.items()})


def lists(a: tuple, b: tuple) -> tuple:
    """Parts that are lists of rows: nothing gets lost, and nothing counts twice, unseen."""
    return (a[0] + b[0],)


def name_of(pane: int, key: str) -> bytes:
    return b"\x00" + (pane + (1 << 63)).to_bytes(8, "big") + key.encode()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@example((20, 10), [([(5, "a")], 10), ([], 10)])
@given(SIZES, TURNS)
def test_parts_of_panes_give_what_all_rows_ever_give(size: tuple[int, int], turns: list) -> None:
    rules = PaneRules(WindowSpec(*size, Unit.EVENT_TIME, "at"), ("_part0",))
    marks = [sum(step for _, step in turns[: n + 1]) for n in range(len(turns))]
    held = Held(lambda key, row: int.from_bytes(key[1:9], "big") - (1 << 63))
    batches = [[(at, (at, key, n, place)) for place, (at, key) in enumerate(rows)] for n, (rows, _) in enumerate(turns)]
    for n, expected in enumerate(windows(batches, marks, *size)):
        before, now = (marks[n - 1] if n else None), marks[n]
        rows = [row for at, row in batches[n] if not rules.is_closed(rules.pane_of(at), before)]
        assert [row for _, row in batches[n] if row not in rows] == expected.late
        new = [(name_of(rules.pane_of(row[0]), row[1]), rules.pane_of(row[0]), ([row],)) for row in rows]
        changes = rules.changes(held, new, lists, before, now)
        found = [(start, end, row) for start, end, key, (rows,) in changes.fired for row in rows]
        assert all({row[1] for row in rows} == {key[9:].decode()} for _, _, key, (rows,) in changes.fired)
        assert sorted(found) == sorted(expected.fired)
        assert len({(start, key[9:]) for start, _, key, _ in changes.fired}) == len(changes.fired)
        held.take(changes, lambda value: (None, *value))
        assert all(not rules.is_closed(held.position(key, row), now) for key, row in held.rows.items())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@example(5, [([(0, "a"), (3, "a")], 1), ([], 20), ([], 20)])
@given(st.integers(1, 30), TURNS)
def test_sessions_give_what_all_rows_ever_give(gap: int, turns: list) -> None:
    rules = SessionRules(SessionSpec(gap, "at", 0, ("key",)), ("_part0",))
    marks = [sum(step for _, step in turns[: n + 1]) for n in range(len(turns))]
    held = Held(lambda key, row: row[0])
    batches = [
        [(at, key, (at, key, n, place)) for place, (at, key) in enumerate(rows)] for n, (rows, _) in enumerate(turns)
    ]
    for n, expected in enumerate(sessions(batches, marks, gap)):
        before, now = (marks[n - 1] if n else None), marks[n]
        new = [(key.encode(), at, ([row],)) for at, key, row in batches[n] if not rules.is_closed(at, before)]
        changes = rules.changes(held, new, lists, before, now)
        found = [(start, end, key.decode(), sorted(rows)) for start, end, key, (rows,) in changes.fired]
        assert sorted(found) == sorted((start, end, key, sorted(rows)) for start, end, (key, rows) in expected.fired)
        held.take(changes, lambda value: tuple(rules.columns([value])[name][0] for name in (DUE, SESSIONS)))
        assert all(row[0] == min(one["end"] for one in row[1]) > now for row in held.rows.values())


# --- what is kept ------------------------------------------------------------------------


def marked(fields: str = "at timestamp, word string, n long, x double") -> Stream:
    return stream_of(fields).with_watermark("at", "1 minute")


class Known(Count):
    """A class of the user's below a built-in one."""


class Gathered:
    """A combiner of lists."""

    def init(self, word):
        return [word]

    def combine(self, a, b):
        return a + b

    def zero(self):
        return []


def both(windowed: Any) -> None:
    windowed.group_by("word").aggregate(Count(), "rows").partition_persist(DeltaAppend("a"))
    windowed.group_by("word").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("b"))


def one_grouping_twice(windowed: Any) -> None:
    grouped = windowed.group_by("word")
    grouped.aggregate(Count(), "rows").partition_persist(DeltaAppend("b"))
    grouped.aggregate("n", Sum(), "total").partition_persist(DeltaAppend("c"))


def one_grouping_twice_and_late_rows(windowed: Any) -> None:
    persisted(windowed.late_rows().project("n"))
    one_grouping_twice(windowed)


def persisted(stream: Stream) -> None:
    stream.partition_persist(DeltaAppend("a"))


def grouped(windowed: Any, *aggregate: Any) -> None:
    persisted(windowed.group_by("word").aggregate(*aggregate))


def chained(windowed: Any) -> None:
    persisted(windowed.chained_agg().aggregate(Count(), "c").aggregate("x", Max(), "m").chain_end())


def both_and_squares(windowed: Any) -> None:
    both(windowed)
    windowed.group_by("word").aggregate("n", Squares(), "squares long").partition_persist(DeltaAppend("c"))


def both_and_the_whole(windowed: Any) -> None:
    both(windowed)
    windowed.aggregate(Count(), "c").partition_persist(DeltaAppend("c"))


def one_grouping_in_a_chain_too(windowed: Any) -> None:
    grouped = windowed.group_by("word")
    persisted(grouped.aggregate(Count(), "c"))
    grouped.chained_agg().aggregate("n", Max(), "m").chain_end().partition_persist(DeltaAppend("b"))


def its_rows_twice(windowed: Any) -> None:
    rows = windowed.rows()
    persisted(rows.group_by("window").aggregate(Count(), "c"))
    rows.partition_persist(DeltaAppend("b"))


PARTS = "parts, not rows, per pane of 30 minutes"
ALONE = "values of Known() of type bigint are combined by Spark alone"
GATHERED = "Gathered makes values of type array<string>"


@pytest.mark.parametrize(
    ("use", "stores"),
    [
        (lambda w: grouped(w, Count(), "c"), f"{PARTS} and word"),
        (both, f"{PARTS} and word: Count() -> rows, Sum() -> total"),
        (chained, f"{PARTS}: Count() -> c, Max() -> m"),
        (lambda w: persisted(w.rows()), "rows: partition_persist"),
        (lambda w: grouped(w, "n", Known(), "k"), f"rows: {ALONE}"),
        (lambda w: persisted(w.aggregate("word", Longest(), "l")), "rows: aggregate(Longest) needs them"),
        (both_and_squares, f"{PARTS} and word: Count() -> rows, Sum() -> total, Squares -> squares"),
        (lambda w: persisted(w.aggregate("word", Gathered(), "w array<string>")), f"rows: {GATHERED}"),
        (lambda w: persisted(w.group_by("word").agg(expr("max(n) as m"))), "rows: agg"),
        (both_and_the_whole, "rows: they are grouped in more than one way"),
        (lambda w: persisted(w.late_rows()), "rows: no operation needs them"),
        (one_grouping_twice_and_late_rows, f"{PARTS} and word: Count() -> rows, Sum() -> total"),
        (one_grouping_in_a_chain_too, f"{PARTS} and word: Count() -> c, Max() -> m"),
        (its_rows_twice, "rows: one grouping has several uses"),
    ],
)
def test_explain_says_what_a_window_stores(use: Callable[[Any], Any], stores: str) -> None:
    stream = marked()
    use(stream.sliding_window("2 hours", "90 minutes"))
    assert f"note: stores {stores}" in topology_of(stream).explain()


@pytest.mark.parametrize(
    "use", [one_grouping_twice, lambda sessions: grouped(sessions, "n", Squares(), "squares long")]
)
def test_sessions_with_several_uses_or_a_combiner_of_the_users_keep_lists_of_rows(use: Callable[[Any], Any]) -> None:
    stream = marked()
    use(stream.session_window("1 hour"))
    assert "note: stores lists of rows, per session and word" in topology_of(stream).explain()


class Answers:
    """A combiner that gives what it was made with, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def combine(self, a: Any, b: Any) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        (pa.int64(), ZeroDivisionError("no"), "ZeroDivisionError: no"),
        (pa.int64(), SystemExit("out"), "SystemExit: out"),
        (pa.int64(), 0.5, "0.5"),
        (pa.int64(), True, "True"),
        (pa.int64(), 1 << 63, str(1 << 63)),
        (pa.int32(), 1 << 31, str(1 << 31)),
        (pa.string(), b"text", "text"),
        (pa.float64(), "1", "'1'"),
    ],
)
def test_what_a_combiner_raises_and_a_value_of_another_type_is_told_with_its_line(kind, answer, said):
    part = UsersPart("_part0", kind, "", Answers(answer), Label("aggregate(Answers)", "here.py:1"), "best")
    with pytest.raises(UserCodeFailed) as caught:
        part.combine(1, 2)
    report = find_report(caught.value, ERROR)
    assert report is not None and report["operation"] == "aggregate(Answers)"
    assert said in f"{report['error']} {report.get('found')}"
    assert isinstance(answer, BaseException) or "output 'best'" in report["error"]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (pa.int64(), None),
        (pa.int64(), -(1 << 63)),
        (pa.int16(), (1 << 15) - 1),
        (pa.string(), ""),
        (pa.binary(), b"\x00"),
        (pa.float64(), -0.0),
        (pa.bool_(), False),
    ],
)
def test_values_of_the_type_are_taken_as_they_are(kind: pa.DataType, answer: Any) -> None:
    made = UsersPart("_part0", kind, "", Answers(answer), Label("", ""), "").combine(1, 2)
    assert made == answer and type(made) is type(answer)


def test_parts_that_meet_become_one_and_those_that_python_cannot_combine_stay_as_they_are() -> None:
    users = UsersPart("_part0", pa.int64(), "", Squares(), Label("", ""), "")
    native = Part("_part1", pa.decimal128(6, 0), "sum")
    step = PartsOfPanes((("word", pa.string()),), (users, native))

    def run(*rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        names = (AT, "word", "_part0", "_part1", ROWS, NEWEST)
        kinds = (pa.int64(), pa.string(), pa.int64(), pa.decimal128(6, 0), pa.int64(), pa.int64())
        columns = {name: pa.array(values, kind) for name, values, kind in zip(names, zip(*rows), kinds)}
        with prepared([step]):
            (made,) = step.run(iter([Frame(columns, len(rows), Meter())]))
        return list(zip(*[made.array(name).to_pylist() for name in names]))

    most, one = Decimal(999_999), Decimal(1)
    assert run(
        (0, "a", 1, one, 1, 5), (0, "b", 2, one, 1, 4), (0, "a", 3, most - 1, 2, 3), (None, "a", 4, None, 1, None)
    ) == [(0, "a", 4, most, 3, 5), (0, "b", 2, one, 1, 4), (None, "a", 4, None, 1, None)]
    too_much = [(0, "a", 1, most, 1, 5), (0, "a", 2, one, 1, 4)]
    assert run(*too_much) == too_much
    assert set(map(id, step.user.users)) == {id(users.users)} and isinstance(step.label, Label)


def test_windows_without_a_name_have_the_numbers_that_they_always_had() -> None:
    """Stored states are found by them: each window that is used at its call counts, with or without a name.

    Sessions have no node before their keys are known: the call counts.
    """
    stream = marked()
    visits = stream.session_window("1 hour", "visits")
    names = [stream.tumbling_window("1 hour").name]
    visits.group_by("word").aggregate(Count(), "rows").partition_persist(DeltaAppend("out"))
    unnamed = stream.session_window("2 hours")
    stream.tumbling_window("2 hours", "named")
    unnamed.group_by("word").aggregate(Count(), "rows").partition_persist(DeltaAppend("others"))
    names += [unnamed.name, stream.tumbling_window(5).name]
    assert visits.name == "visits" and names == ["test_window1", "test_window3", "test_window5"]


def test_windows_of_rows_and_of_processing_time_keep_rows() -> None:
    stream = marked()
    persisted(stream.tumbling_window(10).aggregate(Count(), "c"))
    assert "note: stores rows: windows of rows keep rows" in topology_of(stream).explain()


def test_the_parts_are_part_of_the_identity_and_the_rows_of_an_older_version_go_on(tmp_path: Path) -> None:
    def made() -> Any:
        stream = marked()
        persisted(stream.tumbling_window("1 hour", "open").group_by("word").aggregate(Count(), "c"))
        return topology_of(stream)

    topology = made()
    parts = topology.identity()["states"]["open"]
    assert parts["keys"] == [PANE, "word"] and "parts(count())" in parts["aggregator"]
    old = made()
    old.graph.kept_rows.add("open")
    rows = old.graph.sinks["open"].writes
    assert rows.identity()["keys"] == ["_seq"]
    assert windows_with_rows(tmp_path, ["open"]) == set()
    StateDescriptor.of(rows, "test", "rows", "inc", 1).save(tmp_path)
    assert windows_with_rows(tmp_path, ["open", "a"]) == {"open"}
    StateDescriptor.of(topology.graph.sinks["open"].writes, "test", "rows", "inc", 1).save(tmp_path)
    assert windows_with_rows(tmp_path, ["open"]) == set()


def with_other_keys(windowed: Any) -> None:
    windowed.group_by("word")
    windowed.group_by("n")


TAKEN = "_due long, at timestamp"


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda s: stream_of("at timestamp").session_window("1 hour").rows(), TopologyError, "need event time"),
        (lambda s: s.session_window("0 seconds"), TopologyError, "cannot have that gap"),
        (lambda s: s.session_window(5), TopologyError, "is no duration"),
        (lambda s: s.session_window("1 hour").group_by("ward"), FieldError, "did you mean 'word'"),
        (lambda s: s.session_window("1 hour").late_rows(), TopologyError, "before their keys are known"),
        (lambda s: with_other_keys(s.session_window("1 hour")), TopologyError, "one choice of keys.*n after word"),
        (lambda s: marked(TAKEN).session_window("1 hour").rows(), FieldError, "cannot keep field '_due'"),
    ],
)
def test_sessions_that_cannot_be_are_refused(build: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=f"(?si){message}"):
        build(marked())


# --- on Spark ----------------------------------------------------------------------------


def stamped(batches: list) -> list:
    return [[(at(time), *rest) for time, *rest in rows] for rows in batches]


GAP, DELAY = 10, 8


def visits(batches: list, own: bool) -> TridentTopology:
    """The topology of the tests; ``own``: its late part has no code of the user's, so that it runs in the driver."""
    topology = TridentTopology("visits")
    source = FixedBatchSpout("at timestamp, user string, n long", stamped(batches))
    stream = topology.new_stream("visits", source).with_watermark("at", f"{DELAY} seconds")
    counted = stream.session_window(f"{GAP} seconds", "counted")
    chain = counted.group_by("user").chained_agg().aggregate(Count(), "rows")
    chain.aggregate("n", Sum(), "total").aggregate("n", Min(), "least").chain_end().partition_persist(
        DeltaAppend("counts")
    )
    counted.late_rows().partition_persist(DeltaAppend("late"))
    whole = stream.session_window(f"{GAP} seconds", "whole")
    if own:
        whole.rows().project("window", "user", "n").partition_persist(DeltaAppend("texts"))
    else:
        whole.group_by("user").aggregate("n", Numbers(), "numbers string").partition_persist(DeltaAppend("texts"))
        mine = stream.sliding_window("20 seconds", "15 seconds", "mine")
        mine.group_by("user").aggregate("n", Squares(), "squares long").partition_persist(DeltaAppend("squares"))
        for name, aggregator in (("rows", Count()), ("last", Max())):
            given = ("n",) if name == "last" else ()
            mine.group_by("user").aggregate(*given, aggregator, name).partition_persist(DeltaAppend(f"squares_{name}"))
        rows = stream.sliding_window("20 seconds", "15 seconds", "joined_panes")
        rows.group_by("user").aggregate("user, n", Joined(), "joined string").partition_persist(DeltaAppend("joined"))
        rows.late_rows().project("user", "n").partition_persist(DeltaAppend("joined_late"))
    panes = stream.sliding_window("20 seconds", "15 seconds", "panes").group_by("user")
    panes.aggregate("n", Sum(), "total").partition_persist(DeltaAppend("panes_out"))
    panes.aggregate(Count(), "rows").partition_persist(DeltaAppend("panes_rows"))
    return topology


class Squares:
    """A combiner: what counts twice, or not at all, is seen. Its hooks must have been called where it is."""

    prepared = False

    def prepare(self, context: Any) -> None:
        self.prepared = True

    def cleanup(self) -> None:
        self.prepared = False

    def init(self, n: int | None) -> int:
        assert self.prepared
        return (n or 0) ** 2

    def combine(self, a: int, b: int) -> int:
        assert self.prepared
        return a + b

    def zero(self) -> int:
        return 0


class Joined:
    """A combiner of texts; null where a row has no number."""

    def init(self, user: str | None, n: int | None) -> str | None:
        return None if n is None else f"{user}{n} "

    def combine(self, a: str | None, b: str | None) -> str | None:
        return "".join(sorted((a or "") + (b or "")))

    def zero(self) -> str:
        return ""


class Numbers(Aggregator):
    """All values in order, as text: an aggregate that needs the rows themselves."""

    def init(self, batch_id: Any) -> list:
        return []

    def aggregate(self, state: list, n: int | None) -> None:
        state.append(n)

    def complete(self, state: list) -> str:
        return str(sorted(state, key=str))


TABLES = ("counts", "late", "texts", "panes_out", "panes_rows")
OF_COMBINERS = ("squares", "squares_rows", "squares_last", "joined", "joined_late")


def expected_of(batches: list, own: bool) -> dict[str, Counter]:
    marks = event_marks(batches, DELAY)
    found: dict[str, Counter] = {name: Counter() for name in (TABLES if own else TABLES + OF_COMBINERS)}
    for fired, late in sessions([[(r[0], r[1], r) for r in rows] for rows in batches], marks, GAP):
        found["late"].update(late)
        for start, end, (user, rows) in fired:
            numbers = [row[2] for row in rows]
            known = [n for n in numbers if n is not None]
            found["counts"][(start, end), user, len(rows), sum(known), min(known, default=None)] += 1
            if not own:
                found["texts"][(start, end), user, str(sorted(numbers, key=str))] += 1
    if own:  # sessions of all users together
        for fired, _ in sessions([[(r[0], None, r) for r in rows] for rows in batches], marks, GAP):
            found["texts"].update(((start, end), row[1], row[2]) for start, end, (_, rows) in fired for row in rows)
    for fired, late in windows([[(r[0], r) for r in rows] for rows in batches], marks, 20, 15):
        if not own:
            found["joined_late"].update(row[1:] for row in late)
        for start, end, user in {(start, end, row[1]) for start, end, row in fired}:
            numbers = [row[2] for s, _, row in fired if (s, row[1]) == (start, user)]
            found["panes_out"][(start, end), user, sum(n for n in numbers if n is not None)] += 1
            found["panes_rows"][(start, end), user, len(numbers)] += 1
            if not own:
                found["squares"][(start, end), user, sum((n or 0) ** 2 for n in numbers)] += 1
                found["squares_rows"][(start, end), user, len(numbers)] += 1
                found["squares_last"][(start, end), user, max((n for n in numbers if n is not None), default=None)] += 1
                known = [f"{user}{n} " for n in numbers if n is not None]
                joined = None if len(numbers) == 1 and not known else "".join(sorted("".join(known)))
                joined = known[0] if len(numbers) == len(known) == 1 else joined
                found["joined"][(start, end), user, joined] += 1
    return found


def found_in(folder: Path, own: bool) -> dict[str, Counter]:
    return {name: rows_of(folder, name) for name in (TABLES if own else TABLES + OF_COMBINERS)}


def random_batches(rng: Any, count: int) -> list:
    """Users with breaks, rows out of order, some late, some without a time."""
    batches = []
    for n in range(count):
        around = 12 * n
        times = [around + rng.choice([0, 0, -9, -14, 5]) + rng.randrange(8) for _ in range(rng.randrange(1, 9))]
        batches.append(
            [
                (rng.choice([None, *[time] * 12]), rng.choice(["a", "b", None]), rng.choice([None, *range(9)]))
                for time in times
            ]
        )
    return [*batches, [(12 * count + 200, "end", 0)]]


@pytest.mark.long
@pytest.mark.parametrize("form", ["own", "users", "tables"])
def test_exactly_once_over_crashes(start, tmp_path, rng, form, uses):  # noqa: F811
    """A coordinator that hangs behind a decision, half published, and wakes up deposed."""
    start._settings["local_copies"] = form != "tables"
    own = form == "own"
    batches = random_batches(rng, 5 if form == "users" else 3)  # without copies each takes seconds
    query = start.replace_at("publish.table", visits(batches, own), visits(batches, own))
    forms = {"resolve_by_tables"} if form == "tables" else {"resolve_by_one_job", "resolve_by_pass"}
    assert forms & {name for one in query.recent_progress for name in one["duration_ms"]}
    # The first batch has no state yet; the deposed coordinator has no copy of a log that went on.
    assert uses.count(True) >= len(batches) - 1 if form != "tables" else not any(uses)
    found, expected = found_in(tmp_path, own), expected_of(batches, own)
    for name in expected:
        assert found[name] == expected[name], name
    (about,) = query.snapshot("counted").where("_pane is null").collect()
    rows = sum(map(len, batches))
    assert (about._next, about._late) == (rows, sum(expected["late"].values()))


@pytest.mark.long
def test_a_combiner_of_the_users_has_one_job(start: Starter, tmp_path: Path, rng: Any) -> None:
    """Both parts of a batch in one job; the time of a window, which only the framework reads, is no hindrance."""
    batches = random_batches(rng, 6)
    topology = TridentTopology("one-job")
    source = FixedBatchSpout("at timestamp, user string, n long", stamped(batches))
    stream = topology.new_stream("visits", source).with_watermark("at", f"{DELAY} seconds")
    mine = stream.sliding_window("20 seconds", "15 seconds", "mine").group_by("user")
    mine.aggregate("n", Squares(), "squares long").partition_persist(DeltaAppend("squares"))
    start._settings["max_spout_pending"] = 1
    query = start.run(topology)
    assert any("resolve_by_one_job" in one["duration_ms"] for one in query.recent_progress)
    assert rows_of(tmp_path, "squares") == expected_of(batches, own=False)["squares"]


@pytest.mark.long
def test_sessions_are_those_of_spark(start: Starter, spark: Any, tmp_path: Path, rng: Any) -> None:
    """F.session_window over all rows at once, where no row is late; rows a gap apart meet."""
    times = [rng.choice([0, 10, 20, 31, 50]) + rng.randrange(3) for _ in range(12)] + [100, 110]
    rows = [(time, rng.choice("ab"), 1) for time in times]
    schema = "at timestamp, user string, n long"
    topology = TridentTopology("like-spark")
    cut = rng.randrange(1, 13)
    source = FixedBatchSpout(schema, stamped([rows[:cut], rows[cut:], [(1000, "end", 1)]]))
    stream = topology.new_stream("rows", source).with_watermark("at", "200 seconds")
    stream.session_window("10 seconds").group_by("user").aggregate(Count(), "c").partition_persist(DeltaAppend("out"))
    start.run(topology)
    frame = spark.createDataFrame(stamped([rows])[0], schema)
    expected = frame.groupBy(F.session_window("at", "10 seconds").alias("w"), "user").count().collect()
    assert rows_of(tmp_path, "out") == Counter(
        ((row.w.start.timestamp(), row.w.end.timestamp()), row.user, row["count"]) for row in expected
    )
