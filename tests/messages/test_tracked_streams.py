"""Streams of single messages: one that fails leaves its batch, the others are committed (docs/semantics.md 6)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tests.chaos.oracle import Table
from tests.messages.message_helpers import Messages
from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import Starter, starter
from trident import Combiner, Count, DeltaAppend, DeltaMapState, Reducer, TridentConfig, TridentTopology
from trident.coordinators.errors import AttemptCapReached, FailedException, TopologyError
from trident.messages.dead_letters import DeadLetterReader
from trident.operations.aggregates import _all_anchors
from trident.planning.operation import ANCHORS_FIELD, Branch
from trident.workers.anchors import ANCHORS, make_anchors, read_anchors

WAIT_SECS = 90.0


@pytest.fixture
def start(spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[Starter]:
    """Starts topologies over one warehouse and one ZooKeeper root; stops them in the end."""
    with starter(spark, zk_server, zk_root, tmp_path, replay_backoff_secs=0.01) as started:
        yield started


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], list]:
    """The rows of a table, read without Spark and without the framework."""
    return lambda name: [SimpleNamespace(**row) for row in Table.read(tmp_path / "warehouse" / name).rows()]


@pytest.fixture
def counts(table: Callable[[str], list]) -> Callable[[], Counter]:
    """What the log of the state "counts" adds up to; nothing is dropped from the log of so short a run."""

    def added_up() -> Counter:
        found: Counter = Counter()
        for row in table("counts__log"):
            found[row.word] += row.count
        return found

    return added_up


def split(sentence: str) -> Iterator[str]:
    for word in sentence.split():
        if word == "poison":
            raise ValueError("this word is poison")
        yield word


def counted(spout: Messages, function: Callable = split) -> TridentTopology:
    topology = TridentTopology("words")
    words = topology.new_stream("lines", spout).each("line", function, "word string").group_by("word")
    words.persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    return topology


def appended(spout: Messages, function: Callable = split) -> TridentTopology:
    topology = TridentTopology("words")
    words = topology.new_stream("lines", spout).each("line", function, "word string")
    words.partition_persist(DeltaAppend("seen", adopt=True), "word")
    return topology


class Letters(Combiner):
    """How many letters the words of a group have; breaks at one of them."""

    def init(self, word: str) -> int:
        if word == "b6":
            raise ValueError("this word cannot be counted")
        return len(word)

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


def test_a_message_that_fails_leaves_its_batch_and_becomes_a_dead_letter(start, table, counts) -> None:
    lines = {n: f"a b{n} {'poison' if n == 3 else 'c'} d" for n in range(8)}
    spout = Messages("line string", lines.items())
    topology = TridentTopology("words")
    words = topology.new_stream("lines", spout).each("line", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    words.partition_persist(DeltaAppend("seen"), "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("letters"), "word", Letters(), "n")
    query = start(topology, max_replays=2)
    query.process_all_available(WAIT_SECS)
    expected = Counter(word for n, line in lines.items() if n not in (3, 6) for word in line.split())
    assert counts() == expected == Counter(row.word for row in table("seen"))
    assert {row.word: row.n for row in query.snapshot("letters").collect()} == {
        word: len(word) * count for word, count in expected.items()
    }
    assert sorted(spout.acked) == list(range(8)) and sorted(spout.failed) == [3, 3, 6, 6]
    letter, other = sorted(table("words__lines__dead_letters"), key=lambda one: one.message)
    assert other.message == "6" and "this word cannot be counted" in other.error and "Letters" in other.operation
    assert (letter.message, letter.attempts, letter.stream) == ("3", 3, "lines")
    assert letter.operation == "each(split)" and "ValueError: this word is poison" in letter.error
    assert "raise ValueError" in letter.traceback and letter.tuples is not None


@pytest.mark.long
def test_batches_in_flight_share_a_kept_plan_and_each_has_a_ledger_of_its_own(start, table, counts) -> None:
    lines = {n: f"a b{n} {'poison' if n in (4, 5, 17) else 'c'} d" for n in range(30)}
    spout = Messages("line string", lines.items())
    query = start(counted(spout), max_replays=0, max_spout_pending=3, max_pending_messages=12)
    query.process_all_available(WAIT_SECS)
    assert counts() == Counter(word for line in lines.values() if "poison" not in line for word in line.split())
    assert sorted(letter.message for letter in table("words__lines__dead_letters")) == ["17", "4", "5"]
    assert sorted(spout.acked) == sorted(lines) and spout.failed == []
    records = query.recent_progress
    assert len(records) >= 10 and all(record["duration_ms"]["plan"] == 0.0 for record in records)


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it")
def test_a_worker_that_dies_fails_the_messages_for_which_it_dies(start, table) -> None:
    """Two of them, one the first of its batch; tried again, they are all that there is."""

    def deadly(line: str) -> Iterator[str]:
        if "deadly" in line:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from line.split()

    lines = {f"m{n}": f"a b{n}{' deadly' if n in (0, 5) else ''}" for n in range(9)}
    spout = Messages("line string", lines.items())
    query = start(counted(spout, deadly), max_replays=1, max_attempts=2)
    query.process_all_available(WAIT_SECS)
    expected = Counter(word for name, line in lines.items() if name not in ("m0", "m5") for word in line.split())
    assert {row.word: row["count"] for row in query.snapshot("counts").collect()} == expected
    letters = sorted(table("words__lines__dead_letters"), key=lambda letter: letter.message)
    assert [(letter.message, letter.attempts) for letter in letters] == [('"m0"', 2), ('"m5"', 2)]
    assert all("Python worker exited" in letter.error for letter in letters)
    assert sorted(spout.acked) == sorted(lines)


class Longest(Reducer):
    def init(self) -> str:
        return ""

    def reduce(self, longest: str, word: str) -> str:
        if word == "poison":
            raise ValueError("this word is poison")
        return max(longest, word, key=lambda one: (len(one), one))


@pytest.mark.long
def test_a_function_in_the_transactions_turn_fails_its_message_too(start, table) -> None:
    lines = {1: "a bbb", 2: "x poison", 3: "cc dddd", 5: "poison"}
    spout = Messages("line string", lines.items())
    topology = TridentTopology("words")
    words = topology.new_stream("lines", spout).each("line", str.split, "word string")
    words.each("word", lambda word: word[:0], "key string").group_by("key").persistent_aggregate(
        DeltaMapState("longest"), "word", Longest(), "longest string"
    )
    # An attempt that fails in its turn finds all of them: two attempts must do.
    query = start(topology, max_replays=0, max_attempts=2)
    query.process_all_available(WAIT_SECS)
    assert [row.longest for row in query.snapshot("longest").collect()] == ["dddd"]
    letters = table("words__lines__dead_letters")
    assert sorted(letter.message for letter in letters) == ["2", "5"] and sorted(spout.acked) == [1, 2, 3, 5]
    assert all("this word is poison" in letter.error for letter in letters)


@pytest.mark.long
def test_a_value_that_an_expression_of_spark_cannot_take_fails_its_message(start, table) -> None:
    spout = Messages("line string", {1: "1", 2: "two", 3: "3"}.items())
    topology = TridentTopology("words")
    numbers = topology.new_stream("lines", spout).each(F.col("line").cast("int"), "n")
    numbers.partition_persist(DeltaAppend("seen"), "n")
    start.run(topology, max_replays=0, max_attempts=2)
    assert sorted(row.n for row in table("seen")) == [1, 3]
    (letter,) = table("words__lines__dead_letters")
    assert letter.message == "2" and "CAST_INVALID_INPUT" in letter.error


class Broken:
    """Cannot be opened, whatever the rows."""

    def prepare(self, context: Any) -> None:
        raise ConnectionError("the service is down")

    def __call__(self, line: str) -> str:
        return line


class Down:
    """Says of a row that it is not the row's fault."""

    def __call__(self, line: str) -> str:
        if line == "c":
            raise FailedException("the service is down")
        return line


