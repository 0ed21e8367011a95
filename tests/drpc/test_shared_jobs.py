"""Requests that share Spark jobs while a topology runs: each answer is right, whatever the others ask and do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.drpc.plain_types import TYPES, VALUES
from tests.jvm.unfit_jar import Unfit, unfit_jar
from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS, Starter, starter
from trident import (
    Aggregator,
    Count,
    DeltaMapState,
    FilterNull,
    FixedBatchSpout,
    MapGet,
    Split,
    SqliteMap,
    Sum,
    TridentTopology,
    opaque,
)
from trident.coordinators import faults
from trident.coordinators.errors import DrpcTimeout, NotLeading, UserFunctionError
from trident.drpc.request_jobs import RequestJobs
from trident.drpc.requests import DrpcRequests
from trident.running.query import TopologyQuery
from trident.spark.kept_plan import KeptPlan
from trident.states.core import spark_jobs
from trident.workers.requests import RequestBatch

BATCHES = 3
# Word w0 comes once in each batch, w1 twice, and so on.
BATCH = [(f"w{n}",) for n in range(9) for _ in range(n + 1)]
CALLERS = 25


def shout(word: str) -> str:
    return f"{word}!"


def same(count: int | None) -> int:
    return count or 0


def risky(word: str) -> str:
    if word.startswith("poison"):
        raise ValueError(word)
    if word == "die":
        os._exit(9)
    if word.startswith("/"):
        end = time.monotonic() + WAIT_SECS
        while not Path(word).exists() and time.monotonic() < end:
            time.sleep(0.01)
    return word


def several(*values: Any) -> tuple[list[Any], dict[str, Any]]:
    return [values[0], values[0]], {"at": values[3]}


class Listed(Aggregator):
    """The values in their order, and the request that they are of."""

    def init(self, batch_id: Any) -> dict[str, Any]:
        return {"of": str(batch_id), "values": []}

    def aggregate(self, state: dict[str, Any], *values: Any) -> None:
        state["values"].append(values)

    def complete(self, state: dict[str, Any]) -> list[tuple[str, str]]:
        return [(state["of"], repr(sorted(state["values"])))]


def made(folder: Path) -> TridentTopology:
    """Every transaction adds the same rows, so a state says by itself as of which transaction it is."""
    topology = TridentTopology("shared")
    rows = topology.new_stream("rows", FixedBatchSpout("word string", [BATCH] * BATCHES)).group_by("word")
    counts = rows.persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    in_map = rows.persistent_aggregate(opaque("in_map", SqliteMap(str(folder / "maps.db"), "a")), Count(), "n")
    others = topology.new_stream("others", FixedBatchSpout("word string", [[("w1",)]] * BATCHES)).group_by("word")
    other = others.persistent_aggregate(DeltaMapState("other"), Count(), "n")

    words = topology.new_drpc_stream("total").each("args", Split(), "word")
    found = words.state_query(counts, "word", MapGet(), "n").each("n", FilterNull())
    found.each("n", same, "m long").aggregate("m", Sum(), "sum")

    words = topology.new_drpc_stream("listed").each("args", Split(), "word").each("word", shout, "loud")
    found = words.group_by("word").aggregate("word, loud", Listed(), "of string, values string")
    found.state_query(counts, "word", MapGet(), "n").project("word, of, values, n")

    words = topology.new_drpc_stream("all", "word string").state_query(in_map, "word", MapGet(), "x")
    words = words.state_query(counts, "word", MapGet(), "y").state_query(other, "word", MapGet(), "z")
    words.each("y", same, "same long")

    topology.new_drpc_stream("risky", "word string").each("word", risky, "result")
    types = topology.new_drpc_stream("types", TYPES)
    names = ", ".join(types.fields)
    types.each(names, several, "twice array<long>, named map<string, string>")
    return topology


@pytest.fixture(scope="module")
def start(spark: Any, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    folder = tmp_path_factory.mktemp("shared")
    with starter(spark, zk_server, f"/{folder.name}", folder) as made_:
        yield made_


@pytest.fixture(scope="module")
def begun(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> TopologyQuery:
    """It hangs in the middle of its batches, once a transaction is published, and before it has advanced."""
    faults.arm("zk.advance:hang:3")
    return start(made(tmp_path_factory.mktemp("maps")), batch_emit_interval_secs=0.3)


@pytest.fixture
def query(begun: TopologyQuery) -> TopologyQuery:
    faults.disarm()
    return begun


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests of each job."""
    counts: list[int] = []
    real = RequestJobs.run

    def noted(self: RequestJobs, asked: RequestBatch) -> Any:
        counts.append(len(asked.ids))
        return real(self, asked)

    monkeypatch.setattr(RequestJobs, "run", noted)
    return counts


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of requests that went by Spark jobs of their own."""
    asked: list[Any] = []
    real = DrpcRequests._answer

    def noted(self: DrpcRequests, plan: Any, values: Any, *rest: Any) -> Any:
        asked.append(values)
        return real(self, plan, values, *rest)

    monkeypatch.setattr(DrpcRequests, "_answer", noted)
    return asked


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result, or the error, of each call, all of which are made at once."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait(WAIT_SECS)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def ask(query: TopologyQuery, function: str, *args: Any, **more: Any) -> Callable[[], Any]:
    return lambda: query.execute(function, *args, **{"timeout_secs": WAIT_SECS, **more})


def counted(word: str, txid: int) -> int | None:
    return (int(word[1:]) + 1) * txid if word.startswith("w") else None


def test_each_answer_is_as_of_one_transaction_of_each_group_while_batches_commit(begun: TopologyQuery) -> None:
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    seen = set()
    while BATCHES not in seen:
        for answer in together([ask(begun, "all", f"w{n}") for n in (0, 1, 1, 8)]):
            (row,) = answer
            txid = answer.as_of["rows"]
            there = counted(row.word, txid) or 0
            z = answer.as_of["others"] if row.word == "w1" else 0
            assert (row.x or 0, row.y or 0, row.same or 0, row.z or 0) == (there, there, there, z), answer.as_of
            seen.add(txid)
        faults.disarm()


def test_two_hundred_requests_at_once_each_get_their_own_answer(
    query: TopologyQuery, jobs: list[int], alone: list[Any]
) -> None:
    query.process_all_available(WAIT_SECS)

    def texts(caller: int) -> list[str]:
        return [f"w{caller % 9} x{caller}.{turn} w{turn} w{turn}" for turn in range(4)]

    def calls(caller: int) -> None:
        for text in texts(caller):
            words = text.split()
            total = query.execute("total", text, timeout_secs=WAIT_SECS)
            assert [tuple(row) for row in total] == [(sum(counted(word, BATCHES) or 0 for word in words),)]
            listed = query.execute("listed", text, timeout_secs=WAIT_SECS)
            wanted = [
                (word, total_id, repr([(word, f"{word}!")] * words.count(word)), counted(word, BATCHES))
                for word in set(words)
                for total_id in [listed.request_id]
            ]
            assert sorted(tuple(row) for row in listed) == sorted(wanted)

    assert together([lambda caller=caller: calls(caller) for caller in range(CALLERS)]) == [None] * CALLERS
    assert sum(jobs) >= 2 * 4 * CALLERS and max(jobs) > 2 and not alone


@pytest.mark.parametrize("last", [[], pytest.param(["die"], marks=pytest.mark.long)], ids=["raise", "die too"])
def test_requests_that_raise_and_one_that_ends_its_worker_fail_alone(
    query: TopologyQuery, jobs: list[int], alone: list[Any], last: list[str]
) -> None:
    words = ["a", "poison1", "b", "c", "poison2", *(f"good{n}" for n in range(20)), *last]
    found = dict(zip(words, together([ask(query, "risky", word) for word in words])))
    for word, answer in found.items():
        if word == "die":
            assert isinstance(answer, Exception)
        elif word.startswith("poison"):
            assert isinstance(answer, UserFunctionError) and f"ValueError: {word}" in str(answer)
            assert f"'word': '{word}'" in str(answer) or f"word: '{word}'" in str(answer)
        else:
            assert [row.result for row in answer] == [word]
    # On a loaded machine those that were beside it may go alone too.
    assert (("die",) in alone or not last) and max(jobs) > 1


def test_a_caller_that_goes_and_one_that_is_slow_hold_up_no_other(query: TopologyQuery, tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"
    calls = [ask(query, "risky", str(may_end)), ask(query, "risky", str(tmp_path / "never"), timeout_secs=1)]
    calls += [ask(query, "risky", f"word{n}") for n in range(10)]
    quick: list[Any] = []

    def noted(call: Callable[[], Any]) -> Callable[[], Any]:
        def made_() -> Any:
            answer = call()
            quick.append(answer)
            if len(quick) == 10:
                may_end.touch()  # only now
            return answer

        return made_

    slow, gone, *rest = together([*calls[:2], *map(noted, calls[2:])])
    assert len(quick) == 10 and [row.result for row in slow] == [str(may_end)] and isinstance(gone, DrpcTimeout)
    assert len(rest) == 10 and all(answer[0].result.startswith("word") for answer in rest)


@pytest.mark.parametrize("values", VALUES, ids=["values", "nulls"])
def test_values_come_as_they_do_alone(
    query: TopologyQuery, monkeypatch: pytest.MonkeyPatch, alone: list[Any], values: Any
) -> None:
    here = query.execute("types", *values)
    assert not alone
    requests = query._reporter.front._requests
    assert requests is not None
    monkeypatch.setitem(requests._plans["types"].__dict__, "together", None)
    there = query.execute("types", *values)
    assert alone and list(here) == list(there)
    assert [list(map(type, row)) for row in here] == [list(map(type, row)) for row in there]
    assert here[0].asDict() == there[0].asDict() and here[0].__fields__ == there[0].__fields__


def test_a_session_without_the_jar_of_kept_plans_shares_jobs_too(query: TopologyQuery, jobs: list[int]) -> None:
    query.process_all_available(WAIT_SECS)
    requests = query._reporter.front._requests
    assert requests is not None
    query.execute("total", "w1", timeout_secs=WAIT_SECS)
    shared = requests._shared_jobs._jobs["total"]
    kept, shared._kept = shared._kept, KeptPlan(query.spark, None, "total")
    try:
        assert kept.plan is not None
        found = together([ask(query, "total", f"w{n}") for n in range(9)])
        assert [answer[0]["sum"] for answer in found] == [counted(f"w{n}", BATCHES) for n in range(9)]
    finally:
        shared._kept = kept
    was, with_conf = kept.plan, "spark.sql.shuffle.partitions"
    before = query.spark.conf.get(with_conf)
    query.spark.conf.set(with_conf, "3")  # the kept plan is made again
    try:
        assert query.execute("total", "w2", timeout_secs=WAIT_SECS)[0]["sum"] == counted("w2", BATCHES)
        assert kept.plan is not None and kept.plan is not was
    finally:
        query.spark.conf.set(with_conf, before)


def test_a_jar_that_does_not_fit_costs_time_and_no_answer(
    query: TopologyQuery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, alone: list[Any]
) -> None:
    """V2: Java finds a method that is missing when it is called, in the middle of a request."""
    query.process_all_available(WAIT_SECS)
    requests = query._reporter.front._requests
    assert requests is not None
    query.execute("total", "w1", timeout_secs=WAIT_SECS)
    shared = requests._shared_jobs._jobs["total"]
    kept, shared._kept = shared._kept, KeptPlan(query.spark, Unfit(query.spark), "total")
    try:
        with unfit_jar(monkeypatch, caplog):
            for word in ("w2", "w3"):
                assert query.execute("total", word, timeout_secs=WAIT_SECS)[0]["sum"] == counted(word, BATCHES)
            assert "does not fit" in str(shared._kept.refusal) and not alone
    finally:
        shared._kept = kept


def test_when_the_leader_ends_in_the_middle_each_caller_is_told(
    start: Starter, tmp_path: Path, jobs: list[int]
) -> None:
    topology = TridentTopology("ending")
    topology.new_drpc_stream("risky", "word string").each("word", risky, "result")
    query = start(topology)
    query.execute("risky", "warm", timeout_secs=WAIT_SECS)
    jobs.clear()
    calls = [ask(query, "risky", str(tmp_path / f"never{n}")) for n in range(12)]

    def stops() -> None:
        assert eventually(lambda: len(jobs) >= 2, WAIT_SECS)
        query.stop(WAIT_SECS, compact=False)

    *answers, _ = together([*calls, stops])
    assert [type(answer) for answer in answers] == [NotLeading] * 12


def test_requests_come_before_batches_and_batches_before_upkeep() -> None:
    """Of FAIR pools with as many tasks Spark's scheduler takes the first by name."""
    batches = sorted({spark_jobs.of_batch(txid) for txid in range(100)})
    assert [spark_jobs.REQUESTS, *batches, spark_jobs.UPKEEP] == sorted(
        [spark_jobs.UPKEEP, *batches, spark_jobs.REQUESTS]
    )


