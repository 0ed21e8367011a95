"""Maps over backing maps count every transaction as their semantics promise, whatever fails in between."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trident.coordinators.errors import ConfigError, Halted, IdentityMismatch, StaleEpoch, TridentError
from trident.states.core.values import OpaqueValue, TransactionalValue
from trident.states.maps.backing_maps import MemoryBackingMap, StaticMap
from trident.states.maps.map_states import (
    BackingMap,
    BufferedMap,
    CachedMap,
    FencedBackingMap,
    NonTransactionalMap,
    OpaqueMap,
    RemovableMapState,
    Snapshottable,
    SnapshottableMap,
    State,
    TransactionalMap,
    key_text,
)
from trident.states.maps.sqlite_store import SqliteMap

MAPS = [NonTransactionalMap, TransactionalMap, OpaqueMap]
NON, TX, OPAQUE = MAPS
_numbers = itertools.count()


class Broken(Exception):
    """A store that failed."""


class CountingMap:
    """A backing map that is as simple as a user's: not fenced, not atomic. Counts its calls.

    With ``tear`` the next put writes so many keys and then fails.
    """

    def __init__(self):
        self.rows, self.calls, self.tear = {}, [], None

    def multi_get(self, keys):
        self.calls.append(("get", len(keys)))
        return [self.rows.get(key) for key in keys]

    def multi_put(self, keys, values, epoch=None):
        self.calls.append(("put", len(keys)))
        for done, (key, value) in enumerate(zip(keys, values)):
            if done == self.tear:
                break
            self.rows[key] = value
            if value is None:
                del self.rows[key]
        if self.tear is not None:
            self.tear = None
            raise Broken


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Makes a new map of that kind."""
    path = tmp_path_factory.mktemp("sqlite") / "maps.db"

    def make(kind):
        if kind == "torn":
            return CountingMap()
        name = f"states{next(_numbers)}"
        return MemoryBackingMap(name) if kind == "memory" else SqliteMap(path, name)

    return make


# -- the world: two partitions, tries that fail anywhere, replays -------------------------------

KEYS = [("a",), ("b",), ("c",), ("d",)]
PARTITIONS = [KEYS[:2], KEYS[2:]]
WHERE = ["before", "between", "after", "in a put"]


@dataclass
class Try:
    """One try at a transaction: what it does to which keys, and where it fails (None: it does not)."""

    actions: list  # of (key index, number; 0 = remove)
    fails: str | None


class World:
    """Applies tries as the executors do: one map object per partition, made anew when the process died."""

    def __init__(self, map_class, backing, cache_size=0):
        self.map_class, self.backing, self.cache_size = map_class, backing, cache_size
        self.maps = [self.new_map(), self.new_map()]

    def new_map(self):
        backing = CachedMap(self.backing, self.cache_size) if self.cache_size else self.backing
        return self.map_class(backing, epoch=3, incarnation="i")

    def attempt(self, txid, attempt, restart):
        """Whether it came to its end."""
        for index, keys in enumerate(PARTITIONS):
            if attempt.fails == ("before", "between")[index]:
                return self._died(restart)
            tears = attempt.fails == "in a put" and index == 1 and isinstance(self.backing, CountingMap)
            try:
                self.update(self.maps[index], txid, [a for a in attempt.actions if KEYS[a[0]] in keys], tears)
            except Broken:
                return self._died(restart)
        return attempt.fails is None or self._died(restart)

    def update(self, target, txid, actions, tears=False):
        target.begin_commit(txid)
        # One by one: several updates of a key in one transaction must do no harm.
        for key, number in actions:
            target.multi_update([KEYS[key]], [appending(txid, number)])
        if tears:
            self.backing.tear = 1
        try:
            target.commit(txid)
        finally:
            if tears:
                self.backing.tear = None

    def _died(self, restart):
        if restart:
            self.maps = [self.new_map(), self.new_map()]
        return False

    def undo_untouched(self, txid, failed, final):
        """docs/semantics.md 7.1: what failed tries touched and the last one does not."""
        touched = {key for attempt in failed for key, _ in attempt.actions} - {key for key, _ in final.actions}
        for index, keys in enumerate(PARTITIONS):
            of_here = [KEYS[key] for key in sorted(touched) if KEYS[key] in keys]
            self.new_map().undo(of_here, txid)
            self.maps[index] = self.new_map()

    def contents(self):
        return dict(zip(KEYS, self.new_map().multi_get(KEYS)))


