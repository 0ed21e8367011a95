"""The coordinator of a source with positions: each batch is a range that begins where the one before ends.

Files, Delta tables, Kafka topics, clocks and Python data sources have one skeleton: what is in a batch is pinned as a
range, a replay has the same range, a batch that timed out becomes a shorter one, and how long the next one is follows
from what waits. :class:`RangedCoordinator` is that skeleton, :class:`AdaptiveBatchSize` the choice of the length.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from typing import Generic, TypeVar

from trident.coordinators.errors import Halted, SourceError, TopologyError
from trident.spouts.contracts import BatchCoordinator, Json, whole

log = logging.getLogger(__name__)

# A batch of up to so many times the least size is a small one.
_SMALL = 2
_MIN_ROWS = 1_000
# The ranges of so many transactions are remembered: more than may be in flight.
_REMEMBERED = 100

Range = TypeVar("Range")


class RangedCoordinator(BatchCoordinator, Generic[Range]):
    """Pins, replays, shrinks and remembers ranges; a subclass knows the source and cuts them.

    Two locks: ``_asking`` is held while the source is looked at and a range is cut, which may take seconds; ``_lock``,
    taken after it and never before it, guards the ranges that are remembered and is held for no wait. So a replay and
    the success of a transaction wait for no source.

    Args:
        sizes: chooses the length of a batch; None: a batch that timed out stays as it is.
        poll_interval_secs: least time between two looks at the source.
    """

    # A source that does not answer is waited for; or a transaction begins all the same, fails by it, and counts.
    waits_for_source = False
    # A poll is followed by a pause of at least so many times its own length.
    pause_per_poll = 0

    def __init__(self, sizes: "AdaptiveBatchSize | None" = None, poll_interval_secs: float = 0.0) -> None:
        self._adaptive, self._poll_interval_secs = sizes, poll_interval_secs
        self._planned: dict[int, Range] = {}
        self._begun_at: dict[int, float] = {}
        self._fresh: Range | None = None  # where the stream begins, until its first batch is pinned
        self._next_poll = 0.0
        self._poll_again = False  # requested by refresh(), perhaps while a poll was under way
        self._poll_failure: Exception | None = None  # of the newest poll
        self._asking, self._lock = threading.RLock(), threading.RLock()

    # --- the source -------------------------------------------------------------------------------

    @abstractmethod
    def read(self, metadata: Json) -> Range:
        """The range that metadata holds. Raises SourceError where another spout wrote it."""

    @abstractmethod
    def stored(self, planned: Range) -> Json:
        """The metadata of a range."""

    @abstractmethod
    def start(self) -> Range:
        """The empty range at which a new stream begins. Raises SourceError where it cannot begin there."""

    @property
    def start_is_fixed(self) -> bool:
        """Tells whether a stream would begin at the same place if it were asked later."""
        return True

    @abstractmethod
    def after(self, before: Range) -> Range:
        """The empty range where another one ends. Raises SourceError where the source is not the one it was."""

    @abstractmethod
    def waits(self, empty: Range) -> bool:
        """Tells whether the source has something after an empty range."""

    @abstractmethod
    def cut(self, empty: Range, txid: int) -> Range:
        """The range that begins at an empty one, as long as :meth:`next_size` says."""

    def poll(self) -> None:
        """Reads the source's present state."""

    def size(self, planned: Range) -> int:
        """About how long a range is, in the unit of the sizes."""
        return 1

    def shrunk(self, found: Range, size: int, txid: int) -> Range:
        """A range of about this size that begins where another one does and ends no later."""
        return found

    # --- polls ------------------------------------------------------------------------------------

    def resume(self, txid: int, metadata: Json) -> None:
        """Called, if at all, before the first question: the greatest txid that has metadata."""
        self._remember(txid, self.read(metadata))

    def refresh(self) -> None:
        """The next question is answered from a new poll of the source, however recent the last one was."""
        self._poll_again = True

    def is_ready(self, txid: int) -> bool:
        with self._asking:
            try:
                self._poll()
                with self._lock:
                    before, is_resumed = self._planned.get(txid - 1), bool(self._planned)
                if before is None:
                    if is_resumed:
                        return True  # after a restart: the metadata of txid - 1 comes with initialize_transaction
                    before = self._first()
                    if not self.start_is_fixed:
                        return True  # where the stream begins is written down before it could be another place
                return self.waits(self.after(before))
            except SourceError:
                if self.waits_for_source:
                    raise
                return True  # it is raised again when the transaction begins, where it counts

    def _poll(self) -> None:
        """Polls the source, at most every poll_interval_secs.

        Raises:
            SourceError: the newest poll has failed. All callers get it until the next poll.
        """
        started = time.monotonic()
        if started >= self._next_poll or self._poll_again:
            self._poll_again = False  # before the poll: a refresh() during it requests another
            try:
                self.poll()
                self._poll_failure = None
            except Exception as error:
                self._poll_failure = error
            ended, pause = time.monotonic(), self._poll_interval_secs
            if self._poll_failure is not None and not self.waits_for_source:
                pause = 0.0  # each attempt that a failed poll can fail polls itself
            self._next_poll = ended + max(pause, self.pause_per_poll * (ended - started)) if pause else ended
        if self._poll_failure is not None:
            raise self._poll_failure

    def _first(self) -> Range:
        if self._fresh is None:
            self._fresh = self.start()
        return self._fresh

    def _last(self) -> Range | None:
        """The range of the last transaction; None: there was none yet."""
        with self._lock:
            return self._planned[max(self._planned)] if self._planned else None

    # --- planning ---------------------------------------------------------------------------------

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        if curr_metadata is not None:
            self._remember(txid, self.read(curr_metadata))
            return curr_metadata
        with self._asking:
            begun_at = time.monotonic()
            # Before the poll: a source may be written to by it, and must not be where it is not the one it was.
            empty = None if prev_metadata is None else self.after(self.read(prev_metadata))
            try:
                self._poll()
            except SourceError as error:
                if empty is None and self._fresh is not None:
                    empty = self.after(self._fresh)
                if empty is None or not self.waits_for_source or isinstance(error, Halted):
                    raise
                # It has answered is_ready: the transaction takes nothing, rather than fail.
                log.info("transaction %d begins empty: %s", txid, error)
                return self._begin(txid, empty, begun_at)
            return self._begin(txid, self.cut(self._first() if empty is None else empty, txid), begun_at)

    def shrink_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        """About half of what timed out, but never nothing."""
        found = self.read(curr_metadata)
        if self._adaptive is None:
            self._remember(txid, found)
            return curr_metadata
        with self._asking:
            begun_at, size = time.monotonic(), max(1, self.size(found))
            with self._lock:
                size = self._adaptive.timed_out(size)
            return self._begin(txid, self.shrunk(found, size, txid), begun_at)

    def next_size(self, waiting: int) -> int:
        """The length of the next batch, given what waits."""
        assert self._adaptive is not None
        with self._lock:
            return self._adaptive.next_size(max(1, waiting))

    def _begin(self, txid: int, planned: Range, begun_at: float) -> Json:
        with self._lock:
            self._remember(txid, planned)
            self._begun_at[txid] = begun_at
        return self.stored(planned)

    def _remember(self, txid: int, planned: Range) -> None:
        with self._lock:
            self._planned[txid] = planned
            for known in [known for known in self._planned if known < txid - _REMEMBERED]:
                del self._planned[known]
                self._begun_at.pop(known, None)

    def success(self, txid: int) -> None:
        with self._lock:
            begun_at = self._begun_at.pop(txid, None)
            if begun_at is not None and self._adaptive is not None:
                self._adaptive.succeeded(time.monotonic() - begun_at)


