"""Whole topologies on real Spark, ZooKeeper and Delta: exactly once over failures, crashes and restarts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.chaos.oracle import Table
from tests.long_cases import sample
from tests.servers.zk_fixtures import eventually
from tests.streams.stream_helpers import split
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    FixedBatchSpout,
    Max,
    MemoryMapState,
    NotExactlyOnceWarning,
    SqliteMap,
    Sum,
    TridentTopology,
    non_transactional,
)
from trident.commands import admin
from trident.coordinators import faults
from trident.coordinators.errors import (
    AttemptCapReached,
    CoordinationError,
    CorruptZnode,
    FieldError,
    IdentityMismatch,
    SourceError,
    TopologyError,
    UserFunctionError,
    ZooKeeperUnreachable,
)
from trident.coordinators.znodes import SetData
from trident.running.query import TopologyQuery
from trident.running.status import read_status, status_path
from trident.spouts.contracts import SpoutKind
from trident.udf.types import as_schema

WAIT_SECS = 90.0
SENTENCES = [[("a b a",), ("b",)], [("c a",)], [], [("b b",)], [("d",), ("a d",)]]
EXPECTED = {"a": 4, "b": 4, "c": 1, "d": 2}
# Of a topology that is there already: its identity, lease and fence; telling its spout the last success.
MULTIS_OF_A_START = 3


def word_count(name: str = "words", batches: list = SENTENCES, function: Callable = split) -> TridentTopology:
    topology = TridentTopology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line string", batches)).each("line", function, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    words.partition_persist(DeltaAppend("words"), "word")
    return topology


def counts(query: TopologyQuery, txid: int | None = None) -> dict[str, int]:
    return {row.word: row["count"] for row in query.snapshot("counts", txid).collect()}


def appended(query: TopologyQuery, txid: int | None = None) -> Counter:
    return Counter(row.word for row in query.snapshot("words", txid).collect())


def stored(folder: Path) -> Counter:
    """The words that both tables of a word count hold, which must be the same; read without the framework and Spark."""
    logged: Counter = Counter()  # nothing is dropped from the log of so short a run
    for row in Table.read(folder / "warehouse" / "counts__log").rows():
        logged[row["word"]] += row["count"]
    kept = Counter(row["word"] for row in Table.read(folder / "warehouse" / "words").rows())
    assert logged == kept, "the states of a topology agree"
    return kept


def merges(folder: Path) -> int:
    """How many MERGEs the plain table has had."""
    entries = (folder / "warehouse" / "counts" / "_delta_log").glob("*.json")
    return sum('"operation":"MERGE"' in entry.read_text() for entry in entries)


def test_a_word_count_is_exact_over_a_restart_and_earlier_transactions_can_be_read(start, tmp_path: Path) -> None:
    """It keeps its id and writes little to ZooKeeper; its query is used from several threads."""
    first = start.run(word_count(batches=SENTENCES[:2]))
    first.stop()  # with its MERGE: the second reads what that has made
    query = start(word_count(), max_spout_pending=3)
    with ThreadPoolExecutor(3) as pool:
        for waiting in [pool.submit(query.process_all_available, WAIT_SECS) for _ in range(3)]:
            waiting.result()
        for found in [pool.submit(read, query) for read in (counts, appended)]:
            assert found.result() == EXPECTED
    assert stored(tmp_path) == EXPECTED
    running = Counter(word for batch in SENTENCES[:3] for (line,) in batch for word in line.split())
    assert counts(query, 3) == running == appended(query, 3)
    assert counts(query, 1) == {"a": 2, "b": 2}
    with pytest.raises(TopologyError, match="'nothing'.*counts.*words"):
        query.snapshot("nothing")
    progress = query.last_progress
    assert (progress["batch_id"], progress["attempt"], progress["states"]) == (5, 0, {"counts": 2, "words": 3})
    assert [record["batch_id"] for record in query.recent_progress] == [3, 4, 5]
    assert first.id == query.id and first.run_id != query.run_id
    multis = query._zk.counters.multis
    assert multis <= 3 * 3 + MULTIS_OF_A_START, "three for each transaction"
    time.sleep(0.3)
    assert query._zk.counters.multis == multis, "none when idle"
    query.stop(compact=False)
    status = read_status(tmp_path / "warehouse", "words")
    assert (status.role, status.groups[0].current_txid) == ("stopped", 6)


def test_all_aggregators_global_and_grouped(start, armed) -> None:
    armed("publish.memory:do_then_fail,publish.memory:fail_before:3")  # a map's update is tried again, and counts once
    topology = TridentTopology("aggregates")
    rows = [[("x", 3), ("y", None), ("x", 5)], [], [("x", -1), (None, 7)]]
    stream = topology.new_stream("rows", FixedBatchSpout("k string, n long", rows))
    stream.group_by("k").persistent_aggregate(DeltaMapState("greatest"), "n", Max(), "n")
    stream.persistent_aggregate(DeltaMapState("total"), "n", Sum(), "n")
    stream.group_by("k").persistent_aggregate(MemoryMapState("memory_counts"), Count(), "n")
    MemoryMapState("memory_counts").clear()
    query = start.run(topology)
    assert {(r.k, r.n) for r in query.snapshot("greatest").collect()} == {("x", 5), ("y", None), (None, 7)}
    assert [r.n for r in query.snapshot("total").collect()] == [14]
    assert {(r.k, r.n) for r in query.snapshot("memory_counts").collect()} == {("x", 3), ("y", 1), (None, 1)}
    assert query.get("greatest", ["x", "z", ("y",), {"k": None}]) == [{"n": 5}, None, {"n": None}, {"n": 7}]
    assert query.get("total") == {"n": 14} and query.get("greatest", "x") == {"n": 5}
    assert query.get("memory_counts", ["z", None, "x"]) == [None, {"n": 1}, {"n": 3}]
    with pytest.raises(FieldError, match="key"):
        query.get("memory_counts", 7)


# --- failures before the decision --------------------------------------------------------


@pytest.mark.long
def test_at_the_cap_it_stops_with_the_function_the_line_and_the_batch(start, tmp_path: Path) -> None:
    def broken(sentence: str) -> Iterator[str]:
        if "c" in sentence:
            raise ValueError("never")
        yield from sentence.split()

    query = start(word_count(function=broken, batches=SENTENCES[:2]))
    with pytest.raises(AttemptCapReached, match=r"transaction 2 .* fails the same way each time \(3 times") as caught:
        query.await_termination(WAIT_SECS)
    cause = caught.value.__cause__
    told = "".join(traceback.format_exception(caught.value))
    assert told.index(", in broken") < told.index("UserFunctionError") < told.index("AttemptCapReached")
    assert 'raise ValueError("never")' in told and len(told.splitlines()) < 30
    assert "trident-failure" not in told and "Py4J" not in told and "tried again" not in told
    assert isinstance(cause, UserFunctionError) and "ValueError: never" in str(cause)
    assert "test_query.py:" in cause.location and caught.value.txid == 2
    assert query.exception() is caught.value and not query.is_active
    assert stored(tmp_path) == {"a": 2, "b": 2}, "the transaction before it is committed"
    mended = start.run(word_count(batches=SENTENCES[:2]))
    assert stored(tmp_path) == {"a": 3, "b": 2, "c": 1}
    assert mended.recent_progress[0]["attempt"] == 3, "attempt ids go on after a restart"


@pytest.mark.long
def test_a_batch_that_takes_too_long_is_cancelled_and_has_twice_the_time(start, tmp_path: Path) -> None:
    flag = str(tmp_path / "slow")

    def slow(sentence: str) -> Iterator[str]:
        if not os.path.exists(flag):
            open(flag, "w").close()
            time.sleep(60)
        yield from sentence.split()

    query = start(word_count(function=slow, batches=SENTENCES[:1]), message_timeout_secs=2)
    began = time.monotonic()
    query.process_all_available(WAIT_SECS)
    assert stored(tmp_path) == {"a": 2, "b": 2} and time.monotonic() - began < 55
    assert "message_timeout_secs" in query.status["groups"][0]["last_error"]


# --- crashes: the driver is abandoned at a fault point, the next one resumes ---------------------


FAULTS = ",".join(
    [
        "zk.begin:do_then_fail:2,stage.write:do_then_fail:2,manifest.write:fail_before:2,manifest.write:do_then_fail:4",
        "zk.decide:fail_before:2,zk.advance:do_then_fail:2,zk.decide:do_then_fail:5,spout.success:fail_before:4",
        "publish.table:fail_before:2,publish.table:do_then_fail:5,publish.table:do_then_fail:8",
    ]
)


def test_faults_on_the_way_are_survived_in_the_same_process(start, tmp_path: Path) -> None:
    """Before the decision, in ZooKeeper and in a table; alone, and every outcome: ``make sweep``."""
    faults.arm(FAULTS)
    start.run(word_count(), max_spout_pending=1)
    assert stored(tmp_path) == EXPECTED
    assert faults.unfired() == []


def hanging(start, fault: str) -> TopologyQuery:
    """A leader that hangs at a fault point."""
    faults.arm(fault)
    query = start(word_count(), max_attempts=1)
    assert eventually(lambda: not faults.unfired(), WAIT_SECS), f"never came to {fault}"
    return query


@pytest.mark.parametrize("point", sample(["zk.decide", "zk.advance"], "zk.advance"))
def test_a_coordinator_that_gets_stuck_is_replaced_and_its_late_writes_are_refused(start, tmp_path, point):
    """The first coordinator hangs at the point; its lease is taken away; then it wakes up.

    At its end it merges nothing: that is for its successor to do, and two MERGEs at once are one for nothing.
    """
    first = hanging(start, f"{point}:hang:2")
    second = start(word_count())
    first._zk._client.stop()  # its session is gone; it does not know
    second.process_all_available(WAIT_SECS)
    faults.disarm()  # the first one wakes up and goes on with what it was doing
    first.stop(WAIT_SECS)
    assert first._supervisor.ended.is_set() and merges(tmp_path) == 0
    assert stored(tmp_path) == EXPECTED


@pytest.mark.long
def test_a_recovery_that_loses_its_lease_again_and_again_is_begun_again_less_and_less_often(start, tmp_path, caplog):
    """ZooKeeper does not answer while the session lives: the decision is pending still, and no contradiction."""
    caplog.set_level(logging.INFO, logger="trident.query")
    first = hanging(start, "publish.table:hang:2")
    lost = 3
    faults.arm(",".join(f"zk.advance:fail_before:{number}>zk.sync:fail_before" for number in range(1, lost + 1)))
    second = start(word_count())
    first._zk._client.stop()
    second.process_all_available(WAIT_SECS)
    assert faults.unfired() == []
    times = [one.created for one in caplog.records if "the lease was lost while a decided" in one.message]
    assert len(times) == lost
    waits = [after - before for before, after in zip(times, times[1:])]
    assert all(wait >= 0.2 * 2**number for number, wait in enumerate(waits)), waits
    faults.disarm()
    first.stop(WAIT_SECS, compact=False)
    assert stored(tmp_path) == EXPECTED


@pytest.mark.long
def test_what_a_recovery_waits_for_is_in_the_status(start, tmp_path: Path) -> None:
    first = hanging(start, "publish.table:hang:2")
    faults.arm(
        "publish.table:fail_before:1,publish.table:fail_before:2>publish.table:hang"
    )  # both tables; the next try
    second = start(word_count())
    first._zk._client.stop()
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)

    def says_so() -> bool:
        groups = read_status(tmp_path / "warehouse", "words").groups
        said = [(group.mode, group.last_error or "") for group in groups]
        return any(
            mode == "recovering" and "finishing transaction 1:0: injected fault" in error for mode, error in said
        )

    assert eventually(says_so, WAIT_SECS)
    faults.disarm()
    second.process_all_available(WAIT_SECS)
    first.stop(WAIT_SECS, compact=False)
    assert second.status["groups"][0]["mode"] == "running"
    assert stored(tmp_path) == EXPECTED


@pytest.mark.long
def test_a_standby_that_has_led_does_not_write_over_the_leaders_status(start, tmp_path: Path) -> None:
    def writer() -> str:
        return read_status(tmp_path / "warehouse", "words").run_id

    first = start.run(word_count(batches=SENTENCES[:1]))
    second = start(word_count(batches=SENTENCES[:2]))
    assert eventually(lambda: second._supervisor.standby_of, WAIT_SECS)
    first._zk._client.delete(first._zk.path("words", "live"))
    assert eventually(lambda: second.is_leader and first._supervisor.standby_of, WAIT_SECS)
    second.process_all_available(WAIT_SECS)
    assert eventually(lambda: writer() == second.run_id, WAIT_SECS)
    first.stop(compact=False)
    assert writer() == second.run_id


@pytest.mark.long
def test_pause_starts_nothing_new_and_resume_goes_on(start, tmp_path: Path) -> None:
    query = start(word_count(batches=[[("a",)]] * 9), batch_emit_interval_secs=0.05, max_spout_pending=1)
    assert eventually(lambda: query.recent_progress, WAIT_SECS)
    query.pause()

    def rests() -> bool:  # the transaction that was under way has ended; others would have come meanwhile
        before = query.last_progress["batch_id"]
        time.sleep(0.5)
        return query.last_progress["batch_id"] == before

    assert eventually(rests, WAIT_SECS) and query.last_progress["batch_id"] < 9
    query.resume()
    query.process_all_available(WAIT_SECS)
    assert stored(tmp_path) == {"a": 9}


# --- refused early --------------------------------------------------------------------------------


def test_another_topology_of_this_name_and_a_znode_that_holds_garbage_are_refused(start, zk) -> None:
    start.run(word_count(batches=SENTENCES[:1])).stop(compact=False)
    other = TridentTopology("words")
    stream = other.new_stream("lines", FixedBatchSpout("line string", SENTENCES)).each("line", split, "word")
    stream.group_by("word").persistent_aggregate(DeltaMapState("counts"), "word", Max(), "count")
    stream.partition_persist(DeltaAppend("words"), "word")
    with pytest.raises(IdentityMismatch, match="counts.*aggregator"):
        start(other)
    path = zk.path("words", "lines", "coordinator")
    zk.multi([SetData(path, b"garbage", zk.exists(path).znode_version)])
    query = start(word_count())
    with pytest.raises(CorruptZnode, match="words/lines/coordinator.*garbage"):
        query.await_termination(WAIT_SECS)


def test_an_unreachable_zookeeper_says_where_it_looked_within_the_connect_timeout(start) -> None:
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnreachable, match="127.0.0.1:1"):
        start(word_count(), zookeeper="127.0.0.1:1", zookeeper_connect_timeout_secs=1)
    assert time.monotonic() - began < 10


def test_a_missing_input_is_an_error_at_the_start(start, tmp_path: Path) -> None:
    topology = TridentTopology("files")
    topology.new_stream("lines", FileSpout(tmp_path / "nowhere")).partition_persist(DeltaAppend("lines"))
    with pytest.raises(SourceError, match="nowhere"):
        start(topology).await_termination(WAIT_SECS)


# --- from other processes, and the command line's functions ------------------------------------------


@pytest.mark.parametrize(("outcome", "found"), sample([("do_then_fail", 7), ("fail_before", 5)], ("fail_before", 5)))
def test_a_map_that_skips_replays_has_each_row_at_most_once(start, tmp_path: Path, outcome: str, found: int) -> None:
    """Whether a publish that failed has written is not known, so it is not done again."""
    topology = TridentTopology("words")
    words = topology.new_stream(
        "lines", FixedBatchSpout("word string", [[("a",), ("a",)], [("a",), ("b",)], [("c",)] * 3])
    )
    state = non_transactional("seen", SqliteMap(str(tmp_path / "maps.db"), "seen"), skip_replays=True)
    with pytest.warns(NotExactlyOnceWarning):
        words.group_by("word").persistent_aggregate(state, Count(), "n")
    faults.arm(f"publish.user:{outcome}:2")
    query = start.run(topology)
    assert faults.unfired() == []
    assert sum(row.n for row in query.snapshot("seen").collect()) == found


@pytest.mark.long
def test_another_process_reads_the_tables_while_the_topology_runs(start, tmp_path: Path) -> None:
    query = start.run(word_count(batches=SENTENCES[:3]))
    code = (
        "import sys, trident\n"
        "from pyspark.sql import SparkSession\n"
        "b = SparkSession.builder.master('local[1]').config('spark.driver.memory', '512m')\n"
        "b = b.config('spark.sql.codegen.wholeStage', 'false').config('spark.sql.adaptive.enabled', 'false')\n"
        "spark = trident.configure_spark(b).getOrCreate()\n"
        "print(sorted(map(tuple, trident.read(spark, sys.argv[1], 'counts', txid=2).collect())))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "warehouse")], capture_output=True, text=True, timeout=120
    )
    assert out.stdout.strip().endswith("[('a', 3), ('b', 2), ('c', 1)]"), out.stdout + out.stderr
    assert query.is_active


@pytest.mark.long
def test_skip_commits_a_batch_as_empty_with_a_dead_letter(start, tmp_path: Path) -> None:
    def broken(sentence: str) -> Iterator[str]:
        if "c" in sentence:
            raise ValueError("never")
        yield from sentence.split()

    batches = [*SENTENCES[:2], SENTENCES[4]]
    query = start(word_count(function=broken, batches=batches), max_attempts=1)
    with pytest.raises(AttemptCapReached):
        query.await_termination(WAIT_SECS)
    config = start.config
    with pytest.raises(Exception, match="transaction 3 .* cannot be skipped.*current transaction 2"):
        admin.skip("words", 3, config=config)
    manifests = tmp_path / "warehouse" / "_trident" / "words" / "lines" / "manifests"
    assert [path.name for path in manifests.glob("*/*.json")] == ["1-0.json"]
    assert "transaction 2 is committed as empty" in admin.skip("words", 2, config=config)
    kept = [path.name.partition("-")[0] for path in manifests.glob("*/*.json")]
    assert sorted(kept) == ["1", "2"], "skip leaves the history that the topology keeps"
    letters = DeltaTable(str(tmp_path / "warehouse" / "words__lines__dead_letters")).to_pyarrow_table().to_pylist()
    assert [(row["txid"], "ValueError: never" in row["error"]) for row in letters] == [(2, True)]
    rest = start.run(word_count(function=broken, batches=batches))
    assert stored(tmp_path) == {"a": 3, "b": 2, "d": 2}
    assert counts(rest, txid=2) == {"a": 2, "b": 2}


@pytest.mark.long
def test_of_an_adopted_table_a_transaction_is_that_of_this_life(start, tmp_path: Path) -> None:
    def lines(prefix: str) -> TridentTopology:
        topology = TridentTopology("lines")
        stream = topology.new_stream("s", FixedBatchSpout("line string", [[(f"{prefix}{n}",)] for n in range(2)]))
        stream.partition_persist(DeltaAppend("lines", adopt=True))
        return topology

    query = start.run(lines("old"))
    query.stop()
    config = start.config
    admin.reset("lines", config=config)
    query = start.run(lines("new"))
    kept = {"old0", "old1"}
    for txid in (1, 2):
        found = {row.line for row in query.snapshot("lines", txid=txid).collect()}
        assert found == kept | {f"new{n}" for n in range(txid)}


@pytest.mark.long
def test_reset_begins_again_with_a_new_incarnation(start, tmp_path: Path) -> None:
    first = start.run(word_count(batches=SENTENCES[:2]))
    config = start.config
    with pytest.raises(Exception, match="is running"):
        admin.reset("words", config=config)
    # The guard asks the status, which is written half a second after the start, not the sooner for a quick batch.
    file = Path(status_path(config.warehouse, "words"))
    assert eventually(lambda: file.exists() and read_status(config.warehouse, "words").role == "leader", WAIT_SECS)
    # By way of a ZooKeeper that has never heard of it: while it runs, and when it was stopped.
    wrong = config.replace(zookeeper_root=f"{config.zookeeper_root}-other")
    reset = partial(admin.reset, "words", True)
    for command in (reset, partial(admin.skip, "words", 3), partial(admin.compact, "words")):
        with pytest.raises(CoordinationError, match="led by way of another ZooKeeper"):
            command(config=wrong)
    assert stored(tmp_path) == {"a": 3, "b": 2, "c": 1} and first.is_active
    first.stop(compact=False)
    with pytest.raises(CoordinationError, match="nothing was changed.*table counts__log has transaction"):
        reset(config=wrong)
    admin.reset("words", drop_tables=True, config=config)
    second = start.run(word_count(batches=SENTENCES[1:3]))
    assert second.id != first.id and stored(tmp_path) == {"a": 1, "c": 1} == counts(second)


class Frames:
    """An opaque spout whose batches are DataFrames."""

    output_schema = as_schema("n long", "Frames")
    kind = SpoutKind.OPAQUE

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def get_coordinator(self, context) -> "Frames":
        return self

    get_emitter = get_coordinator

    def is_ready(self, txid: int) -> bool:
        return txid == 1

    def initialize_transaction(self, txid: int, prev_metadata, curr_metadata) -> dict:
        return {}

    def emit_batch(self, attempt, metadata):
        return self.spark.range(1000).withColumnRenamed("id", "n")

    def success(self, txid) -> None: ...

    def close(self) -> None: ...


def test_a_batch_that_is_kept_in_memory_is_freed_when_its_plan_cannot_be_built(start, spark: SparkSession) -> None:
    def kept() -> set[int]:
        return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())

    def bad(n: int) -> int:  # for one row only: of two partitions that fail, Spark reports either
        if n == 0:
            raise ValueError(n)
        return n

    topology, before = TridentTopology("kept"), kept()
    broken = topology.new_stream("rows", Frames(spark)).each("n", bad, "m")
    broken.partition_persist(DeltaAppend("one"))
    broken.partition_persist(DeltaAppend("two"))  # used twice: it is computed while the plan is built
    query = start(topology, max_attempts=1)
    with pytest.raises(AttemptCapReached, match="ValueError"):
        query.await_termination(WAIT_SECS)
    assert kept() <= before  # those of earlier tests may go meanwhile
