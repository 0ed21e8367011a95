"""Native MERGEs on real Delta tables: beside Delta's own, other writers, zombies, and processes that are killed."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.states.keyed_helpers import Group, Native, as_map, by_delta, by_whom, compactor_of, keyed, plain, table
from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.states.core.local_storage import LocalFolder
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed import merge_files
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.file_merge import MERGE_PROCESS, FileMerge, MergeProcess, overlapping_files
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.merge_files import FileMerger, MergeJob
from trident.states.keyed.reading import read_state
from trident.states.keyed.table_watch import check_commits, is_our_merge


def last(group: Group, name: str = "counts") -> dict:
    return table(group, name).history(1)[0]


def words(group: Group, txid: int) -> None:
    group.publish(txid, {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)]})


def leftovers(group: Group, name: str = "counts") -> list[Path]:
    """Folders of native MERGEs none of whose files the table has ever had."""
    root = group.warehouse / name
    entries = "".join(path.read_text() for path in (root / "_delta_log").glob("*.json"))
    return [path for path in root.glob("data/*/merge-*") if path.name not in entries]


class LeftToSpark(Exception):
    """In place of Spark's MERGE, which takes its time."""


def left_to_spark(group: Group) -> Compactor:
    def merge(*_: object) -> None:
        raise LeftToSpark

    merging = compactor_of(group)
    merging._by_spark.merge = merge  # type: ignore[method-assign]
    return merging


# --- the same as Delta's MERGE ---------------------------------------------------------------------------------


@pytest.mark.long
def test_the_same_table_as_by_deltas_merge_and_every_reader_reads_it(spark, engine, tmp_path) -> None:
    seed = int(os.environ.get("TRIDENT_SEED", random.randrange(1 << 30)))
    print(f"TRIDENT_SEED={seed}")
    rng = random.Random(seed)
    schema = "k string, d decimal(9,2), at timestamp, v string, more array<bigint>"
    group = Group(spark, engine, tmp_path / "a", keyed("s", schema, ("k", "d"), Native("upsert"), "last"))
    for txid in range(1, 7):
        keys = {(rng.choice([None, "", "é", "k" * 40, *"abcdef"]), rng.choice([None, 1, -2])) for _ in range(8)}
        rows = [(*key, None, rng.choice([None, str(txid)]), [txid, None], rng.random() < 0.3) for key in keys]
        group.publish(txid, {"s": rows})
    other = group.copied_to(tmp_path / "b")
    for upto in (2, 6):
        compactor_of(group, "s").merge_once(upto, force=True)
    by_delta(compactor_of(other, "s")).merge_once(6, force=True)
    assert (by_whom(group, "s"), by_whom(other, "s")) == ("native", "delta")
    frames = [spark.read.format("delta").load(str(one.warehouse / "s")) for one in (group, other)]
    assert frames[0].schema == frames[1].schema
    found = [as_map(group.bindings["s"], frame.drop("_upto")) for frame in frames]
    assert found[0] == found[1] == group.expected("s", 6)
    # Either goes on where the other ended.
    group.publish(7, {"s": [("a", 1, None, "seven", None, False)]})
    by_delta(compactor_of(group, "s")).merge_once(7, force=True)
    group.publish(8, {"s": [("b", 1, None, "eight", None, False)]})
    compactor_of(group, "s").merge_once(8, force=True)
    assert by_whom(group, "s") == "native"
    frame = spark.read.format("delta").load(str(group.warehouse / "s")).drop("_upto")
    assert as_map(group.bindings["s"], frame) == group.expected("s", 8)
    # Spark skips by the statistics that came with the files, and reads older versions.
    assert frame.where("k = 'b' and d = 1").first().v == "eight"
    old = spark.read.format("delta").option("versionAsOf", 2).load(str(group.warehouse / "s")).drop("_upto")
    assert as_map(group.bindings["s"], old) == group.expected("s", 6)


ODD_NAMES = [".x", "[0]", "row", "a.b", "a`b", "\\", "_upto_", "sum(x)"]


