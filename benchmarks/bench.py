"""What every benchmark is given: the session, a folder, one ZooKeeper server, the sizes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident import TopologyQuery, TridentTopology

_NAMES = itertools.count(1)


@dataclass
class Bench:
    """The surroundings of one run.

    Attributes:
        spark: the session of ours, of the peers and of the limits.
        folder: everything is written below it.
        zookeeper: the host list of the run's server.
        quick: tiny sizes: shows that everything works, says nothing about speed.
        said: prints what is going on.
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
            self.spark,
            warehouse=str(warehouse),
            zookeeper=self.zookeeper,
            max_spout_pending=in_flight,
            zookeeper_root=f"/{warehouse.name}",
            **{"progress": "none", **settings},
        )
        try:
            yield query
        finally:
            query.stop()
            error = query.exception()
            if error is not None:
                raise error


def rounds(
    count: int, contenders: Mapping[str, Callable[[int], float]], say: Callable[[str], None], warm_up: bool = False
) -> dict[str, list[float]]:
    """Runs all contenders once per round, in turn, so that what else the machine does hits all alike.

    The order is turned around in every second round.

    Args:
        count: of rounds.
        contenders: name → a function of the round's number that gives a figure.
        say: told what is going on.
        warm_up: run all of them once before, and forget the figures: a JVM gets faster for some minutes.

    Returns:
        name → a value per round.
    """
    for name in contenders if warm_up else ():
        say(f"   warm-up {name}: {contenders[name](-1):,.1f}")
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            started = time.monotonic()
            value = contenders[name](number)
            values[name].append(value)
            say(f"   round {number + 1}/{count} {name}: {value:,.1f}  ({time.monotonic() - started:.1f} s)")
    return values


class Recorder:
    """Collects every progress record of a query, which itself keeps the last hundred."""

    def __init__(self, query: "TopologyQuery") -> None:
        self._query = query
        self._kept: dict[int, dict[str, Any]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="bench-recorder", daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Those so far, in the order of their txids."""
        return [self._kept[txid] for txid in sorted(self._kept)]

    def _collect(self) -> None:
        ended = False
        while not ended:
            ended = self._done.wait(0.3)
            for record in self._query.recent_progress:
                self._kept[record["batch_id"]] = record


def advanced_at(record: dict[str, Any]) -> float:
    """When a progress record's transaction advanced: seconds since the epoch."""
    return datetime.fromisoformat(record["timestamp"].replace("Z", "+00:00")).timestamp()


def steady_ms(records: list[dict[str, Any]], warm_up: int) -> float:
    """Milliseconds a transaction: wall time from one advance to the last, over those between.

    Args:
        records: of consecutive transactions.
        warm_up: how many at the beginning do not count; at least one.
    """
    if len(records) <= warm_up or warm_up < 1:
        raise ValueError(f"{len(records)} transactions are too few for a warm-up of {warm_up}")
    span = advanced_at(records[-1]) - advanced_at(records[warm_up - 1])
    return span / (len(records) - warm_up) * 1000
