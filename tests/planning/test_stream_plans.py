"""What streams become: batch groups, passes and what is computed once, pinned as readable text (docs/semantics.md 4).

Each topology is a function; the text below it is its ``explain()``, from the
first "from" on where only the passes matter. To write them anew after a change
of the planner or of explain: ``python -m tests.planning.test_stream_plans``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.streams.stream_helpers import RowsSpout
from trident import Count, DeltaAppend, DeltaMapState, FirstN, JoinType, Max, MemoryMapState, Sum, TridentTopology, expr
from trident.planning.groups import plan
from trident.streams.stream import Stream


def split(line: str) -> Iterator[str]:
    yield from line.split()


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


class Sides:
    """A multi-reducer."""

    def init(self, batch_id: Any) -> list:
        return []

    def execute(self, state: list, stream_index: int, *values: Any) -> None:
        state.append(values)

    def complete(self, state: list) -> int:
        return len(state)


pytestmark = pytest.mark.filterwarnings("ignore::trident.SameBatchOnlyWarning")
TOPOLOGIES: dict[str, Callable[[TridentTopology], Any]] = {}
SNAPSHOTS: dict[str, str] = {}


def pinned(text: str) -> Callable[[Callable[[TridentTopology], Any]], Callable[[TridentTopology], Any]]:
    def keep(build: Callable[[TridentTopology], Any]) -> Callable[[TridentTopology], Any]:
        TOPOLOGIES[build.__name__], SNAPSHOTS[build.__name__] = build, text
        return build

    return keep


def stream(topology: TridentTopology, tx_id: str, fields: str) -> Stream:
    return topology.new_stream(tx_id, RowsSpout(fields))


def ends(made: Stream, name: str = "out") -> None:
    made.partition_persist(DeltaAppend(name))


# --- what is one group -----------------------------------------------------------------------


@pinned("""\
topology merge-of-two-spouts

group lines
  1: stream lines -> line string   [test_stream_plans.py:n]
  2: stream words -> word string, at bigint   [test_stream_plans.py:n]
  3 of 1: flat_map(split) -> word string   [test_stream_plans.py:n]
  4 of 2: project(word) -> word string   [test_stream_plans.py:n]
  5 of 3 and 4: merge -> word string   [test_stream_plans.py:n]
  6 of 5: persistent_aggregate(counts, Count) -> word string, n bigint   [test_stream_plans.py:n]
  from stream lines to 3:
    Python: flat_map(split) -> word
  from stream words to 4:
    Spark: select word
  from 3 and 4 to keyed state counts:
    Spark: union -> word
    Spark: partial Count() by word -> n [shuffle]""")
def merge_of_two_spouts(topology: TridentTopology) -> None:
    lines, words = stream(topology, "lines", "line string"), stream(topology, "words", "word string, at long")
    merged = lines.flat_map(split, "word").merge(words.project("word"))
    merged.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")


@pinned("""\
topology streams-that-do-not-meet

group a
  1: stream a -> n bigint   [test_stream_plans.py:n]
  2 of 1: partition_persist(of_a) -> n bigint   [test_stream_plans.py:n]
  from stream a to append state of_a:
    as it is

group b
  1: stream b -> n bigint   [test_stream_plans.py:n]
  2 of 1: partition_persist(of_b) -> n bigint   [test_stream_plans.py:n]
  from stream b to append state of_b:
    as it is""")
def streams_that_do_not_meet(topology: TridentTopology) -> None:
    for tx_id in ("b", "a"):
        ends(stream(topology, tx_id, "n long"), f"of_{tx_id}")


@pinned("""\
topology a-join-used-twice

