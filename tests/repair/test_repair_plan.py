"""What `trident repair` decides: over every small world, whatever it does leaves each transaction in each table once.

A world is what tables and ZooKeeper hold; a naive model here publishes to it,
wipes and restores it, carries out the steps and runs on from them. It shares
no code with the plan. "Holds" is a set of (txid, times): a transaction that is
missing, or there twice, is seen.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark, encode
from trident.maintenance.facts import (
    APPEND,
    AUXILIARY,
    LOG,
    PLAIN,
    ForeignChange,
    GroupFacts,
    ManifestFacts,
    TableFacts,
    TopologyFacts,
)
from trident.repair.diagnose import diagnose
from trident.repair.inspection import own_manifests
from trident.repair.steps import AbandonDecision, Choices, ClampValues, Finding, Restore, SetMarks, WriteRecord
from trident.states.core.control import ControlRecord
from trident.states.core.tables import StagedFile
from trident.states.delta.manifest import Manifest, ManifestTable
from trident.states.keyed.table_watch import ACCEPTED

TABLES = (("counts", LOG, "counts__log"), ("words", APPEND, "words"))
IDENTITY = {"streams": {"lines": "Spout"}, "states": {}, "groups": {"lines": ["lines"]}}


@dataclass(frozen=True)
class Model:
    """Tables (txids they hold, in order), what ZooKeeper says, and the attempt of each transaction."""

    tables: tuple[tuple[int, ...], ...] = ((), ())
    current: int | None = 1
    decided: bool = False
    attempts: tuple[int, ...] = ()  # of transactions 1, 2, …
    queue: bool = False  # whether each batch has commit data
    spout_kind: str = "transactional"
    marks: tuple[int, ...] = (0, 0)  # the last txid of each table, as ZooKeeper knows it
    gone: tuple[str, ...] = ()  # states whose files of the last transaction are gone
    leftovers: dict[int, int] = field(default_factory=dict)

    def attempt(self, txid: int) -> TransactionAttempt:
        return TransactionAttempt(txid, self.attempts[txid - 1])

    def decision(self, txid: int) -> Decision:
        attempt = self.attempt(txid)
        digest = hashlib.sha256(repr(attempt).encode()).hexdigest()
        return Decision(txid, attempt.attempt_id, f"manifests/{txid}-{attempt.attempt_id}.json", 10, digest)

    def control(self, txid: int) -> ControlRecord:
        if txid == 0:
            return ControlRecord("top", "lines", "inc", 0, -1, "", 1, 1)
        decision = self.decision(txid)
        return ControlRecord("top", "lines", "inc", txid, decision.attempt_id, decision.sha256, 1, 1)

    def mark(self, txid: int) -> TableMark | None:
        return self.control(txid).mark(txid) if txid else None

    def marker(self, txid: int) -> Marker | None:
        decision = self.decision(txid) if txid else None
        return Marker(txid, decision.attempt_id, decision.sha256) if decision else None

    def manifest(self, txid: int) -> ManifestFacts:
        files = (StagedFile("data/f", 1, 1, 1, "{}", {}),)
        parts = tuple(
            ManifestTable(state, "keyed" if role == LOG else "append", path, f"id-{path}", "h", files)
            for state, role, path in TABLES
        )
        spout = {
            "spout": "Spout",
            "kind": self.spout_kind,
            "metadata": {"at": txid},
            "commit_data": [txid] if self.queue else None,
        }
        parent = self.attempt(txid - 1) if txid > 1 else None
        manifest = Manifest("top", "lines", "inc", self.attempt(txid), parent, parts, {"lines": spout})
        return ManifestFacts(self.decision(txid), manifest, {state: ("data/f",) for state in self.gone})

    def record(self) -> GroupRecord | None:
        if self.current is None:
            return None
        marks = {f"id-{path}": mark for (_, _, path), txid in zip(TABLES, self.marks) if (mark := self.mark(txid))}
        last = self.marker(self.current - 1)
        attempts = {self.current: self.attempts[self.current - 1]} if self.decided else {}
        parents = {txid: last.attempt_id if last else None for txid in attempts}
        return GroupRecord("inc", self.current, attempts, parents, last, last, marks)

    def facts(self, **tables: dict[str, object]) -> TopologyFacts:
        record, newest = self.record(), max((held[-1] for held in self.tables if held), default=0)
        found = []
        for (state, role, path), held in zip(TABLES, self.tables):
            txid = held[-1] if held else 0
            mark = record.tables.get(f"id-{path}") if record else None
            before = self.control(held[-2] if len(held) > 1 else 0) if held else None
            of_table = TableFacts(state, role, path, f"id-{path}", txid, self.control(txid), before=before, mark=mark)
            found.append(replace(of_table, **tables.get(path, {})))  # type: ignore[arg-type]
        manifests = [self.manifest(txid) for txid in range(newest, newest + 2) if 0 < txid <= len(self.attempts)]
        decision = self.decision(self.current) if self.decided and self.current else None
        group = GroupFacts("lines", record, decision, tuple(found), ("lines",), tuple(manifests), self.leftovers)
        known = record is not None
        return TopologyFacts("top", "inc" if known else None, IDENTITY if known else None, (group,), {}, 7)


def with_plain(model: Model, merged: int, floor: int = 0, **more: object) -> TopologyFacts:
    """The model's tables, with the plain table of its keyed state; ZooKeeper knows nothing of that."""
    facts = model.facts()
    group = facts.groups[0]
    plain = TableFacts(
        "counts", PLAIN, "counts", "id-plain", 9, model.control(0), merged=merged, floor=floor, starts_at=1
    )
    tables = (group.tables[0], replace(plain, **more), group.tables[1])  # type: ignore[arg-type]
    return replace(facts, groups=(replace(group, tables=tables),))


