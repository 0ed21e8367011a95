"""The metrics of one run of a topology: collected as facts, held by Prometheus' instruments, served and exported."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trident.coordinators.errors import Halted, TridentError
from trident.states.core.place import Place
from trident.states.delta.append import DEAD_LETTERS
from trident.states.delta.delta_log import SizedTables, TableMissing, TableTotals
from trident.watching.events import Advanced, Began, Event, Failed, LostLead, Started, Terminated, TookOver
from trident.watching.metric_facts import (
    ADVANCES_KEPT,
    DiskFacts,
    Facts,
    GroupFigures,
    MemoryFacts,
    MergeFacts,
    TableSize,
)
from trident.watching.metric_table import METRICS, PHASES, Metric
from trident.watching.otel import Exporting, make_exporters

# Collects the facts that metrics are read from, in threads of its own: no scrape and no transaction waits for them.
#
# Each of three threads keeps what it found last. One of them that hangs, with a disk or with Spark's JVM, leaves the
# others going: ``Facts.collected`` tells how old the facts of each are.


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
            ("status", STATUS_SECS, self._collect_status),
            ("process", PROCESS_SECS, self._collect_process),
            ("tables", interval_secs, self._collect_tables),
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

    def _run(self, what: str, interval_secs: float, collector: Callable[[], Mapping[str, Any]]) -> None:
        while not self._stopped.is_set():
            try:
                found = collector()
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

    def _collect_status(self) -> Mapping[str, Any]:
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

    def _collect_process(self) -> Mapping[str, Any]:
        jvm = self._observed.jvm()
        python = resident_bytes(os.getpid())
        if jvm is None:
            return {"memory": MemoryFacts(python)}
        if self._jvm_pid is None:
            self._jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
        runtime = jvm.java.lang.Runtime.getRuntime()
        used = int(runtime.totalMemory()) - int(runtime.freeMemory())
        return {"memory": MemoryFacts(python, resident_bytes(self._jvm_pid), used, int(runtime.maxMemory()))}

    def _collect_tables(self) -> Mapping[str, Any]:
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


# Prometheus' instruments of one run of a topology, made from the table of metrics: filled by events, or by facts.
#
# Each run has a registry of its own, so that several topologies of a process do not meet, and a program that has a
# registry already keeps it to itself. To collect one takes locks that are held for an addition only, and does no I/O.


# Classes of errors that have a label of their own; those of a program that makes classes up do not fill the memory.
_KINDS_MAX = 50
_OTHER = "other"


class Instruments:
    """The metrics of one run. May be used from any thread.

    Args:
        topology: its name.
        facts: the facts that were collected last; must not block.
    """

    def __init__(self, topology: str, facts: Callable[[], Facts]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._by_events = {metric.name: _made(metric, self.registry) for metric in METRICS if metric.read is None}
        self.registry.register(_FromFacts(topology, facts))
        self._topology = topology
        self._lock = threading.Lock()
        self._begun: dict[str, int] = {}
        self._kinds: set[str] = set()
        self._uncounted: set[str] = set()  # groups with a transaction whose input rows are not known

    def collect(self) -> Iterator[Family]:
        """All families, as those that write them out want them: without the times at which counters were made."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    # --- events ---------------------------------------------------------------------------------

    def watch(self, event: Event) -> None:
        """A watcher of the topology."""
        if isinstance(event, Advanced):
            self._advanced(event)
        elif isinstance(event, Began):
            self._began(event)
        elif isinstance(event, Failed):
            self._add("trident_failures_total", event.group, event.part, self._kind(event.error))
        elif isinstance(event, TookOver):
            with self._lock:
                self._begun.clear()
            self._add("trident_takeovers_total")
        elif isinstance(event, LostLead):
            self._add("trident_lost_leads_total")

    def zookeeper(self, operation: str, seconds: float, failed: bool) -> None:
        """A request to ZooKeeper has ended."""
        self._observe("trident_zookeeper_request_duration_seconds", seconds, operation)
        if failed:
            self._add("trident_zookeeper_failures_total", operation)

    def _began(self, event: Began) -> None:
        with self._lock:
            before = self._begun.get(event.group, 0)
            self._begun[event.group] = max(before, event.txid)
        self._add("trident_attempts_total", event.group)
        if event.txid <= before:
            self._add("trident_replays_total", event.group)

    def _advanced(self, event: Advanced) -> None:
        group, progress = event.group, event.progress
        outcome = "recovered" if event.recovered else "published" if event.published else "empty"
        self._add("trident_transactions_total", group, outcome)
        self._add_input_rows(group, None if event.recovered else progress["num_input_rows"], event.recovered)
        for state, rows in progress["states"].items():
            self._add("trident_state_rows_total", group, state, by=rows)
        for state, size in event.written_bytes.items():
            self._add("trident_state_written_bytes_total", group, state, by=size)
        durations = progress["duration_ms"]
        for phase in PHASES:
            if phase in durations:
                self._observe("trident_phase_duration_seconds", durations[phase] / 1000.0, group, phase)

    def _add_input_rows(self, group: str, rows: int | None, recovered: bool) -> None:
        """A sum of which a part is not known is not shown: from then on the group has none."""
        if recovered or group in self._uncounted:
            return
        if rows is None or rows < 0:  # a spout's own Emitted.rows
            self._uncounted.add(group)
            with suppress(KeyError):
                self._by_events["trident_input_rows_total"].remove(self._topology, group)
            return
        self._add("trident_input_rows_total", group, by=rows)

    def _kind(self, error: BaseException) -> str:
        kind = type(error).__name__
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
                return _OTHER
            self._kinds.add(kind)
        return kind

    def _add(self, name: str, *labels: str, by: float = 1) -> None:
        self._by_events[name].labels(self._topology, *labels).inc(by)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        self._by_events[name].labels(self._topology, *labels).observe(value)


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    labels = ("topology", *metric.labels)
    if metric.kind == "counter":
        return Counter(metric.name, metric.about, labels, registry=registry)
    return Histogram(metric.name, metric.about, labels, buckets=metric.buckets, registry=registry)


