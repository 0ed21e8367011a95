"""States that are read before they are written, queries, new values, and users' own states, in one topology."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.operations.timed_turns import rows_of
from tests.running.test_query import WAIT_SECS
from tests.streams.stream_helpers import Longest, split, stream_of, topology_of
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    MapGet,
    MemoryMapState,
    SnapshotGet,
    SqliteMap,
    StaticMap,
    Sum,
    TridentTopology,
    TupleCollectionGet,
    Upsert,
    expr,
    non_transactional,
    opaque,
    transactional,
)
from trident.coordinators import faults
from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.planning.groups import plan
from trident.planning.operation import PyOp

BATCHES = [[("a b a",), ("c",)], [], [("a b b longword",), ("c",)]]
TOTAL = {"a": 3, "b": 3, "c": 2, "longword": 1}


class Mean:
    """An aggregator that goes on from the sum and the count that it has stored."""

    def init(self, batch_id: Any) -> list:
        return [0, 0]

    def resume(self, batch_id: Any, total: int, count: int, mean: float) -> list:
        return [total, count]

    def aggregate(self, state: list, word: str) -> None:
        state[0] += len(word)
        state[1] += 1

    def complete(self, state: list) -> tuple[int, int, float]:
        return state[0], state[1], state[0] / state[1]


class Adds:
    """An updater that updates one key after the other, and tells what became of each."""

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        for (word,) in tuples:
            (new,) = state.multi_update([(word,)], [lambda old: (old or 0) + 1])
            collector.emit((word, new))


class Lines:
    """A user's state: a line per row, with the txid; its own factory and its own updater."""

    name = "lines"
    partitions = 2

    def __init__(self, path: str) -> None:
        self.path, self.rows, self.index = path, [], 0

    def make_state(self, config: Any, partition_index: int, num_partitions: int) -> "Lines":
        assert config["topology"] == "late" and config["state"] == "lines" and num_partitions == 2
        made = Lines(self.path)
        made.index = partition_index
        return made

    def begin_commit(self, txid: int | None) -> None:
        self.rows = []

    def commit(self, txid: int | None) -> None:
        with open(f"{self.path}-{self.index}", "a") as file:
            file.writelines(f"{txid} {row}\n" for row in self.rows)

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        state.rows += [word for (word,) in tuples]


class LongerThan:
    """A query of the user's over a static state."""

    def batch_retrieve(self, state: Any, args: list[tuple]) -> list[int | None]:
        return state.multi_get(args)

    def execute(self, args: tuple, result: int | None) -> list[tuple[int, str]]:
        return [(result, "known")] if result is not None else []


