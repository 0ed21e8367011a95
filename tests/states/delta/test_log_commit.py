"""A log entry gets its name by a hard link: one winner against every other writer, and nobody is waited for.

The rival here does what Delta's own log store does on a local disk (``HDFSLogStore``): write a draft, look whether the
entry is there, rename over it. The real one, in the JVM, races in test_kernel_races.py.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from trident.coordinators.errors import CommitConflict, TableError
from trident.states.core.local_storage import LocalFolder
from trident.states.delta import log_commit
from trident.states.delta import torn_entries as table_locks
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.log_commit import EntryMayBeLost, Signature, publish_draft, remove_drafts
from trident.states.delta.torn_entries import table_lock

ROUNDS = int(os.environ.get("TRIDENT_RACE_ROUNDS", "0")) or 60


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "_delta_log").mkdir()
    Path(DeltaLog(tmp_path).entry(0)).write_text('{"zero":0}\n')
    return str(tmp_path)


def draft(table: str, version: int, text: str) -> str:
    path = log_commit.draft_of(table, version)
    Path(path).write_text(text)
    return path


def base(table: str, version: int) -> Signature | None:
    return DeltaLog(table).signature(version - 1)


def names(table: str) -> list[str]:
    return sorted(os.listdir(os.path.join(table, "_delta_log")))


class Rival:
    """Another writer's log store: a draft, a look, a rename."""

    def __init__(self, table: str, version: int) -> None:
        self.entry = DeltaLog(table).entry(version)
        self.draft = os.path.join(table, "_delta_log", f".{version:020d}.json.{uuid.uuid4()}.tmp")
        Path(self.draft).write_text("rival")

    def look(self) -> bool:
        self.free = not os.path.exists(self.entry)
        return self.free

    def rename(self) -> bool:
        """Whether it is told that it has committed."""
        try:
            if not self.free:
                os.unlink(self.draft)
                return False
            os.rename(self.draft, self.entry)
        except FileNotFoundError:
            return False
        return True


def test_the_second_of_two_is_told_so_and_changes_nothing(table: str) -> None:
    first, second = draft(table, 1, "first"), draft(table, 1, "second")
    assert publish_draft(table, 1, first, base(table, 1)) == DeltaLog(table).signature(1)
    with pytest.raises(CommitConflict):
        publish_draft(table, 1, second, base(table, 1))
    assert Path(DeltaLog(table).entry(1)).read_text() == "first"


def test_against_a_writer_that_renames_exactly_one_wins_in_every_round(table: str) -> None:
    random.seed(7)
    won = {"ours": 0, "rival": 0}
    for version in range(1, ROUNDS + 1):
        ours, rival, told = draft(table, version, "ours"), Rival(table, version), []
        start = threading.Barrier(2)
        before, between = random.uniform(0, 0.001), random.choice([0, 0.0005, random.uniform(0, 0.004)])

        def race(rival: Rival = rival, told: list = told, start=start, before=before, between=between) -> None:
            start.wait()
            time.sleep(before)
            rival.look()
            time.sleep(between)
            told.append(rival.rename())

        racer = threading.Thread(target=race)
        racer.start()
        start.wait()
        time.sleep(random.uniform(0, 0.002))
        try:
            publish_draft(table, version, ours, base(table, version))
            winner = "ours"
        except CommitConflict:
            winner = "rival"
        racer.join()
        assert told == [winner == "rival"], f"round {version}: {winner} has it, and the rival was told {told}"
        assert Path(DeltaLog(table).entry(version)).read_text() == winner
        won[winner] += 1
        log_commit.remove_draft(ours)
    assert min(won.values()) > 0, f"one side always won, which tests nothing: {won}"


def test_a_rival_that_was_stopped_between_its_look_and_its_rename_cannot_replace_our_entry(table: str) -> None:
    rival = Rival(table, 1)
    assert rival.look()
    publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    assert not rival.rename()
    assert Path(DeltaLog(table).entry(1)).read_text() == "ours"


def test_a_rival_that_is_only_slow_may_find_out_by_itself_that_it_has_lost(table: str) -> None:
    """It then tries again at the next version, as Delta does; without its draft it would fail with an odd error."""
    rival = Rival(table, 1)
    late = threading.Timer(0.03, lambda: (rival.look(), rival.rename()))
    late.start()
    publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    late.join()
    assert not rival.free and not os.path.exists(rival.draft)


