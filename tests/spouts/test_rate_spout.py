"""Sources that make their own rows: the metadata says exactly which, over failures, restarts and other settings."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

from tests.long_cases import sample
from tests.spouts import source_helpers
from tests.spouts.source_helpers import WAIT_SECS, by_txid, out, rows_read, run_to_end
from trident.coordinators import faults
from trident.coordinators.errors import AttemptCapReached, SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import ReportsBacklog, TridentSpout
from trident.spouts.rate import GeneratorSpout, RateCoordinator, RateEmitter, RateRange, RateSpout

start, warehouse = source_helpers.start, source_helpers.warehouse


class Clock:
    def __init__(self, us: int = 1_700_000_000_000_000) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us


def plan_all(coordinator: RateCoordinator, pins: dict) -> None:
    while coordinator.is_ready(max(pins, default=0) + 1):
        txid = max(pins, default=0) + 1
        pins[txid] = coordinator.initialize_transaction(txid, pins.get(txid - 1), None)


def test_rows_follow_the_clock_without_gaps_over_restarts_other_rates_and_shrinking(rng):
    clock, pins, times = Clock(), {}, []
    begun = clock.us
    coordinator = RateCoordinator(RateSpout(10), 3, clock)
    assert isinstance(coordinator, ReportsBacklog)
    for rate in (10, 10, 7, 1000):
        if pins:  # a new process, perhaps with another rate
            coordinator = RateCoordinator(RateSpout(rate), 3, clock)
            coordinator.resume(max(pins), pins[max(pins)])
            assert coordinator.initialize_transaction(max(pins), None, pins[max(pins)]) == pins[max(pins)]
        clock.us += rng.randrange(2_000_000, 4_000_000)
        plan_all(coordinator, pins)
        assert coordinator.backlog().rows == 0
    last = max(pins)
    clock.us -= 5_000_000  # a clock that is set back gives no row twice
    assert not coordinator.is_ready(last + 1)
    position = 0
    for pin in pins.values():
        found = RateRange.read(pin)
        assert found.begin == position and pin["rows"] == found.end - found.begin
        times += [found.due_us(value) for value in range(found.begin, found.end)]
        position = found.end
    assert times == sorted(times) and times[0] == begun and times[-1] <= clock.us + 5_000_000
    assert [b - a for a, b in zip(times, times[1:])][:15] == [100_000] * 15


def test_whole_batches_wait_until_their_last_row_is_due():
    clock = Clock()
    coordinator = RateCoordinator(RateSpout(10, rows_per_batch=5), 3, clock)
    clock.us += 399_999
    assert not coordinator.is_ready(1)
    clock.us += 800_001  # 1.2 s: rows 0 to 12
    pins: dict = {}
    plan_all(coordinator, pins)
    assert [(pin["from"], pin["to"]) for pin in pins.values()] == [(0, 5), (5, 10)]
    assert coordinator.backlog().rows == 3


def test_spark_computes_the_times_as_the_metadata_says_also_after_years(spark):
    rows = RateRange(9_000_000_000_000, 9_000_000_000_003, 7, 1_700_000_000_000_123, 999_999_937)
    emitted = RateEmitter(spark).emit_batch(TransactionAttempt(1, 0), rows.to_json())
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    expected = [(epoch + timedelta(microseconds=rows.due_us(value)), value) for value in range(rows.begin, rows.end)]
    found = emitted.data.selectExpr("unix_micros(timestamp) AS us", "value").collect()
    assert [(epoch + timedelta(microseconds=row.us), row.value) for row in found] == expected
    assert emitted.data.schema.simpleString() == RateSpout(1).output_schema.simpleString()


@pytest.mark.long
def test_rates_through_a_topology_are_exact_over_a_failure_and_a_restart(start, warehouse):
    assert isinstance(RateSpout(1), TridentSpout) and isinstance(GeneratorSpout("n long", list), TridentSpout)
    faults.arm("stage.write:do_then_fail:2,zk.decide:do_then_fail:1")
    query = start(RateSpout(200, rows_per_batch=50))
    while not query.last_progress or query.last_progress["batch_id"] < 3:
        assert not query.await_termination(0.05)
    query.stop()
    assert faults.unfired() == []
    again = start(RateSpout(100_000, max_rows=20_000))
    while not again.last_progress or again.last_progress["batch_id"] < 8:
        assert not again.await_termination(0.05)
    again.stop()
    values = sorted(value for _, value in out(warehouse).elements())
    assert values == list(range(len(values))) and len(values) > 150


@pytest.mark.parametrize("picklable", sample([True, False], True))
def test_a_generator_gives_its_batches_once_and_goes_on_when_there_are_more(start, picklable, warehouse):
    lock = None if picklable else threading.Lock()

    def generate(index: int):
        with lock or memoryview(b""):
            if index == 2:
                return pa.table({"n": pa.array([200], pa.int64()), "word": ["two"]})
            return ((index * 100 + i, None if i else f"w{index}") for i in range(index + 1) if index != 3)

    fifth = [(400, "w4"), (401, None), (402, None), (403, None), (404, None)]
    batches = [[(0, "w0")], [(100, "w1"), (101, None)], [(200, "two")], [], fifth]
    expected = [Counter(rows) for rows in batches]
    faults.arm("stage.write:do_then_fail:2,zk.advance:do_then_fail:1")
    if lock:
        first = run_to_end(start, GeneratorSpout("n long, word string", generate, max_batches=2))
        assert by_txid(warehouse) == expected[:2] and rows_read(first) == 3
        first.stop()
    run_to_end(start, GeneratorSpout("n long, word string", generate, max_batches=5))
    assert by_txid(warehouse) == [rows for rows in expected if rows] and faults.unfired() == []


def test_an_empty_transaction_takes_no_index():
    coordinator = GeneratorSpout("n long", list, 1).get_coordinator(None)
    pins = {1: coordinator.initialize_transaction(1, None, None)}
    assert not coordinator.is_ready(2)  # but another stream of the group is
    pins[2] = coordinator.initialize_transaction(2, pins[1], None)
    more = GeneratorSpout("n long", list, 2).get_coordinator(None)
    more.resume(2, pins[2])
    assert more.is_ready(3) and more.initialize_transaction(3, pins[2], None) == {"batch": 1}


@pytest.mark.parametrize(
    "generate, message",
    [
        (lambda index: 1 // index, "generate function of stream 'rows' raised ZeroDivisionError"),
        (lambda index: [("x",)], "do not fit its schema"),
    ],
)
def test_a_generator_that_fails_says_why(start, generate, message, warehouse):
    query = start(GeneratorSpout("n long", generate, 1), max_attempts=1)
    with pytest.raises(AttemptCapReached, match=message) as caught:
        query.await_termination(WAIT_SECS)
    assert isinstance(caught.value.__cause__, SourceError) and out(warehouse) == Counter()


def test_impossible_arguments_and_foreign_metadata_are_refused():
    for make in (
        lambda: RateSpout(0),
        lambda: RateSpout(1.5),
        lambda: RateSpout(10**10),
        lambda: RateSpout(1, 0),
        lambda: RateSpout(1, max_rows=0),
        lambda: GeneratorSpout("n long", "rows"),
        lambda: GeneratorSpout("n", list),
        lambda: GeneratorSpout("n long", list, -1),
    ):
        with pytest.raises(TopologyError):
            make()
    good = {"from": 1, "to": 5, "rows": 4, "base": 0, "base_us": 0, "rate": 1}
    assert RateRange.read(good).to_json() == good
    for pin in ({"from": 1}, None, {**good, "to": 0}, {**good, "rate": True}, {**good, "more": 1}, {**good, "rate": 0}):
        with pytest.raises(SourceError, match="not written by a RateSpout"):
            RateRange.read(pin)
    for index in ({"batch": -1}, {"batch": 1.0}, {"batch": 1, "more": 0}, {"batch": 1, "empty": 1}, [1]):
        with pytest.raises(SourceError, match="not written by a GeneratorSpout"):
            GeneratorSpout("n long", list).get_coordinator(None).resume(1, index)
