"""Commands whose warehouse is a URL, where its store is not there, refuses, or is silent: one clear line, soon."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import trident
from tests.servers import store_servers
from trident.cli import main
from trident.coordinators.errors import StoreProblem, StoreUnreachable
from trident.states.core import hdfs_storage, storage

# Those that look at the warehouse before anything else; the others ask ZooKeeper first.
COMMANDS = [
    command.split()
    for command in "status; status t; dead-letters list t; dead-letters replay t --force; compact t; doctor".split("; ")
]

# Every command that takes a warehouse, with what it needs besides. Files are in the test's own folder.
OTHERS = (
    "capture t --txid 1 --code topology.py; diff t u; fork t --at 1 --as u; handover t; history t; "
    "migrate checkpoint --topology topology.py; repair t; reset t --yes; rollback t --to 1; run topology.py; "
    "skip t --txid 1; ui t; zookeeper start; zookeeper status; zookeeper stop"
)
WITH_A_WAREHOUSE = [*COMMANDS, *(command.split() for command in OTHERS.split("; "))]
TOPOLOGY = """
from trident import DeltaAppend, FixedBatchSpout, TridentTopology
topology = TridentTopology("t")
topology.new_stream("s", FixedBatchSpout("word string", [[("a",)]])).partition_persist(DeltaAppend("out"))
"""


# Or that it cannot do its work with a warehouse in any store.
SAID = ("the store refuses this process", "is in a store")
# These make a Spark session first, which would stay in the process of the tests.
WITH_SPARK = ("repair", "run")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a topology and a checkpoint."""
    (tmp_path / "topology.py").write_text(TOPOLOGY)
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def proxy() -> Iterator[store_servers.Proxy]:
    """Before the S3 server; its bucket is ``s3a://commanded``."""
    proxy = store_servers.Proxy(store_servers.s3_endpoint())
    store_servers.make_bucket(proxy.endpoint, "commanded")
    yield proxy
    storage.configure("s3a://commanded", {})
    proxy.end()


def outcome(monkeypatch: pytest.MonkeyPatch, endpoint: str, warehouse: str, *command: str) -> tuple[int, str]:
    """The exit code of a command, and what it says."""
    given = {f"spark.hadoop.{key}": value for key, value in store_servers.s3_settings(endpoint).items()}
    secrets = {key: given.pop(key) for key in list(given) if key.endswith(("access.key", "secret.key"))}
    monkeypatch.setenv("TRIDENT_SPARK_CONF", json.dumps(given))
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), secrets.values()):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TRIDENT_FAULTS", raising=False)
    found = CliRunner().invoke(main, [*command, "--warehouse", warehouse])
    assert "an error of the framework" not in found.output and "Traceback" not in found.output, found.output
    return found.exit_code, found.output


def told(monkeypatch: pytest.MonkeyPatch, endpoint: str, warehouse: str, *command: str, code: int) -> str:
    found, said = outcome(monkeypatch, endpoint, warehouse, *command)
    assert found == code, f"{found}: {said}"
    return said


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The names of all commands that take a warehouse."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        elif any("--warehouse" in option.opts for option in command.params):
            yield (*path, name)


def test_every_command_that_takes_a_warehouse_is_tried_here() -> None:
    assert isinstance(main, click.Group)
    tried = {tuple(command[: 2 if command[0] in ("dead-letters", "zookeeper") else 1]) for command in WITH_A_WAREHOUSE}
    assert tried == set(commands(main))


@pytest.mark.parametrize("url", ["gs://lake/w", "s3://lake/w", "s3a:///w", "hdfs:///w"])
def test_every_command_refuses_a_url_of_another_kind_and_makes_no_folder_of_its_name(url: str, folder: Path) -> None:
    before = sorted(os.listdir(folder))
    for command in WITH_A_WAREHOUSE:
        found = CliRunner().invoke(main, [*command, "--set", f"warehouse={url}"])
        if command[0] in ("diff", "fork"):  # these take the folder by an option alone
            found = CliRunner().invoke(main, [*command, "--warehouse", url])
        assert found.exit_code == 2 and "is no place for a warehouse" in found.output, (command, found.output)
        assert "Traceback" not in found.output and sorted(os.listdir(folder)) == before, command


def test_every_command_says_it_of_a_store_that_refuses_and_makes_nothing(
    proxy: store_servers.Proxy, monkeypatch: pytest.MonkeyPatch, folder: Path, zk_server: str, zk_root: str
) -> None:
    proxy.answers = {method: (403, "AccessDenied") for method in ("GET", "HEAD", "PUT", "POST")}
    before = sorted(os.listdir(folder))
    wrong = []
    for command in [one for one in WITH_A_WAREHOUSE if one[0] not in WITH_SPARK]:
        keeper = [] if command[0] == "zookeeper" else ["--set", f"zookeeper={zk_server}"]
        keeper += ["--set", f"zookeeper_root={zk_root}"]
        code, said = outcome(monkeypatch, proxy.endpoint, "s3a://commanded/w", *command, *keeper)
        print(command, code, said)
        if code != 2 or not any(text in said for text in SAID):
            wrong.append((command, code, said))
        assert sorted(os.listdir(folder)) == before, command
    assert not wrong, wrong


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_refuses_is_told_with_its_reason(
    proxy: store_servers.Proxy, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    proxy.answers = {method: (403, "AccessDenied") for method in ("GET", "HEAD", "PUT", "POST")}
    said = told(monkeypatch, proxy.endpoint, "s3a://commanded/w", *command, code=2)
    assert "the store refuses this process" in said and "s3a://commanded/w" in said
    proxy.answers = {}
    storage.configure("s3a://no-such-bucket", {})
    assert "the bucket does not exist" in told(monkeypatch, proxy.endpoint, "s3a://no-such-bucket/w", *command, code=2)


def test_a_store_that_is_not_there_is_told_with_an_exit_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = store_servers.free_ports(1)
    bucket = f"s3a://away-{uuid.uuid4().hex[:8]}"
    said = told(monkeypatch, f"http://127.0.0.1:{port}", f"{bucket}/w", "status", code=4)
    assert "the store cannot be reached, or fails" in said and bucket in said
    with pytest.raises(StoreUnreachable, match="the store cannot be reached"):
        trident.get(f"{bucket}/w", "counts", "a")


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "is silent"])
def test_a_name_node_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    """The library alone tries for three minutes where it is refused, and waits for ever where it gets no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        root = f"hdfs://127.0.0.1:{server.getsockname()[1]}"
        if silent:
            monkeypatch.setattr(hdfs_storage, "ANSWER_SECS", 0.5)
        else:
            server.close()
            assert int(hdfs_storage._FEW_TRIES["dfs.client.failover.max.attempts"]) < 15
            storage.configure(root, {"dfs.client.failover.max.attempts": "1"})
        monkeypatch.setenv("TRIDENT_SPARK_CONF", json.dumps({"spark.hadoop.dfs.client.failover.max.attempts": "1"}))
        found = CliRunner().invoke(main, ["status", "--warehouse", f"{root}/w"])
        assert found.exit_code == 4 and "the store cannot be reached, or fails" in found.output, found.output
        assert ("no answer of HDFS in" if silent else "refused") in found.output
        with pytest.raises(StoreProblem):
            trident.get(f"{root}/w", "counts", "a")
