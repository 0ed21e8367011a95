"""An executor, or a Python worker, out of memory: a clear error, nothing lost, and it goes on when there is room.

Batches of adaptive sources become smaller by themselves, as after a timeout. The
executor is a real one that dies of OutOfMemoryError (``TRIDENT_STORAGE=all``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import trident
from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS
from tests.whole.test_storage_faults import everything
from trident import DeltaAppend, FileSpout, TridentTopology
from trident.coordinators.errors import BatchOutOfMemory
from trident.running.status import read_status

ROOT = Path(__file__).resolve().parents[2]
ROWS = 3_000
FIT = 900


class Hoards:
    """Keeps all rows of its Spark task, and has room for so many only."""

    def prepare(self, context: object) -> None:
        self._rows = 0

    def __call__(self, line: str) -> Iterator[str]:
        self._rows += 1
        if self._rows > FIT:
            bytearray(1 << 60)  # a real MemoryError, on any machine
        yield line


def lines(folder: Path) -> list[str]:
    (folder / "in").mkdir()
    found = [f"line {number}" for number in range(ROWS)]
    (folder / "in" / "1.txt").write_text("".join(f"{line}\n" for line in found))
    return found


@everything
def test_a_batch_that_does_not_fit_into_memory_is_tried_smaller_until_it_does(start, spark, tmp_path: Path) -> None:
    fed = lines(tmp_path)
    topology = TridentTopology("hoards")
    stream = topology.new_stream("lines", FileSpout(f"{tmp_path}/in/*.txt", min_rows=ROWS, max_rows=ROWS))
    stream.each("value", Hoards(), "line string").partition_persist(DeltaAppend("lines"), "line")
    query = start(topology, max_spout_pending=1, batch_partitions=1)
    query.process_all_available(WAIT_SECS)
    assert sorted(row.line for row in query.snapshot("lines").collect()) == sorted(fed)
    first = query.recent_progress[0]
    assert (first["batch_id"], first["attempt"] >= 1) == (1, True), "the first attempt did not fit"
    assert first["num_input_rows"] <= ROWS / 2
    error = query._supervisor.groups[0].driver.last_error
    assert isinstance(error, BatchOutOfMemory) and "MemoryError" in str(error) and "max_rows" in str(error)


# --- a real executor, in a process of its own -----------------------------------------------------

PROGRAM = """
from trident import DeltaAppend, FileSpout, TridentTopology, expr

topology = TridentTopology("greedy")
stream = topology.new_stream("lines", FileSpout({folder!r} + "/in/*.txt", min_rows=10, max_rows=5000))
# 80 million numbers: 640 MB in one array, and none of it in Python.
greedy = stream.each(expr("size(sequence(1L, 80000000L + length(value)))"), "n int")
greedy.partition_persist(DeltaAppend("lines"), ["value", "n"])
"""


def all_committed(warehouse: Path) -> bool:
    if not (warehouse / "_trident" / "greedy" / "status.json").exists():
        return False
    status = read_status(warehouse, "greedy")
    return status.error is None and any(
        group.current_txid > 1 and not group.attempts and group.backlog and not any(group.backlog.values())
        for group in status.groups
    )


@everything
def test_an_executor_that_dies_of_it_costs_attempts_and_after_a_restart_with_more_memory_all_is_there(
    spark, tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\n")
    program = tmp_path / "greedy.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path)))

    def run(memory: str, attempts: int) -> tuple[int, str]:
        """Until it has ended by itself, or has committed all there is; its exit code and what it has said."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--conf spark.executor.memory={memory} --conf spark.task.maxFailures=1 "
            "pyspark-shell",
        }
        settings = {
            "spark_master": "local-cluster[1,1,3000]",
            "warehouse": str(tmp_path / "w"),
            "zookeeper": zk_server,
            "zookeeper_root": zk_root,
            "max_attempts": str(attempts),
            "max_spout_pending": "1",
            "message_timeout_secs": "none",
        }
        command = [sys.executable, "-m", "trident.cli", "run", f"{program}:topology"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        said = tmp_path / f"{memory}.log"
        with said.open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
        try:
            assert eventually(lambda: process.poll() is not None or all_committed(tmp_path / "w"), 300)
        finally:
            process.terminate()  # a running topology stops cleanly
        return process.wait(60), said.read_text()

    code, said = run("600m", 2)
    assert code == 1, said[-3000:]
    assert "has run out of memory" in said and "spark.executor.memory" in said
    code, said = run("2500m", 8)
    assert code == 0, said[-3000:]
    found = [(row.value, row.n) for row in trident.read(spark, tmp_path / "w", "lines").collect()]
    assert sorted(found) == [("one", 80_000_003), ("two", 80_000_003)]
