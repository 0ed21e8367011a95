"""Topologies with every kind of stored thing, for warehouses that an older version wrote.

    python tests/upgrade/job.py FOLDER feed FROM TO
    python tests/upgrade/job.py FOLDER run

Only public names are used, so that the same file runs with any version. Everything lies
in FOLDER, relative to it: a copy elsewhere is the same topology.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    OpaquePartitionedTridentSpout,
    PartitionBatch,
    QueueSpout,
    RichSpout,
    SpoutKind,
    SqliteMap,
    SqliteQueue,
    TridentTopology,
    opaque,
)

WORDS = ("ash", "birch", "cedar", "elm", "fir")
PARTITIONS = ("p0", "p1", "p2")


def lines_of(number: int) -> list[str]:
    """The words of data/NUMBER.txt."""
    return [WORDS[(number * step) % len(WORDS)] for step in range(1, 5)]


def schema_of(*fields: str):
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    return StructType([StructField(name, LongType() if name == "n" else StringType()) for name in fields])


class Numbers(OpaquePartitionedTridentSpout):
    """Reads numbers/PARTITION.txt, three lines a batch; the metadata is how many lines were read."""

    kind = SpoutKind.OPAQUE
    output_schema = schema_of("number")

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())

    def get_coordinator(self, context):
        return _Partitions(self.folder)

    def get_partition_emitter(self, context):
        return _Reader(self.folder)


class _Partitions:
    def __init__(self, folder: str) -> None:
        self.folder, self.seen = Path(folder), -1

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("p*.txt"))

    def get_partitions_for_batch(self):
        return list(PARTITIONS)

    def is_ready(self, txid: int) -> bool:
        # A few batches more than needed read what three lines a batch have left over.
        if self._size() != self.seen:
            self.seen, self.left = self._size(), 6
        self.left -= 1
        return self.left >= 0

    def refresh_partitions(self, partitions) -> None: ...
    def success(self, txid: int) -> None: ...
    def close(self) -> None: ...


class _Reader:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def emit_partition_batch(self, attempt, partition, last_metadata):
        done = last_metadata or 0
        path = self.folder / f"{partition}.txt"
        rows = path.read_text().split()[done : done + 3] if path.exists() else []
        return PartitionBatch([(row,) for row in rows], done + len(rows))

    def close(self) -> None: ...


class Mailbox(RichSpout):
    """Hands out the lines of inbox.jsonl until acked.txt has them; what was not acknowledged comes again."""

    fields = "name string"

    def open(self) -> None:
        self.out: set[int] = set()
        self.again: list[int] = []

    def _messages(self) -> list[str]:
        return Path("inbox.jsonl").read_text().splitlines() if Path("inbox.jsonl").exists() else []

    def _acked(self) -> set[int]:
        return {int(line) for line in Path("acked.txt").read_text().split()} if Path("acked.txt").exists() else set()

    def next_tuple(self) -> None:
        if self.again:
            number = self.again.pop()
            self.collector.emit(self._messages()[number], number)
            return
        for number, name in enumerate(self._messages()):
            if number not in self.out and number not in self._acked():
                self.out.add(number)
                self.collector.emit(name, number)
                return

    def ack(self, message_id: int) -> None:
        with open("acked.txt", "a") as file:
            file.write(f"{message_id}\n")

    def fail(self, message_id: int) -> None:
        self.again.append(message_id)


def order(payload: str) -> tuple[str, int]:
    fields = json.loads(payload)
    return fields["item"], fields["n"]


def known(name: str) -> str:
    if name == "???":
        raise ValueError("nobody can read this name")
    return name


def queue() -> SqliteQueue:
    return SqliteQueue("queue.db", lease_secs=1.0)


def topology() -> TridentTopology:
    made = TridentTopology("upgraded")
    # A FileSpout knows files by their absolute paths: this one is the same in every copy of the folder.
    lines = made.new_stream("lines", FileSpout("/proc/self/cwd/data/*.txt", min_rows=4, max_rows=12))
    lines.partition_persist(DeltaAppend("seen"))
    words = lines.group_by("value")
    words.persistent_aggregate(DeltaMapState("counts", merge_every_txids=3), Count(), "n")
    words.persistent_aggregate(opaque("totals", SqliteMap("totals.db", "totals")), Count(), "n")
    orders = made.new_stream("orders", QueueSpout(queue(), 3, schema="item string, n long", decode=order))
    orders.partition_persist(DeltaAppend("order_lines"))
    made.new_stream("numbers", Numbers(Path("numbers"))).partition_persist(DeltaAppend("numbers_seen"))
    names = made.new_stream("inbox", Mailbox())
    names.each("name", known, "known").group_by("known").persistent_aggregate(DeltaMapState("names"), Count(), "n")
    return made


def feed(first: int, last: int) -> None:
    """Input number FIRST to LAST - 1 of every source."""
    for folder in ("data", "numbers"):
        Path(folder).mkdir(exist_ok=True)
    for number in range(first, last):
        Path(f"new-{number}.txt").write_text("".join(f"{word}\n" for word in lines_of(number)))
        os.utime(f"new-{number}.txt", (1_700_000_000 + number, 1_700_000_000 + number))
        os.rename(f"new-{number}.txt", f"data/{number:03}.txt")
        queue().put([json.dumps({"item": WORDS[number % 5], "n": number})])
        for partition in PARTITIONS:
            with open(f"numbers/{partition}.txt", "a") as file:
                file.write(f"{partition}-{number}\n")
        with open("inbox.jsonl", "a") as file:
            file.write(("???" if number % 7 == 3 else f"name {number % 4}") + "\n")


def run() -> None:
    query = topology().start(
        warehouse="warehouse", zookeeper_session_timeout_secs=4.0, max_replays=1, replay_backoff_secs=0.1
    )
    query.process_all_available(300)
    query.stop()
    print("all advanced")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    if sys.argv[2] == "feed":
        feed(int(sys.argv[3]), int(sys.argv[4]))
    else:
        run()
