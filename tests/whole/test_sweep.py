"""The crash sweep: every fault point × outcome × time × kind of topology, on real Spark, ZooKeeper and Delta.

`make test` runs a fixed sample, `make sweep` every case (TRIDENT_SWEEP=all),
then pairs of faults (TRIDENT_SEED chooses them) and real SIGKILLs. The
warehouse is on the disk, or where TRIDENT_STORE says: `make sweep STORE=s3`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import store_servers
from tests.matrix.sources import PER_BATCH
from tests.outside_stores import OutsideStores
from tests.sweep.books import CLEANED_EACH_TIME
from tests.sweep.campaign import Campaign
from tests.sweep.cases import (
    BIRTH,
    KINDS,
    MERGES,
    OUTCOMES,
    OUTSIDE,
    SWEPT,
    Case,
    every,
    in_a_store,
    kinds,
    over_outside_stores,
    pairs,
    sample,
)
from tests.sweep.lives import Lives, all_deaths, deaths
from tests.topology_helpers import IN_ONE_PROCESS
from trident import TridentTopology
from trident.coordinators import faults, leadership
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology
from trident.states.core import storage
from trident.states.publishing import cleaning

WHOLE = os.environ.get("TRIDENT_SWEEP") == "all"
SAMPLE = 31  # as many as there are points
STORE = store_servers.chosen()
CASES = every(STORE) if WHOLE else [*sample(every(STORE, KINDS), SAMPLE), *over_outside_stores()]
if os.environ.get("TRIDENT_SWEEP") == "in a store":
    CASES = in_a_store()
PAIRS = 12
# So many points are swept over one warehouse: making it takes as long as a case or two.
POINTS_TOGETHER = 3


def steady() -> Iterator[tuple[str, list[Case]]]:
    """(name, cases) of what runs over one warehouse, by kind, the slowest kind first."""
    for kind in reversed(kinds(STORE)):
        cases = [case for case in CASES if case.kind == kind and case.time != BIRTH]
        if not WHOLE:
            yield f"{kind}, sample", cases
            continue
        points = sorted({case.point for case in cases})
        for start in range(0, len(points), POINTS_TOGETHER):
            some = points[start : start + POINTS_TOGETHER]
            yield f"{kind}, {' '.join(some)}", [case for case in cases if case.point in some]


STEADY = {name: cases for name, cases in steady() if cases}
BIRTHS = [case for case in CASES if case.time == BIRTH]


@pytest.fixture(autouse=True)
def cleaned_up_behind_each_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is done behind every twentieth: the sweep looks for leftovers behind each case."""
    for name, value in CLEANED_EACH_TIME.items():
        monkeypatch.setattr(cleaning, name, value)


@pytest.fixture
def campaign(
    spark: SparkSession, zk_server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Campaign]]:
    made: list[Campaign] = []
    connections: list[ZooKeeper] = []
    warehouses: list[str] = []

    def make(kind: str, merging: bool = True) -> Campaign:
        root, folder = f"/sweep-{uuid.uuid4().hex}", tmp_path / str(len(made))
        warehouse = store_servers.warehouse_in(STORE, folder)
        warehouses.append(warehouse)
        zk = ZooKeeper(ZooKeeperConfig(zk_server, root))
        zk.connect()
        connections.append(zk)

        def start(topology: TridentTopology) -> TopologyQuery:
            return start_topology(
                topology,
                spark,
                warehouse=warehouse,
                zookeeper=zk_server,
                zookeeper_root=root,
                zookeeper_session_timeout_secs=4,
                max_spout_pending=2,
                standby=True,
                **IN_ONE_PROCESS,
            )

        def depose() -> None:
            found = zk._client.exists(f"{root}/swept/live") and zk._client.get(f"{root}/swept/live")
            if found:
                leadership._ended_tokens.add(json.loads(found[0])["token"])

        outside = outside_stores(kind, request)
        made.append(Campaign(kind, folder, warehouse, start, lambda: znodes(zk, root), depose, merging, outside))
        return made[-1]

    yield make
    faults.disarm()
    for one in made:
        one.close()
    for zk in connections:
        zk.close()
    for warehouse in warehouses:
        if not store_servers.is_local(warehouse):
            storage.delete(warehouse)  # a server of the tests lists all it holds at each question


