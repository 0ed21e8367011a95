"""What windows must give, in plain Python: every window is tried on every row that ever came.

Shares no arithmetic with ``trident/operations/window_spec.py``: windows are found by looking
at each start near a position, and nothing is ever removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Given(NamedTuple):
    """What a transaction gives: fired windows with their rows in order of arrival, and late rows."""

    fired: list[tuple[int, int, Any]]  # start, end, row
    late: list[Any]


def starts_of(position: int, length: int, slide: int, offset: int) -> list[int]:
    """The starts of the windows that hold a position."""
    near = range(position - length - 2 * slide, position + 2 * slide)
    return [s for s in near if (s - offset) % slide == 0 and s <= position < s + length]


def windows(
    batches: Sequence[Sequence[tuple[int | None, Any]]],
    marks: Sequence[int | None],
    length: int,
    slide: int,
    offset: int = 0,
) -> list[Given]:
    """What each transaction gives.

    Args:
        batches: per transaction (position, row).
        marks: per transaction its watermark, None for none yet; they never go back.
        length, slide, offset: of the windows.
    """
    seen: list[tuple[int, Any]] = []
    given, before = [], None
    for batch, mark in zip(batches, marks):

        def reached(end: int, by: int | None) -> bool:
            return by is not None and end <= by

        late = []
        for position, row in batch:
            if position is None or all(reached(s + length, before) for s in starts_of(position, length, slide, offset)):
                late.append(row)
            else:
                seen.append((position, row))
        fired = [
            (start, start + length, row)
            for position, row in seen
            for start in starts_of(position, length, slide, offset)
            if reached(start + length, mark) and not reached(start + length, before)
        ]
        given.append(Given(fired, late))
        before = mark
    return given


def by_count(batches: Sequence[Sequence[Any]], length: int, slide: int) -> list[Given]:
    """Windows of rows: positions are row numbers, and windows end at multiples of the slide."""
    placed, marks, count = [], [], 0
    for batch in batches:
        placed.append([(count + at, row) for at, row in enumerate(batch)])
        count += len(batch)
        marks.append(count)
    return windows(placed, marks, length, slide, -length % slide)


def by_event_time(
    batches: Sequence[Sequence[tuple[int | None, Any]]], delay: int, length: int, slide: int
) -> list[Given]:
    """Windows of event time: (timestamp, row), and the sizes in the timestamps' unit."""
    marks: list[int | None] = []
    mark: int | None = None
    for batch in batches:
        times = [at - delay for at, _ in batch if at is not None] + ([] if mark is None else [mark])
        mark = max(times, default=None)
        marks.append(mark)
    return windows(batches, marks, length, slide)


def by_processing_time(batches: Sequence[Sequence[Any]], clock: Sequence[int], length: int, slide: int) -> list[Given]:
    """Windows of processing time: the clock's readings, one per transaction."""
    marks = [max(clock[: at + 1]) for at in range(len(batches))]
    return windows([[(mark, row) for row in batch] for mark, batch in zip(marks, batches)], marks, length, slide)
