"""Windows as integer arithmetic, without Spark: positions, and what a transaction changes in open windows.

A row has a position: its number in order of arrival, or a time in microseconds
since 1970. Windows are [start, start + length) with start = offset modulo
slide. Each transaction has a watermark, which never goes back. A transaction
fires the windows whose end its watermark has reached and the one before had not.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import gcd
from typing import Any, Union

from trident.coordinators.errors import TopologyError
from trident.states.core.names import backquoted
from trident.workers.open_windows import DUE, PANE, PANE_BYTES, SESSIONS, Changes, Combine, New, Parts, Row, Store
from trident.workers.timed import FARTHEST

_MICROS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 10**6,
    "minute": 60 * 10**6,
    "hour": 3600 * 10**6,
    "day": 86400 * 10**6,
    "week": 7 * 86400 * 10**6,
}
_PART = re.compile(r"([+-]?\d+(?:\.\d{1,6})?)\s+([a-z]+)(?:\s+|$)")
_MOST_WINDOWS = 10_000  # each row that fires becomes a row per window
GREATEST = 2**60  # of lengths, gaps and delays: sums of a position and a few of them fit 64 bits


class Unit(enum.Enum):
    """The unit of a window's positions."""

    ROWS = "rows"
    PROCESSING_TIME = "processing time"
    EVENT_TIME = "event time"


@dataclass(frozen=True)
class WindowSpec:
    """The windows of one operation: part of the topology's identity, and the aggregator of the state of their rows.

    Attributes:
        length: of a window, in rows or microseconds.
        slide: from the start of a window to that of the next; at most the length.
        field: the timestamp that is the position; of event time only.
        delay: by which the watermark follows the greatest timestamp; microseconds.
    """

    length: int
    slide: int
    unit: Unit
    field: str | None = None
    delay: int = 0

    @property
    def offset(self) -> int:
        """Modulo slide, where windows start. Windows of rows end at multiples of the slide, as Trident's."""
        return -self.length % self.slide if self.unit is Unit.ROWS else 0

    @property
    def native_name(self) -> str:
        """Names the state's contents in its descriptor; Spark alone merges them."""
        if self.unit is Unit.ROWS:
            return f"window({self.length} rows every {self.slide})"
        of = "" if self.field is None else f" of {self.field} delayed by {self.delay} us"
        return f"window({self.length} us every {self.slide} us, {self.unit.value}{of})"

    def __str__(self) -> str:
        if self.unit is Unit.ROWS:
            size, step = f"{self.length} rows", f"{self.slide} rows"
        else:
            size, step = duration_text(self.length), duration_text(self.slide)
        every = "" if self.slide == self.length else f" every {step}"
        by = "" if self.unit is Unit.ROWS else f" of {self.field or self.unit.value}"
        return f"{size}{every}{by}"

    def last_start(self, position: int) -> int:
        """The start of the last window that holds the position."""
        return position - (position - self.offset) % self.slide

    def first_start(self, position: int) -> int:
        """The start of the first window that holds the position: the first one that ends behind it."""
        return self.last_start(position - self.length) + self.slide

    def first_open(self, watermark: int) -> int:
        """The start of the first window that a watermark has not reached the end of."""
        return self.first_start(watermark)

    def last_closed(self, watermark: int) -> int:
        """The start of the last window that a watermark has reached the end of."""
        return self.last_start(watermark - self.length)

    def fires_between(self, before: int | None, now: int | None) -> bool:
        """Tells whether a window may end behind one watermark and not behind the other; None is before everything."""
        return now is not None and (before is None or self.last_closed(now) > self.last_closed(before))

    # The same over columns, as Spark's SQL.

    def sql_last_start(self, position: str) -> str:
        return f"({position} - pmod({position} - {self.offset}L, {self.slide}L))"

    def sql_first_start(self, position: str) -> str:
        return f"({self.sql_last_start(f'({position} - {self.length}L)')} + {self.slide}L)"


def sql_position(field: str) -> str:
    """Of a timestamp: microseconds since 1970, null for null. Those that are farther away count as FARTHEST."""
    micros = f"unix_micros({backquoted(field)})"
    return f"if({micros} is null, null, greatest(least({micros}, {FARTHEST}L), -{FARTHEST}L))"


