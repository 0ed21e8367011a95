"""A rollback of a topology whose warehouse is in a store: as on a disk.

It needs a Spark session for the store: `make stores` runs it in a process that has one (TRIDENT_STORE=s3 or hdfs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers import store_servers
from tests.time_travel.test_rollback import ALL, fold, made
from tests.topology_helpers import IN_ONE_PROCESS, WAIT_SECS
from trident import TridentConfig, read
from trident.coordinators import faults
from trident.coordinators.errors import TopologyError
from trident.running.starting import start_topology
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog
from trident.time_travel.rollback import roll_back

pytestmark = pytest.mark.skipif(store_servers.chosen() == "disk", reason="runs with TRIDENT_STORE=s3 or hdfs")


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[str]:
    url = store_servers.warehouse_in(store_servers.chosen(), tmp_path)
    yield url
    faults.disarm()
    storage.delete(url)


def test_a_rollback_in_a_store(spark: SparkSession, warehouse: str, zk_server: str, zk_root: str) -> None:
    config = TridentConfig(
        warehouse=warehouse,
        zookeeper=zk_server,
        zookeeper_root=zk_root,
        zookeeper_session_timeout_secs=4,
        **IN_ONE_PROCESS,
    )

    def run(batches: int, compact: bool) -> None:
        query = start_topology(made(batches), spark, config, standby=True, max_attempts=2)
        query.process_all_available(WAIT_SECS)
        query.stop(WAIT_SECS, compact=compact)

    def held(txid: int | None = None) -> Any:
        counts, words = (read(spark, warehouse, name, txid) for name in ("counts", "words"))
        longest = read(spark, warehouse, "longest", txid).collect() if ALL else []
        return (
            {row.word: row["count"] for row in counts.collect()},
            {row.letter: row.longest for row in longest},
            Counter(row.word for row in words.collect()),
        )

    run(2, True)
    run(5, True)
    run(6, False)
    assert held() == fold(6)
    for number in range(2):
        faults.arm("rollback.table:do_then_fail")
        with pytest.raises(faults.InjectedFault):
            roll_back("top", 4, apply=True, config=config, spark=spark)
        assert not faults.unfired(), number
    roll_back("top", 4, apply=True, config=config, spark=spark)
    assert held() == fold(4) and held(3) == fold(3)
    run(8, True)
    assert held() == fold(8)
    (gone,) = [path for path in DeltaLog(f"{warehouse}/counts").at(1).files][:1]
    storage.delete(f"{warehouse}/counts/{gone}")
    with pytest.raises(TopologyError, match="gone for table counts: of the files that it had then"):
        roll_back("top", 3, config=config, spark=spark, apply=True)
