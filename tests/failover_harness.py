"""Coordinators beside an ensemble: started, killed, stopped, cut off; and what must be true of all that they wrote.

The checker knows the source (0, 1, 2, …) and folds it in plain Python; Delta logs it reads as the JSON that they are.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake

from tests import store_servers
from tests.ensemble import SERVERS, Ensemble
from tests.failover_child import STREAM, TOPOLOGY, word_of
from tests.networks import make_network
from tests.store_mirror import Mirror
from trident.coordinators.zookeeper import ZooKeeper
from trident.states.core import storage

ROOT = Path(__file__).resolve().parent.parent
WAIT_SECS = 120.0
WATCH = "watch"
# What a coordinator says once it leads; a standby names who "leads" too.
LEADS = f"leads {TOPOLOGY} (epoch "
# Where a keyed state is published until it is merged.
COUNTS_LOG = "counts__log"


def wait_for(what: Callable[[], Any], why: Callable[[], str], secs: float = WAIT_SECS) -> Any:
    """What it becomes true as."""
    deadline = time.monotonic() + secs
    while not (found := what()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
    return found


class Coordinator:
    """One coordinator process; ``at`` in its lines and :func:`time.monotonic` are one clock."""

    def __init__(self, name: str, command: list[str], folder: Path, faults: str, own_host: bool) -> None:
        self.name, self._log, self.own_host = name, folder / f"{name}.jsonl", own_host
        self._out = folder / f"{name}.out"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "TRIDENT_FAULTS": faults,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
        environment.pop("TRIDENT_FAILOVER", None)
        environment.pop("TRIDENT_FAILOVER_NETWORK", None)
        with self._out.open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        self.killed_at = 0.0
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    # --- what it says ------------------------------------------------------------------------

    @property
    def lines(self) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read += whole
            self._lines += [json.loads(line) for line in data[:whole].splitlines()]
        return self._lines

    def said(self, what: str, since: float = 0.0, **details: Any) -> list[dict[str, Any]]:
        return [
            line
            for line in self.lines
            if line["what"] == what and line["at"] >= since and details.items() <= line.items()
        ]

    def advanced(self, since: float = 0.0, **details: Any) -> list[dict[str, Any]]:
        return self.said("advanced", since, **details)

    def events(self, text: str, since: float = 0.0) -> list[dict[str, Any]]:
        return [line for line in self.said("event", since) if text in line["text"]]

    def is_warm(self) -> bool:
        """Whether it waits for its turn, and has rehearsed it."""
        return bool(self.events("standby: warm"))

    def attempts(self, epoch: int, since: float) -> dict[str, Counter[str]]:
        """Of its writes under an epoch: to what → outcome → how many.

        A write that began before the process was stopped may have been done by then, and its answer read only now: if
        it was, it does not count.
        """
        found: dict[str, Counter[str]] = {}
        for what in ("commit", "put", "multi"):
            for line in self.said(what, since, epoch=epoch):
                if line["began"] >= since or line["outcome"] != "ok":
                    found.setdefault(what, Counter())[line["outcome"]] += 1
        return found

    def story(self) -> str:
        events = [f"{line['at']:.2f} {line['text']}" for line in self.said("event")][-25:]
        return f"{self.name} (exit {self.process.poll()}):\n" + "\n".join(events) + "\n" + self._out.read_text()[-3000:]

    def wait_for(self, what: Callable[[], Any], secs: float = WAIT_SECS) -> Any:
        return wait_for(what, self.story, secs)

    @property
    def epoch(self) -> int:
        """Under which it has led last."""
        return int(self.events(LEADS)[-1]["text"].rpartition("epoch ")[2].rstrip(")"))

    # --- what is done to it ------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of the Python process, seen from here."""
        if not self.own_host:
            return self.process.pid
        shell = wait_for(lambda: _children(self.process.pid), self.story)[0]
        return next(pid for pid in wait_for(lambda: _children(shell), self.story) if b"failover_child" in _command(pid))

    def kill(self) -> None:
        """SIGKILL: of its Python process, or, with a host of its own, of all that runs there."""
        self.killed_at = time.monotonic()
        if self.own_host:
            os.kill(_children(self.process.pid)[0], signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def wait_stopped(self) -> None:
        """Until it has stopped itself."""
        self.wait_for(lambda: _state(self.pid) == "T")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def go_on(self) -> float:
        """SIGCONT; since when its writes are a zombie's."""
        at = time.monotonic()
        os.kill(self.pid, signal.SIGCONT)
        return at


class Cluster:
    """An ensemble, coordinators by name, one warehouse that all share: on the disk, or in the store that is chosen.

    A store is reached over this machine's own network: then what cuts coordinators off from ZooKeeper are proxies.
    """

    def __init__(self, folder: Path, coordinators: tuple[str, ...] = ("a", "b"), **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.names, self._settings = folder, coordinators, settings
        store = store_servers.chosen()
        self._url = store_servers.warehouse_in(store, folder)
        self._mirror = Mirror(self._url, folder / "mirror")
        self.network = make_network(SERVERS, (*coordinators, WATCH), own=store == "disk")
        (folder / "ensemble").mkdir()
        self.ensemble = Ensemble(folder / "ensemble", self.network)
        self.coordinators: dict[str, Coordinator] = {}
        self.root = "/proof"
        self.warehouse, self._end = self._mirror.path, folder / "end"
        self._zk: ZooKeeper | None = None

    def __enter__(self) -> Cluster:
        try:
            self.ensemble.start()
            self.ensemble.wait_ready()
            self._zk = self.ensemble.connect(WATCH, self.root, 10.0)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for one in self.coordinators.values():
            with suppress(ProcessLookupError, IndexError):
                one.kill()
        for path in self.folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                if '"worker"' in line:  # one that a test has stopped outlives its driver
                    with suppress(ProcessLookupError):
                        os.kill(json.loads(line)["worker"], signal.SIGKILL)
        self.ensemble.close()
        if not store_servers.is_local(self._url):
            storage.delete(self._url)

    def start(self, name: str, faults: str = "", own_host: bool = False, **settings: Any) -> Coordinator:
        given = {
            "warehouse": self._url,
            "spark": store_servers.spark_settings(self._url),
            "zookeeper": self.network.hosts(name),
            "zookeeper_root": self.root,
            "log": str(self.folder / f"{name}.jsonl"),
            "end": str(self._end),
            "rows": 20,
            "map": str(self.folder / "map.db"),
            **self._settings,
            **settings,
        }
        (self.folder / f"{name}.jsonl").unlink(missing_ok=True)
        child = [sys.executable, str(ROOT / "tests" / "failover_child.py"), json.dumps(given)]
        command = self.network.command(name, child, own_host)
        made = self.coordinators[name] = Coordinator(name, command, self.folder, faults, own_host)
        return made

    def lead_and_stand_by(
        self, own_host: bool = False, warm: bool = False, **given: dict[str, Any]
    ) -> list[Coordinator]:
        """The first coordinator leads, the others are standbys; in this order.

        Args:
            own_host: see :meth:`start`.
            warm: waits until they have rehearsed.
            **given: name → what :meth:`start` is to be given for it.
        """
        first, *others = self.names
        gate = self.folder / "others may start"
        leader = self.start(first, own_host=own_host, **given.get(first, {}))
        # The first one leads, and all have their JVM started meanwhile.
        standbys = [
            self.start(name, own_host=own_host, **{"wait_for": str(gate), **given.get(name, {})}) for name in others
        ]
        leader.wait_for(lambda: leader.events(LEADS))
        gate.touch()
        for one in standbys:
            one.wait_for(one.is_warm if warm else lambda one=one: one.events("standby: "))
        return [leader, *standbys]

    def goes_on(self, since: float) -> None:
        """Until somebody has committed two transactions that began after that."""
        wait_for(
            lambda: any(len(one.advanced(since, new=True)) >= 2 for one in self.coordinators.values()),
            lambda: "\n".join(one.story() for one in self.coordinators.values()),
        )

    def advanced_txids(self) -> list[tuple[str, int]]:
        return sorted((one.name, line["txid"]) for one in self.coordinators.values() for line in one.advanced())

    def partition(self, *groups: tuple[str, ...]) -> None:
        """Whoever is not named is in the last group."""
        named = {name for group in groups for name in group}
        rest = tuple(name for name in (*SERVERS, *self.names, WATCH) if name not in named)
        self.ensemble.partition(*groups[:-1], (*groups[-1], *rest))

    def heal(self) -> None:
        self.ensemble.heal((*SERVERS, *self.names, WATCH))

    def epoch(self) -> int:
        """How many leaders there have been, as ZooKeeper has it."""
        znode = self._zk.exists(f"{self.root}/{TOPOLOGY}/{STREAM}/leader")
        return znode.znode_version + 1 if znode else 0

    # --- the oracle --------------------------------------------------------------------------

    def finish(self) -> int:
        """Gives the source an end, waits until it is reached and advanced; how many numbers there were."""
        self._mirror.bring()
        count = (self._pinned_end() // 100 + 6) * 100 + 7
        self._end.write_text(str(count))
        wait_for(lambda: self._is_advanced(count), lambda: "\n".join(one.story() for one in self.coordinators.values()))
        return count

    def _is_advanced(self, count: int) -> bool:
        return self._pinned_end() == count

    def _pinned_end(self) -> int:
        """The number before which the last transaction that advanced has ended, as ZooKeeper has it.

        Not by the table's rows: while many are read, a source without pauses passes the end that is made of them.
        """
        while (record := self._znode(TOPOLOGY, STREAM, "coordinator")) and record["last"]:
            pin = self._znode(TOPOLOGY, STREAM, "coordinator", str(record["last"]["txid"]))
            if pin:
                return int(pin["value"]["end"])
            # It was removed meanwhile: the next transaction has advanced.
        return 0

    def _znode(self, *names: str) -> dict[str, Any] | None:
        found = self._zk.get("/".join((self.root, *names)))
        return json.loads(found[0]) if found else None

    def check(self, count: int) -> None:
        """Everything once: in both tables and in the map, of every transaction, by epochs that only grow."""
        self.check_tables(count)
        words, totals = Counter(word_of(number) for number in range(count)), self._totals()
        assert totals == words, f"the map: {totals} instead of {words}"

    def check_tables(self, count: int) -> None:
        """As :meth:`check`, without the map."""
        self._mirror.bring()
        words = Counter(word_of(number) for number in range(count))
        assert Counter(row["n"] for row in self._rows("seen")) == Counter(range(count))
        counted: Counter[str] = Counter()
        for row in self.live_counts():
            counted[row["word"]] += row["count"]
        assert counted == words, f"the keyed state: {counted} instead of {words}"
        last = self._znode(TOPOLOGY, STREAM, "coordinator")["last"]["txid"]
        for table in ("seen", COUNTS_LOG):
            commits = list(commits_of(self.warehouse / table))
            txids = [commit["txid"] for commit in commits if commit["txid"]]
            assert txids == list(range(1, last + 1)), f"{table}: transactions {txids}, up to {last}"
            epochs = [commit["epoch"] for commit in commits if commit["epoch"] is not None]
            assert epochs == sorted(epochs), f"{table}: a commit of an old coordinator after one of a newer: {epochs}"

    def live_counts(self) -> list[dict[str, Any]]:
        """The plain table and the log rows that are not merged into it yet, put together by hand."""
        plain = self.warehouse / "counts"
        merged = max((commit["merged"] for commit in commits_of(plain)), default=0)
        rows = self._rows("counts") if merged else []
        log = [row for row in self._rows(COUNTS_LOG) if row["_txid"] > merged]
        return rows + log

    def _rows(self, table: str) -> list[dict[str, Any]]:
        path = self.warehouse / table
        if not (path / "_delta_log").is_dir():
            return []
        return deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()

    def _totals(self) -> Counter[str]:
        with sqlite3.connect(self.folder / "map.db") as connection:
            rows = connection.execute("SELECT key, value FROM totals").fetchall()
        return Counter({json.loads(key)["tuple"][0]: json.loads(value)["opaque"][1] for key, value in rows})


def commits_of(table: Path) -> Iterator[dict[str, Any]]:
    """Of every table version: the transaction, the epoch of its control record, up to where it is merged."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        txid, epoch, merged = None, None, 0
        for line in path.read_text().splitlines():
            action = json.loads(line)
            txn, domain = action.get("txn"), action.get("domainMetadata")
            if txn and txn["appId"].endswith("/merge"):
                merged = txn["version"]
            elif txn:
                txid = txn["version"]
            if domain and '"epoch"' in domain["configuration"]:
                epoch = json.loads(domain["configuration"])["epoch"]
        yield {"txid": txid, "epoch": epoch, "merged": merged}


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
