"""A topology whose code changes: processes of ``trident run`` with several forms of one file, over a growing source.

Each file of the source has some numbers; the topology appends them as they are, and counts words that are made of
them. The checker makes the words by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import deltalake

import trident
from tests.jvm_options import cold_options
from trident.commands.handover import Wish, hand_over
from trident.config import TridentConfig
from trident.coordinators.handing_over import Contender, Handovers
from trident.coordinators.records import Holder, decode
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.connecting import open_zookeeper

ROOT = Path(__file__).resolve().parent.parent
NAME, WORDS, WAIT_SECS = "handed", 7, 240.0

_CODE = """
from collections.abc import Iterator
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology

# {comment}
def word(line: str) -> Iterator[str]:
    yield f"w{{{expression}}}"

topology = TridentTopology("handed")
lines = topology.new_stream("lines", FileSpout({data!r}, min_rows=5, max_rows=10, poll_interval_secs=0.1))
lines.partition_persist(DeltaAppend("seen"))
lines.each("value", word, "word").group_by("word").persistent_aggregate(DeltaMapState({state!r}), Count(), "count")
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

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Deployment:
    """A warehouse with its embedded ZooKeeper, a source that grows until :meth:`finish`, and processes."""

    def __init__(self, folder: Path, every_secs: float = 0.3) -> None:
        self.folder, self.warehouse, self._data = folder, folder / "w", folder / "data"
        self._data.mkdir(parents=True)
        self.config = TridentConfig(warehouse=str(self.warehouse), zookeeper_session_timeout_secs=6.0)
        self.processes: dict[str, Running] = {}
        self.count, self._every_secs = 0, every_secs
        self._done = threading.Event()
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

    def start(
        self, name: str, expression: str = RIGHT, comment: str = "", state: str = "counts", faults: str = ""
    ) -> Running:
        """Starts a process with this form of the code."""
        code = self.folder / name / "topology.py"
        code.parent.mkdir(exist_ok=True)
        data = str(self._data / "*.txt")
        code.write_text(_CODE.format(comment=comment, expression=expression, data=data, state=state))
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
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECS)

    def hand_over(self, **wish: Any) -> tuple[int, list[str]]:
        """The command in this process: its exit code, and what it says."""
        said: list[str] = []
        return hand_over(NAME, Wish(timeout_secs=WAIT_SECS, **wish), self.config, said.append), said

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
        return max((commit["txid"] or 0 for commit in self._commits("seen")), default=0)

    def wait(self, what: Callable[[], Any], why: str) -> Any:
        deadline = time.monotonic() + WAIT_SECS
        while not (found := what()):
            assert time.monotonic() < deadline, f"{why}\n{self.story()}"
            time.sleep(0.05)
        return found

    def wait_leads(self, running: Running, transactions: int = 2) -> None:
        """Until a process leads and has committed something new."""
        self.wait(lambda: self.leader() is running, f"{running.name} does not lead")
        begun = self.txid()
        self.wait(lambda: self.txid() >= begun + transactions, f"{running.name} commits nothing")

    def wait_stands_by(self, *running: Running) -> None:
        self.wait(lambda: {one.pid for one in running} <= self.contenders().keys(), "a standby does not come up")

    def story(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.said()[-3000:]}" for one in self.processes.values())

    # --- the end ------------------------------------------------------------------------------------

    def finish(self) -> int:
        """No more input; waits until all of it is committed. Returns how many numbers there were."""
        self._done.set()
        self._feeder.join()
        self.wait(lambda: len(self._seen()) >= self.count, "not everything is committed")
        return self.count

    def check(self, states: Iterable[str] = ("counts",), changed: bool = False) -> None:
        """Every number once in each table, and every transaction once, by epochs that only grow.

        Args:
            changed: some transactions were counted by other code: then only how many rows there were.
        """
        numbers = range(self.finish())
        assert sorted(self._seen()) == list(numbers)
        commits = self._commits("seen")
        txids = [commit["txid"] for commit in commits if commit["txid"]]
        assert txids == list(range(1, len(txids) + 1)), txids
        epochs = [commit["epoch"] for commit in commits if commit["epoch"] is not None]
        assert epochs == sorted(epochs), epochs
        words = [f"w{number}" for number in range(WORDS)]
        for state in states:
            found = trident.get(str(self.warehouse), state, words, txid=txids[-1])
            counts = {word: (one or {"count": 0})["count"] for word, one in zip(words, found)}
            wanted = Counter(word_of(number) for number in numbers)
            if changed:
                assert sum(counts.values()) == sum(wanted.values()), (state, counts)
            else:
                assert counts == wanted, (state, counts, wanted)

    def _seen(self) -> list[int]:
        path = self.warehouse / "seen"
        if not (path / "_delta_log").is_dir():
            return []
        return [int(row["value"]) for row in deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()]

    def _commits(self, table: str) -> list[dict[str, Any]]:
        from tests.failover_harness import commits_of

        return list(commits_of(self.warehouse / table))

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._zk is not None:
            self._zk.close()
        for one in self.processes.values():
            if one.process.poll() is None:
                one.kill()
        from trident.coordinators.embedded import EmbeddedZooKeeper
        from trident.running.connecting import server_folder

        EmbeddedZooKeeper.stop(server_folder(self.config.warehouse_place()))
