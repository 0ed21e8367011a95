"""The plan of a rollback: each table gets exactly what it had, or the rollback is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.coordinators.errors import Deposed
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark, UnfinishedRollback, UsedAttempts
from trident.maintenance.facts import (
    APPEND,
    AUXILIARY,
    LOG,
    PLAIN,
    GroupFacts,
    NonDeltaState,
    TableAt,
    TableFacts,
    TopologyFacts,
    positions,
)
from trident.maintenance.inventory import StoredTable, tables_of
from trident.states.core.control import ControlRecord
from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.time_travel.rollback import TableCommits, _GroupInspection
from trident.time_travel.rollback_plan import (
    UNSEEN_ATTEMPTS,
    Choices,
    Plan,
    control_after,
    merged_after,
    moved_files,
    plan,
    record_after,
    used,
)


def data_file(name: str, txids: Sequence[int], rows: int = 1) -> LiveFile:
    """A data file of a log with rows of these transactions."""
    stats = {"minValues": {TXID_COLUMN: min(txids)}, "maxValues": {TXID_COLUMN: max(txids)}}
    return LiveFile(name, 1, {}, stats, rows, 0)


def table_facts(state: str, role: str, path: str, now: TableAt, then: TableAt | None, unknown: str = "") -> TableFacts:
    return TableFacts(
        state, role, path, f"id-{path}", now.version, now.control, now.merged, now.files, then=then, unknown=unknown
    )


def control(txid: int, attempt_id: int = 0, floor: int = 0, starts_at: int = 1) -> ControlRecord:
    digest = f"digest {txid}" if attempt_id >= 0 else ""
    return ControlRecord("top", "g", "inc", txid, attempt_id, digest, 1, starts_at, floor)


# --- a model of the tables of a keyed state and an append ---------------------------------------------------


@dataclass
class Model:
    """The tables of a group, version by version, with the transactions that each file has."""

    txid: int = 0
    holds: dict[str, frozenset[int]] = field(default_factory=dict)  # file → its transactions
    log: list[TableAt] = field(default_factory=lambda: [TableAt(0, control(0, -1))])
    plain: list[TableAt] = field(default_factory=lambda: [TableAt(0, control(0, -1))])
    rows: list[TableAt] = field(default_factory=lambda: [TableAt(0, control(0, -1))])

    def file(self, prefix: str, txids: Sequence[int]) -> LiveFile:
        name = f"{prefix}-{len(self.holds)}"
        self.holds[name] = frozenset(txids)
        return data_file(name, txids)

    def commit(self, table: list[TableAt], files: dict[str, LiveFile], txid: int, floor: int = 0, merged: int = 0):
        attempt = -1 if txid == 0 or table is self.plain else 0
        table.append(TableAt(len(table), control(txid, attempt, floor), merged, files))

    def publish(self) -> None:
        self.txid += 1
        for prefix, table in (("log", self.log), ("rows", self.rows)):
            new = self.file(prefix, [self.txid])
            self.commit(table, {**table[-1].files, new.path: new}, self.txid, table[-1].control.floor)

    def merge(self, upto: int) -> None:
        if self.plain[-1].merged < upto <= self.txid:
            new = self.file("plain", range(1, upto + 1))
            self.commit(self.plain, {new.path: new}, 0, merged=upto)

    def drop(self, floor: int) -> None:
        now = self.log[-1]
        if now.control.floor < floor <= self.plain[-1].merged:
            kept = {path: file for path, file in now.files.items() if max(self.holds[path]) > floor}
            self.commit(self.log, kept, self.txid, floor)

    def optimize(self) -> None:
        """Another program puts files together; a table that has less than two is left."""
        for prefix, table in (("log", self.log), ("rows", self.rows)):
            now = table[-1]
            if len(now.files) > 1:
                new = self.file(prefix, sorted(txid for path in now.files for txid in self.holds[path]))
                self.commit(table, {new.path: new}, now.control.txid, now.control.floor)

    def table(self, role: str, txid: int) -> TableFacts:
        versions = {LOG: self.log, PLAIN: self.plain, APPEND: self.rows}[role]
        has = [each.merged if role == PLAIN else each.control.txid for each in versions]
        then = max(at for at, each in enumerate(has) if each <= txid)
        state = "rows" if role == APPEND else "counts"
        return table_facts(state, role, {LOG: "counts__log"}.get(role, state), versions[-1], versions[then])


MERGES = st.tuples(st.sampled_from(["merge", "drop"]), st.integers(1, 12))
ONE = st.one_of(st.just(("publish", 0)), st.just(("publish", 0)), MERGES, st.just(("optimize", 0)))
EVENTS = st.lists(ONE, min_size=3, max_size=25)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.data())
def test_behind_a_rollback_each_transaction_up_to_it_is_there_once(events: list[Any], data: st.DataObject) -> None:
    model = Model()
    for event, number in [("publish", 0), *events, ("publish", 0)]:
        getattr(model, event)(*([number] if number else []))
    txid = data.draw(st.integers(1, model.txid - 1))
    tables = tuple(model.table(role, txid) for role in (LOG, PLAIN, APPEND))
    made = plan(topology(tables, model.txid), txid, Choices())
    log, plain, rows = tables
    assert log.then is not None and plain.then is not None and rows.then is not None
    if made.refusals:
        (refusal,) = made.refusals
        assert "lies under a floor" in refusal.text and plain.then.merged < log.now.control.floor
        return
    after = {}
    for move in made.moves:
        now = set(move.table.now.files)
        assert {file.path for file in move.goes} <= now and not {file.path for file in move.comes} & now
        after[move.table.role] = sorted(
            each
            for path in (now - {file.path for file in move.goes}) | {file.path for file in move.comes}
            for each in model.holds[path]
        )
    assert after[APPEND] == list(range(1, txid + 1))
    merged = merged_after(plain.then, made.last)
    assert after[PLAIN] == list(range(1, merged + 1)) and merged <= txid
    waiting = [each for each in after[LOG] if each > merged]
    assert waiting == list(range(merged + 1, txid + 1)), "the log lacks rows, or has them twice or too many"
    floor = control_after(LOG, log.now.control, log.then.control, made.last, "next", 7).floor
    assert floor <= merged


# --- single decisions ---------------------------------------------------------------------------------------


def manifest(txid: int, **spouts: dict[str, Any]) -> Manifest:
    found = {"lines": {"spout": "Lines", "kind": "transactional", "metadata": txid, "commit_data": None}, **spouts}
    return Manifest("top", "g", "inc", TransactionAttempt(txid, 0), None, (), found)


def topology(tables: tuple[TableFacts, ...], last: int, **changed: Any) -> TopologyFacts:
    at = Marker(last, 0, "x")
    record = changed.pop("record", None) or GroupRecord("inc", last + 1, last=at, last_published=at)
    begun = {txid: 0 for txid in range(1, last + 1)}
    group = GroupFacts("g", record, changed.pop("decision", None), tables, manifest=manifest(1), begun=begun)
    non_delta_states = {name: NonDeltaState(kind) for name, kind in changed.pop("outside", {}).items()}
    others = changed.pop("others", ())
    return TopologyFacts("top", "inc", None, (replace(group, **changed), *others), non_delta_states=non_delta_states)


def published(txids: Sequence[int], role: str = APPEND) -> list[TableAt]:
    """The versions of a table with a file of each transaction."""
    files = [data_file(f"f{txid}", [txid]) for txid in txids]
    return [
        TableAt(at, control(txid, 0), files={file.path: file for file in files[: at + 1]})
        for at, txid in enumerate(txids)
    ]


def rows_table(upto: int, txid: int) -> TableFacts:
    versions = published(range(1, upto + 1))
    then = versions[txid - 1] if 0 < txid <= upto else None
    return table_facts("rows", APPEND, "rows", versions[-1], then, "cleaned")


def refused(facts: TopologyFacts, txid: int, choices: Choices | None = None) -> list[str]:
    return [f"{refusal.text} | {refusal.action}" for refusal in plan(facts, txid, choices or Choices()).refusals]


@pytest.mark.parametrize(
    ("txid", "text"),
    [
        (-1, "transaction -1 never was"),
        (0, "transaction 0 never was: the first is 1 | `trident reset top --drop-tables`"),
        (6, "transaction 6 of batch group 'g' has not advanced: the last that has advanced is 5"),
        (600, "transaction 600 of batch group 'g' has not advanced"),
    ],
)
def test_a_transaction_that_cannot_be_meant_is_refused(txid: int, text: str) -> None:
    (said,) = refused(topology((rows_table(5, txid),), 5), txid)
    assert text in said


def test_at_the_last_transaction_there_is_nothing_to_do_unless_another_is_decided() -> None:
    assert of(topology((rows_table(5, 5),), 5), 5).is_there
    made = plan(topology((rows_table(5, 5),), 5, decision=Decision(6, 0, "m", 1, "d")), 5, Choices())
    assert not made.refusals and not made.is_there and made.last == Marker(5, 0, "digest 5")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"then": None}, "transaction 3 is gone for table rows: cleaned | name a later one"),
        ({"gone": ("f1", "f2")}, "of the files that it had then 2 are deleted, by VACUUM or by hand, such as f1"),
        ({"unwritable": "it has rows of its own"}, "table rows cannot be taken back: it has rows of its own"),
    ],
)
def test_a_table_that_cannot_get_back_refuses(changed: dict[str, Any], text: str) -> None:
    whole = rows_table(5, 3)
    (said,) = refused(topology((replace(whole, **changed), replace(whole, path="other")), 5), 3)
    assert text in said


def test_a_transaction_under_the_floor_of_a_log_is_refused_with_the_first_that_is_not() -> None:
    versions = published(range(1, 6), LOG)
    now = replace(versions[-1], control=replace(versions[-1].control, floor=4))
    log = table_facts("counts", LOG, "counts__log", now, versions[2])
    merged = [replace(at, merged=merged, files={}) for at, merged in ((versions[0], 1), (versions[-1], 5))]
    plain = table_facts("counts", PLAIN, "counts", merged[1], merged[0])
    (said,) = refused(topology((rows_table(5, 3), log, plain), 5), 3)
    assert "transaction 3 lies under a floor: the log of state counts no longer has transactions 2 to 4" in said
    assert "| name transaction 4 or a later one; snapshot_retention_txids" in said


def test_positions_that_are_not_kept_refuse() -> None:
    (said,) = refused(topology((rows_table(5, 3),), 5, manifest=None), 3)
    assert "the manifest of transaction 3, attempt 0, is not kept" in said and "history_retention_txids" in said


def test_states_outside_are_refused_by_name_or_left() -> None:
    facts = topology((rows_table(5, 3),), 5, outside={"orders": "postgres", "cache": "map"})
    assert [said.split(" (")[0] for said in refused(facts, 3)] == ["state cache", "state orders"]
    (said,) = refused(facts, 3, Choices(frozenset({"cache"})))
    assert "state orders (postgres) is not in Delta tables" in said and "--leave orders" in said
    assert refused(facts, 3, Choices(frozenset({"cache", "orders"}))) == []
    (said,) = refused(facts, 3, Choices(frozenset({"cache", "orders", "typo"})))
    assert "no state 'typo'" in said and "cache, orders" in said


def test_a_state_outside_of_a_group_that_stays_is_refused_with_what_becomes_of_it() -> None:
    facts = topology((rows_table(5, 3),), 5, outside={"totals": "sqlite-map"})
    facts = replace(facts, non_delta_states={"totals": NonDeltaState("sqlite-map", "numbers")})
    (said,) = refused(facts, 3)
    assert "state totals (sqlite-map) of batch group 'numbers', which stays, is not in Delta tables" in said
    assert "--leave totals continues" in said and "has to be cleared" in said
    assert refused(facts, 3, Choices(frozenset({"totals"}))) == []


@pytest.mark.parametrize(
    ("spout", "lost"),
    [
        ({"kind": "transactional", "commit_data": None}, False),
        ({"kind": "opaque", "opaque": {}, "commit_data": None}, False),
        ({"kind": "opaque", "opaque": {"p": 1}, "commit_data": None}, False),
        ({"kind": "opaque", "commit_data": {"ids": [1]}}, True),
        ({"kind": "opaque", "commit_data": None}, True),
        ({"kind": "non-transactional", "commit_data": None}, True),
    ],
)
def test_a_source_that_acknowledges_is_named_and_its_loss_accepted(spout: dict[str, Any], lost: bool) -> None:
    facts = topology((rows_table(5, 3),), 5, manifest=manifest(3, other={"spout": "Other", "metadata": 0, **spout}))
    found = refused(facts, 3)
    assert len(found) == lost
    if lost:
        assert "stream other: " in found[0] and "DOES NOT COME AGAIN" in found[0] and "--accept-loss" in found[0]
        assert refused(facts, 3, Choices(accept_loss=True)) == []


def test_a_source_that_acknowledges_and_came_with_a_later_transaction_is_named_too() -> None:
    queue = {"spout": "Queue", "kind": "opaque", "commit_data": {"ids": [1]}, "metadata": None}
    facts = topology((rows_table(5, 3),), 5, manifest=manifest(3), since=(manifest(4, queue=queue).spouts,))
    (found,) = refused(facts, 3)
    assert "stream queue: " in found and "--accept-loss" in found
    assert refused(facts, 3, Choices(accept_loss=True)) == []


def test_another_group_must_have_finished_what_it_has_decided() -> None:
    record = GroupRecord("inc", 2, last=Marker(1, 0, "x"))
    other = GroupFacts("h", record, Decision(2, 0, "m", 1, "d"), ())
    (said,) = refused(topology((rows_table(5, 3),), 5, others=(other,)), 3)
    assert "batch group 'h', which stays, has decided transaction 2" in said


def of(facts: TopologyFacts, txid: int) -> Plan:
    made = plan(facts, txid, Choices())
    assert not made.refusals
    return made


def test_transactions_that_changed_nothing_are_read_again() -> None:
    """Their positions are in no manifest: those of the last one that has one are taken."""
    versions = published([1, 2, 5])
    table = table_facts("rows", APPEND, "rows", versions[-1], versions[1])
    made = of(topology((table,), 5), 4)
    assert made.last == Marker(2, 0, "digest 2")
    assert record_after(made.group.recorded, made.intent, {}).current_txid == 3


def test_the_record_is_that_of_then_and_no_attempt_id_comes_again() -> None:
    last, tables = Marker(5, 4, "x"), {"id": TableMark(9, 5, 4, "x"), "outside:o": TableMark(0, 5, 4, "x")}
    record = GroupRecord("inc", 6, {6: 2, 7: 0}, {6: 4, 7: 2}, last, last, tables)
    facts = topology((rows_table(5, 3),), 5, record=record, begun={4: 9, 5: 4})
    intent = of(facts, 3).intent
    assert intent.used == UsedAttempts(7, 9) and intent.incarnation == "inc-r1" and intent.tables == {"rows": 2}
    after = record_after(record, intent, {"id": TableMark(10, 3, 0, "y")})
    assert (after.current_txid, after.last, after.last_published) == (4, intent.last, intent.last)
    assert after.problem() is None and not after.attempts
    assert [after.greatest_attempt(txid) for txid in (4, 7, 8)] == [9, 9, -1]


def test_ids_go_on_far_above_where_attempts_have_left_no_trace() -> None:
    facts = topology((rows_table(5, 3),), 5, begun={5: 3}).groups[0]
    assert used(facts) == UsedAttempts(6, 3 + UNSEEN_ATTEMPTS)
    again = replace(facts, record=replace(facts.recorded, used=UsedAttempts(50, 5000)), begun={4: 0, 5: 3})
    assert used(again) == UsedAttempts(50, 5000)


def test_positions_are_pins_and_metadata_of_partitions() -> None:
    """A source in partitions that had none yet has no pin either: its coordinator would be resumed with another's."""
    none_yet = {"metadata": None, "opaque": {}}
    spouts = {"a": {"metadata": {"n": 1}}, "b": {"metadata": None, "opaque": {"0": 7}}, "c": none_yet}
    assert positions(spouts, 3) == ({"a": {3: {"n": 1}}}, {"b": {"0": 7}})


