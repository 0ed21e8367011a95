"""Puts metrics to a topology that is being started: where its port is open, or OpenTelemetry has an exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.zookeeper import ZooKeeper
from trident.planning.groups import GroupPlan
from trident.running.reporting import Reporter
from trident.running.status import TopologyStatus
from trident.states.core.place import Place
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.watching.facts import MergeFacts
from trident.watching.otel import asked_for


def measure(
    reporter: Reporter,
    plans: Sequence[GroupPlan],
    config: TridentConfig,
    warehouse: Place,
    zk: ZooKeeper,
    spark: SparkSession,
) -> None:
    """Adds a watcher and the route ``/metrics``; nothing where no program could read the metrics.

    Raises:
        ConfigError: OpenTelemetry's environment variables cannot be used.
    """
    if not config.metrics or not (config.http or asked_for(os.environ)):
        return
    from trident.watching.metrics import Metrics  # time: 60 ms, only where there are metrics

    observed = RunningTopology(reporter, plans, warehouse, zk, spark)
    metrics = Metrics(reporter.progress.name, observed, config.metrics_interval_secs)
    zk.timed = metrics.instruments.zookeeper
    reporter.watchers.add(metrics.watch)
    reporter.front.routes = [*reporter.front.routes, metrics.route]


class RunningTopology:
    """A topology of this process as metrics observe it: ``trident.watching.collecting.Observed``."""

    def __init__(
        self, reporter: Reporter, plans: Sequence[GroupPlan], warehouse: Place, zk: ZooKeeper, spark: SparkSession
    ) -> None:
        self.warehouse = warehouse
        self._reporter, self._zk, self._spark = reporter, zk, spark
        self._states = [(plan.name, binding.name) for plan in plans for binding in plan.bindings]

    def status(self) -> TopologyStatus:
        return self._reporter.status()

    def merges(self) -> Mapping[str, Mapping[str, MergeFacts]]:
        found: dict[str, dict[str, MergeFacts]] = {}
        for group in list(self._reporter.supervisor.groups):
            upkeep = group.parts.upkeep
            if isinstance(upkeep, BackgroundCompactor):
                found[group.name] = {
                    state: MergeFacts(upto, totals.count, totals.seconds, totals.failures)
                    for state, (upto, totals) in upkeep.merged.items()
                }
        return found

    def failures(self) -> Mapping[str, tuple[int, float]]:
        found = {}
        for group in list(self._reporter.supervisor.groups):
            driver = group.driver
            most = max(
                (count.failures for txid, count in driver.state.failures if txid >= driver.state.current), default=0
            )
            since = driver.unready
            found[group.name] = most, 0.0 if since is None else max(time.monotonic() - since[0], 0.0)
        return found

    def zookeeper_connected(self) -> bool:
        return self._zk.connected

    def states(self) -> Sequence[tuple[str, str]]:
        return self._states

    def jvm(self) -> Any:
        return self._spark.sparkContext._jvm
