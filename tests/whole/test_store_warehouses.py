"""Topologies whose warehouse is a URL: killed and resumed on S3 and HDFS, Delta's writers beside ours, bad input.

The lives of a topology, and HDFS, are ``make stores``: each life starts Spark anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

import trident
from tests.chaos.oracle import Table
from tests.chaos.store_mirror import Mirror
from tests.programs import python
from tests.repair.repair_helpers import znodes_below
from tests.servers import store_servers
from tests.servers.zk_fixtures import connected
from trident.cli import main
from trident.coordinators.errors import ConfigError, SparkSessionProblem, StorageProblem, StoreUnreachable
from trident.spark import stores
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.history.recorded import recorded_transactions
from trident.states.history.transaction_rows import owner_by_log

ALL = os.environ.get("TRIDENT_STORES") == "all"
ROOT = Path(__file__).resolve().parents[2]
KINDS = ["s3", *(["hdfs"] if ALL else [])]

LIVES = ["delta.commit:do_then_fail:2"]  # whose answer is lost
if ALL:
    LIVES = [
        "history.write:do_then_die:1",  # first: later ones may find all recorded
        "stage.write:do_then_die:4",
        "manifest.write:do_then_die:2",
        "zk.decide:do_then_die:2",
        "publish.table:do_then_die:3",
        "publish.table:do_then_die:4",
        "compact.merge:do_then_die:1",
        *LIVES,
    ]
FILES = 36 if ALL else 2

PROGRAM = """
import json, sys
from collections.abc import Iterator
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.states.history import recorder

folder, warehouse, zookeeper, root, conf = sys.argv[1:]
recorder.TXIDS_A_COMMIT = 1

def split(line: str) -> Iterator[str]:
    yield from line.split()

topology = TridentTopology("stored")
lines = topology.new_stream("lines", FileSpout(folder + "/in", min_rows=60, max_rows=60))
words = lines.each("value", split, "word")
words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_every_txids=3), Count(), "count")
lines.partition_persist(DeltaAppend("lines"))
query = topology.start(
    warehouse=warehouse, zookeeper=zookeeper, zookeeper_root=root, zookeeper_session_timeout_secs=4,
    spark_master="local[2]", spark_conf=json.loads(conf), driver_memory="900m",
)
query.process_all_available(200)
query.stop(compact=False)
"""


LOG_STORE_RACE = """
import json, sys, threading, time
from py4j.protocol import Py4JJavaError
from trident.spark import stores
from trident.spark.session import make_session
from trident.states.core import storage
from trident.states.core.place import Place
folder, conf, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
spark = make_session("race", {"spark.master": "local[1]", stores.STORE: "s3a", "spark.driver.memory": "700m", **conf})
stores.configure_by_session(Place(folder), spark)
jvm = spark._jvm
hadoop = spark._jsc.hadoopConfiguration()
store = jvm.trident.stores.ConditionalLogStore(hadoop)
told = []
for number in range(rounds):
    entry = f"{folder}/{number:020d}.json"
    line = jvm.java.util.ArrayList()
    line.add("theirs")
    won = []
    begin = threading.Barrier(2)
    def theirs():
        begin.wait()
        try:
            store.write(jvm.org.apache.hadoop.fs.Path(entry), line.iterator(), False, hadoop)
            won.append("theirs")
        except Py4JJavaError as error:
            assert "FileAlreadyExistsException" in str(error.java_exception), str(error)
    thread = threading.Thread(target=theirs)
    thread.start()
    begin.wait()
    time.sleep(0.005 * (number % 20))  # Hadoop asks the store some things before it writes
    try:
        storage.create(entry, b"ours")
        won.append("ours")
    except FileExistsError:
        pass
    thread.join()
    told.append([won, storage.read(entry).decode().strip()])
print(json.dumps(told))
"""


@pytest.fixture(params=KINDS)
def base(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder of its own in a store."""
    url = f"{store_servers.running(request.param)}/{uuid.uuid4().hex[:8]}"
    yield url
    storage.delete(url)


def settings_of(url: str) -> dict[str, str]:
    return dict(storage.settings_of("/".join(url.split("/")[:3])))


