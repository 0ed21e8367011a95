"""The one reader of Delta's logs: entries and checkpoints of every kind, tables at a version, sums of many files."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from trident.coordinators.errors import SourceError, TableError
from trident.spouts.delta.log import DeltaChanges
from trident.states.core.descriptor import StateDescriptor
from trident.states.delta.delta_log import DeltaLog, LogTables, Segment, SizedTables, TableMissing, totals_of
from trident.states.keyed.tables import plain_as_of
from trident.udf.types import as_schema

METADATA = {
    "id": "the table",
    "schemaString": as_schema("n long", "the tests").json(),
    "partitionColumns": ["n"],
    "configuration": {"delta.appendOnly": "true"},
}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v2Checkpoint"]}
UNIQUE = "00000000-0000-0000-0000-000000000001"
SCHEMA = to_arrow_schema(
    as_schema(
        "metaData struct<id: string, schemaString: string, partitionColumns: array<string>, "
        "configuration: map<string, string>>, "
        "protocol struct<minReaderVersion: int, minWriterVersion: int, readerFeatures: array<string>>, "
        "txn struct<appId: string, version: bigint>, "
        "domainMetadata struct<domain: string, configuration: string, removed: boolean>, "
        "add struct<path: string, partitionValues: map<string, string>, size: bigint, modificationTime: bigint, "
        "stats: string, deletionVector: struct<storageType: string>>, "
        "sidecar struct<path: string>",
        "the tests",
    )
)


def added(path: str, size: int = 10, rows: int | None = 2, vector: Any = None, **more: Any) -> dict[str, Any]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    body = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "stats": stats}
    return {"add": {**body, "deletionVector": vector, **more}}


SAID: list[dict[str, Any]] = [{"protocol": PROTOCOL}, {"metaData": METADATA}]
FILE = added("a.parquet")
SIDECAR: dict[str, Any] = {"sidecar": {"path": "b.parquet"}}


class Log:
    """A table's log folder, written by hand."""

    def __init__(self, table: Path) -> None:
        self.table, self.folder, self.version = str(table), table / "_delta_log", -1
        self.folder.mkdir(parents=True)

    def entry(self, version: int, *actions: object) -> None:
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.folder / f"{version:020d}.json").write_text(text)

    def commit(self, *actions: object) -> None:
        self.version += 1
        self.entry(self.version, *actions)

    def checkpoint(self, version: int, end: str, *actions: dict[str, Any]) -> None:
        file = self.folder / (end if end.startswith("_") else f"{version:020d}.checkpoint{end}")
        file.parent.mkdir(exist_ok=True)
        if end.endswith(".json"):
            file.write_text("".join(json.dumps(action) + "\n" for action in actions))
            return
        rows = [dict.fromkeys(SCHEMA.names) | action for action in actions]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)

    def checkpointed(self) -> None:
        """A checkpoint of the newest version; the entries before it go."""
        now = DeltaLog(self.table).at()
        actions = [*SAID]
        actions += [{"txn": {"appId": app, "version": version}} for app, version in now.txns.items()]
        actions += [{"domainMetadata": {"domain": d, "configuration": c}} for d, c in now.domains.items()]
        for file in now.files.values():
            vector = {"storageType": "u"} if file.has_vector else None
            actions.append(added(file.path.replace("%", "%25"), file.size, file.num_records, vector))
        self.checkpoint(self.version, ".parquet", *actions)
        for version in range(self.version):
            (self.folder / f"{version:020d}.json").unlink(missing_ok=True)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


@pytest.fixture
def table(log: Log) -> Log:
    """With one commit, that makes it."""
    log.commit(*SAID)
    return log


# --- entries and checkpoints ------------------------------------------------------------------------

