"""What executors write to users' maps is fenced by coordinator and by transaction (no Spark needed here)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trident.coordinators.errors import StaleEpoch
from trident.coordinators.identities import TransactionAttempt
from trident.states.core.values import OpaqueValue, dumps
from trident.states.maps.backed_map import opaque
from trident.states.maps.sqlite_store import SqliteMap
from trident.states.publishing.user_tasks import KEY, PARTITION, STORED, BatchInfo, PublishTask


@pytest.fixture
def store(tmp_path: Path) -> SqliteMap:
    return SqliteMap(str(tmp_path / "maps.db"), "counts")


def publish(store: SqliteMap, folder: Path, epoch: int, txid: int, value: int) -> None:
    """One task of a decided batch, as an executor runs it."""
    path = folder / f"{epoch}-{txid}.parquet"
    row = {KEY: dumps(("a",)), STORED: dumps(OpaqueValue(txid, value, None, "inc")), PARTITION: 0}
    pq.write_table(pa.Table.from_pylist([row]), path)
    info = BatchInfo(TransactionAttempt(txid, 0), "inc", epoch, {"topology": "t", "group": "g"})
    task = PublishTask(opaque("counts", store), None, ("word",), ("n",), (str(path),), info)
    assert task.publish(str(path)) == 1


def current(store: SqliteMap) -> int:
    return store.multi_get([("a",)])[0].current


def test_a_task_of_an_older_transaction_that_wakes_up_writes_nothing(store: SqliteMap, tmp_path: Path) -> None:
    """Spark gave it up for lost, another try published its transaction, and the next one is published too."""
    publish(store, tmp_path, epoch=1, txid=1, value=1)
    publish(store, tmp_path, epoch=1, txid=2, value=2)
    with pytest.raises(StaleEpoch):
        publish(store, tmp_path, epoch=1, txid=1, value=1)
    assert current(store) == 2


def test_a_task_of_an_older_coordinator_writes_nothing_whatever_its_transaction(store, tmp_path):
    publish(store, tmp_path, epoch=2, txid=5, value=5)
    with pytest.raises(StaleEpoch):
        publish(store, tmp_path, epoch=1, txid=6, value=6)
    assert current(store) == 5


def test_a_transaction_is_put_again_by_another_try_and_by_the_next_coordinator(store, tmp_path):
    for epoch in (1, 1, 2):
        publish(store, tmp_path, epoch, txid=3, value=3)
    assert current(store) == 3
