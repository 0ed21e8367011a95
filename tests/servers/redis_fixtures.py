"""One real Redis server for the tests of a process: own port, own folder, a password, killed at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.coordinators.embedded_server import LoopbackPort

PASSWORD = "s3cret/pass"
INSTALL_SECS = 180


class RedisServer:
    """A server whose acknowledged writes are on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserved = LoopbackPort()
        self.port = self._reserved.number
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        import redis

        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "requirepass": PASSWORD,
            "logfile": self._folder / "redis.log",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            for _ in range(200):
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.05)
        raise AssertionError(f"Redis did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, as in a loss of power of the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running server; the test is skipped, loudly, where there is none and none can be installed."""
    try:
        import redis  # noqa: F401
    except ImportError:
        pytest.skip("NOT TESTED: RedisMap. The client is missing: pip install redis")
    if not shutil.which("redis-server"):
        problem = apt_install("redis-server")
        if problem or not shutil.which("redis-server"):
            pytest.skip(f"NOT TESTED: RedisMap. No redis-server here: {problem}. Do: apt-get install redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_redis(tmp_path: Path, redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server of this test alone, which it may kill."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def apt_install(package: str) -> str | None:
    """Why a package could not be installed, or None. Its service, if any, is not started (RUNLEVEL)."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "not root, or no apt-get"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    # Another test process may be at it.
    apt_get = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt_get, "install", "-y", "--no-install-recommends", package]
    done = None
    try:
        for command in (install, [*apt_get, "update"], install):
            done = subprocess.run(command, env=environment, timeout=INSTALL_SECS, **quiet)
            if done.returncode == 0 and command is install:
                return None
    except subprocess.TimeoutExpired:
        return f"apt-get took more than {INSTALL_SECS} s"
    return f"apt-get: {done.stdout.strip().splitlines()[-1:] if done else ''}"
