"""Chooses up to which transaction each keyed state of a group is merged, so that all have a table version of one: pure.

A reader of several plain tables wants them as of one transaction P. Each state has its own settings and its own price
of a MERGE, and none is merged more often for that. But a MERGE that is due ends where one of another state has ended:
so a state that is merged seldom meets those that are merged often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain

_POINTS_MAX = 64


class MergePoints:
    """The transactions up to which the states of a group were merged, as far as this process knows.

    Args:
        names: of the group's keyed states.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._points: dict[str, list[int]] = {name: [] for name in names}

    def merged(self, name: str, upto: int) -> None:
        """A table has got a version that has the transactions up to this one, and none after it."""
        self._points[name] = [*self._points[name][-_POINTS_MAX + 1 :], upto]

    def upto(self, name: str, after: int, advanced: int) -> int:
        """The transaction up to which a state is to be merged, now that its MERGE is due.

        It is one at which as many of the other states as possible have a version, the newest of these; where there is
        none that takes at least half of what waits, it is the last that has advanced.

        Args:
            after: the last transaction that the table has.
            advanced: the last that has advanced.
        """
        others = [set(points) for other, points in self._points.items() if other != name]
        good = {
            point
            for point in chain.from_iterable(others)
            if after < point <= advanced and 2 * (point - after) >= advanced - after
        }
        return max(good, key=lambda point: (sum(point in points for points in others), point), default=advanced)


def common_point(merged: Callable[[int], Collection[int]], newest: int, above: int) -> int | None:
    """The greatest transaction at which every table has a version that has all up to it, and none after it.

    Args:
        merged: of a transaction the P of each table's newest version that is not merged further; none: no table.
        newest: begin here.
        above: a lesser one, or this one, is not wanted.
    """
    point = newest
    while point > above:
        found = merged(point)
        if not found:
            return None
        if min(found) == point:
            return point
        point = min(found)
    return None