def steps_of(findings: list[Finding]) -> list:
    return [step for finding in findings if finding.chosen for step in finding.chosen.steps]


def run_on(model: Model, step: WriteRecord, until: int) -> tuple[tuple[int, ...], ...]:
    """What the tables hold when the topology goes on from a written record, told naively."""
    tables = [list(held) for held in model.tables]
    if step.decision is not None:
        for held in tables:
            if not held or held[-1] != step.decision.txid:
                held.append(step.decision.txid)
    pinned = max(step.pins["lines"])
    # The source goes on behind the position that is pinned.
    current = step.record.current_txid + (1 if step.decision else 0)
    assert current == pinned + 1
    for txid in range(current, until + 1):
        for held in tables:
            held.append(txid)
    return tuple(tuple(held) for held in tables)


@st.composite
def worlds(draw: st.DrawFn) -> Model:
    """Up to five transactions were published; the last perhaps to one table only. ZooKeeper is anything."""
    count = draw(st.integers(1, 5))
    attempts = tuple(draw(st.lists(st.integers(0, 3), min_size=count + 1, max_size=count + 1)))
    half = draw(st.booleans())
    all_of, but_last = tuple(range(1, count + 1)), tuple(range(1, count))
    tables = (all_of, but_last if half else all_of)
    known = draw(st.one_of(st.none(), st.integers(0, count - 1)))
    marks = (0, 0) if known is None else (min(known, count), min(known, len(tables[1])))
    return Model(
        tables,
        None if known is None else known + 1,
        False,
        attempts,
        draw(st.booleans()),
        "transactional",
        marks,
        leftovers=draw(st.dictionaries(st.integers(1, count + 3), st.integers(0, 9), max_size=4)),
    )


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_an_older_or_wiped_zookeeper_is_rebuilt_so_that_every_transaction_counts_once(model: Model) -> None:
    (finding,) = diagnose(model.facts())
    assert finding.chosen is not None, finding.refusal  # it needs no other word than --apply
    (step,) = finding.chosen.steps
    assert isinstance(step, WriteRecord)
    until = len(model.tables[0]) + 3
    assert run_on(model, step, until) == (tuple(range(1, until + 1)),) * 2
    # Whether a queue has heard of the last transaction is not known: it is told again.
    assert (step.decision is not None) == (model.queue or model.tables[0] != model.tables[1])
    check_record(model, step)


