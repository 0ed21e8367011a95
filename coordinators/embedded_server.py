"""Runs the embedded ZooKeeper server of one folder: starts Java, starts it again when it ends, ends it when idle.

The supervisor: ``python -m trident.coordinators.embedded_server FOLDER IDLE_SECS``, which ``embedded`` starts in a
session of its own. The Java server is its child, from the jars in pyspark.

- The server ends unexpectedly: it is started again, on the same data and on the same port, so that clients find it.
  The supervisor reserves the port for its whole life. If another process has it nevertheless, the server waits.
- A full disk ends the server, too: it is then started again and again, a few seconds apart, until there is room.
- The supervisor is killed: on Linux the server dies with it (PR_SET_PDEATHSIG); on other systems it stays, and the
  next ``EmbeddedZooKeeper.ensure`` ends it by the pid and start time in ``endpoint.json``.

Never two servers on one folder: the supervisor holds ``owner.lock`` and the server inherits it, so that the lock lasts
as long as either of them lives.

Files in the folder: ``data/``, ``endpoint.json`` (while it runs; whose mtime is the last ``ensure``), ``port`` (the
last port), ``start.lock``, ``owner.lock``, ``zoo.cfg``, ``log4j2.properties``, ``zookeeper.log``, ``server.out`` (what
supervisor and Java print).
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated

from msgspec import Meta

from trident.coordinators import processes
from trident.coordinators.errors import EnvironmentProblem
from trident.coordinators.processes import find_java
from trident.coordinators.stored_json import as_record, parse_stored, read_stored

# A port of the loopback interface that is kept for one server, also while that server is away.


_HOST = "127.0.0.1"
_OUTGOING = "/proc/sys/net/ipv4/ip_local_port_range"
_OUTGOING_ELSEWHERE = (49152, 65535)
_CHOICE_LEAST, _TRIES = 1000, 50


class LoopbackPort:
    """A port on which a server of this machine listens, or soon listens again.

    On Linux it is reserved until :meth:`close`: a socket is bound to it that never listens. The system then gives it
    to no outgoing connection and to no process that asks for any free port, and a client is refused while the server
    is away. A server that binds with SO_REUSEADDR can listen at it; so can another process that names this port and
    has that option, which :attr:`is_free` tells. A second LoopbackPort of the same number is refused, also while
    neither of the servers listens: of two that start at once, the clients of one would find the other's. Elsewhere
    such sockets would be in the server's own way, or cannot be made.
    """

    def __init__(self, number: int = 0) -> None:
        """Args:
        number: the port; 0 chooses one. The choice is outside the range of outgoing connections, if that leaves
            enough: the port is then likely to be free whenever a server wants it back.

        Raises:
            OSError: the port given is not free, or another LoopbackPort has it.
        """
        self._holder, self._claim = _claimed(_bound(number, reuse=True)) if number else _chosen()
        self.number: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self._holder.close()

    def close(self) -> None:
        """Ends the reservation; a server that listens goes on."""
        self._holder.close()
        self._claim.close()

    @property
    def is_free(self) -> bool:
        """Tells whether a server could listen at the port now."""
        try:
            _bound(self.number, reuse=True).close()
        except OSError:
            return False
        return True


def _bound(number: int, reuse: bool) -> socket.socket:
    made = socket.socket()
    try:
        # As the server does it: the remains of old connections do not matter then.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        made.bind((_HOST, number))
    except BaseException:
        made.close()
        raise
    return made


def _claimed(holder: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The holder, and a socket that only one LoopbackPort of this number can have: its name is no file's."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            claim.bind(f"\0trident-port-{holder.getsockname()[1]}")
    except BaseException:
        claim.close()
        holder.close()
        raise
    return holder, claim


def _chosen() -> tuple[socket.socket, socket.socket]:
    # Without SO_REUSEADDR: two processes that choose at once must not choose the same.
    candidates = _not_outgoing()
    for number in [*random.sample(candidates, min(_TRIES, len(candidates))), 0]:
        try:
            holder, claim = _claimed(_bound(number, reuse=False))
        except OSError:
            if not number:
                raise
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder, claim
    raise AssertionError("the last one is returned or raised")


def _not_outgoing() -> range:
    low, high = outgoing_ports()
    above = range(high + 1, 65536)
    # Registered services have their ports far below; those just below the range are rarely any.
    return above if len(above) >= _CHOICE_LEAST else range(max(1024, low - 10 * _CHOICE_LEAST), low)


def outgoing_ports() -> tuple[int, int]:
    """The first and the last port that this machine gives to outgoing connections."""
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return _OUTGOING_ELSEWHERE
    return low, high


START_SECS_MAX = 60.0
STOP_SECS_MAX = 10.0
# The exit code of a supervisor whose folder belongs to another one.
EXIT_OWNED = 75
_RESTARTS_MAX, _RESTARTS_WITHIN_SECS = 5, 60.0
_RESTART_PAUSE_SECS = 2.0
_OLD_PORT_SECS_MAX = 1.0
_PROBE_SECS_MIN, _PROBE_SECS_MAX = 0.2, 2.0
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


@dataclass(frozen=True)
class Endpoint:
    """``endpoint.json``: where the server is and which two processes run it."""

    port: Annotated[int, Meta(gt=1, lt=65536)]
    supervisor_pid: Annotated[int, Meta(gt=1)]
    supervisor_started: str
    server_pid: Annotated[int, Meta(gt=1)]
    server_started: str


def read_endpoint(folder: Path) -> Endpoint | None:
    """Returns what the folder's supervisor has written; None where there is nothing that can be read."""
    try:
        return as_record(parse_stored(read_stored(folder / "endpoint.json")), Endpoint)
    except (OSError, ValueError):
        # It only says where to look; without a readable one the owner lock
        # still keeps a second server away.
        return None


