"""The background MERGE and the log drop: each row counted once, whoever merges, whatever fails."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest

from tests.states.group_helpers import foreign_row
from tests.states.keyed_helpers import Concat, Group, Longest, compactor_of, keyed, plain
from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, ConfigError, Halted, TableError
from trident.states.core import spark_jobs
from trident.states.core.control import DOMAIN, decode_control
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed import compactor as compactor_module
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compactor import GRACE_SECS, Compactor, LogSweeper
from trident.states.keyed.file_merge import FileMerge


@pytest.fixture
def counts(spark, engine, tmp_path):
    """A group with one state that counts words."""
    return Group(spark, engine, tmp_path, keyed())


@pytest.fixture(params=["native", pytest.param("delta", marks=pytest.mark.long)])
def both(request, monkeypatch):
    """Once with native MERGEs, and once with Delta's."""
    if request.param == "delta":
        monkeypatch.setattr(FileMerge, "_why_not", lambda *_: "the test says so")


def rows_of(group, table):
    """A table's rows as delta-rs reads them: a reader that shares no code with Spark and Kernel."""
    return deltalake.DeltaTable(str(group.warehouse / table)).to_pyarrow_table().to_pylist()


def control(group, name="counts"):
    snapshot = group.engine.load(str(group.warehouse / f"{name}__log"))
    return decode_control(snapshot.path, snapshot.control(DOMAIN))


def log_txids(group, name="counts"):
    return sorted({row["_txid"] for row in rows_of(group, f"{name}__log")})


def publish_words(group, txids):
    for txid in txids:
        group.publish(txid, {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)]})


# --- what a MERGE does -----------------------------------------------------------------------------


@pytest.mark.parametrize("both", ["native", pytest.param("delta", marks=pytest.mark.long)], indirect=True)
@pytest.mark.usefixtures("both")
def test_merges_exactly_the_advanced_transactions_and_no_published_one_above(counts):
    publish_words(counts, range(1, 6))
    merging = compactor_of(counts)
    first = merging.merge_once(3, force=True)
    assert (first.p_old, first.p_new) == (0, 3)
    assert plain(counts) == counts.expected("counts", 3)
    # The commit carries P and says whose it is.
    table = str(counts.warehouse / "counts")
    assert counts.engine.load(table).txn_version("trident/top/g/merge") == 3
    last = deltalake.DeltaTable(table).history(1)[0]
    assert (last["operation"], last["version"]) == ("MERGE", 1)
    assert '"incarnation": "inc1"' in last["userMetadata"] and '"upto": 3' in last["userMetadata"]
    assert {row["_upto"] for row in rows_of(counts, "counts")} == {3}
    second = merging.merge_once(5, force=True)
    assert (second.p_old, second.p_new) == (3, 5)
    assert plain(counts) == counts.expected("counts", 5)
    assert merging.merge_once(5, force=True) is None


@pytest.mark.parametrize("aggregator", [None, Longest()], ids=["none", "another"])
def test_a_python_combiner_must_be_the_states_own(spark, engine, tmp_path, aggregator):
    group = Group(spark, engine, tmp_path, keyed("counts", "k string, v string", ("k",), Concat()))
    with pytest.raises(ConfigError, match="Concat"):
        Compactor(spark, engine, tmp_path, group.descriptor("counts"), None, aggregator)


def test_merging_waits_until_enough_transactions_or_time_and_for_none_that_left_no_trace(merged):
    merged.publish(7, {})
    assert compactor_of(merged, merge_every_txids=3).merge_once(7) is None
    assert compactor_of(merged, merge_every_txids=2).plan(7, force=False) is not None
    patient = compactor_of(merged, merge_every_txids=50, merge_interval_secs=0.3)
    assert patient.merge_once(9) is None
    time.sleep(0.3)
    assert patient.merge_once(9).p_new == 7  # 8 and 9 committed nothing
    assert plain(merged) == merged.expected("counts", 7)
    assert patient.merge_once(9, force=True) is None


# --- two compactors ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("both")
def test_of_two_that_read_the_same_p_the_second_is_stopped_by_the_guard_and_a_stale_plan_changes_nothing(merged):
    publish_words(merged, [7])
    first, second = compactor_of(merged), compactor_of(merged)
    plan_of_first, plan_of_second = first.plan(6), second.plan(7)
    first.merge(*plan_of_first)
    before = merged.engine.load(str(merged.warehouse / "counts")).version
    with pytest.raises(CommitConflict, match="another compactor"):
        second.merge(*plan_of_second)
    assert merged.engine.load(str(merged.warehouse / "counts")).version == before
    assert plain(merged) == merged.expected("counts", 6)
    assert second.merge_once(7, force=True).p_old == 6
    for stale in (plan_of_first, plan_of_second):  # up to an older transaction, and up to the same
        assert second.merge(*stale).p_new == stale[0].upto
    assert plain(merged) == merged.expected("counts", 7)
    assert merged.engine.load(str(merged.warehouse / "counts")).version == before + 1


