"""Collects the facts that metrics are read from, in threads of its own: no scrape and no transaction waits for them.

Each of three threads keeps what it found last. One of them that hangs, with a disk or with Spark's JVM, leaves the
others going: ``Facts.collected`` tells how old the facts of each are.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Protocol

from trident.coordinators.errors import TridentError
from trident.states.core.place import Place
from trident.states.delta.beside import DEAD_LETTERS
from trident.states.delta.delta_log import TableMissing
from trident.states.delta.log_tables import SizedTables, TableTotals
from trident.watching.events import Advanced, Event, LostLead, Started, TookOver
from trident.watching.facts import ADVANCES_KEPT, DiskFacts, Facts, GroupFigures, MemoryFacts, MergeFacts, TableSize

log = logging.getLogger("trident.watching")
STATUS_SECS, PROCESS_SECS = 1.0, 5.0
# Each look at the tables of a warehouse in a store costs requests.
STORE_SECS_MIN = 300.0


class Observed(Protocol):
    """A running topology, as metrics see it: from memory, without waiting for a disk, a store or ZooKeeper."""

    warehouse: Place

    def status(self) -> Any:
        """Its ``trident.running.status.TopologyStatus``."""

    def merges(self) -> Mapping[str, Mapping[str, MergeFacts]]:
        """Batch group → keyed state → its MERGEs."""

    def failures(self) -> Mapping[str, tuple[int, float]]:
        """Batch group → the most failures of a transaction that has not advanced; how long its spouts have raised."""

    def zookeeper_connected(self) -> bool: ...

    def states(self) -> Sequence[tuple[str, str]]:
        """Each batch group with each of its states."""

    def jvm(self) -> Any:
        """Spark's JVM, by py4j; None: there is none any more."""