group points
  1: stream users -> user bigint, name string   [test_stream_plans.py:n]
  2: stream points -> user bigint, n bigint   [test_stream_plans.py:n]
  3 of 1: filter(is_long) -> user bigint, name string   [test_stream_plans.py:n]
  4 of 3 and 2: join(user) -> user bigint, name string, n bigint   [test_stream_plans.py:n]
     note: only rows of one transaction meet: streams 'users' and 'points' are independent
  5 of 4: project(name, n) -> name string, n bigint   [test_stream_plans.py:n]
  6 of 5: partition_persist(rows) -> name string, n bigint   [test_stream_plans.py:n]
  7 of 4: persistent_aggregate(totals, Sum) -> user bigint, total bigint   [test_stream_plans.py:n]
  from stream users to 3:
    Python: filter(is_long) -> user, name
  from 3 and stream points to 4, which several branches use (computed once):
    Spark: join by user (inner, outer) [shuffle]
  from 4 to append state rows:
    Spark: select name, n
  from 4 to keyed state totals:
    Spark: partial Sum() by user -> total [shuffle]""")
def a_join_used_twice(topology: TridentTopology) -> None:
    users, points = stream(topology, "users", "user long, name string"), stream(topology, "points", "user long, n long")
    joined = users.filter("name", is_long).join(points, "user", "left")
    ends(joined.project("name, n"), "rows")
    joined.group_by("user").persistent_aggregate(DeltaMapState("totals"), "n", Sum(), "total")


@pinned("""\
topology a-native-join-used-twice

group points
  1: stream users -> user bigint, name string   [test_stream_plans.py:n]
  2: stream points -> user bigint, n bigint   [test_stream_plans.py:n]
  3 of 1 and 2: join(user) -> user bigint, name string, n bigint   [test_stream_plans.py:n]
     note: only rows of one transaction meet: streams 'users' and 'points' are independent
  4 of 3: project(name, n) -> name string, n bigint   [test_stream_plans.py:n]
  5 of 4: partition_persist(rows) -> name string, n bigint   [test_stream_plans.py:n]
  6 of 3: persistent_aggregate(totals, Sum) -> user bigint, total bigint   [test_stream_plans.py:n]
  from stream users and stream points to 3, which several branches use (computed once):
    Spark: join by user (outer, inner) [shuffle]
  from 3 to append state rows:
    Spark: select name, n
  from 3 to keyed state totals:
    Spark: partial Sum() by user -> total [shuffle]""")
def a_native_join_used_twice(topology: TridentTopology) -> None:
    users, points = stream(topology, "users", "user long, name string"), stream(topology, "points", "user long, n long")
    joined = topology.join(users, points, keys="user", type=JoinType.mixed(JoinType.OUTER, JoinType.INNER))
    ends(joined.project("name, n"), "rows")
    joined.group_by("user").persistent_aggregate(DeltaMapState("totals"), "n", Sum(), "total")


@pinned("""\
topology a-stream-joined-with-itself

group lines
  1: stream lines -> id bigint, line string   [test_stream_plans.py:n]
  2 of 1: each(split) -> id bigint, line string, word string   [test_stream_plans.py:n]
  3 of 2: project(id, word) -> id bigint, word string   [test_stream_plans.py:n]
  4 of 3 and 3: join(id) -> id bigint, a string, b string   [test_stream_plans.py:n]
  5 of 4: project(a, b) -> a string, b string   [test_stream_plans.py:n]
  6 of 5: partition_persist(out) -> a string, b string   [test_stream_plans.py:n]
  from stream lines to 3, which several branches use (computed once):
    Python: each(split) -> id, word
  from 3 and 3 to append state out:
    Spark: join by id (inner, inner) [shuffle]""")
def a_stream_joined_with_itself(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "id long, line string").each("line", split, "word").project("id, word")
    ends(words.join(words, "id", outputs="id, a, b").project("a, b"))


@pinned("""\
topology multi-reduce-of-two-spouts

