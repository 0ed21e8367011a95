"""Spouts for tests: a fixed list of batches, and spouts that are fed while a topology runs (docs/semantics.md 3)."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError, TridentError, described
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import MAY_BE_MISSING
from trident.spouts.contracts import (
    Backlog,
    Emitted,
    Emitter,
    Json,
    SpoutContext,
    SpoutKind,
    read_commit_data,
    read_metadata,
)
from trident.spouts.live_attempts import Intake, SharedIntake, TakingCoordinator
from trident.spouts.ranged import RangedCoordinator
from trident.udf.types import as_schema

# A spout with a fixed list of batches, for tests and examples (docs/semantics.md 3).


_SPOUT = "a FixedBatchSpout"


class FixedBatchSpout:
    """Gives the batches that it was made with, one a transaction.

    Transactional: the metadata of a transaction is the index of its batch, and
    the same index is always the same rows, also after a restart, as long as the
    program makes the spout with the same batches.

    Args:
        schema: a StructType or DDL text such as "word string, n long".
        batches: the rows of each batch, as tuples in the schema's order.
        cycle: begin again after the last batch, for ever.

    Raises:
        TopologyError: the schema or a batch cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(
        self, schema: Union[str, "StructType"], batches: Iterable[Iterable[Sequence[Any]]], cycle: bool = False
    ) -> None:
        self._schema = as_schema(schema, "FixedBatchSpout")
        self._batches = [self._checked(number, batch) for number, batch in enumerate(_listed("batches", batches))]
        self._cycle = cycle

    def _checked(self, number: int, batch: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        width = len(self._schema.fields)
        rows = [tuple(row) if isinstance(row, (tuple, list)) else row for row in _listed(f"batch {number}", batch)]
        for row in rows:
            if not isinstance(row, tuple) or len(row) != width:
                raise TopologyError(
                    f"batch {number} of a FixedBatchSpout holds a row that does not fit its schema",
                    found=repr(row)[:200],
                    expected=f"a tuple of {width}: {', '.join(field.name for field in self._schema.fields)}",
                )
        return rows

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def get_coordinator(self, context: SpoutContext) -> "FixedBatchCoordinator":
        return FixedBatchCoordinator([len(batch) for batch in self._batches], self._cycle)

    def get_emitter(self, context: SpoutContext) -> "FixedBatchEmitter":
        return FixedBatchEmitter(self._batches)


def _listed(what: str, values: Any) -> list[Any]:
    try:
        if not isinstance(values, (str, bytes)):
            return list(values)
    except TypeError:
        pass
    raise TopologyError(
        f"the {what} of a FixedBatchSpout cannot be used",
        found=described(values),
        expected="a list of batches, each a list of tuples",
    )


@dataclass(frozen=True)
class BatchIndex:
    """The metadata of a spout that counts its batches.

    Attributes:
        batch: the index of the batch that the transaction took, or of the next one.
        empty: whether it took none.
        rows: of the batch, where that is known.
    """

    batch: int
    empty: bool = field(default=False, metadata={MAY_BE_MISSING: True})
    rows: int = field(default=0, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        return None if self.batch >= 0 else "`batch` is below 0"

    @property
    def next(self) -> int:
        """The index of the batch for the transaction after it."""
        return self.batch + (not self.empty)


class IndexCoordinator(RangedCoordinator[BatchIndex]):
    """Counts batches. Metadata: {"batch": index}, or {"batch": index, "empty": true}: no rows, and index comes later.

    Args:
        what: the spout, for messages.
        count: how many batches there are; None: no end.
    """

    def __init__(self, what: str, count: int | None) -> None:
        super().__init__()
        self._what, self._count = what, count

    def read(self, metadata: Json) -> BatchIndex:
        return read_metadata(metadata, BatchIndex, self._what)

    def stored(self, planned: BatchIndex) -> dict[str, Any]:
        return {"batch": planned.batch, **({"empty": True} if planned.empty else {})}

    def start(self) -> BatchIndex:
        return BatchIndex(0, empty=True)

    def after(self, before: BatchIndex) -> BatchIndex:
        return BatchIndex(before.next, empty=True)

    def waits(self, empty: BatchIndex) -> bool:
        return self._count is None or empty.batch < self._count

    def cut(self, empty: BatchIndex, txid: int) -> BatchIndex:
        # Where none waits another stream of the group has begun this transaction.
        return BatchIndex(empty.batch, empty=not self.waits(empty))


class FixedBatchCoordinator(IndexCoordinator):
    """Counts through the batches, perhaps again and again. Metadata: as the other's, with "rows": n."""

    def __init__(self, rows: Sequence[int], cycle: bool) -> None:
        super().__init__(_SPOUT, len(rows))
        self._rows, self._cycle = rows, cycle and bool(rows)

    def stored(self, planned: BatchIndex) -> dict[str, Any]:
        return {**super().stored(planned), "rows": 0 if planned.empty else self._rows[planned.batch]}

    def after(self, before: BatchIndex) -> BatchIndex:
        return BatchIndex(before.next % len(self._rows) if self._cycle else before.next, empty=True)

    def backlog(self) -> Backlog:
        return Backlog() if self._cycle else Backlog(rows=sum(self._rows[(self._last() or self.start()).next :]))


class FixedBatchEmitter(Emitter):
    def __init__(self, batches: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        self._batches = batches

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        found = read_metadata(metadata, BatchIndex, _SPOUT)
        index = found.batch
        if not found.empty and index >= len(self._batches):
            raise SourceError(
                "a FixedBatchSpout has fewer batches than when the transaction began",
                found=f"{len(self._batches)} batches",
                expected=f"batch {index} among them",
                action="make the spout with the same batches, or begin again with `trident reset NAME`",
            )
        rows = [] if found.empty else self._batches[index]
        return Emitted(rows, partitions=1)


# Spouts that are fed by a test while its topology runs (docs/semantics.md 3; Storm's feeder spouts).
#
# Both keep what they are fed in this process's memory: they survive a
# coordinator that is stopped and started again with the same object, not the
# end of the process.


Row = tuple[Any, ...]


class _Fed:
    """The rows of one call of ``feed``."""

    def __init__(self, number: int, rows: list[Row]) -> None:
        self.number, self.rows = number, rows
        self.succeeded = threading.Event()


class _Feeder:
    """The common part of the two feeders: the schema, the numbers of the feeds, and waiting."""

    def __init__(self, schema: Union[str, "StructType"]) -> None:
        self._schema = as_schema(schema, type(self).__name__)
        self._lock = threading.RLock()
        self._fed = 0
        self._pending: dict[int, _Fed] = {}  # by number, in the order of the feeds

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def feed(self, rows: Iterable[Sequence[Any]], wait: bool = False, timeout_secs: float = 60.0) -> None:
        """Hands in rows, from any thread.

        Args:
            rows: tuples in the schema's order.
            wait: return only when the transaction that has them has succeeded.
            timeout_secs: how long to wait at most.

        Raises:
            TopologyError: a row does not fit the schema; nothing was fed.
            TridentError: it was fed and has not succeeded in that time.
        """
        checked = [self._checked(row) for row in rows]
        with self._lock:
            self._fed += 1
            fed = self._pending[self._fed] = _Fed(self._fed, checked)
            self._enqueue(fed)
        if wait:
            self._wait([fed], timeout_secs)

    def wait_for_success(self, timeout_secs: float = 60.0) -> None:
        """Returns when all that was fed so far is in transactions that have succeeded.

        Raises:
            TridentError: not in that time.
        """
        with self._lock:
            waiting = list(self._pending.values())
        self._wait(waiting, timeout_secs)

    def _checked(self, row: Any) -> Row:
        width = len(self._schema.fields)
        if not isinstance(row, (tuple, list)) or len(row) != width:
            raise TopologyError(
                f"a {type(self).__name__} was fed a row that does not fit its schema",
                found=repr(row)[:200],
                expected=f"a tuple of {width}: {', '.join(field.name for field in self._schema.fields)}",
            )
        return tuple(row)

    def _wait(self, waiting: Sequence[_Fed], timeout_secs: float) -> None:
        end = time.monotonic() + timeout_secs
        for fed in waiting:
            if not fed.succeeded.wait(max(0.0, end - time.monotonic())):
                left = sum(not other.succeeded.is_set() for other in waiting)
                raise TridentError(
                    f"what a {type(self).__name__} was fed has not succeeded within {timeout_secs:g} s",
                    found=f"{left} of {len(waiting)} feeds waiting",
                    expected="a topology that runs and commits them",
                )

    def _enqueue(self, fed: _Fed) -> None:
        """Something more to do with it, under the lock."""

    def _succeeded(self, fed: Iterable[_Fed]) -> None:
        for one in fed:
            self._pending.pop(one.number, None)
            one.succeeded.set()


class FeederBatchSpout(_Feeder):
    """A batch spout that is fed batches: a transaction is given one, in the order in which they were fed.

    Transactional within this process: a batch belongs to its transaction until that
    is acknowledged, and each replay gives the same rows. A transaction that
    begins when nothing was fed (another stream of its group was ready) is empty.

    Args:
        schema: a StructType or DDL text such as "word string, n long".

    Raises:
        TopologyError: the schema cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, schema: Union[str, "StructType"]) -> None:
        super().__init__(schema)
        self._queue: deque[_Fed] = deque()
        self._of_txid: dict[int, _Fed | None] = {}  # None: the transaction is empty, and stays so
        self._incarnation: str | None = None

    def _enqueue(self, fed: _Fed) -> None:
        self._queue.append(fed)

    def open(self, context: SpoutContext) -> None:
        """Makes it ready for a coordinator; after `trident reset` what was not acknowledged is given again."""
        with self._lock:
            if self._incarnation not in (None, context.incarnation):
                # The txids begin again: those of the incarnation before mean nothing.
                unacknowledged = [fed for _, fed in sorted(self._of_txid.items()) if fed is not None]
                self._queue.extendleft(reversed(unacknowledged))
                self._of_txid.clear()
            self._incarnation = context.incarnation

    def is_ready(self, txid: int) -> bool:
        with self._lock:
            if self._queue and txid not in self._of_txid:
                # Given here already: the questions come in the order of the transactions, emit_batch need not.
                self._of_txid[txid] = self._queue.popleft()
            return self._of_txid.get(txid) is not None

    def backlog(self) -> Backlog:
        with self._lock:
            return Backlog(rows=sum(len(fed.rows) for fed in self._queue))

    def emit_batch(self, txid: int) -> Emitted:
        with self._lock:
            if txid not in self._of_txid:
                in_order = self._queue and txid > max(self._of_txid, default=0)
                self._of_txid[txid] = self._queue.popleft() if in_order else None
            fed = self._of_txid[txid]
            return Emitted(list(fed.rows) if fed else [], partitions=1)

    def ack(self, txid: int) -> None:
        with self._lock:
            done = [known for known in self._of_txid if known <= txid]
            self._succeeded(fed for fed in map(self._of_txid.pop, done) if fed is not None)

    def close(self) -> None:
        """Keeps everything: it may be opened again."""


class FeederCommitterBatchSpout(_Feeder):
    """A committer spout that is fed rows: a batch is whatever is waiting when it is emitted.

    Only ``commit`` takes rows off the queue. A replay holds what waits then:
    also what has been fed since, and less when a transaction before it, replayed
    too, has taken it. Opaque: each row is in one committed batch.

    Args:
        schema: a StructType or DDL text such as "word string, n long".

    Raises:
        TopologyError: the schema cannot be used.
    """

    kind = SpoutKind.OPAQUE

    def __init__(self, schema: Union[str, "StructType"]) -> None:
        super().__init__(schema)
        self._committed: dict[int, list[_Fed]] = {}  # txid -> what waits to hear of its success
        # Numbers of another process's feeder are not those of this one.
        self.id = uuid.uuid4().hex
        self._source = SharedIntake(lambda context: FeederCommitterEmitter(self, context))

    def get_coordinator(self, context: SpoutContext) -> TakingCoordinator:
        return TakingCoordinator(self._source.of(context))

    def get_emitter(self, context: SpoutContext) -> "FeederCommitterEmitter":
        return self._source.of(context)


@dataclass(frozen=True)
class _TakenFeeds:
    """The commit data: the feeder's id, and the numbers of what was fed to it."""

    feeder: str
    feeds: list[int]


class FeederCommitterEmitter(Intake[list[_Fed]]):
    """Emits what waits; commit_data: as :class:`_TakenFeeds`."""

    def __init__(self, spout: FeederCommitterBatchSpout, context: SpoutContext) -> None:
        super().__init__(context)
        self._spout = spout

    # --- for the coordinator ------------------------------------------------------------------

    def ready(self, more_than: int) -> bool:
        # The next to be emitted takes all there is, so nothing is left for one more.
        return not more_than and bool(self._free())

    def backlog(self) -> Backlog:
        return Backlog(rows=sum(len(fed.rows) for fed in self._free()))

    def _free(self) -> list[_Fed]:
        with self._live.lock:
            held = {fed.number for taken in self._live.all() for fed in taken}
            with self._spout._lock:
                committed = {fed.number for feds in self._spout._committed.values() for fed in feds}
                return [fed for fed in self._spout._pending.values() if fed.number not in held | committed]

    # --- for the framework --------------------------------------------------------------------

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        with self._live.lock:
            self._live.enter(attempt)
            feds = self._free()
            self._live.keep(attempt, feds)
        rows = [row for fed in feds for row in fed.rows]
        numbers = [fed.number for fed in feds]
        return Emitted(rows, {"feeder": self._spout.id, "feeds": numbers} if numbers else None, partitions=1)

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        taken = read_commit_data(commit_data, _TakenFeeds, "a feeder")
        if taken.feeder == self._spout.id:
            with self._spout._lock:
                pending = self._spout._pending
                feds = [pending[number] for number in taken.feeds if number in pending]
                self._spout._committed[attempt.txid] = feds
        # else they were rows of a process that has ended
        self._live.committed(attempt)

    def success(self, attempt: TransactionAttempt) -> None:
        with self._spout._lock:
            for txid in [known for known in self._spout._committed if known <= attempt.txid]:
                self._spout._succeeded(self._spout._committed.pop(txid))
        self.succeeded(attempt.txid)
