"""Kills a topology at random for as long as one likes, and checks that nothing is lost, doubled or piled up.

    python -m tests.soak --minutes 60 [--seed N] [--kill-every-secs 4] [--folder F]

Two coordinators, a leader and a standby, over one warehouse with its embedded
ZooKeeper server; a feeder that never stops; every few seconds something dies:
a coordinator, a Python worker, a JVM, ZooKeeper's server or its supervisor, or the
leader sleeps for longer than its session (SIGSTOP) and wakes up as one that was
deposed. In the last part of the time (``--quiet``) the coordinators live, so that what a
long-lived one gathers can be seen. Then all is drained and compared.

Each minute is one line, and one record in ``soak.jsonl``. A run that fails keeps
its folder and says how to run it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.long_runs import exit_code_of, parser_of
from tests.soak import measure
from tests.soak.bounds import broken_bounds
from tests.soak.coordinator import DRAIN_SECS, SESSION_SECS, TOPOLOGY
from tests.soak.feeder import Feeder
from trident.coordinators.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = {"worker": 30, "leader": 20, "standby": 6, "jvm": 8, "zookeeper": 10, "supervisor": 6, "sleep": 15}
QUIET_WEIGHTS = {"worker": 1}


class Coordinator:
    """One process, started again whenever it has died."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.started_at = time.monotonic()
        self.log = self._folder / "logs" / f"{self.name}-{self.lives:04d}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TMPDIR": str(self._folder / "tmp"),
        }
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.coordinator", str(self._folder)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder / "run",
            )
        self.pid = self.process.pid
        self.killed = False

    @property
    def has_started(self) -> bool:
        return "started\n" in self.log.read_text()

    def send(self, number: int, pids: list[int] | None = None) -> None:
        for pid in pids or [self.pid]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


