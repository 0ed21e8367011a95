"""What the commit path must do whatever Spark does: digests, flushes, and whose files are whose; without Spark."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from trident.coordinators.errors import Halted, StagedFileMissing
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import AttemptHistory, FailedAttempt
from trident.coordinators.records import TableMark
from trident.states.core.control import ControlRecord
from trident.states.delta.manifest import CommitAnnotations, Manifest, ManifestStore
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import fsync_folders, staged_file, verify_staged

CONTROL = ControlRecord("top", "g", "inc", 7, 2, "digest", 1, 1)


def manifest(txid: int, incarnation: str = "inc", attempt_id: int = 0) -> Manifest:
    return Manifest("top", "g", incarnation, TransactionAttempt(txid, attempt_id), None, (), {})


@pytest.fixture
def store(tmp_path: Path) -> ManifestStore:
    return ManifestStore(tmp_path, "top", "g", "inc")


@pytest.fixture
def flushed(monkeypatch) -> list[str]:
    """Paths that were flushed, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def recorded(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    return paths


# --- the control record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"txid": 8}, {"attempt_id": 3}, {"digest": "another"}])
def test_a_batch_is_the_same_only_with_its_transaction_its_attempt_and_its_digest(change: dict) -> None:
    """The digest of the manifest: after a restored ZooKeeper, attempt ids come again with other rows."""
    mark = TableMark(4, 7, 2, "digest")
    assert CONTROL.same_batch(mark)
    assert not CONTROL.same_batch(replace(mark, **change))


def test_a_control_record_of_the_next_transaction_says_who_wrote_what(tmp_path: Path) -> None:
    after = CONTROL.after(8, 0, "next", 5)
    assert (after.txid, after.attempt_id, after.digest, after.epoch) == (8, 0, "next", 5)
    assert (after.incarnation, after.starts_at, after.floor) == (CONTROL.incarnation, CONTROL.starts_at, CONTROL.floor)


# --- manifests --------------------------------------------------------------------------------------------


def test_a_manifest_of_the_right_length_with_other_bytes_is_refused(tmp_path: Path, store: ManifestStore) -> None:
    decision = store.write(manifest(3))
    path = tmp_path / decision.manifest
    path.write_bytes(path.read_bytes().replace(b'"inc"', b'"cni"'))
    with pytest.raises(Halted, match="not the one that was decided"):
        store.read(decision)


def test_a_manifest_and_the_folders_that_name_it_are_flushed_before_it_may_be_decided(store, tmp_path, flushed) -> None:
    decision = store.write(manifest(3))
    path = tmp_path / decision.manifest
    assert flushed[0] == str(path)
    assert {str(path.parent), str(path.parent.parent)} <= set(flushed[1:])


def test_manifests_of_another_life_are_not_cleaned_up(tmp_path: Path, store: ManifestStore) -> None:
    later = ManifestStore(tmp_path, "top", "g", "later")
    decided = later.write(manifest(1, "later"))
    store.write(manifest(1))
    store.write(manifest(2))
    assert len(store.clean(5, None)) == 2
    assert later.read(decided) == manifest(1, "later")


def test_manifests_of_the_version_before_are_read_and_cleaned_up_when_they_are_of_this_life(tmp_path, store) -> None:
    folder = tmp_path / "_trident" / "top" / "g" / "manifests"
    decision = store.write(manifest(3))
    (tmp_path / decision.manifest).rename(folder / "3-0.json")
    old = replace(decision, manifest="_trident/top/g/manifests/3-0.json")
    assert store.read(old) == manifest(3)
    (folder / "2-0.json").write_bytes(manifest(2, "another").encode())
    (folder / "1-0.json").write_bytes(b"torn")
    assert [found.attempt.txid for _, found in store.found()] == [2, 3]
    assert [path.name for path in store.clean(3, TransactionAttempt(3, 0))] == ["1-0.json"]
    store.clean(4, TransactionAttempt(4, 0))
    assert [path.name for path in folder.glob("*.json")] == ["2-0.json"]


def test_a_manifest_of_a_version_that_told_nothing_is_read_and_what_is_told_comes_back(store: ManifestStore) -> None:
    old = (
        b'{"attempt":[3,0],"group":"g","incarnation":"inc","parent":null,"schema":1,"spouts":{},"tables":[],'
        b'"topology":"top"}'
    )
    assert manifest(3).encode() == old and Manifest.decode(old) == manifest(3)
    story = AttemptHistory(1.5, (FailedAttempt(0, 2.5, "half a pair: \ud800"),))
    told = replace(manifest(3), told=CommitAnnotations.now(4, "code", story, None))
    assert told.told is not None and told.told.failures[0].error == "half a pair: ?"
    assert Manifest.decode(told.encode()) == told


@pytest.mark.parametrize("keep", [TransactionAttempt(3, 0), None])
def test_only_what_has_advanced_is_cleaned_up_and_the_last_published_stays(store: ManifestStore, keep) -> None:
    for txid in (2, 3, 4):
        store.write(manifest(txid))
    store.clean(3, keep)
    assert [found.attempt.txid for _, found in store.found()] == ([3, 4] if keep else [4])


# --- staged files -----------------------------------------------------------------------------------------


def stage(root: Path):
    target = FileTarget("rows", str(root), "data/inc/1-0-aa", constants={})
    (report,) = write_partition(target, pa.table({"n": [1, 2, 3]}).to_batches())
    return staged_file(report)


@pytest.mark.parametrize("length", [0, -1, +1])
def test_a_staged_file_of_another_length_is_not_published(tmp_path: Path, length: int) -> None:
    file = stage(tmp_path)
    verify_staged(tmp_path, [file])
    path = tmp_path / file.path
    data = path.read_bytes()
    path.write_bytes(data + b"x" if length > 0 else data[: length or None] if length else b"")
    with pytest.raises(StagedFileMissing, match="not the one that was staged"):
        verify_staged(tmp_path, [file])


def test_a_staged_file_is_flushed_with_every_folder_above_it_up_to_the_table(tmp_path: Path, flushed) -> None:
    file = stage(tmp_path)
    path = tmp_path / file.path
    assert str(path) in flushed
    flushed.clear()
    fsync_folders(tmp_path, "data/inc/1-0-aa")
    assert flushed == [str(path.parent), *(str(above) for above in path.parent.parents)][: len(flushed)]
    assert flushed[-1] == str(tmp_path)


def test_of_the_folders_above_a_staged_file_only_the_new_ones_are_flushed_again(tmp_path: Path, flushed) -> None:
    def staged(attempt: str) -> list[str]:
        (tmp_path / "data/inc" / attempt).mkdir(parents=True)
        flushed.clear()
        fsync_folders(tmp_path, f"data/inc/{attempt}")
        return [os.path.relpath(path, tmp_path) for path in flushed]

    assert staged("1-0-aa") == ["data/inc/1-0-aa", "data/inc", "data", "."]
    for folder in (tmp_path / "data", tmp_path):  # older than a tick of the clock
        os.utime(folder, (1, 1))
    assert staged("2-0-bb")[2:] == ["data", "."], "what was flushed when it was new is flushed once more"
    assert staged("3-0-cc") == ["data/inc/3-0-cc", "data/inc"]
    shutil.rmtree(tmp_path / "data/inc")  # as VACUUM removes a folder that is empty
    assert staged("4-0-dd") == ["data/inc/4-0-dd", "data/inc", "data"]


def test_the_folder_of_a_lifes_manifests_is_flushed_when_it_is_new(store: ManifestStore, tmp_path, flushed) -> None:
    manifests = (tmp_path / store.write(manifest(1)).manifest).parents[1]
    os.utime(manifests, (1, 1))
    store.write(manifest(2))
    flushed.clear()
    store.write(manifest(3))
    assert str(manifests) not in flushed and len(flushed) == 2
    ManifestStore(tmp_path, "top", "g", "later").write(replace(manifest(3), incarnation="later"))
    assert str(manifests) in flushed
