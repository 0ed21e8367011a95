"""What a Spark cluster's executors get and are asked; executors that look up in copies of their own (``make cluster``).

A real cluster whose hosts have neither the framework nor the user's modules is in tests/cluster.
"""

from __future__ import annotations

import ast
import errno
import importlib
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cluster.installed import bare_environment
from trident.coordinators.errors import ClusterProblem, ConfigError, EnvironmentProblem
from trident.running import cluster_checks, executor_probe
from trident.spark import cluster_files
from trident.states.core.place import Place

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "local-cluster[2,1,1024]"
FOUND = {
    "number": 0,
    "host": "node1",
    "python": list(sys.version_info[:3]),
    "executable": "/usr/bin/python3",
    "missing": {},
    "process": 1,
    "framework": "/tmp/spark/trident-framework-abc.zip/trident/__init__.py",
    "read": "nonce",
    "wrote": "t",
    "error": None,
    "unseen": [],
}


class Context:
    """Takes the files that are sent."""

    def __init__(self, master: str = "spark://a:7077") -> None:
        self.master, self.sent, self.archives, self.pythonExec = master, [], [], "python3"

    def addArchive(self, path: str) -> None:
        self.archives.append(path)

    def addPyFile(self, path: str) -> None:
        self.sent.append(path)
        sys.path.insert(1, path)  # as SparkContext does


# --- what is sent ---------------------------------------------------------------------------------


