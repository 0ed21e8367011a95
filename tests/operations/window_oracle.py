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


def sessions(
    batches: Sequence[Sequence[tuple[int | None, Any, Any]]], marks: Sequence[int | None], gap: int
) -> list[Given]:
    """What each transaction gives of session windows: rows that are near each other, found anew among all open ones.

    Args:
        batches: per transaction (time, key, row).
        marks: as of :func:`windows`.

    Returns:
        fired ones as (start, end, (key, rows in the order of their times)).
    """
    waiting: list[tuple[int, Any, Any, int]] = []  # with a number: rows may be equal
    given, before, count = [], None, 0
    for batch, mark in zip(batches, marks):
        late = []
        for at, key, row in batch:
            if at is None or (before is not None and at + gap <= before):
                late.append(row)
            else:
                waiting.append((at, key, row, count := count + 1))
        fired = []
        for key in {one[1] for one in waiting}:
            ours = [one for one in waiting if one[1] == key]
            while ours:
                near = [ours[0]]
                # All that can be reached from one row by steps of at most the gap.
                while more := [one for one in ours if one not in near and any(abs(one[0] - n[0]) <= gap for n in near)]:
                    near += more
                ours = [one for one in ours if one not in near]
                end = max(one[0] for one in near) + gap
                if mark is not None and end <= mark:
                    rows = [one[2] for one in sorted(near, key=lambda one: one[0])]
                    fired.append((min(one[0] for one in near), end, (key, rows)))
                    waiting = [one for one in waiting if one not in near]
        given.append(Given(fired, late))
        before = mark
    return given


def event_marks(batches: Sequence[Sequence[tuple]], delay: int) -> list[int | None]:
    """The watermark of each transaction, of rows whose first field is their time."""
    marks: list[int | None] = []
    for batch in batches:
        times = [row[0] - delay for row in batch if row[0] is not None]
        marks.append(max([*times, *[m for m in marks[-1:] if m is not None]], default=None))
    return marks
