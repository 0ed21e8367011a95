"""A task's copy on its own host: as of the leader's transaction or none, whatever other processes and the disk do."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.servers.zk_fixtures import eventually
from tests.states.keyed_helpers import Group, all_words, compactor_of, keyed, publish_words, values_in
from trident.coordinators import faults
from trident.states.core import local_copy, storage
from trident.states.core.local_copy import CopyAsOf, StaleCopy
from trident.states.core.place import Place
from trident.states.core.shards import SentCopy, Shard
from trident.states.keyed import host_copy
from trident.states.keyed.copies import HostCopies, forget_copies, last_repair, own_folder

BYTES_MAX = 1 << 28
# A worker of another process: prints the values of the words that it is given, or why it has none.
WORKER = """
import os, pickle, sys
from trident.coordinators import faults
from trident.states.keyed import host_copy
from tests.states.keyed.test_host_copy import values
host_copy.WAIT_SECS = float(os.environ["WAIT_SECS"])
faults.arm(os.environ["ARMED_HERE"])  # in this process, and in none that it starts
for line in sys.stdin:
    sent, words = pickle.loads(bytes.fromhex(line))
    try:
        print(repr(values(sent, words)), flush=True)
    except Exception as error:
        print(f"none: {type(error).__name__} {error}".replace(chr(10), " "), flush=True)
"""


def caught_up_copy(sent: SentCopy) -> CopyAsOf:
    return host_copy.caught_up_copy(sent, "a host", "a boot")


def values(sent: SentCopy, words: list) -> dict:
    """Key → values of those that the copy on this host has."""
    return values_in(caught_up_copy(sent), words)


@pytest.fixture
def group(spark, engine, tmp_path):
    return Group(spark, engine, tmp_path / "w", keyed(), keyed("last", "word string, v double", merging="last"))


@pytest.fixture(autouse=True)
def hosts(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Moves this process to a host, which has a disk of its own."""
    monkeypatch.setattr(host_copy, "WAIT_SECS", 60.0)
    monkeypatch.setattr(host_copy, "_catch_ups", {})

    def move(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))

    move("one")
    yield move
    for bringer in host_copy._catch_ups.values():
        if bringer._process is not None:
            bringer._process.kill()
            bringer._process.wait(60)
    faults.disarm()


