"""{spouts} × {states} × {faults}: the guarantee table, cell by cell, on real Spark, ZooKeeper and Delta.

A run has all states in one batch group, so that each crash falls between states
that are committed as one. Kafka's spouts and the states outside of the warehouse are
in the whole matrix alone. `make test` runs a covering sample of them; `make
matrix` every one, and each state by itself too.
A crash abandons the coordinator in this process where it hangs: its ZooKeeper
session ends and a new one takes over; real SIGKILLs are in test_kill.py.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.matrix.cells import (
    IN_THE_SWEEP,
    ONLY_IN_THE_MATRIX,
    STATES,
    Cell,
    Fault,
    Run,
    cells,
    expected,
    sample,
    whole,
)
from tests.matrix.sources import PER_BATCH
from tests.outside_stores import OutsideStores
from tests.topology_helpers import IN_ONE_PROCESS
from trident import TridentTopology
from trident.coordinators import faults
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology

WHOLE = os.environ.get("TRIDENT_MATRIX") == "all"
CELLS = whole() if WHOLE else sample()


@pytest.fixture
def start(spark: SparkSession, zk_server: str, tmp_path: Path) -> Iterator[Callable[[TridentTopology], TopologyQuery]]:
    queries: list[TopologyQuery] = []
    root = f"/matrix-{uuid.uuid4().hex}"

    def run(topology: TridentTopology) -> TopologyQuery:
        query = start_topology(
            topology,
            spark,
            warehouse=str(tmp_path / "warehouse"),
            zookeeper=zk_server,
            zookeeper_root=root,
            zookeeper_session_timeout_secs=4,
            max_spout_pending=2,
            batch_emit_interval_secs=0,
            standby=True,
            **IN_ONE_PROCESS,
        )
        queries.append(query)
        return query

    yield run
    faults.disarm()  # abandoned coordinators wake up, and may change nothing
    for query in queries:
        query.stop(60, compact=False)


def test_the_sample_covers_every_fault_and_the_spouts_that_the_crash_sweep_does_not() -> None:
    assert len({cell.spout for cell in sample()}) == len(sample()) == 3
    assert {cell.fault for cell in sample()} == set(Fault) - IN_THE_SWEEP - ONLY_IN_THE_MATRIX
    assert set(sample()) <= set(cells([STATES]))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cell(cell: Cell, start, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    outside = None
    if cell.is_outside:
        broker, server = request.getfixturevalue("kafka"), request.getfixturevalue("postgres_server")
        pytest.importorskip("httpx", reason="NOT TESTED: HttpState. The client is missing: pip install httpx")
        outside = OutsideStores(broker, server, f"m{uuid.uuid4().hex[:8]}", PER_BATCH, "matrix", "word")
        request.addfinalizer(outside.close)
    found = Run(cell, tmp_path, start, outside).go()
    assert found == {state: expected(cell.spout, state, cell.fault) for state in cell.states}
