"""Steps that workers are sent load nothing of the planner there: each worker would pay with time and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.streams.stream_helpers import RowsSpout, topology_of
from trident import Count, DeltaAppend, MapGet, Split, SqliteMap, Sum, TridentTopology, Upsert, opaque
from trident.planning.groups import plan
from trident.planning.operation import PyOp
from trident.streams.stream import Stream


class Longest:
    def init(self, batch_id: Any) -> list[str]:
        return [""]

    def aggregate(self, state: list[str], *words: str) -> None:
        state[0] = max(state[0], *words, key=len)

    def execute(self, state: list[str], stream_index: int, word: str) -> None:
        self.aggregate(state, word)

    def complete(self, state: list[str]) -> str:
        return state[0]


def upserted_and_asked(words: Stream) -> Stream:
    users = words.partition_persist(opaque("users", SqliteMap("maps.db", "users")), None, Upsert("word"))
    return words.state_query(users, "word", MapGet(), "found")


STREAMS: dict[str, Callable[[Stream], Stream]] = {
    "built-in": lambda words: words.each("word", str.upper, "upper string").each("upper", Split(), "part"),
    "chain": lambda words: (
        words.chained_agg().aggregate(Count(), "count").aggregate("word", Longest(), "longest").chain_end()
    ),
    "parts": lambda words: (
        words.chained_agg().partition_aggregate(Count(), "count").partition_aggregate("n", Sum(), "sum").chain_end()
    ),
    "several streams": lambda words: topology_of(words).multi_reduce(
        words, words, reducer=Longest(), outputs="longest", inputs=["word", "word"]
    ),
    "partition": lambda words: words.partition("word", len),
    "best row": lambda words: words.max_by("word", lambda one, other: len(one) - len(other)),
    "map": upserted_and_asked,
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_worker_loads_nothing_of_the_planner(name: str) -> None:
    words = TridentTopology("light").new_stream("rows", RowsSpout("word string, n long, key string"))
    end = STREAMS[name](words.project("word", "n") if name == "map" else words)
    end.partition_persist(DeltaAppend("end"))
    (group,) = plan(topology_of(words).graph)
    segments = (*group.lowered.segments, *group.lowered.late_segments)
    steps = [op.step for segment in segments for op in segment.ops if isinstance(op, PyOp)]
    assert steps
    read = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); "
        "print(*(name for name in sys.modules if name.startswith(('trident.planning', 'trident.streams'))))"
    )
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # as a user's own script: this module imports the planner
    try:
        given = cloudpickle.dumps(steps)
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    loaded = subprocess.run([sys.executable, "-c", read], input=given, capture_output=True, check=True).stdout
    assert loaded.split() == []