@pytest.mark.long
@pytest.mark.parametrize("merging", ["last", "combine"])
def test_columns_of_any_name_are_staged_merged_and_read(spark, engine, tmp_path, merging: str) -> None:
    """Arrow takes some for paths into structs."""
    names = [name for name in ODD_NAMES if not set(name) & set(" ,;{}()\n\t=")]
    keys, values = names[:5], names[5:]
    quoted = [f"`{name.replace('`', '``')}`" for name in names]
    schema = ", ".join(f"{name} bigint" for name in quoted)
    group = Group(spark, engine, tmp_path, keyed("odd", schema, keys, Native("sum"), merging))
    more = [(False,)] if merging == "last" else [()]
    for txid in range(1, 5):
        rows = [(n, -n, n % 2, 7, n, txid, n, n, *more[0]) for n in range(20 * txid, 0, -txid)]
        group.publish(txid, {"odd": [row[:5] + row[5 : len(names)] + more[0] for row in rows]})
        if txid in (1, 3):
            compactor_of(group, "odd").merge_once(txid, force=True)
            assert by_whom(group, "odd") == "native"
    expected = group.expected("odd", 4)
    assert as_map(group.bindings["odd"], read_state(spark, tmp_path, "odd")) == expected
    reader, asked = KeyReader(tmp_path), [*expected][::7]
    found = reader.get("odd", reader.requested("odd", asked))
    assert [tuple(one.values()) for one in found] == [expected[key] for key in asked]
    assert list(found[0]) == values
    if merging == "combine":
        by_delta(compactor_of(group, "odd")).merge_once(4, force=True)
        assert plain(group, "odd") == expected


def test_the_commit_says_whose_merge_it_is_as_the_watch_of_plain_tables_wants_it(merged) -> None:
    compactor_of(merged).merge_once(6, force=True)
    state, path = merged.descriptor("counts"), merged.warehouse / "counts"
    check_commits("top", "counts", path, 0, 3, lambda commit: is_our_merge(commit, state))
    metrics = last(merged)["operationMetrics"]
    assert (metrics["numSourceRows"], metrics["numTargetFilesAdded"]) == ("3", "1")
    assert json.loads(last(merged)["userMetadata"])["trident"]["upto"] == 6


