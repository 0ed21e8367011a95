"""The executors that drive spouts, and their parts: Storm's coordinators and executors.

=================================  ============================================================
TridentSpoutCoordinator            get-or-create of a transaction's metadata
TridentSpoutExecutor               a TridentSpout or CommitterTridentSpout
BatchSpoutExecutor                 a BatchSpout, made to look like a TridentSpout
PartitionedTridentSpoutExecutor    a transactional source in partitions
OpaquePartitionedTridentSpoutExecutor   an opaque one
=================================  ============================================================

Each executor is one stream's spout as the :class:`trident.spouts.host.TridentSpoutHost`
drives it. All of them live on the driver; the emitters of partitions live on
executors (:mod:`trident.spouts.partition_tasks`).
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trident.coordinators.errors import SourceError
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.contracts import (
    Backlog,
    BatchCoordinator,
    BatchSpout,
    Commits,
    Emitted,
    Json,
    Prepares,
    Refreshes,
    ReportsBacklog,
    Resumes,
    Shrinks,
    SpoutContext,
    SpoutKind,
)
from trident.spouts.partition_tasks import AGAIN, NEW, OPAQUE, Request
from trident.spouts.partitions import Emission, PartitionEmission
from trident.spouts.rich import is_rich_spout
from trident.udf.schemas import spout_schema


@dataclass(frozen=True)
class BeginContext:
    """The context of a stream when one of its attempts begins.

    Attributes:
        attempt, parent: the attempt, and the one of the transaction before on which it builds.
        previous: the metadata pinned for the greatest earlier txid, or None.
        current: that pinned for this txid by an earlier attempt, or None.
        committed: partition → metadata of its last committed batch (opaque spouts).
        shrink: a smaller batch is wanted.
        timeout_secs: bounds a job in which partitions are emitted; None = unbounded.
    """

    attempt: TransactionAttempt
    parent: TransactionAttempt | None = None
    previous: Json = None
    current: Json = None
    committed: Mapping[str, Json] = field(default_factory=dict)
    shrink: bool = False
    timeout_secs: float | None = None


class SpoutExecutor(Protocol):
    """One stream's spout, as its host drives it.

    ``pins`` says whether the metadata is one for all attempts of a transaction.
    """

    pins: bool

    def is_ready(self, txid: int) -> bool: ...

    def refresh(self) -> None: ...

    def backlog(self) -> Backlog | None: ...

    def resume(self, txid: int, metadata: Json) -> None: ...

    def initialize(self, context: BeginContext) -> Json: ...

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted: ...

    def prepare(self, attempt: TransactionAttempt) -> None: ...

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None: ...

    def success(self, attempt: TransactionAttempt) -> None: ...

    def cancel(self, attempt: TransactionAttempt) -> None: ...

    def cancel_all(self) -> None: ...

    def opaque_metadata(self, metadata: Json) -> Mapping[str, Json] | None: ...

    def close(self) -> None: ...


_METADATA_BYTES_MAX = 512 * 1024
_NAME_BYTES_MAX = 1024


def is_batch_spout(spout: Any) -> bool:
    """A spout without a coordinator of its own."""
    return callable(getattr(spout, "emit_batch", None)) and not hasattr(spout, "get_emitter")


def spout_kind(spout: Any) -> SpoutKind:
    """Returns what a spout counts as; a batch spout that says nothing is non-transactional."""
    if is_rich_spout(spout):
        return SpoutKind.OPAQUE  # a message may come again in another batch
    return getattr(spout, "kind", SpoutKind.NON_TRANSACTIONAL if is_batch_spout(spout) else SpoutKind.TRANSACTIONAL)


class TridentSpoutCoordinator:
    """Get-or-create: pinned metadata stays, unless a smaller batch is wanted."""

    def __init__(self, tx_id: str, coordinator: BatchCoordinator) -> None:
        self._tx_id, self.coordinator = tx_id, coordinator

    def initialize(self, context: BeginContext) -> Json:
        """The metadata of the transaction.

        Raises:
            SourceError: the coordinator gave something that is not JSON.
        """
        txid = context.attempt.txid
        if context.shrink and context.current is not None and isinstance(self.coordinator, Shrinks):
            value = self.coordinator.shrink_transaction(txid, context.previous, context.current)
        else:
            value = self.coordinator.initialize_transaction(txid, context.previous, context.current)
        return as_json(self._tx_id, value)

    def is_ready(self, txid: int) -> bool:
        return self.coordinator.is_ready(txid)

    def refresh(self) -> None:
        if isinstance(self.coordinator, Refreshes):
            self.coordinator.refresh()

    def backlog(self) -> Backlog | None:
        return self.coordinator.backlog() if isinstance(self.coordinator, ReportsBacklog) else None

    def resume(self, txid: int, metadata: Json) -> None:
        if isinstance(self.coordinator, Resumes):
            self.coordinator.resume(txid, metadata)


class TridentSpoutExecutor:
    """A TridentSpout: its coordinator decides, its emitter emits from the metadata."""

    pins = True

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        self._tx_id = context.tx_id
        self._coordinator = TridentSpoutCoordinator(context.tx_id, spout.get_coordinator(context))
        self._emitter = spout.get_emitter(context)

    def is_ready(self, txid: int) -> bool:
        return self._coordinator.is_ready(txid)

    def refresh(self) -> None:
        self._coordinator.refresh()

    def backlog(self) -> Backlog | None:
        return self._coordinator.backlog()

    def resume(self, txid: int, metadata: Json) -> None:
        self._coordinator.resume(txid, metadata)

    def initialize(self, context: BeginContext) -> Json:
        return self._coordinator.initialize(context)

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        # A copy: the manifest says what was pinned, and a rebuilt ZooKeeper has its position from there.
        emitted = self._emitter.emit_batch(attempt, copy.deepcopy(metadata))
        emitted = emitted if isinstance(emitted, Emitted) else Emitted(emitted)
        if emitted.commit_data is None:
            return emitted
        # Now: after the decision it would be too late to find out.
        self._check_commits()
        return replace(emitted, commit_data=as_json(self._tx_id, emitted.commit_data, "commit data"))

    def prepare(self, attempt: TransactionAttempt) -> None:
        if isinstance(self._emitter, Prepares):
            self._emitter.prepare(attempt)

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        self._check_commits()
        self._emitter.commit(attempt, commit_data)

    def _check_commits(self) -> None:
        if not isinstance(self._emitter, Commits):
            raise SourceError(
                f"stream {self._tx_id!r} has commit data and no one to give it to",
                found=f"{type(self._emitter).__name__} without commit(attempt, commit_data)",
                expected="the emitter of a CommitterTridentSpout",
                action="add the method, or give no commit_data",
            )

    def success(self, attempt: TransactionAttempt) -> None:
        try:
            self._coordinator.coordinator.success(attempt.txid)
        finally:  # the emitter lets go of what the attempt held, whatever the coordinator says
            self._emitter.success(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Its jobs are those of the batch."""
        cancel = getattr(self._emitter, "cancel", None)
        if callable(cancel):
            cancel(attempt)

    def cancel_all(self) -> None:
        """Its jobs are those of the batch."""

    def opaque_metadata(self, metadata: Json) -> None:
        return None

    def close(self) -> None:
        try:
            self._coordinator.coordinator.close()
        finally:
            self._emitter.close()


