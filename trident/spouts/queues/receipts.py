"""A committer spout over a queue with receipts: each message counts once, whatever is killed (docs/semantics.md 3).

The life of a message: ``take`` when an attempt is emitted; ``hold`` in
``prepare``, when the attempt's results are staged; ``acknowledge`` in ``commit``,
when the attempt is decided and its tables are published. It goes back to the
queue as soon as its attempt is known to be dead.

Nothing is lost: only ``commit`` removes messages, and only those in the commit
data of a decided attempt, whose rows are in the tables by then.

Nothing is doubled: two decided attempts never share a message. Before an
attempt can be decided it must hold each of its messages, in one transaction of the
queue that fails if any was delivered to another consumer since (its lease had
run out). From then on no other consumer is given the message until

- it is acknowledged; or
- this process gives it back, because the attempt is dead: a begin of its
  transaction or of an earlier one has been heard of, which the coordinator
  never does to an attempt that may have been decided
  (:mod:`trident.spouts.live_attempts`). A cancelled attempt, and ``close``, say less:
  then what is held stays held, and only what was never held goes back; or
- a successor takes the consumer's name over. It does so when it is first
  asked for a transaction, and by then the framework has finished the pending
  decision, if there was one: its ``commit`` came before. Its other attempts are dead
  because their coordinator is fenced.

So these moments are safe too:

- *N fails while N+1 is in flight*: both begin again; the messages of both are
  back before the new attempt at N takes.
- *A cancelled attempt still runs in its thread* and calls ``emit_batch``: it
  is refused when a newer attempt was emitted, or what it takes goes back at
  the next begin or emit of its transaction. ``prepare`` refuses it.
- *A lease runs out under a live attempt*: another consumer may be given the
  message; then ``prepare`` fails and the batch is tried again. When it is delivered to
  this consumer again, it is recognised by its id and left with the attempt
  that has it.
- *Decided, not yet committed*: the message is held, so it is not delivered
  again; in the same process it would be recognised by its id.
- *A coordinator that was deposed wakes up*: with the greater epoch of its
  successor in the queue it can neither take nor hold. The messages that it gives
  back are not its own any more: the queue leaves them alone. Its ``commit`` may
  still acknowledge: that is a decided attempt's, which the successor acknowledges
  too.
- *Killed between take and decision*: the successor of the same name gives
  everything back at once. If none ever comes, taken messages return to the other
  consumers when their lease has run out, held ones with ``SqliteQueue.release(name)``.

Two limits: a transaction that is given up with ``trident skip`` takes nothing off
the queue, its messages come with the next one; and ``trident reset`` forgets
a decision that was not finished, so its messages come again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError, described
from trident.coordinators.identities import TransactionAttempt
from trident.spouts import contracts as spout_arguments
from trident.spouts.contracts import Backlog, Emitted, Json, SpoutContext, SpoutKind, read_commit_data
from trident.spouts.live_attempts import Intake, SharedIntake, TakingCoordinator, TakingEmitter, given_up, limit_of
from trident.states.delta.append import DeltaAppend
from trident.udf.types import as_schema
from trident.workers.failures import may_pass

Row = tuple[Any, ...]
MAX_MESSAGES = "max_messages"


class TakenMessage(Protocol):
    """A message as :class:`ReceiptConsumer` delivers it."""

    @property
    def id(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def receipt(self) -> str: ...


class ReceiptConsumer(Protocol):
    """One process's part in a named consumer of a queue; see SqliteConsumer for what each call must guarantee."""

    def start(self) -> None: ...
    def ready(self, most: int) -> int: ...
    def take(self, n: int) -> Sequence[TakenMessage]: ...
    def hold(self, receipts: Iterable[str]) -> None: ...
    def give_back(self, receipts: Iterable[str]) -> None: ...


class ReceiptQueue(Protocol):
    """A queue that a QueueSpout can read: SqliteQueue, or one of your own that guarantees the same."""

    @property
    def id(self) -> str: ...
    def consumer(self, name: str, life: str, epoch: int | None) -> ReceiptConsumer: ...
    def acknowledge(self, ids: Iterable[str]) -> None: ...


