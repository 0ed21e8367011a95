"""Tuple topologies on Spark: every message is told how it ended, and acknowledged only when all of its tree is."""

from __future__ import annotations

import datetime
import inspect
import os
import sys
import time
from collections import Counter, defaultdict
from decimal import Decimal
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.tuples.tuple_helpers import Listed, Split, Write, recorded, values_written, written
from tests.watching.test_listeners import Hears
from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, TridentError, UserFunctionError
from trident.running.starting import run_topology, start_topology
from trident.tuples.bolts import BasicBolt, RichBolt
from trident.tuples.query import TupleQuery
from trident.tuples.rounds import RoundWatch
from trident.tuples.topology import TupleTopology

# The bolts below travel whole, as those of a script do: a worker need not import pytest for them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
WAIT_SECS = 60.0


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path):
    queries: list[TupleQuery] = []

    def run(topology: TupleTopology, **settings: Any) -> TupleQuery:
        query = topology.start(spark, warehouse=str(tmp_path / "warehouse"), **settings)
        queries.append(query)
        return query

    yield run
    for query in queries:
        query.stop(WAIT_SECS)
        assert not query.is_active


def test_the_names_of_example_6_1(start, tmp_path: Path, monkeypatch) -> None:
    spout, added = Listed([("msg1", ["刘备 关羽 张飞", "曹操 郭嘉 荀彧"])]), recorded(monkeypatch)
    topology = TupleTopology("names")
    topology.set_spout("texts", spout)
    topology.set_bolt("split", Split(), parallelism=2).shuffle_grouping("texts")
    topology.set_bolt("last", Write(tmp_path / "out"), parallelism=2).fields_grouping("split", "name")
    query = start(topology)
    query.process_all_available(WAIT_SECS)
    assert spout.told == [("ack", "msg1")]
    assert values_written(tmp_path / "out") == sorted("刘备 关羽 张飞 曹操 郭嘉 荀彧".split())
    # Not one message a tuple, as in Storm, but one a task: the spout, two splitters, and one or two last bolts.
    assert len(added) in (4, 5) and len({root for root, _ in added}) == 1
    assert reduce(xor, (value for _, value in added)) == 0
    assert query.status | {"acker_bytes": 0} == {
        "pending": 0,
        "emitted": 1,
        "acked": 1,
        "failed": 0,
        "timed_out": 0,
        "acker_bytes": 0,
        "rounds": 1,
    }
    assert query.status["acker_bytes"] > 0


class Three(BasicBolt):
    fields = "n"

    def execute(self, tuple, collector) -> None:
        for n in range(3):
            collector.emit(n)


def test_the_arithmetic_of_example_6_2(start, tmp_path: Path, monkeypatch) -> None:
    spout, added = Listed([("m", ["t"])]), recorded(monkeypatch)
    topology = TupleTopology("arithmetic")
    topology.set_spout("spout", spout)
    topology.set_bolt("bolt1", Three()).shuffle_grouping("spout")
    topology.set_bolt("bolt2", Write(tmp_path / "two")).shuffle_grouping("spout")
    topology.set_bolt("bolt3", Write(tmp_path / "three")).shuffle_grouping("bolt1")
    start(topology).process_all_available(WAIT_SECS)
    one, two, three, init = (value for _, value in added)  # bolts 1 and 2 in any order, bolt 3, the spout
    assert init ^ one ^ two == three != 0, "what is left after bolts 1 and 2 is T3 ⊕ T4 ⊕ T5"
    assert spout.told == [("ack", "m")]
    assert values_written(tmp_path / "two") == ["t"] and values_written(tmp_path / "three") == [0, 1, 2]


