"""States outside of the warehouse: published once, behind the tables, for as long as it takes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.sources import CommittedSpout, Source
from tests.servers.zk_fixtures import eventually
from tests.states.group_helpers import ROWS, Group, append_binding, deposed
from tests.states.outside.ledger_state import LedgerState
from tests.topology_helpers import WAIT_SECS
from trident import Count, DeltaAppend, FixedBatchSpout, OutsideMark, OutsidePart, TridentTopology, Upsert
from trident.coordinators import faults
from trident.coordinators.errors import (
    ConfigError,
    Deposed,
    ForeignMarks,
    Halted,
    StaleEpoch,
    StateAway,
    StateLostTransactions,
    TopologyError,
    TridentError,
)
from trident.coordinators.faults import InjectedFault
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.coordinators.records import outside_id
from trident.coordinators.registration import Registration
from trident.running.status import format_status, read_status
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place, warehouse_place
from trident.states.outside.port import OUTSIDE
from trident.states.outside.tasks import Answer
from trident.states.publishing import other_stores

BATCHES = [[("a",), ("b",)], [("c",)], [], [("a",), ("d",)]]
ALL = ["a", "a", "b", "c", "d"]


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerState:
    return LedgerState(str(tmp_path / "ledger.db"))


def place(folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    return warehouse_place(folder)


def bound(state: LedgerState) -> StateBinding:
    return StateBinding(state, OUTSIDE, (), ROWS, ("word", "n"))


def topology(*states: LedgerState, batches: list = BATCHES) -> TridentTopology:
    made = TridentTopology("words")
    stream = made.new_stream("words", FixedBatchSpout("word string", batches))
    stream.partition_persist(DeltaAppend("rows"))
    for state in states:
        stream.partition_persist(state)
    return made


def in_delta(folder: Path) -> Counter:
    return Counter(deltalake.DeltaTable(str(folder / "rows")).to_pyarrow_table()["word"].to_pylist())


# --- the mark


def mark(txid: int, epoch: int = 1, attempt_id: int = 0, incarnation: str = "inc") -> OutsideMark:
    return OutsideMark(incarnation, epoch, txid, attempt_id)


def test_a_mark_lets_the_next_transaction_in_and_makes_a_repeat_a_no_op() -> None:
    assert mark(1).is_new(None, "s")
    assert mark(6, epoch=2).is_new(mark(5), "s")
    assert not mark(5, epoch=2).is_new(mark(5), "s")
    assert mark(1, epoch=3, incarnation="next").is_new(mark(9, epoch=2), "s")


def test_a_take_over_shuts_older_coordinators_out_and_leaves_later_ones() -> None:
    assert mark(5).taken_over("inc", 2) == mark(5, epoch=2)
    assert mark(5).taken_over("next", 2, adopt=True) == mark(0, epoch=2, incarnation="next")
    assert mark(5, epoch=2).taken_over("next", 2) == mark(5, epoch=2)
    with pytest.raises(ForeignMarks, match="transaction 5"):
        mark(5).taken_over("next", 2)
    mark(1, epoch=2).check_fence(mark(0, epoch=2), "s")
    for fence in (mark(0, epoch=3), mark(0, epoch=2, incarnation="other")):
        with pytest.raises(StaleEpoch, match="belongs to a later coordinator"):
            mark(1, epoch=2).check_fence(fence, "s")


def test_a_part_is_kept_out_of_a_store_that_lacks_the_transaction_before_it() -> None:
    part = OutsidePart("top", "s", 1, mark(43, epoch=2), known=(42, 1))
    has = mark(42, attempt_id=1)
    for stored in ([mark(40), has], [mark(43, epoch=2), mark(41)]):
        part.check_known(stored, "s")
    replace(part, known=None).check_known([], "s")
    for stored in ([], [mark(40), mark(41)], [mark(42)], [replace(has, incarnation="other")]):
        with pytest.raises(StateLostTransactions, match="lacks transaction 42 attempt 1"):
            part.check_known(stored, "s")


@pytest.mark.parametrize(
    "stored", [mark(5, epoch=3), mark(7), mark(6, attempt_id=1), mark(1, epoch=2, incarnation="other")], ids=str
)
def test_a_mark_keeps_out_older_coordinators_and_other_histories(stored: OutsideMark) -> None:
    with pytest.raises(StaleEpoch):
        mark(6, epoch=2).is_new(replace(stored, epoch=max(stored.epoch, 2)), "s")


# --- a group


@pytest.mark.parametrize("partitions", [1, 3])
def test_it_is_published_behind_the_tables_by_tasks_and_once(engine, ledger, tmp_path: Path, partitions: int) -> None:
    state = replace(ledger, partitions=partitions)
    group = Group(engine, place(tmp_path / "w"), [append_binding(), bound(state)]).open()
    decision = group.prepare(TransactionAttempt(1, 0), ["a", "b"])
    faults.arm("publish.outside:fail_before")
    with pytest.raises(InjectedFault):
        group.committer.publish(decision, group.record)
    assert in_delta(group.warehouse) == {"a": 1, "b": 1} and state.words() == []
    faults.arm("publish.outside:do_then_fail")
    with pytest.raises(InjectedFault):
        group.committer.publish(decision, group.record)
    assert state.words() == ["a", "b"]
    published = group.committer.publish(decision, group.record)
    assert state.words() == ["a", "b"] and outside_id("ledger") in published.marks
    assert os.getpid() not in state.processes(), "code that is not the framework's runs on executors"


@dataclass(frozen=True)
class Forgetful(LedgerState):
    """Notes in a file who has had its marks written again; on executors."""

    forgets_marks: ClassVar[bool] = True

    def renew(self, topology: str, incarnation: str, epoch: int) -> None:
        with Path(f"{self.path}.renewed").open("a") as file:
            file.write(f"{topology} {incarnation} {epoch}\n")

    def renewed(self) -> list[str]:
        path = Path(f"{self.path}.renewed")
        return path.read_text().splitlines() if path.exists() else []


@pytest.mark.long
def test_marks_that_a_store_forgets_are_written_again_also_without_rows(engine, tmp_path, monkeypatch) -> None:
    """Not with each transaction; and neither one that fails nor a coordinator that was replaced is in the way."""
    state = Forgetful(str(tmp_path / "ledger.db"))

    group = Group(engine, place(tmp_path / "w"), [append_binding(), bound(state)]).open()
    group.commit(1, ["a"])
    assert state.renewed() == [], "it was opened a moment ago"
    monkeypatch.setattr(other_stores, "_RENEWED_SECS", 0.0)

    def without_rows(txid: int) -> Any:
        attempt = TransactionAttempt(txid, 0)
        staged = {**group.staged(attempt, ["b"]), "ledger": []}
        return group.committer.prepare(attempt, None, ProcessedBatch(staged), group.record).decision

    decision = without_rows(2)
    faults.arm("renew.outside:fail_before:1")
    group.committer.publish(decision, group.record)
    assert faults.unfired() == [] and state.renewed() == []
    group.advance(decision, group.committer.publish(decision, group.record))
    assert state.renewed() == ["top inc 1"] and state.words() == ["a"]
    publisher = group.committer._outside
    monkeypatch.setattr(publisher, "_of", replace(publisher._of, check_fence=deposed))
    decision = without_rows(3)
    with pytest.raises(Deposed):
        group.committer.publish(decision, group.record)
    assert state.renewed() == ["top inc 1"]


def test_the_number_of_parts_is_that_of_the_decision(engine, ledger, tmp_path: Path) -> None:
    """A part that is published stands for the same files, also where the topology has fewer parts by now."""
    group = Group(engine, place(tmp_path / "w"), [bound(replace(ledger, partitions=3))]).open()
    staged = group.staged(TransactionAttempt(1, 0), ["a"])
    for word in ("b", "c", "d"):
        staged["ledger"] += group.staged(TransactionAttempt(1, 0), [word])["ledger"]
    decision = group.committer.prepare(TransactionAttempt(1, 0), None, ProcessedBatch(staged), group.record).decision
    files = [group.warehouse / "_trident/top/g/states/ledger" / file.path for file in staged["ledger"]]
    first = OutsidePart("top", "ledger", 0, mark(1))
    table = pa.concat_tables([pq.read_table(str(files[0])), pq.read_table(str(files[3]))])
    ledger.publish(first, iter(table.to_batches()))
    assert ledger.words() == ["a", "d"]
    again = Group(engine, place(tmp_path / "w"), [bound(replace(ledger, partitions=1))], epoch=2, record=group.record)
    again.committer.publish(decision, again.record)
    assert ledger.words() == ["a", "b", "c", "d"]


def test_a_stale_coordinator_is_refused_each_time(engine, ledger, tmp_path: Path) -> None:
    old = Group(engine, place(tmp_path / "w"), [bound(ledger)]).open()
    old.commit(1, ["a"])
    decision = old.prepare(TransactionAttempt(2, 0), ["zombie"])
    Group(engine, place(tmp_path / "w"), [bound(ledger)], epoch=2, record=old.record).open()
    with pytest.raises(Halted, match="a later coordinator"):
        old.committer.publish(decision, old.record)
    part = OutsidePart("top", "ledger", 0, mark(2))
    for _ in range(100):
        with pytest.raises(StaleEpoch):
            ledger.publish(part, iter([pa.record_batch({"word": ["zombie"]})]))
    assert ledger.words() == ["a"]


def test_a_store_of_another_moment_halts(engine, ledger, tmp_path: Path) -> None:
    group = Group(engine, place(tmp_path / "w"), [bound(ledger)]).open()
    group.commit(1, ["a"])
    shutil.copy(ledger.path, tmp_path / "copy.db")
    before = group.record
    group.commit(2, ["b"])
    with pytest.raises(Halted, match="ZooKeeper is the older side.*ledger"):
        Group(engine, place(tmp_path / "w"), [bound(ledger)], epoch=2, record=before).open()
    decision = group.prepare(TransactionAttempt(3, 0), ["c"])
    shutil.copy(tmp_path / "copy.db", ledger.path)
    older = Group(engine, place(tmp_path / "w"), [bound(ledger)], epoch=3, record=group.record)
    with pytest.raises(Halted, match="ledger.*is the older side") as caught:
        older.open()
    assert "transaction 1" in caught.value.found and "transaction 2" in caught.value.expected
    with pytest.raises(Halted, match="ledger.*is the older side"):  # a recovery publishes before it opens
        older.committer.publish(decision, group.record)
    assert ledger.words() == ["a"]


def test_a_store_that_loses_transactions_while_it_runs_halts_and_takes_no_row(engine, ledger, tmp_path: Path) -> None:
    """As a replica does that lags and leads now: nothing is opened anew."""
    group = Group(engine, place(tmp_path / "w"), [bound(ledger)]).open()
    group.commit(1, ["a"])
    shutil.copy(ledger.path, tmp_path / "copy.db")
    group.commit(2, ["b"])
    decision = group.prepare(TransactionAttempt(3, 0), ["c"])
    shutil.copy(tmp_path / "copy.db", ledger.path)
    for _ in range(2):
        with pytest.raises(Halted, match="ledger.*is the older side") as caught:
            group.committer.publish(decision, group.record)
    assert "transaction 1" in caught.value.found and "transaction 2" in caught.value.expected
    assert ledger.words() == ["a"]


def test_a_part_that_was_never_written_is_closed_by_a_take_over(engine, ledger, tmp_path: Path) -> None:
    old = Group(engine, place(tmp_path / "w"), [bound(ledger)]).open()
    Group(engine, place(tmp_path / "v"), [bound(ledger)], epoch=2).open()
    decision = old.prepare(TransactionAttempt(1, 0), ["zombie"])
    with pytest.raises(Halted, match="a later coordinator"):
        old.committer.publish(decision, old.record)
    assert ledger.words() == []


@pytest.mark.long
def test_another_life_is_refused_however_often_it_starts(engine, ledger, tmp_path: Path) -> None:
    """ZooKeeper was wiped, or a copy of the topology writes to the same store: each start has a greater epoch."""
    ours = Group(engine, place(tmp_path / "w"), [bound(ledger)], epoch=3).open()
    ours.commit(1, ["a"])
    for epoch in (2, 4, 5):
        other = Group(engine, place(tmp_path / "v"), [bound(ledger)], epoch=epoch, incarnation="other")
        with pytest.raises(
            Halted, match="later coordinator" if epoch < 3 else "another life of the topology"
        ) as caught:
            other.open()
    assert "adopt=True of state ledger" in str(caught.value) and ledger.words() == ["a"]
    # Its marks are as they were.
    Group(engine, place(tmp_path / "w"), [bound(ledger)], epoch=4, record=ours.record).open()


@pytest.mark.long
def test_a_reset_begins_anew_and_keeps_the_rows(engine, ledger, tmp_path: Path) -> None:
    Group(engine, place(tmp_path / "w"), [bound(ledger)]).open().commit(1, ["a"])
    old = Group(engine, place(tmp_path / "v"), [bound(ledger)], epoch=1)
    decision = old.prepare(TransactionAttempt(2, 0), ["zombie"])
    adopting = bound(replace(ledger, adopt=True))
    new = Group(engine, place(tmp_path / "v"), [adopting], epoch=2, incarnation="next").open()
    with pytest.raises(Halted):
        old.committer.publish(decision, old.record)
    new.commit(1, ["b"])
    assert ledger.words() == ["a", "b"]
    other = Group(engine, place(tmp_path / "v"), [bound(ledger)], epoch=2, incarnation="of another installation")
    with pytest.raises(Halted, match="later coordinator, and there is none"):
        other.open()


# --- whole topologies


@pytest.mark.long
def test_one_that_is_away_holds_the_group_up_says_so_and_loses_nothing(start, ledger, tmp_path: Path) -> None:
    """More tries than a refusal may have: the topology neither stops nor goes on."""
    away = Path(f"{ledger.path}.away")
    faults.arm("publish.outside:do_then_hang:2")
    query = start(topology(ledger), max_attempts=2, status_interval_secs=0.0)
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    away.touch()
    faults.disarm()

    def shown():
        return read_status(tmp_path / "warehouse", "words").groups[0].outside[0]

    status = tmp_path / "warehouse/_trident/words/status.json"  # written beside the transactions, perhaps not yet
    assert eventually(lambda: (status.exists() and shown().tries > 3) or not query.is_active, WAIT_SECS)
    assert query.is_active, query.exception()
    one = shown()
    assert (one.state, one.condition, one.waits) == ("ledger", "away", 3) or one.waits in (2, 4), one
    assert one.since is not None and "does not answer" in str(one.error)
    said = format_status(read_status(tmp_path / "warehouse", "words"))
    assert f"outside  ledger: has transaction {one.txid}, transaction {one.waits} waits: IS AWAY, for" in said
    assert query.is_active
    away.unlink()
    query.process_all_available(WAIT_SECS)
    assert ledger.words() == ALL and in_delta(tmp_path / "warehouse") == Counter(ALL)
    query.stop(WAIT_SECS)
    assert "outside  ledger: has transaction 4\n" in format_status(read_status(tmp_path / "warehouse", "words")) + "\n"


@pytest.mark.long
def test_a_restart_waits_for_one_that_is_away_and_finishes_what_was_decided(start, ledger, tmp_path: Path) -> None:
    away = Path(f"{ledger.path}.away")
    faults.arm("publish.outside:hang:2")
    first = start(topology(ledger), max_attempts=1)
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    away.touch()
    faults.arm("open.outside:fail_before:2")  # of the recovery, which tries again; behind the look of the start
    first._zk._client.stop()  # type: ignore[union-attr]
    second = start(topology(ledger), max_attempts=2)
    waits = "ledger does not answer"
    status = tmp_path / "warehouse/_trident/words/status.json"
    assert eventually(lambda: status.exists() and waits in status.read_text(), WAIT_SECS)
    away.unlink()
    second.process_all_available(WAIT_SECS)
    faults.disarm()
    first.stop(WAIT_SECS, compact=False)
    assert ledger.words() == ALL and in_delta(tmp_path / "warehouse") == Counter(ALL)


def test_a_committer_spout_is_told_behind_them(start, ledger, tmp_path: Path) -> None:
    """Else it would let go of rows that a store does not have yet."""
    (tmp_path / "source").mkdir()
    source, away = Source(str(tmp_path / "source")), Path(f"{ledger.path}.away")
    source.write("rows-p0", ["a", "b", "c", "d"])
    source.write("ready_to", 1)
    made = TridentTopology("words")
    stream = made.new_stream("words", CommittedSpout(source))
    stream.partition_persist(DeltaAppend("rows"))
    stream.partition_persist(ledger)
    query = start(made, status_interval_secs=0.0)
    query.process_all_available(WAIT_SECS)
    assert source.read("committed_txid") == 1
    away.touch()
    source.write("ready_to", 2)
    status = tmp_path / "warehouse/_trident/words/status.json"
    assert eventually(lambda: "ledger does not answer" in status.read_text(), WAIT_SECS)
    assert in_delta(tmp_path / "warehouse") == Counter("abcd") and source.read("committed_txid") == 1
    away.unlink()
    query.process_all_available(WAIT_SECS)
    assert source.read("committed_txid") == 2 and ledger.words() == ["a", "b", "c", "d"]


@pytest.mark.long
def test_a_store_is_looked_at_before_any_znode(start, ledger, zk) -> None:
    made = TridentTopology("words")
    made.new_stream("numbers", FixedBatchSpout("n long", [[(1,)]])).partition_persist(ledger)
    Path(f"{ledger.path}.away").touch()
    with pytest.raises(StateAway, match="does not answer"):
        start(made)
    Path(f"{ledger.path}.away").unlink()
    with pytest.raises(TridentError, match="words only"):
        start(made)
    assert Registration(zk, "words").read() is None


# --- what cannot be written


@pytest.mark.parametrize("partitions", [0, -1, True, "2"])
def test_a_number_of_parts_that_is_impossible_is_refused_when_the_topology_is_built(ledger, partitions) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout("word string", [[]]))
    with pytest.raises(ConfigError, match="partitions of state ledger"):
        stream.partition_persist(replace(ledger, partitions=partitions))


def test_of_many_answers_the_gravest_is_raised() -> None:
    answers = [Answer(number, problem) for number, problem in enumerate(["", "away", "refused", "behind", "stale"])]
    assert [answer.problem for answer in sorted(answers, key=lambda answer: answer.gravity)] == [
        *["stale", "behind", "refused", "away", ""]
    ]


@pytest.mark.parametrize(
    "text, said",
    [
        ("state out (topic 't') cannot send", "state out (topic 't') cannot send"),
        ("state out: away", "state out: away"),
        ("no such table", "state out: no such table"),
        ("state outer refuses", "state out: state outer refuses"),
    ],
)
def test_an_error_names_its_state_once(text: str, said: str) -> None:
    with pytest.raises(StateAway) as caught:
        Answer(0, "away", text).result("state out")
    assert caught.value.message == said


def test_rows_only_and_upserts_where_it_takes_them(ledger) -> None:
    stream = TridentTopology("t").new_stream("s", FixedBatchSpout("word string, n long", [[]]))
    with pytest.raises(TopologyError, match="persistent_aggregate needs a state with one value per key"):
        stream.group_by("word").persistent_aggregate(ledger, Count(), "n")
    with pytest.raises(TopologyError, match="Upsert needs a state"):
        stream.partition_persist(ledger, "word, n", Upsert("word"))
    with pytest.raises(TopologyError, match="takes no updater"):
        stream.partition_persist(ledger, "word", object())
