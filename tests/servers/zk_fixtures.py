"""One real ZooKeeper server for the whole test run, a fresh root per test, and a proxy that cuts."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

from trident.coordinators import faults
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig

SESSION_SECS = 4.0
_MULTI = 14


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


class CuttingProxy:
    """Cuts the connection at the next multi: before the server gets it, or before the client gets the answer.

    ``cut_next_multi("request")`` loses the request, ``"answer"`` only the
    answer: the client cannot tell which. ``down`` refuses every connection.
    ``silent`` connections are accepted and never answered.
    """

    def __init__(self, server: str) -> None:
        host, port = server.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        self.down = False
        self.silent = 0
        self.before_cut: Callable[[], None] = lambda: None
        self._armed: list[str] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next_multi(self, *lose: str) -> None:
        self._armed.extend(lose)

    def go_down(self) -> None:
        self.down = True
        self.cut_all()

    def cut_all(self) -> None:
        for pair in self._pairs:
            _shut(*pair)

    def close(self) -> None:
        self.go_down()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            if self.silent:
                self.silent -= 1
                self._pairs.append((client, client))
                continue
            server = socket.create_connection(self._server)
            self._pairs.append((client, server))
            lost_answers: set[int] = set()
            threading.Thread(target=self._requests, args=(client, server, lost_answers), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server, lost_answers), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost_answers: set[int]) -> None:
        first = True
        for frame in _frames(client):
            if not first and self._armed and struct.unpack(">ii", frame[:8])[1] == _MULTI:
                lose = self._armed.pop(0)
                if lose == "request":
                    self._cut(client, server)
                    return
                lost_answers.add(struct.unpack(">i", frame[:4])[0])
            first = False
            if not _send(server, frame):
                break
        _shut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, lost_answers: set[int]) -> None:
        for frame in _frames(server):
            if lost_answers and struct.unpack(">i", frame[:4])[0] in lost_answers:
                # The server has answered, so it has done it.
                self._cut(client, server)
                return
            if not _send(client, frame):
                break
        _shut(client, server)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        self.cuts += 1
        self.before_cut()
        _shut(client, server)


def _frames(source: socket.socket) -> Iterator[bytes]:
    try:
        with source.makefile("rb") as stream:
            while len(header := stream.read(4)) == 4:
                size = struct.unpack(">i", header)[0]
                if len(body := stream.read(size)) < size:
                    return
                yield body
    except (OSError, ValueError):
        return


def _send(target: socket.socket, frame: bytes) -> bool:
    try:
        target.sendall(struct.pack(">i", len(frame)) + frame)
        return True
    except OSError:
        return False


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        one.close()
