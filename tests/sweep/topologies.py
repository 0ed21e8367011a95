"""The topologies of the sweep: one source of numbered rows, the states of each kind, an append table in all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Union

from tests.matrix.sources import CommittedSpout, OpaqueSpout, RangeSpout, Source
from tests.outside_stores import APPENDED, CHANGED, Addresses
from trident import Count, DeltaAppend, DeltaMapState, TridentTopology
from trident.states.maps.backed_map import opaque
from trident.states.maps.sqlite_map import SqliteMap

SPOUTS: dict[str, Any] = {"opaque": OpaqueSpout, "committer": CommittedSpout}
# Of each kind: the keyed Delta states, and the maps.
DELTA = {"two tables": ["counts", "again"]}
MAPS = {"user-coded map": ["orders"]}
# Append tables of one aggregate that both of them use: the counts of each batch.
PER_BATCH_COUNTS = {"two tables": ["sums", "sums_again"]}


def key_of(word: str) -> str:
    return word.split("-")[0]


def nobody_hears(word: str) -> None:
    """An operation whose rows nobody takes."""


def delta_states(kind: str) -> list[str]:
    return DELTA.get(kind, ["counts"])


def delta_state(kind: str, name: str, merging: bool) -> DeltaMapState:
    """One of two tables is merged, and its log dropped, all the time or now and then; the others never: it is slow."""
    if kind == "two tables" and name == "again":
        every = 2 if merging else 10
        return DeltaMapState(name, merge_every_txids=every, merge_interval_secs=0.2, snapshot_retention_txids=2)
    return DeltaMapState(name, merge_every_txids=10**6, merge_interval_secs=10**6)


def topology_of(kind: str, source: Union[Source, Addresses], maps: Path, merging: bool = True) -> TridentTopology:
    topology = TridentTopology("swept")
    stream: Any
    if isinstance(source, Addresses):
        stream = source.stream(topology, "words", kind)
    else:
        stream = topology.new_stream("words", SPOUTS.get(kind, RangeSpout)(source))
    stream.partition_persist(DeltaAppend("audit"))
    keyed = stream.each("word", key_of, "key string")
    for name in delta_states(kind):
        counts = keyed.group_by("key").persistent_aggregate(delta_state(kind, name, merging), Count(), "n")
    if isinstance(source, Addresses):
        for name in APPENDED:
            source.append(stream, name)
        keyed.group_by("key").persistent_aggregate(source.counted(), Count(), "n")
        for name in CHANGED:
            source.change(counts.new_values_stream(), "key", name)
    for name in MAPS.get(kind, ()):
        keyed.group_by("key").persistent_aggregate(opaque(name, SqliteMap(str(maps), name)), Count(), "n")
    if kind == "two tables":
        sums = keyed.group_by("key").aggregate(Count(), "n")
        for name in PER_BATCH_COUNTS[kind]:
            sums.partition_persist(DeltaAppend(name))
        stream.peek(nobody_hears)
    return topology
