"""Processes of this host: identified by pid and start time, started without credentials; the Java that they run."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

from trident.coordinators.errors import JavaProblem

UNKNOWN = "unknown"


def host_name() -> str:
    """The name under which this host appears in the liveness znode."""
    return socket.gethostname()


def boot_id() -> str:
    """Returns what two processes share exactly if they can see each other's pids.

    On Linux the boot id with the pid namespace: two containers of one host
    have one boot id, and perhaps one host name, but each its own pids.
    ``"unknown"`` where nothing of the kind can be read.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        pass
    try:
        import psutil  # optional: Linux does not need it
    except ImportError:
        return UNKNOWN
    return f"booted {int(psutil.boot_time())}"


def started(pid: int) -> str | None:
    """When the process started, in the system's own unit, as a text to compare.

    Returns:
        None when there is no such process, or only its unreaped remains;
        ``"unknown"`` when there is one but its start cannot be read.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The second field is the command in brackets and may itself
                # hold blanks and brackets: the state follows the last one.
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            return UNKNOWN
        state, start = fields[0], fields[19]
        return None if state in (b"Z", b"X") else start.decode("ascii")
    return _start_by_psutil(pid)


def _start_by_psutil(pid: int) -> str | None:
    try:
        import psutil  # optional: Linux does not need it
    except ImportError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return UNKNOWN
        return UNKNOWN
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return UNKNOWN


def has_ended(pid: int, start: str) -> bool:
    """True only if it is certain that the process which started then has ended."""
    now = started(pid)
    return now is None or (UNKNOWN not in (now, start) and now != start)


# The environment variables that hold credentials: only processes that use them get them.


# A test compares this with the settings that are marked as secret.
_SECRET = re.compile(r"TRIDENT_(?:\w*(?:AUTH|PASSWORD|TOKEN)|SPARK_CONF|SPARK__.+)")


def is_secret(variable: str) -> bool:
    """Tells whether the variable is a setting of this framework that holds a credential."""
    return _SECRET.fullmatch(variable) is not None


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy for a child process."""
    return {variable: value for variable, value in environ.items() if not is_secret(variable)}


# Finds the Java that Spark would use, with its version.


JAVA_MAJOR_MIN = 17


def find_java() -> tuple[str, int]:
    """The Java that Spark would use: of JAVA_HOME if that is set, else of the PATH.

    Returns:
        (its path, its major version).

    Raises:
        JavaProblem: there is none, it does not work, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    action = (
        f"install a JDK {JAVA_MAJOR_MIN} or newer and point JAVA_HOME at it"
        " (Debian, Ubuntu: apt-get install openjdk-17-jre-headless, or openjdk-21-jre-headless; no JAVA_HOME needed)"
    )
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


def java_identity() -> tuple[str, str]:
    """The Java that Spark would use: its path without links, and all that it says of its version and its maker.

    Raises:
        JavaProblem: as :func:`find_java`.
    """
    path, _ = find_java()
    return os.path.realpath(path), _version_text(path)[1]


def _java_major(path: str) -> int | str:
    """The major version, or what was printed instead of one."""
    works, output = _version_text(path)
    # "1.8.0_402" is Java 8; since 9 the first number is the major version.
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found and works else output.strip()[:300]


@functools.lru_cache(maxsize=8)
def _version_text(path: str) -> tuple[bool, str]:
    """Tells whether this Java works, with its output or the problem."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, errors="replace")
    except (OSError, subprocess.SubprocessError) as problem:
        return False, str(problem)
    return done.returncode == 0, done.stderr + done.stdout
