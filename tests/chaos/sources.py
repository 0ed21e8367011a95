"""One small durable source, read by a spout of each kind.

The source is a folder: a file of rows per partition, the list of partitions,
how far a committer has got, and up to which txid spouts are ready. So a spout
made anew after a crash sees what a spout of another process would see.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from trident.spouts.contracts import (
    BatchSpout,
    CommitterTridentSpout,
    OpaquePartitionedTridentSpout,
    PartitionBatch,
    PartitionedTridentSpout,
    SpoutKind,
)

SCHEMA = StructType().add("word", "string")
PER_BATCH = 3


@dataclass(frozen=True)
class Source:
    """The folder, and whether a replay gives other rows than the first attempt did.

    Attributes:
        path: of the folder.
        changes: attempt 0 of a txid also holds a row that later attempts do not
            have ("ghost-<txid>"), and one row less of the real ones.
        per_batch: rows of a batch.
    """

    path: str
    changes: bool = False
    per_batch: int = PER_BATCH

    def _file(self, name: str) -> Path:
        return Path(self.path) / name

    def read(self, name: str, default: Any = None) -> Any:
        try:
            return json.loads(self._file(name).read_text())
        except FileNotFoundError:
            return default

    def write(self, name: str, value: Any) -> None:
        temporary = self._file(name + ".new")
        temporary.write_text(json.dumps(value))
        temporary.replace(self._file(name))

    def rows(self, partition: str = "p0") -> Sequence[str]:
        return self.read(f"rows-{partition}", [])

    def is_ready(self, txid: int) -> bool:
        return txid <= self.read("ready_to", 0)

    def cut(self, partition: str, begin: int, attempt: Any) -> tuple[list[tuple[str]], int]:
        """The rows of one batch from a place on, and where the next goes on."""
        rows = self.rows(partition)
        first = self.changes and attempt.attempt_id == 0
        end = min(len(rows), begin + self.per_batch - (1 if first else 0))
        found = [(word,) for word in rows[begin:end]]
        if first:
            found.append((f"ghost-{attempt.txid}",))
        return found, end


@dataclass(frozen=True)
class Words(Sequence[str]):
    """Numbered rows, each under one of some keys: "k3-17"; what a topology under faults reads."""

    keys: int
    first: int = 0
    count: int = 1 << 60

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(self.count))]
        if at >= self.count:
            raise IndexError
        return f"k{(self.first + at) % self.keys}-{self.first + at}"


@dataclass(frozen=True)
class Numbered(Source):
    """A source of :class:`Words`, of each partition others; it ends where ``ready_to`` says, or with so many."""

    keys: int = 5
    count: int = 1 << 60

    def rows(self, partition: str = "p0") -> Sequence[str]:
        return Words(self.keys, 1_000 * int(partition[1:]), self.count)


class _Ready:
    """The coordinator's half that all kinds share."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def is_ready(self, txid: int) -> bool:
        return self.source.is_ready(txid)

    def success(self, txid: int) -> None:
        self.source.write("succeeded", txid)

    def close(self) -> None: ...


# --- batch -------------------------------------------------------------------------------


