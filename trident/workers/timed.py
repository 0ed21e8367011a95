"""Keyed states with a time, on a worker: a rule sees the rows of a key, old and new, and says what becomes of them.

Dedup, joins with a time bound and timers are rules of one step. It is given, of one transaction, the new rows, and the
entries of the state for their keys and for those that are due. It gives changes of the state, rows that go on, and rows
that came too late, in one table: ``TAG`` says which. Imported by workers: keep its imports light.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.typed_values import frozen, python_values
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label, Values

# The state's own columns: 0 for an entry of a key, else the number of a side whose watermark ``DUE`` is; and the
# position at which an entry must be looked at though no row comes for it.
PART, DUE, DELETED = "_part", "_due", "_deleted"
# The columns of what comes in.
KIND, ORDER, AT, BEFORE, NOW = (f"__trident_{name}" for name in ("kind", "order", "at", "before", "now"))
ROWS = ("__trident_row0", "__trident_row1")
# A new row has its side, 0 or 1, as its kind.
STORED, MARK, CLOCK = -1, -2, -3  # CLOCK: no row, but the transaction's time in AT
# The columns of what goes out, behind those of the state's log.
TAG, GIVEN, LATE = "__trident_tag", "__trident_given", ("__trident_late0", "__trident_late1")
CHANGED, GOES_ON, IS_LATE = 0, 1, 2  # IS_LATE + the side
LAST = (1 << 63) - 1
# The positions of rows: 146,000 years from 1970. Sums of one and a few lengths fit 64 bits.
FARTHEST = 1 << 62
# Columns with their types.
Typed = tuple[tuple[str, pa.DataType], ...]


def later(at: int, by: int) -> int:
    """A position moved on, within the range of positions."""
    return max(-LAST, min(at + by, LAST))


def least_of(marks: Sequence[int | None]) -> int | None:
    """The watermark of several sides together: the least; None until every one has one."""
    known = [mark for mark in marks if mark is not None]
    return min(known) if len(known) == len(marks) else None


@dataclass
class KeyRows:
    """The rows of one key.

    Attributes:
        stored: the place of its entry in the state; -1: it has none.
        new: the places of its new rows, in order of arrival.
    """

    stored: int = -1
    new: list[int] = field(default_factory=list)

    @property
    def any(self) -> int:
        """The place of a row that has the key."""
        return self.stored if self.stored >= 0 else self.new[0]


class TurnRows:
    """The rows of a transaction in one Spark partition.

    Attributes:
        columns: by name; of equal length.
        before, now: the watermark of the transaction before, and of this one; None: none yet.
        groups: the rows of each key, without those that are late.
        at: of each row its position.
        kind: of each row STORED, MARK or its side.
        late: of each side the places of its late rows.
    """

    def __init__(self, step: "TimedStep", columns: Mapping[str, pa.Array], length: int) -> None:
        self._step, self.columns, self.length = step, columns, length
        self.before: int | None = columns[BEFORE][0].as_py()
        self.now: int | None = columns[NOW][0].as_py()
        self.kind: list[int] = columns[KIND].to_pylist()
        self.at: list[int | None] = columns[AT].to_pylist()
        self.late: tuple[list[int], list[int]] = ([], [])
        self.groups = self._grouped()

    def ints(self, name: str) -> list[int | None]:
        found: list[int | None] = self.columns[name].to_pylist()
        return found

    @cached_property
    def due(self) -> list[int | None]:
        """Of each entry of the state its DUE."""
        return self.ints(DUE)

    def in_order(self, places: Iterable[int]) -> list[int]:
        """Places of rows, in the order in which the rows arrived."""
        order = self._order
        return sorted(places, key=lambda at: -1 if order[at] is None else order[at])

    @cached_property
    def _order(self) -> list[Any]:
        return self.ints(ORDER)

    def is_due(self, position: int) -> bool:
        return self.now is not None and position <= self.now

    def changes(
        self, keys: Sequence[int], due: Sequence[int | None], values: Mapping[str, pa.Array], deleted: bool = False
    ) -> Frame:
        """Entries of the state that are written, or removed.

        Args:
            keys: for each the place of a row with its key.
            due, values: of each; not looked at where it is removed.
        """
        places = pa.array(keys, pa.int64())
        made = {name: self.columns[name].take(places) for name in self._step.keys}
        made |= {DUE: pa.array(due, pa.int64()), **values, PART: pa.array([0] * len(keys), pa.int32())}
        made[DELETED] = pa.array([deleted] * len(keys), pa.bool_())
        return self._step.frame(made, len(keys), CHANGED)

    def removals(self, keys: Sequence[int]) -> Frame:
        return self.changes(keys, [None] * len(keys), {}, deleted=True)

    def given(self, rows: pa.Array) -> Frame:
        """Rows that go on, as structs."""
        return self._step.frame({GIVEN: rows}, len(rows), GOES_ON)

    def _grouped(self) -> list[KeyRows]:
        groups: dict[Any, KeyRows] = {}
        event = self._step.event
        for place in self.in_order(range(self.length)):
            kind, at = self.kind[place], self.at[place]
            if kind == MARK:
                continue
            if kind != STORED and event and (at is None or (self.before is not None and at < self.before)):
                self.late[kind].append(place)
                continue
            group = groups.setdefault(self._keys[place], KeyRows())
            if kind == STORED:
                group.stored = place
            else:
                group.new.append(place)
        return list(groups.values())

    @cached_property
    def _keys(self) -> list[Any]:
        columns: list[Values] = []
        for name in self._step.keys:
            array = self.columns[name]
            values: Values = python_values(array)
            if pa.types.is_floating(array.type) or pa.types.is_nested(array.type):
                values = [frozen(value) for value in values]
            columns.append(values)
        return list(zip(*columns)) if columns else [()] * self.length


class Rule:
    """The rule for the rows of a key; a value, sent to workers.

    Attributes:
        text: for ``explain``.
    """

    text: ClassVar[str]

    @property
    def user(self) -> Any:
        """The user's object that it calls; None: it calls none."""
        return None

    def turn(self, rows: TurnRows) -> Iterator[Frame]:
        """The changes of the state and the rows that go on of one transaction."""
        raise AssertionError(f"{type(self).__name__} has no turn")


