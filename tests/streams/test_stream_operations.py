"""Each operation of a stream on real Spark: nulls, empty batches, empty and several partitions (docs/semantics.md 4).

What is refused when a topology is built comes first, and needs no Spark. What
operations do row by row is in test_stream_api.py.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from tests.jvm.spark_fixtures import session_confs
from tests.long_cases import in_two, sample
from tests.streams.stream_helpers import (
    Rows,
    RowsSpout,
    Sides,
    append_plan,
    batch,
    collect,
    raised,
    stream_of,
    together,
    topology_of,
)
from tests.streams.stream_interpreter import canonical
from trident import Count, DeltaAppend, JoinType, Max, Min, Sum, TridentTopology
from trident.coordinators.errors import FieldError, TridentError
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import plan
from trident.streams.stream import Stream
from trident.testing import run_batch

NAN = float("nan")
INNER, OUTER = JoinType.INNER, JoinType.OUTER
LOCK = threading.Lock()


@pytest.fixture(autouse=True, scope="module")
def adaptive(spark) -> Iterator[None]:
    """Plans that change while they run, as users have them: what an operation gives must not depend on that."""
    with session_confs(spark, {"spark.sql.adaptive.enabled": "true"}):
        yield


class Gathers:
    """A reducer: all values in order; an empty text before the first."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, value: Any) -> str:
        return " ".join(sorted([*current.split(), str(value)]))


class Distinct:
    """An aggregator: a row per value, none for no row."""

    def init(self, batch_id: Any) -> set:
        return set()

    def aggregate(self, state: set, value: Any) -> None:
        state.add(str(value))

    def complete(self, state: set) -> Iterator[tuple[str, int]]:
        for value in sorted(state):
            yield value, len(value)


class Told:
    """An aggregator: the batch that it was told, and its number of rows."""

    def init(self, batch_id: Any) -> tuple:
        return str(batch_id), 0

    def aggregate(self, state: tuple, value: Any) -> tuple:
        return state[0], state[1] + 1

    def complete(self, state: tuple) -> tuple[str, int]:
        return state


class Locked(Rows):
    """A combiner that cannot travel."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Unprepared(Sides):
    """Its prepare takes no context."""

    def prepare(self) -> None: ...

    def __call__(self, *values: Any) -> int:
        return 0


def by_size(a: str, b: str) -> int:
    return len(a) - len(b)


# --- refused when it is built ----------------------------------------------------------------


def two() -> tuple[TridentTopology, Stream, Stream]:
    topology = TridentTopology("two")
    left = topology.new_stream("left", RowsSpout("user long, points long"))
    return topology, left, topology.new_stream("right", RowsSpout("user long, name string"))


# The name of a case, what is built of two streams of a topology, and what the error says: what was found, what was
# expected and what to do.
REFUSED = """
merge of other fields | a.merge(b) | other fields | it lacks points | rename
merge of other types | a.merge(b.rename({"name": "points"})) | two types | string in stream 2 | bigint | cast
merge of another number of fields | a.merge(b, outputs="one") | another number of outputs | 1: one | 2, for user, points
merge with a name twice | a.merge(a, outputs="x, X") | twice | 'x' and 'X'
merge of no stream | t.merge() | no streams
merge of something else | t.merge(a, "b") | takes streams | 'b'
merge of two topologies | a.merge(stream_of("user long, points long", "other"))
    | two topologies | 'other' | 'two' | DeltaSpout
join of two topologies | a.join(stream_of("user long", "other"), "user") | two topologies
multi_reduce of two topologies | t.multi_reduce(a, stream_of("n long", "other"), reducer=Sides(), outputs="s")
    | two topologies
join by an unknown field | a.join(b, "usr") | stream 1 | 'usr' | user, points | id you mean 'user'?
join by other types | a.join(b, [["points"], ["name"]])
    | 'name' of stream 2 has another type than 'points' | string | bigint | Cast
join by keys of other lengths | a.join(b, [["user", "points"], ["user"]]) | different lengths
join without keys | a.join(b, [], outputs="a, b, c, d") | key
join with a name twice | a.join(a, "user") | two fields of one name | 'points' | rename
join with another number of outputs | a.join(b, "user", outputs="u, p")
    | another number of outputs | 2: u, p | user, points, name
join with an unknown type | a.join(b, "user", "lefty") | the type | 'lefty' | 'full'
join of three with 'left' | t.join(a, b, b.rename({"name": "other"}), keys="user", type="left") | JoinType.mixed
join of one stream | t.join(a, keys="user") | several streams | at least 2
multi_reduce of some grouped | t.multi_reduce(a.group_by("user"), b, reducer=Sides(), outputs="s")
    | some of the streams are grouped
multi_reduce by other types | t.multi_reduce(a.group_by("user"), b.group_by("name"), reducer=Sides(), outputs="s")
    | other types | string | bigint
