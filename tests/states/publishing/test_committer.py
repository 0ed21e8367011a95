"""Publishing happens exactly once, from the manifest alone, and a table that was tampered with stops it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.jvm.spark_fixtures import calls_to_the_jvm
from tests.servers.zk_fixtures import eventually
from tests.states.group_helpers import Group, append_binding, deposed, foreign_row, map_binding
from tests.topology_helpers import WAIT_SECS
from trident.coordinators import faults
from trident.coordinators.errors import Deposed, ForeignTable, Halted, SchemaMismatch, TableError
from trident.coordinators.faults import InjectedFault
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.coordinators.records import TableMark
from trident.states.core import storage
from trident.states.core.descriptor import load_descriptor
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.history import commits_since, foreign
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import ManifestStore, Retention
from trident.states.keyed.compactor import Compactor


@pytest.fixture
def group(engine: KernelEngine, tmp_path: Path) -> Group:
    return Group(engine, tmp_path).open()


def replaced_later(engine: KernelEngine, group: Group) -> Group:
    """A coordinator that has opened the tables, and is deposed since."""
    made = Group(engine, group.warehouse, record=group.record).open()
    made.committer._tables.check_fence = deposed
    return made


def words(path: Path) -> Counter:
    """As delta-rs reads them, which shares no code with what has published them, and in less time than Spark takes."""
    return Counter(deltalake.DeltaTable(str(path)).to_pyarrow_table()["word"].to_pylist())


def test_staged_rows_are_invisible_until_published(spark, group: Group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a", "b"])
    assert words(group.warehouse / "rows") == {}
    group.committer.publish(decision, group.record)
    for table in ("rows", "counts__log"):
        path = group.warehouse / table
        assert words(path) == {"a": 1, "b": 1}
        assert Counter(row.word for row in spark.read.format("delta").load(str(path)).collect()) == words(path)


def test_publishing_again_changes_nothing_in_this_process_and_another(engine, group: Group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    first = group.committer.publish(decision, group.record)
    assert group.committer.publish(decision, group.record) == first
    successor = Group(engine, group.warehouse, [], epoch=2, record=group.record)
    again = successor.committer.publish(decision, successor.record)
    assert again.marks.items() <= first.marks.items() and len(again.marks) == 2  # of plain tables it knows nothing
    assert words(group.warehouse / "rows") == {"a": 1}


def test_each_table_also_carries_the_transaction_id_that_delta_itself_checks(engine, group: Group) -> None:
    """SetTransaction: what any Delta reader sees of our progress, and a second guard behind the control record."""
    app = group.committer._tables.txn_app_id
    for txid in (1, 2):
        group.commit(txid, ["a"])
        for table in ("rows", "counts__log"):
            assert engine.load(str(group.warehouse / table)).txn_version(app) == txid


def test_a_crash_between_two_tables_is_finished_by_a_successor_that_knows_no_topology(engine, group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    faults.arm("publish.table:fail_before:2")
    with pytest.raises(InjectedFault):
        group.committer.publish(decision, group.record)
    assert words(group.warehouse / "rows") + words(group.warehouse / "counts__log") == {"a": 1}  # of one of them
    successor = Group(engine, group.warehouse, [], epoch=2, record=group.record)
    successor.advance(decision, successor.committer.publish(decision, successor.record))
    assert words(group.warehouse / "counts__log") == {"a": 1}
    assert words(group.warehouse / "rows") == {"a": 1}
    again = Group(engine, group.warehouse, epoch=2, record=successor.record).open()
    again.commit(2, ["b"])
    assert words(group.warehouse / "rows") == {"a": 1, "b": 1}


def test_a_table_that_waits_does_not_hold_up_the_others_of_its_transaction(group: Group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    faults.arm("publish.table:pause:1")
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(group.committer.publish, decision, group.record)
        assert eventually(lambda: words(group.warehouse / "rows") + words(group.warehouse / "counts__log") == {"a": 1})
        assert not published.done()
        faults.disarm()
        assert len(published.result(WAIT_SECS).marks) == 3  # and the plain table's
    assert words(group.warehouse / "rows") == words(group.warehouse / "counts__log") == {"a": 1}


def test_a_table_that_fails_is_told_only_when_no_other_is_written_to_any_more(group: Group) -> None:
    """Else the next try would meet this one's commit."""
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    faults.arm("publish.table:fail_before:1,publish.table:pause:2")
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(group.committer.publish, decision, group.record)
        with pytest.raises(NotYet):
            published.result(0.5)
        faults.disarm()
        with pytest.raises(InjectedFault):
            published.result(WAIT_SECS)
    assert words(group.warehouse / "rows") + words(group.warehouse / "counts__log") == {"a": 1}


