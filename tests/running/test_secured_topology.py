"""A whole topology over TLS and SASL: every znode is its own, a standby takes over, no credential leaves the driver."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import tests.running.secured_job as job
from tests.servers.zk_fixtures import eventually
from tests.servers.zk_security import DIGEST_PASSWORD, Logged, Secured, assert_no_secret
from trident import cli
from trident.config import _FIELDS, TridentConfig
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.processes import is_secret, without_secrets
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.starting import start_topology
from trident.running.zookeeper import open_zookeeper

WAIT_SECS = 90.0
TOKEN = "token-of-the-http-endpoint"


class Life(NamedTuple):
    """A process that leads the topology and hangs between decision and publishing."""

    process: subprocess.Popen[str]
    surroundings: dict[str, Any]
    settings: dict[str, Any]
    folder: Path
    children: list[str]

    def printed(self) -> str:
        return (self.folder / "err").read_text(errors="replace")


@pytest.fixture(scope="module")
def life(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    folder = tmp_path_factory.mktemp("life")
    (folder / "in").mkdir()
    (folder / "in" / "lines.txt").write_text("".join(f"{line}\n" for line in job.LINES))
    settings = secured.tls_settings(
        **secured.sasl_settings(zookeeper=secured.tls),
        zookeeper_auth=f"digest:user:{DIGEST_PASSWORD}",
        zookeeper_root="/whole",
        zookeeper_session_timeout_secs=4,
        warehouse=str(folder / "w"),
        http="127.0.0.1:0",
        http_token=TOKEN,
    )
    environment = {
        # Two groups with two transactions each: at the fourth publish, each has advanced and one is deciding.
        **os.environ,
        "TRIDENT_FAULTS": "publish.table:hang:4",
        "SECURED_JOB_PROBE": "of the JVM",
        **{f"TRIDENT_{name.upper()}": str(value) for name, value in settings.items()},
    }
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.running.secured_job", str(folder)],
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        hangs = eventually(lambda: "HANGS" in (folder / "out").read_text() or process.poll() is not None, WAIT_SECS)
        told = (folder / "out").read_text()
        assert hangs and process.poll() is None, told + (folder / "err").read_text()[-3000:]
        (line,) = [one for one in told.splitlines() if one.startswith("SURROUNDINGS ")]
        yield Life(process, json.loads(line.partition(" ")[2]), settings, folder, command_lines(process.pid))
    finally:
        process.kill()
        process.wait()


def command_lines(pid: int) -> list[str]:
    """Of a process and all that it has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    family = {str(pid)}
    while more := {row[0] for row in rows if row[1] in family} - family:
        family |= more
    return [row[2] for row in rows if row[0] in family]


@pytest.fixture
def own(life: Life) -> Iterator[ZooKeeper]:
    zk = open_zookeeper(TridentConfig(**life.settings), life.folder)
    yield zk
    zk.close()


def tree(zk: ZooKeeper, path: str) -> dict[str, set[tuple[int, str, str]]]:
    """Every znode with its ACL."""
    acls, _ = zk._client.get_acls(path)
    found = {path: {(acl.perms, *acl.id) for acl in acls}}
    for child in zk.children(path):
        found |= tree(zk, f"{path}/{child}")
    return found


def shape(path: str) -> str:
    return "/".join("N" if part.isdigit() else part for part in path.split("/")[2:])


@pytest.mark.long
def test_every_znode_is_its_creators(life: Life, own: ZooKeeper) -> None:
    found = tree(own, "/whole")
    # At the moment of a publish there is one of each kind; else this would have looked at too little.
    assert {shape(path) for path in found} >= {
        *["", "secured", "secured/identity", "secured/incarnation", "secured/live", "secured/lines"],
        *["secured/lines/leader", "secured/lines/coordinator", "secured/lines/coordinator/N", "secured/numbers"],
        *["secured/numbers/leader", "secured/numbers/coordinator", "secured/numbers/partitions"],
        "secured/numbers/partitions/N",
    }
    assert [path for path in found if path.endswith("/decided")]
    identities = {(31, "sasl", "trident"), (31, "x509", "CN=client")}
    for path, acl in found.items():
        assert len(acl) == 3 and acl > identities, (path, acl)
        ((perms, scheme, name),) = acl - identities
        assert (perms, scheme, name.partition(":")[0]) == (31, "digest", "user"), path


@pytest.mark.long
def test_the_surroundings_of_the_driver_show_no_credential(life: Life) -> None:
    shown = life.surroundings
    assert shown["conf"] and shown["jvm"] and shown["status"]["groups"] and "***" in shown["config"]
    assert_no_secret(json.dumps(shown), TOKEN)
    assert len(life.children) >= 2  # the driver and its JVM at least
    assert_no_secret("\n".join(life.children), TOKEN)