def appending(txid, number):
    """Changes the old value in place, as a careless user does."""

    def update(old):
        if number == 0:
            return None
        old = [] if old is None else old
        old.append(f"{txid}:{number}")
        return old

    return update


def fold(batches):
    """The naive oracle: each batch applied once to a dict."""
    state = dict.fromkeys(KEYS)
    for txid, actions in enumerate(batches, 1):
        for key, number in actions:
            state[KEYS[key]] = None if number == 0 else [*(state[KEYS[key]] or []), f"{txid}:{number}"]
    return state


batch = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=5)
failures = st.lists(st.sampled_from(WHERE), max_size=3)
run_often = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "torn"])
@pytest.mark.parametrize("map_class", [TX, OPAQUE])
@run_often
@given(st.lists(st.tuples(batch, failures), max_size=6), st.booleans(), st.sampled_from([0, 1, 10]))
def test_the_same_rows_again_count_once(store, map_class, kind, history, restart, cache_size):
    """A transactional spout; and any spout once its batch is decided: replays bring the same rows."""
    world = World(map_class, store(kind), cache_size)
    for txid, (actions, fails) in enumerate(history, 1):
        for where in fails:
            assert not world.attempt(txid, Try(actions, where), restart)
        assert world.attempt(txid, Try(actions, None), restart)
    assert world.contents() == fold([actions for actions, _ in history])


@pytest.mark.parametrize("kind", ["memory", "sqlite", "torn"])
@run_often
@given(
    st.lists(st.tuples(st.lists(st.tuples(batch, st.sampled_from(WHERE)), max_size=3), batch), max_size=6),
    st.booleans(),
)
def test_other_rows_count_once_in_an_opaque_map(store, kind, history, restart):
    """An opaque spout whose tries are written before they are decided, as in Trident."""
    world = World(OPAQUE, store(kind))
    for txid, (tries, actions) in enumerate(history, 1):
        failed = [Try(other, where) for other, where in tries]
        for attempt in failed:
            assert not world.attempt(txid, attempt, restart)
        final = Try(actions, None)
        assert world.attempt(txid, final, restart)
        world.undo_untouched(txid, failed, final)
    assert world.contents() == fold([actions for _, actions in history])


@pytest.mark.parametrize("map_class", MAPS)
@run_often
@given(st.lists(st.tuples(st.lists(batch, max_size=2), batch, failures), max_size=5), st.sampled_from([0, 1, 10]))
def test_other_rows_count_once_in_every_map_if_the_batch_is_decided_first(store, map_class, history, cache_size):
    """As this framework does it: results in a BufferedMap, the decision, then its puts, perhaps again."""
    world = World(map_class, store("memory"), cache_size)
    for txid, (undecided, actions, fails) in enumerate(history, 1):
        before = world.contents()
        for rows in [*undecided, actions]:
            resolved = []
            for index, keys in enumerate(PARTITIONS):
                buffered = BufferedMap(world.maps[index]._backing)
                over = map_class(buffered, epoch=3, incarnation="i")
                world.update(over, txid, [a for a in rows if KEYS[a[0]] in keys])
                resolved.append(buffered.puts)
        assert world.contents() == before
        for where in [*fails, None]:
            for index, puts in enumerate(resolved):
                if where == ("before", "between")[index]:
                    break
                world.new_map()._backing.multi_put([key for key, _ in puts], [value for _, value in puts], epoch=3)
        world.maps = [world.new_map(), world.new_map()]
    assert world.contents() == fold([actions for _, actions, _ in history])