def late_topology(folder: Path) -> TridentTopology:
    topology = TridentTopology("late")
    store = str(folder / "maps.db")
    words = topology.new_stream("lines", FixedBatchSpout("line string", BATCHES)).each("line", split, "word")
    words = words.project("word")
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    rows = words.persistent_aggregate(MemoryMapState(f"rows_{folder.name.replace('-', '_')}"), Count(), "n")
    longest = words.persistent_aggregate(DeltaMapState("longest"), "word", Longest(), "longest")
    words.group_by("word").persistent_aggregate(DeltaMapState("mean"), "word", Mean(), "total, count, mean")
    counts.new_values_stream().partition_persist(DeltaAppend("new_counts"))
    longest.new_values_stream().partition_persist(DeltaAppend("new_longest"))
    asked = words.state_query(counts, "word", MapGet(), "before").state_query(rows, SnapshotGet(), "rows")
    asked.partition_persist(DeltaAppend("asked"))
    words.state_query(counts, TupleCollectionGet(), "any, n").partition_persist(DeltaAppend("pairs"))
    in_map = words.group_by("word").persistent_aggregate(
        opaque("in_map", SqliteMap(store, "a"), partitions=2, cache_size=10), Count(), "n"
    )
    in_map.new_values_stream().partition_persist(DeltaAppend("new_in_map"))
    words.state_query(in_map, "word", MapGet(), "before").partition_persist(DeltaAppend("asked_map"))
    words.persistent_aggregate(transactional("in_map_longest", SqliteMap(store, "b")), "word", Longest(), "longest")
    added = words.partition_persist(opaque("added", SqliteMap(store, "c")), "word", Adds(), "word string, n long")
    added.new_values_stream().partition_persist(DeltaAppend("new_added"))
    sized = words.each(expr("length(word)"), "len").each(expr("word = 'c'"), "gone")
    kept = sized.partition_persist(DeltaMapState("kept"), None, Upsert("word", delete_when="gone"))
    kept.new_values_stream().partition_persist(DeltaAppend("new_kept"))
    sized.partition_persist(opaque("kept_map", SqliteMap(store, "d")), None, Upsert("word", delete_when="gone"))
    static = topology.new_static_state(StaticMap({("a",): 1, ("longword",): 8}))
    words.state_query(static, "word", LongerThan(), "size long, how string").partition_persist(DeltaAppend("known"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not exactly once, and known to be
        words.partition_persist(Lines(str(folder / "lines")), "word", Lines(""), partition_by="word")
        words.group_by("word").persistent_aggregate(non_transactional("plain", SqliteMap(store, "e")), Count(), "n")
    return topology


@pytest.mark.skipif(
    os.environ.get("TRIDENT_MATRIX") != "all", reason="make matrix runs it: each part has tests of its own"
)
def test_everything_that_reads_states_gives_what_a_fold_gives(start, tmp_path: Path) -> None:
    # One attempt fails after it has read the states: what it read and staged must leave no trace.
    faults.arm("resolve.stage:do_then_fail:2")
    query = start.run(late_topology(tmp_path), max_spout_pending=3)
    assert not faults.unfired()

    def rows(state: str) -> Counter:
        return Counter(tuple(row) for row in query.snapshot(state).collect())

    def once(found: dict) -> Counter:
        return Counter(found.items())

    words = [Counter(word for (line,) in batch for word in line.split()) for batch in BATCHES]
    running, seen, news, pairs = Counter(), Counter(), Counter(), Counter()
    total_before: int | None = None
    for batch in words:
        for word, count in batch.items():
            seen[(word, running.get(word), total_before)] += count
            for known, n in running.items():
                pairs[(word, known, n)] += count
        running += batch
        total_before = sum(running.values())
        news.update((word, running[word]) for word in batch)
    assert running == TOTAL
    for state in ("counts", "in_map", "plain"):
        assert rows(state) == once(TOTAL), state
    assert rows("longest") == rows("in_map_longest") == Counter({("longword",): 1})
    assert rows("mean") == Counter({(w, n * len(w), n, float(len(w))): 1 for w, n in TOTAL.items()})
    assert rows("new_counts") == rows("new_in_map") == news
    assert rows("new_longest") == Counter({("a",): 2, ("longword",): 1})  # an empty batch says it again
    assert rows("asked") == seen
    assert rows("asked_map") == sum((Counter({key[:2]: n}) for key, n in seen.items()), Counter())
    assert rows("pairs") == pairs
    assert rows("new_added") == Counter({(w, n): 1 for w, total in TOTAL.items() for n in range(1, total + 1)})
    kept = once({w: len(w) for w in TOTAL if w != "c"})
    assert rows("kept") == rows("kept_map") == kept
    assert rows("new_kept") == Counter({("a", 1): 2, ("b", 1): 2, ("longword", 8): 1})
    assert rows("known") == Counter({("a", 1, "known"): 3, ("longword", 8, "known"): 1})
    lines = Counter(line for path in tmp_path.glob("lines-*") for line in path.read_text().splitlines())
    assert lines == Counter(f"{txid} {w}" for txid, batch in enumerate(words, 1) for w in batch.elements())
    assert len(list(tmp_path.glob("lines-*"))) == 2
    query.stop(WAIT_SECS, compact=False)
    left = [path for path in (tmp_path / "warehouse" / "_trident" / "late").rglob("*.parquet")]
    assert left == [], "rows that waited are removed once their transaction has advanced"


def test_the_plan_shows_what_waits_for_the_transactions_turn(tmp_path: Path) -> None:
    text = late_topology(tmp_path).explain()
    early, late = text.split("in the transaction's turn, as of the transaction before")
    assert "look up" not in early and "staged for the transaction's turn" in early
    assert "look up word in counts" in late and "Count() of the stored value and the batch's" in late
    assert "the last row of each word" in early  # an upsert waits for nothing


def test_workers_that_upsert_into_a_map_load_nothing_of_the_planner(tmp_path: Path) -> None:
    stream = stream_of("id long, name string")
    stream.partition_persist(opaque("users", SqliteMap(tmp_path / "maps.db", "users")), None, Upsert("id"))
    (group,) = plan(topology_of(stream).graph)
    steps = [op.step for segment in group.lowered.late_segments for op in segment.ops if isinstance(op, PyOp)]
    assert steps
    assert b"trident.operations" not in CloudPickleSerializer().dumps(steps)


def test_a_topology_that_is_started_again_finds_the_same_fields_behind_new_values() -> None:
    stream = stream_of("id long, _deleted_at timestamp, name string")
    users = stream.partition_persist(DeltaMapState("users"), None, Upsert("id"))
    users.new_values_stream().partition_persist(DeltaAppend("changes"))
    states = topology_of(stream).identity()["states"]
    assert states["users"]["value_schema"] == "struct<id:bigint,_deleted_at:timestamp,name:string>"
    assert states["changes"]["value_schema"] == "struct<id:bigint,name:string>"


def upserted(stream: Any, *arguments: Any, **settings: Any) -> Any:
    return stream.partition_persist(DeltaMapState("x"), None, Upsert(*arguments, **settings))


def counted(stream: Any) -> Any:
    return stream.group_by("word").persistent_aggregate(DeltaMapState("x"), Count(), "c")


def emitting(stream: Any) -> Any:
    return stream.partition_persist(Lines("x"), "word", Lines("x"), "a string", partition_by="word")


def reduced_in_a_map(stream: Any) -> Any:
    in_map = non_transactional("x", SqliteMap("f", "t"))
    return stream.group_by("word").persistent_aggregate(in_map, "n", Longest(), "v string")


DELETED_KEYS = "keeps the rows of deleted keys.*DeltaMapState"
NO_INTEGER = "orders changes by field 'f'.*found: double.*an integer"
IN_SQLITE = opaque("x", SqliteMap("f", "t"))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda s: s.partition_persist(DeltaMapState("x")), TopologyError, "give an updater.*Upsert"),
        (lambda s: s.partition_persist(DeltaMapState("x"), "word", Adds()), TopologyError, "calls no updater.*Upsert"),
        (lambda s: s.partition_persist(DeltaAppend("x"), "word", Upsert("word")), TopologyError, "one value per key"),
        (lambda s: s.partition_persist(DeltaMapState("x"), "word", Upsert("word")), FieldError, "nothing to store"),
        (lambda s: upserted(s, "wrod"), FieldError, "Did you mean 'word'"),
        (lambda s: upserted(s, "word", delete_when="n"), FieldError, "expected: boolean"),
        (lambda s: upserted(s, "word", order_by="n", sequence_by="n"), FieldError, "one order.*order_by='n' and seq"),
        (lambda s: s.partition_persist(IN_SQLITE, None, Upsert("word", sequence_by="n")), TopologyError, DELETED_KEYS),
        (lambda s: upserted(s, "n", sequence_by="n"), FieldError, "the sequence of changes.*a key"),
        (lambda s: upserted(s.each("n", float, "f double"), "word", sequence_by="f"), FieldError, NO_INTEGER),
        (lambda s: upserted(s, "word", sequence_by="m"), FieldError, "does not exist; found: 'm'"),
        (
            lambda s: upserted(s, "word", sequence_by="n").new_values_stream(),
            TopologyError,
            "no stream of.*sequence_by",
        ),
        (lambda s: s.partition_persist(Lines("x"), "word", Lines("x")), TopologyError, "2 partitions.*partition_by"),
        (emitting, TopologyError, "cannot emit.*after the decision"),
        (lambda s: s.partition_persist(IN_SQLITE, "word", Adds(), "word"), OutputTypeError, "type of output 'word'"),
        (lambda s: s.partition_persist(DeltaAppend("x")).new_values_stream(), TopologyError, "no stream of.*appended"),
        (lambda s: s.state_query(counted(s), MapGet(), "c"), TopologyError, "takes 1 fields"),
        (lambda s: s.state_query(counted(s), "n", MapGet(), "c"), TopologyError, "found: bigint.*expected: string"),
        (
            lambda s: s.state_query(s.persistent_aggregate(DeltaMapState("x"), Count(), "c"), MapGet(), "c"),
            TopologyError,
            "has no keys.*SnapshotGet",
        ),
        (lambda s: s.state_query(counted(s), "word", LongerThan(), "c"), TopologyError, "calls no query of yours"),
        (
            lambda s: s.state_query(counted(stream_of("word string")), "word", MapGet(), "c"),
            TopologyError,
            "of its own topology",
        ),
        (lambda s: topology_of(s).new_static_state(SqliteMap), TopologyError, "not a static state"),
        (reduced_in_a_map, TopologyError, "updated while it is published"),
    ],
)
@pytest.mark.filterwarnings("ignore::trident.operations.guarantees.NotExactlyOnceWarning")
def test_what_cannot_be_is_said_when_it_is_built(build: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        build(stream_of("word string, n long"))


@pytest.mark.long
def test_a_topology_may_be_started_again_with_more_fields(start, tmp_path: Path) -> None:
    def topology(batches: list, *more: str) -> TridentTopology:
        made = TridentTopology("grows")
        rows = made.new_stream("rows", FixedBatchSpout("id string, name string, age long", batches))
        rows.partition_persist(DeltaMapState("people"), ["id", "name", *more], Upsert("id"))
        rows.partition_persist(DeltaAppend("changes"), ["id", "name", *more])
        return made

    first = [[("1", "ann", 30), ("2", "bob", 40)]]
    query = start.run(topology(first))
    query.stop()
    query = start.run(topology([*first, [("1", "anna", 31), ("3", "cid", 5)]], "age"))
    people = {tuple(row) for row in query.snapshot("people").collect()}
    assert people == {("1", "anna", 31), ("2", "bob", None), ("3", "cid", 5)}
    changes = Counter(tuple(row) for row in query.snapshot("changes").collect())
    assert changes == Counter([("1", "ann", None), ("2", "bob", None), ("1", "anna", 31), ("3", "cid", 5)])
    query.stop()  # the second MERGE: into a table that the first has filled
    plain = DeltaTable(str(tmp_path / "warehouse" / "people")).to_pyarrow_table().select(["id", "name", "age"])
    assert {tuple(row.values()) for row in plain.to_pylist()} == people


@pytest.mark.long
def test_an_aggregate_behind_what_is_read_late_has_a_row_for_every_batch(start, tmp_path: Path) -> None:
    """Also where nothing else of the topology has anything to do for an empty batch."""
    topology = TridentTopology("rows_of_none")
    words = topology.new_stream("words", FixedBatchSpout("word string", [[("a",), ("b",)], [], [("a",)], []]))
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    news = counts.new_values_stream()
    news.aggregate(Count(), "rows").partition_persist(DeltaAppend("changed"))
    words.state_query(counts, "word", MapGet(), "k").agg(expr("count(k) as rows")).partition_persist(
        DeltaAppend("known")
    )
    # A field that was dropped may be made again by a look-up.
    again = news.project("word").state_query(counts, "word", MapGet(), "n")
    again.partition_persist(DeltaAppend("before"))
    news.partition_persist(DeltaAppend("news"))
    start.run(topology)

    assert rows_of(tmp_path, "changed") == Counter({(2,): 1, (1,): 1, (0,): 2})
    assert rows_of(tmp_path, "known") == Counter({(0,): 3, (1,): 1})
    assert rows_of(tmp_path, "before") == Counter([("a", None), ("b", None), ("a", 1)])


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (StringType("UTF8_LCASE"), "string collate UTF8_LCASE"),
        (StructType([StructField("in", StringType("UNICODE_CI"))]), "struct<in:string collate UNICODE_CI>"),
    ],
)
def test_a_key_with_a_collation_is_refused_when_the_topology_is_built(key: Any, found: str) -> None:
    """The tables of a state tell keys apart by their bytes; its look-ups and its MERGE would fail, batch by batch."""
    topology = TridentTopology("collated")
    schema = StructType([StructField("k", key), StructField("n", LongType())])
    rows = topology.new_stream("rows", FixedBatchSpout(schema, [[]]))
    with pytest.raises(FieldError, match=f"'k' cannot be a key of state kept; found: {found}.*lower"):
        rows.group_by("k").persistent_aggregate(DeltaMapState("kept"), "n", Sum(), "total")
    with pytest.raises(FieldError, match="'k' cannot be a key of state kept"):
        rows.partition_persist(DeltaMapState("kept"), None, Upsert("k"))
    rows.group_by("k").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("totals"))  # Spark's own grouping
    plain = StructType([StructField("k", StringType("UTF8_BINARY")), StructField("n", LongType())])
    more = topology.new_stream("more", FixedBatchSpout(plain, [[]]))
    more.group_by("k").persistent_aggregate(DeltaMapState("plain"), "n", Sum(), "total")
