"""Tuple topologies without Spark: groupings, the accounts of tuples, what is refused, and what spouts are told."""

from __future__ import annotations

import datetime
import json
import pickle
import random
import sys
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs import python
from tests.tuples.tuple_helpers import Listed, Write, recorded
from trident.coordinators.errors import FieldError, SourceError, TopologyError
from trident.tuples.bolts import (
    BasicBolt,
    Grouping,
    Output,
    OutputCollector,
    Report,
    RichBolt,
    Route,
    Router,
    Tuple,
    stable_hash,
)
from trident.tuples.spouts import Tracker, make_tasks
from trident.tuples.tasks import ADDRESSED, LevelTask
from trident.tuples.topology import TupleTopology
from trident.workers.anchors import Ledger
from trident.workers.failures import UserCodeFailed

# --- groupings ---------------------------------------------------------------------------------

keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)


@given(keys, keys)
def test_equal_keys_have_equal_hashes(one: Any, other: Any) -> None:
    assert stable_hash(one) == stable_hash(one)
    if one == other:
        assert stable_hash(one) == stable_hash(other)


def test_numbers_that_are_equal_and_instants_that_are_equal_go_to_one_task() -> None:
    assert len({stable_hash(one) for one in (1, 1.0, True, Decimal("1.00"))}) == 1
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
    east = noon.astimezone(datetime.timezone(datetime.timedelta(hours=8)))
    assert noon == east and stable_hash(noon) == stable_hash(east)
    assert noon.timetz() == east.timetz() and stable_hash(noon.timetz()) == stable_hash(east.timetz())


def test_a_key_goes_to_the_same_task_in_every_process() -> None:
    values = ["刘备", b"x", 12, 1.5, None, datetime.date(2024, 1, 2), datetime.timedelta(seconds=3), ("a", 1)]
    program = (
        "import datetime; from trident.tuples.bolts import stable_hash\n"
        f"print([stable_hash(value) for value in {values!r}])"
    )
    for seed in ("1", "2"):
        done = python("-c", program, PYTHONHASHSEED=seed)
        assert json.loads(done.stdout) == [stable_hash(value) for value in values], done.stderr


def test_a_key_without_a_hash_is_an_error_that_names_its_type() -> None:
    with pytest.raises(FieldError, match="builtins.dict"):
        stable_hash({"a": 1})


def router(grouping: Grouping, tasks: int = 4, positions: tuple[int, ...] = ()) -> Router:
    route = Route("last", 2, 10, tasks, grouping, positions)
    return Router({"default": Output(0, ("a", "b"), (route,))}, random.Random(1))


def slots(chooser: Router, values: tuple) -> list[int]:
    chosen = chooser.choose("default", values)
    assert {level for level, _ in chosen} <= {2}
    return [slot - 10 for _, slot in chosen]


def test_shuffle_takes_the_tasks_in_turn() -> None:
    chooser = router(Grouping("shuffle"))
    assert Counter(slot for _ in range(40) for slot in slots(chooser, (1, 2))) == dict.fromkeys(range(4), 10)


def test_emitters_begin_with_different_tasks() -> None:
    routes = (Route("last", 1, 0, 8, Grouping("shuffle")),)
    outputs = {"default": Output(0, ("a",), routes)}
    assert len({Router(outputs, random.Random(seed)).choose("default", (1,))[0] for seed in range(50)}) == 8


def test_all_global_and_custom_groupings() -> None:
    assert slots(router(Grouping("all")), (1, 2)) == [0, 1, 2, 3]
    assert slots(router(Grouping("global")), (1, 2)) == [0]
    chooser = router(Grouping("custom", (), lambda values, tasks: [values[0] % len(tasks), 3]))
    assert slots(chooser, (6, 0)) == [2, 3]
    assert slots(router(Grouping("custom", (), lambda values, tasks: 1)), (6, 0)) == [1]
    assert slots(router(Grouping("custom", (), lambda values, tasks: [])), (6, 0)) == []


