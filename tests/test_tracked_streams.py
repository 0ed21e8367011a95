"""Streams of single messages: one that fails leaves its batch, the others are committed (SEMANTICS 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordinators import faults
from tests.message_helpers import Messages
from trident import Count, DeltaAppend, DeltaMapState, TridentTopology
from trident.query import TopologyQuery, start_topology

WAIT_SECS = 90.0


@pytest.fixture
def start(spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path):
    """Starts topologies over one warehouse and one ZooKeeper root; stops them in the end."""
    queries: list[TopologyQuery] = []

    def run(topology: TridentTopology, **settings) -> TopologyQuery:
        given = {
            "warehouse": str(tmp_path / "warehouse"), "zookeeper": zk_server, "zookeeper_root": zk_root,
            "zookeeper_session_timeout_secs": 4, "replay_backoff_secs": 0.01, **settings,
        }  # fmt: skip
        query = start_topology(topology, spark, **given)
        queries.append(query)
        return query

    yield run
    faults.disarm()
    for query in queries:
        query.stop(WAIT_SECS)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[[str], list]:
    return lambda name: spark.read.format("delta").load(str(tmp_path / "warehouse" / name)).collect()


def split(sentence: str) -> Iterator[str]:
    for word in sentence.split():
        if word == "poison":
            raise ValueError("this word is poison")
        yield word


def test_a_message_that_fails_leaves_its_batch_and_becomes_a_dead_letter(start, table) -> None:
    lines = {n: f"a b{n} {'poison' if n == 3 else 'c'} d" for n in range(8)}
    spout = Messages("line string", lines.items())
    topology = TridentTopology("words")
    words = topology.new_stream("lines", spout).each("line", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    words.partition_persist(DeltaAppend("seen"), "word")
    query = start(topology, max_replays=2)
    query.process_all_available(WAIT_SECS)
    expected = Counter(word for n, line in lines.items() if n != 3 for word in line.split())
    assert {row.word: row["count"] for row in query.snapshot("counts").collect()} == expected
    assert Counter(row.word for row in query.snapshot("seen").collect()) == expected
    assert sorted(spout.acked) == list(range(8)) and spout.failed == [3, 3]
    (letter,) = table("words__lines__dead_letters")
    assert (letter.message, letter.attempts, letter.stream) == ("3", 3, "lines")
    assert letter.operation == "each(split)" and "ValueError: this word is poison" in letter.error
    assert "raise ValueError" in letter.traceback and letter.tuples is not None
