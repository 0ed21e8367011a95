"""TLS, SASL and ACLs against a real ZooKeeper, and that no credential is shown, logged or sent anywhere."""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
import threading
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from tests.servers.zk_fixtures import eventually
from tests.servers.zk_security import (
    DIGEST_PASSWORD,
    KEY_PASSWORD,
    SASL_USERS,
    WRONG_PASSWORD,
    Logged,
    Secured,
    assert_no_secret,
    documented,
    jaas,
)
from tests.servers.zk_servers import ExtraServer
from trident import cli
from trident.commands.exit_codes import exit_code
from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, CoordinationError, ZooKeeperRefused, ZooKeeperUnreachable
from trident.coordinators.kazoo_adapter import Handler, Problems
from trident.coordinators.znodes import Create, MultiRefused, SetData
from trident.coordinators.zookeeper import ZooKeeper, keep_for_creator
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.drpc.http import HttpServer
from trident.running.zookeeper import open_zookeeper

CONNECT_SECS = 10.0


Open = Callable[..., ZooKeeper]


@pytest.fixture
def opened(tmp_path: Path, zk_root: str) -> Iterator[Open]:
    """Connects as a topology with these settings would; closed at the end."""
    made: list[ZooKeeper] = []

    def connect(**settings: Any) -> ZooKeeper:
        given = {
            "zookeeper_root": zk_root,
            "zookeeper_connect_timeout_secs": CONNECT_SECS,
            "zookeeper_session_timeout_secs": 4,
        }
        made.append(open_zookeeper(TridentConfig(**{**given, **settings}), tmp_path))
        return made[-1]

    yield connect
    for zk in made:
        zk.close()


def all_of(error: BaseException | None) -> str:
    """What anybody could print of an error: str, repr, attributes, traceback, and the same of its causes."""
    told = ""
    while error is not None:
        told += f"{error} {error!r} {vars(error)} " + "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return told


# -- TLS --------------------------------------------------------------------


def test_tls_with_a_certificate_is_an_identity_and_makes_the_znodes_its_own(secured: Secured, opened: Open) -> None:
    zk = opened(**secured.tls_settings())
    root = zk.config.root
    zk.multi([Create(f"{root}/a", b"1")])
    assert zk.get(f"{root}/a")[0] == b"1"
    assert [(acl.perms, *acl.id) for acl in zk._client.get_acls(root)[0]] == [(31, "x509", "CN=client")]
    with pytest.raises(CoordinationError, match="does not allow"):
        opened(**secured.sasl_settings()).get(f"{root}/a")


def test_certificate_and_key_may_be_one_file(secured: Secured, opened: Open, tmp_path: Path) -> None:
    """kazoo passes over a certificate without a key file, and the client would be nobody."""
    made = secured.certificates
    (tmp_path / "both.pem").write_text(made.client_key.read_text() + made.client.read_text())
    zk = opened(**secured.tls_settings(zookeeper_tls_cert_file=tmp_path / "both.pem", zookeeper_tls_key_file=None))
    assert owners(zk) == {("x509", "CN=client")}


def wrong_ca(secured: Secured) -> dict[str, Any]:
    return secured.tls_settings(zookeeper_tls_ca_file=secured.certificates.other_ca)


def wrong_host(secured: Secured) -> dict[str, Any]:
    return secured.tls_settings(zookeeper=f"127.0.0.1:{secured.tls_port}")


def no_certificate(secured: Secured) -> dict[str, Any]:
    return {"zookeeper": secured.tls, "zookeeper_tls": True, "zookeeper_tls_ca_file": secured.certificates.ca}


def strange_certificate(secured: Secured) -> dict[str, Any]:
    made = secured.certificates
    return secured.tls_settings(zookeeper_tls_cert_file=made.stranger, zookeeper_tls_key_file=made.stranger_key)