group left
  1: stream left -> k bigint, a string, b string   [test_stream_plans.py:n]
  2: stream right -> k bigint, c bigint   [test_stream_plans.py:n]
  3 of 1: project(k, a) -> k bigint, a string   [test_stream_plans.py:n]
  4 of 3 and 2: multi_reduce(Sides) -> k bigint, n bigint   [test_stream_plans.py:n]
     note: only rows of one transaction meet: streams 'left' and 'right' are independent
  5 of 4: partition_persist(out) -> k bigint, n bigint   [test_stream_plans.py:n]
  from stream left to 3:
    Spark: select k, a
  from 3 and stream right to append state out:
    Spark: union of 2 streams
    Spark: repartition by k [shuffle] (unless the batch is one Spark partition)
    Python: multi_reduce(Sides): aggregate by k -> k, n""")
def multi_reduce_of_two_spouts(topology: TridentTopology) -> None:
    left, right = stream(topology, "left", "k long, a string, b string"), stream(topology, "right", "k long, c long")
    grouped = left.project("k, a").group_by("k"), right.group_by("k")
    ends(topology.multi_reduce(*grouped, reducer=Sides(), outputs="n"))


# --- what is one pass ------------------------------------------------------------------------


@pinned("""\
topology python-operations-are-one-pass

group lines
  1: stream lines -> id bigint, line string, more string   [test_stream_plans.py:n]
  2 of 1: flat_map(<lambda>) -> id bigint, word string   [test_stream_plans.py:n]
  3 of 2: filter(is_long) -> id bigint, word string   [test_stream_plans.py:n]
  4 of 3: map(<lambda>) -> w string, i bigint   [test_stream_plans.py:n]
  5 of 4: each(size) -> w string, i bigint, n bigint   [test_stream_plans.py:n]
  6 of 5: peek(print) -> w string, i bigint, n bigint   [test_stream_plans.py:n]
  7 of 6: project(n, i) -> n bigint, i bigint   [test_stream_plans.py:n]
  8 of 7: partition_persist(out) -> n bigint, i bigint   [test_stream_plans.py:n]
  from stream lines to append state out:
    Python: flat_map(<lambda>), filter(is_long), map(<lambda>), each(size), peek(print) -> n, i""")
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


@pinned("""\
topology native-operations-between-python-ones

group lines
  1: stream lines -> line string   [test_stream_plans.py:n]
  2 of 1: each(split) -> line string, word string   [test_stream_plans.py:n]
  3 of 2: filter(word <> '') -> line string, word string   [test_stream_plans.py:n]
  4 of 3: each(size) -> line string, word string, n bigint   [test_stream_plans.py:n]
  5 of 4: with_column(line, word, n, m) -> line string, word string, n bigint, m bigint   [test_stream_plans.py:n]
  6 of 5: drop(word, n, m) -> word string, n bigint, m bigint   [test_stream_plans.py:n]
  7 of 6: partition_persist(out) -> word string, n bigint, m bigint   [test_stream_plans.py:n]
  from stream lines to append state out:
    Python: each(split) -> word
    Spark: filter word <> ''
    Python: each(size) -> word, n
    Spark: select word, n, n * 2 as m
    Spark: select word, n, m""")
def native_operations_between_python_ones(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").each("line", split, "word").filter(expr("word <> ''"))
    ends(words.each("word", size, "n").with_column("m", expr("n * 2")).drop("line"))


@pinned("""\
topology a-combiner-before-the-shuffle

group lines
  1: stream lines -> line string   [test_stream_plans.py:n]
  2 of 1: flat_map(split) -> word string   [test_stream_plans.py:n]
  3 of 2: each(size) -> word string, n bigint   [test_stream_plans.py:n]
  4 of 3: aggregate(Longest) -> n bigint, longest bigint   [test_stream_plans.py:n]
  5 of 4: partition_persist(out) -> n bigint, longest bigint   [test_stream_plans.py:n]
  from stream lines to append state out:
    Python: flat_map(split), each(size), aggregate(Longest): combine by n -> n, longest
    Spark: repartition by n [shuffle] (unless the batch is one Spark partition)
    Python: aggregate(Longest): merge by n -> n, longest""")
def a_combiner_before_the_shuffle(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").flat_map(split, "word").each("word", size, "n")
    ends(words.group_by("n").aggregate("word", Longest(), "longest"))


@pinned("""\
topology a-combiner-over-the-batch

