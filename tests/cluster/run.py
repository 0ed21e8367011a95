"""A leader and a standby on a cluster while its parts are killed: what they are asked, and what is exact at the end."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import deltalake

import trident
from tests.cluster.job import ROWS, WORDS
from tests.cluster.standalone import Standalone
from tests.servers.ensemble import Ensemble
from tests.servers.zk_fixtures import wait_for
from trident.coordinators.embedded_server import LoopbackPort
from trident.coordinators.errors import TridentError
from trident.running.status import read_status

JOB = Path(__file__).with_name("job.py")
SECS = 400.0


class Messages(Protocol):
    """The queue that a run's messages are put into; ``arguments`` are the job's."""

    arguments: Mapping[str, str]

    def put(self, number: int) -> None: ...
    def is_empty(self) -> bool: ...


class FolderMessages:
    """Files of a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "messages"
        self._folder.mkdir()
        self.arguments = {"messages": str(self._folder)}

    def put(self, number: int) -> None:
        draft = self._folder.with_name("draft")
        draft.write_text(f"message {number}\n")
        draft.rename(self._folder / f"m-{number}.txt")

    def is_empty(self) -> bool:
        return not list(self._folder.glob("*.txt"))


class Kill(NamedTuple):
    """Something of the store that dies for some seconds, and is started again."""

    what: str
    kill: Callable[[], None]
    start: Callable[[], None]


class Run:
    """A leader and a standby on a cluster, the messages that they are sent, and the requests that they are asked.

    Args:
        spark: more settings of Spark.
        options: by which delta-rs reaches the warehouse.
        environment: more variables of the drivers.
    """

    def __init__(
        self,
        cluster: Standalone,
        folder: Path,
        warehouse: str,
        zookeeper: str,
        root: str,
        messages: Messages,
        spark: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        **environment: str,
    ) -> None:
        self.cluster, self.folder, self.warehouse, self.messages = cluster, folder, warehouse, messages
        self.end, self._options = folder / "end", dict(options or {})
        self._environment = cluster.environment(
            warehouse,
            zookeeper,
            root,
            spark,
            TEST_JOB=json.dumps({"end": str(self.end), **messages.arguments}),
            TRIDENT_ZOOKEEPER_SESSION_TIMEOUT_SECS="4",
            TRIDENT_BATCH_EMIT_INTERVAL_SECS="0.2",
            TRIDENT_MAX_ATTEMPTS="100",
            TRIDENT_MESSAGE_TIMEOUT_SECS="120",
            TRIDENT_SPARK__cores__max="2",
            TRIDENT_PROGRESS="plain",
            **environment,
        )
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.ports: list[LoopbackPort] = []
        self.answers: list[dict[str, Any]] = []
        self.reads: list[list[int]] = []
        self.sent, self._known, self._begun = 0, 0, time.monotonic()
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
        """Asks those that answer, and the tables, all the time; a message comes with each round."""
        while not self._over.wait(0.5):
            self.messages.put(self.sent)
            self.sent += 1
            with suppress(OSError, TridentError):  # there is no state yet, or no store
                found = trident.get(self.warehouse, "counts", [f"w{word}" for word in range(WORDS)])
                self.reads.append([one["count"] if one else 0 for one in found])
            for port in list(self.ports):
                body = json.dumps([f"w{self.sent % WORDS}"]).encode()
                with suppress(OSError, ValueError):  # it is no leader, or gone; a Spark job of its own has failed
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port.number}/drpc/count?timeout_secs=120",
                        body,
                        {"Content-Type": "application/json"},
                    )
                    with urllib.request.urlopen(request, timeout=130) as answer:
                        self.answers.append({**json.load(answer), "word": self.sent % WORDS})

    def finish_asking(self) -> None:
        self._over.set()
        self._asking.join()

    def txid(self) -> int:
        """The current transaction of the numbers, as the leader has written it last and could be read."""
        with suppress(TridentError, OSError):
            groups = read_status(self.warehouse, "kills").to_json()["groups"]
            self._known = max(self._known, *(one["current_txid"] for one in groups if one["name"] == "numbers"), 0)
        return self._known

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
        found = deltalake.DeltaTable(f"{self.warehouse}/{table}", storage_options=self._options)
        return found.to_pyarrow_table(columns=list(columns)).to_pylist()