@pytest.mark.long
@pytest.mark.parametrize("function", [Broken(), Down()])
def test_a_failure_that_is_no_messages_fault_fails_the_batch(start, function: Any) -> None:
    """Nobody is given up for a service that is down."""
    spout = Messages("line string", {n: "abcd"[n] for n in range(4)}.items())
    topology = TridentTopology("words")
    topology.new_stream("lines", spout).each("line", function, "same string").partition_persist(DeltaAppend("seen"))
    query = start(topology, max_attempts=2)
    with pytest.raises(AttemptCapReached, match="the service is down"):
        query.process_all_available(WAIT_SECS)
    assert spout.acked == [] and spout.failed == [] and len(spout.kept) == 4


def test_what_was_committed_and_not_acknowledged_is_recognised_after_a_restart(start, table, counts) -> None:
    spout = Messages("line string", {n: f"w{n}" for n in range(6)}.items())
    spout.unread = True  # the transaction is durable, the broker does not hear of it

    first = start(counted(spout))
    first.process_all_available(WAIT_SECS)
    first.stop(WAIT_SECS, compact=False)
    assert spout.acked == [] and len(spout.kept) == 6
    spout.unread = False
    spout.put("new", "w0")
    second = start(counted(spout))
    second.process_all_available(WAIT_SECS)
    assert counts() == {"w0": 2, **{f"w{n}": 1 for n in range(1, 6)}}
    assert Counter(spout.acked) == Counter([*range(6), "new"]) and not spout.kept
    assert Counter(row.message for row in table("words__lines__messages")) == Counter([*map(str, range(6)), '"new"'])


