"""A topology in real processes: coordinators, ZooKeeper, the stores outside, a source that grows.

Each coordinator is a ``trident run``; what it does it says in a log (``coordinator``). Whatever waits here has a limit,
and says for what it has waited, and what each process has said last.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kazoo.exceptions import NoNodeError

from tests.chaos import measure
from tests.chaos.checker import Books, Reader
from tests.chaos.coordinator import LISTENER, VARIABLE
from tests.chaos.outside_stores import OutsideStores
from tests.chaos.workload import OUTSIDE, Group
from tests.jvm.jvm_options import cold_options
from tests.servers import store_servers
from tests.servers.ensemble import SERVERS, Ensemble
from tests.servers.networks import Network, make_network
from tests.servers.zk_fixtures import wait_for
from trident.commands.handover import HandoverOptions, hand_over
from trident.config import TridentConfig
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.handing_over import Contender, Handovers
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.running.zookeeper import open_zookeeper, server_folder
from trident.states.core import storage

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = "chaos"
# Of one wait. A process with Spark takes a core for half a minute before it serves, and cores are shared.
WAIT_SECS = 240.0
WATCH = "watch"
# What a coordinator says once it leads; a standby names who "leads" too.
LEADS = f"leads {TOPOLOGY} (epoch "
# More transactions than any run has: a source without an end.
ENDLESS = 10**9

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "700m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SETTINGS: dict[str, Any] = {
    "zookeeper_session_timeout_secs": 4,
    "zookeeper_connect_timeout_secs": 60,
    "max_spout_pending": 3,
    "message_timeout_secs": 120,
    # Each process that is killed may cost attempts; one that ends by itself is a failure of the run.
    "max_attempts": 10_000,
    "progress": "none",
    "status_interval_secs": 0.2,
    "listener_classes": LISTENER,
}
_CODE = """from tests.chaos import coordinator

# {comment}
def key_of(word: str) -> str:
    return {expression}

topology = coordinator.prepared(key_of)
"""
RIGHT, WRONG = 'word.split("-")[0]', 'word.split("-")[0].replace("k0", "k1")'


class Coordinator:
    """One process; ``at`` in its lines and :func:`time.monotonic` are one clock.

    Attributes:
        asked_to_end: whether it has been killed, or is to end for another reason.
        started_at, killed_at: moments.
    """

    def __init__(self, name: str, command: list[str], files: Path, environment: dict[str, str], own_host: bool) -> None:
        self.name, self.own_host = name, own_host
        self.log, self.out, self.commands = (files.with_suffix(end) for end in (".jsonl", ".out", ".commands"))
        with self.out.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment, cwd=files.parent, stdout=output, stderr=subprocess.STDOUT
            )
        self.started_at, self.killed_at, self.asked_to_end = time.monotonic(), 0.0, False
        self._read = 0
        self._lines: list[dict[str, Any]] = []

    # --- what it says ------------------------------------------------------------------------

    @property
    def lines(self) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError), self.log.open("rb") as file:
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

    def stands_by(self) -> bool:
        return bool(self.events("standby: "))

    @property
    def epoch(self) -> int:
        """Under which it has led last; 0 before."""
        led = self.events(LEADS)
        return int(led[-1]["text"].rpartition("epoch ")[2].rstrip(")")) if led else 0

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
        said = self.out.read_text(errors="replace")[-3000:]
        return f"--- {self.name} (exit {self.process.poll()}):\n" + "\n".join(events) + "\n" + said

    def wait_for(self, what: Callable[[], Any], secs: float = WAIT_SECS) -> Any:
        return wait_for(what, self.story, secs)

    # --- what is done to it ------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Of the Python process, seen from here."""
        if not self.own_host:
            return self.process.pid

        def found() -> list[int]:
            below = measure.descendants(self.process.pid)
            run = f"{sys.executable} -m trident.cli run "
            return [pid for pid, command in below.items() if command.startswith(run)]

        return min(wait_for(found, self.story))

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def arm(self, fault: str) -> None:
        with self.commands.open("a") as file:
            file.write(f"{fault}\n")

    def died(self) -> bool:
        """Whether SIGKILL has ended it."""
        code = self.process.poll()
        assert code in (None, -signal.SIGKILL), f"{self.name} ended with {code}\n{self.story()}"
        return code is not None

    def kill(self, whole: bool = False) -> None:
        """SIGKILL.

        Args:
            whole: of all its processes, as where its host dies; else of its Python process alone, or, with a host of
                its own, of all that runs there.
        """
        self.killed_at, self.asked_to_end = time.monotonic(), True
        pids = list(measure.descendants(self.process.pid)) if whole or self.own_host else []
        for pid in [*pids, self.process.pid] if self.runs else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """SIGTERM: what is decided is finished, the last MERGE made; it must end well."""
        self.asked_to_end = True
        self.process.terminate()
        try:
            code = self.process.wait(WAIT_SECS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.story()}") from None
        assert code == 0, f"it ended with {code}: {self.story()}"

    def wait_stopped(self) -> None:
        """Until it has stopped itself."""
        self.wait_for(lambda: measure.state(self.pid) == "T")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_stopped()

    def go_on(self) -> float:
        """SIGCONT; since when its writes are a zombie's."""
        at = time.monotonic()
        os.kill(self.pid, signal.SIGCONT)
        return at


