"""A Delta table in a store as a source: its rows, and its changes, by the connector of the session (`make stores`)."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest

from tests.programs import python
from tests.servers import store_servers
from trident.states.core import storage

ROOT = Path(__file__).resolve().parents[3]
KINDS = ["s3", "hdfs"] if os.environ.get("TRIDENT_STORES") == "all" else []

READ = """
import json, sys
from pathlib import Path
from trident.coordinators.identities import TransactionAttempt
from trident.spark import stores
from trident.spark.session import make_session
from trident.spouts.contracts import SpoutContext
from trident.spouts.delta.spout import DeltaSpout
table, conf, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
spark = make_session("source", {"spark.master": "local[1]", "spark.driver.memory": "700m", **conf})
feed = "delta.enableChangeDataFeed"
spark.sql(f"CREATE TABLE delta.`{table}` (n bigint) USING delta TBLPROPERTIES ({feed} = true)")
found = {}
for changes in (False, True):
    spout = DeltaSpout(table, changes=changes, starting_version=1)
    context = SpoutContext(spark, "t", f"rows{changes}", folder, "life")
    coordinator, emitter = spout.get_coordinator(context), spout.get_emitter(context)
    before = None
    if not changes:
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (1), (2)")
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (3)")
    coordinator.refresh()
    for txid in range(1, 9):
        if not coordinator.is_ready(txid):
            break
        before = coordinator.initialize_transaction(txid, before, None)
        emitted = emitter.emit_batch(TransactionAttempt(txid, 0), json.loads(json.dumps(before)))
        found.setdefault(str(changes), []).extend(row.n for row in emitted.data.collect())
print(json.dumps({name: sorted(rows) for name, rows in found.items()}))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_and_the_changes_of_a_table_in_a_store_come_once(kind: str, tmp_path: Path) -> None:
    base = store_servers.running(kind)
    table = f"{base}/{uuid.uuid4().hex[:8]}/t"
    settings = store_servers.spark_settings(table)
    given = {key: value for key, value in settings.items() if not key.endswith(".key")}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = python("-c", READ, table, json.dumps(given), tmp_path, timeout_secs=500, **keys)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"False": [1, 2, 3], "True": [1, 2, 3]}
    storage.delete(table)
