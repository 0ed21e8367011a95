"""A real standalone cluster whose hosts have neither the framework nor the user's modules (``make cluster``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import deltalake
import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.cluster.installed import bare_environment, site_packages
from tests.cluster.standalone import Process, Standalone
from tests.servers.zk_fixtures import connected
from trident.coordinators.errors import TridentError
from trident.running.status import read_status

pytestmark = pytest.mark.skipif(
    os.environ.get("TRIDENT_CLUSTER") != "all", reason="a real cluster; TRIDENT_CLUSTER=all runs it"
)
JOB = """
from collections.abc import Iterator
import coordinators, helpers, states
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, MapGet, TridentTopology

def split(line: str) -> Iterator[str]:
    yield from helpers.words(line)

def host(word: str) -> Iterator[str]:
    import coordinators, socket, states, trident
    assert states.MINE and coordinators.MINE, "the framework's own of these names are not in the way"
    yield f"{socket.gethostname()} {trident.__file__}"

topology = TridentTopology("count")
batches = [[("A b A",), ("b c",)], [("b c",)], [("a",)]]
lines = topology.new_stream("lines", FixedBatchSpout("line string", batches))
words = lines.each("line", split, "word").project("word")
counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
asked = words.state_query(counts, "word", MapGet(), "before").each("word", host, "host")
asked.partition_persist(DeltaAppend("asked"))
"""
STARTED = """
query = topology.start()
query.process_all_available(300)
query.stop()
query.spark.stop()
"""
HELPERS = """
import cluster_rules.deep as deep

def words(line: str) -> list[str]:
    import lazily  # beside the script, and not imported on the driver
    return [lazily.lower(word) + deep.END for word in line.split()]
