"""Spark's daemon of Python workers, which ends a worker without a traceback when the JVM has closed its socket.

The JVM closes the socket of a task that it needs no more: of a failed attempt's other tasks, behind a limit, when a
topology stops, or when the driver is killed. The worker's last flush then fails, and Spark's own daemon prints a
``BrokenPipeError`` on the driver's terminal, as if the user had to do something. A task's failures are told over the
socket while it is open, and the daemon's other errors are printed as before.

It imports what the framework's tasks need, once: the workers, which are copies of it, would each take 0.2 s of a core.
"""

from __future__ import annotations

import socket

import pyarrow.parquet  # noqa: F401
from pyspark import daemon

import trident.states.delta.staging
import trident.workers.chain  # noqa: F401

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As Spark's own, but 1, which ends the process, where the JVM has closed the socket."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
