"""What the driver needs of the rest: implemented in ``trident/`` and ``states/``.

The driver knows neither Spark nor Delta; it calls these from its own threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trident.coordinators.records import Decision, GroupRecord, TableMark
from trident.coordinators.transactions import TransactionAttempt

Json = Any


@dataclass(frozen=True)
class ProcessedBatch:
    """What one attempt has staged; opaque to the driver but for the counts.

    Attributes:
        staged: what the committer needs to write the manifest.
        spouts: tx_id → {"spout", "kind", "metadata", "commit_data"}, and for an opaque
            spout in partitions "opaque": partition → metadata, of all ever seen.
        input_rows: rows read, for progress only; None when not known.
        duration_ms: of the parts, for progress.
    """

    staged: Any
    spouts: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    input_rows: int | None = None
    duration_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedBatch:
    """``decision`` is None for an empty batch: nothing to decide or publish."""

    decision: Decision | None
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Beginning:
    """What a spout host is told of an attempt that begins.

    Attributes:
        attempt: the attempt.
        parent: that of the transaction before on which it builds; None for the first.
        pins: tx_id → txid → what is pinned.
        committed: tx_id → partition → metadata of the last committed batch (opaque spouts).
        shrink: the attempt before timed out: a smaller batch is wanted.
        timeout_secs: bounds what is processed meanwhile; None = unbounded.
    """

    attempt: TransactionAttempt
    parent: TransactionAttempt | None = None
    pins: Mapping[str, Mapping[int, Json]] = field(default_factory=dict)
    committed: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    shrink: bool = False
    timeout_secs: float | None = None


@dataclass(frozen=True)
class Initialized:
    """The metadata of an attempt.

    Attributes:
        pinned: tx_id → metadata that every attempt of the transaction shares.
        unpinned: tx_id → metadata of this attempt alone (opaque spouts in partitions).
    """

    pinned: Mapping[str, Json] = field(default_factory=dict)
    unpinned: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """What publishing left behind.

    Attributes:
        marks: of its tables, by table id.
        spouts: as in ProcessedBatch; from the manifest.
    """

    marks: Mapping[str, TableMark] = field(default_factory=dict)
    spouts: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)


class SpoutHost(Protocol):
    """The spouts of a group's streams."""

    def is_ready(self, txid: int) -> bool:
        """Whether any stream has something for txid; quick."""

    def initialize(self, beginning: Beginning) -> Initialized:
        """The metadata per stream: what is pinned, or new (smaller with shrink)."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The attempt is given up; ends jobs of ``initialize``, returns at once."""

    def commit(self, attempt: TransactionAttempt, commit_data: Mapping[str, Json]) -> None:
        """Tells committer spouts that the attempt is published: tx_id → commit_data.

        At least once, also by the host of another process.
        """

    def success(self, attempt: TransactionAttempt) -> None: ...

    def backlog(self) -> Mapping[str, Any]: ...


class BatchRunner(Protocol):
    """Runs attempts on Spark."""

    def process(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json], timeout_secs: float | None
    ) -> ProcessedBatch:
        """Emits and stages; blocks.

        Raises:
            BatchTimeout: it took longer than timeout_secs from its first task on.
            Exception: anything else fails the attempt.
        """

    def resolve(
        self, attempt: TransactionAttempt, processed: ProcessedBatch, timeout_secs: float | None
    ) -> ProcessedBatch:
        """Adds what reads states, now that the transaction before is published (docs/semantics.md 9.3); blocks.

        Raises: as ``process``.
        """

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Ends the attempt's jobs if there are any; returns at once."""


class Committer(Protocol):
    """Writes manifests and publishes them."""

    def prepare(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        processed: ProcessedBatch,
        record: GroupRecord,
    ) -> PreparedBatch:
        """Checks the tables and makes the manifest durable.

        Raises:
            Halted: a table is not as this group left it.
            Exception: anything else fails the attempt.
        """

    def publish(self, decision: Decision, record: GroupRecord) -> Published:
        """Publishes a decided batch, from its manifest alone; idempotent.

        Raises:
            Halted: it can never be finished without a person.
            Deposed: another coordinator leads.
            Exception: anything else is tried again.
        """

    def advanced(self, attempt: TransactionAttempt, published: bool) -> None:
        """attempt.txid is advanced: leftovers up to it may go. Never raises."""


class Observer(Protocol):
    """Told what happens, for progress and status. Calls must be quick and not raise."""

    def advanced(self, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None: ...

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None: ...


__all__: Sequence[str] = [
    "BatchRunner",
    "Beginning",
    "Committer",
    "Initialized",
    "Observer",
    "PreparedBatch",
    "ProcessedBatch",
    "Published",
    "SpoutHost",
]
