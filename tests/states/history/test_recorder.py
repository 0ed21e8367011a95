"""The table of transactions has every transaction once, whatever fails, and a manifest goes only when it is there."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.servers.zk_fixtures import eventually
from tests.states.group_helpers import Group, append_binding, deposed, map_binding
from trident.coordinators import faults
from trident.coordinators.errors import Deposed, ForeignTable, TableError
from trident.coordinators.faults import InjectedFault
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import AttemptHistory, FailedAttempt, ProcessedBatch
from trident.coordinators.records import Marker
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import Manifest, ManifestStore, Retention
from trident.states.history import recorded as led_before_module
from trident.states.history import recorded as recorded_module
from trident.states.history import recorder as recorder_module
from trident.states.history import recorder as transactions_table
from trident.states.history.kept import KeptManifests
from trident.states.history.recorded import PastLeaderships, last_transactions, recorded_transactions
from trident.states.history.recorder import (
    OpenTransactions,
    Published,
    RecentPublications,
    TransactionRecorder,
    TransactionsTable,
)
from trident.states.history.transaction_rows import RecordedUpTo

TABLE = "top__g__transactions"


def made(engine: KernelEngine, folder: Path, txids: int = 1000, **settings: Any) -> Group:
    bindings = [append_binding(), map_binding()]
    return Group(engine, folder, bindings, retention=Retention(txids), **settings).open()


def made_unopened(engine: KernelEngine, group: Group) -> Group:
    """The coordinator after one that was killed."""
    retention = group.committer.manifests.retention
    return Group(engine, group.warehouse, group.bindings, epoch=2, record=group.record, retention=retention)


def recorder_of(engine: KernelEngine, group: Group, check_fence: Any = lambda: None) -> TransactionRecorder:
    """That of a process which has not run the transactions: it knows of none but from files."""
    manifests = group.committer.manifests
    published = Published(group.of, manifests, type(group.committer.recent)())
    return TransactionRecorder(TransactionsTable(engine, group.of), published, check_fence)


def warm_recorder_of(engine: KernelEngine, group: Group) -> TransactionRecorder:
    """That of the process which has run them."""
    published = Published(group.of, group.committer.manifests, group.committer.recent)
    return TransactionRecorder(TransactionsTable(engine, group.of), published, lambda: None)


def run(group: Group, txids: range) -> None:
    for txid in txids:
        group.commit(txid, ["a", "b"][: txid % 2 + 1])
        group.committer.advanced(TransactionAttempt(txid, 0), published=True)


def rows(folder: Path) -> list[dict[str, Any]]:
    """By another reader than ours."""
    found = deltalake.DeltaTable(str(folder / TABLE)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["incarnation"], row["txid"]))


def txids(folder: Path) -> list[int]:
    return [row["txid"] for row in rows(folder)]


def is_made(folder: Path) -> bool:
    return (folder / TABLE / "_delta_log" / f"{0:020d}.json").exists()


def names_of_manifests(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_trident/top/g/manifests").glob("*/*.json"))


def test_a_row_says_what_its_transaction_did(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    failure = FailedAttempt(0, 5.0, "half a pair \ud800")
    story = AttemptHistory(7.5, (failure,))
    spouts = {"lines": {"spout": "FileSpout", "kind": "transactional", "metadata": {"from": 1}, "commit_data": None}}
    processed = ProcessedBatch(group.staged(TransactionAttempt(1, 1), ["a", "b", "b"]), spouts)
    decision = group.committer.prepare(TransactionAttempt(1, 1), None, processed, group.record, story).decision
    group.advance(decision, group.committer.publish(decision, group.record))
    warm_recorder_of(engine, group).record(1)
    (row,) = rows(tmp_path)
    assert (row["txid"], row["attempt_id"], row["parent_attempt_id"]) == (1, 1, None)
    assert (row["incarnation"], row["epoch"], row["code_id"]) == ("inc", 1, "code")
    assert row["begun_at"].timestamp() == 7.5 < row["decided_at"].timestamp() <= row["published_at"].timestamp()
    (source,) = row["sources"]
    assert source.pop("metadata") == '{"from":1}' and source["positions"] is source["commit_data"] is None
    assert (source["stream"], source["spout"], source["kind"]) == ("lines", "FileSpout", "transactional")
    assert [(one["attempt_id"], one["error"]) for one in row["failures"]] == [(0, "half a pair ?")]
    assert (row["rows"], row["files"], row["skipped"]) == (6, 2, None)
    assert {table["state"]: table["rows"] for table in row["tables"]} == {"rows": 3, "counts": 3}
    for table in row["tables"]:
        added = DeltaLog(tmp_path / table["path"]).commit(table["version"]).added
        assert (len(added), sum(file.size for file in added)) == (table["files"], table["bytes"])
    assert (row["manifest"], row["manifest_sha256"]) == (decision.manifest, decision.sha256)


def test_a_process_that_knows_nothing_writes_the_same_rows(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 8))
    warm_recorder_of(engine, group).record(7)
    told = rows(tmp_path)
    shutil.rmtree(tmp_path / TABLE)
    recorder_of(engine, group).record(7)
    again = rows(tmp_path)
    assert [row.pop("published_at") is not None for row in told] == [
        row.pop("published_at") is not None for row in again
    ]
    assert told == again and [row["txid"] for row in told] == list(range(1, 8))


def test_a_manifest_goes_only_when_the_table_has_its_transaction(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path, txids=2)
    recorder = recorder_of(engine, group)
    run(group, range(1, 46))
    assert len(names_of_manifests(tmp_path)) == 45
    recorder.record(45)
    run(group, range(46, 66))
    assert txids(tmp_path) == list(range(1, 46))
    assert [name.split("-")[0] for name in names_of_manifests(tmp_path)] == [str(txid) for txid in range(46, 66)]


def test_a_successor_that_tells_success_once_more_deletes_no_manifest(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 4))
    successor = made_unopened(engine, group)
    successor.committer.advanced(TransactionAttempt(3, 0), published=True)  # while it finishes what was decided
    successor.open()
    successor.committer.advanced(TransactionAttempt(3, 0), published=True)
    assert names_of_manifests(tmp_path) == ["1-0.json", "2-0.json", "3-0.json"]


@pytest.mark.parametrize("killed", [False, True])
def test_of_a_transaction_without_effect_no_attempts_manifest_stays(engine, tmp_path: Path, killed: bool) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 3))
    group.prepare(TransactionAttempt(3, 0), ["a"])  # fails before its decision, and its replay has no row left
    nothing = ProcessedBatch({target.name: [] for target in group.committer.staging_targets})
    assert group.committer.prepare(TransactionAttempt(3, 1), None, nothing, group.record).decision is None
    group.record = replace(group.record, current_txid=4, last=Marker(3, 1, ""))
    assert names_of_manifests(tmp_path) == ["1-0.json", "2-0.json", "3-0.json"]
    if killed:
        group = made_unopened(engine, group).open()
        run(group, range(4, 5))
    else:
        group.committer.advanced(TransactionAttempt(3, 1), published=False)
    assert "3-0.json" not in names_of_manifests(tmp_path)
    recorder_of(engine, group).record(group.record.current_txid - 1)
    assert txids(tmp_path) == ([1, 2, 4] if killed else [1, 2])


@pytest.mark.parametrize("outcome", ["fail_before", "do_then_fail"])
@pytest.mark.parametrize("point", ["history.write", "delta.commit"])
def test_a_commit_that_fails_or_is_not_answered_leaves_out_none_and_doubles_none(engine, tmp_path, point, outcome):
    group = made(engine, tmp_path)
    run(group, range(1, 4))
    recorder = recorder_of(engine, group)
    recorder.record(3)
    run(group, range(4, 6))
    faults.arm(f"{point}:{outcome}")
    with pytest.raises((InjectedFault, TableError)):
        recorder.record(5)
    assert not faults.unfired()
    recorder.record(5)
    assert txids(tmp_path) == [1, 2, 3, 4, 5]


def test_of_two_that_record_the_same_each_transaction_comes_once(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 4))
    zombie, leader = recorder_of(engine, group), recorder_of(engine, group)
    zombie.record(2)
    leader.record(3)
    with pytest.raises(TableError):
        zombie.record(3)
    zombie.record(3)
    assert txids(tmp_path) == [1, 2, 3]


def test_one_that_is_deposed_writes_and_takes_out_nothing(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 6))
    recorder_of(engine, group).record(4)
    for upto in (5, 3):
        with pytest.raises(Deposed):
            recorder_of(engine, group, deposed).record(upto)
        assert txids(tmp_path) == [1, 2, 3, 4]


def truncate(folder: Path) -> None:
    path = next((folder / TABLE / "data").glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-7])


def flip(folder: Path) -> None:
    spoil(sorted((folder / TABLE / "_delta_log").glob("*.json"))[1])


def spoil(path: Path) -> None:
    path.write_bytes(b"{" + path.read_bytes())


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_table_is_made_again_and_the_log_says_so(engine, tmp_path, caplog, damage):
    group = made(engine, tmp_path)
    for upto in (2, 4):
        run(group, range(upto - 1, upto + 1))
        recorder_of(engine, group).record(upto)
    damage(tmp_path)
    told = recorded_transactions(tmp_path, "top", "g")
    assert sorted(told.rows) == [1, 2, 3, 4] and told.problem
    recorder = recorder_of(engine, group)
    with caplog.at_level(logging.WARNING, "trident.history"):
        for _ in range(2):
            with pytest.raises(TableError):
                recorder.record(4)
        recorder.record(4)
    assert "is damaged and made again from the manifests that are kept" in caplog.text
    assert txids(tmp_path) == [1, 2, 3, 4]
    assert recorded_transactions(tmp_path, "top", "g").problem == ""


def test_of_a_torn_newest_entry_only_its_transactions_are_written_again(engine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    for upto in (2, 4):
        run(group, range(upto - 1, upto + 1))
        recorder_of(engine, group).record(upto)
    spoil(max((tmp_path / TABLE / "_delta_log").glob("*.json")))
    recorder_of(engine, group).record(4)
    assert txids(tmp_path) == [1, 2, 3, 4]


@pytest.mark.long
def test_a_table_of_others_in_its_place_is_left_alone(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path, txids=2)
    deltalake.write_deltalake(str(tmp_path / TABLE), pa.table({"n": [1]}))
    run(group, range(1, 3))
    recorder = recorder_of(engine, group)
    with pytest.raises(ForeignTable, match="is no table of transactions"):
        recorder.record(2)
    recorder.start(2)
    recorder.stop(flush=True)
    run(group, range(3, 45))
    assert deltalake.DeltaTable(str(tmp_path / TABLE)).to_pyarrow_table().num_rows == 1
    assert len(names_of_manifests(tmp_path)) < 30, "manifests go by their retention, where there is no table"
    assert max(recorded_transactions(tmp_path, "top", "g").rows) == 44


@pytest.mark.long
def test_the_table_is_written_anew_without_what_is_past_its_retention(engine, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder_module, "FILES_MAX", 4)
    group = made(engine, tmp_path, txids=5)
    recorder = recorder_of(engine, group)
    for txid in range(1, 13):
        run(group, range(txid, txid + 1))
        recorder.record(txid)
    table = deltalake.DeltaTable(str(tmp_path / TABLE))
    assert txids(tmp_path) == list(range(6, 13))
    assert len(table.file_uris()) < 4
    replaced = len(list((tmp_path / TABLE / "data").glob("*.parquet")))
    monkeypatch.setattr(transactions_table, "_GRACE_SECS", -1.0)
    faults.arm("history.tidy:do_then_fail")
    for txid in range(13, 17):
        run(group, range(txid, txid + 1))
        with suppress(InjectedFault):
            recorder.record(txid)
    assert not faults.unfired()
    left = len(list((tmp_path / TABLE / "data").glob("*.parquet")))
    assert left < replaced and txids(tmp_path)[-5:] == list(range(12, 17))


@pytest.mark.parametrize("fault", ["history.tidy:do_then_fail", "history.write:fail_before"])
def test_when_the_group_has_gone_back_later_rows_are_taken_out_and_come_again(engine, tmp_path, fault):
    group = made(engine, tmp_path)
    run(group, range(1, 6))
    recorder_of(engine, group).record(5)
    back = recorder_of(engine, group)
    faults.arm(fault)
    with suppress(InjectedFault):
        back.record(3)
    assert not faults.unfired()
    back.record(3)
    assert txids(tmp_path) == [1, 2, 3]
    back.record(4)  # of transactions 4 and 5 the manifests are there: they stand for others of these numbers
    recorder_of(engine, group).record(5)
    assert txids(tmp_path) == [1, 2, 3, 4, 5]


class RecordedTable:
    """A table with a mark; it remembers which transactions of which incarnation it was given later."""

    path = Place("/warehouse") / TABLE

    def __init__(self, mark: RecordedUpTo, before: RecordedUpTo | None = None) -> None:
        self.mark, self.before = mark, before
        self.calls: list[tuple[str, int]] = []
        self.added: list[tuple[str, list[int]]] = []

    def open(self) -> OpenTransactions:
        nothing: Any = None
        return OpenTransactions(nothing, self.mark, 1, self.before)

    def cut(self, table: OpenTransactions, txid: int) -> OpenTransactions:
        self.calls.append(("cut", txid))
        return replace(table, mark=replace(table.mark, upto=txid))

    def add(self, table: OpenTransactions, rows: list[Any], upto: int) -> OpenTransactions:
        self.calls.append((f"add {len(rows)}", upto))
        self.added.append((table.mark.incarnation, [row["txid"] for row in rows]))
        return replace(table, mark=replace(table.mark, upto=upto))

    def maintain(self, table: OpenTransactions) -> None: ...


def test_those_from_before_a_rollback_that_no_leader_recorded_are_written_first(tmp_path: Path) -> None:
    """The leader was killed, and the topology rolled back before another one wrote what was lacking."""
    place, last = Place(tmp_path), {"inc": 6, "inc-r1": 3, "inc-r2": 5}
    for incarnation, upto in last.items():
        for txid in range(5 if incarnation == "inc-r2" else 1, upto + 1):
            parent = TransactionAttempt(txid - 1, 0) if txid > 1 else None
            made = Manifest("top", "g", incarnation, TransactionAttempt(txid, 0), parent, (), {})
            ManifestStore(place, "top", "g", incarnation).write(made)
    names = ("top", "g", "inc-r2")
    fake = RecordedTable(RecordedUpTo(*names, 0, 2), RecordedUpTo("top", "g", "inc", 2, 2))
    manifests, recent = ManifestStore(place, *names, Retention(1000)), RecentPublications()
    recent.add(*KeptManifests(GroupContext(place, *names), upto=5).decided(5), versions={})
    table: Any = fake
    recorder = TransactionRecorder(table, Published(GroupContext(place, *names), manifests, recent), lambda: None)
    recorder.record(5)
    # Of each earlier incarnation nothing tells here whether the newest was decided.
    assert fake.added == [("inc", [3, 4, 5]), ("inc-r1", [1, 2]), ("inc-r2", [5])]
    recorder.record(5)
    assert len(fake.added) == 3


def test_a_group_that_has_gone_back_and_come_on_before_the_first_look_is_noticed(tmp_path: Path) -> None:
    """A start looks at the table a minute later, or behind a hundred transactions."""
    place, names = Place(tmp_path), ("top", "g", "inc")
    manifests = ManifestStore(place, *names, Retention(1000))
    for txid in range(1, 8):
        attempt = TransactionAttempt(txid, int(txid > 3))  # of 4 and 5 the table has attempt 0
        parent = TransactionAttempt(txid - 1, int(txid > 4)) if txid > 1 else None
        manifests.write(Manifest(*names, attempt, parent, (), {}))
    table: Any = RecordedTable(RecordedUpTo(*names, 5))  # transactions 1 to 5
    recorder = TransactionRecorder(
        table, Published(GroupContext(place, *names), manifests, RecentPublications()), lambda: None
    )
    recorder.start(3)
    recorder.advanced(7)
    recorder.stop(flush=True)
    assert table.calls == [("cut", 3), ("add 4", 7)]


def test_a_later_incarnation_goes_on_in_the_same_table(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 4))
    recorder_of(engine, group).record(3)
    for name in ("_trident", "rows", "counts", "counts__log"):  # as after a reset
        shutil.rmtree(tmp_path / name)
    later = made(engine, tmp_path, incarnation="later")
    run(later, range(1, 3))
    recorder_of(engine, later).record(2)
    assert [(row["incarnation"], row["txid"]) for row in rows(tmp_path)] == [
        ("inc", 1),
        ("inc", 2),
        ("inc", 3),
        ("later", 1),
        ("later", 2),
    ]
    assert sorted(recorded_transactions(tmp_path, "top", "g").rows) == [1, 2]


def test_what_the_table_does_not_have_yet_is_read_from_manifests(engine: KernelEngine, tmp_path: Path) -> None:
    group = made(engine, tmp_path)
    run(group, range(1, 4))
    recorder_of(engine, group).record(2)
    found = recorded_transactions(tmp_path, "top", "g")
    assert txids(tmp_path) == [1, 2] and sorted(found.rows) == [1, 2, 3] and found.manifests == (1, 2, 3)
    assert {table["state"]: table["version"] for table in found.rows[3]["tables"]} == {"rows": 3, "counts": 3}
    assert list(recorded_transactions(tmp_path, "top", "g", last=2).rows) == [2, 3]
    assert list(recorded_transactions(tmp_path, "top", "g", {2}).rows) == [2]
    decision = group.prepare(TransactionAttempt(4, 0), ["c"])
    assert sorted(recorded_transactions(tmp_path, "top", "g").rows) == [1, 2, 3], "4 may never be decided"
    group.advance(decision, group.committer.publish(decision, group.record))
    assert sorted(recorded_transactions(tmp_path, "top", "g").rows) == [1, 2, 3, 4]


def test_the_thread_writes_behind_so_many_transactions_and_at_its_end(engine, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder_module, "TXIDS_A_COMMIT", 3)
    group = made(engine, tmp_path)
    recorder = warm_recorder_of(engine, group)
    recorder.start(0)
    for txid in (1, 2, 3):
        run(group, range(txid, txid + 1))
        recorder.advanced(txid)
    assert eventually(lambda: is_made(tmp_path) and txids(tmp_path) == [1, 2, 3], 20)
    run(group, range(4, 5))
    recorder.advanced(4)
    recorder.stop(flush=True)
    assert txids(tmp_path) == [1, 2, 3, 4]


def test_a_failure_is_told_and_tried_again(engine: KernelEngine, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(recorder_module, "TXIDS_A_COMMIT", 1)
    monkeypatch.setattr(recorder_module, "_BACKOFF_SECS_MIN", 0.05)
    group = made(engine, tmp_path)
    run(group, range(1, 2))
    recorder = recorder_of(engine, group)
    faults.arm("history.write:fail_before")
    recorder.start(1)
    assert eventually(lambda: is_made(tmp_path) and txids(tmp_path) == [1], 20)
    recorder.stop(flush=False)
    assert "transactions are not recorded in top__g__transactions yet" in caplog.text


@pytest.mark.long
def test_who_looks_again_and_again_reads_each_file_of_the_table_once(engine, tmp_path, monkeypatch):
    """And is told at each moment what another is, who reads it all: also where the table is tidied, and cut."""
    monkeypatch.setattr(recorder_module, "FILES_MAX", 4)
    read: list[str] = []
    rows_of = recorded_module.rows_of
    group = made(engine, tmp_path, txids=5)
    recorder = recorder_of(engine, group)
    look, led_before = last_transactions(tmp_path, "top", "g", 4), PastLeaderships(Place(tmp_path), "top")

    def watched(root: str, files: Any, schema: Any) -> Any:
        read.extend(file.path for file in files)
        return rows_of(root, files, schema)

    def compare() -> None:
        every = recorded_transactions(tmp_path, "top", "g")
        monkeypatch.setattr(recorded_module, "rows_of", watched)
        last, (led,) = look(), led_before(["g"])
        monkeypatch.setattr(recorded_module, "rows_of", rows_of)
        assert last.rows == {txid: every.rows[txid] for txid in sorted(every.rows)[-4:]}
        # The table is cut before the manifests are: those that it had already are not told again.
        there = txids(tmp_path) if is_made(tmp_path) else []
        told = [row for txid, row in every.rows.items() if txid in there or txid > max(there, default=0)]
        assert (led["epoch"], led["transactions"]) == (1, len(told))
        moments = [row["decided_at"].timestamp() for row in told]
        assert (led["first_at"], led["last_at"]) == (min(moments), max(moments))

    for txid in range(1, 9):
        run(group, range(txid, txid + 1))
        compare()  # the last is in its manifest alone
        recorder.record(txid)
        compare()
        compare()
    assert len(read) == 2 * len(set(read)), "each by both of them, once"
    recorder_of(engine, group).record(6)  # as of a group that has gone back
    assert txids(tmp_path)[-1] == 6
    assert max(look().rows) == max(recorded_transactions(tmp_path, "top", "g").rows)


def test_of_a_table_that_lacks_many_only_the_newest_manifests_are_read(engine, tmp_path, monkeypatch):
    group = made(engine, tmp_path)
    run(group, range(1, 8))
    monkeypatch.setattr(led_before_module, "_UNRECORDED_MAX", 3)
    (led,) = PastLeaderships(Place(tmp_path), "top")(["g"])
    assert led["transactions"] == 3
    recorder_of(engine, group).record(5)
    (led,) = PastLeaderships(Place(tmp_path), "top")(["g"])
    assert led["transactions"] == 7
