"""Kills broker, database, executors and coordinator at random, and checks that each message is everywhere once.

    python -m tests.kills [--messages 1000000] [--kills 50] [--seed N] [--max-rows 4000] [--folder F]

A real Kafka broker, PostgreSQL server and ZooKeeper server; a coordinator with two executors that are processes of
their own; a feeder. Each kill is a SIGKILL, and comes some transactions behind the one before; the process is started
again. The seed, which is printed, says which process, and how long each waits. In the end all is drained, and every
store is read without the framework's code: none lost, none doubled, all at the same transaction.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.kafka_fixtures import KafkaBroker
from tests.kills.compare import Stores, key_of
from tests.kills.coordinator import DRAIN_SECS
from tests.kills.topology import HALVES, IN_PARTITIONS, OUT_PARTITIONS, TOPICS, TOPOLOGY, tables
from tests.long_runs import exit_code_of, parser_of
from tests.postgres_fixtures import PostgresServer, server_programs
from tests.soak import measure
from tests.states.outside.http_server import Server
from trident.coordinators.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("broker", "database", "executor", "coordinator")
STUCK_SECS = 600.0
# The feeder is ahead of the topology by at most so many messages of each group.
AHEAD = 40_000


class Feeder(threading.Thread):
    """Writes the numbers from 0 on to each half's topic, through the deaths of the broker."""

    def __init__(self, broker: KafkaBroker, count: int, taken: Any) -> None:
        super().__init__(name="feeder", daemon=True)
        self._count, self._taken = count, taken
        self._producer = broker.producer(
            **{"enable.idempotence": True, "message.timeout.ms": 0, "queue.buffering.max.messages": 200_000}
        )
        self._failed: list[Any] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._count):
                while number % 1_000 == 0 and number > self._taken() + AHEAD:
                    self._producer.poll(0.2)
                for half in HALVES:
                    self._put(half.source, number)
            self._producer.flush(DRAIN_SECS)
            assert not self._failed, self._failed[:3]
        except BaseException as error:
            self.error = error

    def _put(self, topic: str, number: int) -> None:
        while True:
            try:
                self._producer.produce(topic, b"%d" % number, key_of(number).encode(), on_delivery=self._heard)
                break
            except BufferError:
                self._producer.poll(0.1)
        if number % 500 == 0:
            self._producer.poll(0)

    def _heard(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(error)


class Coordinator:
    """One process after the other, over one warehouse."""

    def __init__(self, folder: Path, arguments: list[str], rng: random.Random, max_rows: int) -> None:
        self._folder, self._arguments, self._random, self._max_rows = folder, arguments, rng, max_rows
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.log = self._folder / "logs" / f"{self.lives:04d}.log"
        # Smaller than a batch: its executors read and publish it; else the coordinator's own process does.
        here = self._random.choice((self._max_rows // 4, self._max_rows * 4))
        names = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **names, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kills.coordinator", *self._arguments, str(self._max_rows), str(here)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder / "run",
            )

    @property
    def has_started(self) -> bool:
        return "started\n" in self.log.read_text()

    def executors(self) -> list[int]:
        """Those that run."""
        below = measure.descendants(self.process.pid)
        return sorted(pid for pid, command in below.items() if "CoarseGrainedExecutorBackend" in command)

    def kill(self, whole: bool) -> None:
        """SIGKILL.

        Args:
            whole: with all its processes; else its Python process alone: the others end by themselves, a bit later.
        """
        for pid in [*(measure.descendants(self.process.pid) if whole else ()), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


class Kills:
    """One run.

    Args:
        messages: of each half.
    """

    def __init__(self, folder: Path, seed: int, messages: int, kills: int, max_rows: int) -> None:
        self.folder, self.random, self.messages, self.kills = folder, random.Random(seed), messages, kills
        for name in ("logs", "run", "local", "kafka"):
            (folder / name).mkdir()
        programs = server_programs()
        assert programs is not None, "no PostgreSQL server here: apt-get install postgresql"
        self.server, self.broker, self.http = PostgresServer(programs), KafkaBroker(folder / "kafka"), Server()
        self.done: Counter[str] = Counter()
        self.max_rows = max_rows
        self.coordinator: Coordinator | None = None
        self.began = time.monotonic()

    def run(self) -> None:
        self.server.start()
        self.broker.start()
        for statement in tables():
            self.server.execute(statement)
        for half in HALVES:
            self.broker.create(half.source, IN_PARTITIONS)
            for name in TOPICS:
                self.broker.create(half.named(name), OUT_PARTITIONS)
        zookeeper = EmbeddedZooKeeper.ensure(self.folder / "zookeeper")
        arguments = [str(self.folder), self.broker.address, self.server.url, self.http.url, zookeeper]
        self.feeder = Feeder(self.broker, self.messages, self._taken)
        self.feeder.start()
        self.coordinator = Coordinator(self.folder, arguments, self.random, self.max_rows)
        each = 2 * (self.messages // self.max_rows) / (self.kills + 1)  # transactions between two kills
        for number in range(self.kills):
            kind, gap = self.random.choice(KINDS), self.random.uniform(0.3, 1.7) * each
            # One of four comes while a coordinator may still be starting.
            self._until_done(self._progress() + int(gap), started=self.random.random() < 0.75)
            time.sleep(self.random.uniform(0.0, 1.0))
            self._kill(kind)
            self.done[kind] += 1
            at = time.monotonic() - self.began
            print(f"{at:6.0f} s  kill {number + 1}: {kind}, behind {self._progress()} transactions", flush=True)
        self._drain()

    def _drain(self) -> None:
        coordinator = self.coordinator
        assert coordinator is not None
        deadline = time.monotonic() + DRAIN_SECS
        while self.feeder.is_alive():
            assert time.monotonic() < deadline, "the feeder does not come to its end"
            self.feeder.join(1.0)
            self._look()
        assert self.feeder.error is None, self.feeder.error
        (self.folder / "drain").touch()
        code = coordinator.process.wait(2 * DRAIN_SECS)
        assert code == 0, self._said(f"the coordinator ended with {code}")

    def problems(self) -> list[str]:
        """All that is lost, doubled, or not at the same transaction."""
        stores, found = Stores(self.broker, self.server, self.http, self.folder / "w"), []
        for half in HALVES:
            txids = stores.txids(half)
            print(f"{half.source}: {txids}")
            if len(set(txids.values())) != 1:
                found.append(f"{half.source}: not all states are at the same transaction: {txids}")
            found += stores.problems(half, self.messages)
        return found

    # --- killing

    def _kill(self, kind: str) -> None:
        coordinator = self.coordinator
        assert coordinator is not None
        if kind == "coordinator":
            coordinator.kill(whole=self.random.random() < 0.5)
            coordinator.start()
        elif kind == "executor":
            pause = self.random.random()
            while not (pids := coordinator.executors()):  # those of a life that begins
                self._look()
                time.sleep(0.2)
            os.kill(pids[int(pause * len(pids))], signal.SIGKILL)
        else:
            one: Any = self.broker if kind == "broker" else self.server
            one.kill()
            time.sleep(self.random.uniform(0.0, 3.0))
            one.start()

    def _until_done(self, transactions: int, started: bool) -> None:
        """Waits for so many transactions in all, and perhaps until the coordinator has started."""
        wanted = min(transactions, self._whole() - 2)
        last, at = -1, time.monotonic()
        while (progress := self._progress()) < wanted or (started and not self._has_started()):
            self._look()
            if progress != last:
                last, at = progress, time.monotonic()
            assert time.monotonic() - at < STUCK_SECS, self._said(f"nothing goes on behind {progress} transactions")
            time.sleep(0.1)

    def _has_started(self) -> bool:
        assert self.coordinator is not None
        return self.coordinator.has_started

    def _look(self) -> None:
        assert self.coordinator is not None
        code = self.coordinator.process.poll()
        assert code is None, self._said(f"the coordinator ended by itself with {code}")
        assert self.feeder.error is None, self.feeder.error

    def _said(self, text: str) -> str:
        assert self.coordinator is not None
        status = json.dumps(self._status())[-2000:]
        return f"{text}; status: {status}; it said: {self.coordinator.log.read_text()[-4000:]}"

    def _status(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "w" / "_trident" / TOPOLOGY / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def _progress(self) -> int:
        """Transactions of both halves that have advanced."""
        return sum(group["current_txid"] - 1 for group in self._status().get("groups", []))

    def _whole(self) -> int:
        """As many transactions as there will be at least."""
        return 2 * (self.messages // self.max_rows)

    def _taken(self) -> int:
        """Messages of the half that is behind, about."""
        groups = self._status().get("groups", [])
        return min((group["current_txid"] - 1) * self.max_rows for group in groups) if len(groups) == 2 else 0

    def end(self) -> None:
        if self.coordinator is not None:
            self.coordinator.kill(whole=True)
        self.broker.kill()
        self.server.kill()
        self.http.close()
        shutil.rmtree(self.server.folder, ignore_errors=True)
        EmbeddedZooKeeper.stop(self.folder / "zookeeper")


def killed(folder: Path, given: argparse.Namespace) -> tuple[list[str], str]:
    kills = Kills(folder, given.seed, given.messages // 2, given.kills, given.max_rows)
    try:
        kills.run()
        problems = kills.problems()
    finally:
        kills.end()
    took = time.monotonic() - kills.began
    done = ", ".join(f"{count} of {kind}" for kind, count in sorted(kills.done.items()))
    lives = kills.coordinator.lives if kills.coordinator else 0
    exact = f"exact: {2 * kills.messages} messages, {kills.kills} kills ({done}), {lives} lives, {took:.0f} s"
    return problems, f"{exact}\nnone lost, none doubled, all states at the same transaction"


def main() -> int:
    parser = parser_of("tests.kills", __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of both groups together")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--max-rows", type=int, default=4_000, help="messages of a transaction, at most")
    return exit_code_of("tests.kills", parser.parse_args(), killed)


if __name__ == "__main__":
    sys.exit(main())
