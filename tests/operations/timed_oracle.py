"""The results of dedup, joins within a time, and timers, in plain Python: every row that ever came is looked at.

Shares no code with ``trident/workers/timed*.py``: nothing is ever forgotten, and every pair of rows is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# (key, position or None, the row)
Given = tuple[Any, "int | None", Any]


def marks(batches: Sequence[Sequence[Given]], delay: int) -> list[int | None]:
    """Of each transaction its watermark: the greatest position so far, less the delay."""
    found: list[int | None] = []
    greatest: int | None = None
    for batch in batches:
        for _, at, _ in batch:
            if at is not None and (greatest is None or at > greatest):
                greatest = at
        found.append(None if greatest is None else greatest - delay)
    return found


def least(*several: Sequence[int | None]) -> list[int | None]:
    """Of each transaction the least watermark of several streams; None until all have one."""
    return [None if None in each else min(each) for each in zip(*several)]  # type: ignore[type-var]


def is_late(at: int | None, turn: int, watermarks: Sequence[int | None]) -> bool:
    before = watermarks[turn - 1] if turn else None
    return at is None or (before is not None and at < before)


def dedup(batches: Sequence[Sequence[Given]], delay: int, within: int) -> list[tuple[list[Any], list[Any]]]:
    """Of each transaction the rows that go on, in order, and the late ones."""
    watermarks = marks(batches, delay)
    passed: list[tuple[Any, int]] = []
    found = []
    for turn, batch in enumerate(batches):
        given, late = [], []
        for key, at, row in batch:
            if is_late(at, turn, watermarks):
                late.append(row)
            elif all(other != key or at >= since + within for other, since in passed):
                passed.append((key, at))
                given.append(row)
        found.append((given, late))
    return found


def join(
    lefts: Sequence[Sequence[Given]],
    rights: Sequence[Sequence[Given]],
    delays: tuple[int, int],
    bounds: tuple[int, int],
    outer: tuple[bool, bool],
) -> list[tuple[list[tuple[Any, Any]], list[Any], list[Any]]]:
    """Of each transaction its pairs (left, right), None where there is no partner, and the late rows of each side."""
    watermarks = least(marks(lefts, delays[0]), marks(rights, delays[1]))
    turns = range(len(lefts))
    late: tuple[list, list] = ([], [])
    there: tuple[list, list] = ([], [])  # (key, at, row, turn)
    for side, batches in enumerate((lefts, rights)):
        for turn, batch in enumerate(batches):
            late[side].append([row for _, at, row in batch if is_late(at, turn, watermarks)])
            there[side].extend((key, at, row, turn) for key, at, row in batch if not is_late(at, turn, watermarks))
    pairs: list[list] = [[] for _ in turns]
    met: tuple[set, set] = (set(), set())
    for one, (key, at, row, turn) in enumerate(there[0]):
        for other, (its_key, its_at, its_row, its_turn) in enumerate(there[1]):
            if key == its_key and bounds[0] <= its_at - at <= bounds[1]:
                pairs[max(turn, its_turn)].append((row, its_row))
                met[0].add(one)
                met[1].add(other)
    for side, farthest in enumerate((bounds[1], -bounds[0])):
        for place, (_, at, row, came) in enumerate(there[side]):
            passes = [t for t in turns if t >= came and watermarks[t] is not None and watermarks[t] > at + farthest]
            if outer[side] and place not in met[side] and passes:
                pairs[passes[0]].append((row, None) if side == 0 else (None, row))
    return [(pairs[turn], late[0][turn], late[1][turn]) for turn in turns]


def baskets(
    batches: Sequence[Sequence[Given]], delay: int | None, clock: Sequence[int] = ()
) -> list[tuple[list[tuple], list[Any]]]:
    """Of each transaction the rows (key, what, number) of `Baskets` of timed_users.py, and the late ones.

    Args:
        delay: of event time; None: processing time, and ``clock`` has the time of each transaction.
    """
    watermarks = [max(clock[: turn + 1]) for turn in range(len(batches))] if delay is None else marks(batches, delay)
    counts: dict[Any, int] = {}
    alarms: set[tuple[Any, int]] = set()
    found = []
    for turn, batch in enumerate(batches):
        now, given, late = watermarks[turn], [], []
        for key, at, row in batch:
            if delay is not None and is_late(at, turn, watermarks):
                late.append(row)
                continue
            time = now if delay is None else at
            assert time is not None
            counts[key] = counts.get(key, 0) + 1
            alarms.add((key, time + 10))
            if counts[key] == 3:
                alarms.discard((key, time + 10))
            given.append((key, "row", counts[key]))
        while now is not None and (due := sorted((at for _, at in alarms if at <= now), key=int)):
            (key, at) = next(one for one in alarms if one[1] == due[0])
            alarms.discard((key, at))
            given.append((key, "time", at))
            counts[key] = counts.get(key, 0) - 1
            if counts[key] > 0:
                alarms.add((key, at + 4))
            else:
                del counts[key]
                alarms -= {one for one in alarms if one[0] == key}
        found.append((given, late))
    return found