def test_a_stale_writer_is_refused_by_the_control_record(engine, group: Group) -> None:
    """Also when SetTransaction would let it pass, because its txid is later than the table's."""
    group.commit(1, ["a"])

    zombie = replaced_later(engine, group)
    late = zombie.prepare(TransactionAttempt(2, 0), ["zombie"])
    later = zombie.prepare(TransactionAttempt(3, 0), ["zombie"])
    new = Group(engine, group.warehouse, epoch=2, record=group.record).open()
    new.commit(2, ["b"], attempt_id=1)
    zombie.committer._publisher._led_at = float("inf")  # it had asked whether it leads just before it was stopped
    for stale in (late, later):
        with pytest.raises(Deposed):
            zombie.committer.publish(stale, zombie.record)
    assert words(group.warehouse / "rows") == {"a": 1, "b": 1}


def test_a_stale_writer_that_still_leads_halts_instead_of_writing(engine, group: Group) -> None:
    """The same contradiction with an intact fence: ZooKeeper is older than the tables."""
    group.commit(1, ["a"])
    stale = group.record
    group.commit(2, ["b"])
    with pytest.raises(Halted, match="do not agree.*ZooKeeper is the older side.*transaction 2.*trident repair top"):
        Group(engine, group.warehouse, record=stale).open()


def test_what_another_coordinator_has_published_stops_the_one_before_the_decision(engine, group: Group) -> None:
    """Its commits are the topology's own, so nothing but the control record tells them from ours."""

    zombie = replaced_later(engine, group)
    still_leads = Group(engine, group.warehouse, record=group.record).open()
    Group(engine, group.warehouse, epoch=2, record=group.record).open().commit(1, ["b"])
    with pytest.raises(Deposed):
        zombie.prepare(TransactionAttempt(1, 0), ["zombie"])
    with pytest.raises(Halted, match="do not agree.*transaction 1"):
        still_leads.prepare(TransactionAttempt(1, 0), ["zombie"])
    assert words(group.warehouse / "rows") == {"b": 1}


def test_a_deposed_coordinator_that_opens_tables_its_successor_has_published_to_does_not_halt(engine, group):
    group.commit(1, ["a"])
    stale = group.record
    group.commit(2, ["b"])

    with pytest.raises(Deposed):
        Group(engine, group.warehouse, record=stale, fence=deposed).open()


def test_tables_of_another_incarnation_halt(engine, group: Group) -> None:
    group.commit(1, ["a"])
    with pytest.raises(Halted, match="ZooKeeper was wiped.*incarnation inc.*trident repair top"):
        Group(engine, group.warehouse, incarnation="other").open()


def test_a_table_of_another_topology_is_refused(engine, group: Group) -> None:
    wanted = "belongs to another topology, 'top'.*of this topology another name.*warehouse of its own.*reset top --drop"
    with pytest.raises(ForeignTable, match=wanted):
        Group(engine, group.warehouse, topology="elsewhere").open()


def test_a_delta_table_that_nobody_made_is_refused_unless_adopted(engine, tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "rows"), pa.table({"word": ["old"], "n": [1]}))
    with pytest.raises(ForeignTable, match="adopt=True"):
        Group(engine, tmp_path, [append_binding()]).open()
    adopted = Group(engine, tmp_path, [append_binding(adopt=True)]).open()
    adopted.commit(1, ["new"])
    assert words(tmp_path / "rows") == {"old": 1, "new": 1}
    Group(engine, tmp_path, [append_binding()], epoch=2, record=adopted.record).open()


