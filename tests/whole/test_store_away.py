"""A running topology whose store goes away, refuses, or is slow down for a while: nothing is lost, and it goes on.

It needs a Spark session for S3: `make stores` runs it in a process that has one (TRIDENT_STORE=s3).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.oracle import Table
from tests.chaos.store_mirror import Mirror
from tests.servers import store_servers
from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology

pytestmark = pytest.mark.skipif(store_servers.chosen() != "s3", reason="runs with TRIDENT_STORE=s3")
BUCKET = "goes-away"
ALL_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")


@pytest.fixture
def proxy(spark: SparkSession) -> Iterator[store_servers.Proxy]:
    """Before the S3 server, for one bucket."""
    proxy = store_servers.Proxy(store_servers.s3_endpoint())
    store_servers.make_bucket(proxy.endpoint, BUCKET)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    hadoop.set(f"fs.s3a.bucket.{BUCKET}.endpoint", proxy.endpoint)
    hadoop.set(f"fs.s3a.bucket.{BUCKET}.attempts.maximum", "2")
    hadoop.set(f"fs.s3a.bucket.{BUCKET}.retry.limit", "2")
    yield proxy
    proxy.end()


def topology_over(folder: Path) -> TridentTopology:
    topology = TridentTopology("away")
    lines = topology.new_stream("lines", FileSpout(f"{folder}/*.txt", min_rows=1, max_rows=100))
    lines.partition_persist(DeltaAppend("lines"))
    lines.group_by("value").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    return topology


def test_a_store_that_fails_for_a_while_costs_attempts_and_loses_nothing(
    spark: SparkSession, proxy: store_servers.Proxy, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    url = f"s3a://{BUCKET}/{uuid.uuid4().hex}"
    query: TopologyQuery = start_topology(
        topology_over(tmp_path / "in"),
        spark,
        warehouse=url,
        zookeeper=zk_server,
        zookeeper_root=zk_root,
        max_attempts=1000,
        warm_standby=False,
    )
    fed = 0

    def feed() -> None:
        nonlocal fed
        draft = tmp_path / "draft"
        draft.write_text("".join(f"w{number % 7}\n" for number in range(20)))
        draft.rename(tmp_path / "in" / f"{fed:03d}.txt")
        fed += 1

    def reason(words: str) -> Callable[[], bool]:
        return lambda: words in str(query.status)

    feed()
    query.process_all_available(WAIT_SECS)
    faults: list[tuple[tuple[str, ...], tuple[int, str], str]] = [
        (("PUT",), (403, "AccessDenied"), "the store refuses this process"),
        (("PUT",), (403, "RequestTimeTooSkewed"), "clock is too far from the store's"),
        (ALL_METHODS, (503, "SlowDown"), "the store cannot be reached, or fails"),
    ]
    for methods, answer, words in faults:
        proxy.answers = dict.fromkeys(methods, answer)
        feed()
        assert eventually(reason(words), WAIT_SECS), query.status
        proxy.answers = {}
        query.process_all_available(WAIT_SECS)
    query.stop(WAIT_SECS)
    mirror = Mirror(url, tmp_path / "mirror")
    mirror.bring()
    words = [row["value"] for row in Table.read(mirror.path / "lines").rows()]
    assert Counter(words) == Counter({f"w{number}": 3 * fed - (number == 6) * fed for number in range(7)})
