"""A topology whose code changes: processes of ``trident run`` with several forms of one file, over a growing source.

Each file of the source has some numbers; the topology appends them as they are, and counts words that are made of
them. The checker makes the words by itself.

A process with Spark takes a core for half a minute before it serves. So a deployment lives through as many rounds as
fit, one process is started for each that dies, files come slowly, and logs are read from where the last look ended.
A deployment has so much time in all: whatever waits when it is over says for what, and how long each step took.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake

import trident
from tests.failover_harness import commits_of
from tests.jvm_options import cold_options
from trident.commands.handover import Wish, hand_over
from trident.config import TridentConfig
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.handing_over import Contender, Handovers
from trident.coordinators.records import Holder, decode
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.connecting import open_zookeeper, server_folder

ROOT = Path(__file__).resolve().parent.parent
NAME, WORDS = "handed", 7
# Of one wait, and of all that a deployment does. The processes wait for a core, so they have more than they need alone.
WAIT_SECS, CASE_SECS = 240.0, 540.0
_POLL_SECS = 0.2
# Files that are there at the start: what a test waits for first has its transactions.
_FILES_FIRST = 16

_CODE = """
from collections.abc import Iterator
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology

# {comment}
def word(line: str) -> Iterator[str]:
    yield f"w{{{expression}}}"

