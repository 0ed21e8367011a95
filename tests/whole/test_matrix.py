"""{spouts} × {states} × {faults}: the guarantee table, cell by cell, on real Spark, ZooKeeper and Delta.

A run has all states in one batch group, so that each crash falls between states
that are committed as one. Kafka's spouts and the states outside of the warehouse are
in the whole matrix alone. `make test` runs a covering sample of them; `make
matrix` every one, and each state by itself too.
A crash abandons the coordinator in this process where it hangs: its ZooKeeper
session ends and a new one takes over; real SIGKILLs are in test_sweep.py.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.matrix import (
    IN_THE_SWEEP,
    ONLY_IN_THE_MATRIX,
    STATES,
    TOPOLOGY,
    Cell,
    Fault,
    Run,
    cells,
    expected,
    sample,
    whole,
)
from tests.chaos.outside_stores import OutsideStores
from tests.chaos.sources import PER_BATCH
from tests.chaos.workload import Group
from tests.topology_helpers import Starter, starter

WHOLE = os.environ.get("TRIDENT_MATRIX") == "all"
# The others of the sample take long, and each row of the table is checked without faults by test_guarantees.py.
CELLS = whole() if WHOLE else [pytest.param(cell, marks=pytest.mark.long) for cell in sample()[::2]] + sample()[1:2]


@pytest.fixture
def start(spark: SparkSession, zk_server: str, tmp_path: Path) -> Iterator[Starter]:
    settings = {"max_spout_pending": 2, "batch_emit_interval_secs": 0}
    with starter(spark, zk_server, f"/matrix-{uuid.uuid4().hex}", tmp_path, **settings) as start:
        yield start


def test_the_sample_covers_every_fault_and_the_spouts_that_the_crash_sweep_does_not() -> None:
    assert len({cell.spout for cell in sample()}) == len(sample()) == 3
    assert {cell.fault for cell in sample()} == set(Fault) - IN_THE_SWEEP - ONLY_IN_THE_MATRIX
    assert set(sample()) <= set(cells([STATES]))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cell(cell: Cell, start: Starter, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    outside = None
    if Group(cell.spout, "", only=cell.states).is_outside:
        broker, server = request.getfixturevalue("kafka"), request.getfixturevalue("postgres_server")
        pytest.importorskip("httpx", reason="NOT TESTED: HttpState. The client is missing: pip install httpx")
        outside = OutsideStores(broker, server, f"m{uuid.uuid4().hex[:8]}", PER_BATCH, TOPOLOGY, "key")
        request.addfinalizer(outside.close)
    found = Run(cell, tmp_path, start, outside).go()
    assert found == {state: expected(cell.spout, state, cell.fault) for state in cell.states}