def occurrences(word: int, below: int) -> int:
    """How often the word is among the numbers below that one."""
    return len(range(word, below, WORDS))


def through_kills(run: Run, ensemble: Ensemble, of_store: Sequence[Kill] = ()) -> None:
    """Kills everything once, with SIGKILL, and ends with what a run without a failure would have ended with."""
    cluster = run.cluster
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
    # A start in the moment of a store's death ends with an error; a standby that is there lives through it.
    wait_for(lambda: "standby" in (run.folder / "driver-1").read_text(), run.story, SECS)
    server = ensemble.leader()
    ensemble.kill(server)
    run.goes_on("the death of ZooKeeper's leader")
    ensemble.start(server)
    for part in of_store:
        part.kill()
        time.sleep(5)
        part.start()
        run.goes_on(f"the death of {part.what}")
    cluster.master.kill()
    run.goes_on("the master's death")
    for executor in cluster.executors():  # nothing can take their place while there is no master
        with suppress(ProcessLookupError):
            os.kill(executor, signal.SIGKILL)
    cluster.start_master()
    run.goes_on("the executors' deaths without a master")
    assert standby.poll() is None, run.story()
    leader.kill()
    run.goes_on("the coordinator's death")

    end = ROWS * (run.txid() + 5)
    run.end.write_text(str(end))
    wait_for(lambda: run.txid() > end // ROWS, run.story, SECS)
    wait_for(lambda: len(run.rows("delivered", "value")) >= run.sent - 1, run.story, SECS)
    run.finish_asking()
    wait_for(run.messages.is_empty, run.story, SECS)
    standby.send_signal(signal.SIGTERM)
    assert standby.wait(SECS) == 0, run.story()
    check_rows(run, end)
    # Late parts with functions of the user's looked up in copies of the hosts' own.
    copies = {worker.name for worker in cluster.workers if list(worker.folder.rglob("counts/*/*.copy/*.rows"))}
    assert copies == {"node1", "node2"}, run.story()
    numbers = f"{end // ROWS} transactions, {run.sent} messages, {len(run.answers)} answers, {len(run.reads)} reads"
    print(numbers, flush=True)


def check_rows(run: Run, end: int) -> None:
    """Each row exactly once, each look-up, answer and read that of its transaction."""
    looked = run.rows("looked", "n", "word", "before", "again")
    assert sorted(row["n"] for row in looked) == list(range(end))
    for row in looked:
        assert row["word"] == row["again"] == f"w{row['n'] % WORDS}"
        batch = row["n"] // ROWS * ROWS
        assert (row["before"] or 0) == occurrences(row["n"] % WORDS, batch), row
    counts = {row["word"]: row["count"] for row in run.rows("counts", "word", "count")}
    assert counts == {f"w{word}": occurrences(word, end) for word in range(WORDS)}
    delivered = Counter(row["value"] for row in run.rows("delivered", "value"))
    assert delivered == Counter(f"message {number}" for number in range(run.sent))
    assert run.answers and run.reads, "it was not asked"
    for answer in run.answers:
        as_of = answer["as_of"]["numbers"]
        assert (answer["rows"][0]["count"] or 0) == occurrences(answer["word"], as_of * ROWS), answer
    for read in run.reads:
        assert read == [occurrences(word, sum(read)) for word in range(WORDS)] and sum(read) % ROWS == 0, read
    assert [sum(read) for read in run.reads] == sorted(sum(read) for read in run.reads)