def test_a_schema_that_does_not_fit_is_refused_with_both(engine, tmp_path: Path) -> None:
    rows = pa.table({"word": pa.array([1], pa.int32()), "n": [1]})
    deltalake.write_deltalake(str(tmp_path / "rows"), rows)
    with pytest.raises(SchemaMismatch, match="word integer.*expected.*word string"):
        Group(engine, tmp_path, [append_binding(adopt=True)]).open()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "decided and cannot be published.*is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not the one that was staged"),
    ],
    ids=["gone", "cut"],
)
def test_a_staged_file_that_is_damaged_after_the_decision_halts(group: Group, damage: Any, said: str) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    damage(next((group.warehouse / "rows" / "data").rglob("*.parquet")))
    with pytest.raises(Halted, match=said):
        group.committer.publish(decision, group.record)


def test_a_deposed_coordinator_whose_successor_has_cleaned_up_is_deposed_and_does_not_halt(engine, group):
    """It was paused between its decision and the manifest: a person has nothing to mend here."""

    zombie = replaced_later(engine, group)
    decision = zombie.prepare(TransactionAttempt(1, 0), ["a"])
    (group.warehouse / decision.manifest).unlink()
    with pytest.raises(Deposed):
        zombie.committer.publish(decision, zombie.record)
    with pytest.raises(Halted, match="its manifest .* is gone"):
        group.committer.publish(decision, group.record)


def test_an_older_attempt_never_overwrites_a_manifest(tmp_path: Path, group: Group) -> None:
    first = group.prepare(TransactionAttempt(1, 0), ["a"])
    again = group.prepare(TransactionAttempt(1, 0), ["b"])
    assert first.manifest != again.manifest
    assert ManifestStore(group.warehouse, "top", "g", "inc").read(first).attempt == TransactionAttempt(1, 0)


def test_a_row_that_somebody_else_wrote_halts_before_the_decision(group: Group) -> None:
    group.commit(1, ["a"])
    foreign_row(group.warehouse / "rows")
    with pytest.raises(Halted, match="another writer changed the table.*version 2"):
        group.prepare(TransactionAttempt(2, 0), ["b"])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_foreign_row_behind_the_check_is_not_committed_over(engine, group: Group, restarted: bool) -> None:
    group.commit(1, ["a"])
    decision = group.prepare(TransactionAttempt(2, 0), ["b"])
    foreign_row(group.warehouse / "rows")
    if restarted:
        group = Group(engine, group.warehouse, epoch=2, record=group.record)
    with pytest.raises(Halted, match="another writer changed the table.*--undo-foreign rows"):
        group.committer.publish(decision, group.record)


@pytest.mark.long
def test_a_restored_plain_table_halts_before_the_next_decision_and_at_takeover(spark, engine, group: Group) -> None:
    """A RESTORE keeps P: the transactions up to it would be missing from then on."""
    group.commit(1, ["a"])
    log, plain = str(group.warehouse / "counts__log"), str(group.warehouse / "counts")
    compactor = Compactor(spark, engine, group.warehouse, load_descriptor(group.warehouse, "counts"))
    assert compactor.merge_once(1, force=True) is not None
    group.commit(2, ["b"])  # a MERGE is the topology's own
    spark.sql(f"RESTORE TABLE delta.`{plain}` TO VERSION AS OF 0")
    with pytest.raises(Halted, match="another writer changed.*older side.*RESTORE.*trident repair top"):
        group.prepare(TransactionAttempt(3, 0), ["c"])
    with pytest.raises(Halted, match="another writer changed.*RESTORE"):
        Group(engine, group.warehouse, epoch=2, record=group.record).open()
    assert words(Path(log)) == {"a": 1, "b": 1}