def stored_below(folder: str) -> Iterator[tuple[str, bytes]]:
    """Every file of a warehouse that is no data file, and what it has."""
    for name in storage.list_names(folder):
        path = f"{folder}/{name}"
        found = storage.stat(path)
        if found is None or not found.is_file:
            yield from stored_below(path)
        elif not name.endswith(".parquet"):
            yield path, storage.read(path)


def znodes(hosts: str, root: str) -> Iterator[tuple[str, bytes]]:
    with connected(hosts, root) as zk:
        for path, (value, _) in znodes_below(zk, root):
            yield path, value


def test_a_topology_on_a_store_counts_everything_once_whatever_its_lives_end_with(
    base: str, tmp_path: Path, zk_server: str, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `make test` it has one life, in which an answer is lost; `make sweep STORE=s3` has every fault in a store."""
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number}.txt").write_text("a b\nb c\nc c\n" * 20)
    given = settings_of(base)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given.pop("fs.s3a.access.key", "a"))
    given.pop("fs.s3a.secret.key", None)
    secret = f"secret-{uuid.uuid4().hex}"  # the tests' server takes any
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    conf = json.dumps({f"spark.hadoop.{key}": value for key, value in given.items()})
    program = ["-c", PROGRAM, str(tmp_path), f"{base}/w", zk_server, zk_root, conf]
    said = ""
    for fault in LIVES:
        life = python(*program, timeout_secs=500, TRIDENT_FAULTS=fault)
        expected = -signal.SIGKILL if "die" in fault else 0
        assert life.returncode == expected, f"life with {fault}: {life.stderr[-3000:]}"
        said += life.stdout + life.stderr
    seen = dict([*stored_below(f"{base}/w"), *znodes(zk_server, zk_root)])
    assert {"status.json", "leader", "coordinator"} <= {path.rpartition("/")[2] for path in seen}
    assert any("/manifests/" in path for path in seen) and any("/_delta_log/" in path for path in seen)
    assert not [path for path, text in seen.items() if secret.encode() in text]
    # Readers without Spark, and the command line.
    monkeypatch.setenv("TRIDENT_SPARK_CONF", conf)
    status, history = (
        CliRunner().invoke(main, [*command, "--json", "--warehouse", f"{base}/w"])
        for command in (["status"], ["history", "stored", "--last", "0"])
    )
    assert secret not in said + status.output + history.output and "fs.s3a.secret" not in said
    assert json.loads(status.stdout)["name"] == "stored"
    past = [json.loads(line) for line in history.stdout.splitlines()]
    assert [row["txid"] for row in past] == list(range(1, len(past) + 1))
    assert sum(part["rows"] for row in past for part in row["tables"] if part["state"] == "lines") == 60 * FILES
    table = recorded_transactions(f"{base}/w", "stored", "lines")
    assert table.problem == "" and sorted(table.rows) == [row["txid"] for row in past]
    assert owner_by_log(Place(f"{base}/w/stored__lines__transactions")) == ("stored", "lines")
    counts = [value["count"] for value in trident.get(f"{base}/w", "counts", ["a", "b", "c"])]
    assert counts == [20 * FILES, 40 * FILES, 60 * FILES]
    mirror = Mirror(f"{base}/w", tmp_path / "mirror")
    mirror.bring()
    lines = Counter(row["value"] for row in Table.read(mirror.path / "lines").rows())
    assert lines == dict.fromkeys(["a b", "b c", "c c"], 20 * FILES)


@pytest.mark.skipif(not ALL, reason="make stores runs it (TRIDENT_STORES=all)")
def test_deltas_writers_in_spark_obey_the_same_rule_on_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = f"{store_servers.running('s3')}/{uuid.uuid4().hex[:8]}"
    given = settings_of(folder)
    keys = {"AWS_ACCESS_KEY_ID": given.pop("fs.s3a.access.key")}
    keys["AWS_SECRET_ACCESS_KEY"] = given.pop("fs.s3a.secret.key")
    conf = json.dumps({f"spark.hadoop.{key}": value for key, value in given.items()})
    done = python("-c", LOG_STORE_RACE, folder, conf, "60", timeout_secs=300, **keys)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert [won for won, _ in told] == [[there] for _, there in told], "one is told that it won, and it did"
    assert {there for _, there in told} == {"ours", "theirs"}, "one side always won, which tests nothing"


# --- bad input --------------------------------------------------------------------------------------


@pytest.fixture
def behind() -> Iterator[store_servers.Proxy]:
    with store_servers.before_bucket("start") as proxy:
        yield proxy


def test_a_store_where_two_writers_win_is_refused_unless_the_user_vouches(behind: store_servers.Proxy) -> None:
    stores.check_store(Place("s3a://start/w"), False)
    assert storage.exists("s3a://start/w/_trident/.warehouse")
    behind.ignores_conditions = True
    with pytest.raises(StorageProblem, match="does not honour If-None-Match: two writers could both win"):
        stores.check_store(Place("s3a://start/w"), False)
    stores.check_store(Place("s3a://start/w"), True)


REFUSED = (501, "NotImplemented")


@pytest.mark.parametrize("single_writer", [False, True])
@pytest.mark.parametrize("started", [False, True], ids=["first start", "later"])
def test_a_store_that_refuses_the_condition_is_refused_whatever_the_user_vouches_for(
    behind: store_servers.Proxy, single_writer: bool, started: bool
) -> None:
    """No table version can be committed there: the setting, which would not help, is not advised."""
    warehouse = Place("s3a://start") / uuid.uuid4().hex
    if started:
        stores.check_store(warehouse, single_writer)
    # Before the first conditional PUT of a first start there is the one that makes the warehouse's folder.
    behind.plan("PUT", *([] if started else [None]), *[REFUSED] * 99)
    with pytest.raises(StorageProblem, match="refuses If-None-Match: no table version can be committed") as raised:
        stores.check_store(warehouse, single_writer)
    assert not isinstance(raised.value, StoreUnreachable), "another try would not help"
    assert "NotImplemented" in str(raised.value) and "Use another store" in str(raised.value)
    assert "single_writer" not in str(raised.value)
    behind.planned.clear()
    assert storage.list_names(warehouse / "_trident") == [".warehouse"]


def test_a_library_that_sends_no_conditions_is_the_same(
    behind: store_servers.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise storage.NotExclusive("conditional puts are disabled")

    monkeypatch.setattr(storage, "is_exclusive", refuse)
    with pytest.raises(StorageProblem, match="refuses If-None-Match") as raised:
        stores.check_store(Place("s3a://start/w"), True)
    assert "single_writer" not in str(raised.value)


def session_of(log_store: str | None, missing: str = "") -> Any:
    """Stands for a user's Spark session, which has this log store for S3, and not the class that is missing."""

    def class_for(name: str, *_: object) -> None:
        if name == missing:
            raise RuntimeError(f"java.lang.ClassNotFoundException: {name}")

    session = MagicMock()
    session.conf.get = ({stores.LOG_STORE_SETTING: log_store} if log_store else {}).get
    session._jvm.java.lang.Class.forName = class_for
    session.sparkContext.getConf().getAll = lambda: []
    session.sparkContext._jsc.hadoopConfiguration().get = settings_of("s3a://start").get
    return session


@pytest.mark.parametrize("log_store", [None, "io.delta.storage.S3SingleDriverLogStore"], ids=["none", "Delta's own"])
def test_a_session_without_our_log_store_is_refused_before_it_can_write(
    behind: store_servers.Proxy, log_store: str | None
) -> None:
    warehouse = Place("s3a://start") / uuid.uuid4().hex
    before = list(behind.requests)
    for single_writer in (False, True):
        with pytest.raises(SparkSessionProblem, match="two writers could both win a table version") as raised:
            stores.prepare_store(warehouse, session_of(log_store), {}, single_writer)
        told = str(raised.value)
        assert stores.LOG_STORE_SETTING in told and stores.LOG_STORE in told and (log_store or "not set") in told
    assert behind.requests == before, "nothing was asked for, and nothing made"
    stores.prepare_store(warehouse, session_of(stores.LOG_STORE), {}, False)
    assert storage.exists(warehouse / "_trident/.warehouse")


@pytest.mark.parametrize("missing", ["org.apache.hadoop.fs.s3a.S3AFileSystem", stores.LOG_STORE])
def test_a_session_without_the_jars_of_s3_is_refused(behind: store_servers.Proxy, missing: str) -> None:
    with pytest.raises(SparkSessionProblem, match="has not the jars of S3A on its class path"):
        stores.configure_by_session(Place("s3a://start/w"), session_of(stores.LOG_STORE, missing))


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "the store refuses this process.*AccessDenied"),
        (403, "RequestTimeTooSkewed", "clock is too far from the store's"),
        (404, "NoSuchBucket", "the bucket does not exist"),
        (400, "InvalidRequest", "cannot be reached, or fails.*InvalidRequest"),
    ],
)
def test_a_store_that_cannot_be_used_says_why(behind: store_servers.Proxy, status: int, code: str, said: str) -> None:
    behind.answers = {method: (status, code) for method in ("PUT", "GET")}
    with pytest.raises(StorageProblem, match=said):
        stores.check_store(Place("s3a://start/w"), False)


