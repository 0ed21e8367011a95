"""Real ZooKeeper servers beside the shared one, each with a configuration of its own: TLS, SASL, whatever is given.

They run from the jars of pyspark, as the embedded server does, and end with :meth:`ExtraServer.stop`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from coordinators.embedded import _class_path, find_java

START_SECS_MAX = 60.0

SASL_USERS = {"trident": "sasl-pass-of-trident", "other": "sasl-pass-of-other"}
KEY_PASSWORD = "pass-of-the-client-key"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ExtraServer:
    """One server process; its data stays in the folder, so that it can be started again on the same ports.

    Args:
        folder: its own.
        config: lines of zoo.cfg beside the usual ones.
        properties: Java system properties.
        env: its whole environment.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, str] = {}, properties: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self.folder = folder
        self.port = free_port()
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self._config = {
            "dataDir": "./data", "clientPort": str(self.port), "clientPortAddress": "127.0.0.1", "tickTime": "500",
            "minSessionTimeout": "1000", "maxSessionTimeout": "60000", "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr", **config,
        }  # fmt: skip
        self._properties = dict(properties)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ExtraServer:
        lines = "".join(f"{key}={value}\n" for key, value in self._config.items())
        (self.folder / "zoo.cfg").write_text(lines, encoding="latin-1")
        command = [
            find_java()[0], "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true", *(f"-D{key}={value}" for key, value in self._properties.items()),
            "-cp", _class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", "./zoo.cfg",
        ]  # fmt: skip
        with open(self.folder / "server.out", "ab") as output:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
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


def secured_server(folder: Path, certificates: Certificates) -> tuple[ExtraServer, int]:
    """A server with TLS that wants a certificate, and SASL on both ports; (server, its TLS port).

    The plain port takes anonymous clients too: that is what the ACLs are for.
    """
    secure_port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    users = "".join(f'\n  user_{name}="{password}"' for name, password in SASL_USERS.items())
    (folder / "jaas.conf").write_text(
        f"Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required{users};\n}};\n"
    )
    config = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(secure_port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(certificates.server), "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(certificates.ca), "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }  # fmt: skip
    properties = {"java.security.auth.login.config": str(folder / "jaas.conf")}
    return ExtraServer(folder, config, properties).start(), secure_port


class Certificates:
    """An authority, a certificate for "localhost" (not for 127.0.0.1), one for a client, and another authority."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("NOT TESTED: TLS, since there is no openssl to make certificates with")
        self.folder = folder
        self.ca = self._authority("ca")
        self.other_ca = self._authority("other")
        server_key, server_cert = self._signed("server", "subjectAltName=DNS:localhost")
        self.server = folder / "server.pem"
        self.server.write_text(server_key.read_text() + server_cert.read_text())
        self.client_key, self.client = self._signed("client", "extendedKeyUsage=clientAuth")
        self.stranger_key, self.stranger = self._signed("stranger", "extendedKeyUsage=clientAuth", "other")
        self.client_locked_key = folder / "client.locked.key"
        self._openssl("pkcs8", "-topk8", "-in", self.client_key, "-passout", f"pass:{KEY_PASSWORD}",
                      "-out", self.client_locked_key)  # fmt: skip

    def _authority(self, name: str) -> Path:
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                      "30", "-subj", f"/CN={name}", "-keyout", self.folder / f"{name}.key",
                      "-out", self.folder / f"{name}.pem")  # fmt: skip
        return self.folder / f"{name}.pem"

    def _signed(self, name: str, extension: str, authority: str = "ca") -> tuple[Path, Path]:
        key, request, cert = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        (self.folder / f"{name}.ext").write_text(extension + "\n")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                      f"/CN={name}", "-keyout", key, "-out", request)  # fmt: skip
        self._openssl("x509", "-req", "-in", request, "-CA", self.folder / f"{authority}.pem", "-CAkey",
                      self.folder / f"{authority}.key", "-CAcreateserial", "-days", "30", "-extfile",
                      self.folder / f"{name}.ext", "-out", cert)  # fmt: skip
        return key, cert

    def _openssl(self, *arguments: object) -> None:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
