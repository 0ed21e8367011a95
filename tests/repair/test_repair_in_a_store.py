"""Repairs of a topology whose warehouse is in a store: as on a disk.

They need a Spark session for the store: `make stores` runs them in a process that has one (TRIDENT_STORE=s3 or hdfs).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import BREAKS, World, fold
from tests.servers import store_servers
from tests.servers.zk_fixtures import connected
from trident.coordinators import faults
from trident.coordinators.errors import Halted
from trident.coordinators.znodes import Delete
from trident.states.core import storage
from trident.states.core.place import Place

pytestmark = pytest.mark.skipif(store_servers.chosen() == "disk", reason="runs with TRIDENT_STORE=s3 or hdfs")


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, zk_server: str, zk_root: str) -> Iterator[World]:
    """Three batches, committed; the plain table is merged up to the second."""
    url = store_servers.warehouse_in(store_servers.chosen(), tmp_path)
    made = World(spark, Place(url), zk_server, zk_root)
    made.run(2, compact=True)
    made.run(3)
    assert made.holds() == (fold(3), fold(3))
    yield made
    faults.disarm()
    made.close()
    storage.delete(url)


def is_mended(world: World, batches: int, kind: str, *states: str) -> None:
    """The start says what is wrong; a repair that dies at its first step is run again, and all goes on."""
    assert isinstance(world.fails(batches), Halted)
    assert [finding.kind for finding in world.repair(undo_foreign=[*states]).findings] == [kind]
    faults.arm("apply.step:do_then_fail")
    with pytest.raises(faults.InjectedFault):
        world.repair(apply=True, undo_foreign=[*states])
    assert not faults.unfired()
    faults.disarm()
    assert world.repair(apply=True, undo_foreign=[*states]).left == []
    assert world.repair(apply=True, undo_foreign=[*states]).done == []
    world.run(batches)
    assert world.holds() == (fold(batches), fold(batches))
    assert world.repair().findings == []


def test_repairs_in_a_store(world: World) -> None:
    world.forget()
    is_mended(world, 4, "ZooKeeper wiped")
    with connected(world.hosts, world.root) as zk:
        zk.multi([Delete(zk.path("top", "lines", "coordinator", "4"))])
    is_mended(world, 5, "positions lost")


@pytest.mark.parametrize("name", ["written by someone else", "log written", "plain table RESTOREd"])
def test_what_others_did_to_a_table_in_a_store_is_undone(world: World, name: str) -> None:
    state, statement = BREAKS[name]
    world.sql(statement)
    is_mended(world, 5, "table RESTOREd" if "RESTOREd" in name else "table written by someone else", state)


def test_a_half_published_decision_in_a_store_is_rebuilt_or_given_up(world: World) -> None:
    faults.arm(",".join(f"publish.table:fail_before:{entry}" for entry in range(2, 5)))
    assert "could not be finished" in str(world.fails(4)) and not faults.unfired()
    faults.disarm()
    world.forget()
    is_mended(world, 5, "ZooKeeper wiped")