"""
# The packages that each host must have, with those that they need.
NEEDED = ("numpy", "numpy.libs", "pandas", "pyarrow", "pytz", "dateutil", "six.py", "tzdata")


def lean_environment(folder: Path, without: str = "") -> Path:
    """A Python with the packages alone that the docs ask of a host."""
    python = bare_environment(folder)
    libraries = site_packages(folder)
    everything = Path((libraries / "libraries.pth").read_text().strip())
    (libraries / "libraries.pth").unlink()
    for name in NEEDED:
        if name != without and (everything / name).exists():
            (libraries / name).symlink_to(everything / name)
    return python


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    (folder / "cluster_rules").mkdir(parents=True)
    for name, text in {
        "helpers.py": HELPERS,
        "lazily.py": "def lower(word):\n    return word.lower()\n",
        "states.py": "MINE = True\n",
        "coordinators.py": "MINE = True\n",
        "cluster_rules/__init__.py": "",
        "cluster_rules/deep.py": "END = '!'\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "job.py").write_text(f"{JOB}\nif __name__ == '__main__':\n    " + STARTED.strip().replace("\n", "\n    "))
    return folder


def submit() -> str:
    return str(Path(_find_spark_home(), "bin", "spark-submit"))


@pytest.mark.parametrize("way", ["python", "trident run", "notebook", "spark-submit"])
def test_a_topology_reaches_hosts_that_have_nothing_of_it(
    way: str, cluster: Standalone, job: Path, tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    if way == "python":  # one host has only what the docs ask for
        cluster.give_python(cluster.workers[1], f'exec "{lean_environment(tmp_path / "lean")}" "$@"')
    warehouse = tmp_path / "warehouse"
    environment = dict(cluster.environment(warehouse, zk_server, zk_root))
    commands = {
        "python": [sys.executable, "job.py"],
        "trident run": [sys.executable, "-m", "trident.cli", "run", "job.py"],
        "notebook": [sys.executable, "-"],
        "spark-submit": [submit(), "--master", cluster.url, "--conf", "spark.log.level=WARN", "job.py"],
    }
    if way == "spark-submit":
        del environment["TRIDENT_SPARK_MASTER"]
    with (tmp_path / "said").open("wb") as said:
        driver = subprocess.Popen(
            commands[way], cwd=job, env=environment, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT
        )
    assert driver.stdin is not None
    with driver.stdin as typed:
        if way == "notebook":
            typed.write((JOB + STARTED).encode())
    try:
        if way == "trident run":
            stop_when_done(driver, warehouse, tmp_path)
        code = driver.wait(400)
    finally:
        driver.kill()
    told = (tmp_path / "said").read_text(errors="replace")
    assert code == 0, told[-4000:] + cluster.story()
    counts = deltalake.DeltaTable(str(warehouse / "counts")).to_pyarrow_table(columns=["word", "n"]).to_pylist()
    assert sorted((row["word"], row["n"]) for row in counts) == [("a!", 3), ("b!", 3), ("c!", 2)], told[-3000:]
    asked = deltalake.DeltaTable(str(warehouse / "asked")).to_pyarrow_table(columns=["word", "before", "host"])
    found = sorted((row["word"], row["before"] or 0) for row in asked.to_pylist())
    assert found == [("a!", 0), ("a!", 0), ("a!", 2), ("b!", 0), ("b!", 0), ("b!", 2), ("c!", 0), ("c!", 1)]
    assert not (warehouse / "_trident" / ".copies").exists(), "local copies are on the hosts' own disks"
    places = {row["host"] for row in asked.to_pylist()}
    assert all("trident-framework-" in place for place in places), places
    if cluster.hosts:
        assert all(place.startswith("node") for place in places), places
    if way == "python":
        assert "have no msgspec" in told
        cluster.give_python(cluster.workers[1], f'exec "{cluster.folder}/env/bin/python" "$@"')


def stop_when_done(driver: "subprocess.Popen[bytes]", warehouse: Path, folder: Path) -> None:
    deadline = time.monotonic() + 300
    while driver.poll() is None and time.monotonic() < deadline:
        try:
            found = read_status(str(warehouse), "count").to_json()
        except TridentError:
            found = {"groups": []}
        if any(group["current_txid"] > 3 for group in found["groups"]):
            driver.send_signal(signal.SIGTERM)
            return
        time.sleep(0.1)
    raise AssertionError((folder / "said").read_text(errors="replace")[-4000:])


def test_spark_submit_has_no_cluster_mode_for_python_on_a_standalone_cluster(cluster: Standalone, job: Path) -> None:
    """docs/cluster.md says so; when Spark has one, the page is to be mended."""
    command = [submit(), "--master", cluster.url, "--deploy-mode", "cluster", str(job / "job.py")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "not supported for python applications on standalone clusters" in done.stdout + done.stderr


# --- hosts that lack something -------------------------------------------------------------------------


def run(cluster: Standalone, job: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *(words or ("job.py",))]
    return subprocess.run(command, cwd=job, env=environment, capture_output=True, text=True, timeout=400)


@pytest.fixture
def without_pandas(cluster: Standalone, tmp_path: Path) -> "Process":
    """The second worker, whose Python has no pandas until the test has ended."""
    worker = cluster.workers[1]
    cluster.give_python(worker, f'exec "{lean_environment(tmp_path / "poor", "pandas")}" "$@"')
    yield worker
    cluster.give_python(worker, f'exec "{cluster.folder}/env/bin/python" "$@"')


def test_a_host_without_a_package_is_one_error_and_a_packed_environment_helps(
    cluster: Standalone, job: Path, tmp_path: Path, zk_server: str, zk_root: str, without_pandas: Process
) -> None:
    warehouse = tmp_path / "warehouse"
    environment = dict(cluster.environment(warehouse, zk_server, zk_root))
    refused = run(cluster, job, **environment)
    host = without_pandas.name if cluster.hosts else ""
    assert refused.returncode == 1
    assert f"ClusterProblem: the executors on {host}" in refused.stderr, refused.stderr[-3000:]
    assert "cannot import pandas; found: ModuleNotFoundError: No module named 'pandas'" in refused.stderr
    assert "python_archive" in refused.stderr and not znodes(zk_server, zk_root)

    told = run(cluster, job, "-m", "trident.cli", "doctor", "--cluster", **environment)
    assert told.returncode == 2, told.stdout + told.stderr[-2000:]
    assert "2 executors answered" in told.stdout and "pandas (missing)" in told.stdout
    assert told.stdout.count("warehouse: read and written") == 2
    assert f"- the executors on {host}" in told.stdout.partition("Problems:")[2]
    assert not list((warehouse / "_trident").glob(".probe-*")), "the probe leaves nothing"

    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(cluster.folder / "env", ".")
    environment["TRIDENT_PYTHON_ARCHIVE"] = str(tmp_path / "env.tar.gz")
    done = run(cluster, job, **environment)
    assert done.returncode == 0, done.stderr[-3000:] + cluster.story()
    well = run(cluster, job, "-m", "trident.cli", "doctor", "--cluster", **environment)
    assert well.returncode == 0 and "No problem found" in well.stdout, well.stdout + well.stderr[-2000:]
    assert (
        well.stdout.count("./trident-python/bin/python") == 0 and well.stdout.count("/trident-python/bin/python") == 2
    )


READING = """
from trident import DeltaAppend, FileSpout, TridentTopology
topology = TridentTopology("reading")
topology.new_stream("lines", FileSpout("../in")).partition_persist(DeltaAppend("out"))
topology.start()
"""


def test_a_warehouse_or_a_sources_folder_that_is_another_disk_on_one_host_is_one_error_before_any_znode(
    cluster: Standalone, job: Path, tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    if not cluster.hosts:
        pytest.skip("needs mounts of a host's own")
    worker, warehouse, source = cluster.workers[1], tmp_path / "warehouse", tmp_path / "in"
    warehouse.mkdir()
    source.mkdir()
    (source / "1.txt").write_text("x\n")
    (job / "reading.py").write_text(READING)
    worker.kill()
    try:
        hide = (f"mount -t tmpfs none '{folder}'" for folder in (warehouse, source))
        cluster.start_worker(worker, mounts=" && ".join([*hide, f"mkdir '{warehouse}/_trident'"]))
        cluster.wait_registered(worker)
        environment = cluster.environment(warehouse, zk_server, zk_root)
        refused = run(cluster, job, **environment)
        assert refused.returncode == 1
        said = f"ClusterProblem: the warehouse {warehouse} is not one folder for the driver and the executors on node2"
        assert said in refused.stderr, refused.stderr[-3000:]
        refused = run(cluster, job, "reading.py", **{**environment, "TRIDENT_WAREHOUSE": str(tmp_path / "shared")})
        assert refused.returncode == 1
        said = "ClusterProblem: the executors on node2 do not have what the FileSpout of stream 'lines' reads"
        assert said in refused.stderr, refused.stderr[-3000:]
        assert not znodes(zk_server, zk_root)
        assert not list((warehouse / "_trident").glob(".probe-*"))
    finally:
        worker.kill()
        cluster.start_worker(worker)
        cluster.wait_registered(worker)


def znodes(hosts: str, root: str) -> list[str]:
    """The names below a topology's root; connecting here makes the root itself."""
    with connected(hosts, root) as zk:
        return zk.children(root)
