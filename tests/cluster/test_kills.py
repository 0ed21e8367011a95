"""A standalone cluster under kills of executors, workers, master, ZooKeeper and coordinator: exact at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.cluster.job import ROWS, WORDS
from tests.cluster.standalone import Standalone, wait_for
from tests.ensemble import SERVERS, Ensemble
from tests.networks import Proxies
from trident.coordinators.errors import TridentError
from trident.coordinators.loopback_port import LoopbackPort
from trident.running.status import read_status

pytestmark = pytest.mark.skipif(
    os.environ.get("TRIDENT_CLUSTER") != "all", reason="a real cluster; TRIDENT_CLUSTER=all runs it"
)
JOB = Path(__file__).with_name("job.py")
SECS = 240.0


class Run:
    """A leader and a standby on a cluster, the messages that they are sent, and the requests that they are asked."""

    def __init__(self, cluster: Standalone, folder: Path, zookeeper: str, root: str) -> None:
        self.cluster, self.folder = cluster, folder
        self.warehouse, self.end, self.messages = folder / "warehouse", folder / "end", folder / "messages"
        self.messages.mkdir()
        self._environment = cluster.environment(
            self.warehouse,
            zookeeper,
            root,
            TEST_JOB=json.dumps({"end": str(self.end), "messages": str(self.messages)}),
            TRIDENT_ZOOKEEPER_SESSION_TIMEOUT_SECS="4",
            TRIDENT_BATCH_EMIT_INTERVAL_SECS="0.2",
            TRIDENT_MAX_ATTEMPTS="100",
            TRIDENT_MESSAGE_TIMEOUT_SECS="120",
            TRIDENT_SPARK__cores__max="2",
            TRIDENT_PROGRESS="plain",
        )
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.ports: list[LoopbackPort] = []
        self.answers: list[dict[str, Any]] = []
        self.sent, self._begun = 0, time.monotonic()
        self._over = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Run:
        self._asking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self.drivers:
            one.kill()
            one.wait()
        self._asking.join()
        for port in self.ports:
            port.close()

    def start(self) -> subprocess.Popen[bytes]:
        self.ports.append(LoopbackPort())
        environment = {**self._environment, "TRIDENT_HTTP": f"127.0.0.1:{self.ports[-1].number}"}
        with (self.folder / f"driver-{len(self.drivers)}").open("wb") as output:
            made = subprocess.Popen(
                [sys.executable, str(JOB)], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.drivers.append(made)
        return made

    def _ask(self) -> None:
        """Asks those that answer, all the time; a message comes with each round."""
        while not self._over.wait(0.5):
            draft = self.folder / "draft"
            draft.write_text(f"message {self.sent}\n")
            draft.rename(self.messages / f"m-{self.sent}.txt")
            self.sent += 1
            for port in list(self.ports):
                body = json.dumps([f"w{self.sent % WORDS}"]).encode()
                with suppress(OSError, ValueError):  # it is no leader, or gone; a Spark job of its own has failed
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port.number}/drpc/count?timeout_secs=20",
                        body,
                        {"Content-Type": "application/json"},
                    )
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        self.answers.append({**json.load(answer), "word": self.sent % WORDS})

    def txid(self) -> int:
        """The current transaction of the numbers, as the leader has written it last."""
        try:
            groups = read_status(str(self.warehouse), "kills").to_json()["groups"]
        except TridentError:
            return 0
        return max((group["current_txid"] for group in groups if group["name"] == "numbers"), default=0)

    def goes_on(self, what: str, transactions: int = 3) -> None:
        """Until it has advanced by some transactions, and a request was answered."""
        txid, answers = self.txid(), len(self.answers)
        print(f"{time.monotonic() - self._begun:6.1f} s: {what}, txid {txid}", flush=True)
        wait_for(lambda: self.txid() >= txid + transactions, lambda: f"after {what}:\n{self.story()}", SECS)
        wait_for(lambda: len(self.answers) > answers, lambda: f"no answer after {what}:\n{self.story()}", SECS)

    def story(self) -> str:
        said = [path.read_text(errors="replace")[-2500:] for path in sorted(self.folder.glob("driver-*"))]
        return "\n--- driver\n".join([f"txid {self.txid()}", *said]) + self.cluster.story()

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        return deltalake.DeltaTable(str(self.warehouse / table)).to_pyarrow_table(columns=list(columns)).to_pylist()


def occurrences(word: int, below: int) -> int:
    """How often the word is among the numbers below that one."""
    return len(range(word, below, WORDS))


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three servers of ZooKeeper, which serve."""
    (tmp_path / "ensemble").mkdir()
    made = Ensemble(tmp_path / "ensemble", Proxies(SERVERS, ("drivers",)))
    try:
        made.start()
        made.wait_ready()
        yield made
    finally:
        made.close()