def check_record(model: Model, step: WriteRecord) -> None:
    record = step.record
    assert record.problem() is None and encode(record)  # it can be stored, and read again
    used = dict(model.leftovers)
    for txid, attempt_id in used.items():
        if txid > record.current_txid - (0 if step.decision else 1) and txid <= 100:
            assert record.attempts.get(txid, -1) >= attempt_id or (step.decision and txid == step.decision.txid)
    if step.decision is not None:
        assert record.attempts[step.decision.txid] == step.decision.attempt_id
        assert record.last is None or record.last.attempt == model.attempt(step.decision.txid - 1)
    held = [len(of_table) for of_table in model.tables]
    marks = [record.tables.get(f"id-{path}") for _, _, path in TABLES]
    assert [mark.version if mark else 0 for mark in marks] == held


@pytest.mark.parametrize("queue", [False, True])
def test_a_half_published_transaction_is_not_rebuilt_without_its_files(queue: bool) -> None:
    model = Model(((1, 2, 3), (1, 2)), None, attempts=(0, 0, 0), queue=queue)
    (finding,) = diagnose(replace(model, gone=("words",)).facts())
    assert finding.chosen is None and "files are gone" in finding.refusal
    (finding,) = diagnose(replace(model, gone=("counts",)).facts())  # that table has the transaction
    assert finding.chosen is not None


@pytest.mark.parametrize("half", [False, True])
def test_tables_without_a_part_in_the_last_transaction_do_not_stop_a_rebuild(half: bool) -> None:
    """A detached state's table, and one of dead letters, which is written now and then."""
    model = Model(((1, 2, 3), (1, 2) if half else (1, 2, 3)), None, attempts=(0, 1, 2))
    facts = model.facts()
    detached = TableFacts("old", APPEND, "old", "id-old", 5, model.control(1), before=model.control(0))
    letters = TableFacts("x", AUXILIARY, "top__dead", "id-dead", 1, model.control(2), before=model.control(0))
    group = replace(facts.groups[0], tables=(detached, letters, *facts.groups[0].tables))
    (step,) = steps_of(diagnose(replace(facts, groups=(group,))))
    assert run_on(model, step, 5) == ((1, 2, 3, 4, 5),) * 2
    assert step.record.tables["id-old"] == model.control(1).mark(5)
    if half:
        assert step.record.last_published == model.marker(2)


@settings(max_examples=200, deadline=None)
@given(worlds(), st.integers(1, 4), st.sampled_from(["transactional", "opaque"]))
def test_a_newer_zookeeper_goes_back_only_when_asked_for_by_name(model: Model, ahead: int, kind: str) -> None:
    count = len(model.tables[0])
    attempts = (*model.attempts, *([0] * (ahead + 1)))
    newer = replace(model, current=count + ahead + 1, attempts=attempts, spout_kind=kind, marks=(count + ahead,) * 2)
    assert steps_of(diagnose(newer.facts())) == []
    choices = Choices(adopt_tables=True)
    if kind == "opaque":
        assert steps_of(diagnose(newer.facts(), choices)) == []
        choices = Choices(adopt_tables=True, accept_loss=True)
    if newer.tables[0] != newer.tables[1]:
        # One table has a transaction more than the other: half published when copied, or restored alone?
        findings = diagnose(newer.facts(), choices)
        assert all(isinstance(step, WriteRecord) and step.decision for step in steps_of(findings))
        return
    (step,) = steps_of(diagnose(newer.facts(), choices))
    until = count + ahead + 2
    assert run_on(newer, step, until) == (tuple(range(1, until + 1)),) * 2
    # No attempt id of the transactions that are done again is used again.
    assert all(step.record.attempts.get(txid, -1) >= attempts[txid - 1] for txid in (count + ahead,))


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("gone", [(), ("words",), ("counts",), ("counts", "words")])
def test_a_decision_is_given_up_only_when_nothing_of_it_is_published(published: int, gone: tuple[str, ...]) -> None:
    tables = tuple((1, 2, 3) if number < published else (1, 2) for number in range(2))
    model = Model(tables, 3, True, (0, 1, 2), marks=(2, 2), gone=gone)
    findings = diagnose(model.facts(), Choices(abandon_decision=True))
    needed = [state for number, (state, _, _) in enumerate(TABLES) if number >= published and state in gone]
    if not needed:
        assert findings == []  # it is rolled forward as it is
    elif published == 0:
        (step,) = steps_of(findings)
        assert isinstance(step, AbandonDecision)
        assert steps_of(diagnose(model.facts())) == []  # not without being asked
    else:
        assert steps_of(findings) == [] and "cannot be given up" in findings[0].refusal


