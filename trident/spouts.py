"""The contracts between a source of batches and the framework (SEMANTICS 3).

A spout describes a source. Its :class:`BatchCoordinator` lives on the driver
and decides, once per txid, *what* is in a batch: the metadata, a small JSON
value that is pinned in ZooKeeper before any row is used. Its
:class:`Emitter` turns the same metadata into the same rows, as often as it is
asked.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union, runtime_checkable

from coordinators.transactions import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Json = Union[None, bool, int, float, str, list, dict]
Data = Union["DataFrame", "pyarrow.Table", Iterable[tuple]]


class SpoutKind(enum.Enum):
    """What a replay of a txid may hold (SEMANTICS 3)."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class SpoutContext:
    """What a spout's parts are given when they are made.

    Attributes:
        spark: the session that batches run on.
        topology: the topology's name.
        tx_id: the stream's name; unique within the topology.
        state_folder: a folder of this stream alone, kept between runs; it exists.
        incarnation: the random id of this topology's life; it changes with `trident reset`.
        options: further settings of the topology.
    """

    spark: "SparkSession"
    topology: str
    tx_id: str
    state_folder: Path
    incarnation: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Backlog:
    """What a source has ready but not yet in a transaction, as far as it knows cheaply."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class Emitted:
    """A batch with what its spout wants back at commit.

    Attributes:
        data: a DataFrame, an Arrow table or rows (tuples in the order of output_schema).
        commit_data: JSON, stored with the decision, given to ``commit``.
        partitions: how many Spark partitions the batch is worth; None = as it comes.
            Small batches run fastest in one: several of them fill the cores.
    """

    data: Data
    commit_data: Json = None
    partitions: int | None = None


class BatchCoordinator(Protocol):
    """Decides what is in each transaction; one per stream, on the driver.

    Calls come from one thread at a time, ``close`` last.
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
        """Whether a new transaction may start now. Asked often: must be quick."""

    def success(self, txid: int) -> None:
        """txid is durable. May be told again after a restart, never early."""

    def close(self) -> None: ...


@runtime_checkable
class Shrinks(Protocol):
    """A coordinator that can make the batch of a txid smaller after it timed out."""

    def shrink_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """Returns metadata for a smaller batch beginning where curr_metadata begins."""


@runtime_checkable
class ReportsBacklog(Protocol):
    """A coordinator that knows what is waiting; shown in progress and status."""

    def backlog(self) -> Backlog: ...


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


class Emitter(Protocol):
    """Turns metadata into rows; one per stream, on the driver (its rows need not be)."""

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Union[Data, Emitted]:
        """Returns the batch: for the same metadata always the same rows.

        May be called from several threads at once, for different attempts.
        """

    def success(self, attempt: TransactionAttempt) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class TridentSpout(Protocol):
    """A transactional source: same metadata, same batch."""

    kind: SpoutKind

    @property
    def output_schema(self) -> "StructType":
        """The fields of every batch; known when the topology is built."""

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator: ...

    def get_emitter(self, context: SpoutContext) -> Emitter: ...
