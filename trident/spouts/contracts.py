"""The contracts between a source of batches and the framework, and checks of spouts' arguments (docs/semantics.md 3).

A spout describes a source. Its :class:`BatchCoordinator` lives on the driver
and decides, once per txid, *what* is in a batch: the metadata, a small JSON
value that is pinned in ZooKeeper before any row is used. Its
:class:`Emitter` turns the same metadata into the same rows, as often as it is
asked.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union, runtime_checkable

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError, TridentError, described
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import Record, Unreadable, as_record
from trident.spark.rows import Data
from trident.states.core.place import Place

Json = Union[None, bool, int, float, str, list[Any], dict[str, Any]]


class SpoutKind(enum.Enum):
    """Says what a replay of a txid may hold (docs/semantics.md 3)."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class SpoutContext:
    """A spout's parts are given this when they are made.

    Attributes:
        spark: the session that batches run on; None on an executor.
        topology: the topology's name.
        tx_id: the stream's name; unique within the topology.
        state_folder: a folder of this stream alone, kept between runs; it exists.
        incarnation: the random id of this topology's stored state; it changes with `trident reset`, not with a
            rollback.
        options: further settings of the topology, such as ``max_spout_pending``; ``epoch`` is that of the coordinator.
        replays: a kept transaction is looked at again (``trident.replay``): its emitter, the only part that is made,
            gives the rows and changes nothing, in the state folder or elsewhere.
    """

    spark: Any
    topology: str
    tx_id: str
    state_folder: Path | Place
    incarnation: str
    options: Mapping[str, Any] = field(default_factory=dict)
    replays: bool = False


@dataclass(frozen=True)
class Backlog:
    """The data that a source has ready and no transaction has yet; None: not known.

    A wrong number is worse than none: what would take long to count is None, and so is a part of it.

    Attributes:
        rows: that wait.
        bytes: of the source.
        files: or objects, or messages of a folder.
    """

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class Emitted:
    """A batch with what its spout wants back at commit.

    Attributes:
        data: a DataFrame, an Arrow table or rows (tuples in the order of output_schema).
        commit_data: JSON, stored with the decision, given to ``commit``.
        table_rows: rows for the table that the spout owns (see :class:`OwnsTable`).
        partitions: how many Spark partitions the batch is worth; None = as it comes.
            Small batches run fastest in one: several of them fill the cores.
        rows: how many ``data`` has, for progress and metrics; or a function that says so once they were read, None
            where it does not know. Not needed for rows and Arrow tables, which are counted. A wrong number is worse
            than none: who changes ``data`` changes this too.
    """

    data: Data
    commit_data: Json = None
    partitions: int | None = None
    table_rows: "Data | None" = None
    rows: int | Callable[[], int | None] | None = None


class BatchCoordinator(Protocol):
    """Decides what is in each transaction; one per stream, on the driver.

    ``success`` and ``backlog`` may come from other threads than the other calls,
    which come from one at a time; ``close`` is the last.
    """

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """Returns the metadata of txid.

        Args:
            txid: the transaction.
            prev_metadata: that of the greatest earlier txid, None for the first.
            curr_metadata: what an earlier try at this txid pinned, or None. When
                it is given it must be returned as it is, unless the framework
                called ``shrink_transaction`` instead.
        """

    def is_ready(self, txid: int) -> bool:
        """Tells whether a new transaction may start now. Asked often: must be quick.

        It and ``initialize_transaction`` of a later txid are called while earlier ones are in flight: also with
        ``max_spout_pending=1`` perhaps before ``commit`` and ``success`` of the one before, once that one is decided.
        """

    def success(self, txid: int) -> None:
        """txid is durable. May be told again after a restart, never early."""
        return

    def close(self) -> None:
        return


@runtime_checkable
class Shrinks(Protocol):
    """A coordinator that can make the batch of a txid smaller after it timed out."""

    def shrink_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """Returns metadata for a smaller batch beginning where curr_metadata begins."""


@runtime_checkable
class ReportsBacklog(Protocol):
    """A coordinator that knows what is waiting; shown in progress and status.

    A BatchSpout and a RichSpout may have it too, and so may the coordinator of a spout in partitions.
    """

    def backlog(self) -> Backlog:
        """Looks at the source itself, and does not go by what the last ``is_ready`` saw.

        While as many transactions are in flight as may be, which is when there is a backlog, ``is_ready`` is not
        called. It is called twice a second from a thread of its own, less often where it takes long; what it raises is
        shown, and the backlog is unknown then.
        """


