"""A rollback of one batch group of two: the other stays, a later state begins again, files are read again by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import World
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    FixedBatchSpout,
    SqliteMap,
    TridentTopology,
    opaque,
    read,
)
from trident.coordinators.errors import TopologyError
from trident.time_travel.rollback import roll_back
from trident.time_travel.rollback_plan import Choices


@pytest.fixture
def world(spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[World]:
    (tmp_path / "lines").mkdir()
    made = World(spark, tmp_path / "warehouse", zk_server, zk_root)
    yield made
    made.close()


def two(world: World, number: int) -> TridentTopology:
    """So many batches of numbers in one group; in the other the lines of files, counted by a state of the third run."""
    top = TridentTopology("top")
    lines = top.new_stream("lines", FileSpout(world.warehouse.parent / "lines", poll_interval_secs=0.1))
    lines.partition_persist(DeltaAppend("seen"), "value")
    if number > 2:
        lines.group_by("value").persistent_aggregate(DeltaMapState("late", merge_interval_secs=3600), Count(), "count")
    numbers = top.new_stream("numbers", FixedBatchSpout("n long", [[(each,)] for each in range(number)]))
    numbers.group_by("n").persistent_aggregate(DeltaMapState("counts", merge_interval_secs=3600), Count(), "count")
    return top


def run(world: World, number: int, compact: bool = False) -> None:
    """One transaction of each group: another file, and another batch of numbers."""
    (world.warehouse.parent / "lines" / f"{number}.txt").write_text(f"line {number}\n")
    world.run(number, compact=compact, made=two(world, number))


def holds(world: World) -> tuple[list[str], dict[str, int], dict[int, int]]:
    seen, late, counts = (read(world.spark, str(world.warehouse), name) for name in ("seen", "late", "counts"))
    return (
        sorted(row.value for row in seen.collect()),
        {row.value: row["count"] for row in late.collect()},
        {row.n: row["count"] for row in counts.collect()},
    )


@pytest.mark.long
def test_one_group_goes_back_and_the_other_stays(world: World) -> None:
    for number in (1, 2, 3, 4):
        run(world, number, compact=number == 4)

    def back(group: str | None, apply: bool = True) -> Any:
        return roll_back("top", 1, group=group, apply=apply, config=world.config, spark=world.spark)

    with pytest.raises(TopologyError, match="several batch groups.*found: lines, numbers"):
        back(None, False)
    done = back("lines").done
    assert holds(world) == (["line 1"], {}, dict.fromkeys(range(4), 1)), done
    run(world, 5, compact=True)
    assert holds(world) == (
        [f"line {each}" for each in (1, 2, 3, 4, 5)],
        {f"line {each}": 1 for each in (2, 3, 4, 5)},
        dict.fromkeys(range(5), 1),
    )
    assert world.repair().findings == []


@pytest.mark.long
def test_a_state_outside_of_delta_is_refused_by_name_or_left(world: World) -> None:
    def made(batches: int) -> TridentTopology:
        top = TridentTopology("top")
        words = top.new_stream("words", FixedBatchSpout("word string", [[("a",)], [("b",)], [("a",)]][:batches]))
        words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
        totals = opaque("totals", SqliteMap(str(world.warehouse.parent / "map.db"), "totals"))
        words.group_by("word").persistent_aggregate(totals, Count(), "n")
        others = top.new_stream("others", FixedBatchSpout("n long", [[(each,)] for each in range(batches)]))
        kept = opaque("kept", SqliteMap(str(world.warehouse.parent / "map.db"), "kept"))
        others.group_by("n").persistent_aggregate(kept, Count(), "times")
        return top

    def back(*leave: str) -> None:
        choices = Choices(frozenset(leave))
        roll_back("top", 2, group="words", apply=True, choices=choices, config=world.config, spark=world.spark)

    world.run(3, made=made(3))
    with pytest.raises(TopologyError, match="state totals .* is not in Delta tables.*--leave totals leaves it"):
        back("kept")
    with pytest.raises(
        TopologyError, match="state kept .* of batch group 'others', which stays.*--leave kept continues"
    ):
        back("totals")
    back("kept", "totals")
    counts = read(world.spark, str(world.warehouse), "counts")
    assert Counter({row.word: row.n for row in counts.collect()}) == Counter("ab")
    query = world.start(3, made(3))
    with pytest.raises(Exception, match="another incarnation of a topology"):
        query.await_termination(90)
