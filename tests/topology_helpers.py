"""Starts topologies over one warehouse and one ZooKeeper root; a plugin of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from trident.config import TridentConfig
from trident.coordinators import faults
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology
from trident.topology import TridentTopology

WAIT_SECS = 300.0
# A standby in the process of the leader before is as warm as that one.
IN_ONE_PROCESS = {"warm_standby": False}


class Starter:
    """Starts topologies; each further one of the same name is a standby until the first is gone."""

    def __init__(self, spark: Any, **settings: Any) -> None:
        self._spark, self._settings = spark, settings
        self.queries: list[TopologyQuery] = []

    @property
    def config(self) -> TridentConfig:
        return TridentConfig(**self._settings)

    def __call__(self, topology: TridentTopology, **settings: Any) -> TopologyQuery:
        query = start_topology(topology, self._spark, **{"standby": True, **self._settings, **settings})
        self.queries.append(query)
        return query

    def run(self, topology: TridentTopology, **settings: Any) -> TopologyQuery:
        query = self(topology, **settings)
        query.process_all_available(WAIT_SECS)
        return query

    def replace_at(self, point: str, topology: TridentTopology, successor: TridentTopology) -> TopologyQuery:
        """Runs a topology until it hangs at a fault point; then its session ends, and a successor does the rest.

        Afterwards the first one wakes up and goes on, not knowing that it was replaced.
        """
        faults.arm(f"{point}:hang:2")
        first = self(topology, max_attempts=1)
        assert eventually(lambda: not faults.unfired(), WAIT_SECS), f"never came to {point}"
        second = self(successor)
        first._zk._client.stop()  # type: ignore[union-attr]
        second.process_all_available(WAIT_SECS)
        faults.disarm()
        first.stop(WAIT_SECS, compact=False)
        return second


@contextmanager
def starter(spark: Any, zookeeper: str, root: str, folder: Path, **settings: Any) -> Iterator[Starter]:
    start = Starter(
        spark,
        warehouse=str(folder / "warehouse"),
        zookeeper=zookeeper,
        zookeeper_root=root,
        zookeeper_session_timeout_secs=4,
        **{**IN_ONE_PROCESS, **settings},
    )
    try:
        yield start
    finally:
        faults.disarm()
        for query in start.queries:
            query.stop(WAIT_SECS, compact=False)


@pytest.fixture
def start(spark: Any, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[Starter]:
    with starter(spark, zk_server, zk_root, tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def no_fault_left() -> Iterator[None]:
    yield
    faults.disarm()
