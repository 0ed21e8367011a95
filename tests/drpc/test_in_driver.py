"""Requests that the leader answers from local copies, without a Spark job: as Spark would, as of one transaction."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampType

from tests.drpc.plain_types import TYPES, VALUES
from tests.topology_helpers import WAIT_SECS, starter
from trident import Count, DeltaMapState, FilterNull, FixedBatchSpout, MapGet, Split, Sum, TridentTopology, expr
from trident.coordinators import faults
from trident.drpc.request_jobs import InProcessAnswers, StatesAsOf
from trident.drpc.requests import DrpcRequests
from trident.drpc.values import as_json
from trident.planning.requests import drpc_plans
from trident.running.query import TopologyQuery
from trident.states.core import local_copy
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, StaleCopy, look_up
from trident.states.publishing.user_tasks import BatchInfo

BATCHES = 8
BATCH = [("a", 1), ("a", 2), ("b", 3)]


def shout(word: str) -> str:
    return f"{word}!"


def made() -> TridentTopology:
    """Every transaction adds the same rows, so a state says by itself as of which transaction it is."""
    topology = TridentTopology("answered")
    rows = topology.new_stream("rows", FixedBatchSpout("word string, n long", [BATCH] * BATCHES)).group_by("word")
    counts = rows.persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    sums = rows.persistent_aggregate(DeltaMapState("sums", merge_every_txids=2), "n", Sum(), "sum")
    others = topology.new_stream("others", FixedBatchSpout("word string", [[("a",)]] * BATCHES)).group_by("word")
    other = others.persistent_aggregate(DeltaMapState("other"), Count(), "other")
    words = topology.new_drpc_stream("words").each("args", Split(), "word")
    found = words.state_query(counts, "word", MapGet(), "count").each("count", FilterNull())
    found.aggregate("count", Sum(), "sum")
    asked = topology.new_drpc_stream("all", "word string").state_query(counts, "word", MapGet(), "count")
    asked.state_query(sums, "word", MapGet(), "sum").state_query(other, "word", MapGet(), "other")
    shouted = topology.new_drpc_stream("shouted", "word string").state_query(counts, "word", MapGet(), "count")
    shouted.each("word", shout, "loud")
    topology.new_drpc_stream("by_spark", "n long").each(expr("n + 1"), "m")
    topology.new_drpc_stream("same", TYPES)
    return topology


@pytest.fixture(scope="module")
def query(spark: Any, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopologyQuery]:
    folder = tmp_path_factory.mktemp("answered")
    with starter(spark, zk_server, f"/{folder.name}", folder) as start:
        yield start(made(), batch_emit_interval_secs=0.3)


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions whose requests went by Spark."""
    asked: list[str] = []
    real = DrpcRequests._answer

    def noted(self: DrpcRequests, plan: Any, *rest: Any) -> Any:
        asked.append(plan.function)
        return real(self, plan, *rest)

    monkeypatch.setattr(DrpcRequests, "_answer", noted)
    return asked


def test_which_functions_the_leader_answers_itself() -> None:
    plans = drpc_plans(made().graph)
    assert {name for name, plan in plans.items() if plan.in_driver is not None} == {"words", "all", "same"}
    assert "(from local copies in the leader's process, without a Spark job):" in made().explain()


def ask(query: TopologyQuery) -> int:
    """Each state must be as of the transaction that the answer names."""
    answer = query.execute("all", "a", timeout_secs=WAIT_SECS)
    txid, other = answer.as_of["rows"], answer.as_of["others"]
    (row,) = answer
    assert (row["count"] or 0, row["sum"] or 0, row["other"] or 0) == (2 * txid, 3 * txid, other), answer.as_of
    return txid


def test_each_answer_is_as_of_one_transaction_while_batches_commit(query: TopologyQuery, by_spark: list[str]) -> None:
    seen = set()
    with ThreadPoolExecutor(4) as pool:
        while BATCHES not in seen:
            seen |= {one.result() for one in [pool.submit(ask, query) for _ in range(8)]}
    assert len(seen) > 2, "batches ran beside the requests"
    query.process_all_available(WAIT_SECS)
    assert ask(query) == BATCHES
    by_spark.clear()
    assert [tuple(row) for row in query.execute("words", "a b  c a")] == [(2 * 2 * BATCHES + BATCHES,)]
    assert [tuple(row) for row in query.execute("words", "c")] == [(0,)]
    assert [tuple(row) for row in query.execute("words", None)] == [(0,)]
    assert not by_spark


def test_functions_of_the_users_go_by_spark(query: TopologyQuery, by_spark: list[str]) -> None:
    query.process_all_available(WAIT_SECS)
    assert [tuple(row) for row in query.execute("shouted", "a")] == [("a", 2 * BATCHES, "a!")]
    assert [tuple(row) for row in query.execute("by_spark", 1)] == [(1, 2)]
    assert by_spark == ["by_spark"], "a function of Python shares its job with others, an expression does not"