@pytest.mark.parametrize("gives", [4, -1, "x", None, [0.5], [[0]]])
def test_a_custom_grouping_that_gives_no_tasks_is_an_error(gives: Any) -> None:
    with pytest.raises(TopologyError, match="bolt 'last' gave something else than tasks"):
        slots(router(Grouping("custom", (), lambda values, tasks: gives)), (6, 0))


def test_fields_grouping_looks_at_its_fields_alone() -> None:
    chooser = router(Grouping("fields", ("b",)), positions=(1,))
    by_key = defaultdict(set)
    for a in range(200):
        by_key[a % 20].update(slots(chooser, (a, f"k{a % 20}")))
    assert all(len(tasks) == 1 for tasks in by_key.values())
    assert set().union(*by_key.values()) == {0, 1, 2, 3}


# --- accounts ----------------------------------------------------------------------------------


class World:
    """Random trees through the real collector and the real acker; and who is open, counted by itself."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.acker = Ledger()
        route = Route("next", 1, 0, 2, Grouping("all"))
        self.report = Report("bolt", 0)
        self.collector = OutputCollector(self.report, {"default": Output(0, ("roots",), (route,))})
        self.open: list[Tuple] = []
        self.failed: set[int] = set()

    def spout(self) -> None:
        root, value, copies = self.rng.getrandbits(64), 0, []
        for _ in range(self.rng.randrange(3)):
            own = self.rng.getrandbits(64)
            value ^= own
            copies.append(Tuple((frozenset({root}),), ("roots",), "spout", ids={root: own}))
        self.open += copies
        self.acker.add([root], [value])

    def emit(self) -> None:
        anchors = self.rng.choices(self.open, k=self.rng.randrange(4)) if self.open else []
        roots = frozenset().union(*(anchor["roots"] for anchor in anchors))
        self.collector.emit(roots, anchors=anchors or None)
        for _, _, content in self.collector.drain():
            self.open.append(self.received(content))

    def received(self, content: bytes) -> Tuple:
        _, payload, ids = pickle.loads(content)
        (roots,) = pickle.loads(payload)
        assert set(ids) == roots
        return Tuple((roots,), ("roots",), "bolt", ids=ids)

    def ack(self) -> None:
        if self.open:
            tuple = self.open.pop(self.rng.randrange(len(self.open)))
            for _ in range(self.rng.randrange(1, 3)):  # twice counts once
                self.collector.ack(tuple)

    def fail(self) -> None:
        if self.open:
            tuple = self.open.pop(self.rng.randrange(len(self.open)))
            self.collector.fail(tuple)
            self.collector.ack(tuple)
            self.failed |= tuple["roots"]

    def check(self) -> None:
        assert self.report.failures.keys() == self.failed
        self.acker.add([*self.report.acks], [*self.report.acks.values()])
        self.report.acks.clear()
        still_open = frozenset().union(*(tuple["roots"] for tuple in self.open))
        assert set(self.acker.incomplete()[0].tolist()) - self.failed == still_open - self.failed


steps_of_trees = st.lists(st.sampled_from(["spout", "emit", "emit", "ack", "ack", "fail"]), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), steps_of_trees)
def test_a_message_is_acknowledged_exactly_when_all_that_was_made_of_it_is(seed: int, steps: list[str]) -> None:
    world = World(seed)
    for step in steps:
        getattr(world, step)()
        world.check()
    while world.open:
        world.ack()
    world.check()


def collector(tasks: int = 1) -> OutputCollector:
    route = Route("next", 1, 0, tasks, Grouping("all"))
    return OutputCollector(Report("bolt", 0), {"default": Output(0, ("n",), (route,))})


def one_tuple(own: int = 5, root: int = 7) -> Tuple:
    return Tuple((1,), ("n",), "spout", ids={root: own})


def test_a_fail_counts_whatever_is_said_before_and_after_it() -> None:
    for said in (["fail", "ack"], ["ack", "fail"], ["fail", "fail"]):
        made, tuple = collector(), one_tuple()
        for method in said:
            getattr(made, method)(tuple)
        assert list(made.report.failures) == [7], said


def test_unanchored_tuples_have_no_ids_and_their_parent_no_account_of_them() -> None:
    made, tuple = collector(), one_tuple(own=5)
    made.emit(2)
    made.ack(tuple)
    assert made.report.acks == {7: 5}


def test_a_child_of_an_acknowledged_tuple_is_refused() -> None:
    made, tuple = collector(), one_tuple()
    made.ack(tuple)
    with pytest.raises(TopologyError, match="acknowledged already"):
        made.emit(2, anchors=tuple)


def test_a_collector_is_of_no_use_after_its_round() -> None:
    made, tuple = collector(), one_tuple()
    made.close()
    for call in (lambda: made.emit(1), lambda: made.ack(tuple), lambda: made.fail(tuple)):
        with pytest.raises(TopologyError, match="after its round had ended"):
            call()


def test_wrong_emits_are_errors_that_say_what_was_expected() -> None:
    with pytest.raises(FieldError, match="expected: 1 values: n"):
        collector().emit((1, 2))
    with pytest.raises(TopologyError, match="no stream 'other'.*one of default"):
        collector().emit(1, stream="other")
    with pytest.raises(FieldError, match="no field 'm'.*one of n"):
        one_tuple()["m"]
    assert one_tuple().get("m", 3) == 3 and one_tuple()[0] == one_tuple()["n"] == 1


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns as often as they can: what is not locked shows itself."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_a_collector_serves_many_threads(many_switches: None) -> None:
    made = collector()
    tuples = [one_tuple(own=number, root=number % 3) for number in range(1, 2001)]

    def work(share: list[Tuple]) -> None:
        for tuple in share:
            made.emit(1, anchors=[tuple, tuples[0]])
        for tuple in share[1:]:
            made.ack(tuple)

    threads = [threading.Thread(target=work, args=(tuples[start::8],)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tuple in tuples[:8]:  # the first of each share: they were anchored to till the end
        made.ack(tuple)
    children = [pickle.loads(content)[2] for _, _, content in made.drain()]
    assert len(children) == 2000 == made.report.sent[1]
    accounts = Counter(made.report.acks)
    for ids in [*(tuple._ids for tuple in tuples), *children]:
        for root, own in ids.items():
            accounts[root] ^= own
    assert not any(accounts.values())


# --- building ----------------------------------------------------------------------------------


class Nothing(BasicBolt):
    fields = "x"

    def execute(self, tuple, collector) -> None: ...


def built(*groupings: Callable[[TupleTopology], Any]) -> TupleTopology:
    topology = TupleTopology("built")
    topology.set_spout("lines", Listed([], "line, n"))
    for declare in groupings:
        declare(topology)
    return topology


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda t: t.set_bolt("b", Nothing()).shuffle_grouping("c"), "takes tuples of 'c', which is not there"),
        (lambda t: t.set_bolt("b", Nothing()).shuffle_grouping("lines", "odd"), "stream 'odd' of 'lines'"),
        (lambda t: t.set_bolt("b", Nothing()).fields_grouping("lines", "word"), "found: word; .* some of line, n"),
        (lambda t: t.set_bolt("b", Nothing()), r"bolt 'b' \(.*test_tuple_bolts.py:\d+\) has no input"),
        (lambda t: t.set_bolt("b", Nothing()).shuffle_grouping("b"), "cycle: b ← b"),
        (lambda t: None, "nothing to do"),
    ],
)
def test_a_topology_that_cannot_run_is_refused_when_it_starts(declare: Callable[..., Any], says: str) -> None:
    topology = built(declare)
    with pytest.raises(TopologyError, match=says):
        topology.explain()
    with pytest.raises(TopologyError, match=says):
        topology.start()  # before a session is made


def test_a_longer_cycle_is_named() -> None:
    topology = built()
    topology.set_bolt("a", Nothing()).shuffle_grouping("lines").shuffle_grouping("c")
    topology.set_bolt("b", Nothing()).shuffle_grouping("a")
    topology.set_bolt("c", Nothing()).shuffle_grouping("b")
    topology.set_bolt("d", Nothing()).shuffle_grouping("c")
    with pytest.raises(TopologyError, match="cycle: a ← c ← b ← a"):
        topology.plan()


class TwoArguments(RichBolt):
    def execute(self, one, two, _) -> None: ...


class Locked(RichBolt):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def execute(self, tuple) -> None: ...


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda t: t.set_bolt("lines", Nothing()), TopologyError, "'lines' already"),
        (lambda t: t.set_spout("lines", Listed([])), TopologyError, "'lines' already"),
        (lambda t: t.set_bolt("b", object()), TopologyError, "an object with execute"),
        (lambda t: t.set_bolt("b", Nothing), TopologyError, "an object with execute"),
        (lambda t: t.set_bolt("b", TwoArguments()), TopologyError, "cannot be called"),
        (lambda t: t.set_bolt("b", Locked()), TopologyError, "bolt 'b' cannot be sent to the workers.*lock"),
        (
            lambda t: t.set_bolt("b", Nothing(), parallelism=0),
            TopologyError,
            "the number of tasks of bolt 'b' is wrong; found: 0",
        ),
        (lambda t: t.set_bolt("b", Write(Path("x"), "n, m, N")), FieldError, "'n' and 'N'"),
        (lambda t: t.set_spout("s", Listed([], "a, a")), FieldError, "name a field twice"),
        (lambda t: t.set_spout("s", Listed([], "")), TopologyError, "spout 's' has no fields"),
        (lambda t: t.set_spout("s", Nothing()), TopologyError, "'s' is no spout"),
        (lambda t: t.set_spout("no name", Listed([])), TopologyError, "cannot be used"),
        (lambda t: t.set_bolt("b", Nothing()).custom_grouping("lines", 3), TopologyError, "is no function"),
        (
            lambda t: t.set_bolt("b", Nothing()).custom_grouping("lines", threading.Lock().acquire),
            TopologyError,
            "custom grouping of bolt 'b' cannot be sent to the workers",
        ),
        (
            lambda t: t.set_bolt("b", Nothing()).shuffle_grouping("lines").all_grouping("lines"),
            TopologyError,
            "'default' of 'lines' twice",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(declare: Callable, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        declare(built())


def test_a_bolt_is_on_the_level_of_the_longest_way_to_it() -> None:
    topology = built()
    topology.set_bolt("last", Nothing(), 3).shuffle_grouping("lines").shuffle_grouping("far")
    topology.set_bolt("far", Nothing(), 2).shuffle_grouping("near")
    topology.set_bolt("near", Nothing()).shuffle_grouping("lines")
    topology.set_bolt("aside", Nothing(), 4).global_grouping("near")
    plan = topology.plan()
    found = {level: [(code.name, code.slot, code.tasks) for code in codes] for level, codes in plan.levels.items()}
    assert found == {1: [("near", 0, 1)], 2: [("far", 0, 2), ("aside", 2, 4)], 3: [("last", 0, 3)]}
    assert "aside x4 by global of near.default: x" in topology.explain()


# --- without Spark -----------------------------------------------------------------------------


class Rounds:
    """Runs a topology's rounds in this process: the levels' functions on Arrow batches, placed as Spark would."""

    def __init__(self, topology: TupleTopology, max_pending: int = 100, tracking: bool = True) -> None:
        self.now = 0.0
        self.plan = topology.plan()
        tasks = make_tasks(self.plan.spouts, lambda *_: None)
        self.tracker = Tracker(tasks, max_pending, 30.0, tracking, lambda: self.now)

    def step(self) -> bool:
        """One pass; False when there was nothing to do."""
        fetched = self.tracker.fetch(1000)
        waiting = {level: list(copies) for level, copies in fetched.copies.items()}
        for level, codes in self.plan.levels.items():
            task, by_slot = LevelTask("test", codes, self.plan.origins), defaultdict(list)
            for slot, content in waiting.get(level, ()):
                by_slot[slot].append((slot, content))
            for rows in by_slot.values():
                arrays = [pa.array(column, kind.type) for column, kind in zip(zip(*rows), ADDRESSED)]
                for batch in task([pa.RecordBatch.from_arrays(arrays, schema=ADDRESSED)]):
                    for target, slot, content in zip(*(batch.column(place).to_pylist() for place in range(3))):
                        if target == 0:
                            self.tracker.take(pickle.loads(content))
                        else:
                            waiting.setdefault(target, []).append((slot, content))
        self.tracker.end_round(fetched.roots)
        return bool(self.tracker.notify_spouts()) or bool(fetched.messages)

    def run(self) -> None:
        while self.step():
            pass


class Passes(RichBolt):
    """Passes a value on: anchored, not anchored, or not at all; acknowledges unless it is told to forget."""

    fields = "value"

    def __init__(self, mode: str = "anchored") -> None:
        self.mode = mode

    def execute(self, tuple) -> None:
        self.collector.emit(tuple["value"], anchors=tuple if self.mode != "unanchored" else None)
        if self.mode != "forgets":
            self.collector.ack(tuple)


class Fails(RichBolt):
    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def execute(self, tuple) -> None:
        if tuple["value"] in self.values:
            raise ValueError(f"no {tuple['value']}")
        self.collector.ack(tuple)


def chain(spout: Any, middle: RichBolt, last: RichBolt, parallelism: int = 1) -> TupleTopology:
    topology = TupleTopology("chain")
    topology.set_spout("texts", spout, parallelism)
    topology.set_bolt("middle", middle).shuffle_grouping("texts")
    topology.set_bolt("last", last).shuffle_grouping("middle")
    return topology


def test_a_raise_fails_the_tuple_and_its_message_comes_again() -> None:
    spout = Listed([(1, ["a"]), (2, ["b"])], replays=2)
    rounds = Rounds(chain(spout, Passes(), Fails(["b"])))
    rounds.run()
    assert Counter(spout.told) == {("ack", 1): 1, ("fail", 2): 3}
    assert rounds.tracker.pending == 0
    failure = rounds.tracker.errors[-1]
    assert (failure.message_id, failure.bolt) == (2, "last")
    assert failure.error.startswith("ValueError: no b (") and "test_tuple_bolts.py:" in failure.error


def test_what_is_acknowledged_after_its_message_has_failed_leaves_nothing_behind() -> None:
    spout = Listed([(1, ["a"])], replays=0)
    topology = chain(spout, Passes(), Fails([]))
    topology.set_bolt("early", Fails(["a"])).shuffle_grouping("texts")
    rounds = Rounds(topology)
    rounds.run()  # "last" acknowledges on the next level
    assert spout.told == [("fail", 1)] and rounds.tracker.pending == 0


def test_unanchored_children_that_fail_do_not_fail_the_message_but_are_shown() -> None:
    spout = Listed([(1, ["a"])])
    rounds = Rounds(chain(spout, Passes("unanchored"), Fails(["a"])))
    rounds.run()
    assert spout.told == [("ack", 1)]
    assert [(one.message_id, one.bolt) for one in rounds.tracker.errors] == [(None, "last")]


def test_a_message_without_an_id_is_not_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    spout, added = Listed([(None, ["a", "b"])]), recorded(monkeypatch)
    rounds = Rounds(chain(spout, Passes(), Fails(["b"])))
    rounds.run()
    assert (spout.told, added, rounds.tracker.emitted) == ([], [], 1)


def test_without_ackers_a_message_is_acknowledged_when_it_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    spout, added = Listed([(1, ["a"])]), recorded(monkeypatch)
    rounds = Rounds(chain(spout, Passes(), Fails(["a"])), tracking=False)
    rounds.run()
    assert spout.told == [("ack", 1)] and added == []


def test_without_ackers_tuples_carry_no_ids_that_bolts_would_have_to_add_up() -> None:
    for tracked in (False, True):
        rounds = Rounds(chain(Listed([(1, ["a"])]), Passes(), Fails([])), tracking=tracked)
        ((_, content),) = rounds.tracker.fetch(10).copies[1]
        assert bool(pickle.loads(content)[2]) is tracked


def test_a_message_that_is_emitted_as_nothing_or_to_nobody_is_acknowledged_at_once() -> None:
    topology = TupleTopology("nobody")
    spout = Listed([(1, []), (2, ["a"])])
    topology.set_spout("texts", spout)
    topology.set_spout("others", Listed([]))
    topology.set_bolt("last", Fails([])).shuffle_grouping("others")
    Rounds(topology).run()
    assert spout.acked() == [1, 2]


def test_a_forgotten_tuple_stays_pending_until_it_times_out() -> None:
    spout = Listed([(1, ["a"])], replays=0)
    rounds = Rounds(chain(spout, Passes("forgets"), Fails([])))
    rounds.run()
    assert (spout.told, rounds.tracker.pending) == ([], 1)
    for now, told in ((29.0, []), (30.0, [("fail", 1)])):
        rounds.now = now
        rounds.tracker.advance()
        rounds.tracker.notify_spouts()
        assert spout.told == told
    assert rounds.tracker.settled == {"acked": 0, "failed": 0, "timed_out": 1} and rounds.tracker.pending == 0
    assert "timed out" in rounds.tracker.errors[-1].error


class Resets(RichBolt):
    def execute(self, tuple) -> None:
        self.collector.reset_timeout(tuple)


def test_reset_timeout_gives_a_message_its_time_again() -> None:
    held, other = Listed([(1, ["a"])], replays=0), Listed([(2, ["b"])], replays=0)
    topology = TupleTopology("resets")
    topology.set_spout("held", held)
    topology.set_spout("other", other)
    topology.set_bolt("resets", Resets()).shuffle_grouping("held")
    topology.set_bolt("forgets", Passes("forgets")).shuffle_grouping("other")
    rounds = Rounds(topology)
    fetched = rounds.tracker.fetch(10)
    rounds.now = 29.0
    rounds.tracker.take(Report("resets", 0, resets={next(iter(fetched.roots)), 77}))
    told = []
    for rounds.now in (30.0, 58.0, 59.0):
        rounds.tracker.advance()
        rounds.tracker.notify_spouts()
        told.append((held.told.copy(), other.told.copy()))
    assert told == [([], [("fail", 2)]), ([], [("fail", 2)]), ([("fail", 1)], [("fail", 2)])]


def test_a_bolt_resets_the_timeout_of_its_roots() -> None:
    made, tuple = collector(), one_tuple(root=9)
    made.reset_timeout(tuple)
    assert made.report.resets == {9}


def test_only_the_spout_task_that_made_a_message_is_told() -> None:
    copies: list[Listed] = []

    class Copied(Listed):
        def open(self) -> None:
            copies.append(self)
            number = len(copies)
            self.waiting.extend([(10 * number + n, [str(n)]) for n in range(3)])

    topology = chain(Copied([]), Passes(), Fails([]), parallelism=3)
    rounds = Rounds(topology)
    for task in rounds.tracker.tasks:
        task.call("open")
    rounds.run()
    assert len(copies) == 3 and len(set(map(id, copies))) == 3
    assert [spout.acked() for spout in copies] == [[10, 11, 12], [20, 21, 22], [30, 31, 32]]


def test_a_spout_task_has_no_more_pending_than_it_may() -> None:
    spout = Listed([(number, ["a"]) for number in range(10)])
    rounds = Rounds(chain(spout, Passes("forgets"), Fails([])), max_pending=4)
    for _ in range(5):
        rounds.step()
    assert rounds.tracker.pending == 4 and len(spout.waiting) == 6


def test_a_slow_spout_and_one_that_always_has_something_do_not_starve_the_others() -> None:
    class Slow(Listed):
        def next_tuple(self) -> None:
            rounds.now += 10.0

    topology = TupleTopology("fair")
    spouts = [Slow([]), Listed([(n, ["a"]) for n in range(50)]), Listed([(n, ["a"]) for n in range(50)])]
    for number, spout in enumerate(spouts):
        topology.set_spout(f"s{number}", spout)
    topology.set_bolt("last", Fails([])).shuffle_grouping("s1")
    rounds = Rounds(topology)
    for _ in range(6):
        assert rounds.tracker.fetch(1).messages == 1
    assert len(spouts[1].waiting) < 50 and len(spouts[2].waiting) < 50


def test_a_spout_that_cannot_be_copied_has_one_task() -> None:
    class Opened(Listed):
        def __init__(self) -> None:
            super().__init__([(1, ["a"])])
            self.lock = threading.Lock()

    Rounds(chain(Opened(), Passes(), Fails([]))).run()
    with pytest.raises(TopologyError, match="spout 'texts' cannot be copied for its 2 tasks.*lock"):
        Rounds(chain(Opened(), Passes(), Fails([]), parallelism=2))


class Buffers(RichBolt):
    """Holds its tuples back until the round ends; a thread of its own acknowledges them."""

    fields = "value"

    def prepare(self, context) -> None:
        self.held: list[Tuple] = []

    def execute(self, tuple) -> None:
        self.held.append(tuple)

    def cleanup(self) -> None:
        self.collector.emit("".join(tuple["value"] for tuple in self.held), anchors=self.held)
        thread = threading.Thread(target=lambda: [self.collector.ack(tuple) for tuple in self.held])
        thread.start()
        thread.join()


@pytest.mark.parametrize("fails", [False, True])
def test_cleanup_is_not_too_late_to_emit_and_acknowledge(fails: bool) -> None:
    spout = Listed([(number, [value]) for number, value in enumerate("abc")], replays=0)
    Rounds(chain(spout, Buffers(), Fails(["abc"] if fails else []))).run()
    assert sorted(spout.told) == [("fail" if fails else "ack", number) for number in range(3)]


def test_what_cleanup_raises_fails_the_task() -> None:
    class Unclean(Passes):
        def cleanup(self) -> None:
            raise OSError("the disk is full")

    with pytest.raises(UserCodeFailed, match="bolt middle at .*test_tuple_bolts.py.* the disk is full"):
        Rounds(chain(Listed([(1, ["a"])]), Unclean(), Fails([]))).run()


def test_a_message_that_cannot_travel_fails_and_no_other() -> None:
    spout = Listed([(0, ["a"]), (1, ["b", threading.Lock()]), (2, ["c"])], replays=0)
    Rounds(chain(spout, Passes(), Fails([]))).run()
    assert sorted(spout.told) == [("ack", 0), ("ack", 2), ("fail", 1)]


def test_a_spout_that_raises_ends_with_an_error_that_names_it() -> None:
    class Broken(Listed):
        def next_tuple(self) -> None:
            raise OSError("the source is away")

    rounds = Rounds(chain(Broken([]), Passes(), Fails([])))
    with pytest.raises(SourceError, match="next_tuple of spout 'texts' raised.*the source is away"):
        rounds.step()


def test_the_ids_do_not_depend_on_a_seed_that_a_user_sets() -> None:
    class Seeded(RichBolt):
        fields = "value"

        def execute(self, tuple) -> None:
            random.seed(1)
            self.collector.emit(tuple["value"], anchors=tuple)
            random.seed(1)
            self.collector.emit(tuple["value"], anchors=tuple)
            self.collector.ack(tuple)

    spout = Listed([(1, ["a"])])
    # Children with one id would cancel each other, and the message be acknowledged although one of them fails.
    Rounds(chain(spout, Seeded(), Passes("forgets"))).run()
    assert spout.told == []


class Join(RichBolt):
    """Pairs of inputs become one tuple that is anchored to both."""

    fields = "value"

    def prepare(self, context) -> None:
        self.first = None

    def execute(self, tuple) -> None:
        if self.first is None:
            self.first = tuple
            return
        self.collector.emit(self.first["value"] + tuple["value"], anchors=[self.first, tuple])
        self.collector.ack(self.first)
        self.collector.ack(tuple)
        self.first = None


@pytest.mark.parametrize("fails", [False, True])
def test_a_child_of_two_messages_belongs_to_both(fails: bool) -> None:
    spout = Listed([(1, ["a"]), (2, ["b"]), (3, ["c"])], replays=0)
    rounds = Rounds(chain(spout, Join(), Fails(["ab"] if fails else [])))
    rounds.run()
    kind = "fail" if fails else "ack"
    assert sorted(spout.told) == [(kind, 1), (kind, 2)]  # the third waits for a fourth, which does not come
    assert rounds.tracker.pending == 1


# --- random topologies -------------------------------------------------------------------------

# What the bolts below were given, by bolt and path; they run in this process.
_given: Counter = Counter()


def goes_wrong(seed: int, bolt: str, path: tuple) -> bool:
    """Whether the bolt fails the tuple; a path begins with (message, attempt), and the fourth attempt succeeds."""
    return path[1] < 3 and zlib.crc32(repr((seed, bolt, path)).encode()) % 100 < 10


class Step(RichBolt):
    fields = "path"

    def __init__(self, name: str, children: int, seed: int) -> None:
        self.name, self.children, self.seed = name, children, seed

    def execute(self, tuple) -> None:
        path = tuple["path"]
        _given[self.name, path] += 1
        if goes_wrong(self.seed, self.name, path):
            raise ValueError("goes wrong")
        for child in range(self.children):
            self.collector.emit((path + (self.name, child),), anchors=tuple)
        self.collector.ack(tuple)


class Attempts(Listed):
    def next_tuple(self) -> None:
        if self.waiting:
            message, _ = self.waiting.popleft()
            self.collector.emit(((message, self.told.count(("fail", message))),), message)


def expected_of(message: int, attempt: int, steps: list[dict[str, Any]], seed: int) -> Counter:
    """What each bolt is given of one attempt, worked out tuple by tuple along the edges."""
    found: Counter = Counter()
    emitted: dict[str, list[tuple]] = {"spout": [(message, attempt)]}
    for step in steps:  # a bolt comes after those that it takes tuples of
        name = step["name"]
        given = [
            path
            for source, kind in step["sources"].items()
            for path in emitted[source]
            for _ in range(step["tasks"] if kind == "all" else 1)
        ]
        found.update((name, path) for path in given)
        emitted[name] = [
            path + (name, child)
            for path in given
            if not goes_wrong(seed, name, path)
            for child in range(step["children"])
        ]
    return found


@st.composite
def random_steps(draw: Any) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        known = ["spout", *(step["name"] for step in steps)]
        sources = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        kinds = st.sampled_from(["shuffle", "fields", "all", "global"])
        tasks, children = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        steps.append(
            {
                "name": f"b{number}",
                "tasks": tasks,
                "children": children,
                "sources": {source: draw(kinds) for source in sources},
            }
        )
    return steps


@settings(max_examples=60, deadline=None)
@given(random_steps(), st.integers(0, 2**32), st.integers(1, 4))
def test_random_topologies_give_every_bolt_what_it_is_due_and_settle_every_attempt(
    steps: list[dict[str, Any]], seed: int, messages: int
) -> None:
    _given.clear()
    spout, topology = Attempts([(message, []) for message in range(messages)], "path"), TupleTopology("random")
    topology.set_spout("spout", spout)
    for step in reversed(steps):  # in any order of declaration
        declared = topology.set_bolt(step["name"], Step(step["name"], step["children"], seed), step["tasks"])
        for source, kind in step["sources"].items():
            if kind == "fields":
                declared.fields_grouping(source, "path")
            else:
                getattr(declared, f"{kind}_grouping")(source)
    rounds = Rounds(topology)
    rounds.run()
    expected, told = Counter(), Counter()
    for message in range(messages):
        attempt, wrong = 0, True
        while wrong:
            given = expected_of(message, attempt, steps, seed)
            wrong = any(goes_wrong(seed, bolt, path) for bolt, path in given)
            expected += given
            told["fail" if wrong else "ack", message] += 1
            attempt += 1
    assert _given == expected
    assert Counter(spout.told) == told
    assert rounds.tracker.pending == 0