@pytest.mark.parametrize(
    ("settings", "found", "action"),
    [
        (wrong_ca, "cannot be verified", "zookeeper_tls_ca_file"),
        (wrong_host, "of another host", "subjectAltName"),
        (no_certificate, "refused this client's certificate", "zookeeper_tls_cert_file"),
        (strange_certificate, "refused this client's certificate", "zookeeper_tls_cert_file"),
    ],
)
def test_a_certificate_that_is_not_accepted_is_told_at_once(secured, opened, settings, found, action):
    before = set(threading.enumerate())
    with pytest.raises(ZooKeeperRefused) as caught:
        opened(**settings(secured), zookeeper_connect_timeout_secs=60)  # so it is not the timeout that ends it
    assert found in str(caught.value.found) and action in str(caught.value)
    assert exit_code(caught.value) == 4
    # Nothing goes on trying behind it.
    assert eventually(lambda: not [one for one in set(threading.enumerate()) - before if "zk_loop" in one.name])


def test_one_server_with_a_strange_certificate_is_no_reason_to_give_up_the_others(secured, opened):
    bad = f"127.0.0.1:{secured.tls_port}"  # the certificate is for localhost
    assert opened(**secured.tls_settings(zookeeper=f"{bad},{secured.tls}")).connected
    with pytest.raises(ZooKeeperUnreachable, match="within 1 s.*of another host") as caught:
        opened(**secured.tls_settings(zookeeper=f"{bad},localhost:1"), zookeeper_connect_timeout_secs=1)
    assert not isinstance(caught.value, ZooKeeperRefused)


@pytest.mark.parametrize("side", ["tls to the plain port", "plain to the TLS port"])
def test_the_wrong_port_is_told_within_the_connect_timeout(secured: Secured, opened: Open, side: str) -> None:
    settings = secured.tls_settings(zookeeper=f"localhost:{secured.server.port}")
    if side.startswith("plain"):
        settings = {"zookeeper": secured.tls}
    with pytest.raises(ZooKeeperUnreachable, match="zookeeper_tls") as caught:
        opened(**settings, zookeeper_connect_timeout_secs=1)
    assert exit_code(caught.value) == 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"zookeeper_tls_ca_file": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"zookeeper_tls_key_file": "/nowhere/client.key"}, "/nowhere/client.key"),
        ({"zookeeper_tls_key_password": WRONG_PASSWORD}, "keyfile_password"),
        ({"zookeeper_tls_key_password": None}, "keyfile_password"),
    ],
)
def test_files_that_cannot_be_used_are_an_error_before_anything_is_connected(
    secured: Secured, opened: Open, change: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = ssl.SSLContext.load_cert_chain
    monkeypatch.setattr(
        ssl.SSLContext,
        "load_cert_chain",
        lambda self, certfile, keyfile, password: asked.append(password) or real(self, certfile, keyfile, password),
    )
    with pytest.raises(ConfigError) as caught:
        opened(**secured.tls_settings(**change))
    assert None not in asked  # OpenSSL would ask at the terminal
    assert named in str(caught.value) and exit_code(caught.value) == 2
    assert_no_secret(all_of(caught.value))


def test_only_the_authorities_that_are_given_are_trusted(secured, opened, monkeypatch):
    # As if the system trusted who signed the server's certificate.
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.certificates.ca))
    opened(**secured.tls_settings(zookeeper_tls_ca_file=None)).close()
    with pytest.raises(ZooKeeperRefused):
        opened(**wrong_ca(secured))


def test_two_answers_in_one_tls_record_are_both_seen_at_once(secured: Secured) -> None:
    """Else the second would wait until kazoo's next ping."""
    made = secured.certificates
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(made.server)
    client_context = ssl.create_default_context(cafile=str(made.ca))
    left, right = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(server_context.wrap_socket(left, server_side=True)))
    thread.start()
    client = client_context.wrap_socket(right, server_hostname="localhost")
    thread.join()
    accepted[0].sendall(b"onetwo")
    assert client.recv(3) == b"one"
    assert Handler(None, Problems()).select([client], [], [], 0)[0] == [client]
    client.close()
    accepted[0].close()


# -- SASL -------------------------------------------------------------------


