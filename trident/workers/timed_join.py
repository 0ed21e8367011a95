"""A join with a time bound, on a worker: rows of both sides wait in the state until no partner can come any more.

Imported by workers: keep its imports light.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.workers.chain import Frame
from trident.workers.timed import ROWS, KeyRows, Rule, TurnRows, later

# The rows of a side that wait: the fields of each are its position, whether it has met a partner, and itself.
WAITING = ("_left", "_right")
AT_OF, MET, ROW = "_at", "_met", "_row"


class _Side:
    """The rows of one side in a Spark partition: those that wait in the state, and behind them the new ones.

    Attributes:
        at: of each its position.
        met: of each whether it has met a partner.
        rows: of each its fields, as a struct.
        changed: the keys whose rows of this side are others than the state has.
    """

    def __init__(self, rows: TurnRows, side: int) -> None:
        waiting = rows.columns[WAITING[side]]
        flat = waiting.flatten()
        self._lengths = [length or 0 for length in waiting.value_lengths().to_pylist()]
        self._starts = [0, *accumulate(self._lengths)]
        self._side, self._held, self._rows = side, len(flat), rows
        self.at: list[Any] = [*flat.field(AT_OF).to_pylist(), *rows.at]
        self.met: list[bool] = [*flat.field(MET).to_pylist(), *[False] * rows.length]
        self.rows = pa.concat_arrays([flat.field(ROW), rows.columns[ROWS[side]]])

    def stored(self, key: KeyRows) -> list[int]:
        if key.stored < 0:
            return []
        start = self._starts[key.stored]
        return list(range(start, start + self._lengths[key.stored]))

    def new(self, key: KeyRows) -> list[int]:
        return [self._held + place for place in key.new if self._rows.kind[place] == self._side]

    def lists(self, kept: Sequence[Sequence[int]], kind: pa.DataType) -> pa.Array:
        """For each key the rows that wait from now on."""
        flat = [place for places in kept for place in places]
        fields = [
            pa.array([self.at[place] for place in flat], pa.int64()),
            pa.array([self.met[place] for place in flat], pa.bool_()),
            self.rows.take(pa.array(flat, pa.int64())),
        ]
        values = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
        offsets = pa.array([0, *accumulate(map(len, kept))], pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=kind)


@dataclass
class _Made:
    """The pairs of a transaction, and the entries of the state behind it."""

    left: list[int | None] = field(default_factory=list)
    right: list[int | None] = field(default_factory=list)
    of: list[int] = field(default_factory=list)  # a row with the pair's key
    written: list[int] = field(default_factory=list)
    due: list[int] = field(default_factory=list)
    kept: tuple[list[list[int]], list[list[int]]] = field(default_factory=lambda: ([], []))
    gone: list[int] = field(default_factory=list)

    def pair(self, left: int | None, right: int | None, key: KeyRows) -> None:
        self.left.append(left)
        self.right.append(right)
        self.of.append(key.any)


@dataclass(frozen=True)
class JoinWithin(Rule):
    """Pairs of rows with equal keys whose positions are near: lower ≤ right − left ≤ upper.

    A left row waits until the watermark has passed its position + upper, a right row until it has passed its
    position − lower: each partner that comes behind that would be late.

    Attributes:
        outer: of each side, whether its rows go on without a partner when none can come any more.
        lists: the types of the columns WAITING.
        gives: of each field that goes on (side, place in that side's struct); (-1, place of the key).
        given: the type of the rows that go on.
    """

    lower: int
    upper: int
    outer: tuple[bool, bool]
    lists: tuple[pa.DataType, pa.DataType]
    gives: tuple[tuple[int, int], ...]
    keys: tuple[str, ...]
    given: pa.DataType
    text = "pairs within a time"

    def turn(self, rows: TurnRows) -> Iterator[Frame]:
        sides, made = (_Side(rows, 0), _Side(rows, 1)), _Made()
        for key in rows.groups:
            met = self._pairs(sides, key, made)
            self._wait(sides, key, rows, made, met)
        values = {name: sides[n].lists(made.kept[n], self.lists[n]) for n, name in enumerate(WAITING)}
        yield rows.changes(made.written, made.due, values)
        yield rows.removals(made.gone)
        yield rows.given(self._given(sides, rows, made))

    def _pairs(self, sides: tuple[_Side, _Side], key: KeyRows, made: _Made) -> bool:
        """Makes each pair of a key that has a new row, once; tells whether a row that waits has met its first one."""
        left, right = sides
        met = False

        def meet(one: int, other: int) -> None:
            nonlocal met
            made.pair(one, other, key)
            for side, place in ((left, one), (right, other)):
                if self.outer[side is right] and not side.met[place]:
                    side.met[place] = met = True

        every = sorted([*right.stored(key), *right.new(key)], key=right.at.__getitem__)
        positions = [right.at[place] for place in every]
        for one in left.new(key):
            first = bisect_left(positions, left.at[one] + self.lower)
            for other in every[first : bisect_right(positions, left.at[one] + self.upper)]:
                meet(one, other)
        waited = sorted(left.stored(key), key=left.at.__getitem__)
        positions = [left.at[place] for place in waited]
        for other in right.new(key):
            first = bisect_left(positions, right.at[other] - self.upper)
            for one in waited[first : bisect_right(positions, right.at[other] - self.lower)]:
                meet(one, other)
        return met

    def _wait(self, sides: tuple[_Side, _Side], key: KeyRows, rows: TurnRows, made: _Made, met: bool) -> None:
        """Lets go of the rows of a key that no partner can come for, and keeps the others."""
        changed, least = met, None
        kept: list[list[int]] = []
        for number, side in enumerate(sides):
            stays = self.upper if number == 0 else -self.lower
            stored, new = side.stored(key), side.new(key)
            kept.append([])
            for place in (*stored, *new):
                leaves = later(side.at[place], stays + 1)
                if not rows.is_due(leaves):
                    kept[number].append(place)
                    least = leaves if least is None else min(least, leaves)
                elif self.outer[number] and not side.met[place]:
                    made.pair(None if number else place, place if number else None, key)
            changed = changed or kept[number] != stored
        if least is None:
            if key.stored >= 0:
                made.gone.append(key.stored)
        elif changed:
            made.written.append(key.any)
            made.due.append(least)
            for number in (0, 1):
                made.kept[number].append(kept[number])

    def _given(self, sides: tuple[_Side, _Side], rows: TurnRows, made: _Made) -> pa.Array:
        taken = [side.rows.take(pa.array(places, pa.int64())) for side, places in zip(sides, (made.left, made.right))]
        of = pa.array(made.of, pa.int64())
        columns = [
            rows.columns[self.keys[place]].take(of) if side < 0 else pc.struct_field(taken[side], [place])
            for side, place in self.gives
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.given))
