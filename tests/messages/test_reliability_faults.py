"""Losses in a tracked stream (docs/semantics.md 6.3): the real thing is killed, and every message counts once.

A child process (tests/messages/reliability_child.py) counts the words of messages of a
Redis list. Afterwards, whatever was killed: the tables hold exactly the words
of the lines without poison, the list is empty, and each message was settled
once. What replays, and what does not, is what the table of 6.3 says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.messages.reliability_child import GATE, POISON, STREAM, TOPOLOGY
from tests.servers.redis_fixtures import RedisServer
from tests.servers.zk_fixtures import SESSION_SECS, eventually
from trident import RedisListQueue
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.leadership import Holder
from trident.coordinators.records import decode
from trident.coordinators.zookeeper import ZooKeeper

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECS = 200.0
KILLED = -signal.SIGKILL


class Life:
    """A coordinator process."""

    def __init__(self, settings: dict[str, Any], log: Path, fault: str = "") -> None:
        self._log = log
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "TRIDENT_FAULTS": fault,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "messages" / "reliability_child.py"), json.dumps(settings)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.pid = self.process.pid

    @property
    def has_started(self) -> bool:
        return "started\n" in self.text

    @property
    def text(self) -> str:
        return self._log.read_text()

    def ends(self, code: int = 0) -> None:
        found = self.process.wait(WAIT_SECS)
        assert found == code, f"ended with {found}: {self.text[-4000:]}"

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """What it becomes true as, while the process lives."""
        assert eventually(lambda: what() or self.process.poll() is not None, WAIT_SECS), self.text[-4000:]
        assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.text[-4000:]}"
        return what()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Case:
    """A warehouse, a list of messages, and the processes that have worked them off."""

    def __init__(self, folder: Path, redis: RedisServer, zookeeper: str, zookeeper_root: str) -> None:
        self.warehouse, self._folder = folder / "warehouse", folder
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.queue = RedisListQueue(redis.url, f"lines of {zookeeper_root[1:]}")
        self.settings = {
            "warehouse": str(self.warehouse),
            "redis": redis.url,
            "list": self.queue.key,
            "gates": str(self.gates),
            "zookeeper": zookeeper,
            "zookeeper_root": zookeeper_root,
            "master": "local[2]",
        }
        self.lines: dict[str, str] = {}
        self.lives: list[Life] = []

    # --- what is done ------------------------------------------------------------------------

    def put(self, count: int, at: dict[int, str] | None = None) -> None:
        """More messages; ``at`` says which have a further word."""
        for number in range(count):
            name = f"m{len(self.lines)}"
            further = (at or {}).get(number, "d")
            self.lines[name] = f"a b{len(self.lines) % 5} {further} c{len(self.lines)} a"
            self.queue.put(self.lines[name], name)

    def start(self, fault: str = "", **settings: Any) -> Life:
        life = Life({**self.settings, **settings}, self._folder / f"life-{len(self.lives)}.log", fault)
        self.lives.append(life)
        return life

    def waiting(self, gate: str) -> list[int]:
        """Processes that have come to a gate, once for each time, the first one first."""
        found = [path.name.split(".") for path in self.gates.glob(f"{gate}.*.waits")]
        return [int(pid) for _, pid, _, _ in sorted(found, key=lambda parts: int(parts[2]))]

    def open(self, gate: str) -> None:
        (self.gates / f"{gate}.open").touch()

    def end(self) -> None:
        for gate in range(1, 4):
            self.open(f"{GATE}{gate}")
        for life in self.lives:
            life.kill()
        self.queue.clear()

    # --- what is found -----------------------------------------------------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        path = self.warehouse / table
        if not (path / "_delta_log").is_dir():
            return []
        return deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()

    def ends(self, *outcomes: str) -> list[str]:
        """Messages that have ended so, once per row of the table that says it."""
        rows = self.rows(f"{TOPOLOGY}__{STREAM}__messages")
        return [json.loads(row["message"]) for row in rows if row["outcome"] in outcomes]

    def txid_of(self, name: str) -> int:
        """The transaction that a message was acknowledged with."""
        rows = self.rows(f"{TOPOLOGY}__{STREAM}__messages")
        (txid,) = [row["txid"] for row in rows if row["message"] == json.dumps(name) and row["outcome"] == "acked"]
        return txid

    @property
    def begun_again(self) -> list[int]:
        """Transactions of the last process that it did not commit by their first attempt."""
        return sorted(int(txid) for txid, attempt in self._said()["attempts"].items() if attempt)

    def _said(self) -> dict[str, Any]:
        """What the last process has said in the end."""
        return json.loads(next(line for line in self.lives[-1].text.splitlines() if line.startswith('{"counts"')))

    def check_nothing_is_lost(self) -> None:
        """What is not in the list any more is in the tables; at any moment."""
        assert len(self.lines) - len(self.queue) <= len(self.ends("acked", "dead"))

    def check(self) -> None:
        """Everything counted once, whatever happened; nothing failed but poison, which was tried twice."""
        poison = sorted(name for name, line in self.lines.items() if POISON in line.split())
        lines = {name: line for name, line in self.lines.items() if name not in poison}
        words = Counter(word for line in lines.values() for word in line.split())
        assert self._said()["counts"] == words
        assert Counter(row["word"] for row in self.rows("seen")) == words
        assert Counter(self.ends("acked")) == Counter(list(lines))
        assert (sorted(self.ends("failed")), sorted(self.ends("dead"))) == (poison, poison)
        letters = self.rows(f"{TOPOLOGY}__{STREAM}__dead_letters")
        assert sorted((json.loads(row["message"]), row["attempts"]) for row in letters) == [(one, 2) for one in poison]
        assert (len(self.queue), self.queue.pending) == (0, 0)


@pytest.fixture
def case(tmp_path: Path, redis_server: RedisServer, zk_server: str, zk_root: str) -> Iterator[Case]:
    made = Case(tmp_path, redis_server, zk_server, zk_root)
    yield made
    made.end()


# --- processes of Spark --------------------------------------------------------------------------


def executors_of(life: Life) -> list[int]:
    """The JVMs of its executors."""
    commands, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            commands[int(path.name)] = (path / "cmdline").read_text()
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended meanwhile

    def is_below(pid: int) -> bool:
        return pid == life.pid or (pid in parents and is_below(parents[pid]))

    return [pid for pid in commands if "CoarseGrainedExecutorBackend" in commands[pid] and is_below(pid)]


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it")
def test_a_worker_and_zookeeper_are_killed_and_no_message_fails(
    tmp_path: Path, redis_server: RedisServer, zk_root: str
) -> None:
    """A Python worker costs a try of its task; ZooKeeper's server nothing, or, if it is away for long, the lease."""
    folder = tmp_path / "zookeeper"
    case = Case(tmp_path, redis_server, EmbeddedZooKeeper.ensure(folder), zk_root)
    try:
        case.put(32, {2: POISON, 11: f"{GATE}1", 19: f"{GATE}2", 27: f"{GATE}3"})
        life = case.start(master="local[2,3]")
        (worker,) = life.wait_for(lambda: case.waiting("gate-1"))
        os.kill(worker, signal.SIGKILL)
        assert life.wait_for(lambda: case.waiting("gate-1")[1:]) != [worker]
        case.open("gate-1")
        life.wait_for(lambda: "m11" in case.ends("acked"))

        life.wait_for(lambda: case.waiting("gate-2"))
        before = EmbeddedZooKeeper.status(folder)
        os.kill(before.server_pid, signal.SIGKILL)
        life.wait_for(lambda: (EmbeddedZooKeeper.status(folder) or before) != before)
        case.open("gate-2")

        life.wait_for(lambda: case.waiting("gate-3"))
        os.kill(EmbeddedZooKeeper.status(folder).supervisor_pid, signal.SIGKILL)
        time.sleep(1.5 * SESSION_SECS)
        assert EmbeddedZooKeeper.ensure(folder) == case.settings["zookeeper"]
        life.wait_for(lambda: case.waiting("gate-3")[1:])
        case.open("gate-3")
        life.ends()
        case.check()
        assert case.begun_again, "the lease was lost"
        assert case.txid_of("m11") not in case.begun_again, "the worker did not cost its batch"
    finally:
        case.end()
        EmbeddedZooKeeper.stop(folder)


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it: a cluster of its own")
def test_executors_that_are_killed_cost_their_tasks_and_no_message(case: Case) -> None:
    """Both: one is in the middle of a task, and what the other has finished is lost with it and made again."""
    case.put(16, {15: f"{GATE}1"})
    life = case.start(master="local-cluster[2,1,1024]", batch_partitions=2)
    life.wait_for(lambda: case.waiting("gate-1"))

    def half_done() -> bool:
        ledgers = case.warehouse.glob("_trident/*/*/ledgers/*")
        return [sorted(file.name.partition("-")[0] for file in one.iterdir()) for one in ledgers] == [["pass1"]]

    life.wait_for(half_done)
    killed = executors_of(life)
    assert len(killed) == 2
    for executor in killed:
        os.kill(executor, signal.SIGKILL)
    life.wait_for(lambda: case.waiting("gate-1")[1:])
    assert not {*killed} & {*executors_of(life)}
    case.open("gate-1")
    life.ends()
    case.check()
    assert case.begun_again == []