def test_groupings_streams_and_a_diamond(start, tmp_path: Path) -> None:
    words = [f"w{number % 7}" for number in range(40)]

    class Sides(BasicBolt):
        fields = {"left": "word", "right": "word, n"}

        def execute(self, tuple, collector) -> None:
            collector.emit(tuple["value"], stream="left")
            collector.emit((tuple["value"], 1), stream="right")

    topology = TupleTopology("diamond")
    spout = Listed([(number, [word]) for number, word in enumerate(words)])
    topology.set_spout("words", spout)
    topology.set_bolt("sides", Sides(), 2).shuffle_grouping("words")
    topology.set_bolt("far", Write(tmp_path / "far", "word"), 3).all_grouping("sides", "left")
    joined = topology.set_bolt("joined", Write(tmp_path / "joined"), 2)
    joined.fields_grouping("sides", "word", "right").fields_grouping("words", "value").shuffle_grouping("far")
    chosen = topology.set_bolt("custom", Write(tmp_path / "custom"), 3)
    chosen.custom_grouping("words", lambda values, tasks: [tasks[2]])
    topology.set_bolt("one", Write(tmp_path / "one"), 2).global_grouping("sides", "left")
    start(topology).process_all_available(WAIT_SECS)
    assert spout.acked() == list(range(40))
    far = written(tmp_path / "far")
    assert sorted((task, len(rows)) for task, rows in far) == [(0, 40), (1, 40), (2, 40)]
    ends = written(tmp_path / "joined")
    assert len(ends) == 2, "one instance a task, with near and far input"
    assert sum(len(rows) for _, rows in ends) == 80
    homes = defaultdict(set)
    for task, rows in ends:
        for row in rows:
            homes[row[1]].add(task)
    assert all(len(tasks) == 1 for tasks in homes.values()), "a key is at one task, whoever emitted it"
    assert [(task, len(rows)) for task, rows in written(tmp_path / "custom")] == [(2, 40)]
    assert [(task, len(rows)) for task, rows in written(tmp_path / "one")] == [(0, 40)]


class FailsOnce(RichBolt):
    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def execute(self, tuple) -> None:
        if tuple["value"] == "bad":
            try:
                with open(self.marker, "x"):
                    self.collector.fail(tuple, "not this time")
                    return
            except FileExistsError:
                pass
        self.collector.ack(tuple)


def test_a_failed_message_comes_again_and_only_that_and_listeners_are_told(start, tmp_path: Path) -> None:
    listener = Hears()
    spout = Listed([(1, ["good"]), (2, ["bad", "good"]), (3, ["good"])])
    topology = TupleTopology("once")
    topology.set_spout("texts", spout)
    topology.set_bolt("last", FailsOnce(tmp_path / "marker"), 2).shuffle_grouping("texts")
    query = start(topology, listeners=[listener])
    query.process_all_available(WAIT_SECS)
    assert Counter(spout.told) == {("ack", 1): 1, ("ack", 2): 1, ("ack", 3): 1, ("fail", 2): 1}
    assert [(one.message_id, one.bolt, one.error) for one in query.last_errors] == [(2, "last", "not this time")]
    status = query.status
    assert (status["emitted"], status["acked"], status["failed"], status["rounds"]) == (4, 3, 1, 2)
    query.stop()
    assert len(spout.threads) == 1 and spout.closed == 1, "all calls come from one thread"
    assert listener.calls == ["started", "failure", "progress", "progress", "terminated"], "before stop() returns"
    assert {(event.topology, event.run_id) for _, event in listener.heard} == {("once", query.run_id)}
    failure, first, second, end = (event for _, event in listener.heard[1:])
    assert (failure.txid, failure.part, failure.message_id, failure.bolt) == (1, "message", 2, "last")
    assert str(failure.error) == "not this time" and end.error is None and query.dropped_events == 0
    assert [(one.txid, one.progress["num_input_rows"], one.progress["acked"]) for one in (first, second)] == [
        (1, 3, 2),
        (2, 1, 3),
    ]
    assert query.await_termination(1) and query.exception() is None
    with pytest.raises(TridentError, match="was stopped before"):
        query.process_all_available(1)


