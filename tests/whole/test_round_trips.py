"""Requests of a transaction to a store: how many, of which kinds, and how many one behind the other.

A topology runs in a process of its own (Spark with the jars of S3A) on an S3 server behind a proxy. The figures are
those of docs/storage.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.programs import python
from tests.servers import store_servers
from trident.states.core import storage
from trident.states.publishing import committer

pytestmark = pytest.mark.long  # tests/states/core/test_few_requests.py counts those of each step
ROOT = Path(__file__).resolve().parents[2]
TRANSACTIONS, CLEAN_EVERY = 8, 4
# Two staged files; looks at three tables, and again at the two that are committed to; the manifest; two entries.
STEADY = {"PUT staged": 2, "HEAD entry": 8, "PUT manifest": 1, "PUT entry": 2}
CLEANING = {"LIST manifests": 2, "DELETE several": 1, "LIST rows": 2}
# Two staged files, the manifest, two entries; the last three get their names by a rename. And three folders of the
# attempt.
HDFS_STEADY = {"Create": 5, "AddBlock": 5, "Fsync": 5, "Rename2": 3, "Mkdirs": 3, "GetFileInfo": 13}
DELAY_MS, PATH_MS_MAX = 20, 300

TOPOLOGY = """topology = TridentTopology("trips")
lines = topology.new_stream("lines", FileSpout(folder + "/in", min_rows=5, max_rows=5))
counts = DeltaMapState("counts", merge_every_txids=10**6, merge_interval_secs=1e9)
lines.group_by("value").persistent_aggregate(counts, Count(), "count")
lines.partition_persist(DeltaAppend("lines"))
"""

PROGRAM = (
    """
import json, sys
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.states.publishing import committer

folder, warehouse, zookeeper, root, conf, clean_every = sys.argv[1:]
committer.CLEAN_EVERY = int(clean_every)
"""
    + TOPOLOGY
    + """query = topology.start(
    warehouse=warehouse, zookeeper=zookeeper, zookeeper_root=root, spark_master="local[1]",
    spark_conf=json.loads(conf), driver_memory="700m", max_spout_pending=1, history_retention_txids=0,
)
query.process_all_available(200)
assert query.exception() is None, query.exception()
rows = query.snapshot("lines").count()
query.stop(compact=False)

from pyspark.sql import SparkSession
from trident.states.core import storage
from trident.states.core.control import DOMAIN
from trident.states.delta.kernel import KernelEngine

engine, table = KernelEngine(SparkSession.getActiveSession()), warehouse + "/counts__log"
storage.stat_file(warehouse + "/load-begins")
log = engine.load(table)
assert json.loads(log.control(DOMAIN))["txid"] == log.version, log
storage.stat_file(warehouse + "/load-ends")
assert engine.run_maintenance(log, every=1)
storage.stat_file(warehouse + "/checkpoint-ends")
again = engine.load(table)
assert again.control(DOMAIN) == log.control(DOMAIN)
storage.stat_file(warehouse + "/second-load-ends")
print(json.dumps({"rows": rows}))
"""
)


# As above, on HDFS; the parent lets the second half of the transactions come, and counts between.
HDFS_PROGRAM = (
    """
import sys
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.states.delta import kernel
from trident.states.publishing import committer

folder, warehouse, zookeeper, root = sys.argv[1:]
committer.CLEAN_EVERY = kernel.CHECKPOINT_EVERY_IN_A_STORE = 10**6
"""
    + TOPOLOGY
    + """query = topology.start(
    warehouse=warehouse, zookeeper=zookeeper, zookeeper_root=root, spark_master="local[1]",
    spark_conf={"spark.ui.enabled": "false"}, driver_memory="700m", max_spout_pending=1, status_interval_secs=3600,
)
for line in sys.stdin:
    query.process_all_available(200)
    print(query.status["groups"][0]["current_txid"], flush=True)