@runtime_checkable
class Resumes(Protocol):
    """A coordinator that wants to know at a start where it had got to."""

    def resume(self, txid: int, metadata: Json) -> None:
        """Called once, before anything else: the greatest txid that has metadata, and that."""


@runtime_checkable
class Refreshes(Protocol):
    """A coordinator that does not look at its source each time it is asked whether it is ready."""

    def refresh(self) -> None:
        """The next is_ready must take into account what is there now. Called from any thread."""


@runtime_checkable
class Prepares(Protocol):
    """An emitter that can still fail an attempt after its rows were staged and before it is decided."""

    def prepare(self, attempt: TransactionAttempt) -> None: ...


@runtime_checkable
class Cancels(Protocol):
    """An emitter that is notified as soon as an attempt is given up, before its transaction begins again."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The attempt will not be decided. From any thread, also while it is emitted, or before; not after a crash."""


@runtime_checkable
class Commits(Protocol):
    """An emitter that is told which attempt counts: that of a committer spout."""

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        """The attempt is decided and its tables are published; take note of it in the source.

        Called in txid order, before the transaction advances, for decided
        attempts that have commit_data, and only for the attempt that counts.
        At least once, perhaps in another process after a crash: it must be
        idempotent, and commit_data must say all that it needs. An error is
        retried; there is no way back.
        """


@runtime_checkable
class OwnsTable(Protocol):
    """A spout with a Delta table of its own that takes part in each decision.

    The framework appends its ``Emitted.table_rows`` to the table in the same
    transaction as the results: both are there, or neither.
    """

    @property
    def table(self) -> Any:
        """A DeltaAppend."""

    @property
    def table_schema(self) -> "StructType":
        """Of the table's rows."""


@runtime_checkable
class GivenOnce(Protocol):
    """A transactional spout that gives the rows of a transaction again only until it has advanced.

    ``trident.replay`` says so, in these words, instead of asking its emitter.
    """

    @property
    def given_once(self) -> str:
        """Completes "the rows of the batch are not to be had again: …"."""


@runtime_checkable
class Acknowledges(Protocol):
    """A spout that says whether telling it that a transaction has succeeded can change its source.

    Another topology reads the same source: a fork (``trident fork``). Where ``success``, ``commit`` or ``ack`` make the
    source drop rows, or move a place in it that others read from, the fork would take rows from its original. So a
    fork does not start with a spout that acknowledges, nor with one that does not say.

    A subclass does not inherit the word of its class when it makes another coordinator or emitter.
    """

    @property
    def acknowledges(self) -> bool:
        """Tells it; a plain attribute of the class does, too. Asked at a fork's start, before anything is read."""


class Emitter(Protocol):
    """Turns metadata into rows; one per stream, on the driver (its rows need not be)."""

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Union[Data, Emitted]:
        """Returns the batch: for the same metadata always the same rows.

        May be called from several threads at once, for different attempts: of transactions in flight, in any order,
        and of one transaction, where a thread of an attempt that was given up does not know it yet.
        """

    def success(self, attempt: TransactionAttempt) -> None:
        """The transaction is durable. May be told again after a restart, never early, of this attempt only."""
        return

    def close(self) -> None:
        return


class HasSchema(Protocol):
    """The fields of every batch: a StructType, or text such as ``"word string, n long"``.

    An attribute of the class, one that ``__init__`` sets, or a property; known when the topology is built.
    """

    if TYPE_CHECKING:

        @property
        def output_schema(self) -> Union["StructType", str]: ...
    else:
        output_schema: Any


@runtime_checkable
class TridentSpout(HasSchema, Protocol):
    """A transactional source: same metadata, same batch."""

    kind: SpoutKind

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        """On the driver, whenever a process begins to lead; the parts of an earlier leadership are closed, or dead.

        Also before that, to finish a decided transaction after a crash: then ``commit`` and ``success`` are called,
        both parts are closed, and new ones are made, all of them with another context.
        """

    def get_emitter(self, context: SpoutContext) -> Emitter:
        """On the driver, after ``get_coordinator`` and with the same context: the two may share an object.

        `trident.replay` makes an emitter alone, with ``context.replays``.
        """


