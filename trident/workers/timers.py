"""Timers, on a worker: calls a user's object for the rows of a key, and when a time that it has set is reached.

Imported by workers: keep its imports light.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.typed_values import WrongValue, cut_repr, python_values, to_arrow
from trident.workers.calls import Results, _gather_any, output_arrays
from trident.workers.chain import Frame
from trident.workers.failures import Label, Values, fail
from trident.workers.timed import ROWS, KeyRows, Rule, TurnRows

VALUE, TIMERS = "_value", "_timers"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = ((at.replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND for at in (datetime.min, datetime.max))


class TimerContext:
    """One key, as ``on_row`` and ``on_time`` of a process see it.

    Attributes:
        key: the value of the grouping field; of several a tuple.
        state: what the key has: None at first, later what was put here. The value of the field that ``state`` of
            ``process`` declares; of several fields a tuple. None is forgotten.
        now: the watermark of this transaction, or its processing time; None: there is no watermark yet. A watermark
            outside of Python's years is the first or the last moment of these.
    """

    def __init__(self, key: Any, state: Any, timers: Sequence[int], now: int | None) -> None:
        self.key, self.state = key, state
        self.now = None if now is None else _moment(now)
        self._timers = sorted(timers)
        self._fires: int | None = None

    def set_timer(self, time: datetime) -> None:
        """``on_time`` is called when the watermark, or the processing time, has reached it; once for equal times.

        A time that is reached already is due in this transaction, behind the key's rows.

        Raises:
            ValueError: it has no time zone; or ``on_time`` sets one that is not behind the one that it is called for.
        """
        at = _micros(time)
        if self._fires is not None and at <= self._fires:
            raise ValueError(f"a timer that on_time sets must be later than its own time {_moment(self._fires)}")
        if at not in self._timers:
            insort(self._timers, at)

    def clear_timer(self, time: datetime) -> None:
        """Forgets a timer; nothing happens where there is none."""
        at = _micros(time)
        if at in self._timers:
            self._timers.remove(at)

    def clear(self) -> None:
        """Forgets the state and all timers of the key."""
        self.state = None
        self._timers.clear()

    @property
    def timers(self) -> list[datetime]:
        """The timers that are set, in order."""
        return [_moment(at) for at in self._timers]


def _micros(time: Any) -> int:
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ValueError(f"a timer is set to a datetime with a time zone, not to {cut_repr(time)}")
    return (time - _EPOCH) // _MICROSECOND


def _moment(micros: int) -> datetime:
    """As Python has it, whose years are 1 to 9999: the first or the last moment for one that is farther away."""
    return _EPOCH + max(_FIRST, min(micros, _LAST)) * _MICROSECOND


@dataclass
class _Made:
    """The results of the calls, and the entries of the state behind them."""

    results: list[Any] = field(default_factory=list)
    of: list[int] = field(default_factory=list)  # of each result a row with its key
    written: list[int] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    timers: list[list[int]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Process(Rule):
    """Calls ``on_row`` for each row of a key in order of arrival, then ``on_time`` for each timer that is due.

    Attributes:
        inputs: (place in the row's struct, name) of the fields that ``on_row`` is given.
        state: the fields of the state's value, with their types.
        value, timers: the types of VALUE and TIMERS.
        outputs: the fields that go on behind the keys, with their types.
        given: the type of the rows that go on.
    """

    label: Label
    process: Any
    keys: tuple[str, ...]
    inputs: tuple[tuple[int, str], ...]
    state: tuple[tuple[str, pa.DataType], ...]
    value: pa.DataType
    outputs: tuple[tuple[str, pa.DataType], ...]
    given: pa.DataType
    text = "rows and timers"

    @property
    def user(self) -> Any:
        return self.process

    def turn(self, rows: TurnRows) -> Iterator[Frame]:
        made = _Made()
        inputs: list[Values] = [
            python_values(pc.struct_field(rows.columns[ROWS[0]], [place])) for place, _ in self.inputs
        ]
        keys = [python_values(rows.columns[name]) for name in self.keys]
        held = [python_values(pc.struct_field(rows.columns[VALUE], [place])) for place in range(len(self.state))]
        has = rows.columns[VALUE].is_valid().to_pylist()
        timers = rows.columns[TIMERS].to_pylist()
        for key in rows.groups:
            found = [column[key.any] for column in keys]
            state: Any = None
            waiting: list[int] = []
            if key.stored >= 0:
                state = _one([column[key.stored] for column in held]) if has[key.stored] else None
                waiting = timers[key.stored] or []
            context = TimerContext(_one(found), state, waiting, rows.now)
            before = (state, list(waiting))
            self._call(context, key, rows, inputs, dict(zip(self.keys, found)), made)
            self._keep(context, before, key, made)
        yield rows.changes(
            made.written, [min(timers, default=None) for timers in made.timers], self._values(made, rows, keys)
        )
        yield rows.removals(made.gone)
        yield rows.given(self._given(made, rows, keys))

    def _call(
        self,
        context: TimerContext,
        key: KeyRows,
        rows: TurnRows,
        inputs: Sequence[Values],
        named: dict[str, Any],
        made: _Made,
    ) -> None:
        for place in key.new:
            values = [column[place] for column in inputs]
            try:
                self._gather(self.process.on_row(context, *values), key, made)
            except (Exception, SystemExit) as error:
                fail(self.label, error, {**named, **dict(zip([name for _, name in self.inputs], values))})
        while context._timers and rows.is_due(context._timers[0]):
            context._fires = context._timers.pop(0)
            try:
                self._gather(self.process.on_time(context, _moment(context._fires)), key, made)
            except (Exception, SystemExit) as error:
                fail(self.label, error, {}, place=f"in on_time({_moment(context._fires)}) of the key {named}")

    def _gather(self, result: Any, key: KeyRows, made: _Made) -> None:
        count = len(made.results)
        _gather_any([result], made.results, [], len(self.outputs) > 1)
        made.of += [key.any] * (len(made.results) - count)

    def _keep(self, context: TimerContext, before: Any, key: KeyRows, made: _Made) -> None:
        if context.state is None and not context._timers:
            if key.stored >= 0:
                made.gone.append(key.stored)
        # A state that was changed in place is equal to what it was before: only a key that was not called is kept.
        elif key.new or context._fires is not None or (context.state, context._timers) != before:
            made.written.append(key.any)
            made.states.append(context.state)
            made.timers.append(list(context._timers))

    def _values(self, made: _Made, rows: TurnRows, keys: Sequence[Values]) -> dict[str, pa.Array]:
        names = [name for name, _ in self.state]

        def fails(at: int, error: Exception, **details: str) -> None:
            fail(self.label, error, {n: column[made.written[at]] for n, column in zip(self.keys, keys)}, **details)

        wide = len(names) > 1
        for at, state in enumerate(made.states):
            if wide and state is not None and (not isinstance(state, (tuple, list)) or len(state) != len(names)):
                found = WrongValue(
                    "the state has another number of values than it has fields",
                    cut_repr(state),
                    f"a tuple of {len(names)} for {', '.join(names)}",
                )
                fails(at, found, **found.details)
        columns = []
        for place, (name, kind) in enumerate(self.state):
            values = [None if state is None else state[place] if wide else state for state in made.states]
            try:
                columns.append(to_arrow(values, kind, name)[0])
            except WrongValue as error:
                wrong = WrongValue(f"a value of the state's field {error.path!r} is not of its type", "", "")
                fails(error.position, wrong, **error.details)
        none = pa.array([state is None for state in made.states], pa.bool_())
        return {
            VALUE: pa.StructArray.from_arrays(columns, fields=list(self.value), mask=none),
            TIMERS: pa.array(made.timers, pa.list_(pa.int64())),
        }

    def _given(self, made: _Made, rows: TurnRows, keys: Sequence[Values]) -> pa.Array:
        count = len(made.results)
        arrays, _ = output_arrays(
            self.label,
            Results(made.results, range(1, count + 1)),
            [name for name, _ in self.outputs],
            [kind for _, kind in self.outputs],
            lambda at: {name: column[made.of[at]] for name, column in zip(self.keys, keys)},
        )
        of = pa.array(made.of, pa.int64())
        columns = [rows.columns[name].take(of) for name in self.keys] + [arrays[name] for name, _ in self.outputs]
        return pa.StructArray.from_arrays(columns, fields=list(self.given))


def _one(values: Sequence[Any]) -> Any:
    """The value, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)
