"""The sample of ``make cluster`` in ``make test``: a master, a worker that has nothing of the framework, a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deltalake
import pytest

from tests.cluster.standalone import Standalone

JOB = """
from collections.abc import Iterator
from helpers import words
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology

def split(line: str) -> Iterator[str]:
    yield from words(line)

topology = TridentTopology("count")
lines = topology.new_stream("lines", FixedBatchSpout("line string", [[("a b a",), ("c",)], [("b a",)]]))
lines.each("line", split, "word").group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
query = topology.start()
query.process_all_available(300)
query.stop()
query.spark.stop()
"""


@pytest.mark.skipif(os.environ.get("TRIDENT_CLUSTER") == "all", reason="test_shipping.py has more")
def test_a_program_reaches_a_worker_that_has_nothing_of_it(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    (tmp_path / "helpers.py").write_text("def words(line: str) -> list[str]:\n    return line.split()\n")
    (tmp_path / "job.py").write_text(JOB)
    warehouse = tmp_path / "warehouse"
    cluster = Standalone(tmp_path / "cluster", workers=1)
    try:
        cluster.start_master()  # it is there long before the driver's JVM has started
        cluster.start_worker(cluster.workers[0])
        environment = cluster.environment(warehouse, zk_server, zk_root)
        done = subprocess.run(
            [sys.executable, "job.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:] + cluster.story()
    finally:
        cluster.close()
    rows = deltalake.DeltaTable(str(warehouse / "counts")).to_pyarrow_table(columns=["word", "n"]).to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [("a", 3), ("b", 2), ("c", 1)]
