"""What streams become: batch groups, passes and what is computed once, pinned as readable text (docs/semantics.md 4).

Each topology is a function; its ``explain()`` is in stream_plans.txt. To write that file anew after a change of the
planner or of explain: ``python -m tests.planning.test_stream_plans``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.streams.stream_helpers import RowsSpout, Sides, split
from trident import Count, DeltaAppend, DeltaMapState, FirstN, JoinType, Max, MemoryMapState, Sum, TridentTopology, expr
from trident.planning.groups import plan
from trident.streams.stream import Stream


def is_long(word: str) -> bool:
    return len(word) > 3


def size(word: str) -> int:
    return len(word)


def modulo(n: int) -> int:
    return n % 4


def larger(a: int, b: int) -> int:
    return a - b


class Longest:
    """A combiner."""

    def init(self, word: str) -> int:
        return len(word)

    def combine(self, a: int, b: int) -> int:
        return max(a, b)

    def zero(self) -> int:
        return 0


class Gathers:
    """A reducer."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, word: str) -> str:
        return f"{current} {word}"


pytestmark = pytest.mark.filterwarnings("ignore::trident.SameBatchOnlyWarning")
Build = Callable[[TridentTopology], Any]
TOPOLOGIES: dict[str, Build] = {}
BETWEEN = "\n\n\n"
SNAPSHOTS = Path(__file__).with_name("stream_plans.txt")


def pinned(build: Build) -> Build:
    TOPOLOGIES[build.__name__] = build
    return build


def stream(topology: TridentTopology, tx_id: str, fields: str) -> Stream:
    return topology.new_stream(tx_id, RowsSpout(fields))


def ends(made: Stream, name: str = "out") -> None:
    made.partition_persist(DeltaAppend(name))


# --- what is one group -----------------------------------------------------------------------


@pinned
def merge_of_two_spouts(topology: TridentTopology) -> None:
    lines, words = stream(topology, "lines", "line string"), stream(topology, "words", "word string, at long")
    merged = lines.flat_map(split, "word").merge(words.project("word"))
    merged.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")


@pinned
def streams_that_do_not_meet(topology: TridentTopology) -> None:
    for tx_id in ("b", "a"):
        ends(stream(topology, tx_id, "n long"), f"of_{tx_id}")


@pinned
def a_join_used_twice(topology: TridentTopology) -> None:
    users, points = stream(topology, "users", "user long, name string"), stream(topology, "points", "user long, n long")
    joined = users.filter("name", is_long).join(points, "user", "left")
    ends(joined.project("name, n"), "rows")
    joined.group_by("user").persistent_aggregate(DeltaMapState("totals"), "n", Sum(), "total")


@pinned
def a_native_join_used_twice(topology: TridentTopology) -> None:
    users, points = stream(topology, "users", "user long, name string"), stream(topology, "points", "user long, n long")
    joined = topology.join(users, points, keys="user", type=JoinType.mixed(JoinType.OUTER, JoinType.INNER))
    ends(joined.project("name, n"), "rows")
    joined.group_by("user").persistent_aggregate(DeltaMapState("totals"), "n", Sum(), "total")


@pinned
def a_stream_joined_with_itself(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "id long, line string").each("line", split, "word").project("id, word")
    ends(words.join(words, "id", outputs="id, a, b").project("a, b"))


@pinned
def multi_reduce_of_two_spouts(topology: TridentTopology) -> None:
    left, right = stream(topology, "left", "k long, a string, b string"), stream(topology, "right", "k long, c long")
    grouped = left.project("k, a").group_by("k"), right.group_by("k")
    ends(topology.multi_reduce(*grouped, reducer=Sides(), outputs="n"))


# --- what is one pass ------------------------------------------------------------------------


@pinned
def python_operations_are_one_pass(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "id long, line string, more string").flat_map(
        lambda id, line, more: [(id, word) for word in line.split()], "id long, word string"
    )
    ends(
        words.filter("word", is_long)
        .map(lambda id, word: (word, id), "w string, i long")
        .each("w", size, "n")
        .peek("n", print)
        .project("n, i")
    )