@pytest.mark.long
def test_tries_are_counted_over_restarts(start, table) -> None:
    spout = Messages("line string", {1: "poison", 2: "fine"}.items())
    first = start(appended(spout), max_replays=2, replay_backoff_secs=600)
    assert eventually(lambda: spout.acked, WAIT_SECS)
    with pytest.raises(TimeoutError):
        first.process_all_available(0.5)
    first.stop(WAIT_SECS, compact=False)
    assert spout.failed == [] and spout.acked == [2], "the spout hears of a failure when its time has come"
    start.run(appended(spout), max_replays=2)
    (letter,) = table("words__lines__dead_letters")
    assert (letter.message, letter.attempts) == ("1", 3) and spout.failed == [1]
    assert [row.word for row in table("seen")] == ["fine"]


@pytest.mark.long
def test_without_ackers_messages_are_acknowledged_when_they_are_emitted(start, table, tmp_path: Path) -> None:
    spout = Messages("line string", {n: f"w{n}" for n in range(3)}.items())
    query = start(appended(spout), ackers=0, max_attempts=2)
    query.process_all_available(WAIT_SECS)
    assert spout.acked == [0, 1, 2] and len(table("seen")) == 3
    assert not list((tmp_path / "warehouse").glob("*__messages")), "nothing is kept of what nobody tracks"
    spout.put("bad", "poison")
    with pytest.raises(AttemptCapReached):
        query.process_all_available(WAIT_SECS)


@pytest.mark.long
def test_rows_without_a_message_id_are_not_tracked_and_fail_their_batch(start, table) -> None:
    class Nameless(Messages):
        def next_tuple(self) -> None:
            if self._waiting:
                self.collector.emit_many(self.kept[self._waiting.popleft()])

    spout = Nameless("line string", {1: "a", 2: "b"}.items())
    query = start(appended(spout), max_attempts=2)
    query.process_all_available(WAIT_SECS)
    assert sorted(row.word for row in table("seen")) == ["a", "b"] and spout.acked == []
    spout.put(3, "poison")
    with pytest.raises(AttemptCapReached, match="this word is poison"):
        query.process_all_available(WAIT_SECS)