def test_a_table_that_began_later_begins_again_behind_the_last_transaction() -> None:
    began = control(4, -1, floor=4, starts_at=5)
    last = Marker(2, 0, "digest 2")
    now = control(6, 0, floor=4, starts_at=5)
    after = control_after(LOG, now, began, last, "next", 7)
    assert (after.txid, after.attempt_id, after.starts_at, after.floor) == (2, -1, 3, 2)
    assert (after.incarnation, after.epoch) == ("next", 7)
    plain = control_after(PLAIN, control(4, -1, starts_at=5), control(4, -1, starts_at=5), last, "next", 7)
    assert (plain.txid, plain.starts_at, plain.floor) == (2, 3, 0)
    assert merged_after(TableAt(0, began, 4), last) == 2


def test_a_group_that_stays_keeps_its_rows_and_its_floor() -> None:
    now = TableAt(3, control(9, 1, floor=4), 9, {"f": data_file("f", [9])})
    assert moved_files(LOG, now, now) == ((), ())
    after = control_after(LOG, now.control, now.control, None, "next", 7)
    assert after == replace(now.control, incarnation="next", epoch=7)
    assert merged_after(now, None) == 9


@pytest.mark.parametrize("role", [APPEND, PLAIN, AUXILIARY])
def test_only_of_a_log_the_column_of_txids_tells_what_comes_back(role: str) -> None:
    """An append table may have a column of the user's own with that name, and numbers below zero in it."""
    then = TableAt(1, control(1), files={"a": data_file("a", [-7])})
    goes, comes = moved_files(role, TableAt(2, control(2), files={"b": data_file("b", [-5])}), then)
    assert ([file.path for file in goes], [file.path for file in comes]) == (["b"], ["a"])


