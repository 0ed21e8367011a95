"""A rich spout as the source of a Trident stream (docs/semantics.md 6).

The executor takes messages from the spout and puts them into batches. A batch
keeps its messages over all attempts of its transaction in this process, so a
replay of the transaction is the same batch. How each message ended is stored
with the transaction, in the table of the stream's messages, and told to the spout when the
transaction has succeeded: ``ack`` of what is in the results or in the dead
letters, ``fail`` of what is to come again. After a crash between the two the
source hands messages out again that are settled; they are recognised by their
ids, of which a window is remembered, and acknowledged then.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from trident.coordinators.errors import ConfigError, SourceError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.retries import backoff_secs
from trident.messages.dead_letters import ReplayRequests
from trident.messages.ledger import ACKED, DEAD, FAILED, Failure, Settled, settled_messages
from trident.messages.pending import Past, PendingMessages, TrackedMessage, joined
from trident.spark.rows import arrow_rows
from trident.spouts.contracts import Backlog, Emitted, Json, ReportsBacklog, SpoutContext
from trident.spouts.executors import BeginContext, SpoutExecutor
from trident.spouts.rich import DEFAULT_STREAM, Given, RichSpout, SpoutCollector, message_key
from trident.states.core.place import Place
from trident.states.core.typed_values import python_values
from trident.states.core.values import dumps
from trident.states.publishing.dead_letters import Ends
from trident.udf.types import spout_schema
from trident.workers.anchors import ANCHORS, ids_of, make_anchors

log = logging.getLogger("trident.messages")
# The time for which a spout is asked for messages at once; those that it gave then may become a batch. While they do
# not fill one, the time grows with what came, at so many messages a second: a fast spout's batch is not cut short.
_POLL_SECS, _POLL_SECS_MAX, _FAST_A_SEC = 0.2, 1.0, 20_000
# Between two looks at what is open; a spout is asked for one message at a time.
_AT_ONCE = 1_000
_SMALL_ROWS = 100_000
_RETRY_SECS = 1.0
# Four attempts from 3,000 messages to the one that hangs.
_SHRINK = 8


@dataclass
class Outcome:
    """The fate of an attempt's messages, if it is the attempt that counts.

    Attributes:
        settled, failed: those that are acknowledged or given up; and those that come again.
        ends: of all of them, as the table of messages has them.
        letters: of those that are given up.
    """

    settled: PendingMessages
    failed: list[TrackedMessage]
    ends: Ends
    letters: list[dict[str, Any]]


@dataclass(slots=True)
class _Batch:
    """The messages of a transaction, the same for all its attempts unless a timeout makes them fewer.

    Attributes:
        messages: replaced as a whole, so that an attempt's thread may read them without a lock.
        attempt: that began last.
        table: the rows; None: made when they are emitted.
        outcomes: of attempts that have been staged.
    """

    messages: PendingMessages
    attempt: TransactionAttempt
    table: pa.Table | None
    outcomes: dict[TransactionAttempt, Outcome] = field(default_factory=dict)


class MessageSpoutExecutor(SpoutExecutor):
    """The executor of a stream whose spout hands out messages one by one.

    Args:
        context: of its stream; with the settings of messages among its options.
    """

    pins = False

    def __init__(self, spout: RichSpout, context: SpoutContext) -> None:
        options = context.options
        self._spout, self._context, self._tx_id = spout, context, context.tx_id
        self._schema = spout_schema(spout)
        self._collector = SpoutCollector({DEFAULT_STREAM: len(self._schema.names)})
        self._pending_max: int = options["max_pending_messages"]
        # One share more than may be in flight: the next batch is there before the spout has heard of the last.
        self._share = -(-self._pending_max // (options["max_spout_pending"] + 1))
        self._max_replays: int = options["max_replays"]
        self._backoff_secs: float = options["replay_backoff_secs"]
        self._remember_secs: float = options["remember_messages_secs"]
        self.tracking = options["ackers"] > 0
        # Roots are counted from a random place on, so that those of two streams of a group do not meet.
        self._next_root = 1 + secrets.randbits(62)
        self._salt = secrets.randbits(64)
        self._lock = threading.RLock()  # the spout's calls come one at a time
        # Those who want the lock while the spout is asked for messages, which may take long.
        self._others: set[object] = set()
        self._is_free = threading.Condition(self._lock)
        self._opened = False
        self._waiting: deque[PendingMessages] = deque()  # handed out, in no batch
        self._waits = 0  # messages in these
        self._batches: dict[int, _Batch] = {}  # by txid
        # Around each change of a batch. An attempt's thread takes it alone, and waits for no call of the spout.
        self._replacing = threading.Lock()
        self._taken = self._recognised = 0
        self._out: set[str] = set()  # keys of what is handed out
        self._attempts: dict[str, int] = {}
        self._settled = Settled(self._remember_secs)
        self._delayed: list[tuple[float, TrackedMessage]] = []  # when its fail is called
        self._unacknowledged: dict[str, Any] = {}  # key → id of those that are settled and not acknowledged yet
        self._notify_at = 0.0  # not before
        self._requests = ReplayRequests(Place(context.state_folder))

    # --- taking messages -----------------------------------------------------------------------

    def is_ready(self, txid: int) -> bool:
        with self._lock:
            self._poll()
            return self._waits > 0

    def _open(self) -> None:
        """Not before it is asked for a transaction: now a pending decision is finished, and its messages are known."""
        if self._opened:
            return
        if self.tracking:
            self._settled, self._attempts = settled_messages(
                self._context, self._remember_secs, self._requests.unfinished()
            )
        self._spout.collector, self._spout.context = self._collector, self._context
        self._spout.open()
        self._opened = True

    def _poll(self) -> None:
        """Takes what the spout has, within bounds, and calls fail for what has failed long enough ago."""
        self._open()
        now = time.monotonic()
        self._notify_spout(now)
        # Only tracked messages tell whether a request is finished: until then it waits.
        for request, given in self._requests.poll() if self.tracking else ():
            self._accept_all([given], request)
        self._requests.done()
        known, taken = self._recognised, self._taken
        while (room := self._capacity()) > 0:
            more = (self._taken - taken) / _FAST_A_SEC if self._waits < self._share else 0.0
            if not self._ask(now + min(_POLL_SECS + more, _POLL_SECS_MAX), min(room, _AT_ONCE)):
                break
        if self._recognised > known:
            log.info(
                "stream %r: %d messages were settled before: acknowledged, not processed again",
                self._tx_id,
                self._recognised - known,
            )

    def _ask(self, until: float, room: int) -> bool:
        """Takes messages for some room; tells whether the spout may have more, and there is time to ask it."""
        in_time, more, next_tuple, now = True, True, self._spout.next_tuple, time.monotonic
        given = len(self._collector)
        try:
            while more and in_time and given < room:
                had = given
                next_tuple()
                given = len(self._collector)
                more, in_time = given > had, now() < until
        finally:  # a spout that raises has given these all the same
            self._accept_all(self._collector.take())
        return more and time.monotonic() < until

    @contextmanager
    def _between_polls(self) -> Iterator[None]:
        """The lock; where the spout is asked for messages meanwhile, between two looks at what is open."""
        this = object()
        self._others.add(this)
        with self._lock:
            self._others.discard(this)
            self._is_free.notify_all()
            yield

    def _capacity(self) -> int:
        """How many messages may be taken, once those have had the lock who wait for it."""
        if self._others:
            self._is_free.wait(_POLL_SECS_MAX)
        return self._pending_max - max(len(self._out), self._waits)

    def _accept_all(self, given: Sequence[Given], request: str = "") -> None:
        """Messages of the spout, or of a replay request."""
        if not given:
            return
        if not self.tracking:
            self._accept_untracked(given)
            return
        self._taken += len(given)
        keys = ["" if one[0] is None else message_key(one[0]) for one in given]
        if request:
            keys = [f"replay {request} {key}" for key in keys]
        fresh = set(keys)
        if len(fresh) < len(keys) or not self._are_new(fresh):
            given, keys = self._chosen(given, keys, request)
            fresh = set(keys)
            fresh.discard("")
        self._out |= fresh
        self._wait(self._held(given, keys, request))

    def _are_new(self, keys: set[str]) -> bool:
        """Tells whether all of these are ids, and none of a message that is handed out or settled."""
        known = (self._out, self._unacknowledged.keys())
        return "" not in keys and all(map(keys.isdisjoint, known)) and self._settled.knows_none_of(keys)

    def _chosen(self, given: Sequence[Given], keys: Sequence[str], request: str) -> tuple[list[Given], list[str]]:
        """Those that are taken, and their keys; what was settled before is acknowledged."""
        taken: list[Given] = []
        chosen: list[str] = []
        seen = set[str]()
        known: dict[str, Given] = {}
        for one, key in zip(given, keys):
            if key in self._out or key in seen:
                continue  # handed out twice: the first one counts
            # One that is not acknowledged comes again, perhaps when it would be forgotten.
            if self._settled.knows(key) or key in self._unacknowledged:
                self._recognised += 1
                known[key] = one
                continue
            if key:
                seen.add(key)
            taken.append(one)
            chosen.append(key)
        if known:
            self._acknowledge(self._held([*known.values()], [*known], request))
        return taken, chosen

    def _held(self, given: Sequence[Given], keys: list[str], request: str = "") -> PendingMessages:
        """The messages with roots of their own, and what is known of them."""
        roots = np.arange(self._next_root, self._next_root + len(keys), dtype=np.uint64)
        self._next_root += len(keys)
        if "" in keys:
            roots[[not key for key in keys]] = 0
        past: dict[int, Past] = {}
        if request or self._attempts.keys() & set(keys):
            tries = self._attempts
            past = {root: Past(tries.get(key, 0), request) for root, key in zip(roots.tolist(), keys) if root}
        return PendingMessages([one[0] for one in given], [one[1] for one in given], keys, roots, past)

    def _wait(self, held: PendingMessages) -> None:
        """They come after the others that are to be in a batch."""
        if held:
            self._waiting.append(held)
            self._waits += len(held)

    def _accept_untracked(self, given: Sequence[Given]) -> None:
        """Messages that are not followed: acknowledged here, and not taken where that fails."""
        acknowledged = 0
        try:
            for message_id, _, _ in given:
                self._taken += 1
                if message_id is not None:
                    self._spout.ack(message_id)
                acknowledged += 1
        except BaseException:
            self._collector.put_back(given[acknowledged + 1 :])
            raise
        finally:
            self._wait(self._held(given[:acknowledged], [""] * acknowledged))

    def _notify_spout(self, now: float) -> None:
        """Calls fail for messages whose time has come, and ack for what could not be acknowledged before."""
        if now < self._notify_at:
            return
        self._acknowledge(PendingMessages())
        due = sorted((delayed for delayed in self._delayed if delayed[0] <= now), key=lambda delayed: delayed[0])
        for at, one in due:
            try:
                if not one.request:
                    self._spout.fail(one.message_id)
            except Exception as error:
                log.warning("the spout of stream %r raised at fail of a message: %s", self._tx_id, error)
                self._notify_at = now + _RETRY_SECS
                # Last: one at which fail always raises does not keep the others waiting.
                self._delayed[self._delayed.index((at, one))] = (self._notify_at, one)
                return
            self._delayed.remove((at, one))
            self._out.discard(one.key)
            if one.request:
                self._accept_all([(one.message_id, one.rows, DEFAULT_STREAM)], one.request)

    # --- as the host drives it -------------------------------------------------------------------

    def refresh(self) -> None:
        """The spout is asked each time; replay requests are looked for at once."""
        self._requests.poll_at_once()

    def backlog(self) -> Backlog | None:
        """Not known unless the spout counts what it has not handed out: it may hand out so many and no more."""
        if not isinstance(self._spout, ReportsBacklog):
            return None
        found = self._spout.backlog()  # without the lock: it may hang
        with self._lock:
            waiting = sum(int(held.counts.sum()) for held in self._waiting)
        return replace(found, rows=None if found.rows is None else found.rows + waiting)

    def counts(self) -> tuple[int, int]:
        """Messages that were handed out so far, and those of them that are not settled: in no batch, in one, or waiting
        to be handed out again."""
        with self._lock:
            nameless = sum(held.nameless() for held in self._waiting)
            return self._taken, len(self._out) + nameless

    def initialize(self, context: BeginContext) -> Json:
        """Tells which messages are in the transaction."""
        txid = context.attempt.txid
        with self._lock:
            self._open()
            batch = self._batches.get(txid)
            if batch is None:
                messages, table = self._converted(self._next_batch())
                batch = self._batches[txid] = _Batch(messages, context.attempt, table)
            else:
                with self._replacing:  # the thread of an attempt before may be in `suspect`
                    batch.attempt = context.attempt
                    if context.shrink:
                        less = self._smaller_batch(batch.messages)
                        batch.table = None  # first: a reader takes the messages, then the table
                        batch.messages = less
            return {"messages": len(batch.messages), "rows": int(batch.messages.counts.sum())}

    def _next_batch(self) -> PendingMessages:
        """The next share of those that wait."""
        parts, room = [], self._share
        while self._waiting and room:
            first = self._waiting.popleft()
            if len(first) > room:
                self._waiting.appendleft(first.part(room))
                first = first.part(0, room)
            parts.append(first)
            room -= len(first)
            self._waits -= len(first)
        return joined(parts)

    def _converted(self, batch: PendingMessages) -> tuple[PendingMessages, pa.Table | None]:
        """The messages and their rows. Messages whose values do not fit have failed; then there are no rows."""
        try:
            return batch, arrow_rows(batch.tuples, self._schema)
        except SourceError:
            pass
        failures: dict[int, Failure] = {}
        for one in batch:
            try:
                arrow_rows(one.rows, self._schema)
            except SourceError as error:
                # One without an id fails its batch: there is no id to call fail with.
                if one.key:
                    failures[one.root] = Failure("the spout", self._tx_id, str(error))
        return _suspected(batch, failures), None

    def _smaller_batch(self, batch: PendingMessages) -> PendingMessages:
        """A part of a batch that took too long; a single message is known to be the reason."""
        suspects = batch.is_of(_suspects(batch))
        failed, others = batch.where(suspects), batch.where(~suspects)
        if len(others) == 1 and others.keys[0]:
            text = "processing this message alone took longer than message_timeout_secs"
            others = _suspected(others, {int(others.roots[0]): Failure("", "", text)})
        kept = max(1, len(others) // _SHRINK)
        if len(others) > kept:
            self._waiting.appendleft(others.part(kept))
            self._waits += len(others) - kept
        return joined([failed, others.part(0, kept)])

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The rows without anchors; tracked batches use :meth:`emit`."""
        return self.emit(attempt, frozenset(), anchors=False)

    def emit(self, attempt: TransactionAttempt, without: "frozenset[int]", anchors: bool) -> Emitted:
        """The rows of the attempt's messages, except those of some roots.

        Args:
            without: roots.
            anchors: with the hidden column.
        """
        batch = self._batches.get(attempt.txid)
        held, table = (_NONE, None) if batch is None else (batch.messages, batch.table)
        if without:
            held, table = held.where(~held.is_of(without)), None
        if table is None:
            table = arrow_rows(held.tuples, self._schema)
        if anchors:
            table = table.append_column(ANCHORS, _anchors_of(held, self._salt))
        return Emitted(table, partitions=1 if table.num_rows <= _SMALL_ROWS else None)

    def _messages_of(self, attempt: TransactionAttempt) -> PendingMessages:
        """Those of the attempt's transaction. It waits for no call of the spout."""
        batch = self._batches.get(attempt.txid)
        return _NONE if batch is None else batch.messages

    def messages(self, attempt: TransactionAttempt) -> list[TrackedMessage]:
        """Those of the attempt's transaction, one by one: for the few calls that look for one of them."""
        return list(self._messages_of(attempt))

    def suspects(self, attempt: TransactionAttempt) -> dict[int, Failure]:
        """Messages of the transaction of which it is known that they fail."""
        return _suspects(self._messages_of(attempt))

    def suspect(self, attempt: TransactionAttempt, failures: Mapping[int, Failure]) -> None:
        """These have failed: later attempts at the transaction need not find them again.

        It changes nothing for an attempt that another one has replaced: the batch may be a smaller one by now, and its
        other messages in another transaction.
        """
        with self._replacing:
            batch = self._batches.get(attempt.txid)
            if failures and batch is not None and batch.attempt == attempt:
                batch.messages = _suspected(batch.messages, failures)

    def outcome(self, attempt: TransactionAttempt, failures: Mapping[int, Failure]) -> Outcome:
        """How the messages of the attempt end if it counts; kept until that is known."""
        acked = self._messages_of(attempt).tracked()
        failed: list[TrackedMessage] = []
        dead, letters = _NONE, list[dict[str, Any]]()
        if failures:
            bad = acked.is_of(failures)
            broken, acked = acked.where(bad), acked.where(~bad)
            failed = [one for one in broken if one.attempts < self._max_replays]
            dead = broken.where(~broken.is_of([one.root for one in failed]))
            letters = [self._letter(one, failures[one.root]) for one in dead]
        outcome = Outcome(joined([acked, dead]) if dead else acked, failed, _ends_of(acked, failed, dead), letters)
        if (batch := self._batches.get(attempt.txid)) is not None:
            batch.outcomes[attempt] = outcome  # without the lock: it waits for no call of the spout
        return outcome

    def _letter(self, one: TrackedMessage, failure: Failure) -> dict[str, Any]:
        return {
            "stream": self._tx_id,
            "message": message_key(one.message_id),
            "tuples": self._as_text(one.rows),
            "attempts": one.attempts + 1,
            "operation": failure.operation,
            "location": failure.location,
            "error": " ".join(filter(None, (failure.error, failure.place))),
            "traceback": failure.traceback,
        }

    def _as_text(self, rows: Sequence[tuple[Any, ...]]) -> str | None:
        """The rows so that they can be read back; None where a value has no such form: it cannot be replayed."""
        try:
            table = arrow_rows(rows, self._schema)
            # As a batch would have them: plain values of the fields' types, whatever the spout emitted.
            columns = [python_values(column.combine_chunks()) for column in table.columns]
            return dumps([list(row) for row in zip(*columns)])
        except (SourceError, ConfigError):
            pass
        try:
            return dumps([list(row) for row in rows])
        except ConfigError:
            return None

    def success(self, attempt: TransactionAttempt) -> None:
        """The transaction is durable: the spout hears how its messages ended."""
        with self._between_polls():
            batch = self._batches.pop(attempt.txid, None)
            outcome = None if batch is None else batch.outcomes.get(attempt)
            for one in outcome.failed if outcome is not None else ():
                self._fail_later(one)
            settled = outcome.settled if outcome is not None else _NONE
            for key in self._attempts.keys() & set(settled.keys) if self._attempts else ():
                del self._attempts[key]
            self._settled.add_all(settled.keys)
            self._out.difference_update(settled.keys)
            self._acknowledge(settled)
            self._requests.done()

    def _fail_later(self, one: TrackedMessage) -> None:
        """It is to come again: fail is called when its time has come."""
        self._attempts[one.key] = attempts = one.attempts + 1
        delay = backoff_secs(attempts, self._backoff_secs)
        self._delayed.append((time.monotonic() + delay, one))

    def _acknowledge(self, settled: PendingMessages) -> None:
        """Calls ack for settled messages; later for those that cannot be acknowledged now: a broker is away."""
        if requested := [root for root, past in settled.past.items() if past.request]:
            is_requested = settled.is_of(requested)
            for one in settled.where(is_requested):
                self._requests.settle(one.request, one.key)
            settled = settled.where(~is_requested)
        self._unacknowledged.update(zip(settled.keys, settled.ids))
        ack_many = getattr(self._spout, "ack_many", None)
        try:
            if ack_many is not None and self._unacknowledged:
                ack_many(list(self._unacknowledged.values()))
                self._unacknowledged.clear()
            while self._unacknowledged:
                key = next(iter(self._unacknowledged))
                self._spout.ack(self._unacknowledged[key])
                del self._unacknowledged[key]
        except Exception as error:
            for key in [*self._unacknowledged][
                :1
            ]:  # one that can never be acknowledged does not stand before the others
                self._unacknowledged[key] = self._unacknowledged.pop(key)
            self._notify_at = time.monotonic() + _RETRY_SECS
            log.warning(
                "the spout of stream %r could not acknowledge %d messages, ack is called again: %s",
                self._tx_id,
                len(self._unacknowledged),
                error,
            )

    def cancel(self, attempt: TransactionAttempt) -> None:
        """The batch stays that of its transaction."""
        if (batch := self._batches.get(attempt.txid)) is not None:
            batch.outcomes.pop(attempt, None)

    def close(self) -> None:
        with self._lock:
            if self._opened:
                self._spout.close()