def test_a_read_only_store_says_so(behind: store_servers.Proxy) -> None:
    behind.answers = {"PUT": (403, "AccessDenied")}
    with pytest.raises(StorageProblem, match="the store refuses this process"):
        stores.check_store(Place("s3a://start/w"), False)


@pytest.mark.skipif(not ALL, reason="make stores runs it (TRIDENT_STORES=all)")
def test_a_name_node_in_safe_mode_says_so() -> None:
    warehouse = Place(store_servers.running("hdfs")) / "safe"
    stores.check_store(warehouse, False)
    (cluster,) = store_servers.hdfs_clusters
    cluster.admin("-safemode", "enter")
    try:
        with pytest.raises(StorageProblem, match="the name node is in safe mode"):
            stores.check_store(warehouse, False)
        # As behind each start of a name node: one that starts waits.
        starting = ThreadPoolExecutor(1).submit(stores.check_store, warehouse, False, 120.0)
        with pytest.raises(TimeoutError):
            starting.result(3)
    finally:
        cluster.admin("-safemode", "leave")
    starting.result(60)


def test_a_topologys_settings_hold_no_credentials() -> None:
    with pytest.raises(ConfigError, match="hold no credentials") as raised:
        stores.refuse_secrets({"spark.hadoop.fs.s3a.bucket.lake.secret.key": "hidden"})
    assert "hidden" not in str(raised.value)
    stores.refuse_secrets({"spark.hadoop.fs.s3a.endpoint": "http://here", "spark.executor.memory": "1g"})


