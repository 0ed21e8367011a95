"""The one reader of Delta's logs: entries and checkpoints of every kind, as ours and other writers leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trident.coordinators.errors import SourceError, TableError
from trident.spouts.delta.log import DeltaChanges
from trident.states.delta.log_entries import last_checkpoint, metadata_at, read_actions

FIELDS = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]
METADATA = {
    "id": "the table",
    "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
    "partitionColumns": ["n"],
    "configuration": {"delta.appendOnly": "true"},
}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v2Checkpoint"]}
UNIQUE = "00000000-0000-0000-0000-000000000001"
ROWS_TYPE = pa.struct([("path", pa.string())])
SCHEMA = pa.schema(
    {
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": pa.map_(pa.string(), pa.string()),
            }
        ),
        "protocol": pa.struct(
            {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(), "readerFeatures": pa.list_(pa.string())}
        ),
        "add": ROWS_TYPE,
        "sidecar": ROWS_TYPE,
    }
)
SAID: dict[str, dict] = {"metaData": METADATA, "protocol": PROTOCOL}
FILE: dict[str, dict] = {"add": {"path": "a.parquet"}}
SIDECAR: dict[str, dict] = {"sidecar": {"path": "b.parquet"}}


class Log:
    """A table's log folder, written by hand."""

    def __init__(self, table: Path) -> None:
        self.table, self.folder = str(table), table / "_delta_log"
        self.folder.mkdir(parents=True)

    def entry(self, version: int, *actions: object) -> None:
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.folder / f"{version:020d}.json").write_text(text)

    def checkpoint(self, version: int, end: str, *actions: dict[str, dict]) -> None:
        file = self.folder / f"{version:020d}.checkpoint{end}"
        if end.endswith(".json"):
            file.write_text("".join(json.dumps(action) + "\n" for action in actions))
            return
        rows = [dict.fromkeys(SCHEMA.names) | action for action in actions]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


KINDS = {
    "whole": {".parquet": [{"protocol": PROTOCOL}, {"metaData": METADATA}, FILE]},
    "in parts": {
        f".{1:010d}.{3:010d}.parquet": [FILE],
        f".{2:010d}.{3:010d}.parquet": [{"metaData": METADATA}],
        f".{3:010d}.{3:010d}.parquet": [{"protocol": PROTOCOL}],
    },
    "V2 in Parquet, with sidecars": {f".{UNIQUE}.parquet": [SIDECAR, {"protocol": PROTOCOL}, {"metaData": METADATA}]},
    "V2 in JSON, with sidecars": {f".{UNIQUE}.json": [SIDECAR, {"protocol": PROTOCOL}, {"metaData": METADATA}]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_and_protocol_are_found_in_every_kind_of_checkpoint_by_states_and_by_sources(log: Log, kind: str):
    for version in (7, 8, 9):
        log.entry(version, {"commitInfo": {"operation": "WRITE"}}, FILE)
    for end, actions in KINDS[kind].items():
        log.checkpoint(7, end, *actions)
    found = metadata_at(log.table, 9)
    assert found == (METADATA, 7, PROTOCOL)
    info = DeltaChanges(log.table).info()
    assert (info.version, info.table_id, info.schema.simpleString()) == (9, "the table", "struct<n:bigint>")


def test_entries_above_a_checkpoint_say_what_is_newer_and_a_checkpoint_without_metadata_says_nothing(log: Log):
    log.entry(5, {"metaData": METADATA | {"id": "older"}}, {"protocol": PROTOCOL})
    log.entry(6, FILE)
    log.checkpoint(6, f".{1:010d}.{2:010d}.parquet", FILE)  # the other part was never written
    log.entry(7, FILE)
    found = metadata_at(log.table, 7)
    assert found is not None and (found.metadata["id"], found.since) == ("older", 5)
    log.entry(8, {"metaData": METADATA})
    found = metadata_at(log.table, 8)
    assert found == (METADATA, 8, None)
    assert metadata_at(log.table, 4) is None, "what is left does not say"


def test_a_table_that_a_catalog_manages_is_refused_as_a_source(log: Log):
    log.checkpoint(4, ".parquet", {"protocol": PROTOCOL | {"readerFeatures": ["catalogManaged"]}, "metaData": METADATA})
    log.entry(4, FILE)
    with pytest.raises(SourceError, match="managed by a catalog"):
        DeltaChanges(log.table).info()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"add": {"path"', "cannot be read"),
        (b'{"commitInfo": {}}\n{"add"', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1, 2]\n", "not as Delta's protocol says"),
    ],
)
def test_an_empty_or_torn_entry_is_an_error_for_states_and_for_sources(log: Log, content: bytes, says: str):
    log.entry(0, SAID)
    (log.folder / f"{1:020d}.json").write_bytes(content)
    with pytest.raises(TableError, match=says):
        read_actions(log.table, 1)
    with pytest.raises(TableError, match=says):
        metadata_at(log.table, 1)
    for read in (lambda: DeltaChanges(log.table).read(1), lambda: DeltaChanges(log.table).info()):
        with pytest.raises(SourceError, match=says):
            read()


@pytest.mark.parametrize("metadata", ["text", {"configuration": 5}, {"configuration": ["a"]}])
def test_metadata_of_another_form_is_an_error(log: Log, metadata: object):
    log.entry(2, {"metaData": metadata})
    with pytest.raises(TableError, match="not as Delta's protocol says"):
        metadata_at(log.table, 2)


@pytest.mark.parametrize("end", [".parquet", f".{UNIQUE}.json"])
def test_a_damaged_checkpoint_is_an_error(log: Log, end: str):
    log.entry(3, FILE)
    (log.folder / f"{3:020d}.checkpoint{end}").write_bytes(b"PAR1 torn")
    with pytest.raises(TableError, match="checkpoint 0+3.* cannot be read"):
        metadata_at(log.table, 3)
    with pytest.raises(SourceError, match="checkpoint 0+3.* cannot be read"):
        DeltaChanges(log.table).info()


def test_an_entry_that_is_gone_is_named(log: Log):
    log.entry(3, FILE)
    log.entry(4, FILE)
    with pytest.raises(TableError, match="no entry for version 2"):
        read_actions(log.table, 2)
    with pytest.raises(SourceError, match="no entry for version 2: its schema is not known"):
        DeltaChanges(log.table).info()
    log.entry(0, FILE), log.entry(1, FILE), log.entry(2, FILE)
    with pytest.raises(SourceError, match="a log without metadata"):
        DeltaChanges(log.table).info()


def test_the_pointer_to_the_last_checkpoint(log: Log):
    assert last_checkpoint(log.table) is None and DeltaChanges(log.table).checkpointed() == -1
    pointer = log.folder / "_last_checkpoint"
    pointer.write_text('{"version": 12, "size": 3, "parts": 2}')
    assert last_checkpoint(log.table) == {"version": 12, "size": 3, "parts": 2}
    assert DeltaChanges(log.table).checkpointed() == 12
    for torn in ("", "[1]", '{"version"', '"x"'):
        pointer.write_text(torn)
        assert DeltaChanges(log.table).checkpointed() == -1
        with pytest.raises(ValueError):
            last_checkpoint(log.table)