class Soak:
    def __init__(self, folder: Path, seed: int, minutes: float, kill_every_secs: float, quiet: float) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.secs, self.every, self.quiet_from = minutes * 60, kill_every_secs, minutes * 60 * (1 - quiet)
        for name in ("in", "drafts", "logs", "run", "tmp", "local", "w"):
            (folder / name).mkdir()
        self.feeder = Feeder(folder, seed)
        self.kills: Counter[str] = Counter()
        self.records: list[dict[str, Any]] = []
        self.asleep: tuple[Coordinator, list[int], float] | None = None
        self.coordinators = [Coordinator(name, folder) for name in ("a", "b")]
        self.began = time.monotonic()
        self.heap_at = 0.0

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    # --- running -----------------------------------------------------------------------------

    def run(self) -> None:
        self.feeder.start()
        next_kill, next_record, next_sample, progress = self.age + 20.0, 60.0, 5.0, 0
        while self.age < self.secs:
            time.sleep(0.2)
            self._look_after()
            quiet = self.age >= self.quiet_from
            if quiet and self.asleep is None and next_kill < self.quiet_from:
                next_kill = self.age + self.every
            # What never gets anything done proves nothing: on a slow machine kills wait for a transaction.
            if self.age >= next_kill and (self._progress() != progress or self.age >= next_kill + 5 * self.every):
                progress = self._progress()
                self._kill(QUIET_WEIGHTS if quiet else WEIGHTS)
                next_kill = self.age + self.random.uniform(0.3, 1.7) * self.every * (4 if quiet else 1)
            if self.age >= next_sample:
                self._sample(quiet)
                next_sample = self.age + (10.0 if self.secs > 300 else 3.0)
            if self.age >= next_record:
                self._record()
                next_record += 60.0
        self._wake()
        self.feeder.stop()
        self._record()

    def _look_after(self) -> None:
        if self.asleep and self.age >= self.asleep[2]:
            self._wake()
        for one in self.coordinators:
            code = one.process.poll()
            if code is None:
                continue
            if not one.killed:
                # A JVM that was killed takes its coordinator along; anything else nobody has asked for.
                said = one.log.read_text()[-3000:]
                raise AssertionError(f"coordinator {one.log} ended by itself with {code}: {said}")
            one.start()

    def _wake(self) -> None:
        if self.asleep:
            one, pids, _ = self.asleep
            one.send(signal.SIGCONT, pids)
            self.asleep = None

    def _status(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "w" / "_trident" / TOPOLOGY / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def _progress(self) -> int:
        return sum(group["current_txid"] for group in self._status().get("groups", []))

    def _leader(self) -> Coordinator | None:
        pid = self._status().get("pid")
        return next((one for one in self.coordinators if one.pid == pid and one.process.poll() is None), None)

    def _kill(self, weights: dict[str, int]) -> None:
        kind = self.random.choices(list(weights), list(weights.values()))[0]
        leader = self._leader()
        ready = [one for one in self.coordinators if one.process.poll() is None and one.has_started]
        standby = next((one for one in ready if one is not leader), None)
        # One of the two is always left, or there would be nothing but starts.
        alone = leader is None or standby is None or self.asleep is not None
        if not (alone and kind in ("leader", "jvm", "sleep", "standby")) and self._strike(kind, leader, standby):
            self.kills[kind] += 1

    def _strike(self, kind: str, leader: Coordinator | None, standby: Coordinator | None) -> bool:
        folder = self.folder / "w" / "_trident" / "zookeeper"
        if kind in ("zookeeper", "supervisor"):
            endpoint = EmbeddedZooKeeper.status(folder)
            if endpoint is None:
                return False
            os.kill(endpoint.server_pid if kind == "zookeeper" else endpoint.supervisor_pid, signal.SIGKILL)
            return True
        one = standby if kind == "standby" else leader
        if one is None:
            return False
        if kind == "worker":
            pids = measure.workers(one.pid)
            if not pids:
                return False
            one.send(signal.SIGKILL, [self.random.choice(pids)])
        elif kind == "sleep":
            pids = [one.pid] + (measure.jvms(one.pid) if self.random.random() < 0.5 else [])
            one.send(signal.SIGSTOP, pids)
            self.asleep = (one, pids, self.age + SESSION_SECS * self.random.uniform(1.3, 2.5))
        else:
            one.killed = True
            pids = measure.jvms(one.pid) if kind == "jvm" else []
            # A coordinator without its JVM can do nothing more; whoever runs it has to end it.
            one.send(signal.SIGKILL, [*pids, one.pid])
        return True

    # --- measuring ---------------------------------------------------------------------------

    def _sample(self, quiet: bool) -> None:
        leader = self._leader()
        if leader is None:
            return
        jvms = measure.jvms(leader.pid)
        self.records.append(
            {
                "kind": "process",
                "at": round(self.age, 1),
                "quiet": quiet,
                "pid": leader.pid,
                "age": round(time.monotonic() - leader.started_at, 1),
                "python_mb": round(measure.rss_mb(leader.pid), 1),
                "jvm_mb": round(sum(map(measure.rss_mb, jvms)), 1),
                "python_files": measure.open_files(leader.pid),
                "jvm_files": sum(map(measure.open_files, jvms)),
                "python_threads": measure.threads(leader.pid),
                "jvm_threads": sum(map(measure.threads, jvms)),
            }
        )
        # It stops the JVM for a moment: now and then only.
        if quiet and jvms and self.age - self.heap_at >= 30.0:
            self.heap_at, heap = self.age, measure.live_heap_mb(jvms[0])
            if heap is not None:
                self.records[-1]["heap_mb"] = round(heap, 1)

    def totals(self) -> dict[str, Any]:
        store = self.folder / "w"
        state = store / "_trident" / TOPOLOGY
        endpoint = EmbeddedZooKeeper.status(store / "_trident" / "zookeeper")
        hosts = f"127.0.0.1:{endpoint.port}" if endpoint else ""
        tables = [path.parent for path in store.glob("*/_delta_log")]
        return {
            "kind": "totals",
            "at": round(self.age, 1),
            "kills": dict(self.kills),
            "lives": sum(one.lives for one in self.coordinators),
            "txids": {group["name"]: group["current_txid"] - 1 for group in self._status().get("groups", [])},
            "epoch": self._status().get("epoch"),
            "lines": sum(self.feeder.lines.values()),
            "input_files": self.feeder.files,
            "orders": sum(self.feeder.orders.values()),
            "state": measure.counted(state),
            "zookeeper": measure.counted(store / "_trident" / "zookeeper"),
            **(measure.znodes(hosts, "/trident") if hosts else {}),
            "data_files": {table.name: len(measure.data_files(table)) for table in tables},
            "log_files": {table.name: measure.counted(table / "_delta_log")["files"] for table in tables},
            "orphans": {table.name: len(measure.orphans(table)) for table in tables},
            "temporary": len(measure.temporary(store)),
            "local": measure.counted(self.folder / "local"),
            "tmp": measure.counted(self.folder / "tmp"),
            "run": measure.counted(self.folder / "run"),
            "queue_kb": (self.folder / "queue.db").stat().st_size // 1000,
            "map_kb": (self.folder / "map.db").stat().st_size // 1000 if (self.folder / "map.db").exists() else 0,
        }

    def _record(self) -> None:
        found = self.totals()
        self.records.append(found)
        last = next((one for one in reversed(self.records) if one["kind"] == "process"), {})
        print(
            f"{found['at']:6.0f} s  transactions {sum(found['txids'].values())}  epoch {found['epoch']}  kills "
            f"{' '.join(f'{kind} {count}' for kind, count in sorted(self.kills.items())) or 'none'}\n"
            f"          leader {last.get('age')} s old: python {last.get('python_mb')} MB, {last.get('python_files')} "
            f"files, {last.get('python_threads')} threads; jvm {last.get('jvm_mb')} MB, {last.get('jvm_files')} files\n"
            f"          _trident {found['state']}  znodes {found.get('znodes')}  zookeeper {found['zookeeper']}\n"
            f"          data {found['data_files']}  log {found['log_files']}  orphans {found['orphans']}  temporary "
            f"{found['temporary']}\n          local {found['local']}  tmp {found['tmp']}  run {found['run']}  queue "
            f"{found['queue_kb']} kB  map {found['map_kb']} kB  fed {found['lines']} lines, {found['orders']} orders",
            flush=True,
        )
        with (self.folder / "soak.jsonl").open("a") as file:
            file.write("".join(json.dumps(one) + "\n" for one in self.records if not one.pop("written", False)))
        for one in self.records:
            one["written"] = True

    # --- the end -----------------------------------------------------------------------------

    def drain(self) -> None:
        (self.folder / "drain").touch()
        deadline = time.monotonic() + 2 * DRAIN_SECS
        for one in self.coordinators:
            code = one.process.wait(max(1.0, deadline - time.monotonic()))
            assert code == 0, f"coordinator {one.log} ended with {code}: {one.log.read_text()[-3000:]}"

    def end(self) -> None:
        self._wake()
        for one in self.coordinators:
            one.send(signal.SIGKILL, [*measure.descendants(one.pid), one.pid])
            one.process.wait()
        EmbeddedZooKeeper.stop(self.folder / "w" / "_trident" / "zookeeper")


def soaked(folder: Path, given: argparse.Namespace) -> tuple[list[str], str]:
    soak = Soak(folder, given.seed, given.minutes, given.kill_every_secs, given.quiet)
    try:
        soak.run()
        soak.drain()
        final = soak.totals()
        problems = soak.feeder.compare() + broken_bounds(soak.records, final, folder)
    finally:
        soak.end()
    print(json.dumps(final))
    return problems, f"exact: {final['lines']} lines and {final['orders']} orders, 0 lost, 0 doubled"


def main() -> int:
    parser = parser_of("tests.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kill-every-secs", type=float, default=4.0)
    parser.add_argument("--quiet", type=float, default=0.4, help="share of the time in which coordinators live")
    return exit_code_of("tests.soak", parser.parse_args(), soaked)


if __name__ == "__main__":
    sys.exit(main())
