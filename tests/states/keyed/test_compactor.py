"""The background MERGE and the log drop: each row counted once, whoever merges, whatever fails."""

from __future__ import annotations

import os
import shutil
import threading
import time
from types import SimpleNamespace

import deltalake
import pytest

from tests.keyed_helpers import Concat, Group, Longest, append, keyed
from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, ConfigError, Halted, TableError
from trident.states.core.control import DOMAIN, decode_control
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed import compactor as compactor_module
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compactor import Compactor


@pytest.fixture(autouse=True)
def no_fault_left():
    yield
    faults.disarm()


@pytest.fixture(scope="module")
def engine(spark):
    return KernelEngine(spark)


@pytest.fixture
def counts(spark, engine, tmp_path):
    """A group with one state that counts words."""
    return Group(spark, engine, tmp_path, keyed())


def compactor_of(group, name="counts", session=None, **settings):
    binding = group.bindings[name]
    state = type(binding.state)(name, **settings) if settings else binding.state
    spark = session or group.spark
    return Compactor(spark, group.engine, group.warehouse, group.descriptor(name), state, binding.aggregator)


def rows_of(group, table):
    """A table's rows as delta-rs reads them: a reader that shares no code with Spark and Kernel."""
    return deltalake.DeltaTable(str(group.warehouse / table)).to_pyarrow_table().to_pylist()


def plain(group, name="counts"):
    """The plain table: key → values; fails when a key has two rows."""
    binding = group.bindings[name]
    found = {}
    for row in rows_of(group, name):
        key = tuple(row[field] for field in binding.keys)
        assert key not in found, f"{key} has more than one row"
        found[key] = tuple(row[field] for field in binding.value_fields)
    return found


def control(group, name="counts"):
    snapshot = group.engine.load(str(group.warehouse / f"{name}__log"))
    return decode_control(snapshot.path, snapshot.control(DOMAIN))


def log_txids(group, name="counts"):
    return sorted({row["_txid"] for row in rows_of(group, f"{name}__log")})


def publish_words(group, txids):
    for txid in txids:
        group.publish(txid, {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)]})


# --- what a MERGE does -----------------------------------------------------------------------------


def test_merges_exactly_the_advanced_transactions_and_no_published_one_above(counts):
    publish_words(counts, range(1, 6))
    merging = compactor_of(counts)
    first = merging.merge_once(3, force=True)
    assert (first.p_old, first.p_new) == (0, 3)
    assert plain(counts) == counts.expected("counts", 3)
    second = merging.merge_once(5, force=True)
    assert (second.p_old, second.p_new) == (3, 5)
    assert plain(counts) == counts.expected("counts", 5)
    assert merging.merge_once(5, force=True) is None


def test_the_commit_carries_p_and_says_whose_it_is(counts):
    publish_words(counts, [1, 2])
    compactor_of(counts).merge_once(2, force=True)
    table = str(counts.warehouse / "counts")
    assert counts.engine.load(table).txn_version("trident/top/g/merge") == 2
    last = counts.spark.sql(f"describe history delta.`{table}`").first()
    assert (last.operation, last.version) == ("MERGE", 1)
    assert '"incarnation": "inc1"' in last.userMetadata and '"upto": 2' in last.userMetadata
    assert {row["_upto"] for row in rows_of(counts, "counts")} == {2}


def test_an_advanced_transaction_that_left_no_trace_is_waited_for_no_longer(counts):
    publish_words(counts, [1])
    counts.publish(2, {})
    merging = compactor_of(counts)
    assert merging.merge_once(4, force=True).p_new == 2  # 3 and 4 committed nothing
    assert plain(counts) == counts.expected("counts", 2)
    assert merging.merge_once(4, force=True) is None


def test_a_python_combiner_folds_in_the_order_of_transactions(spark, engine, tmp_path):
    binding = keyed("counts", "k string, v string", ("k",), Concat())
    group = Group(spark, engine, tmp_path, binding)
    for txid in range(1, 6):
        group.publish(txid, {"counts": [("a", f"{txid}"), (None, f"<{txid}>")] + [(f"k{txid}", "x")]})
    merging = compactor_of(group)
    for advanced in (2, 5):
        merging.merge_once(advanced, force=True)
        assert plain(group) == group.expected("counts", advanced, Concat().combine)
    assert plain(group)[("a",)] == ("12345",)


@pytest.mark.parametrize("aggregator", [None, Longest()], ids=["none", "another"])
def test_a_python_combiner_must_be_the_states_own(spark, engine, tmp_path, aggregator):
    group = Group(spark, engine, tmp_path, keyed("counts", "k string, v string", ("k",), Concat()))
    with pytest.raises(ConfigError, match="Concat"):
        Compactor(spark, engine, tmp_path, group.descriptor("counts"), None, aggregator)