class BatchSpoutExecutor:
    """A BatchSpout as a TridentSpout without metadata."""

    def __init__(self, spout: BatchSpout) -> None:
        self._spout = spout
        self.kind = spout_kind(spout)

    @property
    def output_schema(self) -> Any:
        return spout_schema(self._spout)

    def get_coordinator(self, context: SpoutContext) -> "_BatchSpoutCoordinator":
        self._spout.open(context)
        return _BatchSpoutCoordinator(self._spout)

    def get_emitter(self, context: SpoutContext) -> "_BatchSpoutEmitter":
        return _BatchSpoutEmitter(self._spout)


class _BatchSpoutCoordinator:
    def __init__(self, spout: BatchSpout) -> None:
        self._spout = spout
        # Storm asks a batch spout nothing; one that can tell saves empty transactions.
        self._ready = getattr(spout, "is_ready", None)

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        return {}

    def is_ready(self, txid: int) -> bool:
        return self._ready(txid) if self._ready is not None else True

    def success(self, txid: int) -> None:
        self._spout.ack(txid)

    def close(self) -> None:
        """The emitter closes the spout."""


class _BatchSpoutEmitter:
    def __init__(self, spout: BatchSpout) -> None:
        self._spout = spout

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Any:
        return self._spout.emit_batch(attempt.txid)

    def success(self, attempt: TransactionAttempt) -> None:
        """Told through the coordinator's side."""

    def close(self) -> None:
        self._spout.close()


