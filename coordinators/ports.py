"""The interfaces through which driver and supervisor call the rest: ``trident/`` and ``states/`` implement them.

Neither knows Spark or Delta. The driver calls the first half of these, from its
own threads; the supervisor calls the second half, from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import Decision, GroupRecord, Holder, TableMark

Json = Any


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed before the decision.

    Attributes:
        at: seconds since the epoch.
        error: its message, perhaps shortened.
    """

    attempt_id: int
    at: float
    error: str


@dataclass(frozen=True)
class AttemptHistory:
    """The facts about an attempt that only the running process knows; kept with its manifest.

    Attributes:
        begun_at: seconds since the epoch.
        failures: of earlier attempts at the transaction, under this lease; the last of them.
    """

    begun_at: float
    failures: tuple[FailedAttempt, ...] = ()


@dataclass(frozen=True)
class ProcessedBatch:
    """The staged work of one attempt; opaque to the driver but for the counts.

    Attributes:
        staged: what the committer needs to write the manifest.
        spouts: tx_id → {"spout", "kind", "metadata", "commit_data"}, and for an opaque
            spout in partitions "opaque": partition → metadata, of all ever seen.
        input_rows: rows read, for progress only; None when not known.
        duration_ms: of the parts, for progress.
        skipped: the error of a batch that is skipped, which leaves only a dead letter; None: it is not.
    """

    staged: Any
    spouts: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    input_rows: int | None = None
    duration_ms: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None


