"""Real ZooKeeper servers beside the shared one, each with a configuration of its own: TLS, SASL, whatever is given.

They run from the jars of pyspark, as the embedded server does, and end with :meth:`ExtraServer.stop`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trident.coordinators.embedded_server import LoopbackPort, die_with_parent, java_command

START_SECS_MAX = 60.0


class ExtraServer:
    """One server process; its data stays in the folder, so that it can be started again on the same ports.

    Args:
        folder: its own.
        config: lines of zoo.cfg beside the usual ones.
        properties: Java system properties.
    """

    def __init__(self, folder: Path, config: Mapping[str, str], properties: Mapping[str, str]) -> None:
        self.folder = folder
        self._reserved = LoopbackPort()
        self.port = self._reserved.number
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self._config = {
            "dataDir": "./data",
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": "500",
            "minSessionTimeout": "1000",
            "maxSessionTimeout": "60000",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            **config,
        }
        self._properties = dict(properties)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ExtraServer:
        lines = "".join(f"{key}={value}\n" for key, value in self._config.items())
        (self.folder / "zoo.cfg").write_text(lines, encoding="latin-1")
        properties = (f"-D{key}={value}" for key, value in self._properties.items())
        command = java_command("./zoo.cfg", "-Xmx256m", *properties)
        with open(self.folder / "server.out", "ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        deadline = time.monotonic() + START_SECS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("the server did not start:\n" + self.output()[-3000:])
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def output(self) -> str:
        return (self.folder / "server.out").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                probe.sendall(b"srvr")
                return b"Mode:" in b"".join(iter(lambda: probe.recv(4096), b""))
        except OSError:
            return False
