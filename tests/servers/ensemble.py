"""A ZooKeeper ensemble of three servers, each a process of its own, whose network and servers tests can break.

From the jars in pyspark, like the embedded server. Small heaps, tick 500 ms, so that a session of four seconds is
possible and the loss of a server is seen within two.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.servers.networks import Network
from trident.coordinators.embedded_server import java_command
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig

SERVERS = ("s1", "s2", "s3")
_READY_SECS = 40.0
_CONFIG = """\
dataDir={folder}
clientPort={client}
clientPortAddress={address}
tickTime=500
initLimit=10
syncLimit=4
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p [%t] %c{1}: %m%n
"""


class Ensemble:
    """Three servers on a network; start them all, then break them one by one.

    Args:
        folder: where their data and logs lie.
        network: with the endpoints ``SERVERS``.
    """

    def __init__(self, folder: Path, network: Network) -> None:
        self._folder, self.network = folder, network
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._paused: set[str] = set()
        self._clients: list[ZooKeeper] = []
        (folder / "log4j2.properties").write_text(_LOG4J)
        for number, server in enumerate(SERVERS, 1):
            own = folder / server
            own.mkdir()
            (own / "myid").write_text(str(number))
            (own / "zoo.cfg").write_text(self._config(server))

    def _config(self, server: str) -> str:
        address, client, _, _ = self.network.ports(server)
        lines = _CONFIG.format(folder=self._folder / server, client=client, address=address)
        for number, other in enumerate(SERVERS, 1):
            host, _, quorum, election = self.network.ports(other)
            lines += f"server.{number}={host}:{quorum}:{election}\n"
        return lines

    # --- servers -----------------------------------------------------------------------------

    def start(self, *servers: str) -> None:
        for server in servers or SERVERS:
            java = java_command(
                str(self._folder / server / "zoo.cfg"),
                "-Xmx96m",
                f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
                "-Dzookeeper.cnxTimeout=1000",
            )
            with (self._folder / f"{server}.log").open("ab") as log:
                self._processes[server] = subprocess.Popen(
                    self.network.command(server, java), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def kill(self, server: str) -> None:
        """SIGKILL."""
        process = self._processes.pop(server)
        process.kill()
        process.wait()
        self._paused.discard(server)

    def pause(self, *servers: str) -> None:
        """SIGSTOP."""
        for server in servers:
            self._processes[server].send_signal(signal.SIGSTOP)
            self._paused.add(server)

    def go_on(self, *servers: str) -> None:
        for server in servers or tuple(self._paused):
            self._processes[server].send_signal(signal.SIGCONT)
            self._paused.discard(server)

    def mode(self, server: str) -> str | None:
        """ "leader" or "follower"; None while it does not serve. Asked at the server's own endpoint."""
        if server not in self._processes or server in self._paused:
            return None
        address, client, _, _ = self.network.ports(server)
        try:
            answer = self.network.within(server, lambda: _srvr(address, client))
        except OSError:
            return None
        found = re.search(r"^Mode: (\w+)$", answer, re.MULTILINE)
        return found[1] if found else None

    def leader(self) -> str:
        """Waits until there is one."""
        deadline = time.monotonic() + _READY_SECS
        while time.monotonic() < deadline:
            for server in SERVERS:
                if self.mode(server) == "leader":
                    return server
            time.sleep(0.05)
        raise TimeoutError(f"the ensemble has no leader: {self._said()}")

    def followers(self) -> list[str]:
        leader = self.leader()
        return [server for server in SERVERS if server != leader and server in self._processes]

    def wait_ready(self) -> None:
        """Until all serve."""
        deadline = time.monotonic() + _READY_SECS
        while not all(self.mode(server) for server in SERVERS):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {SERVERS} serve: {self._said()}")
            time.sleep(0.05)

    def _said(self) -> str:
        logs = [f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in self._folder.glob("*.log")]
        return "\n".join(logs)

    # --- the network -------------------------------------------------------------------------

    def partition(self, *groups: Iterable[str]) -> None:
        """Only members of one group reach each other; every endpoint must be in one."""
        apart = self.network.partition([tuple(group) for group in groups])
        self.pause(*(server for server in apart if server in self._processes))

    def heal(self, endpoints: Iterable[str]) -> None:
        self.network.partition([tuple(endpoints)])
        self.go_on()

    def connect(self, endpoint: str, root: str, session_secs: float = 4.0) -> ZooKeeper:
        """A connection from that endpoint, closed with the ensemble."""
        zk = ZooKeeper(ZooKeeperConfig(self.network.hosts(endpoint), root, session_secs, connect_timeout_secs=20.0))
        self.network.within(endpoint, zk.connect)
        self._clients.append(zk)
        return zk

    def close(self) -> None:
        for zk in self._clients:
            zk.close()
        for server in list(self._processes):
            self.kill(server)
        self.network.close()


def _srvr(address: str, port: int) -> str:
    with socket.create_connection((address, port), timeout=1.0) as probe:
        probe.sendall(b"srvr")
        return b"".join(iter(lambda: probe.recv(4096), b"")).decode("ascii", "replace")
