"""Which manifests are kept, for how long, and which of them a reader of the past is given; without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trident.coordinators.errors import TableError, TransactionNotKept
from trident.coordinators.identities import TransactionAttempt
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest, ManifestStore, Retention
from trident.states.history.kept import KeptManifests


def manifest(txid: int, attempt_id: int = 0, parent_id: int | None = 0, incarnation: str = "inc") -> Manifest:
    parent = TransactionAttempt(txid - 1, parent_id) if parent_id is not None and txid > 1 else None
    return Manifest(
        "top", "g", incarnation, TransactionAttempt(txid, attempt_id), parent, (), {"s": {"metadata": txid}}
    )


def store(tmp_path: Path, txids: int, secs: float | None = None) -> ManifestStore:
    return ManifestStore(tmp_path, "top", "g", "inc", Retention(txids, secs))


def kept(tmp_path: Path, upto: int | None) -> KeptManifests:
    return KeptManifests(GroupContext(Place(tmp_path), "top", "g", "inc"), upto)


def test_manifests_of_the_last_transactions_are_kept_and_older_ones_go(tmp_path: Path) -> None:
    manifests = store(tmp_path, 3)
    for txid in range(1, 8):
        manifests.write(manifest(txid))
    gone = manifests.clean(6, TransactionAttempt(6, 0))
    assert sorted(path.name for path in gone) == ["1-0.json", "2-0.json", "3-0.json"]
    assert kept(tmp_path, 6).txids() == [4, 5, 6], "transaction 7 has not advanced"
    assert kept(tmp_path, 6).read(5).spouts == {"s": {"metadata": 5}}


def test_with_a_bound_of_time_only_younger_ones_are_kept_and_the_last_published_whatever_its_age(tmp_path) -> None:
    manifests = store(tmp_path, 100, secs=60)
    for txid in range(1, 6):
        path = tmp_path / manifests.write(manifest(txid)).manifest
        written = time.time() - (5 - txid) * 50 - 30
        os.utime(path, (written, written))
    manifests.clean(5, TransactionAttempt(5, 0))
    assert kept(tmp_path, 5).txids() == [5]
    os.utime(tmp_path / "_trident/top/g/manifests/inc/5-0.json", (1, 1))
    manifests.clean(5, TransactionAttempt(5, 0))
    assert kept(tmp_path, 5).txids() == [5]
    manifests.clean(5, None)
    assert kept(tmp_path, 5).txids() == []


def test_of_a_transaction_only_the_attempt_that_was_decided_is_kept(tmp_path: Path) -> None:
    manifests = store(tmp_path, 10)
    for txid, attempt_id in ((1, 0), (2, 9), (2, 10), (3, 0), (4, 0)):
        manifests.write(manifest(txid, attempt_id, 10 if txid == 3 else 0))
    manifests.clean(4, TransactionAttempt(4, 0), empty={3})
    assert kept(tmp_path, 4).txids() == [1, 2, 4], "3 advanced without effect: its manifest was no decision's"
    assert kept(tmp_path, 4).read(2).attempt == TransactionAttempt(2, 10)


def test_what_is_not_cleaned_up_yet_is_told_by_the_transaction_behind_it(tmp_path: Path) -> None:
    manifests = store(tmp_path, 10)
    for txid, attempt_id, parent_id in ((1, 0, None), (2, 0, 0), (3, 0, 1), (4, 0, 0)):
        manifests.write(manifest(txid, attempt_id, parent_id))
    reader = kept(tmp_path, 4)
    with pytest.raises(TransactionNotKept, match="transaction 2 of top/g has no manifest: it changed nothing"):
        reader.read(2)
    assert reader.read(1).attempt == TransactionAttempt(1, 0)


def test_nothing_is_kept_by_default_of_a_store(tmp_path: Path) -> None:
    manifests = ManifestStore(tmp_path, "top", "g", "inc")
    for txid in (1, 2):
        manifests.write(manifest(txid))
    manifests.clean(2, TransactionAttempt(2, 0))
    assert kept(tmp_path, 2).txids() == [2]


def test_the_error_names_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(TransactionNotKept, match="nor of another transaction.*history_retention_txids") as none:
        kept(tmp_path, 9).read(5)
    assert (none.value.txid, none.value.oldest) == (5, None)
    manifests = store(tmp_path, 10)
    for txid in (4, 5, 7):
        manifests.write(manifest(txid, parent_id=None))
    with pytest.raises(TransactionNotKept, match="3 are kept, of transactions 4 to 7.*one of 4, 5, 7") as old:
        kept(tmp_path, 9).read(2)
    assert (old.value.oldest, old.value.newest) == (4, 7)
    with pytest.raises(TransactionNotKept, match="transaction 6 of top/g has no manifest: it changed nothing"):
        kept(tmp_path, 9).read(6)
    with pytest.raises(TransactionNotKept, match="no manifest of transaction 8"):
        kept(tmp_path, 9).read(8)


def test_the_newest_is_not_given_where_nothing_tells_that_it_was_decided(tmp_path: Path) -> None:
    manifests = store(tmp_path, 10)
    for txid in (1, 2):
        manifests.write(manifest(txid))
    assert kept(tmp_path, None).txids() == [1]
    assert kept(tmp_path, 2).txids() == [1, 2]


@pytest.mark.parametrize("damage", [b"{", b"", manifest(2, incarnation="other").encode()])
def test_a_manifest_that_is_not_whole_or_anothers_is_not_given(tmp_path: Path, damage: bytes) -> None:
    manifests = store(tmp_path, 10)
    for txid in (1, 2, 3):
        manifests.write(manifest(txid))
    path = tmp_path / "_trident/top/g/manifests/inc/2-0.json"
    path.write_bytes(damage)
    with pytest.raises(TableError, match="2-0.json of transaction 2 cannot be read"):
        kept(tmp_path, 3).read(2)
    path.unlink()
    with pytest.raises(TransactionNotKept):
        kept(tmp_path, 3).read(2)


def test_a_manifest_that_is_cleaned_up_under_a_reader_is_not_kept(tmp_path: Path) -> None:
    manifests = store(tmp_path, 2)
    for txid in (1, 2, 3):
        manifests.write(manifest(txid))
    reader = kept(tmp_path, 3)
    assert reader.txids() == [1, 2, 3]
    manifests.clean(3, None)
    with pytest.raises(TransactionNotKept, match="kept, of transactions 2 to 3"):
        reader.read(1)