@pytest.mark.usefixtures("both")
def test_a_row_that_is_not_ours_stops_the_merge(merged):
    row = pa.table({"word": ["w6"], "count": [1000], "_upto": pa.array([None], pa.int64())})
    foreign_row(merged.warehouse / "counts", row)
    with pytest.raises(CommitConflict):
        compactor_of(merged).merge_once(6, force=True)


@pytest.mark.usefixtures("both")
def test_two_compactors_racing_never_count_twice(counts):
    """Nothing but Delta's conflict detection, the guard in the MERGE and the look at P behind it keeps them apart."""
    racers = [compactor_of(counts, session=counts.spark.newSession()) for _ in range(2)]
    merged: list[object] = []
    start = threading.Barrier(2)
    publish_words(counts, range(1, 4))

    def race(racer: Compactor, advanced: int) -> None:
        planned = racer.plan(advanced)
        start.wait()  # both have read the same P
        try:
            merged.append(racer.merge(*planned))
        except BaseException as error:
            merged.append(error)

    # One wants fewer transactions than the other: SetTransaction alone would let both in.
    threads = [threading.Thread(target=race, args=pair) for pair in zip(racers, (2, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for racer in racers:
        racer.merge_once(3, force=True)
    assert plain(counts) == counts.expected("counts", 3)
    assert len(merged) == 2
    assert all(isinstance(one, (CommitConflict, compactor_module.MergeReport)) for one in merged)


# --- failures -----------------------------------------------------------------------------------------


def test_a_merge_whose_answer_is_lost_is_not_done_again(merged):
    faults.arm("compact.merge:do_then_fail")
    with pytest.raises(faults.InjectedFault):
        compactor_of(merged).merge_once(6, force=True)
    assert compactor_of(merged).merge_once(6, force=True) is None
    assert plain(merged) == merged.expected("counts", 6)


def test_a_crash_between_merge_and_drop_costs_only_space(merged):
    faults.arm("compact.drop:fail_before")
    with pytest.raises(faults.InjectedFault):
        compactor_of(merged, snapshot_retention_txids=0).drop_once(6)
    assert log_txids(merged) == [1, 2, 3, 4, 5, 6]
    after = compactor_of(merged, snapshot_retention_txids=0)
    assert after.merge_once(5, force=True) is None
    assert after.drop_once(6) == 5
    assert log_txids(merged) == [6]
    after.merge_once(6, force=True)
    assert plain(merged) == merged.expected("counts", 6)


def test_what_a_merge_wrote_is_on_disk_before_the_log_drops_it(merged, monkeypatch, flushed):
    """Spark flushes nothing, the drop is flushed: a power cut in between would lose what only the log had."""
    at_the_drop, merging = [], compactor_of(merged, snapshot_retention_txids=0)
    table = merged.warehouse / "counts"
    wanted = {str(path) for path in [*table.glob("*.parquet"), *table.glob("_delta_log/*.json")]}
    drop = merging._engine.drop_files
    monkeypatch.setattr(merging._engine, "drop_files", lambda *args: (at_the_drop.extend(flushed), drop(*args))[1])
    assert merging.drop_once(6) == 5
    assert len(wanted) >= 3 and wanted <= set(at_the_drop)


@pytest.mark.long
@pytest.mark.usefixtures("both")
def test_a_merge_that_fails_in_the_middle_leaves_table_and_log_alone(merged):
    merged.publish(7, {"counts": [("the", 2**63 - 1), ("b", 1)]})  # the sum does not fit a bigint
    with pytest.raises(TableError, match="(?i)overflow"):
        compactor_of(merged).merge_once(7, force=True)
    assert plain(merged) == merged.expected("counts", 5)
    assert log_txids(merged) == [1, 2, 3, 4, 5, 6, 7]


def test_a_merge_that_was_stopped_inside_its_commit_cannot_replace_the_one_that_rows_were_dropped_for(merged):
    """Delta's log store looks, and renames its draft over the entry; without the draft it cannot."""
    draft = merged.warehouse / "counts" / "_delta_log" / f".{2:020d}.json.{'0' * 8}.tmp"
    draft.write_text("of a compactor that merged less")
    assert compactor_of(merged, snapshot_retention_txids=0).drop_once(6) == 5
    assert not draft.exists()


def test_a_table_restored_to_before_what_the_log_dropped_halts(merged):
    assert compactor_of(merged, snapshot_retention_txids=0).drop_once(6) == 5
    for version in (1, 2):  # put back from a copy of before the MERGEs
        (merged.warehouse / "counts" / "_delta_log" / f"{version:020d}.json").unlink()
    publish_words(merged, [7])
    with pytest.raises(Halted, match="restored"):
        compactor_of(merged).merge_once(7, force=True)


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


def test_drops_what_is_merged_and_out_of_retention_and_keeps_the_control_record(merged):
    merging = compactor_of(merged, snapshot_retention_txids=3)
    before = control(merged)
    assert merging.drop_once(4) is None  # 1 is not the P of any table version
    assert merging.drop_once(6) == 2  # the P at or below 6 - 3
    assert log_txids(merged) == [3, 4, 5, 6]
    after = control(merged)
    assert after.floor == 2
    assert {**after.__dict__, "floor": before.floor} == before.__dict__
    # Any Delta reader reads the table and the log: delta-rs here, as in every other test of this file.
    assert plain(merged) == merged.expected("counts", 5)
    log = rows_of(merged, "counts__log")
    assert sorted((row["_txid"], row["count"]) for row in log if row["word"] == "the") == [
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
    ]


def test_nothing_is_dropped_that_is_not_merged(counts):
    publish_words(counts, range(1, 7))
    assert compactor_of(counts, snapshot_retention_txids=0).drop_once(6) is None


def test_a_drop_that_loses_against_a_publish_is_done_on_top_of_it(merged):
    merging = compactor_of(merged, snapshot_retention_txids=0)
    published = []

    class Busy(KernelEngine):
        """The same engine; a transaction is published after the drop has looked and before it commits."""

        def drop_files(self, *args, **more):
            if not published:
                published.append(7)
                publish_words(merged, [7])
            return super().drop_files(*args, **more)

    merging._engine = Busy(merged.spark)
    assert merging.drop_once(6) == 5
    assert log_txids(merged) == [6, 7]
    assert (control(merged).txid, control(merged).floor) == (7, 5)


# --- in the background ------------------------------------------------------------------------------------


def wait_for(condition, secs=30.0):
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_the_background_merges_when_due_tries_again_and_stopping_brings_the_table_up_to_the_last(merged):
    publish_words(merged, [7, 8, 9])
    merges, told = [], []
    background = BackgroundCompactor(
        [compactor_of(merged, merge_every_txids=3, merge_interval_secs=3600.0)],
        on_merge=lambda name, report: merges.append((name, report.p_new)),
        on_error=lambda name, error: told.append((name, type(error))),
        poll_secs=0.05,
    )
    background.start(advanced=7)
    time.sleep(0.3)
    assert merges == told == []
    faults.arm("compact.merge:fail_before")
    background.advanced(8)
    wait_for(lambda: merges == [("counts", 8)])
    assert told == [("counts", faults.InjectedFault)]
    assert background._fatal is None
    assert plain(merged) == merged.expected("counts", 8)
    background.advanced(9)
    assert background.stop(compact=True, timeout_secs=30.0)
    assert merges == [("counts", 8), ("counts", 9)]
    assert plain(merged) == merged.expected("counts", 9)


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
        assert background.lagging_tables("words") == [
            "the plain table counts lacks 1 transaction; run `trident compact words`"
        ]
    finally:
        faults.disarm()


class SeveralJobs:
    """A compactor whose MERGE is several Spark jobs: a cancel ends the one that runs, and the next one comes."""

    state, known_merged = SimpleNamespace(name="counts"), None

    def __init__(self) -> None:
        self.jobs, self.cancelled = 5, threading.Event()
        self.began = threading.Event()

    def merge_once(self, advanced, force=False, upto=None):
        self.began.set()
        while self.jobs:
            self.jobs -= 1
            if not self.cancelled.wait(20):
                return
            self.cancelled.clear()
        raise TableError("cancelled")

    def cancel(self):
        self.cancelled.set()


def test_jobs_of_a_merge_are_in_the_pool_behind_requests_and_batches(counts):
    with compactor_of(counts)._by_spark._jobs("a MERGE"):
        assert counts.spark.sparkContext.getLocalProperty("spark.scheduler.pool") == spark_jobs.UPKEEP


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


# --- the sweeper of logs ---------------------------------------------------------------------------------
# Dropped log files go from the disk after their grace, and nothing else does.


def test_what_was_dropped_goes_after_the_grace_and_what_was_not_stays(tmp_path: Path) -> None:
    now = [0.0]
    for name in ("mine/1-0-a", "mine/2-1-b", "mine/3-0-c", "mine/10-0-d", "mine/not-ours", "other/1-0-a"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / "part.parquet").touch()

    def left() -> set[str]:
        return {str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").glob("*/*")}

    sweeper = LogSweeper(tmp_path, "mine", lambda: now[0])
    sweeper.dropped(1)
    assert sweeper.sweep() == 0, "a reader that began before the drop may still be at it"
    now[0] = GRACE_SECS / 2
    sweeper.dropped(3)
    sweeper.dropped(3)
    now[0] = GRACE_SECS
    assert sweeper.sweep() == 1
    assert left() == {"mine/2-1-b", "mine/3-0-c", "mine/10-0-d", "mine/not-ours", "other/1-0-a"}
    now[0] = 1.5 * GRACE_SECS
    assert sweeper.sweep() == 2
    assert left() == {"mine/10-0-d", "mine/not-ours", "other/1-0-a"}
    assert sweeper.sweep() == 0


def test_a_log_without_staged_files_is_nothing_to_sweep(tmp_path: Path) -> None:
    now = [0.0]
    sweeper = LogSweeper(tmp_path, "mine", lambda: now[0])
    sweeper.dropped(5)
    now[0] = 2 * GRACE_SECS
    assert sweeper.sweep() == 0
