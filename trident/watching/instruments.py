"""Prometheus' instruments of one run of a topology, made from the table of metrics: filled by events, or by facts.

Each run has a registry of its own, so that several topologies of a process do not meet, and a program that has a
registry already keeps it to itself. To collect one takes locks that are held for an addition only, and does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trident.watching.events import Advanced, Began, Event, Failed, LostLead, TookOver
from trident.watching.facts import Facts
from trident.watching.metric_table import METRICS, PHASES, Metric

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