def test_sasl_is_an_identity_also_over_tls(secured: Secured, opened: Open) -> None:
    assert owners(opened(**secured.sasl_settings())) == {("sasl", "trident")}
    over_tls = secured.tls_settings(**secured.sasl_settings(zookeeper=secured.tls), zookeeper_root="/over-tls")
    assert owners(opened(**over_tls)) == {("x509", "CN=client"), ("sasl", "trident")}


def owners(zk: ZooKeeper) -> set[tuple[str, str]]:
    return {tuple(acl.id) for acl in zk._client.get_acls(zk.config.root)[0]}


@pytest.mark.parametrize(("user", "password"), [("trident", WRONG_PASSWORD), ("nobody", WRONG_PASSWORD)])
def test_a_wrong_password_is_told_at_once(secured: Secured, opened: Open, user: str, password: str) -> None:
    settings = secured.sasl_settings(zookeeper_sasl_username=user, zookeeper_sasl_password=password)
    with pytest.raises(ZooKeeperRefused, match="zookeeper_sasl_password") as caught:
        opened(**settings, zookeeper_connect_timeout_secs=60)
    assert exit_code(caught.value) == 4
    assert_no_secret(all_of(caught.value))


def test_a_command_ends_with_code_4_and_shows_no_password(secured, tmp_path, monkeypatch):
    for name, value in secured.sasl_settings(zookeeper_sasl_password=WRONG_PASSWORD).items():
        monkeypatch.setenv(f"TRIDENT_{name.upper()}", value)
    done = CliRunner().invoke(cli.main, ["reset", "top", "--yes", "--verbose", "--set", f"warehouse={tmp_path}"])
    assert done.exit_code == 4 and "zookeeper_sasl_password" in done.output
    assert_no_secret(done.output)