def test_a_spout_whose_source_is_away_for_a_moment_is_asked_again(start, tmp_path: Path) -> None:
    class Away(Listed):
        asked = 0

        def next_tuple(self) -> None:
            self.asked += 1
            if self.asked in (1, 2):
                raise OSError("the source is away")
            super().next_tuple()

    spout = Away([(1, ["a"])])
    topology = TupleTopology("away")
    topology.set_spout("texts", spout)
    topology.set_bolt("split", Split()).shuffle_grouping("texts")
    query = start(topology, max_attempts=3)
    query.process_all_available(WAIT_SECS)
    assert query.is_active and spout.told == [("ack", 1)]


@pytest.mark.long
def test_messages_that_time_out_come_again(start, tmp_path: Path) -> None:
    class ForgetsOnce(FailsOnce):
        def execute(self, tuple) -> None:
            try:
                open(self.marker, "x").close()
            except FileExistsError:
                self.collector.ack(tuple)

    spout = Listed([(1, ["a"])])
    topology = TupleTopology("forgets")
    topology.set_spout("texts", spout)
    topology.set_bolt("last", ForgetsOnce(tmp_path / "marker")).shuffle_grouping("texts")
    query = start(topology, message_timeout_secs=2)
    query.process_all_available(WAIT_SECS)
    assert spout.told == [("fail", 1), ("ack", 1)]
    assert (query.status["timed_out"], query.status["failed"]) == (1, 0)
    assert "timed out" in query.last_errors[0].error


@pytest.mark.long
def test_a_round_that_hangs_is_cancelled_and_its_messages_come_again_in_smaller_ones(start, tmp_path: Path) -> None:
    class HangsOnce(FailsOnce):
        def execute(self, tuple) -> None:
            try:
                open(self.marker, "x").close()
                time.sleep(600)
            except FileExistsError:
                self.collector.ack(tuple)

    spout = Listed([(number, ["a"]) for number in range(8)])
    topology = TupleTopology("hangs")
    topology.set_spout("texts", spout)
    topology.set_bolt("last", HangsOnce(tmp_path / "marker")).shuffle_grouping("texts")
    query = start(topology, message_timeout_secs=1)
    query.process_all_available(WAIT_SECS)
    assert spout.told[:8] == [("fail", number) for number in range(8)] and spout.acked() == list(range(8))
    assert "took longer than message_timeout_secs" in query.last_errors[0].error
    assert query.status["rounds"] > 3


def test_a_reset_timeout_on_a_worker_reaches_the_drivers_watch(start, tmp_path: Path, monkeypatch) -> None:
    class Works(RichBolt):
        def execute(self, tuple) -> None:
            self.collector.reset_timeout(tuple)
            self.collector.ack(tuple)

    ends, leave = [], RoundWatch.__exit__
    monkeypatch.setattr(
        RoundWatch, "__exit__", lambda watch, *error: ends.append(len(os.listdir(watch.path))) or leave(watch, *error)
    )
    topology, spout = TupleTopology("works"), Listed([(1, ["a"])])
    topology.set_spout("texts", spout)
    topology.set_bolt("works", Works()).shuffle_grouping("texts")
    query = start(topology)
    query.process_all_available(WAIT_SECS)
    assert (spout.told, ends, query.last_errors) == ([("ack", 1)], [1], [])


@pytest.mark.parametrize("count", [0, 3])
def test_the_number_of_ackers_is_a_setting_like_any_other(spark: SparkSession, tmp_path: Path, count: int) -> None:
    class Fails(RichBolt):
        def execute(self, tuple) -> None:
            self.collector.fail(tuple)

    topology, spout = TupleTopology("ackers"), Listed([(1, ["a"])], replays=0)
    topology.set_spout("texts", spout)
    topology.set_bolt("last", Fails()).shuffle_grouping("texts")
    query = topology.start(spark, ackers=count, warehouse=str(tmp_path / "warehouse"))
    query.process_all_available(WAIT_SECS)
    query.stop(WAIT_SECS)
    assert spout.told == [("fail" if count else "ack", 1)]