def test_the_embedded_server_is_refused_beside_a_store() -> None:
    from trident.running.zookeeper import server_folder  # beside what it tests: the rest needs no Spark

    with pytest.raises(ConfigError, match="bound to one machine's disk"):
        server_folder(Place("s3a://start/w"))


# --- the sweep --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("store", KINDS)
def test_a_sample_of_the_sweep_in_a_store(store: str, zk_server: str) -> None:
    """In a process of its own: its Spark session is one for the store. All of it is `make sweep STORE=s3`."""
    environment = {
        **os.environ,
        "TRIDENT_STORE": store,
        "TRIDENT_SWEEP": "in a store",
        "TRIDENT_TEST_ZOOKEEPER": zk_server,
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/whole/test_sweep.py"]
    # The file → how many tests of it run on this store.
    more = {"tests/spark/test_left_uploads.py": 3} if store == "s3" else {}
    if ALL:
        more |= {"tests/states/keyed/test_merge_in_a_store.py": 3}
        more |= {"tests/time_travel/test_rollback_in_a_store.py": 1}
        more |= {"tests/repair/test_repair_in_a_store.py": 5}
        more |= {"tests/whole/test_store_away.py": 1} if store == "s3" else {}
    names = "each_fault or left_uploads or store_away or merge_in_a_store or rollback_in_a_store or repair_in_a_store"
    done = subprocess.run(
        [*command, *more, "-k", names], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0 and f"{1 + sum(more.values())} passed" in done.stdout, (
        f"{done.stdout[-5000:]}\n{done.stderr[-2000:]}"
    )