class QueueSpout:
    """Messages of a queue, each in one committed transaction; acknowledged only when the tables have it.

    Opaque: a replay may hold other messages. Other consumers may read the same
    queue; each message goes to one of them. The order of messages is kept within
    a batch, and between batches as long as nothing fails.

    Args:
        queue: a SqliteQueue, or another ReceiptQueue.
        max_messages: of one batch.
        schema: of the rows, when ``decode`` makes other ones than ``id string, payload string``.
        decode: makes a row (a tuple of the schema) of a payload; None leaves the
            message out, which is acknowledged with its batch. An error fails the batch.
        table: the name of a Delta table of receipts that the spout owns:
            each transaction appends (id, txid) of its messages, in the same decision.
        consumer: under which name the queue is read; must be this stream's alone.
            By default "topology/stream".

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.OPAQUE

    def __init__(
        self,
        queue: ReceiptQueue,
        max_messages: int = 1_000,
        schema: Union[str, "StructType", None] = None,
        decode: Callable[[Any], Row | None] | None = None,
        table: str | None = None,
        consumer: str | None = None,
    ) -> None:
        missing = [name for name in ("consumer", "acknowledge") if not callable(getattr(queue, name, None))]
        if missing:
            raise TopologyError(
                "the queue of a QueueSpout cannot be used",
                found=f"{described(queue)} without {', '.join(missing)}",
                expected="a SqliteQueue, or one of your own that guarantees the same",
            )
        for name, value in (("table", table), ("consumer", consumer)):
            if value is not None and (not isinstance(value, str) or not value):
                raise TopologyError(f"{name} of a QueueSpout cannot be used", found=described(value), expected="a name")
        if decode is not None and not callable(decode):
            raise TopologyError("decode of a QueueSpout cannot be used", found=described(decode), expected="a function")
        spout_arguments.whole("max_messages of a QueueSpout", max_messages, 1)
        if (schema is None) != (decode is None):
            raise TopologyError(
                "a QueueSpout with rows of its own needs both schema and decode",
                found="decode alone" if schema is None else "schema alone",
                expected="both or neither",
            )
        self.queue, self.max_messages, self.decode, self.consumer = queue, max_messages, decode, consumer
        self._schema = as_schema("id string, payload string" if schema is None else schema, "QueueSpout")
        self._table = table
        self._intake = SharedIntake(lambda context: _Intake(self, context))

    @property
    def bound_to_one_host(self) -> "str | bool":
        """As the queue says."""
        return getattr(self.queue, "bound_to_one_host", False)

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    @property
    def table(self) -> Any:
        """The table of receipts, a DeltaAppend; None without one."""
        return DeltaAppend(self._table) if self._table is not None else None

    @property
    def table_schema(self) -> "StructType":
        return as_schema("id string, txid bigint", "QueueSpout")

    def get_coordinator(self, context: SpoutContext) -> TakingCoordinator:
        return TakingCoordinator(self._intake.of(context), MAX_MESSAGES, self.max_messages)

    def get_emitter(self, context: SpoutContext) -> "QueueEmitter":
        return QueueEmitter(self, self._intake.of(context))


@dataclass
class _Taken:
    """The messages of a live attempt: id → receipt of the last delivery."""

    receipts: dict[str, str]
    held: bool = False


class _Intake(Intake[_Taken]):
    """Takes messages for attempts and gives back those of dead ones."""

    def __init__(self, spout: QueueSpout, context: SpoutContext) -> None:
        super().__init__(context)
        name = spout.consumer or f"{context.topology}/{context.tx_id}"
        self._consumer = spout.queue.consumer(name, context.incarnation, context.options.get("epoch"))
        self._started = False
        self._to_give_back: list[str] = []

    # --- for the coordinator ------------------------------------------------------------------

    def begin(self, txid: int) -> None:
        with self._live.lock:
            self._start()
            super().begin(txid)

    def ready(self, more_than: int) -> bool:
        with self._live.lock:
            self._start()
        return self._consumer.ready(more_than + 1) > more_than

    def backlog(self) -> Backlog:
        return Backlog(rows=self._consumer.ready(sys.maxsize))

    # --- for the emitter ------------------------------------------------------------------------

    def take(self, attempt: TransactionAttempt, most: int) -> list[TakenMessage]:
        with self._live.lock:
            self._start()
            # First, so that this attempt can have them.
            self._give_back(self._live.enter(attempt))
            fresh = self._recognise(self._consumer.take(most))
            self._live.keep(attempt, _Taken({message.id: message.receipt for message in fresh}))
        return fresh

    def _recognise(self, messages: Sequence[TakenMessage]) -> list[TakenMessage]:
        """Without those that a live attempt has: their lease has run out, and they count there."""
        owner = {id: taken for taken in self._live.all() for id in taken.receipts}
        fresh = []
        for message in messages:
            if message.id in owner:
                owner[message.id].receipts[message.id] = message.receipt
            else:
                fresh.append(message)
        return fresh

    def hold(self, attempt: TransactionAttempt) -> None:
        with self._live.lock:
            taken = self._live.get(attempt)
            if taken is None:
                raise given_up(attempt)
            if taken.receipts:
                self._consumer.hold(taken.receipts.values())
            taken.held = True

    def committed(self, attempt: TransactionAttempt) -> None:
        self._live.committed(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        with self._live.lock:
            taken = self._live.get(attempt)
            # Held: perhaps this process is no leader any more and the attempt was decided.
            if taken is None or not taken.held:
                super().cancel(attempt)

    def close(self) -> None:
        with self._live.lock:
            # A held message may be decided: it stays for the successor, which will know.
            self._give_back([taken for taken in self._live.close() if not taken.held])

    def _start(self) -> None:
        if not self._started:
            # Not before: now a decision that was pending has been finished, with its commit.
            self._consumer.start()
            self._started = True

    def _give_back(self, taken: Sequence[_Taken]) -> None:
        self._to_give_back += [receipt for one in taken for receipt in one.receipts.values()]
        if self._to_give_back:
            self._consumer.give_back(self._to_give_back)
            self._to_give_back = []  # kept when it failed: the next call does it


@dataclass(frozen=True)
class _TakenIds:
    """The commit data: the queue's id, and those of its messages that were taken."""

    queue: str
    ids: list[Any]


