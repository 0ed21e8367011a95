"""The change data feed of a keyed state's table: by both MERGEs, as Spark and delta-rs read it."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.states.keyed_helpers import Group, Native, by_delta, by_whom, compactor_of, keyed, table
from trident.coordinators import faults
from trident.states.core.tables import CHANGE_FEED, KEYS
from trident.states.delta.evolution import enable_change_feed

INTO, OUT_OF = ("insert", "update_postimage"), ("delete", "update_preimage")


def binding(change_feed: bool = True, kept_txids: int = 2):
    """An Upsert by a sequence, which forgets deleted keys soon: MERGEs insert, update, delete, and leave rows alone."""
    return keyed(
        "s",
        "k string, q bigint, v string",
        ("k",),
        Native("upsert by q"),
        "sequenced",
        sequence="q",
        deleted_retention_txids=kept_txids,
        change_feed=change_feed,
    )


def rows_at(group: Group, version: int) -> Counter:
    found = deltalake.DeltaTable(str(group.warehouse / "s"), version=version).to_pyarrow_table()
    return Counter(tuple(row.values()) for row in found.to_pylist())


def feeds(group: Group, first: int) -> list[list[dict[str, Any]]]:
    """The changes from a version on, as Spark and as delta-rs read them."""
    options = {"readChangeFeed": "true", "startingVersion": str(first)}
    by_spark = group.spark.read.format("delta").options(**options).load(str(group.warehouse / "s"))
    return [without_time([row.asDict() for row in by_spark.collect()]), feed(group, first)]


def feed(group: Group, first: int) -> list[dict[str, Any]]:
    """The same as delta-rs alone reads them."""
    return without_time(pa.table(table(group, "s").load_cdf(starting_version=first).read_all()).to_pylist())


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name != "_commit_timestamp"} for row in rows]


@pytest.mark.long
def test_the_feed_of_each_version_is_the_difference_of_two_tables(spark, engine, tmp_path) -> None:
    rng = random.Random(7)
    group = Group(spark, engine, tmp_path, binding())
    by_spark, by_files = by_delta(compactor_of(group, "s")), compactor_of(group, "s")
    for txid in range(1, 7):
        keys = rng.sample([*"abcdefgh", None], 4)
        rows = [(key, rng.randrange(6), str(txid), rng.random() < 0.4) for key in keys]
        group.publish(txid, {"s": rows})
        if txid % 2 == 0:
            (by_spark if txid == 4 else by_files).merge_once(txid, force=True)
            assert by_whom(group, "s") == ("delta" if txid == 4 else "native")
    # Late changes alone: files are written anew, and no row is another.
    there = {row[0]: row[1] for row in rows_at(group, table(group, "s").version())}
    group.publish(7, {"s": [(key, -1, "late", False) for key in there]})
    by_files.merge_once(7, force=True)
    newest = table(group, "s").version()
    of_spark, of_rust = feeds(group, 1)
    assert Counter(map(repr, map(sorted_row, of_spark))) == Counter(map(repr, map(sorted_row, of_rust)))
    kinds = Counter()
    for version in range(1, newest + 1):
        changes = [row for row in of_spark if row["_commit_version"] == version]
        after = rows_at(group, version - 1)
        for row in changes:
            kinds[row["_change_type"]] += 1
            values = tuple(value for name, value in row.items() if not name.startswith(("_change", "_commit")))
            after[values] += 1 if row["_change_type"] in INTO else -1
        assert +after == rows_at(group, version) and min(after.values()) >= 0
    assert not [row for row in of_spark if row["_commit_version"] == newest], "no row was changed"
    assert set(kinds) == {*INTO, *OUT_OF}


def sorted_row(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(row.items())


def test_a_merge_whose_commit_fails_leaves_no_changes(spark, engine, tmp_path) -> None:
    group = Group(spark, engine, tmp_path, binding())
    group.publish(1, {"s": [("a", 1, "x", False)]})
    folder = tmp_path / "s" / "_change_data"
    faults.arm("delta.commit:fail_before:1")
    with pytest.raises(Exception, match="delta.commit"):
        compactor_of(group, "s").merge_once(1, force=True)
    assert faults.unfired() == []
    compactor_of(group, "s").merge_once(1, force=True)
    group.publish(2, {"s": [("a", 2, "y", False)]})
    compactor_of(group, "s").merge_once(2, force=True)
    named = [
        json.loads(line)["cdc"]["path"]
        for entry in sorted((tmp_path / "s" / "_delta_log").glob("*.json"))
        for line in entry.read_text().splitlines()
        if '"cdc"' in line
    ]
    assert len(named) == 2
    assert {str(path.relative_to(tmp_path / "s")) for path in folder.rglob("*.parquet")} == set(named)


def test_a_table_that_is_there_gets_the_feed_and_merges_write_it_from_then_on(spark, engine, tmp_path) -> None:
    group = Group(spark, engine, tmp_path, binding(change_feed=False))
    group.publish(1, {"s": [("a", 1, "x", False)]})
    old = compactor_of(group, "s")
    old.merge_once(1, force=True)
    given = enable_change_feed(engine, str(tmp_path / "s"), ["k"])
    assert given.properties[CHANGE_FEED] == "true" and given.properties[KEYS] == '["k"]'
    assert enable_change_feed(engine, given.path, ["k"]).version == given.version
    group.publish(2, {"s": [("a", 2, "y", False)]})
    old.merge_once(2, force=True)  # it looks at the table, not at the setting
    assert by_whom(group, "s") == "native"
    found = sorted((row["_change_type"], row["v"]) for row in feed(group, given.version))
    assert found == [("update_postimage", "y"), ("update_preimage", "x")]
