"""A reader that polls through ``trident.view``, with delta-rs, while the coordinator is killed, sees no mixed moment.

And afterwards any row of any table is explained: by the transaction that wrote it, the attempt and epoch that the log
has, and the numbers that the source had in it. What is expected is computed here from the numbers alone, and read from
Delta's log as JSON.

The short form kills once; ``TRIDENT_VIEWS_SECS=600`` (``make views``) for ten minutes, thirty times at least; then
10,000 random rows are explained, half of them before OPTIMIZE and half behind it.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest

import trident
from tests.chaos.checker import Reader
from tests.chaos.deployment import ENDLESS, TOPOLOGY, Deployment
from tests.chaos.sources import Words
from tests.chaos.workload import Group

pytestmark = pytest.mark.long
SECS = float(os.environ.get("TRIDENT_VIEWS_SECS") or 0)
SEED = int(os.environ.get("TRIDENT_SEED") or random.randrange(10**6))
EXPLAINED = 10_000 if SECS else 40
KILLS = int(SECS // 20) or 1
KEYS, ROWS = 7, 10
# All of the past is kept, however long it runs: each row is explained in the end.
KEPT = 10**6
GROUP = Group("views", "", "", KEYS, ROWS, {"often": 2, "seldom": 5}, 3600.0, KEPT)
CONF = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"}
TABLES = ("often", "seldom", "told", "audit")
# Between the MERGEs, the rows of a view, and its file: the moments that matter most.
POINTS = ("compact.merge:do_then_die:4", "compact.view:do_then_die:3", "compact.view:do_then_die:4")


def look(reader: Reader) -> None:
    found = reader.look()
    assert found == (dict.fromkeys(TABLES, reader.seen[-1] * ROWS) if found else {})


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
    rng, folder = random.Random(SEED), tmp_path_factory.mktemp("views") / "d"
    settings, end = {"history_retention_txids": KEPT}, time.monotonic() + SECS
    with Deployment(folder, [GROUP], ["a"], zookeeper=zk_server, conf=CONF, settings=settings) as deployment:
        deployment.books[0].group.source.write("ready_to", ENDLESS)
        reader = deployment.reader()
        while deployment.lives < KILLS or time.monotonic() < end:
            dies = rng.random() < 0.5 or not deployment.lives
            one = deployment.start("a", POINTS[deployment.lives % 3] if dies else "")
            enough = len(reader.seen) + rng.randint(1, 4)
            deployment.wait(lambda: look(reader) or one.died() or len(reader.seen) >= enough, "no view comes", 600)  # noqa: B023
            one.kill()
        one, enough = deployment.start("a"), len(reader.seen) + 2
        deployment.wait(lambda: look(reader) or len(reader.seen) >= enough, "no view comes", 600)
        deployment.finish()
        one.end()
        deployment.check()
        print(f"{deployment.lives} processes, {reader.looks} looks at {len(reader.seen) - 1} views")
    return Path(deployment.url)


def test_a_stop_brings_the_view_up_to_the_last_transaction(warehouse):
    view = trident.view(warehouse, TOPOLOGY)
    newest = max(published(warehouse / "told"))
    assert view.txid == newest
    look(Reader(warehouse, TOPOLOGY, "words"))


def check_rows(warehouse: Path, count: int) -> None:
    """So many random rows of both append tables: explained by what the numbers and the tables' logs say."""
    rng, logs = random.Random(SEED), {name: published(warehouse / name) for name in ("told", "audit")}
    newest = max(logs["told"])
    for _ in range(count):
        value, name = rng.randrange(newest * ROWS), rng.choice(("told", "audit"))
        said = trident.explain_row(warehouse, TOPOLOGY, name, {"word": Words(KEYS)[value]})
        (writer,) = said.writers
        txid = value // ROWS + 1
        assert (said.found, said.not_known, writer.txid, writer.rows) == (1, (), txid, 1), said
        assert (writer.attempt_id, writer.epoch) == logs[name][txid]
        assert writer.sources is not None
        metadata = writer.sources["words"].metadata
        assert metadata["from"] <= value < metadata["to"], said


def test_every_row_is_explained(warehouse):
    check_rows(warehouse, EXPLAINED // 2)


def test_every_key_is_explained_after_all_merges(warehouse):
    newest = max(published(warehouse / "told"))
    for rest in range(7):
        said = trident.explain_row(warehouse, TOPOLOGY, "seldom", f"k{rest}")
        writers = {one.txid for one in said.writers}
        # Ten numbers have every rest of seven.
        assert writers == set(range(1, newest + 1)) and said.not_known == (), said


def test_rows_are_explained_after_optimize_and_said_to_be_unknown_after_vacuum(warehouse, spark):
    newest = max(published(warehouse / "told"))
    for name in ("told", "audit"):
        spark.sql(f"OPTIMIZE delta.`{warehouse / name}`")
    for value in (0, ROWS, newest * ROWS - 1):
        for name in ("told", "audit"):
            said = trident.explain_row(warehouse, TOPOLOGY, name, {"word": Words(KEYS)[value]})
            assert [one.txid for one in said.writers] == [value // ROWS + 1] and said.not_known == (), said
    check_rows(warehouse, EXPLAINED // 2)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        for name in ("told", "audit"):
            spark.sql(f"VACUUM delta.`{warehouse / name}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    said = trident.explain_row(warehouse, TOPOLOGY, "told", {"word": Words(KEYS)[0]})
    assert [one.txid for one in said.writers] == [1] and said.not_known == ()
    said = trident.explain_row(warehouse, TOPOLOGY, "audit", {"word": Words(KEYS)[0]})
    assert (said.found, said.writers) == (1, ())
    assert "txid_column" in said.not_known[0] and "txid_column" in str(said)
