"""The versions of a group's tables as of a transaction: over rollbacks, log drops, cleaned logs and MERGEs."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from trident.coordinators.errors import ForeignTable, TableError
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.history import find_version_by_control, find_version_by_txn
from trident.states.history.kept import group_as_of, plain_as_of, published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable

SEED = int(os.environ.get("TRIDENT_SEED") or random.randrange(10**6))
OWNER = ("top", "g", "inc1")
SCHEMA = '{"type":"struct","fields":[{"name":"line","type":"string","nullable":true,"metadata":{}}]}'
KEYED = StateDescriptor("counts", "keyed", *OWNER, ("word",), ("count",), SCHEMA.replace("line", "word"), "count")
APPEND = StateDescriptor("lines", "append", *OWNER, (), ("line",), SCHEMA)


def record(txid: int, epoch: int = 1, floor: int = 0, starts_at: int = 1, incarnation: str = "inc1") -> ControlRecord:
    return ControlRecord("top", "g", incarnation, txid, txid, f"d{txid}", epoch, starts_at, floor)


def entry(table: Path, version: int, control: ControlRecord | None = None, **txns: int) -> None:
    """A log entry, by Delta's protocol."""
    actions: list[dict] = [{"commitInfo": {"operation": "WRITE"}}]
    if control is not None:
        said = {"domain": DOMAIN, "configuration": control.encode(), "removed": False}
        actions.append({"domainMetadata": said})
    actions += [{"txn": {"appId": app, "version": txid}} for app, txid in txns.items()]
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def published_with_rollbacks(rng: random.Random, table: Path) -> list[int]:
    """A log with restarts, drops, OPTIMIZE and rollbacks; returns the txid that each version has."""
    txid, epoch, floor, has = 0, 1, 0, []
    for version in range(rng.randint(1, 120)):
        did = rng.choices(("publish", "other", "drop", "restart", "rollback"), (12, 3, 2, 2, 1))[0]
        if did == "restart":
            epoch += 1
        if did in ("publish", "restart") or version == 0:
            txid += rng.randint(1, 3) if version else 0
        elif did == "drop":
            floor = max(floor, txid - 5)
        elif did == "rollback":
            txid, epoch = rng.randint(min(floor, txid), txid), epoch + 1
        entry(table, version, None if did == "other" and version else record(txid, epoch, floor))
        has.append(txid)
    return has


def test_of_each_transaction_the_newest_version_is_found(tmp_path):
    print("TRIDENT_SEED =", SEED)
    for seed in range(SEED, SEED + 10):
        table = tmp_path / str(seed)
        has = published_with_rollbacks(random.Random(seed), table)
        for txid in range(max(has) + 2):
            # Between a rollback and the transactions before it the newest version counts, which was not taken back.
            expected = max(version for version, its in enumerate(has) if its <= txid)
            found = published_as_of(Place(table), *OWNER, txid)
            assert (found.version, found.control.txid) == (expected, has[expected]), (seed, txid)


def test_a_plain_table_is_found_by_its_merges_of_every_generation(tmp_path):
    print("TRIDENT_SEED =", SEED)
    for seed in range(SEED, SEED + 10):
        rng, warehouse = random.Random(seed), tmp_path / str(seed)
        merged, generation, has = 0, 0, []
        for version in range(rng.randint(1, 60)):
            did = rng.choices(("merge", "other", "rollback"), (6, 2, 1))[0] if version else "other"
            merged = rng.randint(0, merged) if did == "rollback" else merged + rng.randint(1, 5) * (did == "merge")
            generation += did == "rollback"
            app = KEYED.merge_app_at_first + (f"/{generation}" if generation else "")
            entry(warehouse / "counts", version, **({} if did == "other" else {app: merged}))
            has.append(merged)
        for txid in range(max(has) + 2):
            expected = max(version for version, its in enumerate(has) if its <= txid)
            found = plain_as_of(Place(warehouse), KEYED, txid)
            assert found is not None and (found.version, found.merged) == (expected, has[expected]), (seed, txid)