def connections(port: int, timeout_secs: float = _PROBE_SECS_MAX) -> int | None:
    """Counts how many clients the server has beside this probe; None if it does not serve."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_secs) as probe:
            probe.sendall(b"srvr")
            answer = b"".join(iter(lambda: probe.recv(4096), b""))
    except OSError:
        return None
    found = re.search(rb"^Connections: (\d+)$", answer, re.MULTILINE)
    return max(0, int(found[1]) - 1) if found else None


def class_path() -> str:
    """The jars of pyspark that the server needs, or of the Spark whose ``spark-submit`` runs this process.

    Raises:
        EnvironmentProblem: they are missing.
    """
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if home := os.environ.get("SPARK_HOME"):
        places.append(home)  # spark-submit says it, and has pyspark in a zip file, which has no jars
    for place in places:
        jars = [jar for name in _JARS for jar in glob.glob(os.path.join(place, "jars", f"{name}.jar"))]
        if any(os.path.basename(jar).startswith("zookeeper-") for jar in jars):
            break
    else:
        raise EnvironmentProblem(
            "the jars of ZooKeeper are missing",
            found=f"pyspark at {places}" if places else "no pyspark",
            expected="pyspark with its jars, as installed from its wheel",
            action="install pyspark, or give the hosts of a ZooKeeper server",
        )
    return os.pathsep.join(sorted(jars))


def java_command(config: str, *options: str) -> list[str]:
    """Returns the command that runs a server by a configuration file; ``options`` are Java's own."""
    return [
        find_java()[0],
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.admin.enableServer=false",
        *options,
        "-cp",
        class_path(),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        config,
    ]


