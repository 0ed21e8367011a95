"""The adaptive batch size stays within its bounds and follows the backlog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.errors import TopologyError
from trident.spouts.ranged import AdaptiveBatchSize


def test_the_first_batch_of_a_small_backlog_has_the_least_size():
    assert AdaptiveBatchSize(1_000, 100_000).next_size(10) == 1_000


def test_a_large_backlog_is_met_at_once_by_one_large_batch_for_each_in_flight():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=4)
    backlog, sizes = 300_000, []
    while backlog > 0:
        sizes.append(size.next_size(backlog))
        backlog -= sizes[-1]
    assert sizes[0] == 75_000
    assert len(sizes) == 4  # not ever smaller ones towards the end


def test_it_grows_with_a_growing_backlog_and_stays_while_that_is_worked_off():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=2)
    backlogs = [1_500, 4_000, 9_000, 7_000, 5_000, 4_500]
    assert [size.next_size(backlog) for backlog in backlogs] == [1_000, 2_000, 4_500, 4_500, 4_500, 4_500]


def test_slow_batches_are_not_made_larger():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=4, target_secs=5)
    size.next_size(40_000)
    size.succeeded(secs=9.0)
    assert size.next_size(1_000_000) == 10_000
    for _ in range(4):
        size.succeeded(secs=0.2)
    assert size.next_size(1_000_000) == 250_000


def test_small_first_batches_that_were_slow_in_a_cold_process_hold_no_later_one_back():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=4, target_secs=5)
    assert [size.next_size(4_004) for _ in range(4)] == [1_001] * 4
    size.succeeded(secs=8.0)
    assert size.next_size(400_000) == 100_000
    for _ in range(3):  # they were planned with the first, and waited with it
        size.succeeded(secs=8.2)
    assert size.quick and size.next_size(800_000) == 200_000
    size.succeeded(secs=9.0)  # that of 100,000 rows: so slow it is, warm
    assert not size.quick and size.next_size(4_000_000) == 200_000


def test_it_sinks_when_idle():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=1)
    size.next_size(64_000)
    assert [size.next_size(10) for _ in range(8)] == [32_000, 16_000, 8_000, 4_000, 2_000, 1_000, 1_000, 1_000]


def test_a_timeout_halves_it_and_it_comes_back_slowly():
    size = AdaptiveBatchSize(1_000, 1_000_000, in_flight=1)
    assert size.next_size(80_000) == 80_000
    assert size.timed_out(80_000) == 40_000
    assert size.next_size(10**9) == 40_000
    size.succeeded(secs=1.0)
    assert size.next_size(10**9) == 50_000


def test_timeouts_can_go_below_the_least_size():
    size = AdaptiveBatchSize(1_000, 1_000_000)
    assert size.timed_out(1_000) == 500
    assert size.timed_out(500) == 250
    assert size.timed_out(1) == 1


@given(
    st.integers(1, 10_000),
    st.integers(0, 10**6),
    st.integers(1, 16),
    st.lists(st.tuples(st.sampled_from("nst"), st.integers(0, 10**9), st.floats(0, 100))),
)
def test_whatever_happens_the_size_is_within_its_bounds(least, more, in_flight, events):
    size = AdaptiveBatchSize(least, least + more, in_flight)
    for kind, rows, secs in events:
        if kind == "s":
            size.succeeded(secs)
        elif kind == "t":
            assert 1 <= size.timed_out(rows) <= max(1, rows)
        assert least <= size.next_size(rows) <= least + more


@pytest.mark.parametrize("bounds", [(0, 10), (-1, 10), (10, 9), (True, 10), (1.5, 10), ("1", 10), (1, None)])
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(TopologyError, match="expected"):
        AdaptiveBatchSize(*bounds)