query.stop(compact=False)
"""
)


class Asked(NamedTuple):
    """One request: of which kind, and what it is about."""

    kind: str
    path: str


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory, zk_server: str
) -> Iterator[tuple[list[Asked], store_servers.Proxy]]:
    """The requests of a topology of two tables, in their order, one transaction in flight."""
    folder = tmp_path_factory.mktemp("trips")
    (folder / "in").mkdir()
    for number in range(TRANSACTIONS):
        (folder / "in" / f"{number}.txt").write_text("".join(f"a{line}\n" for line in range(5)))
    proxy = store_servers.Proxy(store_servers.s3_endpoint())
    proxy.rounds = rounds_of(TRANSACTIONS - 1)
    settings = store_servers.s3_settings(proxy.endpoint)
    keys = {"AWS_ACCESS_KEY_ID": settings.pop("fs.s3a.access.key")}
    keys["AWS_SECRET_ACCESS_KEY"] = settings.pop("fs.s3a.secret.key")
    conf = json.dumps({f"spark.hadoop.{key}": value for key, value in settings.items()} | {"spark.ui.enabled": "false"})
    warehouse, root = f"s3a://lake/trips-{uuid.uuid4().hex[:8]}", f"/trips-{uuid.uuid4().hex}"
    arguments = [str(folder), warehouse, zk_server, root, conf, str(CLEAN_EVERY)]
    (folder / "program.py").write_text(PROGRAM)
    run = python(folder / "program.py", *arguments, timeout_secs=400, **keys)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {"rows": 5 * TRANSACTIONS}
    bucket = "/" + warehouse.partition("://")[2].partition("/")[0]
    yield [kind_of(*each, warehouse.rpartition("/")[2], bucket) for each in proxy.requests], proxy
    storage.delete(warehouse)
    proxy.end()


def rounds_of(txid: int) -> list[list[tuple[str, str]]]:
    """The requests from the commit of the transaction before to that of a transaction, as rounds."""

    def entry(table: str, version: int) -> str:
        return f"/{table}/_delta_log/{version:020d}.json"

    tables = ["counts__log", "lines"]  # each transaction makes a version of them, and the first start version 0
    looks = [entry("counts", 0), entry("counts", 1)]
    looks += [entry(table, version) for table in tables for version in (txid - 1, txid)]
    return [
        [("PUT", entry(table, txid - 1)) for table in tables],
        [("HEAD", look) for look in looks],
        [("PUT", f"/{txid}-0.json")],
        [("HEAD", entry(table, txid - 1)) for table in tables],
        [("PUT", entry(table, txid)) for table in tables],
    ]


def kind_of(method: str, url: str, warehouse: str, bucket: str) -> Asked:
    """A request in the words of docs/storage.md; "now and then" for those that the clock asks for."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "list-type" in query:
        method, path = "LIST", query.get("prefix", [""])[0]
    elif "delete" in query:
        return Asked("DELETE several", url)
    else:
        path = unquote(parts.path).removeprefix(bucket).lstrip("/")
    path = path.removeprefix(f"{warehouse}/").rstrip("/")
    for kind, pattern in {
        "now and then": r"_trident|_trident/trips/status\.json",
        "staged": r"\w+/data/\w+/\d+-\d+-\w+/part-[^/]*",
        "entry": r"\w+/_delta_log/\d{20}\.json",
        "manifest": r"_trident/trips/\w+/manifests/\w+/\d+-\d+\.json",
        "manifests": r"_trident/trips/\w+/manifests(/\w+)?",
        "rows": r"_trident/trips/\w+/(states|boundaries)",
    }.items():
        if re.fullmatch(pattern, path):
            return Asked(kind if kind == "now and then" else f"{method} {kind}", path)
    return Asked(f"{method} {path}", path)


def between(requests: list[Asked], first: int, last: int) -> list[Asked]:
    """The requests behind the commit of one transaction, up to that of another."""

    def committed(txid: int) -> int:
        entry = f"/_delta_log/{txid:020d}.json"
        return max(at for at, one in enumerate(requests) if one.kind == "PUT entry" and one.path.endswith(entry))

    return [one for one in requests[committed(first) + 1 : committed(last) + 1] if one.kind != "now and then"]


def test_a_steady_transaction_of_two_tables_makes_thirteen_requests(
    asked: tuple[list[Asked], store_servers.Proxy],
) -> None:
    requests, _ = asked
    first, last = CLEAN_EVERY + 1, TRANSACTIONS
    found = Counter(one.kind for one in between(requests, first, last) if one.kind not in CLEANING)
    assert found == {kind: count * (last - first) for kind, count in STEADY.items()}
    assert sum(STEADY.values()) == 13, "as docs/storage.md says"