def test_merging_waits_until_enough_transactions_or_time(counts):
    publish_words(counts, range(1, 4))
    assert compactor_of(counts, merge_every_txids=4).merge_once(3) is None
    assert compactor_of(counts, merge_every_txids=3).merge_once(3).p_new == 3
    publish_words(counts, [4])
    patient = compactor_of(counts, merge_every_txids=50, merge_interval_secs=0.3)
    assert patient.merge_once(4) is None
    time.sleep(0.3)
    assert patient.merge_once(4).p_new == 4


# --- two compactors ----------------------------------------------------------------------------------


def test_of_two_that_read_the_same_p_the_second_is_stopped_by_the_guard(counts):
    publish_words(counts, range(1, 4))
    first, second = compactor_of(counts), compactor_of(counts)
    plan_of_first, plan_of_second = first.plan(2), second.plan(3)
    first.merge(*plan_of_first)
    before = counts.engine.load(str(counts.warehouse / "counts")).version
    with pytest.raises(CommitConflict, match="another compactor"):
        second.merge(*plan_of_second)
    assert counts.engine.load(str(counts.warehouse / "counts")).version == before
    assert plain(counts) == counts.expected("counts", 2)
    assert second.merge_once(3, force=True).p_old == 2
    assert plain(counts) == counts.expected("counts", 3)


def test_a_stale_plan_up_to_the_same_or_an_older_transaction_changes_nothing(counts):
    publish_words(counts, range(1, 4))
    first, second = compactor_of(counts), compactor_of(counts)
    stale = [second.plan(2), second.plan(3)]
    first.merge_once(3, force=True)
    for plan in stale:
        assert second.merge(*plan).p_new == plan[0].upto
    assert plain(counts) == counts.expected("counts", 3)
    assert counts.engine.load(str(counts.warehouse / "counts")).version == 1


def test_a_row_that_is_not_ours_stops_the_merge(counts):
    publish_words(counts, [1])
    counts.spark.sql(f"insert into delta.`{counts.warehouse}/counts` values ('the', 1000, null)")
    with pytest.raises(CommitConflict):
        compactor_of(counts).merge_once(1, force=True)