@dataclass(frozen=True)
class PreparedBatch:
    """``decision`` is None for an empty batch: nothing to decide or publish.

    Attributes:
        rows, bytes: of the staged files, by state; for progress and metrics.
    """

    decision: Decision | None
    rows: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Beginning:
    """A spout host is told this of an attempt that begins.

    Attributes:
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
    """The marks that publishing left behind.

    Attributes:
        spouts: as in ProcessedBatch; from the manifest.
    """

    marks: Mapping[str, TableMark] = field(default_factory=dict)
    spouts: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)


class SpoutHost(Protocol):
    """The spouts of a group's streams."""

    def is_ready(self, txid: int) -> bool:
        """Tells whether any stream has something for txid; quick."""

    def initialize(self, beginning: Beginning) -> Initialized:
        """The metadata per stream: what is pinned, or new (smaller with shrink)."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The attempt is given up; ends jobs of ``initialize``, returns at once."""

    def commit(self, attempt: TransactionAttempt, commit_data: Mapping[str, Json]) -> None:
        """Tells committer spouts that the attempt is published: tx_id → commit_data.

        At least once, also by the host of another process.
        """

    def success(self, attempt: TransactionAttempt) -> None: ...


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

    def open(self, record: GroupRecord) -> None:
        """Makes or checks the group's tables, once no decision is pending.

        Raises:
            Halted: a table is not as this group left it.
            Deposed: another coordinator leads.
        """

    def prepare(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        processed: ProcessedBatch,
        record: GroupRecord,
        story: AttemptHistory | None = None,
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

    def close(self) -> None:
        """Lets go of what it keeps; nothing is published after it. Never raises."""


class Observer(Protocol):
    """Told what happens, for progress and status. Calls must be quick and not raise."""

    def began(self, attempt: TransactionAttempt) -> None:
        """Its begin is stored."""

    def advanced(self, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None: ...

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """It failed before its decision; with attempt_id -1: the spouts could not say whether they are ready."""

    def retries(self, attempt: TransactionAttempt, part: str, error: BaseException) -> None:
        """A part (publish, spout_commit, advance…) of a decided transaction failed, and is tried again."""


# --- what the supervisor needs -----------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """The incarnation and the epoch with which a process leads.

    Attributes:
        incarnation: the topology's; "" before this process has led.
        epoch: the greatest of its groups' epochs.
    """

    incarnation: str = ""
    epoch: int = 0


class StoredGroup(Protocol):
    """A batch group as ZooKeeper has it."""

    topology: str
    group: str

    @property
    def record(self) -> GroupRecord: ...

    @property
    def pins(self) -> Mapping[str, Mapping[int, Json]]: ...

    @property
    def opaque_metadata(self) -> Mapping[str, Mapping[str, tuple[int, Json]]]: ...

    @property
    def partition_values(self) -> Mapping[str, Mapping[str, Json]]: ...


class GroupSpouts(SpoutHost, Protocol):
    """A host of spouts that belong to one lease."""

    def refresh(self) -> None:
        """The next readiness answers take into account what is there now."""

    def messages(self) -> tuple[int, int]:
        """Counts how many single messages were handed out so far, and how many of them are not settled."""

    def backlog(self) -> Mapping[str, Any]: ...

    def ask_backlog(self, explain: Callable[[BaseException], BaseException]) -> list[str]:
        """Asks the spouts how much waits, which may hang; gives what failed and had not failed before."""

    def cancel_all(self) -> None:
        """Nothing that runs here is wanted any more; returns at once."""

    def close(self) -> None: ...


class RecoveryHost(SpoutHost, Protocol):
    """The host while a decision is finished."""

    def close(self) -> None: ...


class GroupRunner(BatchRunner, Protocol):
    def close(self) -> None:
        """Cancels what runs; nothing starts any more."""


class BackgroundMerger(Protocol):
    """Merges the plain tables in the background."""

    def start(self, advanced: int) -> None: ...

    def advanced(self, txid: int) -> None:
        """txid is advanced; returns at once."""

    def stop(self, compact: bool, timeout_secs: float = ..., give_up: Callable[[], bool] = ...) -> bool:
        """Ends it, with ``compact`` after a last merge; tells whether that was done."""

    def lagging_tables(self, topology: str) -> list[str]:
        """Tells which tables lack transactions, in a line for each."""


@dataclass(frozen=True)
class GroupParts:
    """A batch group's parts, from its opening to its close."""

    spouts: GroupSpouts
    runner: GroupRunner
    background_merger: BackgroundMerger


class GroupOpening(Protocol):
    """Opens one batch group under one lease."""

    @property
    def committer(self) -> Committer:
        """The same each time."""

    def check_new(self) -> None:
        """Asked before the group's first record is made; raises Halted where its tables are there already."""

    def check_stored(self, store: StoredGroup) -> None:
        """Asked before a leader goes on from a record; raises Halted where the last manifest contradicts it."""

    def recovery_spouts(self, finishing: int) -> RecoveryHost:
        """The host while the decision of this txid is finished."""

    def parts(self, store: StoredGroup) -> GroupParts:
        """Spouts that go on from what is stored, and the rest; the tables are open, and no decision is pending."""


class Site(Protocol):
    """Where a topology works: its warehouse and its session."""

    def opening(self, group: str, term: Term, epoch: int, check_fence: Callable[[], None]) -> GroupOpening:
        """For a group that is to be led under a term; ``epoch`` is the group's own. Opens nothing yet."""

    def check_first_incarnation(self) -> None:
        """Called before a new incarnation is written to ZooKeeper; raises where tables of an earlier one exist."""

    def warehouse_lost(self, sure: bool) -> Exception | None:
        """The error where the warehouse is gone, so that nothing can be written; ``sure`` checks at once."""

    def session_end(self) -> Exception | None:
        """Why nothing can run any more, since the session is gone; quick."""

    def explain(self, error: BaseException) -> BaseException:
        """The reason behind an error (a full disk); the error itself when no more is known."""


class SupervisorListener(Protocol):
    """Told what a supervisor does, for people and for requests. Calls must be quick and not raise."""

    def event(self, text: str) -> None: ...

    def notice(self, text: str) -> None:
        """A line that a person is to see, with a display or without one."""

    def became_standby(self, holder: Holder) -> None:
        """Another process leads; this one is its standby."""

    def left_standby(self) -> None:
        """The lease is taken, or a stop was requested."""

    def handover_requested(self, request: Any) -> None:
        """A ``HandoverRequest`` names this standby; may be called more than once."""

    def leads(self, term: Term) -> None:
        """The lease is taken; no group is open yet."""

    def recovery_waits(self, cause: str) -> None:
        """The recovery goes on once this has passed."""

    def serves(self, advanced: Mapping[str, Callable[[], int]]) -> None:
        """Every group runs; group → a function that gives its last advanced txid."""

    def stops_serving(self) -> None:
        """Not the leader any more, or never was."""

    def closes(self) -> None:
        """The groups are closed, and are forgotten after this call."""

    def began(self, group: str, attempt: TransactionAttempt) -> None: ...

    def advanced(self, group: str, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None: ...

    def failed(self, group: str, attempt: TransactionAttempt, error: BaseException) -> None: ...

    def retries(self, group: str, attempt: TransactionAttempt, part: str, error: BaseException) -> None: ...
