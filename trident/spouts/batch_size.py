"""Chooses the number of rows of the next batch: pure, no clock, no I/O (docs/semantics.md 12).

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
"""

from __future__ import annotations

from trident.coordinators.errors import TopologyError
from trident.spouts.arguments import whole

# A batch of up to so many times the least size is a small one.
_SMALL = 2
_MIN_ROWS = 1_000


class AdaptiveBatchSize:
    """The size of the next batch between bounds that the user sets.

    Args:
        min_rows: the size when nothing waits; at least 1. None: 1,000, or max_rows where that is less.
        max_rows: the size that is never exceeded.
        in_flight: batches that may be active at once (max_spout_pending).
        target_secs: batches that took longer are not made larger.

    Raises:
        TopologyError: the bounds are impossible.
    """

    def __init__(self, min_rows: int | None, max_rows: int, in_flight: int = 3, target_secs: float = 5.0) -> None:
        whole("max_rows", max_rows, 1)
        min_rows = min(_MIN_ROWS, max_rows) if min_rows is None else whole("min_rows", min_rows, 1)
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