def outside_stores(kind: str, request: pytest.FixtureRequest) -> OutsideStores | None:
    """Stores of their own for a kind that has some; the test is skipped, loudly, where there is no server for them."""
    if kind not in OUTSIDE:
        return None
    pytest.importorskip("httpx", reason="NOT TESTED: HttpState. The client is missing: pip install httpx")
    broker, server = request.getfixturevalue("kafka"), request.getfixturevalue("postgres_server")
    stores = OutsideStores(broker, server, f"s{uuid.uuid4().hex[:8]}", PER_BATCH, "swept", "key")
    request.addfinalizer(stores.close)
    return stores


def znodes(zk: ZooKeeper, path: str) -> list[str]:
    found = []
    for name in zk._client.get_children(path):  # past the fault points of ZooKeeper.children
        found += [f"{path}/{name}", *znodes(zk, f"{path}/{name}")]
    return found


def test_the_sweep_has_at_least_500_cases_and_the_sample_all_of_their_parts() -> None:
    print(f"{len(every())} cases, {len(every(of=OUTSIDE))} of them over Kafka and PostgreSQL")
    assert len(set(every())) == len(every())
    assert {case.point for case in every()} <= SWEPT
    cases = every(of=KINDS)
    assert len(cases) >= 500
    chosen = sample(cases, SAMPLE)
    assert {case.point for case in chosen} == {case.point for case in cases}
    assert {case.kind for case in chosen} == set(KINDS)
    assert {case.outcome for case in chosen} == set(OUTCOMES)
    assert {case.time for case in chosen} == {case.time for case in cases}


def test_there_are_at_least_60_real_deaths() -> None:
    found = list(all_deaths())
    print(f"{len(found)} deaths, {sum(when == 'beginning' for _, when, _ in found)} of them behind one more")
    assert len(set(found)) >= 60


@pytest.mark.skipif(not WHOLE, reason="make sweep has real SIGKILLs (TRIDENT_SWEEP=all)")
@pytest.mark.parametrize("kind", kinds(STORE))
def test_after_real_sigkills(
    kind: str, zk_server: str, zk_root: str, zk: ZooKeeper, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ends = deaths(kind)
    warehouse = store_servers.warehouse_in(STORE, tmp_path)
    outside = outside_stores(kind, request)
    lives = Lives(kind, tmp_path, warehouse, zk_server, zk_root, lambda: znodes(zk, zk_root), outside)
    lives.go(ends)
    assert lives.killed >= len(ends)


@pytest.mark.skipif(not WHOLE, reason="make sweep runs pairs (TRIDENT_SWEEP=all)")
@pytest.mark.parametrize("kind", kinds(STORE))
def test_after_pairs_of_faults(kind: str, campaign: Callable[..., Campaign], rng) -> None:
    over = campaign(kind)
    for first, second in pairs(kind, PAIRS, rng.randrange(2**32)):
        print(first, "then", second)
        over.run(first, second)
    over.goes_on()


@pytest.mark.parametrize("cases", STEADY.values(), ids=list(STEADY))
def test_after_each_fault_everything_is_there_once(cases: list[Case], campaign: Callable[..., Campaign]) -> None:
    with_merges = any(case.point in MERGES for case in cases)
    over = campaign(cases[0].kind, with_merges)
    # MERGEs take most of the time: in the sample they begin with the first case that needs them.
    for case in cases if WHOLE else sorted(cases, key=lambda case: case.point in MERGES):
        print(case)
        over.merge(with_merges if WHOLE else case.point in MERGES)
        over.run(case)
    over.goes_on()


@pytest.mark.parametrize("case", BIRTHS, ids=str)
def test_after_a_fault_at_the_very_first_start(case: Case, campaign: Callable[..., Campaign]) -> None:
    over = campaign(case.kind)
    over.run(case)
    over.goes_on()