class Worker:
    """A Python worker of a host, in a process of its own."""

    def __init__(self, host: Path, armed: str = "", armed_here: str = "", wait_secs: float = 60.0) -> None:
        host.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(host), "TRIDENT_FAULTS": armed, "ARMED_HERE": armed_here}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env=environment | {"WAIT_SECS": str(wait_secs)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, sent: SentCopy, words: list) -> None:
        self._process.stdin.write(pickle.dumps((sent, words)).hex() + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict | str:
        line = self._process.stdout.readline().strip()
        return ast.literal_eval(line) if line.startswith("{") else line

    def end(self) -> int:
        self._process.stdin.close()
        return self._process.wait(60)


@pytest.fixture
def workers(tmp_path):
    made: list[Worker] = []

    def start(host: str = "one", armed: str = "", armed_here: str = "", wait_secs: float = 60.0) -> Worker:
        made.append(Worker(tmp_path / host, armed, armed_here, wait_secs))
        return made[-1]

    yield start
    for worker in made:
        worker._process.kill()
        worker._process.wait()


def told(group, states=("counts", "last"), repair=""):
    return HostCopies(group.warehouse, BYTES_MAX, states, repair)


def copies(tmp_path, host="one"):
    return sorted((tmp_path / host).glob("trident-copies-*/*/executors/*/*/*/*.copy"))


@pytest.mark.parametrize("name", ["counts", "last"])
def test_each_host_has_its_own_and_brings_it_on(group, tmp_path, hosts, name):
    leader = told(group)
    publish_words(group, 1, 2)
    for host, upto in (("one", 2), ("one", 3), ("two", 3), ("two", 5), ("one", 7)):
        publish_words(group, *range(group.rows[name][-1][0] + 1, upto + 1))
        hosts(host)
        sent = pickle.loads(pickle.dumps(leader.as_of([name], upto)[name]))
        assert values(sent, all_words(group, name)) == group.expected(name, upto), (host, upto)
        leader.served({name: sent})
    assert len(copies(tmp_path, "one")) == len(copies(tmp_path, "two")) == 1, "it was built again"
    health = leader.health()
    assert [(one.state, one.condition, one.txid, one.on_executors) for one in health if one.txid] == [
        (name, "following", 7, True)
    ]


def test_a_log_that_a_host_sees_as_it_was_is_not_taken_for_the_whole(group, tmp_path):
    """As on a network file system: the entry of the transaction before is not there yet."""
    leader = told(group)
    publish_words(group, 1, 2)
    assert values(leader.as_of(["counts"], 2)["counts"], all_words(group)) == group.expected("counts", 2)
    log = group.warehouse / group.bindings["counts"].published_table.path / "_delta_log"
    publish_words(group, 3)
    sent = leader.as_of(["counts"], 3)["counts"]
    (last,) = [path for path in log.glob("*.json") if int(path.stem) == 3]
    for hide in (True, False):
        if hide:
            last.rename(tmp_path / "hidden")
            with pytest.raises(StaleCopy, match="ends otherwise here"):
                caught_up_copy(sent)
        else:
            (tmp_path / "hidden").rename(last)
    # Transaction 4 has committed nothing: its state is that of 3.
    sent = leader.as_of(["counts"], 4)["counts"]
    assert values(sent, all_words(group)) == group.expected("counts", 3)
    assert len(copies(tmp_path)) == 1


def test_a_task_of_a_deposed_leader_gets_none_and_takes_none_back(group, tmp_path):
    leader = told(group)
    publish_words(group, 1, 2)
    old = leader.as_of(["counts"], 2)["counts"]
    assert values(old, all_words(group)) == group.expected("counts", 2)
    publish_words(group, 3)
    assert leader.as_of(["counts"], 2) is None, "the log is past it"
    assert values(leader.as_of(["counts"], 3)["counts"], all_words(group)) == group.expected("counts", 3)
    (folder,) = copies(tmp_path)
    with pytest.raises(StaleCopy, match="past transaction 2"):
        caught_up_copy(old)
    with pytest.raises(StaleCopy):
        caught_up_copy(replace(leader.as_of(["counts"], 3)["counts"], commit="3-9-d3"))
    assert copies(tmp_path) == [folder]


def test_a_task_behind_transactions_that_changed_nothing_costs_no_copy(group, tmp_path):
    leader = told(group)
    publish_words(group, 1, 2)
    before, behind = leader.as_of(["counts"], 4)["counts"], leader.as_of(["counts"], 3)["counts"]
    assert values(before, all_words(group)) == group.expected("counts", 2)
    (folder,) = copies(tmp_path)
    with pytest.raises(StaleCopy, match="as of transaction 4 already"):
        caught_up_copy(behind)
    assert copies(tmp_path) == [folder]
    assert values(before, all_words(group)) == group.expected("counts", 2)


def test_a_repair_and_another_incarnation_are_other_copies(group, tmp_path):
    publish_words(group, 1)
    sent = told(group).as_of(["counts"], 1)["counts"]
    assert values(sent, ["the"]) == {("the",): (2,)}
    (before,) = copies(tmp_path)
    forget_copies(group.warehouse)
    again = told(group, repair=last_repair(group.warehouse)).as_of(["counts"], 1)["counts"]
    assert values(again, ["the"]) == {("the",): (2,)}
    assert before not in copies(tmp_path)
    with pytest.raises(StaleCopy):
        caught_up_copy(replace(sent, state=replace(sent.state, incarnation="inc2")))


def of_shard(group, name, txid, shard):
    """Those of ``group.expected`` whose keys are in a shard."""
    whole = group.expected(name, txid)
    rows = pa.table({"word": pa.array([word for (word,) in whole], pa.string())})
    kept = shard.of_rows(rows, rows.schema, ["word"]).to_pylist()
    return {key: value for (key, value), is_in in zip(whole.items(), kept) if is_in}


def test_shards_have_all_keys_once_also_after_they_moved_and_were_cut_anew(group, tmp_path, hosts, rng):
    """Each shard's task runs on any of three hosts, a copy of some transactions before may be there, or another one's;
    tables are merged, and the next leader has another number of shards."""
    leader, count = told(group), rng.randint(1, 7)
    homes = [rng.choice(["one", "two", "three"]) for _ in range(7)]
    publish_words(group, *range(1, 9))
    for txid in range(9, 21):
        if txid % 3 == 0:
            count, leader = rng.choice([n for n in range(1, 8) if n != count]), told(group)
        publish_words(group, txid)
        if rng.random() < 0.2:
            for name in group.bindings:
                compactor_of(group, name).merge_once(txid, force=True)
        name = rng.choice(["counts", "last"])
        sent, every = leader.as_of([name], txid)[name], {}
        for shard in Shard(0, 1).parts(count):
            if rng.random() < 0.2:
                homes[shard.number] = rng.choice(["one", "two", "three"])
            hosts(homes[shard.number])
            found = values(replace(sent, shard=shard), all_words(group, name))
            assert found == of_shard(group, name, txid, shard), (name, txid, shard)
            assert caught_up_copy(replace(sent, shard=shard)).shard == shard and not every.keys() & found.keys()
            every |= found
        assert every == group.expected(name, txid)
        leader.served({name: sent})


def test_a_host_lets_go_of_copies_of_another_number_of_shards_and_of_those_that_moved(group, tmp_path, monkeypatch):
    monkeypatch.setattr(host_copy, "_REMOVE_UNUSED_SECS", 0.0)
    leader, now = told(group), time.time()

    def follow(txid, *shards, used=None):
        publish_words(group, txid)
        sent = leader.as_of(["counts"], txid)["counts"]
        for shard in shards:
            assert values(replace(sent, shard=shard), all_words(group)) == of_shard(group, "counts", txid, shard)
        return [path.parent.name for path in copies(tmp_path)]

    zero, one, two = Shard(0, 1).parts(3)
    assert follow(1, zero, one, two) == ["0-of-3", "1-of-3", "2-of-3"]
    for path in copies(tmp_path):  # nothing has happened for a day
        os.utime(path, (now - 86400, now - 86400))
    assert follow(2, zero) == ["0-of-3", "1-of-3", "2-of-3"], "they were used as late as this one"
    assert follow(3, one) == ["0-of-3", "1-of-3", "2-of-3"]
    (unused,) = copies(tmp_path)[2:]
    lock = unused.parent / "host.lock"
    with storage.lock(lock, tmp_path, timeout_secs=0):
        assert follow(4, zero) == ["0-of-3", "1-of-3", "2-of-3"], "a process brings it on"
    faults.arm("copy.let_go:fail_before")
    assert follow(5, zero) == ["0-of-3", "1-of-3", "2-of-3"] and not faults.unfired()
    assert follow(6, zero) == ["0-of-3", "1-of-3"]
    assert follow(7, Shard(1, 2)) == ["1-of-2"]


def test_half_a_copy_of_a_shard_that_moved_goes_and_one_that_is_being_built_stays(group, tmp_path, workers):
    leader, (here, moved, built) = told(group), Shard(0, 1).parts(3)

    def sent(txid, shard):
        return replace(leader.as_of(["counts"], txid)["counts"], shard=shard)

    publish_words(group, 1)
    killed, builds = (workers(armed="copy.build:pause") for _ in range(2))
    for worker, shard in ((killed, moved), (builds, built)):
        worker.ask(sent(1, shard), all_words(group))
        assert eventually(lambda shard=shard: str(shard) in [path.parent.name for path in copies(tmp_path)], 60)
    killed._process.kill()
    killed._process.wait(60)
    assert values(sent(1, here), all_words(group)) == of_shard(group, "counts", 1, here)
    assert [path.parent.name for path in copies(tmp_path)] == [str(here), str(built)]
    publish_words(group, 2)
    assert values(sent(2, moved), all_words(group)) == of_shard(group, "counts", 2, moved), "it came back"


def test_a_shard_that_moves_while_its_old_host_still_runs_the_task(group, tmp_path, workers):
    leader, shard = told(group), Shard(1, 3)
    old, new = workers("one"), workers("two")

    def sent(txid):
        publish_words(group, txid)
        return replace(leader.as_of(["counts"], txid)["counts"], shard=shard)

    first = sent(1)
    old.ask(first, all_words(group))
    assert old.answer() == of_shard(group, "counts", 1, shard)
    hung = workers("one", armed="copy.apply:pause")
    second = sent(2)
    hung.ask(second, all_words(group))
    new.ask(second, all_words(group))  # speculation, or the executor is taken for dead
    assert new.answer() == of_shard(group, "counts", 2, shard)
    new.ask(sent(3), all_words(group))
    assert new.answer() == of_shard(group, "counts", 3, shard)
    hung._process.kill()
    back = sent(4)  # the old host has the copy of the first transaction
    old.ask(back, all_words(group))
    assert old.answer() == of_shard(group, "counts", 4, shard)
    old.ask(second, all_words(group))
    assert old.answer().startswith("none: StaleCopy"), "a task that was forgotten takes none back"
    assert len(copies(tmp_path, "one")) == len(copies(tmp_path, "two")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "copy.apply:do_then_die",
        "copy.piece:do_then_die:2",
        pytest.param("copy.build:do_then_die", marks=pytest.mark.long),
        pytest.param("copy.host:do_then_die", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_is_killed_while_it_brings_a_copy_up_leaves_none_or_that_of_before(
    group, tmp_path, workers, fault
):
    leader = told(group)
    publish_words(group, 1)
    asked = all_words(group)
    worker, shard = workers(armed=fault), Shard(1, 2)
    follows = fault.startswith(("copy.apply", "copy.piece"))
    worker.ask(replace(leader.as_of(["counts"], 1)["counts"], shard=shard), asked)
    if follows:
        assert worker.answer() == of_shard(group, "counts", 1, shard)
        publish_words(group, 2)
        worker.ask(replace(leader.as_of(["counts"], 2)["counts"], shard=shard), all_words(group))
    assert worker.answer() == "" and worker.end() == -signal.SIGKILL
    publish_words(group, 2 + follows)
    txid = group.rows["counts"][-1][0]
    sent = replace(leader.as_of(["counts"], txid)["counts"], shard=shard)
    assert values(sent, all_words(group)) == of_shard(group, "counts", txid, shard)
    assert len(copies(tmp_path)) == 1, "half a copy stays"


_SWEEP = os.environ.get("TRIDENT_SWEEP") == "all"
_POINTS = ("copy.host", "copy.open", "copy.build", "copy.piece", "copy.apply", "copy.let_go")


@pytest.mark.skipif(not _SWEEP, reason="TRIDENT_SWEEP=all runs it")
@pytest.mark.parametrize("outcome", ["fail_before:1", "fail_before:2", "do_then_fail:1", "do_then_fail:2"])
@pytest.mark.parametrize("point", _POINTS)
def test_a_worker_that_fails_at_any_point_gives_none_or_the_right_values(group, workers, point, outcome):
    leader, worker = told(group), workers(armed=f"{point}:{outcome}")
    for txid in range(1, 5):
        publish_words(group, txid)
        sent = leader.as_of(["counts"], txid)["counts"]
        worker.ask(sent, all_words(group))
        answer = worker.answer()
        assert answer == group.expected("counts", txid) or str(answer).startswith("none: "), (txid, answer)
    assert values(sent, all_words(group)) == group.expected("counts", 4)
    assert worker.end() == 0


def test_workers_of_one_host_share_a_copy_and_none_waits_for_one_that_hangs(group, tmp_path, workers, monkeypatch):
    leader = told(group)
    publish_words(group, 1)
    sent, asked = leader.as_of(["counts"], 1)["counts"], all_words(group)
    several = [workers() for _ in range(2)]
    for worker in several:
        worker.ask(sent, asked)
    assert [worker.answer() for worker in several] == [group.expected("counts", 1)] * 2
    assert len(copies(tmp_path)) == 1
    publish_words(group, 2)
    sent, asked = leader.as_of(["counts"], 2)["counts"], all_words(group)
    hangs = workers(armed="copy.apply:hang")
    hangs.ask(sent, asked)
    lock = copies(tmp_path)[0].parent / "host.lock"
    while not _held(lock):
        threading.Event().wait(0.01)
    monkeypatch.setattr(host_copy, "WAIT_SECS", 0.2)
    with pytest.raises(host_copy.NotReady):
        caught_up_copy(sent)
    hangs._process.kill()
    monkeypatch.setattr(host_copy, "WAIT_SECS", 60.0)
    assert values(sent, asked) == group.expected("counts", 2)


@pytest.mark.long
def test_a_copy_that_takes_longer_than_a_task_waits_comes_up_behind_the_task(group, tmp_path, workers):
    """Spark ends a Python worker whose task has failed, and with it the thread that fills the copy."""
    leader = told(group)
    publish_words(group, 1, 2)
    worker = workers(armed_here="copy.build:hang", wait_secs=0.2)
    worker.ask(leader.as_of(["counts"], 2)["counts"], all_words(group))
    assert worker.answer().startswith("none: NotReady")
    publish_words(group, 3)  # the leader has read the tables, and the batches go on
    worker._process.kill()
    worker._process.wait(60)
    sent = leader.as_of(["counts"], 3)["counts"]
    bringer, deadline = host_copy._catch_up_of(sent, "a host", "a boot"), time.monotonic() + 60
    while bringer.ready(sent) is None:
        assert time.monotonic() < deadline, "it never comes up"
        time.sleep(0.01)
    assert values(sent, all_words(group)) == group.expected("counts", 3)
    assert bringer._thread is None and len(copies(tmp_path)) == 1, "the next task finds it"


def test_the_files_of_a_copy_that_is_left_to_others_after_each_transaction_are_merged(group, tmp_path, monkeypatch):
    monkeypatch.setattr(local_copy, "_SMALL_ROWS", 0)
    leader = told(group)
    for txid in range(1, 9):
        publish_words(group, txid)
        assert values(leader.as_of(["counts"], txid)["counts"], all_words(group)) == group.expected("counts", txid)
    sent = leader.as_of(["counts"], 8)["counts"]
    host_copy._catch_up_of(sent, "a host", "a boot").start(sent).join(60)
    (copy,) = copies(tmp_path)
    assert len(list(copy.glob("*.rows"))) <= 4, "each of at least twice the rows of the next one"


@pytest.mark.long
def test_one_process_brings_a_copy_up_and_tells_why_it_cannot(group):
    publish_words(group, 1)
    whole = told(group).as_of(["counts"], 1)["counts"]
    small = replace(whole, bytes_max=100)
    bringer = host_copy._catch_up_of(small, "a host", "a boot")
    with storage.lock(bringer._process_lock, bringer._place.anchor):
        assert isinstance(bringer.start_process(small), host_copy.NotReady)
        assert bringer._process is None, "there is one already"
    assert isinstance(bringer.start_process(small), host_copy.NotReady)
    assert bringer._process.wait(60) == 0
    told_why = bringer.start_process(small)
    assert not isinstance(told_why, host_copy.NotReady) and "is full" in str(told_why)
    assert bringer._process.wait(60) == 0
    assert values(whole, all_words(group)) == group.expected("counts", 1)
    assert not bringer._failure.exists()


@pytest.mark.long
def test_the_process_that_brings_a_copy_up_ends_with_the_executor(group, monkeypatch):
    publish_words(group, 1)
    sent = told(group).as_of(["counts"], 1)["counts"]
    bringer, daemon = host_copy._catch_up_of(sent, "a host", "a boot"), subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(os, "getppid", lambda: daemon.pid)
    with storage.lock(bringer._base / "host.lock", bringer._place.anchor):  # so that it is never done
        bringer.start_process(sent)
        while not _opened(bringer._process.pid, bringer._process_lock):
            time.sleep(0.01)
        daemon.kill()
        daemon.wait(60)
        assert bringer._process.wait(30) == 1
    assert values(sent, all_words(group)) == group.expected("counts", 1)


def _opened(process: int, path: Path) -> bool:
    folder = Path(f"/proc/{process}/fd")
    return any(os.path.realpath(one) == str(path) for one in folder.iterdir())


def _held(lock: Path) -> bool:
    import fcntl

    with open(lock, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("mode", "taken"), [(0o700, True), (0o755, True), (0o775, False), (0o757, False)])
def test_a_folder_that_others_may_write_to_is_not_taken_and_one_that_they_may_read_is_closed(
    tmp_path: Path, monkeypatch, mode: int, taken: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    above = tmp_path / f"trident-copies-{os.getuid()}"
    above.mkdir()
    above.chmod(mode)
    found = own_folder(Place(tmp_path / "warehouse"))
    assert (found is not None) == taken
    assert above.stat().st_mode & 0o777 == (0o700 if taken else mode)


def test_a_disk_that_has_no_room_is_no_copy_and_the_leader_lets_time_go_by(group, tmp_path, monkeypatch):
    leader = told(group)
    for txid in (1, 2):
        group.publish(txid, {"last": [(f"{txid}-{number}" * 40, 0.5, False) for number in range(5_000)]})
    sent = leader.as_of(["last"], 2)["last"]
    with pytest.raises(StaleCopy):
        caught_up_copy(replace(sent, bytes_max=1 << 18))
    leader.failed("last", "MDB_MAP_FULL")
    assert leader.as_of(["last"], 2) is None
    assert [one.condition for one in leader.health()] == ["waiting", "off"]
    monkeypatch.setattr(leader._followed["last"], "off_until", 0.0)
    again = leader.as_of(["last"], 2)["last"]
    assert len(values(again, all_words(group, "last"))) == 10_000


def test_a_host_whose_temporary_folder_others_can_change_or_write_has_none(group, tmp_path, hosts):
    publish_words(group, 1)
    sent = told(group).as_of(["counts"], 1)["counts"]
    (above,) = [tmp_path / "one" / f"trident-copies-{os.getuid()}"]
    above.mkdir(mode=0o700)
    above.chmod(0o777)
    with pytest.raises(StaleCopy, match="temporary folder"):
        caught_up_copy(sent)
