"""Workers whose socket the JVM has closed end without a word; other errors of the daemon are printed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

from tests.servers.zk_fixtures import eventually
from trident.coordinators import processes
from trident.spark.session import session_confs

OURS = "trident.workers.daemon"


def printed(daemon: str, worker: str, family: int) -> str:
    """The daemon's stderr after a JVM that opens a worker's socket, and closes it before it sends a task."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = {
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": str(family == socket.AF_UNIX).lower(),
            "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            "SPARK_REUSE_WORKER": "1",
        }
        running = subprocess.Popen(
            [sys.executable, "-m", daemon, worker],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        (number,) = struct.unpack("!i", running.stdout.read(4))
        address = running.stdout.read(number).decode() if family == socket.AF_UNIX else ("127.0.0.1", number)
        with socket.socket(family) as jvm:
            jvm.connect(address)
            (pid,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
            if family == socket.AF_INET:
                jvm.sendall(struct.pack("!i", 6) + b"secret")
                jvm.recv(6, socket.MSG_WAITALL)
                # A close with a reset, as of a JVM that has not read all.
                jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert eventually(lambda: processes.started(pid) is None)
        return running.communicate(timeout=30)[1].decode()


@pytest.mark.parametrize(
    "family", [socket.AF_UNIX, pytest.param(socket.AF_INET, marks=pytest.mark.long)], ids=["unix", "tcp"]
)
def test_a_closed_socket_is_not_the_users_to_read_about(family):
    assert printed(OURS, "pyspark.worker", family) == ""
    assert "BrokenPipeError" in printed("pyspark.daemon", "pyspark.worker", family)


def test_other_errors_are_printed():
    assert "No module named 'pyspark.missing'" in printed(OURS, "pyspark.missing", socket.AF_UNIX)


def test_on_one_machine_sessions_have_it_and_on_a_cluster_sparks_own():
    name = "spark.python.daemon.module"
    assert session_confs({"spark.master": "local[2]"})[name] == OURS
    assert name not in session_confs({"spark.master": "spark://host:7077"})
    assert name not in session_confs({"spark.master": "local[2]", name: "mine"})