@pytest.mark.long
def test_dead_letters_of_before_a_reset_are_the_older_ones(
    start, table, spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    """The transactions behind a reset have small numbers again."""
    from trident.commands.admin import reset
    from trident.commands.dead_letters import dead_letters, replay

    config = TridentConfig(warehouse=str(tmp_path / "warehouse"), zookeeper=zk_server, zookeeper_root=zk_root)
    spout = Messages("line string", ())
    first = start(appended(spout), max_replays=0)
    for number in range(4):
        spout.put(number, f"w{number}")
        first.process_all_available(WAIT_SECS)
    spout.put("old", "poison")
    first.process_all_available(WAIT_SECS)
    first.stop(WAIT_SECS, compact=False)
    (old,) = dead_letters("words", config)
    reset("words", False, config)
    second = start(appended(Messages("line string", {"new": "poison"}.items())), max_replays=0)
    second.process_all_available(WAIT_SECS)
    second.stop(WAIT_SECS, compact=False)
    letters = dead_letters("words", config)
    assert [one.message for one in letters] == ['"old"', '"new"'] and letters[1].txid < old.txid
    assert DeadLetterReader(config.warehouse_place(), "words").letters(1)[-1].message == '"new"'
    assert "1 to be tried again" in replay("words", config, messages=['"old"'])
    start.run(appended(Messages("line string", ()), str.split), max_replays=0)
    letters = dead_letters("words", config)
    assert [(one.message, one.replay) for one in letters] == [('"old"', "acked"), ('"new"', "")]
    assert max(end.txid for end in table("words__lines__messages")) < old.txid, "else this shows nothing"
    for name in ("words__lines__dead_letters", "words__lines__messages"):  # their files lie elsewhere then
        spark.sql(f"OPTIMIZE delta.`{tmp_path / 'warehouse' / name}`")
    assert dead_letters("words", config) == letters
    assert DeadLetterReader(config.warehouse_place(), "words").letters(1)[-1].message == '"new"'


@pytest.mark.long
def test_dead_letters_are_listed_and_tried_again(start, table, counts, zk_server, zk_root, tmp_path: Path) -> None:
    from trident.commands.dead_letters import dead_letters, replay

    config = TridentConfig(warehouse=str(tmp_path / "warehouse"), zookeeper=zk_server, zookeeper_root=zk_root)
    spout = Messages("line string", {1: "poison a", "two": ["poison b", "c"], 3: "d"}.items())
    first = start(counted(spout), max_replays=0)
    first.process_all_available(WAIT_SECS)
    found = dead_letters("words", config)
    page = DeadLetterReader(config.warehouse_place(), "words")  # as the live page keeps it
    assert [(one.message, one.attempts, one.replay) for one in found] == [("1", 1, ""), ('"two"', 1, "")]
    assert page.letters(100) == found
    assert "ValueError: this word is poison" in found[0].line() and "raise ValueError" in found[0].traceback
    with pytest.raises(TopologyError, match="no such dead letter"):
        replay("words", config, messages=["7"])
    assert "1 to be tried again" in replay("words", config, messages=['"two"'])
    # The running topology may have tried it already.
    assert dead_letters("words", config)[1].replay in ("asked for", "dead")
    first.stop(WAIT_SECS, compact=False)
    assert len(table("words__lines__dead_letters")) in (2, 3)
    assert page.letters(100) == dead_letters("words", config)
    corrected = start(counted(spout, str.split), max_replays=0)
    corrected.process_all_available(WAIT_SECS)
    replay("words", config)

    def replayed() -> int:
        ends = table("words__lines__messages")
        return sum(end.message.startswith("replay ") and end.outcome == "acked" for end in ends)

    assert eventually(lambda: replayed() == 2, WAIT_SECS)
    assert {one.message: one.replay for one in dead_letters("words", config)} == {"1": "acked", '"two"': "acked"}
    assert page.letters(100) == dead_letters("words", config)
    assert counts() == {"poison": 2, "a": 1, "b": 1, "c": 1, "d": 1}
    assert "no dead letter is to be replayed" in replay("words", config)


def test_branches_share_out_the_ids_of_a_row_and_a_group_has_the_anchors_of_all_its_rows(spark) -> None:
    counts, roots = np.array([2, 0, 1]), np.array([7, 1 << 63, 7], np.uint64)
    ids = np.array([11, 12, (1 << 64) - 13], np.uint64)
    rows = pa.table({"n": pa.array([1, 2, 1]), ANCHORS: make_anchors(counts, roots, ids)})
    frame = spark.createDataFrame(rows, StructType([StructField("n", LongType()), ANCHORS_FIELD])).coalesce(1)
    for of in (1, 2, 3):
        branches = [frame.select(Branch(number, of).anchors().alias(ANCHORS)) for number in range(of)]
        found = [read_anchors(branch.toArrow().column(0).combine_chunks()) for branch in branches]
        assert all(got[0].tolist() == counts.tolist() and got[1].tolist() == roots.tolist() for got in found)
        assert np.bitwise_xor.reduce([got[2] for got in found]).tolist() == ids.tolist()
        assert len({id for got in found for id in got[2].tolist()}) == of * len(ids)
    grouped = frame.groupBy("n").agg(_all_anchors()).orderBy("n").toArrow()
    assert [one.tolist() for one in read_anchors(grouped.column(ANCHORS).combine_chunks())] == [
        [3, 0],
        roots.tolist(),
        ids.tolist(),
    ]