def test_dead_letters_are_no_witness_of_the_last_transaction() -> None:
    """They take part only in transactions that have rows for them."""
    versions = published([1, 2])
    letters = table_facts("d", AUXILIARY, "d", versions[-1], versions[0])
    assert of(topology((rows_table(5, 3), letters), 5), 3).last == Marker(3, 0, "digest 3")


def test_a_table_that_another_leader_has_changed_meanwhile_is_not_taken_back() -> None:
    """The process stood still before its look: by now the topology was reset, or rolled back once more."""
    led = ["this process"]

    class Engine:
        def load(self, path: str) -> Any:
            led[0] = "another"
            later = replace(control(12), incarnation="other").encode()
            return SimpleNamespace(path=path, version=7, control=lambda domain: later)

        def take_back(self, *args: Any) -> None:
            raise AssertionError("it was taken back")

    def check_leads() -> None:
        if led[0] != "this process":
            raise Deposed("another leads")

    intent = UnfinishedRollback("g", 1, Marker(1, 0, "d"), "inc-r1", UsedAttempts(3, 0), {"rows": 1})
    engine: Any = Engine()
    commits = TableCommits(engine, Place("/nowhere"), "top", intent, 1)
    with pytest.raises(Deposed):
        commits.take_back(StoredTable("g", APPEND, "rows"), check_leads)