def test_behind_so_many_transactions_a_store_is_cleaned_up_with_five_requests(
    asked: tuple[list[Asked], store_servers.Proxy],
) -> None:
    requests, _ = asked
    behind = requests[requests.index(between(requests, CLEAN_EVERY, CLEAN_EVERY + 1)[-1]) :]
    found = Counter(one.kind for one in behind if one.kind in CLEANING)
    assert found == CLEANING, "once, behind the fifth transaction of eight"
    assert CLEAN_EVERY < committer.CLEAN_EVERY, "else the transactions here would not be enough"


def test_those_from_prepare_to_advance_are_four_one_behind_the_other(
    asked: tuple[list[Asked], store_servers.Proxy],
) -> None:
    _, proxy = asked
    assert not proxy.waited_in_vain, "requests that could go side by side go one behind the other"
    assert not proxy.rounds, "a round did not come"
    depth = len(rounds_of(1)) - 1
    assert depth == 4 and depth * DELAY_MS <= PATH_MS_MAX


def test_a_load_reads_each_entry_behind_the_last_checkpoint_once(
    asked: tuple[list[Asked], store_servers.Proxy],
) -> None:
    requests, _ = asked
    first, second = reads(requests, "load-begins", "load-ends"), reads(requests, "checkpoint-ends", "second-load-ends")
    newest = f"counts__log/_delta_log/{TRANSACTIONS:020d}.json"
    assert len(first) == TRANSACTIONS + 1, "all entries: there is no checkpoint yet"
    assert {path for path, times in first.items() if times > 1} <= {newest}, "its control record is in it"
    assert set(second) <= {newest}, "the rest is in the checkpoint, or in its checksum"


def reads(requests: list[Asked], begin: str, end: str) -> Counter[str]:
    """How often each entry of a log was read between two marks."""
    begun, ended = ([one.path for one in requests].index(mark) for mark in (begin, end))
    return Counter(one.path for one in requests[begun:ended] if one.kind == "GET entry")


@pytest.mark.skipif(os.environ.get("TRIDENT_STORES") != "all", reason="make stores runs it (TRIDENT_STORES=all)")
def test_calls_of_the_name_node_that_a_transaction_of_two_tables_makes(tmp_path: Path, zk_server: str) -> None:
    url = store_servers.running("hdfs")
    (cluster,) = store_servers.hdfs_clusters
    (tmp_path / "in").mkdir()
    (tmp_path / "program.py").write_text(HDFS_PROGRAM)
    arguments = [str(tmp_path), f"{url}/{uuid.uuid4().hex[:8]}", zk_server, f"/trips-{uuid.uuid4().hex}"]
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdin is not None and running.stdout is not None
        made: list[tuple[int, Counter[str]]] = []
        for number in range(2 + TRANSACTIONS):
            # Renamed into place, so that no look sees half of them.
            (tmp_path / f"{number}").write_text("".join(f"a{line}\n" for line in range(5)))
            (tmp_path / f"{number}").rename(tmp_path / "in" / f"{number}.txt")
            if number in (1, 1 + TRANSACTIONS):
                running.stdin.write("go\n")
                running.stdin.flush()
                made.append((int(running.stdout.readline()), cluster.calls()))
        running.stdin.close()
        assert running.wait(200) == 0
    (first, before), (last, behind) = made
    assert last - first == TRANSACTIONS
    found = {name: count / TRANSACTIONS for name, count in (behind - before).items()}
    # The writing of a file ends with as many Completes as it takes until the data node has told of it. And beside the
    # transactions the source writes down what it has seen, and the clock has the leader look at its warehouse.
    beside = sum(found.get(name, 0) - calls for name, calls in HDFS_STEADY.items())
    for name, calls in HDFS_STEADY.items():
        assert calls <= found.pop(name) < calls + 2, name
    assert beside < 4, "docs/storage.md says how many a transaction makes"
    assert found.pop("Complete") >= HDFS_STEADY["Create"] and all(calls < 1 for calls in found.values()), found
