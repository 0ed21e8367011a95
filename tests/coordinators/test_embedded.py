"""The embedded server: one per folder, found by all, and what is left when something is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.servers.zk_fixtures import connected, eventually
from trident.coordinators import embedded_server, processes
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.embedded_server import Endpoint, read_endpoint
from trident.coordinators.errors import ZooKeeperUnreachable
from trident.coordinators.znodes import Create

ROOT = Path(__file__).resolve().parents[2]
# A name that would break a properties file, a URI and a shell.
NAME = "a folder, ünïcode=#!"
# Longer than a server needs to start, also where other processes take the cores.
SESSION_SECS, RESTART_SECS = 40, 45


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / NAME
    EmbeddedZooKeeper.stop(tmp_path / NAME)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("shared") / NAME
    yield path
    EmbeddedZooKeeper.stop(path)


@pytest.fixture
def served(shared_folder: Path) -> Path:
    """The folder of a server that runs, whatever the test before has killed."""
    EmbeddedZooKeeper.ensure(shared_folder)
    return shared_folder


def endpoint(folder: Path) -> Endpoint:
    found = read_endpoint(folder)
    assert found
    return found


def hosts(folder: Path) -> str:
    return f"127.0.0.1:{endpoint(folder).port}"


def gone(pid: int) -> bool:
    return processes.started(pid) is None


def test_one_server_for_all_who_ask_at_once_which_survives_them_and_stops_when_told(folder: Path) -> None:
    program = f"from trident.coordinators.embedded import EmbeddedZooKeeper as E; print(E.ensure({str(folder)!r}))"
    askers = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {asker.communicate(timeout=60)[0].strip() for asker in askers}
    found = EmbeddedZooKeeper.status(folder)
    assert found and answers == {f"127.0.0.1:{found.port}"} == {EmbeddedZooKeeper.ensure(folder)}
    assert os.getsid(found.supervisor_pid) == found.supervisor_pid, "a Ctrl-C must not reach it"
    with connected(hosts(folder)):
        pass
    assert EmbeddedZooKeeper.stop(folder) is True
    assert gone(found.supervisor_pid) and gone(found.server_pid)
    assert EmbeddedZooKeeper.status(folder) is None and EmbeddedZooKeeper.stop(folder) is False


def test_it_listens_on_the_loopback_interface_only(served: Path) -> None:
    listening = {
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{endpoint(served).port:04X}") and line.split()[3] == "0A"
    }
    assert len(listening) == 1
    address = listening.pop().split(":")[0]
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")


@pytest.mark.long
def test_a_killed_server_is_started_again_for_connected_clients_with_its_data(served: Path) -> None:
    with connected(hosts(served), session_secs=SESSION_SECS) as zk:
        zk.multi([Create(zk.path("kept"), b"value")])
        before, session_number = endpoint(served), zk.session_number
        os.kill(before.server_pid, signal.SIGKILL)
        # Clients have this port as their host list: as a port of an outgoing connection it would be lost to them.
        while endpoint(served).server_pid == before.server_pid:
            if gone(before.server_pid):
                assert not can_be_bound(before.port)
            time.sleep(0.01)
        assert zk.wait_connected(session_number, timeout_secs=RESTART_SECS)
        assert zk.get(zk.path("kept"))[0] == b"value"
        assert endpoint(served).port == before.port


def can_be_bound(port: int) -> bool:
    """Tells whether a connection, or a process that asks for any port, could be given this one."""
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def listening(port: int) -> socket.socket:
    """A client that tries to connect meanwhile may be given the port for its own side, for a moment."""
    deadline = time.monotonic() + RESTART_SECS
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def test_a_server_whose_port_another_process_listens_at_waits_for_it(served: Path) -> None:
    before = endpoint(served)
    with connected(hosts(served), session_secs=SESSION_SECS) as zk:
        zk.multi([Create(zk.path("before"), b"value")])
        session_number = zk.session_number
        # Stopped, so that its next server does not have the port first.
        os.kill(before.supervisor_pid, signal.SIGSTOP)
        os.kill(before.server_pid, signal.SIGKILL)
        assert eventually(lambda: gone(before.server_pid))
        with listening(before.port):
            os.kill(before.supervisor_pid, signal.SIGCONT)
            said = f"another process has its port {before.port}"
            assert eventually(lambda: said in (served / "server.out").read_text(), RESTART_SECS)
        assert zk.wait_connected(session_number, timeout_secs=RESTART_SECS)
        assert zk.get(zk.path("before"))[0] == b"value"
    assert endpoint(served).port == before.port


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_killed_supervisor_leaves_no_server_and_the_data(served: Path) -> None:
    with connected(hosts(served), "/left", session_secs=SESSION_SECS) as zk:
        zk.multi([Create(zk.path("kept"), b"value")])
        before = endpoint(served)
        os.kill(before.supervisor_pid, signal.SIGKILL)
        assert eventually(lambda: gone(before.server_pid))
        assert EmbeddedZooKeeper.ensure(served) == f"127.0.0.1:{before.port}"
        assert zk.wait_connected(timeout_secs=RESTART_SECS)
        assert zk.get(zk.path("kept"))[0] == b"value"


def test_an_idle_server_ends_but_not_while_a_client_is_connected(folder: Path) -> None:
    folder.mkdir()
    # As a process does that runs since before an upgrade.
    command = [sys.executable, "-m", "trident.coordinators.embedded", str(folder), "0.5"]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as supervisor:
        assert eventually(lambda: read_endpoint(folder), RESTART_SECS)
        with connected(EmbeddedZooKeeper.ensure(folder)):
            found = endpoint(folder)
            assert found.supervisor_pid == supervisor.pid
            time.sleep(1.0)
            assert not gone(found.server_pid)
        assert eventually(lambda: gone(found.server_pid) and gone(found.supervisor_pid), 15)
    assert not (folder / "endpoint.json").exists()


def test_a_stale_or_foreign_endpoint_kills_nobody_and_its_port_is_taken_only_if_it_is_free(shared_folder: Path) -> None:
    """endpoint.json names a process that is not the server: pids are reused, and ports."""
    EmbeddedZooKeeper.stop(shared_folder)
    shared_folder.mkdir(exist_ok=True)
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port = other.getsockname()[1]
        stale = Endpoint(port, bystander.pid, "1", bystander.pid, "1")
        (shared_folder / "endpoint.json").write_text(json.dumps(asdict(stale)))
        with connected(EmbeddedZooKeeper.ensure(shared_folder)):
            assert bystander.poll() is None and endpoint(shared_folder).port != port
        bystander.communicate(b"\n")


def test_the_supervisor_refuses_a_folder_that_another_one_owns(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "STOP_SECS_MAX", 0.2)
    assert embedded_server.main([str(served), "600"]) == embedded_server.EXIT_OWNED


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    (folder / "data").parent.mkdir(parents=True)
    (folder / "data").write_text("a file where the data folder should be")
    with pytest.raises(ZooKeeperUnreachable, match="FileExistsError.*server.out"):
        EmbeddedZooKeeper.ensure(folder)