def test_the_framework_that_is_sent_is_whole_and_runs_alone(tmp_path: Path) -> None:
    context, path = Context(), list(sys.path)
    name = cluster_files.send_framework(context)
    assert name == os.path.basename(context.sent[0]) and sys.path == path
    assert cluster_files.send_framework(context) == name and len(context.sent) == 1
    python = bare_environment(tmp_path / "env")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import trident, trident.states.delta.parquet_files, trident.states.publishing.user_tasks\n"
        "import trident.coordinators.errors, trident.workers.chain, trident.tuples.tasks\n"
        "import trident.states.keyed.log_merge\n"
        "print(trident.states.__file__)\n"
    )
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    alone = {"env": clean, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    bare = subprocess.run([str(python), "-c", "import trident"], **alone)
    assert bare.returncode != 0, "the environment has the framework, so this test shows nothing"
    done = subprocess.run([str(python), "-c", script, context.sent[0]], **alone)
    assert done.returncode == 0, done.stderr
    assert f"{name}/trident/states/__init__.py" in done.stdout


def test_nothing_is_sent_with_a_local_master() -> None:
    context = Context("local[2]")
    assert cluster_files.send_framework(context) == "" and cluster_files.send_user_modules(context) == []
    assert context.sent == []


def test_a_packed_environment_is_sent_once_and_its_python_runs_the_tasks(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    context = Context()
    with pytest.raises(ConfigError, match=f"is not there; found: no file {archive}"):
        cluster_files.send_python(context, str(archive))
    archive.touch()
    for _ in range(2):
        cluster_files.send_python(context, str(archive))
    assert context.archives == [f"{archive}#trident-python"]
    assert context.pythonExec == "./trident-python/bin/python"
    for master, given in (("local[2]", str(archive)), ("yarn", None)):
        other = Context(master)
        cluster_files.send_python(other, given)
        assert not other.archives and other.pythonExec == "python3"


def test_users_modules_are_sent_with_their_packages_and_what_is_installed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text("")
    (tmp_path / "states.py").write_text("SIZE = 3\n")  # beside the script, not imported yet
    (tmp_path / "trident.py").write_text("")  # would hide the framework
    (tmp_path / "data.csv").write_text("1")
    deep = tmp_path / "cluster_helpers" / "deep"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").write_text("")
    (deep / "more.py").write_text("ONE = 1\n")
    (deep / "loop").symlink_to(deep.parent)
    installed = tmp_path / "env" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "cluster_installed.py").write_text("")
    for folder in (tmp_path, installed):
        monkeypatch.syspath_prepend(str(folder))
    importlib.import_module("cluster_helpers")
    importlib.import_module("cluster_installed")
    monkeypatch.setattr(cluster_files, "_script_folder", lambda: tmp_path)
    context = Context()
    names = cluster_files.send_user_modules(context)
    assert {"job", "states", "cluster_helpers"} <= set(names)
    assert not {"trident", "cluster_installed", "pyspark", "pytest", "json", "os"} & set(names)
    with zipfile.ZipFile(context.sent[0]) as sent:
        inside = sent.namelist()
    assert {"job.py", "states.py", "cluster_helpers/__init__.py", "cluster_helpers/deep/more.py"} <= set(inside)
    assert not [name for name in inside if name.startswith("trident") or not name.endswith(".py")]
    cluster_files.send_user_modules(context)
    assert len(context.sent) == 1, "the same files are sent once"
    (tmp_path / "later.py").write_text("")
    assert "later" in cluster_files.send_user_modules(context) and len(context.sent) == 2


def test_a_package_that_is_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cluster_large.py").write_text("x = 1\n" * 100)
    monkeypatch.setattr(cluster_files, "_user_modules", lambda: {"cluster_large": tmp_path / "cluster_large.py"})
    monkeypatch.setattr(cluster_files, "_BYTES_MAX", 100)
    context = Context()
    assert cluster_files.send_user_modules(context) == [] and context.sent == []
    assert "cluster_large.py is not sent" in caplog.text and "--py-files" in caplog.text


# --- what is asked --------------------------------------------------------------------------------


def test_the_probe_asks_spark_and_sees_files_both_ways(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nonce, folder = "n1", tmp_path / "probe"
    folder.mkdir()
    (folder / "driver").write_text(nonce)
    libraries = ("pyarrow", "nothing_so")
    task = {"folder": str(folder), "nonce": nonce, "modules": [], "libraries": libraries}
    task["sources"] = {str(tmp_path): None, str(folder / "driver"): 2, "/nowhere": None, str(folder): 5}
    found = executor_probe.probe_executors(spark, task)
    assert len(found) == 1, "the tasks of one executor are one answer"
    assert {one["read"] for one in found} == {nonce} and found[0]["versions"]["pyarrow"]
    assert all(list(one["missing"]) == ["nothing_so"] for one in found)
    assert found[0]["unseen"] == ["/nowhere", str(folder)], "a file that is a folder, and none at all"
    assert not list(cluster_checks._unshared(found, folder, nonce, Place(tmp_path)))
    monkeypatch.setattr(cluster_checks, "_SEEN_SECS", 0.3)
    (folder / found[0]["wrote"]).unlink()  # it wrote to another disk
    (problem,) = cluster_checks._unshared(found, folder, nonce, Place(tmp_path))
    assert "a file that it wrote there is not here" in str(problem)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_executors_are_asked_again_until_each_has_answered() -> None:
    def answers(*hosts: str) -> list[dict]:
        return [{**FOUND, "host": host, "process": 7} for host in hosts]

    told, pauses, known = [answers("a", "a"), answers("b", "a"), answers("c", "b")], [], iter([2, 3, 3])

    def probe_once(pause: float) -> list[dict]:
        pauses.append(pause)
        return told.pop(0)

    found = executor_probe.all_answers(probe_once, lambda: next(known))
    assert [one["host"] for one in found] == ["a", "b", "c"], "one has come while the others were asked"
    assert pauses == sorted(pauses) and len(set(pauses)) == 3


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"python": [3, 8, 1]}, ["another version of Python", "3.8 (/usr/bin/python3)", "PYSPARK_PYTHON"]),
        ({"missing": {"pyarrow": "ModuleNotFoundError: 'pyarrow'"}}, ["cannot import pyarrow", "python_archive"]),
        ({"missing": {"helpers": "ImportError: x"}}, ["cannot import helpers, which was sent"]),
        ({"framework": "/usr/lib/trident/__init__.py"}, ["another version of this framework", "/usr/lib/trident"]),
    ],
)
def test_what_a_host_lacks_is_one_error_that_names_it(more: dict, told: list[str]) -> None:
    assert not list(cluster_checks._problems(FOUND, "trident-framework-abc.zip"))
    (problem,) = cluster_checks._problems({**FOUND, **more}, "trident-framework-abc.zip")
    assert isinstance(problem, EnvironmentProblem)
    for text in ["node1", *told]:
        assert text in str(problem)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"error": "[Errno 2] No such file", "read": None}, "No such file"),
        ({"read": "other"}, "'other' in the driver's file"),
        ({"wrote": "elsewhere"}, "is not here"),
    ],
)
def test_a_warehouse_that_is_another_one_on_a_host_is_named_with_it(
    more: dict, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_checks, "_SEEN_SECS", 0.3)
    (tmp_path / "t").write_text("nonce")
    assert not list(cluster_checks._unshared([FOUND], Place(tmp_path), "nonce", Place("/w")))
    (problem,) = cluster_checks._unshared([{**FOUND, **more}], Place(tmp_path), "nonce", Place("/w"))
    for text in ["the warehouse /w is not one folder", "on node1", "mounted at", told]:
        assert text in str(problem)
    (problem,) = cluster_checks._unshared([{**FOUND, **more}], Place(tmp_path), "nonce", Place("s3a://lake/w"))
    for text in ["on node1 do not see the warehouse s3a://lake/w", "its credentials", told]:
        assert text in str(problem)