class _FromFacts(Collector):
    """The metrics that are read, each time that a registry is collected."""

    def __init__(self, topology: str, facts: Callable[[], Facts]) -> None:
        self._topology, self._facts = topology, facts

    def collect(self) -> Iterable[Family]:
        facts = self._facts()
        for metric in METRICS:
            if metric.read is not None:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.name, metric.about, labels=("topology", *metric.labels))
                for labels, value in metric.read(facts):
                    family.add_metric((self._topology, *labels), value)
                yield family


class Metrics:
    """Begins when the topology is started, and ends with it: add :meth:`watch` to the watchers.

    Args:
        interval_secs: between two looks at the tables.

    Attributes:
        instruments: hold the values.
    """

    def __init__(self, topology: str, observed: Observed, interval_secs: float) -> None:
        self._collecting = Collecting(topology, observed, interval_secs)
        self.instruments = Instruments(topology, self._collecting.facts)
        self._exporting: Sequence[Exporting] = make_exporters(topology, self.instruments)

    def watch(self, event: Event) -> None:
        """A watcher of the topology."""
        try:
            self.instruments.watch(event)
        except Exception:  # what begins and ends with events must go on, and be told the last one
            log.warning("%s: %s is not in its metrics", event.topology, type(event).__name__, exc_info=True)
        self._collecting.watch(event)
        if isinstance(event, Started):
            self._collecting.start()
            for exporting in self._exporting:
                exporting.start()
        elif isinstance(event, Terminated):
            self._collecting.stop(
                "halted" if isinstance(event.error, Halted) else "failed" if event.error else "stopped"
            )
            for exporting in self._exporting:
                exporting.stop()

    @property
    def route(self) -> Route:
        """``GET /metrics``: as Prometheus reads it, in the form that the request asks for."""
        return Route("/metrics", self._answer)

    async def _answer(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(self.instruments), headers={"Content-Type": content_type})