def test_without_the_package_sasl_is_an_error_that_names_it(secured, opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(ConfigError, match="pip install pure-sasl"):
        opened(**secured.sasl_settings())


@pytest.mark.long
def test_an_ensemble_that_wants_sasl_says_so(tmp_path: Path, opened: Open) -> None:
    """kazoo does not know that answer and would try for ever."""
    password = SASL_USERS["trident"]
    (tmp_path / "jaas.conf").write_text(jaas({"trident": password}))
    config = {key: value for key, value in documented("zoo.cfg") if key.startswith("authProvider")}
    properties = {"java.security.auth.login.config": str(tmp_path / "jaas.conf")}
    server = ExtraServer(tmp_path, {**config, **dict(documented("required.cfg"))}, properties).start()
    hosts = f"127.0.0.1:{server.port}"
    try:
        with pytest.raises(ZooKeeperRefused, match="zookeeper_sasl_mechanism"):
            opened(zookeeper=hosts)
        with pytest.raises(ZooKeeperRefused, match="zookeeper_sasl_password"):
            opened(
                zookeeper=hosts,
                zookeeper_sasl_mechanism="DIGEST-MD5",
                zookeeper_sasl_username="trident",
                zookeeper_sasl_password=WRONG_PASSWORD,
            )
        # A client that was accepted once comes back after the server has not known its password for a while.
        zk = opened(
            zookeeper=hosts,
            zookeeper_sasl_mechanism="DIGEST-MD5",
            zookeeper_sasl_username="trident",
            zookeeper_sasl_password=SASL_USERS["trident"],
        )
        server.stop()
        (tmp_path / "jaas.conf").write_text(jaas({"trident": "another-one"}))
        server.start()
        assert eventually(lambda: zk._reviving, 30)
        server.stop()
        (tmp_path / "jaas.conf").write_text(jaas({"trident": password}))
        server.start()
        assert eventually(lambda: zk.connected and not zk._reviving, 30)
        zk.multi([SetData(zk.config.root, b"again", zk.exists(zk.config.root).znode_version)])
    finally:
        server.stop()


# -- ACLs -------------------------------------------------------------------


def test_another_identity_and_an_anonymous_client_can_do_nothing(secured: Secured, opened: Open) -> None:
    own = opened(**secured.sasl_settings())
    root = own.config.root
    own.ensure_path(f"{root}/deep/er")
    own.multi([Create(f"{root}/made", b"by a multi"), Create(f"{root}/live", b"", ephemeral=True)])
    for path in ("", "/deep", "/deep/er", "/made", "/live"):
        assert [(acl.perms, *acl.id) for acl in own._client.get_acls(root + path)[0]] == [(31, "sasl", "trident")]
        elsewhere = f"{root}-of-others"
        for other in (
            opened(**secured.sasl_settings("other"), zookeeper_root=elsewhere, zookeeper_acl="open"),
            opened(zookeeper=secured.plain, zookeeper_root=elsewhere),
        ):
            assert_nothing_allowed(other._client, root + path)
            for write in (SetData(root + path, b"x", 0), Create(f"{root}{path}/child")):
                with pytest.raises((CoordinationError, MultiRefused)):
                    other.multi([write])
            other.close()
    assert own.get(f"{root}/made")[0] == b"by a multi"


def assert_nothing_allowed(client: KazooClient, path: str) -> None:
    with pytest.raises(NoAuthError):
        client.get(path)
    with pytest.raises(NoAuthError):
        client.get_children(path)
    with pytest.raises(NoAuthError):
        client.set(path, b"x")
    with pytest.raises(NoAuthError):
        client.create(f"{path}/child")
    with pytest.raises(NoAuthError):
        client.set_acls(path, OPEN_ACL_UNSAFE)


def test_the_root_of_another_identity_is_an_error_that_says_so(secured: Secured, opened: Open) -> None:
    opened(**secured.sasl_settings())
    for settings in (secured.sasl_settings("other"), {"zookeeper": secured.plain}):
        with pytest.raises(CoordinationError, match="does not allow.*getAcl") as caught:
            # Servers before 3.9 let everybody ask whether a znode exists.
            other = opened(**settings)
            other.ensure_path(f"{other.config.root}/topology")
        assert exit_code(caught.value) == 2


def test_an_identity_that_the_server_does_not_see_is_an_error_and_not_an_open_znode(secured, opened):
    zk = opened(zookeeper=secured.plain, zookeeper_auth=f"digest:user:{DIGEST_PASSWORD}")
    assert {scheme for scheme, _ in owners(zk)} == {"digest"}
    zk = ZooKeeper(ZooKeeperConfig(secured.plain, "/not-seen", options={"default_acl": own_acl()}))
    with pytest.raises(CoordinationError, match="does not know who this client is"):
        zk.connect()


def own_acl() -> Any:
    return TridentConfig(zookeeper_auth="digest:a:b").kazoo_options()["default_acl"]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, False),
        ({"zookeeper_auth": "digest:a:b"}, True),
        ({"zookeeper_sasl_mechanism": "GSSAPI"}, True),
        ({"zookeeper_tls": True}, False),
        ({"zookeeper_tls": True, "zookeeper_tls_cert_file": "client.pem"}, True),
        ({"zookeeper_auth": "digest:a:b", "zookeeper_acl": "open"}, False),
    ],
)
def test_who_has_an_identity_keeps_the_znodes_unless_told_otherwise(settings: dict[str, Any], kept: bool) -> None:
    assert ("default_acl" in TridentConfig(**settings).kazoo_options()) is kept


def test_znodes_from_before_are_left_to_the_creator_once(secured: Secured, opened: Open) -> None:
    before = opened(zookeeper=secured.plain)
    root = before.config.root
    before.ensure_path(f"{root}/topology/group/pins")
    before.ensure_path(f"{root}/neighbour")
    after = opened(**secured.sasl_settings())
    assert keep_for_creator(after, "topology") == 3
    for path in ("topology", "topology/group", "topology/group/pins"):
        assert_nothing_allowed(before._client, f"{root}/{path}")
    assert keep_for_creator(after, "topology") == 0
    # The root may be other topologies' too.
    before.ensure_path(f"{root}/neighbour/child")


