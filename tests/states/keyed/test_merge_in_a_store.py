"""Native MERGEs of a keyed state whose warehouse is in a store: the same rows, zombies refused, leftovers taken away.

It needs a Spark session for the store: `make stores` runs it in a process that has one (TRIDENT_STORE=s3 or hdfs).
"""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from tests.servers import store_servers
from tests.states.keyed_helpers import Group, as_map, compactor_of, keyed
from trident.coordinators.errors import CommitConflict
from trident.states.core import storage
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.file_merge import MERGE_PROCESS
from trident.states.keyed.reading import read_state

pytestmark = pytest.mark.skipif(store_servers.chosen() == "disk", reason="runs with TRIDENT_STORE=s3 or hdfs")


@pytest.fixture
def group(spark: SparkSession) -> Iterator[Group]:
    base = f"{store_servers.running(store_servers.chosen())}/{uuid.uuid4().hex[:8]}"
    storage.make_folder(base, "/".join(base.split("/")[:3]))
    yield Group(spark, KernelEngine(spark), base, keyed())
    storage.delete(base)


def words(group: Group, *txids: int) -> None:
    for txid in txids:
        group.publish(txid, {"counts": [("the", 2), (f"w{txid}", 1), (None, txid)]})


def plain(group: Group) -> dict[tuple, tuple]:
    frame = group.spark.read.format("delta").load(str(group.warehouse / "counts")).drop("_upto")
    return as_map(group.bindings["counts"], frame)


def engines(group: Group) -> list[str]:
    """Who made each version of the plain table, from the second on."""
    found = []
    for version in range(1, group.engine.load(str(group.warehouse / "counts")).version + 1):
        lines = storage.read(DeltaLog(group.warehouse / "counts").entry(version)).decode().splitlines()
        (info,) = [entry["commitInfo"] for entry in map(json.loads, lines) if "commitInfo" in entry]
        found.append(info["engineInfo"].partition("/")[0])
    return found


def folders(group: Group) -> set[str]:
    return {name for name in storage.list_names(group.warehouse / "counts" / "data" / group.incarnation)}


def test_the_process_beside_merges_and_spark_and_live_reads_find_the_same_rows(group: Group) -> None:
    words(group, 1, 2)
    merging = compactor_of(group)
    assert merging.merge_once(2, force=True) is not None
    words(group, 3, 4)
    merging.merge_once(4, force=True)
    words(group, 5)
    assert engines(group) == ["Trident", "Trident"]
    assert plain(group) == group.expected("counts", 4)
    live = read_state(group.spark, group.warehouse, "counts", txid=5)
    assert as_map(group.bindings["counts"], live) == group.expected("counts", 5)


def test_of_two_that_read_the_same_p_one_is_refused_and_leaves_no_file(group: Group) -> None:
    words(group, 1, 2)
    one, two = compactor_of(group), compactor_of(group)
    planned = one.plan(2)
    assert planned is not None
    two.merge_once(2, force=True)
    with suppress(CommitConflict):  # or it finds that the other one has done it
        one.merge(*planned)
    assert plain(group) == group.expected("counts", 2) and engines(group) == ["Trident"]
    assert len(folders(group)) == 1


def test_a_process_that_is_killed_amid_a_merge_leaves_the_merge_to_spark_and_its_files_go(group: Group) -> None:
    words(group, 1)
    merging = compactor_of(group)
    merging.merge_once(1, force=True)
    words(group, 2)
    pid = MERGE_PROCESS.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    killer.start()
    merging.merge_once(2, force=True)
    killer.join()
    assert plain(group) == group.expected("counts", 2)
    # Files of a MERGE that was killed in the midst of its own: named by a version that is another commit's.
    left = group.warehouse / "counts" / "data" / group.incarnation / "merge-1-dead" / "part-0.parquet"
    storage.make_folder(left.parent, left.root)
    storage.write(left, b"half")
    words(group, 3)
    compactor_of(group).merge_once(3, force=True)
    assert plain(group) == group.expected("counts", 3)
    assert not {name for name in folders(group) if "dead" in name}
