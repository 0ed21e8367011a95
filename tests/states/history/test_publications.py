"""A lost manifest, and one that was never decided, are told from transactions that changed nothing: by the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.states.group_helpers import Group, append_binding
from trident.coordinators.errors import TransactionNotKept
from trident.coordinators.identities import TransactionAttempt
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import ALL_KEPT
from trident.states.history.kept import KeptManifests


@pytest.fixture
def group(spark, tmp_path: Path) -> Group:
    return Group(KernelEngine(spark), tmp_path, [append_binding()], retention=ALL_KEPT).open()


def kept(group: Group) -> KeptManifests:
    return KeptManifests(group.of)


def manifest_of(group: Group, txid: int, attempt_id: int = 0) -> Path:
    return group.warehouse / "_trident" / "top" / "g" / "manifests" / "inc" / f"{txid}-{attempt_id}.json"


def test_a_manifest_that_is_lost_is_not_taken_for_a_transaction_that_changed_nothing(group: Group) -> None:
    for txid in (1, 2, 3, 6, 8):
        group.commit(txid, [f"word{txid}"])
    reader = kept(group)
    assert reader.txids() == [1, 2, 3, 6, 8]
    found = [reader.read_if_any(txid) for txid in range(1, 9)]
    assert [each.attempt.txid for each in found if each is not None] == [1, 2, 3, 6, 8]
    with pytest.raises(TransactionNotKept, match="transaction 5 of top/g has no manifest: it changed nothing"):
        reader.read(5)
    assert reader.read_if_any(10, upto=10) is None
    with pytest.raises(TransactionNotKept, match="no manifest of transaction 10"):
        reader.read_if_any(10)
    for lost in (6, 2):
        manifest_of(group, lost).unlink()
    reader = kept(group)
    for txid, lost in ((2, 2), (5, 6), (6, 6), (7, 6)):
        for read in (reader.read, reader.read_if_any):
            with pytest.raises(
                TransactionNotKept, match=f"the manifest of transaction {lost} of top/g is lost"
            ) as hole:
                read(txid)
            assert (hole.value.txid, hole.value.oldest, hole.value.newest) == (lost, 1, 8)
    assert reader.read_if_any(3) is not None


def test_a_lost_manifest_behind_the_newest_that_is_kept_is_told_too(group: Group) -> None:
    for txid in (1, 2, 3):
        group.commit(txid, ["word"])
    manifest_of(group, 3).unlink()
    with pytest.raises(TransactionNotKept, match="the manifest of transaction 3 of top/g is lost"):
        kept(group).read_if_any(4, upto=4)


def test_a_manifest_that_was_not_decided_is_not_given_though_no_later_transaction_says_so(group: Group) -> None:
    """Attempt 0 was prepared and never decided, attempt 1 had no rows; the process was killed before it cleaned up."""
    group.commit(1, ["one"])
    group.prepare(TransactionAttempt(2, 0), ["never"])
    group.commit(4, ["four"])
    reader = kept(group)
    assert reader.read_if_any(2) is None
    with pytest.raises(TransactionNotKept, match="transaction 2 of top/g has no manifest: it changed nothing"):
        reader.read(2)
    assert reader.read_if_any(3) is None and reader.read(4).attempt == TransactionAttempt(4, 0)


def test_of_two_manifests_that_of_the_attempt_which_the_tables_have_is_given(group: Group) -> None:
    group.commit(1, ["one"])
    group.commit(2, ["two"])
    group.prepare(TransactionAttempt(2, 5), ["never"])
    group.commit(4, ["four"])
    assert kept(group).read(2).attempt == TransactionAttempt(2, 0)


def test_where_no_table_can_tell_a_transaction_without_manifest_is_refused(group: Group) -> None:
    for txid in (1, 2, 4):
        group.commit(txid, ["word"])
    log = group.warehouse / "rows" / "_delta_log"
    newest = max(log.glob("*.json"))
    for entry in log.glob("*.json"):
        if entry != newest:
            entry.unlink()
    with pytest.raises(TransactionNotKept, match="nothing tells whether transaction 3 of top/g changed nothing.*rows"):
        kept(group).read_if_any(3)