@pytest.mark.parametrize("values", VALUES, ids=["values", "nulls"])
def test_values_come_as_spark_gives_them(query: TopologyQuery, monkeypatch: pytest.MonkeyPatch, values: Any) -> None:
    here = query.execute("same", *values)
    monkeypatch.setattr(InProcessAnswers, "answer", lambda *args: None)
    there = query.execute("same", *values)
    assert list(here) == list(there) and [list(map(type, row)) for row in here] == [
        list(map(type, row)) for row in there
    ]
    assert here[0].asDict() == there[0].asDict()


def test_nothing_of_a_transaction_that_has_not_advanced_is_seen(
    spark: Any, zk_server: str, tmp_path: Path, by_spark: list[str]
) -> None:
    topology = TridentTopology("waiting")
    rows = topology.new_stream("rows", FixedBatchSpout("word string", [[("a",)]] * 2)).group_by("word")
    counts = rows.persistent_aggregate(DeltaMapState("waiting_counts"), Count(), "n")
    topology.new_drpc_stream("count", "word string").state_query(counts, "word", MapGet(), "n")
    with starter(spark, zk_server, f"/{tmp_path.name}", tmp_path) as start:
        faults.arm("zk.advance:hang:2")
        query = start(topology, batch_emit_interval_secs=0.01)
        while faults.unfired():
            assert query.execute("count", "a")[0].n in (None, 1)
        answer = query.execute("count", "a")
        assert (answer.as_of, [tuple(row) for row in answer]) == ({"rows": 1}, [("a", 1)])
        faults.disarm()
        query.process_all_available(WAIT_SECS)
        assert query.execute("count", "a")[0].n == 2


def test_a_damaged_copy_that_only_requests_read_is_built_again(query: TopologyQuery, by_spark: list[str]) -> None:
    query.process_all_available(WAIT_SECS)
    assert ask(query) == BATCHES
    copies = reading(query)._states._copies("rows")
    assert copies is not None
    before = copies.as_of(["sums"], BATCHES)
    assert before is not None
    damage(before["sums"], "a")
    assert ask(query) == BATCHES and not by_spark
    after = copies.as_of(["sums"], BATCHES)
    assert after is not None and after["sums"].folder != before["sums"].folder
    damage(after["sums"], "b")
    assert query.get("sums", "b") == {"sum": 3 * BATCHES}
    assert copies.held("sums", BATCHES) is None, "the next batch or request builds it again"


def reading(query: TopologyQuery) -> DrpcRequests:
    """What answers the requests of a query that leads."""
    requests = query._reporter.front._requests
    assert requests is not None
    return requests


def damage(copy: CopyAsOf, word: str) -> None:
    """Changes a bit of each file that holds keys, as a process that opens it finds it."""
    for path in copy.folder.glob("*.rows"):
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
    local_copy._forget(copy.folder)
    with pytest.raises(StaleCopy, match="damaged"):
        look_up(copy, RowCodec(copy.schema, copy.keys).key_array(pa.table({"word": [word]})))


def test_tasks_on_other_hosts_are_not_sent_to_the_leaders_copies(
    query: TopologyQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.process_all_available(WAIT_SECS)
    requests, asked = reading(query), []
    assert requests._states.workers_are_here
    real = StatesAsOf.get
    monkeypatch.setattr(StatesAsOf, "get", lambda *args: (asked.append(True), real(*args))[1])
    for here in (True, False):
        asked.clear()
        monkeypatch.setattr(requests._states, "workers_are_here", here)
        assert [tuple(row) for row in query.execute("shouted", "a")] == [("a", 2 * BATCHES, "a!")]
        assert bool(asked) == here


def test_a_request_does_not_wait_where_there_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[bool] = []
    monkeypatch.setattr(StatesAsOf, "moved", lambda *args: bool(waits.append(True)))
    plan, info = drpc_plans(made().graph)["all"], BatchInfo("request", "", 0, {})
    here = InProcessAnswers(StatesAsOf(lambda group: None, dict.fromkeys(plan.groups, lambda: 1)), True)
    assert here.answer(plan, ("a",), info, time.monotonic() + 60) is None and not waits


@pytest.mark.parametrize("hour", [0, 1])
def test_a_time_in_the_hour_that_comes_twice_stays_itself(
    query: TopologyQuery, monkeypatch: pytest.MonkeyPatch, hour: int
) -> None:
    asked = dt.datetime(2026, 10, 25, hour, 30, tzinfo=dt.timezone.utc)
    values = [*VALUES[0][:7], asked, *VALUES[0][8:]]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        (here,) = query.execute("same", *values)
        monkeypatch.setattr(InProcessAnswers, "answer", lambda *args: None)
        (there,) = query.execute("same", *values)
        assert as_json(here.h, TimestampType()) == as_json(there.h, TimestampType()) == asked.isoformat()
        assert here.h.fold == there.h.fold == hour and here == there and here.__fields__ == there.__fields__
    finally:
        monkeypatch.undo()
        time.tzset()
