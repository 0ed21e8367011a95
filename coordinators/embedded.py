"""The embedded ZooKeeper server: one process per data folder, from the jars in pyspark (docs/semantics.md 13).

Whoever needs the server first starts it, under a file lock; it outlives its
starter and ends after ten idle minutes or by :meth:`EmbeddedZooKeeper.stop`.

Two processes: a small supervisor (``python -m trident.coordinators.embedded FOLDER``,
in a session of its own, so that a Ctrl-C at the starter's terminal does not
reach it) and the Java server as its child. The supervisor starts the server
again when it ends unexpectedly, on the same port, so that clients find it.

What is left when something is killed:

- the starter: nothing changes.
- the server: the supervisor starts it again on the same data. A full disk
  ends the server, too: it is then started again and again, a few seconds
  apart, until there is room.
- the supervisor: on Linux the server dies with it (PR_SET_PDEATHSIG); on
  other systems it stays, and the next ``ensure`` ends it by the pid and start
  time in ``endpoint.json``. Either way the next ``ensure`` starts both again
  on the same data and, if it is free, on the same port.

Never two servers on one folder: the supervisor holds ``owner.lock`` and the
server inherits it, so that the lock lasts as long as either of them lives.

Files in the folder: ``data/``, ``endpoint.json`` (while it runs; whose mtime
is the last ``ensure``), ``port`` (the last port), ``start.lock``,
``owner.lock``, ``zoo.cfg``, ``log4j2.properties``, ``zookeeper.log``,
``server.out`` (what supervisor and Java print).
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated

from msgspec import Meta

from trident.coordinators import processes
from trident.coordinators.environment import without_secrets
from trident.coordinators.errors import EnvironmentProblem, JavaProblem, ZooKeeperUnreachable
from trident.coordinators.stored_json import as_record, parse_stored, read_stored

JAVA_MAJOR_MIN = 17
IDLE_SECS = 600.0
START_SECS_MAX = 60.0
_STOP_SECS_MAX = 10.0
_RESTARTS_MAX, _RESTARTS_WITHIN_SECS = 5, 60.0
_RESTART_PAUSE_SECS = 2.0
_PROBE_SECS_MAX = 2.0
_PR_SET_PDEATHSIG = 1

# A part of pyspark's 350 jars: the server is up in half a second instead of
# several, and loads nothing of Spark.
_JARS = (
    "zookeeper-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "netty-*",
    "snappy-java-*",
    "metrics-core-*",
)

# Few kilobytes of znodes, written many times a second: with the defaults a log file grows to 100,000 requests, and
# three of them are kept; and each begins with 64 MB.
_SMALL = ("-Dzookeeper.snapCount=20000", "-Dzookeeper.preAllocSize=4096")

# The data folder is relative: a properties file is Latin-1, and the folder's
# own name may be anything.
_ZOO_CFG = """\
dataDir=./data
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = zookeeper.log
appender.file.filePattern = zookeeper.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p [%t] %c{1}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 2MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""

# Kept so that a supervisor that ends before its starter is reaped.
_started: list[subprocess.Popen[bytes]] = []


@atexit.register
def _leave_supervisors() -> None:
    # They outlive this process on purpose, of which Popen would warn.
    for supervisor in _started:
        supervisor.returncode = supervisor.poll() or 0


@dataclass(frozen=True)
class Endpoint:
    """``endpoint.json``: where the server is and which two processes run it."""

    port: Annotated[int, Meta(gt=1, lt=65536)]
    supervisor_pid: Annotated[int, Meta(gt=1)]
    supervisor_started: str
    server_pid: Annotated[int, Meta(gt=1)]
    server_started: str


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
            endpoint = _read_endpoint(folder)
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
            endpoint = _read_endpoint(folder)
            if endpoint is None:
                return False
            running = not _gone(endpoint)
            _end(endpoint)
            (folder / "endpoint.json").unlink(missing_ok=True)
            return running

    @staticmethod
    def status(data_folder: str | os.PathLike[str]) -> Endpoint | None:
        """Where the folder's server is; None if it does not answer. Starts nothing."""
        endpoint = _read_endpoint(Path(data_folder).resolve())
        return endpoint if endpoint and _connections(endpoint.port) is not None else None


