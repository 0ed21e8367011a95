"""A spout of each kind over the same rows: word-like keys made from their number, so nothing is read."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from trident import (
    CommitterTridentSpout,
    Emitted,
    OpaquePartitionedTridentSpout,
    PartitionBatch,
    PartitionedTridentSpout,
)
from trident.spouts.contracts import BatchSpout, SpoutKind

SCHEMA = StructType().add("key", "string").add("n", "long")


def rows(begin: int, count: int, keys: int) -> list[tuple[str, int]]:
    return [(f"k{(begin + number) % keys:08d}", 1) for number in range(count)]


class Gate:
    """Ready up to a transaction that the benchmark sets."""

    def __init__(self, count: int, keys: int) -> None:
        self.count, self.keys, self.to = count, keys, 0

    def is_ready(self, txid: int) -> bool:
        return txid <= self.to


class _Coordinator:
    def __init__(self, gate: Gate, partitions: int = 0) -> None:
        self._gate, self._partitions = gate, partitions

    def is_ready(self, txid: int) -> bool:
        return self._gate.is_ready(txid)

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        return {"from": (txid - 1) * self._gate.count}

    def get_partitions_for_batch(self) -> list[str]:
        return [f"p{number}" for number in range(self._partitions)]

    def refresh_partitions(self, partitions: Any) -> None: ...

    def success(self, txid: int) -> None: ...

    def close(self) -> None: ...


class _Emitter:
    def __init__(self, gate: Gate, commits: bool) -> None:
        self._gate, self._commits = gate, commits

    def emit_batch(self, attempt: Any, metadata: Any) -> Emitted:
        data = {"from": metadata["from"]} if self._commits else None
        found = rows(metadata["from"], self._gate.count, self._gate.keys)
        return Emitted(found, commit_data=data, partitions=1)

    def commit(self, attempt: Any, commit_data: Any) -> None: ...

    def success(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


class Transactional:
    kind = SpoutKind.TRANSACTIONAL
    output_schema = SCHEMA
    commits = False

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def get_coordinator(self, context: Any) -> _Coordinator:
        return _Coordinator(self._gate)

    def get_emitter(self, context: Any) -> _Emitter:
        return _Emitter(self._gate, self.commits)


class Committer(Transactional, CommitterTridentSpout):
    kind = SpoutKind.OPAQUE
    commits = True


class Batch(BatchSpout):
    output_schema = SCHEMA

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def open(self, context: Any) -> None: ...

    def is_ready(self, txid: int) -> bool:
        return self._gate.is_ready(txid)

    def emit_batch(self, txid: int) -> Emitted:
        return Emitted(rows((txid - 1) * self._gate.count, self._gate.count, self._gate.keys), partitions=1)

    def ack(self, txid: int) -> None: ...

    def close(self) -> None: ...


class _PartitionEmitter:
    def __init__(self, count: int, keys: int, partitions: int) -> None:
        self._count, self._keys, self._partitions = count, keys, partitions

    def emit_partition_batch_new(self, attempt: Any, partition: str, last_metadata: Any) -> PartitionBatch:
        begin = last_metadata["to"] if last_metadata else int(partition[1:]) * 1_000_000
        count = self._count // self._partitions
        return PartitionBatch(rows(begin, count, self._keys), {"to": begin + count})

    def emit_partition_batch(self, attempt: Any, partition: str, last_metadata: Any) -> PartitionBatch:
        return self.emit_partition_batch_new(attempt, partition, last_metadata)

    def close(self) -> None: ...


class _InPartitions:
    output_schema = SCHEMA

    def __init__(self, gate: Gate, partitions: int) -> None:
        self._gate, self._partitions = gate, partitions

    def get_coordinator(self, context: Any) -> _Coordinator:
        return _Coordinator(self._gate, self._partitions)

    def get_partition_emitter(self, context: Any) -> _PartitionEmitter:
        return _PartitionEmitter(self._gate.count, self._gate.keys, self._partitions)


class Partitioned(_InPartitions, PartitionedTridentSpout):
    """Transactional; no attempt fails here, so its replay is not asked for."""


class OpaquePartitioned(_InPartitions, OpaquePartitionedTridentSpout):
    """Opaque."""
