"""Repairs of states outside of the warehouse: a store that has lost transactions is let in by its name only."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import BATCHES, World, fold, topology
from tests.states.outside.http_server import serving
from tests.states.outside.ledger_state import LedgerState
from trident import HttpState, TridentTopology
from trident.coordinators.errors import TopologyError
from trident.coordinators.records import Decision, GroupRecord, TableMark, outside_id
from trident.maintenance.facts import GroupFacts, OutsideFacts, TopologyFacts
from trident.repair.apply import Repaired, report
from trident.repair.damaged import outside_states
from trident.repair.inspection import outside_facts
from trident.repair.steps import Choices, NewOutbox, SetMarks
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.outside.outbox import outboxes_of


@pytest.fixture
def world(spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[World]:
    made = World(spark, tmp_path / "warehouse", zk_server, zk_root)
    yield made
    made.close()


@pytest.mark.long
def test_a_store_that_was_put_back_is_let_in_by_name(world: World, tmp_path: Path) -> None:
    ledger = LedgerState(str(tmp_path / "ledger.db"))

    def made(batches: int) -> TridentTopology:
        return topology(batches, beside=ledger)

    world.run(2, made=made(2))
    shutil.copy(ledger.path, tmp_path / "copy.db")
    world.run(3, made=made(3))
    shutil.copy(tmp_path / "copy.db", ledger.path)
    error = world.ends(world.start(5, made(5)))
    assert "`trident repair top --accept-outside ledger --apply`" in str(error) and "is the older side" in str(error)
    assert world.dry_run().findings == [], "its store is not queried"
    with pytest.raises(TopologyError, match="no mark of a state 'other' outside of the warehouse"):
        world.repair(accept_outside=["other"])
    found = world.dry_run(accept_outside=["ledger"])
    assert "ledger               outside of the warehouse; ZooKeeper: transaction 3" in report(found, [], False)
    assert [finding.chosen is not None for finding in found.findings] == [True]
    done = world.repair(apply=True, accept_outside=["ledger"])
    assert (len(done.done), done.left) == (1, [])
    world.run(5, made=made(5))
    lost = [word for (line,) in BATCHES[2] for word in line.split()]
    expected = fold(5)
    expected.subtract(lost)
    assert ledger.words() == sorted(expected.elements()) and world.holds() == (fold(5), fold(5))


def test_a_damaged_outbox_is_listed_and_begins_anew(world: World) -> None:
    pytest.importorskip("httpx")
    with serving() as server:
        state = HttpState(server.url, "out", honours_keys=True)
        world.run(2, made=topology(2, beside=state))
        newest = max((world.warehouse / "top__out__outbox" / "log").glob("*.json"))
        newest.write_bytes(newest.read_bytes().replace(b'"schema":1', b'"schema":7'))
        error = world.ends(world.start(3, topology(3, beside=state)))
        assert "`trident repair top --accept-outside out --apply`" in str(error) and "out is damaged" in str(error)
        found = world.dry_run()
        assert [finding.chosen for finding in found.findings] == [None]
        shown = report(found, [], False)
        assert "its outbox is damaged" in shown and "--accept-outside out" in shown and newest.name in shown
        done = world.repair(apply=True, accept_outside=["out"])
        assert (len(done.done), done.left) == (2, [])
        world.run(3, made=topology(3, beside=state))
        assert Counter(body["word"] for body in server.bodies) == fold(3) and world.dry_run().findings == []


def test_an_outbox_without_a_mark_is_found_by_its_folder(tmp_path: Path) -> None:
    for name in ("top__out__outbox", "top__more__out2__outbox", "other__out3__outbox", "top__out4"):
        (tmp_path / name / "log").mkdir(parents=True)
    assert outboxes_of("top", storage.list_names(Place(str(tmp_path)))) == ["out"]
    (tmp_path / "top__out__outbox" / "log" / f"{7:020d}.json").write_text('{"schema":1')
    one = outside_facts(Place(str(tmp_path)), "top", "out", None, None)
    (finding,) = outside_states(GroupFacts("g", None, None, (), outside=(one,)), Choices())
    assert "no record with a digest" in finding.text and finding.offers[0].steps == (NewOutbox("g", "out"),)


@pytest.mark.parametrize(
    "outbox, begun, decision, found",
    [
        ((7, 1), (0, 0), None, False),
        ((8, 0), (0, 0), None, True),
        ((7, 1), (8, 0), None, True),
        ((7, 1), (8, 0), (8, 0), False),
        ((7, 1), (8, 0), (8, 1), True),
        ((7, 1), (7, 0), None, False),
    ],
)
def test_an_outbox_that_is_ahead_is_found(outbox, begun, decision, found: bool) -> None:
    mark = TableMark(0, 7, 1, "digest")
    one = OutsideFacts("mails", mark, outbox, begun)
    record = GroupRecord("inc", 8, tables={outside_id("mails"): mark})
    group = GroupFacts("g", record, Decision(*decision, "manifest", 1, "sha") if decision else None, (), outside=(one,))
    findings = outside_states(group, Choices())
    steps = (NewOutbox("g", "mails"), SetMarks("g", forget=("outside:mails",)))
    assert [finding.offers[0].steps for finding in findings] == [steps] * found


@pytest.mark.parametrize(
    "outbox, found", [(None, False), ((0, 0), True), ((6, 3), True), ((7, 0), True), ((7, 1), False)]
)
def test_an_outbox_that_lacks_transactions_is_found(outbox: tuple[int, int] | None, found: bool) -> None:
    mark = TableMark(0, 7, 1, "digest")
    one = OutsideFacts("mails", mark, outbox)
    group = GroupFacts("g", GroupRecord("inc", 8, tables={outside_id("mails"): mark}), None, (), outside=(one,))
    findings = outside_states(group, Choices())
    assert [finding.chosen for finding in findings] == [None] * found
    (asked,) = outside_states(group, Choices(accept_outside=frozenset({"mails"})))
    assert asked.chosen is not None and asked.chosen.steps == (SetMarks("g", forget=("outside:mails",)),)
    shown = report(Repaired(TopologyFacts("top", "inc", None, (group,)), [asked], [], [asked]), [], False)
    assert "trident repair top --accept-outside mails --apply" in shown and "ARE LOST there" in shown
    assert ("its store is not queried" in shown) == (outbox is None)
