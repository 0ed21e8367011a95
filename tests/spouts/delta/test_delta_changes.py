"""A Delta table's change data feed as a source: each change in exactly one batch; also of a keyed state's table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.spouts import source_helpers
from tests.spouts.delta.test_delta_spout import Run
from tests.states.keyed.test_change_feed import binding
from tests.states.keyed_helpers import Group, by_delta, by_whom, compactor_of
from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, TridentTopology, Upsert
from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.delta.spout import DeltaSpout
from trident.states.delta.kernel import KernelEngine

warehouse = source_helpers.warehouse
COLUMNS = pa.schema([("n", pa.int64()), ("p", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}


class Table:
    """A Delta table with the feed, written by delta-rs; and the changes of each version."""

    def __init__(self, path: Path, configuration: dict[str, str] = FEED) -> None:
        self.path = path
        deltalake.DeltaTable.create(str(path), COLUMNS, configuration=configuration, raise_if_key_not_exists=False)
        self.changes: dict[int, Counter] = {}

    @property
    def rust(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.path))

    def add(self, *numbers: int) -> None:
        rows = pa.table([list(numbers), ["a"] * len(numbers)], schema=COLUMNS)
        deltalake.write_deltalake(str(self.path), rows, mode="append")
        self._changed([(n, "a", "insert") for n in numbers])

    def update(self, n: int, before: str, after: str) -> None:
        self.rust.update(predicate=f"n = {n}", new_values={"p": after})
        self._changed([(n, before, "update_preimage"), (n, after, "update_postimage")])

    def delete(self, n: int, p: str) -> None:
        self.rust.delete(f"n = {n}")
        self._changed([(n, p, "delete")])

    def _changed(self, rows: list[tuple[int, str, str]]) -> None:
        version = self.rust.version()
        self.changes[version] = Counter((*row, version) for row in rows)

    def spout(self, **settings: Any) -> DeltaSpout:
        return DeltaSpout(self.path, changes=True, poll_interval_secs=0, **settings)


def rows(run: Run, txid: int) -> Counter:
    return Counter({row[:4]: count for row, count in run.rows(txid).items()})


def test_each_change_is_in_one_batch_over_restarts_and_the_table_comes_first(spark, tmp_path) -> None:
    table = Table(tmp_path / "t")
    table.add(1, 2, 3)
    table.update(2, "a", "b")
    run = Run(table.spout(max_files=2), spark, tmp_path)
    assert table.spout().output_schema.names == ["n", "p", "_change_type", "_commit_version", "_commit_timestamp"]
    run.begin_all()
    first = sum((rows(run, txid) for txid in run.pins), Counter())
    assert first == Counter([(1, "a", "insert", 2), (3, "a", "insert", 2), (2, "b", "insert", 2)])
    done = max(run.pins)
    table.delete(1, "a")
    table.add(4)
    table.rust.optimize.compact()  # no row is another
    table.update(4, "a", "c")
    run.restart(table.spout(max_files=2))
    run.begin_all()
    batches = [rows(run, txid) for txid in run.pins if txid > done]
    assert sum(batches, Counter()) == table.changes[3] + table.changes[4] + table.changes[6]
    assert len(batches) > 1 and all(len({row[3] for row in batch}) <= 2 for batch in batches), "two versions at most"
    again = Run(table.spout(), spark, tmp_path)
    again.pins = run.pins
    assert rows(again, max(run.pins)) == batches[-1], "a replay reads the same"
    assert all(row[4] is not None for row in again.rows(max(run.pins)))


def test_versions_come_in_their_order_within_a_batch(spark, tmp_path) -> None:
    """Of a key that is inserted and changed in one batch an Upsert takes the change, whichever file is larger."""
    table = Table(tmp_path / "t")
    for first in (0, 10_000):
        table.add(*range(first, first + 10_000))
        table.update(first, "a", "b")
        table.delete(first, "b")
    run = Run(table.spout(starting_version=1), spark, tmp_path)
    run.begin_all()
    (pin,) = run.pins.values()
    emitted = run.emitter.emit_batch((1, 0), {**pin, "bytes": 1 << 30})
    assert emitted.partitions > 1
    versions = [row["_commit_version"] for row in emitted.data.collect()]
    assert versions == sorted(versions) and set(versions) == set(range(1, 7))


@pytest.mark.parametrize("versions", [1, 100], ids=["a version a batch", "all in one batch"])
@pytest.mark.long
def test_a_key_that_is_gone_is_not_deleted_again(spark, tmp_path, versions: int) -> None:
    """By repeated deletes of an Upsert by a sequence, whichever MERGE writes them; nor is one that was never there."""
    made = Group(spark, KernelEngine(spark), tmp_path, binding(kept_txids=0))
    merges: list[list[tuple]] = [
        [("a", 1, "x", False), (None, 1, "y", False)],
        [("a", 2, None, True), ("z", 2, None, True)],
        [("a", 3, None, True), ("z", 3, None, True), (None, 3, None, True)],
        [("a", 4, "back", False), ("z", 4, None, True)],
        [("a", 5, None, True), (None, 5, None, True)],
    ]
    for txid, changed in enumerate(merges, 1):
        made.publish(txid, {"s": changed})
        compactor = by_delta(compactor_of(made, "s")) if txid == 3 else compactor_of(made, "s")
        compactor.merge_once(txid, force=True)
        assert by_whom(made, "s") == ("delta" if txid == 3 else "native")
    run = Run(DeltaSpout(tmp_path / "s", 0, changes=True, max_files=versions, poll_interval_secs=0), spark, tmp_path)
    run.begin_all()
    found = sum((run.rows(txid) for txid in run.pins), Counter())
    assert Counter(row[:4] for row in found.elements()) == Counter(
        [
            ("a", 1, "x", "insert"),
            (None, 1, "y", "insert"),
            ("a", 1, "x", "update_preimage"),
            ("a", 2, None, "delete"),
            (None, 1, "y", "update_preimage"),
            (None, 3, None, "delete"),
            ("a", 4, "back", "update_postimage"),
            ("a", 4, "back", "update_preimage"),
            ("a", 5, None, "delete"),
        ]
    )
    assert all(pin["keys"] == ["k"] for pin in run.pins.values())


def test_keys_that_no_keyed_state_has_written_are_an_error(tmp_path) -> None:
    table = Table(tmp_path / "t", {**FEED, "trident.keys": '"n"'})
    with pytest.raises(SourceError, match=r"trident.keys of the Delta table .* is not as a keyed state writes it"):
        table.spout().output_schema  # noqa: B018 (it reads the log)


def test_versions_without_the_feed_and_files_that_are_gone_are_errors(spark, tmp_path) -> None:
    without = Table(tmp_path / "without", {})
    without.add(1)
    with pytest.raises(SourceError, match="version 1 of the Delta table .* has no change data feed"):
        Run(without.spout(), spark, tmp_path)
    without.rust.alter.set_table_properties(FEED)
    without.update(1, "a", "b")
    with pytest.raises(SourceError, match="version 1 of the Delta table .* has no change data feed"):
        Run(without.spout(starting_version=1), spark, tmp_path).begin_all()
    run = Run(without.spout(), spark, tmp_path)
    run.begin_all()
    with pytest.raises(SourceError, match=r"(?s)began with other rows.*changes=False.*changes=True"):
        plain = DeltaSpout(without.path, ignore_changes=True)
        Run(plain, spark, tmp_path).coordinator.initialize_transaction(2, run.pins[1], None)
    without.update(1, "b", "c")
    for file in (without.path / "_change_data").rglob("*.parquet"):
        file.unlink()
    run.begin_all()
    with pytest.raises(SourceError, match=r"the changes of version 4 of the Delta table .* are gone"):
        run.rows(max(run.pins))
    log = without.path / "_delta_log"
    metadata = [json.loads(line) for line in (log / f"{2:020d}.json").read_text().splitlines() if "metaData" in line][0]
    metadata["metaData"]["configuration"] = {}
    (log / f"{5:020d}.json").write_text(json.dumps(metadata) + "\n")
    with pytest.raises(SourceError, match="version 5 of the Delta table .* has no change data feed"):
        run.begin_all()
    with pytest.raises(TopologyError, match="reads changes, or ignores them"):
        DeltaSpout(without.path, changes=True, ignore_changes=True)


USERS: list[list[tuple]] = [
    [("a", "old", 1, False), ("b", "b", 5, False), ("d", "d", 1, False)],
    [("a", "new", 3, False), ("b", None, 9, True), ("d", "late", 0, False)],
    [("b", "after its delete", 8, False), ("c", "c", 1, False)],
]


def users(batches: list[list[tuple]], change_feed: bool) -> TridentTopology:
    made = TridentTopology("users")
    changes = made.new_stream("changes", FixedBatchSpout("id string, name string, lsn long, gone boolean", batches))
    upsert = Upsert("id", delete_when="gone", sequence_by="lsn")
    changes.partition_persist(DeltaMapState("users", change_feed=change_feed), None, upsert)
    return made


def copied(warehouse: Path) -> TridentTopology:
    made = TridentTopology("copied")
    changes = made.new_stream("changes", DeltaSpout(warehouse / "users", changes=True))
    changes.partition_persist(DeltaAppend("seen"), ["id", "name", "lsn", "_change_type"])
    news = changes.where(F.col("_change_type") != "update_preimage")
    news = news.with_column("gone", F.col("_change_type") == "delete")
    news.partition_persist(DeltaMapState("copy"), ["id", "name", "lsn", "gone"], Upsert("id", delete_when="gone"))
    return made


@pytest.mark.long
def test_a_keyed_state_is_the_source_of_another_topology(start, warehouse) -> None:
    def run(made: TridentTopology) -> Any:
        return start.run(made)

    run(users(USERS[:1], False)).stop()  # merges into a table without the feed, which then gets it
    run(users(USERS[:1], True)).stop()
    run(copied(warehouse)).stop()
    run(users(USERS, True)).stop()
    query = run(copied(warehouse))
    expected = [("a", "new", 3), ("c", "c", 1), ("d", "d", 1)]
    assert sorted(tuple(row) for row in query.snapshot("copy").collect()) == expected
    assert Counter(tuple(row) for row in query.snapshot("seen").collect()) == Counter(
        [
            ("a", "old", 1, "insert"),
            ("b", "b", 5, "insert"),
            ("d", "d", 1, "insert"),
            ("a", "old", 1, "update_preimage"),
            ("a", "new", 3, "update_postimage"),
            ("b", "b", 5, "update_preimage"),
            ("b", None, 9, "delete"),
            ("c", "c", 1, "insert"),
        ]
    )
