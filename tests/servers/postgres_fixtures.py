"""One real PostgreSQL server for the tests of a process: own port, own folder, a password, killed at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.redis_fixtures import apt_install
from trident.coordinators.embedded_server import LoopbackPort

PASSWORD = "s3cret/pass"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class PostgresServer:
    """A server with the defaults that count for durability. Its data stays: it can be killed, and start again."""

    def __init__(self, programs: Path, **settings: str) -> None:
        self._programs, self._settings = programs, {**_SETTINGS, **settings}
        # PostgreSQL refuses root, and the folders of pytest are root's alone.
        self.folder = Path(tempfile.mkdtemp(prefix="trident-postgres-"))
        self._user = None if os.geteuid() else pwd.getpwnam("nobody").pw_uid
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        self._reserved = LoopbackPort()
        self.port = self._reserved.number
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tester:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/postgres"

    def _run(self, *command: str) -> subprocess.Popen:
        with open(self.folder / "log", "ab") as output:
            return subprocess.Popen(
                [str(self._programs / command[0]), *command[1:]],
                stdout=output,
                stderr=output,
                user=self._user,
                cwd=self.folder,
            )

    def start(self) -> None:
        import psycopg

        data = self.folder / "data"
        if not data.exists():
            (self.folder / "password").write_text(PASSWORD)
            (self.folder / "password").chmod(0o644)
            how = ["-A", "scram-sha-256", "--pwfile", str(self.folder / "password"), "--locale=C", "-E", "UTF8"]
            made = self._run("initdb", "-D", str(data), "-U", "tester", "--no-sync", *how)
            assert made.wait(120) == 0, self.log()
        settings = [f"-c{name}={value}" for name, value in {**self._settings, "port": self.port}.items()]
        for _ in range(600):
            if self._process is None or self._process.poll() is not None:
                # Processes of the one that was killed may still hold its memory: then it is started again.
                self._process = self._run("postgres", "-D", str(data), *settings)
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise AssertionError(self.log())

    def log(self) -> str:
        return (self.folder / "log").read_text()[-2000:]

    def kill(self) -> None:
        """SIGKILL, as in a loss of power of the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP to all of its processes: connections stay, the system takes new ones, and none is answered."""
        assert self._process is not None
        pids = [str(self._process.pid)]
        pids += subprocess.run(["pgrep", "-P", pids[0]], capture_output=True, text=True).stdout.split()
        for pid in pids:
            os.kill(int(pid), signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(int(pid), signal.SIGCONT)

    def execute(self, statement: str, *values: Any) -> list[tuple]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; the test is skipped, loudly, where there is none and none can be installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        pytest.skip('NOT TESTED: PostgreSQL. The client is missing: pip install "psycopg[binary]"')
    if server_programs() is None:
        problem = apt_install("postgresql")
        if server_programs() is None:
            pytest.skip(f"NOT TESTED: PostgreSQL. No server here: {problem}. Do: apt-get install postgresql")
    programs = server_programs()
    assert programs is not None
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


def server_programs() -> Path | None:
    """The folder of a server's programs, which Debian keeps off the path."""
    on_path = shutil.which("initdb")
    found = [Path(on_path), *Path("/usr/lib/postgresql").glob("*/bin/initdb")] if on_path else None
    found = found or sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return found[0].parent if found else None
