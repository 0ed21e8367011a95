"""A rehearsal says which rows differ, what it could not compare, and that the new code fails; it writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession

from tests.chaos.sources import CommittedSpout
from tests.running.test_query import WAIT_SECS
from tests.states.outside.ledger_state import LedgerState
from tests.streams.stream_helpers import split
from tests.time_travel.test_replay import digest_of, source_of
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    SqliteMap,
    TridentConfig,
    TridentTopology,
    opaque,
)
from trident.coordinators.handing_over import DIFFERENT, EQUAL, FAILED, NOT_COMPARED
from trident.running.standby import Rehearsed
from trident.states.core.place import Place
from trident.time_travel.rehearsal import Rehearsal, _Findings
from trident.time_travel.replay_inputs import incarnation_of

BATCHES = [[("a b",)], [("a c",)], [("c c",)]]
NO_STATE = "not compared: batch group seen: it has no state"


def wrong(line: str) -> Iterator[str]:
    yield from (word.replace("c", "C") for word in line.split())


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    time.sleep(60.0)
    yield from batches


def failing(line: str) -> Iterator[str]:
    raise RuntimeError("the new code cannot do this")


def test_a_group_and_a_table_of_which_no_row_can_be_compared_are_named(tmp_path: Path) -> None:
    made = TridentTopology("named")
    made.new_stream("seen", FixedBatchSpout("line string", BATCHES)).each("line", split, "word string")
    session: Any = MagicMock()
    rehearsal = Rehearsal(session, "named", made.graph, Place(tmp_path), TridentConfig())
    found = rehearsal("incarnation", {"seen": 7}, 5)
    assert found.outcome == NOT_COMPARED
    assert found.lines == ("there is no transaction that could be rehearsed", NO_STATE), found

    own = SimpleNamespace(name="own", kind="append")
    told = _Findings(lambda: False)
    group: Any = SimpleNamespace(name="seen", bindings=[own])
    nothing: Any = SimpleNamespace(states={}, others=lambda plan: {})
    rehearsal._compare("transaction 7", 7, nothing, group, nothing, told)
    assert told.outside == {"own": "state own (append): its spout does not give its rows again"}


def test_a_job_of_a_rehearsal_ends_when_its_process_is_to_lead(spark: SparkSession, tmp_path: Path) -> None:
    made = TridentTopology("ends")
    made.new_stream("seen", FixedBatchSpout("line string", BATCHES)).each("line", split, "word string")
    rehearsal = Rehearsal(spark, "ends", made.graph, Place(tmp_path), TridentConfig())
    began, leads = time.monotonic(), threading.Event()
    threading.Timer(1.0, leads.set).start()
    with pytest.raises(Exception, match="(?i)cancel"), rehearsal._cancelled_where(leads.is_set):
        spark.range(0, 1, 1, 1).mapInArrow(slowly, "id long").count()
    assert time.monotonic() - began < 50.0
    assert spark.range(3).count() == 3, "what this thread does next is none of it"


@pytest.mark.long
def test_each_outcome(start, spark: SparkSession, tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", "a", "b", "a", "c", "d", "a")

    def topology(function: Callable[[str], Iterator[str]] = split, both: bool = True) -> TridentTopology:
        made = TridentTopology("rehearsed")
        lines = made.new_stream("lines", FixedBatchSpout("line string", BATCHES))
        words = lines.each("line", function, "word string")
        words.group_by("word").persistent_aggregate(DeltaMapState("counts_rehearsed"), Count(), "n")
        words.partition_persist(LedgerState(str(tmp_path / "ledger.db")))
        if both:
            read = made.new_stream("read", FixedBatchSpout("word string", [[("a",)]]))
            backing = SqliteMap(str(tmp_path / "map.db"), "totals")
            read.group_by("word").persistent_aggregate(opaque("totals", backing), Count(), "total")
            lost = made.new_stream("lost", CommittedSpout(source))
            lost.group_by("word").persistent_aggregate(DeltaMapState("counts_lost"), Count(), "n")
        else:
            lines.partition_persist(DeltaAppend("new_in_the_code"))
        return made

    query = start.run(topology())
    query.stop(WAIT_SECS, compact=False)
    warehouse = Place(tmp_path / "warehouse")
    config = TridentConfig(warehouse=str(warehouse))
    incarnation = incarnation_of(warehouse, "rehearsed")
    before = digest_of(tmp_path / "warehouse")

    def rehearsed(made: TridentTopology, last: int, **advanced: int) -> Rehearsed:
        return Rehearsal(spark, "rehearsed", made.graph, warehouse, config)(incarnation, advanced, last)

    same = rehearsed(topology(), 2, lines=3)
    assert same.outcome == EQUAL, same
    assert same.lines[0] == "batch group lines: transactions 2, 3 were run again and compared"
    assert any("state ledger" in line and "not in the warehouse" in line for line in same.lines)

    other = rehearsed(topology(wrong), 9, lines=3)
    assert other.outcome == DIFFERENT
    text = "batch group lines, transaction 2, table counts_rehearsed, key {'word': 'C'}: committed no row, the new code"
    assert any(line.startswith(text) for line in other.lines), other.lines
    assert not any("transaction 1," in line and "key" in line for line in other.lines)

    fails = rehearsed(topology(failing), 1, lines=3)
    assert fails.outcome == FAILED and "the new code cannot do this" in "\n".join(fails.lines)

    lost = rehearsed(topology(), 2, lines=3, lost=1)
    assert lost.outcome == NOT_COMPARED
    assert any("does not give a batch again" in line for line in lost.lines)

    read = rehearsed(topology(), 2, read=1)
    assert read.outcome == NOT_COMPARED and "reads state 'totals'" in "".join(read.lines)

    new = rehearsed(topology(both=False), 1, lines=3, lost=1)
    assert new.outcome == DIFFERENT
    assert any("table new_in_the_code" in line and "committed no row" in line for line in new.lines)
    assert any("batch group lost: the code has none of this name" in line for line in new.lines)

    nothing = rehearsed(topology(), 2, lines=0)
    assert nothing.outcome == NOT_COMPARED and nothing.lines == ("there is no transaction that could be rehearsed",)
    assert digest_of(tmp_path / "warehouse") == before