def test_kills_of_executors_workers_the_master_zookeeper_and_the_coordinator(
    tmp_path: Path, ensemble: Ensemble
) -> None:
    with (
        Standalone(tmp_path / "cluster", cores=2, memory=1500) as cluster,
        Run(cluster, tmp_path, ensemble.network.hosts("drivers"), "/kills") as run,
    ):
        first, second = cluster.workers
        leader = run.start()
        run.goes_on("the start")
        standby = run.start()
        cluster.kill_executor(first)
        run.goes_on("an executor's death")
        second.kill()
        run.goes_on("a worker's death")
        cluster.start_worker(second)
        cluster.wait_registered(second)
        run.goes_on("a worker's return")
        server = ensemble.leader()
        ensemble.kill(server)
        run.goes_on("the death of ZooKeeper's leader")
        ensemble.start(server)
        cluster.master.kill()
        run.goes_on("the master's death")
        for executor in cluster.executors():  # nothing can take their place while there is no master
            with suppress(ProcessLookupError):
                os.kill(executor, signal.SIGKILL)
        cluster.start_master()
        run.goes_on("the executors' deaths without a master")
        wait_for(lambda: "standby" in (tmp_path / "driver-1").read_text(), run.story, SECS)
        leader.kill()
        run.goes_on("the coordinator's death")

        end = ROWS * (run.txid() + 5)
        run.end.write_text(str(end))
        wait_for(lambda: run.txid() > end // ROWS, run.story, SECS)
        wait_for(lambda: len(run.rows("delivered", "value")) >= run.sent - 1, run.story, SECS)
        run._over.set()
        run._asking.join()
        sent = run.sent
        wait_for(lambda: not list(run.messages.glob("*.txt")), run.story, SECS)
        standby.send_signal(signal.SIGTERM)
        assert standby.wait(SECS) == 0, run.story()

        looked = run.rows("looked", "n", "word", "before", "again")
        assert sorted(row["n"] for row in looked) == list(range(end))
        for row in looked:
            assert row["word"] == row["again"] == f"w{row['n'] % WORDS}"
            batch = row["n"] // ROWS * ROWS
            assert (row["before"] or 0) == occurrences(row["n"] % WORDS, batch), row
        counts = {row["word"]: row["count"] for row in run.rows("counts", "word", "count")}
        assert counts == {f"w{word}": occurrences(word, end) for word in range(WORDS)}
        delivered = Counter(row["value"] for row in run.rows("delivered", "value"))
        assert delivered == Counter(f"message {number}" for number in range(sent))
        for answer in run.answers:
            as_of = answer["as_of"]["numbers"]
            assert (answer["rows"][0]["count"] or 0) == occurrences(answer["word"], as_of * ROWS), answer
        # Late parts with functions of the user's looked up in copies of the hosts' own.
        copies = {worker.name for worker in cluster.workers if list(worker.folder.rglob("counts/*.copy/data.mdb"))}
        assert copies == {"node1", "node2"}, run.story()
        print(f"{end // ROWS} transactions, {sent} messages, {len(run.answers)} answers")
