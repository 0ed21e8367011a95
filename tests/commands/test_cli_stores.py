"""Commands whose warehouse is a URL, where its store is not there, refuses, or is silent: one clear line, soon."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import trident
from tests import store_servers
from trident.cli import main
from trident.coordinators.errors import StoreProblem, StoreUnreachable
from trident.states.core import hdfs_storage, storage

# Those that look at the warehouse before anything else; the others ask ZooKeeper first.
COMMANDS = [
    ["status"],
    ["status", "t"],
    ["dead-letters", "list", "t"],
    ["dead-letters", "replay", "t", "--force"],
    ["compact", "t"],
    ["doctor"],
]


@pytest.fixture
def proxy() -> Iterator[store_servers.Proxy]:
    """Before the S3 server; its bucket is ``s3a://commanded``."""
    proxy = store_servers.Proxy(store_servers.s3_endpoint())
    store_servers.make_bucket(proxy.endpoint, "commanded")
    yield proxy
    storage.configure("s3a://commanded", {})
    proxy.end()


def told(monkeypatch: pytest.MonkeyPatch, endpoint: str, warehouse: str, *command: str, code: int) -> str:
    given = {f"spark.hadoop.{key}": value for key, value in store_servers.s3_settings(endpoint).items()}
    secrets = {key: given.pop(key) for key in list(given) if key.endswith(("access.key", "secret.key"))}
    monkeypatch.setenv("TRIDENT_SPARK_CONF", json.dumps(given))
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), secrets.values()):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TRIDENT_FAULTS", raising=False)
    found = CliRunner().invoke(main, [*command, "--warehouse", warehouse])
    assert found.exit_code == code, f"{found.exit_code}: {found.output} {found.exception!r}"
    assert "an error of the framework" not in found.output and "Traceback" not in found.output
    return found.output


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
        assert ("no answer of the name node" if silent else "refused") in found.output
        with pytest.raises(StoreProblem):
            trident.get(f"{root}/w", "counts", "a")
