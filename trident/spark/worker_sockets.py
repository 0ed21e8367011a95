"""Unix sockets between Spark's JVM and its Python workers, and the folder that they are in.

Over TCP each pass through Python waits some 40 ms for its last rows: the JVM's socket holds a small segment back until
the worker's kernel acknowledges the one before, which it delays. A Unix socket has no such wait. Spark 4.1 has the
setting, and puts its sockets into the JVM's temporary folder, where those of a killed driver stay for ever and where a
long path makes ``bind`` fail. So a driver on one machine gets a folder of its own, which only its user may enter, and
removes those of drivers that are gone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import stat
from pathlib import Path

from trident.coordinators import processes

log = logging.getLogger(__name__)

ENABLED = "spark.python.unix.domain.socket.enabled"
FOLDER = "spark.python.unix.domain.socket.dir"

# A socket's name is ".", 36 characters, ".sock"; the kernel takes paths of 107 bytes, macOS 103.
_PATH_BYTES_MAX = 103 - len("/.") - 36 - len(".sock")
_BASE = "/tmp"


def socket_settings(cores: int | None, base: str = _BASE) -> dict[str, str]:
    """The Spark settings for Unix sockets to Python workers; none where they are not possible.

    Args:
        cores: of a local master; None for a cluster. There it is TCP: a folder that each host has, may write and
            whose path is short enough is not known here. An executor's own temporary folder often has a path that
            is too long (YARN's has some 110 bytes), and then every task in Python would fail.
        base: the folder in which the user's folder of sockets is made.
    """
    if cores is None or not hasattr(socket, "AF_UNIX"):
        return {}
    try:
        folder = _own_folder(base)
    except OSError as error:
        log.warning("Spark's Python workers are reached over TCP, which costs each pass 40 ms: %s", error)
        return {}
    return {ENABLED: "true", FOLDER: folder}


def _own_folder(base: str) -> str:
    """This process's folder of sockets, made where it is missing; folders of processes that are gone are removed."""
    users = Path(base, f"trident-{os.getuid()}")
    users.mkdir(mode=0o700, exist_ok=True)
    found = users.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{users} is no folder that only this user may enter")
    started = processes.started(os.getpid()) or processes.UNKNOWN
    # Containers may share the folder, and each counts its processes itself.
    host = hashlib.sha256(processes.boot_id().encode()).hexdigest()[:8]
    own = users / f"{host}-{os.getpid()}-{started}"
    if len(os.fsencode(own)) > _PATH_BYTES_MAX:
        raise OSError(f"the path {own} is too long for sockets in it: at most {_PATH_BYTES_MAX} bytes")
    own.mkdir(mode=0o700, exist_ok=True)
    for other in users.iterdir():
        of_host, pid, start = (*other.name.split("-", 2), "", "")[:3]
        if of_host == host and pid.isdigit() and processes.is_gone(int(pid), start):
            shutil.rmtree(other, ignore_errors=True)
    return str(own)