def test_an_entry_of_ours_that_was_replaced_before_we_were_told_is_no_commit(table: str, monkeypatch) -> None:
    rival = Rival(table, 1)
    rival.look()
    link = os.link

    def linked_and_replaced(*args, **kwargs) -> None:
        link(*args, **kwargs)
        assert rival.rename()

    monkeypatch.setattr(os, "link", linked_and_replaced)
    with pytest.raises(CommitConflict, match="replaced"):
        publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    assert Path(DeltaLog(table).entry(1)).read_text() == "rival"


@pytest.mark.parametrize("when", ["before it looks", "behind it"])
def test_a_table_that_was_made_anew_with_as_many_versions_gets_nothing(tmp_path: Path, table: str, when, monkeypatch):
    """A coordinator of the life before a reset was stopped in the middle of a commit, and goes on."""
    seen, ours = base(table, 1), draft(table, 1, "zombie")

    def reset(*_: object) -> None:
        text = Path(ours).read_text()
        log = tmp_path / "_delta_log"
        log.rename(tmp_path / "gone")  # what a removed folder is to whoever has it open, minus its own disappearance
        for path in (tmp_path / "gone").iterdir():
            path.unlink()
        (tmp_path / "gone").rmdir()
        log.mkdir()
        (log / f"{0:020d}.json").write_text('{"zero":0}\n')
        Path(ours).write_text(text)

    if when == "behind it":
        link = os.link
        monkeypatch.setattr(os, "link", lambda *args, **kwargs: (reset(), link(*args, **kwargs)))
    else:
        reset()
    with pytest.raises(CommitConflict):
        publish_draft(table, 1, ours, seen)
    assert not os.path.exists(DeltaLog(table).entry(1))


STOPPED = """
import os, signal, sys
from trident.states.core.local_storage import LocalFolder
from trident.states.delta import log_commit
from trident.states.delta.delta_log import DeltaLog
table, where = sys.argv[1:]
draft = log_commit.draft_of(table, 1)
open(draft, "w").write("stopped")
link = os.link
def stopping(*args, **kwargs):
    if where == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    link(*args, **kwargs)
    if where == "behind":
        os.kill(os.getpid(), signal.SIGSTOP)
os.link = stopping
try:
    log_commit.publish_draft(table, 1, draft, DeltaLog(table).signature(0))
    print("committed")
except log_commit.CommitConflict:
    print("conflict")
"""


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_process_that_is_stopped_inside_a_commit_keeps_nobody_waiting(table: str, where: str) -> None:
    """It used to keep a lock: its successor on the same machine waited until a person killed it."""
    process = subprocess.Popen([sys.executable, "-c", STOPPED, table, where], stdout=subprocess.PIPE, text=True)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        version = 1 if where == "before" else 2
        started = time.monotonic()
        publish_draft(table, version, draft(table, version, "successor"), base(table, version))
        remove_drafts(table, version)
        assert time.monotonic() - started < 5
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=20)
        assert out == ("conflict\n" if where == "before" else "committed\n")
        assert Path(DeltaLog(table).entry(version)).read_text() == "successor"
    finally:
        process.kill()
        process.wait()


def test_an_entry_is_flushed_before_it_has_its_name_and_the_name_before_anybody_is_told(table, monkeypatch) -> None:
    ours, done = draft(table, 1, "ours"), []
    fsync, link = os.fsync, os.link

    def flushed(handle: int) -> None:
        done.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "link", lambda *args, **kwargs: (done.append("link"), link(*args, **kwargs)))
    publish_draft(table, 1, ours, base(table, 1))
    assert done == [("fsync", os.path.basename(ours)), "link", ("fsync", "_delta_log")]


def test_a_flush_that_fails_behind_the_link_leaves_the_outcome_open(table: str, monkeypatch) -> None:
    fsync = os.fsync

    def failing(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(5, "Input/output error")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(EntryMayBeLost):
        publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))


@pytest.mark.parametrize("refused", ["names", "stat", "delete", "flush"])
def test_nothing_that_the_disk_refuses_behind_the_link_is_told_as_a_failure(table, monkeypatch, refused):
    """The commit is there: a caller that is told otherwise deletes the files that it names."""
    claim = LocalFolder.claim

    def claimed(self: LocalFolder, *args: Any) -> Any:
        found = claim(self, *args)
        monkeypatch.setattr(LocalFolder, refused, failing)
        return found

    def failing(self: LocalFolder, *args: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalFolder, "claim", claimed)
    with pytest.raises(EntryMayBeLost):
        publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    assert os.path.exists(DeltaLog(table).entry(1))