def find_java() -> tuple[str, int]:
    """The Java that Spark would use: of JAVA_HOME if that is set, else of the PATH.

    Returns:
        (its path, its major version).

    Raises:
        JavaProblem: there is none, it does not work, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    action = f"install a JDK {JAVA_MAJOR_MIN} or newer and point JAVA_HOME at it"
    if path is None:
        raise JavaProblem("there is no Java", found="JAVA_HOME is not set, no java on the PATH", action=action)
    if not os.access(path, os.X_OK):
        raise JavaProblem("JAVA_HOME has no Java", found=f"JAVA_HOME={home}", expected=f"a file {path}", action=action)
    major = _java_major(path)
    if isinstance(major, str):
        raise JavaProblem(f"the Java at {path} does not work", found=major or "no output", action=action)
    if major < JAVA_MAJOR_MIN:
        raise JavaProblem(
            "Java is too old",
            found=f"Java {major} at {path}",
            expected=f"Java {JAVA_MAJOR_MIN} or newer",
            action=action,
        )
    return path, major


@functools.lru_cache(maxsize=8)
def _java_major(path: str) -> int | str:
    """The major version, or what was printed instead of one."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, errors="replace")
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
    output = done.stderr + done.stdout
    # "1.8.0_402" is Java 8; since 9 the first number is the major version.
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found and done.returncode == 0 else output.strip()[:300]


# -- the starter's side -----------------------------------------------------


