"""The embedded server: one per folder, found by all, and what is left when something is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.zk_fixtures import eventually
from trident.coordinators import embedded, processes
from trident.coordinators.embedded import EmbeddedZooKeeper, find_java
from trident.coordinators.errors import JavaProblem, ZooKeeperUnreachable
from trident.coordinators.zookeeper import Create, ZooKeeper, ZooKeeperConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    # A name that would break a properties file, a URI and a shell.
    path = tmp_path / "a folder, ünïcode=#!"
    yield path
    EmbeddedZooKeeper.stop(path)


def connected(hosts, session_timeout_secs=4):
    zk = ZooKeeper(ZooKeeperConfig(hosts, session_timeout_secs=session_timeout_secs, connect_timeout_secs=10))
    zk.connect()
    return zk


def gone(pid):
    return processes.started(pid) is None


def test_one_server_for_all_who_ask_at_once_which_survives_them_and_stops_when_told(folder):
    program = f"from trident.coordinators.embedded import EmbeddedZooKeeper as E; print(E.ensure({str(folder)!r}))"
    askers = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {asker.communicate(timeout=60)[0].strip() for asker in askers}
    assert len(answers) == 1
    hosts = answers.pop()
    endpoint = EmbeddedZooKeeper.status(folder)
    assert hosts == f"127.0.0.1:{endpoint.port}" == EmbeddedZooKeeper.ensure(folder)
    assert os.getsid(endpoint.supervisor_pid) == endpoint.supervisor_pid, "a Ctrl-C must not reach it"
    connected(hosts).close()
    assert EmbeddedZooKeeper.stop(folder) is True
    assert gone(endpoint.supervisor_pid) and gone(endpoint.server_pid)
    assert EmbeddedZooKeeper.status(folder) is None and EmbeddedZooKeeper.stop(folder) is False


def test_it_listens_on_the_loopback_interface_only(folder):
    EmbeddedZooKeeper.ensure(folder)
    endpoint = EmbeddedZooKeeper.status(folder)
    listening = {
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{endpoint.port:04X}") and line.split()[3] == "0A"
    }
    assert len(listening) == 1
    address = listening.pop().split(":")[0]
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")


def test_a_killed_server_is_started_again_for_connected_clients_with_its_data(folder):
    # Longer than a server needs to start, also where other processes take the cores.
    zk = connected(EmbeddedZooKeeper.ensure(folder), session_timeout_secs=40)
    zk.multi([Create(zk.path("kept"), b"value")])
    before = EmbeddedZooKeeper.status(folder)
    session_number = zk.session_number
    os.kill(before.server_pid, signal.SIGKILL)
    assert eventually(lambda: not zk.connected)
    assert zk.wait_connected(session_number, timeout_secs=45)
    assert zk.get(zk.path("kept"))[0] == b"value"
    # Clients may be connected before the supervisor has said where the new server is.
    assert eventually(lambda: EmbeddedZooKeeper.status(folder).server_pid != before.server_pid)
    assert EmbeddedZooKeeper.status(folder).port == before.port
    zk.close()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_killed_supervisor_leaves_no_server_and_the_data(folder):
    zk = connected(EmbeddedZooKeeper.ensure(folder))
    zk.multi([Create(zk.path("kept"), b"value")])
    before = EmbeddedZooKeeper.status(folder)
    os.kill(before.supervisor_pid, signal.SIGKILL)
    assert eventually(lambda: gone(before.server_pid))
    assert EmbeddedZooKeeper.ensure(folder) == f"127.0.0.1:{before.port}"
    assert zk.wait_connected(timeout_secs=45)
    assert zk.get(zk.path("kept"))[0] == b"value"
    zk.close()


def test_an_idle_server_ends_but_not_while_somebody_is_connected(folder):
    zk = connected(EmbeddedZooKeeper.ensure(folder, idle_secs=1.0))
    endpoint = EmbeddedZooKeeper.status(folder)
    time.sleep(3.0)
    assert not gone(endpoint.server_pid)
    zk.close()
    assert eventually(lambda: gone(endpoint.server_pid) and gone(endpoint.supervisor_pid), 15)
    assert not (folder / "endpoint.json").exists()


def test_a_stale_or_foreign_endpoint_kills_nobody(folder):
    """endpoint.json names a process that is not the server: pids are reused."""
    folder.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stale = {
        "port": 1,
        "supervisor_pid": bystander.pid,
        "supervisor_started": "1",
        "server_pid": bystander.pid,
        "server_started": "1",
    }
    (folder / "endpoint.json").write_text(json.dumps(stale))
    connected(EmbeddedZooKeeper.ensure(folder)).close()
    assert bystander.poll() is None
    bystander.communicate(b"\n")


def test_the_port_of_last_time_is_taken_only_if_it_is_free(folder):
    first = EmbeddedZooKeeper.ensure(folder)
    EmbeddedZooKeeper.stop(folder)
    with socket.create_server(("127.0.0.1", int(first.split(":")[1]))):
        second = EmbeddedZooKeeper.ensure(folder)
    assert second != first
    connected(second).close()


def test_a_server_that_cannot_start_says_why(folder, monkeypatch):
    (folder / "data").parent.mkdir(parents=True)
    (folder / "data").write_text("a file where the data folder should be")
    with pytest.raises(ZooKeeperUnreachable, match="FileExistsError.*server.out"):
        EmbeddedZooKeeper.ensure(folder)


def fake_java(folder: Path, output: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit {code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "17.0.1"', 17),
    ],
)
def test_the_java_of_java_home_is_found_with_its_version(tmp_path, monkeypatch, output, major):
    home = fake_java(tmp_path / "jdk", output)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == (str(home / "bin" / "java"), major)


@pytest.mark.parametrize(
    ("output", "code", "text"),
    [
        ('java version "1.8.0_402"', 0, "too old.*Java 8 .*17 or newer"),
        ('openjdk version "11.0.2" 2019', 0, "too old.*Java 11 "),
        ("no runtime present", 1, "does not work.*no runtime present"),
        ("hello", 0, "does not work.*hello"),
    ],
)
def test_a_java_that_will_not_do_is_refused(tmp_path, monkeypatch, folder, output, code, text):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", output, code)))
    with pytest.raises(JavaProblem, match=text):
        find_java()
    with pytest.raises(JavaProblem, match=text):
        EmbeddedZooKeeper.ensure(folder)


def test_no_java_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaProblem, match="JAVA_HOME="):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaProblem, match="no Java"):
        find_java()


def test_the_java_of_the_path_without_java_home(tmp_path, monkeypatch):
    home = fake_java(tmp_path / "jdk", 'openjdk version "17.0.15"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_java() == (str(home / "bin" / "java"), 17)


def test_the_supervisor_refuses_a_folder_that_another_one_owns(folder, monkeypatch):
    EmbeddedZooKeeper.ensure(folder)
    monkeypatch.setattr(embedded, "_STOP_SECS_MAX", 0.2)
    assert embedded._main([str(folder), "600"]) == embedded._EXIT_OWNED