@dataclass(frozen=True)
class TimedStep(Step):
    """Applies a rule to the rows of a transaction; sees a whole Spark partition before it gives anything.

    Attributes:
        keys: the state's key columns behind PART.
        event: whether rows have times of their own, and may be late.
        takes, gives: the columns that come in and go out, with their types.
    """

    own = True

    label: Label
    rule: Rule
    keys: tuple[str, ...]
    event: bool
    takes: Typed
    gives: Typed

    @property
    def text(self) -> str:
        return f"{self.rule.text} by {', '.join(self.keys)}"

    def __post_init__(self) -> None:
        if self.rule.user is not None:
            raise AssertionError("code of the user's never runs in the coordinator's process")

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        columns, length = whole(frames, self.takes)
        if not length:
            return
        rows = TurnRows(self, columns, length)
        yield from self._marks(rows)
        for side, places in enumerate(rows.late):
            if places:
                late = columns[ROWS[side]].take(pa.array(places, pa.int64()))
                yield self.frame({LATE[side]: late}, len(places), IS_LATE + side)
        for frame in self.rule.turn(rows):
            if frame.length:
                yield frame

    def frame(self, columns: Mapping[str, pa.Array], length: int, tag: int) -> Frame:
        """Columns of what goes out; nulls in those that are not given."""
        made = {name: columns[name] if name in columns else pa.nulls(length, kind) for name, kind in self.gives}
        made[TAG] = pa.array([tag] * length, pa.int32())
        return Frame(made, length, Meter())

    def _marks(self, rows: TurnRows) -> Iterator[Frame]:
        places = [place for place, kind in enumerate(rows.kind) if kind == MARK]
        if places:
            index = pa.array(places, pa.int64())
            made = {name: rows.columns[name].take(index) for name in (PART, DUE)}
            yield self.frame({**made, DELETED: pa.array([False] * len(places))}, len(places), CHANGED)


@dataclass(frozen=True)
class UserTimedStep(TimedStep):
    """A TimedStep of a rule that calls an object of the user's."""

    own = False

    def __post_init__(self) -> None: ...

    @property
    def user(self) -> Any:
        return self.rule.user


def whole(frames: Iterator[Frame], fields: Typed) -> tuple[dict[str, pa.Array], int]:
    """All rows of a Spark partition as columns of these types, and how many they are."""
    parts = [frame for frame in frames if frame.length]
    if not parts:
        return {}, 0
    columns = {name: pa.concat_arrays([_of_type(part.array(name), kind) for part in parts]) for name, kind in fields}
    return columns, sum(part.length for part in parts)


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Instants come in the session's time zone: the same instants in UTC.
    return array if array.type == kind else pc.cast(array, kind)


@dataclass(frozen=True)
class FirstOfKey(Rule):
    """Dedup: the first row of a key goes on, and those that follow within a time do not.

    The entry of a key says in DUE until which position its rows are dropped. It is forgotten when the watermark is
    there: every row that is not late then comes behind it, and would go on in any case.
    """

    within: int
    text = "the first row"

    def turn(self, rows: TurnRows) -> Iterator[Frame]:
        given, written, until_of, gone = [], [], [], []
        for key in rows.groups:
            held = until = rows.due[key.stored] if key.stored >= 0 else None
            for place in key.new:
                at = rows.at[place]
                assert at is not None, "rows without a time are late"
                if until is None or at >= until:
                    given.append(place)
                    until = later(at, self.within)
            if until is not None and rows.is_due(until):
                if key.stored >= 0:
                    gone.append(key.stored)
            elif until != held:
                written.append(key.any)
                until_of.append(until)
        yield rows.changes(written, until_of, {})
        yield rows.removals(gone)
        yield rows.given(rows.columns[ROWS[0]].take(pa.array(rows.in_order(given), pa.int64())))


# A join with a time bound, on a worker: rows of both sides wait in the state until no partner can come any more.
#
# Imported by workers: keep its imports light.


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