def test_few_entries_are_read_of_a_long_log(tmp_path, monkeypatch):
    table = tmp_path / "t"
    for version in range(3000):
        entry(table, version, record(version, epoch=1 + version // 700))
    read: list[int] = []
    commit = DeltaLog.commit
    monkeypatch.setattr(DeltaLog, "commit", lambda log, at: read.append(at) or commit(log, at))
    assert published_as_of(Place(table), *OWNER, 2990).version == 2990
    assert len(read) < 40
    assert published_as_of(Place(table), *OWNER, 17).version == 17
    assert len(read) < 150
    before = len(read)
    assert find_version_by_control(str(table), DOMAIN, 17) == 17
    assert len(read) == before, "an entry is read once"


def test_below_a_hole_in_a_log_nothing_is_guessed(tmp_path):
    for version in range(30):
        entry(tmp_path / "t", version, record(version))
    for version in (*range(10), *range(11, 20)):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    path = str(tmp_path / "t")
    assert find_version_by_control(path, DOMAIN, 25) == 25
    # Version 10 is left over below the hole; it cannot be read as a table version any more.
    assert find_version_by_control(path, DOMAIN, 10) is None
    assert find_version_by_txn(path, "other", 5) is None


def test_a_log_that_was_cleaned_says_from_where_on_it_goes(tmp_path):
    table = tmp_path / "t"
    for version in range(30):
        entry(table, version, record(version))
    for version in range(12):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SnapshotUnavailable) as nothing:  # no checkpoint: the entries alone say nothing
        published_as_of(Place(table), *OWNER, 20)
    assert nothing.value.available is None
    (table / "_delta_log" / f"{20:020d}.checkpoint.parquet").write_bytes(b"PAR1")
    assert published_as_of(Place(table), *OWNER, 20).version == 20
    with pytest.raises(SnapshotUnavailable) as kept:
        published_as_of(Place(table), *OWNER, 19)
    assert kept.value.available == 20
    assert "transaction 19" in str(kept.value) and "transaction 20" in str(kept.value)


def test_a_table_of_another_life_or_none_is_refused(tmp_path):
    entry(tmp_path / "t", 0, record(5, incarnation="old"))
    entry(tmp_path / "t", 1, record(0))
    entry(tmp_path / "t", 2, record(3))
    assert published_as_of(Place(tmp_path / "t"), *OWNER, 1).version == 1
    with pytest.raises(SnapshotUnavailable, match="has no version as of transaction -1"):
        published_as_of(Place(tmp_path / "t"), *OWNER, -1)  # not the old incarnation's version 0
    with pytest.raises(ForeignTable, match="incarnation"):
        published_as_of(Place(tmp_path / "t"), "top", "g", "old", 5)
    with pytest.raises(TableError, match="no Delta table"):
        published_as_of(Place(tmp_path / "none"), *OWNER, 1)
    with pytest.raises(TableError, match="no state of batch group 'other'"):
        group_as_of(Place(tmp_path), "top", "other", 1)


def test_a_group_is_found_together_without_states_that_began_later(tmp_path):
    for state in (KEYED, APPEND, StateDescriptor("late", "append", *OWNER, (), ("line",), SCHEMA, starts_at=8)):
        state.save(tmp_path)
        for version, txid in enumerate(range(state.starts_at - 1, 10)):
            entry(tmp_path / state.published_path, version, record(txid, starts_at=state.starts_at))
    for version, merged in enumerate((0, 3, 6)):
        entry(tmp_path / "counts", version, **({KEYED.merge_app: merged} if merged else {}))
    found = group_as_of(Place(tmp_path), "top", "g", 5)
    assert sorted(found) == ["counts", "lines"]
    assert (found["counts"].published.version, found["lines"].published.version) == (5, 5)
    assert found["counts"].plain is not None and found["counts"].plain.merged == 3 and found["lines"].plain is None
    assert sorted(group_as_of(Place(tmp_path), "top", "g", 7)) == ["counts", "late", "lines"]
    # Rows up to today's floor are in the plain table alone: of 5 it has none but those up to 3.
    entry(tmp_path / KEYED.published_path, 10, record(9, floor=6))
    with pytest.raises(SnapshotUnavailable, match="no longer kept for state counts") as kept:
        group_as_of(Place(tmp_path), "top", "g", 5)
    assert kept.value.available == 6
    assert group_as_of(Place(tmp_path), "top", "g", 6)["counts"].plain.version == 2  # type: ignore[union-attr]