# --- tables of the framework -----------------------------------------------------------------------------
# A rollback's look: tables of dead letters that a reset has kept are left alone, and no manifest more is read.


def dead_letters(folder: Path, incarnation: str) -> None:
    """A table of a group's dead letters whose newest commit is of an incarnation."""
    log = folder / f"top__{incarnation.partition('-')[0]}__dead_letters" / "_delta_log"
    log.mkdir(parents=True)
    control = {"schema": 1, "topology": "top", "group": "lines", "incarnation": incarnation, "txid": 812}
    control |= {"attempt_id": 0, "digest": "d", "epoch": 3, "starts_at": 1, "floor": 0}
    schema = {"type": "struct", "fields": [{"name": "txid", "type": "long", "nullable": True, "metadata": {}}]}
    metadata = {"id": incarnation, "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    metadata |= {"schemaString": json.dumps(schema), "configuration": {}, "createdTime": 1}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "CREATE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}},
        {"metaData": metadata},
        {"domainMetadata": {"domain": "trident", "removed": False, "configuration": json.dumps(control)}},
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_only_the_tables_of_this_life_are_taken_back(tmp_path: Path) -> None:
    dead_letters(tmp_path, "before")
    dead_letters(tmp_path, "now-r1")
    found = tables_of([], Place(tmp_path), "top", "now-r2")
    assert found == [StoredTable("lines", AUXILIARY, "top__now__dead_letters")]


def test_of_a_long_past_only_manifests_behind_the_transaction_are_read(tmp_path, monkeypatch):
    """A store takes a request for each."""
    place = Place(tmp_path)
    for txid in range(1, 41):
        made = Manifest("top", "lines", "9f3c", TransactionAttempt(txid, 0), None, (), {"s": {"metadata": txid}})
        ManifestStore(place, "top", "lines", "9f3c").write(made)
    read: list[str] = []
    whole = ManifestStore.read_found
    monkeypatch.setattr(ManifestStore, "read_found", lambda self, path: read.append(path.name) or whole(self, path))
    no_zookeeper: Any = None
    look = _GroupInspection(no_zookeeper, place, "top", "lines", (), ())
    assert [found["s"]["metadata"] for found in look._since(Marker(37, 0, "d"), "9f3c-r1")] == [40, 39, 38]
    assert len(read) == 4