group lines
  1: stream lines -> line string   [test_stream_plans.py:n]
  2 of 1: flat_map(split) -> word string   [test_stream_plans.py:n]
  3 of 2: aggregate(Longest) -> longest bigint   [test_stream_plans.py:n]
  4 of 3: partition_persist(out) -> longest bigint   [test_stream_plans.py:n]
  from stream lines to append state out:
    Python: flat_map(split), aggregate(Longest): combine -> __trident_partial
    Spark: gather the partial values [shuffle]
    Python: aggregate(Longest) -> longest""")
def a_combiner_over_the_batch(topology: TridentTopology) -> None:
    ends(stream(topology, "lines", "line string").flat_map(split, "word").aggregate("word", Longest(), "longest"))


@pinned("""\
topology a-native-aggregate-behind-python

group lines
  1: stream lines -> line string   [test_stream_plans.py:n]
  2 of 1: flat_map(split) -> word string   [test_stream_plans.py:n]
  3 of 2: aggregate(Count) -> word string, n bigint   [test_stream_plans.py:n]
  4 of 3: filter(n > 1) -> word string, n bigint   [test_stream_plans.py:n]
  5 of 4: partition_persist(out) -> word string, n bigint   [test_stream_plans.py:n]
  from stream lines to append state out:
    Python: flat_map(split), count by word -> word, n
    Spark: merge Count() by word -> n [shuffle]
    Spark: filter n > 1""")
def a_native_aggregate_behind_python(topology: TridentTopology) -> None:
    words = stream(topology, "lines", "line string").flat_map(split, "word")
    ends(words.group_by("word").aggregate(Count(), "n").filter(expr("n > 1")))


@pinned("""\
topology native-chain-is-one-aggregate

group rows
  1: stream rows -> k bigint, n bigint, x double, unused string   [test_stream_plans.py:n]
  2 of 1: chained(Count, Sum, Max) -> k bigint, rows bigint, s bigint, m double   [test_stream_plans.py:n]
  3 of 2: partition_persist(out) -> k bigint, rows bigint, s bigint, m double   [test_stream_plans.py:n]
  from stream rows to append state out:
    Spark: Count() -> rows, Sum() -> s, Max() -> m by k [shuffle]""")
def native_chain_is_one_aggregate(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "k long, n long, x double, unused string")
    chain = rows.group_by("k").chained_agg().aggregate(Count(), "rows").aggregate("n", Sum(), "s")
    ends(chain.aggregate("x", Max(), "m").chain_end())


@pinned("""\
topology chain-with-a-combiner

group rows
  1: stream rows -> word string, n bigint   [test_stream_plans.py:n]
  2 of 1: chained(Sum, Longest) -> s bigint, longest bigint   [test_stream_plans.py:n]
  3 of 2: partition_persist(out) -> s bigint, longest bigint   [test_stream_plans.py:n]
  from stream rows to append state out:
    Python: chained(Sum, Longest): combine -> __trident_partial
    Spark: gather the partial values [shuffle]
    Python: chained(Sum, Longest) -> __trident_chain
    Spark: select s, longest""")
def chain_with_a_combiner(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long")
    ends(rows.chained_agg().aggregate("n", Sum(), "s").aggregate("word", Longest(), "longest").chain_end())


@pinned("""\
topology chain-with-a-reducer

group rows
  1: stream rows -> word string, n bigint   [test_stream_plans.py:n]
  2 of 1: chained(Sum, Gathers) -> n bigint, s bigint, all string   [test_stream_plans.py:n]
  3 of 2: partition_persist(out) -> n bigint, s bigint, all string   [test_stream_plans.py:n]
  from stream rows to append state out:
    Spark: repartition by n [shuffle] (unless the batch is one Spark partition)
    Python: chained(Sum, Gathers): aggregate by n -> n, s, all""")
def chain_with_a_reducer(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long")
    ends(rows.group_by("n").chained_agg().aggregate("n", Sum(), "s").aggregate("word", Gathers(), "all").chain_end())


# --- Spark partitions ------------------------------------------------------------------------


@pinned("""\
topology partition-aggregate-behind-partition-by