@pytest.mark.parametrize("at", [2, 1])
def test_without_its_manifest_a_decision_is_given_up_only_where_a_table_takes_part(at: int) -> None:
    """The table of a state that the topology no longer has never gets the transaction, and proves nothing."""
    model = Model(((1, 2)[:at],) * 2, 3, True, (0, 0, 0), marks=(at, at))
    facts = model.facts()
    facts = replace(facts, groups=(replace(facts.groups[0], manifests=()),))
    (finding,) = diagnose(facts, Choices(abandon_decision=True))
    assert bool(steps_of([finding])) == (at == 2)
    assert at == 2 or "no Delta table that would show" in finding.refusal


@pytest.mark.parametrize("held", [0, 1, 3])
def test_what_agrees_is_left_alone(held: int) -> None:
    model = Model(((*range(1, held + 1),),) * 2, held + 1, attempts=(0,) * (held + 1), marks=(held, held))
    assert diagnose(model.facts(), Choices(adopt_tables=True, abandon_decision=True)) == []


CHANGE = (ForeignChange(4, "WRITE", "WRITE by somebody"),)
RESTORED = (ForeignChange(4, "RESTORE", "RESTORE by somebody"),)


PROPERTIES = (ForeignChange(4, "SET TBLPROPERTIES", "by somebody", only_properties=True),)


def changed(role: str, foreign: tuple[ForeignChange, ...], **more: object) -> TopologyFacts:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    if role == PLAIN:
        facts = model.facts()
        mark = TableMark(3, 2, 0, "")
        table = TableFacts(
            "counts",
            PLAIN,
            "counts",
            "id-plain",
            4,
            model.control(0),
            merged=2,
            mark=mark,
            foreign=foreign,
            **more,  # type: ignore[arg-type]
        )
        group = facts.groups[0]
        assert group.record is not None
        record = replace(group.record, tables={**group.record.tables, "id-plain": mark})
        return replace(facts, groups=(replace(group, record=record, tables=(*group.tables, table)),))
    path = "counts__log" if role == LOG else "words"
    return model.facts(**{path: {"foreign": foreign, **more}})


@pytest.mark.parametrize(
    ("role", "foreign", "more", "undone", "accepted"),
    [
        (APPEND, CHANGE, {}, True, True),
        (APPEND, RESTORED, {}, True, True),
        (LOG, CHANGE, {}, True, False),
        (LOG, RESTORED, {}, True, False),
        (LOG, PROPERTIES, {}, True, True),
        (LOG, PROPERTIES + CHANGE, {}, True, False),
        (PLAIN, CHANGE, {}, True, True),
        (PLAIN, CHANGE, {"odd_rows": "2 keys have several rows"}, True, False),
        (PLAIN, CHANGE, {"not_written": "the constraint positive (n > 0)"}, True, False),
        (APPEND, PROPERTIES, {"not_written": "the constraint positive (n > 0)"}, True, False),
        (PLAIN, RESTORED, {}, True, False),
        (APPEND, CHANGE, {"ours_after": True}, False, True),
        (PLAIN, RESTORED, {"ours_after": True}, False, False),
    ],
)
def test_what_others_did_is_undone_or_accepted_only_by_name_and_only_where_exact(
    role: str, foreign: tuple[ForeignChange, ...], more: dict, undone: bool, accepted: bool
) -> None:
    state = "words" if role == APPEND else "counts"
    facts = changed(role, foreign, **more)
    assert steps_of(diagnose(facts)) == []
    assert steps_of(diagnose(facts, Choices(undo_foreign=frozenset({"other"})))) == []
    undo = steps_of(diagnose(facts, Choices(undo_foreign=frozenset({state}))))
    assert [type(step) for step in undo] == ([Restore] if undone else [])
    assert all(step.version == 3 for step in undo)
    accept = steps_of(diagnose(facts, Choices(accept_foreign=frozenset({state}))))
    assert [type(step) for step in accept] == ([SetMarks] if accepted else [])