def test_a_checkpoint_is_written_when_it_is_due(spark, engine, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(KernelEngine.run_maintenance, "__defaults__", (3,))
    group = Group(spark, engine, tmp_path, keyed())
    merging = compactor_of(group)
    for txid in range(1, 6):
        words(group, txid)
        merging.merge_once(txid, force=True)
    assert list((tmp_path / "counts" / "_delta_log").glob("*3.checkpoint*.parquet"))
    assert plain(group) == group.expected("counts", 5)


# --- others -----------------------------------------------------------------------------------------------------


def test_a_commit_that_comes_while_the_files_are_written_wins(merged, monkeypatch) -> None:
    """Of two that both have read P and both have written, one has the version: the other's rows would double."""
    words(merged, 7)
    first, second = compactor_of(merged), compactor_of(merged)
    run = MergeProcess.run

    def slow(self: MergeProcess, job: MergeJob, *more: object) -> object:
        done = run(self, job, *more)
        monkeypatch.setattr(MergeProcess, "run", run)
        second.merge_once(6, force=True)
        return done

    monkeypatch.setattr(MergeProcess, "run", slow)
    with pytest.raises(CommitConflict, match="another compactor"):
        first.merge_once(7, force=True)
    assert plain(merged) == merged.expected("counts", 6) and not leftovers(merged)
    first.merge_once(7, force=True)
    assert plain(merged) == merged.expected("counts", 7)
    assert merged.engine.load(str(merged.warehouse / "counts")).version == 4


@pytest.mark.parametrize(
    "done",
    ["set tblproperties ('delta.appendOnly' = 'true')", pytest.param("add column note string", marks=pytest.mark.long)],
)
def test_tables_that_it_does_not_know_are_deltas_and_the_log_says_so(merged, caplog, done: str) -> None:
    caplog.set_level(logging.INFO, "trident.compactor")
    merged.spark.sql(f"alter table delta.`{merged.warehouse}/counts` {done}")
    if "appendOnly" in done:
        with pytest.raises(LeftToSpark):
            left_to_spark(merged).merge_once(6, force=True)
    else:
        merged.spark.sql(f"update delta.`{merged.warehouse}/counts` set note = 'mine'")
        compactor_of(merged).merge_once(6, force=True)
        assert plain(merged) == merged.expected("counts", 6)
        assert table(merged).to_pyarrow_table().column("note").to_pylist().count("mine") == 7
        assert by_whom(merged) == "delta"
    assert "Spark merges state counts: its table" in caplog.text


# --- processes that are killed -------------------------------------------------------------------------------------


def test_files_whose_commit_never_came_are_removed_by_the_next_merge(merged) -> None:
    words(merged, 7)
    faults.arm("delta.commit:fail_before")
    with pytest.raises(TableError, match="not known"):
        compactor_of(merged).merge_once(6, force=True)
    assert len(leftovers(merged)) == 1, "as a process leaves them that was killed before its commit"
    after = compactor_of(merged)  # another process
    after.merge_once(6, force=True)
    after.merge_once(7, force=True)
    assert not leftovers(merged)
    assert plain(merged) == merged.expected("counts", 7)


@pytest.mark.parametrize(
    ("step", "error"),
    [("names", OSError(5, "Input/output error")), ("flush", KeyboardInterrupt())],
    ids=["disk", "interrupt"],
)
def test_files_that_a_commit_may_name_stay_whatever_fails_behind_it(merged, monkeypatch, step, error):
    """The entry is there: without its files every later read and MERGE of the table fails."""
    claim = LocalFolder.claim

    def claimed(self: LocalFolder, *args: object) -> object:
        found = claim(self, *args)
        monkeypatch.setattr(LocalFolder, step, failing)
        return found

    def failing(*_: object) -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(LocalFolder, "claim", claimed)
    merging = compactor_of(merged)
    with suppress(KeyboardInterrupt):
        assert merging.merge_once(6, force=True).p_new == 6  # it asks the table
    assert plain(merged) == merged.expected("counts", 6)
    words(merged, 7)
    merging.merge_once(7, force=True)
    assert plain(merged) == merged.expected("counts", 7) and not leftovers(merged)


def test_a_merge_looks_at_a_few_folders_of_earlier_ones_however_many_there_are(tmp_path, monkeypatch) -> None:
    log_folder, data = tmp_path / "_delta_log", tmp_path / "data" / "inc1"
    log_folder.mkdir()
    for version in range(1, 101):
        kept = f"data/inc1/merge-{version}-kept"
        names = [kept] if version % 10 else [f"data/inc1/merge-{version}-other"]
        add = {"path": f"{kept}/part.parquet", "size": 1, "modificationTime": 0, "partitionValues": {}}
        (log_folder / f"{version:020d}.json").write_text(json.dumps({"add": add}) + "\n")
        for name in {kept, *names}:
            (tmp_path / name).mkdir(parents=True)
    (data / "merge-101-running").mkdir()
    (data / "other").mkdir()
    read, reads = DeltaLog.commit, []
    monkeypatch.setattr(DeltaLog, "commit", lambda *args: (reads.append(args), read(*args))[1])
    merging = FileMerge(None, str(tmp_path), "", lambda: False)
    state = SimpleNamespace(incarnation="inc1")
    for _ in range(8):
        reads.clear()
        merging._drop_leftovers(state, 100)
        assert len(reads) <= 20
    assert not reads, "a folder is looked at once"
    left = {path.name for path in data.iterdir()}
    assert left == {*(f"merge-{version}-kept" for version in range(1, 101)), "merge-101-running", "other"}
    monkeypatch.setattr("trident.states.core.storage.list_names", None)  # nor is the folder listed again
    merging._drop_leftovers(state, 101)
    assert (data / "merge-101-running").exists(), "its entry cannot be read: VACUUM knows"


@pytest.mark.parametrize(
    "fault", ["compact.write:fail_before", "compact.write:do_then_fail", "delta.commit:do_then_fail"]
)
def test_a_merge_that_fails_around_its_io_is_done_once(merged, fault: str) -> None:
    faults.arm(fault)
    merging = compactor_of(merged)
    try:
        assert merging.merge_once(6, force=True).p_new == 6  # an answer that was lost
    except faults.InjectedFault:
        assert plain(merged) == merged.expected("counts", 5) and not leftovers(merged)
        merging.merge_once(6, force=True)
    assert not faults.unfired()
    assert plain(merged) == merged.expected("counts", 6)
    assert merging.merge_once(6, force=True) is None


def test_a_worker_that_is_killed_or_has_too_large_a_merge_leaves_it_to_spark(merged, caplog, monkeypatch) -> None:
    class Dying(MergeProcess):
        def _started(self):
            process = super()._started()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return process

    class InThisProcess(MergeProcess):
        def run(self, job, is_cancelled):
            return FileMerger().run(job)

    merging = left_to_spark(merged)
    for process, said in (
        (Dying(), "the process that merges ended"),
        (InThisProcess(), "bytes of rows wait in the log"),
    ):
        merging._by_files._process = process
        with pytest.raises(LeftToSpark):
            merging.merge_once(6, force=True)
        assert said in caplog.text
        assert plain(merged) == merged.expected("counts", 5) and not leftovers(merged)
        monkeypatch.setattr(merge_files, "_LOG_BYTES_MAX", 10)


@pytest.mark.long
def test_the_worker_takes_no_module_from_the_folder_that_the_user_works_in(merged, tmp_path, monkeypatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for module in ("decimal", "pickle", "signal", "numpy", "trident"):
        (work / f"{module}.py").write_text("raise SystemExit('the file of the user')")
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(work))  # as where the user's program lies there
    merging = compactor_of(merged)
    process = merging._by_files._process = MergeProcess()
    merging.merge_once(6, force=True)
    assert plain(merged) == merged.expected("counts", 6) and by_whom(merged) == "native"
    assert process._process is not None
    process._forget(process._process)


def test_stopping_kills_the_worker_in_the_middle_and_changes_nothing(merged, monkeypatch) -> None:
    began, process = threading.Event(), MergeProcess()

    class Stopped(MergeProcess):
        """Its worker is stopped before it has the job."""

        def _started(self):
            found = process._started()
            os.kill(found.pid, signal.SIGSTOP)
            began.set()
            return found

    merging = compactor_of(merged, merge_every_txids=1)
    merging._by_files._process = Stopped()
    errors: list[BaseException] = []
    background = BackgroundCompactor([merging], on_error=lambda _, error: errors.append(error))
    background.start(6)
    assert began.wait(30)
    assert background.stop(compact=False)
    assert process._process is not None and process._process.poll() is not None
    assert plain(merged) == merged.expected("counts", 5) and not leftovers(merged)


def test_the_worker_is_niced_has_nothing_of_spark_open_and_ends_with_its_parent(merged) -> None:
    compactor_of(merged).merge_once(6, force=True)
    process = MERGE_PROCESS._process
    assert process is not None and process.poll() is None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    own = {os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir() if path.exists()}
    assert not [name for name in own if name.startswith("socket:")]
    assert process.stdin is not None
    process.stdin.close()  # as when this process dies
    assert process.wait(30) == 0
    MERGE_PROCESS._forget(process)


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_large_table_is_merged_when_its_log_is_worth_it_or_at_the_latest_when_it_is_overdue(merged, monkeypatch):
    merging = compactor_of(merged, merge_every_txids=1, merge_interval_secs=1000)
    sizes = {"rewritten": 100 << 20}
    monkeypatch.setattr(FileMerge, "bytes_to_move", lambda *_: (sizes["rewritten"], 1 << 20))
    assert merging.merge_once(6) is None, "a hundred bytes rewritten for one of the log"
    for txid in (7, 8):
        words(merged, txid)
        assert merging.merge_once(txid) is None
    words(merged, 9)
    assert merging.merge_once(9).p_new == 9, "four times as many transactions as the state asks for"
    sizes["rewritten"] = 8 << 20
    merging._rest_until = time.monotonic() + 1000  # as behind a MERGE that took long
    words(merged, 10)
    assert merging.merge_once(10) is None
    merging._rest_until = 0.0
    assert merging.merge_once(10).p_new == 10
    assert plain(merged) == merged.expected("counts", 10)


def test_only_files_that_the_log_may_change_count_as_rewritten(merged) -> None:
    merging = compactor_of(merged)
    plan, before, _ = merging.plan(6)
    rewritten, logged = merging._by_files.bytes_to_move(merging.state, plan, before)
    assert rewritten == sum(file.size for file in merged.engine.live_files(before)) and logged > 0


def live(path: str, low: object, high: object, nulls: int | None) -> LiveFile:
    stats = {"minValues": {"k": low}, "maxValues": {"k": high}, "nullCount": {"k": nulls}}
    return LiveFile(path, 1, {}, stats if nulls is not None else None, 9, 0)


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ([live("", "b", "c", 0)], "a"),
        ([live("", "e", "g", 0)], "ab"),
        ([live("", "e", "g", 1)], "abc"),  # a null lies behind all others
        ([live("", "a", "b", 3)], "ac"),
        ([live("", None, None, 9)], "c"),
        ([live("", None, None, None)], "abc"),
        ([], ""),
    ],
)
def test_a_key_that_is_null_meets_only_the_files_that_may_have_it(logged: list[LiveFile], expected: str) -> None:
    ranges = [("a", "a", "e"), ("b", "f", "k"), ("c", "l", "z")]
    for nulls in (0, 1):  # in the last file, as MERGEs write it
        files = [live(*one, nulls if one[0] == "c" else 0) for one in ranges]
        assert "".join(file.path for file in overlapping_files(files, logged, "k")) == expected
    anywhere = [live("a", "a", "e", 2), live("b", None, None, 9), live("c", "l", "z", 0)]
    assert "".join(file.path for file in overlapping_files(anywhere, [live("", None, None, 9)], "k")) == "ab"