class AdaptiveBatchSize:
    """The size of the next batch between bounds that the user sets: pure, no clock, no I/O (docs/semantics.md 12).

    Several small batches in flight have the least latency; large ones have the
    most throughput. So the size follows the backlog:

    ==============================================  ==========================================
    a batch is planned, and what waits is           the size becomes
    ==============================================  ==========================================
    more than all that may be in flight at once     what waits / in flight, if batches are quick
    more than one batch                             stays: towards its end a backlog is not cut ever finer
    less than one batch                             half itself; the batch takes what is there
    ==============================================  ==========================================

    So a backlog is met at once by large batches, not after many doublings. The
    first batches, planned before any has ended, run or wait in a cold process: of
    small ones the time says nothing about larger ones, and is not counted.
    A batch that timed out halves the size and puts a ceiling on it, which every
    batch that succeeds lifts by a quarter: a source that timed out at 80,000 rows
    is not asked for 80,000 again at once. The choice is pinned with the batch's
    metadata, so none of this needs to be remembered over a restart.

    Args:
        min_rows: the size when nothing waits; at least 1. None: ``usual``, or max_rows where that is less.
        max_rows: the size that is never exceeded.
        in_flight: batches that may be active at once (max_spout_pending).
        target_secs: batches that took longer are not made larger.
        usual: the size of small batches where the user names none.

    Raises:
        TopologyError: the bounds are impossible.
    """

    def __init__(
        self,
        min_rows: int | None,
        max_rows: int,
        in_flight: int = 3,
        target_secs: float = 5.0,
        usual: int = _MIN_ROWS,
    ) -> None:
        whole("max_rows", max_rows, 1)
        min_rows = min(usual, max_rows) if min_rows is None else whole("min_rows", min_rows, 1)
        if max_rows < min_rows:
            raise TopologyError(
                "the bounds of the batch size are the wrong way round",
                found=f"min_rows={min_rows}, max_rows={max_rows}",
                expected="min_rows not above max_rows",
            )
        self.min_rows, self.max_rows = min_rows, max_rows
        self._in_flight = max(1, in_flight)
        self._target_secs = target_secs
        self._size = min_rows
        self._ceiling = max_rows
        self._secs: float | None = None
        self._first: list[int] = []  # the sizes of the batches that were planned before any had ended
        self._ended = 0

    @property
    def size(self) -> int:
        """Rows of the batch last planned."""
        return self._size

    @property
    def quick(self) -> bool:
        """Tells whether the batches that ended lately took less than the target."""
        return self._secs is None or self._secs < self._target_secs

    def next_size(self, backlog_rows: int) -> int:
        """Rows that the next batch should have, given what waits (the batch included)."""
        if backlog_rows < self._size:
            size = self._size // 2
        elif self.quick:
            size = max(self._size, -(-backlog_rows // self._in_flight))
        else:
            size = self._size
        self._size = max(self.min_rows, min(size, self._ceiling, self.max_rows))
        if not self._ended and len(self._first) < self._in_flight:
            self._first.append(self._size)
        return self._size

    def succeeded(self, secs: float) -> None:
        """A batch is durable, secs after it was planned."""
        first = self._first[self._ended] if self._ended < len(self._first) else None
        self._ended += 1
        if first is None or first > _SMALL * self.min_rows:
            self._secs = secs if self._secs is None else (self._secs + secs) / 2
        self._ceiling = min(self.max_rows, self._ceiling + max(1, self._ceiling // 4))

    def timed_out(self, rows: int) -> int:
        """A batch of about that many rows was too slow; returns the size for trying it again."""
        self._size = max(self.min_rows, min(self._size, rows) // 2)
        self._ceiling = self._size
        # A retry may have to be smaller than the user's least size: better than never finishing.
        return max(1, rows // 2)