@pytest.mark.parametrize("fault", [{"foreign": CHANGE}, {"unverified": True}])
def test_a_rebuild_never_takes_in_what_nobody_has_looked_at(fault: dict) -> None:
    """The record would say that the changed table is as it should be."""
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    facts = model.facts(words=fault)
    assert not any(isinstance(step, WriteRecord) for step in steps_of(diagnose(facts)))
    accepting = Choices(accept_foreign=frozenset({"words"}), accept_unverified=frozenset({"words"}))
    assert any(isinstance(step, WriteRecord) for step in steps_of(diagnose(facts, accepting)))


def test_a_repair_that_died_behind_its_restore_is_finished() -> None:
    (step,) = steps_of(diagnose(changed(APPEND, (), healed=True, version=5)))
    assert isinstance(step, SetMarks) and [mark.version for mark in step.marks.values()] == [5]
    assert diagnose(changed(APPEND, (), healed=True)) == []  # ZooKeeper knows


def test_one_table_restored_alone_is_refused_whatever_is_asked() -> None:
    everything = [
        Choices(adopt_tables=adopt, accept_loss=loss, abandon_decision=abandon)
        for adopt, loss, abandon in itertools.product([False, True], repeat=3)
    ]
    for short, choices in itertools.product((0, 1), everything):
        tables = tuple((1,) if number == short else (1, 2, 3, 4) for number in range(2))
        for current in (None, 2, 5):
            known = min(current - 1, 4) if current else 0
            model = Model(tables, current, attempts=(0,) * 4, marks=(known, known))
            findings = diagnose(model.facts(), choices)
            assert findings and steps_of(findings) == [] and all(finding.refusal for finding in findings)
            if current == 5:
                assert [finding.kind for finding in findings] == ["one table restored from an older copy"]


def test_a_table_of_another_topology_stops_everything() -> None:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    other = replace(model.control(3), topology="other")
    facts = model.facts()
    group = facts.groups[0]
    tables = (group.tables[0], replace(group.tables[1], control=other))
    findings = diagnose(replace(facts, groups=(replace(group, tables=tables),)), Choices(adopt_tables=True))
    assert [found.kind for found in findings] == ["two topologies on one table"] and steps_of(findings) == []


def test_a_plain_table_that_is_gone_is_made_again_only_from_a_whole_log() -> None:
    facts = changed(PLAIN, ())
    group = facts.groups[0]
    gone = replace(group.tables[2], version=-1, table_id="", control=None, mark=None)
    for floor, steps in ((0, [SetMarks]), (1, [])):
        tables = (*group.tables[:2], replace(gone, floor=floor, starts_at=1))
        findings = diagnose(replace(facts, groups=(replace(group, tables=tables),)))
        assert [type(step) for step in steps_of(findings)] == steps


