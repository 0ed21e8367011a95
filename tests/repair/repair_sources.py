"""A topology with every kind of source and state, for repairs: files, a queue with a fenced map, opaque partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    OpaquePartitionedTridentSpout,
    PartitionBatch,
    QueueSpout,
    SqliteMap,
    SqliteQueue,
    TridentTopology,
    opaque,
)
from trident.udf.types import as_schema


class Numbers(OpaquePartitionedTridentSpout):
    """Even and odd numbers below the one in a file; a replay holds more of them."""

    output_schema = as_schema("n long", "Numbers")

    def __init__(self, file: Path) -> None:
        self.file = file

    def get_coordinator(self, context: Any) -> Coordinator:
        return Coordinator(self.file)

    def get_partition_emitter(self, context: Any) -> Emitter:
        return Emitter(self.file)


class Coordinator:
    def __init__(self, file: Path) -> None:
        self.file = file

    def get_partitions_for_batch(self) -> list[str]:
        return ["0", "1"]

    def is_ready(self, txid: int) -> bool:
        return txid <= int(self.file.read_text()) // 10

    def refresh_partitions(self, partitions: Any) -> None: ...

    def success(self, txid: int) -> None: ...

    def close(self) -> None: ...


class Emitter:
    def __init__(self, file: Path) -> None:
        self.file = file

    def emit_partition_batch(self, attempt: Any, partition: str, last: Any) -> PartitionBatch:
        begin = last["next"] if last else int(partition)
        until = min(begin + 10 + 2 * (attempt.attempt_id % 3), int(self.file.read_text()))
        numbers = list(range(begin, until, 2))
        return PartitionBatch([(n,) for n in numbers], {"next": begin + 2 * len(numbers)})

    def close(self) -> None: ...


class Sources:
    """What the sources give, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.orders, self.files, self.below = folder, 0, 0, 0
        (folder / "in").mkdir(parents=True)
        self.queue = SqliteQueue(folder / "queue.db", lease_secs=3)
        self.map = SqliteMap(folder / "map.db", "orders")

    def add(self) -> None:
        """Two files of three lines, seven orders, twenty numbers."""
        for _ in range(2):
            (self.folder / "in" / f"{self.files:03d}.txt").write_text("a b\nb\nc\n")
            self.files += 1
        self.queue.put(f"order {(self.orders + each) % 3}" for each in range(7))
        self.orders += 7
        self.below += 20
        (self.folder / "below").write_text(str(self.below))

    def topology(self) -> TridentTopology:
        made = TridentTopology("top")
        lines = made.new_stream("lines", FileSpout(str(self.folder / "in"), min_rows=3, max_rows=3))
        words = lines.each("value", lambda line: iter(line.split()), "word string")
        words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_interval_secs=3600), Count(), "count")
        orders = made.new_stream("orders", QueueSpout(self.queue, max_messages=3))
        orders.group_by("payload").persistent_aggregate(opaque("in_map", self.map), Count(), "n")
        orders.partition_persist(DeltaAppend("orders"), "payload")
        numbers = made.new_stream("numbers", Numbers(self.folder / "below"))
        numbers.partition_persist(DeltaAppend("numbers"), "n")
        return made