multi_reduce with no reducer | t.multi_reduce(a, b, reducer=Sides, outputs="s") | multi-reducer | execute(state,
partition_by an unknown field | a.partition_by("User") | 'User' | id you mean 'user'?
max_by an unknown field | a.max_by("poins") | max_by | id you mean 'points'?
first_n by an unknown field | a.first_n(1, "poins") | FirstN | id you mean 'points'?
drop of an unknown field | a.drop("usr") | drop | id you mean 'user'?
rename of an unknown field | a.rename({"usr": "u"}) | rename | id you mean 'user'?
rename to a name that is there | a.rename({"user": "points"}) | twice | 'points'
select of a name twice | a.select("user", "user") | twice | 'user'
drop of all fields | a.drop("user, points") | leaves no field
with_column of a name | a.with_column("n", "user") | needs a Column | each
aggregate into a key | a.group_by("user").aggregate(Count(), "User") | twice | 'user' and 'User'
chained_agg of a name twice | a.chained_agg().aggregate(Count(), "n").aggregate("points", Sum(), "n").chain_end()
    | outputs of chained_agg | 'n'
chained_agg ended twice | [chain := a.chained_agg().aggregate(Count(), "n"), chain.chain_end(), chain.chain_end()]
    | ended already | Count
chained_agg with no link | a.chained_agg().chain_end() | no aggregate
chained_agg of both scopes | a.chained_agg().aggregate(Count(), "n").partition_aggregate(Count(), "m")
    | aggregate and partition_aggregate
chained_agg left open | [a.chained_agg().aggregate(Count(), "n"), plan(t.graph)]
    | left open | ChainedAggregation(Count) | test_stream_operations.py | chain_end()
hint 0 | a.parallelism_hint(0) | parallelism_hint | 0 | from 1
hint True | a.parallelism_hint(True) | parallelism_hint | True
hint of a text | a.group_by("user").parallelism_hint("2") | parallelism_hint | '2'
no name | a.name(" ") | name takes a name
first_n(0) | a.first_n(0) | FirstN | 0 | from 1
first_n of a fraction | a.first_n(1.0) | FirstN | 1.0
max_by in an unknown scope | a.max_by("user", scope="group") | scope | 'group' | 'batch'
a comparator of one value | b.max_by("name", len) | comparator of max_by | two values
a comparator that is none | b.min_by("name", "asc") | comparator | 'asc'
a least row of maps | stream_of("m map<string,long>").min() | 'm' | map< | comparator
group_by a map | stream_of("m map<string,long>").group_by("m") | 'm' | map<
partition by a text | a.partition("user") | partition needs a function | 'user'
a partitioner of two values | a.partition("user", lambda one, two: 0) | partition | (one, two) | 1 field
a lambda with a lock | a.each("user", lambda user: (LOCK, user)[1], "n long") | cannot be sent | LOCK | prepare
a partitioner with a lock | a.partition("user", lambda user: (LOCK, user)[1]) | cannot be sent | LOCK
a comparator with a lock | a.max_by("user", lambda one, two: (LOCK, one - two)[1]) | cannot be sent | LOCK
an aggregator with a lock | a.chained_agg().aggregate(Locked(), "n") | aggregate(Locked) | cannot be sent | self.lock
two keys of which one side has one | a.join(b.rename({"name": "points"}).drop("user"), ["user", "points"])
    | stream 2 | 'user'
partition_by a map | stream_of("m map<string,long>").partition_by("m") | 'm' | map<
a partitioner whose prepare takes nothing | a.partition("user", Unprepared()) | prepare | prepare(context)
a comparator whose prepare takes nothing | a.max_by("user", Unprepared()) | prepare | prepare(context)
a multi-reducer whose prepare takes nothing | t.multi_reduce(a, b, reducer=Unprepared(), outputs="n long")
    | prepare | prepare(context)
a window of such a field | stream_of("`a b` long").tumbling_window(3) | 'a b'
an assembly that gives nothing | a.apply_assembly(lambda stream: None) | gives no stream
"""


def cases(rows: str) -> dict[str, list[str]]:
    """The expression and the words of each case. A row that is too long goes on in the next line."""
    told = (row.split(" | ") for row in rows.strip().replace("\n    |", " |").splitlines())
    return {name: found for name, *found in told}


def check_refused(expression: str, words: list[str]) -> None:
    topology, left, right = two()
    names = {**globals(), "t": topology, "a": left, "b": right}
    error = raised(lambda: eval(compile(expression, __file__, "eval"), names))
    assert isinstance(error, TridentError), repr(error)
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


@pytest.mark.parametrize("case", cases(REFUSED))
def test_refused_when_built(case: str) -> None:
    expression, *words = cases(REFUSED)[case]
    check_refused(expression, words)


REFUSED_BY_DELTA = """
a column that Delta cannot name
    | a.agg(F.expr("count(*)")).partition_persist(DeltaAppend("x")) | 'count(1)' | '(' | alias
a part of a column that Delta cannot name
    | a.map(F.array(F.struct(F.lit(1).alias("a b"))), "s").partition_persist(DeltaAppend("x")) | 's.a b' | rename
a column without a type | a.each(F.lit(None), "v").partition_persist(DeltaAppend("x")) | 'v' | void | cast
a column of intervals
    | a.map(F.expr("interval '1' day"), "took").partition_persist(DeltaAppend("x")) | 'took' | interval day | Delta
"""


@pytest.mark.parametrize("case", cases(REFUSED_BY_DELTA))
def test_what_a_delta_table_cannot_hold_is_refused_when_built(spark, case: str) -> None:
    expression, *words = cases(REFUSED_BY_DELTA)[case]
    check_refused(expression, words)


# --- several streams -------------------------------------------------------------------------

LEFT = [(1, 10), (2, 20), (None, 30), (2, 21)]
RIGHT = [(2, "b"), (None, "n"), (3, "c"), (None, None)]
MATCHED = [(2, 20, "b"), (2, 21, "b"), (None, 30, "n"), (None, 30, None)]


def asked(
    spark: Any, stream: Stream, rows: Any, expected: list[tuple], partitions: int = 1, ordered: bool = False
) -> None:
    found = run_batch(stream, rows, spark=spark, partitions=partitions)
    assert canonical(found, ordered) == canonical(expected, ordered)


def of_one_topology(fields: str, builds: Iterable[Callable[[Stream], Stream]]) -> list[Stream]:
    """A stream of each, from a spout of its own: s0, s1 …"""
    topology = TridentTopology("together")
    return [build(topology.new_stream(f"s{place}", RowsSpout(fields))) for place, build in enumerate(builds)]


OF_LEFT, OF_RIGHT = [(1, 10, None)], [(3, None, "c")]
SIDES: dict[str, tuple[str, list, list, list[tuple]]] = {
    "inner": ("inner", LEFT, RIGHT, MATCHED),
    "left": ("left", LEFT, RIGHT, [*MATCHED, *OF_LEFT]),
    "right": ("right", LEFT, RIGHT, [*MATCHED, *OF_RIGHT]),
    "full": ("full", LEFT, RIGHT, [*MATCHED, *OF_LEFT, *OF_RIGHT]),
    "left of no right": ("left", LEFT[:1], [], OF_LEFT),
    "inner of no right": ("inner", LEFT, [], []),
    "full of no left": ("full", [], RIGHT[2:3], OF_RIGHT),
    "full of nothing": ("full", [], [], []),
}


@pytest.mark.parametrize("kinds", in_two(SIDES, "full", "inner of no right"))
def test_join_by_side_with_null_equal_to_null_and_with_an_empty_side(spark, kinds: list[str]) -> None:
    cases = [SIDES[kind] for kind in kinds]
    topology, streams, rows = TridentTopology("sides"), [], {}
    for place, (how, left, right, _) in enumerate(cases):
        one = topology.new_stream(f"l{place}", RowsSpout("user long, points long"))
        streams.append(one.join(topology.new_stream(f"r{place}", RowsSpout("user long, name string")), "user", how))
        rows.update({f"l{place}": left, f"r{place}": right})
    assert streams[0].fields == ("user", "points", "name")
    for found, (how, *_, expected) in zip(together(spark, streams, rows, 2), cases):
        assert canonical(found, False) == canonical(expected, False), how


THIRD = [(2, 1.0), (4, NAN), (None, 3.0)]
THREE = {
    (INNER, INNER, INNER): [(2, 20, "b", 1.0), (2, 21, "b", 1.0), (None, 30, "n", 3.0), (None, 30, None, 3.0)],
    (OUTER, INNER, OUTER): [
        (2, 20, "b", 1.0),
        (2, 21, "b", 1.0),
        (None, 30, "n", 3.0),
        (None, 30, None, 3.0),
        (3, None, "c", None),
    ],
    (OUTER, OUTER, OUTER): [
        (2, 20, "b", 1.0),
        (2, 21, "b", 1.0),
        (None, 30, "n", 3.0),
        (None, 30, None, 3.0),
        (3, None, "c", None),
        (1, 10, None, None),
        (4, None, None, NAN),
    ],
}


@pytest.mark.parametrize("kinds", in_two(THREE, (OUTER, INNER, OUTER)))
def test_join_of_three_streams_with_a_type_each(spark, kinds: list[tuple[JoinType, ...]]) -> None:
    topology, left, right = two()
    third = topology.new_stream("third", RowsSpout("of long, x double"))
    keys, outputs = ["user", "user", "of"], "user, points, name, x"
    joins = [topology.join(left, right, third, keys=keys, outputs=outputs, type=JoinType.mixed(*one)) for one in kinds]
    for found, types in zip(together(spark, joins, {"left": LEFT, "right": RIGHT, "third": THIRD}, 2), kinds):
        assert canonical(found, False) == canonical(THREE[types], False), types


def test_join_by_several_keys_and_with_itself(spark) -> None:
    topology, left, right = two()
    pairs = left.join(left, "user, points", outputs="u, p")
    asked(spark, pairs, LEFT, LEFT, 2)
    renamed = topology.join([right, right], keys=["user", "user"], outputs="u, a, b", type="full")
    expected = [(2, "b", "b"), (3, "c", "c"), *((None, a, b) for a in ("n", None) for b in ("n", None))]
    asked(spark, renamed, RIGHT, expected, 2)


def test_keys_that_are_not_numbers_are_compared_as_in_a_group(spark) -> None:
    topology = TridentTopology("t")
    one = topology.new_stream("one", RowsSpout("k double, d struct<a: long, b: array<string>>, n long"))
    rows = [(NAN, (1, ["x"]), 1), (-0.0, (1, [None]), 2), (0.0, (1, [None]), 3), (NAN, (1, ["x"]), 4)]
    same = one.join(one, ["k", "d"], outputs="k, d, n, m").project("n, m")
    asked(spark, same, rows, [(1, 1), (1, 4), (4, 1), (4, 4), (2, 2), (2, 3), (3, 2), (3, 3)], 2)
    asked(spark, one.group_by("k, d").aggregate(Rows(), "n").project("n"), rows, [(2,), (2,)], 3)


def test_merge_by_name_by_position_and_with_itself(spark) -> None:
    topology, left, right = two()
    other = right.rename({"name": "points"}).each("points", len, "n long").project("n, user").rename({"n": "points"})
    asked(spark, left.merge(other, left), {"left": LEFT[:2], "right": RIGHT[:1]}, [*LEFT[:2], (2, 1), *LEFT[:2]], 2)
    first = topology.merge([left.project("user"), right.each("name", len, "n long").project("n")], outputs="key")
    assert first.fields == ("key",)
    asked(spark, first, {"left": LEFT, "right": RIGHT[:1]}, [(1,), (2,), (None,), (2,), (1,)])


def test_multi_reduce_over_the_batch_and_per_group(spark) -> None:
    topology, left, right = two()
    whole = topology.multi_reduce(left, right, inputs=["points", "name"], reducer=Sides(), outputs="seen")
    asked(spark, whole, {"left": [], "right": []}, [("",)], 0)
    grouped = topology.multi_reduce(left.group_by("user"), right.group_by("user"), reducer=Sides(), outputs="seen")
    expected = [(1, "0:10"), (2, "0:20 0:21 1:b"), (3, "1:c"), (None, "0:30 1:n")]
    asked(spark, grouped, {"left": LEFT, "right": RIGHT[:3]}, expected, 3)


# --- aggregates ------------------------------------------------------------------------------

NUMBERS = [("a", 1), ("b", None), ("a", 3), (None, 4), (None, None), ("b", None)]


def numbers() -> Stream:
    return stream_of("k string, n long")


def test_chained_aggregates_give_every_combination(spark) -> None:
    """One row for the batch and the rows of the groups, of which there are none for an empty batch."""

    def chain(links: Any) -> Stream:
        links = links.aggregate("n", Sum(), "s").aggregate("n", Gathers(), "all").aggregate("n", Distinct(), "v, size")
        return links.chain_end()

    whole = [(8, "1 3 4 None None None", value, len(value)) for value in ("1", "3", "4", "None")]
    grouped = [
        (4, "1 3", "1", 1),
        (4, "1 3", "3", 1),
        (0, "None None", "None", 4),
        (4, "4 None", "4", 1),
        (4, "4 None", "None", 4),
    ]
    streams = of_one_topology(
        "k string, n long",
        [
            lambda s: chain(s.chained_agg()),
            lambda s: chain(s.chained_agg()),
            lambda s: chain(s.group_by("k").chained_agg()).drop("k"),
        ],
    )
    found = together(spark, streams, {"s0": NUMBERS, "s1": [], "s2": NUMBERS}, 3)
    assert [canonical(rows, False) for rows in found] == [canonical(rows, False) for rows in (whole, [], grouped)]


@pytest.mark.long
def test_a_chain_of_an_empty_batch_gives_a_row(spark) -> None:
    counts = numbers().chained_agg().aggregate(Count(), "rows").aggregate("n", Min(), "low")
    asked(spark, counts.chain_end(), [], [(0, None)], 2)


@pytest.mark.parametrize("method", sample(("aggregate", "partition_aggregate"), "aggregate"))
def test_a_chain_gives_what_its_links_give_alone(spark, method: str) -> None:
    values = stream_of("x double, v struct<a: long, b: double>")
    rows = [(1.0, (1, NAN)), (NAN, (1, 2.0)), (None, None), (2.0, (0, None))]
    links = (("x", Max()), ("x", Min()), ("v", Max()), ("v", Min()))
    chain = values.chained_agg()
    for place, (field, link) in enumerate(links):
        chain = getattr(chain, method)(field, link, f"o{place}")
    made = getattr(chain, method)(Rows(), "n").chain_end()
    asked(spark, made, rows, [(NAN, 1.0, (1, NAN), (0, None), 4)])


def test_columns_aggregate_as_in_pyspark(spark) -> None:
    made = numbers().group_by("k").agg(F.sum("n").alias("s"), F.count("*").alias("rows"))
    asked(spark, made, NUMBERS, [("a", 4, 2), ("b", None, 2), (None, 4, 2)], 2)
    whole = numbers().agg(F.sum("n").alias("s"), F.count("n").alias("present"))
    asked(spark, whole, [], [(None, 0)], 0)


# --- per Spark partition ---------------------------------------------------------------------


def test_partition_aggregate_gives_the_initial_value_in_an_empty_partition(spark) -> None:
    rows = [("a", 1), ("b", 2)]
    count = numbers().partition_aggregate("n", Sum(), "s")
    asked(spark, count, rows, [(1,), (0,), (2,), (0,)], 4, ordered=True)
    asked(spark, count, [], [(0,)], 0)


@pytest.mark.long
def test_aggregators_of_users_give_their_initial_value_in_an_empty_partition(spark) -> None:
    rows = [("a", 1)]
    asked(spark, numbers().partition_aggregate("n", Sum(), "s"), [], [(0,), (0,)], 2)
    asked(spark, numbers().partition_aggregate("n", Told(), "b, n"), rows, [("1:0", 1), ("1:0", 0)], 2, True)
    asked(spark, numbers().partition_aggregate("n", Distinct(), "v, size"), rows, [("1", 1)], 3)


Placed = Callable[[Stream], Stream]
REPARTITIONED: dict[str, tuple[Placed, list[int]]] = {
    "more partitions than keys": (lambda s: s.partition_by("k").parallelism_hint(5), [0, 0, 0, 4, 4]),
    "shuffle": (lambda s: s.shuffle().parallelism_hint(4), [2, 2, 2, 2]),
    "more partitions than rows": (lambda s: s.first_n(1).shuffle().parallelism_hint(3), [0, 0, 1]),
    "broadcast": (lambda s: s.broadcast().parallelism_hint(3), [8, 8, 8]),
    "custom": (lambda s: s.partition("n", lambda n: n).parallelism_hint(3), [2, 3, 3]),
    "custom, large numbers": (lambda s: s.partition("n", lambda n: 2**40 + n).parallelism_hint(3), [2, 3, 3]),
    "custom, several": (lambda s: s.partition("n", lambda n: [0, 2]).parallelism_hint(4), [0, 0, 8, 8]),
    "all of them": (lambda s: s.filter(F.col("n") < 2).partition("n", lambda n: 3).parallelism_hint(4), [0, 0, 0, 2]),
    "global": (lambda s: s.shuffle().parallelism_hint(3).global_(), [8]),
    "a hint behind it, and an each between": (
        lambda s: s.partition_by("k").each("n", lambda n: [n, n], "m long").parallelism_hint(3),
        [0, 8, 8],
    ),
    "the greater hint": (lambda s: s.shuffle().parallelism_hint(2).name("here").parallelism_hint(4), [2, 2, 2, 2]),
    "the spout's hint": (lambda s: s.filter("n", lambda n: True).parallelism_hint(4), [2, 2, 2, 2]),
}
EIGHT = [("ab"[n % 2], n) for n in range(8)]


@pytest.mark.parametrize(
    "kinds",
    in_two(REPARTITIONED, "more partitions than keys", "shuffle", "custom", "a hint behind it, and an each between"),
)
def test_partition_aggregate_behind_a_repartitioning(spark, kinds: list[str]) -> None:
    streams = of_one_topology("k string, n long", [REPARTITIONED[case][0] for case in kinds])
    rows = {f"s{place}": EIGHT for place in range(len(streams))}
    placed = together(spark, [stream.partition_aggregate(Count(), "rows") for stream in streams], rows, 2)
    for case, rows_found in zip(kinds, placed):
        counts, found = REPARTITIONED[case][1], sorted(count for (count,) in rows_found)
        assert len(found) == len(counts) and sum(found) == sum(counts), case
        if "keys" in case or "each" in case:  # where a key comes to is not promised, but it is one partition
            assert all(count % max(counts) == 0 for count in found), case
        elif "hint" not in case:
            assert found == counts, case


FAR = "n > 100"
# In how many partitions an empty batch is; where it is not said, in at least one.
EMPTY: dict[str, tuple[Placed, int | None]] = {
    "shuffle": (lambda s: s.shuffle().parallelism_hint(3), 3),
    "partition_by": (lambda s: s.partition_by("k").parallelism_hint(3), 3),
    "broadcast": (lambda s: s.broadcast().parallelism_hint(3), 3),
    "custom": (lambda s: s.partition("n", lambda n: n).parallelism_hint(3), 3),
    "the spout's hint": (lambda s: s.filter(F.expr(FAR)).parallelism_hint(3), 3),
    "global": (lambda s: s.global_(), 1),
    "aggregate": (lambda s: s.group_by("k").aggregate(Count(), "m"), None),
    "first_n": (lambda s: s.first_n(2), None),
    "join": (lambda s: s.join(s, "k", outputs="k, a, b"), None),
    "merge": (lambda s: s.merge(s), None),
    "max_by": (lambda s: s.max_by("n", scope="batch"), None),
    "filter": (lambda s: s.filter(F.col("n") > 0), None),
}


@pytest.mark.parametrize("kinds", in_two(EMPTY, "partition_by", "global", "aggregate", "filter"))
def test_there_is_always_a_partition_and_each_of_an_empty_batch_gives_the_initial_value(
    spark, kinds: list[str]
) -> None:
    streams = of_one_topology("k string, n long", [EMPTY[case][0] for case in kinds])
    rows: dict = {f"s{place}": [] for place in range(len(streams))}
    found = together(spark, [one.partition_aggregate(Rows(), "rows") for one in streams], rows, 2)
    for case, counts in zip(kinds, found):
        assert counts == [(0,)] * (EMPTY[case][1] or max(1, len(counts))), case


FOUND_EMPTY: dict[str, tuple[Callable[[Any], Any], int]] = {
    "repartition after": (lambda rows: rows.where(FAR).repartition(3), 3),
    "repartition before": (lambda rows: rows.repartition(3).where(FAR), 3),
    "aggregate": (lambda rows: rows.where(FAR).groupBy("k").agg(F.max("n").alias("n")), 1),
    "order": (lambda rows: rows.where(FAR).orderBy("n"), 1),
    "distinct": (lambda rows: rows.where(FAR).distinct(), 1),
}


@pytest.mark.parametrize("case", sample(FOUND_EMPTY, "repartition after"))
def test_partitions_that_spark_finds_empty_while_it_runs_give_the_initial_value(spark, case: str) -> None:
    behind, expected = FOUND_EMPTY[case]
    rows = behind(spark.createDataFrame(EIGHT, "k string, n long").localCheckpoint())
    assert run_batch(numbers().partition_aggregate(Count(), "c"), rows, spark=spark) == [(0,)] * expected


@pytest.mark.long
def test_a_hint_at_the_spout_holds_when_no_row_is_left(spark) -> None:
    filtered = numbers().filter(F.expr(FAR)).parallelism_hint(3).partition_aggregate(Count(), "c")
    assert run_batch(filtered, EIGHT, spark=spark) == [(0,)] * 3


# What it is called, and its rows: all in one partition.
GATHERED: dict[str, tuple[Placed, int]] = {
    "first_n": (lambda s: s.first_n(2, "n"), 2),
    "max_by": (lambda s: s.max_by("n", scope="batch"), 1),
    "aggregate": (lambda s: s.aggregate(Count(), "c"), 1),
    "Python aggregate": (lambda s: s.aggregate("n", Rows(), "c"), 1),
    "chained_agg": (lambda s: s.chained_agg().aggregate(Count(), "c").chain_end(), 1),
    "agg": (lambda s: s.agg(F.sum("n").alias("c")), 1),
    "multi_reduce": (lambda s: topology_of(s).multi_reduce(s, s, reducer=Sides(), outputs="a"), 1),
}


@pytest.mark.parametrize("kinds", in_two(GATHERED, "first_n", "aggregate"))
def test_what_is_one_for_the_batch_is_in_one_partition(spark, kinds: list[str]) -> None:
    streams = of_one_topology("k string, n long", [GATHERED[case][0] for case in kinds])
    rows = {f"s{place}": EIGHT for place in range(len(streams))}
    found = together(spark, [stream.partition_aggregate(Rows(), "rows") for stream in streams], rows, 3)
    assert found == [[(GATHERED[case][1],)] for case in kinds]


def test_what_is_made_per_partition_stays_in_it(spark) -> None:
    each = numbers().partition_aggregate("n", Sum(), "s").partition_aggregate("s", Sum(), "t")
    assert run_batch(each, EIGHT, spark=spark, partitions=2) == [(6,), (22,)]


@pytest.mark.long
def test_what_is_filtered_or_hinted_per_partition_stays_in_it(spark) -> None:
    greatest = numbers().max_by("n").filter("n", lambda n: n < 4).partition_aggregate(Rows(), "rows")
    assert run_batch(greatest, EIGHT, spark=spark, partitions=2) == [(1,), (0,)]
    hinted = run_batch(numbers().partition_aggregate(Rows(), "rows").parallelism_hint(4), EIGHT, spark=spark)
    assert len(hinted) == 4 and sum(n for (n,) in hinted) == 8


@pytest.mark.long
def test_shuffle_spreads_few_rows_of_many_partitions_evenly(spark) -> None:
    spread = numbers().shuffle().parallelism_hint(4).partition_aggregate(Count(), "c")
    assert run_batch(spread, [("a", n) for n in range(16)], spark=spark, partitions=8) == [(4,)] * 4


def test_partition_aggregate_per_group(spark) -> None:
    rows = [("a", 1), ("b", 2), ("a", 3), (None, 4), ("a", 5), (None, 6)]
    grouped = numbers().group_by("k").partition_aggregate("n", Sum(), "s").to_stream()
    asked(spark, grouped, rows, [("a", 4), ("b", 2), ("a", 5), (None, 10)], 2)
    placed = numbers().partition_by("k").parallelism_hint(4).group_by("k").partition_aggregate("n", Gathers(), "all")
    placed = placed.to_stream()
    asked(spark, placed, rows, [("a", "1 3 5"), ("b", "2"), (None, "4 6")], 3)


def test_equal_keys_come_to_one_partition_and_every_row_to_one(spark) -> None:
    rows = [(key, n) for n, key in enumerate(["a", None, "b", "a", None, "c", "a"])]
    seen = numbers().partition_by("k").parallelism_hint(3).partition_aggregate("k", Gathers(), "keys")
    found = [keys.split() for (keys,) in run_batch(seen, rows, spark=spark, partitions=3)]
    assert sorted(key for keys in found for key in keys) == sorted(str(key) for key, _ in rows)
    assert len(found) == 3 and all(sum(key in keys for keys in found) == 1 for key in ("a", "b", "c", "None"))


def test_rows_that_stay_where_they_are_keep_their_order(spark) -> None:
    stays = numbers().local_or_shuffle().name("a place").identity_partition().apply_assembly(lambda s: s.project("n"))
    asked(spark, stays, NUMBERS, [(n,) for _, n in NUMBERS], 3, ordered=True)


# --- the least and greatest, the first -------------------------------------------------------

BEST = [("b", 1.0), ("aa", NAN), ("cc", None), ("b", NAN), (None, -1.0), ("d", -1.0)]


LEAST: dict[str, tuple[Any, list[tuple], list[tuple]]] = {
    # the row of the batch, and those of three partitions
    "max_by": (lambda s, **more: s.max_by("x", **more), [("b", NAN)], [("aa", NAN), ("b", NAN), ("d", -1.0)]),
    "min_by": (lambda s, **more: s.min_by("x", **more), [("d", -1.0)], [("b", 1.0), ("b", NAN), ("d", -1.0)]),
    "max": (lambda s, **more: s.max(**more), [("d", -1.0)], [("b", 1.0), ("b", NAN), ("d", -1.0)]),
    "min": (lambda s, **more: s.min(**more), [("aa", NAN)], [("aa", NAN), ("b", NAN), ("d", -1.0)]),
    "max_by comparator": (
        lambda s, **more: s.max_by("k", by_size, **more),
        [("cc", None)],
        [("aa", NAN), ("cc", None), ("d", -1.0)],
    ),
    "min_by comparator": (
        lambda s, **more: s.min_by("k", by_size, **more),
        [("d", -1.0)],
        [("b", 1.0), ("b", NAN), ("d", -1.0)],
    ),
}


@pytest.mark.parametrize("kinds", in_two(LEAST, "max_by", "min_by comparator"))
def test_the_least_and_the_greatest_row(spark, kinds: list[str]) -> None:
    rows = stream_of("k string, x double")
    taken = [LEAST[case][0](rows, **more) for case in kinds for more in ({"scope": "batch"}, {})]
    expected = [one for case in kinds for one in LEAST[case][1:]]
    for place, (found, one) in enumerate(zip(together(spark, taken, BEST, 3), expected)):
        assert canonical(found, True) == canonical(one, True), kinds[place // 2]


def by_both(rows: Stream) -> list[Stream]:
    return [rows.max_by("n", scope="batch"), rows.min_by("n", lambda a, b: a - b, scope="batch")]


def test_of_equal_rows_the_later_is_kept(spark) -> None:
    equal = [(1, place) for place in range(6)]
    assert together(spark, by_both(stream_of("n long, at long")), equal, 3) == [[(1, 5)]] * 2


@pytest.mark.long
def test_of_none_there_is_no_least_row(spark) -> None:
    rows = stream_of("n long, at long")
    assert together(spark, [*by_both(rows), rows.max()], [(None, 1)], 2) == [[]] * 3
    asked(spark, by_both(rows)[-1], [], [], 2)
    asked(spark, stream_of("n long, m map<string,long>").max_by("n", scope="batch"), [(1, {"a": 1})], [(1, {"a": 1})])


def test_the_first_rows_are_in_order_with_nulls_last(spark) -> None:
    rows = stream_of("k string, x double")
    taken = [rows.first_n(9, "x"), rows.first_n(3, "x", reverse=True)]
    expected = [[BEST[place] for place in (4, 5, 0, 1, 3, 2)], [BEST[place] for place in (1, 3, 0)]]
    for found, one in zip(together(spark, taken, BEST, 3), expected):
        assert canonical(found, True) == canonical(one, True)


# --- fields --------------------------------------------------------------------------------


def test_fields_are_chosen_made_renamed_and_dropped(spark) -> None:
    rows = [("a", 1), (None, None)]
    made = (
        numbers()
        .with_column("n", F.col("n") + 1)
        .with_columns({"m": F.col("n") * 2, "n": F.lit("x")})
        .rename({"m": "n", "n": "m"})
        .select("n", F.upper("k").alias("K2"), "m", "k")
        .drop("k")
    )
    assert made.schema.simpleString() == "struct<n:bigint,K2:string,m:string>"
    asked(spark, made, rows, [(4, "A", "x"), (None, None, "x")], 2, ordered=True)


def test_a_star_means_the_fields_of_its_stream_in_their_order(spark) -> None:
    stream, row = stream_of("a string, n long, m long"), [("x", 1, 2)]
    narrow = stream.project("m", "a")
    assert run_batch(narrow.with_column("j", F.to_json(F.struct("*"))), row, spark=spark) == [
        (2, "x", '{"m":2,"a":"x"}')
    ]
    alone = stream.project("a")
    counted = alone.filter(F.expr("hash(*) = hash(a)")).agg(F.expr("count(distinct *)").alias("n"))
    assert run_batch(counted, [("x", 1, 1), ("x", 2, 2)], spark=spark) == [(1,)]


def test_a_field_may_be_written_in_any_case(spark) -> None:
    stream, rows = stream_of("a string, n long"), [("x", 1), ("y", 2)]
    made = stream.each("a", str.upper, "b string").filter(F.col("N") > 1).with_column("A", F.col("N") + 1)
    assert run_batch(made.group_by("b").agg(F.sum("N").alias("t"), F.max("A").alias("m")), rows, spark=spark) == [
        ("Y", 2, 3)
    ]


def test_types_that_differ_in_what_may_be_null_are_one(spark) -> None:
    topology = TridentTopology("nullability")
    lines = topology.new_stream("lines", RowsSpout("line string")).map(F.split("line", " "), "w")
    words = topology.new_stream("words", RowsSpout("w array<string>"))
    rows = {"lines": [("a b",)], "words": [(["c", None],)]}
    assert run_batch(lines.merge(words), rows, spark=spark) == [(["a", "b"],), (["c", None],)]
    both = {"lines": [("a b",)], "words": [(["a", "b"],)]}
    assert run_batch(lines.join(words, "w").filter("w", lambda w: True), both, spark=spark) == [(["a", "b"],)]


def test_the_time_of_day_is_computed_once_for_all_branches(spark) -> None:
    for clock in ("current_timestamp()", "now()", "current_date()", "unix_timestamp()", "localtimestamp()"):
        stream = numbers().each(F.expr(clock), "t")
        stream.partition_persist(DeltaAppend("a"))
        stream.filter("k", lambda k: True).partition_persist(DeltaAppend("b"))
        (group,) = plan(stream._graph)
        assert group.lowered.checkpointed == {stream._node}, clock


def test_a_link_that_is_refused_leaves_nothing_open(spark) -> None:
    stream = numbers()
    with pytest.raises(FieldError):
        stream.chained_agg().aggregate("nope", Sum(), "s")
    chain = stream.chained_agg().aggregate("n", Sum(), "s")
    with pytest.raises(FieldError):
        chain.aggregate("nope", Sum(), "t")
    chain.aggregate(Count(), "c").chain_end().partition_persist(DeltaAppend("x"))
    assert plan(stream._graph)


def test_streams_that_meet_again_and_again_are_planned_at_once() -> None:
    stream = stream_of("at timestamp, n long").with_watermark("at", "1 minute")
    for _ in range(40):
        stream = stream.merge(stream)
    stream.tumbling_window("1 minute").rows().partition_persist(DeltaAppend("x"))
    assert plan(stream._graph)


@pytest.mark.long
def test_joined_and_renamed_names_that_spark_must_quote(spark) -> None:
    odd, rows = stream_of("`a.b` long, `c d` long, `e``f` string"), [(1, 2, "x"), (1, 3, None)]
    asked(spark, odd.join(odd, "a.b", outputs="`a.b`, u, v, w, ````").project("a.b", "`").max_by("`"), rows, [(1, "x")])
    asked(spark, odd.rename({"a.b": "b.a"}).first_n(1, "c d", reverse=True), rows, [(1, 3, None)], 2)


def test_names_that_spark_must_quote(spark) -> None:
    odd = stream_of("`a.b` long, `c d` long, `e``f` string")
    rows = [(1, 2, "x"), (1, 3, None)]
    chain = odd.merge(odd, outputs="`x.y`, z, `e``f`").group_by("x.y", "e`f").chained_agg()
    asked(
        spark,
        chain.aggregate(Rows(), "`n.n`").aggregate("z", Sum(), "`s.s`").chain_end(),
        rows,
        [(1, "x", 2, 4), (1, None, 2, 6)],
        2,
    )


# --- a group is together ---------------------------------------------------------------------

MANY = [(n % 3, n) for n in range(30)]


def halves(stream: Stream) -> Stream:
    """A stream that is computed once, and used twice."""
    once = stream.each("n", lambda n: n, "m long").project("k, n")
    return once.filter("n", lambda n: n < 15).merge(once.filter("n", lambda n: n >= 15))


# Behind each of them rows of a batch in one Spark partition are in several, some of them of one group.
SPREAD: dict[str, Placed] = {
    "merge of a stream used twice": halves,
    "merge with a shuffled stream": lambda s: s.merge(s.shuffle().parallelism_hint(3)),
    "join with a shuffled stream": lambda s: s.join(s.shuffle().parallelism_hint(3), ["k", "n"], outputs="k, n"),
    "native aggregate of a shuffled stream": lambda s: s.shuffle().group_by("k, n").aggregate(Count(), "c"),
    "aggregate Columns of a shuffled stream": lambda s: s.shuffle().group_by("k, n").agg(F.count("*").alias("c")),
    "Python aggregate of a shuffled stream": lambda s: s.shuffle().group_by("n").aggregate("k", Max(), "k"),
    "multi_reduce with a shuffled stream": lambda s: topology_of(s).multi_reduce(
        s.group_by("k, n"), s.shuffle().group_by("k, n"), reducer=Sides(), outputs="seen", inputs=["n", "k"]
    ),
    "shuffle with a hint": lambda s: s.shuffle().parallelism_hint(4),
    "partition_by another field": lambda s: s.partition_by("n").parallelism_hint(3),
    "broadcast": lambda s: s.broadcast().parallelism_hint(3),
    "custom": lambda s: s.partition("n", lambda n: n // 3).parallelism_hint(3),
    "the spout's hint": lambda s: s.filter("n", lambda n: True).parallelism_hint(3),
    "global and a shuffle": lambda s: s.global_().shuffle(),
}


@pytest.mark.parametrize(
    "kinds", in_two(SPREAD, "merge of a stream used twice", "join with a shuffled stream", "partition_by another field")
)
def test_a_group_is_together_behind_what_spreads_its_rows(spark, kinds: list[str]) -> None:
    """One result per group: two would be given if its rows were in two Spark partitions.

    Spark as it is for large batches: what is shuffled stays in several partitions, joins shuffle.
    """
    streams = of_one_topology("k long, n long", [SPREAD[case] for case in kinds])
    rows = {f"s{place}": MANY for place in range(len(streams))}
    seen = [stream.group_by("k").aggregate("n", Gathers(), "all") for stream in streams]
    confs = {
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    }
    with session_confs(spark, confs):
        placed = together(spark, seen, rows)
    for case, found in zip(kinds, placed):
        assert sorted(key for key, _ in found) == [0, 1, 2], f"{case}: {len(found)} results for 3 groups"
        for key, text in found:
            assert sorted({int(one) for one in text.split()}) == [n for k, n in MANY if k == key], case


def test_a_group_of_a_batch_in_several_partitions_is_together(spark) -> None:
    seen = stream_of("k long, n long").group_by("k").aggregate("n", Told(), "batch, rows")
    again = seen.group_by("batch, rows").aggregate("k", Gathers(), "keys")
    asked(spark, again, MANY, [("1:0", 10, "0 1 2")], 3)


class Heavy:
    """An aggregator with a large table in it."""

    def __init__(self) -> None:
        self.table = random.Random(1).randbytes(3 << 20)

    def init(self, batch_id: Any) -> int:
        return 0

    def aggregate(self, state: int, word: str) -> int:
        return state + (len(self.table) > 0)

    def complete(self, state: int) -> int:
        return state


@pytest.mark.long
def test_what_is_large_is_sent_once_and_not_with_every_batch(spark) -> None:
    group = append_plan(stream_of("word string").aggregate("word", Heavy(), "rows long"))
    rows, folder = batch(spark, group, [("a",), ("b",)]), Path(spark.sparkContext._temp_dir)
    before, sizes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), []
    for txid in (1, 2, 3):
        assert collect(group.build({"rows": rows}, TransactionAttempt(txid, 0))["out"]) == [(2,)]
        sizes.append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) - before)
    assert sizes[0] == sizes[-1] < 4 << 20
