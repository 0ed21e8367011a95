"""Groups, fused passes, live fields, branches: what a topology becomes, pinned as readable text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from pyspark.sql import functions as F

from tests.streams.stream_helpers import ATTEMPT, RowsSpout, batch, collect, raised, split
from trident.coordinators.errors import TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.operations.aggregators import Count
from trident.operations.window_nodes import WindowOp
from trident.planning.compiled import pruned_operations
from trident.planning.groups import plan
from trident.planning.operation import ByKeyOp
from trident.states.delta.append import DeltaAppend
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.maps.backing_maps import StaticMap
from trident.states.maps.memory_map import MemoryMapState
from trident.streams.stream import TridentState
from trident.topology import TridentTopology
from trident.workers.chain import CountRows


def length(word: str) -> int:
    return len(word)


class Reduces:
    def init(self) -> int:
        return 0

    def reduce(self, curr: int, n: int) -> int:
        return curr + n


def word_count() -> TridentTopology:
    topology = TridentTopology("word-count")
    topology.new_stream("lines", RowsSpout("id long, value string")).each("value", split, "word").group_by(
        "word"
    ).persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    return topology


def test_the_identity_holds_what_may_not_change_and_no_more() -> None:
    identity = word_count().identity()
    assert (
        identity
        == json.loads(json.dumps(identity))
        == {
            "streams": {"lines": "RowsSpout"},
            "states": {
                "counts": {"keys": ["word"], "value_schema": "struct<word:string,count:bigint>", "aggregator": "count"}
            },
            "groups": {"lines": ["lines"]},
        }
    )
    changed = TridentTopology("word-count")
    changed.new_stream("lines", RowsSpout("value string")).flat_map(split, "word").filter("word", bool).group_by(
        "word"
    ).persistent_aggregate(DeltaMapState("counts", merge_every_txids=1), Count(), "count")
    assert changed.identity() == identity, "functions and settings may change between runs"


def test_a_stream_that_leads_nowhere_is_an_error() -> None:
    topology = TridentTopology("t")
    topology.new_stream("a", RowsSpout("n long")).project("n")
    with pytest.raises(TopologyError, match="'a' leads nowhere"):
        plan(topology.graph)
    topology = word_count()
    topology.new_stream("unused", RowsSpout("n long"))
    with pytest.raises(TopologyError, match="'unused' leads nowhere"):
        plan(topology.graph)


# --- on Spark --------------------------------------------------------------------------------


def test_a_node_that_was_made_by_hand_may_not_come_before_what_it_is_made_of() -> None:
    topology = TridentTopology("round")
    topology.new_stream("s", RowsSpout("n long")).filter("n", bool).partition_persist(DeltaAppend("x"))
    topology.graph.nodes.reverse()
    with pytest.raises(TopologyError, match="has a cycle.*comes later"):
        plan(topology.graph)


def test_small_batches_need_no_exchange(spark) -> None:
    (group,) = plan(word_count().graph)
    rows = [(1, "a b a"), (2, "c")]
    single = group.build({"lines": named(spark, group, rows, 1)}, ATTEMPT)["counts"]
    several = group.build({"lines": named(spark, group, rows, 3)}, ATTEMPT)["counts"]
    assert "Exchange" not in physical(single) and "HashAggregate" not in physical(single)
    assert physical(several).count("Exchange hashpartitioning") == 1
    assert collect(single) == collect(several) == [("a", 2), ("b", 1), ("c", 1)]
    assert single.columns == several.columns == group.bindings[0].schema.names


def named(spark: Any, group: Any, rows: list[tuple], partitions: int) -> Any:
    (spout,) = group.spouts.values()
    frame = spark.createDataFrame(rows, spout.output_schema)
    return frame.coalesce(1) if partitions == 1 else frame.repartition(partitions)


def physical(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def test_python_grouping_repartitions_only_several_partitions(spark) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("rows", RowsSpout("k long, n long")).group_by("k").aggregate("n", Reduces(), "sum")
    stream.partition_persist(DeltaAppend("sums"))
    (group,) = plan(topology.graph)
    rows = [(k % 2, k) for k in range(10)]
    for partitions, exchanges in ((1, 0), (3, 1)):
        frame = group.build({"rows": batch(spark, group, rows, partitions)}, ATTEMPT)["sums"]
        assert physical(frame).count("Exchange hashpartitioning(k") == exchanges
        assert collect(frame) == [(0, 20), (1, 25)]


def branched(tmp_path: Any) -> TridentTopology:
    """A Python operation above two states, which notes each call in a file."""
    path = str(tmp_path / "calls")

    def noted(line: str) -> Iterator[str]:
        with open(path, "a") as file:
            file.write("x")
        yield from line.split()

    topology = TridentTopology("branched")
    words = topology.new_stream("rows", RowsSpout("line string")).each("line", noted, "word")
    words.group_by("word").persistent_aggregate(MemoryMapState("counts"), Count(), "n")
    words.partition_persist(DeltaAppend("words"), "word")
    return topology


def test_what_feeds_two_states_is_computed_once_and_can_be_released(spark, tmp_path) -> None:
    (group,) = plan(branched(tmp_path).graph)
    built = group.build({"rows": batch(spark, group, [("a b",), ("a",)])}, ATTEMPT)
    assert collect(built["counts"]) == [("a", 2), ("b", 1)]
    assert collect(built["words"]) == [("a",), ("a",), ("b",)]
    assert (tmp_path / "calls").read_text() == "xx"
    assert len(built.checkpoints) == 1
    held = spark.sparkContext._jsc.getPersistentRDDs().size()
    built.release()
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == held - 1
    built.release()


def test_a_deterministic_native_branch_is_not_materialised_but_a_random_one_is(spark) -> None:
    for column, checkpoints in ((F.upper("word"), 0), (F.uuid(), 1)):
        topology = TridentTopology("t")
        stream = topology.new_stream("rows", RowsSpout("word string")).each(column, "made")
        stream.partition_persist(DeltaAppend("one"), "made")
        stream.partition_persist(DeltaAppend("two"), "made")
        (group,) = plan(topology.graph)
        built = group.build({"rows": batch(spark, group, [("a",), ("b",)])}, ATTEMPT)
        assert len(built.checkpoints) == checkpoints
        assert collect(built["one"]) == collect(built["two"])
        built.release()


def test_several_attempts_build_at_once_each_with_its_own_rows(spark, tmp_path) -> None:
    (group,) = plan(branched(tmp_path).graph)

    def build(txid: int) -> list[tuple]:
        frames = group.build({"rows": batch(spark, group, [(f"w{txid} x",)])}, TransactionAttempt(txid, 0))
        result = collect(frames["counts"]) + collect(frames["words"])
        frames.release()
        return result

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(build, range(4)))
    assert results == [[(f"w{n}", 1), ("x", 1), (f"w{n}",), ("x",)] for n in range(4)]


def test_an_end_without_a_state_is_run_for_its_functions(spark, tmp_path) -> None:
    path = str(tmp_path / "seen")

    def note(word: str) -> None:
        with open(path, "a") as file:
            file.write(word)

    topology = TridentTopology("t")
    stream = topology.new_stream("rows", RowsSpout("word string"))
    stream.peek(note)
    stream.project("word")
    stream.partition_persist(DeltaAppend("words"))
    (group,) = plan(topology.graph)
    group.build({"rows": batch(spark, group, [("a",), ("b",)])}, ATTEMPT)
    assert (tmp_path / "seen").read_text() == "ab"


def test_a_failure_in_a_shared_node_leaves_no_blocks(spark) -> None:
    def fails(word: str) -> int:
        return 1 // (len(word) - 2)

    topology = TridentTopology("t")
    first = topology.new_stream("rows", RowsSpout("word string")).each("word", length, "n")
    second = first.each("word", fails, "m")
    for name, stream in (("a", first), ("b", second), ("c", second)):
        stream.partition_persist(DeltaAppend(name))
    (group,) = plan(topology.graph)
    held = spark.sparkContext._jsc.getPersistentRDDs().size()
    raised(lambda: group.build({"rows": batch(spark, group, [("ab",)])}, ATTEMPT))
    assert spark.sparkContext._jsc.getPersistentRDDs().size() <= held


def test_counting_in_parts_loses_nothing_when_there_are_many_keys() -> None:
    import pyarrow as pa

    from trident.workers import chain as arrow_ops

    step, meter = CountRows(("k",), "n"), arrow_ops.Meter()
    batches = [pa.array([(row * 7 + part) % 90_000 for row in range(50_000)]) for part in range(5)]
    frames = (arrow_ops.Frame({"k": keys}, len(keys), meter) for keys in batches)
    found: dict[int, int] = {}
    for frame in step.run(frames):
        for key, count in zip(frame.values("k"), frame.values("n")):
            found[key] = found.get(key, 0) + count
    expected: dict[int, int] = {}
    for keys in batches:
        for key in keys.to_pylist():
            expected[key] = expected.get(key, 0) + 1
    assert found == expected


class LookUp:
    def batch_retrieve(self, state: Any, inputs: list[tuple]) -> list[Any]:
        return state.multi_get(inputs)

    def execute(self, row: tuple, found: Any, collector: Any) -> None:
        collector.emit([found])


def test_the_new_values_of_a_state_can_be_looked_up_in_a_static_state() -> None:
    topology = word_count()
    names = topology.new_static_state(StaticMap({("a",): "A"}))
    counts = TridentState(topology.graph, topology.graph.sinks["counts"])
    named = counts.new_values_stream().state_query(names, "word", LookUp(), "name string")
    named.partition_persist(DeltaAppend("named"))
    assert "state_query(static, LookUp)" in topology.explain()


def test_rows_of_windows_that_hold_much_are_not_taken_to_be_together():
    """They are in several Spark partitions then, also where the batch is in one: by key they still have to move."""
    window = WindowOp((), cast("Any", None), cast("Any", None), None, False)
    by_key = ByKeyOp((), ("k",))
    assert pruned_operations([by_key], True)[0] == []
    assert pruned_operations([window, by_key], True) == ([window, by_key], False)