group rows
  1: stream rows -> word string, n bigint   [test_stream_plans.py:n]
  2 of 1: filter(is_long) -> word string, n bigint   [test_stream_plans.py:n]
  3 of 2: partition_by(word) -> word string, n bigint   [test_stream_plans.py:n]
  4 of 3: parallelism_hint(4) -> word string, n bigint   [test_stream_plans.py:n]
  5 of 4: partition_aggregate(Sum) -> part bigint   [test_stream_plans.py:n]
  6 of 5: partition_persist(out) -> part bigint   [test_stream_plans.py:n]
  from stream rows to append state out:
    Python: filter(is_long) -> word, n
    Spark: into 4 partitions by word [shuffle]
    Python: partition_aggregate(Sum): combine -> part""")
def partition_aggregate_behind_partition_by(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").filter("word", is_long).partition_by("word")
    ends(rows.parallelism_hint(4).partition_aggregate("n", Sum(), "part"))


@pinned("""\
topology partition-aggregate-of-the-spouts-partitions

group rows
  1: stream rows -> word string, n bigint   [test_stream_plans.py:n]
  2 of 1: each(size) -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  3 of 2: parallelism_hint(3) -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  4 of 3: partition_aggregate(Gathers) -> all string   [test_stream_plans.py:n]
  5 of 4: aggregate(Gathers) -> all string   [test_stream_plans.py:n]
  6 of 5: partition_persist(out) -> all string   [test_stream_plans.py:n]
  from stream rows to append state out:
    Spark: stream rows into 3 partitions [shuffle]
    Spark: select word
    Python: each(size) -> length
    Spark: in at least one partition
    Python: partition_aggregate(Gathers): reduce -> all
    Spark: into one partition
    Python: aggregate(Gathers): reduce -> all""")
def partition_aggregate_of_the_spouts_partitions(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").each("word", size, "length").parallelism_hint(3)
    ends(rows.partition_aggregate("length", Gathers(), "all").aggregate("all", Gathers(), "all"))


@pinned("""\
topology repartitionings

group rows
  1: stream rows -> word string, n bigint   [test_stream_plans.py:n]
  2 of 1: shuffle() -> word string, n bigint   [test_stream_plans.py:n]
  3 of 2: parallelism_hint(4) -> word string, n bigint   [test_stream_plans.py:n]
  4 of 3: partition(modulo) -> word string, n bigint   [test_stream_plans.py:n]
  5 of 4: parallelism_hint(3) -> word string, n bigint   [test_stream_plans.py:n]
  6 of 5: each(size) -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  7 of 6: broadcast() -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  8 of 7: name(everywhere) -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  9 of 8: global_() -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  10 of 9: local_or_shuffle() -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  11 of 10: partition_persist(out) -> word string, n bigint, length bigint   [test_stream_plans.py:n]
  from stream rows to append state out:
    Spark: into 4 partitions [shuffle]
    Python: partition(modulo) -> word, n, __trident_target
    Spark: into 3 partitions, as chosen [shuffle]
    Python: each(size) -> word, n, length
    Spark: into as many partitions as cores, each row in every one [shuffle]
    Spark: into one partition [shuffle]""")
def repartitionings(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long").shuffle().parallelism_hint(4)
    placed = rows.partition("n", modulo).parallelism_hint(3).each("word", size, "length").broadcast().name("everywhere")
    ends(placed.global_().local_or_shuffle())


@pinned("""\
topology the-greatest-and-the-first