KINDS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "whole": {".parquet": [*SAID, FILE]},
    "in parts": {
        f".{1:010d}.{3:010d}.parquet": [FILE],
        f".{2:010d}.{3:010d}.parquet": SAID[1:],
        f".{3:010d}.{3:010d}.parquet": SAID[:1],
    },
    "V2 in Parquet, with sidecars": {f".{UNIQUE}.parquet": [SIDECAR, *SAID], "_sidecars/b.parquet": [FILE]},
    "V2 in JSON, with sidecars": {f".{UNIQUE}.json": [SIDECAR, *SAID], "_sidecars/b.parquet": [FILE]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_found_in_every_kind_of_checkpoint_by_states_and_by_sources(log: Log, kind: str) -> None:
    for version in (7, 8, 9):
        log.entry(version, {"commitInfo": {"operation": "WRITE"}}, added(f"{version}.parquet"))
    for end, actions in KINDS[kind].items():
        log.checkpoint(7, end, *actions)
    assert DeltaLog(log.table).described(9) == (METADATA, 7, PROTOCOL)
    found = DeltaLog(log.table).at()
    assert (found.version, found.metadata, found.protocol) == (9, METADATA, PROTOCOL)
    assert list(found.files) == ["a.parquet", "8.parquet", "9.parquet"]
    info = DeltaChanges(log.table).info()
    assert (info.version, info.table_id, info.schema.simpleString()) == (9, "the table", "struct<n:bigint>")


def test_entries_above_a_checkpoint_say_what_is_newer_and_one_that_is_not_whole_says_nothing(log: Log) -> None:
    log.entry(5, {"metaData": METADATA | {"id": "older"}}, {"protocol": PROTOCOL})
    log.entry(6, FILE)
    log.checkpoint(6, f".{1:010d}.{2:010d}.parquet", FILE)  # the other part was never written
    log.entry(7, FILE)
    found = DeltaLog(log.table).described(7)
    assert found is not None and (found.metadata["id"], found.since) == ("older", 5)
    log.entry(8, SAID[1])
    assert DeltaLog(log.table).described(8) == (METADATA, 8, None)
    assert DeltaLog(log.table).described(4) is None, "what is left does not say"
    with pytest.raises(TableError, match="no entry for version 0"):
        DeltaLog(log.table).at(8)


def test_a_table_that_a_catalog_manages_is_refused_as_a_source(log: Log) -> None:
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
        (b'{"add": {"path": "d.parquet"}}\n', "not as Delta's protocol says"),
        (b'{"domainMetadata": {"domain": "d", "configuration": {}}}\n', "not as Delta's protocol says"),
        (b'{"metaData": "text"}\n', "not as Delta's protocol says"),
        (b'{"metaData": {"configuration": 5}}\n', "not as Delta's protocol says"),
        (b'{"metaData": {"configuration": ["a"]}}\n', "not as Delta's protocol says"),
    ],
)
def test_an_empty_torn_or_strange_entry_is_an_error_for_states_and_for_sources(table, content, says):
    tables, sized, read = LogTables(), SizedTables(), DeltaLog(table.table)
    tables.load(table.table), sized.load(table.table)
    (table.folder / f"{1:020d}.json").write_bytes(content)
    for call in (read.commit, read.described, read.at):
        with pytest.raises(TableError, match=says):
            call(1)
    for remembering in (tables, sized):
        with pytest.raises(TableError, match=says):
            remembering.load(table.table)
    changes = DeltaChanges(table.table)
    for source in (lambda: changes.read(1), lambda: changes.info()):
        with pytest.raises(SourceError, match=says):
            source()


@pytest.mark.parametrize("end", [".parquet", f".{UNIQUE}.json"])
def test_a_damaged_checkpoint_is_an_error(log: Log, end: str) -> None:
    log.entry(3, FILE)
    (log.folder / f"{3:020d}.checkpoint{end}").write_bytes(b"PAR1 torn")
    for call in (DeltaLog(log.table).described, DeltaLog(log.table).at):
        with pytest.raises(TableError, match="checkpoint 0+3.* cannot be read"):
            call(3)
    with pytest.raises(SourceError, match="checkpoint 0+3.* cannot be read"):
        DeltaChanges(log.table).info()


def test_an_entry_that_is_gone_is_named(log: Log) -> None:
    log.entry(3, FILE)
    log.entry(4, FILE)
    with pytest.raises(TableError, match="no entry for version 2"):
        DeltaLog(log.table).commit(2)
    assert [commit.version for commit in DeltaLog(log.table).commits_backwards()] == [4, 3]
    with pytest.raises(SourceError, match="no entry for version 2: its schema is not known"):
        DeltaChanges(log.table).info()
    log.entry(0, FILE), log.entry(1, FILE), log.entry(2, FILE)
    with pytest.raises(SourceError, match="a log without metadata"):
        DeltaChanges(log.table).info()


def test_the_pointer_to_the_last_checkpoint(log: Log) -> None:
    read, changes = DeltaLog(log.table), DeltaChanges(log.table)
    assert read.last_checkpoint() is None and changes.checkpointed() == -1
    pointer = log.folder / "_last_checkpoint"
    pointer.write_text('{"version": 12, "size": 3, "parts": 2}')
    assert read.last_checkpoint() == {"version": 12, "size": 3, "parts": 2} and changes.checkpointed() == 12
    for torn in ("", "[1]", '{"version"', '"x"'):
        pointer.write_text(torn)
        assert changes.checkpointed() == -1
        with pytest.raises(ValueError):
            read.last_checkpoint()


