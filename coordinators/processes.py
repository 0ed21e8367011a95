"""Identifies a process of this host by pid and start time, since pids are reused."""

from __future__ import annotations

import os
import socket

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
    return _started_elsewhere(pid)


def _started_elsewhere(pid: int) -> str | None:
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


def is_gone(pid: int, start: str) -> bool:
    """True only if it is certain that the process which started then has ended."""
    now = started(pid)
    return now is None or (UNKNOWN not in (now, start) and now != start)