def test_a_zookeeper_of_another_life_with_transactions_of_its_own_is_not_overwritten() -> None:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    facts = model.facts()
    group = facts.groups[0]
    assert group.record is not None
    marks = {f"other-{table_id}": mark for table_id, mark in group.record.tables.items()}
    record = replace(group.record, incarnation="other", tables=marks)
    tables = tuple(replace(table, mark=None) for table in group.tables)
    there = replace(facts, incarnation="other", groups=(replace(group, record=record, tables=tables),))
    (finding,) = diagnose(there, Choices(adopt_tables=True, accept_loss=True))
    assert finding.kind == "incarnations differ" and finding.refusal and finding.offers == ()
    fresh = replace(record, current_txid=1, last=None, last_published=None, tables={})
    begun = replace(there, groups=(replace(group, record=fresh, tables=tables),))
    (step,) = steps_of(diagnose(begun))  # a start after the wipe had begun anew, and has published nothing
    assert isinstance(step, WriteRecord) and step.incarnation == "inc"


# --- what is missing is not rebuilt ---------------------------------------------------------------------------------


@pytest.mark.parametrize("short", ["counts__log", "words"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_table_that_the_manifest_names_and_that_is_gone_is_not_left_out_of_a_rebuild(
    short: str, made_again: bool
) -> None:
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    nothing = {"control": None, "before": None}
    if made_again:
        facts = model.facts(**{short: {"table_id": "new", "control": model.control(0), "before": None}})
    else:
        facts = model.facts(**{short: {"table_id": "", "version": -1, **nothing}})
    for choices in (Choices(), Choices(adopt_tables=True, accept_loss=True)):
        (finding,) = diagnose(facts, choices)
        assert steps_of([finding]) == [] and finding.offers == ()
        assert f"{short} is {'another table' if made_again else 'gone'}" in finding.refusal
    assert steps_of(diagnose(model.facts()))  # with the table it is rebuilt


@settings(max_examples=300, deadline=None)
@given(worlds(), st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.sampled_from(["wiped", "older", "newer"]))
def test_a_rebuild_leaves_every_transaction_once_in_log_and_plain_table_together(
    model: Model, merged: int, floor: int, ahead: int, zookeeper: str
) -> None:
    """What is read of a keyed state: the plain table, and of the log what is above its P and not dropped."""
    held = len(model.tables[0])
    if zookeeper == "wiped":
        model = replace(model, current=None, marks=(0, 0))
    elif zookeeper == "newer":
        attempts = (*model.attempts, *([0] * (ahead + 2)))
        model = replace(model, current=held + ahead + 2, attempts=attempts, marks=(held + ahead + 1,) * 2)
    findings = diagnose(with_plain(model, merged, min(floor, held)), Choices(adopt_tables=True))
    steps = [step for step in steps_of(findings) if isinstance(step, WriteRecord)]
    whole = min(floor, held) <= merged <= held
    if zookeeper != "newer":
        assert bool(steps) == whole, findings
    assert whole or all(finding.refusal for finding in findings)
    for step in steps:
        until = held + 3
        log = run_on(model, step, until)[0]
        read = [*range(1, merged + 1), *(txid for txid in log if txid > max(merged, floor if floor <= held else held))]
        assert read == list(range(1, until + 1))


@pytest.mark.parametrize(("merged", "found"), [(3, False), (4, True)])
def test_a_plain_table_that_is_ahead_of_its_log_is_refused_though_zookeeper_agrees_with_the_log(
    merged: int, found: bool
) -> None:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    findings = diagnose(with_plain(model, merged))
    assert [finding.kind for finding in findings] == ["plain table newer than its log"] * found
    assert steps_of(findings) == []


@pytest.mark.parametrize(("floor", "rebuilt"), [(0, True), (2, False)])
def test_with_the_plain_table_gone_too_only_a_whole_log_is_rebuilt_from(floor: int, rebuilt: bool) -> None:
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    gone = {"version": -1, "table_id": "", "control": None}
    (finding,) = diagnose(with_plain(model, 0, floor, **gone))
    assert bool(steps_of([finding])) == rebuilt
    assert rebuilt or "counts is gone, and its log counts__log is kept above transaction 2 only" in finding.refusal


@pytest.mark.parametrize(
    ("kind", "known", "found"), [("map", False, True), ("memory", False, False), ("map", True, False)]
)
def test_a_group_without_tables_that_zookeeper_forgot_is_found_and_not_begun_again(
    kind: str, known: bool, found: bool
) -> None:
    """Its states would get everything again, from transaction 1."""
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    parts = (ManifestTable("totals", kind, "_trident/top/maps/states/totals", "", "", ()),)
    decided = model.manifest(3)
    manifests = (replace(decided, manifest=replace(decided.manifest, group="maps", tables=parts)),)
    record = GroupRecord("inc", 4, {}, {}, model.marker(3), model.marker(3), {}) if known else None
    maps = GroupFacts("maps", record, None, (), ("lines",), manifests)
    facts = model.facts()
    findings = diagnose(replace(facts, groups=(maps,)), Choices(adopt_tables=True, accept_loss=True))
    assert [finding.kind for finding in findings] == ["ZooKeeper wiped"] * found
    assert steps_of(findings) == []
    if found:
        assert "counted again" in findings[0].refusal and "trident reset" in findings[0].refusal
    both = diagnose(replace(facts, groups=(*facts.groups, maps)))
    assert len(both) == 1 + found


@pytest.mark.parametrize(
    ("aggregator", "refused"),
    [("map/transactional count", True), ("user python:x.Y", True), ("count", False), ("memory count", False)],
)
def test_a_map_that_was_added_after_the_copy_stops_the_tables_from_going_back(aggregator: str, refused: bool) -> None:
    """No manifest of the copy names it; ZooKeeper's identity does."""
    model = Model(((1, 2),) * 2, 5, attempts=(0, 0, 0, 0, 0), marks=(4, 4))
    states = {"totals": {"keys": ["word"], "value_schema": "struct<count:bigint>", "aggregator": aggregator}}
    facts = replace(model.facts(), identity={**IDENTITY, "states": states})
    (finding,) = diagnose(facts, Choices(adopt_tables=True))
    assert bool(steps_of([finding])) is not refused
    assert not refused or "the states totals are not tables of the warehouse" in finding.refusal


# --- changes of others that were merged, accepted, or could not be looked at ----------------------------------------


@pytest.mark.parametrize(
    ("merged", "merged_log", "undone"),
    [(0, -1, True), (3, 3, True), (3, 4, False), (3, 7, False), (3, None, False), (3, -1, False), (0, None, True)],
)
@pytest.mark.parametrize("foreign", [CHANGE, RESTORED])
def test_a_change_of_a_log_is_undone_only_when_it_was_certainly_not_merged(
    merged: int, merged_log: int | None, undone: bool, foreign: tuple[ForeignChange, ...]
) -> None:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    facts = with_plain(model, merged, merged_log=merged_log)
    group = facts.groups[0]
    tables = (replace(group.tables[0], foreign=foreign, version=5), *group.tables[1:])
    (finding,) = diagnose(
        replace(facts, groups=(replace(group, tables=tables),)), Choices(undo_foreign=frozenset({"counts"}))
    )
    steps = steps_of([finding])
    assert [(step.version, step.seen) for step in steps] == [(3, 5)] * undone
    assert undone or "cannot be undone" in finding.refusal


def test_what_was_accepted_is_part_of_the_record_that_is_written_again() -> None:
    """There is no record yet whose marks could be changed: the steps must be possible one after the other."""
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    facts = model.facts(words={"foreign": CHANGE, "version": 4})
    (step,) = steps_of(diagnose(facts, Choices(accept_foreign=frozenset({"words"}))))
    assert isinstance(step, WriteRecord) and step.record.tables["id-words"].version == 4
    undo, step = steps_of(diagnose(facts, Choices(undo_foreign=frozenset({"words"}))))
    assert isinstance(undo, Restore) and isinstance(step, WriteRecord)
    for older in (None, 2):  # no record, and one of an older copy: it is replaced as a whole
        plain = with_plain(replace(model, current=older, marks=(1, 1)), 2, foreign=CHANGE)
        (step,) = steps_of(diagnose(plain, Choices(accept_foreign=frozenset({"counts"}))))
        assert isinstance(step, WriteRecord) and step.record.tables["id-plain"].digest == ACCEPTED


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("digest", ["", ACCEPTED])
def test_a_plain_table_with_accepted_changes_is_not_made_again_unasked(gone: bool, digest: str) -> None:
    """Its log has every transaction, and not these changes."""
    accepted = steps_of(diagnose(changed(PLAIN, CHANGE), Choices(accept_foreign=frozenset({"counts"}))))
    assert [mark.digest for mark in accepted[0].marks.values()] == [ACCEPTED]
    facts = changed(PLAIN, ())
    group = facts.groups[0]
    assert group.record is not None
    mark = replace(group.record.tables["id-plain"], digest=digest, version=9)
    record = replace(group.record, tables={**group.record.tables, "id-plain": mark})
    nothing = {"version": -1, "table_id": "", "control": None, "mark": None}
    plain = replace(group.tables[2], **nothing) if gone else replace(group.tables[2], mark=mark)  # restored from a copy
    facts = replace(facts, groups=(replace(group, record=record, tables=(*group.tables[:2], plain)),))
    assert bool(steps_of(diagnose(facts))) == (digest == "")
    (finding,) = diagnose(facts, Choices(accept_loss=True))
    assert len(steps_of([finding])) == 1 and ("ARE LOST" in finding.offers[0].text) == (digest == ACCEPTED)
    if not gone:  # what was accepted stays said
        assert [mark.digest for mark in steps_of([finding])[0].marks.values()] == [digest]


def test_a_table_that_went_back_is_not_taken_with_changes_that_nobody_decided_about() -> None:
    model = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3))
    facts = model.facts()
    group = facts.groups[0]
    older = replace(group.tables[1], version=2, foreign=(ForeignChange(2, "WRITE", "by somebody"),))
    facts = replace(facts, groups=(replace(group, tables=(group.tables[0], older)),))
    assert steps_of(diagnose(facts)) == []
    (step,) = steps_of(diagnose(facts, Choices(accept_foreign=frozenset({"words"}))))
    assert isinstance(step, SetMarks) and [mark.version for mark in step.marks.values()] == [2]


