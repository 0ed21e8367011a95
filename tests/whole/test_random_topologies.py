"""Random topologies, random rows, random faults and crashes: every state ends as a naive fold of the source.

Drawn with Hypothesis, from a seed that is printed and can be given again with
TRIDENT_SEED; TRIDENT_RANDOM sets how many are drawn. The checks know nothing
of transactions but the order of rows within one partition of the source.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.chaos.sources import CommittedSpout, OpaqueSpout, PartitionedSpout, RangeSpout, Source
from tests.topology_helpers import starter
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    MapGet,
    MemoryMapState,
    SqliteMap,
    TridentTopology,
    Upsert,
    opaque,
    transactional,
)
from trident.coordinators import faults
from trident.running.query import TopologyQuery

EXAMPLES = int(os.environ.get("TRIDENT_RANDOM") or 2)
WAIT_SECS = 120.0
SPOUTS = {
    "transactional": RangeSpout,
    "committer": CommittedSpout,
    "partitioned": PartitionedSpout,
    "opaque": OpaqueSpout,
}
STORES = ("delta", "memory", "opaque", "transactional")
POINTS = (
    "zk.begin zk.decide zk.advance stage.write resolve.stage manifest.write publish.table publish.user spout.emit "
    "spout.commit spout.success".split()
)


def parse(text: str) -> tuple[str | None, int]:
    word, _, seq = text.partition("|")
    return word or None, int(seq)  # an empty word is a null key


class Total:
    """A reducer."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, seq: int) -> int:
        return current + seq