def failed_then(world, first, second):
    world.attempt(1, Try(first, "after"), restart=True)
    world.attempt(1, Try(second, None), restart=True)
    return {key[0]: value for key, value in world.contents().items() if value}


def test_where_the_table_says_not_exactly_once_it_is_not(store):
    rows, others = [(0, 1)], [(0, 2), (1, 2)]
    # At least once: the failed try counts too.
    assert failed_then(World(NON, store("memory")), rows, rows) == {"a": ["1:1", "1:1"]}
    # A transactional map skips what it believes to be the same rows: half of them are new.
    assert failed_then(World(TX, store("memory")), rows, others) == {"a": ["1:1"], "b": ["1:2"]}
    # docs/semantics.md 7.1: a key that only the failed try touched stays counted unless it is undone.
    assert failed_then(World(OPAQUE, store("memory")), others, rows) == {"a": ["1:1"], "b": ["1:2"]}


# -- one map ------------------------------------------------------------------------------------


@contextmanager
def transaction(state, txid):
    state.begin_commit(txid)
    yield
    state.commit(txid)


def plus(number):
    return lambda old: (old or 0) + number


@pytest.mark.parametrize("map_class", MAPS)
def test_a_transaction_is_one_get_and_one_put_however_many_keys(map_class):
    backing = CountingMap()
    state = map_class(backing)
    keys = [(n,) for n in range(1000)]
    with transaction(state, 1):
        assert state.multi_update(keys, [plus(1)] * 1000) == [1] * 1000
        assert state.multi_update(keys[:10] * 2, [plus(1)] * 20) == [2] * 10 + [3] * 10
        assert state.multi_get(keys[:1] + keys[-1:]) == [3, 1]
    assert backing.calls == [("get", 1000), ("put", 1000)]
    assert state.multi_get(keys[:1] + keys[-1:] + [("none",)]) == [3, 1, None]


@pytest.mark.parametrize("map_class", MAPS)
def test_puts_and_removes_are_seen_at_once_and_kept(map_class):
    backing = CountingMap()
    state = map_class(backing, incarnation="i")
    assert isinstance(state, RemovableMapState) and isinstance(SnapshottableMap(state), Snapshottable)
    with transaction(state, 1):
        state.multi_put([("a",), ("b",), ("c",)], [1, [2], 3])
        state.multi_remove([("a",), ("nobody",)])
        state.multi_get([("b",)])[0].append("not kept")
        assert state.multi_get([("a",), ("b",)]) == [None, [2]]
    with transaction(state, 2):
        state.multi_remove([("c",)])
        state.multi_put([("d",)], [4])
        state.multi_remove([("d",)])
    assert state.multi_get([("a",), ("b",), ("c",), ("d",)]) == [None, [2], None, None]
    # Rows that would say nothing but "absent" are not there.
    assert set(backing.rows) - {("c",)} == {("b",)}


def test_what_is_stored():
    for map_class, rows in [
        (NON, [1, 3]),
        (TX, [TransactionalValue(1, 1, "i"), TransactionalValue(2, 3, "i")]),
        (OPAQUE, [OpaqueValue(1, 1, None, "i"), OpaqueValue(2, 3, 1, "i")]),
    ]:
        backing = CountingMap()
        state = SnapshottableMap(map_class(backing, incarnation="i"))
        for txid, row in enumerate(rows, 1):
            with transaction(state, txid):
                assert state.update(plus(txid)) == (1, 3)[txid - 1] == state.get()
            assert backing.rows == {(): row}
        with transaction(state, 3):
            state.set(10)
        assert state.get() == 10