_NONE = PendingMessages()


def _suspects(held: PendingMessages) -> dict[int, Failure]:
    return {root: past.suspect for root, past in held.past.items() if past.suspect is not None}


def _suspected(held: PendingMessages, failures: Mapping[int, Failure]) -> PendingMessages:
    return held.changed(failures, lambda root, past: replace(past, suspect=failures[root]))


def _anchors_of(held: PendingMessages, salt: int) -> pa.Array:
    counts = held.counts
    of_rows, numbers = held.roots, np.zeros(len(held), np.int64)
    if (counts != 1).any():
        of_rows = np.repeat(held.roots, counts)
        numbers = np.arange(len(of_rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    anchored = of_rows != 0
    roots = of_rows[anchored]
    return make_anchors(anchored.astype(np.int64), roots, ids_of(roots, numbers[anchored], salt))


def _ends_of(acked: PendingMessages, failed: Sequence[TrackedMessage], dead: PendingMessages) -> Ends:
    outcomes = [pa.repeat(pa.scalar(end), len(of)) for end, of in ((ACKED, acked), (FAILED, failed), (DEAD, dead))]
    tries = pa.repeat(pa.scalar(0, pa.int32()), len(acked))
    if acked.past:
        tries = pa.array([one.attempts for one in acked], pa.int32())
    worse = pa.array([*(one.attempts + 1 for one in failed), *(one.attempts + 1 for one in dead)], pa.int32())
    keys = [*acked.keys, *(one.key for one in failed), *dead.keys] if failed or dead else acked.keys
    return Ends(keys, pa.concat_arrays(outcomes), pa.concat_arrays([tries, worse]))
