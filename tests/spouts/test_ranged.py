"""The coordinator of all sources with positions: each unit is in one batch, a replay and an end wait for nothing."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.spouts.delta.test_delta_spout import added, write_log
from tests.spouts.kafka.test_kafka_answers import Told, told
from tests.spouts.test_data_source_spout import Parts
from trident.coordinators.errors import BrokersAway, PositionLost, SourceError
from trident.spouts.contracts import Refreshes, Resumes, Shrinks, SpoutContext
from trident.spouts.data_source import DataSourceSpout
from trident.spouts.delta.spout import DeltaSpout
from trident.spouts.files.spout import FileSpout
from trident.spouts.kafka.ranges import Batch
from trident.spouts.ranged import RangedCoordinator
from trident.spouts.rate import RateCoordinator, RateRange, RateSpout

LONGEST = 4
BEGUN_US = 1_700_000_000_000_000


class Source:
    """A source of units 0, 1, 2, … of which a batch has at most LONGEST; 2 are there at first."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.there = folder, 0
        (folder / "state").mkdir()
        self.context = SpoutContext(None, "t", "s", folder / "state", "life", {"max_spout_pending": 1})
        self.grow(2)

    def grow(self, units: int) -> None:
        self.there += units
        self.show(units)

    def show(self, units: int) -> None:
        """The source has this many more."""


class Files(Source):
    def __init__(self, folder: Path) -> None:
        self.lines: list[int] = []
        super().__init__(folder)

    def show(self, units: int) -> None:
        (self.folder / f"{len(self.lines):03}").write_text("line\n" * units)
        self.lines.append(units)

    def coordinator(self) -> Any:
        spout = FileSpout(f"{self.folder}/0*", min_rows=1, max_rows=LONGEST, poll_interval_secs=0)
        return spout.get_coordinator(self.context)

    def units(self, pin: Any) -> tuple[int, int]:
        return self._unit(*pin["from"]), self._unit(*pin["to"])

    def _unit(self, number: int, offset: int) -> int:
        return sum(self.lines[: number - 1]) + offset // 5


class Delta(Source):
    def __init__(self, folder: Path) -> None:
        fields = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.versions: list[list[Any]] = [[{"metaData": {"id": "i", "schemaString": schema}}]]
        super().__init__(folder)

    def show(self, units: int) -> None:
        self.versions.append([added(str(number)) for number in range(units)])
        write_log(self.folder, *self.versions)

    def coordinator(self) -> Any:
        spout = DeltaSpout(self.folder, 1, max_files=LONGEST, poll_interval_secs=0)
        return spout.get_coordinator(self.context)

    def units(self, pin: Any) -> tuple[int, int]:
        return self._unit(*pin["begin"]), self._unit(*pin["end"])

    def _unit(self, version: int, file: int) -> int:
        return sum(len(one) for one in self.versions[1:version]) + file


class Kafka(Source):
    def __init__(self, folder: Path) -> None:
        self.cluster = Told(0)
        super().__init__(folder)

    def show(self, units: int) -> None:
        self.cluster.end = [self.there]

    def coordinator(self) -> Any:
        return told(self.cluster, min_rows=1, max_rows=LONGEST)

    def units(self, pin: Any) -> tuple[int, int]:
        topic = Batch.read(pin).topics[0]
        return topic.begin[0], topic.end[0]


class Rate(Source):
    def show(self, units: int) -> None:
        self.us = BEGUN_US + (self.there - 1) * 100_000

    def coordinator(self) -> Any:
        made = RateCoordinator(RateSpout(10, max_rows=LONGEST), 1, lambda: self.us)
        made._fresh = RateRange(0, 0, 0, BEGUN_US, 10)
        return made

    def units(self, pin: Any) -> tuple[int, int]:
        return pin["from"], pin["to"]


class DataSource(Source):
    def show(self, units: int) -> None:
        (self.folder / "available").write_text(str(self.there))

    def coordinator(self) -> Any:
        spout = DataSourceSpout(Parts, {"folder": self.folder, "most": LONGEST}, poll_interval_secs=0)
        return spout.get_coordinator(self.context)

    def units(self, pin: Any) -> tuple[int, int]:
        return pin["start"]["at"]["n"], pin["end"]["at"]["n"]


@pytest.fixture(params=[Files, Delta, Kafka, Rate, DataSource])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("trident.spouts.delta.spout.DeltaFrames", lambda spark, table: None)
    return request.param(tmp_path)