@pinned
def native_operations_between_python_ones(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").each("line", split, "word").filter(expr("word <> ''"))
    ends(words.each("word", size, "n").with_column("m", expr("n * 2")).drop("line"))


@pinned
def a_combiner_before_the_shuffle(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").flat_map(split, "word").each("word", size, "n")
    ends(words.group_by("n").aggregate("word", Longest(), "longest"))


@pinned
def a_combiner_over_the_batch(topology: TridentTopology) -> None:
    ends(stream(topology, "lines", "line string").flat_map(split, "word").aggregate("word", Longest(), "longest"))


@pinned
def a_native_aggregate_behind_python(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").flat_map(split, "word")
    ends(words.group_by("word").aggregate(Count(), "n").filter(expr("n > 1")))


@pinned
def native_chain_is_one_aggregate(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "k long, n long, x double, unused string")
    chain = rows.group_by("k").chained_agg().aggregate(Count(), "rows").aggregate("n", Sum(), "s")
    ends(chain.aggregate("x", Max(), "m").chain_end())


@pinned
def chain_with_a_combiner(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long")
    ends(rows.chained_agg().aggregate("n", Sum(), "s").aggregate("word", Longest(), "longest").chain_end())


@pinned
def chain_with_a_reducer(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long")
    ends(rows.group_by("n").chained_agg().aggregate("n", Sum(), "s").aggregate("word", Gathers(), "all").chain_end())


@pinned
def a_count_is_one_python_pass(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "id long, value string").each("value", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")


@pinned
def branches_share_what_is_above_them(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "package string, value string").each("value", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    long = words.filter("word", bool).each("word", size, "n")
    long.group_by("package").persistent_aggregate(DeltaMapState("letters"), "n", Sum(), "letters")
    ends(long.project("n").aggregate("n", Gathers(), "total"), "totals")


# --- Spark partitions ------------------------------------------------------------------------


@pinned
def partition_aggregate_behind_partition_by(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").filter("word", is_long).partition_by("word")
    ends(rows.parallelism_hint(4).partition_aggregate("n", Sum(), "part"))


@pinned
def partition_aggregate_of_the_spouts_partitions(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").each("word", size, "length").parallelism_hint(3)
    ends(rows.partition_aggregate("length", Gathers(), "all").aggregate("all", Gathers(), "all"))


@pinned
def repartitionings(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").shuffle().parallelism_hint(4)
    placed = rows.partition("n", modulo).parallelism_hint(3).each("word", size, "length").broadcast().name("everywhere")
    ends(placed.global_().local_or_shuffle())


@pinned
def the_greatest_and_the_first(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long, unused long").project("word, n")
    ends(rows.max_by("n", scope="batch"), "native")
    ends(rows.max_by("n", larger, scope="batch").project("word"), "compared")
    ends(rows.min_by("n"), "of_each_partition")
    ends(rows.apply_assembly(FirstN(3, "n", reverse=True)), "first")


# --- states ----------------------------------------------------------------------------------


@pinned
def a_merge_that_a_state_reads_later(topology: TridentTopology) -> None:
    left, right = stream(topology, "left", "word string"), stream(topology, "right", "word string")
    left.merge(right).group_by("word").persistent_aggregate(MemoryMapState("all"), "word", Gathers(), "text string")


# --- the tests -------------------------------------------------------------------------------


def text_of(name: str) -> str:
    """explain() without line numbers, and without what it says of kept plans (tests/running/test_kept_plans.py)."""
    topology = TridentTopology(name.replace("_", "-"))
    TOPOLOGIES[name](topology)
    return re.sub(r"\n  the plan is .*", "", re.sub(r":\d+\]", ":n]", topology.explain()))


def all_texts() -> list[str]:
    return [text_of(name) for name in TOPOLOGIES]


def test_plans(spark) -> None:
    for found, expected in zip(all_texts(), SNAPSHOTS.read_text(encoding="utf-8").split(BETWEEN), strict=True):
        assert found == expected.rstrip()


def test_streams_that_meet_are_one_group_and_others_are_not() -> None:
    meeting, apart = TridentTopology("one"), TridentTopology("two")
    merge_of_two_spouts(meeting)
    streams_that_do_not_meet(apart)
    assert [sorted(group.spouts) for group in plan(meeting.graph)] == [["lines", "words"]]
    assert [sorted(group.spouts) for group in plan(apart.graph)] == [["a"], ["b"]]
    assert apart.identity()["groups"] == {"a": ["a"], "b": ["b"]}


if __name__ == "__main__":
    # Under its own name, as in the tests: the plans name that file.
    from tests.planning.test_stream_plans import all_texts as texts

    SNAPSHOTS.write_text(BETWEEN.join(texts()) + "\n", encoding="utf-8")