class CommitterTridentSpout(TridentSpout, Protocol):
    """A source that is told at commit which attempt counts; until then it may emit as it likes.

    Its emitter has ``commit`` too (see :class:`Commits`). It counts as opaque.

    The spout's duty: two attempts that are both decided never share a row. Several transactions are in flight, and
    several attempts of each, so a row that one has been given is kept from the others until its attempt is known to be
    dead: when ``initialize_transaction(txid)`` is called, every earlier attempt at txid *and at every later txid* is
    dead, and no other. :class:`LiveAttempts` does this accounting for a source without offsets.
    """

    kind: SpoutKind = SpoutKind.OPAQUE


@runtime_checkable
class BatchSpout(HasSchema, Protocol):
    """The simplest spout: a batch per txid (Storm's IBatchSpout). On the driver.

    Non-transactional, since what a replay holds is its own doing; a class that
    gives the same rows again for a txid that was not acknowledged may say
    ``kind = SpoutKind.TRANSACTIONAL``. It may have ``is_ready(txid)``, asked
    often, which saves empty transactions.
    """

    def open(self, context: SpoutContext) -> None:
        """Called once, before anything else."""

    def emit_batch(self, txid: int) -> Union[Data, Emitted]:
        """The batch of txid; called again when an attempt failed.

        May be called from several threads at once, for different transactions.
        """

    def ack(self, txid: int) -> None:
        """txid has succeeded. May be told again after a restart, never early."""

    def close(self) -> None: ...


class PartitionedCoordinator(Protocol):
    """Knows the partitions of a source; one per stream, on the driver."""

    def get_partitions_for_batch(self) -> Sequence[str]:
        """The ids of the partitions that the next new transaction reads, in order.

        Distinct texts of at most 1,024 bytes. A partition that is left out keeps its metadata, and goes on from it
        when it returns.
        """

    def is_ready(self, txid: int) -> bool:
        """Tells whether a new transaction may start now. Asked often: must be quick.

        It and the emission of new partition batches come while earlier transactions are in flight: also with
        ``max_spout_pending=1`` perhaps before ``commit`` and ``success`` of the one before, once that one is decided.
        """

    def refresh_partitions(self, partitions: Sequence[str]) -> None:
        """The list that ``get_partitions_for_batch`` gave differs from the one before."""

    def success(self, txid: int) -> None:
        """txid is durable. May be told again after a restart, never early."""

    def close(self) -> None:
        """Called last."""


@dataclass(frozen=True)
class PartitionBatch:
    """One partition's part of one batch.

    Attributes:
        rows: an Arrow table or record batches, or tuples; an iterator is read once.
        metadata: JSON, small: where the partition's next batch goes on; or a
            function that gives it once the rows have been read.
    """

    rows: Any
    metadata: Union[Json, Callable[[], Json]]


class PartitionEmitter(Protocol):
    """Emits partitions of a transactional source. Made on an executor, for one Spark task."""

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, last_metadata: Json
    ) -> PartitionBatch:
        """The partition's next rows; last_metadata is None for its first batch.

        May be called again, after a failure or a retried task, before its metadata is stored: with the same
        last_metadata. Once stored, ``emit_partition_batch`` gives the rows.
        """

    def emit_partition_batch(self, attempt: TransactionAttempt, partition: str, metadata: Json) -> Any:
        """Exactly the rows that belong to this metadata, again."""

    def close(self) -> None: ...


class OpaquePartitionEmitter(Protocol):
    """Emits partitions of an opaque source. Made on an executor, for one Spark task."""

    def emit_partition_batch(self, attempt: TransactionAttempt, partition: str, last_metadata: Json) -> PartitionBatch:
        """The partition's next rows: after a failure perhaps others than the first time.

        last_metadata is that of the last *committed* batch of the partition,
        or of the transactions in flight that this one builds on.
        """

    def close(self) -> None: ...