def test_a_free_core_is_given_to_a_request_before_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Both cores are taken by batches, and a third batch waits longer than the request: one core becomes free."""
    context, ran = spark.sparkContext, tmp_path / "ran"

    def job(pool: str, gate: str) -> None:
        def task(_: Any) -> Iterator[int]:
            with ran.open("a") as told:
                told.write(f"{pool} ")
            while not (tmp_path / gate).exists():
                time.sleep(0.01)
            yield 1

        context.setLocalProperty("spark.scheduler.pool", pool)
        try:
            context.parallelize([1], 1).mapPartitions(task).count()
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)

    def runs(pool: str) -> bool:
        return ran.exists() and f"{pool} " in ran.read_text()

    first, second, third = (spark_jobs.of_batch(txid) for txid in (5, 6, 7))
    scheduler = context._jsc.sc().taskScheduler()

    def has(pool: str) -> bool:
        """Whether the scheduler knows tasks of the pool: it chooses among those."""
        found = scheduler.rootPool().getSchedulableByName(pool)
        return found is not None and found.schedulableQueue().size() > 0

    with ThreadPoolExecutor(4) as threads:
        try:
            jobs = [threads.submit(job, first, "1"), threads.submit(job, second, "2")]
            assert eventually(lambda: runs(first) and runs(second), WAIT_SECS)
            jobs.append(threads.submit(job, third, "3"))
            assert eventually(lambda: has(third), WAIT_SECS)
            jobs.append(threads.submit(job, spark_jobs.REQUESTS, "3"))
            assert eventually(lambda: has(spark_jobs.REQUESTS), WAIT_SECS)
            (tmp_path / "1").touch()
            assert eventually(lambda: runs(third) or runs(spark_jobs.REQUESTS), WAIT_SECS)
            assert not runs(third), "the batch was first"
        finally:
            for gate in "123":
                (tmp_path / gate).touch()
        for each in jobs:
            each.result(WAIT_SECS)