def test_a_link_whose_answer_was_lost_is_known_by_its_inode(table: str, monkeypatch) -> None:
    """NFS sends a request again and is told that the name exists."""
    link = os.link

    def answer_lost(*args, **kwargs) -> None:
        link(*args, **kwargs)
        link(*args, **kwargs)

    monkeypatch.setattr(os, "link", answer_lost)
    assert publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1)) == DeltaLog(table).signature(1)


@pytest.mark.parametrize(("number", "said"), [(1, "makes no hard links"), (28, "nothing happened")])
def test_a_link_that_is_refused_is_a_failure_and_says_what_to_do(table: str, monkeypatch, number, said) -> None:
    def refused(*args, **kwargs) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(TableError, match=said) as caught:
        publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    assert not isinstance(caught.value, CommitConflict)
    assert not os.path.exists(DeltaLog(table).entry(1))


def test_drafts_of_entries_that_exist_go_and_those_of_the_next_one_and_of_a_running_checkpoint_stay(table: str) -> None:
    log = Path(table, "_delta_log")
    stale = [
        f".{0:020d}.json.a.tmp",
        f"..{0:020d}.json.a.tmp.crc",
        f".{0:020d}.json.b.trident.tmp",
        f"..{0:020d}.json.b.trident.tmp.c.tmp",
        f"...{0:020d}.json.b.trident.tmp.c.tmp.crc",
    ]
    old = f".{0:020d}.checkpoint.parquet.a.tmp"
    stay = [f".{1:020d}.json.a.tmp", f".{0:020d}.checkpoint.parquet.b.tmp", f"{0:020d}.json", f"{0:020d}.crc"]
    for name in [*stale, old, *stay]:
        (log / name).touch()
    os.utime(log / old, (1, 1))
    assert sorted(remove_drafts(table, 0)) == sorted([*stale, old])
    assert names(table) == sorted(stay)


def test_a_checkpoint_that_is_being_written_is_no_rival(table: str) -> None:
    checkpoint = Path(table, "_delta_log", f".{1:020d}.checkpoint.parquet.a.tmp")
    checkpoint.touch()
    started = time.monotonic()
    publish_draft(table, 1, draft(table, 1, "ours"), base(table, 1))
    assert checkpoint.exists() and time.monotonic() - started < log_commit.RIVAL_SECS


def test_merges_share_the_lock_that_a_repair_has_alone(tmp_path: Path) -> None:
    with table_lock(str(tmp_path), shared=True), table_lock(str(tmp_path), shared=True, timeout_secs=5):
        with pytest.raises(TableError, match=f"held by process {os.getpid()}"):
            with table_lock(str(tmp_path), timeout_secs=0.1):
                pass
    with table_lock(str(tmp_path), timeout_secs=5):
        pass


# --- the lock that a repair has, over real processes -----------------------------------------------------
# The lock that a repair has against MERGEs, on a local disk, over real processes.

HOLDER = """
import sys
from trident.states.delta.torn_entries import table_lock
with table_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    command, pipe = [sys.executable, "-c", HOLDER, str(tmp_path)], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_holder_is_waited_for_and_named_and_its_death_lets_the_next_one_in(
    holder, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(table_locks, "_WARN_AFTER_SECS", 0.2)
    entered = threading.Event()

    def enter() -> None:
        with table_lock(str(tmp_path)):
            entered.set()

    os.kill(holder.pid, signal.SIGSTOP)
    waiting = threading.Thread(target=enter, daemon=True)
    with caplog.at_level(logging.WARNING):
        waiting.start()
        assert eventually(lambda: caplog.messages)
    assert f"{tmp_path} since 0 s; it is held by process {holder.pid} (stopped)" in caplog.text
    assert not entered.is_set()
    holder.kill()
    assert entered.wait(10)


def test_who_waits_a_moment_hears_nothing(holder, tmp_path: Path, caplog) -> None:
    threading.Timer(0.2, holder.stdin.close).start()
    with caplog.at_level(logging.WARNING), table_lock(str(tmp_path)):
        assert holder.wait(10) == 0
    assert not caplog.messages