@pytest.mark.parametrize("start_of", [start_topology, run_topology, TupleTopology.start])
def test_no_argument_of_a_start_hides_a_setting(start_of) -> None:
    hidden = set(inspect.signature(start_of).parameters) & set(vars(TridentConfig()))
    assert not hidden, f"{start_of.__qualname__} takes for itself what is a setting: {hidden}"


def test_a_bolt_that_cannot_be_prepared_ends_the_topology_after_max_attempts(start) -> None:
    class Unprepared(Split):
        def prepare(self, context) -> None:
            raise OSError("no database")

    spout = Listed([(1, ["a"])])
    topology = TupleTopology("unprepared")
    topology.set_spout("texts", spout)
    topology.set_bolt("split", Unprepared()).shuffle_grouping("texts")
    listener = Hears()
    query = start(topology, max_attempts=2, listeners=[listener])
    with pytest.raises(UserFunctionError, match="bolt split failed .*in prepare: OSError: no database"):
        query.process_all_available(WAIT_SECS)
    with pytest.raises(UserFunctionError):
        query.await_termination(1)
    assert isinstance(query.exception(), UserFunctionError)
    assert listener.calls == ["started", "failure", "failure", "terminated"]
    assert [event.part for call, event in listener.heard if call == "failure"] == ["round", "round"]
    assert listener.heard[-1][1].error is query.exception()
    with pytest.raises(ConfigError, match="a listener cannot be used"):
        start(topology, listeners=[Hears])
    assert (spout.told, spout.closed) == ([("fail", 1)] * 2, 1)


def test_stop_cancels_a_round_that_takes_long_and_tells_the_spout_nothing(start, tmp_path: Path, monkeypatch) -> None:
    class Hangs(RichBolt):
        def __init__(self, path: str) -> None:
            self.path = path

        def execute(self, tuple) -> None:
            open(self.path, "w").close()
            time.sleep(600)

    monkeypatch.setattr("trident.tuples.query._GRACE_SECS", 0.5)
    spout = Listed([(1, ["a"])])
    topology = TupleTopology("stopped")
    topology.set_spout("texts", spout)
    topology.set_bolt("hangs", Hangs(str(tmp_path / "begun"))).shuffle_grouping("texts")
    query = start(topology)
    with pytest.raises(TimeoutError, match="stopped did not process all"):
        query.process_all_available(0.2)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    query.stop(WAIT_SECS)
    assert not query.is_active and query.exception() is None
    assert (spout.told, spout.closed) == ([], 1)


@pytest.mark.long
def test_what_a_round_kept_in_spark_is_freed(start, spark: SparkSession, tmp_path: Path) -> None:
    def kept() -> int:
        return spark.sparkContext._jsc.sc().getPersistentRDDs().size()

    before = kept()
    spout = Listed([(number, ["a b"]) for number in range(5)])
    topology = TupleTopology("freed")
    topology.set_spout("texts", spout)
    topology.set_bolt("split", Split()).shuffle_grouping("texts")
    topology.set_bolt("last", Write(tmp_path / "out"), 2).shuffle_grouping("split")
    start(topology).process_all_available(WAIT_SECS)
    assert kept() <= before


def test_values_keep_their_types_between_bolts(start, tmp_path: Path) -> None:
    class Types(RichBolt):
        def __init__(self, path: str) -> None:
            self.path = path

        def execute(self, tuple) -> None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(repr(tuple.values) + "\n")
            self.collector.ack(tuple)

    row = (1, 2**70, "é\ud800", b"\0", None, Decimal("1.10"), datetime.date(2024, 1, 2), {"a": [1, (2,)]}, Point(1, 2))
    spout = Listed([(1, [row])], "a, b, c, d, e, f, g, h, i")
    topology = TupleTopology("types")
    topology.set_spout("rows", spout)
    topology.set_bolt("last", Types(str(tmp_path / "out"))).shuffle_grouping("rows")
    query = start(topology)
    query.process_all_available(WAIT_SECS)
    assert (tmp_path / "out").read_text(encoding="utf-8") == repr(row) + "\n", query.last_errors


class Point:
    """A class that workers do not import: it travels whole."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"
