"""A standby rehearses its first transaction, and nobody notices: no spout, no user's function, no table, no znode."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS, starter
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, SqliteMap, TridentTopology, opaque
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    REFUSED,
    REHEARSE,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
)
from trident.coordinators.leadership import current_holder
from trident.coordinators.registration import Registration
from trident.coordinators.znodes import Delete
from trident.planning.groups import plan
from trident.running.standby import Rehearsals, Rehearsed, WarmUp, shortened
from trident.states.delta.kernel import KernelEngine
from trident.udf.types import as_schema


def topology(folder: Path, name: str = "warm") -> TridentTopology:
    """An early keyed state, an appended one, a map of a user's, and a reducer that reads what is stored."""

    def called(text: str) -> str:
        (folder / "called").touch()
        return text

    class Longest:
        def init(self) -> str:
            return ""

        def reduce(self, current: str, text: str) -> str:
            return max(current, text, key=len)

    made = TridentTopology(name)
    stream = made.new_stream("lines", FixedBatchSpout("text string", [[("a",), ("bb",)], [("ccc",)]]))
    words = stream.map(called, "text string")
    words.group_by("text").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    words.persistent_aggregate(DeltaMapState("longest"), "text", Longest(), "text string")
    backing = SqliteMap(str(folder / "map.db"), "totals")
    words.group_by("text").persistent_aggregate(opaque("totals", backing), Count(), "n")
    words.partition_persist(DeltaAppend("seen"))
    return made


def contents(folder: Path) -> dict[str, int]:
    found = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    return {path: at for path, at in found.items() if "status.json" not in path}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "warehouse").mkdir()
    return tmp_path


@pytest.mark.long
def test_a_rehearsal_leaves_nothing_behind(spark: SparkSession, folder: Path, zk_server: str, zk_root: str) -> None:
    """With the tables of a topology that has run, and before there are any."""
    warehouse, caught = folder / "warehouse", []

    def rehearse() -> None:
        warm_up = WarmUp(spark, KernelEngine(spark), warehouse, "warm", plan(topology(folder).graph), lambda secs: None)
        for part in warm_up._parts():
            try:
                part()
            except Exception as error:
                caught.append(error)
        warm_up._clean()

    (warehouse / "_trident").mkdir(parents=True)  # as every start does
    rehearse()
    # A state that is read before it is written has no table yet.
    assert len(caught) == 1 and "longest" in str(caught[0])
    assert contents(folder) == {}
    with starter(spark, zk_server, zk_root, folder) as start:
        start.run(topology(folder)).stop(WAIT_SECS, compact=False)
    (folder / "called").unlink()
    before = contents(folder)
    rehearse()
    assert len(caught) == 1, caught[1:]
    assert contents(folder) == before


def test_a_rehearsal_does_not_end_where_spark_sees_that_there_are_no_rows(spark: SparkSession, folder: Path) -> None:
    """What Spark leaves out would be planned, and its code compiled, in the first real transaction."""

    def stages_of(session: SparkSession) -> int:
        warm_up._spark = session
        empty = warm_up._nothing(as_schema("word string, n long", "a test")).groupBy("word").count()
        assert empty.collect() == []
        return str(empty._jdf.queryExecution().executedPlan()).partition("Initial Plan")[0].count("ShuffleQueryStage")

    given = spark.newSession()
    given.conf.set("spark.sql.adaptive.enabled", "true")
    warm_up = WarmUp(given, KernelEngine(given), folder, "warm", plan(topology(folder).graph), lambda secs: None)
    assert (stages_of(warm_up._spark), stages_of(given)) == (1, 0)
    assert not given.conf.get("spark.sql.adaptive.optimizer.excludedRules", ""), "the given one is as it was"