class Collecting:
    """Collects the facts of one run.

    Args:
        interval_secs: between two looks at the tables.
    """

    def __init__(self, topology: str, observed: Observed, interval_secs: float) -> None:
        self._topology, self._observed = topology, observed
        self._lock = threading.Lock()
        self._facts = Facts(version=version("trident-spark"))
        self._advances: dict[str, deque[tuple[int, float]]] = {}
        self._led_from = 0.0
        self._waiting_since: dict[str, float] = {}
        self._jvm_pid: int | None = None
        self._sized = SizedTables()
        self._stopped = threading.Event()
        if not observed.warehouse.is_local:
            interval_secs = max(interval_secs, STORE_SECS_MIN)
        works: list[tuple[str, float, Callable[[], Mapping[str, Any]]]] = [
            ("status", STATUS_SECS, self._look_at_status),
            ("process", PROCESS_SECS, self._look_at_process),
            ("tables", interval_secs, self._look_at_tables),
        ]
        self._threads = [
            threading.Thread(target=self._run, args=work, name=f"trident-metrics-{work[0]}", daemon=True)
            for work in works
        ]

    def facts(self) -> Facts:
        """Those of now, from what was collected last; tables and their disk are the business of the one that leads."""
        found = replace(self._facts, now=time.time())
        return found if found.role == "leader" else replace(found, groups=(), tables=(), disk=None)

    def watch(self, event: Event) -> None:
        """A watcher of the topology: notes when transactions advance, and from when on this process leads."""
        if isinstance(event, Advanced):
            with self._lock:
                kept = self._advances.setdefault(event.group, deque(maxlen=ADVANCES_KEPT))
                kept.append((event.txid, event.at))
        elif isinstance(event, (TookOver, LostLead)):
            with self._lock:
                self._advances.clear()
                self._led_from = event.at
        elif isinstance(event, Started):
            self._update(run_id=event.run_id)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, role: str = "stopped") -> None:
        """Ends the threads; one that hangs is left behind. Facts that are read later have this role."""
        with self._lock:
            self._stopped.set()
            self._facts = replace(self._facts, role=role)

    # --- the threads ------------------------------------------------------------------------------

    def _run(self, what: str, interval_secs: float, look: Callable[[], Mapping[str, Any]]) -> None:
        while not self._stopped.is_set():
            try:
                found = look()
                self._update(what=what, **found)
            except Exception as error:  # for show only: it must go on
                log.debug("the metrics of %s lack %s: %s", self._topology, what, error, exc_info=True)
            # Tables wait for nothing but the lead: a look at a store may be due in five minutes only.
            early = what == "tables" and self._facts.role != "leader"
            self._stopped.wait(min(interval_secs, STATUS_SECS) if early else interval_secs)

    def _update(self, what: str | None = None, **found: Any) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            if what is not None:
                found["collected"] = {**self._facts.collected, what: time.time()}
            self._facts = replace(self._facts, **found)

    def _look_at_status(self) -> Mapping[str, Any]:
        status, now = self._observed.status(), time.time()
        leads = status.role == "leader"
        if not leads:
            self._waiting_since.clear()  # of another leadership
        merges, failures = self._observed.merges(), self._observed.failures()
        with self._lock:
            advances, led_from = {group: tuple(kept) for group, kept in self._advances.items()}, self._led_from
        groups = tuple(
            GroupFigures(
                group,
                merges.get(group.name, {}),
                *failures.get(group.name, (0, 0.0)),
                advances.get(group.name, ()),
                led_from or now,
                self._waits_since(group, now),
            )
            for group in (status.groups if leads else ())
        )
        return {
            "role": status.role,
            "epoch": status.epoch,
            "groups": groups,
            "zookeeper_connected": self._observed.zookeeper_connected(),
        }

    def _waits_since(self, group: Any, now: float) -> float | None:
        if not sum(group.backlog.values()):
            self._waiting_since.pop(group.name, None)
            return None
        return self._waiting_since.setdefault(group.name, now)

    def _look_at_process(self) -> Mapping[str, Any]:
        jvm = self._observed.jvm()
        python = resident_bytes(os.getpid())
        if jvm is None:
            return {"memory": MemoryFacts(python)}
        if self._jvm_pid is None:
            self._jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
        runtime = jvm.java.lang.Runtime.getRuntime()
        used = int(runtime.totalMemory()) - int(runtime.freeMemory())
        return {"memory": MemoryFacts(python, resident_bytes(self._jvm_pid), used, int(runtime.maxMemory()))}

    def _look_at_tables(self) -> Mapping[str, Any]:
        if self._facts.role != "leader":
            status = self._observed.status()
            if status.role != "leader":
                return {"tables": (), "disk": None}
        warehouse, states = self._observed.warehouse, self._observed.states()
        sized = self._sized
        tables = [*_of_states(sized, warehouse, states), *_of_letters(sized, warehouse, self._topology, states)]
        return {"tables": tuple(tables), "disk": _disk(warehouse)}


def resident_bytes(pid: int) -> int | None:
    """The resident memory of a process of this host; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # no Linux, or the process has gone
        return None


def _disk(warehouse: Place) -> DiskFacts | None:
    if not warehouse.is_local:
        return None
    found = os.statvfs(warehouse)
    return DiskFacts(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _size(tables: SizedTables, path: Place) -> TableTotals | None:
    """None where it cannot be read now: the next look sees it.

    Raises:
        TableMissing: there is no table.
    """
    try:
        return tables.load(str(path))
    except TableMissing:
        raise
    except (TridentError, OSError) as error:
        log.debug("the size of %s is not known: %s", path, error)
        return None


def _of_states(tables: SizedTables, warehouse: Place, states: Iterable[tuple[str, str]]) -> Iterable[TableSize]:
    for group, state in states:
        for table, name in (("plain", state), ("log", f"{state}__log")):
            with suppress(TableMissing):
                found = _size(tables, warehouse / name)
                if found is not None:
                    yield TableSize(group, state, table, found.files, found.bytes, found.rows)


def _of_letters(
    tables: SizedTables, warehouse: Place, topology: str, states: Iterable[tuple[str, str]]
) -> Iterable[TableSize]:
    for group in dict.fromkeys(group for group, _ in states):
        try:
            found = _size(tables, warehouse / DEAD_LETTERS.table_name(topology, group))
        except TableMissing:
            yield TableSize(group, "", "dead_letters", 0, 0, 0)
            continue
        if found is not None:  # a look that fails must not say that the letters have gone
            yield TableSize(group, "", "dead_letters", found.files, found.bytes, found.rows)
