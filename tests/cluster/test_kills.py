"""A standalone cluster under kills of executors, workers, master, ZooKeeper and coordinator: exact at the end.

The warehouse is a folder that all hosts share; or it is on S3 or HDFS, whose servers are killed too, and the hosts
share no disk at all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.run import FolderMessages, Kill, Run, through_kills
from tests.cluster.standalone import Standalone
from tests.servers import store_servers
from tests.servers.ensemble import SERVERS, Ensemble
from tests.servers.networks import Proxies
from tests.servers.redis_fixtures import RedisServer
from trident import RedisListQueue
from trident.states.core import storage

pytestmark = pytest.mark.skipif(
    os.environ.get("TRIDENT_CLUSTER") != "all", reason="a real cluster; TRIDENT_CLUSTER=all runs it"
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three servers of ZooKeeper, which serve."""
    (tmp_path / "ensemble").mkdir()
    made = Ensemble(tmp_path / "ensemble", Proxies(SERVERS, ("drivers",)))
    try:
        made.start()
        made.wait_ready()
        yield made
    finally:
        made.close()


def test_kills_of_executors_workers_the_master_zookeeper_and_the_coordinator(
    tmp_path: Path, ensemble: Ensemble
) -> None:
    zookeeper, messages = ensemble.network.hosts("drivers"), FolderMessages(tmp_path)
    with (
        Standalone(tmp_path / "cluster", cores=2, memory=1500) as cluster,
        Run(cluster, tmp_path, str(tmp_path / "warehouse"), zookeeper, "/kills", messages) as run,
    ):
        through_kills(run, ensemble)


class ListMessages:
    """A list in a Redis server, whose address names this host as other hosts would."""

    def __init__(self, server: RedisServer, key: str) -> None:
        self._queue = RedisListQueue(server.url, key)
        # By its number alone 127.0.0.1 is refused on a cluster: each host's own. Here the driver alone asks the server.
        self.arguments = {"redis": server.url.replace("127.0.0.1", "127.1"), "key": key}

    def put(self, number: int) -> None:
        self._queue.put(f"message {number}", f"m{number}")

    def is_empty(self) -> bool:
        return len(self._queue) == 0


class S3Front:
    """A process before the S3 server, which its clients know alone: killed, the objects stay, as S3's would."""

    def __init__(self) -> None:
        (self._port,) = store_servers.free_ports(1)
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.servers.store_servers", str(self._port), store_servers.s3_endpoint()]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_on_a_store_whose_servers_die_too_and_hosts_that_share_no_disk(
    store: str, tmp_path: Path, ensemble: Ensemble, redis_server: RedisServer
) -> None:
    base = f"{store_servers.running(store)}/{uuid.uuid4().hex[:8]}"
    zookeeper, messages = ensemble.network.hosts("drivers"), ListMessages(redis_server, base)
    environment, spark, options, front = {}, {}, {}, None
    if store == "s3":
        front = S3Front()
        given = store_servers.s3_settings(front.endpoint)
        environment = {
            "AWS_ACCESS_KEY_ID": given.pop("fs.s3a.access.key"),
            "AWS_SECRET_ACCESS_KEY": given.pop("fs.s3a.secret.key"),
        }
        spark = {f"spark.hadoop.{key}": value for key, value in given.items()}
        options = {
            **environment,
            "AWS_ENDPOINT_URL": store_servers.s3_endpoint(),
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        kills = [Kill("the store", front.kill, front.start)]
    else:
        hdfs = store_servers.hdfs_clusters[-1]

        def whole(start: Callable[[], None]) -> None:
            """Behind it the name node is out of its safe mode, and knows all data nodes."""
            start()
            hdfs.wait()

        kills = [
            Kill("the name node", lambda: hdfs.kill(hdfs.name_node), lambda: whole(hdfs.start_name_node)),
            Kill("a data node", lambda: hdfs.kill(hdfs.data_nodes[0]), lambda: whole(lambda: hdfs.start_data_node(0))),
            Kill("all data nodes", hdfs.kill_data_nodes, lambda: whole(hdfs.start_data_nodes)),
        ]
    try:
        with Standalone(tmp_path / "cluster", cores=2, memory=1500, apart=True) as cluster:
            if not cluster.hosts:
                pytest.skip("needs mounts of a host's own")
            with Run(
                cluster, tmp_path, f"{base}/w", zookeeper, "/kills", messages, spark, options, **environment
            ) as run:
                through_kills(run, ensemble, kills)
    finally:
        if front is not None:
            front.kill()
        storage.delete(base)