def read_spec(what: str, length: Any, slide: Any, watermark: tuple[str, int] | None) -> WindowSpec:
    """The windows that the arguments of an operation mean.

    Args:
        length: rows, or a duration.
        slide: the same.
        watermark: the field and its delay; None where the stream has none.

    Raises:
        TopologyError: there are no such windows.
    """
    in_rows, size = _read(what, "length", length)
    slides_in_rows, step = _read(what, "slide", slide)
    if in_rows is not slides_in_rows:
        raise TopologyError(
            f"length and slide of {what} differ in their unit",
            found=f"{length!r} and {slide!r}",
            expected="two whole numbers of rows, or two durations",
        )
    if step > size:
        raise TopologyError(
            f"the slide of {what} is greater than its length",
            found=f"{slide!r} after {length!r}",
            expected="at most the length",
            action="rows in the gaps would be in no window: filter them out instead",
        )
    if size > _MOST_WINDOWS * step:
        raise TopologyError(
            f"the slide of {what} is too small for its length",
            found=f"{length!r} every {slide!r}: each row in {-(-size // step):,} windows",
            expected=f"at most {_MOST_WINDOWS:,} windows for a row",
        )
    if in_rows:
        return WindowSpec(size, step, Unit.ROWS)
    if watermark is None:
        return WindowSpec(size, step, Unit.PROCESSING_TIME)
    return WindowSpec(size, step, Unit.EVENT_TIME, *watermark)


def _read(what: str, part: str, given: Any) -> tuple[bool, int]:
    in_rows = isinstance(given, int) and not isinstance(given, bool)
    if not in_rows and not isinstance(given, str):
        raise TopologyError(
            f"{what} cannot be that {part}",
            found=repr(given),
            expected="a whole number of rows, or a duration such as '10 minutes'",
        )
    size = given if in_rows else duration_us(given, f"the {part} of {what}")
    if not 0 < size < GREATEST:
        raise TopologyError(f"{what} cannot be that {part}", found=repr(given), expected="more than nothing")
    return in_rows, size


def duration_us(given: Union[str, Any], what: str) -> int:
    """A duration such as "1 hour 30 seconds" in microseconds, written as PySpark's ``F.window`` takes it.

    Raises:
        TopologyError: it is none; or it has months or years, which differ in length.
    """
    text = given.strip().lower() if isinstance(given, str) else ""
    rest, total = re.sub(r"^interval\s+", "", text), Decimal(0)
    expected = f"numbers with units, as in '10 minutes' or '1 hour 30 seconds'; units: {', '.join(_MICROS)}"
    while rest:
        part = _PART.match(rest)
        unit = None if part is None else part[2].removesuffix("s")
        if part is None or unit not in _MICROS or ("." in part[1] and unit != "second"):
            months = " (months and years differ in length)" if unit in ("month", "year") else ""
            raise TopologyError(f"{what} is no duration", found=f"{given!r}{months}", expected=expected)
        total += Decimal(part[1]) * _MICROS[unit]
        rest = rest[part.end() :]
    if not text or text == "interval":
        raise TopologyError(f"{what} is no duration", found=repr(given), expected=expected)
    return int(total)


def duration_text(micros: int) -> str:
    """ "1 hour 30 seconds"."""
    parts, rest = [], micros
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _MICROS[unit])
        if count:
            parts.append(f"{count} {unit}{'s' if count != 1 else ''}")
    return " ".join(parts) or "0 seconds"


# The changes that a transaction makes to open windows and to open sessions: arithmetic over parts, without Spark.
#
# A *pane* is a piece of time that lies in the same windows as a whole: as long as the greatest common divisor of length
# and slide. Windows that slide share the parts of their panes. A *session* is as long as rows of one key follow each
# other within a gap; one that comes between two makes one of them.


START_FIELD, END_FIELD = "start", "end"