@pytest.mark.long
def test_neither_status_nor_logs_show_a_credential(life: Life) -> None:
    status = life.folder / "w" / "_trident" / job.NAME / "status.json"
    assert eventually(status.exists)
    assert_no_secret(status.read_text(), TOKEN)
    for arguments in (["status", job.NAME], ["status", job.NAME, "--json"]):
        done = CliRunner().invoke(cli.main, [*arguments, "--set", f"warehouse={life.folder / 'w'}"])
        assert done.exit_code == 0 and job.NAME in done.output
        assert_no_secret(done.output, TOKEN)
    printed = life.printed()
    assert "DEBUG:trident.coordinators.zookeeper.kazoo:" in printed and "DEBUG:py4j" in printed
    assert_no_secret(printed, TOKEN)
    for file in (life.folder / "w" / "_trident").rglob("*"):
        if file.is_file() and file.stat().st_size < 1 << 20:
            assert_no_secret(file.read_bytes().decode(errors="replace"), TOKEN)


@pytest.mark.long
def test_a_standby_with_the_same_credentials_takes_over_and_nothing_secret_is_sent(
    spark: Any, life: Life, everything: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle
    from pyspark.serializers import CloudPickleSerializer

    sent: list[bytes] = []
    for owner, name in ((CloudPickleSerializer, "dumps"), (cloudpickle, "dumps")):
        monkeypatch.setattr(owner, name, recording(getattr(owner, name), sent))
    # The other life has had py4j's log, too: thousands of lines a second.
    logging.getLogger("py4j").setLevel(logging.INFO)
    settings = {**life.settings, "http": ""}
    query = start_topology(job.topology(life.folder), spark, TridentConfig(**settings))
    try:
        assert eventually(lambda: query.status["role"] == "standby")
        life.process.kill()
        query.process_all_available(WAIT_SECS)
        seen = [json.loads(row.seen) for row in query.snapshot("seen").collect()]
        (total,) = query.snapshot("sum").collect()
        assert sorted(one["line"] for one in seen) == job.LINES and total["sum"] == sum(range(job.NUMBERS))
    finally:
        query.stop(WAIT_SECS, compact=False)
    # What the tasks of both lives saw, and what the second one sent to its own.
    first = [one for one in seen if one["environment"].get("TRIDENT_FAULTS")]
    assert first and all(one["environment"].get("PYTHONPATH") for one in seen)
    environment = first[0]["environment"]
    assert environment["TRIDENT_ZOOKEEPER"] and environment["TRIDENT_ZOOKEEPER_SASL_PASSWORD"] == "none"
    # Where the JVM has a variable too, as in a session of the user's own, the conf's is what a worker gets.
    assert life.surroundings["jvm"]["SECURED_JOB_PROBE"] == "of the JVM"
    assert environment["SECURED_JOB_PROBE"] == "of the conf"
    assert_no_secret(json.dumps(seen), TOKEN)
    assert sent
    assert_no_secret(b"".join(sent).decode(errors="replace"), TOKEN)
    assert "DEBUG trident.coordinators.zookeeper.kazoo" in everything.text
    assert_no_secret(everything.text, TOKEN)


def recording(dumps: Callable[..., bytes], sent: list[bytes]) -> Callable[..., bytes]:
    def record(*given: Any, **more: Any) -> bytes:
        sent.append(dumps(*given, **more))
        return sent[-1]

    return record


# -- the environment --------------------------------------------------------


def test_the_variables_that_are_hidden_are_those_of_the_secret_settings() -> None:
    for name, setting in _FIELDS.items():
        assert is_secret(f"TRIDENT_{name.upper()}") is setting.metadata["secret"], name
    assert without_secrets({"TRIDENT_ZOOKEEPER_AUTH": "x", "TRIDENT_ZOOKEEPER": "h:1", "A_TOKEN": "y"}) == {
        "TRIDENT_ZOOKEEPER": "h:1",
        "A_TOKEN": "y",
    }


def test_a_session_of_the_users_own_does_not_hand_them_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from trident.spark.session import session_confs

    monkeypatch.setenv("TRIDENT_ZOOKEEPER_AUTH", f"digest:user:{DIGEST_PASSWORD}")
    confs = session_confs({"spark.master": "local[2]"})
    assert confs["spark.executorEnv.TRIDENT_ZOOKEEPER_AUTH"] == "none"
    assert_no_secret(json.dumps(confs))
    # So a worker that reads its settings finds that there is none.
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_AUTH", "none")
    assert TridentConfig().zookeeper_auth is None


def test_a_pickled_config_has_no_secrets() -> None:
    from pyspark import cloudpickle

    config = TridentConfig(zookeeper_auth=f"digest:user:{DIGEST_PASSWORD}", http_token=TOKEN, max_attempts=3)
    sent = cloudpickle.dumps(lambda: config)
    assert_no_secret(sent.decode(errors="replace"), TOKEN)
    arrived = cloudpickle.loads(sent)()
    assert (arrived.zookeeper_auth, arrived.http_token, arrived.max_attempts) == (None, None, 3)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_embedded_server_gets_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_AUTH", f"digest:user:{DIGEST_PASSWORD}")
    monkeypatch.setenv("TRIDENT_HTTP_TOKEN", TOKEN)
    EmbeddedZooKeeper.ensure(tmp_path)
    try:
        endpoint = EmbeddedZooKeeper.status(tmp_path)
        assert endpoint is not None
        for pid in (endpoint.supervisor_pid, endpoint.server_pid):
            for name in ("environ", "cmdline"):
                read = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
                assert read
                assert_no_secret(read, TOKEN)
    finally:
        EmbeddedZooKeeper.stop(tmp_path)