@pytest.mark.parametrize("rounds", [2])
def test_two_compactors_racing_never_count_twice(counts, rounds):
    """Nothing but Delta's conflict detection, the guard in the MERGE and the look at P behind it keeps them apart."""
    racers = [compactor_of(counts, session=counts.spark.newSession()) for _ in range(2)]
    merged: list[object] = []
    for round_ in range(rounds):
        txids = range(3 * round_ + 1, 3 * round_ + 4)
        publish_words(counts, txids)
        start = threading.Barrier(2)

        def race(racer: Compactor, advanced: int, start: threading.Barrier = start) -> None:
            planned = racer.plan(advanced)
            start.wait()  # both have read the same P
            try:
                merged.append(racer.merge(*planned))
            except CommitConflict as error:
                merged.append(error)
            except BaseException as error:
                merged.append(error)
                raise

        # One wants fewer transactions than the other: SetTransaction alone would let both in.
        threads = [threading.Thread(target=race, args=pair) for pair in zip(racers, (txids[-1] - 1, txids[-1]))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for racer in racers:
            racer.merge_once(txids[-1], force=True)
        assert plain(counts) == counts.expected("counts", txids[-1])
    assert len(merged) == 2 * rounds
    assert all(isinstance(one, (CommitConflict, compactor_module.MergeReport)) for one in merged)


# --- failures -----------------------------------------------------------------------------------------


def test_a_merge_whose_answer_is_lost_is_not_done_again(counts):
    publish_words(counts, [1, 2])
    faults.arm("compact.merge:do_then_fail")
    with pytest.raises(faults.InjectedFault):
        compactor_of(counts).merge_once(2, force=True)
    assert compactor_of(counts).merge_once(2, force=True) is None
    assert plain(counts) == counts.expected("counts", 2)


def test_a_crash_between_merge_and_drop_costs_only_space(counts):
    publish_words(counts, range(1, 4))
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(3, force=True)
    faults.arm("compact.drop:fail_before")
    with pytest.raises(faults.InjectedFault):
        merging.drop_once(3)
    assert log_txids(counts) == [1, 2, 3]
    after = compactor_of(counts, snapshot_retention_txids=0)
    assert after.merge_once(3, force=True) is None
    assert after.drop_once(3) == 3
    assert log_txids(counts) == []
    publish_words(counts, [4])
    after.merge_once(4, force=True)
    assert plain(counts) == counts.expected("counts", 4)


def test_what_a_merge_wrote_is_on_disk_before_the_log_drops_it(counts, monkeypatch):
    """Spark flushes nothing, the drop is flushed: a power cut in between would lose what only the log had."""
    flushed, at_the_drop = [], []
    fsync = os.fsync

    def record(handle: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    publish_words(counts, range(1, 4))
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(3, force=True)
    table = counts.warehouse / "counts"
    wanted = {str(path) for path in [*table.glob("*.parquet"), *table.glob("_delta_log/*.json")]}
    drop = merging._engine.drop_files
    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(merging._engine, "drop_files", lambda *args: (at_the_drop.extend(flushed), drop(*args))[1])
    assert merging.drop_once(3) == 3
    assert len(wanted) >= 3 and wanted <= set(at_the_drop)


def test_a_merge_that_fails_in_the_middle_leaves_table_and_log_alone(counts):
    counts.publish(1, {"counts": [("a", 2**62), ("b", 1)]})
    merging = compactor_of(counts)
    merging.merge_once(1, force=True)
    counts.publish(2, {"counts": [("a", 2**62), ("b", 1)]})  # the sum does not fit a bigint
    with pytest.raises(TableError, match="(?i)overflow"):
        merging.merge_once(2, force=True)
    assert plain(counts) == counts.expected("counts", 1)
    assert log_txids(counts) == [1, 2]


def test_a_merge_that_was_stopped_inside_its_commit_cannot_replace_the_one_that_rows_were_dropped_for(counts):
    """Delta's log store looks, and renames its draft over the entry; without the draft it cannot."""
    publish_words(counts, range(1, 4))
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(3, force=True)
    draft = counts.warehouse / "counts" / "_delta_log" / f".{1:020d}.json.{'0' * 8}.tmp"
    draft.write_text("of a compactor that merged less")
    assert compactor_of(counts, snapshot_retention_txids=0).drop_once(3) == 3
    assert not draft.exists()


def test_a_table_restored_to_before_what_the_log_dropped_halts(counts, tmp_path):
    publish_words(counts, [1, 2])
    copy = counts.copy_of_table("counts", tmp_path / "copy")
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(2, force=True)
    assert merging.drop_once(2) == 2
    shutil.rmtree(counts.warehouse / "counts")
    shutil.copytree(copy, counts.warehouse / "counts")
    publish_words(counts, [3])
    with pytest.raises(Halted, match="restored"):
        compactor_of(counts).merge_once(3, force=True)


def test_a_missing_plain_table_is_made_again_only_while_the_log_has_everything(counts):
    publish_words(counts, [1, 2])
    shutil.rmtree(counts.warehouse / "counts")
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(2, force=True)
    assert plain(counts) == counts.expected("counts", 2)
    merging.drop_once(2)
    shutil.rmtree(counts.warehouse / "counts")
    with pytest.raises(TableError, match="back-up"):
        compactor_of(counts).merge_once(3, force=True)


# --- dropping -------------------------------------------------------------------------------------------


def test_drops_what_is_merged_and_out_of_retention_and_keeps_the_control_record(counts):
    publish_words(counts, range(1, 7))
    merging = compactor_of(counts, snapshot_retention_txids=3)
    assert merging.drop_once(6) is None  # nothing is merged
    merging.merge_once(2, force=True)
    merging.merge_once(5, force=True)
    before = control(counts)
    assert merging.drop_once(4) is None  # 1 is not the P of any table version
    assert merging.drop_once(6) == 2  # the P at or below 6 - 3
    assert log_txids(counts) == [3, 4, 5, 6]
    after = control(counts)
    assert after.floor == 2
    assert {**after.__dict__, "floor": before.floor} == before.__dict__


def test_a_drop_that_loses_against_a_publish_is_done_on_top_of_it(counts):
    publish_words(counts, [1, 2])
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(2, force=True)
    published = []

    class Busy(KernelEngine):
        """The same engine; a transaction is published after the drop has looked and before it commits."""

        def drop_files(self, *args, **more):
            if not published:
                published.append(3)
                publish_words(counts, [3])
            return super().drop_files(*args, **more)

    merging._engine = Busy(counts.spark)
    assert merging.drop_once(2) == 2
    assert log_txids(counts) == [3]
    assert (control(counts).txid, control(counts).floor) == (3, 2)


def test_publishing_and_dropping_at_once_loses_nothing(counts):
    merging = compactor_of(counts, snapshot_retention_txids=0)
    publish_words(counts, range(1, 4))
    merging.merge_once(3, force=True)
    errors: list[BaseException] = []

    def drop() -> None:
        try:
            assert merging.drop_once(3) == 3
        except BaseException as error:
            errors.append(error)

    dropper = threading.Thread(target=drop)
    dropper.start()
    for txid in range(4, 12):
        while True:
            try:
                publish_words(counts, [txid])
                break
            except CommitConflict:
                pass
    dropper.join()
    assert not errors
    assert log_txids(counts) == list(range(4, 12))


# --- any reader -----------------------------------------------------------------------------------------


def test_any_delta_reader_reads_the_table_and_the_log(counts):
    """delta-rs here; it is also what every other test in this file reads with."""
    publish_words(counts, range(1, 5))
    merging = compactor_of(counts, snapshot_retention_txids=0)
    merging.merge_once(2, force=True)
    merging.drop_once(2)
    merging.merge_once(4, force=True)
    assert plain(counts) == counts.expected("counts", 4)
    log = rows_of(counts, "counts__log")
    assert sorted((row["_txid"], row["count"]) for row in log if row["word"] == "the") == [(3, 2), (4, 2)]


# --- in the background ------------------------------------------------------------------------------------


def wait_for(condition, secs=30.0):
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_the_background_merges_when_due_and_stopping_brings_the_table_up_to_the_last(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed(), append())
    publish_words(group, range(1, 6))
    merges = []
    background = BackgroundCompactor(
        [compactor_of(group, merge_every_txids=4, merge_interval_secs=3600.0)],
        on_merge=lambda name, report: merges.append((name, report.p_new)),
        poll_secs=0.05,
    )
    background.start(advanced=3)
    time.sleep(0.3)
    assert merges == []
    background.advanced(4)
    wait_for(lambda: merges == [("counts", 4)])
    background.advanced(5)
    assert background.stop(compact=True, timeout_secs=30.0)
    assert merges == [("counts", 4), ("counts", 5)]
    assert plain(group) == group.expected("counts", 5)


def test_an_error_in_the_background_is_told_and_tried_again(counts):
    publish_words(counts, [1])
    told = []
    background = BackgroundCompactor(
        [compactor_of(counts, merge_every_txids=1)],
        on_error=lambda name, error: told.append((name, type(error))),
        poll_secs=0.05,
    )
    faults.arm("compact.merge:fail_before")
    background.start(advanced=1)
    wait_for(lambda: counts.engine.load(str(counts.warehouse / "counts")).version == 1)
    assert background.stop(compact=False)
    assert told == [("counts", faults.InjectedFault)]
    assert background._fatal is None
    assert plain(counts) == counts.expected("counts", 1)


@pytest.mark.parametrize("given_up", [False, True])
def test_stopping_does_not_wait_for_ever(counts, monkeypatch, given_up: bool):
    publish_words(counts, [1])
    monkeypatch.setattr("trident.states.keyed.background_compactor._CANCEL_SECS", 0.3)
    background = BackgroundCompactor([compactor_of(counts)], poll_secs=0.05)
    faults.arm("compact.merge:hang")
    background.start(advanced=1)
    try:
        began = time.monotonic()
        assert not background.stop(True, 60.0 if given_up else 0.3, lambda: given_up)
        assert time.monotonic() - began < 20, "its time, or nobody wants it any more; then for its being cancelled"
        assert background.behind("words") == [
            "the plain table counts is 1 transaction behind; run `trident compact words`"
        ]
    finally:
        faults.disarm()


class SeveralJobs:
    """A compactor whose MERGE is several Spark jobs: a cancel ends the one that runs, and the next one comes."""

    state = SimpleNamespace(name="counts")

    def __init__(self) -> None:
        self.jobs, self.cancelled = 5, threading.Event()
        self.began = threading.Event()

    def merge_once(self, advanced, force=False):
        self.began.set()
        while self.jobs:
            self.jobs -= 1
            if not self.cancelled.wait(20):
                return
            self.cancelled.clear()
        raise TableError("cancelled")

    def cancel(self):
        self.cancelled.set()


def test_stopping_without_a_merge_cancels_until_none_of_its_jobs_is_left():
    """A coordinator that has lost its lease waited for a MERGE, a minute long, before it could lead again."""
    slow = SeveralJobs()
    background = BackgroundCompactor([slow])
    background.start(1)
    background.advanced(2)
    assert slow.began.wait(10)
    started = time.monotonic()
    assert background.stop(compact=False)
    assert (slow.jobs, time.monotonic() - started < 15) == (0, True)
