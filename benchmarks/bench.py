"""What every benchmark is given: the session, a folder, one ZooKeeper server, the sizes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident import TopologyQuery, TridentTopology

log = logging.getLogger("benchmarks")
# A server of its own that all topologies of the run use: its start is measured by `restart` alone.
_NAMES = itertools.count(1)


@dataclass
class Bench:
    """The surroundings of one run.

    Attributes:
        spark: the session of ours, of the peers and of the limits.
        folder: everything is written below it.
        zookeeper: the host list of the run's server.
        quick: tiny sizes: shows that everything works, says nothing about speed.
    """

    spark: "SparkSession"
    folder: Path
    zookeeper: str
    quick: bool = False
    said: Callable[[str], None] = field(default=lambda text: None)

    def fresh(self, stem: str) -> Path:
        """A folder that nobody has used, not made yet."""
        return self.folder / f"{stem}-{next(_NAMES)}"

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.contextmanager
    def running(
        self, topology: "TridentTopology", warehouse: Path, in_flight: int, **settings: Any
    ) -> Iterator["TopologyQuery"]:
        """Starts a topology on the run's session and server; stops it in the end."""
        query = topology.start(
            self.spark, warehouse=str(warehouse), zookeeper=self.zookeeper, max_spout_pending=in_flight,
            **{"progress": "none", **settings},
        )  # fmt: skip
        try:
            yield query
        finally:
            query.stop()
            error = query.exception()
            if error is not None:
                raise error


def rounds(count: int, contenders: Mapping[str, Callable[[int], float]], say: Callable[[str], None]) -> dict[str, list[float]]:
    """Runs all contenders once per round, in turn, so that what else the machine does hits all alike.

    The order is turned around in every second round.

    Returns:
        name → a value per round.
    """
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            started = time.monotonic()
            value = contenders[name](number)
            values[name].append(value)
            say(f"   round {number + 1}/{count} {name}: {value:,.1f}  ({time.monotonic() - started:.1f} s)")
    return values


def steady_ms(records: list[dict[str, Any]], warm_up: int) -> float:
    """Milliseconds a transaction: wall time from one advance to the last, over those between.

    Args:
        records: ``query.recent_progress``.
        warm_up: how many at the beginning do not count.
    """
    times = [datetime.fromisoformat(record["timestamp"].replace("Z", "+00:00")).timestamp() for record in records]
    if len(times) <= warm_up + 1 or warm_up < 1:
        raise ValueError(f"{len(times)} transactions are too few for a warm-up of {warm_up}")
    return (times[-1] - times[warm_up - 1]) / (len(times) - warm_up) * 1000


Benchmark = Callable[[Bench, Report], None]
