"""Sizes of tables by their logs: the same as by the list of their files, and of a table that grows little is read."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trident.coordinators.errors import TableError
from trident.states.delta import log_entries, table_totals
from trident.states.delta.kernel_errors import TableMissing
from trident.states.delta.log_tables import LogTables
from trident.states.delta.table_totals import SizedTables, totals_of

SCHEMA = json.dumps({"type": "struct", "fields": []})
METADATA = {"id": "t", "schemaString": SCHEMA, "partitionColumns": [], "configuration": {}}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 7}
PAIRS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "metaData": pa.struct({"id": pa.string(), "schemaString": pa.string(), "configuration": PAIRS}),
        "protocol": pa.struct({"minReaderVersion": pa.int32()}),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "domainMetadata": pa.struct({"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": PAIRS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "stats": pa.string(),
                "deletionVector": pa.struct({"storageType": pa.string()}),
            }
        ),
    }
)


class Log:
    """A table's log, written by hand."""

    def __init__(self, table: Path) -> None:
        self.table, self.folder, self.version = str(table), table / "_delta_log", -1
        self.folder.mkdir(parents=True)
        self.commit({"metaData": METADATA}, {"protocol": PROTOCOL})

    def commit(self, *actions: dict[str, Any]) -> None:
        self.version += 1
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.folder / f"{self.version:020d}.json").write_text(text)

    def checkpoint(self) -> None:
        """Of the newest version; the entries before it go."""
        now = LogTables().load(self.table)
        actions: list[dict[str, Any]] = [{"metaData": METADATA}, {"protocol": PROTOCOL}]
        actions += [{"txn": {"appId": app, "version": version}} for app, version in now.txns.items()]
        actions += [{"domainMetadata": {"domain": d, "configuration": c}} for d, c in now.domains.items()]
        for file in now.files.values():
            vector = {"storageType": "u"} if file.path in now.vectors else None
            actions.append(added(file.path, file.size, file.num_records, vector))
        rows = [dict.fromkeys(CHECKPOINT.names) | action for action in actions]
        pq.write_table(pa.Table.from_pylist(rows, CHECKPOINT), self.folder / f"{self.version:020d}.checkpoint.parquet")
        for version in range(self.version):
            (self.folder / f"{version:020d}.json").unlink(missing_ok=True)


def added(path: str, size: int, rows: int | None, vector: Any = None, **more: Any) -> dict[str, Any]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    body = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "stats": stats}
    return {"add": {**body, "deletionVector": vector, **more}}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


def test_sums_are_those_of_the_files(log: Log) -> None:
    seed = int(os.environ.get("TRIDENT_SEED") or random.randrange(1 << 32))
    print(f"TRIDENT_SEED={seed}")
    chance, sized = random.Random(seed), SizedTables()
    names = [f"{number} %.parquet" for number in range(6)]
    for _ in range(120):
        actions: list[dict[str, Any]] = []
        for name in chance.sample(names, chance.randrange(3)):
            path = name.replace("%", "%25").replace(" ", "%20")
            now = LogTables().load(log.table)
            goes = chance.random() < 0.4 or name in now.vectors
            if goes:
                actions.append({"remove": {"path": path}})
            if chance.random() < 0.7:
                rows = chance.choice([None, 0, 3, 7])
                again = name in now.files and not goes  # by Delta's protocol it adds no rows then, and no vector
                vector = {"storageType": "u"} if chance.random() < 0.1 and not again else None
                actions.append(added(path, chance.randrange(1000), rows, vector, dataChange=not again))
        if chance.random() < 0.3:
            actions.append({"txn": {"appId": "app", "version": chance.randrange(9)}})
        if chance.random() < 0.3:
            removed = chance.random() < 0.3
            actions.append({"domainMetadata": {"domain": "d", "configuration": "c", "removed": removed}})
        log.commit(*(actions or [{"commitInfo": {}}]))
        if chance.random() < 0.1:
            log.checkpoint()
        if chance.random() < 0.6:
            expected = totals_of(LogTables().load(log.table))
            assert SizedTables().load(log.table) == expected
            assert sized.load(log.table) == expected


def test_of_a_table_that_grows_the_new_entries_alone_are_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        log.commit(added(f"{number}.parquet", 10, 2))
    log.checkpoint()
    sized = SizedTables()
    assert sized.load(log.table).files == 20
    read: list[int] = []
    entry = log_entries.read_actions
    monkeypatch.setattr(log_entries, "read_actions", lambda path, version: read.append(version) or entry(path, version))
    monkeypatch.setattr(table_totals, "newest_checkpoint", None)
    assert sized.load(log.table).files == 20 and read == []
    log.commit(added("more.parquet", 10, 2))
    found = sized.load(log.table)
    assert (found.files, found.bytes, found.rows, read) == (21, 210, 42, [log.version])


def test_a_table_that_is_missing_made_anew_or_damaged(log: Log, tmp_path: Path) -> None:
    sized = SizedTables()
    with pytest.raises(TableMissing):
        sized.load(str(tmp_path / "none"))
    log.commit(added("a.parquet", 10, 2))
    assert sized.load(log.table).files == 1
    for file in log.folder.iterdir():
        file.unlink()
    log.version = -1
    log.commit({"metaData": METADATA}, {"protocol": PROTOCOL})
    log.commit(added("b.parquet", 5, None), added("c.parquet", 5, 1))
    found = sized.load(log.table)
    assert (found.files, found.bytes, found.rows) == (2, 10, None)
    log.commit({"add": {"path": "d.parquet"}})
    with pytest.raises(TableError, match="not as Delta's protocol says"):
        sized.load(log.table)