@dataclass(frozen=True)
class PaneRules:
    """Windows of one length, a slide apart.

    Attributes:
        spec: of event time.
        names: of the parts.
    """

    spec: WindowSpec
    names: tuple[str, ...]

    ordered_by = PANE

    @property
    def delay(self) -> int:
        return self.spec.delay

    @property
    def pane(self) -> int:
        """The length of a pane; microseconds."""
        return gcd(self.spec.length, self.spec.slide)

    def pane_of(self, at: int) -> int:
        return at - at % self.pane

    def is_closed(self, at: int, watermark: int | None) -> bool:
        return watermark is not None and self.spec.last_start(at) + self.spec.length <= watermark

    def due_between(self, before: int | None, now: int | None) -> tuple[int | None, int] | None:
        if now is None or not self.spec.fires_between(before, now):
            return None
        opened = None if before is None else self.spec.first_open(before)
        return opened, self.spec.last_closed(now) + self.spec.length

    def changes(
        self, store: Store, new: Sequence[New], combine: Combine, before: int | None, now: int | None
    ) -> Changes:
        spec, changes = self.spec, Changes()
        panes: dict[bytes, tuple[int, Parts]] = {}
        for key, at, parts in new:
            held = panes.get(key)
            panes[key] = (at, parts if held is None else combine(held[1], parts))
        came, old, first = set(panes), set(), -len(self.names) or None
        for (key, (at, parts)), row in zip(list(panes.items()), store.get(list(panes))):
            if row is not None:
                old.add(key)
                panes[key] = (at, combine(row[first:] if first else (), parts))
        due = self.due_between(before, now)
        if due is not None:
            for at, key, row in store.due(*due):
                if key not in panes:
                    panes[key] = (at, self._parts(row))
                    old.add(key)
            changes.fired = self._fired(panes, combine, due[0], due[1] - spec.length)
        is_closed = {at: self.is_closed(at, now) for at in {at for at, _ in panes.values()}}
        for key, (at, parts) in panes.items():
            if is_closed[at]:
                changes.gone += [key] if key in old else []
            elif key in came:
                changes.put[key] = parts
        return changes

    def _fired(
        self,
        panes: dict[bytes, tuple[int, Parts]],
        combine: Combine,
        opened: int | None,
        closed: int,
    ) -> list[tuple[int, int, bytes, Parts]]:
        spec = self.spec
        windows: dict[tuple[int, bytes], tuple[bytes, Parts]] = {}
        for key, (at, parts) in panes.items():
            first = spec.first_start(at) if opened is None else max(spec.first_start(at), opened)
            starts = range(first, min(spec.last_start(at), closed) + 1, spec.slide)
            for start in starts:
                group = start, key[PANE_BYTES:]
                held = windows.get(group)
                windows[group] = (key, parts if held is None else combine(held[1], parts))
        return [(start, start + spec.length, key, parts) for (start, _), (key, parts) in windows.items()]

    def _parts(self, row: Row) -> Parts:
        return row[-len(self.names) :] if self.names else ()

    def columns(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        return {name: [value[at] for value in values] for at, name in enumerate(self.names)}


@dataclass(frozen=True)
class SessionSpec:
    """Sessions: windows that last as long as rows of one key follow each other within a gap.

    Attributes:
        gap: microseconds.
        field: the timestamp of a row.
        delay: by which the watermark follows the greatest timestamp; microseconds.
        keys: the fields of which each value has sessions of its own.
    """

    gap: int
    field: str
    delay: int
    keys: tuple[str, ...]

    def __str__(self) -> str:
        by = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"gaps of {duration_text(self.gap)} of {self.field}{by}"


@dataclass(frozen=True)
class SessionRules:
    """Sessions, each [its first row's time, its last row's + gap).

    A row at the very end of a session still belongs to it, as in Spark.

    Attributes:
        names: of the parts.
    """

    spec: SessionSpec
    names: tuple[str, ...]

    ordered_by = DUE

    @property
    def delay(self) -> int:
        return self.spec.delay

    def pane_of(self, at: int) -> int:
        return 0

    def is_closed(self, at: int, watermark: int | None) -> bool:
        return watermark is not None and at + self.spec.gap <= watermark

    def due_between(self, before: int | None, now: int | None) -> tuple[int | None, int] | None:
        return None if now is None else (None, now + 1)

    def changes(
        self, store: Store, new: Sequence[New], combine: Combine, before: int | None, now: int | None
    ) -> Changes:
        changes = Changes()
        came: dict[bytes, list[tuple[int, int, Parts]]] = {}
        for key, at, parts in new:
            came.setdefault(key, []).append((at, at + self.spec.gap, parts))
        keys, old = list(came), set()
        for key, row in zip(keys, store.get(keys)):
            if row is not None:
                old.add(key)
                came[key] = [*self._sessions(row), *came[key]]
        open_: dict[bytes, list[tuple[int, int, Parts]]] = {}
        for key, sessions in came.items():
            open_[key] = _merged(sessions, combine)
        due = self.due_between(before, now)
        for _, key, row in () if due is None else store.due(*due):
            if key not in open_:
                open_[key] = self._sessions(row)
                old.add(key)
        for key, sessions in open_.items():
            rest = [one for one in sessions if now is None or one[1] > now]
            changes.fired += [
                (start, end, key, parts) for start, end, parts in sessions if now is not None and end <= now
            ]
            if rest:
                changes.put[key] = rest
            elif key in old:
                changes.gone.append(key)
        return changes

    def _sessions(self, row: Row) -> list[tuple[int, int, Parts]]:
        return [(one[START_FIELD], one[END_FIELD], tuple(one[name] for name in self.names)) for one in row[-1]]

    def columns(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        sessions = [
            [{START_FIELD: start, END_FIELD: end, **dict(zip(self.names, parts))} for start, end, parts in value]
            for value in values
        ]
        return {SESSIONS: sessions, DUE: [min(end for _, end, _ in value) for value in values]}


def _merged(sessions: list[tuple[int, int, Parts]], combine: Combine) -> list[tuple[int, int, Parts]]:
    """Sessions of one key, those that meet as one."""
    merged: list[tuple[int, int, Parts]] = []
    for start, end, parts in sorted(sessions, key=lambda one: one[:2]):
        if merged and start <= merged[-1][1]:
            before, upto, held = merged[-1]
            merged[-1] = (before, max(upto, end), combine(held, parts))
        else:
            merged.append((start, end, parts))
    return merged