def _start(folder: Path, idle_secs: float) -> Endpoint:
    find_java()
    _class_path()
    (folder / "endpoint.json").unlink(missing_ok=True)
    package_root = str(Path(__file__).absolute().parents[2])  # the folder that has `trident` in it
    environment = without_secrets(os.environ)
    environment.pop("TRIDENT_FAULTS", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environment.get("PYTHONPATH")]))
    with open(folder / "server.out", "wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "trident.coordinators.embedded", str(folder), str(idle_secs)],
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
        endpoint = _read_endpoint(folder)
        if endpoint and _connections(endpoint.port) is not None:
            return endpoint
        # It may have ended because another one, whose starter was killed,
        # holds the folder: then that one's endpoint appears.
        if supervisor.poll() not in (None, _EXIT_OWNED):
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
    deadline = time.monotonic() + _STOP_SECS_MAX
    while not processes.is_gone(endpoint.supervisor_pid, endpoint.supervisor_started):
        if _connections(endpoint.port) is not None:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return False


def _gone(endpoint: Endpoint) -> bool:
    return processes.is_gone(endpoint.supervisor_pid, endpoint.supervisor_started) and processes.is_gone(
        endpoint.server_pid, endpoint.server_started
    )


def _end(endpoint: Endpoint) -> None:
    """SIGTERM to the supervisor, which ends the server; then SIGKILL to what is left."""
    _signal(endpoint.supervisor_pid, endpoint.supervisor_started, signal.SIGTERM)
    if processes.is_gone(endpoint.supervisor_pid, endpoint.supervisor_started):
        _signal(endpoint.server_pid, endpoint.server_started, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECS_MAX
    while not _gone(endpoint) and time.monotonic() < deadline:
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


def _read_endpoint(folder: Path) -> Endpoint | None:
    try:
        return as_record(parse_stored(read_stored(folder / "endpoint.json")), Endpoint)
    except (OSError, ValueError):
        # It only says where to look; without a readable one the owner lock
        # still keeps a second server away.
        return None


def _connections(port: int) -> int | None:
    """Counts how many clients the server has beside this probe; None if it does not serve."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_PROBE_SECS_MAX) as probe:
            probe.sendall(b"srvr")
            answer = b"".join(iter(lambda: probe.recv(4096), b""))
    except OSError:
        return None
    found = re.search(rb"^Connections: (\d+)$", answer, re.MULTILINE)
    return max(0, int(found[1]) - 1) if found else None


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


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    jars = [jar for place in places for name in _JARS for jar in glob.glob(os.path.join(place, "jars", f"{name}.jar"))]
    if not any(os.path.basename(jar).startswith("zookeeper-") for jar in jars):
        raise EnvironmentProblem(
            "the jars of ZooKeeper are missing",
            found=f"pyspark at {places}" if places else "no pyspark",
            expected="pyspark with its jars, as installed from its wheel",
            action="install pyspark, or give the hosts of a ZooKeeper server",
        )
    return os.pathsep.join(sorted(jars))


# -- the supervisor ---------------------------------------------------------

_EXIT_OWNED = 75


class _Supervisor:
    def __init__(self, folder: Path, idle_secs: float, owner: IO[bytes]) -> None:
        self._folder, self._idle_secs, self._owner = folder, idle_secs, owner
        self._stopping = False
        self._server: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True

    def run(self) -> int:
        starts: list[float] = []
        served_at: float | None = None
        while not self._stopping:
            now = time.monotonic()
            starts = [start for start in starts if now - start < _RESTARTS_WITHIN_SECS] + [now]
            if len(starts) > _RESTARTS_MAX:
                # One that has served has lost its disk, and is wanted again when that has room.
                if served_at is None or now - served_at > self._idle_secs:
                    _say("the server ends again and again")
                    return 1
                self._pause()
            try:
                port = self._launch()
                if self._answers(port):
                    self._announce(port)
                    served_at = time.monotonic()
                    self._supervise(port)
                    served_at = time.monotonic()
            except OSError as problem:  # the disk is full, or read-only
                if served_at is None:
                    raise
                _say(f"the server cannot be started: {problem}")
                self._pause()
            self._end_server()
        (self._folder / "endpoint.json").unlink(missing_ok=True)
        return 0

    def _pause(self) -> None:
        deadline = time.monotonic() + _RESTART_PAUSE_SECS
        while not self._stopping and time.monotonic() < deadline:
            time.sleep(0.05)

    def _launch(self) -> int:
        folder = self._folder
        port = _free_port(folder)
        (folder / "data").mkdir(exist_ok=True)
        (folder / "zoo.cfg").write_text(_ZOO_CFG.format(port=port), encoding="latin-1")
        (folder / "log4j2.properties").write_text(_LOG4J, encoding="latin-1")
        command = [
            find_java()[0],
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.admin.enableServer=false",
            *_SMALL,
            "-cp",
            _class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "./zoo.cfg",
        ]
        self._server = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            # The server keeps the folder's lock even if it outlives us.
            pass_fds=[self._owner.fileno()],
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        return port

    def _answers(self, port: int) -> bool:
        assert self._server is not None
        deadline = time.monotonic() + START_SECS_MAX
        while not self._stopping and self._server.poll() is None and time.monotonic() < deadline:
            if _connections(port) is not None:
                return True
            time.sleep(0.05)
        return False

    def _announce(self, port: int) -> None:
        assert self._server is not None
        endpoint = Endpoint(
            port,
            os.getpid(),
            processes.started(os.getpid()) or processes.UNKNOWN,
            self._server.pid,
            processes.started(self._server.pid) or processes.UNKNOWN,
        )
        # Each as a whole: on a full disk the port of last time must stay, clients look for the server there.
        for name, text in (("port", str(port)), ("endpoint.json", json.dumps(asdict(endpoint)))):
            temporary = self._folder / f"{name}.new"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._folder / name)

    def _supervise(self, port: int) -> None:
        assert self._server is not None
        every_secs = min(5.0, self._idle_secs / 4)
        last_used, next_look = time.monotonic(), time.monotonic() + every_secs
        while not self._stopping and self._server.poll() is None:
            time.sleep(min(0.1, every_secs))
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + every_secs
            if self._in_use(port, every_secs):
                last_used = time.monotonic()
            elif time.monotonic() - last_used >= self._idle_secs:
                self._stop_if_idle(port)

    def _in_use(self, port: int, every_secs: float) -> bool:
        try:
            asked_for = time.time() - (self._folder / "endpoint.json").stat().st_mtime <= every_secs * 2
        except OSError:
            # The data folder was removed: nobody can find this server any
            # more, and what it writes is lost.
            self._stopping = not self._folder.is_dir()
            asked_for = False
        # A server that does not answer a probe is busy, not idle.
        return asked_for or _connections(port) != 0

    def _stop_if_idle(self, port: int) -> None:
        with open(self._folder / "start.lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # a process is about to use it
            if _connections(port) == 0:
                (self._folder / "endpoint.json").unlink(missing_ok=True)
                self._stopping = True
                self._end_server()

    def _end_server(self) -> None:
        if self._server is None or self._server.poll() is not None:
            return
        self._server.terminate()
        try:
            self._server.wait(_STOP_SECS_MAX / 2)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # what is printed goes to the very disk that is full


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _free_port(folder: Path) -> int:
    """The port of last time if it is free, so that clients find the server again; else any."""
    try:
        wanted = int((folder / "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        wanted = 0
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As the server itself does: old connections in TIME_WAIT do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on the loopback interface")


def _main(arguments: list[str]) -> int:
    folder, idle_secs = Path(arguments[0]), float(arguments[1])
    with open(folder / "owner.lock", "ab") as owner:
        deadline = time.monotonic() + _STOP_SECS_MAX
        while True:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                # A server whose supervisor was killed is on its way out, or
                # another supervisor owns the folder.
                if time.monotonic() > deadline:
                    return _EXIT_OWNED
                time.sleep(0.05)
        return _Supervisor(folder, idle_secs, owner).run()


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
