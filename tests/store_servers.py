"""Stores that the tests share: an S3 server (moto, whose conditional PUT lets one writer win) and HDFS."""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys
import time
import urllib.request
from functools import cache

from trident.states.core import storage


@cache
def running(kind: str) -> str:
    """The URL of a store of this kind, which this process has started and ends when it ends."""
    return {"s3": _s3, "hdfs": _hdfs}[kind]()


def _s3() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(server.kill)
    endpoint = f"http://127.0.0.1:{port}"
    while True:
        try:
            made = urllib.request.Request(f"{endpoint}/lake", method="PUT", headers={"Authorization": "AWS a/b"})
            urllib.request.urlopen(made, timeout=5)
            break
        except OSError:
            if server.poll() is not None:
                raise
            time.sleep(0.1)
    storage.configure(
        "s3a://lake",
        {
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": "a",
            "fs.s3a.secret.key": "b",
            "fs.s3a.path.style.access": "true",
        },
    )
    return "s3a://lake/tests"


def _hdfs() -> str:
    storage.configure("hdfs://127.0.0.1:9820", {})
    return "hdfs://127.0.0.1:9820/tests"
