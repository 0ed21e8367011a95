"""The executors that drive spouts, and their parts: Storm's coordinators and executors.

=================================  ============================================================
TridentSpoutCoordinator            get-or-create of a transaction's metadata
TridentSpoutExecutor               a TridentSpout or CommitterTridentSpout
BatchSpoutExecutor                 a BatchSpout, made to look like a TridentSpout
=================================  ============================================================

Those of partitioned spouts are in :mod:`trident.spouts.partitions`.
Each executor is one stream's spout as the :class:`trident.spouts.host.TridentSpoutHost`
drives it. All of them live on the driver; the emitters of partitions live on
executors (:mod:`trident.spouts.tasks`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trident.coordinators.errors import Halted, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import (
    Backlog,
    BatchSpout,
    Cancels,
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
from trident.spouts.rich import is_rich_spout
from trident.udf.types import spout_schema


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
    """One stream's spout, as its host drives it; an executor inherits the calls that do not concern it.

    ``pins`` says whether the metadata is one for all attempts of a transaction.
    """

    pins: bool

    def is_ready(self, txid: int) -> bool: ...

    def refresh(self) -> None: ...

    def backlog(self) -> Backlog | None: ...

    def resume(self, txid: int, metadata: Json) -> None:
        """A recovered position; by default the source knows its own."""
        return None

    def initialize(self, context: BeginContext) -> Json: ...

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted: ...

    def prepare(self, attempt: TransactionAttempt) -> None:
        """Before the decision; may fail the attempt."""
        return None

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        raise AssertionError(f"{type(self).__name__} gives no commit data")

    def success(self, attempt: TransactionAttempt) -> None: ...

    def cancel(self, attempt: TransactionAttempt) -> None: ...

    def cancel_all(self) -> None:
        """Cancels jobs of its own; by default its jobs are those of the batch."""
        return None

    def opaque_metadata(self, metadata: Json) -> Mapping[str, Json] | None:
        """Partition → metadata that is kept when the attempt commits; by default none is."""
        return None

    def close(self) -> None: ...


def is_batch_spout(spout: Any) -> bool:
    """A spout without a coordinator of its own."""
    return callable(getattr(spout, "emit_batch", None)) and not hasattr(spout, "get_emitter")


def spout_kind(spout: Any) -> SpoutKind:
    """Returns what a spout counts as; a batch spout that says nothing is non-transactional."""
    if is_rich_spout(spout):
        return SpoutKind.OPAQUE  # a message may come again in another batch
    return getattr(spout, "kind", SpoutKind.NON_TRANSACTIONAL if is_batch_spout(spout) else SpoutKind.TRANSACTIONAL)


class TridentSpoutCoordinator(SpoutExecutor):
    """The coordinator's side of an executor; get-or-create: pinned metadata stays, unless a smaller batch is wanted."""

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        self._tx_id = context.tx_id
        self._coordinator = spout.get_coordinator(context)

    def initialize(self, context: BeginContext) -> Json:
        """The metadata of the transaction.

        Raises:
            SourceError: the coordinator gave something that is not JSON.
        """
        txid, coordinator = context.attempt.txid, self._coordinator
        if context.shrink and context.current is not None and isinstance(coordinator, Shrinks):
            value = coordinator.shrink_transaction(txid, context.previous, context.current)
        else:
            value = coordinator.initialize_transaction(txid, context.previous, context.current)
        return as_json(self._tx_id, value)

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


class TridentSpoutExecutor(TridentSpoutCoordinator):
    """A TridentSpout: its coordinator decides, its emitter emits from the metadata."""

    pins = True

    def __init__(self, spout: Any, context: SpoutContext) -> None:
        super().__init__(spout, context)
        self._emitter = spout.get_emitter(context)

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
            self._coordinator.success(attempt.txid)
        finally:  # the emitter lets go of what the attempt held, whatever the coordinator says
            self._emitter.success(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Its jobs are those of the batch."""
        if isinstance(self._emitter, Cancels):
            self._emitter.cancel(attempt)

    def close(self) -> None:
        try:
            self._coordinator.close()
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

    def backlog(self) -> Backlog | None:
        return self._spout.backlog() if isinstance(self._spout, ReportsBacklog) else None

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


def as_json(tx_id: str, value: Any, what: str = "metadata") -> Json:
    """The value as it will come back from ZooKeeper, so that a first try sees what a replay sees."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"the {what} of stream {tx_id!r} is not JSON: {error}",
            found=repr(value)[:200],
            expected="None, numbers, text, lists and dicts",
        ) from error


# The methods by which a spout of any kind is told, or makes what is told.
_MAKERS = ("get_coordinator", "get_emitter", "get_partition_emitter", "open", "emit_batch", "ack")


def acknowledges(spout: Any) -> bool | None:
    """Returns what a spout says of itself (``trident.spouts.contracts.Acknowledges``); None where it does not say.

    A class that makes another coordinator or emitter than the class that says it has not said it of these.

    Raises:
        SourceError: a Python data source cannot make a reader.
    """
    classes = type(spout).__mro__
    says = _first(classes, ("acknowledges",))
    if "acknowledges" not in vars(spout) and (says is None or says > (_first(classes, _MAKERS) or 0)):
        return None
    said = spout.acknowledges
    return said if isinstance(said, bool) else None


def _first(classes: Iterable[type], names: Iterable[str]) -> int | None:
    """The place of the first class that has one of some names itself."""
    return next((place for place, each in enumerate(classes) if any(name in vars(each) for name in names)), None)


def check_reads_only(topology: str, spouts: Mapping[str, Any]) -> None:
    """Refuses to start a fork that would change its original's sources.

    Raises:
        Halted: a stream's spout acknowledges, or does not say; with their names.
        SourceError: a Python data source cannot make a reader.
    """
    found = []
    for tx_id, spout in sorted(spouts.items()):
        said = acknowledges(spout)
        if said is None or said:
            word = "does not say whether it acknowledges" if said is None else "acknowledges"
            found.append(f"{tx_id}: {type(spout).__name__} {word}")
    if found:
        raise Halted(
            f"{topology} is a fork, and could change the sources that its original reads",
            found="; ".join(found),
            expected="spouts that only read; a KafkaSpout without commit_group; a spout of your own with "
            "`acknowledges = False`, when it only reads",
            action="if its source may hear of the fork's transactions (a copy of the data, a group of its own), run "
            "the same `trident fork` command again with --accept-acknowledging; nothing was read",
        )