class QueueEmitter(TakingEmitter[_Taken]):
    """Emits messages; commit_data: as :class:`_TakenIds`."""

    _intake: _Intake

    def __init__(self, spout: QueueSpout, intake: _Intake) -> None:
        super().__init__(intake)
        self._spout = spout

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        most = limit_of(metadata, MAX_MESSAGES, self._spout.max_messages)
        messages = self._intake.take(attempt, most)
        if not messages:
            return Emitted([], partitions=1)
        ids = [message.id for message in messages]
        receipts = [(id, attempt.txid) for id in ids] if self._spout.table is not None else None
        commit_data: Json = {"queue": self._spout.queue.id, "ids": list[Any](ids)}
        return Emitted(self._rows(messages), commit_data, partitions=1, table_rows=receipts)

    def _rows(self, messages: Sequence[TakenMessage]) -> list[Row]:
        decode = self._spout.decode
        if decode is None:
            return [(message.id, message.payload) for message in messages]
        rows = []
        for message in messages:
            try:
                row = decode(message.payload)
            except Exception as error:
                problem = SourceError(
                    f"message {message.id} cannot be decoded: {type(error).__name__}: {error}",
                    found=repr(message.payload)[:200],
                    expected=self._spout.output_schema.simpleString(),
                    action="let decode return None for what it cannot read, or acknowledge the message by its id",
                )
                problem.fingerprint = None if may_pass(error) else str(problem)
                raise problem from error
            if row is not None:
                rows.append(row)
        return rows

    def prepare(self, attempt: TransactionAttempt) -> None:
        self._intake.hold(attempt)

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        taken = read_commit_data(commit_data, _TakenIds, "a QueueSpout")
        if taken.queue != self._spout.queue.id:
            # Its ids name other messages here.
            raise SourceError(
                f"the messages of the decided attempt {attempt} are of another queue",
                found=f"queue {self._spout.queue.id}",
                expected=f"queue {taken.queue}",
                action="start the topology once over the queue that it had",
            )
        self._spout.queue.acknowledge(taken.ids)
        # Only now: until here a redelivered one would be recognised.
        self._intake.committed(attempt)