class Deployment:
    """One topology over one warehouse: on the disk, or in the store that is chosen.

    A store is reached over this machine's own network: then what cuts coordinators off from ZooKeeper are proxies.

    Args:
        folder: of this deployment alone; new.
        groups: of the topology; those without a folder get one.
        names: of the coordinators.
        ensemble: whether ZooKeeper is an ensemble of three servers, on a network that can be cut; else it is the
            warehouse's embedded server.
        zookeeper: the address of a server that is there already, in place of both.
        patches: (module:name, value) of what each coordinator changes in its process.
        watched: whether coordinators say each write that they attempt.
        conf, settings: of each coordinator, over those of this module.
        servers: a Kafka broker and a PostgreSQL server, for groups with stores outside of the warehouse.
    """

    def __init__(
        self,
        folder: Path,
        groups: Sequence[Group],
        names: Sequence[str] = ("a", "b"),
        *,
        ensemble: bool = False,
        zookeeper: str = "",
        patches: Sequence[tuple[str, Any]] = (),
        watched: bool = False,
        conf: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        servers: tuple[Any, Any] | None = None,
    ) -> None:
        for name in ("logs", "local", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.folder, self.names, self._patches, self._watched = folder, tuple(names), list(patches), watched
        self._given_conf, self._given_settings = conf or {}, settings or {}
        self.url = store_servers.warehouse_in(store_servers.chosen(), folder)
        self.root = f"/chaos-{uuid.uuid4().hex[:8]}"
        self._address, self._zk = zookeeper, None
        self.network: Network | None = None
        self.ensemble: Ensemble | None = None
        if ensemble:
            self.network = make_network(SERVERS, (*names, WATCH), own=store_servers.is_local(self.url))
            (folder / "ensemble").mkdir()
            self.ensemble = Ensemble(folder / "ensemble", self.network)
        self.outside: list[OutsideStores] = []
        self.books = [self._books(group, servers) for group in groups]
        self.coordinators: dict[str, Coordinator] = {}
        self.lives = 0
        self._feeding, self._feeder = threading.Event(), threading.Thread()
        self._feeder_error: BaseException | None = None
        self._steps: list[str] = []
        self.began = time.monotonic()

    def _books(self, group: Group, servers: tuple[Any, Any] | None) -> Books:
        group = replace(group, folder=group.folder or str(self.folder / f"source-{group.prefix}"))
        outside = None
        if group.kind in OUTSIDE:
            assert servers is not None, f"{group.kind} needs a broker and a database"
            suffix, full = f"s{uuid.uuid4().hex[:8]}", group.per_batch < 100
            outside = OutsideStores(
                *servers, suffix, group.per_batch, TOPOLOGY, "key", full=full, partitions=1 if full else 4
            )
            self.outside.append(outside)
        znodes = f"{self.root}/{TOPOLOGY}/{group.named('words')}"
        return Books(TOPOLOGY, group, self.url, lambda: self._znodes(znodes), outside)

    def __enter__(self) -> Deployment:
        try:
            if self.ensemble is not None:
                self.ensemble.start()
                self.ensemble.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._feeding.clear()
        for one in self.coordinators.values():
            if one.runs:
                with suppress(ProcessLookupError, ValueError):
                    one.kill(whole=True)
        for path in (self.folder / "logs").glob("*.jsonl"):
            for line in path.read_text().splitlines():
                if '"worker"' in line:  # one that a test has stopped outlives its driver
                    with suppress(ProcessLookupError):
                        os.kill(json.loads(line)["worker"], signal.SIGKILL)
        if self._zk is not None and self.ensemble is None:
            self._zk.close()
        if self.ensemble is not None:
            self.ensemble.close()
        elif not self._address:
            EmbeddedZooKeeper.stop(self.server_folder)
        for stores in self.outside:
            stores.close()
        if not store_servers.is_local(self.url):
            storage.delete(self.url)

    # --- ZooKeeper -----------------------------------------------------------------------------------

    @property
    def config(self) -> TridentConfig:
        """As a command of this process needs it."""
        given = {"zookeeper_session_timeout_secs": 6.0, "zookeeper_root": self.root}
        if self.network is not None:
            given["zookeeper"] = self.network.hosts(WATCH)
        elif self._address:
            given["zookeeper"] = self._address
        return TridentConfig(warehouse=self.url, **given)

    @property
    def server_folder(self) -> Path:
        """Of the embedded server."""
        return server_folder(TridentConfig(warehouse=self.url).warehouse_place())

    @property
    def zk(self) -> ZooKeeper:
        """A connection that no partition cuts."""
        if self._zk is None:
            if self.ensemble is not None:
                self._zk = self.ensemble.connect(WATCH, self.root, 10.0)
            elif self._address:
                self._zk = ZooKeeper(ZooKeeperConfig(self._address, self.root))
                self._zk.connect()
            else:
                self._zk = open_zookeeper(self.config, self.config.warehouse_place())
        return self._zk

    def _znodes(self, path: str) -> list[str]:
        found = []
        with suppress(NoNodeError):  # a coordinator that runs deletes them meanwhile
            for name in self.zk._client.get_children(path):  # past the fault points of ZooKeeper.children
                found += [f"{path}/{name}", *self._znodes(f"{path}/{name}")]
        return found

    def contenders(self) -> dict[int, Contender]:
        return {one.holder.pid: one for one in Handovers(self.zk, TOPOLOGY).contenders()}

    def request_is_there(self) -> bool:
        return Handovers(self.zk, TOPOLOGY).request() is not None

    def partition(self, *groups: tuple[str, ...]) -> None:
        """Whoever is not named is in the last group."""
        named = {name for group in groups for name in group}
        rest = tuple(name for name in (*SERVERS, *self.names, WATCH) if name not in named)
        assert self.ensemble is not None
        self.ensemble.partition(*groups[:-1], (*groups[-1], *rest))

    def heal(self) -> None:
        assert self.ensemble is not None
        self.ensemble.heal((*SERVERS, *self.names, WATCH))

    # --- coordinators --------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        faults: str = "",
        *,
        own_host: bool = False,
        late: bool = False,
        expression: str = RIGHT,
        comment: str = "",
        **settings: Any,
    ) -> Coordinator:
        """Starts a process.

        Args:
            faults: what it arms at its start.
            own_host: gives it a host name, and pids, of its own.
            late: its multis are sent late; see ``coordinator.say_attempts``.
            expression, comment: of its code.
            **settings: of this process alone.
        """
        self.lives += 1
        files = self.folder / "logs" / f"{name}-{self.lives:04}"
        code = self.folder / "code" / name / "topology.py"
        code.parent.mkdir(parents=True, exist_ok=True)
        code.write_text(_CODE.format(expression=expression, comment=comment))
        given = {
            "topology": TOPOLOGY,
            "groups": [asdict(books.group) for books in self.books],
            "log": str(files.with_suffix(".jsonl")),
            "commands": str(files.with_suffix(".commands")),
            "patches": self._patches,
            "watched": self._watched,
            "late": late,
        }
        files.with_suffix(".json").write_text(json.dumps(given))
        named = {"zookeeper_root": self.root, **SETTINGS, **self._given_settings}
        if self.network is not None:
            named["zookeeper"] = self.network.hosts(name)
        elif self._address:
            named["zookeeper"] = self._address
        conf = {
            **CONF,
            "spark.driver.extraJavaOptions": cold_options(),
            "spark.local.dir": str(self.folder / "local"),
            **store_servers.spark_settings(self.url),
            **self._given_conf,
        }
        command = [sys.executable, "-m", "trident.cli", "run", str(code), "--warehouse", self.url]
        command += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        command += [part for key, value in {**named, **settings}.items() for part in ("--set", f"{key}={value}")]
        if self.network is not None:
            command = self.network.command(name, command, own_host)
        made = Coordinator(name, command, files, self._environment(faults, files.with_suffix(".json")), own_host)
        self.coordinators[name] = made
        return made

    def _environment(self, faults: str, settings: Path | None = None) -> dict[str, str]:
        own = {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TRIDENT_FAULTS": faults,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "TMPDIR": str(self.folder / "tmp"),
            VARIABLE: str(settings),
        }
        return {**{name: value for name, value in os.environ.items() if not name.startswith("TRIDENT_")}, **own}

    def start_all(self, own_host: bool = False, warm: bool = False, **given: dict[str, Any]) -> list[Coordinator]:
        """The first coordinator leads, the others are standbys; in this order. Then the sources give rows without end.

        Args:
            own_host: see :meth:`start`.
            warm: waits until they have rehearsed.
            **given: name → what :meth:`start` is to be given for it.
        """
        first, *others = self.names
        leader = self.start(first, own_host=own_host, **given.get(first, {}))
        leader.wait_for(lambda: leader.events(LEADS))
        standbys = [self.start(name, own_host=own_host, **given.get(name, {})) for name in others]
        for one in standbys:
            one.wait_for(one.is_warm if warm else one.stands_by)
        for books in self.books:
            books.group.source.write("ready_to", ENDLESS)
        return [leader, *standbys]

    def leader(self) -> Coordinator | None:
        """The process that has led last, if it lives."""
        if not self.coordinators:
            return None
        last = max(self.coordinators.values(), key=lambda one: one.epoch)
        return last if last.runs and last.epoch else None

    def epoch(self) -> int:
        """How many leaders there have been."""
        return max(one.epoch for one in self.coordinators.values())

    def look_after(self) -> None:
        """Starts those again that were killed; none may have ended by itself, nor the feeder."""
        assert self._feeder_error is None, self._feeder_error
        for name, one in list(self.coordinators.items()):
            if not one.runs:
                assert one.asked_to_end, f"ended by itself with {one.process.returncode}: {one.story()}"
                self.start(name)

    # --- waiting -------------------------------------------------------------------------------------

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Notes how long something took, also of what fails; printed at once, for a run that is cut."""
        began = time.monotonic()
        print(f"{began - self.began:6.1f} s  {what} …", flush=True)
        try:
            yield
        finally:
            self._steps.append(f"{began - self.began:6.1f} s  {what}: {time.monotonic() - began:.1f} s")

    def wait(self, what: Callable[[], Any], why: str, secs: float = WAIT_SECS) -> Any:
        """Until it becomes true; ``why`` says what is not so as long as it is false. No process may end by itself."""

        def found() -> Any:
            for one in self.coordinators.values():
                code = one.process.poll()
                assert code in (None, -signal.SIGKILL) or one.asked_to_end, f"ended by itself: {one.story()}"
            return what()

        with self.step(f"waits while {why}"):
            return wait_for(found, lambda: f"waited {secs:.0f} s: {why}\n{self.story()}", secs)

    def story(self) -> str:
        return "\n".join([*self._steps, *(one.story() for one in self.coordinators.values())])

    def goes_on(self, since: float) -> None:
        """Until two transactions that began after that have been committed."""
        self.wait(
            lambda: any(len(one.advanced(since, new=True)) >= 2 for one in self.coordinators.values()),
            "nothing new is committed",
        )

    def wait_leads(self, one: Coordinator, transactions: int = 2) -> None:
        """Until a process leads and has committed something new."""
        self.wait(lambda: self.leader() is one, f"{one.name} does not lead")
        begun = self.transactions()
        self.wait(lambda: self.transactions() >= begun + transactions, f"{one.name} commits nothing")

    def wait_stands_by(self, *some: Coordinator) -> None:
        self.wait(lambda: {one.pid for one in some} <= self.contenders().keys(), "a standby does not come up")

    def transactions(self) -> int:
        """How many have been published in all groups."""
        return sum(books.committed.look().txid for books in self.books)

    # --- the source ----------------------------------------------------------------------------------

    def feed(self, txids: int) -> None:
        for books in self.books:
            books.feed(txids)

    def grow(self, rng: random.Random, every_secs: float, txids: int, ahead: int) -> None:
        """From now on there are ever more rows, until :meth:`finish`.

        Args:
            every_secs, txids: how often, and at most how many transactions' rows of each group.
            ahead: so many transactions' rows may wait at most.
        """
        self._feeding.set()

        def run() -> None:
            try:
                while self._feeding.is_set():
                    for books in self.books:
                        waits = books.txids * books.group.per_batch - books.committed.look().rows
                        if waits < ahead * books.group.per_batch:
                            books.feed(rng.randint(1, txids))
                    time.sleep(every_secs * rng.uniform(0.3, 1.7))
            except BaseException as error:
                self._feeder_error = error

        self._feeder = threading.Thread(target=run, name="feeder", daemon=True)
        self._feeder.start()

    def finish(self, secs: float = WAIT_SECS) -> None:
        """The sources end; waits until all of them is committed."""
        if self._feeder.is_alive():
            self._feeding.clear()
            self._feeder.join()
        assert self._feeder_error is None, self._feeder_error
        for books in self.books:
            if books.group.source.read("ready_to") == ENDLESS:
                books.end()
        for books in self.books:
            self.wait(lambda books=books: books.is_exhausted, "not everything is committed", secs)

    def check(self, counted: bool = True) -> None:
        """Everything once in each group; see ``checker.Books.check``."""
        for books in self.books:
            books.check(counted)

    def reader(self) -> Reader:
        """Of the first group."""
        return Reader(Path(self.url), TOPOLOGY, self.books[0].group.named("words"))

    # --- hand-overs ----------------------------------------------------------------------------------

    def command(self, *options: str, faults: str = "") -> subprocess.CompletedProcess[str]:
        """``trident handover`` as a process of its own."""
        command = [sys.executable, "-m", "trident.cli", "handover", TOPOLOGY, "--warehouse", self.url]
        command += ["--set", "zookeeper_session_timeout_secs=6", "--set", f"zookeeper_root={self.root}", *options]
        what = " ".join(["trident handover", *options, faults and f"killed at {faults}"]).strip()
        with self.step(what):
            try:
                return subprocess.run(
                    command, env=self._environment(faults), capture_output=True, text=True, timeout=WAIT_SECS
                )
            except subprocess.TimeoutExpired as over:
                said = f"{over.stdout!r} {over.stderr!r}"
                raise AssertionError(f"no end within {over.timeout:.0f} s: {what}\n{said}\n{self.story()}") from None

    def hand_over(self, **wish: Any) -> tuple[int, list[str]]:
        """The command in this process: its exit code, and what it says."""
        said: list[str] = []

        def run() -> int:
            return hand_over(TOPOLOGY, HandoverOptions(timeout_secs=WAIT_SECS, **wish), self.config, said.append)

        with self.step(f"hand_over({', '.join(f'{name}={value}' for name, value in wish.items())})"):
            # Where the servers are: they may have a network of their own.
            return (self.network.within(WATCH, run) if self.network is not None else run()), said


def with_ensemble(
    folder: Path,
    names: Sequence[str] = ("a", "b"),
    kind: str = "user-coded map",
    conf: dict[str, str] | None = None,
    **settings: Any,
) -> Deployment:
    """A leader and its standbys beside an ensemble, whose network can be cut; the writes of each are watched.

    Args:
        kind: of the only group, whose source has no end.
    """
    group = Group(kind, "", keys=7, per_batch=20, merged={"counts": 50}, merge_secs=60.0, retention=1_000)
    settings = {"batch_emit_interval_secs": 0.3, **settings}
    return Deployment(folder, [group], names, ensemble=True, watched=True, conf=conf, settings=settings)