def test_a_plain_table_that_is_gone_is_not_made_anew_at_takeover(engine, group: Group) -> None:
    """Empty, and merged up to nothing: what the log has dropped since would be missing without a word."""
    group.commit(1, ["a"])
    shutil.rmtree(group.warehouse / "counts")
    with pytest.raises(Halted, match="gone|missing"):
        Group(engine, group.warehouse, epoch=2, record=group.record).open()


def test_a_log_that_was_cleaned_too_far_halts(engine, group: Group) -> None:
    group.commit(1, ["a"])
    foreign_row(group.warehouse / "rows")
    foreign_row(group.warehouse / "rows")
    snapshot = engine.load(str(group.warehouse / "rows"))
    snapshot._java.writeCheckpoint(engine.java)
    for entry in sorted((group.warehouse / "rows" / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()  # as Delta cleans its log: up to the newest checkpoint
    with pytest.raises(Halted, match="cleaned too far.*--accept-unverified rows"):
        group.prepare(TransactionAttempt(2, 0), ["b"])


def test_a_commit_that_never_comes_about_says_why(engine, group: Group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    faults.arm(",".join(f"delta.commit:fail_before:{nth}" for nth in range(1, 61)))  # of two tables
    with pytest.raises(TableError, match="in a row.*injected fault"):
        group.committer.publish(decision, group.record)


def test_a_checkpoint_that_another_writer_has_written_again_costs_one_try(engine, group: Group) -> None:
    """A zombie and its successor may write the same one, the second over the first, whose size a reader has listed."""
    group.commit(1, ["a"])
    log = group.warehouse / "rows" / "_delta_log"
    engine.load(str(group.warehouse / "rows"))._java.writeCheckpoint(engine.java)
    successor = Group(engine, group.warehouse, epoch=2, record=group.record).open()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    size = checkpoint.stat().st_size
    parquet.write_table(parquet.read_table(checkpoint), checkpoint, compression="none", use_dictionary=False)
    (log / f".{checkpoint.name}.crc").unlink()
    assert checkpoint.stat().st_size != size
    decision = successor.prepare(TransactionAttempt(2, 0), ["b"])
    with pytest.raises(TableError, match="checkpoint"):
        successor.committer.publish(decision, successor.record)
    successor.committer.publish(decision, successor.record)
    assert words(group.warehouse / "rows") == {"a": 1, "b": 1}


def test_the_manifest_of_the_last_transaction_survives_a_restart(engine, group: Group) -> None:
    """It has the positions from which ZooKeeper can be rebuilt."""
    decision = group.commit(1, ["a"])
    successor = Group(engine, group.warehouse, epoch=2, record=group.record).open()
    successor.committer.advanced(TransactionAttempt(1, 0), True)  # success is told again
    assert (group.warehouse / decision.manifest).exists()


@pytest.mark.long
def test_optimize_and_vacuum_are_accepted(spark, engine, group: Group) -> None:
    table = group.warehouse / "rows"
    for txid, word in enumerate("abc", 1):
        group.commit(txid, [word])
    spark.sql(f"OPTIMIZE delta.`{table}`")
    optimize = DeltaLog(table).commit(4)
    assert (optimize.operation, len(optimize.removes), len(optimize.adds)) == ("OPTIMIZE", 3, 1)
    group.commit(4, ["d"])
    never_published = table / "data" / "orphan.parquet"
    shutil.copy(next(table.rglob("*.parquet")), never_published)
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert not never_published.exists()
    vacuum = commits_since(str(table), 5)
    assert [entry.operation for entry in vacuum] == ["VACUUM START", "VACUUM END"]
    assert [foreign(entry, lambda _: False) for entry in [optimize, *vacuum]] == [None] * 3
    successor = Group(engine, group.warehouse, epoch=2, record=group.record).open()
    successor.commit(5, ["e"])
    assert words(table) == dict.fromkeys("abcde", 1)


def test_a_table_that_was_dropped_and_made_again_halts(engine, group: Group) -> None:
    group.commit(1, ["a"])
    shutil.rmtree(group.warehouse / "rows")
    with pytest.raises(Halted, match="is gone"):
        group.prepare(TransactionAttempt(2, 0), ["b"])
    fresh = Group(engine, group.warehouse, [append_binding()], epoch=2)  # a fresh table under the old name
    fresh.open()
    with pytest.raises(Halted, match="dropped and made again"):
        group.prepare(TransactionAttempt(2, 1), ["b"])
    with pytest.raises(Halted, match="is gone, or was dropped"):
        Group(engine, group.warehouse, epoch=3, record=group.record).open()


def test_an_empty_batch_needs_no_decision(group: Group) -> None:
    assert group.prepare(TransactionAttempt(1, 0), []) is None


def test_leftovers_of_failed_attempts_go_only_when_their_txid_has_advanced(group: Group) -> None:
    group.staged(TransactionAttempt(1, 0), ["failed"])
    group.staged(TransactionAttempt(2, 0), ["in flight"])
    group.commit(1, ["good"], attempt_id=1)
    group.committer.advanced(TransactionAttempt(1, 1), published=True)
    folders = {path.name.rsplit("-", 1)[0] for path in (group.warehouse / "rows" / "data" / "inc").iterdir()}
    assert folders == {"1-1", "2-0"}


def test_what_a_cancelled_task_writes_after_its_transaction_was_cleaned_goes_with_the_next(group, monkeypatch):
    monkeypatch.setattr("trident.states.publishing.committer._STRAGGLER_SECS", 0.1)
    group.commit(1, ["good"], attempt_id=1)
    group.committer.advanced(TransactionAttempt(1, 1), published=True)
    group.staged(TransactionAttempt(1, 0), ["straggler"])
    time.sleep(0.2)  # the next one may come when stragglers have long ended
    group.commit(2, ["b"])
    group.committer.advanced(TransactionAttempt(2, 0), published=True)
    folders = {path.name.rsplit("-", 1)[0] for path in (group.warehouse / "rows" / "data" / "inc").iterdir()}
    assert folders == {"1-1", "2-0"}


def test_rows_that_wait_for_their_turn_stay_until_they_had_it(group: Group) -> None:
    """Those of the next transaction are staged while this one is published."""
    folders = []
    for kind in ("states", "boundaries"):
        for txid in (1, 2):
            folders.append(Path(group.of.folder / kind / "x" / "data" / "inc" / f"{txid}-0-abc"))
            folders[-1].mkdir(parents=True)
    group.commit(1, ["a"])
    group.committer.advanced(TransactionAttempt(1, 0), published=True)
    assert [folder.exists() for folder in folders] == [False, True, False, True]


def test_only_the_last_published_manifest_stays(group: Group) -> None:
    for txid in (1, 2, 3):
        group.commit(txid, ["a"])
        group.committer.advanced(TransactionAttempt(txid, 0), published=True)
    names = [path.name for path in (group.warehouse / "_trident/top/g/manifests").glob("**/*.json")]
    assert names == ["3-0.json"]


@pytest.mark.parametrize(("kept", "looks"), [(1_000, [1, 21, 41]), (2_000, [1, 41])])
def test_kept_manifests_are_looked_through_once_in_a_while_and_behind_a_replay_without_rows(
    engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, looks: list[int]
) -> None:
    group = Group(engine, tmp_path, [append_binding()], retention=Retention(kept)).open()
    folder, looked = tmp_path / "_trident/top/g/manifests/inc", list[int]()
    real = storage.list_names

    def list_names(path: Any) -> list[str]:
        if str(path) == str(folder):
            looked.append(group.record.current_txid - 1)
        return real(path)

    def has_advanced(txid: int, attempt_id: int = 0) -> None:
        group.record = replace(group.record, current_txid=txid + 1)
        group.committer.advanced(TransactionAttempt(txid, attempt_id), published=False)

    monkeypatch.setattr(storage, "list_names", list_names)
    for txid in range(1, 42):
        if txid % 10 == 1:
            group.commit(txid, ["a"], attempt_id=txid % 3)
        has_advanced(txid, txid % 3 if txid % 10 == 1 else 0)
    assert looked == looks, "transactions without rows cost no look, nor do those that were tried again"
    group.prepare(TransactionAttempt(42, 0), ["never"])
    assert (folder / "42-0.json").exists()
    assert group.prepare(TransactionAttempt(42, 1), []) is None
    has_advanced(42, attempt_id=1)
    assert looked == [*looks, 42] and not (folder / "42-0.json").exists()
    assert len(real(folder)) == 5, "those of the decided attempts"


def test_a_new_state_starts_at_the_current_transaction(engine, group: Group) -> None:
    group.commit(1, ["a"])
    more = Group(engine, group.warehouse, [*group.bindings, map_binding("more")], epoch=2, record=group.record).open()
    more.commit(2, ["b"])
    assert words(group.warehouse / "more__log") == {"b": 1}
    assert words(group.warehouse / "rows") == {"a": 1, "b": 1}


def test_a_removed_state_is_kept_detached(engine, group: Group) -> None:
    group.commit(1, ["a"])
    less = Group(engine, group.warehouse, [append_binding()], epoch=2, record=group.record).open()
    less.commit(2, ["b"])
    assert words(group.warehouse / "counts__log") == {"a": 1}
    assert words(group.warehouse / "rows") == {"a": 1, "b": 1}


@pytest.mark.parametrize("own", [["rows"], ["rows", "counts"]])
def test_a_deposed_coordinator_that_opens_tables_describes_no_state(engine, group: Group, own: list[str]) -> None:
    """It was paused after it had read the record; its successor has a state that it does not know, or knows otherwise.

    Readers would take the state for one that has left the topology, until the next start.
    """
    group.commit(1, ["a"])
    successors = replace(load_descriptor(group.warehouse, "counts"), deleted_retention_txids=7)
    successors.save(group.warehouse)
    bindings = [binding for binding in group.bindings if binding.name in own]
    with pytest.raises(Deposed):
        Group(engine, group.warehouse, bindings, record=group.record, fence=deposed).open()
    assert load_descriptor(group.warehouse, "counts") == successors


# --- a coordinator of the life before a reset ---------------------------------------------------------


def reset(warehouse: Path) -> None:
    """What `trident reset --drop-tables` leaves: nothing."""
    for path in warehouse.iterdir():
        shutil.rmtree(path)


def test_a_zombie_of_the_life_before_a_reset_commits_nothing_to_tables_of_the_same_length(engine, tmp_path):
    """It is stopped between its last question whether it leads and its commit; both tables are made anew meanwhile."""
    new: list[Group] = []

    def asked() -> None:
        if new:
            raise Deposed("another coordinator leads now")
        reset(tmp_path)
        new.append(Group(engine, tmp_path, incarnation="later").open())
        new[0].commit(1, ["new"])

    old = Group(engine, tmp_path).open()
    old.commit(1, ["old"])
    decision = old.prepare(TransactionAttempt(2, 0), ["zombie"])
    old.committer._tables.check_fence, old.committer._publisher._led_at = asked, float("-inf")
    versions = {name: engine.load(str(tmp_path / name)).version for name in ("rows", "counts__log")}
    with pytest.raises(Deposed):
        old.committer.publish(decision, old.record)
    assert {name: engine.load(str(tmp_path / name)).version for name in versions} == versions
    new[0].commit(2, ["newer"])
    assert words(tmp_path / "rows") == words(tmp_path / "counts__log") == {"new": 1, "newer": 1}


def test_a_zombie_of_the_life_before_a_reset_cleans_nothing_of_the_new_life_away(engine, tmp_path: Path) -> None:
    old = Group(engine, tmp_path).open()
    for txid in range(1, 4):
        old.commit(txid, ["old"])
    reset(tmp_path)
    new = Group(engine, tmp_path, incarnation="later").open()
    new.commit(1, ["new"])
    decision = new.prepare(TransactionAttempt(2, 0), ["newer"])
    old.committer.advanced(TransactionAttempt(3, 0), published=True)
    new.advance(decision, new.committer.publish(decision, new.record))


def test_a_zombie_of_the_life_before_a_reset_makes_no_table(engine, tmp_path: Path) -> None:
    with pytest.raises(Deposed):
        Group(engine, tmp_path, fence=deposed).open()
    assert not list(tmp_path.glob("*/_delta_log/*.json"))


def test_who_does_not_lead_any_more_is_told_before_it_commits(engine, group: Group) -> None:
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    group.committer._tables.check_fence = deposed
    with pytest.raises(Deposed):
        group.committer.publish(decision, group.record)
    assert engine.load(str(group.warehouse / "rows")).version == 0


def test_what_was_published_by_another_is_flushed_before_the_transaction_advances(engine, group, flushed) -> None:
    """It may have been killed between its commit and the flush."""
    decision = group.prepare(TransactionAttempt(1, 0), ["a"])
    group.committer.publish(decision, group.record)
    successor = Group(engine, group.warehouse, [], epoch=2, record=group.record)
    flushed.clear()
    successor.committer.publish(decision, successor.record)
    for table in ("rows", "counts__log"):
        assert str(group.warehouse / table / "_delta_log" / f"{1:020d}.json") in flushed


def test_from_prepare_to_advance_the_jvm_is_not_called_and_only_what_is_new_is_flushed(group, flushed) -> None:
    """Each call costs a tenth of a millisecond and more, each flush a disk's turn; a publish made 24 calls a table."""
    for txid in (1, 2):
        decision = group.commit(txid, ["a"])
        os.utime((group.warehouse / decision.manifest).parents[1], (1, 1))  # older than a tick of the clock
    staged = group.staged(TransactionAttempt(3, 0), ["b"])
    flushed.clear()
    with calls_to_the_jvm() as calls:
        prepared = group.committer.prepare(TransactionAttempt(3, 0), None, ProcessedBatch(staged), group.record)
        group.advance(prepared.decision, group.committer.publish(prepared.decision, group.record))
    assert calls == []
    manifest, names = Path(prepared.decision.manifest), [os.path.relpath(path, group.warehouse) for path in flushed]
    logs = [f"{table}/_delta_log" for table in ("rows", "counts__log")]
    drafts = [name for name in names if name.endswith(".trident.tmp")]
    assert sorted(os.path.dirname(name) for name in drafts) == sorted(logs)
    assert sorted(names) == sorted([str(manifest), str(manifest.parent), *drafts, *logs])


def add_constraint(path: Path) -> None:
    """The entry that Delta's ALTER TABLE ADD CONSTRAINT makes: quicker than Delta is."""
    log = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in log for line in entry.read_text().splitlines()]
    metadata = [one["metaData"] for one in actions if "metaData" in one][-1]
    protocol = [one["protocol"] for one in actions if "protocol" in one][-1]
    metadata["configuration"] = {**metadata["configuration"], "delta.constraints.short": "length(word) < 20"}
    protocol["writerFeatures"] = [*protocol["writerFeatures"], "checkConstraints"]
    info = {"timestamp": int(time.time() * 1000), "operation": "ADD CONSTRAINT", "operationParameters": {}}
    entry = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
    (path / "_delta_log" / f"{len(log):020d}.json").write_text("".join(f"{json.dumps(one)}\n" for one in entry))


@pytest.mark.parametrize("table", ["rows", "counts__log", "counts"])
def test_a_table_that_asks_more_of_its_writers_is_refused_before_a_decision(engine, group: Group, table) -> None:
    """C1: `trident repair --accept-foreign` took a CHECK constraint, and the next transaction was decided for good."""
    group.commit(1, ["a"])
    path = group.warehouse / table
    add_constraint(path)
    with pytest.raises(Halted, match="added the constraint short"):
        group.prepare(TransactionAttempt(2, 0), ["b"])
    changed = engine.load(str(path))
    marks = dict(group.record.tables)
    mark = marks.get(changed.table_id) or TableMark(0, 0, 0, "")
    accepted = replace(group.record, tables={**marks, changed.table_id: replace(mark, version=changed.version)})
    with pytest.raises(Halted, match=r"asks more of its writers.*the constraint short"):
        Group(engine, group.warehouse, epoch=2, record=accepted).open()
