"""Spouts that are fed by a test while its topology runs (docs/semantics.md 3; Storm's feeder spouts).

Both keep what they are fed in this process's memory: they survive a
coordinator that is stopped and started again with the same object, not the
end of the process.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError, TridentError
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.arguments import read_commit_data
from trident.spouts.contracts import Backlog, Emitted, Json, SpoutContext, SpoutKind
from trident.spouts.live_attempts import Intake, SharedIntake, TakingCoordinator
from trident.udf.schemas import as_schema

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
