"""Runs a topology in real processes under faults drawn from a seed, and checks that each row is everywhere once.

    python -m tests.chaos soak --minutes 60 [--seed N] [--every-secs 4] [--folder F]
    python -m tests.chaos kills --faults 50

The source grows, every few seconds something is killed or stopped, and what has died is started again. The seed, which
is printed, says what is struck and when. After the last fault all that was given must be committed within a bound; then
every store is read without the framework's code: none lost, none doubled, all at the same transaction, and in a long
run nothing that has piled up. A run that fails keeps its folder and says how to run it again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.bounds import broken_bounds
from tests.chaos.deployment import SETTINGS, Deployment
from tests.chaos.faults import Nemesis
from tests.chaos.measure import Watch
from tests.chaos.workload import Group
from tests.servers.kafka_fixtures import KafkaBroker
from tests.servers.postgres_fixtures import PostgresServer, server_programs
from trident.coordinators.embedded import EmbeddedZooKeeper

# From the last fault on, within which everything that was given must be committed.
BOUND_SECS = 600.0
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ONE_HOST = "bound_to_one_host"


@dataclass(frozen=True)
class Suite:
    """The settings of one suite.

    Attributes:
        groups: of the topology.
        names: of the coordinators.
        faults: fault → its weight.
        every_secs: about so often something is struck.
        txids, ahead: how fast the source grows; see ``Deployment.grow``.
        quiet: in this share of the time, its last, few faults strike, so that what a long-lived leader gathers is seen.
        servers: whether a broker and a database are needed.
        bounded: whether nothing may have piled up in the end.
    """

    groups: tuple[Group, ...]
    names: tuple[str, ...]
    faults: dict[str, int]
    every_secs: float
    txids: int
    ahead: int
    quiet: float = 0.0
    servers: bool = False
    bounded: bool = False
    patches: tuple[tuple[str, Any], ...] = ()
    conf: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


HEAP_MB, MERGE_EVERY, RETENTION_TXIDS, HISTORY_TXIDS = 512, 10, 50, 100
LIMITS = {
    "heap_mb": HEAP_MB,
    # What is kept for snapshots, what waits for its MERGE, and what was dropped a moment ago.
    "log_files": RETENTION_TXIDS + 5 * MERGE_EVERY + 200,
    # The manifests of two groups that are kept, and those that one of the next looks removes.
    "state_files": 40 + 2 * (HISTORY_TXIDS + 50),
}
SUITES = {
    # One of each kind of exactly-once; everything of one machine is struck.
    "soak": Suite(
        (
            Group("files", "", "f_", 500, 60, {"counts": MERGE_EVERY}, 5.0, RETENTION_TXIDS),
            Group("queue", "", "q_", 200, 20),
        ),
        ("a", "b"),
        {"worker": 30, "leader": 28, "standby": 6, "zookeeper": 10, "supervisor": 6, "sleep": 15},
        every_secs=4.0,
        txids=2,
        ahead=40,
        quiet=0.4,
        bounded=True,
        # An hour otherwise: too long for a soak to see that dropped log files go from the disk.
        patches=(("trident.states.keyed.compactor:GRACE_SECS", 20.0),),
        conf={
            "spark.master": "local[2,3]",
            "spark.driver.memory": f"{HEAP_MB}m",
            # The whole heap from the start: what grows then is not the heap.
            "spark.driver.extraJavaOptions": f"-Xms{HEAP_MB}m -XX:+AlwaysPreTouch {_JVM} "
            "-XX:ReservedCodeCacheSize=128m -XX:MaxMetaspaceSize=400m",
        },
        settings={"progress": "plain", "progress_interval_secs": 20, "history_retention_txids": HISTORY_TXIDS},
    ),
    # Two groups over Kafka into every state outside of the warehouse; everything around the coordinator is struck.
    "kills": Suite(
        (
            Group("Kafka", "", "exact_", 500, 4_000, {"counts": 20}, 5.0, 1_000),
            Group("opaque Kafka", "", "opaque_", 500, 4_000, {"counts": 20}, 5.0, 1_000),
        ),
        ("a",),
        {"broker": 1, "database": 1, "executor": 1, "leader": 3, "coordinator": 1},
        every_secs=20.0,
        txids=1,
        ahead=5,
        servers=True,
        patches=(
            # local-cluster: all are on this host.
            ("trident:KafkaSpout." + _ONE_HOST, False),
            ("trident:KafkaState." + _ONE_HOST, False),
            ("trident:PostgresMap." + _ONE_HOST, False),
            ("trident:PostgresState." + _ONE_HOST, False),
            ("trident:HttpState." + _ONE_HOST, False),
        ),
        conf={
            "spark.master": "local-cluster[2,1,640]",
            "spark.executor.memory": "640m",
            "spark.driver.extraJavaOptions": _JVM,
            "spark.executor.extraJavaOptions": _JVM,
            # An executor that is killed is no fault of the application's, nor of a task's.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "8",
        },
    ),
}
# More rows than this are read and published by executors, fewer by the coordinator's process; each run draws which.
_HERE = ("trident.spouts.kafka.emitter:_HERE_ROWS", "trident.states.publishing.other_stores:_DRIVER_ROWS_MAX")
_HERE_ROWS = (1_000, 16_000)


class Run:
    """One run of a suite.

    Args:
        minutes: how long faults strike; 0: until there were so many.
        faults: how many.
    """

    def __init__(self, folder: Path, suite: Suite, seed: int, minutes: float, faults: int, every_secs: float) -> None:
        self.suite, self.random = suite, random.Random(seed)
        self._secs, self._most, self._every = minutes * 60 or float("inf"), faults or sys.maxsize, every_secs
        self.struck: Counter[str] = Counter()
        self._servers: dict[str, Any] = {}
        self._folder = folder

    @contextmanager
    def _deployed(self) -> Iterator[Deployment]:
        patches, servers, zookeeper = list(self.suite.patches), None, ""
        try:
            if self.suite.servers:
                programs = server_programs()
                assert programs is not None, "no PostgreSQL server here: apt-get install postgresql"
                (self._folder / "kafka").mkdir()
                self._servers = {"broker": KafkaBroker(self._folder / "kafka"), "database": PostgresServer(programs)}
                for server in self._servers.values():
                    server.start()
                servers = (self._servers["broker"], self._servers["database"])
                patches += [(where, self.random.choice(_HERE_ROWS)) for where in _HERE]
                # A warehouse's own server serves no cluster, which Spark takes several executors for.
                zookeeper = EmbeddedZooKeeper.ensure(self._folder / "zookeeper")
            given = {"patches": patches, "conf": self.suite.conf, "settings": self.suite.settings, "servers": servers}
            with Deployment(
                self._folder / "d", self.suite.groups, self.suite.names, zookeeper=zookeeper, **given
            ) as deployment:
                yield deployment
        finally:
            if zookeeper:
                EmbeddedZooKeeper.stop(self._folder / "zookeeper")
            for server in self._servers.values():
                server.kill()
                if isinstance(server, PostgresServer):
                    shutil.rmtree(server.folder, ignore_errors=True)

    def go(self) -> tuple[list[str], str]:
        """All that is wrong, and what to say where nothing is."""
        with self._deployed() as deployment:
            watch = Watch(deployment, self.struck) if self.suite.bounded else None
            deployment.grow(self.random, 0.7, self.suite.txids, self.suite.ahead)
            for name in self.suite.names:
                deployment.start(name)
            self._strike(deployment, watch)
            deployment.finish(BOUND_SECS)
            for one in deployment.coordinators.values():
                one.end()
            final = watch.totals() if watch else {}
            deployment.check()
            problems = broken_bounds(watch.records, final, deployment.folder, LIMITS) if watch else []
            rows = sum(books.txids * books.group.per_batch for books in deployment.books)
            struck = ", ".join(f"{count} of {fault}" for fault, count in sorted(self.struck.items()))
            secs = time.monotonic() - deployment.began
            return problems, (
                f"exact: {rows} rows, {deployment.transactions()} transactions, {self.struck.total()} faults "
                f"({struck}), {deployment.lives} processes, {secs:.0f} s\n"
                "none lost, none doubled, all at the same transaction"
            )

    def _strike(self, deployment: Deployment, watch: Watch | None) -> None:
        session = {**SETTINGS, **self.suite.settings}["zookeeper_session_timeout_secs"]
        nemesis = Nemesis(deployment, self.random, self._servers, session)
        reader = deployment.reader() if self.suite.bounded else None
        quiet_from = self._secs * (1 - self.suite.quiet)
        next_, done = 20.0, 0
        while (age := time.monotonic() - deployment.began) < self._secs and self.struck.total() < self._most:
            time.sleep(0.2)
            nemesis.look_after(at_once=age >= quiet_from)
            deployment.look_after()
            quiet = age >= quiet_from
            if watch is not None:
                watch.look(quiet)
            if reader is not None and int(age) % 5 == 0:
                reader.look()
            # What never gets anything done proves nothing: on a slow machine faults wait for a transaction.
            patience_secs = 5 * self._every if done else BOUND_SECS
            if age < next_ or (deployment.transactions() == done and age < next_ + patience_secs):
                continue
            done = deployment.transactions()
            weights = {"worker": 1} if quiet else self.suite.faults
            fault = self.random.choices(list(weights), list(weights.values()))[0]
            if nemesis.strike(fault):
                self.struck[fault] += 1
                print(f"{age:6.0f} s  {fault}, behind {done} transactions", flush=True)
            next_ = age + self.random.uniform(0.3, 1.7) * self._every * (4 if quiet else 1)
        nemesis.look_after(at_once=True)
        deployment.look_after()
        if reader is not None:
            print(f"{reader.looks} looks at {len(reader.seen) - 1} views")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--minutes", type=float, default=0.0, help="how long faults strike")
    parser.add_argument("--faults", type=int, default=0, help="how many, whatever the time")
    parser.add_argument("--every-secs", type=float, default=0.0, help="about so often; the suite says by default")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--folder", type=Path, default=None, help="a new folder, which is kept")
    given = parser.parse_args()
    if not given.minutes and not given.faults:
        parser.error("--minutes or --faults")
    suite = SUITES[given.suite]
    folder = (given.folder or Path(tempfile.mkdtemp(prefix=f"trident-{given.suite}-"))).resolve()
    folder.mkdir(exist_ok=True)
    again = (
        f"python -m tests.chaos {given.suite} --minutes {given.minutes:g} --faults {given.faults} --seed {given.seed}"
    )
    failed = f"everything is in {folder}; again: {again} --every-secs {given.every_secs:g}"
    print(f"seed {given.seed}, folder {folder}", flush=True)
    try:
        every_secs = given.every_secs or suite.every_secs
        problems, exact = Run(folder, suite, given.seed, given.minutes, given.faults, every_secs).go()
    except BaseException:
        print(f"FAILED; {failed}", flush=True)
        raise
    if problems:
        print("\n".join(["FAILED", *problems, failed]), flush=True)
        return 1
    print(exact, flush=True)
    if given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