class _InPartitions:
    """The common part of the two executors of partitioned spouts: emission ahead of processing.

    The metadata of a batch comes out of the job that emits it, so it is emitted
    when the attempt begins; its rows wait in files until it is processed.
    """

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        self._tx_id = context.tx_id
        self._coordinator = spout.get_coordinator(context)
        self._emission = PartitionEmission(spout, context)
        self._held: dict[TransactionAttempt, Emission] = {}
        self._partitions: tuple[str, ...] | None = None
        self._lock = threading.Lock()

    def is_ready(self, txid: int) -> bool:
        return self._coordinator.is_ready(txid)

    def refresh(self) -> None:
        if isinstance(self._coordinator, Refreshes):
            self._coordinator.refresh()

    def backlog(self) -> Backlog | None:
        return self._coordinator.backlog() if isinstance(self._coordinator, ReportsBacklog) else None

    def resume(self, txid: int, metadata: Json) -> None:
        if isinstance(self._coordinator, Resumes):
            self._coordinator.resume(txid, metadata)

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

    def _hold(self, attempt: TransactionAttempt, emission: Emission) -> None:
        with self._lock:
            self._held[attempt] = emission

    def _take(self, attempt: TransactionAttempt) -> Emission | None:
        with self._lock:
            return self._held.pop(attempt, None)

    def prepare(self, attempt: TransactionAttempt) -> None:
        """Emitters live for one task: there is none to ask."""

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        raise AssertionError("partitions have no commit data")

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
    """A transactional source in partitions: metadata once per txid, the same rows for it again.

    Metadata: {"partitions": {id: metadata} of the batch, "absent": {id: metadata}
    of partitions that were there earlier}.
    """

    pins = True

    def initialize(self, context: BeginContext) -> Json:
        if context.current is not None:
            return context.current
        last = _all_of(context.previous, self._tx_id)
        partitions = self._ordered_partitions()
        requests = [Request(partition, NEW, last.get(partition)) for partition in partitions]
        emission = self._emission.run(context.attempt, requests, context.timeout_secs)
        self._hold(context.attempt, emission)
        absent = {partition: value for partition, value in last.items() if partition not in partitions}
        return {"partitions": dict(emission.metadata), "absent": absent, "rows": emission.rows}

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        held = self._take(attempt)
        of_batch = _parts_of(metadata, self._tx_id)
        if held is not None and held.metadata == of_batch:
            return self._emission.emitted(held)
        # A replay, or another coordinator's pin came first: exactly the rows of what is pinned.
        requests = [Request(partition, AGAIN, value) for partition, value in of_batch.items()]
        return self._emission.emitted(self._emission.run(attempt, requests, in_job=True))

    def opaque_metadata(self, metadata: Json) -> None:
        return None


class OpaquePartitionedTridentSpoutExecutor(_InPartitions):
    """An opaque source in partitions: each attempt emits anew; the metadata that counts is kept when it commits.

    Metadata as for a transactional one, but of one attempt. An attempt goes on
    from its parent's, in flight or committed; so when a transaction fails, those
    after it, which build on it, are emitted again too.
    """

    pins = False

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._of_attempt: dict[TransactionAttempt, dict[str, Json]] = {}

    def initialize(self, context: BeginContext) -> Json:
        with self._lock:
            in_flight = self._of_attempt.get(context.parent) if context.parent else None
        last = dict(context.committed) if in_flight is None else in_flight
        partitions = self._ordered_partitions()
        requests = [Request(partition, OPAQUE, last.get(partition)) for partition in partitions]
        emission = self._emission.run(context.attempt, requests, context.timeout_secs)
        self._check_size(emission.metadata)
        absent = {partition: value for partition, value in last.items() if partition not in partitions}
        with self._lock:
            self._of_attempt[context.attempt] = {**absent, **emission.metadata}
        self._hold(context.attempt, emission)
        return {"partitions": dict(emission.metadata), "absent": absent, "rows": emission.rows}

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


def as_json(tx_id: str, value: Any, what: str = "metadata") -> Json:
    """The value as it will come back from ZooKeeper, so that a first try sees what a replay sees.

    Raises:
        SourceError: it is not JSON.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"the {what} of stream {tx_id!r} is not JSON: {error}",
            found=repr(value)[:200],
            expected="None, numbers, text, lists and dicts",
        ) from error
