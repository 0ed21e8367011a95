"""The embedded ZooKeeper server of a data folder: found, or started, by each who needs it (docs/semantics.md 13).

The process that needs the server first starts it, under a file lock; it outlives its starter and ends after ten idle
minutes or by :meth:`EmbeddedZooKeeper.stop`. Two processes run it, the supervisor and the Java server
(``embedded_server``), in a session of their own, so that a Ctrl-C at the starter's terminal does not reach them.

The supervisor starts a server again that has ended. The next :meth:`EmbeddedZooKeeper.ensure` starts both again when
the supervisor is gone, on the same data and, if it is free, on the same port.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trident.coordinators import embedded_server, processes
from trident.coordinators.embedded_server import (
    EXIT_OWNED,
    START_SECS_MAX,
    STOP_SECS_MAX,
    Endpoint,
    class_path,
    connections,
    read_endpoint,
)
from trident.coordinators.errors import ZooKeeperUnreachable
from trident.coordinators.processes import find_java, without_secrets

IDLE_SECS = 600.0

# Kept so that a supervisor that ends before its starter is reaped.
_started: list[subprocess.Popen[bytes]] = []


@atexit.register
def _leave_supervisors() -> None:
    # They outlive this process on purpose, of which Popen would warn.
    for supervisor in _started:
        supervisor.returncode = supervisor.poll() or 0


class EmbeddedZooKeeper:
    """The server of one data folder."""

    @staticmethod
    def ensure(data_folder: str | os.PathLike[str], *, idle_secs: float = IDLE_SECS) -> str:
        """See to it that the folder's server runs.

        It keeps running for at least ``idle_secs`` after this call and after
        the last connection to it has ended.

        Args:
            data_folder: made if it does not exist; on a local disk.
            idle_secs: used only if this call starts the server.

        Returns:
            "127.0.0.1:port", a host list for ZooKeeperConfig.

        Raises:
            JavaProblem: no Java, or one older than 17.
            EnvironmentProblem: pyspark's jars are missing.
            ZooKeeperUnreachable: the server did not start; with its last output.
        """
        folder = Path(data_folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "start.lock"):
            endpoint = read_endpoint(folder)
            if endpoint and _usable(endpoint):
                os.utime(folder / "endpoint.json")
            else:
                if endpoint:
                    _end(endpoint)
                endpoint = _start(folder, idle_secs)
        return f"127.0.0.1:{endpoint.port}"

    @staticmethod
    def stop(data_folder: str | os.PathLike[str]) -> bool:
        """End the folder's server, within a few seconds; False if none was running."""
        folder = Path(data_folder).resolve()
        if not folder.is_dir():
            return False
        with _locked(folder / "start.lock"):
            endpoint = read_endpoint(folder)
            if endpoint is None:
                return False
            running = not _has_ended(endpoint)
            _end(endpoint)
            (folder / "endpoint.json").unlink(missing_ok=True)
            return running

    @staticmethod
    def status(data_folder: str | os.PathLike[str]) -> Endpoint | None:
        """Where the folder's server is; None if it does not answer. Starts nothing."""
        endpoint = read_endpoint(Path(data_folder).resolve())
        return endpoint if endpoint and connections(endpoint.port) is not None else None


def _start(folder: Path, idle_secs: float) -> Endpoint:
    find_java()
    class_path()
    (folder / "endpoint.json").unlink(missing_ok=True)
    package_root = str(Path(__file__).absolute().parents[2])  # the folder that has `trident` in it
    environment = without_secrets(os.environ)
    environment.pop("TRIDENT_FAULTS", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environment.get("PYTHONPATH")]))
    with open(folder / "server.out", "wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "trident.coordinators.embedded_server", str(folder), str(idle_secs)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    _started[:] = [process for process in _started if process.poll() is None] + [supervisor]
    deadline = time.monotonic() + START_SECS_MAX
    while time.monotonic() < deadline:
        endpoint = read_endpoint(folder)
        if endpoint and connections(endpoint.port) is not None:
            return endpoint
        # It may have ended because another one, whose starter was killed,
        # holds the folder: then that one's endpoint appears.
        if supervisor.poll() not in (None, EXIT_OWNED):
            break
        time.sleep(0.05)
    if supervisor.poll() is None:
        supervisor.terminate()
    raise ZooKeeperUnreachable(
        "the embedded ZooKeeper server did not start",
        found=_last_output(folder),
        expected=f"an answer within {START_SECS_MAX:g} s",
        action=f"see zookeeper.log and server.out in {folder}",
    )


def _usable(endpoint: Endpoint) -> bool:
    """Tells whether the server answers, or soon does because its supervisor is starting it again."""
    deadline = time.monotonic() + STOP_SECS_MAX
    while not processes.has_ended(endpoint.supervisor_pid, endpoint.supervisor_started):
        if connections(endpoint.port) is not None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return False


def _has_ended(endpoint: Endpoint) -> bool:
    return processes.has_ended(endpoint.supervisor_pid, endpoint.supervisor_started) and processes.has_ended(
        endpoint.server_pid, endpoint.server_started
    )


def _end(endpoint: Endpoint) -> None:
    """SIGTERM to the supervisor, which ends the server; then SIGKILL to what is left."""
    _signal(endpoint.supervisor_pid, endpoint.supervisor_started, signal.SIGTERM)
    if processes.has_ended(endpoint.supervisor_pid, endpoint.supervisor_started):
        _signal(endpoint.server_pid, endpoint.server_started, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECS_MAX
    while not _has_ended(endpoint) and time.monotonic() < deadline:
        time.sleep(0.02)
    _signal(endpoint.supervisor_pid, endpoint.supervisor_started, signal.SIGKILL)
    _signal(endpoint.server_pid, endpoint.server_started, signal.SIGKILL)


def _signal(pid: int, start: str, number: int) -> None:
    # Only a process that is certainly the one that was meant.
    if start == processes.UNKNOWN or processes.started(pid) != start:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _last_output(folder: Path) -> str:
    lines: list[str] = []
    for name in ("server.out", "zookeeper.log"):
        try:
            lines += (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        except OSError:
            pass
    return " | ".join(lines)[-1500:] or "no output"


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


if __name__ == "__main__":  # a process that runs since before an upgrade starts its supervisor by this name
    sys.exit(embedded_server.main(sys.argv[1:]))
