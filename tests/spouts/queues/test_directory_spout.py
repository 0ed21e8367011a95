"""A directory as a queue: whatever its owner does to the files, each message counts once or was taken back."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spouts.committer_harness import Group
from tests.topology_helpers import starter
from trident import DeltaAppend, TridentTopology
from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.faults import InjectedFault
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import Backlog, CommitterTridentSpout, Emitted, SpoutContext, SpoutKind
from trident.spouts.files.reading import source_failure
from trident.spouts.queues import directory_queue
from trident.spouts.queues.directory_queue import HIDDEN, DirectoryQueueSpout


class LazyLines:
    """Reads copies when it is iterated, as Spark does; the lines keep the file's name."""

    def __init__(self, spark, format) -> None: ...

    def read(self, ranges):
        paths = [Path(part.entry.path) for part in ranges]
        return Emitted((line for path in paths for line in path.read_text().splitlines()), partitions=1)


@pytest.fixture
def no_spark(monkeypatch) -> None:
    """The rules about files without a JVM; what Spark reads is tested below."""
    monkeypatch.setattr(directory_queue, "FileReader", LazyLines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path / "in"


def put(folder: Path, name: str, text: str) -> None:
    """As a producer should: elsewhere, then moved in."""
    new = folder.parent / f"new-{name}"
    new.write_text(text)
    new.rename(folder / name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.exists() else []


NO_SESSION = object()  # LazyLines needs none


class SessionGroup(Group):
    spark = NO_SESSION


class Parts:
    """The two parts of a spout in one process."""

    def __init__(self, folder: Path, spark=NO_SESSION, incarnation: str = "life", **arguments) -> None:
        self.spout = DirectoryQueueSpout(folder, **arguments)
        context = SpoutContext(spark, "t", "s", folder.parent / "state", incarnation)
        self.coordinator, self.emitter = self.spout.get_coordinator(context), self.spout.get_emitter(context)

    def emit(self, txid: int, attempt_id: int = 0, most: int = 100):
        self.coordinator.initialize_transaction(txid, None, None)
        return self.emitter.emit_batch(TransactionAttempt(txid, attempt_id), {"max_files": most})

    def commit(self, txid: int, emitted, attempt_id: int = 0) -> None:
        self.emitter.commit(TransactionAttempt(txid, attempt_id), emitted.commit_data)


# --- what counts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("run", range(12))
def test_random_runs_count_each_message_once_and_lose_none(folder, no_spark, rng: random.Random, run: int, monkeypatch):
    """Files are added, replaced, changed in place and taken back, while attempts fail and processes die."""
    monkeypatch.setattr(directory_queue, "TIME_STEP_SECS", 0)  # each version has its own size
    group = SessionGroup(
        lambda: DirectoryQueueSpout(folder, max_files=rng.choice([1, 3]), done="move"),
        folder.parent / "state",
        rng,
        cancels=rng.random() < 0.5,
    )
    versions = 0
    withdrawn: set[str] = set()  # versions that their owner took back or changed

    def text() -> str:
        nonlocal versions
        versions += 1
        return f"v{versions}\n" * versions  # never of the same size

    def current(path: Path) -> str:
        return path.read_text().split("\n")[0]

    def change() -> bool:
        path = folder / f"f{rng.randrange(5)}"
        if path.exists():
            withdrawn.add(current(path))
        match rng.randrange(4):
            case 0 if path.exists():
                path.unlink()
            case 1 if path.exists():
                path.write_text(text())  # in place: the same inode
            case _:
                put(folder, path.name, text())
        return True

    group.meanwhile = lambda: [change() for _ in range(rng.randrange(3))]
    steps = [group.begin, group.begin, group.emit, group.prepare, group.decide, group.finish] * 3
    steps += [change, change, change, group.commit_only, group.fail, group.late_thread, group.kill, group.stop]
    steps += [group.zombie]
    for _ in range(250):
        rng.choice(steps)()
    group.drain()
    counted = Counter(row for _, row in group.table)
    for version in (f"v{n}" for n in range(1, versions + 1)):
        whole = int(version[1:])
        assert counted[version] in ((0, whole) if version in withdrawn else (whole,)), version
        assert len({txid for txid, row in group.table if row == version}) <= 1
    assert names(folder) == []
    done = [current(path) for path in (folder / "done").iterdir()]
    assert len(done) == len(set(done)) and all(counted[version] for version in done)
    assert set(counted) - set(done) <= withdrawn
    assert names(folder / HIDDEN) == ["id"]


def test_a_file_that_changes_after_it_was_emitted_counts_with_both_contents(folder: Path, no_spark) -> None:
    put(folder, "a", "old\n")
    put(folder, "b", "stays\n")
    parts = Parts(folder, done="delete")
    first = parts.emit(1)
    (folder / "a").write_text("new, longer\n")
    second = parts.emit(2)
    assert list(first.data) == ["old", "stays"], "the copies were made when it was emitted"
    assert list(second.data) == ["new, longer"], "another message, and not in the way of the first"
    parts.commit(1, first)
    parts.commit(1, first)
    assert names(folder) == ["a"] and not (folder / "done").exists()
    parts.commit(2, second)
    assert names(folder) == []


def test_a_failed_attempt_is_replayed_with_what_is_there_then(folder: Path, no_spark) -> None:
    for name in "abc":
        put(folder, name, name)
    parts = Parts(folder)
    assert list(parts.emit(1, most=2).data) == ["a", "b"]
    assert list(parts.emit(2).data) == ["c"]
    (folder / "a").unlink()
    put(folder, "d", "d")
    assert list(parts.emit(1, 1).data) == ["b", "c", "d"]
    with pytest.raises(SourceError, match="1:0 was given up"):
        parts.emitter.emit_batch(TransactionAttempt(1, 0), {"max_files": 9})
    parts.emitter.cancel(TransactionAttempt(1, 1))
    assert list(parts.emit(2, 1).data) == ["b", "c", "d"]


@pytest.mark.parametrize("how", ["replaced", "changed in place", "taken back"])
def test_a_file_that_changes_while_it_is_copied_is_left_out(folder: Path, no_spark, monkeypatch, how: str) -> None:
    put(folder, "a", "1\n1\n")
    put(folder, "b", "b\n")
    copy = directory_queue.shutil.copyfileobj

    def interfering(source, target, length):
        assert time.time() - os.fstat(source.fileno()).st_mtime >= 0.02, "a change now would not show in the time"
        if source.name.endswith("/a"):
            target.write(source.read(2))  # half of it
            match how:
                case "replaced":
                    put(folder, "a", "2\n2\n")
                case "changed in place":
                    (folder / "a").write_text("2\n2\n")  # of the same size
                case "taken back":
                    (folder / "a").unlink()
        copy(source, target, length)

    monkeypatch.setattr(directory_queue.shutil, "copyfileobj", interfering)
    parts = Parts(folder)
    first = parts.emit(1)
    monkeypatch.undo()
    monkeypatch.setattr(directory_queue, "FileReader", LazyLines)
    assert list(first.data) == ["b"]
    parts.commit(1, first)
    left = ["2", "2"] if how != "taken back" else []
    assert parts.coordinator.is_ready(2) == bool(left)
    assert list(parts.emit(2).data) == left


def test_a_copy_is_the_file_as_it_was_at_one_moment(folder: Path, no_spark, monkeypatch) -> None:
    """A thread overwrites one file from its beginning, version after version of the same size."""
    monkeypatch.setattr(directory_queue, "COPY_BYTES", 1 << 12)
    lines, stop = 8_000, threading.Event()
    (folder / "a").write_text("000000\n" * lines)

    def write() -> None:
        number = 0
        with open(folder / "a", "r+b", buffering=0) as file:
            while not stop.is_set():
                number += 1
                file.seek(0)
                for _ in range(8):
                    file.write(b"%06d\n" % number * (lines // 8))
                time.sleep(number % 5 * 0.01)

    thread = threading.Thread(target=write)
    thread.start()
    parts, emitted, attempt_id = Parts(folder), 0, 0
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            attempt_id += 1
            rows = list(parts.emit(1, attempt_id).data)
            if rows:  # else the writer was too quick
                emitted += 1
                versions = [version for version, _ in itertools.groupby(rows)]
                # The writer may have been stopped half-way: then the newer version comes first. Never the older.
                assert len(rows) == lines and versions in ([versions[0]], [versions[0], f"{int(versions[0]) - 1:06d}"])
    finally:
        stop.set()
        thread.join()
    assert emitted


# --- how files leave ------------------------------------------------------------------------------


def test_a_file_replaced_in_the_last_moment_of_the_commit_is_put_back(folder: Path, no_spark, monkeypatch) -> None:
    put(folder, "a.txt", "old\n")
    parts = Parts(folder)
    first = parts.emit(1)
    rename, replaced = os.rename, []

    def racing(source, target) -> None:
        if not replaced:
            replaced.append(True)
            put(folder, "a.txt", "newer\n")
        rename(source, target)

    monkeypatch.setattr(directory_queue.os, "rename", racing)
    parts.commit(1, first)
    assert replaced and names(folder) == ["a.txt"] and names(folder / "done") == []
    assert list(parts.emit(2).data) == ["newer"]


def test_a_commit_that_another_incarnation_left_half_done_is_not_finished_as_this_ones(folder, no_spark) -> None:
    put(folder, "a", "a")
    parts = Parts(folder)
    first = parts.emit(1)
    faults.arm("directory.claim:do_then_fail")
    with pytest.raises(InjectedFault):
        parts.commit(1, first)
    put(folder, "b", "b")
    again = Parts(folder, incarnation="another")  # as after `trident reset`: txids begin at 1
    again.commit(1, again.emit(1))
    assert names(folder) == []


@pytest.mark.parametrize("done", ["delete", "move"])
@pytest.mark.parametrize(
    "fault", [f"directory.{point}:{how}" for point in ("claim", "remove") for how in ("fail_before", "do_then_fail")]
)
def test_a_commit_that_was_cut_off_is_finished_by_another_process(folder, no_spark, fault: str, done: str) -> None:
    for name in "ab":
        put(folder, name, name)
    parts = Parts(folder, done=done)
    first = parts.emit(1)
    (folder / "done").mkdir()
    (folder / "done" / "a").write_text("of an earlier life")
    faults.arm(fault)
    with pytest.raises(InjectedFault):
        parts.commit(1, first)
    assert list(parts.emit(2).data) == [], "it is decided: nobody else may have it"
    put(folder, "a", "the next a")  # before the commit is finished
    Parts(folder, done=done).commit(1, first)
    claimed = "claim:fail" not in fault
    assert names(folder) == ["a"], "another message is never taken for the one that was consumed"
    assert (folder / "a").read_text() == "the next a"
    assert names(folder / HIDDEN) == ["id"]
    kept = ["a", "a.2", "b"] if claimed else ["a", "b"]
    assert names(folder / "done") == (kept if done == "move" else ["a"])
    assert (folder / "done" / "a").read_text() == "of an earlier life"


def test_another_or_an_unmounted_directory_is_not_taken_for_the_one_that_was_read(folder: Path, no_spark) -> None:
    put(folder, "a", "a")
    parts = Parts(folder)
    first = parts.emit(1)
    folder.rename(folder.parent / "away")
    for prepare in (lambda: None, folder.mkdir, lambda: Parts(folder)):
        prepare()
        with pytest.raises(SourceError, match="not the one that attempt 1:0 has read"):
            parts.commit(1, first)
    with pytest.raises(SourceError, match="not the commit data"):
        parts.emitter.commit(TransactionAttempt(1, 0), {"ids": []})


# --- readiness and limits -------------------------------------------------------------------------


def test_readiness_limits_and_age(folder: Path, no_spark) -> None:
    parts = Parts(folder, max_files=2, max_bytes=10)
    spout: CommitterTridentSpout = parts.spout
    assert spout.kind is SpoutKind.OPAQUE and spout.output_schema.simpleString() == "struct<value:string>"
    (folder / "_half").write_text("not yet")
    (folder / ".hidden").write_text("no")
    (folder / "sub").mkdir()
    assert not parts.coordinator.is_ready(1)
    for number, text in enumerate(["1234", "1234567", "12345678901", "1", "2", "3"]):
        put(folder, f"f{number}", text)
        os.utime(folder / f"f{number}", (time.time() - 100 + number,) * 2)
    assert parts.coordinator.backlog() == Backlog(files=6, bytes=25)
    metadata = parts.coordinator.initialize_transaction(1, None, None)
    assert metadata == {"max_files": 2} and parts.coordinator.is_ready(2)
    assert [list(parts.emit(txid, most=2).data) for txid in (1, 2, 3, 4, 5)] == [
        ["1234"],
        ["1234567"],
        ["12345678901"],
        ["1", "2"],
        ["3"],
    ]
    assert not parts.coordinator.is_ready(6)
    assert not Parts(folder, min_age_secs=500).coordinator.is_ready(1)
    assert Parts(folder, min_age_secs=50).coordinator.is_ready(1)


def test_impossible_arguments_and_directories_are_refused(folder: Path) -> None:
    for arguments, match in [
        ({"format": "xml"}, "xml"),
        ({"format": "json"}, "schema"),
        ({"done": "keep"}, "keep"),
        ({"schema": "n long"}, "text has one field"),
    ]:
        with pytest.raises(TopologyError, match=match):
            DirectoryQueueSpout(folder, **arguments)
    with pytest.raises(SourceError, match="nowhere"):
        Parts(folder / "nowhere")


# --- with Spark -------------------------------------------------------------------------------------


def test_every_format_is_read_from_the_copies(spark: SparkSession, folder: Path) -> None:
    put(folder, "a.json", '{"n": 1}\n{"n": 2}\n')
    put(folder, "b:c.json", '{"n": 3}\n')
    parts = Parts(folder, spark, format="json", schema="n long")
    emitted = parts.emit(1)
    for name in names(folder):
        (folder / name).unlink()  # taken back too late
    assert sorted(row.n for row in emitted.data.collect()) == [1, 2, 3]
    parts.commit(1, emitted)
    put(folder, "bad.json", "{no\n")
    with pytest.raises(Exception) as caught:
        parts.emit(2).data.collect()
    assert "bad.json" in str(source_failure(caught.value)), "the copy keeps the name"
    (folder / "bad.json").unlink()
    assert parts.emit(2, 1).commit_data is None
    parts.emitter.close()
    spark.range(5).write.parquet(str(folder.parent / "written"))
    for number, path in enumerate((folder.parent / "written").glob("part-*.parquet")):
        path.rename(folder / f"{number}.parquet")
    parts = Parts(folder, spark, format="parquet", schema="id long")
    assert sorted(row.id for row in parts.emit(1).data.collect()) == [0, 1, 2, 3, 4]
    parts.emitter.close()
    assert list((folder.parent / "state" / "copies").iterdir()) == []


@pytest.mark.long
def test_a_replay_after_the_owner_changed_the_files_counts_what_is_there_then(
    spark: SparkSession, zk_server: str, zk_root: str, folder: Path
) -> None:
    """The batch fails once; meanwhile one file is taken back and one is replaced."""
    for name, text in {"back": "wrong", "stays": "right", "typo": "rihgt too"}.items():
        put(folder, name, text + "\n")
    flag = str(folder.parent / "failed once")

    def moody(value: str) -> list[str]:
        if not os.path.exists(flag):
            (folder / "back").unlink()
            put(folder, "typo", "right too\n")
            open(flag, "w").close()
            raise ValueError("not yet")
        return [value]

    topology = TridentTopology("directory")
    topology.new_stream("files", DirectoryQueueSpout(folder)).flat_map(moody, "value").partition_persist(
        DeltaAppend("lines")
    )
    with starter(spark, zk_server, zk_root, folder.parent) as start:
        faults.arm("directory.remove:do_then_fail,spout.commit:do_then_fail:2")
        query = start.run(topology)
        assert faults.unfired() == []
        assert sorted(row.value for row in query.snapshot("lines").collect()) == ["right", "right too"]
        assert names(folder) == []
        assert names(folder / "done") == ["stays", "typo"]
