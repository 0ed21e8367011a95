"""Keyed states with a time, on a worker: a rule sees the rows of a key, old and new, and says what becomes of them.

Dedup, joins with a time bound and timers are rules of one step. It is given, of one transaction, the new rows, and the
entries of the state for their keys and for those that are due. It gives changes of the state, rows that go on, and rows
that came too late, in one table: ``TAG`` says which. Imported by workers: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.plain_values import frozen
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label
from trident.workers.values import Values, python_values

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