def test_an_executor_without_msgspec_is_reported_and_used() -> None:
    """Local copies on hosts need it; without it the tables are read."""
    assert not list(cluster_checks._problems({**FOUND, "missing": {"msgspec": "ModuleNotFoundError"}}, ""))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('x\nCaused by: java.io.IOException: Cannot run program "/no/python": error=2', "cannot start Python: /p"),
        (
            "Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): x\nError: [PYTHON_VERSION_MISMATCH] 3.8",
            "on 10.0.0.7 have another version of Python",
        ),
        ("Job aborted", "on one of a, b cannot run Python; found: Job aborted"),
        (
            "An error occurred while calling z:PythonRDD.\n: org.apache.spark.SparkException: EOFException\n\tat x",
            "cannot run Python; found: org.apache.spark.SparkException: EOFException; expected",
        ),
    ],
)
def test_a_probe_that_cannot_run_says_why(said: str, told: str) -> None:
    error = executor_probe._translated(RuntimeError(said), "/p", ["a", "b"])
    assert told in str(error) and "found: " in str(error)


@pytest.mark.parametrize(
    ("first", "asked"),
    [("sees it", 1), ("does not see it", 2), ("the driver does not reach it", 2), ("lacks pandas", 1)],
)
def test_executors_that_do_not_see_a_store_are_asked_once_more_behind_a_look_at_it(
    first: str, asked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warehouse, log = Place("hdfs://name:1/w"), []
    lack = ClusterProblem(f"one {first}", found="", action="")

    def look(*_: object) -> cluster_checks.ClusterProbe:
        log.append("asked")
        if first == "the driver does not reach it" and len(log) == 1:
            raise OSError(errno.EROFS, "SafeModeException", "hdfs://name:1/w/_trident")
        lacks = len(log) == 1 and first != "sees it"
        return cluster_checks.ClusterProbe([], [lack] if lacks else [], [], not lacks or "pandas" in first)

    monkeypatch.setattr(cluster_checks, "probe_cluster", look)
    monkeypatch.setattr(cluster_checks, "prepare_store", lambda place, *_: log.append(place))
    session = SimpleNamespace(sparkContext=Context("spark://master:1"))
    if "pandas" in first:
        with pytest.raises(ClusterProblem, match="lacks pandas"):
            cluster_checks.prepare_cluster(session, warehouse)
    else:
        cluster_checks.prepare_cluster(session, warehouse)
    assert log == (["asked"] if asked == 1 else ["asked", warehouse, "asked"])
    assert ("checked once more" in caplog.text) == (asked == 2)


def test_what_the_store_does_not_mend_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lack = ClusterProblem("the executors on node2 do not see it", found="", action="")
    looks, tried = [], []
    look = lambda *_: looks.append(1) or cluster_checks.ClusterProbe([], [lack], [], False)  # noqa: E731
    monkeypatch.setattr(cluster_checks, "probe_cluster", look)
    monkeypatch.setattr(cluster_checks, "prepare_store", lambda place, *_: tried.append(place))
    session = SimpleNamespace(sparkContext=Context("spark://master:1"))
    for warehouse, looked, stores in ((Place("s3a://lake/w"), 2, 1), (Place(tmp_path), 3, 1)):
        with pytest.raises(ClusterProblem, match="node2 do not see it"):
            cluster_checks.prepare_cluster(session, warehouse)
        assert (len(looks), len(tried)) == (looked, stores)


def test_nothing_is_asked_with_a_local_master(tmp_path: Path) -> None:
    cluster_checks.prepare_cluster(SimpleNamespace(sparkContext=Context("local[*]")), tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- a real cluster -------------------------------------------------------------------------------


def told_on_hosts(
    tmp_path: Path, job: str, zk_server: str, zk_root: str, *arguments: str, first: str = "true"
) -> dict[str, str]:
    """What a job prints, by the first word of each line. Each executor is a host: its temporary folder is another one.

    Args:
        arguments: behind the warehouse.
        first: a command before the first executor's Python.
    """
    (tmp_path / "job.py").write_text(job)
    # An executor runs in a folder of its own name; Python workers run where it does.
    python = tmp_path / "node-python"
    python.write_text(
        f'#!/bin/bash\nexecutor=$(basename "$PWD")\nexport TMPDIR="{tmp_path}/hosts/$((executor % 2))"\n'
        f'mkdir -p "$TMPDIR"\n[ $executor = 0 ] && {first}\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TRIDENT_ZOOKEEPER": zk_server,
        "TRIDENT_ZOOKEEPER_ROOT": zk_root,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "warehouse"), *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert "END" in told, done.stderr[-3000:]
    return told


TWO_HOSTS = """
import os, signal, sys, threading, time
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, MapGet, TridentConfig, TridentTopology

def split(line: str) -> Iterator[str]:
    yield from line.split()

batches = [[("a b",)], [("a",)], [("b c",)]] + [[("a a",), (f"w{n} b",)] for n in range(17)]
topology = TridentTopology("hosts")
lines = topology.new_stream("lines", FixedBatchSpout("line string", batches))
words = lines.each("line", split, "word").project("word")
counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
asked = words.state_query(counts, "word", MapGet(), "before").each(["word"], split, "same")
asked.partition_persist(DeltaAppend("asked"))
warehouse, hosts = sys.argv[1:]

def kill() -> None:
    while not glob(f"{hosts}/0/trident-copies-*/*/executors/*/counts/*/*.copy"):
        time.sleep(0.05)
    for folder in glob("/proc/[0-9]*"):
        try:
            named = Path(folder, "cmdline").read_bytes().split(b"\\0")
            at = os.readlink(f"{folder}/cwd")
        except OSError:
            continue
        if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in named and at.endswith(f"/{app}/0"):
            os.kill(int(folder.removeprefix("/proc/")), signal.SIGKILL)
            print("KILLED in the middle of a build", flush=True)

config = TridentConfig(spark_master="local-cluster[2,1,1024]", warehouse=warehouse, progress="none")
query = topology.start(config=config)
app = query.spark.sparkContext.applicationId
threading.Thread(target=kill, daemon=True).start()
query.process_all_available(400)
taken = [next(part for part in one["duration_ms"] if part.startswith("resolve_by_")) for one in query.recent_progress]
print("TAKEN", taken)
print("STATUS", query.status["groups"][0]["copies"])
rows = query.spark.read.format("delta").load(warehouse + "/asked").collect()
print("ASKED", sorted((row.word, row.before or 0) for row in rows))
print("COUNTS", sorted((row.word, row.n) for row in query.snapshot("counts").collect()))
print("END of the job")
query.stop()
"""


@pytest.mark.skipif(os.environ.get("TRIDENT_CLUSTER") != "all", reason="a real cluster; TRIDENT_CLUSTER=all runs it")
def test_each_host_of_a_cluster_looks_up_in_its_own_copy_also_after_one_was_killed_that_built_it(
    tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    """The first executor hangs while it builds."""
    told = told_on_hosts(
        tmp_path, TWO_HOSTS, zk_server, zk_root, str(tmp_path / "hosts"), first="export TRIDENT_FAULTS=copy.build:hang"
    )
    running, asked = Counter(), []
    for batch in [["a", "b"], ["a"], ["b", "c"], *[["a", "a", f"w{n}", "b"] for n in range(17)]]:
        asked += [(word, running[word]) for word in batch]
        running.update(batch)
    assert told["ASKED"] == str(sorted(asked)) and told["COUNTS"] == str(sorted(running.items()))
    assert "KILLED" in told, "no executor was building a copy"
    taken = ast.literal_eval(told["TAKEN"])
    assert taken.count("resolve_by_pass") > len(taken) // 2, (taken, told["STATUS"])
    for host in tmp_path.glob("hosts/*"):
        whole = [(copy / "current").exists() for copy in host.glob("trident-copies-*/*/executors/*/counts/*/*.copy")]
        # The next task on a host removes what one that was killed has left, of whichever shard; without one it stays.
        assert all(whole) or not any(whole)
    assert list(tmp_path.glob("hosts/1/trident-copies-*/*/executors/*/counts/*/*.copy/*.rows"))


SHARDS = """
import sys
from collections.abc import Iterator
from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, MapGet, TridentConfig, TridentTopology

class Longest:
    def init(self) -> str:
        return ""

    def reduce(self, longest: str, line: str) -> str:
        return max(longest, line, key=len)

def same(word: str) -> Iterator[str]:
    yield word

def topology(upto: int):
    batches = [[(f"w{n % 11}", f"{'x' * (n % 7)}{n}") for n in range(8 * b, 8 * b + 8)] for b in range(upto)]
    made = TridentTopology("cut")
    lines = made.new_stream("lines", FixedBatchSpout("word string, line string", batches))
    longest = lines.group_by("word").persistent_aggregate(DeltaMapState("longest"), "line", Longest(), "text")
    asked = lines.state_query(longest, "word", MapGet(), "before").each(["word"], same, "again")
    asked.partition_persist(DeltaAppend("asked"))
    return made

warehouse, shards, upto = sys.argv[1:]
config = TridentConfig(
    spark_master="local-cluster[2,1,1024]", warehouse=warehouse, progress="none", state_shards=int(shards),
    # On a busy machine a shard's first task may wait for longer than Spark's 3 s, and then run elsewhere.
    spark_conf={"spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.locality.wait": "60s"},
)
query = topology(int(upto)).start(config=config)
query.process_all_available(400)
print("TAKEN", [next(k for k in one["duration_ms"] if k.startswith("resolve_by_")) for one in query.recent_progress])
print("STATUS", query.status["groups"][0]["copies"])
rows = query.spark.read.format("delta").load(warehouse + "/asked").collect()
print("ASKED", sorted((row.word, row.line, row.before or "") for row in rows))
print("LONGEST", sorted((row.word, row.text) for row in query.snapshot("longest").collect()))
print("END of the job")
query.stop()
"""


@pytest.mark.long
def test_each_host_has_the_shards_of_its_tasks_also_after_a_restart_with_another_number(
    tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    longest: dict[str, str] = {}
    asked: list[tuple[str, str, str]] = []
    for begin, upto, shards in ((0, 12, 5), (12, 24, 3)):
        for batch in (
            [(f"w{n % 11}", f"{'x' * (n % 7)}{n}") for n in range(8 * b, 8 * b + 8)] for b in range(begin, upto)
        ):
            asked += [(word, line, longest.get(word, "")) for word, line in batch]
            for word, line in batch:
                longest[word] = max(longest.get(word, ""), line, key=len)
        told = told_on_hosts(tmp_path, SHARDS, zk_server, zk_root, str(shards), str(upto))
        assert told["ASKED"] == str(sorted(asked)) and told["LONGEST"] == str(sorted(longest.items()))
        taken = ast.literal_eval(told["TAKEN"])
        assert taken.count("resolve_by_pass") > len(taken) // 2, (taken, told["STATUS"])
        on = [
            {
                path.parent.name
                for path in tmp_path.glob(f"hosts/{host}/trident-copies-*/*/executors/*/longest/*/*.copy")
            }
            for host in (0, 1)
        ]
        homes = [{f"{number}-of-{shards}" for number in range(host, shards, 2)} for host in (0, 1)]
        assert on == homes, (taken, told["STATUS"])