# -- the warning ------------------------------------------------------------


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name of the loopback address that nothing but the resolver knows to be one."""
    import kazoo.protocol.connection as kazoo_connection

    real = socket.getaddrinfo
    monkeypatch.setattr(
        kazoo_connection.socket,
        "getaddrinfo",
        lambda host, *more, **named: real("127.0.0.1" if host == "zoo.example.org" else host, *more, **named),
    )
    monkeypatch.setattr("trident.running.zookeeper._warned", set())
    return "zoo.example.org"


def warnings_of(everything: Logged) -> list[str]:
    return [line for line in everything.lines if line.startswith("WARNING trident.zookeeper")]


def test_an_open_ensemble_elsewhere_is_one_warning_that_says_how_to_mend_it(
    secured: Secured, opened: Open, remote: str, everything: Logged, zk_root: str
) -> None:
    hosts = f"{remote}:{secured.server.port}"
    zk = opened(zookeeper=hosts)
    zk._client._connection._socket.shutdown(socket.SHUT_RDWR)  # it connects again
    assert eventually(lambda: not zk.connected) and eventually(lambda: zk.connected)
    opened(zookeeper=hosts)
    (line,) = warnings_of(everything)
    assert "presents no identity" in line and "zookeeper_sasl_mechanism" in line and "docs/security.md" in line

    everything.lines.clear()
    opened(**secured.sasl_settings(zookeeper=hosts), zookeeper_acl="open", zookeeper_root=f"{zk_root}-2")
    (line,) = warnings_of(everything)
    assert "zookeeper_acl=open" in line
    assert_no_secret(everything.text)

    everything.lines.clear()
    opened(**secured.sasl_settings(zookeeper=hosts))  # its root was made by the first one, for everybody
    (line,) = warnings_of(everything)
    assert f"setAcl {zk_root} auth::cdrwa" in line


def test_no_warning_where_the_ensemble_is_not_open_or_on_loopback(
    secured: Secured, opened: Open, remote: str, everything: Logged, zk_server: str, zk_root: str
) -> None:
    opened(**secured.sasl_settings(zookeeper=f"{remote}:{secured.server.port}"))
    opened(zookeeper=secured.plain, zookeeper_root=f"{zk_root}-2")
    opened(zookeeper=zk_server)
    assert warnings_of(everything) == []


# -- credentials are not shown ----------------------------------------------


def test_no_credential_is_logged_whatever_happens(secured: Secured, opened: Open, everything: Logged) -> None:
    given = secured.tls_settings(
        **secured.sasl_settings(zookeeper=secured.tls), zookeeper_auth=f"digest:user:{DIGEST_PASSWORD}"
    )
    zk = opened(**given)
    assert owners(zk) >= {("sasl", "trident"), ("x509", "CN=client")}
    session_password = zk._client.client_id[1]
    zk._client._connection._socket.shutdown(socket.SHUT_RDWR)
    assert eventually(lambda: not zk.connected) and eventually(lambda: zk.connected)
    assert zk.get(zk.config.root)
    for wrong in (
        {"zookeeper_sasl_password": WRONG_PASSWORD},
        {"zookeeper_tls_ca_file": secured.certificates.other_ca},
        {"zookeeper_tls_key_password": WRONG_PASSWORD},
        {"zookeeper_auth": f"unknown:user:{DIGEST_PASSWORD}"},
    ):
        with pytest.raises((CoordinationError, ConfigError)) as caught:
            opened(**{**given, **wrong})
        assert_no_secret(all_of(caught.value))
    log = everything.text
    # Else this would have looked at nothing.
    for seen in ("Auth(auth_type=0, scheme='digest', auth='***')", "SASL(challenge=***)", "passwd='***'", "Exists("):
        assert seen in log, seen
    assert_no_secret(log)
    assert repr(session_password) not in log and session_password.hex() not in log
    # What a DIGEST-MD5 answer gives away can be guessed at offline, and so can the hash in an ACL.
    assert "response=" not in log and "user:" not in log.replace("found:", "")


def test_no_object_shows_a_credential(secured: Secured) -> None:
    config = TridentConfig(
        **secured.tls_settings(**secured.sasl_settings(zookeeper=secured.tls)),
        zookeeper_auth=f"digest:user:{DIGEST_PASSWORD}",
    )
    zk_config = ZooKeeperConfig("h:1", options=config.kazoo_options())
    from trident.coordinators.kazoo_adapter import TlsFiles

    for shown in (config, zk_config, ZooKeeper(zk_config), TlsFiles.of(zk_config.options), config.shown()):
        assert_no_secret(f"{shown} {shown!r}")
    for mistyped in (f"zookeeper_auth:digest:user:{DIGEST_PASSWORD}", f"zookeper_auth=digest:user:{DIGEST_PASSWORD}"):
        with pytest.raises(ConfigError) as caught:
            config.with_overrides([mistyped])
        assert_no_secret(all_of(caught.value))


# -- the guide ----------------------------------------------------------------


def test_the_settings_of_the_guide_connect_to_the_server_of_the_guide(secured, tmp_path, zk_root, monkeypatch):
    """The server is made of the guide's blocks too, see tests/servers/zk_security.py."""
    made = secured.certificates
    own = {
        "/etc/trident/ca.pem": made.ca,
        "/etc/trident/client.pem": made.client,
        "/etc/trident/client.key": made.client_locked_key,
        "the password of that key": KEY_PASSWORD,
        "the password of trident": SASL_USERS["trident"],
    }
    for variable, value in documented("settings"):
        monkeypatch.setenv(variable, secured.tls if variable == "TRIDENT_ZOOKEEPER" else str(own.get(value, value)))
    with closing(open_zookeeper(TridentConfig(zookeeper_root=zk_root), tmp_path)) as zk:
        assert owners(zk) == {("x509", "CN=client"), ("sasl", "trident")}