topology = TridentTopology("handed")
lines = topology.new_stream("lines", FileSpout({data!r}, min_rows=5, max_rows=10, poll_interval_secs=0.1))
lines.partition_persist(DeltaAppend("seen"))
lines.each("value", word, "word").group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
"""
RIGHT, WRONG = "int(line) % 7", "int(line) % 7 or 1"


def word_of(number: int) -> str:
    return f"w{number % WORDS}"


class Running:
    """One process of ``trident run``."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], out: Path) -> None:
        self.name, self.process, self.out = name, process, out

    def said(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self.process.pid

    def died(self) -> bool:
        """Whether SIGKILL has ended it."""
        code = self.process.poll()
        assert code in (None, -signal.SIGKILL), f"{self.name} ended with {code}\n{self.said()[-3000:]}"
        return code is not None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Committed:
    """What an append table's log says, read from where the last look ended."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self.version, self.txid, self.rows = -1, 0, 0

    def look(self) -> Committed:
        while (entry := self._log / f"{self.version + 1:020}.json").exists():
            for line in entry.read_text().splitlines():
                action = json.loads(line)
                if "txn" in action:
                    self.txid = max(self.txid, action["txn"]["version"])
                if "add" in action:
                    self.rows += json.loads(action["add"]["stats"])["numRecords"]
            self.version += 1
        return self


class Deployment:
    """A warehouse with its embedded ZooKeeper, a source that grows until :meth:`finish`, and processes."""

    def __init__(self, folder: Path, every_secs: float = 1.0, limit_secs: float = CASE_SECS, warm: bool = True) -> None:
        """Args:
        warm: whether standbys rehearse by themselves, too, which takes a core for half a minute.
        """
        self.folder, self.warehouse, self._data = folder, folder / "w", folder / "data"
        self._data.mkdir(parents=True)
        self.config = TridentConfig(warehouse=str(self.warehouse), zookeeper_session_timeout_secs=6.0)
        self.processes: dict[str, Running] = {}
        self.count, self._every_secs, self._warm = 0, every_secs, warm
        self._began, self._limit_secs = time.monotonic(), limit_secs
        self._steps: list[str] = []
        self._committed = Committed(self.warehouse / "seen")
        self._done = threading.Event()
        for _ in range(_FILES_FIRST):
            self._feed()
        self._feeder = threading.Thread(target=self._grow, daemon=True)
        self._feeder.start()
        self._zk: ZooKeeper | None = None

    # --- the source ---------------------------------------------------------------------------------

    def _feed(self) -> None:
        numbers = range(self.count, self.count + 5)
        hidden = self._data / f".{self.count:06}"
        hidden.write_text("".join(f"{number}\n" for number in numbers))
        hidden.rename(self._data / f"{self.count:06}.txt")
        self.count = numbers.stop

    def _grow(self) -> None:
        while not self._done.wait(self._every_secs):
            self._feed()

    # --- processes ----------------------------------------------------------------------------------

    def start(self, name: str, expression: str = RIGHT, comment: str = "", faults: str = "") -> Running:
        """Starts a process with this form of the code."""
        code = self.folder / name / "topology.py"
        code.parent.mkdir(exist_ok=True)
        data = str(self._data / "*.txt")
        code.write_text(_CODE.format(comment=comment, expression=expression, data=data))
        conf = {
            "spark.master": "local[1]",
            "spark.driver.memory": "600m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraJavaOptions": cold_options(),
        }
        settings = {
            "zookeeper_session_timeout_secs": 6,
            "max_attempts": 1000,
            "max_spout_pending": 2,
            "progress": "plain",
            "warm_standby": str(self._warm).lower(),
        }
        command = [sys.executable, "-m", "trident.cli", "run", str(code), "--warehouse", str(self.warehouse)]
        command += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        out = self.folder / f"{name}.out"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "TRIDENT_FAULTS": faults,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
        with out.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        self.processes[name] = running = Running(name, process, out)
        return running

    def command(self, *options: str, faults: str = "") -> subprocess.CompletedProcess[str]:
        """``trident handover`` as a process of its own."""
        command = [sys.executable, "-m", "trident.cli", "handover", NAME, "--warehouse", str(self.warehouse), *options]
        command += ["--set", "zookeeper_session_timeout_secs=6"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRIDENT_FAULTS": faults}
        what = " ".join(["trident handover", *options, faults and f"killed at {faults}"]).strip()
        with self._step(what):
            try:
                return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=self._left())
            except subprocess.TimeoutExpired as over:
                said = f"{over.stdout!r} {over.stderr!r}"
                raise AssertionError(f"no end within {over.timeout:.0f} s: {what}\n{said}\n{self.story()}") from None

    def hand_over(self, **wish: Any) -> tuple[int, list[str]]:
        """The command in this process: its exit code, and what it says."""
        said: list[str] = []
        with self._step(f"hand_over({', '.join(f'{name}={value}' for name, value in wish.items())})"):
            return hand_over(NAME, Wish(timeout_secs=self._left(), **wish), self.config, said.append), said

    # --- what is so ---------------------------------------------------------------------------------

    @property
    def zk(self) -> ZooKeeper:
        if self._zk is None:
            self._zk = open_zookeeper(self.config, self.config.warehouse_place())
        return self._zk

    def leader(self) -> Running | None:
        path = self.zk.path(NAME, "live")
        self.zk.sync(path)
        found = self.zk.get(path)
        pid = decode(path, found[0], Holder).pid if found else None
        return next((one for one in self.processes.values() if one.pid == pid), None)

    def contenders(self) -> dict[int, Contender]:
        return {one.holder.pid: one for one in Handovers(self.zk, NAME).contenders()}

    def request_is_there(self) -> bool:
        return Handovers(self.zk, NAME).request() is not None

    def txid(self) -> int:
        """The last transaction in the append table."""
        return self._committed.look().txid

    def _left(self) -> float:
        """How long the next step may take."""
        left = self._began + self._limit_secs - time.monotonic()
        return max(min(WAIT_SECS, left), 1.0)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Notes how long something took, also of what fails; printed at once, for a run that is cut."""
        began = time.monotonic()
        print(f"{began - self._began:6.1f} s  {what} …", flush=True)
        try:
            yield
        finally:
            self._steps.append(f"{began - self._began:6.1f} s  {what}: {time.monotonic() - began:.1f} s")

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        """Until it becomes true; ``why`` says what is not so as long as it is false."""
        secs = self._left()
        deadline = time.monotonic() + secs
        with self._step(f"waits while {why}"):
            while not (found := what()):
                assert time.monotonic() < deadline, f"waited {secs:.0f} s: {why}\n{self.story()}"
                time.sleep(_POLL_SECS)
        return found

    def wait_leads(self, running: Running, transactions: int = 2) -> None:
        """Until a process leads and has committed something new."""
        self.wait(lambda: self.leader() is running, f"{running.name} does not lead")
        begun = self.txid()
        self.wait(lambda: self.txid() >= begun + transactions, f"{running.name} commits nothing")

    def wait_stands_by(self, *running: Running) -> None:
        self.wait(lambda: {one.pid for one in running} <= self.contenders().keys(), "a standby does not come up")

    def story(self) -> str:
        steps = "\n".join(self._steps)
        return steps + "\n" + "\n".join(f"--- {one.name}\n{one.said()[-3000:]}" for one in self.processes.values())

    # --- the end ------------------------------------------------------------------------------------

    def finish(self) -> int:
        """No more input; waits until all of it is committed. Returns how many numbers there were."""
        self._done.set()
        self._feeder.join()
        self.wait(lambda: self._committed.look().rows >= self.count, "not everything is committed")
        return self.count

    def check_counts(self) -> None:
        """What is committed by now is counted once; the source goes on."""
        seen = self._committed.look()
        txid, numbers = seen.txid, self._seen(seen.version)
        self.wait(lambda: self.txid() > txid, "the next transaction does not come")  # so the other table has this one
        assert len(set(numbers)) == len(numbers), numbers
        counts, wanted = self._counts(txid), Counter(word_of(number) for number in numbers)
        assert counts == wanted, (counts, wanted)

    def check(self, changed: bool = False) -> None:
        """Every number once in each table, and every transaction once, by epochs that only grow; the source ends.

        Args:
            changed: some transactions were counted by other code: then only how many rows there were.
        """
        numbers = range(self.finish())
        assert sorted(self._seen()) == list(numbers)
        commits = list(commits_of(self.warehouse / "seen"))
        txids = [commit["txid"] for commit in commits if commit["txid"]]
        assert txids == list(range(1, len(txids) + 1)), txids
        epochs = [commit["epoch"] for commit in commits if commit["epoch"] is not None]
        assert epochs == sorted(epochs), epochs
        counts, wanted = self._counts(txids[-1]), Counter(word_of(number) for number in numbers)
        if changed:
            assert sum(counts.values()) == sum(wanted.values()), counts
        else:
            assert counts == wanted, (counts, wanted)

    def _seen(self, version: int | None = None) -> list[int]:
        """The numbers in the append table."""
        table = deltalake.DeltaTable(str(self.warehouse / "seen"), version=version)
        return [int(value) for value in table.to_pyarrow_table().column("value").to_pylist()]

    def _counts(self, txid: int) -> dict[str, int]:
        words = [f"w{number}" for number in range(WORDS)]
        found = trident.get(str(self.warehouse), "counts", words, txid=txid)
        return {word: (one or {"count": 0})["count"] for word, one in zip(words, found)}

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._zk is not None:
            self._zk.close()
        for one in self.processes.values():
            if one.process.poll() is None:
                one.kill()
        EmbeddedZooKeeper.stop(server_folder(self.config.warehouse_place()))