@runtime_checkable
class PartitionedTridentSpout(HasSchema, Protocol):
    """A transactional source in partitions, read on executors.

    The metadata of each partition is stored once per txid, before any of its
    rows is used; the partitions of a txid are frozen with it.

    The spout itself is pickled to the executors: no connections, locks or open files in it.
    """

    kind: SpoutKind = SpoutKind.TRANSACTIONAL

    def get_coordinator(self, context: SpoutContext) -> PartitionedCoordinator: ...

    def get_partition_emitter(self, context: SpoutContext) -> Union[PartitionEmitter, OpaquePartitionEmitter]:
        """Called on an executor, once for a task; ``context.spark`` is None there."""


class OpaquePartitionedTridentSpout(PartitionedTridentSpout, Protocol):
    """A source in partitions whose replays may hold other rows.

    The metadata of a partition is kept only when its transaction commits. A
    partition that disappears keeps its last metadata and goes on from it when
    it returns.
    """

    kind: SpoutKind = SpoutKind.OPAQUE

    def get_partition_emitter(self, context: SpoutContext) -> OpaquePartitionEmitter: ...


# Checks arguments of spouts when they are given, and metadata of batches when they are read back.


Refusal = type[TridentError]


def whole(name: str, value: Any, least: int, error: Refusal = TopologyError) -> int:
    """A whole number.

    Raises:
        TridentError: of the type ``error``: it is none, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = f"{name.split()[0]}={described(value)}"
        raise error(f"{name} cannot be used", found=found, expected=f"a whole number from {least} on")
    return value


def seconds(name: str, value: Any, zero: bool = True, error: Refusal = TopologyError) -> float:
    """A time in seconds, finite; ``zero`` says whether it may be 0. Raises as :func:`whole`."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        usable = usable and math.isfinite(float(value)) and (value >= 0 if zero else value > 0)
    except OverflowError:
        usable = False
    if not usable:
        raise error(
            f"{name} cannot be used",
            found=f"{name.split()[0]}={described(value)}",
            expected="seconds, a finite number from 0 on" if zero else "seconds, a finite number over 0",
        )
    return float(value)


def flag(name: str, value: Any, error: Refusal = TopologyError) -> bool:
    """True or False; a text such as "false" would be true. Raises as :func:`whole`."""
    if not isinstance(value, bool):
        raise error(f"{name} cannot be used", found=described(value), expected="True or False")
    return value


def path(name: str, value: Any, error: Refusal = TopologyError) -> str:
    """A path as text. Raises as :func:`whole`."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise error(f"{name} cannot be used", found=described(value), expected="a path")
    return text


def options(name: str, value: Any) -> dict[str, Any]:
    """Spark's options by name; None means none.

    Raises:
        TopologyError: they are no mapping from names.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TopologyError(
            f"the options of {name} cannot be used", found=described(value), expected="a mapping from names to values"
        )
    return dict(value)


def foreign_metadata(metadata: Json, spout: str, expected: str) -> SourceError:
    """The error for metadata that this kind of spout did not write."""
    return SourceError(
        f"the metadata of a batch was not written by {spout}",
        found=repr(metadata)[:200],
        expected=expected,
        action="give the stream another tx_id, or begin again with `trident reset NAME`",
    )


def is_whole(value: Any, least: int = 1) -> bool:
    """Tells whether a value is a whole number from ``least`` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole_of(metadata: Json, key: str, least: int, spout: str, expected: str) -> int:
    """A whole number that metadata holds under a key.

    Raises:
        SourceError: it holds none.
    """
    value: Any = metadata.get(key) if isinstance(metadata, dict) else None
    if is_whole(value, least):
        return value
    raise foreign_metadata(metadata, spout, expected)


def read_metadata(metadata: Json, kind: type[Record], spout: str) -> Record:
    """The metadata of a batch as the record that a kind of spout stores.

    Raises:
        SourceError: another spout wrote it.
    """
    try:
        return as_record(metadata, kind)
    except Unreadable as problem:
        expected = f"an object with {', '.join(one.name for one in fields(kind))} ({problem})"
        raise foreign_metadata(metadata, spout, expected) from None


def read_commit_data(commit_data: Json, kind: type[Record], spout: str) -> Record:
    """The commit data of a decided attempt as the record that a kind of spout stores.

    Raises:
        SourceError: it is no such record.
    """
    try:
        return as_record(commit_data, kind)
    except Unreadable:
        raise SourceError(f"this is not the commit data of {spout}", found=repr(commit_data)[:200]) from None