@pytest.mark.parametrize(("map_class", "seen"), [(TX, 5), (OPAQUE, 1)])
def test_a_replay_reads_the_state_as_of_the_transaction_before(map_class, seen):
    backing = CountingMap()
    for txid, value in ((1, 1), (2, 5)):
        state = map_class(backing)
        with transaction(state, txid):
            state.multi_put([("k",)], [value])
    # For a transactional map the value stands: the updates of this try are skipped.
    with transaction(state, 2):
        assert state.multi_get([("k",)]) == [seen]
        state.multi_put([("k",)], [state.multi_get([("k",)])[0] + 4])
    assert state.multi_get([("k",)]) == [5]


def test_the_updaters_of_an_applied_transaction_are_not_called():
    backing = CountingMap()
    for updaters in ([plus(1), plus(1)], [lambda old: 1 // 0, plus(5)]):
        state = TransactionalMap(backing)
        with transaction(state, 1):
            assert state.multi_update([("k",), ("k",)], updaters)[-1] == 2
    assert backing.rows == {("k",): TransactionalValue(1, 2)}


def test_a_value_that_the_updater_or_the_caller_goes_on_changing_is_kept_as_it_was():
    held = [1]
    state = OpaqueMap(CountingMap())
    with transaction(state, 1):
        state.multi_update([("k",)], [lambda old: held])[0].append(2)
        held.append(3)
    assert state.multi_get([("k",)]) == [[1]]


def test_what_a_failed_try_gathered_is_forgotten():
    backing = CountingMap()
    state = OpaqueMap(backing)
    state.begin_commit(1)
    state.multi_update([("k",)], [plus(1)])
    with pytest.raises(TridentError, match="begin_commit"):
        state.commit(2)
    state.begin_commit(1)
    state.commit(1)
    assert backing.rows == {} and backing.calls == [("get", 1)]


@pytest.mark.parametrize("map_class", [TX, OPAQUE])
def test_updates_outside_of_a_transaction_are_refused_and_a_newer_one_stops(map_class):
    backing = CountingMap()
    state = map_class(backing, incarnation="i")
    with pytest.raises(ConfigError, match="begin_commit"):
        state.multi_update([("k",)], [plus(1)])
    with transaction(state, 9):
        state.multi_put([("k",)], [1])
    state.begin_commit(8)
    with pytest.raises(Halted, match="txid 9"):
        state.multi_get([("k",)])
    with pytest.raises(IdentityMismatch, match="'i'.*'j'"):
        map_class(backing, incarnation="j").multi_get([("k",)])
    assert state.multi_get([]) == []


def test_a_non_transactional_map_writes_at_once_outside_of_a_transaction():
    backing = CountingMap()
    state = NonTransactionalMap(backing)
    assert state.multi_update([("k",), ("k",)], [plus(1), plus(1)]) == [1, 2]
    state.multi_put([("other",)], [5])
    assert backing.rows == {("k",): 2, ("other",): 5}
    state.multi_remove([("k",), ("other",)])
    assert backing.rows == {}


def test_an_updater_that_raises_changes_nothing_outside_of_a_transaction():
    backing = CountingMap()
    with pytest.raises(ZeroDivisionError):
        NonTransactionalMap(backing).multi_update([("a",), ("b",)], [plus(1), lambda old: 1 // 0])
    assert backing.rows == {}


def test_keys_are_tuples_and_differ_by_type():
    state = OpaqueMap(MemoryBackingMap("keys_by_type"))
    keys = [(1,), (1.0,), (True,), ("1",), (float("nan"),), (None,), ((1,),)]
    with transaction(state, 1):
        state.multi_update(keys, [plus(n) for n in range(7)])
    assert state.multi_get(keys) == list(range(7))
    for key in ("a", ["a"], (object(),), None):
        with pytest.raises(ConfigError):
            state.multi_get([key])
    with pytest.raises(ConfigError, match="2 keys, 1 updaters"):
        state.multi_update(keys[:2], [plus(1)])


def test_a_backing_map_that_forgets_a_value_is_named():
    class Short(CountingMap):
        def multi_get(self, keys):
            return super().multi_get(keys)[:-1]

    for over in (Short(), CachedMap(Short(), 5), BufferedMap(Short())):
        with pytest.raises(ConfigError, match="2 keys, 1 values, from multi_get of Short"):
            NonTransactionalMap(over).multi_get([("a",), ("b",)])


# -- fences -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("map_class", MAPS)
@given(reads_first=st.booleans(), successor=st.booleans())
@run_often
def test_an_old_coordinator_is_refused_from_its_successors_first_commit_on(
    store, map_class, kind, reads_first, successor
):
    backing = store(kind)
    old, new = map_class(backing, epoch=1), map_class(backing, epoch=2)
    old.begin_commit(1)
    if reads_first:
        old.multi_update([("k",)], [plus(1)])
    with transaction(new, 1):
        if successor:
            new.multi_update([("k",)], [plus(1)])
        # A replay that finds nothing left to write shuts the door as well.
    if not reads_first:
        old.multi_update([("k",)], [plus(1)])
    with pytest.raises(StaleEpoch, match="epoch 1.*epoch 2"):
        old.commit(1)
    assert new.multi_get([("k",)]) == [1 if successor else None]


def test_without_a_fence_an_old_coordinator_overwrites():
    """Why the guarantee table marks unfenced maps."""
    backing = CountingMap()
    old, new = OpaqueMap(backing, epoch=1), OpaqueMap(backing, epoch=2)
    with transaction(old, 1):
        old.multi_update([("k",)], [plus(1)])
        for txid in (1, 2):
            with transaction(new, txid):
                new.multi_update([("k",)], [plus(1)])
    assert new.multi_get([("k",)]) == [1]


# -- caches and buffers -------------------------------------------------------------------------


def test_a_cache_saves_reads_and_keeps_the_rows_used_last():
    backing = CountingMap()
    backing.rows = {(n,): n for n in range(9)}
    cache = CachedMap(backing, 2)
    assert isinstance(cache, BackingMap) and not cache.fenced
    assert CachedMap(MemoryBackingMap("fenced"), 1).fenced and isinstance(MemoryBackingMap("x"), FencedBackingMap)
    assert cache.multi_get([(0,), (1,), (100,)]) == [0, 1, None]
    assert cache.multi_get([(1,), (100,), (1,)]) == [1, None, 1]
    assert backing.calls == [("get", 3)]
    cache.multi_put([(100,)], [7])
    assert cache.multi_get([(100,), (1,)]) == [7, 1]
    cache.multi_put([(100,)], [None])
    assert cache.multi_get([(100,)]) == [None]
    assert backing.calls == [("get", 3), ("put", 1), ("put", 1)]
    # Of (100,), (0,) and (1,) the first was used longest ago.
    cache.multi_get([(0,)])
    assert backing.calls[3:] == [("get", 1)]
    cache.multi_get([(100,)])
    cache.multi_get([(1,)])
    cache.multi_get([(100,)])
    assert backing.calls[4:] == [("get", 1)]
    for size in (0, -1, 1.5, True):
        with pytest.raises(ConfigError):
            CachedMap(backing, size)


@given(st.integers(0, 3))
def test_a_cache_is_right_after_a_put_that_failed(written):
    backing = CountingMap()
    cache = CachedMap(backing, 10)
    keys = [("a",), ("b",), ("c",)]
    cache.multi_put(keys, [1, 2, 3])
    backing.tear = written
    with pytest.raises(Broken):
        cache.multi_put(keys, [10, 20, 30])
    assert cache.multi_get(keys) == [10, 20, 30][:written] + [1, 2, 3][written:]


def test_a_cached_value_cannot_be_changed_from_outside():
    cache = CachedMap(CountingMap(), 5)
    value = [1]
    cache.multi_put([("k",)], [value])
    value.append(2)
    cache.multi_get([("k",)])[0].append(3)
    assert cache.multi_get([("k",)]) == [[1]]


@pytest.mark.parametrize("map_class", [TX, OPAQUE])
@run_often
@given(st.data())
def test_caches_of_several_processes_give_exactly_the_fold(map_class, data):
    """A partition wanders between processes, each with its own cache; the coordinator changes; tries are torn."""
    backing = CountingMap()
    caches = [CachedMap(backing, size) for size in (1, 2, 10)]
    batches, epoch = data.draw(st.lists(batch, max_size=8)), 1
    for txid, actions in enumerate(batches, 1):
        for torn in [*data.draw(st.lists(st.integers(0, 3), max_size=2)), None]:
            epoch += data.draw(st.booleans())
            state = map_class(data.draw(st.sampled_from(caches)), epoch=epoch, incarnation="i")
            state.begin_commit(txid)
            for key, number in actions:
                state.multi_update([KEYS[key]], [appending(txid, number)])
            backing.tear = torn
            try:
                state.commit(txid)
            except Broken:
                continue
            finally:
                backing.tear = None
    plain = map_class(backing, incarnation="i")
    assert dict(zip(KEYS, plain.multi_get(KEYS))) == fold(batches)


def test_a_cache_is_used_across_transactions_of_one_process():
    backing = CountingMap()
    state = TransactionalMap(CachedMap(backing, 10), epoch=1)
    for txid in (1, 2, 3):
        with transaction(state, txid):
            state.multi_update([("k",)], [plus(1)])
    assert backing.calls.count(("get", 1)) == 1


@pytest.mark.parametrize("writer", [{"epoch": 2, "incarnation": "i"}, {"epoch": 1, "incarnation": "j"}])
def test_a_cache_does_not_outlive_its_coordinator(writer):
    backing = CountingMap()
    cache = CachedMap(backing, 10)
    state = NonTransactionalMap(cache, epoch=1, incarnation="i")
    with transaction(state, 5):
        state.multi_put([("k",)], ["cached"])
    backing.rows = {("k",): "what another process wrote"}
    successor = NonTransactionalMap(cache, **writer)
    successor.begin_commit(6)
    assert successor.multi_get([("k",)]) == ["what another process wrote"]


def test_a_buffered_map_reads_through_and_reaches_nothing():
    backing = CountingMap()
    backing.rows = {("a",): 1, ("b",): 2}
    buffered = BufferedMap(backing)
    buffered.multi_put([("a",), ("c",)], [10, 30], epoch=1)
    buffered.multi_put([("a",), ("b",)], [[11], None])
    assert buffered.multi_get([("c",), ("b",), ("a",), ("d",)]) == [30, None, [11], None]
    buffered.multi_get([("a",)])[0].append("not kept")
    assert buffered.puts == [(("c",), 30), (("a",), [11]), (("b",), None)]
    assert backing.rows == {("a",): 1, ("b",): 2} and backing.calls == [("get", 1)]
    state = OpaqueMap(buffered)
    state.begin_commit(4)
    assert buffered.puts == []


def test_a_static_map_is_read_only():
    rows = {("a",): [1], (1,): "one"}
    static = StaticMap(rows)
    rows[("b",)] = 2
    static.multi_get([("a",)])[0].append(9)
    assert isinstance(static, State)
    assert static.multi_get([("a",), (1,), ("b",), (True,)]) == [[1], "one", None, None]
    with pytest.raises(TridentError, match="static"):
        static.multi_put([("a",)], [1])
    with pytest.raises(TridentError, match="static"):
        static.multi_update([("a",)], [plus(1)])
    with pytest.raises(ConfigError):
        StaticMap({"a": 1})


def test_a_text_key_is_what_stores_see():
    assert key_text(("a", 1)) == '{"tuple":["a",1]}'