def test_each_unit_is_in_one_batch_over_growth_restarts_and_timeouts(source: Any, rng: random.Random) -> None:
    stream, pins = source.coordinator(), {}
    assert isinstance(stream, Resumes) and isinstance(stream, Shrinks) and isinstance(stream, Refreshes)

    def begin() -> None:
        last = max(pins, default=0)
        pins[last + 1] = json.loads(json.dumps(stream.initialize_transaction(last + 1, pins.get(last), None)))

    for _ in range(60):
        step, last = rng.choice("grow begin begin restart shrink replay success".split()), max(pins, default=0)
        if step == "grow":
            source.grow(rng.randint(1, 6))
        elif step == "begin" or not pins:  # also where nothing waits: another stream of the group began it
            begin()
        elif step == "restart":
            stream = source.coordinator()
            stream.resume(last, pins[last])
        elif step == "replay":
            txid = rng.choice(list(pins))
            assert stream.initialize_transaction(txid, pins.get(txid - 1), pins[txid]) == pins[txid]
        elif step == "success":
            stream.success(rng.choice(list(pins)))
        else:
            first, end = source.units(pins[last])
            pins[last] = stream.shrink_transaction(last, pins.get(last - 1), pins[last])
            again, shorter = source.units(pins[last])
            if first < end and not isinstance(source, DataSource):  # of such a source only the limit is known
                assert (again, shorter > first) == (first, True) and shorter - first <= max(1, (end - first + 1) // 2)
    while stream.is_ready(max(pins, default=0) + 1):
        begin()
    at = 0
    for pin in pins.values():
        first, end = source.units(pin)
        assert first == at and end - first <= LONGEST
        at = end
    assert at == source.there
    fresh, last = source.coordinator(), max(pins)
    fresh.resume(last, pins[last])
    assert not fresh.is_ready(last + 1)
    assert source.units(fresh.initialize_transaction(last + 1, pins[last], None)) == (at, at)


def test_a_replay_and_a_success_wait_for_no_source(source: Any) -> None:
    stream, asked, let_go = source.coordinator(), threading.Event(), threading.Event()
    one = stream.initialize_transaction(1, None, None)
    source.grow(3)
    poll = stream.poll

    def hang() -> None:
        asked.set()
        assert let_go.wait(60)
        poll()

    stream.poll = hang
    with ThreadPoolExecutor(4) as threads:
        begun = threads.submit(stream.initialize_transaction, 2, one, None)
        try:
            assert asked.wait(60)
            assert threads.submit(stream.initialize_transaction, 1, None, one).result(60) == one
            if not isinstance(source, DataSource):  # its reader is told of it, by one thread at a time
                threads.submit(stream.success, 1).result(60)
            if isinstance(source, Kafka):
                assert threads.submit(stream.backlog).result(60).rows is not None
            assert not begun.done()
        finally:
            let_go.set()
        assert source.units(begun.result(60))[0] == source.units(one)[1]


def test_a_source_that_fails_is_waited_for_or_fails_the_transaction(source: Any) -> None:
    stream: RangedCoordinator[Any] = source.coordinator()
    one = stream.initialize_transaction(1, None, None)
    failures: list[Exception] = [BrokersAway("away")]
    looks = 0

    def fail() -> None:
        nonlocal looks
        looks += 1
        if failures:
            raise failures[0]

    stream.poll = fail  # type: ignore[method-assign]
    stream._poll_interval_secs = 1_000.0
    for _ in range(2):  # whichever thread has looked: both get what it found
        if stream.waits_for_source:
            with pytest.raises(SourceError, match="away"):
                stream.is_ready(2)
        else:
            assert stream.is_ready(2), "so that the transaction begins, fails by it, and counts"
    if stream.waits_for_source:
        at = source.units(one)[1]
        assert source.units(stream.initialize_transaction(2, one, None)) == (at, at), (
            "it takes nothing, rather than fail"
        )
    else:
        with pytest.raises(SourceError, match="away"):
            stream.initialize_transaction(2, one, None)
    # No more often than asked; or each attempt that may fail by a look has one of its own, or all would fail by one.
    assert looks == (1 if stream.waits_for_source else 3)
    stream.refresh()
    failures[:] = [PositionLost("what was read is not known")]
    with pytest.raises(PositionLost):
        stream.initialize_transaction(2, one, None)
    failures.clear()
    stream.refresh()
    stream.is_ready(2)
    assert looks == (3 if stream.waits_for_source else 5)


def test_a_source_that_is_away_when_its_first_batch_begins_is_waited_for(source: Any) -> None:
    stream: RangedCoordinator[Any] = source.coordinator()
    assert stream.is_ready(1)
    if not stream.waits_for_source:
        return

    def fail() -> None:
        raise BrokersAway("away")

    stream.poll = fail  # type: ignore[method-assign]
    stream.refresh()
    assert source.units(stream.initialize_transaction(1, None, None)) == (0, 0)
