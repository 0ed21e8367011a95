"""MERGE, log drop and live read in every interleaving (docs/semantics.md 11).

The decisions are the production ones of ``trident.states.keyed.compaction``. In each
reachable state: no transaction counted twice or lost, the floor never above P, P
never above the last advanced; each live read is exact as of its N.

``TRIDENT_EXPLORE=deep`` widens the bounds (some minutes).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.long_cases import sample
from tests.simulator.compaction import Compaction
from tests.simulator.search import DEEP, Action, Violation, explore
from trident.states.keyed.compaction import (
    READ_AGAIN,
    LiveRead,
    LogView,
    MergePlan,
    SnapshotUnavailable,
    TableView,
    ViewsDisagree,
    guard_condition,
    plan_drop,
    plan_live_read,
    plan_merge,
)

TWO = {1: "a", 2: "ab"}
THREE = {1: "a", 2: "ab", 3: "b"}
NEW_KEYS_ONLY = {1: "a", 2: "b", 3: "c"}
EMPTY_BATCHES = {1: "a", 2: "", 3: "ab", 4: ""}

# Small enough to be run against every planted bug (tests/whole/test_planted_bugs.py).
TINY = {
    "two-compactors": Compaction(THREE, want=0),
    "reader": Compaction(TWO, compactors=1, rounds=2),
    "reader-of-an-older-one": Compaction(TWO, compactors=1, rounds=2, want=1),
    "retention": Compaction(THREE, compactors=1, rounds=2, retention=1, want=0),
    "half-published-above-an-empty-one": Compaction({1: "a", 2: "", 3: "a"}, compactors=1),
}
SMALL = {
    "log-first": Compaction(THREE, want=0, log_first=True, crashes=1),
    "crash": Compaction(TWO, rounds=2, want=0, crashes=1),
    "new-keys-only": Compaction(NEW_KEYS_ONLY, want=0),
    "merge-every-second": Compaction(THREE, rounds=2, every=2, want=0),
    "reader-two-compactors": Compaction(TWO),
    "reader-empty-batches": Compaction(EMPTY_BATCHES, compactors=1, rounds=1),
    "reader-without-zookeeper": Compaction(EMPTY_BATCHES, compactors=1, rounds=1, reader_asks_zookeeper=False),
    "reader-of-an-empty-one": Compaction(EMPTY_BATCHES, compactors=1, rounds=1, want=2),
    "reader-of-a-kept-one": Compaction(THREE, compactors=1, rounds=1, retention=2, want=2),
}
# Too many states for each run of the tests: TRIDENT_EXPLORE=deep has these too.
WIDE = {
    "two-compactors-twice": Compaction(THREE, rounds=2, want=0),
    "reader-two-rounds": Compaction(THREE, compactors=1, rounds=2),
    "reader-three-transactions": Compaction(THREE),
    "reader-log-first-crash": Compaction(TWO, log_first=True, crashes=1),
    "reader-of-an-older-one-three": Compaction(THREE, want=1),
    "three-compactors": Compaction(THREE, compactors=3, want=0),
}


@pytest.mark.parametrize("name", TINY)
def test_compaction_is_exact_in_every_interleaving_of_a_tiny_world(name):
    explore(TINY[name])


@pytest.mark.parametrize(
    "name", sample({**SMALL, **(WIDE if DEEP else {})}, "log-first", "new-keys-only", "reader-empty-batches")
)
def test_compaction_is_exact_in_every_interleaving(name, record_property):
    seen = explore({**SMALL, **WIDE}[name])
    record_property("states", seen.states)
    print(f"{name}: {seen.states:,} states, {seen.edges:,} steps")


def test_two_merges_of_one_snapshot_are_kept_apart_by_delta_alone():
    """What this rests on: two MERGEs that both insert a key match no row, so no guard can see it."""
    with pytest.raises(Violation, match=r"\('a', \(1,\)\), \('a', \(1,"):
        explore(replace(TINY["two-compactors"], rejects=False))


# --- the decisions, one at a time --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "table", "advanced", "every", "force", "plan"),
    [
        (LogView(9, 60, 0), TableView(4, 10), 60, 50, False, MergePlan(10, 60, 9, 4)),
        (LogView(9, 59, 0), TableView(4, 10), 59, 50, False, None),
        (LogView(9, 59, 0), TableView(4, 10), 59, 50, True, MergePlan(10, 59, 9, 4)),
        (LogView(9, 10, 0), TableView(4, 10), 10, 1, True, None),
        (LogView(9, 12, 10), TableView(4, 10), 12, 1, False, MergePlan(10, 12, 9, 4)),
        (LogView(9, 12, 0), TableView(4, 10), 11, 1, False, MergePlan(10, 11, 9, 4)),
        (LogView(9, 11, 0), TableView(4, 10), 15, 1, False, MergePlan(10, 11, 9, 4)),
        (LogView(9, 11, 0), TableView(4, 10), 9, 1, True, None),
    ],
    ids=[
        *["due", "not due", "forced", "nothing waits", "floor at P", "published, not advanced", "empty batches"],
        "stale",
    ],
)
def test_a_merge_goes_from_p_to_the_last_that_advanced_and_is_in_the_log(log, table, advanced, every, force, plan):
    assert plan_merge(log, table, advanced, every, force) == plan


@pytest.mark.parametrize("log", [LogView(9, 20, 11), LogView(2, 9, 0)], ids=["dropped beyond P", "older than P"])
def test_a_log_that_does_not_reach_p_is_not_merged(log):
    with pytest.raises(ViewsDisagree, match="merged up to 10"):
        plan_merge(log, TableView(4, 10), 20, 1)


@pytest.mark.parametrize(
    ("merged", "advanced", "retention", "floor"),
    [(50, 60, 0, 50), (50, 60, 20, 40), (50, 60, 57, None), (50, 60, 1000, None), (3, 60, 0, None), (2, 60, 0, None)],
)
def test_the_log_is_dropped_up_to_p_and_never_into_the_retention(merged, advanced, retention, floor):
    assert plan_drop(LogView(9, 60, 3), merged, advanced, retention) == floor


def test_a_live_read_is_as_of_the_least_control_record_of_the_group():
    pairs = [(LogView(9, 12, 0), TableView(4, 10)), (LogView(9, 11, 3), TableView(2, 3))]
    assert plan_live_read(pairs, [13]) == LiveRead(11, ((10, 11), (3, 11)))
    assert plan_live_read([], [13, 12]) == LiveRead(12, ())


@pytest.mark.parametrize(
    "pair", [(LogView(9, 12, 11), TableView(4, 10)), (LogView(9, 12, 0), TableView(4, 13))], ids=["F > P", "P > N"]
)
def test_versions_that_do_not_fit_are_read_again(pair):
    assert plan_live_read([pair]) is READ_AGAIN


def test_a_live_read_as_of_an_older_transaction():
    pairs = [(LogView(9, 12, 2), TableView(4, 5))]
    assert plan_live_read(pairs, want_txid=7) == LiveRead(7, ((5, 7),))
    for want, available in ((13, "not committed"), (4, "past transaction 4"), (1, "no longer kept")):
        with pytest.raises(SnapshotUnavailable, match=available) as caught:
            plan_live_read(pairs, want_txid=want)
        assert (caught.value.txid, caught.value.available) == (want, 12)
    with pytest.raises(SnapshotUnavailable, match="none is committed. Wait for it$"):  # there is no earlier one
        plan_live_read([(LogView(1, 0, 0), TableView(1, 0))], want_txid=1)


def test_an_empty_transaction_that_has_advanced_reads_as_the_one_before():
    pairs = [(LogView(9, 12, 2), TableView(4, 5))]
    assert plan_live_read(pairs, want_txid=14, advanced_txid=14) == LiveRead(14, ((5, 14),))
    assert plan_live_read([(LogView(9, 12, 2), TableView(4, 14))], [12], advanced_txid=14) == LiveRead(14, ((14, 14),))
    with pytest.raises(SnapshotUnavailable, match="committed in all of them: 14"):
        plan_live_read(pairs, want_txid=15, advanced_txid=14)


def test_a_live_read_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one table"):
        plan_live_read([])


def test_the_guard_names_the_column_and_p():
    assert guard_condition(MergePlan(10, 12, 9, 4), "t._upto") == "t._upto > 10"


# --- the search itself -------------------------------------------------------------------------------


class _Graph:
    """A model given as its edges; negative targets are faults."""

    initial = 1

    def __init__(self, edges: dict[int, list[int]]) -> None:
        self.edges = edges

    def actions(self, state):
        for target in self.edges.get(state, []):
            yield Action(f"{state}→{target}", lambda target=target: abs(target), fault=target < 0)

    def finished(self, state):
        return state == 9


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({1: [2, 9]}, "nothing more can happen"),
        ({1: [2, 9], 2: [3], 3: [2, 9]}, "round for ever"),
        ({1: [9], 9: [-4]}, "nothing more can happen"),
    ],
    ids=["dead end", "cycle", "dead end after a fault"],
)
def test_the_search_finds_a_lack_of_progress(edges, found):
    with pytest.raises(Violation, match=found):
        explore(_Graph(edges))


def test_the_search_tells_the_shortest_way_to_a_violation():
    with pytest.raises(Violation, match=r"(?s)1\. 1→2\n +2\. 2→4$"):
        explore(_Graph({1: [2, 9], 2: [4]}))


def test_a_cycle_of_faults_alone_is_no_lack_of_progress():
    assert explore(_Graph({1: [-1, 2], 2: [-1, 9]})).states == 3
