"""The past of a running topology: recorded whole through kills, told by `trident history`, forgotten by a reset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pytest
from click.testing import CliRunner

from tests.topology_helpers import starter
from trident import DeltaAppend, FileSpout, TridentTopology, cli
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.history.kept import KeptManifests

TABLE = "past__lines__transactions"
# In make test a kill on either side of a commit to the table; more with TRIDENT_HISTORY=all.
KILLS = [
    "history.write:do_then_die:2",  # the rows are there, and no process heard of it
    "zk.advance:do_then_die:5",  # published and advanced, and not recorded
]
MORE = [
    "delta.commit:do_then_die:9",
    "history.write:do_then_die:1",
    "publish.table:do_then_die:6",
    "clean.manifests:do_then_die:4",
]

PROGRAM = """
import sys
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.states.history import recorder

folder, warehouse, zookeeper, root = sys.argv[1:]
recorder.TXIDS_A_COMMIT, recorder.SECS_A_COMMIT = 2, 1.0
topology = TridentTopology("past")
lines = topology.new_stream("lines", FileSpout(folder + "/in", min_rows=5, max_rows=5))
counts = DeltaMapState("counts", merge_every_txids=10**6, merge_interval_secs=1e9)
lines.group_by("value").persistent_aggregate(counts, Count(), "count")
lines.partition_persist(DeltaAppend("lines"))
query = topology.start(
    warehouse=warehouse, zookeeper=zookeeper, zookeeper_root=root, spark_master="local[1]", driver_memory="700m",
    zookeeper_session_timeout_secs=4,
)
query.process_all_available(200)
assert query.exception() is None, query.exception()
query.stop()
"""


class World:
    """A warehouse with a ZooKeeper, and the topology as a process of its own."""

    def __init__(self, folder: Path, zookeeper: str, root: str) -> None:
        self.folder, self.zookeeper, self.root = folder, zookeeper, root
        self.warehouse = folder / "warehouse"
        (folder / "in").mkdir()
        self.files = 0

    def add(self, batches: int) -> None:
        for _ in range(batches):
            self.files += 1
            text = "".join(f"{self.files % 3}\n" for _ in range(5))
            (self.folder / "in" / f"{self.files:04d}.txt").write_text(text)

    def run(self, fault: str = "") -> int:
        program = [sys.executable, "-c", PROGRAM, str(self.folder), str(self.warehouse), self.zookeeper, self.root]
        environment = {**os.environ, "TRIDENT_FAULTS": fault}
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode in (0, -9), done.stderr[-3000:]
        return done.returncode

    def command(self, *arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli.main, [*arguments, "--warehouse", str(self.warehouse)])
        assert done.exit_code == code, done.output
        return done.output

    def rows(self) -> list[dict[str, Any]]:
        found = deltalake.DeltaTable(str(self.warehouse / TABLE)).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: row["txid"])

    def appended(self) -> int:
        return int(deltalake.DeltaTable(str(self.warehouse / "lines")).to_pyarrow_table().num_rows)


@pytest.fixture
def world(tmp_path: Path, zk_server: str, zk_root: str) -> World:
    return World(tmp_path, zk_server, zk_root)


@pytest.mark.long
def test_through_kills_no_transaction_is_missing_or_doubled(world: World) -> None:
    kills = KILLS + (MORE if os.environ.get("TRIDENT_HISTORY") == "all" else [])
    for fault in kills:
        world.add(6)
        assert world.run(fault) == -9, f"{fault} did not come"
    world.add(2)
    assert world.run() == 0
    rows = world.rows()
    assert [row["txid"] for row in rows] == list(range(1, world.files + 1))
    written = [table["rows"] for row in rows for table in row["tables"] if table["state"] == "lines"]
    assert sum(written) == world.appended()
    assert len({row["incarnation"] for row in rows}) == 1 and rows[-1]["epoch"] > rows[0]["epoch"]
    assert len({row["code_id"] for row in rows}) == 1 and len(rows[0]["code_id"]) == 16
    incarnation = rows[0]["incarnation"]
    kept = KeptManifests(GroupContext(Place(world.warehouse), "past", "lines", incarnation))
    assert kept.txids() == [row["txid"] for row in rows]
    for row in rows:
        decision, manifest = kept.decided(row["txid"])
        assert (decision.sha256, manifest.attempt.attempt_id) == (row["manifest_sha256"], row["attempt_id"])
        assert row["begun_at"] <= row["decided_at"] <= row["published_at"]
    versions = [table["version"] for row in rows for table in row["tables"] if table["state"] == "lines"]
    assert versions == sorted(set(versions))
    _commands_tell_it(world, len(rows), rows[2])


def _commands_tell_it(world: World, count: int, third: dict[str, Any]) -> None:
    told = world.command("history", "past", "--last", "0", "--json").splitlines()
    assert [json.loads(line)["txid"] for line in told] == list(range(1, count + 1))
    assert len(world.command("history", "past").splitlines()) == 1 + min(20, count)
    said = world.command("history", "past", "--txid", "3")
    attempt, parent = third["attempt_id"], third["parent_attempt_id"]  # not always the first: a slow one is tried again
    assert f"transaction 3 attempt {attempt}, which builds on 2 attempt {parent}" in said
    assert "from lines: FileSpout" in said
    assert "to counts (keyed)" in said and "5 rows in 1 files" in said
    unknown = world.command("history", "past", "--txid", "999", code=2)
    assert "transaction 999 of past is not recorded, or no longer" in unknown
    assert f"found: transactions of lines: 1 to {count}" in unknown
    assert "has nothing of a topology 'other'" in world.command("history", "other", code=2)
    assert "has no batch group 'x'" in world.command("history", "past", "--group", "x", code=2)


@pytest.mark.long
def test_without_history_there_is_no_table_and_one_manifest(world: World, spark: Any) -> None:
    world.add(3)
    topology = TridentTopology("past")
    lines = topology.new_stream("lines", FileSpout(world.folder / "in", min_rows=5, max_rows=5))
    lines.partition_persist(DeltaAppend("lines"))
    with starter(spark, world.zookeeper, world.root, world.folder, history_retention_txids=0) as start:
        start.run(topology).stop()
    assert not (world.warehouse / TABLE).exists()
    assert len(list((world.warehouse / "_trident/past/lines/manifests").glob("*/*.json"))) == 1
    assert "3  attempt " in world.command("history", "past"), "of the last one the manifest is there"
    world.command("history", "past", "--txid", "1", code=2)