def die_with_parent() -> None:
    """Has Linux kill this process when its parent ends; for ``preexec_fn``."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _Supervisor:
    def __init__(self, folder: Path, idle_secs: float, owner: IO[bytes]) -> None:
        self._folder, self._idle_secs, self._owner = folder, idle_secs, owner
        self._stopping = False
        self._server: subprocess.Popen[bytes] | None = None
        self._port: LoopbackPort | None = None
        self._served_at: float | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True

    def run(self) -> int:
        starts: list[float] = []
        while not self._stopping:
            now = time.monotonic()
            starts = [start for start in starts if now - start < _RESTARTS_WITHIN_SECS] + [now]
            if len(starts) > _RESTARTS_MAX:
                # One that has served has lost its disk, and is wanted again when that has room.
                if self._served_at is None or now - self._served_at > self._idle_secs:
                    _say("the server ends again and again")
                    return 1
                self._pause()
            try:
                port = self._launch()
                if self._answers(port):
                    self._announce(port)
                    self._served_at = time.monotonic()
                    self._supervise(port)
                    self._served_at = time.monotonic()
            except OSError as problem:  # the disk is full or read-only, or the port is taken
                if self._served_at is None:
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
        port = self._port_to_serve()
        (folder / "data").mkdir(exist_ok=True)
        (folder / "zoo.cfg").write_text(_ZOO_CFG.format(port=port), encoding="latin-1")
        (folder / "log4j2.properties").write_text(_LOG4J, encoding="latin-1")
        command = java_command("./zoo.cfg", "-Xmx256m", "-Dlog4j2.configurationFile=log4j2.properties", *_SMALL)
        self._server = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            # The server keeps the folder's lock even if it outlives us.
            pass_fds=[self._owner.fileno()],
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        return port

    def _port_to_serve(self) -> int:
        """The port of last time, so that clients find the server again; another one only if none has served here."""
        if self._port is None or (self._served_at is None and not self._port.is_free):
            self._port = _old_port(self._folder) or LoopbackPort()
        if not self._port.is_free:
            raise OSError(f"another process has its port {self._port.number}")
        return self._port.number

    def _answers(self, port: int) -> bool:
        assert self._server is not None
        deadline = time.monotonic() + START_SECS_MAX
        patience_secs = _PROBE_SECS_MIN
        while not self._stopping and self._server.poll() is None and time.monotonic() < deadline:
            asked_at = time.monotonic()
            if connections(port, patience_secs) is not None:
                return True
            # A server that is starting leaves some connections open without an answer; a busy one answers late.
            if time.monotonic() - asked_at >= patience_secs:
                patience_secs = min(2 * patience_secs, _PROBE_SECS_MAX)
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
            is_wanted = time.time() - (self._folder / "endpoint.json").stat().st_mtime <= every_secs * 2
        except OSError:
            # The data folder was removed: no client finds this server any more, and what it writes is lost.
            self._stopping = not self._folder.is_dir()
            is_wanted = False
        # A server that does not answer a probe is busy, not idle.
        return is_wanted or connections(port) != 0

    def _stop_if_idle(self, port: int) -> None:
        with open(self._folder / "start.lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # a process is about to use it
            if connections(port) == 0:
                (self._folder / "endpoint.json").unlink(missing_ok=True)
                self._stopping = True
                self._end_server()

    def _end_server(self) -> None:
        if self._server is None or self._server.poll() is not None:
            return
        self._server.terminate()
        try:
            self._server.wait(STOP_SECS_MAX / 2)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # what is printed goes to the very disk that is full


def _old_port(folder: Path) -> LoopbackPort | None:
    try:
        wanted = int((folder / "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    # The sockets of a server that was killed go a moment after its lock.
    deadline = time.monotonic() + _OLD_PORT_SECS_MAX
    while True:
        try:
            return LoopbackPort(wanted)
        except (OSError, OverflowError):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)


def main(arguments: list[str]) -> int:
    folder, idle_secs = Path(arguments[0]), float(arguments[1])
    with open(folder / "owner.lock", "ab") as owner:
        deadline = time.monotonic() + STOP_SECS_MAX
        while True:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                # A server whose supervisor was killed is on its way out, or
                # another supervisor owns the folder.
                if time.monotonic() > deadline:
                    return EXIT_OWNED
                time.sleep(0.05)
        return _Supervisor(folder, idle_secs, owner).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