class Spread:
    """A general aggregator: keeps the least and the greatest."""

    def init(self, batch_id: Any) -> list:
        return [None, None]

    def resume(self, batch_id: Any, low: int, high: int) -> list:
        return [low, high]

    def aggregate(self, state: list, seq: int) -> None:
        state[0] = seq if state[0] is None else min(state[0], seq)
        state[1] = seq if state[1] is None else max(state[1], seq)

    def complete(self, state: list) -> tuple[int, int]:
        return state[0], state[1]


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """A source, a topology and what goes wrong."""
    words = draw(st.lists(st.sampled_from(["", "a", "b", "c", "ä b"]), min_size=1, max_size=14))
    spout = draw(st.sampled_from(sorted(SPOUTS)))
    partitions = draw(st.integers(1, 2)) if spout in ("partitioned", "opaque") else 1
    sinks = draw(
        st.lists(
            st.sampled_from(["count", "total", "keyed total", "spread", "last", "append", "news", "looked"]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    if partitions > 1:
        sinks = [sink for sink in sinks if sink != "last"] or ["count"]
    failing = st.tuples(st.sampled_from(POINTS), st.sampled_from(["fail_before", "do_then_fail"]), st.integers(1, 6))
    crash = st.tuples(st.sampled_from(POINTS), st.just("hang"), st.integers(1, 6))
    return {
        "words": words,
        "spout": spout,
        "partitions": partitions,
        "sinks": sinks,
        "stores": {sink: draw(st.sampled_from(STORES)) for sink in sinks},
        "changes": spout in ("committer", "opaque") and draw(st.booleans()),
        "in_flight": draw(st.integers(1, 3)),
        "faults": draw(st.lists(failing, max_size=2)),
        "crash": draw(st.none() | crash),
    }


def rows_of(world: dict[str, Any]) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = defaultdict(list)
    for seq, word in enumerate(world["words"]):
        rows[f"p{seq % world['partitions']}"].append(f"{word}|{seq + 1}")
    return rows


def state_of(world: dict[str, Any], sink: str, folder: Path) -> Any:
    name, store = sink.replace(" ", "_"), world["stores"][sink]
    if store == "memory":
        return MemoryMapState(f"{name}_{folder.name}".replace("-", "_"))
    if store in ("opaque", "transactional"):
        make = {"opaque": opaque, "transactional": transactional}[store]
        return make(name, SqliteMap(str(folder / "maps.db"), name), cache_size=3)
    return DeltaMapState(name, merge_every_txids=2)


def topology_of(world: dict[str, Any], source: Source, folder: Path) -> tuple[TridentTopology, dict[str, str]]:
    topology = TridentTopology("random")
    stream = topology.new_stream("rows", SPOUTS[world["spout"]](source))
    stream.partition_persist(DeltaAppend("audit"))
    rows = stream.filter("word", is_real).each("word", parse, "key string, seq long").project("key", "seq")
    names = {}
    for sink in world["sinks"]:
        state = None
        if sink == "count":
            state = state_of(world, sink, folder)
            rows.group_by("key").persistent_aggregate(state, Count(), "n")
        elif sink == "total":
            state = state_of(world, sink, folder)
            rows.persistent_aggregate(state, "seq", Total(), "sum long")
        elif sink == "keyed total":
            state = state_of(world, sink, folder)
            rows.group_by("key").persistent_aggregate(state, "seq", Total(), "sum long")
        elif sink == "spread":
            state = state_of(world, sink, folder)
            rows.group_by("key").persistent_aggregate(state, "seq", Spread(), "low long, high long")
        elif sink == "last":
            state = state_of(world, sink, folder)
            rows.partition_persist(state, "key, seq", Upsert("key", order_by="seq"))
        elif sink == "append":
            rows.partition_persist(DeltaAppend("append"))
        else:
            state = state_of(world, sink, folder)
            counted = rows.group_by("key").persistent_aggregate(state, Count(), "n")
            if sink == "news":
                counted.new_values_stream().partition_persist(DeltaAppend("shown"))
            else:
                rows.state_query(counted, "key", MapGet(), "before").partition_persist(DeltaAppend("seen"))
        names[sink] = state.name if state is not None else "append"
    return topology, names


def is_real(word: str) -> bool:
    return not word.startswith("ghost-")


def check(query: TopologyQuery, sink: str, name: str, rows: list[tuple[str | None, int]]) -> None:
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for key, seq in rows:
        by_key[key].append(seq)
    found = [tuple(row) for row in query.snapshot(name).collect()]
    counts = {(key, len(seqs)) for key, seqs in by_key.items()}
    if sink == "append":
        assert Counter(found) == Counter(rows)
    elif sink == "total":
        assert found == [(sum(seq for _, seq in rows),)]
    elif sink == "keyed total":
        assert set(found) == {(key, sum(seqs)) for key, seqs in by_key.items()}
    elif sink == "spread":
        assert set(found) == {(key, min(seqs), max(seqs)) for key, seqs in by_key.items()}
    elif sink == "last":
        assert set(found) == {(key, max(seqs)) for key, seqs in by_key.items()}
    else:
        assert set(found) == counts and len(found) == len(counts)
    if sink == "news":
        shown: dict[str | None, list[int]] = defaultdict(list)
        for row in query.snapshot("shown").collect():
            shown[row.key].append(row.n)
        for key, seqs in by_key.items():
            assert len(set(shown[key])) == len(shown[key]) and max(shown[key]) == len(seqs), (key, shown[key])
    if sink == "looked":
        seen: dict[str | None, Counter] = defaultdict(Counter)
        for row in query.snapshot("seen").collect():
            seen[row.key][row.before or 0] += 1
        for key, seqs in by_key.items():
            # Rows of one transaction see the same count, and the next transaction's see theirs added.
            at = 0
            for before in sorted(seen[key]):
                assert before == at, (key, seen[key])
                at += seen[key][before]
            assert at == len(seqs)


@pytest.mark.long
def test_random_topologies(spark: SparkSession, zk_server: str, tmp_path: Path, rng) -> None:
    number = 0

    @hypothesis.seed(rng.getrandbits(64))
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(worlds())
    def one(world: dict[str, Any]) -> None:
        nonlocal number
        number += 1
        folder = tmp_path / f"w{number}"
        hypothesis.note(f"world {world}")
        print(f"world {number}: {world}")
        try:
            run(spark, zk_server, world, folder)
        finally:
            faults.disarm()
            shutil.rmtree(folder, ignore_errors=True)

    one()


def run(spark: SparkSession, zk_server: str, world: dict[str, Any], folder: Path) -> None:
    (folder / "source").mkdir(parents=True)
    source = Source(str(folder / "source"), world["changes"])
    for name, rows in rows_of(world).items():
        source.write(f"rows-{name}", rows)
    source.write("partitions", sorted(rows_of(world)))
    root, in_flight = f"/random-{uuid.uuid4().hex}", world["in_flight"]
    with starter(spark, zk_server, root, folder, max_spout_pending=in_flight) as start:
        armed = [*world["faults"], *([world["crash"]] if world["crash"] else [])]
        faults.arm(",".join(f"{point}:{outcome}:{nth}" for point, outcome, nth in armed))
        topology, names = topology_of(world, source, folder)
        query = start(topology)
        source.write("ready_to", len(world["words"]) // 2 + 6)
        if world["crash"] and crashed(query, world["crash"]):
            query = start(topology_of(world, source, folder)[0])
        query.process_all_available(WAIT_SECS)
        rows = [parse(text) for texts in rows_of(world).values() for text in texts]
        for sink, name in names.items():
            check(query, sink, name, rows)


def crashed(query: TopologyQuery, crash: tuple[str, str, int]) -> bool:
    """Abandons the coordinator once it hangs at its point; False when it gets to the end without."""
    text = ":".join(map(str, crash))
    deadline = time.monotonic() + WAIT_SECS
    while text in faults.unfired():
        assert query.is_active, query.exception()
        assert time.monotonic() < deadline, "neither at the fault nor at the end"
        try:
            query.process_all_available(0.2)
            return False
        except TimeoutError:
            continue
    assert query._zk is not None
    query._zk.close()
    return True
