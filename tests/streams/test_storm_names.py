"""Names and forms that a user of Storm or PySpark writes: they work, or the error says what to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.streams.stream_helpers import RowsSpout, raised, run_pass, stream_of
from trident import (
    Count,
    DeltaMapState,
    JoinOutFieldsMode,
    JoinType,
    LRUMemoryMapState,
    MemoryMapState,
    SameBatchOnlyWarning,
    TopologyQuery,
    TridentTopology,
    TupleQuery,
    TupleTopology,
    expr,
)
from trident.coordinators.errors import ConfigError, FieldError, OutputTypeError, TopologyError
from trident.states.maps.memory_map import memory_map
from trident.testing import run_batch

# --- hints -------------------------------------------------------------------------------


def owners() -> dict[str, Any]:
    stream = stream_of("k string, n long")
    bolts = TupleTopology("t").set_bolt("b", type("B", (), {"execute": lambda self, tuple, collector: None})())
    return {
        "stream": stream,
        "grouped": stream.group_by("k"),
        "topology": TridentTopology("t"),
        "tuples": TupleTopology("t"),
        "state": stream.group_by("k").persistent_aggregate(DeltaMapState("s"), Count(), "c"),
        "bolt": bolts,
        "query": TopologyQuery.__new__(TopologyQuery),
        "tuple_query": TupleQuery.__new__(TupleQuery),
    }


@pytest.mark.parametrize(
    ("owner", "name", "hint"),
    [
        ("stream", "groupBy", "did you mean group_by?"),
        ("stream", "withColumn", "did you mean with_column?"),
        ("stream", "partitionPersist", "did you mean partition_persist?"),
        ("stream", "flatMap", "did you mean flat_map?"),
        ("stream", "gruop_by", "did you mean group_by?"),
        ("stream", "withColumnRenamed", "write rename"),
        ("stream", "dropDuplicates", "did you mean drop_duplicates?"),
        ("stream", "dropDuplicatesWithinWatermark", "drop_duplicates(keys, within='1 day')"),
        ("stream", "distinct", "Upsert(keys)"),
        ("stream", "count", "aggregate(Count(), 'count')"),
        ("stream", "show", "query.snapshot"),
        ("stream", "writeStream", "partition_persist(DeltaAppend(name))"),
        ("stream", "getOutputFields", "read .fields"),
        ("grouped", "persistentAggregate", "did you mean persistent_aggregate?"),
        ("grouped", "sum", "agg(F.sum('n').alias('sum'))"),
        ("grouped", "partitionPersist", "to_stream().partition_persist(…)"),
        ("grouped", "map", "to_stream().map(…)"),
        ("state", "newValuesStream", "did you mean new_values_stream?"),
        ("state", "parallelismHint", "did you mean parallelism_hint?"),
        ("topology", "newStream", "did you mean new_stream?"),
        ("topology", "newDRPCStream", "did you mean new_drpc_stream?"),
        ("topology", "build", "write start() or run()"),
        ("tuples", "setSpout", "did you mean set_spout?"),
        ("tuples", "createTopology", "write start()"),
        ("bolt", "fieldsGrouping", "did you mean fields_grouping?"),
        ("bolt", "directGrouping", "custom_grouping"),
        ("query", "awaitTermination", "did you mean await_termination?"),
        ("query", "processAllAvailable", "did you mean process_all_available?"),
        ("query", "deactivate", "write pause()"),
        ("tuple_query", "isActive", "did you mean is_active?"),
    ],
)
def test_another_name_says_what_to_write(owner: str, name: str, hint: str) -> None:
    error = raised(lambda: getattr(owners()[owner], name))
    assert isinstance(error, AttributeError) and repr(name) in str(error) and hint in str(error), error


def test_names_that_nobody_means_are_ordinary_attribute_errors() -> None:
    for owner in owners().values():
        assert not hasattr(owner, "_repr_mimebundle_") and not hasattr(owner, "__wrapped__")
        assert str(raised(lambda owner=owner: owner.xyzzyq)).endswith("has no attribute 'xyzzyq'")


def test_what_a_property_lacks_is_not_taken_for_the_property() -> None:
    with pytest.raises(AttributeError, match="_name"):
        _ = TupleQuery.__new__(TupleQuery).name


# --- map and flat_map without outputs ------------------------------------------------------


def swapped(k: str, n: int) -> tuple[str, int]:
    return k + k, n + 1


def halved(k: str, n: int) -> tuple[str, float]:
    return k, n / 2


def yielded(k: str, n: int) -> Iterator[tuple[str, int]]:
    yield k, n
    yield k, -n


def single(k: str, n: int) -> int:
    return n


def test_map_and_flat_map_without_outputs_keep_the_fields() -> None:
    def stream() -> Any:
        return stream_of("k string, n long")

    assert run_pass(stream().map(swapped), [("a", 1)]) == [("aa", 2)]
    assert run_pass(stream().map(lambda k, n: (k, n * 10)), [("a", 1)]) == [("a", 10)]
    assert run_pass(stream().flat_map(lambda k, n: [(k, n)] * n), [("a", 2), ("b", 0)]) == [("a", 2)] * 2
    assert run_pass(stream().flat_map(yielded), [("a", 1)]) == [("a", 1), ("a", -1)]
    assert run_pass(stream_of("n long").map(lambda n: n + 1), [(1,)]) == [(2,)]
    assert stream().map(halved).schema.simpleString() == "struct<k:string,n:double>", "the annotation says the type"
    with pytest.raises(OutputTypeError, match="another number of values"):
        stream().map(single)
    assert "another number of values" in str(raised(lambda: run_pass(stream().map(lambda k, n: (k,)), [("a", 1)])))


# --- the rest ----------------------------------------------------------------------------


def test_a_hint_behind_a_state_is_checked_and_gives_the_state() -> None:
    state = stream_of("k string").group_by("k").persistent_aggregate(MemoryMapState("m"), Count(), "n")
    assert state.parallelism_hint(16) is state
    with pytest.raises(TopologyError, match="whole number from 1"):
        state.parallelism_hint(0)


@pytest.fixture
def sides() -> tuple[TridentTopology, Any, Any]:
    topology = TridentTopology("sides")
    users = topology.new_stream("users", RowsSpout("id long, name string"))
    return topology, users, topology.new_stream("points", RowsSpout("user long, points long"))


@pytest.mark.filterwarnings("ignore::trident.SameBatchOnlyWarning")
def test_a_join_can_preserve_the_keys_of_every_side(spark: SparkSession, sides: Any) -> None:
    topology, users, points = sides
    assert issubclass(SameBatchOnlyWarning, UserWarning)
    rows = {"users": [(1, "ann"), (2, "bob")], "points": [(2, 20), (3, 30), (2, 21)]}
    full = topology.join(points, users, keys=["user", "id"], type=JoinType.OUTER, mode=JoinOutFieldsMode.PRESERVE)
    assert full.fields == ("user", "points", "id", "name")
    assert sorted(run_batch(full, rows, spark=spark), key=repr) == sorted(
        [(None, None, 1, "ann"), (2, 20, 2, "bob"), (2, 21, 2, "bob"), (3, 30, None, None)], key=repr
    )
    other, outputs = points.rename({"user": "id"}), "id, name, theirs, points"
    named = users.join(other, "id", "left", outputs, JoinOutFieldsMode.PRESERVE)
    assert sorted(run_batch(named, rows, spark=spark), key=repr) == [
        (1, "ann", None, None),
        (2, "bob", 2, 20),
        (2, "bob", 2, 21),
    ]
    with pytest.raises(FieldError, match="two fields of one name"):
        users.join(points.rename({"user": "id"}), "id", mode=JoinOutFieldsMode.PRESERVE)
    with pytest.raises(TopologyError, match="does not know the mode"):
        users.join(points, [["id"], ["user"]], mode="preserve")  # type: ignore[arg-type]


def test_predicates_as_text_and_counts_as_in_pyspark(spark: SparkSession) -> None:
    rows = [("a", 1), ("b", 2), ("a", 3)]
    counted = stream_of("k string, n long").where("n > 1 or k = 'a'").group_by("k").where("n < 3").count()
    assert counted.fields == ("k", "count")
    assert sorted(run_batch(counted, rows, spark=spark)) == [("a", 1), ("b", 1)]
    with pytest.raises(TopologyError, match="nothing_like_it"):
        stream_of("k string, n long").where("nothing_like_it > 1")
    with pytest.raises(TopologyError, match="each.expr.'explode.items"):
        stream_of("k string, items array<int>").select("k", expr("explode(items) as item"))


def test_an_lru_memory_map_keeps_the_keys_that_were_written_last() -> None:
    state = LRUMemoryMapState("lru_names", 2)
    made = memory_map(state.name)
    for txid, keys in enumerate(["ab", "ac", "b"], 1):
        made.update(txid, [((key,), (1,)) for key in keys], lambda old, new: old + new, "life")
    assert len(state.values()) == 2 and ("b",) in state.values()
    assert made.as_of(2, "life") == {("a",): (2, (2,)), ("c",): (2, (1,))}
    assert stream_of("k string").group_by("k").persistent_aggregate(state, Count(), "n").name == "lru_names"
    with pytest.raises(ConfigError, match="max_size"):
        LRUMemoryMapState("none", 0)