@pytest.mark.skipif(os.environ.get("TRIDENT_FAILOVER") != "all", reason="make failover runs it")
def test_a_standby_is_warm_before_it_leads_and_its_rehearsal_ends_when_it_does(
    spark: SparkSession, folder: Path, zk_server: str, zk_root: str, caplog: Any, armed: Callable[[str], None]
) -> None:
    caplog.set_level("INFO", "trident")
    armed("standby.stage:fail_before")
    with starter(spark, zk_server, zk_root, folder, warm_standby=True) as start:
        leader = start.run(topology(folder))
        off = start(topology(folder), warm_standby=False)
        standby = start(topology(folder))
        assert eventually(lambda: "standby: warm after" in caplog.text, WAIT_SECS), caplog.text
        assert "a part of the rehearsal failed, which costs warmth only: injected fault" in caplog.text
        rehearsed = folder / "warehouse" / "_trident" / ".warm-up"
        assert eventually(lambda: not list(rehearsed.glob("*"))), "a round leaves nothing for the next one to read"
        off.stop(WAIT_SECS)
        leader.stop(WAIT_SECS, compact=False)
        assert eventually(lambda: standby.is_leader, WAIT_SECS)
        assert caplog.text.count("standby: warm after") == 1, "the other one was told not to"
        deadline = time.monotonic() + WAIT_SECS
        while list(rehearsed.glob("*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)


# --- rehearsals that are asked for -----------------------------------------------------------------------
# A standby's answer to a command stays until the command has read it, whatever becomes of the ZooKeeper session.

IDENTITY: dict[str, Any] = {"streams": {}, "states": {}, "groups": {}}


@pytest.fixture
def asked(zk: Any) -> HandoverRequest:
    incarnation = Registration(zk, "wc").ensure(IDENTITY)
    request = HandoverRequest("r", "me", incarnation, {}, REHEARSE, 5, False, current_holder())
    assert Handovers(zk, "wc").ask(request)
    return request


def test_an_answer_that_went_with_its_session_is_given_again(zk: Any, asked: HandoverRequest) -> None:
    ran = []

    def rehearse(*given: Any) -> Rehearsed:
        ran.append(given)
        return Rehearsed(DIFFERENT, ("a row",), all_compared=False)

    rehearsals, known = Rehearsals(zk, "wc", IDENTITY, rehearse, lambda text: None), Handovers(zk, "wc")
    rehearsals.handover_requested(asked)
    assert eventually(lambda: known.answered("r") is not None)
    rehearsals.handover_requested(asked)
    zk.multi([Delete(zk.path("wc", "handover.answer"))])
    rehearsals.handover_requested(asked)
    found = known.answered("r")
    assert found is not None and (found.outcome, found.lines, found.all_compared) == (DIFFERENT, ("a row",), False)
    assert len(ran) == 1


@pytest.mark.parametrize("next_one", [False, True])
def test_who_rehearses_for_a_command_that_is_gone_answers_no_other(zk: Any, asked: HandoverRequest, next_one: bool):
    """The answer, which has rows of tables, would stay as long as this process; or replace that of another standby."""
    known, went_on = Handovers(zk, "wc"), threading.Event()

    def rehearse(*_: Any) -> Rehearsed:
        assert went_on.wait(WAIT_SECS)
        return Rehearsed(DIFFERENT, ("a row",))

    Rehearsals(zk, "wc", IDENTITY, rehearse, lambda text: None).handover_requested(asked)
    known.withdraw("r")
    answer = HandoverAnswer("s", EQUAL)
    if next_one:
        assert known.ask(replace(asked, id="s", to="other"))
        known.answer(answer)
    went_on.set()
    assert eventually(lambda: all(thread.name != "trident-rehearsal" for thread in threading.enumerate()), WAIT_SECS)
    assert known.answered("s") == (answer if next_one else None) and known.answered("r") is None


def test_without_a_rehearsal_the_code_must_fit_the_topology_too(zk: Any, asked: HandoverRequest) -> None:
    """Else it would take the lease from a leader that does well, and end."""

    def rehearse(*_: Any) -> Rehearsed:
        raise AssertionError("nothing is to be rehearsed")

    known, asked = Handovers(zk, "wc"), replace(asked, last=0)
    Rehearsals(zk, "wc", IDENTITY, rehearse, lambda text: None, lambda secs: False).handover_requested(asked)
    assert eventually(lambda: known.answered("r") == HandoverAnswer("r", EQUAL))
    counts = {"keys": ["word"], "value_schema": "count long", "aggregator": "Count"}
    Registration(zk, "wc").ensure({**IDENTITY, "states": {"counts": counts}})
    changed = {**IDENTITY, "states": {"counts": {**counts, "keys": ["line"]}}}
    known.withdraw("r")
    assert known.ask(asked := replace(asked, id="s"))
    Rehearsals(zk, "wc", changed, rehearse, lambda text: None).handover_requested(asked)
    assert eventually(lambda: known.answered("s") is not None)
    found = known.answered("s")
    assert found is not None and found.outcome == REFUSED and "counts" in found.lines[0]


def test_an_answer_of_any_length_is_told(zk: Any, asked: HandoverRequest) -> None:
    lines = tuple(f"{number} " + 9_000 * "語" for number in range(400))
    rehearsals = Rehearsals(zk, "wc", IDENTITY, lambda *_: Rehearsed(DIFFERENT, lines), lambda text: None)
    rehearsals.handover_requested(asked)
    known = Handovers(zk, "wc")
    assert eventually(lambda: known.answered("r") is not None)
    found = known.answered("r")
    assert found is not None and found.lines[0].startswith("0 ") and "more lines" in found.lines[-1]


def test_lines_are_shortened_only_where_they_must_be() -> None:
    assert shortened(["a", "b"]) == ("a", "b")
    (cut,) = shortened([5_000 * "a"])
    assert len(cut) == 4_001
    many = shortened(1_000 * ["\U0001f600" * 300])
    assert many[-1] == f"and {1_000 - len(many) + 1} more lines, which do not fit into an answer"
