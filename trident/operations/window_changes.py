"""The changes that a transaction makes to open windows and to open sessions: arithmetic over parts, without Spark.

A *pane* is a piece of time that lies in the same windows as a whole: as long as the greatest common divisor of length
and slide. Windows that slide share the parts of their panes. A *session* is as long as rows of one key follow each
other within a gap; one that comes between two makes one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from trident.operations.window_spec import WindowSpec, duration_text
from trident.workers.open_windows import DUE, PANE, PANE_BYTES, SESSIONS, Changes, Combine, New, Parts, Row, Store

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
        fires = spec.fires_between(before, now)
        if fires and now is not None:
            closed, opened = spec.last_closed(now), None if before is None else spec.first_open(before)
            for at, key, row in store.due(opened, closed + spec.length):
                if key not in panes:
                    panes[key] = (at, self._parts(row))
                    old.add(key)
            changes.fired = self._fired(panes, combine, opened, closed, store)
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
        store: Store,
    ) -> list[tuple[int, int, bytes, Parts]]:
        spec = self.spec
        windows: dict[tuple[int, bytes], tuple[bytes, Parts]] = {}
        added = 0
        for key, (at, parts) in panes.items():
            first = spec.first_start(at) if opened is None else max(spec.first_start(at), opened)
            starts = range(first, min(spec.last_start(at), closed) + 1, spec.slide)
            added += len(starts)
            store.check_fired(added)
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
        if now is not None:
            for _, key, row in store.due(None, now + 1):
                if key not in open_:
                    open_[key] = self._sessions(row)
                    old.add(key)
        for key, sessions in open_.items():
            rest = [one for one in sessions if now is None or one[1] > now]
            changes.fired += [
                (start, end, key, parts) for start, end, parts in sessions if now is not None and end <= now
            ]
            store.check_fired(len(changes.fired))
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
