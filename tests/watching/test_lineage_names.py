"""Data and columns of topologies, by OpenLineage's names; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    DeltaSpout,
    FileSpout,
    FixedBatchSpout,
    HttpState,
    KafkaSpout,
    KafkaState,
    MemoryMapState,
    PostgresMap,
    PostgresState,
    RedisMap,
    Sum,
    TridentTopology,
    expr,
    opaque,
)
from trident.errors import TopologyError
from trident.planning.groups import plan
from trident.states.core.place import Place
from trident.watching.lineage import ColumnOrigins, inputs_of, of_place, outputs_of

WAREHOUSE = Place("/data/warehouse")


def names_of_outputs(topology: TridentTopology) -> list[tuple[str, str]]:
    return [(one.namespace, one.name) for group in plan(topology.graph) for one in outputs_of(group, WAREHOUSE)]


def names_of_inputs(topology: TridentTopology) -> list[tuple[str, str]]:
    return [(one.namespace, one.name) for group in plan(topology.graph) for one in inputs_of(group)]


@pytest.mark.parametrize(
    "place, namespace, name",
    [
        ("/data/in", "file", "/data/in"),
        ("/data/in/", "file", "/data/in"),
        ("file:///data/in", "file", "/data/in"),
        ("s3a://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3://bucket", "s3://bucket", "/"),
        ("hdfs://host:8020/a/b", "hdfs://host:8020", "/a/b"),
    ],
)
def test_places(place: str, namespace: str, name: str) -> None:
    assert of_place(place) == (namespace, name)


@pytest.mark.parametrize(
    "spout, names",
    [
        (lambda: FileSpout("/in/2026-*/part?.txt"), [("file", "/in")]),
        (lambda: FileSpout(["/a", "/b/*.txt"]), [("file", "/a"), ("file", "/b")]),
        (lambda: DeltaSpout("/tables/orders", schema="n long"), [("file", "/tables/orders")]),
        (lambda: KafkaSpout("b1:9093,b2:9093", ["x", "y"]), [("kafka://b1:9093", "x"), ("kafka://b1:9093", "y")]),
        (lambda: KafkaSpout("b1", pattern="x.*"), [("kafka://b1:9092", "x.*")]),
        (lambda: KafkaSpout("[::1]", "x"), [("kafka://[::1]:9092", "x")]),
        (lambda: FixedBatchSpout("n long", [[(1,)]]), []),
    ],
)
def test_what_spouts_read(spout: Any, names: list[tuple[str, str]]) -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", spout()).partition_persist(DeltaAppend("rows"))
    assert names_of_inputs(topology) == names


@pytest.mark.parametrize(
    "state, names",
    [
        (DeltaAppend("rows"), [("file", "/data/warehouse/rows")]),
        (KafkaState("b1:9092,b2:9092", "topic", value="v"), [("kafka://b1:9092", "topic")]),
        (PostgresState("postgresql://me:secret@db/shop", "orders"), [("postgres://db:5432", "shop.public.orders")]),
        (PostgresState("postgresql://db:5433/shop", "sales.orders"), [("postgres://db:5433", "shop.sales.orders")]),
        (
            PostgresState("postgresql://me:secret@db1:5433,db2,[::1]:5434/shop", "orders"),
            [("postgres://db1:5433,db2:5432,[::1]:5434", "shop.public.orders")],
        ),
        (
            PostgresState("postgresql:///?host=db1,db2&port=5433&dbname=shop&password=secret", "orders"),
            [("postgres://db1:5433,db2:5433", "shop.public.orders")],
        ),
        (
            PostgresState("postgresql://me:secret@:6432/shop?host=/run/postgresql", "orders"),
            [("postgres://localhost:6432", "shop.public.orders")],
        ),
        (
            PostgresState("postgresql:///my%20shop?host=/run/postgresql", "orders"),
            [("postgres://localhost:5432", "my shop.public.orders")],
        ),
        (HttpState("https://api.example.com/hook/secret", "sent", body="v"), [("https://api.example.com", "sent")]),
    ],
)
def test_what_states_are(state: Any, names: list[tuple[str, str]]) -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatchSpout("k string, v string", [])).partition_persist(state)
    assert names_of_outputs(topology) == names
    assert "secret" not in str(names_of_outputs(topology))


@pytest.mark.parametrize(
    "state, names",
    [
        (DeltaMapState("counts"), [("file", "/data/warehouse/counts")]),
        (MemoryMapState("counts"), []),
        (opaque("m", RedisMap("redis://:secret@cache:6380/1", "m")), [("redis://cache:6380", "m")]),
        (opaque("m", RedisMap("redis://[::1]/1", "m")), [("redis://[::1]:6379", "m")]),
        (
            opaque("m", PostgresMap("postgresql://db1,db2:5433/shop", "m")),
            [("postgres://db1:5432,db2:5433", "shop.public.m")],
        ),
        (opaque("m", PostgresMap("postgresql://db/shop", "m")), [("postgres://db:5432", "shop.public.m")]),
    ],
)
def test_what_keyed_states_are(state: Any, names: list[tuple[str, str]]) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("k string", []))
    stream.group_by("k").persistent_aggregate(state, Count(), "n")
    assert names_of_outputs(topology) == names


class Named(FixedBatchSpout):
    """A spout that says its data by itself."""

    names: Any = [("sqlserver://db:1433", "shop.orders")]

    def lineage_datasets(self) -> Any:
        return self.names


def test_a_spout_of_the_users_says_its_data_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = TridentTopology("t")
    topology.new_stream("s", Named("n long", [])).partition_persist(DeltaAppend("rows"))
    assert names_of_inputs(topology) == [("sqlserver://db:1433", "shop.orders")]
    for wrong in ("name", [("only one",)], [(1, "x")], None):
        monkeypatch.setattr(Named, "names", wrong)
        with pytest.raises(TopologyError, match="lineage_datasets.. of Named cannot be used"):
            names_of_inputs(topology)


# --- columns -----------------------------------------------------------------------------------------


def origins(topology: TridentTopology) -> dict[str, dict[str, set[str]]]:
    """State → column → "stream.field WAY"."""
    found: dict[str, dict[str, set[str]]] = {}
    of = ColumnOrigins()
    for group in plan(topology.graph):
        for node in group.nodes:
            if node.writes is not None:
                found[node.writes.name] = {
                    column: {f"{source.tx_id}.{read} {way.name}" for (source, read), way in of.of(node, column).items()}
                    for column in node.names
                }
    return found


def test_columns_are_followed_through_functions_renames_filters_and_aggregates() -> None:
    topology = TridentTopology("t")
    rows = topology.new_stream("s", FixedBatchSpout("shop string, size long, note string, paid boolean", []))
    kept = rows.filter("paid").with_column("double", expr("size * 2")).rename({"shop": "store"}).drop("note")
    kept.partition_persist(DeltaAppend("kept"))
    kept.group_by("store").persistent_aggregate(DeltaMapState("sums"), "double", Sum(), "total")
    found = origins(topology)
    assert found["kept"] == {
        "store": {"s.shop IDENTITY", "s.paid INDIRECT"},
        "size": {"s.size IDENTITY", "s.paid INDIRECT"},
        "paid": {"s.paid IDENTITY"},
        "double": {"s.size TRANSFORMATION", "s.paid INDIRECT"},
    }
    assert found["sums"] == {
        "store": {"s.shop IDENTITY", "s.paid INDIRECT"},
        "total": {"s.size AGGREGATION", "s.shop INDIRECT", "s.paid INDIRECT"},
    }


def test_columns_of_merged_and_joined_streams_come_from_each_side() -> None:
    topology = TridentTopology("t")
    left = topology.new_stream("left", FixedBatchSpout("id long, a string", []))
    right = topology.new_stream("right", FixedBatchSpout("id long, b string", []))
    topology.join([left, right], keys=["id", "id"], outputs="id, a, b").partition_persist(DeltaAppend("joined"))
    topology.merge([left.project("id"), right.project("id")]).partition_persist(DeltaAppend("merged"))
    found = origins(topology)
    assert {"left.a IDENTITY", "left.id INDIRECT"} <= found["joined"]["a"]
    assert not any(one.startswith("right.b") for one in found["joined"]["a"])
    assert found["merged"]["id"] == {"left.id IDENTITY", "right.id IDENTITY"}