def test_a_rebuild_says_where_nobody_could_look() -> None:
    model = Model(((1, 2, 3),) * 2, None, attempts=(0, 0, 0))
    (finding,) = diagnose(model.facts(words={"unseen_before": 2}))
    assert "words before version 2 are gone" in finding.offers[0].text
    assert "NOT BE CHECKED" in finding.offers[0].text
    assert "NOT BE CHECKED" not in diagnose(model.facts())[0].offers[0].text


def test_a_manifest_from_before_a_rollback_is_the_topologys_own_and_one_from_before_a_reset_is_not() -> None:
    """Transaction 2, to which it was rolled back, is not in the folder of the next incarnation."""

    def made(incarnation: str, txid: int) -> tuple[Decision, Manifest]:
        attempt = TransactionAttempt(txid, 0)
        return Decision(txid, 0, "m", 1, "d"), Manifest("top", "g", incarnation, attempt, None, (), {})

    found = [made("a", 2), made("a-r1", 3), made("a", 4), made("b", 9)]
    own = [(manifest.incarnation, manifest.attempt.txid) for _, manifest in own_manifests(found, "a-r1")]
    assert own == [("a", 2), ("a", 4), ("a-r1", 3)]
    assert own_manifests(found[3:], "a-r1") == found[3:]


def test_sums_that_do_not_fit_are_clamped_only_when_asked_for_by_name() -> None:
    facts = changed(PLAIN, (), stuck_keys=(('{"word":"a"}', "found: 9223372036854775808"),))
    (finding,) = diagnose(facts)
    assert finding.chosen is None and '{"word":"a"}' in finding.text and "9223372036854775808" in finding.text
    assert [offer.options for offer in finding.offers] == [("--clamp", "counts")]
    (step,) = steps_of(diagnose(facts, Choices(clamp=frozenset({"counts"}))))
    assert isinstance(step, ClampValues) and (step.state, step.upto) == ("counts", 3)
