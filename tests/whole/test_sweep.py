"""The crash sweep: every fault point × outcome × time × kind of topology, on real Spark, ZooKeeper and Delta.

`make test` runs the worst cases, `make sweep` every case (TRIDENT_SWEEP=all),
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

from tests.chaos.campaign import Campaign
from tests.chaos.cases import BIRTH, KINDS, MERGES, OUTCOMES, SWEPT, Case, dangerous, every, in_a_store, kinds, pairs
from tests.chaos.checker import CLEANED_EACH_TIME
from tests.chaos.deaths import MERGED, OF_TOGETHER, PATCHES, SETTINGS, TOGETHER, all_deaths, deaths, die_at_each
from tests.chaos.deployment import Deployment
from tests.chaos.outside_stores import OutsideStores
from tests.chaos.sources import PER_BATCH
from tests.chaos.workload import OUTSIDE, Group
from tests.servers import store_servers
from tests.topology_helpers import IN_ONE_PROCESS
from trident import TridentTopology
from trident.coordinators import faults, leadership
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology
from trident.states.core import storage
from trident.states.publishing import committer

WHOLE = os.environ.get("TRIDENT_SWEEP") == "all"
STORE = store_servers.chosen()
CASES = every(STORE) if WHOLE else dangerous()
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
        monkeypatch.setattr(committer, name, value)


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


def test_the_sweep_has_at_least_500_cases_and_the_worst_are_among_them() -> None:
    print(f"{len(every())} cases, {len(every(of=OUTSIDE))} of them over Kafka and PostgreSQL")
    assert len(set(every())) == len(every()) and len(every(of=KINDS)) >= 500
    assert {case.point for case in every()} <= SWEPT
    assert set(dangerous()) <= set(every()) and {case.outcome for case in dangerous()} == set(OUTCOMES)


def test_there_are_at_least_60_real_deaths() -> None:
    found = list(all_deaths())
    print(f"{len(found)} deaths, {sum(when == 'beginning' for _, when, _ in found)} of them behind one more")
    assert len(set(found)) >= 60


@pytest.mark.skipif(not WHOLE, reason="make sweep has real SIGKILLs (TRIDENT_SWEEP=all)")
@pytest.mark.parametrize("kind", kinds(STORE))
def test_after_real_sigkills(kind: str, zk_server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ends = deaths(kind)
    servers = None
    if kind in OUTSIDE:
        servers = (request.getfixturevalue("kafka"), request.getfixturevalue("postgres_server"))
    group = Group(kind, "", merged=MERGED.get(kind))
    given = {"zookeeper": zk_server, "patches": PATCHES, "settings": SETTINGS, "servers": servers}
    with Deployment(tmp_path / "d", [group], ["a"], **given) as deployment:
        assert die_at_each(deployment, ends) >= len(ends)


@pytest.mark.skipif(not WHOLE, reason="make sweep has real SIGKILLs (TRIDENT_SWEEP=all)")
def test_after_real_sigkills_of_three_groups_in_one_process(zk_server: str, tmp_path: Path) -> None:
    given = {"zookeeper": zk_server, "patches": PATCHES, "settings": SETTINGS}
    with Deployment(tmp_path / "d", TOGETHER, ["a"], **given) as deployment:
        assert die_at_each(deployment, OF_TOGETHER) == len(OF_TOGETHER)


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
