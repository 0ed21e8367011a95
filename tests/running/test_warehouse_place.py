"""A warehouse that is moved while its topology runs is not made anew at its old place; at the new one it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import LIMIT, WAIT_SECS, World, fold
from tests.servers.zk_fixtures import eventually
from trident.commands import exit_codes
from trident.coordinators import faults
from trident.coordinators.errors import Halted
from trident.running.failures import WarehouseProbe
from trident.states.core.place import Place
from trident.states.core.storage import anchor_of, make_folder
from trident.states.delta.torn_entries import table_lock


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, zk_server: str, zk_root: str):
    made = World(spark, tmp_path / "old" / "warehouse", zk_server, zk_root)
    yield made
    faults.disarm()
    LIMIT["txid"] = 1000
    made.close()


@pytest.mark.parametrize("when", ["idle", "decided"])
@pytest.mark.long
def test_a_warehouse_that_is_renamed_halts_the_topology_and_goes_on_at_its_new_place(world: World, when: str) -> None:
    LIMIT["txid"] = 2
    query = world.start(5)
    query.process_all_available(WAIT_SECS)
    if when == "decided":
        faults.arm("publish.table:pause")
        LIMIT["txid"] = 1000
        eventually(lambda: not faults.unfired())
    new = world.warehouse.parent.parent / "new"
    world.warehouse.parent.rename(new)
    faults.disarm()
    LIMIT["txid"] = 1000
    error = world.ends(query)
    assert isinstance(error, Halted) and exit_codes.exit_code(error) == exit_codes.EXIT_HALT
    assert "was moved or deleted while topology 'top' runs" in str(error) and "--warehouse" in str(error)
    assert not os.path.lexists(world.warehouse.parent), "made anew at the old place"
    world.warehouse = new / "warehouse"
    world.run(5)
    assert world.holds() == (fold(5), fold(5))


# --- without Spark -------------------------------------------------------------------------------------


def test_nothing_is_made_above_the_anchor(tmp_path: Path) -> None:
    own = tmp_path / "w" / "_trident" / "top" / "lines" / "manifests"
    assert anchor_of(own) == str(tmp_path / "w" / "_trident") and anchor_of(tmp_path / "w" / "counts") == str(
        tmp_path / "w"
    )
    for folder, anchor in ((own, anchor_of(own)), (tmp_path / "w" / "counts", tmp_path / "w")):
        with pytest.raises(FileNotFoundError, match="not made again"):
            make_folder(folder, anchor)
    with pytest.raises(Exception, match="not made again"), table_lock(str(tmp_path / "w" / "counts")):
        pass
    assert os.listdir(tmp_path) == []
    (tmp_path / "w" / "_trident").mkdir(parents=True)
    for _ in range(2):
        make_folder(own, anchor_of(own))
    assert own.is_dir()


def test_one_look_alone_does_not_stop_a_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("trident.running.failures.time.monotonic", lambda: now[0])
    place = WarehouseProbe(Place(tmp_path / "w"), "top")
    (tmp_path / "w" / "_trident").mkdir(parents=True)
    assert not place.is_missing(sure=True)
    (tmp_path / "w").rename(tmp_path / "away")
    assert not place.is_missing()  # too soon to look
    now[0] += 1
    assert not place.is_missing()  # the first time that it is missed
    (tmp_path / "away").rename(tmp_path / "w")
    now[0] += 1
    assert not place.is_missing()
    (tmp_path / "w").rename(tmp_path / "away")
    now[0] += 1
    assert not place.is_missing()
    now[0] += 1
    assert place.is_missing()
