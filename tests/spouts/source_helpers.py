"""Runs a spout through a whole topology that appends its rows to a table: for the tests of sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.topology_helpers import starter
from trident import DeltaAppend, TridentTopology
from trident.coordinators import faults
from trident.running.query import TopologyQuery

WAIT_SECS = 90.0
Start = Callable[..., TopologyQuery]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def start(spark: SparkSession, zk_server: str, zk_root: str, warehouse: Path) -> Iterator[Start]:
    """start(spout, name="t", **settings): a topology over one warehouse and one ZooKeeper root, stopped in the end."""
    with starter(spark, zk_server, zk_root, warehouse.parent) as started:

        def run(spout: Any, name: str = "t", **settings: Any) -> TopologyQuery:
            topology = TridentTopology(name)
            topology.new_stream("rows", spout).partition_persist(DeltaAppend("out"))
            return started(topology, **settings)

        faults.disarm()
        yield run


def run_to_end(start: Start, spout: Any, **settings: Any) -> TopologyQuery:
    query = start(spout, **settings)
    query.process_all_available(WAIT_SECS)
    return query


def rows_read(query: TopologyQuery) -> int:
    """The rows that its transactions have read, as they say."""
    return sum(record["num_input_rows"] for record in query.recent_progress)


def by_txid(warehouse: Path) -> list[Counter]:
    """The rows of each transaction that wrote any, in order, a row of one field as its value; without Spark."""
    table = warehouse / "out"
    written: dict[int, Counter] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        txids = [action["txn"]["version"] for action in actions if "txn" in action]
        for action in actions:
            if "add" in action and action["add"]["dataChange"]:
                rows = pq.read_table(table / unquote(action["add"]["path"])).to_pylist()
                values = [tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in rows]
                written.setdefault(txids[0], Counter()).update(values)
    assert list(written) == sorted(written)
    return list(written.values())


def out(warehouse: Path) -> Counter:
    """All rows that the topology has written."""
    return sum(by_txid(warehouse), Counter())
