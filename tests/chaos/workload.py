"""The topology under faults: batch groups of numbered words, each with the source and the states of its kind.

A word is "<key>-<number>". Each group appends its words to the table ``audit``, and counts them by key in the states of
its kind. A group is data, so that each process makes the same topology, and the checker knows what must be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.sources import PER_BATCH, CommittedSpout, Numbered, OpaqueSpout, RangeSpout
from tests.outside_stores import APPENDED, CHANGED, Addresses
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, QueueSpout, SqliteQueue, TridentTopology
from trident import functions as F
from trident.states.maps.backed_map import opaque
from trident.states.maps.sqlite_map import SqliteMap

# Of a source that its test writes, with each kind of spout and of state.
NUMBERED = ("transactional", "opaque", "committer", "two tables", "user-coded map", "views")
SPOUTS: dict[str, Any] = {"opaque": OpaqueSpout, "committer": CommittedSpout}
# Over Kafka and PostgreSQL (tests/outside_stores.py), with a warehouse on a disk.
OUTSIDE = ("Kafka", "opaque Kafka")
# Of each kind: the keyed Delta states, the maps, the append tables of each batch's counts, and of the words once more.
KEYED = {"two tables": ("counts", "again"), "views": ("often", "seldom"), "queue": ()}
MAPS = {"user-coded map": ("orders",), "queue": ("orders",)}
PER_BATCH_COUNTS = {"two tables": ("sums", "sums_again")}
COPIES = {"views": ("told",)}


def key_of(word: str) -> str:
    return word.split("-")[0]


def nobody_hears(word: str) -> None:
    """An operation whose rows nobody takes."""


@dataclass(frozen=True)
class Group:
    """A batch group of the topology.

    Attributes:
        kind: says which source and which states it has.
        folder: of its source and its maps.
        prefix: of the names of its stream and its states.
        keys: how many keys the words have.
        per_batch: rows of a transaction: all of them of a source that the test writes, at most of the others.
        merged: state → after how many transactions it is merged; the others never are: it is slow.
        merge_secs: a merged state is merged so often, too.
        retention: transactions whose snapshots are kept of a merged state.
        outside: the file that names the stores outside of the warehouse.
    """

    kind: str
    folder: str
    prefix: str = ""
    keys: int = 5
    per_batch: int = PER_BATCH
    merged: Mapping[str, int] | None = None
    merge_secs: float = 0.2
    retention: int = 2
    outside: str = ""

    def named(self, name: str) -> str:
        return f"{self.prefix}{name}"

    @property
    def keyed(self) -> tuple[str, ...]:
        return KEYED.get(self.kind, ("counts",))

    @property
    def maps(self) -> tuple[str, ...]:
        return MAPS.get(self.kind, ())

    @property
    def maps_file(self) -> Path:
        return Path(self.folder) / "maps.db"

    @property
    def queue(self) -> SqliteQueue:
        return SqliteQueue(Path(self.folder) / "queue.db", lease_secs=3)

    @property
    def source(self) -> Numbered:
        """The source; of a kind whose replays may hold other rows, one whose replays do."""
        return Numbered(str(Path(self.folder) / "source"), self.kind in SPOUTS, self.per_batch, self.keys)

    @property
    def addresses(self) -> Addresses:
        return Addresses.read(Path(self.outside))

    def add_to(
        self, topology: TridentTopology, key: Callable[[str], str] = key_of, map_of: Callable[..., Any] = SqliteMap
    ) -> None:
        """Adds the group's stream and states.

        Args:
            key: makes the key of a word.
            map_of: (file, table) → the backing of a map.
        """
        words = self._words(topology)
        words.partition_persist(DeltaAppend(self.named("audit")), "word")
        for name in COPIES.get(self.kind, ()):
            words.partition_persist(DeltaAppend(self.named(name), txid_column="_txid"), "word")
        keyed = words.each("word", key, "key string")
        counts: Any = None
        for name in self.keyed:
            counts = keyed.group_by("key").persistent_aggregate(self._keyed_state(name), Count(), "n")
        for name in self.maps:
            backing = map_of(str(self.maps_file), self.named(name))
            keyed.group_by("key").persistent_aggregate(opaque(self.named(name), backing), Count(), "n")
        if self.kind in OUTSIDE:
            stores = self.addresses
            for name in APPENDED:
                stores.append(keyed, name, "key")
            keyed.group_by("key").persistent_aggregate(stores.counted(), Count(), "n")
            for name in CHANGED:
                stores.change(counts.new_values_stream(), "key", name)
        if self.kind in PER_BATCH_COUNTS:
            sums = keyed.group_by("key").aggregate(Count(), "n")
            for name in PER_BATCH_COUNTS[self.kind]:
                sums.partition_persist(DeltaAppend(self.named(name)))
            words.peek(nobody_hears)

    def _words(self, topology: TridentTopology) -> Any:
        name = self.named("words")
        if self.kind in OUTSIDE:
            return self.addresses.stream(topology, name, self.kind)
        if self.kind == "files":
            files = f"{self.folder}/in/*.txt"
            spout: Any = FileSpout(files, min_rows=1, max_rows=self.per_batch, poll_interval_secs=0.1)
            return topology.new_stream(name, spout).select(F.col("value").alias("word"))
        if self.kind == "queue":
            spout = QueueSpout(self.queue, max_messages=self.per_batch)
            return topology.new_stream(name, spout).select(F.col("payload").alias("word"))
        return topology.new_stream(name, SPOUTS.get(self.kind, RangeSpout)(self.source))

    def _keyed_state(self, name: str) -> DeltaMapState:
        every = (self.merged or {}).get(name)
        if every is None:
            return DeltaMapState(self.named(name), merge_every_txids=10**6, merge_interval_secs=10**6)
        return DeltaMapState(
            self.named(name),
            merge_every_txids=every,
            merge_interval_secs=self.merge_secs,
            snapshot_retention_txids=self.retention,
        )


def topology_of(
    name: str,
    groups: Sequence[Group],
    key: Callable[[str], str] = key_of,
    map_of: Callable[..., Any] = SqliteMap,
) -> TridentTopology:
    topology = TridentTopology(name)
    for group in groups:
        group.add_to(topology, key, map_of)
    return topology
