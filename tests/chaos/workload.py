"""The topology under faults: batch groups of numbered words, each with the source and the states of its kind.

A word is "<key>-<number>". Each group appends its words to the table ``audit``, and counts them by key in the states of
its kind. A group is data, so that each process makes the same topology, and the checker knows what must be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import sources
from tests.chaos.oracle import named
from tests.chaos.outside_stores import APPENDED, CHANGED, COUNTED, Addresses
from tests.chaos.outside_stores import SPOUTS as OUTSIDE_SPOUTS
from tests.chaos.sources import PER_BATCH, Numbered
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, QueueSpout, SqliteQueue, TridentTopology
from trident import functions as F
from trident.states.maps.backed_map import non_transactional, opaque, transactional
from trident.states.maps.sqlite_store import SqliteMap

# Of a source that its test writes.
SPOUTS: dict[str, Callable[[Numbered], Any]] = {
    "batch": sources.PoppingSpout,
    "transactional": sources.RangeSpout,
    "committer": sources.CommittedSpout,
    "partitioned": sources.PartitionedSpout,
    "opaque": sources.OpaqueSpout,
    "opaque partitioned": sources.OpaqueSpout,
}
# What a group can have besides the table "audit": words by key in a Delta state or in a map, all of them in one row,
# words once more in a table, and each batch's counts in a table. Outside of the warehouse: outside_stores.py.
KEYED = ("counts", "again", "often", "seldom", "Delta keyed")
MAPS: dict[str, Callable[..., Any]] = {
    "orders": opaque,
    "opaque": opaque,
    "transactional": transactional,
    "non-transactional": non_transactional,
}
IN_ONE_ROW = "snapshottable"
COPIES = ("told", "Delta append")
PER_BATCH_COUNTS = ("sums", "sums_again")
# Kind of a group → its spout and its states. A spout is a kind, too, of which the states are to be named.
_OUTSIDE = ("counts", *APPENDED, *COUNTED, *CHANGED)
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transactional": ("transactional", ("counts",)),
    "opaque": ("opaque", ("counts",)),
    "committer": ("committer", ("counts",)),
    "two tables": ("transactional", ("counts", "again", *PER_BATCH_COUNTS)),
    "user-coded map": ("transactional", ("counts", "orders")),
    "views": ("transactional", ("often", "seldom", "told")),
    "files": ("files", ("counts",)),
    "queue": ("queue", ("orders",)),
    **{spout: (spout, _OUTSIDE) for spout in OUTSIDE_SPOUTS},
}
# Over Kafka, with a warehouse on a disk.
OUTSIDE = tuple(OUTSIDE_SPOUTS)


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
        only: its states, in place of those of its kind.
        changes: whether a replay has other rows; None: where its kind says so.
        count: rows that its source has in each partition.
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
    only: tuple[str, ...] = ()
    changes: bool | None = None
    count: int = 1 << 60

    def named(self, name: str) -> str:
        return named(self.prefix, name)

    @property
    def spout(self) -> str:
        return KINDS.get(self.kind, (self.kind,))[0]

    @property
    def states(self) -> tuple[str, ...]:
        return self.only or KINDS[self.kind][1]

    @property
    def is_outside(self) -> bool:
        """Whether it needs stores outside of the warehouse."""
        return self.spout in OUTSIDE or bool({*APPENDED, *COUNTED, *CHANGED} & {*self.states})

    @property
    def maps_file(self) -> Path:
        return Path(self.folder) / "maps.db"

    @property
    def queue(self) -> SqliteQueue:
        return SqliteQueue(Path(self.folder) / "queue.db", lease_secs=3)

    @property
    def source(self) -> Numbered:
        """The source; of a kind whose replays may hold other rows, one whose replays do, unless that is said."""
        changes = self.kind in ("opaque", "committer") if self.changes is None else self.changes
        return Numbered(str(Path(self.folder) / "source"), changes, self.per_batch, self.keys, self.count)

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
        keyed = words.each("word", key, "key string")
        by_key, counts = keyed.group_by("key"), None
        for name in self.states:
            if name in KEYED:
                counts = by_key.persistent_aggregate(self._keyed_state(name), Count(), "n")
            elif name in MAPS:
                state = MAPS[name](self.named(name), map_of(str(self.maps_file), self.named(name)))
                by_key.persistent_aggregate(state, Count(), "n")
            elif name == IN_ONE_ROW:
                total = opaque(self.named(name), map_of(str(self.maps_file), self.named(name)))
                keyed.persistent_aggregate(total, Count(), "n")
            elif name in COPIES:
                words.partition_persist(DeltaAppend(self.named(name), txid_column="_txid"), "word")
            elif name in APPENDED:
                self.addresses.append(keyed, name, "key")
            elif name in COUNTED:
                by_key.persistent_aggregate(self.addresses.counted(), Count(), "n")
            elif name in CHANGED:
                self.addresses.change(counts.new_values_stream(), "key", name)  # type: ignore[union-attr]
        if set(PER_BATCH_COUNTS) <= set(self.states):
            sums = by_key.aggregate(Count(), "n")
            for name in PER_BATCH_COUNTS:
                sums.partition_persist(DeltaAppend(self.named(name)))
            words.peek(nobody_hears)

    def _words(self, topology: TridentTopology) -> Any:
        name = self.named("words")
        if self.spout in OUTSIDE:
            return self.addresses.stream(topology, name, self.spout)
        if self.spout == "files":
            files = f"{self.folder}/in/*.txt"
            spout: Any = FileSpout(files, min_rows=1, max_rows=self.per_batch, poll_interval_secs=0.1)
            return topology.new_stream(name, spout).select(F.col("value").alias("word"))
        if self.spout == "queue":
            spout = QueueSpout(self.queue, max_messages=self.per_batch)
            return topology.new_stream(name, spout).select(F.col("payload").alias("word"))
        return topology.new_stream(name, SPOUTS[self.spout](self.source))

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
    name: str, groups: Sequence[Group], key: Callable[[str], str] = key_of, map_of: Callable[..., Any] = SqliteMap
) -> TridentTopology:
    topology = TridentTopology(name)
    for group in groups:
        group.add_to(topology, key, map_of)
    return topology
