"""The executors of partitioned spouts: their batches are emitted on executors when an attempt begins."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from trident.coordinators.errors import SourceError
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.contracts import Emitted, Json, SpoutContext
from trident.spouts.executors import BeginContext, TridentSpoutCoordinator
from trident.spouts.partition_tasks import AGAIN, NEW, OPAQUE, Request
from trident.spouts.partitions import Emission, PartitionEmission

_METADATA_BYTES_MAX = 512 * 1024

_NAME_BYTES_MAX = 1024


class _InPartitions(TridentSpoutCoordinator):
    """The common part of the two executors of partitioned spouts: emission ahead of processing.

    The metadata of a batch comes out of the job that emits it, so it is emitted
    when the attempt begins; its rows wait in files until it is processed.
    """

    mode: str  # of the emission of a new batch

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._emission = PartitionEmission(spout, context)
        self._held: dict[TransactionAttempt, Emission] = {}
        self._partitions: tuple[str, ...] | None = None
        self._lock = threading.Lock()

    def _emit(self, context: BeginContext, last: Mapping[str, Json]) -> dict[str, Json]:
        """The metadata of a batch that is emitted now, each partition from its last metadata on.

        It is {"partitions": {id: metadata} of the batch, "absent": {id: metadata} of partitions that were there
        earlier, "rows": their number}.
        """
        partitions = self._ordered_partitions()
        requests = [Request(partition, self.mode, last.get(partition)) for partition in partitions]
        emission = self._emission.run(context.attempt, requests, context.timeout_secs)
        absent = {partition: value for partition, value in last.items() if partition not in partitions}
        with self._lock:
            self._held[context.attempt] = emission
        return {"partitions": dict(emission.metadata), "absent": absent, "rows": emission.rows}

    def _ordered_partitions(self) -> tuple[str, ...]:
        partitions = tuple(self._coordinator.get_partitions_for_batch())
        if not all(map(_usable, partitions)) or len(set(partitions)) != len(partitions):
            raise SourceError(
                f"the partitions of stream {self._tx_id!r} cannot be used",
                found=repr(partitions)[:200],
                expected=f"distinct texts of at most {_NAME_BYTES_MAX} bytes, not empty and not only dots",
            )
        if partitions != self._partitions:
            if self._partitions is not None:
                self._coordinator.refresh_partitions(partitions)
            self._partitions = partitions
        return partitions

    def _take(self, attempt: TransactionAttempt) -> Emission | None:
        with self._lock:
            return self._held.pop(attempt, None)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            self._held = {held: emission for held, emission in self._held.items() if held.txid > attempt.txid}
        self._coordinator.success(attempt.txid)
        self._emission.drop_up_to(attempt.txid)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._emission.cancel(attempt)
        held = self._take(attempt)
        if held is not None:
            self._emission.drop(held)

    def cancel_all(self) -> None:
        self._emission.cancel_all()

    def close(self) -> None:
        self._coordinator.close()


def _usable(partition: object) -> bool:
    """Tells whether it can be written as a znode's name: that is only tried when the transaction is decided already."""
    try:
        return isinstance(partition, str) and partition.strip(".") != "" and len(partition.encode()) <= _NAME_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


class PartitionedTridentSpoutExecutor(_InPartitions):
    """A transactional source in partitions: metadata once per txid, the same rows for it again."""

    pins, mode = True, NEW

    def initialize(self, context: BeginContext) -> Json:
        if context.current is not None:
            return context.current
        return self._emit(context, _all_of(context.previous, self._tx_id))

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        held = self._take(attempt)
        of_batch = _parts_of(metadata, self._tx_id)
        if held is not None and held.metadata == of_batch:
            return self._emission.emitted(held)
        # A replay, or another coordinator's pin came first: exactly the rows of what is pinned.
        requests = [Request(partition, AGAIN, value) for partition, value in of_batch.items()]
        return self._emission.emitted(self._emission.run(attempt, requests, in_job=True))


class OpaquePartitionedTridentSpoutExecutor(_InPartitions):
    """An opaque source in partitions: each attempt emits anew; the metadata that counts is kept when it commits.

    Metadata as for a transactional one, but of one attempt. An attempt goes on
    from its parent's, in flight or committed; so when a transaction fails, those
    after it, which build on it, are emitted again too.
    """

    pins, mode = False, OPAQUE

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._of_attempt: dict[TransactionAttempt, dict[str, Json]] = {}

    def initialize(self, context: BeginContext) -> Json:
        with self._lock:
            in_flight = self._of_attempt.get(context.parent) if context.parent else None
        metadata = self._emit(context, dict(context.committed) if in_flight is None else in_flight)
        self._check_size(_parts_of(metadata, self._tx_id))
        with self._lock:
            self._of_attempt[context.attempt] = _all_of(metadata, self._tx_id)
        return metadata

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        held = self._take(attempt)
        if held is None:
            raise SourceError(f"attempt {attempt} of stream {self._tx_id!r} was given up before it was processed")
        return self._emission.emitted(held)

    def _check_size(self, metadata: Mapping[str, Json]) -> None:
        """They are stored in one write when the transaction advances: it must not turn out there that they cannot."""
        size = len(json.dumps(metadata).encode())
        if size > _METADATA_BYTES_MAX:
            raise SourceError(
                f"the metadata of the partitions of stream {self._tx_id!r} is too large",
                found=f"{size:,} bytes",
                expected=f"at most {_METADATA_BYTES_MAX:,} bytes over all partitions of a batch",
                action="keep positions in the metadata, not data",
            )

    def opaque_metadata(self, metadata: Json) -> Mapping[str, Json]:
        return _all_of(metadata, self._tx_id)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            # The next transaction may still begin on this one.
            kept = {other: value for other, value in self._of_attempt.items() if other.txid >= attempt.txid}
            self._of_attempt = kept
        super().success(attempt)


def _parts_of(metadata: Json, tx_id: str, part: str = "partitions") -> dict[str, Json]:
    value = metadata.get(part) if isinstance(metadata, dict) else None
    if not isinstance(value, dict):
        raise SourceError(
            f"the metadata of stream {tx_id!r} was not written by a spout in partitions",
            found=repr(metadata)[:200],
            expected='{"partitions": {id: metadata}, "absent": …}',
            action="give the stream another tx_id, or begin again with `trident reset NAME`",
        )
    return value


def _all_of(metadata: Json, tx_id: str) -> dict[str, Json]:
    """Partition → metadata, of all partitions ever seen."""
    if metadata is None:
        return {}
    return {**_parts_of(metadata, tx_id, "absent"), **_parts_of(metadata, tx_id)}
