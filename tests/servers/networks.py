"""Networks that a test can cut: one network namespace per process, or TCP proxies where root is missing.

``Namespaces`` (Linux, root): every endpoint is a network namespace of its own, joined to a bridge. A partition moves
endpoints to other bridges: packets are lost without a word, as when a cable is pulled, and the disk stays shared.
Bridges too live in a namespace, so that neither addresses nor packet filters of the machine matter.

``Proxies`` (anybody): servers listen on loopback ports, clients reach them through a proxy per pair. A pair that is
cut keeps its connections, over which nothing passes any more. Servers talk to each other directly: one that is to be
cut from the others is stopped with SIGSTOP instead, which the others cannot tell from a partition.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from tests.wire.relay import AnyBytes, Relay
from trident.coordinators.embedded_server import LoopbackPort

CLIENT, QUORUM, ELECTION = 2181, 2888, 3888
_CLONE_NEWNET = 0x40000000
_RUN = "/var/run/netns"
Result = TypeVar("Result")


class Network(Protocol):
    """What an ensemble and its clients are joined by."""

    real: bool

    def ports(self, server: str) -> tuple[str, int, int, int]:
        """Address, client port, quorum port and election port of a server."""

    def hosts(self, client: str) -> str:
        """The host list that a client is to be given."""

    def command(self, endpoint: str, command: Sequence[str], own_host: bool = False) -> list[str]:
        """The command that runs another one at an endpoint; ``own_host``: with a host name and pids of its own."""

    def within(self, endpoint: str, call: Callable[[], Result]) -> Result:
        """Calls something there: sockets that it makes, and threads that it starts, belong to the endpoint."""

    def partition(self, groups: Sequence[Iterable[str]]) -> set[str]:
        """Only members of one group reach each other. Returns the servers that must be stopped to that end."""

    def close(self) -> None: ...


@lru_cache(maxsize=1)
def may_make_namespaces() -> bool:
    """Whether this process may; ``TRIDENT_FAILOVER_NETWORK=proxies`` says no for it."""
    if os.environ.get("TRIDENT_FAILOVER_NETWORK") == "proxies" or os.geteuid() or not shutil.which("ip"):
        return False
    name = f"trf{os.getpid()}-probe"
    bridge = ["-n", name, "link", "add", "probe", "type", "bridge"]
    try:
        return all(not _ip(*words, check=False).returncode for words in (["netns", "add", name], bridge))
    finally:
        _ip("netns", "del", name, check=False)


def make_network(servers: Sequence[str], clients: Sequence[str], own: bool = True) -> Network:
    """Returns networks of their own where root allows; else, or where those are not wanted, proxies."""
    return Namespaces(servers, clients) if own and may_make_namespaces() else Proxies(servers, clients)


# --- namespaces ----------------------------------------------------------------------------------


class Namespaces:
    """Endpoints are namespaces ``trf<pid>-<name>`` on a bridge in ``trf<pid>-hub``."""

    real = True

    def __init__(self, servers: Sequence[str], clients: Sequence[str]) -> None:
        sweep()
        self._prefix = f"trf{os.getpid()}"
        self._servers = list(servers)
        self._names = [*servers, *clients]
        self._groups = 1
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        hub = self._name("hub")
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "b0", "type", "bridge", "forward_delay", "0")
        _ip("-n", hub, "link", "set", "b0", "up")
        for number, name in enumerate(self._names):
            own = self._name(name)
            _ip("netns", "add", own)
            _ip("-n", own, "link", "set", "lo", "up")
            _ip("-n", hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", own)
            _ip("-n", own, "addr", "add", f"{self._address(name)}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")
            _ip("-n", hub, "link", "set", f"v{number}", "master", "b0", "up")

    def _name(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _address(self, name: str) -> str:
        return f"10.77.0.{10 + self._names.index(name)}"

    def ports(self, server: str) -> tuple[str, int, int, int]:
        return self._address(server), CLIENT, QUORUM, ELECTION

    def hosts(self, client: str) -> str:
        return ",".join(f"{self._address(server)}:{CLIENT}" for server in self._servers)

    def command(self, endpoint: str, command: Sequence[str], own_host: bool = False) -> list[str]:
        within = ["ip", "netns", "exec", self._name(endpoint)]
        if not own_host:
            return [*within, *command]
        # Not as the first process: the kernel keeps SIGSTOP of its own doing from that one. With it all others die.
        apart = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        script = f'hostname {endpoint}; "$@" & wait'
        return [*within, *apart, "sh", "-c", script, "sh", *command]

    def within(self, endpoint: str, call: Callable[[], Result]) -> Result:
        done: list[Any] = []

        def run() -> None:
            try:
                with open(f"{_RUN}/{self._name(endpoint)}") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                done.extend((True, call()))
            except BaseException as error:
                done.extend((False, error))

        # A namespace is a property of a thread, and of those that it starts.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if not done[0]:
            raise done[1]
        return done[1]

    def partition(self, groups: Sequence[Iterable[str]]) -> set[str]:
        hub = self._name("hub")
        for number, group in enumerate(groups):
            if number >= self._groups:
                _ip("-n", hub, "link", "add", f"b{number}", "type", "bridge", "forward_delay", "0")
                _ip("-n", hub, "link", "set", f"b{number}", "up")
                self._groups += 1
            for name in group:
                _ip("-n", hub, "link", "set", f"v{self._names.index(name)}", "master", f"b{number}")
        return set()

    def close(self) -> None:
        for name in [*self._names, "hub"]:
            _remove(self._name(name))


def sweep() -> None:
    """Removes what test processes that are gone have left: their processes, then their namespaces."""
    for line in _ip("netns", "list", check=False).stdout.splitlines():
        found = re.match(r"trf(\d+)-\S+", line)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            _remove(found[0])


def _remove(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace, check=False).stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "del", namespace, check=False)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


# --- proxies -------------------------------------------------------------------------------------


class Proxies:
    """Loopback ports; a proxy for each pair of a client and a server."""

    real = False

    def __init__(self, servers: Sequence[str], clients: Sequence[str]) -> None:
        self._reserved = {server: (LoopbackPort(), LoopbackPort(), LoopbackPort()) for server in servers}
        self._ports = {server: tuple(one.number for one in ports) for server, ports in self._reserved.items()}
        self._clients = list(clients)
        self._proxies = {
            (client, server): Relay(0, self._ports[server][0], AnyBytes()) for client in clients for server in servers
        }

    def ports(self, server: str) -> tuple[str, int, int, int]:
        return ("127.0.0.1", *self._ports[server])

    def hosts(self, client: str) -> str:
        return ",".join(f"127.0.0.1:{self._proxies[client, server].port}" for server in self._ports)

    def command(self, endpoint: str, command: Sequence[str], own_host: bool = False) -> list[str]:
        if own_host:
            raise NotImplementedError("a host of its own needs namespaces")
        return list(command)

    def within(self, endpoint: str, call: Callable[[], Result]) -> Result:
        return call()

    def partition(self, groups: Sequence[Iterable[str]]) -> set[str]:
        place = {name: number for number, group in enumerate(groups) for name in group}
        for (client, server), proxy in self._proxies.items():
            (proxy.passes.clear if place[client] != place[server] else proxy.passes.set)()
        sizes = [sum(place[server] == number for server in self._ports) for number in range(len(groups))]
        largest = sizes.index(max(sizes))
        # Of two servers that are apart none may go on; of a group that is the larger one all do.
        return {server for server in self._ports if place[server] != largest} if len(groups) > 1 else set()

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
        for ports in self._reserved.values():
            for port in ports:
                port.close()
