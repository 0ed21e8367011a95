"""The times of a keyed state: positions and delays, a part of the topology's identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trident.operations.window_spec import Unit
from trident.workers.timed import least_of


@dataclass(frozen=True)
class TimedSpec:
    """The times of a keyed state: the aggregator of its binding.

    Attributes:
        native_name: names the state's contents in its descriptor; Spark alone merges them.
        positions: of each side the timestamp that is its rows' position; None: processing time.
        delays: of each side, by how much its watermark follows its greatest timestamp; microseconds.
    """

    native_name: str
    positions: tuple[str | None, ...]
    delays: tuple[int, ...]

    @property
    def event(self) -> bool:
        """Tells whether rows have times of their own."""
        return self.positions[0] is not None

    @property
    def unit(self) -> Unit:
        return Unit.EVENT_TIME if self.event else Unit.PROCESSING_TIME

    def watermark(self, marks: Sequence[int | None]) -> int | None:
        """The watermark of all sides together."""
        return least_of(marks)
