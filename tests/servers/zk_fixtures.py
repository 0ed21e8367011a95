"""One real ZooKeeper server for the whole test run, a fresh root per test, and a proxy that cuts."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.wire.relay import Act, Connection, Relay
from tests.wire.zookeeper import ZooKeeperLanguage
from trident.coordinators import faults
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig

SESSION_SECS = 4.0


@pytest.fixture(scope="session")
def zk_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host list of an embedded server that takes sessions from one second on."""
    if given := os.environ.get("TRIDENT_TEST_ZOOKEEPER"):
        yield given  # that of the process that runs this one: test_planted_bugs.py
        return
    folder = tmp_path_factory.mktemp("zookeeper")
    with kept_busy(EmbeddedZooKeeper.ensure(folder)) as hosts:
        yield hosts
    EmbeddedZooKeeper.stop(folder)


@contextmanager
def kept_busy(hosts: str) -> Iterator[str]:
    """Holds one client: the server ends after ten minutes without any, and other tests may take as long."""
    client = KazooClient(hosts)
    client.start_async()
    try:
        yield hosts
    finally:
        client.stop()
        client.close()


@pytest.fixture
def zk_root() -> str:
    """A root of this test alone."""
    return f"/test-{uuid.uuid4().hex}"


Connect = Callable[..., ZooKeeper]


@contextmanager
def connected(hosts: str, root: str = "/trident", session_secs: float = SESSION_SECS) -> Iterator[ZooKeeper]:
    """A connection for as long as this lasts, also when the test fails."""
    zk = ZooKeeper(ZooKeeperConfig(hosts, root, session_secs, connect_timeout_secs=10.0))
    try:
        zk.connect()
        yield zk
    finally:
        zk.close()


@pytest.fixture
def zk_connect(zk_server: str, zk_root: str) -> Iterator[Connect]:
    """Makes connections, closed at the end: zk_connect(hosts=…, session_secs=…)."""
    made: list[ZooKeeper] = []

    def connect(hosts: str = zk_server, session_secs: float = SESSION_SECS) -> ZooKeeper:
        zk = ZooKeeper(ZooKeeperConfig(hosts, zk_root, session_secs, connect_timeout_secs=10.0))
        made.append(zk)
        zk.connect()
        return zk

    yield connect
    for zk in made:
        zk.close()


@pytest.fixture
def zk(zk_connect: Connect) -> ZooKeeper:
    """One connection with a session of four seconds."""
    return zk_connect()


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    """faults.arm, disarmed at the end; fails the test if a fault never happened."""
    faults.disarm()
    yield faults.arm
    unfired = faults.unfired()
    faults.disarm()
    assert unfired == []


@pytest.fixture
def cutting_proxy(zk_server: str) -> Iterator[CuttingProxy]:
    """A proxy before the server; see :class:`CuttingProxy`."""
    proxy = CuttingProxy(zk_server)
    yield proxy
    proxy.close()


def eventually(condition: Callable[[], object], secs: float = 10.0) -> bool:
    """Whether the condition becomes true within that time."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def wait_for(what: Callable[[], Any], why: Callable[[], str], secs: float = 240.0) -> Any:
    """What it becomes true as. A process with Spark takes a core for half a minute, and cores are shared."""
    deadline = time.monotonic() + secs
    while not (found := what()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
    return found


class CuttingProxy(Relay):
    """Cuts the connection at the next multi: before the server gets it, or before the client gets the answer.

    ``cut_next_multi("request")`` loses the request, ``"answer"`` only the answer: the client cannot tell which.
    """

    def __init__(self, server: str) -> None:
        super().__init__(0, int(server.split(":")[1]), ZooKeeperLanguage())
        self.hosts = f"127.0.0.1:{self.port}"
        self.cuts = 0
        self.before_cut: Callable[[], None] = lambda: None

    def cut_next_multi(self, *lose: str) -> None:
        for lost in lose:
            self.arm("multi", {"request": Act.LOST, "answer": Act.UNANSWERED}[lost])

    def cut(self, connection: Connection) -> None:
        self.cuts += 1
        self.before_cut()
        super().cut(connection)
