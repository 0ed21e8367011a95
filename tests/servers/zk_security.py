"""A ZooKeeper server with TLS, SASL and ACLs, certificates for it, and what looks for credentials in what is shown."""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers.zk_servers import ExtraServer
from trident.coordinators.embedded_server import LoopbackPort

SASL_USERS = {"trident": "sasl-pass-of-trident", "other": "sasl-pass-of-other"}
KEY_PASSWORD = "pass-of-the-client-key"
DIGEST_PASSWORD = "pass-of-the-digest-user"
WRONG_PASSWORD = "pass-that-is-wrong"
SECRETS = (*SASL_USERS.values(), KEY_PASSWORD, DIGEST_PASSWORD, WRONG_PASSWORD)


def assert_no_secret(text: str, *more: str) -> None:
    assert [secret for secret in (*SECRETS, *more) if secret in text] == []


class Secured(NamedTuple):
    """The server of these tests: a plain port and one with TLS that wants a certificate, SASL on both."""

    server: ExtraServer
    tls_port: int
    certificates: Certificates

    @property
    def plain(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def tls(self) -> str:
        # The server's certificate is for this name alone.
        return f"localhost:{self.tls_port}"

    def tls_settings(self, **more: Any) -> dict[str, Any]:
        return {
            "zookeeper": self.tls,
            "zookeeper_tls": True,
            "zookeeper_tls_ca_file": self.certificates.ca,
            "zookeeper_tls_cert_file": self.certificates.client,
            "zookeeper_tls_key_file": self.certificates.client_locked_key,
            "zookeeper_tls_key_password": KEY_PASSWORD,
            **more,
        }

    def sasl_settings(self, user: str = "trident", **more: Any) -> dict[str, Any]:
        return {
            "zookeeper": self.plain,
            "zookeeper_sasl_mechanism": "DIGEST-MD5",
            "zookeeper_sasl_username": user,
            "zookeeper_sasl_password": SASL_USERS[user],
            **more,
        }


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    server, tls_port = secured_server(tmp_path_factory.mktemp("secured"), certificates)
    yield Secured(server, tls_port.number, certificates)
    server.stop()
    tls_port.close()


class Logged(logging.Handler):
    """Everything that any logger says, as text, with the tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def everything() -> Iterator[Logged]:
    """Captures all loggers at their lowest level, also those that keep their records from the root."""
    handler = Logged()
    of_kazoo = "kazoo kazoo.client kazoo.handlers trident.coordinators.zookeeper trident.coordinators.zookeeper.kazoo"
    names = ["", *of_kazoo.split(), "py4j", "trident", "trident.states"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.setLevel(1)
        one.propagate = True
    loggers[0].addHandler(handler)
    yield handler
    loggers[0].removeHandler(handler)
    for one, level, propagate in before:
        one.setLevel(level)
        one.propagate = propagate


def documented(name: str) -> list[tuple[str, str]]:
    """The lines ``key=value`` of a block of docs/security.md, without ``export`` and quotes."""
    lines = [line for line in documented_text(name).splitlines() if "=" in line]
    pairs = [line.removeprefix("export ").split("=", 1) for line in lines]
    return [(key, value.strip("'")) for key, value in pairs]


def documented_text(name: str) -> str:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    block = guide.split(f"<!-- test: {name} -->\n```", 1)[1].split("```", 1)[0]
    return block.split("\n", 1)[1]


def jaas(users: Mapping[str, str]) -> str:
    """The JAAS file of the guide, with these users."""
    written = "\n  ".join(f'user_{name}="{password}"' for name, password in users.items())
    return documented_text("jaas.conf").replace('user_trident="the password of trident"', written)


def secured_server(folder: Path, certificates: Certificates) -> tuple[ExtraServer, LoopbackPort]:
    """The server of the guide; (server, its TLS port).

    It has a plain port too, for anonymous clients: against them there are the ACLs.
    """
    secure_port = LoopbackPort()
    (folder / "jaas.conf").write_text(jaas(SASL_USERS))
    config = {
        **dict(documented("zoo.cfg")),
        "secureClientPort": str(secure_port.number),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(certificates.server),
        "ssl.trustStore.location": str(certificates.ca),
    }
    properties = {"java.security.auth.login.config": str(folder / "jaas.conf")}
    return ExtraServer(folder, config, properties).start(), secure_port


NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


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
        self._openssl(
            f"pkcs8 -topk8 -in {self.client_key.name} -passout pass:{KEY_PASSWORD} -out {self.client_locked_key.name}"
        )

    def _authority(self, name: str) -> Path:
        self._openssl(f"req -x509 {NEW_KEY} -days 30 -subj /CN={name} -keyout {name}.key -out {name}.pem")
        return self.folder / f"{name}.pem"

    def _signed(self, name: str, extension: str, authority: str = "ca") -> tuple[Path, Path]:
        (self.folder / f"{name}.ext").write_text(extension + "\n")
        self._openssl(f"req {NEW_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr")
        by = f"-CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
        self._openssl(f"x509 -req -in {name}.csr {by} -days 30 -extfile {name}.ext -out {name}.crt")
        return self.folder / f"{name}.key", self.folder / f"{name}.crt"

    def _openssl(self, command: str) -> None:
        done = subprocess.run(["openssl", *shlex.split(command)], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