# --- tables that are remembered, and sums -----------------------------------------------------------


def test_what_is_remembered_is_what_the_whole_log_says(table: Log) -> None:
    seed = int(os.environ.get("TRIDENT_SEED") or random.randrange(1 << 32))
    print(f"TRIDENT_SEED={seed}")
    chance, tables, sized = random.Random(seed), LogTables(), SizedTables()
    names = [f"{number} %.parquet" for number in range(6)]
    for _ in range(120):
        actions: list[dict[str, Any]] = []
        for name in chance.sample(names, chance.randrange(3)):
            path = name.replace("%", "%25").replace(" ", "%20")
            there = DeltaLog(table.table).at().files.get(name)
            goes = chance.random() < 0.4 or (there is not None and there.has_vector)
            if goes:
                actions.append({"remove": {"path": path}})
            if chance.random() < 0.7:
                rows = chance.choice([None, 0, 3, 7])
                again = there is not None and not goes  # by Delta's protocol it adds no rows then, and no vector
                vector = {"storageType": "u"} if chance.random() < 0.1 and not again else None
                actions.append(added(path, chance.randrange(1000), rows, vector, dataChange=not again))
        if chance.random() < 0.3:
            actions.append({"txn": {"appId": "app", "version": chance.randrange(9)}})
        if chance.random() < 0.3:
            removed = chance.random() < 0.3
            actions.append({"domainMetadata": {"domain": "d", "configuration": "c", "removed": removed}})
        table.commit(*(actions or [{"commitInfo": {}}]))
        if chance.random() < 0.1:
            table.checkpointed()
        if chance.random() < 0.6:
            expected = DeltaLog(table.table).at()
            assert tables.load(table.table) == expected
            assert sized.load(table.table) == SizedTables().load(table.table) == totals_of(expected)


def test_of_a_table_that_grows_the_new_entries_alone_are_read(table: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        table.commit(added(f"{number}.parquet"))
    table.checkpointed()
    tables, sized = LogTables(), SizedTables()
    assert sized.load(table.table).files == len(tables.load(table.table).files) == 20
    read: list[int] = []
    entry = DeltaLog.actions
    monkeypatch.setattr(DeltaLog, "actions", lambda log, version: read.append(version) or entry(log, version))
    monkeypatch.setattr(Segment, "checkpoint", None)
    assert sized.load(table.table).files == len(tables.load(table.table).files) == 20 and read == []
    table.commit(added("more.parquet"))
    found = sized.load(table.table)
    assert (found.files, found.bytes, found.rows, read) == (21, 210, 42, [table.version])
    assert list(tables.load(table.table).files)[-1] == "more.parquet" and read == [table.version] * 2


def test_a_version_whose_checkpoint_was_cleaned_up_is_not_kept_though_its_entry_is(table: Log) -> None:
    state = StateDescriptor("s", "keyed", "t", "g", "i", ("k",), ("n",), "{}", "count")
    merges = [[{"txn": {"appId": state.merge_app, "version": upto}}, added(f"{upto}.parquet")] for upto in range(1, 4)]
    for merge in merges:
        table.commit(*merge)
    plain = LogTables().load(table.table)
    before = plain_as_of(state, plain, 2)
    assert before is not None and (before.version, before.txn_version(state.merge_app)) == (2, 2)
    table.checkpointed()
    table.entry(2, *merges[1])
    assert plain_as_of(state, plain, 2) is None and plain_as_of(state, plain, 3) is plain


def test_a_table_that_is_missing_or_made_anew(table: Log, tmp_path: Path) -> None:
    tables, sized = LogTables(), SizedTables()
    for remembering in (tables, sized):
        with pytest.raises(TableMissing):
            remembering.load(str(tmp_path / "none"))
    table.commit(FILE)
    assert sized.load(table.table).files == len(tables.load(table.table).files) == 1
    for file in table.folder.iterdir():
        file.unlink()
    table.version = -1
    table.commit(*SAID)
    table.commit(added("b.parquet", 5, None), added("c.parquet", 5, 1))
    found = sized.load(table.table)
    assert (found.files, found.bytes, found.rows) == (2, 10, None)
    assert list(tables.load(table.table).files) == ["b.parquet", "c.parquet"]