class PoppingSpout(BatchSpout):
    """A batch spout at its simplest: what it has given is gone, also when the batch then fails."""

    output_schema = SCHEMA

    def __init__(self, source: Source) -> None:
        self._source = source

    def open(self, context: Any) -> None: ...

    def is_ready(self, txid: int) -> bool:
        return self._source.is_ready(txid)

    def emit_batch(self, txid: int) -> Iterable[tuple]:
        # One at a time: a coordinator that was abandoned may pop beside the one that took over.
        with open(self._source.path + "/popped.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            at = self._source.read("popped", 0)
            rows = self._source.rows()[at : at + self._source.per_batch]
            self._source.write("popped", at + len(rows))
        return [(word,) for word in rows]

    def ack(self, txid: int) -> None: ...

    def close(self) -> None: ...


# --- transactional -----------------------------------------------------------------------


class RangeSpout:
    """The metadata says which rows."""

    kind = SpoutKind.TRANSACTIONAL
    output_schema = SCHEMA

    def __init__(self, source: Source) -> None:
        self._source = source

    def get_coordinator(self, context: Any) -> "_Ranges":
        return _Ranges(self._source)

    def get_emitter(self, context: Any) -> "_RangeEmitter":
        return _RangeEmitter(self._source)


class _Ranges(_Ready):
    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        if curr_metadata is not None:
            return curr_metadata
        begin = prev_metadata["to"] if prev_metadata else 0
        return {"from": begin, "to": min(begin + self.source.per_batch, len(self.source.rows()))}


class _RangeEmitter:
    def __init__(self, source: Source) -> None:
        self._source = source

    def emit_batch(self, attempt: Any, metadata: Any) -> Iterable[tuple]:
        return [(word,) for word in self._source.rows()[metadata["from"] : metadata["to"]]]

    def success(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


# --- committer ---------------------------------------------------------------------------


class CommittedSpout(CommitterTridentSpout):
    """What is taken from the source is noted there in commit only."""

    output_schema = SCHEMA

    def __init__(self, source: Source) -> None:
        self._source = source

    def get_coordinator(self, context: Any) -> "_NoMetadata":
        self._ends = _Ends()
        return _NoMetadata(self._source, self._ends)

    def get_emitter(self, context: Any) -> "_CommittingEmitter":
        return _CommittingEmitter(self._source, self._ends)


class _Ends:
    """Where the latest attempt of each transaction in flight has ended, once it has been emitted.

    Transactions begin one after the other, and are emitted side by side: what was emitted before a transaction began
    again says nothing of it, nor of those behind it, also when that emission is still going on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, int] = {}
        self._begun: dict[int, int] = {}  # txid → how often

    def begin(self, txid: int) -> None:
        with self._lock:
            self._begun[txid] = self._begun.get(txid, 0) + 1
            self._known = {other: end for other, end in self._known.items() if other < txid}

    def begun(self, txid: int) -> int:
        with self._lock:
            return self._begun.get(txid, 0)

    def end(self, txid: int) -> int | None:
        with self._lock:
            return self._known.get(txid)

    def ends(self, txid: int, begun: int, end: int) -> None:
        with self._lock:
            if self._begun.get(txid, 0) == begun:
                self._known[txid] = end


class _NoMetadata(_Ready):
    def __init__(self, source: Source, ends: _Ends) -> None:
        super().__init__(source)
        self._ends = ends

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        self._ends.begin(txid)
        return {}


class _CommittingEmitter:
    def __init__(self, source: Source, ends: _Ends) -> None:
        self._source, self._ends = source, ends

    def emit_batch(self, attempt: Any, metadata: Any) -> Any:
        # Attempts begin in the order of their txids, but may be emitted side by side: wait for the one before.
        import time

        from trident.spouts.contracts import Emitted

        deadline, begun = time.monotonic() + 30, self._ends.begun(attempt.txid)
        while (begin := self._ends.end(attempt.txid - 1)) is None:
            if self._source.read("committed_txid", 0) >= attempt.txid - 1:
                begin = self._source.read("committed", 0)
                break
            assert time.monotonic() < deadline, f"the transaction before {attempt} was never emitted"
            time.sleep(0.005)
        rows, end = self._source.cut("p0", begin, attempt)
        self._ends.ends(attempt.txid, begun, end)
        return Emitted(rows, commit_data={"to": end}, partitions=1)

    def commit(self, attempt: Any, commit_data: Any) -> None:
        self._source.write("committed", commit_data["to"])
        self._source.write("committed_txid", attempt.txid)

    def success(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


# --- in partitions -----------------------------------------------------------------------


class _Partitions(_Ready):
    def get_partitions_for_batch(self) -> list[str]:
        return self.source.read("partitions", ["p0"])

    def refresh_partitions(self, partitions: Any) -> None:
        self.source.write("refreshed", list(partitions))


class _Emitter:
    def __init__(self, source: Source) -> None:
        self._source = source

    def close(self) -> None: ...


class _InPartitions:
    output_schema = SCHEMA

    def __init__(self, source: Source) -> None:
        self._source = source

    def get_coordinator(self, context: Any) -> _Partitions:
        return _Partitions(self._source)


class PartitionedSpout(_InPartitions, PartitionedTridentSpout):
    """Transactional: an emitter per task on the executors."""

    acknowledges = False

    def get_partition_emitter(self, context: Any) -> "_PartitionEmitter":
        return _PartitionEmitter(self._source)


class _PartitionEmitter(_Emitter):
    def emit_partition_batch_new(self, attempt: Any, partition: str, last_metadata: Any) -> PartitionBatch:
        begin = last_metadata["to"] if last_metadata else 0
        rows = self._source.rows(partition)
        end = min(len(rows), begin + self._source.per_batch)
        return PartitionBatch([(word,) for word in rows[begin:end]], {"from": begin, "to": end})

    def emit_partition_batch(self, attempt: Any, partition: str, metadata: Any) -> Iterable[tuple]:
        return [(word,) for word in self._source.rows(partition)[metadata["from"] : metadata["to"]]]


class OpaqueSpout(_InPartitions, OpaquePartitionedTridentSpout):
    """Opaque: each attempt goes on from what is committed, and may give other rows."""

    acknowledges = False

    def get_partition_emitter(self, context: Any) -> "_OpaqueEmitter":
        return _OpaqueEmitter(self._source)


class _OpaqueEmitter(_Emitter):
    def emit_partition_batch(self, attempt: Any, partition: str, last_metadata: Any) -> PartitionBatch:
        rows, end = self._source.cut(partition, last_metadata["to"] if last_metadata else 0, attempt)
        return PartitionBatch(iter(rows), lambda: {"to": end})