# -- HTTP ---------------------------------------------------------------------


class Front:
    name, plans, is_leader, role = "top", {}, True, "leader"

    def answer(self, *given: Any) -> Any:
        raise AssertionError("nothing is asked")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_no_other_machine_is_answered_without_a_token(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="http_token"):
        HttpServer(address, None, Front())
    with pytest.raises(ConfigError, match="http_token"):
        TridentConfig(http=address)


def test_localhost_is_what_is_listened_at_and_not_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/hosts may say anything."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: real("0.0.0.0", *more, **named))
    TridentConfig(http="localhost:0")
    with pytest.raises(ConfigError, match="http_token"):
        HttpServer("localhost:0", None, Front())


def test_the_token_is_compared_in_constant_time_and_not_logged(everything, monkeypatch):
    token, wrong = "token-of-the-endpoint", "token-of-the-other-one"
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("trident.drpc.application.hmac.compare_digest", compare)
    server = HttpServer("127.0.0.1:0", token, Front())
    try:
        for presented, status in ((token, 200), (wrong, 401), (token[:-1], 401)):
            request = urllib.request.Request(
                f"http://{server.address}/drpc", headers={"Authorization": f"Bearer {presented}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as refusal:
                told = refusal.read().decode()
                assert refusal.code == status and token not in told and wrong not in told
    finally:
        server.stop()
    assert compared == [(one.encode(), token.encode()) for one in (token, wrong, token[:-1])]
    assert "token-of-the" not in everything.text


def test_a_path_leads_to_no_file_and_to_no_other_function(everything: Logged) -> None:
    server = HttpServer("127.0.0.1:0", None, Front())
    host, port = server.address.split(":")
    try:
        for path in (
            "/drpc/../../etc/passwd",
            "/drpc/%2e%2e/%2e%2e/etc/passwd",
            "/../etc/passwd",
            "/drpc/a%00b/x",
            "/drpc/%2fetc%2fpasswd/x",
            "//etc/passwd",
            "/drpc/__class__/x",
            "/static/../http_server.py",
        ):
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 404 and b"root:" not in answer.read(), path
            connection.close()
    finally:
        server.stop()
