"""Arguments of a wrong type, of states, settings and topologies: an error of ours, before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from trident import (
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    TridentConfig,
    TridentTopology,
    Upsert,
    configure_spark,
    opaque,
)
from trident.commands import admin
from trident.coordinators.errors import FieldError, SparkSessionProblem, TopologyError, TridentError, described
from trident.states.maps.backed_map import non_transactional
from trident.states.maps.backing_maps import StaticMap
from trident.states.maps.redis_store import RedisMap
from trident.states.maps.sqlite_store import SqliteMap
from trident.streams.stream import Stream
from trident.tuples.topology import TupleTopology

ODD = [None, True, 0, -1, 1.5, float("nan"), b"x", [], [1], [None], object(), int, lambda: 1, "\0"]


def stream() -> Stream:
    return TridentTopology("t").new_stream("s", FixedBatchSpout("n long, w string", [[(1, "a")]]))


def runnable() -> TridentTopology:
    made = TridentTopology("t")
    made.new_stream("s", FixedBatchSpout("n long", [[(1,)]])).partition_persist(DeltaAppend("x"))
    return made


CALLS: dict[str, Callable[[Any], Any]] = {
    "start(config=)": lambda odd: runnable().start(config=odd),
    "run(config=)": lambda odd: runnable().run(config=odd),
    "TupleTopology.start(config=)": lambda odd: TupleTopology("t").start(config=odd),
    "admin.reset(config=)": lambda odd: admin.reset("t", config=odd),
    "with_overrides": lambda odd: TridentConfig().with_overrides(odd),
    "with_overrides of one": lambda odd: TridentConfig().with_overrides([odd]),
    "configure_spark": lambda odd: configure_spark(odd),
    "DeltaAppend.partition_columns": lambda odd: stream().partition_persist(DeltaAppend("x", partition_columns=odd)),
    "DeltaAppend.adopt": lambda odd: DeltaAppend("x", adopt=odd),
    "DeltaMapState.adopt": lambda odd: DeltaMapState("x", adopt=odd),
    "StaticMap": StaticMap,
    "SqliteMap.path": lambda odd: SqliteMap(odd, "t"),
    "RedisMap.durable": lambda odd: RedisMap("redis://h:1", "t", durable=odd),
    "opaque.cache_size": lambda odd: opaque("x", SqliteMap("x.db", "t"), cache_size=odd),
    "skip_replays": lambda odd: non_transactional("x", SqliteMap("x.db", "t"), skip_replays=odd),
    "with_columns": lambda odd: stream().with_columns(odd),
    "with_columns, a column": lambda odd: stream().with_columns({"a": odd}),
    "with_column, its name": lambda odd: stream().with_column(odd, lambda n: n),
    "rename": lambda odd: stream().rename(odd),
    "rename, a name": lambda odd: stream().rename({"n": odd}),
    "first_n(by=)": lambda odd: stream().first_n(1, by=odd),
}
# What these take of the above.
FINE: dict[str, list[Any]] = {
    "with_overrides": [[]],
    "DeltaAppend.adopt": [True],
    "DeltaMapState.adopt": [True],
    "DeltaAppend.partition_columns": [[]],
    "RedisMap.durable": [True],
    "skip_replays": [True],
    "opaque.cache_size": [0],
    "first_n(by=)": [None],
    "rename, a name": ["\0"],
}


@pytest.mark.parametrize("what", sorted(CALLS))
def test_an_argument_of_a_wrong_type_is_said_before_anything_runs(what: str) -> None:
    for odd in ODD:
        if odd is None and "config=" in what or any(odd is fine or odd == fine for fine in FINE.get(what, [])):
            continue
        with warnings.catch_warnings(), pytest.raises(TridentError) as caught:
            warnings.simplefilter("ignore")
            CALLS[what](odd)
        assert caught.value.found is not None or caught.value.expected is not None, (what, odd)


def test_a_value_without_a_repr_is_described_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert described(Silent()) == "a value of type Silent"
    assert described(10**5000) == "a value of type int"
    assert len(described("x" * 10_000)) < 250 and described("x") == "'x'"


@pytest.mark.parametrize("given", [TridentConfig(), {"max_attempts": 3}, "warehouse", 7], ids=repr)
def test_what_stands_in_the_place_of_the_session_is_named(given: Any) -> None:
    for start in (runnable().start, runnable().run, TupleTopology("t").start):
        with pytest.raises(SparkSessionProblem, match="no Spark session.*start\\(config="):
            start(given)


def test_keys_of_an_upsert_that_are_no_names_are_named() -> None:
    for keys in (3, None, [1], "", [""]):
        with pytest.raises(FieldError, match="needs the fields that name a row"):
            Upsert(keys)


def test_late_rows_of_what_was_grouped_say_where_they_are() -> None:
    clicks = TridentTopology("t").new_stream("s", FixedBatchSpout("at timestamp, k string", []))
    windows = clicks.with_watermark("at", "1 minute").tumbling_window("1 hour")
    with pytest.raises(AttributeError, match="call it on what was grouped: on the windows"):
        windows.group_by("k").late_rows()
    with pytest.raises(TopologyError, match=r"late_rows\(\) on the windows themselves"):
        windows.rows().late_rows()
