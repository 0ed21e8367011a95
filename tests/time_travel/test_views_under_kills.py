"""A reader that polls through ``trident.view``, with delta-rs, while the coordinator is killed, sees no mixed moment.

And afterwards any row of any table is explained: by the transaction that wrote it, the attempt and epoch that the log
has, and the numbers that the source had in it. What is expected is computed here from the numbers alone, and read from
Delta's log as JSON.

The short form kills once; ``TRIDENT_VIEWS_SECS=600`` (``make views``) for ten minutes, every few seconds and thirty
times at least; then 10,000 random rows are explained, half of them before OPTIMIZE and half behind it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest

import trident
from tests.time_travel.views_child import ROWS, STREAM, TOPOLOGY
from trident.coordinators.errors import TridentError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long
SECS = float(os.environ.get("TRIDENT_VIEWS_SECS") or 0)
SEED = int(os.environ.get("TRIDENT_SEED") or random.randrange(10**6))
EXPLAINED = 10_000 if SECS else 40
KILLS = 30 if SECS else 1


class Life:
    """One process of the coordinator."""

    def __init__(self, folder: Path, settings: dict[str, Any], number: int, **faults: str) -> None:
        self._log = folder / f"life{number}.log"
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "time_travel" / "views_child.py"), json.dumps(settings)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **faults},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def sums(view: trident.View) -> dict[str, int]:
    """The number of rows that each table stands for, by a reader that knows no Trident."""
    found = {}
    for name in ("often", "seldom", "told", "untold"):
        table = deltalake.DeltaTable(*view.tables[name]).to_pyarrow_table()
        found[name] = sum(table["count"].to_pylist()) if "count" in table.schema.names else table.num_rows
    return found


class Reader:
    """Polls; remembers which transactions it has seen."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse, self.seen, self.looks = warehouse, [0], 0

    def look(self) -> int:
        try:
            view = trident.view(self._warehouse, TOPOLOGY)
        except TridentError as error:
            assert self.seen == [0], error  # once there is a view there always is one
            return 0
        self.looks += 1
        assert sums(view) == dict.fromkeys(("often", "seldom", "told", "untold"), view.txid * ROWS), view
        assert view.txid >= self.seen[-1]
        if view.txid > self.seen[-1]:
            self.seen.append(view.txid)
        return view.txid


def published(table: Path) -> dict[int, tuple[int, int]]:
    """txid → attempt and epoch, by Delta's log."""
    found = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            said = json.loads(line).get("domainMetadata")
            if said and said["domain"] == "trident":
                control = json.loads(said["configuration"])
                found[control["txid"]] = (control["attempt_id"], control["epoch"])
    return found


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory, zk_server: str) -> Path:
    """A run with kills, while a reader polls."""
    print("TRIDENT_SEED =", SEED)
    rng, folder = random.Random(SEED), tmp_path_factory.mktemp("views")
    settings = {"warehouse": str(folder / "w"), "zookeeper": zk_server, "zookeeper_root": f"/views-{SEED}"}
    settings["stop"] = str(folder / "stop")
    reader, lives, end, last = Reader(folder / "w"), 0, time.monotonic() + SECS, False
    while not last:
        last = lives >= KILLS and time.monotonic() >= end
        # The first ones at the moments that matter most: between the MERGEs, the rows of a view, and its file.
        points = ("compact.merge:do_then_die:4", "compact.view:do_then_die:3", "compact.view:do_then_die:4")
        dies = {"TRIDENT_FAULTS": points[lives % 3]} if rng.random() < 0.5 or not lives else {}
        life = Life(folder, settings, lives, **({} if last else dies))
        enough, limit = len(reader.seen) + (2 if last else rng.randint(1, 4)), time.monotonic() + 600
        try:
            while life.process.poll() is None:
                assert time.monotonic() < limit, life.text
                reader.look()
                if len(reader.seen) >= enough and not last:
                    break
                if len(reader.seen) >= enough:
                    Path(settings["stop"]).touch()
        finally:
            life.kill()
        lives += 1
    print(f"{lives} processes, {reader.looks} looks, views of", reader.seen[-5:], f"{len(reader.seen)} in all")
    assert life.process.returncode == 0, life.text
    assert len(reader.seen) > 2, reader.seen
    return folder / "w"


def test_a_stop_brings_the_view_up_to_the_last_transaction(warehouse):
    view = trident.view(warehouse, TOPOLOGY)
    newest = max(published(warehouse / "told"))
    assert view.txid == newest
    assert sums(view) == dict.fromkeys(("often", "seldom", "told", "untold"), newest * ROWS)


def check_rows(warehouse: Path, count: int) -> None:
    """So many random rows of both append tables: explained by what the numbers and the tables' logs say."""
    rng, logs = random.Random(SEED), {name: published(warehouse / name) for name in ("told", "untold")}
    newest = max(logs["told"])
    for _ in range(count):
        value, name = rng.randrange(newest * ROWS), rng.choice(("told", "untold"))
        said = trident.explain_row(warehouse, TOPOLOGY, name, {"value": value})
        (writer,) = said.writers
        txid = value // ROWS + 1
        assert (said.found, said.not_known, writer.txid, writer.rows) == (1, (), txid, 1), said
        assert (writer.attempt_id, writer.epoch) == logs[name][txid]
        assert writer.sources is not None
        metadata = writer.sources[STREAM].metadata
        assert metadata["from"] <= value < metadata["to"], said


def test_every_row_is_explained(warehouse):
    check_rows(warehouse, EXPLAINED // 2)


def test_every_key_is_explained_after_all_merges(warehouse):
    newest = max(published(warehouse / "told"))
    for rest in range(7):
        said = trident.explain_row(warehouse, TOPOLOGY, "seldom", rest)
        writers = {one.txid for one in said.writers}
        # Ten numbers have every rest of seven.
        assert writers == set(range(1, newest + 1)) and said.not_known == (), said


def test_rows_are_explained_after_optimize_and_said_to_be_unknown_after_vacuum(warehouse, spark):
    newest = max(published(warehouse / "told"))
    for name in ("told", "untold"):
        spark.sql(f"OPTIMIZE delta.`{warehouse / name}`")
    for value in (0, ROWS, newest * ROWS - 1):
        for name in ("told", "untold"):
            said = trident.explain_row(warehouse, TOPOLOGY, name, {"value": value})
            assert [one.txid for one in said.writers] == [value // ROWS + 1] and said.not_known == (), said
    check_rows(warehouse, EXPLAINED // 2)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        for name in ("told", "untold"):
            spark.sql(f"VACUUM delta.`{warehouse / name}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    said = trident.explain_row(warehouse, TOPOLOGY, "told", {"value": 0})
    assert [one.txid for one in said.writers] == [1] and said.not_known == ()
    said = trident.explain_row(warehouse, TOPOLOGY, "untold", {"value": 0})
    assert (said.found, said.writers) == (1, ())
    assert "txid_column" in said.not_known[0] and "txid_column" in str(said)