group rows
  1: stream rows -> word string, n bigint, unused bigint   [test_stream_plans.py:n]
  2 of 1: project(word, n) -> word string, n bigint   [test_stream_plans.py:n]
  3 of 2: max_by(n) -> word string, n bigint   [test_stream_plans.py:n]
  4 of 3: partition_persist(native) -> word string, n bigint   [test_stream_plans.py:n]
  5 of 2: max_by(n) -> word string, n bigint   [test_stream_plans.py:n]
  6 of 5: project(word) -> word string   [test_stream_plans.py:n]
  7 of 6: partition_persist(compared) -> word string   [test_stream_plans.py:n]
  8 of 2: min_by(n) -> word string, n bigint   [test_stream_plans.py:n]
  9 of 8: partition_persist(of_each_partition) -> word string, n bigint   [test_stream_plans.py:n]
  10 of 2: FirstN(3, 'n', reverse=True) -> word string, n bigint   [test_stream_plans.py:n]
  11 of 10: partition_persist(first) -> word string, n bigint   [test_stream_plans.py:n]
  from stream rows to 2, which several branches use (computed by each of them):
    Spark: select word, n
  from 2 to append state native:
    Spark: the row with the greatest n [shuffle]
  from 2 to append state compared:
    Python: max_by(n) -> word, n, __trident_part
    Spark: into one partition [shuffle]
    Python: max_by(n) -> word
  from 2 to append state of_each_partition:
    Python: min_by(n) -> word, n
  from 2 to append state first:
    Spark: the first 3 by n, the greatest first [shuffle]""")
def the_greatest_and_the_first(topology: TridentTopology) -> None:
    rows = stream(topology, "rows", "word string, n long, unused long").project("word, n")
    ends(rows.max_by("n", scope="batch"), "native")
    ends(rows.max_by("n", larger, scope="batch").project("word"), "compared")
    ends(rows.min_by("n"), "of_each_partition")
    ends(rows.apply_assembly(FirstN(3, "n", reverse=True)), "first")


# --- states ----------------------------------------------------------------------------------


@pinned("""\
topology a-merge-that-a-state-reads-later

group left
  1: stream left -> word string   [test_stream_plans.py:n]
  2: stream right -> word string   [test_stream_plans.py:n]
  3 of 1 and 2: merge -> word string   [test_stream_plans.py:n]
  4 of 3: persistent_aggregate(all, Gathers) -> word string, text string   [test_stream_plans.py:n]
  from stream left and stream right to 3, staged for the transaction's turn:
    Spark: union -> word
  in the transaction's turn, as of the transaction before:
    from 3 to memory state all:
      Spark: look up word in all
      Spark: repartition by word [shuffle] (unless the batch is one Spark partition)
      Python: persistent_aggregate(all, Gathers): reduce by word -> word, text
      Spark: nothing is deleted""")
def a_merge_that_a_state_reads_later(topology: TridentTopology) -> None:
    left, right = stream(topology, "left", "word string"), stream(topology, "right", "word string")
    left.merge(right).group_by("word").persistent_aggregate(MemoryMapState("all"), "word", Gathers(), "text string")


# --- the tests -------------------------------------------------------------------------------


def text_of(name: str) -> str:
    """explain() without line numbers, and without what it says of kept plans (tests/running/test_kept_plans.py)."""
    topology = TridentTopology(name.replace("_", "-"))
    TOPOLOGIES[name](topology)
    return re.sub(r"\n  the plan is .*", "", re.sub(r":\d+\]", ":n]", topology.explain()))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_plan(name: str, spark) -> None:
    assert text_of(name) == SNAPSHOTS[name]


def test_streams_that_meet_are_one_group_and_others_are_not() -> None:
    meeting, apart = TridentTopology("one"), TridentTopology("two")
    merge_of_two_spouts(meeting)
    streams_that_do_not_meet(apart)
    assert [sorted(group.spouts) for group in plan(meeting.graph)] == [["lines", "words"]]
    assert [sorted(group.spouts) for group in plan(apart.graph)] == [["a"], ["b"]]


def written_anew() -> None:
    """Replaces the snapshots in this file by what explain() says now."""
    path = Path(__file__)
    source = path.read_text(encoding="utf-8")
    for name in TOPOLOGIES:
        pattern = re.compile(rf'@pinned\((?:""|"""\\\n(?:(?!""").)*""")\)\ndef {name}\(', re.DOTALL)
        text = f'@pinned("""\\\n{text_of(name)}""")\ndef {name}('
        source, count = pattern.subn(lambda _, text=text: text, source)
        assert count == 1, name
    path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    # Under its own name, as in the tests: the plans name this file.
    import tests.planning.test_stream_plans as plans

    plans.written_anew()
    sys.exit()