# --- the coordinator, which is the spout's process too --------------------------------------------

# Each ends one process; the next one goes on. The others with TRIDENT_KILLS=all (`make kills`).
STAGING, DURABLE = "stage.write:do_then_die:1", "publish.table:do_then_die:2"
MOMENTS = [DURABLE]
if os.environ.get("TRIDENT_KILLS") == "all":
    MOMENTS = [
        STAGING,
        DURABLE,
        "ledger.sum:do_then_die:2",
        "zk.begin:do_then_die:3",
        "manifest.write:do_then_die:1",
        "zk.decide:do_then_die:1",
        "publish.table:do_then_die:1",
        "publish.table:do_then_die:3",
        "zk.advance:do_then_die:3",
        "spout.success:do_then_die:3",
    ]


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it")
def test_messages_come_again_after_a_kill_and_those_that_were_durable_are_recognised(case: Case) -> None:
    case.put(16, {2: POISON})
    for fault in MOMENTS:
        case.start(fault).ends(KILLED)
        case.check_nothing_is_lost()
        if fault == STAGING:
            assert not case.rows("seen") and case.queue.pending == 16, "all were handed out, none is durable"
        if fault == DURABLE:
            first = [name for name in list(case.lines)[:6] if name != "m2"]
            words = Counter(word for name in first for word in case.lines[name].split())
            assert Counter(row["word"] for row in case.rows("seen")) == words, "durable in two tables of three"
            lives = MOMENTS.index(DURABLE) + 1
            assert {case.queue.takes(name) for name in first} == {lives}, "of which the list has not heard"
        case.put(4)
    case.start().ends()
    case.check()


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="make kills runs it")
def test_a_standby_goes_on_with_the_messages_of_the_coordinator_that_is_killed(case: Case, zk: ZooKeeper) -> None:
    case.put(16, {2: POISON, 11: f"{GATE}1"})
    lives = [case.start(), case.start()]
    for life in lives:
        life.wait_for(lambda life=life: life.has_started)
    lives[0].wait_for(lambda: case.waiting("gate-1"))
    leader = decode("live", zk.get(zk.path(TOPOLOGY, "live"))[0], Holder).pid
    standby, leading = sorted(lives, key=lambda life: life.pid == leader)
    assert leading.pid == leader and case.queue.pending >= 8, "messages are in flight"
    os.kill(leader, signal.SIGKILL)
    leading.ends(KILLED)
    standby.wait_for(lambda: case.waiting("gate-1")[1:])
    case.open("gate-1")
    standby.ends()
    case.lives.append(standby)
    case.check()
