"""A newest log entry that a power cut has torn is set aside; one that is whole never is."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest

from trident.states.core.tables import StagedFile
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.torn_entries import set_aside_torn_entry, set_torn_entries_aside

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
WHOLE = b'{"commitInfo":{"timestamp":1}}\n{"txn":{"appId":"a","version":1}}\n'


def log_of(table: Path, *entries: bytes) -> Path:
    folder = table / "_delta_log"
    folder.mkdir(parents=True)
    for version, entry in enumerate(entries):
        (folder / f"{version:020d}.json").write_bytes(entry)
    return folder


@pytest.mark.parametrize("torn", [b"", WHOLE[:-2], WHOLE[:40], bytes(len(WHOLE)), WHOLE + bytes(10)])
def test_a_torn_one_is_set_aside_and_kept(tmp_path: Path, torn: bytes) -> None:
    folder = log_of(tmp_path, WHOLE, torn)
    aside = set_aside_torn_entry(str(tmp_path))
    assert aside is not None and Path(aside).read_bytes() == torn
    assert sorted(path.name for path in folder.glob("[0-9]*")) == [f"{0:020d}.json"]
    assert set_aside_torn_entry(str(tmp_path)) is None


def test_a_whole_one_stays_and_so_does_all_that_is_older(tmp_path: Path) -> None:
    # Some writers end without a line break; an older entry is nobody's business here.
    blank = WHOLE.replace(b"\n", b"\n\n")
    for table, entries in (("a", [WHOLE]), ("b", [WHOLE[:-1]]), ("c", [b"", WHOLE]), ("d", [blank])):
        folder = log_of(tmp_path / table, *entries)
        assert set_aside_torn_entry(str(tmp_path / table)) is None
        assert len(list(folder.iterdir())) == len(entries)
    assert set_aside_torn_entry(str(tmp_path / "none")) is None
    assert set_aside_torn_entry("s3://bucket/table") is None


def test_several_in_a_row_are_set_aside_and_what_is_whole_is_not_read_again(tmp_path: Path) -> None:
    folder = log_of(tmp_path, WHOLE, WHOLE, b"", WHOLE[:40])
    assert set_torn_entries_aside(str(tmp_path)) == 1
    assert sorted(path.name for path in folder.glob("[0-9]*")) == [f"{version:020d}.json" for version in (0, 1)]
    assert set_torn_entries_aside(str(tmp_path / "none")) is set_torn_entries_aside("s3://bucket/table") is None


def test_after_a_power_cut_the_commit_that_nobody_was_told_of_is_made_again(spark, tmp_path):
    engine, table = KernelEngine(spark), tmp_path / "table"
    snapshot = engine.create_table(str(table), SCHEMA, [], {}, {"d": "{}"}, "test")
    for version in (1, 2, 3):
        staged = [StagedFile(f"data/{version}.parquet", 9, 1, 1, '{"numRecords":1}')]
        control = {"d": json.dumps({"v": version})}
        engine.commit_files(snapshot, staged, ("app", version), control, "test")
        entry = table / "_delta_log" / f"{version:020d}.json"
        whole = entry.read_bytes()
        entry.write_bytes(whole[: (0, len(whole) // 2, -3)[version - 1]])
        again = engine.load(str(table))
        assert (again.version, again.txn_version("app")) == (version - 1, version - 1 or None)
        snapshot = engine.commit_files(again, staged, ("app", version), control, "test")
        assert snapshot.version == version
    found = deltalake.DeltaTable(str(table))
    assert found.version() == 3 and len(found.files() if hasattr(found, "files") else found.file_uris()) == 3
